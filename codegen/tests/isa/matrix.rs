//! Matrix multiply-accumulate: A, B and C are laid into registers by code of this file, products are exact integers or
//! within the bound of an unspecified inner sum. An order of k that A and B share cannot be seen in a dense product by any
//! test; one that they do not share is.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use unglue_codegen::emu::wave::Wave;

use crate::dot::{bf16, f16};
use crate::rig::{Random, Report, bf8, copy, fp8, gfx1201, wave};

pub const DEFINED: &[&str] = &[
    "v_wmma_f32_16x16x16_f16",
    "v_wmma_f32_16x16x16_bf16",
    "v_wmma_f16_16x16x16_f16",
    "v_wmma_bf16_16x16x16_bf16",
    "v_wmma_i32_16x16x16_iu8",
    "v_wmma_i32_16x16x16_iu4",
    "v_wmma_i32_16x16x32_iu4",
    "v_wmma_f32_16x16x16_fp8_fp8",
    "v_wmma_f32_16x16x16_fp8_bf8",
    "v_wmma_f32_16x16x16_bf8_fp8",
    "v_wmma_f32_16x16x16_bf8_bf8",
];

/// Element types.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ty {
    F32,
    F16,
    Bf16,
    Fp8,
    Bf8,
    I32,
    I8,
    I4,
}

impl Ty {
    fn bits(self) -> usize {
        match self {
            Ty::F32 | Ty::I32 => 32,
            Ty::F16 | Ty::Bf16 => 16,
            Ty::Fp8 | Ty::Bf8 | Ty::I8 => 8,
            Ty::I4 => 4,
        }
    }

    /// Bits of a value that the type has.
    fn encode(self, x: f64) -> u32 {
        match self {
            Ty::F32 => (x as f32).to_bits(),
            Ty::F16 => ::half::f16::from_f64(x).to_bits().into(),
            Ty::Bf16 => ::half::bf16::from_f64(x).to_bits().into(),
            Ty::Fp8 => (0..=255u8).find(|b| fp8(*b) == x).map(u32::from).unwrap(),
            Ty::Bf8 => (0..=255u8).find(|b| bf8(*b) == x).map(u32::from).unwrap(),
            Ty::I32 => x as i64 as u32,
            Ty::I8 => x as i64 as u32 & 0xff,
            Ty::I4 => x as i64 as u32 & 0xf,
        }
    }

    fn decode(self, bits: u32) -> f64 {
        match self {
            Ty::F32 => f32::from_bits(bits).into(),
            Ty::F16 => f16(bits as u16),
            Ty::Bf16 => bf16(bits as u16),
            Ty::Fp8 => fp8(bits as u8),
            Ty::Bf8 => bf8(bits as u8),
            Ty::I32 => bits.cast_signed().into(),
            Ty::I8 | Ty::I4 => unreachable!("no result type"),
        }
    }

    /// The largest n with all of -n..=n in the type.
    fn small(self) -> u32 {
        match self {
            Ty::Fp8 => 15,
            Ty::Bf8 | Ty::I4 => 7,
            Ty::I8 => 100,
            _ => 8,
        }
    }
}

#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    a: Ty,
    b: Ty,
    d: Ty,
    k: usize,
}

const fn shape(name: &'static str, a: Ty, b: Ty, d: Ty) -> Shape {
    Shape { name, a, b, d, k: 16 }
}

const FLOATS: [Shape; 8] = [
    shape("v_wmma_f32_16x16x16_f16", Ty::F16, Ty::F16, Ty::F32),
    shape("v_wmma_f32_16x16x16_bf16", Ty::Bf16, Ty::Bf16, Ty::F32),
    shape("v_wmma_f16_16x16x16_f16", Ty::F16, Ty::F16, Ty::F16),
    shape("v_wmma_bf16_16x16x16_bf16", Ty::Bf16, Ty::Bf16, Ty::Bf16),
    shape("v_wmma_f32_16x16x16_fp8_fp8", Ty::Fp8, Ty::Fp8, Ty::F32),
    shape("v_wmma_f32_16x16x16_fp8_bf8", Ty::Fp8, Ty::Bf8, Ty::F32),
    shape("v_wmma_f32_16x16x16_bf8_fp8", Ty::Bf8, Ty::Fp8, Ty::F32),
    shape("v_wmma_f32_16x16x16_bf8_bf8", Ty::Bf8, Ty::Bf8, Ty::F32),
];
const INTEGERS: [Shape; 3] = [
    shape("v_wmma_i32_16x16x16_iu8", Ty::I8, Ty::I8, Ty::I32),
    shape("v_wmma_i32_16x16x16_iu4", Ty::I4, Ty::I4, Ty::I32),
    Shape { k: 32, ..shape("v_wmma_i32_16x16x32_iu4", Ty::I4, Ty::I4, Ty::I32) },
];

/// Registers: A from v0, B from v4, C from v8, D from v16 (or over C).
const A: usize = 0;
const B: usize = 4;
const C: usize = 8;
const D: usize = 16;

/// 16 rows (of A; columns of B) of k values.
type Side = Vec<Vec<f64>>;
/// 16 rows of 16 columns.
type Square = [[f64; 16]; 16];

impl Shape {
    fn registers(&self, ty: Ty) -> usize {
        16 * self.k * ty.bits() / 32 / 32
    }

    fn results(&self) -> usize {
        if self.d.bits() == 16 { 4 } else { 8 }
    }

    fn line(&self, c: &str, d: usize, mods: &str) -> String {
        let range = |first: usize, n: usize| match n {
            1 => format!("v{first}"),
            _ => format!("v[{first}:{}]", first + n - 1),
        };
        let c = if c.is_empty() { range(C, self.results()) } else { c.to_owned() };
        let (a, b) = (range(A, self.registers(self.a)), range(B, self.registers(self.b)));
        format!("{} {}, {a}, {b}, {c}{mods}", self.name, range(d, self.results()))
    }

    /// Which lane, and which element of it, holds (row or column, k).
    fn place(&self, ty: Ty, row: usize, k: usize) -> (usize, usize) {
        if ty.bits() == 16 {
            // k runs through four of the lower lanes, four of the upper, and again.
            let (quarter, within) = (k / 4, k % 4);
            (row + 16 * (quarter % 2), 4 * (quarter / 2) + within)
        } else {
            let per_lane = self.k / 2;
            (row + 16 * (k / per_lane), k % per_lane)
        }
    }

    fn put(&self, w: &mut Wave, first: usize, ty: Ty, side: &Side) {
        for (row, values) in side.iter().enumerate() {
            for (k, x) in values.iter().enumerate() {
                let (lane, at) = self.place(ty, row, k);
                insert(&mut w.vgpr[first..], lane, at, ty.bits(), ty.encode(*x));
            }
        }
    }

    fn put_c(&self, w: &mut Wave, c: &Square) {
        for (row, values) in c.iter().enumerate() {
            for (column, x) in values.iter().enumerate() {
                let (lane, at) = (column + 16 * (row / 8), row % 8);
                insert(&mut w.vgpr[C..], lane, at, self.d.bits(), self.d.encode(*x));
            }
        }
    }

    fn result(&self, w: &Wave, first: usize, row: usize, column: usize) -> f64 {
        let (lane, bit) = (column + 16 * (row / 8), row % 8 * self.d.bits());
        let word = w.vgpr[first + bit / 32][lane] >> (bit % 32);
        self.d.decode(if self.d.bits() == 16 { word & 0xffff } else { word })
    }
}

fn insert(registers: &mut [[u32; 32]], lane: usize, at: usize, bits: usize, value: u32) {
    let bit = at * bits;
    let mask = if bits == 32 { u32::MAX } else { ((1 << bits) - 1) << (bit % 32) };
    let word = &mut registers[bit / 32][lane];
    *word = *word & !mask | value << (bit % 32) & mask;
}

fn side(k: usize, mut f: impl FnMut() -> f64) -> Side {
    (0..16).map(|_| (0..k).map(|_| f()).collect()).collect()
}

fn square(mut f: impl FnMut() -> f64) -> Square {
    std::array::from_fn(|_| std::array::from_fn(|_| f()))
}

/// The product's element, and the sum of its terms' magnitudes.
fn product(a: &Side, b: &Side, c: &Square, row: usize, column: usize) -> (f64, f64) {
    let terms = a[row].iter().zip(&b[column]).map(|(x, y)| x * y);
    let (sum, size) = terms.fold((0.0, 0.0), |(s, m), t| (s + t, m + t.abs()));
    (sum + c[row][column], size + c[row][column].abs())
}

/// Signs of a float form: of the even and odd elements of A and B, and C's sign and magnitude.
#[derive(Clone, Copy, Default)]
struct Signs {
    lo: u32,
    hi: u32,
}

impl Signs {
    fn text(self) -> String {
        let list = |b: u32| format!("[{},{},{}]", b & 1, b >> 1 & 1, b >> 2 & 1);
        let mut out = String::new();
        if self.lo != 0 {
            out += &format!(" neg_lo:{}", list(self.lo));
        }
        if self.hi != 0 {
            out += &format!(" neg_hi:{}", list(self.hi));
        }
        out
    }

    /// A or B as the multiplication sees it.
    fn side(self, which: u32, of: &Side) -> Side {
        let flip = |k: usize| (if k.is_multiple_of(2) { self.lo } else { self.hi }) >> which & 1 == 1;
        of.iter().map(|row| row.iter().enumerate().map(|(k, x)| if flip(k) { -x } else { *x }).collect()).collect()
    }

    fn square(self, c: &Square) -> Square {
        let one = |x: f64| {
            let x = if self.hi & 4 == 4 { x.abs() } else { x };
            if self.lo & 4 == 4 { -x } else { x }
        };
        c.map(|row| row.map(one))
    }
}

fn compare(report: &mut Report, line: &str, s: &Shape, w: &Wave, to: usize, m: (&Side, &Side, &Square), unit: f64) {
    for row in 0..16 {
        for column in 0..16 {
            let (e, size) = product(m.0, m.1, m.2, row, column);
            let got = s.result(w, to, row, column);
            let ok = if unit == 0.0 { got == e } else { (got - e).abs() <= size * unit + 1e-30 };
            report.check(ok, line, || format!("row {row} column {column}: {got}, not {e}"));
        }
    }
}

/// Sizes whose sums every result type has exactly.
fn exact_sizes(s: &Shape) -> (u32, u32, u32) {
    match s.d {
        // 16 * 3 * 4 + 60 < 256.
        Ty::Bf16 => (3, 4, 60),
        _ => (s.a.small(), s.b.small(), 500),
    }
}

#[test]
fn float_products_are_exact() {
    let (mut report, mut r) = (Report::default(), Random(1));
    for s in &FLOATS {
        let mut signs = vec![Signs::default(); 3];
        signs.extend([Signs { lo: 4, hi: 0 }, Signs { lo: 0, hi: 4 }, Signs { lo: 4, hi: 4 }]);
        if s.a.bits() == 16 {
            signs.extend([Signs { lo: 1, hi: 1 }, Signs { lo: 2, hi: 2 }, Signs { lo: 7, hi: 3 }]);
            signs.extend([Signs { lo: 1, hi: 0 }, Signs { lo: 0, hi: 2 }, Signs { lo: 2, hi: 1 }]);
        }
        let place = |i: usize| if i == 2 { C } else { D };
        let lines: Vec<String> = signs.iter().enumerate().map(|(i, g)| s.line("", place(i), &g.text())).collect();
        for (i, line, step) in report.built(&lines, gfx1201()) {
            for _ in 0..8 {
                let (na, nb, nc) = exact_sizes(s);
                let (a, b) = (side(s.k, || r.within(na) as f64), side(s.k, || r.within(nb) as f64));
                let c = square(|| r.within(nc) as f64);
                let mut w = wave(&mut r, u32::MAX);
                s.put(&mut w, A, s.a, &a);
                s.put(&mut w, B, s.b, &b);
                s.put_c(&mut w, &c);
                let before = copy(&w);
                if !report.run(line, &step, &mut w) {
                    break;
                }
                let g = signs[i];
                let (a, b, c) = (g.side(0, &a), g.side(1, &b), g.square(&c));
                compare(&mut report, line, s, &w, place(i), (&a, &b, &c), 0.0);
                let written = place(i)..place(i) + s.results();
                let kept = (0..64).filter(|n| !written.contains(n)).all(|n| w.vgpr[n] == before.vgpr[n]);
                report.check(kept, line, || "another register changed".into());
            }
        }
    }
    report.finish();
}

/// A constant is every element of C.
#[test]
fn constant_c() {
    let (mut report, mut r) = (Report::default(), Random(2));
    for s in FLOATS.iter().chain(&INTEGERS) {
        let constants = if s.d == Ty::I32 {
            [("0", 0.0), ("7", 7.0), ("-5", -5.0)]
        } else {
            [("0", 0.0), ("1.0", 1.0), ("-4.0", -4.0)]
        };
        let signed = if s.d == Ty::I32 { " neg_lo:[1,1,0]" } else { "" };
        let lines: Vec<String> = constants.iter().map(|(text, _)| s.line(text, D, signed)).collect();
        for (i, line, step) in report.built(&lines, gfx1201()) {
            let (na, nb, _) = exact_sizes(s);
            let (a, b) = (side(s.k, || r.within(na) as f64), side(s.k, || r.within(nb) as f64));
            let mut w = wave(&mut r, u32::MAX);
            s.put(&mut w, A, s.a, &a);
            s.put(&mut w, B, s.b, &b);
            if report.run(line, &step, &mut w) {
                compare(&mut report, line, s, &w, D, (&a, &b, &[[constants[i].1; 16]; 16]), 0.0);
            }
        }
    }
    report.finish();
}

#[test]
fn integer_products() {
    let (mut report, mut r) = (Report::default(), Random(3));
    for s in &INTEGERS {
        let (mut lines, mut forms) = (Vec::new(), Vec::new());
        for signs in 0..4u32 {
            for clamp in [false, true] {
                let neg = if signs == 0 { String::new() } else { format!(" neg_lo:[{},{},0]", signs & 1, signs >> 1) };
                lines.push(s.line("", D, &format!("{neg}{}", if clamp { " clamp" } else { "" })));
                forms.push((signs, clamp));
            }
        }
        for (i, line, step) in report.built(&lines, gfx1201()) {
            for round in 0..8 {
                let (signs, clamp) = forms[i];
                let top = (1i64 << s.a.bits()) - 1;
                let mut draw = |signed: bool| {
                    let x = i64::from(r.below(top as u32 + 1));
                    (if signed { x - (top + 1) / 2 } else { x }) as f64
                };
                let (a, b) = (side(s.k, || draw(signs & 1 == 1)), side(s.k, || draw(signs & 2 == 2)));
                // Some sums leave the range of i32.
                let edge = [0.0, f64::from(i32::MAX) - 300.0, f64::from(i32::MIN) + 300.0];
                let c = square(|| if round < 3 { r.within(1 << 20) as f64 } else { r.pick(&edge) });
                let mut w = wave(&mut r, u32::MAX);
                s.put(&mut w, A, s.a, &a);
                s.put(&mut w, B, s.b, &b);
                s.put_c(&mut w, &c);
                if !report.run(line, &step, &mut w) {
                    break;
                }
                for row in 0..16 {
                    for column in 0..16 {
                        let (sum, _) = product(&a, &b, &c, row, column);
                        let e = if clamp {
                            sum.clamp(i32::MIN.into(), i32::MAX.into())
                        } else {
                            f64::from(sum as i64 as i32)
                        };
                        let got = s.result(&w, D, row, column);
                        report.check(got == e, line, || format!("row {row} column {column}: {got}, not {e}"));
                    }
                }
            }
        }
    }
    report.finish();
}

/// One element of A and one of B: the product stands at (row of A, column of B) if both have the same k, else nowhere.
#[test]
fn single_elements() {
    let (mut report, mut r) = (Report::default(), Random(4));
    for s in FLOATS.iter().chain(&INTEGERS) {
        let signed = if s.d == Ty::I32 { " neg_lo:[1,1,0]" } else { "" };
        for (_, line, step) in report.built(&[s.line("0", D, signed)], gfx1201()) {
            for n in 0..400 {
                let (row, column) = (r.below(16) as usize, r.below(16) as usize);
                let ka = r.below(s.k as u32) as usize;
                let kb = if n % 4 == 3 { r.below(s.k as u32) as usize } else { ka };
                let (mut a, mut b) = (side(s.k, || 0.0), side(s.k, || 0.0));
                (a[row][ka], b[column][kb]) = (3.0, -5.0);
                let mut w = wave(&mut r, u32::MAX);
                s.put(&mut w, A, s.a, &a);
                s.put(&mut w, B, s.b, &b);
                if !report.run(line, &step, &mut w) {
                    break;
                }
                compare(&mut report, line, s, &w, D, (&a, &b, &[[0.0; 16]; 16]), 0.0);
            }
        }
    }
    report.finish();
}

/// With A or B the identity (the upper half of k unused where k is 32) the other comes out as it is.
#[test]
fn identity() {
    let (mut report, mut r) = (Report::default(), Random(5));
    for s in FLOATS.iter().chain(&INTEGERS) {
        let signed = if s.d == Ty::I32 { " neg_lo:[1,1,0]" } else { "" };
        for (_, line, step) in report.built(&[s.line("0", D, signed)], gfx1201()) {
            let one: Side = (0..16).map(|i| (0..s.k).map(|k| f64::from(u8::from(i == k))).collect()).collect();
            for left in [true, false] {
                let ty = if left { s.b } else { s.a };
                let other = side(s.k, || r.within(ty.small().min(100)) as f64);
                let (a, b) = if left { (&one, &other) } else { (&other, &one) };
                let mut w = wave(&mut r, u32::MAX);
                s.put(&mut w, A, s.a, a);
                s.put(&mut w, B, s.b, b);
                if !report.run(line, &step, &mut w) {
                    break;
                }
                for at in 0..256 {
                    let (row, column) = (at / 16, at % 16);
                    let e = if left { other[column][row] } else { other[row][column] };
                    let got = s.result(&w, D, row, column);
                    report.check(got == e, line, || format!("row {row} column {column}: {got}, not {e}"));
                }
            }
        }
    }
    report.finish();
}

#[test]
fn real_values_within_the_bound() {
    let (mut report, mut r) = (Report::default(), Random(6));
    for s in &FLOATS {
        for (_, line, step) in report.built(&[s.line("", D, "")], gfx1201()) {
            for _ in 0..20 {
                let mut draw = |ty: Ty| match ty {
                    Ty::Fp8 => loop {
                        let x = fp8(r.word() as u8);
                        if x.is_finite() {
                            break x;
                        }
                    },
                    Ty::Bf8 => loop {
                        let x = bf8(r.word() as u8);
                        if x.is_finite() {
                            break x;
                        }
                    },
                    Ty::F32 => f64::from(r.within(1 << 22) as f32 / 65536.0),
                    other => other.decode(other.encode(r.within(1 << 14) as f64 / 8192.0)),
                };
                let (a, b) = (side(s.k, || draw(s.a)), side(s.k, || draw(s.b)));
                let c = square(|| draw(s.d));
                let mut w = wave(&mut r, u32::MAX);
                s.put(&mut w, A, s.a, &a);
                s.put(&mut w, B, s.b, &b);
                s.put_c(&mut w, &c);
                if !report.run(line, &step, &mut w) {
                    break;
                }
                let unit = match s.d {
                    Ty::F16 => 2f64.powi(-10),
                    Ty::Bf16 => 2f64.powi(-7),
                    _ => 17.0 * 2f64.powi(-23),
                };
                compare(&mut report, line, s, &w, D, (&a, &b, &c), unit);
            }
        }
    }
    report.finish();
}

/// Infinity and NaN reach the row or column that they belong to, and nothing else.
#[test]
fn infinity_and_nan() {
    let (mut report, mut r) = (Report::default(), Random(7));
    for s in FLOATS.iter().filter(|s| s.a.bits() == 16) {
        for (_, line, step) in report.built(&[s.line("0", D, "")], gfx1201()) {
            for special in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
                let (mut a, b) = (side(s.k, || 1.0), side(s.k, || 2.0));
                let (row, k) = (r.below(16) as usize, r.below(16) as usize);
                a[row][k] = special;
                let mut w = wave(&mut r, u32::MAX);
                s.put(&mut w, A, s.a, &a);
                s.put(&mut w, B, s.b, &b);
                if !report.run(line, &step, &mut w) {
                    break;
                }
                for at in 0..256 {
                    let got = s.result(&w, D, at / 16, at % 16);
                    let e = if at / 16 == row { special } else { 32.0 };
                    let ok = got == e || got.is_nan() && e.is_nan();
                    report.check(ok, line, || format!("row {} column {}: {got}, not {e}", at / 16, at % 16));
                }
            }
        }
    }
    report.finish();
}

/// The text gives no meaning to a matrix op with inactive lanes but that of all lanes: either that or a fault.
#[test]
fn inactive_lanes() {
    let (mut report, mut r) = (Report::default(), Random(8));
    for s in FLOATS.iter().chain(&INTEGERS) {
        for (_, line, step) in report.built(&[s.line("", D, "")], gfx1201()) {
            let (a, b) = (side(s.k, || f64::from(r.below(4))), side(s.k, || f64::from(r.below(4))));
            let c = square(|| f64::from(r.below(50)));
            let mut w = wave(&mut r, 0xffff_7ffe);
            s.put(&mut w, A, s.a, &a);
            s.put(&mut w, B, s.b, &b);
            s.put_c(&mut w, &c);
            if crate::rig::execute(&step, &mut w).is_ok() {
                compare(&mut report, line, s, &w, D, (&a, &b, &c), 0.0);
            }
            report.check(true, line, String::new);
        }
    }
    report.finish();
}
