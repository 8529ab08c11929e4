//! Gates `finish` and `exchanged-scalar`: the order in which workgroups hand data to the last one to arrive.
//!
//! A workgroup stores to exchanged buffers, waits until the stores have ended (they are in the L2 then, which the whole
//! device shares: LLVM has no `global_wb` there, and one does no harm), arrives by an atomic that returns, waits for it,
//! invalidates its caches, and loads at device scope. Scalar loads go through a cache that the invalidate leaves alone.
//! In a workgroup of several waves a barrier stands between the stores of all waves and the one atomic, and another
//! between the atomic and the invalidate of all waves.

use crate::isa::Scope;
use crate::kp::{self, Param, Program, Stmt};

use super::flow::{self, Flow};
use super::isa::{Access, Code, Counter, Edge, Effect, Ins, Memory, Space};
use super::pointers::{self, Source};
use super::{Gate, failed};

/// What a program exchanges between workgroups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// Places where a workgroup arrives.
    pub finishes: usize,
    /// Parameters that are stored before and loaded after.
    pub exchanged_params: Vec<u32>,
    /// Their bytes in the kernel's arguments, in the same order.
    pub kernarg_offsets: Vec<u32>,
}

/// What a program exchanges.
#[must_use]
pub fn exchange_of(p: &Program) -> Exchange {
    let exchanged = |i: &usize| p.params.get(*i).is_some_and(is_exchanged);
    let params: Vec<usize> = (0..p.params.len()).filter(exchanged).collect();
    let arguments = super::arguments(p);
    Exchange {
        finishes: finishes(&p.body),
        kernarg_offsets: params.iter().filter_map(|i| arguments.get(*i)).map(|a| a.offset).collect(),
        exchanged_params: params.into_iter().map(|i| i as u32).collect(),
    }
}

fn finishes(body: &[Stmt]) -> usize {
    let of = |stmt: &Stmt| match stmt {
        Stmt::If { then, otherwise, .. } => finishes(then) + finishes(otherwise),
        Stmt::For(f) => finishes(&f.body),
        other => usize::from(is_finish(other)),
    };
    body.iter().map(of).sum()
}

fn is_finish(stmt: &Stmt) -> bool {
    matches!(stmt, Stmt::GridFinish { .. })
}

fn is_exchanged(param: &Param) -> bool {
    matches!(param, Param::Buffer { access: kp::Access::Exchange, .. })
}

/// Stores of exchanged data on the way to the arrival, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stored {
    InFlight,
    /// Waited for.
    Ended,
    Signalled,
    /// Those of all waves.
    Met,
}

/// The arrival, since the last store of exchanged data; weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Arrival {
    None,
    Issued,
    /// Waited for.
    Ended,
    Signalled,
    /// All waves come after it.
    Met,
    Acquired,
    /// No lane was on to arrive: whoever arrives is on the other way to the same place.
    Excused,
}

#[derive(Clone)]
struct State {
    stored: Stored,
    arrival: Arrival,
}

struct Finish {
    /// By instruction: its address comes from an exchanged buffer.
    exchanged: Vec<bool>,
    several: bool,
}

const CURE: &str = "lower a grid finish as release, atomic add, acquire and atomic loads, all at device scope";

/// Checks the finishes of a kernel of `waves` waves a workgroup.
///
/// # Errors
/// The first access that another workgroup's data may come too late for.
pub fn check(code: &Code, exchange: &Exchange, waves: u32) -> Gate<()> {
    if exchange.finishes == 0 && exchange.exchanged_params.is_empty() {
        return Ok(());
    }
    let sources: Vec<Source> = exchange.kernarg_offsets.iter().map(|&offset| Source { offset, mark: 1 }).collect();
    let marked = pointers::addresses(code, &sources)?;
    let exchanged: Vec<bool> =
        code.all.iter().zip(marked).map(|(ins, marks)| marks != 0 && reaches_buffers(ins)).collect();
    let scalar = |(ins, exchanged): (&Ins, &bool)| {
        *exchanged && matches!(ins.effect, Effect::Memory(Memory { space: Space::Scalar, .. }))
    };
    if let Some(i) = code.all.iter().zip(&exchanged).position(scalar) {
        let found = format!("{} loads exchanged data through the scalar cache", code.named(i));
        return failed("exchanged-scalar", found, "load it by an atomic load of device scope");
    }
    if exchange.finishes > 0 && !code.all.iter().any(arrives) {
        let found = format!("no atomic of device scope that returns, for {} grid finishes", exchange.finishes);
        return failed("finish", found, CURE);
    }
    flow::run(code, &mut Finish { exchanged, several: waves > 1 }).map(|_| ())
}

/// Workgroup memory is nobody else's, whatever its data was computed from: a lane that was off may still hold a pointer.
fn reaches_buffers(ins: &Ins) -> bool {
    matches!(ins.effect, Effect::Memory(Memory { space: Space::Global | Space::Flat | Space::Scalar, .. }))
}

fn device(ins: &Ins) -> bool {
    ins.inst.mods.scope >= Scope::Dev
}

fn arrives(ins: &Ins) -> bool {
    let returns = matches!(
        ins.effect,
        Effect::Memory(Memory { space: Space::Global | Space::Flat, access: Access::Atomic, fills: true })
    );
    returns && device(ins)
}

impl Flow for Finish {
    type State = State;

    fn entry(&self) -> State {
        State { stored: Stored::Met, arrival: Arrival::None }
    }

    fn step(&mut self, state: &mut State, code: &Code, i: usize) -> Gate<()> {
        let ins = &code.all[i];
        match ins.effect {
            Effect::Wait(left) => {
                if left[Counter::Store as usize] == Some(0) {
                    state.stored = state.stored.max(Stored::Ended);
                }
                if left[Counter::Load as usize] == Some(0) && state.arrival == Arrival::Issued {
                    state.arrival = Arrival::Ended;
                }
            }
            Effect::Signal => {
                if state.stored == Stored::Ended {
                    state.stored = Stored::Signalled;
                }
                if state.arrival == Arrival::Ended {
                    state.arrival = Arrival::Signalled;
                }
            }
            Effect::Meet => {
                if state.stored == Stored::Signalled {
                    state.stored = Stored::Met;
                }
                if state.arrival == Arrival::Signalled {
                    state.arrival = Arrival::Met;
                }
            }
            Effect::Memory(memory) => return self.memory(state, code, i, memory),
            _ => {}
        }
        Ok(())
    }

    fn edge(&self, state: &mut State, edge: Edge) {
        if edge.empty && state.arrival == Arrival::None && self.released(state) {
            state.arrival = Arrival::Excused;
        }
    }

    fn merge(into: &mut State, from: &State) -> bool {
        let weaker = State { stored: into.stored.min(from.stored), arrival: into.arrival.min(from.arrival) };
        let changed = weaker.stored < into.stored || weaker.arrival < into.arrival;
        *into = weaker;
        changed
    }
}

impl Finish {
    fn released(&self, state: &State) -> bool {
        state.stored >= if self.several { Stored::Met } else { Stored::Ended }
    }

    fn memory(&self, state: &mut State, code: &Code, i: usize, memory: Memory) -> Gate<()> {
        let ins = &code.all[i];
        if self.exchanged[i] {
            match memory.access {
                Access::Load => self.load(state, code, i)?,
                _ => *state = State { stored: Stored::InFlight, arrival: Arrival::None },
            }
        } else if arrives(ins) {
            if !self.released(state) {
                let lacks = match state.stored {
                    Stored::InFlight => "`s_wait_storecnt 0x0`",
                    _ => "a barrier of all waves",
                };
                let found = format!("{} arrives without {lacks} after a store of exchanged data", code.named(i));
                return failed("finish", found, CURE);
            }
            state.arrival = Arrival::Issued;
        } else if memory.access == Access::Invalidate && device(ins) {
            let enough = if self.several { Arrival::Met } else { Arrival::Ended };
            if state.arrival >= enough && state.arrival < Arrival::Acquired {
                state.arrival = Arrival::Acquired;
            }
        }
        Ok(())
    }

    fn load(&self, state: &State, code: &Code, i: usize) -> Gate<()> {
        let lacks = match state.arrival {
            Arrival::Acquired if device(&code.all[i]) => return Ok(()),
            Arrival::Acquired => "device scope",
            Arrival::None | Arrival::Excused => "an atomic of device scope that returns, on every path to it",
            Arrival::Issued => "`s_wait_loadcnt 0x0` after the atomic",
            Arrival::Ended | Arrival::Signalled if self.several => "a barrier of all waves after the atomic",
            _ => "`global_inv scope:SCOPE_DEV` after the atomic",
        };
        failed("finish", format!("{} loads exchanged data without {lacks}", code.named(i)), CURE)
    }
}
