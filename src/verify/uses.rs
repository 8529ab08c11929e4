//! What a launch's grid and arguments stand for, from the manifest.

use std::collections::BTreeMap;

use unglue_codegen::generate::{StepBuffer, StepScalar, Use};
use unglue_ir::graph::Graph;
use unglue_ir::types::Dim;
use unglue_passes::schedule::GridAxis;
use unglue_runtime::manifest;

use super::Case;
use crate::error::CliError;

pub fn grid(dims: &[manifest::GridDim; 3]) -> [GridAxis; 3] {
    dims.map(|d| GridAxis {
        symbol: d.symbol.map(|s| match s {
            manifest::Symbol::Rows => Dim::Rows,
            manifest::Symbol::Seqs => Dim::Seqs,
            manifest::Symbol::Logits => Dim::Logits,
            manifest::Symbol::Pools => Dim::Pools,
        }),
        mul: d.mul,
        div: d.div,
    })
}

/// What each parameter stands for: values of the graph by the interface, step data by the launch.
pub fn uses(case: &Case, graph: &Graph) -> Result<Vec<Use>, CliError> {
    let i = &case.entry.interface;
    let mut named: BTreeMap<u32, Use> = BTreeMap::new();
    let mut add = |ports: &[manifest::Port], make: fn(String) -> Use| {
        named.extend(ports.iter().map(|p| (p.param, make(p.name.clone()))));
    };
    add(&i.inputs, Use::Input);
    add(&i.weights, Use::Weight);
    add(&i.scales, Use::Scales);
    add(&i.states, Use::State);
    add(&i.outputs, Use::Output);
    let unknown = |n: usize| CliError::Input {
        path: case.entry.name.clone().into(),
        message: format!("parameter {n} stands for nothing in the kernel's graph `{}`", graph.name),
    };
    case.launch
        .args
        .iter()
        .enumerate()
        .map(|(n, arg)| {
            if let Some(of) = named.get(&(n as u32)) {
                return Ok(of.clone());
            }
            step_use(*arg).ok_or_else(|| unknown(n))
        })
        .collect()
}

fn step_use(arg: manifest::Arg) -> Option<Use> {
    use manifest::{Arg, StepInput as In, StepScalar as Sc};
    Some(match arg {
        Arg::Input(In::Positions) => Use::Step(StepBuffer::Positions),
        Arg::Input(In::RowSeq) => Use::Step(StepBuffer::RowSeq),
        Arg::Input(In::QStart) => Use::Step(StepBuffer::QStart),
        Arg::Input(In::Slot) => Use::Step(StepBuffer::Slot),
        Arg::Input(In::BlockTable) => Use::Step(StepBuffer::BlockTable),
        Arg::Input(In::Status) => Use::Step(StepBuffer::Status),
        Arg::Input(In::Counter) => Use::Step(StepBuffer::Counter),
        Arg::Scalar(Sc::Rows) => Use::Scalar(StepScalar::Rows),
        Arg::Scalar(Sc::Seqs) => Use::Scalar(StepScalar::Seqs),
        Arg::Scalar(Sc::Logits) => Use::Scalar(StepScalar::Logits),
        Arg::Scalar(Sc::BlockSize) => Use::Scalar(StepScalar::BlockSize),
        Arg::Scalar(Sc::BlocksPerSeq) => Use::Scalar(StepScalar::BlocksPerSeq),
        Arg::Scalar(Sc::MaxSlots) => Use::Scalar(StepScalar::MaxSlots),
        Arg::Scalar(Sc::NumBlocks) => Use::Scalar(StepScalar::NumBlocks),
        Arg::Const(_) => Use::Scalar(StepScalar::KernelNumber),
        _ => return None,
    })
}
