//! LDS.

use crate::emu::op::Op;

pub static OPS: &[&[Op]] = &[];
