//! Rules of modules: declarations, calls and outputs.

use std::collections::HashMap;

use super::{
    Checked, check_input_type, check_name, check_roles, check_state_type, check_weight_type, fault, graph as check_body,
};
use crate::graph::Graph;
use crate::infer::MAX_ELEMENTS;
use crate::module::{Arg, Call, Module, Source, WeightDecl};
use crate::op::{Domain, Op};
use crate::types::{DType, Format, StateType, TensorType, Type};

/// Checks every rule of a module and of its bodies.
///
/// # Errors
/// The first broken rule, as for a graph.
pub fn module(m: &Module) -> Checked {
    let check = Check { m, path: format!("module `{}`", m.name), bodies: m.bodies.iter().map(Signature::of).collect() };
    check_name(&check.path, &m.name)?;
    check.declarations()?;
    check_roles(&check.path, "body", m.bodies.iter().map(|b| b.name.as_str()))?;
    m.bodies.iter().try_for_each(check_body)?;
    (0..m.calls.len()).try_for_each(|i| check.call(i))?;
    check.outputs()?;
    check.states_once()?;
    check.unused()
}

/// What a body takes and gives, in the order of its nodes.
struct Signature<'a> {
    inputs: Vec<(&'a TensorType, Domain)>,
    weights: Vec<&'a TensorType>,
    states: Vec<&'a StateType>,
    /// `None` for a state, which no other call can take.
    outputs: Vec<Option<&'a TensorType>>,
}

impl<'a> Signature<'a> {
    fn of(g: &'a Graph) -> Self {
        let mut s = Signature { inputs: vec![], weights: vec![], states: vec![], outputs: vec![] };
        for node in &g.nodes {
            match (&node.op, &node.ty) {
                (Op::Input { domain, .. }, Type::Tensor(t)) => s.inputs.push((t, *domain)),
                (Op::Weight { .. }, Type::Tensor(t)) => s.weights.push(t),
                (Op::State { .. }, Type::State(t)) => s.states.push(t),
                _ => {}
            }
        }
        let output = |id: usize| g.nodes.get(id).and_then(|n| n.ty.tensor());
        s.outputs = g.outputs.iter().map(|(_, id)| output(id.index())).collect();
        s
    }
}

struct Check<'a> {
    m: &'a Module,
    path: String,
    bodies: Vec<Signature<'a>>,
}

impl Check<'_> {
    fn declarations(&self) -> Checked {
        check_roles(&self.path, "input", self.m.inputs.iter().map(|d| d.name.as_str()))?;
        check_roles(&self.path, "weight", self.m.weights.iter().map(|d| d.name.as_str()))?;
        check_roles(&self.path, "state", self.m.states.iter().map(|d| d.name.as_str()))?;
        for d in &self.m.inputs {
            check_input_type(&format!("{}, input {:?}", self.path, d.name), &d.ty, d.domain)?;
        }
        for w in &self.m.weights {
            let place = format!("{}, weight {:?}", self.path, w.name);
            check_weight_type(&place, &w.ty)?;
            check_sources(&place, w)?;
        }
        for d in &self.m.states {
            check_state_type(&format!("{}, state {:?}", self.path, d.name), &d.ty)?;
        }
        Ok(())
    }

    fn call(&self, i: usize) -> Checked {
        let call = &self.m.calls[i];
        let (Some(body), Some(sig)) = (self.m.bodies.get(call.body as usize), self.bodies.get(call.body as usize))
        else {
            let found = format!("body {} of {}", call.body, self.bodies.len());
            return Err(fault("call-body", format!("{}, call {i}", self.path), found, "call a body of the module"));
        };
        let place = format!("{}, call {i} of `{}`", self.path, body.name);
        count(&place, "inputs", call.args.len(), sig.inputs.len())?;
        count(&place, "weights", call.weights.len(), sig.weights.len())?;
        count(&place, "states", call.states.len(), sig.states.len())?;
        for (n, (arg, (want, domain))) in call.args.iter().zip(&sig.inputs).enumerate() {
            let place = format!("{place}, input {n}");
            same(&place, self.argument(i, arg, *domain, &place)?, want)?;
        }
        for (n, (w, want)) in call.weights.iter().zip(&sig.weights).enumerate() {
            let place = format!("{place}, weight {n}");
            let list = &self.m.weights;
            let decl = list.get(*w as usize).ok_or_else(|| range(&place, "weight", *w, list.len()))?;
            same(&place, &decl.ty, want)?;
        }
        for (n, (s, want)) in call.states.iter().zip(&sig.states).enumerate() {
            let place = format!("{place}, state {n}");
            let list = &self.m.states;
            let decl = list.get(*s as usize).ok_or_else(|| range(&place, "state", *s, list.len()))?;
            same(&place, &decl.ty, want)?;
        }
        Ok(())
    }

    /// Type of an argument of call `i`. An id from outside must lie in the domain that the body was made for.
    fn argument(&self, i: usize, arg: &Arg, domain: Domain, place: &str) -> Result<&TensorType, crate::IrError> {
        match arg {
            Arg::Input(n) => {
                let list = &self.m.inputs;
                let decl = list.get(*n as usize).ok_or_else(|| range(place, "input", *n, list.len()))?;
                if decl.domain != domain {
                    let found = format!("{:?} is {}, the body takes {domain}", decl.name, decl.domain);
                    return Err(fault("call-domain", place, found, "declare one domain in both places"));
                }
                Ok(&decl.ty)
            }
            Arg::Result { call, output } if (*call as usize) < i => self.result(*call, *output, place),
            Arg::Result { call, output } => {
                let found = format!("result {call}.{output} in call {i}");
                Err(fault("call-order", place, found, "take results of earlier calls"))
            }
        }
    }

    fn result(&self, call: u32, output: u32, place: &str) -> Result<&TensorType, crate::IrError> {
        let outputs =
            self.m.calls.get(call as usize).and_then(|c| self.bodies.get(c.body as usize)).map(|b| &b.outputs);
        match outputs.and_then(|o| o.get(output as usize)) {
            Some(Some(t)) => Ok(t),
            Some(None) => {
                let found = format!("result {call}.{output} is a state");
                Err(fault("result-state", place, found, "states are passed under `states`, results are tensors"))
            }
            None => {
                let of =
                    outputs.map_or_else(|| format!("{} calls", self.m.calls.len()), |o| format!("{} outputs", o.len()));
                Err(fault("result-range", place, format!("result {call}.{output} of {of}"), "name an existing result"))
            }
        }
    }

    fn outputs(&self) -> Checked {
        if self.m.outputs.is_empty() {
            return Err(fault("no-output", &self.path, "no outputs", "declare at least one output"));
        }
        check_roles(&self.path, "output", self.m.outputs.iter().map(|o| o.name.as_str()))?;
        self.m
            .outputs
            .iter()
            .try_for_each(|o| self.result(o.call, o.output, &format!("{}, output {:?}", self.path, o.name)).map(|_| ()))
    }

    /// Two calls that hold one state would race, or see each other's step.
    fn states_once(&self) -> Checked {
        let mut user: HashMap<u32, usize> = HashMap::new();
        for (i, call) in self.m.calls.iter().enumerate() {
            for s in &call.states {
                if let Some(first) = user.insert(*s, i) {
                    let name = self.m.states.get(*s as usize).map_or("", |d| &d.name);
                    let found = format!("state {name:?} in call {first} and call {i}");
                    return Err(fault("state-shared", &self.path, found, "declare a state for each call"));
                }
            }
        }
        Ok(())
    }

    /// Nothing is declared, called or loaded for nothing.
    fn unused(&self) -> Checked {
        let mut bodies = vec![false; self.m.bodies.len()];
        let mut inputs = vec![false; self.m.inputs.len()];
        let mut weights = vec![false; self.m.weights.len()];
        let mut states = vec![false; self.m.states.len()];
        let mut calls: Vec<bool> = self.m.calls.iter().map(|c| !c.states.is_empty()).collect();
        self.m.outputs.iter().for_each(|o| calls[o.call as usize] = true);
        for (i, Call { body, args, weights: w, states: s, .. }) in self.m.calls.iter().enumerate().rev() {
            if !calls[i] {
                let found = format!("nothing needs the results of call {i}");
                return Err(fault("dead-call", &self.path, found, "remove the call"));
            }
            bodies[*body as usize] = true;
            w.iter().for_each(|w| weights[*w as usize] = true);
            s.iter().for_each(|s| states[*s as usize] = true);
            for arg in args {
                match arg {
                    Arg::Input(n) => inputs[*n as usize] = true,
                    Arg::Result { call, .. } => calls[*call as usize] = true,
                }
            }
        }
        let m = self.m;
        self.all_used("body", &bodies, |i| &m.bodies[i].name)?;
        self.all_used("input", &inputs, |i| &m.inputs[i].name)?;
        self.all_used("weight", &weights, |i| &m.weights[i].name)?;
        self.all_used("state", &states, |i| &m.states[i].name)
    }

    fn all_used<'b>(&self, what: &str, used: &[bool], name: impl Fn(usize) -> &'b String) -> Checked {
        match used.iter().position(|u| !u) {
            Some(i) => Err(fault("unused", &self.path, format!("no call takes {what} {:?}", name(i)), "remove it")),
            None => Ok(()),
        }
    }
}

fn count(place: &str, what: &str, found: usize, needed: usize) -> Checked {
    if found == needed {
        return Ok(());
    }
    let found = format!("{found} {what}, the body has {needed}");
    Err(fault("call-count", place, found, "list one for each of the body's, in the order of its nodes"))
}

fn same<T: PartialEq + ToString>(place: &str, found: &T, needed: &T) -> Checked {
    if found == needed {
        return Ok(());
    }
    let found = format!("{}, the body takes {}", found.to_string(), needed.to_string());
    Err(fault("call-type", place, found, "pass what the body was made for, or make another body"))
}

fn range(place: &str, what: &str, i: u32, len: usize) -> crate::IrError {
    fault("call-range", place, format!("{what} {i} of {len}"), "name a declaration of the module")
}

/// Product of extents that are at least 1, within the limit.
fn elements(extents: &[u64]) -> Option<u64> {
    let n = extents.iter().try_fold(1u64, |a, n| a.checked_mul(*n))?;
    (1..=MAX_ELEMENTS).contains(&n).then_some(n)
}

/// Sources fill a plain weight exactly. What fills a packed one (words, scales) is the checkpoint reader's to check.
fn check_sources(place: &str, w: &WeightDecl) -> Checked {
    if w.sources.is_empty() {
        return Err(fault("source-none", place, "no sources", "name the checkpoint tensors that feed it"));
    }
    let mut total = 0u64;
    for s in &w.sources {
        let place = format!("{place} from {:?}", s.tensor);
        total = total.saturating_add(check_source(&place, s)?);
        if let Format::Plain(d) = w.ty.format {
            check_source_dtype(&place, s.dtype, d)?;
        }
    }
    let extents: Vec<u64> = w.ty.shape.iter().filter_map(|d| d.fixed()).collect();
    if matches!(w.ty.format, Format::Plain(_)) && elements(&extents) != Some(total) {
        let found = format!("{total} elements for {}", w.ty);
        return Err(fault("source-total", place, found, "the sources in a row must fill the weight"));
    }
    Ok(())
}

fn check_source_dtype(place: &str, found: DType, needed: DType) -> Checked {
    if found == needed {
        return Ok(());
    }
    let found = format!("{}, the weight is {}", found.name(), needed.name());
    Err(fault("source-dtype", place, found, "keep weights in the checkpoint's dtype and cast in the body"))
}

/// Elements that a source gives.
fn check_source(place: &str, s: &Source) -> Result<u64, crate::IrError> {
    let n = elements(&s.shape);
    if s.tensor.is_empty() || n.is_none() || elements(&s.view) != n {
        let found = format!("shape {:?} as {:?}", s.shape, s.view);
        return Err(fault("source-view", place, found, "a view has the elements of the named tensor, 1 to 2^48"));
    }
    let Some(slice) = &s.slice else { return Ok(n.unwrap_or(0)) };
    let extent = s.view.get(slice.axis as usize).copied();
    let end = slice.start.checked_add(slice.len);
    match (extent, end, n) {
        (Some(extent), Some(end), Some(n)) if slice.len > 0 && end <= extent => Ok(n / extent * slice.len),
        _ => {
            let found = format!("axis {} start {} len {} of {:?}", slice.axis, slice.start, slice.len, s.view);
            Err(fault("source-slice", place, found, "slice inside one axis of the view"))
        }
    }
}
