//! What a launch must leave in its buffers, and the first element that is something else.

use std::collections::BTreeMap;

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::interp::bound::{BoundInputs, BoundOutputs, BoundedTensor, Casts, eval_bounds};
use unglue_ir::interp::{Data, StateData, Tensor, eval_graph};
use unglue_ir::types::{DType, Dim};

use super::{Buffers, Given, Mismatch, Subject, cannot, decode};
use crate::error::CodegenError;
use crate::generate::Use;

/// Results of the interpreter on what a kernel was given.
pub(super) struct Expected<'a> {
    subject: &'a Subject<'a>,
    given: &'a Given<'a>,
    outputs: BTreeMap<String, Tensor>,
    states: BTreeMap<String, StateData>,
    /// Of the outputs, where bits do not decide.
    bounds: Option<BoundOutputs>,
}

/// Compares what a launch of a step left with what it was given: outputs, and states as a whole. `before` and `after`
/// are the bytes of its buffers.
///
/// # Errors
/// [`CodegenError::Check`] if the kernel cannot be interpreted, or a buffer is missing.
pub fn judge(
    subject: &Subject,
    given: &Given,
    before: &Buffers,
    after: &Buffers,
) -> Result<Option<Mismatch>, CodegenError> {
    let expected = Expected::of(subject, given)?;
    for (param, of) in subject.uses.iter().enumerate() {
        let of_buffer = |all: &'_ Buffers| all.get(&param).cloned();
        let missing = || cannot(subject, &format!("no bytes of parameter {param}"));
        let wrong = match of {
            Use::Output(name) => expected.output(name, &of_buffer(after).ok_or_else(missing)?)?,
            Use::State(name) => {
                let (before, after) = (of_buffer(before).ok_or_else(missing)?, of_buffer(after).ok_or_else(missing)?);
                expected.state(name, &before, &after)?
            }
            _ => None,
        };
        if wrong.is_some() {
            return Ok(wrong);
        }
    }
    Ok(None)
}

impl<'a> Expected<'a> {
    pub fn of(subject: &'a Subject<'a>, given: &'a Given<'a>) -> Result<Expected<'a>, CodegenError> {
        let mut states = given.states.clone();
        let weights = |name: &str| given.weight(name);
        let outputs = eval_graph(subject.graph, &given.inputs, &weights, &mut states, &given.batch, &mut |_, _| {})
            .map_err(|e| cannot(subject, &e))?;
        let bounds = if subject.bounded { Some(bounds(subject, given)?) } else { None };
        Ok(Expected { subject, given, outputs, states, bounds })
    }

    /// `bytes`: the buffer of an output. Rows of padding may hold anything; all others are compared.
    pub fn output(&self, name: &str, bytes: &[u8]) -> Result<Option<Mismatch>, CodegenError> {
        let v = output(self.subject, name)?;
        let missing = |what: &str| cannot(self.subject, &format!("no {what} for `{name}`"));
        let want = self.outputs.get(name).ok_or_else(|| missing("reference"))?;
        let got = decode(want.dtype, bytes);
        let per_row = row_elements(self.subject, v).max(1);
        let of_rows = self.subject.graph.ty(v).tensor().is_some_and(|t| t.shape.first() == Some(&Dim::Rows));
        let row_seq = &self.given.batch.row_seq;
        let live = |i: usize| !of_rows || row_seq.get(i / per_row).is_none_or(|s| *s >= 0);
        if let Some(bounds) = &self.bounds {
            let bound = bounds.tensors.get(name).ok_or_else(|| missing("bound"))?;
            return Ok(bound.first_outside(&got, live).map(|i| {
                let interpreter = bound.shown(i);
                Mismatch { interpreter, ..self.mismatch(name, (i, i / per_row), &got, &want.data) }
            }));
        }
        let wrong = first_difference(&got, &want.data, live);
        Ok(wrong.map(|i| self.mismatch(name, (i, i / per_row), &got, &want.data)))
    }

    /// `before` and `after`: the whole buffer of a state. What the step's sequences do not own must be as it was.
    pub fn state(&self, name: &str, before: &[u8], after: &[u8]) -> Result<Option<Mismatch>, CodegenError> {
        let Some(want) = self.states.get(name) else { return Ok(None) };
        let dtype = state_dtype(self.subject.graph, name);
        let expected = self.given.paged().over(before.to_vec(), want, dtype);
        let (got, want) = (decode(dtype, after), decode(dtype, &expected));
        let wrong = first_difference(&got, &want, |_| true);
        Ok(wrong.map(|i| self.mismatch(name, (i, 0), &got, &want)))
    }

    /// `index` counts elements of the whole value.
    pub fn mismatch(&self, value: &str, (index, row): (usize, usize), got: &Data, want: &Data) -> Mismatch {
        let show = |d: &Data| match d {
            Data::F32(v) => v.get(index).map(|x| format!("{x:e} ({:#010x})", x.to_bits())),
            Data::I32(v) => v.get(index).map(|x| x.to_string()),
        };
        Mismatch {
            kernel: self.subject.name.into(),
            value: value.into(),
            index,
            row,
            device: show(got).unwrap_or_default(),
            interpreter: show(want).unwrap_or_default(),
            seed: self.given.seed,
        }
    }
}

/// Bounds of a stateless kernel's results, by the orders of its ops.
fn bounds(subject: &Subject, given: &Given) -> Result<BoundOutputs, CodegenError> {
    let inputs = given.inputs.iter().map(|(n, t)| (n.clone(), BoundedTensor::exact(t))).collect();
    let given = BoundInputs {
        inputs: &inputs,
        weights: &|name| given.weight(name),
        states: &BTreeMap::new(),
        batch: &given.batch,
        selections: &BTreeMap::new(),
        truncating: false,
        casts: Casts::Declared,
    };
    eval_bounds(subject.graph, &given).map_err(|e| cannot(subject, &e))
}

/// Value of the kernel's graph that an output is.
pub(super) fn output(subject: &Subject, name: &str) -> Result<ValueId, CodegenError> {
    let missing = || cannot(subject, &format!("`{name}` is no output of the kernel's graph"));
    subject.graph.outputs.iter().find(|(n, _)| n == name).map(|(_, v)| *v).ok_or_else(missing)
}

pub(super) fn row_elements(subject: &Subject, v: ValueId) -> usize {
    unglue_passes::schedule::row_elements(subject.graph.ty(v), &subject.bucket) as usize
}

pub(super) fn state_dtype(g: &Graph, name: &str) -> DType {
    g.states().find(|(n, _)| *n == name).and_then(|(_, id)| g.ty(id).state()).map_or(DType::F32, |s| s.dtype)
}

/// First `live` element of `want` whose bits differ; NaN equals NaN.
pub(super) fn first_difference(got: &Data, want: &Data, live: impl Fn(usize) -> bool) -> Option<usize> {
    let n = match want {
        Data::F32(v) => v.len(),
        Data::I32(v) => v.len(),
    };
    let differs = |i: usize| match (got, want) {
        (Data::F32(a), Data::F32(b)) => match (a.get(i), b.get(i)) {
            (Some(x), Some(y)) => x.to_bits() != y.to_bits() && !(x.is_nan() && y.is_nan()),
            _ => true,
        },
        (Data::I32(a), Data::I32(b)) => a.get(i) != b.get(i),
        _ => true,
    };
    (0..n).find(|i| live(*i) && differs(*i))
}
