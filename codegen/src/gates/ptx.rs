//! Checks of PTX text: what the driver is asked to compile.
//!
//! Gates: `format`, `target`, `entry`, `scratch`, `call`, `rounding`, `finish`, `exchanged-cached`.

use std::collections::BTreeSet;

use super::{Exchange, Gate, Resources, exchange_of, failed};
use crate::kp::{Program, shared_bytes};
use crate::target::Target;

const REPORT: &str = "this is a fault of the lowering: report it with the program's text form";
/// f32 operations that PTX has without correct rounding too.
const ROUNDED: [&str; 6] = ["add", "sub", "mul", "fma", "div", "sqrt"];

/// One instruction: its opcode with suffixes, and its operands as written.
struct Instruction<'a> {
    op: &'a str,
    operands: &'a str,
}

/// Instructions in order, without predicates, labels and directives.
fn instructions(text: &str) -> Vec<Instruction<'_>> {
    let mut all = Vec::new();
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        let line = if line.starts_with('@') { line.split_once(' ').map_or("", |(_, rest)| rest.trim()) } else { line };
        let Some(statement) = line.strip_suffix(';') else { continue };
        if statement.starts_with('.') || statement.starts_with('{') {
            continue;
        }
        let (op, operands) = statement.split_once(char::is_whitespace).unwrap_or((statement, ""));
        all.push(Instruction { op, operands: operands.trim() });
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
    let exchanged: BTreeSet<String> = exchanged_params.iter().map(|n| format!("{}_param_{n}", p.name)).collect();
    let pointers = pointers(all, &exchanged);
    let plain =
        |i: &&Instruction<'_>| i.op.starts_with("ld.global") && registers(i.operands).any(|r| pointers.contains(r));
    match all.iter().find(plain) {
        Some(i) => failed("exchanged-cached", format!("{} {}", i.op, i.operands), REPORT),
        None => Ok(()),
    }
}

fn registers(operands: &str) -> impl Iterator<Item = &str> {
    operands.split(|c: char| !(c.is_ascii_alphanumeric() || c == '%' || c == '_')).filter(|r| r.starts_with('%'))
}

/// Registers that hold an address inside of a parameter's buffer.
fn pointers<'a>(all: &[Instruction<'a>], params: &BTreeSet<String>) -> BTreeSet<&'a str> {
    let mut found: BTreeSet<&str> = BTreeSet::new();
    loop {
        let before = found.len();
        for i in all {
            let loads = i.op.starts_with("ld.param") && params.iter().any(|p| i.operands.contains(&format!("[{p}]")));
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
