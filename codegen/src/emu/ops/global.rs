//! Global, flat and scratch memory.

use crate::emu::op::Op;

pub static OPS: &[&[Op]] = &[];
