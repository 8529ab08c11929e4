//! Facts along all paths of a kernel: forward data flow over its blocks, loops to a fixed point.

use super::isa::{Code, Edge};
use super::{Gate, REPORT, failed};

/// One analysis. What holds at a place is merged from all paths there, so that a state only ever grows weaker: whatever is
/// found wrong on the way to the fixed point is wrong.
pub trait Flow {
    type State: Clone;

    /// At the kernel's start.
    fn entry(&self) -> Self::State;

    /// Over one instruction.
    ///
    /// # Errors
    /// What a gate finds there.
    fn step(&mut self, state: &mut Self::State, code: &Code, i: usize) -> Gate<()>;

    /// Along a way to another block.
    fn edge(&self, _state: &mut Self::State, _edge: Edge) {}

    /// Weakens `into` to what holds in both; true if that changed it.
    fn merge(into: &mut Self::State, from: &Self::State) -> bool;
}

/// Runs an analysis to its fixed point; gives the state at the start of each block that can be reached.
///
/// # Errors
/// What the analysis finds, or gate `branch` for a path that runs off the end.
pub fn run<F: Flow>(code: &Code, flow: &mut F) -> Gate<Vec<Option<F::State>>> {
    let mut states: Vec<Option<F::State>> = code.blocks.iter().map(|_| None).collect();
    let mut open = std::collections::BTreeSet::new();
    match states.first_mut() {
        Some(first) => *first = Some(flow.entry()),
        None => return failed("branch", "there is no code", REPORT),
    }
    open.insert(0);
    // In the code's order: the blocks of a loop before what follows it, mostly.
    while let Some(n) = open.pop_first() {
        let Some(mut state) = states[n].clone() else { continue };
        let block = &code.blocks[n];
        for i in block.first..block.end {
            flow.step(&mut state, code, i)?;
        }
        for edge in &block.next {
            let Some(slot) = states.get_mut(edge.to) else {
                let found = format!("a path runs off the end after {}", code.named(block.end - 1));
                return failed("branch", found, REPORT);
            };
            let mut out = state.clone();
            flow.edge(&mut out, *edge);
            let changed = match slot {
                Some(there) => F::merge(there, &out),
                None => {
                    *slot = Some(out);
                    true
                }
            };
            if changed {
                open.insert(edge.to);
            }
        }
    }
    Ok(states)
}
