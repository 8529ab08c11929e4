//! What a kernel's parameters stand for.

use std::collections::{BTreeMap, BTreeSet};

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;
use unglue_ir::types::{DType, Format, Type};

use crate::kp::build::Builder;
use crate::kp::{Access, Mem, Place, Val};

/// A device array of the step's description (all i32).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StepBuffer {
    Positions,
    RowSeq,
    QStart,
    Slot,
    BlockTable,
    Status,
    /// Arrivals at grid finishes, zero before and after each launch.
    Counter,
}

/// A number of the step's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StepScalar {
    Rows,
    Seqs,
    Logits,
    BlockSize,
    BlocksPerSeq,
    MaxSlots,
    NumBlocks,
    /// Number of the kernel in its bundle, from 1: what the status word names.
    KernelNumber,
}

/// What one parameter of a kernel stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Use {
    /// A leaf of the kernel's graph (`input`, `weight` or `state`), by its name.
    Input(String),
    /// Elements, or the words of an int4 weight: i32 `[.., N, K/8]`.
    Weight(String),
    /// Scales of an int4 weight, `[.., N, K/group]`, by the weight's name.
    Scales(String),
    State(String),
    /// A tensor output of the kernel's graph, by its name.
    Output(String),
    Step(StepBuffer),
    Scalar(StepScalar),
}

/// A parameter that lanes of a wave stream together, row after row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stream {
    pub param: u32,
    /// Bytes of a row, which are contiguous.
    pub row_bytes: u64,
    /// Bytes that a lane loads at once: 16, or the part of them that is left of a row that several waves share.
    pub lane_bytes: u32,
}

/// Parameters in program order, made on first use.
#[derive(Default)]
pub struct Interface {
    pub uses: Vec<Use>,
    /// Outputs that workgroups exchange.
    pub exchanged: BTreeSet<String>,
    index: BTreeMap<Use, u32>,
}

/// Memory format of a dtype; `None` for formats that kernels do not load yet.
pub fn mem_of(d: DType) -> Option<Mem> {
    match d {
        DType::F32 => Some(Mem::F32),
        DType::Bf16 => Some(Mem::Bf16),
        DType::F16 => Some(Mem::F16),
        DType::I32 => Some(Mem::I32),
        DType::F8E4m3 | DType::Bool => None,
    }
}

fn sanitized(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

impl Interface {
    fn buffer(&mut self, b: &mut Builder, of: Use, name: &str, mem: Mem, access: Access) -> Place {
        if let Some(i) = self.index.get(&of) {
            return Place::Buffer(*i);
        }
        let i = b.buffer(&sanitized(name), mem, access);
        self.index.insert(of.clone(), i);
        self.uses.push(of);
        Place::Buffer(i)
    }

    /// Parameter of a leaf. A state is one buffer for its old and new versions.
    pub fn leaf(&mut self, b: &mut Builder, g: &Graph, id: ValueId) -> Option<(Place, Mem)> {
        let mem = match g.ty(id) {
            Type::Tensor(t) if t.is_int4() => Mem::I32,
            Type::Tensor(t) => mem_of(t.dtype()?)?,
            Type::State(s) => mem_of(s.dtype)?,
            Type::Tuple(_) => return None,
        };
        let (of, name, access) = match &g.node(id).op {
            Op::Input { name, .. } => (Use::Input(name.clone()), format!("in_{name}"), Access::Read),
            Op::Weight { name } => (Use::Weight(name.clone()), format!("w_{name}"), Access::Constant),
            Op::State { name } => {
                let access = if writes(g, id) { Access::ReadWrite } else { Access::Read };
                (Use::State(name.clone()), format!("state_{name}"), access)
            }
            _ => return None,
        };
        Some((self.buffer(b, of, &name, mem, access), mem))
    }

    /// Parameter of an int4 weight's scales.
    pub fn scales(&mut self, b: &mut Builder, g: &Graph, id: ValueId) -> Option<(Place, u32)> {
        let (Op::Weight { name }, Format::Int4 { group, scales, .. }) = (&g.node(id).op, g.ty(id).tensor()?.format)
        else {
            return None;
        };
        let mem = mem_of(scales.dtype())?;
        let place = self.buffer(b, Use::Scales(name.clone()), &format!("s_{name}"), mem, Access::Constant);
        Some((place, group))
    }

    pub fn output(&mut self, b: &mut Builder, name: &str, mem: Mem) -> Place {
        let access = if self.exchanged.contains(name) { Access::Exchange } else { Access::Write };
        self.buffer(b, Use::Output(name.into()), &format!("out_{name}"), mem, access)
    }

    pub fn step(&mut self, b: &mut Builder, s: StepBuffer) -> Place {
        let (name, access) = match s {
            StepBuffer::Positions => ("positions", Access::Read),
            StepBuffer::RowSeq => ("row_seq", Access::Read),
            StepBuffer::QStart => ("q_start", Access::Read),
            StepBuffer::Slot => ("slot", Access::Read),
            StepBuffer::BlockTable => ("block_table", Access::Read),
            StepBuffer::Status => ("status", Access::ReadWrite),
            StepBuffer::Counter => ("counter", Access::Counter),
        };
        self.buffer(b, Use::Step(s), &format!("step_{name}"), Mem::I32, access)
    }

    pub fn scalar(&mut self, b: &mut Builder, s: StepScalar) -> Val {
        let of = Use::Scalar(s);
        let i = match self.index.get(&of) {
            Some(i) => *i,
            None => {
                let name = match s {
                    StepScalar::Rows => "rows",
                    StepScalar::Seqs => "seqs",
                    StepScalar::Logits => "logit_rows",
                    StepScalar::BlockSize => "block_size",
                    StepScalar::BlocksPerSeq => "blocks_per_seq",
                    StepScalar::MaxSlots => "max_slots",
                    StepScalar::NumBlocks => "num_blocks",
                    StepScalar::KernelNumber => "kernel_number",
                };
                let i = b.scalar(&format!("n_{name}"));
                self.index.insert(of.clone(), i);
                self.uses.push(of);
                i
            }
        };
        b.arg(i)
    }
}

/// True if the kernel makes a new version of this state.
fn writes(g: &Graph, state: ValueId) -> bool {
    let mut versions = vec![state];
    for id in g.ids() {
        let n = g.node(id);
        let makes =
            matches!(n.op, Op::ConvUpdate | Op::TailUpdate | Op::TokenWrite | Op::PoolWrite | Op::DeltaRule { .. });
        if makes && n.args.iter().any(|a| versions.contains(a)) {
            versions.push(id);
        }
    }
    versions.len() > 1
}

/// The state leaf under a chain of versions.
pub fn state_leaf(g: &Graph, mut id: ValueId) -> ValueId {
    loop {
        let n = g.node(id);
        let next = match n.op {
            Op::ConvUpdate | Op::TokenWrite | Op::PoolWrite => n.args.get(1),
            Op::TailUpdate => n.args.get(2),
            Op::DeltaRule { .. } => n.args.get(5),
            Op::Project(_) => n.args.first(),
            _ => None,
        };
        match next {
            Some(n) => id = *n,
            None => return id,
        }
    }
}
