//! Runs one opcode in many printed forms on many values and compares each lane with its definition.
//!
//! A definition sees what its sources hold after modifiers and says what the result is. The harness checks more than
//! that: after every run each register of the wave, but for the written lanes, must hold what it held before.
//!
//! A NaN result is compared as "any NaN": the text fixes neither sign nor payload of computed ones.

use std::fmt::Write;
use std::sync::LazyLock;

use unglue_codegen::counts::Counts;
use unglue_codegen::emu::env::Env;
use unglue_codegen::emu::group::Barrier;
use unglue_codegen::emu::lanes::execute;
use unglue_codegen::emu::lds::Lds;
use unglue_codegen::emu::memory::Space;
use unglue_codegen::emu::op::accepts;
use unglue_codegen::emu::step::{self, Code, Step};
use unglue_codegen::emu::wave::Wave;
use unglue_codegen::isa::sreg;
use unglue_codegen::llvm::assemble::assemble;
use unglue_codegen::llvm::disasm;
use unglue_codegen::target::{Target, by_name};

use crate::forms::{DST, Form, Place, dst_words, forms, sreg_of, vreg};
use crate::values::{self, Kind};

pub const POISON: u32 = 0x7fe1_dead;

/// Modifiers that a definition's op takes, as the emulator's table names them.
pub const NONE: u16 = 0;
pub const NEG: u16 = accepts::NEG_ABS;
pub const FLOAT: u16 = accepts::NEG_ABS | accepts::CLAMP;
/// Of a float result from sources that are none.
pub const RESULT: u16 = accepts::CLAMP;
/// Sources are vector registers only.
pub const VECTOR: u16 = 1 << 15;
/// An integer op whose `clamp` saturates; a test of its own looks at that.
pub const SATURATES: u16 = 1 << 14;

/// What a lane's result must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expect {
    Bits(u64),
    /// 128 bits, low half first.
    Wide(u64, u64),
    Nan,
    /// Within 1 ulp of the first, or of the second value: the text leaves open whether approximations flush denormals.
    Approx(f64, f64),
    /// Within 1 ulp or a small absolute error.
    Sine(f64),
    /// The text leaves the choice open.
    OneOf(u64, u64),
    /// The text says nothing.
    Any,
}

use Expect::{Any, Approx, Bits, Nan, OneOf, Sine, Wide};

/// Where the result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dst {
    /// The low 16 bits of a register; the others stay.
    B16,
    B32,
    B64,
    B128,
    /// A scalar register; sources are scalar too.
    Scalar,
    /// A lane mask.
    Mask,
}

#[derive(Clone, Copy)]
pub enum Rule {
    Lane(fn(&[u64]) -> Expect),
    /// Also writes a lane mask, which is printed after the destination.
    Carry(fn(&[u64]) -> (Expect, bool)),
    /// Only writes a lane mask (`v_cmpx_*`: exec).
    Test(fn(&[u64]) -> bool),
    /// The lane's number comes last.
    Numbered(fn(&[u64]) -> Expect),
}

/// Definition of one opcode.
#[derive(Clone, Copy)]
pub struct Def {
    pub name: &'static str,
    pub srcs: &'static [Kind],
    pub dst: Dst,
    pub mods: u16,
    pub rule: Rule,
}

impl Def {
    pub const fn new(name: &'static str, srcs: &'static [Kind], dst: Dst, mods: u16, f: fn(&[u64]) -> Expect) -> Def {
        Def { name, srcs, dst, mods, rule: Rule::Lane(f) }
    }
}

pub fn target() -> &'static Target {
    by_name("gfx1201").unwrap()
}

/// Assembles lines, one instruction each, and decodes them as the emulator does. A line that the emulator refuses is
/// an error of its own.
pub fn decode(lines: &[String]) -> Vec<Result<Step, String>> {
    let code = assemble(&lines.join("\n"), target()).unwrap();
    let mut steps = Vec::new();
    disasm::each(&code, target(), |offset, text| {
        steps.push(step::step(text, offset as u32, 256, 106).map_err(|fault| fault.to_string()));
    })
    .unwrap();
    assert_eq!(steps.len(), lines.len());
    steps
}

/// Executes one step.
pub fn execute_one(w: &mut Wave, step: &Step) -> Result<(), String> {
    static NO_CODE: LazyLock<Code> = LazyLock::new(|| step::decode(&[], target(), 256, 106).unwrap());
    let (space, mut lds, mut barrier, mut counts) =
        (Space::default(), Lds::new(64, 1), Barrier::new(1), Counts::default());
    let mut env = Env {
        code: &NO_CODE,
        space: &space,
        lds: &mut lds,
        barrier: &mut barrier,
        counts: &mut counts,
        code_address: 0,
        scratch_bytes: 0,
        perturb: None,
    };
    execute(w, &mut env, step).map(|_| ()).map_err(|fault| fault.to_string())
}

/// Failures of many ops, few of each.
#[derive(Default)]
pub struct Report {
    text: String,
    count: usize,
}

impl Report {
    pub fn add(&mut self, message: &str) {
        let _ = writeln!(self.text, "{message}");
        self.count += 1;
    }

    /// # Panics
    /// If anything was reported.
    pub fn end(self) {
        assert!(self.count == 0, "{} failures\n{}", self.count, self.text);
    }
}

/// Failures shown of one form.
const SHOWN: usize = 2;
/// Lanes that are active in the runs that test this.
const MASKS: [u32; 4] = [0xaaaa_aaaa, 1 << 13, 0, 0xffff];

/// Checks every definition in every form.
pub fn check(defs: &[Def]) {
    let mut report = Report::default();
    let all: Vec<Vec<Form>> = defs.iter().map(forms).collect();
    let lines: Vec<String> = all.iter().flatten().map(|f| f.text.clone()).collect();
    let mut steps = decode(&lines).into_iter();
    let base = Wave::new(POISON);
    for (def, forms) in defs.iter().zip(&all) {
        let sets = values::sets(def.srcs, def.name);
        // The same fault in one form after the other is reported once.
        let mut refused = None;
        for (n, form) in forms.iter().enumerate() {
            let step = match steps.next() {
                Some(Ok(step)) => step,
                Some(Err(fault)) => {
                    if refused.as_ref() != Some(&fault) {
                        report.add(&format!("{}: {fault}", form.text));
                    }
                    refused = Some(fault);
                    continue;
                }
                None => unreachable!("as many steps as lines"),
            };
            let mut found = Vec::new();
            let few = (sets.len() / 12).max(1);
            for set in sets.iter().step_by(if n == 0 { 1 } else { few }) {
                run(def, form, &step, set, u32::MAX, &base, &mut found);
            }
            for mask in MASKS {
                run(def, form, &step, &sets[n % sets.len()], mask, &base, &mut found);
            }
            let total = found.len();
            for message in found.iter().take(SHOWN) {
                report.add(&format!("{} [{total} runs fail]: {message}", form.text));
            }
        }
    }
    report.end();
}

/// The wave before the instruction.
fn lay(def: &Def, form: &Form, set: &[Vec<u64>], exec: u32, base: &Wave) -> Wave {
    let mut w = Wave::new(POISON);
    w.sgpr = base.sgpr;
    w.scc = base.scc;
    w.set_exec(exec);
    for l in 0..32 {
        // What stands in a destination must stay where it is not written.
        for r in DST..DST + 4 {
            w.vgpr[r][l] = POISON ^ (l as u32) << 8 ^ r as u32;
        }
    }
    for (i, kind) in def.srcs.iter().enumerate() {
        match kind {
            Kind::Mask | Kind::Vcc => {
                let mask = (0..32).fold(0, |m, l| m | ((set[l][i] & 1) as u32) << l);
                w.set_s(form.mask_in, mask);
            }
            Kind::OldF32 => (0..32).for_each(|l| w.vgpr[DST][l] = set[l][i] as u32),
            Kind::B128 => {}
            _ => {
                for (l, values) in set.iter().enumerate() {
                    w.vgpr[vreg(i)][l] = values[i] as u32;
                    w.vgpr[vreg(i) + 1][l] = (values[i] >> 32) as u32;
                }
                w.sgpr[sreg_of(i)] = set[0][i] as u32;
                w.sgpr[sreg_of(i) + 1] = (set[0][i] >> 32) as u32;
            }
        }
        if *kind == Kind::B128 {
            for (l, values) in set.iter().enumerate() {
                for word in 0..4 {
                    w.vgpr[vreg(i) + word][l] = (values[i + word / 2] >> (32 * (word % 2))) as u32;
                }
            }
        }
    }
    w
}

/// What the definition sees in a lane.
fn inputs(def: &Def, form: &Form, set: &[Vec<u64>], lane: usize) -> Vec<u64> {
    let mut out: Vec<u64> = Vec::new();
    for (i, kind) in def.srcs.iter().enumerate() {
        let raw = match form.places[i] {
            Place::V => set[lane][i],
            Place::S if matches!(kind, Kind::Mask | Kind::Vcc) => set[lane][i],
            Place::S => set[0][i],
            Place::Const(bits) => bits,
        };
        let (bits, sign) = (kind.bits(raw), kind.sign());
        let bits = if form.abs >> i & 1 == 1 { bits & !sign } else { bits };
        out.push(if form.neg >> i & 1 == 1 { bits ^ sign } else { bits });
        if *kind == Kind::B128 {
            out.push(set[lane][i + 1]);
        }
    }
    out
}

fn run(def: &Def, form: &Form, step: &Step, set: &[Vec<u64>], exec: u32, base: &Wave, found: &mut Vec<String>) {
    let mut w = lay(def, form, set, exec, base);
    let before = lay(def, form, set, exec, base);
    if let Err(fault) = execute_one(&mut w, step) {
        found.push(fault);
        return;
    }
    let mut mask = 0;
    let mut wrong = None;
    for l in (0..32).filter(|l| exec >> l & 1 == 1 || def.dst == Dst::Scalar) {
        let mut x = inputs(def, form, set, l);
        let expect = match def.rule {
            Rule::Lane(f) => Some(f(&x)),
            Rule::Carry(f) => {
                let (expect, carry) = f(&x);
                mask |= u32::from(carry) << l;
                Some(expect)
            }
            Rule::Test(f) => {
                mask |= u32::from(f(&x)) << l;
                None
            }
            Rule::Numbered(f) => {
                x.push(l as u64);
                Some(f(&x))
            }
        };
        if let Some(expect) = expect {
            let expect = finish(expect, def.dst, form);
            let got = result(def.dst, &w, form.dst, l);
            if !accepted(expect, got, def.dst) && wrong.is_none() {
                wrong = Some(format!("lane {l}, sources {x:x?}: {:#x}, want {expect:x?}", got.0));
            }
        }
    }
    found.extend(wrong.or_else(|| rest(def, form, &w, &before, exec, mask)));
}

fn result(dst: Dst, w: &Wave, first: usize, l: usize) -> (u64, u64) {
    let word = |k: usize| u64::from(w.vgpr[first + k][l]);
    match dst {
        Dst::B16 => (word(0) & 0xffff, 0),
        Dst::B64 => (word(0) | word(1) << 32, 0),
        Dst::B128 => (word(0) | word(1) << 32, word(2) | word(3) << 32),
        Dst::Scalar => (u64::from(w.sgpr[60]), 0),
        Dst::B32 | Dst::Mask => (word(0), 0),
    }
}

/// Everything that must not have changed, and the lane mask.
fn rest(def: &Def, form: &Form, w: &Wave, before: &Wave, exec: u32, mask: u32) -> Option<String> {
    let words = if matches!(def.dst, Dst::Mask | Dst::Scalar) { 0 } else { dst_words(def.dst) };
    for r in 0..256 {
        if w.vgpr[r] == before.vgpr[r] {
            continue;
        }
        let written = (form.dst..form.dst + words).contains(&r);
        for l in 0..32 {
            let (now, old) = (w.vgpr[r][l], before.vgpr[r][l]);
            let kept =
                if written && exec >> l & 1 == 1 { def.dst != Dst::B16 || now >> 16 == old >> 16 } else { now == old };
            if !kept {
                return Some(format!("v{r} lane {l}, exec {exec:#x}: {now:#x} should have kept {old:#x}"));
            }
        }
    }
    let mut scalars = before.sgpr;
    if matches!(def.rule, Rule::Carry(_) | Rule::Test(_)) && form.mask_out != sreg::NULL {
        scalars[usize::from(form.mask_out)] = mask;
    }
    if def.dst == Dst::Scalar {
        scalars[60] = w.sgpr[60];
    }
    let other = (0..scalars.len()).find(|n| scalars[*n] != w.sgpr[*n]);
    if let Some(n) = other {
        return Some(format!("s{n}, exec {exec:#x}: {:#x}, want {:#x}", w.sgpr[n], scalars[n]));
    }
    (w.scc != before.scc).then(|| "SCC changed".to_owned())
}

/// What a clamp makes of a result.
fn finish(expect: Expect, dst: Dst, form: &Form) -> Expect {
    if !form.clamp {
        return expect;
    }
    let one = if dst == Dst::B16 { 0x3c00 } else { 0x3f80_0000 };
    let sign = if dst == Dst::B16 { 1 << 15 } else { 1 << 31 };
    match expect {
        Nan => Bits(0),
        // Zero of either sign lies within 0..=1.
        Bits(bits) if bits == sign => OneOf(0, sign),
        Bits(bits) if bits & sign != 0 => Bits(0),
        Bits(bits) => Bits(bits.min(one)),
        Approx(a, b) => Approx(a.clamp(0.0, 1.0), b.clamp(0.0, 1.0)),
        Sine(a) => Sine(a.clamp(0.0, 1.0)),
        OneOf(..) => Any,
        other => other,
    }
}

pub fn accepted(expect: Expect, got: (u64, u64), dst: Dst) -> bool {
    match expect {
        Bits(bits) => got.0 == bits,
        Wide(low, high) => got == (low, high),
        OneOf(a, b) => got.0 == a || got.0 == b,
        Any => true,
        Nan => match dst {
            Dst::B16 => got.0 & 0x7fff > 0x7c00,
            Dst::B64 => f64::from_bits(got.0).is_nan(),
            _ => f32::from_bits(got.0 as u32).is_nan(),
        },
        Approx(a, b) => near(got.0, a) || near(got.0, b),
        Sine(a) => near(got.0, a) || (f64::from(f32::from_bits(got.0 as u32)) - a).abs() <= (-24f64).exp2(),
    }
}

/// Within 1 ulp of f32.
fn near(got: u64, want: f64) -> bool {
    let got = f64::from(f32::from_bits(got as u32));
    if want == 0.0 {
        return got == 0.0 && got.is_sign_negative() == want.is_sign_negative();
    }
    if got.is_infinite() || want.is_infinite() {
        return got == want
            || want.abs() > f64::from(f32::MAX)
                && (got.is_infinite() || got.abs() == f64::from(f32::MAX))
                && got.signum() == want.signum();
    }
    let ulp = (want.abs().log2().floor().max(-126.0) - 23.0).exp2();
    (got - want).abs() <= ulp
}
