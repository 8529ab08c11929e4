//! Dot products within a lane.
//!
//! The hardware does not specify how it rounds inside a sum of floats: here products are exact, the sum is one of f64,
//! and the result is rounded once. Its last bit is perturbed like an approximation's.

use super::formats::{Format, bf8, clamp_f32, finish_half, fp8, packed_constant, word_constant};
use super::half::{half_source, set_half};
use super::packed::{Halves, packed_source};
use crate::counts::Class;
use crate::emu::approx::finish;
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::lanes::dst;
use crate::emu::op::{Flow, Literal, Op, Run, accepts};
use crate::emu::step::Step;
use crate::emu::wave::Wave;

/// a0 b0 + a1 b1 + c of one format.
fn pair_sum(format: Format, a: (u32, u32), b: (u32, u32), c: f64) -> f64 {
    let product = |a, b| format.value(a) * format.value(b);
    product(a.0, b.0) + product(a.1, b.1) + c
}

/// Something about the operands, for the perturbation.
fn mixed(a: u32, b: u32) -> u32 {
    a.rotate_left(7) ^ b
}

/// Two products and an f32.
fn dot2_f32(w: &mut Wave, e: &mut Env<'_>, s: &Step, format: Format) -> Result<Flow, Fault> {
    // LLVM negates the f32 with both bits; what neg_hi alone means is not known.
    let (low, high) = (s.mods.neg_lo >> 2 & 1, s.mods.neg_hi >> 2 & 1);
    if high > low || s.mods.op_sel >> 2 & 1 == 1 {
        return Err(Fault::Modifier("neg_hi or op_sel of an f32 operand"));
    }
    let constant = |c| packed_constant(c, format);
    let ((a, mask), (b, _)) = (packed_source(w, s, 1, constant), packed_source(w, s, 2, constant));
    let (c, _) = packed_source(w, s, 3, word_constant);
    let (ha, hb, flip) = (Halves::of(s, 0), Halves::of(s, 1), u32::from(low) << 31);
    let mut out = std::array::from_fn(|l| {
        let (pa, pb) = ((ha.low(a[l]), ha.high(a[l])), (hb.low(b[l]), hb.high(b[l])));
        let exact = pair_sum(format, pa, pb, f64::from(f32::from_bits(c[l] ^ flip)));
        finish(e.perturb, mixed(a[l], b[l]), exact)
    });
    if s.mods.clamp {
        out = out.map(clamp_f32);
    }
    w.set_lanes(dst(s)?, &out, mask);
    Ok(Flow::Next)
}

/// As [`dot2_f32`], where the destination is the f32; without modifiers.
fn dot2acc_f32(w: &mut Wave, e: &mut Env<'_>, s: &Step, format: Format) -> Result<Flow, Fault> {
    let constant = |c| packed_constant(c, format);
    let ((a, mask), (b, _)) = (packed_source(w, s, 1, constant), packed_source(w, s, 2, constant));
    let c = w.lanes(s.args[0]);
    let halves = |x: u32| (x & 0xffff, x >> 16);
    let out = std::array::from_fn(|l| {
        let exact = pair_sum(format, halves(a[l]), halves(b[l]), f64::from(f32::from_bits(c[l])));
        finish(e.perturb, mixed(a[l], b[l]), exact)
    });
    w.set_lanes(dst(s)?, &out, mask);
    Ok(Flow::Next)
}

/// Two products and a 16-bit float, of one format.
fn dot2_half(w: &mut Wave, e: &mut Env<'_>, s: &Step, format: Format) -> Result<Flow, Fault> {
    if s.mods.abs & 0b110 != 0 || s.mods.op_sel & 0b11 != 0 {
        return Err(Fault::Modifier("abs or op_sel of a packed operand"));
    }
    // The constant of a packed operand would need its own width.
    if s.args[1..=2].iter().any(|a| matches!(a, crate::emu::step::Operand::Imm(_))) {
        return Err(Fault::Operand("constant as packed operand".into()));
    }
    let ((a, mask), (b, _)) = (packed_source(w, s, 1, word_constant), packed_source(w, s, 2, word_constant));
    let (c, _) = half_source(w, s, 3, 2)?;
    // LLVM takes the negation of a packed operand as that of both halves.
    let flip = |k: usize| if s.mods.neg >> k & 1 == 1 { 0x8000_8000 } else { 0 };
    let (fa, fb) = (flip(1), flip(2));
    let halves = |x: u32| (x & 0xffff, x >> 16);
    let out = std::array::from_fn(|l| {
        let exact = pair_sum(format, halves(a[l] ^ fa), halves(b[l] ^ fb), format.value(c[l]));
        finish_half(format, e.perturb, mixed(a[l], b[l]), exact)
    });
    set_half(w, s, 3, &out, mask)
}

type Decode = fn(u32) -> f64;

/// Four products of 8-bit floats and an f32; `neg_hi` of the f32 is its absolute value.
fn dot4_f32(w: &mut Wave, e: &mut Env<'_>, s: &Step, da: Decode, db: Decode) -> Result<Flow, Fault> {
    plain(s, 0b100, 0b100)?;
    let ((a, mask), (b, _)) = (packed_source(w, s, 1, word_constant), packed_source(w, s, 2, word_constant));
    let (c, _) = packed_source(w, s, 3, word_constant);
    let out = std::array::from_fn(|l| {
        let mut exact = c_modified(s, c[l]);
        for shift in [0, 8, 16, 24] {
            exact += da(a[l] >> shift & 0xff) * db(b[l] >> shift & 0xff);
        }
        finish(e.perturb, mixed(a[l], b[l]), exact)
    });
    w.set_lanes(dst(s)?, &out, mask);
    Ok(Flow::Next)
}

fn c_modified(s: &Step, c: u32) -> f64 {
    let c = f64::from(f32::from_bits(c));
    let c = if s.mods.neg_hi & 0b100 == 0 { c } else { c.abs() };
    if s.mods.neg_lo & 0b100 == 0 { c } else { -c }
}

/// Refuses halves, and negations other than those given.
fn plain(s: &Step, neg_lo: u8, neg_hi: u8) -> Result<(), Fault> {
    let halves = s.mods.op_sel != 0 || s.mods.op_sel_hi.is_some();
    match halves || s.mods.neg_lo & !neg_lo != 0 || s.mods.neg_hi & !neg_hi != 0 {
        true => Err(Fault::Modifier("op_sel, neg_lo or neg_hi")),
        false => Ok(()),
    }
}

/// Field `i` of `bits` bits.
#[inline]
fn field(x: u32, i: u32, bits: u32, signed: bool) -> i64 {
    let up = x << (32 - bits * (i + 1));
    if signed { i64::from(up.cast_signed() >> (32 - bits)) } else { i64::from(up >> (32 - bits)) }
}

/// Products of integers of `bits` bits and an integer that is signed if `mixed_signs`; then bit i of `neg_lo` says that
/// the fields of source i are.
fn integers(w: &mut Wave, s: &Step, bits: u32, mixed_signs: bool) -> Result<Flow, Fault> {
    plain(s, if mixed_signs { 0b11 } else { 0 }, 0)?;
    let ((a, mask), (b, _)) = (packed_source(w, s, 1, word_constant), packed_source(w, s, 2, word_constant));
    let (c, _) = packed_source(w, s, 3, word_constant);
    let (sa, sb) = (s.mods.neg_lo & 1 == 1, s.mods.neg_lo & 2 == 2);
    let (least, most) = if mixed_signs { (i64::from(i32::MIN), i64::from(i32::MAX)) } else { (0, i64::from(u32::MAX)) };
    let out = std::array::from_fn(|l| {
        let mut sum = if mixed_signs { i64::from(c[l].cast_signed()) } else { i64::from(c[l]) };
        for i in 0..32 / bits {
            sum += field(a[l], i, bits, sa) * field(b[l], i, bits, sb);
        }
        (if s.mods.clamp { sum.clamp(least, most) } else { sum }) as u32
    });
    w.set_lanes(dst(s)?, &out, mask);
    Ok(Flow::Next)
}

const fn op(name: &'static str, accepts: u16, run: Run) -> Op {
    Op { name, class: Class::Valu, dsts: 1, accepts, literal: Literal::B64, run }
}

const DPP: u16 = accepts::PACKED | accepts::DPP;
const HALF: u16 = accepts::NEG_ABS | accepts::OP_SEL | accepts::DPP;
const CLAMPED: u16 = accepts::PACKED | accepts::CLAMP;

const DOTS: &[Op] = &[
    op("v_dot2_f32_f16", DPP | accepts::CLAMP, |w, e, s| dot2_f32(w, e, s, Format::F16)),
    op("v_dot2_f32_bf16", DPP | accepts::CLAMP, |w, e, s| dot2_f32(w, e, s, Format::Bf16)),
    op("v_dot2acc_f32_f16", accepts::NONE, |w, e, s| dot2acc_f32(w, e, s, Format::F16)),
    op("v_dot2acc_f32_bf16", accepts::NONE, |w, e, s| dot2acc_f32(w, e, s, Format::Bf16)),
    Op { literal: Literal::F16, ..op("v_dot2_f16_f16", HALF, |w, e, s| dot2_half(w, e, s, Format::F16)) },
    Op { literal: Literal::Bf16, ..op("v_dot2_bf16_bf16", HALF, |w, e, s| dot2_half(w, e, s, Format::Bf16)) },
    op("v_dot4_f32_fp8_fp8", DPP, |w, e, s| dot4_f32(w, e, s, fp8, fp8)),
    op("v_dot4_f32_fp8_bf8", DPP, |w, e, s| dot4_f32(w, e, s, fp8, bf8)),
    op("v_dot4_f32_bf8_fp8", DPP, |w, e, s| dot4_f32(w, e, s, bf8, fp8)),
    op("v_dot4_f32_bf8_bf8", DPP, |w, e, s| dot4_f32(w, e, s, bf8, bf8)),
    op("v_dot4_i32_iu8", CLAMPED, |w, _, s| integers(w, s, 8, true)),
    op("v_dot4_u32_u8", CLAMPED, |w, _, s| integers(w, s, 8, false)),
    op("v_dot8_i32_iu4", CLAMPED, |w, _, s| integers(w, s, 4, true)),
    op("v_dot8_u32_u4", CLAMPED, |w, _, s| integers(w, s, 4, false)),
];

pub static OPS: &[&[Op]] = &[DOTS];
