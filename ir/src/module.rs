//! Modules: a trunk as calls of bodies. Layers of one kind share a body and differ in weights and state.

use crate::graph::Graph;
use crate::op::Domain;
use crate::types::{DType, StateType, TensorType};

/// A checkpoint tensor, or a part of it, that feeds a weight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    pub tensor: String,
    pub dtype: DType,
    /// Shape in the checkpoint.
    pub shape: Vec<u64>,
    /// Row-major reshape of it before slicing.
    pub view: Vec<u64>,
    /// Part of the view along one axis.
    pub slice: Option<SourceSlice>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceSlice {
    pub axis: u32,
    pub start: u64,
    pub len: u64,
}

/// A weight: the concatenation of its sources, row-major.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightDecl {
    pub name: String,
    pub ty: TensorType,
    pub sources: Vec<Source>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StateDecl {
    /// `layer<i>.<role>`.
    pub name: String,
    pub ty: StateType,
}

/// An argument of the step: token ids, rows to give logits for, an expert slot table, streams of a single layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InputDecl {
    pub name: String,
    pub ty: TensorType,
    pub domain: Domain,
}

/// Where a body's input comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Arg {
    /// `Module::inputs[i]`.
    Input(u32),
    /// Output `output` of `Module::calls[call]`, an earlier call.
    Result { call: u32, output: u32 },
}

/// One use of a body. The lists are parallel to the body's inputs, weights and states in node order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    pub body: u32,
    /// Checkpoint number of the layer.
    pub layer: Option<u32>,
    pub args: Vec<Arg>,
    /// `Module::weights` numbers.
    pub weights: Vec<u32>,
    /// `Module::states` numbers.
    pub states: Vec<u32>,
}

/// A named result of the step: `logits`, `argmax`, `aux.layer<i>`, taps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModuleOutput {
    pub name: String,
    pub call: u32,
    pub output: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Module {
    pub name: String,
    pub inputs: Vec<InputDecl>,
    pub weights: Vec<WeightDecl>,
    pub states: Vec<StateDecl>,
    pub bodies: Vec<Graph>,
    /// In order of execution.
    pub calls: Vec<Call>,
    pub outputs: Vec<ModuleOutput>,
}
