//! From bodies to a module: which body a call runs, which checkpoint tensors and states it takes, and which results
//! leave the step. Equal bodies are shared; a model supplies the builders and the names.

use std::collections::BTreeSet;

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::lines::GraphLines;
use unglue_ir::module::{Arg, Call, InputDecl, Module, ModuleOutput, StateDecl, WeightDecl};
use unglue_ir::op::{Domain, Op};
use unglue_ir::types::{DType, TensorType};

use crate::checkpoint::SkipRules;
use crate::error::ModelError;
use crate::maths::Maths;

/// The dtype in which activations and most states are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Activation {
    /// Rounded to bf16 wherever a value would be stored between kernels.
    #[default]
    Bf16,
    /// f32 everywhere; weights keep their stored dtype.
    F32,
}

impl Activation {
    pub fn dtype(self) -> DType {
        match self {
            Activation::Bf16 => DType::Bf16,
            Activation::F32 => DType::F32,
        }
    }
}

/// A body with the inner values that observers of the interpreter may want.
#[derive(Clone, Debug)]
pub struct Built {
    pub graph: Graph,
    /// Short name (`router_logits`) and value.
    pub taps: Vec<(String, ValueId)>,
    /// Where the model declares the nodes of the graph.
    pub lines: GraphLines,
}

impl From<Maths> for Built {
    fn from(m: Maths) -> Built {
        let lines = m.b.lines();
        let (graph, taps) = m.finish();
        Built { graph, taps, lines }
    }
}

/// An inner value of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tap {
    /// `layer<i>.<name>`.
    pub name: String,
    pub call: u32,
    pub value: ValueId,
}

/// A trunk as a module, with what else its users need to know.
#[derive(Clone, Debug)]
pub struct Trunk {
    pub module: Module,
    /// Inner values per body of the module, by short name; they are not outputs.
    pub body_taps: Vec<Vec<(String, ValueId)>>,
    /// Per body of the module: where the model declares its nodes.
    pub body_lines: Vec<GraphLines>,
    /// Checkpoint tensors that the module leaves out on purpose.
    pub skip: SkipRules,
}

impl Trunk {
    /// Inner values of every call, for the interpreter's observer.
    pub fn taps(&self) -> Vec<Tap> {
        let mut taps = Vec::new();
        for (call, c) in self.module.calls.iter().enumerate() {
            let Some(layer) = c.layer else { continue };
            let list = self.body_taps.get(c.body as usize).map(Vec::as_slice).unwrap_or_default();
            taps.extend(list.iter().map(|(name, value)| Tap {
                name: format!("layer{layer}.{name}"),
                call: call as u32,
                value: *value,
            }));
        }
        taps
    }

    /// The call and value behind a tap name such as `layer3.router_logits`.
    pub fn tap(&self, name: &str) -> Option<Tap> {
        self.taps().into_iter().find(|t| t.name == name)
    }
}

/// A module under construction.
#[derive(Debug, Default)]
pub struct Assembly {
    module: Module,
    body_taps: Vec<Vec<(String, ValueId)>>,
    body_lines: Vec<GraphLines>,
}

/// How one call is linked: the names behind its body's roles.
pub trait Link {
    /// Checkpoint number of the layer.
    fn layer(&self) -> Option<u32>;
    /// The weight behind a role, with its sources.
    fn weight(&self, role: &str, ty: &TensorType) -> Option<WeightDecl>;
    /// The module's name for a body input that no earlier call gives.
    fn input(&self, role: &str) -> String;
}

impl Assembly {
    pub fn new(name: &str) -> Self {
        Assembly { module: Module { name: name.into(), ..Module::default() }, ..Assembly::default() }
    }

    /// The number of the body `name`, built on first use.
    pub fn body(&mut self, name: &str, build: impl FnOnce() -> Result<Built, ModelError>) -> Result<u32, ModelError> {
        if let Some(i) = self.module.bodies.iter().position(|g| g.name == name) {
            return Ok(i as u32);
        }
        let built = build()?;
        self.module.bodies.push(built.graph);
        self.body_taps.push(built.taps);
        self.body_lines.push(built.lines);
        Ok((self.module.bodies.len() - 1) as u32)
    }

    /// Adds a call of `body`. Inputs that `previous` (a call) gives under the same name come from it, the others from
    /// the module.
    pub fn call(&mut self, body: u32, previous: Option<u32>, link: &impl Link) -> Result<u32, ModelError> {
        let graph = self.module.bodies[body as usize].clone();
        let mut args = Vec::new();
        for (role, id) in graph.inputs() {
            args.push(match previous.and_then(|call| Some((call, self.result(call, role)?))) {
                Some((call, output)) => Arg::Result { call, output },
                None => Arg::Input(self.input(&graph, link.input(role), id)?),
            });
        }
        let mut weights = Vec::new();
        for (role, id) in graph.weights() {
            let missing = || ModelError::NoRule { body: graph.name.clone(), kind: "weight", role: role.into() };
            let ty = graph.ty(id).tensor().ok_or_else(missing)?;
            let decl = link.weight(role, ty).ok_or_else(missing)?;
            weights.push(index_of(&mut self.module.weights, decl, |a, b| a.name == b.name));
        }
        let mut states = Vec::new();
        for (role, id) in graph.states() {
            let missing = || ModelError::NoRule { body: graph.name.clone(), kind: "state", role: role.into() };
            let ty = graph.ty(id).state().ok_or_else(missing)?.clone();
            let layer = link.layer().ok_or_else(missing)?;
            let decl = StateDecl { name: format!("layer{layer}.{role}"), ty };
            states.push(index_of(&mut self.module.states, decl, |a, b| a.name == b.name));
        }
        self.module.calls.push(Call { body, layer: link.layer(), args, weights, states });
        Ok((self.module.calls.len() - 1) as u32)
    }

    fn input(&mut self, graph: &Graph, name: String, id: ValueId) -> Result<u32, ModelError> {
        let missing = || ModelError::NoRule { body: graph.name.clone(), kind: "input", role: name.clone() };
        let ty = graph.ty(id).tensor().ok_or_else(missing)?.clone();
        let domain = match &graph.node(id).op {
            Op::Input { domain, .. } => *domain,
            _ => Domain::Normal,
        };
        Ok(index_of(&mut self.module.inputs, InputDecl { name, ty, domain }, |a, b| a.name == b.name))
    }

    /// Number of a call's result by its name.
    pub fn result(&self, call: u32, name: &str) -> Option<u32> {
        let body = self.module.calls.get(call as usize)?.body;
        let outputs = &self.module.bodies.get(body as usize)?.outputs;
        outputs.iter().position(|(n, _)| n == name).map(|i| i as u32)
    }

    /// Lets a result of a call leave the step under `name`, if the body has it.
    pub fn output(&mut self, call: u32, result: &str, name: String) {
        if let Some(output) = self.result(call, result) {
            self.module.outputs.push(ModuleOutput { name, call, output });
        }
    }

    pub fn finish(self, skip: SkipRules) -> Trunk {
        Trunk { module: self.module, body_taps: self.body_taps, body_lines: self.body_lines, skip }
    }
}

fn index_of<T>(list: &mut Vec<T>, item: T, same: impl Fn(&T, &T) -> bool) -> u32 {
    let at = list.iter().position(|x| same(x, &item)).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    });
    at as u32
}

/// Names of the checkpoint tensors that feed a module, without repetition.
pub fn source_names(module: &Module) -> BTreeSet<&str> {
    module.weights.iter().flat_map(|w| w.sources.iter().map(|s| s.tensor.as_str())).collect()
}
