//! f32 arithmetic.

use super::vector_f32;
use crate::emu::op::Op;

fn f(x: u32) -> f32 {
    f32::from_bits(x)
}

fn v_add_f32(a: u32, b: u32) -> u32 {
    (f(a) + f(b)).to_bits()
}

fn v_fma_f32(a: u32, b: u32, c: u32) -> u32 {
    f(a).mul_add(f(b), f(c)).to_bits()
}

const BINARY: [Op; 1] = vector_f32!(Valu, f2, v_add_f32);
const TERNARY: [Op; 1] = vector_f32!(Valu, f3, v_fma_f32);

pub static OPS: &[&[Op]] = &[&BINARY, &TERNARY];
