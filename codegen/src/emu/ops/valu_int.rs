//! Integer arithmetic and bit operations of vectors.

use super::vector_int;
use crate::emu::op::Op;

const fn v_add_nc_u32(a: u32, b: u32) -> u32 {
    a.wrapping_add(b)
}

const BINARY: [Op; 1] = vector_int!(Valu, u2, v_add_nc_u32);

pub static OPS: &[&[Op]] = &[&BINARY];
