//! Two 16-bit operations in one register, and f32 fused multiply-adds with f16 operands.

use super::formats::{
    Format, Printed, clamp_f16, clamp_f32, f16, f16_to_f32, packed_constant, printed, to_f16, word_constant,
};
use super::half::{v_fma_f16, v_max_num_f16, v_maximum_f16, v_min_num_f16, v_minimum_f16};
use crate::counts::Class;
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::lanes::{dst, permute};
use crate::emu::op::{Flow, Literal, Op, Run, accepts};
use crate::emu::step::{Operand, Step};
use crate::emu::wave::{Lanes, Wave};

/// Operand `k` as 32 bits in each lane, after the lane permutation, and the lanes that may be written.
pub fn packed_source(w: &Wave, s: &Step, k: usize, constant: impl Fn(u64) -> u32) -> (Lanes, u32) {
    let lanes = match s.args[k] {
        Operand::Imm(bits) => [constant(bits); 32],
        other => w.lanes(other),
    };
    match &s.mods.dpp {
        Some(dpp) if k == 1 => permute(&lanes, dpp, w.exec()),
        _ => (lanes, w.exec()),
    }
}

/// The halves of source `i` (0 is the first source) that the low and the high operation take.
#[derive(Clone, Copy)]
pub struct Halves {
    low_shift: u32,
    high_shift: u32,
    low_flip: u32,
    high_flip: u32,
}

impl Halves {
    pub fn of(s: &Step, i: usize) -> Self {
        let bit = |mask: u8| u32::from(mask >> i & 1);
        Halves {
            low_shift: 16 * bit(s.mods.op_sel),
            high_shift: 16 * bit(s.mods.op_sel_hi.unwrap_or(u8::MAX)),
            low_flip: bit(s.mods.neg_lo) << 15,
            high_flip: bit(s.mods.neg_hi) << 15,
        }
    }

    #[inline]
    pub fn low(self, x: u32) -> u32 {
        x >> self.low_shift & 0xffff ^ self.low_flip
    }

    #[inline]
    pub fn high(self, x: u32) -> u32 {
        x >> self.high_shift & 0xffff ^ self.high_flip
    }
}

/// N packed sources, one operation per half.
fn run<const N: usize>(
    w: &mut Wave,
    s: &Step,
    constant: impl Fn(u64) -> u32,
    f: impl Fn([u32; N]) -> u32,
) -> Result<Flow, Fault> {
    let (n, halves): (u8, [Halves; N]) = (dst(s)?, std::array::from_fn(|i| Halves::of(s, i)));
    let sources: [Lanes; N] = std::array::from_fn(|i| packed_source(w, s, i + 1, &constant).0);
    let out = std::array::from_fn(|l| {
        let low = f(std::array::from_fn(|i| halves[i].low(sources[i][l])));
        let high = f(std::array::from_fn(|i| halves[i].high(sources[i][l])));
        low & 0xffff | high << 16
    });
    w.set_lanes(n, &out, w.exec());
    Ok(Flow::Next)
}

fn float<const N: usize>(w: &mut Wave, s: &Step, f: impl Fn([u32; N]) -> u32) -> Result<Flow, Fault> {
    let constant = |c| packed_constant(c, Format::F16);
    match s.mods.clamp {
        true => run(w, s, constant, |x| clamp_f16(f(x))),
        false => run(w, s, constant, f),
    }
}

fn float2(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> u32) -> Result<Flow, Fault> {
    float(w, s, |[a, b]| f(a, b))
}

fn float3(w: &mut Wave, s: &Step, f: impl Fn(u32, u32, u32) -> u32) -> Result<Flow, Fault> {
    float(w, s, |[a, b, c]| f(a, b, c))
}

/// Integers, computed wide: clamp saturates, else the low 16 bits stay. An inline float is 32 bits of f32 here.
fn integer<const N: usize>(w: &mut Wave, s: &Step, signed: bool, f: impl Fn([i64; N]) -> i64) -> Result<Flow, Fault> {
    if s.mods.neg_lo | s.mods.neg_hi != 0 {
        return Err(Fault::Modifier("neg_lo or neg_hi of integers"));
    }
    let wide = |x: u32| if signed { i64::from(x as u16 as i16) } else { i64::from(x as u16) };
    let (least, most) = if signed { (-0x8000, 0x7fff) } else { (0, 0xffff) };
    let clamp = s.mods.clamp;
    run(w, s, word_constant, |x| {
        let result = f(x.map(wide));
        (if clamp { result.clamp(least, most) } else { result }) as u32
    })
}

fn signed2(w: &mut Wave, s: &Step, f: impl Fn(i64, i64) -> i64) -> Result<Flow, Fault> {
    integer(w, s, true, |[a, b]| f(a, b))
}

fn signed3(w: &mut Wave, s: &Step, f: impl Fn(i64, i64, i64) -> i64) -> Result<Flow, Fault> {
    integer(w, s, true, |[a, b, c]| f(a, b, c))
}

fn unsigned2(w: &mut Wave, s: &Step, f: impl Fn(i64, i64) -> i64) -> Result<Flow, Fault> {
    integer(w, s, false, |[a, b]| f(a, b))
}

fn unsigned3(w: &mut Wave, s: &Step, f: impl Fn(i64, i64, i64) -> i64) -> Result<Flow, Fault> {
    integer(w, s, false, |[a, b, c]| f(a, b, c))
}

fn v_pk_add_f16(a: u32, b: u32) -> u32 {
    to_f16(f16(a) + f16(b))
}

fn v_pk_mul_f16(a: u32, b: u32) -> u32 {
    to_f16(f16(a) * f16(b))
}

fn v_pk_fma_f16(a: u32, b: u32, c: u32) -> u32 {
    to_f16(v_fma_f16(f16(a), f16(b), f16(c)))
}

fn v_pk_min_num_f16(a: u32, b: u32) -> u32 {
    v_min_num_f16(a, b)
}

fn v_pk_max_num_f16(a: u32, b: u32) -> u32 {
    v_max_num_f16(a, b)
}

fn v_pk_minimum_f16(a: u32, b: u32) -> u32 {
    v_minimum_f16(a, b)
}

fn v_pk_maximum_f16(a: u32, b: u32) -> u32 {
    v_maximum_f16(a, b)
}

/// The destination is the third source.
fn v_pk_fmac_f16(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    if let Operand::Imm(bits) = s.args[1] {
        // Whether an inline constant fills one half or both differs between LLVM and the other packed ops.
        let inline = matches!(printed(bits), Printed::Float(_)) || matches!(bits as u32 as i32, -16..=-1 | 1..=64);
        if inline {
            return Err(Fault::Operand("inline constant of v_pk_fmac_f16".into()));
        }
    }
    let (n, (a, mask), (b, _)) =
        (dst(s)?, packed_source(w, s, 1, word_constant), packed_source(w, s, 2, word_constant));
    let c = w.lanes(s.args[0]);
    let fma = |a, b, c| v_pk_fma_f16(a & 0xffff, b & 0xffff, c & 0xffff);
    let out = std::array::from_fn(|l| fma(a[l], b[l], c[l]) | fma(a[l] >> 16, b[l] >> 16, c[l] >> 16) << 16);
    w.set_lanes(n, &out, mask);
    Ok(Flow::Next)
}

fn v_pk_add_i16(a: i64, b: i64) -> i64 {
    a + b
}

fn v_pk_sub_i16(a: i64, b: i64) -> i64 {
    a - b
}

fn v_pk_mad_i16(a: i64, b: i64, c: i64) -> i64 {
    a * b + c
}

fn v_pk_min_i16(a: i64, b: i64) -> i64 {
    a.min(b)
}

fn v_pk_max_i16(a: i64, b: i64) -> i64 {
    a.max(b)
}

fn v_pk_ashrrev_i16(a: i64, b: i64) -> i64 {
    b >> (a & 15)
}

fn v_pk_add_u16(a: i64, b: i64) -> i64 {
    a + b
}

fn v_pk_sub_u16(a: i64, b: i64) -> i64 {
    a - b
}

fn v_pk_mad_u16(a: i64, b: i64, c: i64) -> i64 {
    a * b + c
}

fn v_pk_min_u16(a: i64, b: i64) -> i64 {
    a.min(b)
}

fn v_pk_max_u16(a: i64, b: i64) -> i64 {
    a.max(b)
}

fn v_pk_mul_lo_u16(a: i64, b: i64) -> i64 {
    a * b
}

fn v_pk_lshlrev_b16(a: i64, b: i64) -> i64 {
    b << (a & 15)
}

fn v_pk_lshrrev_b16(a: i64, b: i64) -> i64 {
    b >> (a & 15)
}

/// a * b + c of f32, where bit i of `op_sel_hi` makes source i an f16, in the half that `op_sel` chooses.
fn mix(w: &Wave, s: &Step) -> Result<(Lanes, u32), Fault> {
    let (mut sources, mut mask) = ([[0f32; 32]; 3], w.exec());
    for (i, source) in sources.iter_mut().enumerate() {
        let k = i + 1;
        let is_half = s.mods.op_sel_hi.unwrap_or(0) >> i & 1 == 1;
        if is_half && matches!(s.args[k], Operand::Imm(_)) {
            return Err(Fault::Operand("constant as f16 of a mixed operation".into()));
        }
        let (lanes, may) = packed_source(w, s, k, word_constant);
        mask &= may;
        let shift = if s.mods.op_sel >> i & 1 == 1 { 16 } else { 0 };
        *source = match is_half {
            true => lanes.map(|x| f16_to_f32(x >> shift & 0xffff)),
            false => lanes.map(f32::from_bits),
        };
        if s.mods.abs >> k & 1 == 1 {
            *source = source.map(f32::abs);
        }
        if s.mods.neg >> k & 1 == 1 {
            *source = source.map(|x| -x);
        }
    }
    let [a, b, c] = sources;
    Ok((std::array::from_fn(|l| a[l].mul_add(b[l], c[l]).to_bits()), mask))
}

fn v_fma_mix_f32(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let (out, mask) = mix(w, s)?;
    w.set_lanes(dst(s)?, &if s.mods.clamp { out.map(clamp_f32) } else { out }, mask);
    Ok(Flow::Next)
}

/// Rounds to f32 and then to f16, as the manual has it.
fn mix_half(w: &mut Wave, s: &Step, high: bool) -> Result<Flow, Fault> {
    let (out, mask) = mix(w, s)?;
    let halves = out.map(|x| to_f16(f64::from(f32::from_bits(x))));
    w.set_half(dst(s)?, high, &if s.mods.clamp { halves.map(clamp_f16) } else { halves }, mask);
    Ok(Flow::Next)
}

fn v_fma_mixlo_f16(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    mix_half(w, s, false)
}

fn v_fma_mixhi_f16(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    mix_half(w, s, true)
}

const fn op(name: &'static str, accepts: u16, run: Run) -> Op {
    Op { name, class: Class::Valu, dsts: 1, accepts, literal: Literal::B64, run }
}

macro_rules! packed_ops {
    ($accepts:expr, $shape:ident, $($f:ident),+ $(,)?) => {
        &[$(op(stringify!($f), $accepts, |w, _, s| $shape(w, s, $f))),+]
    };
}

const CLAMPED: u16 = accepts::PACKED | accepts::CLAMP;
const MIXED: u16 = CLAMPED | accepts::NEG_ABS | accepts::DPP;

const FLOATS: &[Op] = packed_ops!(
    CLAMPED,
    float2,
    v_pk_add_f16,
    v_pk_mul_f16,
    v_pk_min_num_f16,
    v_pk_max_num_f16,
    v_pk_minimum_f16,
    v_pk_maximum_f16
);
const FLOATS_3: &[Op] = packed_ops!(CLAMPED, float3, v_pk_fma_f16);
const SIGNED: &[Op] = packed_ops!(CLAMPED, signed2, v_pk_add_i16, v_pk_sub_i16);
const SIGNED_3: &[Op] = packed_ops!(CLAMPED, signed3, v_pk_mad_i16);
const UNSIGNED: &[Op] = packed_ops!(CLAMPED, unsigned2, v_pk_add_u16, v_pk_sub_u16);
const UNSIGNED_3: &[Op] = packed_ops!(CLAMPED, unsigned3, v_pk_mad_u16);
// What clamp does to these the manual does not say.
const SIGNED_PLAIN: &[Op] = packed_ops!(accepts::PACKED, signed2, v_pk_min_i16, v_pk_max_i16, v_pk_ashrrev_i16);
const UNSIGNED_PLAIN: &[Op] = packed_ops!(
    accepts::PACKED,
    unsigned2,
    v_pk_min_u16,
    v_pk_max_u16,
    v_pk_mul_lo_u16,
    v_pk_lshlrev_b16,
    v_pk_lshrrev_b16
);
const OTHER: &[Op] = &[
    op("v_pk_fmac_f16", accepts::NONE, v_pk_fmac_f16),
    op("v_fma_mix_f32", MIXED, v_fma_mix_f32),
    op("v_fma_mixlo_f16", MIXED, v_fma_mixlo_f16),
    op("v_fma_mixhi_f16", MIXED, v_fma_mixhi_f16),
];

pub static OPS: &[&[Op]] =
    &[FLOATS, FLOATS_3, SIGNED, SIGNED_3, UNSIGNED, UNSIGNED_3, SIGNED_PLAIN, UNSIGNED_PLAIN, OTHER];
