//! Dot products inside a lane: integers exactly, floats within what an unspecified inner sum can differ by.

use unglue_codegen::emu::wave::Wave;

use crate::rig::{EXECS, Named, Random, Report, bf8, copy, fp8, gfx1201, true16, ulp_bf16, ulp16, ulp32, wave};

pub const DEFINED: &[&str] = &[
    "v_dot4_i32_iu8",
    "v_dot4_u32_u8",
    "v_dot8_i32_iu4",
    "v_dot8_u32_u4",
    "v_dot2_f32_f16",
    "v_dot2_f32_bf16",
    "v_dot2_f16_f16",
    "v_dot2_bf16_bf16",
    "v_dot4_f32_fp8_fp8",
    "v_dot4_f32_fp8_bf8",
    "v_dot4_f32_bf8_fp8",
    "v_dot4_f32_bf8_bf8",
];

pub fn f16(x: u16) -> f64 {
    ::half::f16::from_bits(x).to_f64()
}

pub fn bf16(x: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(x) << 16))
}

/// Element `i` of `bits` bits, sign-extended if `signed`.
fn element(word: u32, i: u32, bits: u32, signed: bool) -> i64 {
    let x = i64::from(word >> (i * bits) & ((1 << bits) - 1));
    if signed && x >> (bits - 1) == 1 { x - (1 << bits) } else { x }
}

struct Integer {
    name: &'static str,
    bits: u32,
    /// `neg_lo` says which sources are signed, and the result is.
    mixed: bool,
}

const INTEGERS: [Integer; 4] = [
    Integer { name: "v_dot4_i32_iu8", bits: 8, mixed: true },
    Integer { name: "v_dot8_i32_iu4", bits: 4, mixed: true },
    Integer { name: "v_dot4_u32_u8", bits: 8, mixed: false },
    Integer { name: "v_dot8_u32_u4", bits: 4, mixed: false },
];

/// The exact sum, wrapped or saturated.
fn integer_dot(of: &Integer, a: u32, b: u32, c: u32, signs: u32, clamp: bool) -> u32 {
    let product = |i| element(a, i, of.bits, signs & 1 == 1) * element(b, i, of.bits, signs & 2 == 2);
    let start = if of.mixed { i64::from(c.cast_signed()) } else { i64::from(c) };
    let sum = (0..32 / of.bits).map(product).sum::<i64>() + start;
    let (low, high) = if of.mixed { (i64::from(i32::MIN), i64::from(i32::MAX)) } else { (0, i64::from(u32::MAX)) };
    (if clamp { sum.clamp(low, high) } else { sum }) as u32
}

#[test]
fn integers() {
    let (mut report, mut r) = (Report::default(), Random(1));
    for of in &INTEGERS {
        let (mut lines, mut forms) = (Vec::new(), Vec::new());
        for signs in 0..if of.mixed { 4 } else { 1 } {
            for clamp in [false, true] {
                for c in ["v2", "s5", "-9"] {
                    let neg =
                        if signs == 0 { String::new() } else { format!(" neg_lo:[{},{},0]", signs & 1, signs >> 1) };
                    lines.push(format!("{} v9, v0, v1, {c}{neg}{}", of.name, if clamp { " clamp" } else { "" }));
                    forms.push((signs, clamp, c));
                }
            }
        }
        for (i, line, step) in report.built(&lines, gfx1201()) {
            for round in 0..64 {
                let mut w = wave(&mut r, EXECS[round % 8]);
                let near = [0, 100, -100i32 as u32, i32::MAX as u32 - 50, i32::MIN as u32 + 50, u32::MAX - 20];
                for l in 0..32 {
                    for n in 0..2 {
                        w.vgpr[n][l] =
                            if r.below(4) == 0 { r.pick(&[u32::MAX, 0x8080_8080, 0x7f7f_7f7f]) } else { r.word() };
                    }
                    w.vgpr[2][l] = if r.flag() { r.pick(&near) } else { r.word() };
                }
                let before = copy(&w);
                if !report.run(line, &step, &mut w) {
                    break;
                }
                let (signs, clamp, c) = forms[i];
                for l in 0..32 {
                    let c = match c {
                        "v2" => before.vgpr[2][l],
                        "s5" => before.sgpr[5],
                        _ => -9i32 as u32,
                    };
                    let (a, b) = (before.vgpr[0][l], before.vgpr[1][l]);
                    let active = before.exec() >> l & 1 == 1;
                    let e = if active { integer_dot(of, a, b, c, signs, clamp) } else { before.vgpr[9][l] };
                    let got = w.vgpr[9][l];
                    report.check(got == e, line, || format!("{a:#x} . {b:#x} + {c:#x}: {got:#x}, not {e:#x}"));
                }
            }
        }
    }
    report.finish();
}

/// Whether `got` is the sum of the terms but for the order and the roundings of inner sums.
fn near(terms: &[f64], got: f64, ulp: fn(f64) -> f64, largest: f64) -> bool {
    let exact: f64 = terms.iter().sum();
    if exact.is_nan() {
        return got.is_nan();
    }
    if exact.abs() > largest || exact.is_infinite() {
        return got.abs() >= largest * 0.99 && got.is_sign_negative() == exact.is_sign_negative();
    }
    let size = terms.iter().fold(exact.abs(), |m, t| m.max(t.abs()));
    (got - exact).abs() <= 1.5 * ulp(size)
}

/// Where the halves of the two sources and their signs come from.
#[derive(Clone, Copy, Default)]
struct Packed {
    op_sel: u32,
    op_sel_hi: u32,
    neg_lo: u32,
    neg_hi: u32,
}

fn two(p: Packed, w: &Wave, l: usize, value: fn(u16) -> f64) -> [f64; 2] {
    let half = |n: usize, select: u32, neg: u32| {
        let word = w.vgpr[n][l];
        let x = value((if select >> n & 1 == 1 { word >> 16 } else { word }) as u16);
        if neg >> n & 1 == 1 { -x } else { x }
    };
    [
        half(0, p.op_sel, p.neg_lo) * half(1, p.op_sel, p.neg_lo),
        half(0, p.op_sel_hi, p.neg_hi) * half(1, p.op_sel_hi, p.neg_hi),
    ]
}

/// Random halves of moderate size.
fn halves(r: &mut Random, wide: bool) -> u32 {
    let mut one = || {
        if wide {
            ::half::bf16::from_f64(r.within(1 << 12) as f64 / 64.0).to_bits()
        } else {
            ::half::f16::from_f64(r.within(1 << 12) as f64 / 512.0).to_bits()
        }
    };
    u32::from(one()) | u32::from(one()) << 16
}

#[test]
fn two_halves_to_f32() {
    let (mut report, mut r) = (Report::default(), Random(2));
    let (mut lines, mut forms) = (Vec::new(), Vec::new());
    for name in ["v_dot2_f32_f16", "v_dot2_f32_bf16"] {
        for n in 0..24 {
            let plain = n == 0;
            let mut bits = || if plain { 0 } else { r.word() & 3 };
            let (op_sel, neg_lo, neg_hi) = (bits(), bits(), bits());
            let op_sel_hi = if plain { 3 } else { bits() };
            let p = Packed { op_sel, op_sel_hi, neg_lo, neg_hi };
            let list = |b: u32, third: u32| format!("[{},{},{third}]", b & 1, b >> 1);
            let mods = format!(
                " op_sel:{} op_sel_hi:{} neg_lo:{} neg_hi:{}",
                list(op_sel, 0),
                list(op_sel_hi, 1),
                list(neg_lo, 0),
                list(neg_hi, 0)
            );
            lines.push(format!("{name} v9, v0, v1, v2{}", if plain { "" } else { &mods }));
            forms.push((name == "v_dot2_f32_bf16", p));
        }
    }
    for (i, line, step) in report.built(&lines, gfx1201()) {
        for round in 0..32 {
            let mut w = wave(&mut r, EXECS[round % 8]);
            let (wide, p) = forms[i];
            for l in 0..32 {
                (w.vgpr[0][l], w.vgpr[1][l]) = (halves(&mut r, wide), halves(&mut r, wide));
                w.vgpr[2][l] = (r.within(1 << 24) as f32 / 65536.0).to_bits();
            }
            let before = copy(&w);
            if !report.run(line, &step, &mut w) {
                break;
            }
            for l in 0..32 {
                let [x, y] = two(p, &before, l, if wide { bf16 } else { f16 });
                let got = f32::from_bits(w.vgpr[9][l]);
                let ok = match before.exec() >> l & 1 {
                    1 => near(&[x, y, f32::from_bits(before.vgpr[2][l]).into()], got.into(), ulp32, f32::MAX.into()),
                    _ => w.vgpr[9][l] == before.vgpr[9][l],
                };
                report
                    .check(ok, line, || format!("lane {l}: {x} + {y} + {}: {got}", f32::from_bits(before.vgpr[2][l])));
            }
        }
    }
    report.finish();
}

/// The 16-bit addend and result are halves of registers.
#[test]
fn two_halves_to_half() {
    let mut r = Random(3);
    for named in [false, true] {
        let (mut report, mut lines, mut forms) = (Report::default(), Vec::new(), Vec::new());
        for name in ["v_dot2_f16_f16", "v_dot2_bf16_bf16"] {
            for n in 0..4 {
                let (c, d) = (n & 1, n >> 1);
                let letter = |high| if high == 1 { "h" } else { "l" };
                lines.push(match (named, n) {
                    (true, _) => format!("{name} v9.{}, v0, v1, v2.{}", letter(d), letter(c)),
                    (false, 0) => format!("{name} v9, v0, v1, v2"),
                    (false, _) => format!("{name} v9, v0, v1, v2 op_sel:[0,0,{c},{d}]"),
                });
                forms.push((name == "v_dot2_bf16_bf16", c, d));
            }
        }
        for (i, line, step) in report.built(&lines, if named { true16() } else { gfx1201() }) {
            for round in 0..32 {
                let mut w = wave(&mut r, EXECS[round % 8]);
                let (wide, c, d) = forms[i];
                for l in 0..32 {
                    for n in 0..3 {
                        w.vgpr[n][l] = halves(&mut r, wide);
                    }
                }
                let before = copy(&w);
                if !report.run(line, &step, &mut w) {
                    break;
                }
                let value = if wide { bf16 } else { f16 };
                let (ulp, largest): (fn(f64) -> f64, f64) = if wide { (ulp_bf16, 3e38) } else { (ulp16, 65504.0) };
                for l in 0..32 {
                    let (old, new) = (before.vgpr[9][l], w.vgpr[9][l]);
                    if before.exec() >> l & 1 == 0 {
                        report.check(old == new, line, || format!("inactive lane {l} was written"));
                        continue;
                    }
                    let [x, y] = two(Packed { op_sel_hi: 3, ..Packed::default() }, &before, l, value);
                    let z = value((before.vgpr[2][l] >> (16 * c)) as u16);
                    let got = value((new >> (16 * d)) as u16);
                    let other = 16 - 16 * d;
                    report.check(old >> other & 0xffff == new >> other & 0xffff, line, || "other half changed".into());
                    report.check(near(&[x, y, z], got, ulp, largest), line, || format!("{x} + {y} + {z}: {got}"));
                }
            }
        }
        report.finish();
    }
}

#[test]
fn four_bytes() {
    let (mut report, mut r) = (Report::default(), Random(4));
    let kinds: [Named<u8>; 2] = [("fp8", fp8), ("bf8", bf8)];
    for (a_name, a_value) in kinds {
        for (b_name, b_value) in kinds {
            let name = format!("v_dot4_f32_{a_name}_{b_name} v9, v0, v1");
            let lines = [format!("{name}, v2"), format!("{name}, 1.0"), format!("{name}, s5")];
            for (i, line, step) in report.built(&lines, gfx1201()) {
                for round in 0..64 {
                    let mut w = wave(&mut r, EXECS[round % 8]);
                    for l in 0..32 {
                        w.vgpr[2][l] = (r.within(1 << 20) as f32 / 256.0).to_bits();
                    }
                    w.sgpr[5] = 3.5f32.to_bits();
                    let before = copy(&w);
                    if !report.run(line, &step, &mut w) {
                        break;
                    }
                    for l in 0..32 {
                        let (a, b) = (before.vgpr[0][l].to_le_bytes(), before.vgpr[1][l].to_le_bytes());
                        let mut terms: Vec<f64> = (0..4).map(|k| a_value(a[k]) * b_value(b[k])).collect();
                        terms.push([f32::from_bits(before.vgpr[2][l]).into(), 1.0, 3.5][i]);
                        let got = f32::from_bits(w.vgpr[9][l]);
                        let ok = match before.exec() >> l & 1 {
                            1 => near(&terms, got.into(), |x| 4.0 * ulp32(x), f32::MAX.into()),
                            _ => w.vgpr[9][l] == before.vgpr[9][l],
                        };
                        report.check(ok, line, || format!("{terms:?}: {got}"));
                    }
                }
            }
        }
    }
    report.finish();
}
