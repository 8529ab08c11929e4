//! Conversions between formats.
//!
//! Float to integer rounds toward zero and saturates, NaN becomes 0. Normalised formats round to nearest even.
//! Stochastic rounding (`v_cvt_sr_*`) is left out: what the manual says of its carry contradicts its purpose.

use half::f16;

use super::formats::clamp_f16;
use super::fp8::{bf8_to_f32, f32_to_bf8, f32_to_fp8, fp8_to_f32};
use super::{vector, vector_any};
use crate::counts::Class;
use crate::emu::fault::Fault;
use crate::emu::lanes::{self, Width, any, u1};
use crate::emu::op::{Flow, Literal, Op, accepts};
use crate::emu::step::Step;
use crate::emu::wave::Wave;

const fn f(x: u32) -> f32 {
    f32::from_bits(x)
}

fn h(x: u64) -> f32 {
    f16::from_bits(x as u16).to_f32()
}

fn half(x: f32) -> u64 {
    u64::from(f16::from_f32(x).to_bits())
}

fn v_cvt_f32_i32(a: u32) -> u32 {
    (a.cast_signed() as f32).to_bits()
}

fn v_cvt_f32_u32(a: u32) -> u32 {
    (a as f32).to_bits()
}

fn v_cvt_f32_ubyte0(a: u32) -> u32 {
    v_cvt_f32_u32(a & 0xff)
}

fn v_cvt_f32_ubyte1(a: u32) -> u32 {
    v_cvt_f32_u32(a >> 8 & 0xff)
}

fn v_cvt_f32_ubyte2(a: u32) -> u32 {
    v_cvt_f32_u32(a >> 16 & 0xff)
}

fn v_cvt_f32_ubyte3(a: u32) -> u32 {
    v_cvt_f32_u32(a >> 24)
}

/// The low four bits as a signed number of sixteenths.
fn v_cvt_off_f32_i4(a: u32) -> u32 {
    ((a << 28).cast_signed() as f32 / 4_294_967_296.0).to_bits()
}

const fn v_cvt_i32_f32(a: u32) -> u32 {
    (f(a) as i32).cast_unsigned()
}

const fn v_cvt_u32_f32(a: u32) -> u32 {
    f(a) as u32
}

fn v_cvt_floor_i32_f32(a: u32) -> u32 {
    (f(a).floor() as i32).cast_unsigned()
}

/// The sum with a half is rounded to f32 first.
fn v_cvt_nearest_i32_f32(a: u32) -> u32 {
    ((f(a) + 0.5).floor() as i32).cast_unsigned()
}

const fn pair(low: u16, high: u16) -> u32 {
    low as u32 | (high as u32) << 16
}

/// The clamp of an f16 result.
fn clamped(bits: u64, s: &Step) -> u64 {
    if s.mods.clamp { clamp_f16(bits as u32).into() } else { bits }
}

/// Rounds toward zero: one step back where rounding to nearest went away from it.
fn toward_zero(x: f32) -> u16 {
    let near = f16::from_f32(x);
    match near.to_f32().abs() > x.abs() {
        true => near.to_bits() - 1,
        false => near.to_bits(),
    }
}

pub(super) fn v_cvt_pk_rtz_f16_f32(a: u32, b: u32) -> u32 {
    pair(toward_zero(f(a)), toward_zero(f(b)))
}

const fn v_cvt_pk_i16_f32(a: u32, b: u32) -> u32 {
    pair((f(a) as i16).cast_unsigned(), (f(b) as i16).cast_unsigned())
}

const fn v_cvt_pk_u16_f32(a: u32, b: u32) -> u32 {
    pair(f(a) as u16, f(b) as u16)
}

/// -1..=1 as -32767..=32767. The product is exact in f64.
fn snorm(x: f32) -> u16 {
    ((f64::from(x).clamp(-1.0, 1.0) * 32767.0).round_ties_even() as i16).cast_unsigned()
}

/// 0..=1 as 0..=65535.
fn unorm(x: f32) -> u16 {
    (f64::from(x).clamp(0.0, 1.0) * 65535.0).round_ties_even() as u16
}

fn v_cvt_pk_norm_i16_f32(a: u32, b: u32) -> u32 {
    pair(snorm(f(a)), snorm(f(b)))
}

fn v_cvt_pk_norm_u16_f32(a: u32, b: u32) -> u32 {
    pair(unorm(f(a)), unorm(f(b)))
}

fn v_cvt_pk_norm_i16_f16([a, b]: [u64; 2]) -> u64 {
    pair(snorm(h(a)), snorm(h(b))).into()
}

fn v_cvt_pk_norm_u16_f16([a, b]: [u64; 2]) -> u64 {
    pair(unorm(h(a)), unorm(h(b))).into()
}

fn v_cvt_norm_i16_f16([a]: [u64; 1]) -> u64 {
    snorm(h(a)).into()
}

fn v_cvt_norm_u16_f16([a]: [u64; 1]) -> u64 {
    unorm(h(a)).into()
}

/// Saturates.
fn v_cvt_pk_i16_i32(a: u32, b: u32) -> u32 {
    let narrow = |x: u32| (x.cast_signed().clamp(i16::MIN.into(), i16::MAX.into()) as i16).cast_unsigned();
    pair(narrow(a), narrow(b))
}

/// Saturates.
fn v_cvt_pk_u16_u32(a: u32, b: u32) -> u32 {
    pair(a.min(0xffff) as u16, b.min(0xffff) as u16)
}

/// Byte `at & 3` of `rest` replaced.
fn v_cvt_pk_u8_f32(w: &mut Wave, s: &Step, a: fn(u32) -> u8) -> Result<Flow, Fault> {
    if (s.mods.neg | s.mods.abs) >> 2 != 0 {
        return Err(Fault::Modifier("neg or abs of an integer"));
    }
    lanes::f3(w, s, |x, at, rest| {
        let shift = 8 * (at & 3);
        rest & !(0xff << shift) | u32::from(a(x)) << shift
    })
}

const fn byte(x: u32) -> u8 {
    f(x) as u8
}

fn v_cvt_f32_fp8(a: u32) -> u32 {
    fp8_to_f32(a as u8).to_bits()
}

fn v_cvt_f32_bf8(a: u32) -> u32 {
    bf8_to_f32(a as u8).to_bits()
}

fn v_cvt_pk_f32_fp8([a]: [u64; 1]) -> u64 {
    u64::from(v_cvt_f32_fp8(a as u32)) | u64::from(v_cvt_f32_fp8(a as u32 >> 8)) << 32
}

fn v_cvt_pk_f32_bf8([a]: [u64; 1]) -> u64 {
    u64::from(v_cvt_f32_bf8(a as u32)) | u64::from(v_cvt_f32_bf8(a as u32 >> 8)) << 32
}

fn v_cvt_pk_fp8_f32([a, b]: [u64; 2]) -> u64 {
    u64::from(f32_to_fp8(f(a as u32))) | u64::from(f32_to_fp8(f(b as u32))) << 8
}

fn v_cvt_pk_bf8_f32([a, b]: [u64; 2]) -> u64 {
    u64::from(f32_to_bf8(f(a as u32))) | u64::from(f32_to_bf8(f(b as u32))) << 8
}

fn v_cvt_f32_f16([a]: [u64; 1]) -> u64 {
    u64::from(h(a).to_bits())
}

fn v_cvt_f16_f32([a]: [u64; 1]) -> u64 {
    half(f(a as u32))
}

/// f32 holds every 16-bit integer.
fn v_cvt_f16_u16([a]: [u64; 1]) -> u64 {
    half(f32::from(a as u16))
}

fn v_cvt_f16_i16([a]: [u64; 1]) -> u64 {
    half(f32::from(a as i16))
}

fn v_cvt_u16_f16([a]: [u64; 1]) -> u64 {
    (h(a) as u16).into()
}

fn v_cvt_i16_f16([a]: [u64; 1]) -> u64 {
    (h(a) as i16).cast_unsigned().into()
}

fn v_cvt_i32_i16([a]: [u64; 1]) -> u64 {
    i32::from(a as i16).cast_unsigned().into()
}

const fn v_cvt_u32_u16([a]: [u64; 1]) -> u64 {
    a
}

fn v_sat_pk_u8_i16([a]: [u64; 1]) -> u64 {
    let byte = |x: u64| (x as i16).clamp(0, 255).cast_unsigned();
    u64::from(byte(a) | byte(a >> 16) << 8)
}

fn v_cvt_f64_f32([a]: [u64; 1]) -> u64 {
    f64::from(f(a as u32)).to_bits()
}

fn v_cvt_f64_i32([a]: [u64; 1]) -> u64 {
    f64::from((a as u32).cast_signed()).to_bits()
}

fn v_cvt_f64_u32([a]: [u64; 1]) -> u64 {
    f64::from(a as u32).to_bits()
}

fn v_cvt_f32_f64([a]: [u64; 1]) -> u64 {
    u64::from((f64::from_bits(a) as f32).to_bits())
}

fn v_cvt_i32_f64([a]: [u64; 1]) -> u64 {
    u64::from((f64::from_bits(a) as i32).cast_unsigned())
}

fn v_cvt_u32_f64([a]: [u64; 1]) -> u64 {
    u64::from(f64::from_bits(a) as u32)
}

/// One byte of the source, by `byte_sel`.
fn of_byte(w: &mut Wave, s: &Step, op: fn(u32) -> u32) -> Result<Flow, Fault> {
    let shift = 8 * u32::from(s.mods.byte_sel & 3);
    u1(w, s, |x| op(x >> shift & 0xff))
}

/// f16 results with multiplier and clamp.
macro_rules! to_half {
    ($accepts:expr, $literal:ident, $source:ident, $($f:ident),+) => {
        [$(Op {
            name: stringify!($f),
            class: Class::Valu,
            dsts: 1,
            accepts: $accepts | accepts::CLAMP | accepts::DPP | accepts::OP_SEL,
            literal: Literal::$literal,
            run: |w, _, s| any(w, s, Width::B16, [Width::$source], |x| clamped($f(x), s)),
        }),+]
    };
}

const DPP: u16 = accepts::DPP;
const FROM_FLOAT: u16 = accepts::NEG_ABS | accepts::DPP;
const HALF: u16 = accepts::OP_SEL | accepts::DPP;

const FROM_INT: [Op; 7] = vector!(
    Valu,
    DPP | accepts::CLAMP,
    B32,
    lanes::f1,
    v_cvt_f32_i32,
    v_cvt_f32_u32,
    v_cvt_f32_ubyte0,
    v_cvt_f32_ubyte1,
    v_cvt_f32_ubyte2,
    v_cvt_f32_ubyte3,
    v_cvt_off_f32_i4,
);
const TO_INT: [Op; 4] = vector!(
    Valu,
    FROM_FLOAT,
    B32,
    lanes::f1,
    v_cvt_i32_f32,
    v_cvt_u32_f32,
    v_cvt_floor_i32_f32,
    v_cvt_nearest_i32_f32,
);
const PACKING: [Op; 5] = vector!(
    Valu,
    FROM_FLOAT,
    B32,
    lanes::f2,
    v_cvt_pk_rtz_f16_f32,
    v_cvt_pk_i16_f32,
    v_cvt_pk_u16_f32,
    v_cvt_pk_norm_i16_f32,
    v_cvt_pk_norm_u16_f32,
);
const NARROWING: [Op; 2] = vector!(Valu, DPP, B32, lanes::u2, v_cvt_pk_i16_i32, v_cvt_pk_u16_u32);
const BYTE: [Op; 1] = [Op {
    name: "v_cvt_pk_u8_f32",
    class: Class::Valu,
    dsts: 1,
    accepts: FROM_FLOAT,
    literal: Literal::B32,
    run: |w, _, s| v_cvt_pk_u8_f32(w, s, byte),
}];
const OF_BYTE: [Op; 2] = vector!(Valu, DPP | accepts::BYTE_SEL, B32, of_byte, v_cvt_f32_fp8, v_cvt_f32_bf8);
const OF_BYTES: [Op; 2] = vector_any!(HALF, B32, B64, [B16], v_cvt_pk_f32_fp8, v_cvt_pk_f32_bf8);
const TO_BYTES: [Op; 2] =
    vector_any!(HALF | accepts::NEG_ABS, B32, B16, [B32, B32], v_cvt_pk_fp8_f32, v_cvt_pk_bf8_f32);
const FROM_HALF: [Op; 4] = vector_any!(
    HALF | accepts::NEG_ABS,
    F16,
    B16,
    [B16],
    v_cvt_u16_f16,
    v_cvt_i16_f16,
    v_cvt_norm_i16_f16,
    v_cvt_norm_u16_f16,
);
const FROM_HALVES: [Op; 2] =
    vector_any!(HALF | accepts::NEG_ABS, F16, B32, [B16, B16], v_cvt_pk_norm_i16_f16, v_cvt_pk_norm_u16_f16);
const WIDER: [Op; 1] = vector_any!(HALF | accepts::NEG_ABS, F16, B32, [B16], v_cvt_f32_f16);
const WIDER_INT: [Op; 2] = vector_any!(HALF, B32, B32, [B16], v_cvt_i32_i16, v_cvt_u32_u16);
const SATURATING: [Op; 1] = vector_any!(HALF, B32, B16, [B32], v_sat_pk_u8_i16);
const TO_HALF: [Op; 1] = to_half!(accepts::NEG_ABS, B32, B32, v_cvt_f16_f32);
const INT_TO_HALF: [Op; 2] = to_half!(accepts::NONE, B32, B16, v_cvt_f16_u16, v_cvt_f16_i16);
const TO_DOUBLE: [Op; 1] = vector_any!(accepts::NEG_ABS, B32, B64, [B32], v_cvt_f64_f32);
const INT_TO_DOUBLE: [Op; 2] = vector_any!(accepts::NONE, B32, B64, [B32], v_cvt_f64_i32, v_cvt_f64_u32);
const FROM_DOUBLE: [Op; 3] =
    vector_any!(accepts::NEG_ABS, F64, B32, [B64], v_cvt_f32_f64, v_cvt_i32_f64, v_cvt_u32_f64);

pub static OPS: &[&[Op]] = &[
    &FROM_INT,
    &TO_INT,
    &PACKING,
    &NARROWING,
    &BYTE,
    &OF_BYTE,
    &OF_BYTES,
    &TO_BYTES,
    &FROM_HALF,
    &FROM_HALVES,
    &WIDER,
    &WIDER_INT,
    &SATURATING,
    &TO_HALF,
    &INT_TO_HALF,
    &TO_DOUBLE,
    &INT_TO_DOUBLE,
    &FROM_DOUBLE,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saturation() {
        let bits = f32::to_bits;
        assert_eq!(
            [v_cvt_i32_f32(bits(3e9)), v_cvt_i32_f32(bits(-3e9)), v_cvt_i32_f32(bits(f32::NAN))],
            [i32::MAX.cast_unsigned(), 1 << 31, 0]
        );
        assert_eq!([v_cvt_u32_f32(bits(-1.0)), v_cvt_u32_f32(bits(1e20))], [0, u32::MAX]);
        assert_eq!(v_cvt_nearest_i32_f32(bits(-2.5)), (-2i32).cast_unsigned());
        assert_eq!(v_cvt_pk_i16_i32(100_000, (-100_000i32).cast_unsigned()), 0x8000_7fff);
        assert_eq!(v_cvt_pk_norm_i16_f32(bits(-2.0), bits(f32::NAN)), 0x8001);
        assert_eq!(v_sat_pk_u8_i16([0xffff_0101]), 0x00ff);
        assert_eq!([v_cvt_off_f32_i4(7), v_cvt_off_f32_i4(0x18), v_cvt_off_f32_i4(15)].map(f), [0.4375, -0.5, -0.0625]);
    }

    #[test]
    fn toward() {
        assert_eq!(toward_zero(65519.9), 0x7bff);
        assert_eq!(toward_zero(-1e30), 0xfbff);
        assert_eq!(toward_zero(f32::INFINITY), 0x7c00);
        assert_eq!(toward_zero(1e-30), 0);
        assert_eq!(toward_zero(f32::from_bits(0x3f80_1fff)), 0x3c00);
        assert!(f16::from_bits(toward_zero(f32::NAN)).is_nan());
    }
}
