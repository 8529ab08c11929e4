//! Vector comparisons: lane masks.

use crate::emu::op::Op;

pub static OPS: &[&[Op]] = &[];
