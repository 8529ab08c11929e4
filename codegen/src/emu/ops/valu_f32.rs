//! f32 arithmetic, minima and maxima.

use super::vector_f32;
use crate::emu::op::Op;

const fn f(x: u32) -> f32 {
    f32::from_bits(x)
}

const fn is_nan(x: u32) -> bool {
    x & 0x7fff_ffff > 0x7f80_0000
}

const fn signals(x: u32) -> bool {
    is_nan(x) & (x & 0x0040_0000 == 0)
}

const fn quiet(x: u32) -> u32 {
    x | 0x0040_0000
}

/// Orders floats as integers, -0 below +0; of no use for NaN.
const fn key(x: u32) -> i32 {
    (x ^ (x.cast_signed() >> 31).cast_unsigned() >> 1).cast_signed()
}

fn v_add_f32(a: u32, b: u32) -> u32 {
    (f(a) + f(b)).to_bits()
}

fn v_sub_f32(a: u32, b: u32) -> u32 {
    (f(a) - f(b)).to_bits()
}

fn v_subrev_f32(a: u32, b: u32) -> u32 {
    v_sub_f32(b, a)
}

fn v_mul_f32(a: u32, b: u32) -> u32 {
    (f(a) * f(b)).to_bits()
}

fn either_zero(a: u32, b: u32) -> bool {
    f(a) == 0.0 || f(b) == 0.0
}

fn v_mul_dx9_zero_f32(a: u32, b: u32) -> u32 {
    if either_zero(a, b) { 0 } else { v_mul_f32(a, b) }
}

/// `a * b + c` as an f64 that is rounded to odd: rounding it once more, to 51 bits or fewer, gives what rounding the
/// exact value does. A plain loop of f64 operations is several times faster than the C library's fused operation.
#[inline]
pub(super) fn fma_odd(a: f32, b: f32, c: f32) -> f64 {
    // Exact: 24 bits by 24 bits.
    let (product, addend) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + addend;
    // What the sum lost, exactly.
    let part = sum - product;
    let lost = (product - (sum - part)) + (addend - part);
    let bits = sum.to_bits();
    let inexact = u64::from(lost > 0.0) | u64::from(lost < 0.0);
    // An even sum moves to its odd neighbour on the side of the exact value: away from zero if signs agree.
    let toward_zero = (bits ^ lost.to_bits()) >> 63;
    let step = inexact & !bits & 1;
    f64::from_bits(bits.wrapping_add((step ^ 0u64.wrapping_sub(toward_zero)).wrapping_add(toward_zero)))
}

pub(super) fn v_fma_f32(a: u32, b: u32, c: u32) -> u32 {
    (fma_odd(f(a), f(b), f(c)) as f32).to_bits()
}

fn v_fma_dx9_zero_f32(a: u32, b: u32, c: u32) -> u32 {
    if either_zero(a, b) { c } else { v_fma_f32(a, b, c) }
}

fn v_fmac_f32(a: u32, b: u32, d: u32) -> u32 {
    v_fma_f32(a, b, d)
}

/// The constant is the second of the printed factors: `a`, K, `b`.
fn v_fmamk_f32(a: u32, k: u32, b: u32) -> u32 {
    v_fma_f32(a, k, b)
}

fn v_fmaak_f32(a: u32, b: u32, k: u32) -> u32 {
    v_fma_f32(a, b, k)
}

/// A number wins over NaN.
const fn number(a: u32, b: u32, first: bool) -> u32 {
    match (is_nan(a), is_nan(b)) {
        (true, true) => quiet(a),
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            if first {
                a
            } else {
                b
            }
        }
    }
}

/// NaN wins over a number; a signalling one over a quiet one. The last selection has precedence: selections without
/// branches vectorise.
const fn nan(a: u32, b: u32, first: bool) -> u32 {
    let mut out = if first { a } else { b };
    out = if is_nan(b) { b } else { out };
    out = if is_nan(a) { a } else { out };
    out = if signals(b) { quiet(b) } else { out };
    if signals(a) { quiet(a) } else { out }
}

pub(super) const fn v_min_num_f32(a: u32, b: u32) -> u32 {
    number(a, b, key(a) < key(b))
}

pub(super) const fn v_max_num_f32(a: u32, b: u32) -> u32 {
    number(a, b, key(a) > key(b))
}

pub(super) const fn v_minimum_f32(a: u32, b: u32) -> u32 {
    nan(a, b, key(a) < key(b))
}

pub(super) const fn v_maximum_f32(a: u32, b: u32) -> u32 {
    nan(a, b, key(a) > key(b))
}

const fn v_min3_num_f32(a: u32, b: u32, c: u32) -> u32 {
    v_min_num_f32(v_min_num_f32(a, b), c)
}

const fn v_max3_num_f32(a: u32, b: u32, c: u32) -> u32 {
    v_max_num_f32(v_max_num_f32(a, b), c)
}

const fn v_minimum3_f32(a: u32, b: u32, c: u32) -> u32 {
    v_minimum_f32(v_minimum_f32(a, b), c)
}

const fn v_maximum3_f32(a: u32, b: u32, c: u32) -> u32 {
    v_maximum_f32(v_maximum_f32(a, b), c)
}

/// The smallest if one is NaN.
fn v_med3_num_f32(a: u32, b: u32, c: u32) -> u32 {
    let most = f(v_max3_num_f32(a, b, c));
    if is_nan(a) || is_nan(b) || is_nan(c) {
        v_min3_num_f32(a, b, c)
    } else if most == f(a) {
        v_max_num_f32(b, c)
    } else if most == f(b) {
        v_max_num_f32(a, c)
    } else {
        v_max_num_f32(a, b)
    }
}

const fn v_minmax_num_f32(a: u32, b: u32, c: u32) -> u32 {
    v_max_num_f32(v_min_num_f32(a, b), c)
}

const fn v_maxmin_num_f32(a: u32, b: u32, c: u32) -> u32 {
    v_min_num_f32(v_max_num_f32(a, b), c)
}

const fn v_minimummaximum_f32(a: u32, b: u32, c: u32) -> u32 {
    v_maximum_f32(v_minimum_f32(a, b), c)
}

const fn v_maximumminimum_f32(a: u32, b: u32, c: u32) -> u32 {
    v_minimum_f32(v_maximum_f32(a, b), c)
}

fn v_mullit_f32(a: u32, b: u32, c: u32) -> u32 {
    let (second, third) = (f(b), f(c));
    let least = second.is_nan() || second <= f32::MIN || third.is_nan() || third <= 0.0;
    if least { f32::MIN.to_bits() } else { v_mul_f32(a, b) }
}

const BINARY: [Op; 9] = vector_f32!(
    Valu,
    f2,
    v_add_f32,
    v_sub_f32,
    v_subrev_f32,
    v_mul_f32,
    v_mul_dx9_zero_f32,
    v_min_num_f32,
    v_max_num_f32,
    v_minimum_f32,
    v_maximum_f32,
);
const ACCUMULATING: [Op; 1] = vector_f32!(Valu, f2_acc, v_fmac_f32);
const TERNARY: [Op; 14] = vector_f32!(
    Valu,
    f3,
    v_fma_f32,
    v_fma_dx9_zero_f32,
    v_fmamk_f32,
    v_fmaak_f32,
    v_min3_num_f32,
    v_max3_num_f32,
    v_med3_num_f32,
    v_minimum3_f32,
    v_maximum3_f32,
    v_minmax_num_f32,
    v_maxmin_num_f32,
    v_minimummaximum_f32,
    v_maximumminimum_f32,
    v_mullit_f32,
);

pub static OPS: &[&[Op]] = &[&BINARY, &ACCUMULATING, &TERNARY];

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Bits at the edges of f32.
    pub(in crate::emu::ops) const EDGES: [u32; 24] = [
        0,
        1,
        2,
        0x007f_ffff,
        0x0080_0000,
        0x0080_0001,
        0x0b80_0000,
        0x2000_0000,
        0x3380_0000,
        0x3f00_0000,
        0x3f7f_ffff,
        0x3f80_0000,
        0x3f80_0001,
        0x4000_0000,
        0x4b7f_ffff,
        0x4b80_0000,
        0x5f00_0000,
        0x7e80_0000,
        0x7f00_0000,
        0x7f7f_fffe,
        0x7f7f_ffff,
        0x7f80_0000,
        0x7fc0_0000,
        0x7fe1_dead,
    ];

    const MINUS: u32 = 1 << 31;

    /// A stream of words.
    pub(in crate::emu::ops) struct Random(pub u64);

    impl Random {
        pub(in crate::emu::ops) fn next(&mut self) -> u32 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as u32 ^ (self.0 >> 17) as u32
        }

        /// Any word, an edge, or one whose exponent lies near 1.
        pub(in crate::emu::ops) fn float(&mut self) -> u32 {
            let x = self.next();
            let sign = x & 1 << 31;
            match self.next() % 4 {
                0 => x,
                1 => sign | EDGES[(x % 24) as usize],
                _ => sign | (0x3800_0000 + (x & 0x0fff_ffff)),
            }
        }
    }

    fn same(a: u32, b: u32) -> bool {
        a == b || f(a).is_nan() && f(b).is_nan()
    }

    fn check(a: u32, b: u32, c: u32) {
        let (got, want) = (v_fma_f32(a, b, c), f(a).mul_add(f(b), f(c)).to_bits());
        assert!(same(got, want), "fma({a:#x}, {b:#x}, {c:#x}) = {got:#x}, not {want:#x}");
    }

    #[test]
    fn fused() {
        let signed = || EDGES.iter().flat_map(|x| [*x, *x | 1 << 31]);
        for (a, b) in signed().flat_map(|a| signed().map(move |b| (a, b))) {
            signed().for_each(|c| check(a, b, c));
            // Cancellation: c just beside the product.
            for offset in 0..5 {
                check(a, b, v_mul_f32(a, b).wrapping_sub(2).wrapping_add(offset) ^ MINUS);
            }
        }
        let mut r = Random(1);
        for _ in 0..2_000_000 {
            let (a, b, c) = (r.float(), r.float(), r.float());
            check(a, b, c);
            check(a, b, v_mul_f32(a, b) ^ MINUS ^ (r.next() % 8));
        }
    }

    #[test]
    fn minima() {
        let (nan, signalling, minus) = (0x7fc0_0001u32, 0x7f80_0001u32, 1u32 << 31);
        assert_eq!(v_min_num_f32(nan, 5), 5);
        assert_eq!(v_max_num_f32(5, signalling), 5);
        assert_eq!(v_max_num_f32(signalling, nan), 0x7fc0_0001);
        assert_eq!([v_min_num_f32(0, minus), v_min_num_f32(minus, 0)], [minus; 2]);
        assert_eq!([v_max_num_f32(0, minus), v_max_num_f32(minus, 0)], [0; 2]);
        assert_eq!([v_maximum_f32(nan, 5), v_minimum_f32(5, signalling)], [nan, 0x7fc0_0001]);
        assert_eq!([v_minimum_f32(0, minus), v_maximum_f32(minus, 0)], [minus, 0]);
        let one = 1f32.to_bits();
        assert_eq!(v_med3_num_f32(one, 0, minus | one), 0);
        assert_eq!(v_med3_num_f32(one, nan, minus | one), minus | one);
    }
}
