//! Loads and stores of global, flat and scratch memory, and of buffers with descriptors.

use super::buffer::Buffer;
use super::reach::{Direction, Flat, Global, Reach, Scratch};
use crate::counts::Class;
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::lanes::dst;
use crate::emu::op::{Flow, Literal, Op, Run};
use crate::emu::step::{Operand, Step};
use crate::emu::wave::{Lanes, Wave};

/// Where a narrow value goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Whole,
    /// The low or high 16 bits; the others stay.
    Low,
    High,
}

/// Loads N words per lane.
fn load<R: Reach, const N: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let (n, at, exec) = (dst(s)?, R::addresses(w, s, 1, 2, 4 * N as u32)?, w.exec());
    let mut values = [[0; 32]; N];
    R::load_lanes(w, env, &at, &mut values)?;
    for (i, value) in values.iter().enumerate() {
        w.set_lanes(n.wrapping_add(i as u8), value, exec);
    }
    R::count(env, &at, exec, 4 * N as u32, Direction::Load);
    Ok(Flow::Next)
}

/// Loads 1 or 2 bytes per lane.
#[inline]
fn narrow<R: Reach>(
    w: &mut Wave,
    env: &mut Env<'_>,
    s: &Step,
    (bytes, place): (u32, Place),
    extend: impl Fn(u32) -> u32,
) -> Result<Flow, Fault> {
    let (n, at, exec) = (dst(s)?, R::addresses(w, s, 1, 2, bytes)?, w.exec());
    let mut values: Lanes = [0; 32];
    for (lane, (value, at)) in values.iter_mut().zip(&at).enumerate() {
        if exec >> lane & 1 == 1 {
            *value = extend(R::load(w, env, lane, *at, bytes)?);
        }
    }
    match place {
        Place::Whole => w.set_lanes(n, &values, exec),
        Place::Low | Place::High => w.set_half(n, place == Place::High, &values, exec),
    }
    R::count(env, &at, exec, bytes, Direction::Load);
    Ok(Flow::Next)
}

/// The vector register that operand `k` names.
fn data(s: &Step, k: usize) -> Result<u8, Fault> {
    match s.args[k] {
        Operand::V(n) => Ok(n),
        other => Err(Fault::Operand(format!("{other:?} as data"))),
    }
}

/// Stores N words per lane.
fn store<R: Reach, const N: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let [address, held] = R::STORE;
    let (n, at, exec) = (data(s, held)?, R::addresses(w, s, address, 2, 4 * N as u32)?, w.exec());
    for (lane, at) in at.iter().enumerate() {
        if exec >> lane & 1 == 1 {
            let words: [u32; N] = std::array::from_fn(|i| w.vgpr[usize::from(n.wrapping_add(i as u8))][lane]);
            R::store_words(w, env, lane, *at, &words)?;
        }
    }
    R::count(env, &at, exec, 4 * N as u32, Direction::Store);
    Ok(Flow::Next)
}

/// Stores 1 or 2 bytes per lane, from bit `shift` on.
fn store_narrow<R: Reach>(w: &mut Wave, env: &mut Env<'_>, s: &Step, bytes: u32, shift: u32) -> Result<Flow, Fault> {
    let [address, held] = R::STORE;
    let (n, at, exec) = (data(s, held)?, R::addresses(w, s, address, 2, bytes)?, w.exec());
    let mask = (1 << (8 * bytes)) - 1;
    for (lane, at) in at.iter().enumerate() {
        if exec >> lane & 1 == 1 {
            let value = w.vgpr[usize::from(n)][lane] >> shift & mask;
            R::store(w, env, lane, *at, bytes, value)?;
        }
    }
    R::count(env, &at, exec, bytes, Direction::Store);
    Ok(Flow::Next)
}

const fn loads<R: Reach>(name: &'static str, class: Class, run: Run) -> Op {
    Op { name, class, dsts: 1, accepts: R::ACCEPTS, literal: Literal::B32, run }
}

const fn stores<R: Reach>(name: &'static str, class: Class, run: Run) -> Op {
    Op { name, class, dsts: 0, accepts: R::ACCEPTS, literal: Literal::B32, run }
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

/// Loads and stores of one kind of memory.
macro_rules! memory {
    ($kind:literal, $reach:ident, $load:ident, $store:ident) => {
        &[
            loads::<$reach>(concat!($kind, "_load_b32"), Class::$load, load::<$reach, 1>),
            loads::<$reach>(concat!($kind, "_load_b64"), Class::$load, load::<$reach, 2>),
            loads::<$reach>(concat!($kind, "_load_b96"), Class::$load, load::<$reach, 3>),
            loads::<$reach>(concat!($kind, "_load_b128"), Class::$load, load::<$reach, 4>),
            memory!(@ $kind, $reach, $load, "_load_u8", 1, Whole, zero),
            memory!(@ $kind, $reach, $load, "_load_i8", 1, Whole, sign8),
            memory!(@ $kind, $reach, $load, "_load_u16", 2, Whole, zero),
            memory!(@ $kind, $reach, $load, "_load_i16", 2, Whole, sign16),
            memory!(@ $kind, $reach, $load, "_load_d16_u8", 1, Low, zero),
            memory!(@ $kind, $reach, $load, "_load_d16_i8", 1, Low, sign8),
            memory!(@ $kind, $reach, $load, "_load_d16_b16", 2, Low, zero),
            memory!(@ $kind, $reach, $load, "_load_d16_hi_u8", 1, High, zero),
            memory!(@ $kind, $reach, $load, "_load_d16_hi_i8", 1, High, sign8),
            memory!(@ $kind, $reach, $load, "_load_d16_hi_b16", 2, High, zero),
            stores::<$reach>(concat!($kind, "_store_b32"), Class::$store, store::<$reach, 1>),
            stores::<$reach>(concat!($kind, "_store_b64"), Class::$store, store::<$reach, 2>),
            stores::<$reach>(concat!($kind, "_store_b96"), Class::$store, store::<$reach, 3>),
            stores::<$reach>(concat!($kind, "_store_b128"), Class::$store, store::<$reach, 4>),
            stores::<$reach>(concat!($kind, "_store_b8"), Class::$store, |w, e, s| store_narrow::<$reach>(w, e, s, 1, 0)),
            stores::<$reach>(concat!($kind, "_store_b16"), Class::$store, |w, e, s| store_narrow::<$reach>(w, e, s, 2, 0)),
            stores::<$reach>(concat!($kind, "_store_d16_hi_b8"), Class::$store, |w, e, s| {
                store_narrow::<$reach>(w, e, s, 1, 16)
            }),
            stores::<$reach>(concat!($kind, "_store_d16_hi_b16"), Class::$store, |w, e, s| {
                store_narrow::<$reach>(w, e, s, 2, 16)
            }),
        ]
    };
    (@ $kind:literal, $reach:ident, $load:ident, $name:literal, $bytes:literal, $place:ident, $extend:ident) => {
        loads::<$reach>(concat!($kind, $name), Class::$load, |w, e, s| {
            narrow::<$reach>(w, e, s, ($bytes, Place::$place), $extend)
        })
    };
}

const GLOBAL: &[Op] = memory!("global", Global, GlobalLoad, GlobalStore);
const FLAT: &[Op] = memory!("flat", Flat, GlobalLoad, GlobalStore);
const SCRATCH: &[Op] = memory!("scratch", Scratch, Scratch, Scratch);
const BUFFER: &[Op] = memory!("buffer", Buffer, GlobalLoad, GlobalStore);

pub static OPS: &[&[Op]] = &[GLOBAL, FLAT, SCRATCH, BUFFER];
