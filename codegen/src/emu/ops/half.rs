//! f16 arithmetic, packed and mixed.

use crate::emu::op::Op;

pub static OPS: &[&[Op]] = &[];
