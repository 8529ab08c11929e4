//! Two 16-bit operations at once, and mixed f16/f32 multiply-add: which half goes where, signs, clamp, constants.

use rustc_apfloat::ieee::{Half, Single};
use rustc_apfloat::{Float, FloatConvert};
use unglue_codegen::emu::wave::Wave;

use crate::rig::{EXECS, Random, Report, clamped, copy, extreme, gfx1201, number, wave};

pub const DEFINED: &[&str] = &[
    "v_pk_add_f16",
    "v_pk_mul_f16",
    "v_pk_fma_f16",
    "v_pk_fmac_f16",
    "v_pk_min_num_f16",
    "v_pk_max_num_f16",
    "v_pk_minimum_f16",
    "v_pk_maximum_f16",
    "v_pk_add_u16",
    "v_pk_sub_u16",
    "v_pk_add_i16",
    "v_pk_sub_i16",
    "v_pk_mul_lo_u16",
    "v_pk_mad_u16",
    "v_pk_mad_i16",
    "v_pk_min_u16",
    "v_pk_max_u16",
    "v_pk_min_i16",
    "v_pk_max_i16",
    "v_pk_lshlrev_b16",
    "v_pk_lshrrev_b16",
    "v_pk_ashrrev_i16",
    "v_fma_mix_f32",
    "v_fma_mixlo_f16",
    "v_fma_mixhi_f16",
];

#[derive(Clone, Copy)]
enum Rule {
    Float(fn(&[Half]) -> Half),
    /// Of signed words; wraps, or saturates if clamped.
    Signed(fn(&[i64]) -> i64),
    Unsigned(fn(&[i64]) -> i64),
}
use Rule::{Float as Fl, Signed, Unsigned};

/// Name, number of sources, whether `clamp` is defined, rule.
const OPS: &[(&str, usize, bool, Rule)] = &[
    ("v_pk_add_f16", 2, true, Fl(|x| (x[0] + x[1]).value)),
    ("v_pk_mul_f16", 2, true, Fl(|x| (x[0] * x[1]).value)),
    ("v_pk_fma_f16", 3, true, Fl(|x| x[0].mul_add(x[1], x[2]).value)),
    ("v_pk_min_num_f16", 2, true, Fl(|x| number(false, x[0], x[1]))),
    ("v_pk_max_num_f16", 2, true, Fl(|x| number(true, x[0], x[1]))),
    ("v_pk_minimum_f16", 2, true, Fl(|x| extreme(false, x[0], x[1]))),
    ("v_pk_maximum_f16", 2, true, Fl(|x| extreme(true, x[0], x[1]))),
    ("v_pk_add_u16", 2, true, Unsigned(|x| x[0] + x[1])),
    ("v_pk_sub_u16", 2, true, Unsigned(|x| x[0] - x[1])),
    ("v_pk_add_i16", 2, true, Signed(|x| x[0] + x[1])),
    ("v_pk_sub_i16", 2, true, Signed(|x| x[0] - x[1])),
    ("v_pk_mad_u16", 3, true, Unsigned(|x| x[0] * x[1] + x[2])),
    ("v_pk_mad_i16", 3, true, Signed(|x| x[0] * x[1] + x[2])),
    ("v_pk_mul_lo_u16", 2, false, Unsigned(|x| x[0] * x[1])),
    ("v_pk_min_u16", 2, false, Unsigned(|x| x[0].min(x[1]))),
    ("v_pk_max_u16", 2, false, Unsigned(|x| x[0].max(x[1]))),
    ("v_pk_min_i16", 2, false, Signed(|x| x[0].min(x[1]))),
    ("v_pk_max_i16", 2, false, Signed(|x| x[0].max(x[1]))),
    ("v_pk_lshlrev_b16", 2, false, Unsigned(|x| x[1] << (x[0] & 15))),
    ("v_pk_lshrrev_b16", 2, false, Unsigned(|x| x[1] >> (x[0] & 15))),
    ("v_pk_ashrrev_i16", 2, false, Signed(|x| x[1] >> (x[0] & 15))),
];

impl Rule {
    fn accepts(self, x: &[u16], clamp: bool, got: u16) -> bool {
        let wide = |v: i64, low: i64, high: i64| (if clamp { v.clamp(low, high) } else { v }) as u16;
        match self {
            Rule::Float(f) => {
                let e = f(&x.iter().map(|v| Half::from_bits((*v).into())).collect::<Vec<_>>());
                let (e, g) = (if clamp { clamped(e) } else { e }, Half::from_bits(got.into()));
                e.is_nan() && g.is_nan() || e.to_bits() == g.to_bits() || clamp && e.is_zero() && g.is_zero()
            }
            Signed(f) => got == wide(f(&x.iter().map(|v| i64::from(*v as i16)).collect::<Vec<_>>()), -32768, 32767),
            Unsigned(f) => got == wide(f(&x.iter().map(|v| i64::from(*v)).collect::<Vec<_>>()), 0, 65535),
        }
    }
}

/// A source: text and the 32 bits behind it. A float constant of an f16 operand fills the low half, an integer is
/// extended to 32 bits, a literal has both halves.
#[derive(Clone, Copy)]
enum Source {
    V(usize),
    S(usize),
    Constant(&'static str, u32),
}

impl Source {
    fn text(self) -> String {
        match self {
            Source::V(n) => format!("v{n}"),
            Source::S(n) => format!("s{n}"),
            Source::Constant(text, _) => text.into(),
        }
    }

    fn word(self, w: &Wave, l: usize) -> u32 {
        match self {
            Source::V(n) => w.vgpr[n][l],
            Source::S(n) => w.sgpr[n],
            Source::Constant(_, bits) => bits,
        }
    }
}

struct Form {
    sources: Vec<Source>,
    op_sel: u8,
    op_sel_hi: u8,
    neg_lo: u8,
    neg_hi: u8,
    clamp: bool,
}

impl Form {
    fn random(r: &mut Random, sources: usize, float: bool, clamp: bool) -> Form {
        let all = (1u32 << sources) - 1;
        let plain = r.below(4) == 0;
        let mut list: Vec<Source> = (0..sources).map(Source::V).collect();
        if r.below(3) == 0 {
            let constants = if float {
                [("1.0", 0x3c00), ("-4.0", 0xc400), ("-1", 0xffff_ffff), ("0x12343c56", 0x1234_3c56), ("0", 0)]
            } else {
                [("5", 5), ("64", 64), ("-1", 0xffff_ffff), ("0x1234fe56", 0x1234_fe56), ("-16", 0xffff_fff0)]
            };
            let (text, bits) = r.pick(&constants);
            let at = r.below(sources as u32) as usize;
            list[at] = if r.flag() { Source::S(5) } else { Source::Constant(text, bits) };
        }
        let mut bits = |mask: u32| if plain { 0 } else { (r.word() & mask) as u8 };
        let (op_sel, neg_lo, neg_hi) =
            (bits(all), bits(if float { all } else { 0 }), bits(if float { all } else { 0 }));
        let op_sel_hi = if plain { all as u8 } else { bits(all) };
        Form { sources: list, op_sel, op_sel_hi, neg_lo, neg_hi, clamp: clamp && !plain && r.below(3) == 0 }
    }

    fn text(&self, name: &str) -> String {
        let n = self.sources.len();
        let list = |bits: u8| {
            let items: Vec<String> = (0..n).map(|k| (bits >> k & 1).to_string()).collect();
            format!("[{}]", items.join(","))
        };
        let sources: Vec<String> = self.sources.iter().map(|s| s.text()).collect();
        let mut out = format!("{name} v9, {}", sources.join(", "));
        for (word, bits, default) in [
            ("op_sel", self.op_sel, 0),
            ("op_sel_hi", self.op_sel_hi, (1 << n) - 1),
            ("neg_lo", self.neg_lo, 0),
            ("neg_hi", self.neg_hi, 0),
        ] {
            if bits != default {
                out += &format!(" {word}:{}", list(bits));
            }
        }
        if self.clamp { out + " clamp" } else { out }
    }

    /// Words that go into the low (false) or high result.
    fn words(&self, w: &Wave, l: usize, upper: bool) -> Vec<u16> {
        let (select, neg) = if upper { (self.op_sel_hi, self.neg_hi) } else { (self.op_sel, self.neg_lo) };
        let word = |(k, s): (usize, &Source)| {
            let word = s.word(w, l);
            let half = (if select >> k & 1 == 1 { word >> 16 } else { word }) as u16;
            half ^ u16::from(neg >> k & 1) << 15
        };
        self.sources.iter().enumerate().map(word).collect()
    }
}

/// Halves of all kinds.
fn fill(r: &mut Random, w: &mut Wave) {
    let value = |r: &mut Random| match r.below(3) {
        0 => r.pick(&[0, 0x8000, 1, 0x83ff, 0x400, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x3c00, 0xbc00, 0xffff, 0x7fff]),
        1 => (r.word() & 0x8fff | 0x3000) as u16,
        _ => r.word() as u16,
    };
    for n in [0, 1, 2, 9] {
        w.vgpr[n] = std::array::from_fn(|_| u32::from(value(r)) | u32::from(value(r)) << 16);
    }
    w.sgpr[5] = u32::from(value(r)) | u32::from(value(r)) << 16;
}

#[test]
fn packed() {
    let (mut report, mut r) = (Report::default(), Random(1));
    for (name, sources, clamp, rule) in OPS {
        let float = matches!(rule, Rule::Float(_));
        let forms: Vec<Form> = (0..60).map(|_| Form::random(&mut r, *sources, float, *clamp)).collect();
        let lines: Vec<String> = forms.iter().map(|f| f.text(name)).collect();
        for (i, line, step) in report.built(&lines, gfx1201()) {
            for round in 0..24 {
                let mut w = wave(&mut r, EXECS[round % 8]);
                fill(&mut r, &mut w);
                let before = copy(&w);
                if !report.run(line, &step, &mut w) {
                    break;
                }
                for l in 0..32 {
                    let got = w.vgpr[9][l];
                    if before.exec() >> l & 1 == 0 {
                        report.check(got == before.vgpr[9][l], line, || format!("inactive lane {l} was written"));
                        continue;
                    }
                    for upper in [false, true] {
                        let x = forms[i].words(&before, l, upper);
                        let half = (if upper { got >> 16 } else { got }) as u16;
                        report.check(rule.accepts(&x, forms[i].clamp, half), line, || {
                            format!("{} half of {x:x?}: {half:#x}", if upper { "upper" } else { "lower" })
                        });
                    }
                }
            }
        }
    }
    report.finish();
}

#[test]
fn packed_accumulate() {
    let (mut report, mut r) = (Report::default(), Random(2));
    for (_, line, step) in report.built(&["v_pk_fmac_f16 v9, v0, v1"], gfx1201()) {
        for round in 0..200 {
            let mut w = wave(&mut r, EXECS[round % 8]);
            fill(&mut r, &mut w);
            let before = copy(&w);
            report.run(line, &step, &mut w);
            for l in 0..32 {
                for shift in [0, 16] {
                    let h = |n: usize| Half::from_bits((before.vgpr[n][l] >> shift & 0xffff).into());
                    let active = before.exec() >> l & 1 == 1;
                    let e = if active { h(0).mul_add(h(1), h(9)).value } else { h(9) };
                    let got = Half::from_bits((w.vgpr[9][l] >> shift & 0xffff).into());
                    let ok = e.to_bits() == got.to_bits() || active && e.is_nan() && got.is_nan();
                    report.check(ok, line, || format!("lane {l}: {got}, not {e}"));
                }
            }
        }
    }
    report.finish();
}

/// `op_sel_hi` says which sources are f16, `op_sel` which half.
struct Mixed {
    name: &'static str,
    neg: u8,
    abs: u8,
    form: Form,
}

impl Mixed {
    fn random(r: &mut Random) -> Mixed {
        let name = r.pick(&["v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16"]);
        let mut bits = || (r.word() & 7) as u8;
        let (op_sel_hi, mut op_sel, neg, abs) = (bits(), bits(), bits(), bits() & bits());
        op_sel &= op_sel_hi;
        let mut sources: Vec<Source> = (0..3).map(Source::V).collect();
        let at = r.below(6) as usize;
        if at < 3 {
            // Constants of f32 only: what half of a constant an f16 source gets is not written.
            let constant = op_sel_hi >> at & 1 == 0 && r.flag();
            sources[at] = if constant { Source::Constant("2.0", 0x4000_0000) } else { Source::S(5) };
        }
        let (neg, abs) = match at {
            0..3 => (neg & !(1 << at), abs & !(1 << at)),
            _ => (neg, abs),
        };
        let form = Form { sources, op_sel, op_sel_hi, neg_lo: 0, neg_hi: 0, clamp: r.below(4) == 0 };
        Mixed { name, neg, abs, form }
    }

    fn text(&self) -> String {
        let bits = |b: u8| format!("[{},{},{}]", b & 1, b >> 1 & 1, b >> 2 & 1);
        let sources = self.form.sources.iter().enumerate().map(|(k, s)| {
            let inner = if self.abs >> k & 1 == 1 { format!("|{}|", s.text()) } else { s.text() };
            if self.neg >> k & 1 == 1 { format!("-{inner}") } else { inner }
        });
        let mut out = format!("{} v9, {}", self.name, sources.collect::<Vec<_>>().join(", "));
        if self.form.op_sel != 0 {
            out += &format!(" op_sel:{}", bits(self.form.op_sel));
        }
        if self.form.op_sel_hi != 0 {
            out += &format!(" op_sel_hi:{}", bits(self.form.op_sel_hi));
        }
        if self.form.clamp { out + " clamp" } else { out }
    }

    fn source(&self, w: &Wave, l: usize, k: usize) -> Single {
        let word = self.form.sources[k].word(w, l);
        let mut x = if self.form.op_sel_hi >> k & 1 == 1 {
            let half = if self.form.op_sel >> k & 1 == 1 { word >> 16 } else { word & 0xffff };
            Half::from_bits(half.into()).convert(&mut false).value
        } else {
            Single::from_bits(word.into())
        };
        if self.abs >> k & 1 == 1 && x.is_negative() {
            x = -x;
        }
        if self.neg >> k & 1 == 1 { -x } else { x }
    }

    /// Whether a result is right: the sum is rounded to f32, then for f16 to f16.
    fn accepts(&self, w: &Wave, l: usize, got: u32) -> bool {
        let x: [Single; 3] = std::array::from_fn(|k| self.source(w, l, k));
        let e = x[0].mul_add(x[1], x[2]).value;
        let old = w.vgpr[9][l];
        let clamp = self.form.clamp;
        if self.name == "v_fma_mix_f32" {
            let e = if clamp { clamped(e) } else { e };
            return u128::from(got) == e.to_bits() || e.is_nan() && f32::from_bits(got).is_nan();
        }
        let e: Half = e.convert(&mut false).value;
        let e = if clamp { clamped(e) } else { e };
        let (half, kept) = if self.name == "v_fma_mixhi_f16" {
            (got >> 16, got & 0xffff == old & 0xffff)
        } else {
            (got & 0xffff, got >> 16 == old >> 16)
        };
        kept && (u128::from(half) == e.to_bits() || e.is_nan() && Half::from_bits(half.into()).is_nan())
    }
}

#[test]
fn mixed() {
    let (mut report, mut r) = (Report::default(), Random(3));
    let forms: Vec<Mixed> = (0..400).map(|_| Mixed::random(&mut r)).collect();
    let lines: Vec<String> = forms.iter().map(Mixed::text).collect();
    for (i, line, step) in report.built(&lines, gfx1201()) {
        for round in 0..16 {
            let mut w = wave(&mut r, EXECS[round % 8]);
            fill(&mut r, &mut w);
            for n in 0..3 {
                for l in 0..32 {
                    if r.flag() {
                        w.vgpr[n][l] = (r.within(1 << 20) as f32 / 4096.0).to_bits();
                    }
                }
            }
            let before = copy(&w);
            if !report.run(line, &step, &mut w) {
                break;
            }
            for l in 0..32 {
                let got = w.vgpr[9][l];
                let ok = match before.exec() >> l & 1 {
                    1 => forms[i].accepts(&before, l, got),
                    _ => got == before.vgpr[9][l],
                };
                report.check(ok, line, || {
                    let x: [Single; 3] = std::array::from_fn(|k| forms[i].source(&before, l, k));
                    format!("lane {l} of {} {} {}: {:#x} -> {got:#x}", x[0], x[1], x[2], before.vgpr[9][l])
                });
            }
        }
    }
    report.finish();
}
