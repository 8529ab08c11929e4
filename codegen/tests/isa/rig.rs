//! What the tests of lanes, halves, matrices and doubles share: instructions made ready from text, random waves, the
//! IEEE rules of minimum and maximum, a list of disagreements.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use std::collections::BTreeMap;
use std::sync::LazyLock;

use rustc_apfloat::Float;
use unglue_codegen::counts::Counts;
use unglue_codegen::emu::env::Env;
use unglue_codegen::emu::group::Barrier;
use unglue_codegen::emu::lanes;
use unglue_codegen::emu::lds::Lds;
use unglue_codegen::emu::memory::{CODE_BASE, Space};
use unglue_codegen::emu::step::{Code, Step, decode, step};
use unglue_codegen::emu::wave::Wave;
use unglue_codegen::llvm::{assemble::assemble, disasm};
use unglue_codegen::target::{Target, by_name};

/// Lane masks that tests run under.
pub const EXECS: [u32; 8] = [u32::MAX, 0xffff_0000, 0x0000_ffff, 0x5555_5555, 0x9249_2492, 0x8000_0001, 0x0f0f_3cc3, 0];

pub fn gfx1201() -> &'static Target {
    by_name("gfx1201").unwrap()
}

/// gfx1201 with the syntax that names halves of registers.
pub fn true16() -> &'static Target {
    static TARGET: LazyLock<Target> = LazyLock::new(|| {
        let t = gfx1201();
        Target { features: "+real-true16", ..*t }
    });
    &TARGET
}

/// A named function of one number.
pub type Named<T> = (&'static str, fn(T) -> f64);

/// Numbers without a pattern (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn word(&mut self) -> u32 {
        (self.bits() >> 32) as u32
    }

    pub fn below(&mut self, n: u32) -> u32 {
        ((u64::from(self.word()) * u64::from(n)) >> 32) as u32
    }

    pub fn flag(&mut self) -> bool {
        self.word() >> 31 == 1
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u32) as usize]
    }

    /// An integer of -n..=n.
    pub fn within(&mut self, n: u32) -> i64 {
        i64::from(self.below(2 * n + 1)) - i64::from(n)
    }
}

/// A wave whose first 64 vector registers, plain scalar registers and VCC are random.
pub fn wave(r: &mut Random, exec: u32) -> Wave {
    let mut w = Wave::new(0x7fe1_dead);
    for register in w.vgpr.iter_mut().take(64) {
        register.fill_with(|| r.word());
    }
    for s in w.sgpr.iter_mut().take(106) {
        *s = r.word();
    }
    w.set_vcc(r.word());
    w.set_exec(exec);
    w
}

/// A copy of a wave.
pub fn copy(w: &Wave) -> Wave {
    Wave { sgpr: w.sgpr, vgpr: w.vgpr.clone(), scc: w.scc, pc: w.pc, scratch: w.scratch.clone(), number: w.number }
}

/// Assembles lines, one instruction each, and builds each one's step from what the disassembler prints.
pub fn prepare<T: AsRef<str>>(lines: &[T], t: &Target) -> Vec<Result<Step, String>> {
    let text = lines.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join("\n");
    let code = assemble(&text, t).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut out = Vec::new();
    disasm::each(&code, t, |offset, text| {
        out.push(step(text, offset as u32, 256, 106).map_err(|fault| format!("{fault} (`{text}`)")));
    })
    .unwrap();
    assert_eq!(out.len(), lines.len(), "instructions of lines");
    out
}

/// Executes one step.
pub fn execute(step: &Step, w: &mut Wave) -> Result<(), String> {
    static EMPTY: LazyLock<Code> = LazyLock::new(|| decode(&[], gfx1201(), 256, 106).unwrap());
    let (space, mut lds) = (Space::default(), Lds::new(0, 1));
    let (mut barrier, mut counts) = (Barrier::new(1), Counts::default());
    let mut env = Env {
        code: &EMPTY,
        space: &space,
        lds: &mut lds,
        barrier: &mut barrier,
        counts: &mut counts,
        code_address: CODE_BASE,
        scratch_bytes: 0,
        perturb: None,
    };
    lanes::execute(w, &mut env, step).map(|_| ()).map_err(|fault| fault.to_string())
}

/// Disagreements, by mnemonic.
#[derive(Default)]
pub struct Report {
    wrong: BTreeMap<String, (usize, Vec<String>)>,
    checks: usize,
}

impl Report {
    pub fn wrong(&mut self, line: &str, message: String) {
        let name = line.split_whitespace().next().unwrap_or("?").to_owned();
        let (count, messages) = self.wrong.entry(name).or_default();
        *count += 1;
        if messages.len() < 3 {
            messages.push(format!("{line}: {message}"));
        }
    }

    pub fn check(&mut self, ok: bool, line: &str, message: impl FnOnce() -> String) {
        self.checks += 1;
        if !ok {
            self.wrong(line, message());
        }
    }

    /// Compares registers `of` lane by lane.
    pub fn registers(&mut self, line: &str, got: &Wave, expected: &Wave, of: std::ops::Range<usize>) {
        for n in of {
            for l in 0..32 {
                let (g, e) = (got.vgpr[n][l], expected.vgpr[n][l]);
                self.check(g == e, line, || {
                    format!("v{n} lane {l} is {g:#010x}, not {e:#010x}; exec {:#010x}", expected.exec())
                });
            }
        }
    }

    /// The steps that could be built; the others are disagreements.
    pub fn built<'a, T: AsRef<str>>(&mut self, lines: &'a [T], t: &Target) -> Vec<(usize, &'a str, Step)> {
        let steps = prepare(lines, t).into_iter().zip(lines).enumerate();
        let mut out = Vec::new();
        for (i, (step, line)) in steps {
            match step {
                Ok(step) => out.push((i, line.as_ref(), step)),
                Err(fault) => self.wrong(line.as_ref(), fault),
            }
        }
        out
    }

    /// Runs a step; a fault is a disagreement.
    pub fn run(&mut self, line: &str, step: &Step, w: &mut Wave) -> bool {
        match execute(step, w) {
            Ok(()) => true,
            Err(fault) => {
                self.wrong(line, fault);
                false
            }
        }
    }

    pub fn finish(self) {
        let total: usize = self.wrong.values().map(|(n, _)| n).sum();
        let mut text = String::new();
        for (name, (count, messages)) in &self.wrong {
            text += &format!("\n{name}: {count} wrong\n  {}", messages.join("\n  "));
        }
        assert!(text.is_empty(), "{total} disagreements in {} checks{text}", self.checks);
        assert!(self.checks > 0, "nothing was checked");
    }
}

/// `v_min_num`, `v_max_num`: of a NaN and a number the number; -0 < +0.
pub fn number<F: Float>(max: bool, a: F, b: F) -> F {
    match (a.is_nan(), b.is_nan()) {
        (true, false) => return b,
        (_, true) => return a,
        _ => {}
    }
    let zeros = a.is_zero() && b.is_zero();
    let first = if max { a > b || zeros && !a.is_negative() } else { a < b || zeros && a.is_negative() };
    if first { a } else { b }
}

/// `v_minimum`, `v_maximum`: NaN if either is; -0 < +0.
pub fn extreme<F: Float>(max: bool, a: F, b: F) -> F {
    if a.is_nan() || b.is_nan() { F::NAN } else { number(max, a, b) }
}

/// The clamp of float results: 0..=1, NaN gives 0.
pub fn clamped<F: Float>(x: F) -> F {
    let one = F::from_u128(1).value;
    if x.is_nan() || x < F::ZERO || x.is_zero() {
        F::ZERO
    } else if x > one {
        one
    } else {
        x
    }
}

/// Distance to the next f32 of a magnitude.
pub fn ulp32(x: f64) -> f64 {
    step_of(x, 23, -126)
}

/// Distance to the next f16 of a magnitude.
pub fn ulp16(x: f64) -> f64 {
    step_of(x, 10, -14)
}

/// Distance to the next bf16 of a magnitude.
pub fn ulp_bf16(x: f64) -> f64 {
    step_of(x, 7, -126)
}

fn step_of(x: f64, bits: i32, least: i32) -> f64 {
    let exponent = ((x.abs().to_bits() >> 52) as i32 - 1023).max(least);
    2f64.powi(exponent - bits)
}

/// Value of an E4M3 byte (no infinity; all ones is NaN).
pub fn fp8(x: u8) -> f64 {
    small_float(x, 3, 7, x & 0x7f == 0x7f)
}

/// Value of an E5M2 byte.
pub fn bf8(x: u8) -> f64 {
    if x & 0x7f == 0x7c {
        return if x >> 7 == 1 { f64::NEG_INFINITY } else { f64::INFINITY };
    }
    small_float(x, 2, 15, x & 0x7f > 0x7c)
}

fn small_float(x: u8, bits: i32, bias: i32, nan: bool) -> f64 {
    if nan {
        return f64::NAN;
    }
    let fraction = f64::from(x & ((1 << bits) - 1));
    let exponent = i32::from((x & 0x7f) >> bits);
    let unit = 2f64.powi(-bits);
    let magnitude = if exponent == 0 {
        fraction * unit * 2f64.powi(1 - bias)
    } else {
        (1.0 + fraction * unit) * 2f64.powi(exponent - bias)
    };
    if x >> 7 == 1 { -magnitude } else { magnitude }
}
