//! What the tests of scalar, memory, LDS and control ops share: instructions from text, values, memory.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use unglue_codegen::counts::{Class, Counts, Traffic, WIDTHS};
use unglue_codegen::emu::env::Env;
use unglue_codegen::emu::fault::Fault;
use unglue_codegen::emu::group::Barrier;
use unglue_codegen::emu::lanes::execute;
use unglue_codegen::emu::memory::{CODE_BASE, Region, Rights, Words};
use unglue_codegen::emu::op::Flow;
use unglue_codegen::emu::snippet::{Surroundings, run};
use unglue_codegen::emu::step::{Code, Step, decode, step};
use unglue_codegen::emu::wave::{Lanes, Wave};
use unglue_codegen::llvm::assemble::assemble;
use unglue_codegen::llvm::disasm;
use unglue_codegen::target::{Target, by_name};

/// What registers hold that nobody wrote.
pub const POISON: u32 = 0x7fe1_dead;

pub fn gfx() -> &'static Target {
    by_name("gfx1201").unwrap()
}

pub fn code(text: &str) -> Vec<u8> {
    assemble(text, gfx()).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Assembles and runs a snippet.
pub fn exec(text: &str, w: &mut Wave, around: &mut Surroundings<'_>) -> Result<Counts, Fault> {
    run(&code(text), gfx(), w, around)
}

/// Instructions that are decoded once and executed one at a time; a decoding fault belongs to its instruction.
pub struct Lines {
    steps: Vec<Result<Step, Fault>>,
    empty: Code,
}

impl Lines {
    pub fn new<T: AsRef<str>>(lines: impl IntoIterator<Item = T>) -> Self {
        let lines: Vec<String> = lines.into_iter().map(|l| l.as_ref().to_owned()).collect();
        let mut steps = vec![];
        disasm::each(&code(&lines.join("\n")), gfx(), |at, text| steps.push(step(text, at as u32, 256, 106))).unwrap();
        assert_eq!(steps.len(), lines.len());
        Lines { steps, empty: decode(&[], gfx(), 256, 106).unwrap() }
    }

    /// Executes line `n` on its own.
    pub fn run(&self, n: usize, w: &mut Wave, around: &mut Surroundings<'_>) -> Result<Counts, Fault> {
        let step = self.steps[n].as_ref().map_err(Clone::clone)?;
        let (mut barrier, mut counts) = (Barrier::new(1), Counts::default());
        let mut env = Env {
            code: &self.empty,
            space: &around.space,
            lds: &mut around.lds,
            barrier: &mut barrier,
            counts: &mut counts,
            code_address: CODE_BASE,
            scratch_bytes: around.scratch_bytes,
            perturb: around.perturb,
        };
        let flow = execute(w, &mut env, step)?;
        assert_eq!(flow, Flow::Next, "{}", step.text);
        Ok(counts)
    }
}

/// Disagreements of one test, one per opcode.
#[derive(Default)]
pub struct Report {
    found: Vec<String>,
    last: String,
}

impl Report {
    /// Notes `what` about an opcode; later notes about the same one are dropped.
    pub fn add(&mut self, name: &str, what: impl FnOnce() -> String) {
        if self.last != name {
            self.found.push(format!("{name}: {}", what()));
            self.last = name.to_owned();
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.found.is_empty(), "{} opcodes differ:\n{}", self.found.len(), self.found.join("\n"));
        }
    }
}

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    pub fn u32(&mut self) -> u32 {
        self.u64() as u32
    }
    pub fn below(&mut self, n: u32) -> u32 {
        ((u64::from(self.u32()) * u64::from(n)) >> 32) as u32
    }
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.u32() as u8).collect()
    }
    pub fn lanes(&mut self) -> [u32; 32] {
        std::array::from_fn(|_| self.u32())
    }
}

/// A wave whose vector and plain scalar registers hold random values.
pub fn random_wave(r: &mut Random) -> Wave {
    let mut w = Wave::new(POISON);
    for n in 0..106 {
        w.sgpr[n] = r.u32();
    }
    for n in 0..64 {
        w.vgpr[n] = r.lanes();
    }
    w
}

/// Words that hold `bytes`.
pub fn words(bytes: &[u8]) -> Words {
    let words = Words::zeroed(bytes.len());
    words.write(0, bytes);
    words
}

/// All bytes of words.
pub fn contents(words: &Words, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    words.read(0, &mut out);
    out
}

pub fn region<'a>(name: &'a str, words: &'a Words, bytes: u64) -> Region<'a> {
    Region { name, words, offset: 0, bytes, rights: Rights::ReadWrite }
}

/// Bytes counted at exactly one width; all other widths and classes must be 0.
pub fn only(counts: &Counts, traffic: Traffic, bits: u32) -> Result<u64, String> {
    let column = WIDTHS.iter().position(|w| *w == bits).unwrap();
    let found = counts.bytes[traffic as usize][column];
    match counts.bytes.iter().flatten().sum::<u64>() {
        all if all == found => Ok(found),
        _ => Err(format!("bytes {:?}", counts.report().bytes)),
    }
}

/// What one load or store must count: accesses of `bytes` bytes in `lanes` lanes.
pub struct Accesses {
    pub class: Class,
    pub traffic: Traffic,
    pub bytes: u32,
    pub lanes: u32,
}

impl Accesses {
    /// Runs the instruction; what it counted if that is something else.
    fn miscounted(&self, text: &str, w: &mut Wave, around: &mut Surroundings<'_>) -> Option<String> {
        let got = exec(text, w, around);
        let counted = got.map(|c| (only(&c, self.traffic, 8 * self.bytes), c.instructions[self.class as usize]));
        (counted != Ok((Ok(u64::from(self.lanes * self.bytes)), 1))).then(|| format!("{counted:?}"))
    }

    /// Runs a load, which must leave vector registers as `want` has them.
    pub fn load(
        &self,
        text: &str,
        (w, around): (&mut Wave, &mut Surroundings<'_>),
        want: &[Lanes],
        report: &mut Report,
    ) {
        let (mask, wrong) = (w.exec(), self.miscounted(text, w, around));
        if wrong.is_some() || w.vgpr[..] != *want {
            report.add(text, || format!("exec {mask:x}: {wrong:?}, v8 {:x?}, expected {:x?}", w.vgpr[8], want[8]));
        }
    }

    /// Runs a store, which must leave vector registers as they are, and memory so that `same` holds.
    pub fn store(
        &self,
        text: &str,
        (w, around): (&mut Wave, &mut Surroundings<'_>),
        same: impl FnOnce(&mut Surroundings<'_>) -> bool,
        report: &mut Report,
    ) {
        let (mask, before) = (w.exec(), w.vgpr.to_vec());
        let wrong = self.miscounted(text, w, around);
        let same = same(around) && w.vgpr[..] == *before;
        if wrong.is_some() || !same {
            report.add(text, || format!("exec {mask:x}: {wrong:?}, memory and registers as expected: {same}"));
        }
    }
}

/// The vector registers that a load to v8 must leave: `from` has the bytes at a lane's place.
pub fn after_load<'a>(w: &Wave, access: Access, from: impl Fn(usize) -> &'a [u8]) -> Vec<Lanes> {
    let mut all = w.vgpr.to_vec();
    for l in (0..32).filter(|l| w.exec() >> l & 1 == 1) {
        for k in 0..access.1.div_ceil(4) as usize {
            all[8 + k][l] = loaded(access, from(l), k, all[8 + k][l]);
        }
    }
    all
}

/// Writes what a store from v8 must, at the places of active lanes.
pub fn after_store(w: &Wave, access: Access, at: impl Fn(usize) -> Option<usize>, data: &mut [u8]) {
    for l in (0..32).filter(|l| w.exec() >> l & 1 == 1) {
        let held: Vec<u32> = (8..12).map(|n| w.vgpr[n][l]).collect();
        if let Some(at) = at(l) {
            data[at..][..access.1 as usize].copy_from_slice(&stored(access, &held));
        }
    }
}

/// Which bits of a register a memory access names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Whole,
    Low,
    High,
}

/// A load or store: name after the prefix, bytes, sign extension, part of the register.
pub type Access = (&'static str, u32, bool, Part);

pub const LOADS: [Access; 14] = [
    ("u8", 1, false, Part::Whole),
    ("i8", 1, true, Part::Whole),
    ("u16", 2, false, Part::Whole),
    ("i16", 2, true, Part::Whole),
    ("b32", 4, false, Part::Whole),
    ("b64", 8, false, Part::Whole),
    ("b96", 12, false, Part::Whole),
    ("b128", 16, false, Part::Whole),
    ("d16_u8", 1, false, Part::Low),
    ("d16_i8", 1, true, Part::Low),
    ("d16_b16", 2, false, Part::Low),
    ("d16_hi_u8", 1, false, Part::High),
    ("d16_hi_i8", 1, true, Part::High),
    ("d16_hi_b16", 2, false, Part::High),
];

pub const STORES: [Access; 8] = [
    ("b8", 1, false, Part::Whole),
    ("b16", 2, false, Part::Whole),
    ("b32", 4, false, Part::Whole),
    ("b64", 8, false, Part::Whole),
    ("b96", 12, false, Part::Whole),
    ("b128", 16, false, Part::Whole),
    ("d16_hi_b8", 1, false, Part::High),
    ("d16_hi_b16", 2, false, Part::High),
];

/// Register k of a loaded value, given what the register held.
pub fn loaded(access: Access, bytes: &[u8], k: usize, old: u32) -> u32 {
    let (_, size, signed, part) = access;
    if size >= 4 {
        return u32::from_le_bytes(bytes[4 * k..4 * k + 4].try_into().unwrap());
    }
    let mut value = i64::from(bytes[0]);
    if size == 2 {
        value += i64::from(bytes[1]) * 256;
    }
    let limit = 1i64 << (8 * size - 1);
    if signed && value >= limit {
        value -= 2 * limit;
    }
    match part {
        Part::Whole => value as u32,
        Part::Low => old / 65536 * 65536 + value.rem_euclid(65536) as u32,
        Part::High => old % 65536 + value.rem_euclid(65536) as u32 * 65536,
    }
}

/// Bytes that a store writes, from its registers.
pub fn stored(access: Access, registers: &[u32]) -> Vec<u8> {
    let (_, size, _, part) = access;
    let all: Vec<u8> = registers.iter().flat_map(|r| r.to_le_bytes()).collect();
    let first = if part == Part::High { 2 } else { 0 };
    all[first..first + size as usize].to_vec()
}

/// `v8` or `v[8:11]`: the registers of an access of so many bytes.
pub fn registers(first: u32, bytes: u32) -> String {
    match bytes.div_ceil(4) {
        1 => format!("v{first}"),
        n => format!("v[{first}:{}]", first + n - 1),
    }
}
