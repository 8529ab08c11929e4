//! The instruction table: every opcode that the emulator executes, grouped by unit. `codegen/ISA.md` is its list.

mod atomic;
mod buffer;
mod carry;
mod compare;
mod control;
mod convert;
mod cross_lane;
mod dot;
mod double;
mod f32_special;
pub(super) mod formats;
mod fp8;
mod global;
mod global_atomic;
mod half;
#[cfg(test)]
mod half_tests;
mod int16;
mod lds;
mod lds_atomic;
mod lds_lane;
mod matrix;
mod packed;
mod reach;
mod salu;
mod salu64;
mod salu_float;
mod scalar_run;
mod smem;
mod tables;
mod valu_f32;
mod valu_int;

use super::op::Op;

/// Every opcode.
pub fn all() -> impl Iterator<Item = &'static Op> {
    let groups = [
        control::OPS,
        salu::OPS,
        salu64::OPS,
        salu_float::OPS,
        smem::OPS,
        valu_f32::OPS,
        f32_special::OPS,
        valu_int::OPS,
        int16::OPS,
        carry::OPS,
        compare::OPS,
        convert::OPS,
        cross_lane::OPS,
        half::OPS,
        packed::OPS,
        dot::OPS,
        double::OPS,
        matrix::OPS,
        global::OPS,
        global_atomic::OPS,
        lds::OPS,
        lds_atomic::OPS,
        lds_lane::OPS,
    ];
    groups.into_iter().flatten().copied().flatten()
}

/// A table entry for a vector op whose sources and result have 32 bits and no float modifiers.
macro_rules! vector_int {
    ($class:ident, $shape:ident, $($f:ident),+ $(,)?) => {
        [$(crate::emu::op::Op {
            name: stringify!($f),
            class: crate::counts::Class::$class,
            dsts: 1,
            accepts: crate::emu::op::accepts::DPP,
            literal: crate::emu::op::Literal::B32,
            run: |w, _, s| crate::emu::lanes::$shape(w, s, $f),
        }),+]
    };
}

/// A table entry for a vector op whose sources and result are f32.
macro_rules! vector_f32 {
    ($class:ident, $shape:ident, $($f:ident),+ $(,)?) => {
        [$(crate::emu::op::Op {
            name: stringify!($f),
            class: crate::counts::Class::$class,
            dsts: 1,
            accepts: crate::emu::op::accepts::FLOAT,
            literal: crate::emu::op::Literal::B32,
            run: |w, _, s| crate::emu::lanes::$shape(w, s, $f),
        }),+]
    };
}

use tables::{vector, vector_any};
use {vector_f32, vector_int};
