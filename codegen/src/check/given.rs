//! What a kernel is given: drawn, or taken from the buffers of a step.

use std::collections::BTreeMap;

use unglue_ir::IrError;
use unglue_ir::graph::Graph;
use unglue_ir::interp::{Batch, Dims, StateData, Tensor, WeightRef};
use unglue_ir::op::Op;
use unglue_ir::types::{StateType, TensorType, Type};

use super::{Paged, Paging, Subject, cannot, decode};
use crate::error::CodegenError;
use crate::generate::Use;

/// Bytes of device buffers by the kernel's parameters.
pub type Buffers = BTreeMap<usize, Vec<u8>>;

/// A step: its rows, and how its sequences keep their state.
#[derive(Clone, Debug)]
pub struct StepRows {
    pub batch: Batch,
    /// Blocks of each sequence, [`Paging::blocks_per_seq`] each.
    pub block_table: Vec<i32>,
    pub paging: Paging,
    /// Rows whose logits are wanted.
    pub logits: usize,
}

/// What a kernel is given: the step, and values for the leaves of the kernel's graph by their names.
#[derive(Clone, Debug)]
pub struct Given<'a> {
    pub batch: Batch,
    pub block_table: Vec<i32>,
    pub paging: Paging,
    pub logits: usize,
    pub inputs: BTreeMap<String, Tensor>,
    pub weights: BTreeMap<String, WeightRef<'a>>,
    pub states: BTreeMap<String, StateData>,
    /// Of the draw; none if a step gave them.
    pub seed: Option<u64>,
}

impl<'a> Given<'a> {
    pub(super) fn weight(&self, name: &str) -> Result<WeightRef<'a>, IrError> {
        self.weights.get(name).cloned().ok_or_else(|| IrError::Eval {
            rule: "weight-missing",
            place: name.into(),
            found: "no such weight".into(),
            hint: "give every weight of the graph",
        })
    }

    pub(super) fn paged(&self) -> Paged<'_> {
        Paged { paging: &self.paging, batch: &self.batch, block_table: &self.block_table }
    }

    /// What the subject's buffers hold before its launch in a step.
    ///
    /// # Errors
    /// [`CodegenError::Check`] names the leaf whose buffer is missing or too short.
    pub fn of_step(subject: &Subject, step: &StepRows, before: &Buffers) -> Result<Given<'static>, CodegenError> {
        let mut batch = step.batch.clone();
        // Rows of scores are as wide as the bucket's.
        batch.pools = subject.bucket.pools as usize;
        let (block_table, paging, logits) = (step.block_table.clone(), step.paging, step.logits);
        let (inputs, weights, states) = Default::default();
        let mut given = Given { batch, block_table, paging, logits, inputs, weights, states, seed: None };
        for (param, of) in subject.uses.iter().enumerate() {
            let bytes = || before.get(&param).ok_or_else(|| cannot(subject, &format!("no bytes of parameter {param}")));
            match of {
                Use::Input(name) => {
                    let tensor = given.tensor(subject, name, bytes()?)?;
                    given.inputs.insert(name.clone(), tensor);
                }
                Use::Weight(name) => {
                    let scales = subject.uses.iter().position(|u| *u == Use::Scales(name.clone()));
                    let scales = scales.and_then(|p| before.get(&p)).map(Vec::as_slice).unwrap_or_default();
                    let weight = weight(subject, name, bytes()?, scales)?;
                    given.weights.insert(name.clone(), weight);
                }
                Use::State(name) => {
                    let ty = state_type(subject, name)?;
                    let mut state = StateData::new(ty, paging.max_slots);
                    given.paged().from_device(&mut state, ty.dtype, bytes()?);
                    given.states.insert(name.clone(), state);
                }
                Use::Scales(_) | Use::Output(_) | Use::Step(_) | Use::Scalar(_) => {}
            }
        }
        Ok(given)
    }

    fn tensor(&self, subject: &Subject, name: &str, bytes: &[u8]) -> Result<Tensor, CodegenError> {
        let ty = tensor_type(subject, name)?;
        let dtype = ty.dtype().ok_or_else(|| cannot(subject, &format!("input `{name}` is {ty}: no plain dtype")))?;
        let shape = Dims::of(&self.batch, self.logits).shape(&ty.shape);
        let needed = shape.iter().product::<usize>() * dtype.bytes() as usize;
        let short = || cannot(subject, &format!("input `{name}` has {} bytes, its rows {needed}", bytes.len()));
        let data = decode(dtype, bytes.get(..needed).ok_or_else(short)?);
        Ok(Tensor { dtype, shape, data })
    }
}

fn leaf<'a>(g: &'a Graph, name: &str) -> Option<&'a Type> {
    let named = |op: &Op| match op {
        Op::Input { name: n, .. } | Op::Weight { name: n } | Op::State { name: n } => n == name,
        _ => false,
    };
    g.ids().find(|id| named(&g.node(*id).op)).map(|id| g.ty(id))
}

fn tensor_type<'a>(subject: &Subject<'a>, name: &str) -> Result<&'a TensorType, CodegenError> {
    let missing = || cannot(subject, &format!("`{name}` is no tensor of the kernel's graph"));
    leaf(subject.graph, name).and_then(Type::tensor).ok_or_else(missing)
}

fn state_type<'a>(subject: &Subject<'a>, name: &str) -> Result<&'a StateType, CodegenError> {
    let missing = || cannot(subject, &format!("`{name}` is no state of the kernel's graph"));
    leaf(subject.graph, name).and_then(Type::state).ok_or_else(missing)
}

fn weight(subject: &Subject, name: &str, bytes: &[u8], scales: &[u8]) -> Result<WeightRef<'static>, CodegenError> {
    let ty = tensor_type(subject, name)?;
    let shape: Vec<u64> = ty.shape.iter().map(|d| d.fixed().unwrap_or(1)).collect();
    WeightRef::of_rows(ty.format, &shape, bytes, scales).map_err(|e| cannot(subject, &e))
}
