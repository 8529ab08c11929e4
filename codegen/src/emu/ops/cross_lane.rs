//! Operations between lanes and from lanes to scalars.

use crate::emu::op::Op;

pub static OPS: &[&[Op]] = &[];
