//! Which kernel arguments an address comes from: every value that is computed from an argument keeps its mark.

use crate::isa::{Arg, Constant, Inst, sreg};

use super::Gate;
use super::flow::{self, Flow};
use super::isa::{Access, Code, Effect, REGS, Space, destinations, registers};

/// The kernel's arguments begin here.
const KERNARG: u64 = 1 << 63;
/// Somewhere in the kernel's arguments.
const IN_KERNARG: u64 = 1 << 62;
/// Marks for the caller.
pub const MARKS: usize = 62;

const VGPRS: usize = REGS - sreg::COUNT;

/// A pointer among the arguments, with its mark.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Byte in the kernel's arguments.
    pub offset: u32,
    pub mark: u64,
}

#[derive(Clone)]
struct State {
    marks: [u64; REGS],
    /// What lanes that were off may still hold, of vector registers.
    hidden: [u64; VGPRS],
    /// Every lane that the wave began with is on.
    full: bool,
    /// Scalar registers that hold the mask of all those lanes.
    masks: u128,
}

struct Pointers<'a> {
    sources: &'a [Source],
    /// By instruction.
    found: Vec<u64>,
}

/// Marks of the addresses of all memory instructions, by instruction.
///
/// # Errors
/// Those of [`flow::run`].
pub fn addresses(code: &Code, sources: &[Source]) -> Gate<Vec<u64>> {
    let mut pointers = Pointers { sources, found: vec![0; code.all.len()] };
    if !sources.is_empty() {
        flow::run(code, &mut pointers)?;
    }
    let marks = !(KERNARG | IN_KERNARG);
    Ok(pointers.found.into_iter().map(|found| found & marks).collect())
}

impl Flow for Pointers<'_> {
    type State = Box<State>;

    fn entry(&self) -> Box<State> {
        let mut state = State { marks: [0; REGS], hidden: [0; VGPRS], full: true, masks: 0 };
        state.marks[0] = KERNARG;
        state.marks[1] = KERNARG;
        Box::new(state)
    }

    fn step(&mut self, state: &mut Box<State>, code: &Code, i: usize) -> Gate<()> {
        let ins = &code.all[i];
        let inst = &ins.inst;
        if let Effect::Memory(memory) = ins.effect {
            let address = state.address(inst, memory.space, memory.access, usize::from(memory.fills));
            // States grow on the way to the fixed point.
            self.found[i] |= address;
            if memory.fills {
                self.fill(state, inst, memory.space, address);
            }
            return Ok(());
        }
        // Both halves of a pair read before either writes.
        let first = sources_of(state, inst);
        let second = inst.pair.as_deref().map(|pair| (pair, sources_of(state, pair)));
        state.write(inst, first);
        if let Some((pair, marks)) = second {
            state.write(pair, marks);
        }
        state.exec(inst);
        Ok(())
    }

    fn merge(into: &mut Box<State>, from: &Box<State>) -> bool {
        let mut changed = (into.full && !from.full) || into.masks & !from.masks != 0;
        into.full &= from.full;
        into.masks &= from.masks;
        let pairs = into.marks.iter_mut().zip(&from.marks).chain(into.hidden.iter_mut().zip(&from.hidden));
        for (into, from) in pairs {
            changed |= from & !*into != 0;
            *into |= from;
        }
        changed
    }
}

impl Pointers<'_> {
    /// Loaded values: pointers if they are arguments, else nothing that is followed.
    fn fill(&self, state: &mut State, inst: &Inst, space: Space, address: u64) {
        let Some(to) = inst.args.first() else { return };
        let all = self.sources.iter().fold(0, |all, source| all | source.mark);
        let exact = match inst.args.get(2) {
            Some(Arg::Const(Constant::Bits(v))) => i64::try_from(*v).ok(),
            Some(Arg::Const(Constant::Int(v))) => Some(*v),
            _ => None,
        };
        let keeps = inst.name.contains("_d16_");
        for (n, register) in registers(to).enumerate() {
            let marks = if address & (KERNARG | IN_KERNARG) == 0 {
                0
            } else if let (KERNARG, Space::Scalar, Some(offset)) = (address, space, exact) {
                let at = offset + i64::from(inst.mods.offset) + 4 * n as i64;
                let hit = |s: &&Source| at < i64::from(s.offset) + 8 && at + 4 > i64::from(s.offset);
                self.sources.iter().filter(hit).fold(0, |all, source| all | source.mark)
            } else {
                all
            };
            state.set(register, marks | if keeps { state.marks[register] } else { 0 });
        }
    }
}

/// Marks of all that an instruction computes from.
fn sources_of(state: &State, inst: &Inst) -> u64 {
    // Results that are masks or bits, no addresses.
    if inst.name.starts_with("v_cmp") {
        return 0;
    }
    let skipped = if reads_destination(inst) { 0 } else { destinations(inst) };
    let marks = inst.args.iter().skip(skipped).fold(0, |all, arg| all | state.of(arg));
    let copies = matches!(inst.name.as_str(), "s_mov_b32" | "s_mov_b64" | "v_mov_b32" | "v_readfirstlane_b32");
    if marks & KERNARG != 0 && !copies { marks & !KERNARG | IN_KERNARG } else { marks }
}

/// What was in its destination is part of the result.
fn reads_destination(inst: &Inst) -> bool {
    const NAMES: &[&str] =
        &["s_addk_", "s_mulk_", "s_cmov", "s_bitset", "v_writelane_", "v_swap_", "v_dot2c_", "v_dot4c_"];
    let half = |arg: &Arg| matches!(arg, Arg::V { half, .. } if *half != crate::isa::Half::Whole);
    inst.name.contains("fmac")
        || NAMES.iter().any(|name| inst.name.starts_with(name))
        || inst.mods.dpp.is_some()
        || inst.mods.op_sel != 0
        || inst.args.first().is_some_and(half)
}

impl State {
    fn of(&self, arg: &Arg) -> u64 {
        self.marks[registers(arg)].iter().fold(0, |all, marks| all | marks)
    }

    /// Without the data that goes to memory.
    fn address(&self, inst: &Inst, space: Space, access: Access, fills: usize) -> u64 {
        let has_data = matches!(access, Access::Store | Access::Atomic) && matches!(space, Space::Global | Space::Flat);
        let parts = inst.args.iter().enumerate().skip(fills);
        parts.filter(|(n, _)| !has_data || *n != fills + 1).fold(0, |all, (_, arg)| all | self.of(arg))
    }

    fn set(&mut self, register: usize, marks: u64) {
        if let Some(v) = register.checked_sub(sreg::COUNT) {
            self.hidden[v] = if self.full { 0 } else { self.hidden[v] | self.marks[register] };
        } else {
            self.masks &= !(1 << register);
        }
        self.marks[register] = marks;
    }

    fn write(&mut self, inst: &Inst, marks: u64) {
        for arg in inst.args.iter().take(destinations(inst)) {
            for register in registers(arg) {
                self.set(register, marks);
            }
        }
    }

    /// Follows the mask of lanes.
    fn exec(&mut self, inst: &Inst) {
        let is = |n: usize, register: u8| matches!(inst.args.get(n), Some(Arg::S { first, .. }) if *first == register);
        let to_exec = is(0, sreg::EXEC);
        let name = inst.name.as_str();
        let saves = name.contains("_saveexec_");
        if let Some(Arg::S { first, .. }) = inst.args.first()
            && self.full
            && (saves || (name == "s_mov_b32" && is(1, sreg::EXEC)))
            && *first < sreg::NULL
        {
            self.masks |= 1 << *first;
        }
        let narrows = name.starts_with("v_cmpx")
            || matches!(name, "s_and_saveexec_b32" | "s_and_not1_saveexec_b32")
            || (to_exec && matches!(name, "s_and_b32" | "s_and_not1_b32") && is(1, sreg::EXEC));
        if narrows {
            self.full = false;
        } else if to_exec || saves || name.contains("_wrexec_") {
            for (marks, hidden) in self.marks[sreg::COUNT..].iter_mut().zip(&self.hidden) {
                *marks |= hidden;
            }
            let whole = |n: usize| match inst.args.get(n) {
                Some(Arg::S { first, .. }) => self.masks >> *first & 1 == 1,
                Some(Arg::Const(Constant::Int(-1))) => true,
                _ => false,
            };
            let restored = match name {
                "s_or_b32" => whole(1) || whole(2),
                "s_mov_b32" => whole(1),
                _ => false,
            };
            self.full = restored;
            if restored {
                self.hidden.fill(0);
            }
        }
    }
}
