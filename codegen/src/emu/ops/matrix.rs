//! Matrix multiply-accumulate and dot products.

use crate::emu::op::Op;

pub static OPS: &[&[Op]] = &[];
