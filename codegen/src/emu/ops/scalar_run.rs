//! How scalar instructions run: fetch operands, apply a function, write the destination and SCC.
//!
//! One set of executors serves 32 and 64 bits: the function's types say which ([`Scalar`]).

use crate::emu::fault::Fault;
use crate::emu::op::Flow;
use crate::emu::step::{Operand, Step};
use crate::emu::wave::Wave;

/// A scalar value of one or two registers.
pub(super) trait Scalar: Copy + Default + PartialEq {
    fn read(w: &Wave, operand: Operand) -> Self;
    fn write(self, w: &mut Wave, n: u8);
}

impl Scalar for u32 {
    #[inline]
    fn read(w: &Wave, operand: Operand) -> Self {
        w.scalar(operand)
    }
    #[inline]
    fn write(self, w: &mut Wave, n: u8) {
        w.set_s(n, self);
    }
}

impl Scalar for u64 {
    #[inline]
    fn read(w: &Wave, operand: Operand) -> Self {
        w.scalar64(operand)
    }
    #[inline]
    fn write(self, w: &mut Wave, n: u8) {
        w.set_s64(n, self);
    }
}

type Outcome = Result<Flow, Fault>;

/// Writes operand 0.
#[inline]
pub(super) fn write<D: Scalar>(w: &mut Wave, s: &Step, value: D) -> Outcome {
    match s.args[0] {
        Operand::S(n) => {
            value.write(w, n);
            Ok(Flow::Next)
        }
        other => Err(Fault::Operand(format!("{other:?} as destination"))),
    }
}

/// Writes operand 0, and whether it is not zero to SCC.
#[inline]
fn write_nonzero<D: Scalar>(w: &mut Wave, s: &Step, value: D) -> Outcome {
    w.scc = value != D::default();
    write(w, s, value)
}

/// Of one source; SCC stays.
pub(super) fn unary<A: Scalar, D: Scalar>(w: &mut Wave, s: &Step, f: impl Fn(A) -> D) -> Outcome {
    let value = f(A::read(w, s.args[1]));
    write(w, s, value)
}

/// Of one source; SCC tells whether the result is not zero.
pub(super) fn unary_nonzero<A: Scalar, D: Scalar>(w: &mut Wave, s: &Step, f: impl Fn(A) -> D) -> Outcome {
    let value = f(A::read(w, s.args[1]));
    write_nonzero(w, s, value)
}

/// Of two sources; SCC stays.
pub(super) fn keep<A: Scalar, B: Scalar, D: Scalar>(w: &mut Wave, s: &Step, f: impl Fn(A, B) -> D) -> Outcome {
    let value = f(A::read(w, s.args[1]), B::read(w, s.args[2]));
    write(w, s, value)
}

/// Of two sources; SCC tells whether the result is not zero.
pub(super) fn set_nonzero<A: Scalar, B: Scalar, D: Scalar>(w: &mut Wave, s: &Step, f: impl Fn(A, B) -> D) -> Outcome {
    let value = f(A::read(w, s.args[1]), B::read(w, s.args[2]));
    write_nonzero(w, s, value)
}

/// Of two sources and SCC, with a new SCC.
pub(super) fn set_scc(w: &mut Wave, s: &Step, f: impl Fn(u32, u32, bool) -> (u32, bool)) -> Outcome {
    let (value, scc) = f(w.scalar(s.args[1]), w.scalar(s.args[2]), w.scc);
    w.scc = scc;
    write(w, s, value)
}

/// Of two sources and SCC, which stays.
pub(super) fn select<D: Scalar>(w: &mut Wave, s: &Step, f: impl Fn(D, D, bool) -> D) -> Outcome {
    let value = f(D::read(w, s.args[1]), D::read(w, s.args[2]), w.scc);
    write(w, s, value)
}

/// Of one source, only if SCC is set.
pub(super) fn cmov<D: Scalar>(w: &mut Wave, s: &Step, f: impl Fn(D) -> D) -> Outcome {
    if w.scc { unary(w, s, f) } else { Ok(Flow::Next) }
}

/// Of the destination and one source; SCC stays.
pub(super) fn update<D: Scalar>(w: &mut Wave, s: &Step, f: impl Fn(D, u32) -> D) -> Outcome {
    let value = f(D::read(w, s.args[0]), w.scalar(s.args[1]));
    write(w, s, value)
}

/// Of the destination and a constant, with a new SCC.
pub(super) fn constant(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> (u32, bool)) -> Outcome {
    let (value, scc) = f(w.scalar(s.args[0]), w.scalar(s.args[1]));
    w.scc = scc;
    write(w, s, value)
}

/// Of three sources; SCC stays.
pub(super) fn ternary(w: &mut Wave, s: &Step, f: impl Fn(u32, u32, u32) -> u32) -> Outcome {
    let value = f(w.scalar(s.args[1]), w.scalar(s.args[2]), w.scalar(s.args[3]));
    write(w, s, value)
}

/// Of two sources and the destination; SCC stays.
pub(super) fn accumulate(w: &mut Wave, s: &Step, f: impl Fn(u32, u32, u32) -> u32) -> Outcome {
    let value = f(w.scalar(s.args[1]), w.scalar(s.args[2]), w.scalar(s.args[0]));
    write(w, s, value)
}

/// A comparison of two sources: sets SCC.
pub(super) fn compare<A: Scalar, B: Scalar>(w: &mut Wave, s: &Step, f: impl Fn(A, B) -> bool) -> Outcome {
    w.scc = f(A::read(w, s.args[0]), B::read(w, s.args[1]));
    Ok(Flow::Next)
}

/// Replaces exec; the destination takes the old one.
pub(super) fn save_exec(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> u32) -> Outcome {
    let (old, new) = (w.exec(), f(w.scalar(s.args[1]), w.exec()));
    w.set_exec(new);
    w.scc = new != 0;
    write(w, s, old)
}

/// Replaces exec; the destination takes the new one.
pub(super) fn write_exec(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> u32) -> Outcome {
    let new = f(w.scalar(s.args[1]), w.exec());
    w.set_exec(new);
    w.scc = new != 0;
    write(w, s, new)
}

/// Table entries of scalar ops: destinations, kind of constants, executor, functions.
macro_rules! scalar {
    ($dsts:literal, $literal:ident, $run:path: $($f:ident),+ $(,)?) => {
        [$(crate::emu::op::Op {
            name: stringify!($f),
            class: crate::counts::Class::Salu,
            dsts: $dsts,
            accepts: crate::emu::op::accepts::NONE,
            literal: crate::emu::op::Literal::$literal,
            run: |w, _, s| $run(w, s, $f),
        }),+]
    };
}

pub(super) use scalar;
