//! exp, log and log1p as fixed programs of correctly rounded f32 steps: one definition for the interpreter and for
//! every target. A [`Machine`] performs the steps (on numbers, or by emitting code).

/// Something that performs single f32 and i32 operations.
#[allow(clippy::wrong_self_convention)] // `from_bits` is named after f32::from_bits; the receiver is the machine.
pub trait Machine {
    /// An f32 value.
    type F: Copy;
    /// An i32 value.
    type I: Copy;
    /// A truth value.
    type B: Copy;

    fn f32(&mut self, x: f32) -> Self::F;
    fn i32(&mut self, x: i32) -> Self::I;
    fn add(&mut self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(&mut self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(&mut self, a: Self::F, b: Self::F) -> Self::F;
    fn div(&mut self, a: Self::F, b: Self::F) -> Self::F;
    fn fma(&mut self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    fn abs(&mut self, a: Self::F) -> Self::F;
    fn neg(&mut self, a: Self::F) -> Self::F;
    fn sqrt(&mut self, a: Self::F) -> Self::F;
    /// To integral, ties to even.
    fn rint(&mut self, a: Self::F) -> Self::F;
    /// Truncating, saturating, NaN gives 0.
    fn to_i32(&mut self, a: Self::F) -> Self::I;
    fn to_f32(&mut self, a: Self::I) -> Self::F;
    fn bits(&mut self, a: Self::F) -> Self::I;
    fn from_bits(&mut self, a: Self::I) -> Self::F;
    /// Wrapping.
    fn iadd(&mut self, a: Self::I, b: Self::I) -> Self::I;
    fn isub(&mut self, a: Self::I, b: Self::I) -> Self::I;
    fn iand(&mut self, a: Self::I, b: Self::I) -> Self::I;
    fn shl(&mut self, a: Self::I, n: u32) -> Self::I;
    /// Arithmetic.
    fn shr(&mut self, a: Self::I, n: u32) -> Self::I;
    /// Ordered a < b.
    fn lt(&mut self, a: Self::F, b: Self::F) -> Self::B;
    /// Ordered a >= b.
    fn ge(&mut self, a: Self::F, b: Self::F) -> Self::B;
    /// True for NaN.
    fn is_nan(&mut self, a: Self::F) -> Self::B;
    fn select(&mut self, c: Self::B, a: Self::F, b: Self::F) -> Self::F;
}

/// The machine that computes: f32 and i32 of the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scalar;

impl Machine for Scalar {
    type F = f32;
    type I = i32;
    type B = bool;

    #[inline(always)]
    fn f32(&mut self, x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn i32(&mut self, x: i32) -> i32 {
        x
    }
    #[inline(always)]
    fn add(&mut self, a: f32, b: f32) -> f32 {
        a + b
    }
    #[inline(always)]
    fn sub(&mut self, a: f32, b: f32) -> f32 {
        a - b
    }
    #[inline(always)]
    fn mul(&mut self, a: f32, b: f32) -> f32 {
        a * b
    }
    #[inline(always)]
    fn div(&mut self, a: f32, b: f32) -> f32 {
        a / b
    }
    #[inline(always)]
    fn fma(&mut self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn abs(&mut self, a: f32) -> f32 {
        a.abs()
    }
    #[inline(always)]
    fn neg(&mut self, a: f32) -> f32 {
        -a
    }
    #[inline(always)]
    fn sqrt(&mut self, a: f32) -> f32 {
        a.sqrt()
    }
    #[inline(always)]
    fn rint(&mut self, a: f32) -> f32 {
        a.round_ties_even()
    }
    #[inline(always)]
    fn to_i32(&mut self, a: f32) -> i32 {
        a as i32
    }
    #[inline(always)]
    fn to_f32(&mut self, a: i32) -> f32 {
        a as f32
    }
    #[inline(always)]
    fn bits(&mut self, a: f32) -> i32 {
        a.to_bits() as i32
    }
    #[inline(always)]
    fn from_bits(&mut self, a: i32) -> f32 {
        f32::from_bits(a as u32)
    }
    #[inline(always)]
    fn iadd(&mut self, a: i32, b: i32) -> i32 {
        a.wrapping_add(b)
    }
    #[inline(always)]
    fn isub(&mut self, a: i32, b: i32) -> i32 {
        a.wrapping_sub(b)
    }
    #[inline(always)]
    fn iand(&mut self, a: i32, b: i32) -> i32 {
        a & b
    }
    #[inline(always)]
    fn shl(&mut self, a: i32, n: u32) -> i32 {
        a.wrapping_shl(n)
    }
    #[inline(always)]
    fn shr(&mut self, a: i32, n: u32) -> i32 {
        a.wrapping_shr(n)
    }
    #[inline(always)]
    fn lt(&mut self, a: f32, b: f32) -> bool {
        a < b
    }
    #[inline(always)]
    fn ge(&mut self, a: f32, b: f32) -> bool {
        a >= b
    }
    #[inline(always)]
    fn is_nan(&mut self, a: f32) -> bool {
        a.is_nan()
    }
    #[inline(always)]
    fn select(&mut self, c: bool, a: f32, b: f32) -> f32 {
        if c { a } else { b }
    }
}

/// Cody-Waite split of ln 2: the high part has 9 trailing zero bits, so n * LN2_HI is exact for |n| < 2^9.
const LN2_HI: f32 = 0.693_145_75;
const LN2_LO: f32 = 1.428_606_8e-6;
/// Above this exp overflows to infinity, below the other it is 0: the scaling by two powers stays in range.
const EXP_MAX: f32 = 89.0;
const EXP_MIN: f32 = -104.0;
/// Bits of sqrt(1/2), the lower end of the mantissas that log takes.
const SQRT_HALF_BITS: i32 = 0x3f35_04f3;
/// R(s^2) / s^2 in [`log_core`].
const LOG_R: [f32; 4] = [0.666_666_6, 0.400_009_72, 0.284_987_87, 0.242_790_79];

/// e^x, at most 1 ulp from the real value for every f32; denormal results are rounded once more by their scaling
/// (worst over all inputs 0.78 ulp, among the denormals).
#[inline(always)]
pub fn exp<M: Machine>(m: &mut M, x: M::F) -> M::F {
    let (hi, lo) = (m.f32(EXP_MAX), m.f32(EXP_MIN));
    let above = m.lt(hi, x);
    let below = m.lt(x, lo);
    let capped = m.select(above, hi, x);
    let t = m.select(below, lo, capped);
    let log2e = m.f32(std::f32::consts::LOG2_E);
    let scaled = m.mul(t, log2e);
    let n = m.rint(scaled);
    let neg_n = m.neg(n);
    let (c_hi, c_lo) = (m.f32(LN2_HI), m.f32(LN2_LO));
    let r0 = m.fma(neg_n, c_hi, t);
    let r = m.fma(neg_n, c_lo, r0);
    // What the rounding of r lost, times e^r ~ 1 + r: alone it would cost a quarter ulp, and silu would miss its bound
    // where exp is denormal.
    let lost = m.sub(r0, r);
    let lost = m.fma(neg_n, c_lo, lost);
    let lost = m.fma(r, lost, lost);
    // e^r = 1 + r + r^2 * (1/2 + r/6 + ...): Taylor terms to r^7, |r| <= 0.347, remainder below 2^-28.
    let mut p = m.f32(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        let c = m.f32(c);
        p = m.fma(p, r, c);
    }
    let r2 = m.mul(r, r);
    let tail = m.fma(p, r2, lost);
    let one = m.f32(1.0);
    let (top, rest) = fast_two_sum(m, one, r);
    let tail = m.add(rest, tail);
    let y = m.add(top, tail);
    scale_by_power(m, y, n)
}

/// 1.5 * 2^23: the sum with an integer of at most 22 bits has that integer in its low bits.
const INTEGER_SHIFT: f32 = 12_582_912.0;

/// y * 2^n in two factors, so that results below the normal range are rounded once and 2^128 is never formed.
#[inline(always)]
fn scale_by_power<M: Machine>(m: &mut M, y: M::F, n: M::F) -> M::F {
    // n is integral and small: adding 1.5 * 2^23 leaves it in the low bits. A conversion would be scalar code on the host.
    let (shift, shift_bits) = (m.f32(INTEGER_SHIFT), m.i32(INTEGER_SHIFT.to_bits() as i32));
    let shifted = m.add(n, shift);
    let bits = m.bits(shifted);
    let n = m.isub(bits, shift_bits);
    let half = m.shr(n, 1);
    let rest = m.isub(n, half);
    let bias = m.i32(127);
    let mut out = y;
    for e in [half, rest] {
        let biased = m.iadd(e, bias);
        let bits = m.shl(biased, 23);
        let factor = m.from_bits(bits);
        out = m.mul(out, factor);
    }
    out
}

/// t = exp(-|x|); (x >= 0 ? 1 : t) / (1 + t).
#[inline(always)]
pub fn sigmoid<M: Machine>(m: &mut M, x: M::F) -> M::F {
    let a = m.abs(x);
    let na = m.neg(a);
    let t = exp(m, na);
    let (zero, one) = (m.f32(0.0), m.f32(1.0));
    let positive = m.ge(x, zero);
    let top = m.select(positive, one, t);
    let bottom = m.add(one, t);
    m.div(top, bottom)
}

/// 1 / sqrt(x), both steps correctly rounded.
#[inline(always)]
pub fn rsqrt<M: Machine>(m: &mut M, x: M::F) -> M::F {
    let one = m.f32(1.0);
    let s = m.sqrt(x);
    m.div(one, s)
}

/// log(1 + f) for 1 + f in [sqrt(1/2), sqrt(2)), plus n ln 2 and a small correction c. With s = f / (2 + f),
/// log(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2)), R = 2/3 s^2 + 2/5 s^4 + ... (coefficients fitted to f32).
#[inline(always)]
fn log_core<M: Machine>(m: &mut M, f: M::F, n: M::F, c: M::F) -> M::F {
    let (half, two) = (m.f32(0.5), m.f32(2.0));
    let below = m.add(two, f);
    let s = m.div(f, below);
    let z = m.mul(s, s);
    let mut p = m.f32(LOG_R[3]);
    for k in [LOG_R[2], LOG_R[1], LOG_R[0]] {
        let k = m.f32(k);
        p = m.fma(p, z, k);
    }
    let r = m.mul(p, z);
    let hf = m.mul(half, f);
    let h = m.mul(hf, f);
    // h_low = exact f^2/2 - h: without it the rounding of h alone could cost half an ulp.
    let neg_h = m.neg(h);
    let h_low = m.fma(hf, f, neg_h);
    let hr = m.add(h, r);
    let (c_hi, c_lo) = (m.f32(LN2_HI), m.f32(LN2_LO));
    let low = m.fma(n, c_lo, c);
    let low = m.sub(low, h_low);
    let low = m.fma(s, hr, low);
    // big + small = n ln2_hi + f, then the rest from small to large.
    let big = m.mul(n, c_hi);
    let (top, top_low) = fast_two_sum(m, big, f);
    let (top, h_rest) = fast_two_sum(m, top, neg_h);
    let rest = m.add(top_low, h_rest);
    let rest = m.add(rest, low);
    m.add(top, rest)
}

/// a + b and its exact rounding error, for |a| >= |b| or a = 0.
#[inline(always)]
fn fast_two_sum<M: Machine>(m: &mut M, a: M::F, b: M::F) -> (M::F, M::F) {
    let s = m.add(a, b);
    let bb = m.sub(s, a);
    let e = m.sub(b, bb);
    (s, e)
}

/// n and f with x = 2^n (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), for a positive normal x.
#[inline(always)]
fn split_power<M: Machine>(m: &mut M, x: M::F) -> (M::I, M::F) {
    let bits = m.bits(x);
    let (root, mask, one) = (m.i32(SQRT_HALF_BITS), m.i32(0x007f_ffff), m.f32(1.0));
    let off = m.isub(bits, root);
    let n = m.shr(off, 23);
    let fraction = m.iand(off, mask);
    let mantissa = m.iadd(fraction, root);
    let y = m.from_bits(mantissa);
    let f = m.sub(y, one);
    (n, f)
}

/// Natural logarithm, at most 1 ulp from the real value (worst over all inputs 0.65). log(+-0) = -inf, log of a negative number is NaN.
#[inline(always)]
pub fn log<M: Machine>(m: &mut M, x: M::F) -> M::F {
    // Denormals are scaled by 2^23 first.
    let (tiny, grow) = (m.f32(f32::MIN_POSITIVE), m.f32(8_388_608.0));
    let small = m.lt(x, tiny);
    let grown = m.mul(x, grow);
    let y = m.select(small, grown, x);
    let (n, f) = split_power(m, y);
    let n = m.to_f32(n);
    let shift = m.f32(23.0);
    let shifted = m.sub(n, shift);
    let n = m.select(small, shifted, n);
    let zero = m.f32(0.0);
    let r = log_core(m, f, n, zero);
    log_ends(m, x, r)
}

/// `r` inside (0, inf); the limits and NaN outside.
#[inline(always)]
fn log_ends<M: Machine>(m: &mut M, x: M::F, r: M::F) -> M::F {
    let (zero, inf, nan) = (m.f32(0.0), m.f32(f32::INFINITY), m.f32(f32::NAN));
    let neg_inf = m.f32(f32::NEG_INFINITY);
    let positive = m.lt(zero, x);
    let finite = m.lt(x, inf);
    let not_negative = m.ge(x, zero);
    let at_zero = m.select(not_negative, neg_inf, nan);
    // x = +inf gives x; NaN is not positive and ends in `nan`.
    let up = m.select(finite, r, x);
    m.select(positive, up, at_zero)
}

/// log(1 + x), at most 1 ulp from the real value. log1p(-1) = -inf, below it NaN; log1p(-0) = -0.
#[inline(always)]
pub fn log1p<M: Machine>(m: &mut M, x: M::F) -> M::F {
    let one = m.f32(1.0);
    // u + d = 1 + x exactly (two-sum needs the larger operand first).
    let large = m.ge(x, one);
    let a = m.select(large, x, one);
    let b = m.select(large, one, x);
    let (u, d) = fast_two_sum(m, a, b);
    let (n_int, f) = split_power(m, u);
    let n = m.to_f32(n_int);
    // log(u + d) = log(u) + d/u, the next term is below 2^-48.
    let c = m.div(d, u);
    // Near 0 the argument itself is f: nothing is lost in 1 + x.
    let (lo, hi, zero) = (m.f32(-0.292_893_2), m.f32(0.414_213_5), m.f32(0.0));
    let above = m.ge(x, lo);
    let capped = m.select(above, x, hi);
    let near = m.lt(capped, hi);
    let f = m.select(near, x, f);
    let n = m.select(near, zero, n);
    let c = m.select(near, zero, c);
    let r = log_core(m, f, n, c);
    let minute = m.f32(5.960_464_5e-8);
    let size = m.abs(x);
    let exact = m.lt(size, minute);
    // Below 2^-24 the result is x to half an ulp: x^2/2 would underflow, and -0 stays.
    let r = m.select(exact, x, r);
    let u = m.select(exact, one, u);
    log_ends(m, u, r)
}
