//! Checks of PTX text: what the driver is asked to compile.
//!
//! Gates: `format`, `target`, `entry`, `scratch`, `call`, `rounding`, `finish`, `exchanged-cached`, and those of
//! [`super::ptx_await`].

use std::collections::BTreeSet;

use super::{Exchange, Gate, REPORT, Resources, exchange_of, failed, ptx_await};
use crate::kp::{Program, awaits, shared_bytes};
use crate::target::Target;

/// f32 operations that PTX has without correct rounding too.
const ROUNDED: [&str; 6] = ["add", "sub", "mul", "fma", "div", "sqrt"];

/// One instruction: its opcode with suffixes, and its operands as written.
pub(super) struct Instruction<'a> {
    pub op: &'a str,
    pub operands: &'a str,
    /// It runs where its predicate holds.
    pub guarded: bool,
    /// Labels that stand in front of it.
    pub labels: Vec<&'a str>,
}

/// Instructions in order, without directives.
fn instructions(text: &str) -> Vec<Instruction<'_>> {
    let (mut all, mut labels) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        let guarded = line.starts_with('@');
        let line = if guarded { line.split_once(' ').map_or("", |(_, rest)| rest.trim()) } else { line };
        if let Some(label) = line.strip_suffix(':') {
            labels.push(label);
        }
        let Some(statement) = line.strip_suffix(';') else { continue };
        if statement.starts_with('.') || statement.starts_with('{') {
            continue;
        }
        let (op, operands) = statement.split_once(char::is_whitespace).unwrap_or((statement, ""));
        all.push(Instruction { op, operands: operands.trim(), guarded, labels: std::mem::take(&mut labels) });
    }
    all
}

/// Checks the text that holds the kernel `p`.
pub fn check(code: &[u8], p: &Program, t: &Target) -> Gate<Resources> {
    let Ok(text) = std::str::from_utf8(code) else {
        return failed("format", "not UTF-8", REPORT);
    };
    if !text.lines().any(|line| line.trim() == format!(".target {}", t.cpu)) {
        return failed("target", format!("no `.target {}`", t.cpu), REPORT);
    }
    if !text.contains(&format!(".visible .entry {}(", p.name)) {
        return failed("entry", format!("no entry `{}`", p.name), REPORT);
    }
    if let Some(line) = text.lines().find(|line| line.trim_start().starts_with(".local")) {
        return failed("scratch", line.trim(), "choose a schedule with fewer values per lane");
    }
    let all = instructions(text);
    for i in &all {
        rounding(i)?;
    }
    finish(&all, p)?;
    if t.trigger.is_some() && awaits(p) {
        ptx_await::check(&all, p)?;
    }
    let lds_bytes = u32::try_from(shared_bytes(p)).unwrap_or(u32::MAX);
    Ok(Resources { code_bytes: code.len() as u64, lds_bytes, wavefront: 32, ..Resources::default() })
}

/// f32 arithmetic is IEEE, round to nearest even, with denormals (numerics P1), and nothing is called.
fn rounding(i: &Instruction<'_>) -> Gate<()> {
    if i.op.starts_with("call") {
        return failed("call", i.operands, "lower that operation without a call");
    }
    let mut parts = i.op.split('.');
    let name = parts.next().unwrap_or_default();
    let suffixes: Vec<&str> = parts.collect();
    if suffixes.iter().any(|s| ["ftz", "approx", "full"].contains(s)) {
        return failed("rounding", i.op, "compile without fast-math flags");
    }
    let float = suffixes.iter().any(|s| ["f32", "f32x2", "f64"].contains(s));
    if float && ROUNDED.contains(&name) && !suffixes.contains(&"rn") {
        return failed("rounding", format!("{} may be contracted or rounded otherwise", i.op), REPORT);
    }
    Ok(())
}

/// A counter is added to between two fences, and what was exchanged is loaded past the caches that no fence covers.
fn finish(all: &[Instruction<'_>], p: &Program) -> Gate<()> {
    let Exchange { finishes, exchanged_params, .. } = exchange_of(p);
    if finishes == 0 {
        return Ok(());
    }
    let is_fence = |i: &Instruction<'_>| i.op.starts_with("fence.") && i.op.ends_with(".gpu") || i.op == "membar.gl";
    let Some(atom) = all.iter().position(|i| i.op.starts_with("atom.")) else {
        return failed("finish", "no atomic addition", REPORT);
    };
    let (before, behind) = all.split_at(atom);
    if !before.iter().any(is_fence) || !behind.iter().any(is_fence) {
        return failed("finish", "no fence on both sides of the atomic addition", REPORT);
    }
    let exchanged: BTreeSet<u32> = exchanged_params.into_iter().collect();
    let pointers = pointers(all, &p.name, &exchanged);
    let plain =
        |i: &&Instruction<'_>| i.op.starts_with("ld.global") && registers(i.operands).any(|r| pointers.contains(r));
    match all.iter().find(plain) {
        Some(i) => failed("exchanged-cached", format!("{} {}", i.op, i.operands), REPORT),
        None => Ok(()),
    }
}

pub(super) fn registers(operands: &str) -> impl Iterator<Item = &str> {
    operands.split(|c: char| !(c.is_ascii_alphanumeric() || c == '%' || c == '_')).filter(|r| r.starts_with('%'))
}

/// Registers that may hold an address inside of the buffers that are these parameters, by number.
pub(super) fn pointers<'a>(all: &[Instruction<'a>], kernel: &str, params: &BTreeSet<u32>) -> BTreeSet<&'a str> {
    let names: Vec<String> = params.iter().map(|n| format!("[{kernel}_param_{n}]")).collect();
    let mut found: BTreeSet<&str> = BTreeSet::new();
    loop {
        let before = found.len();
        for i in all {
            let loads = i.op.starts_with("ld.param") && names.iter().any(|name| i.operands.contains(name));
            let computes = !i.op.starts_with("ld.") && !i.op.starts_with("st.") && !i.op.starts_with("atom.");
            let mut operands = registers(i.operands);
            let Some(to) = operands.next().filter(|r| r.starts_with("%rd")) else { continue };
            if loads || computes && operands.any(|r| found.contains(r)) {
                found.insert(to);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}
