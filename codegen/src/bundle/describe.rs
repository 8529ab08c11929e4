//! A kernel as the manifest describes it.

use std::collections::BTreeMap;

use unglue_ir::graph::Graph;
use unglue_ir::op::Op;
use unglue_ir::order::Order;
use unglue_ir::types::Dim;
use unglue_passes::schedule::{GridAxis, Products, Schedule};
use unglue_runtime::manifest;

use crate::generate::{Generated, Use};
use crate::kp::{Access, Mem, Param, layout};

/// What the passes know of a kernel beside its code.
pub struct Facts {
    pub class: String,
    pub exactness: manifest::Exactness,
    pub ops: Vec<String>,
}

fn mem(m: Mem) -> manifest::Mem {
    match m {
        Mem::F32 => manifest::Mem::F32,
        Mem::Bf16 => manifest::Mem::Bf16,
        Mem::F16 => manifest::Mem::F16,
        Mem::I32 => manifest::Mem::I32,
    }
}

fn param(p: &Param) -> manifest::Param {
    match p {
        Param::Buffer { name, mem: m, access } => {
            let access = match access {
                Access::Constant | Access::Read => manifest::Access::Read,
                Access::Write => manifest::Access::Write,
                Access::ReadWrite | Access::Exchange | Access::Counter => manifest::Access::ReadWrite,
            };
            manifest::Param { name: name.clone(), kind: manifest::ParamKind::Buffer { mem: mem(*m), access } }
        }
        Param::Scalar { name } => manifest::Param { name: name.clone(), kind: manifest::ParamKind::Scalar },
    }
}

fn interface(uses: &[Use]) -> manifest::Interface {
    let mut out = manifest::Interface::default();
    for (i, of) in uses.iter().enumerate() {
        let port = |name: &String| manifest::Port { name: name.clone(), param: i as u32 };
        match of {
            Use::Input(n) => out.inputs.push(port(n)),
            Use::Weight(n) => out.weights.push(port(n)),
            Use::Scales(n) => out.scales.push(port(n)),
            Use::State(n) => out.states.push(port(n)),
            Use::Output(n) => out.outputs.push(port(n)),
            Use::Step(_) | Use::Scalar(_) => {}
        }
    }
    out
}

/// Orders of summation of a kernel's ops, as `op: order`.
pub fn orders(g: &Graph) -> Vec<String> {
    let order = |op: &Op| match op {
        Op::Reduce { order, .. }
        | Op::MatMul { order }
        | Op::BatchMatMul { order, .. }
        | Op::GroupedMatMul { order }
        | Op::DeltaRule { order }
        | Op::IndexScores { order, .. } => Some(order.name()),
        Op::AttendSplits { order, .. } => Some(format!("{} (scores), {} (values)", order.name(), Order::Splits.name())),
        Op::AttendCombine => Some(Order::Splits.name()),
        _ => None,
    };
    g.ids()
        .filter_map(|id| {
            order(&g.node(id).op).map(|o| format!("%{} {}: {o}", id.0, unglue_ir::infer::op_name(&g.node(id).op)))
        })
        .collect()
}

/// The manifest's entry for a generated kernel.
pub fn kernel(g: &Graph, schedule: &Schedule, generated: &Generated, facts: Facts) -> manifest::Kernel {
    let p = &generated.program;
    manifest::Kernel {
        name: p.name.clone(),
        waves: p.waves,
        shared_bytes: layout::shared_bytes(p),
        params: p.params.iter().map(param).collect(),
        class: facts.class,
        exactness: facts.exactness,
        schedule: schedule.describe(),
        ops: facts.ops,
        ir: unglue_ir::text::print_graph(g),
        orders: orders(g),
        products: match schedule.products {
            Products::Lanes => manifest::Products::Lanes,
            Products::Tiles { .. } => manifest::Products::Tiles,
        },
        resources: BTreeMap::new(),
        interface: interface(&generated.uses),
    }
}

/// Grid rule of a launch.
pub fn grid(axes: [GridAxis; 3]) -> [manifest::GridDim; 3] {
    axes.map(|a| match a.symbol {
        None => manifest::GridDim::fixed(a.mul.div_ceil(a.div.max(1))),
        Some(Dim::Fixed(n)) => manifest::GridDim::fixed((n * a.mul).div_ceil(a.div.max(1))),
        Some(d) => {
            let symbol = match d {
                Dim::Seqs => manifest::Symbol::Seqs,
                Dim::Logits => manifest::Symbol::Logits,
                Dim::Pools => manifest::Symbol::Pools,
                _ => manifest::Symbol::Rows,
            };
            manifest::GridDim { symbol: Some(symbol), mul: a.mul, div: a.div }
        }
    })
}
