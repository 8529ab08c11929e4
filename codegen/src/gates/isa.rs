//! A kernel's instructions, decoded once for all gates: what each does to memory, and where control flow goes.

use crate::isa::{self, Arg, Constant, Inst, sreg};
use crate::llvm::disasm;
use crate::target::Target;

use super::{Failed, Gate, REPORT, failed};

/// Scalar registers, then vector registers.
pub const REGS: usize = sreg::COUNT + 256;

/// The counters of memory operations that have not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Vector loads, atomics that return, cache invalidates.
    Load,
    /// Vector stores, atomics that do not return, write-backs.
    Store,
    /// LDS.
    Ds,
    /// Scalar loads and messages that return.
    Km,
}

pub const COUNTERS: usize = 4;

/// What a memory instruction goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Addresses of device memory and scratch.
    Global,
    /// Addresses that may also lie in LDS.
    Flat,
    Lds,
    Scalar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Load,
    Store,
    /// With or without return.
    Atomic,
    /// Moves values between lanes and touches no memory.
    Lanes,
    /// `global_inv`.
    Invalidate,
    /// `global_wb`, `global_wbinv`.
    WriteBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub space: Space,
    pub access: Access,
    /// Fills its first operand.
    pub fills: bool,
}

impl Memory {
    /// Counters that it raises.
    #[must_use]
    pub fn counters(&self) -> &'static [Counter] {
        let loads = self.fills || self.access == Access::Invalidate;
        match (self.space, loads) {
            (Space::Global, true) => &[Counter::Load],
            (Space::Global, false) => &[Counter::Store],
            (Space::Flat, true) => &[Counter::Load, Counter::Ds],
            (Space::Flat, false) => &[Counter::Store, Counter::Ds],
            (Space::Lds, _) => &[Counter::Ds],
            (Space::Scalar, _) => &[Counter::Km],
        }
    }
}

/// What an instruction does beside computing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Plain,
    Memory(Memory),
    /// By [`Counter`]: at most so many are left.
    Wait([Option<u8>; COUNTERS]),
    /// `s_barrier_signal`.
    Signal,
    /// `s_barrier_wait`.
    Meet,
    /// To byte `.0`; conditional branches may also go on.
    Branch(i64, Branch),
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Branch {
    Always,
    Condition,
    /// Taken if no lane is on.
    Empty,
    /// Not taken if no lane is on.
    NotEmpty,
}

/// One instruction.
#[derive(Debug)]
pub struct Ins {
    pub pc: u32,
    pub inst: Inst,
    pub effect: Effect,
    /// End of its text in [`Code::texts`].
    text_end: usize,
}

/// A way from a block to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    pub to: usize,
    /// No lane is on along it.
    pub empty: bool,
}

#[derive(Debug)]
pub struct Block {
    pub first: usize,
    pub end: usize,
    pub next: Vec<Edge>,
}

/// A kernel's code.
#[derive(Debug)]
pub struct Code {
    pub all: Vec<Ins>,
    pub blocks: Vec<Block>,
    texts: String,
}

impl Code {
    /// `text` at its offset.
    #[must_use]
    pub fn named(&self, i: usize) -> String {
        let Some(ins) = self.all.get(i) else { return "the end of the code".to_owned() };
        let start = i.checked_sub(1).and_then(|before| self.all.get(before)).map_or(0, |before| before.text_end);
        let text = self.texts.get(start..ins.text_end).unwrap_or_default().replace('\t', " ");
        format!("`{}` at 0x{:x}", text.trim(), ins.pc)
    }
}

const UNMODELLED: &str = "teach the gates what it does, or avoid it in the lowering";

/// Decodes code. Gates: `disassembly`, `unmodelled`, `branch`.
///
/// # Errors
/// [`Failed`] with the first instruction that the gates cannot judge.
pub fn decode(code: &[u8], t: &Target) -> Gate<Code> {
    let mut out = Code { all: Vec::with_capacity(code.len() / 6), blocks: Vec::new(), texts: String::new() };
    let mut wrong = None;
    let visited = disasm::each(code, t, |offset, text| {
        out.texts.push_str(text);
        let end = out.texts.len();
        let pc = offset as u32;
        match isa::parse(text, 0).and_then(|inst| effect(&inst, pc).map(|effect| (inst, effect))) {
            Ok((inst, effect)) => out.all.push(Ins { pc, inst, effect, text_end: end }),
            Err(found) if wrong.is_none() => {
                wrong = Some(Failed {
                    gate: "unmodelled",
                    found: format!("{found}: `{text}` at 0x{pc:x}"),
                    cure: UNMODELLED,
                });
            }
            Err(_) => {}
        }
    });
    if let Err(found) = visited {
        let cure = "an LLVM fault (specs/gfx1201.md): reorder the arithmetic around the spot";
        return failed("disassembly", found, cure);
    }
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    blocks(&mut out, code.len())?;
    Ok(out)
}

/// Instructions whose effect no gate follows: memory with other counters, registers by index, calls.
const REFUSED: &[&str] = &[
    "image_",
    "tbuffer_",
    "exp",
    "ds_param_load",
    "ds_direct_load",
    "ds_gws",
    "lds_",
    "s_barrier_signal_isfirst",
    "s_barrier_leave",
    "s_get_barrier_state",
    "s_swappc",
    "s_setpc",
    "s_call",
    "s_rfe",
    "s_movrel",
    "v_movrel",
    "v_swaprel",
    "s_alloc_vgpr",
    "s_set_gpr",
    "v_interp",
    "s_trap",
    "s_subvector",
];

const SPACES: &[(&str, Space)] = &[
    ("global_", Space::Global),
    ("scratch_", Space::Global),
    ("buffer_", Space::Global),
    ("flat_", Space::Flat),
    ("ds_", Space::Lds),
    ("s_load_", Space::Scalar),
    ("s_buffer_load_", Space::Scalar),
    ("s_sendmsg_rtn_", Space::Scalar),
];

/// LDS instructions that move values between lanes only.
const LANES: &[&str] = &["ds_bpermute_", "ds_permute_", "ds_swizzle_"];

fn effect(inst: &Inst, pc: u32) -> Result<Effect, String> {
    let name = inst.name.as_str();
    if REFUSED.iter().any(|r| name.starts_with(r)) {
        return Err("not modelled".into());
    }
    if let Some((prefix, space)) = SPACES.iter().find(|(prefix, _)| name.starts_with(prefix)) {
        return memory(inst, *space, name.split_at(prefix.len()).1).map(Effect::Memory);
    }
    match name {
        "s_endpgm" | "s_endpgm_saved" => Ok(Effect::End),
        "s_barrier_signal" => Ok(Effect::Signal),
        "s_barrier_wait" => Ok(Effect::Meet),
        "s_wait_idle" => Ok(Effect::Wait([Some(0); COUNTERS])),
        _ if name.starts_with("s_wait_") => wait(inst),
        _ if name.starts_with("s_branch") || name.starts_with("s_cbranch_") => branch(inst, pc),
        _ => Ok(Effect::Plain),
    }
}

fn memory(inst: &Inst, space: Space, what: &str) -> Result<Memory, String> {
    let access = match space {
        Space::Scalar => Access::Load,
        _ if LANES.iter().any(|l| inst.name.starts_with(l)) => Access::Lanes,
        _ if what.starts_with("load_") => Access::Load,
        _ if what.starts_with("store_") => Access::Store,
        Space::Lds => Access::Atomic,
        _ if what.starts_with("atomic_") => Access::Atomic,
        _ if what == "inv" => Access::Invalidate,
        _ if what == "wb" || what == "wbinv" => Access::WriteBack,
        _ => return Err("not modelled".into()),
    };
    let fills = match access {
        Access::Load | Access::Lanes => true,
        Access::Store | Access::Invalidate | Access::WriteBack => false,
        Access::Atomic if space == Space::Lds => {
            ["_rtn", "ds_append", "ds_consume", "ds_bvh_stack", "ds_ordered_count"]
                .iter()
                .any(|part| inst.name.contains(part))
        }
        Access::Atomic => inst.mods.returns,
    };
    Ok(Memory { space, access, fills })
}

fn constant(inst: &Inst) -> Result<i64, String> {
    match inst.args.first() {
        Some(Arg::Const(Constant::Int(v))) => Ok(*v),
        Some(Arg::Const(Constant::Bits(v))) => Ok(v.cast_signed()),
        _ => Err("its operand is no constant".into()),
    }
}

/// Counters have at most 6 bits; of a pair, LDS has the lower byte.
fn wait(inst: &Inst) -> Result<Effect, String> {
    let mut left = [None; COUNTERS];
    let fields: &[(Counter, u32)] = match inst.name.as_str() {
        "s_wait_loadcnt" => &[(Counter::Load, 0)],
        "s_wait_storecnt" => &[(Counter::Store, 0)],
        "s_wait_dscnt" => &[(Counter::Ds, 0)],
        "s_wait_kmcnt" => &[(Counter::Km, 0)],
        "s_wait_loadcnt_dscnt" => &[(Counter::Load, 8), (Counter::Ds, 0)],
        "s_wait_storecnt_dscnt" => &[(Counter::Store, 8), (Counter::Ds, 0)],
        // Of other counters and of the arithmetic units.
        _ => return Ok(Effect::Plain),
    };
    let value = constant(inst)?;
    for (counter, shift) in fields {
        left[*counter as usize] = Some((value >> shift & 0x3f) as u8);
    }
    Ok(Effect::Wait(left))
}

fn branch(inst: &Inst, pc: u32) -> Result<Effect, String> {
    let kind = match inst.name.as_str() {
        "s_branch" => Branch::Always,
        "s_cbranch_execz" => Branch::Empty,
        "s_cbranch_execnz" => Branch::NotEmpty,
        "s_cbranch_scc0" | "s_cbranch_scc1" | "s_cbranch_vccz" | "s_cbranch_vccnz" => Branch::Condition,
        _ => return Err("not modelled".into()),
    };
    let words = constant(inst)? as u16 as i16;
    Ok(Effect::Branch(i64::from(pc) + 4 + 4 * i64::from(words), kind))
}

/// Cuts the code into blocks.
fn blocks(code: &mut Code, bytes: usize) -> Gate<()> {
    const NOWHERE: usize = usize::MAX;
    let mut at = vec![NOWHERE; bytes / 4 + 1];
    for (i, ins) in code.all.iter().enumerate() {
        at[ins.pc as usize / 4] = i;
    }
    let place = |pc: i64| {
        let word = usize::try_from(pc >> 2).ok().filter(|_| pc & 3 == 0);
        word.and_then(|w| at.get(w)).copied().filter(|i| *i != NOWHERE)
    };
    let mut leads = vec![false; code.all.len() + 1];
    leads[0] = true;
    for (i, ins) in code.all.iter().enumerate() {
        if let Effect::Branch(to, _) = ins.effect {
            let Some(to) = place(to) else {
                return failed("branch", format!("{} goes to no instruction", code.named(i)), REPORT);
            };
            leads[to] = true;
        }
        leads[i + 1] |= matches!(ins.effect, Effect::Branch(..) | Effect::End);
    }
    let firsts: Vec<usize> = (0..code.all.len()).filter(|i| leads[*i]).collect();
    let block_of = |i: usize| firsts.partition_point(|first| *first <= i).saturating_sub(1);
    for (n, &first) in firsts.iter().enumerate() {
        let end = firsts.get(n + 1).copied().unwrap_or(code.all.len());
        let mut next = Vec::with_capacity(2);
        let last = code.all[end - 1].effect;
        let mut kind = None;
        if let Effect::Branch(to, branch) = last {
            kind = Some(branch);
            next.extend(place(to).map(|i| Edge { to: block_of(i), empty: branch == Branch::Empty }));
        }
        if last != Effect::End && kind != Some(Branch::Always) {
            // A block past the last one: found if it can be reached.
            next.push(Edge { to: n + 1, empty: kind == Some(Branch::NotEmpty) });
        }
        code.blocks.push(Block { first, end, next });
    }
    Ok(())
}

/// How many of the printed operands are destinations; they come first. By the names alone: the emulator's table is
/// compared with it, so it must not come from there.
#[must_use]
pub fn destinations(inst: &Inst) -> usize {
    let name = inst.name.as_str();
    let any = |prefixes: &[&str]| prefixes.iter().any(|p| name.starts_with(p));
    if let Some((prefix, space)) = SPACES.iter().find(|(prefix, _)| name.starts_with(prefix)) {
        return memory(inst, *space, name.split_at(prefix.len()).1).map_or(0, |m| usize::from(m.fills));
    }
    if any(NO_DESTINATION) {
        return 0;
    }
    if any(TWO_DESTINATIONS) { 2 } else { 1 }
}

const NO_DESTINATION: &[&str] = &[
    "s_cmp",
    "s_bitcmp",
    "v_cmpx",
    "s_wait",
    "s_branch",
    "s_cbranch",
    "s_barrier",
    "s_endpgm",
    "s_nop",
    "s_clause",
    "s_delay_alu",
    "s_sendmsg",
    "s_code_end",
    "s_set",
    "s_sleep",
    "s_dcache",
    "s_icache",
    "s_prefetch",
    "s_version",
    "s_trap",
    "s_incperflevel",
    "s_decperflevel",
    "s_ttracedata",
    "s_round_mode",
    "s_denorm_mode",
    "v_nop",
    "s_inst_prefetch",
];

const TWO_DESTINATIONS: &[&str] = &["v_add_co_", "v_sub_co_", "v_subrev_co_", "v_div_scale_", "v_mad_co_", "v_swap_"];

/// Registers of an operand, numbered up to [`REGS`]; empty for what is no register.
#[must_use]
pub fn registers(arg: &Arg) -> std::ops::Range<usize> {
    match *arg {
        Arg::S { first, .. } if first == sreg::NULL => 0..0,
        Arg::S { first, count } => usize::from(first)..(usize::from(first) + usize::from(count)).min(sreg::COUNT),
        Arg::V { first, count, .. } => {
            let first = sreg::COUNT + usize::from(first);
            first.min(REGS)..(first + usize::from(count)).min(REGS)
        }
        Arg::Const(_) | Arg::Special(_) | Arg::Off => 0..0,
    }
}

/// Name of a register.
#[must_use]
pub fn register_name(register: usize) -> String {
    match register.checked_sub(sreg::COUNT) {
        Some(v) => format!("v{v}"),
        None if register == usize::from(sreg::VCC) => "vcc_lo".into(),
        None if register == usize::from(sreg::EXEC) => "exec_lo".into(),
        None => format!("s{register}"),
    }
}

/// True if it reads VCC without naming it.
#[must_use]
pub fn reads_vcc(name: &str) -> bool {
    name.starts_with("v_div_fmas_") || name.starts_with("s_cbranch_vcc")
}
