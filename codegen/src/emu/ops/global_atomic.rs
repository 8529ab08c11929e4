//! Atomics on global and flat memory.
//!
//! An instruction that gives the old value (`th:TH_ATOMIC_RETURN`) prints its destination first; others print none. So
//! [`Op::dsts`] is 0 here, and 1 more where [`crate::isa::Mods::returns`] is set.

use super::atomic::*;
use super::reach::{Atomic, Direction, Flat, Global};
use crate::counts::Class;
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::lanes::dst;
use crate::emu::op::{Flow, Literal, Op, Run, accepts};
use crate::emu::step::{Operand, Step};
use crate::emu::wave::Wave;

/// Changes 4 or 8 bytes per lane, in the order of lanes; `change` takes the lane and the old value.
fn change<R: Atomic>(
    w: &mut Wave,
    env: &mut Env<'_>,
    s: &Step,
    bytes: u32,
    change: impl Fn(usize, u64) -> u64,
) -> Result<Flow, Fault> {
    let first = usize::from(s.mods.returns);
    let (at, exec, wide) = (R::addresses(w, s, first, first + 2, bytes)?, w.exec(), bytes == 8);
    let mut old = [0u64; 32];
    for lane in (0..32).filter(|l| exec >> l & 1 == 1) {
        old[lane] = if wide {
            R::atomic64(w, env, at[lane], |old| change(lane, old))?
        } else {
            R::atomic(w, env, at[lane], |old| change(lane, old.into()) as u32)?.into()
        };
    }
    if s.mods.returns && wide {
        w.set_lanes64(dst(s)?, &old, exec);
    } else if s.mods.returns {
        w.set_lanes(dst(s)?, &old.map(|x| x as u32), exec);
    }
    R::count(env, &at, exec, bytes, Direction::Atomic);
    Ok(Flow::Next)
}

/// First register of the data.
fn data(s: &Step) -> Result<u8, Fault> {
    match s.args[usize::from(s.mods.returns) + 1] {
        Operand::V(n) => Ok(n),
        other => Err(Fault::Operand(format!("{other:?} as data"))),
    }
}

fn one32<R: Atomic>(w: &mut Wave, env: &mut Env<'_>, s: &Step, f: fn(u32, u32) -> u32) -> Result<Flow, Fault> {
    let x = w.lanes(Operand::V(data(s)?));
    change::<R>(w, env, s, 4, |lane, old| f(old as u32, x[lane]).into())
}

fn one64<R: Atomic>(w: &mut Wave, env: &mut Env<'_>, s: &Step, f: fn(u64, u64) -> u64) -> Result<Flow, Fault> {
    let x = w.lanes64(Operand::V(data(s)?));
    change::<R>(w, env, s, 8, |lane, old| f(old, x[lane]))
}

/// The new value lies before the one to compare with.
fn cmpswap_b32<R: Atomic>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let both = w.lanes64(Operand::V(data(s)?));
    change::<R>(w, env, s, 4, |lane, old| if old == both[lane] >> 32 { both[lane] & 0xffff_ffff } else { old })
}

fn cmpswap_b64<R: Atomic>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let n = data(s)?;
    let (new, expected) = (w.lanes64(Operand::V(n)), w.lanes64(Operand::V(n.wrapping_add(2))));
    change::<R>(w, env, s, 8, |lane, old| if old == expected[lane] { new[lane] } else { old })
}

const fn atomic(name: &'static str, run: Run) -> Op {
    Op { name, class: Class::GlobalAtomic, dsts: 0, accepts: accepts::OFFSET, literal: Literal::B32, run }
}

macro_rules! global32 {
    ($(($name:ident, $type:ident, $f:ident))+) => {
        &[$(
            atomic(concat!("global_atomic_", stringify!($name), "_", stringify!($type)), |w, e, s| {
                one32::<Global>(w, e, s, $f)
            }),
            atomic(concat!("flat_atomic_", stringify!($name), "_", stringify!($type)), |w, e, s| {
                one32::<Flat>(w, e, s, $f)
            }),
        )+]
    };
}

macro_rules! global64 {
    ($(($name:ident, $type:ident, $f:ident))+) => {
        &[$(
            atomic(concat!("global_atomic_", stringify!($name), "_", stringify!($type)), |w, e, s| {
                one64::<Global>(w, e, s, $f)
            }),
            atomic(concat!("flat_atomic_", stringify!($name), "_", stringify!($type)), |w, e, s| {
                one64::<Flat>(w, e, s, $f)
            }),
        )+]
    };
}

const ONE32: &[Op] = atomics32!(global32);
const ONE64: &[Op] = atomics64!(global64);
const SWAP32: &[Op] = global32![(swap, b32, swap_b32)];
const SWAP64: &[Op] = global64![(swap, b64, swap_b64)];
const COMPARE: &[Op] = &[
    atomic("global_atomic_cmpswap_b32", cmpswap_b32::<Global>),
    atomic("global_atomic_cmpswap_b64", cmpswap_b64::<Global>),
    atomic("flat_atomic_cmpswap_b32", cmpswap_b32::<Flat>),
    atomic("flat_atomic_cmpswap_b64", cmpswap_b64::<Flat>),
];

pub static OPS: &[&[Op]] = &[ONE32, ONE64, SWAP32, SWAP64, COMPARE];
