//! Branches, barriers, waits and hints.

use crate::counts::Class;
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::op::{Flow, Literal, Op, accepts};
use crate::emu::step::Step;
use crate::emu::wave::Wave;

const fn control(name: &'static str, class: Class, run: crate::emu::op::Run) -> Op {
    Op { name, class, dsts: 0, accepts: accepts::OFFSET, literal: Literal::B32, run }
}

/// Does nothing in a model with immediate results and no caches.
fn nothing(_: &mut Wave, _: &mut Env<'_>, _: &Step) -> Result<Flow, Fault> {
    Ok(Flow::Next)
}

/// Jumps by the signed number of words after this instruction, if `taken`.
fn branch(w: &Wave, env: &Env<'_>, s: &Step, taken: bool) -> Result<Flow, Fault> {
    if !taken {
        return Ok(Flow::Next);
    }
    let words = i64::from(w.scalar(s.args[0]) as u16 as i16);
    env.code.at(i64::from(s.pc) + i64::from(s.size) + 4 * words).map(Flow::Jump)
}

fn s_barrier_signal(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    workgroup_barrier(w, s)?;
    env.barrier.signal(w.number)?;
    Ok(Flow::Next)
}

fn s_barrier_wait(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    workgroup_barrier(w, s)?;
    if !env.barrier.wait(w.number)? {
        return Ok(Flow::Blocked);
    }
    env.lds.pass_barrier(w.number);
    Ok(Flow::Next)
}

/// Only barrier -1, the workgroup's, is modelled.
fn workgroup_barrier(w: &Wave, s: &Step) -> Result<(), Fault> {
    match w.scalar(s.args[0]) as u16 as i16 {
        -1 => Ok(()),
        other => Err(Fault::Operand(format!("barrier {other}"))),
    }
}

/// Addresses of instructions: the code object lies in the launch's space.
fn here(env: &Env<'_>, s: &Step) -> u64 {
    env.code_address + u64::from(s.pc) + u64::from(s.size)
}

fn jump(env: &Env<'_>, address: u64) -> Result<Flow, Fault> {
    env.code.at(address.wrapping_sub(env.code_address).cast_signed()).map(Flow::Jump)
}

fn s_getpc_b64(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    crate::emu::lanes::set_scalar64(w, s, here(env, s))?;
    Ok(Flow::Next)
}

fn s_setpc_b64(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    jump(env, w.scalar64(s.args[0]))
}

fn s_swappc_b64(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let to = w.scalar64(s.args[1]);
    crate::emu::lanes::set_scalar64(w, s, here(env, s))?;
    jump(env, to)
}

const CONTROL: &[Op] = &[
    control("s_branch", Class::Branch, |w, e, s| branch(w, e, s, true)),
    control("s_cbranch_scc0", Class::Branch, |w, e, s| branch(w, e, s, !w.scc)),
    control("s_cbranch_scc1", Class::Branch, |w, e, s| branch(w, e, s, w.scc)),
    control("s_cbranch_vccz", Class::Branch, |w, e, s| branch(w, e, s, w.vcc() == 0)),
    control("s_cbranch_vccnz", Class::Branch, |w, e, s| branch(w, e, s, w.vcc() != 0)),
    control("s_cbranch_execz", Class::Branch, |w, e, s| branch(w, e, s, w.exec() == 0)),
    control("s_cbranch_execnz", Class::Branch, |w, e, s| branch(w, e, s, w.exec() != 0)),
    Op { dsts: 1, ..control("s_getpc_b64", Class::Branch, s_getpc_b64) },
    control("s_setpc_b64", Class::Branch, s_setpc_b64),
    Op { dsts: 1, ..control("s_swappc_b64", Class::Branch, s_swappc_b64) },
    control("s_endpgm", Class::Branch, |_, _, _| Ok(Flow::End)),
    control("s_trap", Class::Branch, |_, _, _| Err(Fault::Trap)),
    control("s_code_end", Class::Branch, |_, _, _| Err(Fault::BranchTarget(-1))),
    control("s_barrier_signal", Class::Barrier, s_barrier_signal),
    control("s_barrier_wait", Class::Barrier, s_barrier_wait),
    control("s_nop", Class::Wait, nothing),
    control("s_sleep", Class::Wait, nothing),
    control("s_clause", Class::Wait, nothing),
    control("s_delay_alu", Class::Wait, nothing),
    control("s_wait_alu", Class::Wait, nothing),
    control("s_wait_idle", Class::Wait, nothing),
    control("s_wait_loadcnt", Class::Wait, nothing),
    control("s_wait_storecnt", Class::Wait, nothing),
    control("s_wait_samplecnt", Class::Wait, nothing),
    control("s_wait_bvhcnt", Class::Wait, nothing),
    control("s_wait_expcnt", Class::Wait, nothing),
    control("s_wait_dscnt", Class::Wait, nothing),
    control("s_wait_kmcnt", Class::Wait, nothing),
    control("s_wait_loadcnt_dscnt", Class::Wait, nothing),
    control("s_wait_storecnt_dscnt", Class::Wait, nothing),
    control("s_setprio", Class::Wait, nothing),
    control("s_prefetch_inst", Class::Wait, nothing),
    control("s_prefetch_inst_pc_rel", Class::Wait, nothing),
    control("s_prefetch_data", Class::Wait, nothing),
    control("s_prefetch_data_pc_rel", Class::Wait, nothing),
    control("s_icache_inv", Class::Wait, nothing),
    control("s_dcache_inv", Class::Wait, nothing),
    control("global_inv", Class::Wait, nothing),
    control("global_wb", Class::Wait, nothing),
    control("global_wbinv", Class::Wait, nothing),
    // The only message of a compute kernel gives registers back early.
    control("s_sendmsg", Class::Wait, |_, _, s| match s.mods.free.contains("MSG_DEALLOC_VGPRS") {
        true => Ok(Flow::Next),
        false => Err(Fault::Operand(s.mods.free.clone())),
    }),
];

pub static OPS: &[&[Op]] = &[CONTROL];
