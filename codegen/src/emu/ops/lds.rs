//! Loads and stores of LDS.
//!
//! Alignment: 8 bytes for `b64` and pairs of it, 4 for `b96` and `b128`, which LLVM also emits for data of less
//! alignment (the hardware's unaligned access mode, which the HSA ABI turns on).

use crate::counts::{Class, Traffic};
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::lanes::dst;
use crate::emu::op::{Flow, Literal, Op, Run, accepts};
use crate::emu::step::{Operand, Step};
use crate::emu::wave::{Lanes, Wave};

/// Byte offset in each lane: register `k` plus a constant, in 32 bits.
pub(super) fn offsets(w: &Wave, s: &Step, k: usize, constant: u32) -> Result<Lanes, Fault> {
    match s.args[k] {
        Operand::V(n) => Ok(w.vgpr[usize::from(n)].map(|a| a.wrapping_add(constant))),
        other => Err(Fault::Operand(format!("{other:?} as LDS address"))),
    }
}

/// The vector register that operand `k` names.
pub(super) fn register(s: &Step, k: usize) -> Result<u8, Fault> {
    match s.args[k] {
        Operand::V(n) => Ok(n),
        other => Err(Fault::Operand(format!("{other:?} as LDS data"))),
    }
}

const fn alignment(words: usize) -> u32 {
    if words == 2 { 8 } else { 4 }
}

/// Loads N words per lane to registers from `n` on.
fn load_words<const N: usize>(w: &mut Wave, env: &mut Env<'_>, at: &Lanes, n: u8) -> Result<(), Fault> {
    let exec = w.exec();
    let mut values = [[0; 32]; N];
    for lane in (0..32).filter(|l| exec >> l & 1 == 1) {
        let mut words = [0; N];
        env.lds.load_words(w.number, at[lane].into(), alignment(N), &mut words)?;
        for (slot, word) in values.iter_mut().zip(words) {
            slot[lane] = word;
        }
    }
    for (i, value) in values.iter().enumerate() {
        w.set_lanes(n.wrapping_add(i as u8), value, exec);
    }
    env.counts.add(Traffic::LdsLoad, 4 * N as u32, exec.count_ones());
    Ok(())
}

/// Stores N words per lane from registers from `n` on.
fn store_words<const N: usize>(w: &Wave, env: &mut Env<'_>, at: &Lanes, n: u8) -> Result<(), Fault> {
    let exec = w.exec();
    for lane in (0..32).filter(|l| exec >> l & 1 == 1) {
        let words: [u32; N] = std::array::from_fn(|i| w.vgpr[usize::from(n.wrapping_add(i as u8))][lane]);
        env.lds.store_words(w.number, at[lane].into(), alignment(N), &words)?;
    }
    env.counts.add(Traffic::LdsStore, 4 * N as u32, exec.count_ones());
    Ok(())
}

fn load<const N: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let at = offsets(w, s, 1, s.mods.offset.cast_unsigned())?;
    load_words::<N>(w, env, &at, dst(s)?)?;
    Ok(Flow::Next)
}

fn store<const N: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let at = offsets(w, s, 0, s.mods.offset.cast_unsigned())?;
    store_words::<N>(w, env, &at, register(s, 1)?)?;
    Ok(Flow::Next)
}

/// The constants of the two addresses, in units of `unit` bytes.
pub(super) fn pair(s: &Step, unit: u32) -> [u32; 2] {
    [s.mods.offset0, s.mods.offset1].map(|o| u32::from(o) * unit)
}

/// N words from each of two addresses.
fn load2<const N: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step, unit: u32) -> Result<Flow, Fault> {
    let [first, second] = pair(s, unit);
    let (first, second) = (offsets(w, s, 1, first)?, offsets(w, s, 1, second)?);
    load_words::<N>(w, env, &first, dst(s)?)?;
    load_words::<N>(w, env, &second, dst(s)?.wrapping_add(N as u8))?;
    Ok(Flow::Next)
}

/// N words to each of two addresses.
fn store2<const N: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step, unit: u32) -> Result<Flow, Fault> {
    let [first, second] = pair(s, unit);
    let (first, second) = (offsets(w, s, 0, first)?, offsets(w, s, 0, second)?);
    store_words::<N>(w, env, &first, register(s, 1)?)?;
    store_words::<N>(w, env, &second, register(s, 2)?)?;
    Ok(Flow::Next)
}

/// Where a narrow value goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Whole,
    /// The low or high 16 bits; the others stay.
    Low,
    High,
}

/// Loads 1 or 2 bytes per lane.
#[inline]
fn narrow(
    w: &mut Wave,
    env: &mut Env<'_>,
    s: &Step,
    (bytes, place): (u32, Place),
    extend: impl Fn(u32) -> u32,
) -> Result<Flow, Fault> {
    let (n, at, exec) = (dst(s)?, offsets(w, s, 1, s.mods.offset.cast_unsigned())?, w.exec());
    let mut values: Lanes = [0; 32];
    for lane in (0..32).filter(|l| exec >> l & 1 == 1) {
        values[lane] = extend(env.lds.load(w.number, at[lane].into(), bytes)?);
    }
    match place {
        Place::Whole => w.set_lanes(n, &values, exec),
        Place::Low | Place::High => w.set_half(n, place == Place::High, &values, exec),
    }
    env.counts.add(Traffic::LdsLoad, bytes, exec.count_ones());
    Ok(Flow::Next)
}

/// Stores 1 or 2 bytes per lane, from bit `shift` on.
fn store_narrow(w: &mut Wave, env: &mut Env<'_>, s: &Step, bytes: u32, shift: u32) -> Result<Flow, Fault> {
    let (n, at, exec) = (register(s, 1)?, offsets(w, s, 0, s.mods.offset.cast_unsigned())?, w.exec());
    let mask = (1 << (8 * bytes)) - 1;
    for lane in (0..32).filter(|l| exec >> l & 1 == 1) {
        let value = w.vgpr[usize::from(n)][lane] >> shift & mask;
        env.lds.store(w.number, at[lane].into(), bytes, value)?;
    }
    env.counts.add(Traffic::LdsStore, bytes, exec.count_ones());
    Ok(Flow::Next)
}

const fn sign8(x: u32) -> u32 {
    (x as i8 as i32).cast_unsigned()
}

const fn sign16(x: u32) -> u32 {
    (x as i16 as i32).cast_unsigned()
}

const fn zero(x: u32) -> u32 {
    x
}

const fn lds(name: &'static str, dsts: u8, accepts: u16, run: Run) -> Op {
    Op { name, class: Class::Lds, dsts, accepts, literal: Literal::B32, run }
}

const fn loads(name: &'static str, run: Run) -> Op {
    lds(name, 1, accepts::OFFSET, run)
}

const fn stores(name: &'static str, run: Run) -> Op {
    lds(name, 0, accepts::OFFSET, run)
}

const LOADS: &[Op] = &[
    loads("ds_load_b32", load::<1>),
    loads("ds_load_b64", load::<2>),
    loads("ds_load_b96", load::<3>),
    loads("ds_load_b128", load::<4>),
    loads("ds_load_u8", |w, e, s| narrow(w, e, s, (1, Place::Whole), zero)),
    loads("ds_load_i8", |w, e, s| narrow(w, e, s, (1, Place::Whole), sign8)),
    loads("ds_load_u16", |w, e, s| narrow(w, e, s, (2, Place::Whole), zero)),
    loads("ds_load_i16", |w, e, s| narrow(w, e, s, (2, Place::Whole), sign16)),
    loads("ds_load_u8_d16", |w, e, s| narrow(w, e, s, (1, Place::Low), zero)),
    loads("ds_load_i8_d16", |w, e, s| narrow(w, e, s, (1, Place::Low), sign8)),
    loads("ds_load_u16_d16", |w, e, s| narrow(w, e, s, (2, Place::Low), zero)),
    loads("ds_load_u8_d16_hi", |w, e, s| narrow(w, e, s, (1, Place::High), zero)),
    loads("ds_load_i8_d16_hi", |w, e, s| narrow(w, e, s, (1, Place::High), sign8)),
    loads("ds_load_u16_d16_hi", |w, e, s| narrow(w, e, s, (2, Place::High), zero)),
    lds("ds_load_2addr_b32", 1, accepts::OFFSET01, |w, e, s| load2::<1>(w, e, s, 4)),
    lds("ds_load_2addr_b64", 1, accepts::OFFSET01, |w, e, s| load2::<2>(w, e, s, 8)),
    lds("ds_load_2addr_stride64_b32", 1, accepts::OFFSET01, |w, e, s| load2::<1>(w, e, s, 256)),
    lds("ds_load_2addr_stride64_b64", 1, accepts::OFFSET01, |w, e, s| load2::<2>(w, e, s, 512)),
];

const STORES: &[Op] = &[
    stores("ds_store_b32", store::<1>),
    stores("ds_store_b64", store::<2>),
    stores("ds_store_b96", store::<3>),
    stores("ds_store_b128", store::<4>),
    stores("ds_store_b8", |w, e, s| store_narrow(w, e, s, 1, 0)),
    stores("ds_store_b16", |w, e, s| store_narrow(w, e, s, 2, 0)),
    stores("ds_store_b8_d16_hi", |w, e, s| store_narrow(w, e, s, 1, 16)),
    stores("ds_store_b16_d16_hi", |w, e, s| store_narrow(w, e, s, 2, 16)),
    lds("ds_store_2addr_b32", 0, accepts::OFFSET01, |w, e, s| store2::<1>(w, e, s, 4)),
    lds("ds_store_2addr_b64", 0, accepts::OFFSET01, |w, e, s| store2::<2>(w, e, s, 8)),
    lds("ds_store_2addr_stride64_b32", 0, accepts::OFFSET01, |w, e, s| store2::<1>(w, e, s, 256)),
    lds("ds_store_2addr_stride64_b64", 0, accepts::OFFSET01, |w, e, s| store2::<2>(w, e, s, 512)),
];

pub static OPS: &[&[Op]] = &[LOADS, STORES];
