//! Scalar loads.

use crate::counts::{Class, Traffic};
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::op::{Flow, Literal, Op, Run, accepts};
use crate::emu::step::{Operand, Step};
use crate::emu::wave::Wave;

/// Base pair, plus a constant or a register and the `offset:` after it.
fn address(w: &Wave, s: &Step) -> Result<u64, Fault> {
    let offset = match s.args[2] {
        // 24 bits with a sign.
        Operand::Imm(bits) => i64::from(bits as u32 as i32),
        Operand::S(n) => i64::from(w.s(n)),
        other => return Err(Fault::Operand(format!("{other:?} as scalar offset"))),
    };
    Ok(w.scalar64(s.args[1]).wrapping_add_signed(offset).wrapping_add_signed(s.mods.offset.into()))
}

fn dst(s: &Step) -> Result<u8, Fault> {
    match s.args[0] {
        Operand::S(n) => Ok(n),
        other => Err(Fault::Operand(format!("{other:?} as destination"))),
    }
}

/// Loads N words.
fn words<const N: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let (n, mut out) = (dst(s)?, [0; N]);
    env.space.load_words(address(w, s)?, &mut out)?;
    for (i, value) in out.iter().enumerate() {
        w.set_s(n.saturating_add(i as u8), *value);
    }
    env.counts.add(Traffic::ScalarLoad, 4 * N as u32, 1);
    Ok(Flow::Next)
}

/// Loads 1 or 2 bytes.
fn narrow(w: &mut Wave, env: &mut Env<'_>, s: &Step, bytes: u32, extend: fn(u32) -> u32) -> Result<Flow, Fault> {
    let value = env.space.load(address(w, s)?, bytes)?;
    w.set_s(dst(s)?, extend(value));
    env.counts.add(Traffic::ScalarLoad, bytes, 1);
    Ok(Flow::Next)
}

const fn load(name: &'static str, run: Run) -> Op {
    Op { name, class: Class::ScalarLoad, dsts: 1, accepts: accepts::OFFSET, literal: Literal::B32, run }
}

const LOADS: &[Op] = &[
    load("s_load_b32", words::<1>),
    load("s_load_b64", words::<2>),
    load("s_load_b96", words::<3>),
    load("s_load_b128", words::<4>),
    load("s_load_b256", words::<8>),
    load("s_load_b512", words::<16>),
    load("s_load_u8", |w, e, s| narrow(w, e, s, 1, |x| x)),
    load("s_load_i8", |w, e, s| narrow(w, e, s, 1, |x| x as i8 as u32)),
    load("s_load_u16", |w, e, s| narrow(w, e, s, 2, |x| x)),
    load("s_load_i16", |w, e, s| narrow(w, e, s, 2, |x| x as i16 as u32)),
];

pub static OPS: &[&[Op]] = &[LOADS];
