//! Inner loops, compiled twice: for the baseline and for x86-64-v3, chosen at run time.
//!
//! Both give the same bits, since every step is a correctly rounded IEEE operation in a fixed order; without the fma
//! instruction each `mul_add` would be a call into libm.
#![allow(unsafe_code)] // Calling a #[target_feature] function is unsafe; has_fma() has checked the features.

use crate::math::{self, Scalar};
use crate::op::{Binary, Unary};
use crate::order::{LANE_CHAINS, RUN, RUN_CHAINS, RUN_LANES};

const CHAINS: usize = LANE_CHAINS as usize;

fn has_fma() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

macro_rules! twice {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $body:ident) => {
        $(#[$doc])*
        pub fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn wide($($arg: $ty),*) $(-> $ret)? {
                    $body($($arg),*)
                }
                if has_fma() {
                    // SAFETY: the CPU has avx2 and fma.
                    return unsafe { wide($($arg),*) };
                }
            }
            $body($($arg),*)
        }
    };
}

twice! {
    /// `Lanes` sum of products x[i] * w[i] by fma. The slices have equal lengths.
    fn dot_lanes(x: &[f32], w: &[f32]) -> f32 = dot_lanes_body
}
twice! {
    /// `Runs` sum of products x[i] * q[i] * scales[i / 32]. `x` and `q` have equal lengths, a multiple of 32.
    fn dot_runs(x: &[f32], q: &[f32], scales: &[f32]) -> f32 = dot_runs_body
}
twice! {
    /// `Strided(acc.len())` sum of products by fma; `acc` is scratch of a power of two.
    fn dot_strided(x: &[f32], w: &[f32], acc: &mut [f32]) -> f32 = dot_strided_body
}
twice! {
    /// For every column n of w [K, N]: the `Strided(chains)` sum over k of x[k] * w[k, n] by fma, into `out` [N];
    /// `acc` is scratch of chains * N.
    fn columns_strided(x: &[f32], w: &[f32], acc: &mut [f32], out: &mut [f32]) = columns_strided_body
}
twice! {
    /// acc = fma(p, row, acc), elementwise.
    fn axpy(p: f32, row: &[f32], acc: &mut [f32]) = axpy_body
}
twice! {
    /// x = x * f, elementwise.
    fn scale(x: &mut [f32], f: f32) = scale_body
}
twice! {
    /// A unary function of every element.
    fn unary(u: Unary, data: &mut [f32]) = unary_body
}
twice! {
    /// e^x.
    fn exp(x: f32) -> f32 = exp_body
}

#[inline(always)]
fn exp_body(x: f32) -> f32 {
    math::exp(&mut Scalar, x)
}

#[inline(always)]
fn dot_lanes_body(x: &[f32], w: &[f32]) -> f32 {
    // 64 chains at a time stay in registers; a chain meets its elements in ascending order either way.
    const BLOCK: usize = 64;
    let mut sums = [0.0f32; CHAINS];
    let n = x.len().min(w.len());
    let whole = n / CHAINS * CHAINS;
    for (block, out) in sums.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let mut acc = [0.0f32; BLOCK];
        let (mut at, step) = (block * BLOCK, CHAINS);
        while at < whole {
            if let (Some(xs), Some(ws)) = (x[at..].first_chunk::<BLOCK>(), w[at..].first_chunk::<BLOCK>()) {
                for i in 0..BLOCK {
                    acc[i] = xs[i].mul_add(ws[i], acc[i]);
                }
            }
            at += step;
        }
        *out = acc;
    }
    let rest = n - whole;
    if rest > 0 {
        for (s, (a, b)) in sums.iter_mut().zip(x[whole..n].iter().zip(&w[whole..n])) {
            *s = a.mul_add(*b, *s);
        }
        // Absent elements are +0 products: they turn a chain that underflowed to -0 into +0.
        sums[rest..].iter_mut().for_each(|s| *s += 0.0);
    }
    combine_lanes(&mut sums)
}

#[inline(always)]
fn dot_runs_body(x: &[f32], q: &[f32], scales: &[f32]) -> f32 {
    const STEP: usize = RUN_CHAINS as usize;
    let mut lanes = [0.0f32; RUN_LANES as usize];
    let runs = x.as_chunks::<{ RUN as usize }>().0.iter().zip(q.as_chunks::<{ RUN as usize }>().0);
    for (r, ((x, q), scale)) in runs.zip(scales).enumerate() {
        let mut c = [0.0f32; STEP];
        for (x, q) in x.as_chunks::<STEP>().0.iter().zip(q.as_chunks::<STEP>().0) {
            for i in 0..STEP {
                c[i] = x[i].mul_add(q[i], c[i]);
            }
        }
        let pairs = [c[0] + c[4], c[1] + c[5], c[2] + c[6], c[3] + c[7]];
        let sum = (pairs[0] + pairs[2]) + (pairs[1] + pairs[3]);
        let lane = &mut lanes[r % RUN_LANES as usize];
        *lane = scale.mul_add(sum, *lane);
    }
    let rest = scales.len() % RUN_LANES as usize;
    if rest > 0 {
        lanes[rest..].iter_mut().for_each(|l| *l += 0.0);
    }
    combine_halves(&mut lanes)
}

/// Adds 256 chains: components of a lane (c^4, c^2, c^1), then lanes (c^128 .. c^8).
#[inline(always)]
pub(crate) fn combine_lanes(sums: &mut [f32; CHAINS]) -> f32 {
    let mut lanes = [0.0f32; CHAINS / 8];
    for (lane, c) in lanes.iter_mut().zip(sums.as_chunks::<8>().0) {
        let pairs = [c[0] + c[4], c[1] + c[5], c[2] + c[6], c[3] + c[7]];
        *lane = (pairs[0] + pairs[2]) + (pairs[1] + pairs[3]);
    }
    combine_halves(&mut lanes)
}

/// Chain c and c + half are added, half = len/2 .. 1.
#[inline(always)]
pub(crate) fn combine_halves(sums: &mut [f32]) -> f32 {
    let mut half = sums.len() / 2;
    while half > 0 {
        let (low, high) = sums.split_at_mut(half);
        for (a, b) in low.iter_mut().zip(high.iter()) {
            *a += *b;
        }
        half /= 2;
    }
    sums.first().copied().unwrap_or(0.0)
}

#[inline(always)]
fn dot_strided_body(x: &[f32], w: &[f32], acc: &mut [f32]) -> f32 {
    acc.fill(0.0);
    let chains = acc.len().max(1);
    for (xs, ws) in x.chunks(chains).zip(w.chunks(chains)) {
        for (a, (p, q)) in acc.iter_mut().zip(xs.iter().zip(ws)) {
            *a = p.mul_add(*q, *a);
        }
        acc[xs.len().min(chains)..].iter_mut().for_each(|a| *a += 0.0);
    }
    combine_halves(acc)
}

#[inline(always)]
fn columns_strided_body(x: &[f32], w: &[f32], acc: &mut [f32], out: &mut [f32]) {
    acc.fill(0.0);
    let n = out.len().max(1);
    let chains = acc.len() / n;
    for (k, (xk, row)) in x.iter().zip(w.chunks_exact(n)).enumerate() {
        let c = k % chains.max(1);
        for (a, b) in acc[c * n..(c + 1) * n].iter_mut().zip(row) {
            *a = xk.mul_add(*b, *a);
        }
    }
    let rest = x.len() % chains.max(1);
    if rest > 0 {
        acc[rest * n..].iter_mut().for_each(|a| *a += 0.0);
    }
    let mut half = chains / 2;
    while half > 0 {
        let (low, high) = acc.split_at_mut(half * n);
        for (a, b) in low.iter_mut().zip(high.iter()) {
            *a += *b;
        }
        half /= 2;
    }
    out.copy_from_slice(&acc[..out.len()]);
}

#[inline(always)]
fn axpy_body(p: f32, row: &[f32], acc: &mut [f32]) {
    for (a, b) in acc.iter_mut().zip(row) {
        *a = p.mul_add(*b, *a);
    }
}

#[inline(always)]
fn scale_body(x: &mut [f32], f: f32) {
    x.iter_mut().for_each(|x| *x *= f);
}

#[inline(always)]
fn unary_body(u: Unary, data: &mut [f32]) {
    let m = &mut Scalar;
    match u {
        Unary::Neg => data.iter_mut().for_each(|x| *x = -*x),
        Unary::Abs => data.iter_mut().for_each(|x| *x = x.abs()),
        Unary::Exp => data.iter_mut().for_each(|x| *x = math::exp(m, *x)),
        Unary::Log => data.iter_mut().for_each(|x| *x = math::log(m, *x)),
        Unary::Log1p => data.iter_mut().for_each(|x| *x = math::log1p(m, *x)),
        Unary::Sqrt => data.iter_mut().for_each(|x| *x = x.sqrt()),
        Unary::Rsqrt => data.iter_mut().for_each(|x| *x = math::rsqrt(m, *x)),
        Unary::Sigmoid => data.iter_mut().for_each(|x| *x = math::sigmoid(m, *x)),
    }
}

/// A binary function of two numbers.
#[inline(always)]
pub(crate) fn binary(b: Binary, x: f32, y: f32) -> f32 {
    match b {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        Binary::Min => minimum(x, y),
        Binary::Max => maximum(x, y),
    }
}

/// IEEE 754-2019 maximum: NaN wins, +0 is above -0.
#[inline(always)]
pub fn maximum(x: f32, y: f32) -> f32 {
    if x.is_nan() || y.is_nan() {
        return x + y;
    }
    // Equal numbers differ at most in the sign of zero: the conjunction of the bits is +0 then.
    match (x > y, x < y) {
        (true, _) => x,
        (_, true) => y,
        _ => f32::from_bits(x.to_bits() & y.to_bits()),
    }
}

/// IEEE 754-2019 minimum: NaN wins, -0 is below +0.
#[inline(always)]
pub fn minimum(x: f32, y: f32) -> f32 {
    if x.is_nan() || y.is_nan() {
        return x + y;
    }
    match (x < y, x > y) {
        (true, _) => x,
        (_, true) => y,
        _ => f32::from_bits(x.to_bits() | y.to_bits()),
    }
}
