//! Conversions between floats, integers and packed forms.

use rustc_apfloat::ieee::{Double, Half, Single};
use rustc_apfloat::{Float, FloatConvert, Round};

use crate::harness::Expect::{Bits, OneOf};
use crate::harness::{Def, Dst, Expect, FLOAT, NEG, NONE, RESULT, check};
use crate::soft::{convert, double, half, out, single, to_int};
use crate::values::Kind::{self, F16, F32, F64, I16, I32};

const NEAREST: Round = Round::NearestTiesToEven;
const I32_RANGE: (i128, i128) = (i32::MIN as i128, i32::MAX as i128);
const U32_RANGE: (i128, i128) = (0, u32::MAX as i128);
const I16_RANGE: (i128, i128) = (i16::MIN as i128, i16::MAX as i128);
const U16_RANGE: (i128, i128) = (0, u16::MAX as i128);

/// Truncated and saturated.
fn int<F: Float>(v: F, (low, high): (i128, i128)) -> u64 {
    to_int(v, Round::TowardZero, low, high) as u32 as u64
}

fn int16<F: Float>(v: F, range: (i128, i128)) -> u64 {
    int(v, range) & 0xffff
}

fn signed(x: u64) -> i128 {
    i128::from(x as u32 as i32)
}

fn float<F: Float>(v: i128) -> Expect {
    out(F::from_i128_r(v, NEAREST).value)
}

fn byte(x: &[u64], n: u32) -> Expect {
    float::<Single>(i128::from(x[0] >> (8 * n) & 0xff))
}

fn pair(low: u64, high: u64) -> Expect {
    Bits(low & 0xffff | (high & 0xffff) << 16)
}

/// The text adds 1/2 and rounds down; whether the sum rounds it does not say.
fn nearest(x: &[u64]) -> Expect {
    let v = single(x[0]);
    let sum = (v + single(0x3f00_0000)).value;
    let floor = |v: Single| to_int(v, Round::TowardNegative, I32_RANGE.0, I32_RANGE.1) as u32 as u64;
    let wide: Double = convert(v, NEAREST);
    let exact = (wide + double(0.5f64.to_bits())).value;
    let exact = to_int(exact, Round::TowardNegative, I32_RANGE.0, I32_RANGE.1) as u32 as u64;
    OneOf(floor(sum), exact)
}

/// Signed four bits, in sixteenths.
fn off_i4(x: &[u64]) -> Expect {
    let v = (x[0] as u32 as i32) << 28 >> 28;
    out(Single::from_i128(i128::from(v)).value.scalbn(-4))
}

const fn def(name: &'static str, src: &'static [Kind], dst: Dst, mods: u16, f: fn(&[u64]) -> Expect) -> Def {
    Def::new(name, src, dst, mods, f)
}

const INTEGERS: &[Def] = &[
    def("v_cvt_i32_f32", &[F32], Dst::B32, NEG, |x| Bits(int(single(x[0]), I32_RANGE))),
    def("v_cvt_u32_f32", &[F32], Dst::B32, NEG, |x| Bits(int(single(x[0]), U32_RANGE))),
    def("v_cvt_nearest_i32_f32", &[F32], Dst::B32, NEG, nearest),
    def("v_cvt_floor_i32_f32", &[F32], Dst::B32, NEG, |x| {
        Bits(to_int(single(x[0]), Round::TowardNegative, I32_RANGE.0, I32_RANGE.1) as u32 as u64)
    }),
    def("v_cvt_f32_i32", &[I32], Dst::B32, RESULT, |x| float::<Single>(signed(x[0]))),
    def("v_cvt_f32_u32", &[I32], Dst::B32, RESULT, |x| float::<Single>(i128::from(x[0]))),
    def("v_cvt_f32_ubyte0", &[I32], Dst::B32, RESULT, |x| byte(x, 0)),
    def("v_cvt_f32_ubyte1", &[I32], Dst::B32, RESULT, |x| byte(x, 1)),
    def("v_cvt_f32_ubyte2", &[I32], Dst::B32, RESULT, |x| byte(x, 2)),
    def("v_cvt_f32_ubyte3", &[I32], Dst::B32, RESULT, |x| byte(x, 3)),
    def("v_cvt_off_f32_i4", &[I32], Dst::B32, RESULT, off_i4),
    def("v_cvt_i32_f64", &[F64], Dst::B32, NEG, |x| Bits(int(double(x[0]), I32_RANGE))),
    def("v_cvt_u32_f64", &[F64], Dst::B32, NEG, |x| Bits(int(double(x[0]), U32_RANGE))),
    def("v_cvt_f64_i32", &[I32], Dst::B64, NONE, |x| float::<Double>(signed(x[0]))),
    def("v_cvt_f64_u32", &[I32], Dst::B64, NONE, |x| float::<Double>(i128::from(x[0]))),
    def("v_cvt_i16_f16", &[F16], Dst::B16, NEG, |x| Bits(int16(half(x[0]), I16_RANGE))),
    def("v_cvt_u16_f16", &[F16], Dst::B16, NEG, |x| Bits(int16(half(x[0]), U16_RANGE))),
    def("v_cvt_f16_i16", &[I16], Dst::B16, RESULT, |x| float::<Half>(i128::from(x[0] as u16 as i16))),
    def("v_cvt_f16_u16", &[I16], Dst::B16, RESULT, |x| float::<Half>(i128::from(x[0]))),
    def("v_cvt_i32_i16", &[I16], Dst::B32, NONE, |x| Bits(x[0] as u16 as i16 as u32 as u64)),
    def("v_cvt_u32_u16", &[I16], Dst::B32, NONE, |x| Bits(x[0])),
];

const FLOATS: &[Def] = &[
    def("v_cvt_f16_f32", &[F32], Dst::B16, FLOAT, |x| out::<Half>(convert(single(x[0]), NEAREST))),
    def("v_cvt_f32_f16", &[F16], Dst::B32, FLOAT, |x| out::<Single>(convert(half(x[0]), NEAREST))),
    def("v_cvt_f32_f64", &[F64], Dst::B32, FLOAT, |x| out::<Single>(convert(double(x[0]), NEAREST))),
    def("v_cvt_f64_f32", &[F32], Dst::B64, NEG, |x| out::<Double>(convert(single(x[0]), NEAREST))),
];

/// Rounded toward zero, so finite values stay finite. A NaN half is not compared bit by bit: its text says nothing.
fn rtz(x: u64) -> u64 {
    convert::<_, Half>(single(x), Round::TowardZero).to_bits() as u64
}

fn pk_rtz(x: &[u64]) -> Expect {
    if single(x[0]).is_nan() || single(x[1]).is_nan() {
        return Expect::Any;
    }
    pair(rtz(x[0]), rtz(x[1]))
}

fn saturate(v: i128, (low, high): (i128, i128)) -> u64 {
    v.clamp(low, high) as u64
}

const PACKED: &[Def] = &[
    def("v_cvt_pk_rtz_f16_f32", &[F32, F32], Dst::B32, NEG, pk_rtz),
    def("v_pack_b32_f16", &[F16, F16], Dst::B32, NEG, |x| pair(x[0], x[1])),
    def("v_cvt_pk_i16_f32", &[F32, F32], Dst::B32, NEG, |x| {
        pair(int16(single(x[0]), I16_RANGE), int16(single(x[1]), I16_RANGE))
    }),
    def("v_cvt_pk_u16_f32", &[F32, F32], Dst::B32, NEG, |x| {
        pair(int16(single(x[0]), U16_RANGE), int16(single(x[1]), U16_RANGE))
    }),
    def("v_cvt_pk_u16_u32", &[I32, I32], Dst::B32, NONE, |x| {
        pair(saturate(x[0].into(), U16_RANGE), saturate(x[1].into(), U16_RANGE))
    }),
    def("v_cvt_pk_i16_i32", &[I32, I32], Dst::B32, NONE, |x| {
        pair(saturate(signed(x[0]), I16_RANGE), saturate(signed(x[1]), I16_RANGE))
    }),
];

/// x times 32767 or 65535, rounded: the text does not say how, nearest is assumed.
fn norm<F: FloatConvert<Double>>(v: F, least: i128, scale: i128) -> u64 {
    let wide: Double = convert(v, NEAREST);
    let one = Double::from_i128(1).value;
    let bounded = if wide > one {
        one
    } else if wide < Double::from_i128(least).value {
        Double::from_i128(least).value
    } else {
        wide
    };
    to_int((bounded * Double::from_i128(scale).value).value, NEAREST, least * scale, scale) as u64 & 0xffff
}

/// The byte of S2 that S1 names is replaced by S0, saturated; rounding is left open.
fn pk_u8(x: &[u64]) -> Expect {
    let put = |round: Round| {
        let (byte, shift) = (to_int(single(x[0]), round, 0, 255) as u64, 8 * (x[1] & 3));
        x[2] & !(0xff << shift) & 0xffff_ffff | byte << shift
    };
    OneOf(put(Round::TowardZero), put(NEAREST))
}

fn sat_u8(x: &[u64]) -> Expect {
    let byte = |k: u32| i64::from((x[0] >> (16 * k)) as u16 as i16).clamp(0, 255).cast_unsigned();
    Bits(byte(0) | byte(1) << 8)
}

const NORMALISED: &[Def] = &[
    def("v_cvt_norm_i16_f16", &[F16], Dst::B16, NEG, |x| Bits(norm(half(x[0]), -1, 32767))),
    def("v_cvt_norm_u16_f16", &[F16], Dst::B16, NEG, |x| Bits(norm(half(x[0]), 0, 65535))),
    def("v_cvt_pk_norm_i16_f16", &[F16, F16], Dst::B32, NEG, |x| {
        pair(norm(half(x[0]), -1, 32767), norm(half(x[1]), -1, 32767))
    }),
    def("v_cvt_pk_norm_u16_f16", &[F16, F16], Dst::B32, NEG, |x| {
        pair(norm(half(x[0]), 0, 65535), norm(half(x[1]), 0, 65535))
    }),
    def("v_cvt_pk_norm_i16_f32", &[F32, F32], Dst::B32, NEG, |x| {
        pair(norm(single(x[0]), -1, 32767), norm(single(x[1]), -1, 32767))
    }),
    def("v_cvt_pk_norm_u16_f32", &[F32, F32], Dst::B32, NEG, |x| {
        pair(norm(single(x[0]), 0, 65535), norm(single(x[1]), 0, 65535))
    }),
    def("v_cvt_pk_u8_f32", &[F32, I32, I32], Dst::B32, NEG, pk_u8),
    def("v_sat_pk_u8_i16", &[I32], Dst::B16, NONE, sat_u8),
];

pub const ALL: &[&[Def]] = &[INTEGERS, FLOATS, PACKED];
/// Opcodes whose rounding the text leaves open; an emulator may leave them out.
pub const OPTIONAL: &[&[Def]] = &[NORMALISED];

#[test]
fn convert_integers() {
    check(INTEGERS);
}

#[test]
fn convert_floats() {
    check(FLOATS);
}

#[test]
fn convert_packed() {
    check(PACKED);
}

#[test]
fn convert_normalised() {
    check(&crate::known(NORMALISED));
}
