//! f64 arithmetic.

use crate::emu::op::Op;

pub static OPS: &[&[Op]] = &[];
