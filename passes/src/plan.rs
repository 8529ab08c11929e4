//! Launch lists and memory: from covers of bodies to one list of launches per bucket.
//!
//! In: a module, and for each bucket a cover of each body. Out: a [`Plan`]: distinct kernels with their parameters,
//! launches with resolved arguments, activations placed in one arena per bucket, taps. A step is the list in order; it
//! allocates nothing and asks nothing of the host.

use std::collections::BTreeMap;

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::module::{Arg as CallArg, Module};
use unglue_ir::op::Op;
use unglue_ir::types::{TensorType, Type};

use crate::arena;
use crate::carve::anonymous;
use crate::error::PassError;
use crate::facts::{Facts, Kind};
use crate::kernel::{BodyCover, Kernel};
use crate::names;
use crate::schedule::{Bucket, Schedule};
use crate::traffic::tensor_bytes;

/// What a kernel does to a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    Read,
    Write,
    ReadWrite,
}

/// What a parameter stands for in the kernel's graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    Input,
    Weight,
    State,
    Output,
}

/// A kernel parameter that holds a value of the kernel's graph. Step inputs (positions, tables) are the generator's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Leaf or output of the kernel's graph.
    pub name: String,
    pub role: Role,
    pub access: Access,
    pub ty: Type,
}

/// A distinct kernel: several bodies, calls and buckets may launch it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedKernel {
    pub kernel: Kernel,
    /// Leaves in node order, then outputs that are not states.
    pub params: Vec<Param>,
}

/// An activation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    pub name: String,
    pub ty: TensorType,
}

/// What a launch passes for a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arg {
    /// `Module::weights`.
    Weight(u32),
    /// `Module::states`.
    State(u32),
    /// `Plan::buffers`.
    Buffer(u32),
    /// `Module::inputs`.
    Input(u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// `Plan::kernels`.
    pub kernel: u32,
    /// One per parameter.
    pub args: Vec<Arg>,
    /// `Module::calls`.
    pub call: u32,
    /// Number of the kernel in its body's cover.
    pub in_cover: u32,
    pub layer: Option<u32>,
    /// `layer3.kda`, or the body's name.
    pub site: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketPlan {
    pub bucket: Bucket,
    pub logits_max: u32,
    pub launches: Vec<Launch>,
    /// Per buffer, first and last launch that need it; none if this bucket does not use it.
    pub live: Vec<Option<(u32, u32)>>,
    /// Per buffer, its place in the arena.
    pub offsets: Vec<Option<u64>>,
    pub arena_bytes: u64,
}

/// A named result of the step; its buffer keeps it to the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tap {
    pub name: String,
    pub buffer: u32,
    /// Per bucket, the launch after which it is valid.
    pub after_launch: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub kernels: Vec<PlannedKernel>,
    pub buffers: Vec<Buffer>,
    pub buckets: Vec<BucketPlan>,
    /// One per module output, in its order.
    pub taps: Vec<Tap>,
    /// Per module state: whether some kernel writes it.
    pub state_written: Vec<bool>,
}

/// Plans a module. `covers[i][b]` covers body b in `buckets[i]`; buckets ascend.
///
/// # Errors
/// [`PassError::Plan`] if covers and module do not fit together.
pub fn plan(module: &Module, covers: &[Vec<BodyCover>], buckets: &[Bucket]) -> Result<Plan, PassError> {
    if covers.len() != buckets.len() || covers.iter().any(|c| c.len() != module.bodies.len()) {
        let found = format!("{} cover lists for {} buckets", covers.len(), buckets.len());
        return Err(PassError::plan("plan-covers", &module.name, found, "cover each body in each bucket"));
    }
    let Some(first) = covers.first() else {
        return Err(PassError::plan("plan-buckets", &module.name, "no bucket", "give at least one"));
    };
    if covers.iter().any(|c| c.iter().zip(first).any(|(a, b)| a.body != b.body)) {
        return Err(PassError::plan(
            "plan-bodies",
            &module.name,
            "bodies differ between buckets",
            "extract each body once",
        ));
    }
    let facts: Vec<Facts> = first.iter().map(|c| Facts::new(&c.body)).collect();
    let mut planner = Planner {
        module,
        facts: &facts,
        sites: sites(module),
        kernels: Kernels::default(),
        buffers: vec![],
        known: BTreeMap::new(),
        state_written: vec![false; module.states.len()],
    };
    let mut plans = Vec::with_capacity(buckets.len());
    for (bucket, covers) in buckets.iter().zip(covers) {
        plans.push((*bucket, planner.launches(covers, bucket)?));
    }
    let taps = planner.taps(&plans)?;
    let mut done = Vec::with_capacity(plans.len());
    for (i, (bucket, launches)) in plans.into_iter().enumerate() {
        done.push(place(&planner, bucket, launches, &taps, i));
    }
    let state_written = planner.state_written;
    Ok(Plan { kernels: planner.kernels.list, buffers: planner.buffers, buckets: done, taps, state_written })
}

/// Where each call stands in the trunk, unique.
fn sites(module: &Module) -> Vec<String> {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let site = |call: &unglue_ir::module::Call| {
        let body = module.bodies.get(call.body as usize).map_or("body", |b| b.name.as_str());
        let base = call.layer.map_or_else(|| body.to_owned(), |l| format!("layer{l}.{body}"));
        let n = seen.entry(base.clone()).or_default();
        *n += 1;
        if *n == 1 { base } else { format!("{base}.{n}") }
    };
    module.calls.iter().map(site).collect()
}

/// Distinct kernels so far.
#[derive(Default)]
struct Kernels {
    list: Vec<PlannedKernel>,
    known: BTreeMap<String, Vec<(Graph, Schedule, u32)>>,
    names: BTreeMap<String, u32>,
}

impl Kernels {
    /// The number of a kernel; kernels that do the same work on different values are one.
    fn intern(&mut self, kernel: &Kernel, bucket: &Bucket) -> u32 {
        let graph = anonymous(&kernel.graph);
        // Graphs have no order; a cheap text key narrows the comparison.
        let key = format!("{}/{}/{}", graph.nodes.len(), graph.outputs.len(), kernel.schedule.describe());
        let same = self.known.entry(key).or_default();
        if let Some((_, _, n)) = same.iter().find(|(g, s, _)| *g == graph && *s == kernel.schedule) {
            // The same work may be declared in one body and rewritten in another.
            let known = &mut self.list[*n as usize].kernel.exactness;
            *known = kernel.exactness.max(*known);
            return *n;
        }
        let n = self.list.len() as u32;
        same.push((graph, kernel.schedule.clone(), n));
        let mut kernel = kernel.clone();
        kernel.name = self.unique(&kernel.name, bucket);
        kernel.graph.name = names::graph_name(&kernel.name);
        self.list.push(PlannedKernel { params: params(&kernel), kernel });
        n
    }

    /// The name itself; in a later bucket with the bucket's rows; else numbered.
    fn unique(&mut self, name: &str, bucket: &Bucket) -> String {
        let with_rows = format!("{name}_r{}", bucket.rows_max);
        for candidate in [name.to_owned(), with_rows] {
            if !self.names.contains_key(&candidate) {
                self.names.insert(candidate.clone(), 1);
                return candidate;
            }
        }
        let mut n = 2;
        loop {
            let candidate = format!("{}_y{n}", names::cut(name, names::MAX - 8));
            if !self.names.contains_key(&candidate) {
                self.names.insert(candidate.clone(), 1);
                return candidate;
            }
            n += 1;
        }
    }
}

fn params(kernel: &Kernel) -> Vec<Param> {
    let g = &kernel.graph;
    let written = |name: &str| g.outputs.iter().any(|(n, v)| n == name && g.ty(*v).state().is_some());
    let mut params = Vec::new();
    for node in &g.nodes {
        let (name, role, access) = match &node.op {
            Op::Input { name, .. } => (name, Role::Input, Access::Read),
            Op::Weight { name } => (name, Role::Weight, Access::Read),
            Op::State { name } if written(name) => (name, Role::State, Access::ReadWrite),
            Op::State { name } => (name, Role::State, Access::Read),
            _ => continue,
        };
        params.push(Param { name: name.clone(), role, access, ty: node.ty.clone() });
    }
    for (name, v) in g.outputs.iter().filter(|(_, v)| g.ty(*v).state().is_none()) {
        params.push(Param { name: name.clone(), role: Role::Output, access: Access::Write, ty: g.ty(*v).clone() });
    }
    params
}

struct Planner<'a> {
    module: &'a Module,
    facts: &'a [Facts<'a>],
    sites: Vec<String>,
    kernels: Kernels,
    buffers: Vec<Buffer>,
    /// Buffers by call and storage.
    known: BTreeMap<(u32, ValueId), u32>,
    state_written: Vec<bool>,
}

impl Planner<'_> {
    fn launches(&mut self, covers: &[BodyCover], bucket: &Bucket) -> Result<Vec<Launch>, PassError> {
        let mut launches = Vec::new();
        for (c, call) in self.module.calls.iter().enumerate() {
            let c = c as u32;
            let cover = covers.get(call.body as usize).ok_or_else(|| {
                PassError::plan(
                    "plan-call",
                    format!("call {c}"),
                    format!("body {}", call.body),
                    "call an existing body",
                )
            })?;
            for (k, kernel) in cover.kernels.iter().enumerate() {
                launches.push(Launch {
                    kernel: self.kernels.intern(kernel, bucket),
                    args: self.args(c, call.body, kernel)?,
                    call: c,
                    in_cover: k as u32,
                    layer: call.layer,
                    site: self.sites[c as usize].clone(),
                });
            }
        }
        Ok(launches)
    }

    /// Arguments in the order of [`params`]: reads are leaves in node order.
    fn args(&mut self, call: u32, body: u32, kernel: &Kernel) -> Result<Vec<Arg>, PassError> {
        let mut args = Vec::with_capacity(kernel.reads.len() + kernel.writes.len());
        for (_, v) in &kernel.reads {
            args.push(self.resolve(call, *v)?);
        }
        for (name, v) in &kernel.writes {
            let facts = &self.facts[body as usize];
            if facts.body.ty(*v).state().is_some() {
                if let Arg::State(s) = self.resolve(call, *v)? {
                    self.state_written[s as usize] = true;
                }
                continue;
            }
            let storage = facts.storage(*v);
            let Some(ty) = facts.body.ty(*v).tensor().cloned() else {
                return Err(PassError::plan("plan-output", &kernel.name, format!("`{name}` is no tensor"), "internal"));
            };
            let next = self.buffers.len() as u32;
            let n = *self.known.entry((call, storage)).or_insert(next);
            if n == next {
                self.buffers.push(Buffer { name: format!("{}.{name}", self.sites[call as usize]), ty });
            }
            args.push(Arg::Buffer(n));
        }
        Ok(args)
    }

    /// What holds a value of a call's body.
    fn resolve(&self, call: u32, value: ValueId) -> Result<Arg, PassError> {
        let missing = |found: String| PassError::plan("plan-value", format!("call {call}"), found, "internal");
        let decl = self.module.calls.get(call as usize).ok_or_else(|| missing("no such call".into()))?;
        let facts = &self.facts[decl.body as usize];
        let root = facts.storage(value);
        if let Some(role) = facts.role(root) {
            let at = facts.body.states().position(|(n, _)| n == role);
            let state = at.and_then(|i| decl.states.get(i));
            return state.map(|s| Arg::State(*s)).ok_or_else(|| missing(format!("no state `{role}`")));
        }
        if facts.kind(root) != Kind::Leaf {
            let known = self.known.get(&(call, root));
            return known.map(|b| Arg::Buffer(*b)).ok_or_else(|| missing(format!("%{} is never stored", root.0)));
        }
        match &facts.body.node(root).op {
            Op::Weight { name } => {
                let at = facts.body.weights().position(|(_, id)| id == root);
                let weight = at.and_then(|i| decl.weights.get(i));
                weight.map(|w| Arg::Weight(*w)).ok_or_else(|| missing(format!("no weight `{name}`")))
            }
            _ => {
                let at = facts.body.inputs().position(|(_, id)| id == root);
                match at.and_then(|i| decl.args.get(i)) {
                    Some(CallArg::Input(i)) => Ok(Arg::Input(*i)),
                    Some(CallArg::Result { call: from, output }) if *from < call => self.resolve_output(*from, *output),
                    _ => Err(missing(format!("%{} has no argument", root.0))),
                }
            }
        }
    }

    fn resolve_output(&self, call: u32, output: u32) -> Result<Arg, PassError> {
        let missing =
            || PassError::plan("plan-output", format!("call {call}"), format!("output {output}"), "name an output");
        let decl = self.module.calls.get(call as usize).ok_or_else(missing)?;
        let outputs = &self.facts[decl.body as usize].body.outputs;
        let (_, value) = outputs.get(output as usize).ok_or_else(missing)?;
        self.resolve(call, *value)
    }

    fn taps(&self, plans: &[(Bucket, Vec<Launch>)]) -> Result<Vec<Tap>, PassError> {
        let mut taps = Vec::with_capacity(self.module.outputs.len());
        for out in &self.module.outputs {
            let Arg::Buffer(buffer) = self.resolve_output(out.call, out.output)? else {
                let hint = "a result of the step must be computed by it";
                return Err(PassError::plan("plan-tap", &out.name, "not an activation", hint));
            };
            let mut after_launch = Vec::with_capacity(plans.len());
            for (_, launches) in plans {
                let at = launches.iter().position(|l| self.writes(l).any(|b| b == buffer));
                let at = at.ok_or_else(|| PassError::plan("plan-tap", &out.name, "never written", "internal"))?;
                after_launch.push(at as u32);
            }
            taps.push(Tap { name: out.name.clone(), buffer, after_launch });
        }
        Ok(taps)
    }

    /// Buffers that a launch writes.
    fn writes<'l>(&'l self, launch: &'l Launch) -> impl Iterator<Item = u32> + 'l {
        let params = &self.kernels.list[launch.kernel as usize].params;
        params.iter().zip(&launch.args).filter_map(|(p, a)| match a {
            Arg::Buffer(b) if p.access != Access::Read => Some(*b),
            _ => None,
        })
    }
}

/// Liveness and places of one bucket's buffers.
fn place(planner: &Planner, bucket: Bucket, launches: Vec<Launch>, taps: &[Tap], index: usize) -> BucketPlan {
    let mut live: Vec<Option<(u32, u32)>> = vec![None; planner.buffers.len()];
    for (i, launch) in launches.iter().enumerate() {
        let i = i as u32;
        for arg in &launch.args {
            if let Arg::Buffer(b) = arg {
                let range = &mut live[*b as usize];
                *range = Some(range.map_or((i, i), |(from, _)| (from, i)));
            }
        }
    }
    let end = launches.len().saturating_sub(1) as u32;
    for tap in taps {
        let from = tap.after_launch.get(index).copied().unwrap_or(0);
        live[tap.buffer as usize] = Some((from, end));
    }
    let sizes: Vec<u64> = planner.buffers.iter().map(|b| tensor_bytes(&b.ty, &bucket)).collect();
    let names: Vec<&str> = planner.buffers.iter().map(|b| b.name.as_str()).collect();
    let (offsets, arena_bytes) = arena::place(&live, &sizes, &names);
    BucketPlan { bucket, logits_max: bucket.rows_max, launches, live, offsets, arena_bytes }
}
