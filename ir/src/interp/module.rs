//! Evaluation of a module: its calls in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::IrError;
use crate::graph::ValueId;
use crate::interp::batch::Batch;
use crate::interp::eval::{Value, eval_values, tensor_of};
use crate::interp::refuse;
use crate::interp::state::{StateData, States};
use crate::interp::value::{Tensor, WeightRef};
use crate::module::{Arg, Call, Module, WeightDecl};

/// Gives a weight by its declaration.
pub type ModuleWeightFn<'f, 'w> = dyn Fn(&WeightDecl) -> Result<WeightRef<'w>, IrError> + 'f;

/// Runs one step: all of `Module::outputs` by name. `observe` sees (call, node, tensor). `states` change only if every
/// call succeeds.
///
/// # Errors
/// As [`super::eval_graph`]; also if calls, weights or states do not fit the module.
pub fn run_module<'w>(
    m: &Module,
    inputs: &BTreeMap<String, Tensor>,
    weights: &ModuleWeightFn<'_, 'w>,
    states: &mut States,
    batch: &Batch,
    observe: &mut dyn FnMut(usize, ValueId, &Tensor),
) -> Result<BTreeMap<String, Tensor>, IrError> {
    let mut step = Step { m, inputs, weights, states: BTreeMap::new(), results: Vec::new() };
    let mut last_use = vec![0; m.calls.len()];
    for (i, call) in m.calls.iter().enumerate() {
        for arg in &call.args {
            if let Arg::Result { call: from, .. } = arg
                && let Some(last) = last_use.get_mut(*from as usize)
            {
                *last = i;
            }
        }
    }
    for o in &m.outputs {
        if let Some(last) = last_use.get_mut(o.call as usize) {
            *last = usize::MAX;
        }
    }
    for (i, call) in m.calls.iter().enumerate() {
        let out = step.call(i, call, states, batch, observe)?;
        step.results.push(out);
        for (done, _) in last_use.iter().enumerate().filter(|(j, last)| *j <= i && **last <= i) {
            step.results[done].clear();
        }
    }
    let mut out = BTreeMap::new();
    for o in &m.outputs {
        let value = step.result(o.call, o.output)?;
        out.insert(o.name.clone(), tensor_of(&value)?.as_ref().clone());
    }
    for (i, s) in step.states {
        states.map.insert(m.states[i].name.clone(), s);
    }
    Ok(out)
}

struct Step<'a, 'f, 'w> {
    m: &'a Module,
    inputs: &'a BTreeMap<String, Tensor>,
    weights: &'a ModuleWeightFn<'f, 'w>,
    /// New versions, by number.
    states: BTreeMap<usize, Arc<StateData>>,
    /// Outputs of each call, emptied after the last use.
    results: Vec<Vec<Value<'w>>>,
}

impl<'w> Step<'_, '_, 'w> {
    fn result(&self, call: u32, output: u32) -> Result<Value<'w>, IrError> {
        let value = self.results.get(call as usize).and_then(|r| r.get(output as usize));
        value.cloned().ok_or_else(|| {
            refuse("call-result", &self.m.name, &format!("output {output} of call {call}"), "name an earlier call")
        })
    }

    fn arg(&self, arg: &Arg) -> Result<Value<'w>, IrError> {
        match arg {
            Arg::Result { call, output } => self.result(*call, *output),
            Arg::Input(i) => {
                let decl = self.m.inputs.get(*i as usize);
                let t = decl.and_then(|d| self.inputs.get(&d.name));
                let name = decl.map_or("?", |d| d.name.as_str());
                t.map(|t| Value::from(t.clone()))
                    .ok_or_else(|| refuse("input-missing", &self.m.name, name, "give every input by its name"))
            }
        }
    }

    fn call(
        &mut self,
        index: usize,
        call: &Call,
        states: &States,
        batch: &Batch,
        observe: &mut dyn FnMut(usize, ValueId, &Tensor),
    ) -> Result<Vec<Value<'w>>, IrError> {
        let place = format!("{} call {index}", self.m.name);
        let body = self.m.bodies.get(call.body as usize);
        let body = body.ok_or_else(|| refuse("call-body", &place, &call.body.to_string(), "name a body"))?;
        let args = call.args.iter().map(|a| self.arg(a)).collect::<Result<Vec<_>, _>>()?;
        let position = |names: Vec<&str>, name: &str, list: &[u32]| {
            names.iter().position(|n| *n == name).and_then(|i| list.get(i)).map(|i| *i as usize)
        };
        let weight = |name: &str| {
            let i = position(body.weights().map(|(n, _)| n).collect(), name, &call.weights);
            let decl = i.and_then(|i| self.m.weights.get(i));
            (self.weights)(decl.ok_or_else(|| refuse("call-weight", &place, name, "bind every weight of the body"))?)
        };
        let number = |name: &str| position(body.states().map(|(n, _)| n).collect(), name, &call.states);
        let state = |name: &str| {
            let i = number(name)?;
            self.states.get(&i).cloned().or_else(|| states.map.get(&self.m.states.get(i)?.name).cloned())
        };
        let out = eval_values(body, args, &weight, &state, batch, &mut |id, t| observe(index, id, t))?;
        let mut new = Vec::new();
        for (name, value) in &out {
            if let Value::State(s) = value {
                let i = number(name).filter(|i| *i < self.m.states.len());
                new.push((i.ok_or_else(|| refuse("call-state", &place, name, "bind every state"))?, s.clone()));
            }
        }
        self.states.extend(new);
        Ok(out.into_iter().map(|(_, v)| v).collect())
    }
}
