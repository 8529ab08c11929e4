//! Pairs: both halves read before either writes, one shared literal, lanes by exec.

use rustc_apfloat::Float;
use rustc_apfloat::ieee::Single;

use crate::dot::{bf16, f16};
use crate::rig::{EXECS, Random, Report, copy, gfx1201, number, ulp32, wave};

/// What a half's opcode is called outside of a pair.
pub const DEFINED: &[&str] = &[
    "v_fmac_f32",
    "v_fmaak_f32",
    "v_fmamk_f32",
    "v_mul_f32",
    "v_add_f32",
    "v_sub_f32",
    "v_subrev_f32",
    "v_mul_dx9_zero_f32",
    "v_mov_b32",
    "v_cndmask_b32",
    "v_max_num_f32",
    "v_min_num_f32",
    "v_dot2acc_f32_f16",
    "v_dot2acc_f32_bf16",
    "v_add_nc_u32",
    "v_lshlrev_b32",
    "v_and_b32",
];

/// Opcodes of the first half; the second half has three more.
const FIRST: usize = 13;
const OPS: [&str; 16] = [
    "fmac_f32",
    "fmaak_f32",
    "fmamk_f32",
    "mul_f32",
    "add_f32",
    "sub_f32",
    "subrev_f32",
    "mul_dx9_zero_f32",
    "mov_b32",
    "cndmask_b32",
    "max_num_f32",
    "min_num_f32",
    "dot2acc_f32_f16",
    "add_nc_u32",
    "lshlrev_b32",
    "and_b32",
];
const LITERAL: u32 = 0x4049_0fdb;

/// A half: opcode, registers, and whether source 0 is the literal.
#[derive(Clone, Copy)]
struct Half {
    op: &'static str,
    to: usize,
    a: Source,
    b: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Source {
    V(usize),
    S(usize),
    Literal,
    One,
}

impl Half {
    fn text(self) -> String {
        let Half { op, to, a, b } = self;
        let a = match a {
            Source::V(n) => format!("v{n}"),
            Source::S(n) => format!("s{n}"),
            Source::Literal => format!("{LITERAL:#x}"),
            Source::One => "1.0".into(),
        };
        match op {
            "mov_b32" => format!("v_dual_{op} v{to}, {a}"),
            "fmaak_f32" => format!("v_dual_{op} v{to}, {a}, v{b}, {LITERAL:#x}"),
            "fmamk_f32" => format!("v_dual_{op} v{to}, {a}, {LITERAL:#x}, v{b}"),
            _ => format!("v_dual_{op} v{to}, {a}, v{b}"),
        }
    }
}

/// An expected word, or a value with a distance.
enum Want {
    Bits(u32),
    Float(Single),
    Near(f64, f64),
}

fn want(half: Half, w: &unglue_codegen::emu::wave::Wave, l: usize) -> Want {
    let a = match half.a {
        Source::V(n) => w.vgpr[n][l],
        Source::S(n) => w.sgpr[n],
        Source::Literal => LITERAL,
        Source::One => 0x3f80_0000,
    };
    let (b, d) = (w.vgpr[half.b][l], w.vgpr[half.to][l]);
    let f = |x: u32| Single::from_bits(x.into());
    let (x, y, k) = (f(a), f(b), f(LITERAL));
    match half.op {
        "fmac_f32" => Want::Float(x.mul_add(y, f(d)).value),
        "fmaak_f32" => Want::Float(x.mul_add(y, k).value),
        "fmamk_f32" => Want::Float(x.mul_add(k, y).value),
        "mul_f32" => Want::Float((x * y).value),
        "add_f32" => Want::Float((x + y).value),
        "sub_f32" => Want::Float((x - y).value),
        "subrev_f32" => Want::Float((y - x).value),
        "mul_dx9_zero_f32" if x.is_zero() || y.is_zero() => Want::Bits(0),
        "mul_dx9_zero_f32" => Want::Float((x * y).value),
        "mov_b32" => Want::Bits(a),
        "cndmask_b32" => Want::Bits(if w.vcc() >> l & 1 == 1 { b } else { a }),
        "max_num_f32" => Want::Float(number(true, x, y)),
        "min_num_f32" => Want::Float(number(false, x, y)),
        "dot2acc_f32_f16" => dot(a, b, d, f16),
        "dot2acc_f32_bf16" => dot(a, b, d, bf16),
        "add_nc_u32" => Want::Bits(a.wrapping_add(b)),
        "lshlrev_b32" => Want::Bits(b << (a & 31)),
        "and_b32" => Want::Bits(a & b),
        other => unreachable!("{other}"),
    }
}

fn dot(a: u32, b: u32, d: u32, value: fn(u16) -> f64) -> Want {
    let terms = [
        value(a as u16) * value(b as u16),
        value((a >> 16) as u16) * value((b >> 16) as u16),
        f64::from(f32::from_bits(d)),
    ];
    let largest = terms.iter().fold(0f64, |m, t| m.max(t.abs()));
    Want::Near(terms.iter().sum(), 2.0 * ulp32(largest))
}

impl Want {
    fn accepts(&self, got: u32) -> bool {
        match self {
            Want::Bits(bits) => got == *bits,
            Want::Float(f) if f.is_nan() => f32::from_bits(got).is_nan(),
            Want::Float(f) => f.to_bits() == u128::from(got),
            // Beyond the finite numbers nothing is said.
            Want::Near(exact, _) if !exact.is_finite() || exact.abs() > 1e38 => true,
            Want::Near(exact, tolerance) => (f64::from(f32::from_bits(got)) - exact).abs() <= *tolerance,
        }
    }
}

fn try_pairs(pairs: &[(Half, Half)], r: &mut Random, execs: &[u32]) {
    let mut report = Report::default();
    let lines: Vec<String> = pairs.iter().map(|(x, y)| format!("{} :: {}", x.text(), y.text())).collect();
    for (i, line, step) in report.built(&lines, gfx1201()) {
        for exec in execs {
            let mut w = wave(r, *exec);
            for n in 0..8 {
                for l in 0..32 {
                    if r.below(4) > 0 {
                        w.vgpr[n][l] = special(r);
                    }
                }
            }
            let before = copy(&w);
            report.run(line, &step, &mut w);
            let (x, y) = pairs[i];
            for l in 0..32 {
                for half in [x, y] {
                    let got = w.vgpr[half.to][l];
                    let ok = if exec >> l & 1 == 1 {
                        want(half, &before, l).accepts(got)
                    } else {
                        got == before.vgpr[half.to][l]
                    };
                    report.check(ok, line, || format!("{} lane {l}: {got:#x}", half.op));
                }
                let others = (0..64).filter(|n| *n != x.to && *n != y.to);
                let kept = others.into_iter().all(|n| w.vgpr[n][l] == before.vgpr[n][l]);
                report.check(kept, line, || format!("another register changed in lane {l}"));
            }
            report.check(w.sgpr == before.sgpr, line, || "scalar registers changed".into());
        }
    }
    report.finish();
}

/// Floats of moderate size, special values, two halves.
fn special(r: &mut Random) -> u32 {
    match r.below(4) {
        0 => r.pick(&[
            0,
            1 << 31,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            1,
            0x8000_0001,
            0x3f80_0000,
            0x7f7f_ffff,
            0x80_0000,
        ]),
        1 => r.word() & 0x8fff_8fff | 0x3000_3000,
        _ => (r.within(1 << 20) as f32 / 1024.0).to_bits(),
    }
}

fn half(op: &'static str, to: usize, a: Source, b: usize) -> Half {
    Half { op, to, a, b }
}

/// The second register sources: third operands (a destination that is added to, `fmamk`'s addend) must not both be
/// even or both odd.
fn last_sources(x: &str, y: &str, x_to: usize, y_to: usize) -> (usize, usize) {
    let adds = |op: &str| op == "fmac_f32" || op.starts_with("dot2acc");
    let unlike = |n: usize| if n.is_multiple_of(2) { 7 } else { 6 };
    let second = if x == "fmamk_f32" && adds(y) { unlike(y_to) } else { 2 };
    let fourth = match y {
        "fmamk_f32" if adds(x) => unlike(x_to),
        "fmamk_f32" if x == "fmamk_f32" => unlike(second),
        _ => 3,
    };
    (second, fourth)
}

/// Each half writes what the other reads.
#[test]
fn each_reads_before_the_other_writes() {
    let mut pairs = Vec::new();
    for x in &OPS[..FIRST] {
        for y in OPS {
            for (to, other) in [(1, 0), (4, 1)] {
                let (second, fourth) = last_sources(x, y, to, other);
                let a = if to == 1 { 0 } else { 1 };
                pairs.push((half(x, to, Source::V(a), second), half(y, other, Source::V(to), fourth)));
            }
        }
    }
    try_pairs(&pairs, &mut Random(1), &[u32::MAX, EXECS[4], EXECS[6], 0]);
}

#[test]
fn shared_literals_scalars_and_constants() {
    let mut pairs = Vec::new();
    let plain = |op: &str| !op.starts_with("dot2acc");
    for x in OPS[..FIRST].iter().filter(|op| plain(op)) {
        for y in OPS.iter().filter(|op| plain(op)) {
            let (second, fourth) = last_sources(x, y, 1, 0);
            for (a, b) in [
                (Source::Literal, Source::Literal),
                (Source::Literal, Source::V(1)),
                (Source::S(4), Source::S(5)),
                (Source::One, Source::S(5)),
                (Source::V(0), Source::One),
            ] {
                // Two scalars of a pair at most: the literal and VCC count.
                let scalars = usize::from(matches!(a, Source::S(_))) + usize::from(matches!(b, Source::S(_)));
                let vcc = usize::from(*x == "cndmask_b32" || *y == "cndmask_b32");
                let k = [*x, *y].iter().any(|op| op.starts_with("fmaa") || op.starts_with("fmam"))
                    || a == Source::Literal
                    || b == Source::Literal;
                if scalars + vcc + usize::from(k) <= 2 {
                    pairs.push((half(x, 1, a, second), half(y, 0, b, fourth)));
                }
            }
        }
    }
    try_pairs(&pairs, &mut Random(2), &[u32::MAX, EXECS[3]]);
}

/// The encoding that the assembler gives this opcode no pair on this target: then there is nothing to define.
#[test]
fn bf16_dot_of_a_pair() {
    let x = half("dot2acc_f32_bf16", 1, Source::V(0), 2);
    let line = format!("{} :: {}", x.text(), half("mov_b32", 0, Source::V(1), 3).text());
    if unglue_codegen::llvm::assemble::assemble(&line, gfx1201()).is_ok() {
        try_pairs(&[(x, half("mov_b32", 0, Source::V(1), 3))], &mut Random(3), &EXECS);
    }
}
