//! 8-bit floats, by the formats' definitions: fp8 is OCP E4M3 (no infinity, one NaN), bf8 is OCP E5M2.

use unglue_codegen::emu::step;
use unglue_codegen::emu::wave::Wave;

use crate::harness::{Def, POISON, Report, decode, execute_one};
use crate::values::Kind::F32;
use crate::values::{Random, edges, random};

pub const ALL: &[&[Def]] = &[];
pub const DEFINED: &[&str] =
    &["v_cvt_f32_fp8", "v_cvt_f32_bf8", "v_cvt_pk_f32_fp8", "v_cvt_pk_f32_bf8", "v_cvt_pk_fp8_f32", "v_cvt_pk_bf8_f32"];
/// Their text rounds to nearest after adding noise, which is hardly what the card does: an emulator may leave them out.
pub const OPTIONAL: &[&str] = &["v_cvt_sr_fp8_f32", "v_cvt_sr_bf8_f32"];

#[derive(Clone, Copy)]
struct Format {
    name: &'static str,
    mantissa: u32,
    bias: i32,
    /// Code of the greatest finite value.
    top: u8,
}

const FP8: Format = Format { name: "fp8", mantissa: 3, bias: 7, top: 0x7e };
const BF8: Format = Format { name: "bf8", mantissa: 2, bias: 15, top: 0x7b };

impl Format {
    /// A magnitude by the format's rule, whether or not the code stands for a number.
    fn magnitude(self, code: u8) -> f64 {
        let (exponent, mantissa) = (i32::from(code >> self.mantissa), f64::from(code & ((1 << self.mantissa) - 1)));
        let unit = f64::from(-(self.mantissa as i32)).exp2();
        if exponent == 0 {
            mantissa * unit * f64::from(1 - self.bias).exp2()
        } else {
            (1.0 + mantissa * unit) * f64::from(exponent - self.bias).exp2()
        }
    }

    /// Infinity, if this code (without sign) is it.
    fn infinite(self, code: u8) -> bool {
        self.name == "bf8" && code == 0x7c
    }

    /// Whether `got` is the value of a code.
    fn decodes(self, code: u8, got: f32) -> bool {
        let magnitude = code & 0x7f;
        if self.infinite(magnitude) {
            return got.is_infinite() && got.is_sign_negative() == (code >> 7 == 1);
        }
        if magnitude > self.top {
            return got.is_nan();
        }
        let want = self.magnitude(magnitude) as f32;
        got.to_bits() == if code >> 7 == 1 { -want } else { want }.to_bits()
    }

    /// Whether `code` is what `x` rounds to, ties to even. Beyond the greatest value the result is what IEEE rounding
    /// gives (infinity, or NaN where there is none): saturation belongs to the mode bit FP16_OVFL, which descriptors
    /// of compute kernels leave off; HIP clamps before this opcode to get it.
    fn encodes(self, x: f32, code: u8) -> bool {
        let magnitude = code & 0x7f;
        let nan = magnitude > self.top && !self.infinite(magnitude);
        if x.is_nan() {
            return nan;
        }
        let v = f64::from(x.abs());
        let signed = x.is_sign_negative() == (code >> 7 == 1);
        let (top, above) = (self.magnitude(self.top), self.magnitude(self.top + 1));
        let limit = f64::midpoint(top, above);
        // A tie goes to the even code.
        if v > limit || v == limit && self.top & 1 == 1 {
            return if self.name == "bf8" { signed && magnitude == 0x7c } else { nan };
        }
        signed && magnitude == self.nearest(v)
    }

    fn nearest(self, v: f64) -> u8 {
        let distance = |code: u8| (self.magnitude(code) - v).abs();
        (0..=self.top).fold(0, |best, code| {
            let closer = distance(code) < distance(best) || distance(code) == distance(best) && code & 1 == 0;
            if closer { code } else { best }
        })
    }

    /// Numbers around every code and half way to the next.
    fn inputs(self) -> Vec<f32> {
        let mut out: Vec<f32> = edges(F32).iter().map(|x| f32::from_bits(*x as u32)).collect();
        for code in 0..=self.top {
            let here = self.magnitude(code);
            let half = f64::midpoint(here, self.magnitude(code + 1));
            for v in [here, half] {
                let bits = (v as f32).to_bits();
                out.extend([bits.saturating_sub(1), bits, bits + 1].map(f32::from_bits));
                out.push(-(v as f32));
            }
        }
        let mut r = Random::new(self.name);
        out.extend((0..3000).map(|_| f32::from_bits(random(F32, &mut r) as u32)));
        out.resize(out.len().next_multiple_of(32), 1.0);
        out
    }
}

/// Runs one line with v0 and v1 as sources and v[2:3] as destination.
fn once(line: &str, v0: [u32; 32], v1: [u32; 32]) -> Result<Wave, String> {
    let step = decode(&[line.to_owned()]).remove(0)?;
    let mut w = Wave::new(POISON);
    (w.vgpr[0], w.vgpr[1]) = (v0, v1);
    execute_one(&mut w, &step)?;
    Ok(w)
}

#[test]
fn every_code_decodes() {
    let mut report = Report::default();
    for format in [FP8, BF8] {
        for (select, shift) in [("", 0), (" byte_sel:1", 8), (" byte_sel:2", 16), (" byte_sel:3", 24)] {
            let line = format!("v_cvt_f32_{} v2, v0{select}", format.name);
            for first in (0..256u32).step_by(32) {
                let sources = std::array::from_fn(|l| 0x5aa5_c33cu32 & !(0xff << shift) | (first + l as u32) << shift);
                match once(&line, sources, [0; 32]) {
                    Err(fault) => report.add(&format!("{line}: {fault}")),
                    Ok(w) => {
                        let wrong =
                            (0..32).find(|l| !format.decodes((first + *l as u32) as u8, f32::from_bits(w.vgpr[2][*l])));
                        if let Some(l) = wrong {
                            report.add(&format!("{line}: code {:#x} gives {:#x}", first + l as u32, w.vgpr[2][l]));
                        }
                    }
                }
            }
        }
    }
    report.end();
}

#[test]
fn pairs_decode() {
    let mut report = Report::default();
    for format in [FP8, BF8] {
        for (select, shift) in [("", 0), (" op_sel:[1,0]", 16)] {
            let line = format!("v_cvt_pk_f32_{} v[2:3], v0{select}", format.name);
            for first in (0..256u32).step_by(32) {
                let code = |l: usize| (first + l as u32) & 0xff;
                let sources = std::array::from_fn(|l| (code(l) | (code(l) ^ 0xff) << 8) << shift);
                let w = match once(&line, sources, [0; 32]) {
                    Ok(w) => w,
                    Err(fault) => {
                        report.add(&format!("{line}: {fault}"));
                        continue;
                    }
                };
                for l in 0..32 {
                    let (low, high) = (f32::from_bits(w.vgpr[2][l]), f32::from_bits(w.vgpr[3][l]));
                    if !format.decodes(code(l) as u8, low) || !format.decodes(code(l) as u8 ^ 0xff, high) {
                        report.add(&format!("{line}: code {:#x} gives {low}, {high}", code(l)));
                    }
                }
            }
        }
    }
    report.end();
}

#[test]
fn pairs_encode() {
    let mut report = Report::default();
    for format in [FP8, BF8] {
        let inputs = format.inputs();
        for (select, shift) in [("", 0), (" op_sel:[0,0,1]", 16)] {
            let line = format!("v_cvt_pk_{}_f32 v2, v0, v1{select}", format.name);
            let mut wrong = Vec::new();
            for chunk in inputs.chunks(32) {
                let low: [u32; 32] = std::array::from_fn(|l| chunk[l].to_bits());
                let high: [u32; 32] = std::array::from_fn(|l| (-chunk[31 - l]).to_bits());
                let w = match once(&line, low, high) {
                    Ok(w) => w,
                    Err(fault) => {
                        wrong.push(fault);
                        break;
                    }
                };
                for l in 0..32 {
                    let got = w.vgpr[2][l];
                    let kept = 0xffff << (16 - shift);
                    if got & kept != POISON & kept {
                        wrong.push(format!("{got:#x} lost the other half"));
                    }
                    for (x, byte) in [(low[l], got >> shift & 0xff), (high[l], got >> shift >> 8 & 0xff)] {
                        if !format.encodes(f32::from_bits(x), byte as u8) {
                            wrong.push(format!("{:?} ({x:#x}) gives {byte:#x}", f32::from_bits(x)));
                        }
                    }
                }
            }
            for message in wrong.iter().take(4) {
                report.add(&format!("{line} [{} wrong]: {message}", wrong.len()));
            }
        }
    }
    report.end();
}

/// The text adds the top bits of the second source to the mantissa, where a carry is lost, and rounds the sum to
/// nearest. Infinities and NaN are not compared: there the sum has no meaning.
#[test]
fn stochastic_encode() {
    let mut report = Report::default();
    for (format, drop) in [(FP8, 12), (BF8, 11)] {
        if step::lookup(&format!("v_cvt_sr_{}_f32", format.name)).is_none() {
            continue;
        }
        let inputs: Vec<f32> = format.inputs().into_iter().map(|x| if x.is_finite() { x } else { 1.0 }).collect();
        for (select, shift) in [("", 0), (" byte_sel:1", 8), (" byte_sel:2", 16), (" byte_sel:3", 24)] {
            let line = format!("v_cvt_sr_{}_f32 v2, v0, v1{select}", format.name);
            let (mut r, mut wrong) = (Random::new(&line), Vec::new());
            for chunk in inputs.chunks(32) {
                let sources: [u32; 32] = std::array::from_fn(|l| chunk[l].to_bits());
                let noise: [u32; 32] = std::array::from_fn(|_| r.next() as u32);
                let w = match once(&line, sources, noise) {
                    Ok(w) => w,
                    Err(fault) => {
                        wrong.push(fault);
                        break;
                    }
                };
                for l in 0..32 {
                    let (got, kept) = (w.vgpr[2][l], !(0xffu32 << shift));
                    let sum =
                        sources[l] & !0x7f_ffff | (sources[l] & 0x7f_ffff).wrapping_add(noise[l] >> drop) & 0x7f_ffff;
                    let byte = (got >> shift) as u8;
                    if got & kept != POISON & kept || !format.encodes(f32::from_bits(sum), byte) {
                        wrong.push(format!("{:#x} with {:#x}: {got:#x}", sources[l], noise[l]));
                    }
                }
            }
            for message in wrong.iter().take(3) {
                report.add(&format!("{line} [{} wrong]: {message}", wrong.len()));
            }
        }
    }
    report.end();
}
