//! Checks of PTX whose workgroups start before earlier launches have ended: what happens before they wait for them.
//!
//! Gates: `await`: each way through the kernel comes by its one wait before it ends, stores, or loads what other launches
//! write. `await-cached`: what other launches write is not loaded through the read-only cache, which may have met it before
//! the wait.

use std::collections::{BTreeMap, BTreeSet};

use super::ptx::{Instruction, pointers, registers};
use super::{Gate, REPORT, failed};
use crate::kp::{Access, Param, Program};

const WAIT: &str = "griddepcontrol.wait";

/// Instructions of a kernel and what its registers point to.
struct Kernel<'a> {
    all: &'a [Instruction<'a>],
    labels: BTreeMap<&'a str, usize>,
    /// Registers that may point into what no launch writes, and into everything else.
    constant: BTreeSet<&'a str>,
    written: BTreeSet<&'a str>,
}

/// Checks the instructions of a kernel that waits for earlier launches.
pub(super) fn check(all: &[Instruction<'_>], p: &Program) -> Gate<()> {
    let buffers = |constant: bool| -> BTreeSet<u32> {
        let of = |param: &Param| match param {
            Param::Buffer { access, .. } => (*access == Access::Constant) == constant,
            Param::Scalar { .. } => false,
        };
        (0u32..).zip(&p.params).filter(|(_, param)| of(param)).map(|(i, _)| i).collect()
    };
    let labels = all.iter().enumerate().flat_map(|(at, i)| i.labels.iter().map(move |label| (*label, at))).collect();
    let [constant, written] = [true, false].map(|constant| pointers(all, &p.name, &buffers(constant)));
    let kernel = Kernel { all, labels, constant, written };
    let waits = all.iter().filter(|i| i.op == WAIT).count();
    if waits != 1 {
        return failed("await", format!("{waits} of `{WAIT}`, not one"), REPORT);
    }
    kernel.before()?;
    let cached = |i: &&Instruction<'_>| {
        i.op.starts_with("ld.global.nc") && registers(i.operands).any(|r| kernel.written.contains(r))
    };
    match all.iter().find(cached) {
        Some(i) => failed("await-cached", format!("{} {}", i.op, i.operands), REPORT),
        None => Ok(()),
    }
}

impl Kernel<'_> {
    /// Walks all that can run before the wait.
    fn before(&self) -> Gate<()> {
        let (mut open, mut seen) = (vec![0], BTreeSet::new());
        while let Some(at) = open.pop() {
            let Some(i) = self.all.get(at) else {
                return failed("await", format!("the text ends before `{WAIT}`"), REPORT);
            };
            if !seen.insert(at) || i.op == WAIT && !i.guarded {
                continue;
            }
            self.early(i)?;
            let branches = i.op.starts_with("bra");
            if branches {
                match self.labels.get(i.operands) {
                    Some(to) => open.push(*to),
                    None => return failed("await", format!("{} {} before `{WAIT}`", i.op, i.operands), REPORT),
                }
            }
            if !branches || i.guarded {
                open.push(at + 1);
            }
        }
        Ok(())
    }

    /// Fails for an instruction that may not run before the wait.
    fn early(&self, i: &Instruction<'_>) -> Gate<()> {
        let name = i.op.split('.').next().unwrap_or_default();
        let wrong = match name {
            "ret" | "exit" | "trap" | "brx" | "call" => true,
            "st" | "atom" | "red" => !i.op.contains(".shared"),
            "cp" => !i.op.starts_with("cp.async.bulk.prefetch."),
            "ld" if i.op.contains(".param") || i.op.contains(".shared") => false,
            "ld" => {
                let mut registers = registers(i.operands.split_once('[').map_or("", |(_, address)| address));
                !registers.all(|r| self.constant.contains(r) && !self.written.contains(r))
            }
            _ => i.op == WAIT,
        };
        if wrong { failed("await", format!("`{} {}` before `{WAIT}`", i.op, i.operands), REPORT) } else { Ok(()) }
    }
}
