//! Atomics on LDS. Forms with `_rtn` also give the old value.

use super::atomic::*;
use super::lds::{offsets, pair, register};
use crate::counts::{Class, Traffic};
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::lanes::dst;
use crate::emu::op::{Flow, Literal, Op, Run, accepts};
use crate::emu::step::{Operand, Step};
use crate::emu::wave::{Lanes, Lanes64, Wave};

/// Changes a word per lane, in the order of lanes; gives the old values.
fn change32(w: &Wave, env: &mut Env<'_>, at: &Lanes, change: impl Fn(usize, u32) -> u32) -> Result<Lanes, Fault> {
    let (exec, mut old) = (w.exec(), [0; 32]);
    for lane in (0..32).filter(|l| exec >> l & 1 == 1) {
        old[lane] = env.lds.atomic(at[lane].into(), |old| change(lane, old))?;
    }
    env.counts.add(Traffic::LdsAtomic, 4, exec.count_ones());
    Ok(old)
}

/// As [`change32`], of 8 bytes.
fn change64(w: &Wave, env: &mut Env<'_>, at: &Lanes, change: impl Fn(usize, u64) -> u64) -> Result<Lanes64, Fault> {
    let (exec, mut old) = (w.exec(), [0; 32]);
    for lane in (0..32).filter(|l| exec >> l & 1 == 1) {
        old[lane] = env.lds.atomic64(at[lane].into(), |old| change(lane, old))?;
    }
    env.counts.add(Traffic::LdsAtomic, 8, exec.count_ones());
    Ok(old)
}

/// Index of the address operand.
fn first(s: &Step) -> usize {
    usize::from(s.op.dsts)
}

/// Addresses of an atomic with one address.
fn at(w: &Wave, s: &Step) -> Result<Lanes, Fault> {
    offsets(w, s, first(s), s.mods.offset.cast_unsigned())
}

fn data32(w: &Wave, s: &Step, k: usize) -> Result<Lanes, Fault> {
    register(s, first(s) + k).map(|n| w.lanes(Operand::V(n)))
}

fn data64(w: &Wave, s: &Step, k: usize) -> Result<Lanes64, Fault> {
    register(s, first(s) + k).map(|n| w.lanes64(Operand::V(n)))
}

fn return32(w: &mut Wave, s: &Step, old: &Lanes) -> Result<Flow, Fault> {
    if s.op.dsts == 1 {
        w.set_lanes(dst(s)?, old, w.exec());
    }
    Ok(Flow::Next)
}

fn return64(w: &mut Wave, s: &Step, old: &Lanes64) -> Result<Flow, Fault> {
    if s.op.dsts == 1 {
        w.set_lanes64(dst(s)?, old, w.exec());
    }
    Ok(Flow::Next)
}

fn one32(w: &mut Wave, env: &mut Env<'_>, s: &Step, f: fn(u32, u32) -> u32) -> Result<Flow, Fault> {
    let x = data32(w, s, 1)?;
    let old = change32(w, env, &at(w, s)?, |lane, old| f(old, x[lane]))?;
    return32(w, s, &old)
}

fn one64(w: &mut Wave, env: &mut Env<'_>, s: &Step, f: fn(u64, u64) -> u64) -> Result<Flow, Fault> {
    let x = data64(w, s, 1)?;
    let old = change64(w, env, &at(w, s)?, |lane, old| f(old, x[lane]))?;
    return64(w, s, &old)
}

/// `(old, first operand, second operand)`.
fn two32(w: &mut Wave, env: &mut Env<'_>, s: &Step, f: fn(u32, u32, u32) -> u32) -> Result<Flow, Fault> {
    let (x, y) = (data32(w, s, 1)?, data32(w, s, 2)?);
    let old = change32(w, env, &at(w, s)?, |lane, old| f(old, x[lane], y[lane]))?;
    return32(w, s, &old)
}

fn two64(w: &mut Wave, env: &mut Env<'_>, s: &Step, f: fn(u64, u64, u64) -> u64) -> Result<Flow, Fault> {
    let (x, y) = (data64(w, s, 1)?, data64(w, s, 2)?);
    let old = change64(w, env, &at(w, s)?, |lane, old| f(old, x[lane], y[lane]))?;
    return64(w, s, &old)
}

/// Exchanges at two addresses, in units of `unit` bytes. In a lane both old values are read before either is
/// written, so addresses that meet are refused.
fn exchange2(w: &mut Wave, env: &mut Env<'_>, s: &Step, unit: u32, wide: bool) -> Result<Flow, Fault> {
    let [a, b] = pair(s, unit);
    if a == b {
        return Err(Fault::Operand("of two equal addresses".into()));
    }
    let (a, b, n) = (offsets(w, s, 1, a)?, offsets(w, s, 1, b)?, dst(s)?);
    let exec = w.exec();
    if wide {
        let (x, y) = (data64(w, s, 1)?, data64(w, s, 2)?);
        let (old_a, old_b) = (change64(w, env, &a, |l, _| x[l])?, change64(w, env, &b, |l, _| y[l])?);
        w.set_lanes64(n, &old_a, exec);
        w.set_lanes64(n.wrapping_add(2), &old_b, exec);
    } else {
        let (x, y) = (data32(w, s, 1)?, data32(w, s, 2)?);
        let (old_a, old_b) = (change32(w, env, &a, |l, _| x[l])?, change32(w, env, &b, |l, _| y[l])?);
        w.set_lanes(n, &old_a, exec);
        w.set_lanes(n.wrapping_add(1), &old_b, exec);
    }
    Ok(Flow::Next)
}

const fn atomic(name: &'static str, dsts: u8, run: Run) -> Op {
    Op { name, class: Class::Lds, dsts, accepts: accepts::OFFSET, literal: Literal::B32, run }
}

const fn exchange(name: &'static str, run: Run) -> Op {
    Op { accepts: accepts::OFFSET01, ..atomic(name, 1, run) }
}

/// Both forms of atomics.
macro_rules! forms {
    ($run:ident; $(($name:ident, $type:ident, $f:expr))+) => {
        &[$(
            atomic(concat!("ds_", stringify!($name), "_", stringify!($type)), 0, |w, e, s| $run(w, e, s, $f)),
            atomic(concat!("ds_", stringify!($name), "_rtn_", stringify!($type)), 1, |w, e, s| $run(w, e, s, $f)),
        )+]
    };
}

macro_rules! lds32 {
    ($($entry:tt)+) => { forms![one32; $($entry)+] };
}

macro_rules! lds64 {
    ($($entry:tt)+) => { forms![one64; $($entry)+] };
}

const ONE32: &[Op] = atomics32!(lds32);
const ONE64: &[Op] = atomics64!(lds64);
const MORE32: &[Op] = lds32![(rsub, u32, rsub_u32)];
const MORE64: &[Op] = lds64![(rsub, u64, rsub_u64)(min_num, f64, min_num_f64)(max_num, f64, max_num_f64)];
const TWO32: &[Op] = forms![two32;
    (mskor, b32, |old, mask, x| old & !mask | x)
    (cmpstore, b32, |old, new, expected| if old == expected { new } else { old })
];
const TWO64: &[Op] = forms![two64;
    (mskor, b64, |old, mask, x| old & !mask | x)
    (cmpstore, b64, |old, new, expected| if old == expected { new } else { old })
];
const EXCHANGE: &[Op] = &[
    atomic("ds_storexchg_rtn_b32", 1, |w, e, s| one32(w, e, s, swap_b32)),
    atomic("ds_storexchg_rtn_b64", 1, |w, e, s| one64(w, e, s, swap_b64)),
    exchange("ds_storexchg_2addr_rtn_b32", |w, e, s| exchange2(w, e, s, 4, false)),
    exchange("ds_storexchg_2addr_rtn_b64", |w, e, s| exchange2(w, e, s, 8, true)),
    exchange("ds_storexchg_2addr_stride64_rtn_b32", |w, e, s| exchange2(w, e, s, 256, false)),
    exchange("ds_storexchg_2addr_stride64_rtn_b64", |w, e, s| exchange2(w, e, s, 512, true)),
];

pub static OPS: &[&[Op]] = &[ONE32, ONE64, MORE32, MORE64, TWO32, TWO64, EXCHANGE];
