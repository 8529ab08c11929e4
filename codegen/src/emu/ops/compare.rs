//! Vector comparisons: lane masks, to a scalar register (`v_cmp`) or to exec (`v_cmpx`, with no destination).

use std::cmp::Ordering;

use half::f16;

use crate::counts::Class;
use crate::emu::lanes::{Width, compare, compare32};
use crate::emu::op::{Literal, Op, Run, accepts};

fn eq<T: PartialOrd>(a: T, b: T) -> bool {
    a == b
}

fn ne<T: PartialOrd>(a: T, b: T) -> bool {
    a != b
}

fn lt<T: PartialOrd>(a: T, b: T) -> bool {
    a < b
}

fn le<T: PartialOrd>(a: T, b: T) -> bool {
    a <= b
}

fn gt<T: PartialOrd>(a: T, b: T) -> bool {
    a > b
}

fn ge<T: PartialOrd>(a: T, b: T) -> bool {
    a >= b
}

fn lg<T: PartialOrd>(a: T, b: T) -> bool {
    matches!(a.partial_cmp(&b), Some(Ordering::Less | Ordering::Greater))
}

/// Ordered: neither is NaN.
fn o<T: PartialOrd>(a: T, b: T) -> bool {
    a.partial_cmp(&b).is_some()
}

fn u<T: PartialOrd>(a: T, b: T) -> bool {
    !o(a, b)
}

fn neq<T: PartialOrd>(a: T, b: T) -> bool {
    !eq(a, b)
}

fn nlt<T: PartialOrd>(a: T, b: T) -> bool {
    !lt(a, b)
}

fn nle<T: PartialOrd>(a: T, b: T) -> bool {
    !le(a, b)
}

fn ngt<T: PartialOrd>(a: T, b: T) -> bool {
    !gt(a, b)
}

fn nge<T: PartialOrd>(a: T, b: T) -> bool {
    !ge(a, b)
}

fn nlg<T: PartialOrd>(a: T, b: T) -> bool {
    !lg(a, b)
}

const fn entry(name: &'static str, dsts: u8, accepts: u16, literal: Literal, run: Run) -> Op {
    Op { name, class: Class::Valu, dsts, accepts, literal, run }
}

/// Both forms of each predicate on a type: `compare` runs the function on both sources as `read` gives them.
macro_rules! predicates {
    ($ty:literal, $accepts:expr, $literal:ident, $run:ident, $($predicate:ident),+) => {
        &[$(
            entry(concat!("v_cmp_", stringify!($predicate), "_", $ty), 1, $accepts, Literal::$literal,
                |w, _, s| $run(w, s, $predicate)),
            entry(concat!("v_cmpx_", stringify!($predicate), "_", $ty), 0, $accepts, Literal::$literal,
                |w, _, s| $run(w, s, $predicate)),
        )+]
    };
}

macro_rules! float {
    ($ty:literal, $accepts:expr, $literal:ident, $run:ident) => {
        predicates!($ty, $accepts, $literal, $run, eq, lt, le, gt, ge, lg, o, u, neq, nlt, nle, ngt, nge, nlg)
    };
}

macro_rules! integer {
    ($ty:literal, $accepts:expr, $literal:ident, $run:ident) => {
        predicates!($ty, $accepts, $literal, $run, eq, ne, lt, le, gt, ge)
    };
}

/// A run function of the predicate on a type that sources become.
macro_rules! reader {
    ($name:ident, $ty:ty, 32, $read:expr) => {
        #[inline]
        fn $name(
            w: &mut crate::emu::wave::Wave,
            s: &crate::emu::step::Step,
            f: impl Fn($ty, $ty) -> bool,
        ) -> Result<crate::emu::op::Flow, crate::emu::fault::Fault> {
            compare32(w, s, |a, b| f($read(a), $read(b)))
        }
    };
    ($name:ident, $ty:ty, $width:ident, $read:expr) => {
        fn $name(
            w: &mut crate::emu::wave::Wave,
            s: &crate::emu::step::Step,
            f: impl Fn($ty, $ty) -> bool,
        ) -> Result<crate::emu::op::Flow, crate::emu::fault::Fault> {
            compare(w, s, [Width::$width; 2], |a, b| f($read(a), $read(b)))
        }
    };
}

reader!(f32s, f32, 32, f32::from_bits);
reader!(i32s, i32, 32, u32::cast_signed);
reader!(u32s, u32, 32, u32::from);
reader!(f64s, f64, B64, f64::from_bits);
reader!(i64s, i64, B64, u64::cast_signed);
reader!(u64s, u64, B64, u64::from);
reader!(f16s, f16, B16, |x: u64| f16::from_bits(x as u16));
reader!(i16s, i16, B16, |x: u64| x as i16);
reader!(u16s, u16, B16, |x: u64| x as u16);

/// The class of a float as the bit that stands for it. `mantissa` is how many bits it has.
fn class(x: u64, mantissa: u32, exponent: u32) -> u32 {
    let negative = x >> (mantissa + exponent) & 1 == 1;
    let (fraction, biased) = (x & ((1 << mantissa) - 1), x >> mantissa & ((1 << exponent) - 1));
    let signed = |minus: u32, plus: u32| 1 << if negative { minus } else { plus };
    if biased == (1 << exponent) - 1 {
        return match fraction {
            0 => signed(2, 9),
            // The top bit of the fraction tells quiet from signalling.
            _ => 1 << (fraction >> (mantissa - 1)),
        };
    }
    match (biased, fraction) {
        (0, 0) => signed(5, 6),
        (0, _) => signed(4, 7),
        _ => signed(3, 8),
    }
}

macro_rules! class {
    ($ty:literal, $accepts:expr, $literal:ident, $widths:expr, $mantissa:literal, $exponent:literal) => {
        &[
            entry(concat!("v_cmp_class_", $ty), 1, $accepts, Literal::$literal, |w, _, s| {
                compare(w, s, $widths, |x, mask| class(x, $mantissa, $exponent) & mask as u32 != 0)
            }),
            entry(concat!("v_cmpx_class_", $ty), 0, $accepts, Literal::$literal, |w, _, s| {
                compare(w, s, $widths, |x, mask| class(x, $mantissa, $exponent) & mask as u32 != 0)
            }),
        ]
    };
}

const FLOAT: u16 = accepts::NEG_ABS | accepts::DPP;
const HALF: u16 = accepts::OP_SEL | accepts::DPP;

pub static OPS: &[&[Op]] = &[
    float!("f32", FLOAT, B32, f32s),
    integer!("i32", accepts::DPP, B32, i32s),
    integer!("u32", accepts::DPP, B32, u32s),
    float!("f64", accepts::NEG_ABS, F64, f64s),
    integer!("i64", accepts::NONE, I64, i64s),
    integer!("u64", accepts::NONE, B64, u64s),
    float!("f16", FLOAT | HALF, F16, f16s),
    integer!("i16", HALF, B32, i16s),
    integer!("u16", HALF, B32, u16s),
    class!("f32", FLOAT, B32, [Width::B32; 2], 23, 8),
    class!("f64", accepts::NEG_ABS, F64ThenB32, [Width::B64, Width::B32], 52, 11),
    class!("f16", FLOAT | HALF, F16, [Width::B16; 2], 10, 5),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes() {
        let bits = [
            (0x7f80_0001u32, 0),
            (0xffc0_0000, 1),
            (0xff80_0000, 2),
            (0xbf80_0000, 3),
            (0x8000_0001, 4),
            (0x8000_0000, 5),
            (0, 6),
            (0x007f_ffff, 7),
            (0x0080_0000, 8),
            (0x7f80_0000, 9),
        ];
        for (x, bit) in bits {
            assert_eq!(class(x.into(), 23, 8), 1 << bit, "{x:#x}");
        }
        assert_eq!(class(f64::MIN_POSITIVE.to_bits(), 52, 11), 1 << 8);
        assert_eq!(class(f16::NEG_INFINITY.to_bits().into(), 10, 5), 1 << 2);
    }

    #[test]
    fn unordered() {
        let nan = f32::NAN;
        assert!(u(nan, 1.0) && nlt(nan, 1.0) && nge(nan, 1.0) && neq(nan, nan) && nlg(nan, nan));
        assert!(!(o(nan, 1.0) || lt(nan, 1.0) || lg(nan, 1.0) || eq(nan, nan)));
        assert!(lg(1.0, 2.0) && nlg(1.0, 1.0) && o(1.0, 2.0) && ngt(1.0, 1.0) && !nle(1.0, 1.0));
    }
}
