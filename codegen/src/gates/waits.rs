//! Gate `waits`: no instruction uses a register that a load in flight will still write. Gate `waits-barrier`: a wave has
//! finished with LDS when it signals a barrier.
//!
//! Not looked at: hazards that `s_wait_alu` and `s_delay_alu` are for.

use crate::isa::sreg;

use super::flow::{self, Flow};
use super::isa::{
    Access, COUNTERS, Code, Counter, Effect, Ins, Memory, REGS, Space, reads_vcc, register_name, registers,
};
use super::{Gate, failed};

/// Nothing in flight.
const NONE: u8 = u8::MAX;
/// More operations than any counter holds.
const MANY: u8 = NONE - 1;

const CURE: &str = "an LLVM fault: give the wait in the lowering, or reorder the accesses around the spot";

#[derive(Clone)]
struct State {
    /// By counter, for each register that a load in flight writes: how many operations of the counter were issued later,
    /// at least.
    later: [[u8; REGS]; COUNTERS],
    /// Operations of the counter may end in another order than they were issued: only a wait for all tells something.
    disorder: [bool; COUNTERS],
    /// As `later`, for the last access to LDS.
    lds: u8,
}

struct Waits;

/// Checks all waits of a kernel.
///
/// # Errors
/// The first use of a register that comes too early.
pub fn check(code: &Code) -> Gate<()> {
    flow::run(code, &mut Waits).map(|_| ())
}

impl Flow for Waits {
    type State = State;

    fn entry(&self) -> State {
        State { later: [[NONE; REGS]; COUNTERS], disorder: [false; COUNTERS], lds: NONE }
    }

    fn step(&mut self, state: &mut State, code: &Code, i: usize) -> Gate<()> {
        let ins = &code.all[i];
        match ins.effect {
            Effect::Wait(left) => {
                state.wait(left);
                return Ok(());
            }
            Effect::Signal if state.lds != NONE => {
                let found = format!("{} while an LDS access of the wave is in flight", code.named(i));
                return failed("waits-barrier", found, CURE);
            }
            _ => {}
        }
        if let Some(register) = state.early(ins) {
            return too_early(code, i, register);
        }
        if let Effect::Memory(memory) = ins.effect {
            state.issue(memory, ins);
        }
        Ok(())
    }

    fn merge(into: &mut State, from: &State) -> bool {
        let mut changed = into.lds > from.lds;
        into.lds = into.lds.min(from.lds);
        for (into, from) in into.later.iter_mut().flatten().zip(from.later.iter().flatten()) {
            changed |= *into > *from;
            *into = (*into).min(*from);
        }
        for (into, from) in into.disorder.iter_mut().zip(from.disorder) {
            changed |= from && !*into;
            *into |= from;
        }
        changed
    }
}

impl State {
    fn wait(&mut self, left: [Option<u8>; COUNTERS]) {
        for (counter, left) in left.iter().enumerate() {
            let Some(left) = *left else { continue };
            if left > 0 && self.disorder[counter] {
                continue;
            }
            if left == 0 {
                self.disorder[counter] = false;
            }
            // In order: what has `left` operations behind it has ended.
            let ended = |later: u8| if later >= left { NONE } else { later };
            self.later[counter].iter_mut().for_each(|later| *later = ended(*later));
            if counter == Counter::Ds as usize {
                self.lds = ended(self.lds);
            }
        }
    }

    /// A register that the instruction names too early.
    fn early(&self, ins: &Ins) -> Option<usize> {
        let busy = |r: &usize| self.later.iter().any(|later| later[*r] != NONE);
        let mut half = Some(&ins.inst);
        while let Some(inst) = half {
            for (n, arg) in inst.args.iter().enumerate() {
                let mut of = registers(arg);
                let found = match n {
                    0 if ordered_load(ins) => of.find(|r| busy(r) && !self.only_ordered_loads(*r)),
                    _ => of.find(busy),
                };
                if found.is_some() {
                    return found;
                }
            }
            if reads_vcc(&inst.name) {
                let vcc = usize::from(sreg::VCC);
                if busy(&vcc) {
                    return Some(vcc);
                }
            }
            half = inst.pair.as_deref();
        }
        None
    }

    /// What is in flight to the register comes before a load that is issued now.
    fn only_ordered_loads(&self, register: usize) -> bool {
        let load = Counter::Load as usize;
        !self.disorder[load] && self.later.iter().enumerate().all(|(c, later)| c == load || later[register] == NONE)
    }

    fn issue(&mut self, memory: Memory, ins: &Ins) {
        for counter in memory.counters() {
            let c = *counter as usize;
            let next = |later: u8| later + u8::from(later < MANY);
            self.later[c].iter_mut().for_each(|later| *later = next(*later));
            self.disorder[c] |= matches!(memory.space, Space::Flat | Space::Scalar);
            if *counter == Counter::Ds {
                self.lds = if memory.access == Access::Lanes { next(self.lds) } else { 0 };
            }
            if let Some(to) = ins.inst.args.first().filter(|_| memory.fills) {
                self.later[c][registers(to)].fill(0);
            }
        }
    }
}

/// A vector load or atomic that fills whole registers, in the order of its counter.
fn ordered_load(ins: &Ins) -> bool {
    // Loads of half a register keep the other half.
    matches!(ins.effect, Effect::Memory(m) if m.fills && m.space == Space::Global) && !ins.inst.name.contains("_d16_")
}

fn too_early<T>(code: &Code, i: usize, register: usize) -> Gate<T> {
    let fills = |ins: &Ins| {
        matches!(ins.effect, Effect::Memory(m) if m.fills)
            && ins.inst.args.first().is_some_and(|to| registers(to).contains(&register))
    };
    // The last one before it in the code: the most likely one.
    let before = code.all[..i].iter().rposition(fills).or_else(|| code.all.iter().rposition(fills));
    let load = before.map_or_else(|| "a load".to_owned(), |load| code.named(load));
    let found = format!("{} uses {}, which {load} may still write", code.named(i), register_name(register));
    failed("waits", found, CURE)
}
