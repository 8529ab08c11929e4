//! Matrix multiply-accumulate of one wave: 16x16 results.
//!
//! Lane l holds row (A) or column (B) l % 16. Elements of 16 bits come in two runs of K/4 k's, between which the two
//! halves of the wave alternate; smaller ones in one run of K/2. Lane l's element e of C and D is row 8 (l/16) + e,
//! column l % 16; 16-bit results are packed two a register (operand size of LLVM's and the manual's tables).
//! Sparse forms (`v_swmmac`) are left out: where their index bits stand is in none of the sources.
//!
//! All lanes take part, whatever the exec mask is. The order and rounding of the sum inside are not specified: here
//! products are exact, the sum is one of f64, and each result is rounded once. Its last bit is perturbed like an
//! approximation's.

use super::formats::{Format, bf8, bf16, f16, finish_half, fp8, packed_constant, word_constant};
use crate::counts::Class;
use crate::emu::approx::finish;
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::lanes::dst;
use crate::emu::op::{Flow, Literal, Op, accepts};
use crate::emu::step::{Operand, Step};
use crate::emu::wave::Wave;

/// How elements of A or B lie in registers.
#[derive(Clone, Copy)]
struct Elements<T> {
    bits: u32,
    /// Value of an element's bits.
    decode: fn(u32) -> T,
}

/// Bits that flip in elements of even and odd number.
type Flips = [u32; 2];

const F16: Elements<f64> = Elements { bits: 16, decode: f16 };
const BF16: Elements<f64> = Elements { bits: 16, decode: bf16 };
const FP8: Elements<f64> = Elements { bits: 8, decode: fp8 };
const BF8: Elements<f64> = Elements { bits: 8, decode: bf8 };

/// Integers of `bits` bits.
fn integers(bits: u32, signed: bool) -> Elements<i32> {
    let decode: fn(u32) -> i32 = match (bits, signed) {
        (8, false) => |x| x as i32,
        (8, true) => |x| i32::from(x as u8 as i8),
        (_, false) => |x| x as i32,
        (_, true) => |x| (x << 28).cast_signed() >> 28,
    };
    Elements { bits, decode }
}

fn register(operand: Operand) -> Result<u8, Fault> {
    match operand {
        Operand::V(n) => Ok(n),
        other => Err(Fault::Operand(format!("{other:?} as matrix"))),
    }
}

/// Register `n` after `first`.
#[inline]
fn row(w: &Wave, first: u8, n: usize) -> &[u32; 32] {
    &w.vgpr[(usize::from(first) + n) & 255]
}

/// Calls `put` with the row or column, the element's number in its lane and the element, for `count` elements a lane.
#[inline]
fn each<T>(w: &Wave, first: u8, count: usize, e: Elements<T>, flips: Flips, mut put: impl FnMut(usize, usize, T)) {
    let bits = e.bits as usize;
    let mask = (1u32 << bits) - 1;
    for x in 0..count {
        let register = row(w, first, x * bits / 32);
        let (shift, flip) = (x * bits % 32, flips[x & 1]);
        for (l, word) in register.iter().enumerate() {
            put(l, x, (e.decode)(word >> shift & mask ^ flip));
        }
    }
}

/// The k of element `x` of lane `l`, of `count` elements a lane.
#[inline]
fn k_of(l: usize, x: usize, count: usize, bits: u32) -> usize {
    let run = if bits == 16 { count / 2 } else { count };
    // A run is a power of two: this is 2 run (x / run) + x % run, and the half's offset.
    x + (x & !(run - 1)) + run * (l / 16)
}

/// A number that can be summed.
trait Number: Copy + Default + std::ops::Add<Output = Self> + std::ops::Mul<Output = Self> {}
impl Number for f64 {}
impl Number for i32 {}

type Square<T> = [[T; 16]; 16];

/// Adds a scaled row of B.
#[inline]
fn accumulate<T: Number>(sums: &mut [T; 16], x: T, b: &[T; 16]) {
    for (sum, y) in sums.iter_mut().zip(b) {
        *sum = *sum + x * *y;
    }
}

/// A times B, both from their registers; [row][column].
fn product<T: Number, const K: usize>(
    w: &Wave,
    s: &Step,
    elements: [Elements<T>; 2],
    flips: [Flips; 2],
) -> Result<Square<T>, Fault> {
    let (first_a, first_b) = (register(s.args[1])?, register(s.args[2])?);
    let (bits_a, bits_b) = (elements[0].bits, elements[1].bits);
    let mut a = [[T::default(); K]; 16];
    let mut b = [[T::default(); 16]; K];
    each(w, first_a, K / 2, elements[0], flips[0], |l, x, v| a[l & 15][k_of(l, x, K / 2, bits_a)] = v);
    each(w, first_b, K / 2, elements[1], flips[1], |l, x, v| b[k_of(l, x, K / 2, bits_b)][l & 15] = v);
    let mut out = [[T::default(); 16]; 16];
    for (sums, a) in out.iter_mut().zip(&a) {
        for (x, b) in a.iter().zip(&b) {
            accumulate(sums, *x, b);
        }
    }
    Ok(out)
}

/// Words of C: registers, or a constant for every element.
fn words_of_c(w: &Wave, s: &Step, registers: usize, constant: u32) -> Result<[[u32; 32]; 8], Fault> {
    let mut c = [[constant; 32]; 8];
    let operand = s.args[3];
    if !matches!(operand, Operand::Imm(_)) {
        let first = register(operand)?;
        for (n, words) in c.iter_mut().enumerate().take(registers) {
            *words = *row(w, first, n);
        }
    }
    Ok(c)
}

fn constant(s: &Step, decode: impl Fn(u64) -> u32) -> u32 {
    match s.args[3] {
        Operand::Imm(bits) => decode(bits),
        _ => 0,
    }
}

/// Sign flips of A and B from `neg_lo` and `neg_hi`, which only 16-bit elements have.
fn flips<T>(s: &Step, elements: &[Elements<T>; 2]) -> Result<[Flips; 2], Fault> {
    let bit = |mask: u8, i: usize| u32::from(mask >> i & 1) << 15;
    let found = [0, 1].map(|i| [bit(s.mods.neg_lo, i), bit(s.mods.neg_hi, i)]);
    match elements[0].bits != 16 && found != [[0; 2]; 2] {
        true => Err(Fault::Modifier("neg_lo or neg_hi of 8-bit floats")),
        false => Ok(found),
    }
}

/// Refuses what no matrix operation has.
fn check(s: &Step) -> Result<(), Fault> {
    match s.mods.op_sel != 0 || s.mods.op_sel_hi.is_some() {
        true => Err(Fault::Modifier("op_sel")),
        false => Ok(()),
    }
}

/// `neg_hi` of C is its absolute value, `neg_lo` its negation after that.
fn modified_c(s: &Step, c: f64) -> f64 {
    let c = if s.mods.neg_hi & 0b100 == 0 { c } else { c.abs() };
    if s.mods.neg_lo & 0b100 == 0 { c } else { -c }
}

fn float_f32<const K: usize>(
    w: &mut Wave,
    env: &mut Env<'_>,
    s: &Step,
    elements: [Elements<f64>; 2],
) -> Result<Flow, Fault> {
    check(s)?;
    let sums = product::<f64, K>(w, s, elements, flips(s, &elements)?)?;
    let c = words_of_c(w, s, 8, constant(s, word_constant))?;
    let first = dst(s)?;
    for (e, words) in c.iter().enumerate() {
        let out = std::array::from_fn(|l| {
            let row = 8 * (l / 16) + e;
            let exact = sums[row][l & 15] + modified_c(s, f64::from(f32::from_bits(words[l])));
            finish(env.perturb, (row << 4 | l & 15) as u32, exact)
        });
        w.set_lanes(first.wrapping_add(e as u8), &out, u32::MAX);
    }
    Ok(Flow::Next)
}

fn float_half<const K: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step, format: Format) -> Result<Flow, Fault> {
    check(s)?;
    let elements = if format == Format::F16 { [F16; 2] } else { [BF16; 2] };
    let sums = product::<f64, K>(w, s, elements, flips(s, &elements)?)?;
    let splat = constant(s, |c| packed_constant(c, format) & 0xffff);
    let c = words_of_c(w, s, 4, splat | splat << 16)?;
    let first = dst(s)?;
    for (n, words) in c.iter().enumerate().take(4) {
        let out = std::array::from_fn(|l| {
            let half = |high: usize| {
                let row = 8 * (l / 16) + 2 * n + high;
                let exact = sums[row][l & 15] + modified_c(s, format.value(words[l] >> (16 * high) & 0xffff));
                finish_half(format, env.perturb, (row << 4 | l & 15) as u32, exact)
            };
            half(0) | half(1) << 16
        });
        w.set_lanes(first.wrapping_add(n as u8), &out, u32::MAX);
    }
    Ok(Flow::Next)
}

/// Bit i of `neg_lo` says that source i is signed; clamp saturates the sum, which is exact.
fn integer<const K: usize>(w: &mut Wave, s: &Step, bits: u32) -> Result<Flow, Fault> {
    check(s)?;
    if s.mods.neg_lo & !0b11 != 0 || s.mods.neg_hi != 0 {
        return Err(Fault::Modifier("neg_lo or neg_hi of integers"));
    }
    let elements = [0, 1].map(|i| integers(bits, s.mods.neg_lo >> i & 1 == 1));
    let sums = product::<i32, K>(w, s, elements, [[0; 2]; 2])?;
    let c = words_of_c(w, s, 8, constant(s, word_constant))?;
    let (first, clamp) = (dst(s)?, s.mods.clamp);
    for (e, words) in c.iter().enumerate() {
        let out = std::array::from_fn(|l| {
            let (sum, c) = (sums[8 * (l / 16) + e][l & 15], words[l].cast_signed());
            (if clamp { sum.saturating_add(c) } else { sum.wrapping_add(c) }).cast_unsigned()
        });
        w.set_lanes(first.wrapping_add(e as u8), &out, u32::MAX);
    }
    Ok(Flow::Next)
}

const fn op(name: &'static str, accepts: u16, run: crate::emu::op::Run) -> Op {
    Op { name, class: Class::Wmma, dsts: 1, accepts, literal: Literal::B64, run }
}

const FLOAT: u16 = accepts::PACKED;
const INTEGER: u16 = accepts::PACKED | accepts::CLAMP;

const DENSE: &[Op] = &[
    op("v_wmma_f32_16x16x16_f16", FLOAT, |w, e, s| float_f32::<16>(w, e, s, [F16, F16])),
    op("v_wmma_f32_16x16x16_bf16", FLOAT, |w, e, s| float_f32::<16>(w, e, s, [BF16, BF16])),
    op("v_wmma_f16_16x16x16_f16", FLOAT, |w, e, s| float_half::<16>(w, e, s, Format::F16)),
    op("v_wmma_bf16_16x16x16_bf16", FLOAT, |w, e, s| float_half::<16>(w, e, s, Format::Bf16)),
    op("v_wmma_f32_16x16x16_fp8_fp8", FLOAT, |w, e, s| float_f32::<16>(w, e, s, [FP8, FP8])),
    op("v_wmma_f32_16x16x16_fp8_bf8", FLOAT, |w, e, s| float_f32::<16>(w, e, s, [FP8, BF8])),
    op("v_wmma_f32_16x16x16_bf8_fp8", FLOAT, |w, e, s| float_f32::<16>(w, e, s, [BF8, FP8])),
    op("v_wmma_f32_16x16x16_bf8_bf8", FLOAT, |w, e, s| float_f32::<16>(w, e, s, [BF8, BF8])),
    op("v_wmma_i32_16x16x16_iu8", INTEGER, |w, _, s| integer::<16>(w, s, 8)),
    op("v_wmma_i32_16x16x16_iu4", INTEGER, |w, _, s| integer::<16>(w, s, 4)),
    op("v_wmma_i32_16x16x32_iu4", INTEGER, |w, _, s| integer::<32>(w, s, 4)),
];

pub static OPS: &[&[Op]] = &[DENSE];
