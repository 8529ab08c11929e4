//! Compares a rewritten body with the declared one (numerics P3, P4), value by value, in the interpreter.
//!
//! In: both forms, which declared value became which, and by what class. Out: how many values were compared, and the first
//! that is wrong. Both forms run on one draw. Each declared value that the rewritten form has is computed once more by its
//! declared op *on the rewritten form's operands*; operands that the rewritten form has no more are computed the declared
//! way. An exact value must have those bits. One of class `rounding` must lie in the declared op's bound with optional
//! casts, for which rounded operands are computed the declared way too; one of class `reassociating` in the sum of that
//! bound and of the rewritten form's.
//!
//! Bounds grow with the bounds of operands, so that values within such bounds give results within the bound of the whole
//! body, which is far wider: after a few contractions it would hold results of a wrong rewrite as well.

use std::collections::{BTreeMap, BTreeSet};

use unglue_ir::IrError;
use unglue_ir::graph::{Graph, Node, ValueId};
use unglue_ir::interp::bound::{BoundInputs, BoundOutputs, Bounded, BoundedTensor, Casts, accepts, eval_bounds};
use unglue_ir::interp::{Data, StateData, Tensor, eval_graph};
use unglue_ir::op::{Domain, Op};
use unglue_ir::types::{DType, Type};
use unglue_passes::Exactness;
use unglue_passes::saturate::SaturationStats;
use unglue_passes::schedule::Bucket;

use super::{Given, draw, first_difference};
use crate::error::CodegenError;

/// A body and what saturation made of it.
pub struct Rewrite<'a> {
    pub declared: &'a Graph,
    pub rewritten: &'a Graph,
    /// What became of each declared value, and by what class.
    pub stats: &'a SaturationStats,
}

/// What was compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compared {
    /// Values by class.
    pub values: BTreeMap<Exactness, u64>,
    /// Elements whose bound was infinite: nothing is known of them.
    pub unbounded: u64,
    pub wrong: Option<Departure>,
}

/// A value that is not what its class promises.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("body `{body}`, %{value} {op} (now %{now}), element {index}: {got}, {class:?} needs {needed}, seed {seed}")]
pub struct Departure {
    pub body: String,
    /// Number in the declared form.
    pub value: u32,
    pub op: &'static str,
    /// Number in the rewritten form.
    pub now: u32,
    pub class: Exactness,
    pub index: usize,
    pub got: String,
    pub needed: String,
    pub seed: u64,
}

/// What a value holds.
#[derive(Clone, Debug)]
enum Held {
    Tensor(Tensor),
    State(StateData),
}

/// Values of a form by their numbers.
type Values = BTreeMap<u32, Held>;

/// Compares the forms on the inputs of one seed.
///
/// # Errors
/// [`CodegenError::Check`] if a form cannot be interpreted.
pub fn check_rewrite(r: &Rewrite, bucket: &Bucket, seed: u64) -> Result<Compared, CodegenError> {
    let cannot = |e: IrError| CodegenError::Check { kernel: r.declared.name.clone(), found: e.to_string() };
    let drawn = draw::draw_all(r.declared, bucket, seed).map_err(cannot)?;
    compare(r, &drawn, seed).map_err(cannot)
}

fn compare(r: &Rewrite, drawn: &Given, seed: u64) -> Result<Compared, IrError> {
    let now = |v: ValueId| r.stats.became.get(v.index()).copied().flatten();
    let of_class = |wanted: Exactness| r.stats.loose.values().any(|c| *c == wanted);
    let kept: BTreeSet<u32> = r.declared.ids().filter_map(now).collect();
    let got = Cut::new(r.rewritten, &|_| None).values(drawn, &Values::new())?;
    let now = |v: ValueId| now(v).filter(|now| got.contains_key(now));
    let again = Cut::new(r.declared, &now);
    let bits = again.values(drawn, &got)?;
    let wide = Cut::new(r.declared, &|v| now(v).filter(|_| !is_narrow(r.declared, v)));
    let left = match r.stats.loose.is_empty() {
        true => BoundOutputs::default(),
        false => wide.bounds(drawn, &got, Casts::Optional)?,
    };
    let right = match of_class(Exactness::Reassociating) {
        true => Cut::new(r.rewritten, &|v| kept.contains(&v.0).then_some(v.0)).bounds(drawn, &got, Casts::Declared)?,
        false => BoundOutputs::default(),
    };
    let mut out = Compared::default();
    for v in r.declared.ids() {
        let (Some(now), Some(bits)) = (now(v), bits.get(&v.0)) else { continue };
        let Some(got) = got.get(&now) else { continue };
        let class = r.stats.loose.get(&v.0).copied().unwrap_or_default();
        *out.values.entry(class).or_default() += 1;
        let found = match class {
            Exactness::Exact => exact(got, bits),
            _ => {
                let right = (class == Exactness::Reassociating).then_some((&right, now));
                bounded(got, (&left, v.0), right, dtype(r.declared, v), &mut out.unbounded)
            }
        };
        if let Some((index, got, needed)) = found {
            let (body, op) = (r.declared.name.clone(), r.declared.node(v).op.name());
            out.wrong = Some(Departure { body, value: v.0, op, now, class, index, got, needed, seed });
            return Ok(out);
        }
    }
    out.wrong = left.wrong_selections.first().map(|(at, row, chosen)| {
        let value = wide.computed.iter().position(|c| c == at).unwrap_or_default() as u32;
        let (got, needed) = (format!("{chosen}"), "a choice that the bounds of the scores allow".into());
        let (body, op) = (r.declared.name.clone(), "selection in the row of this number");
        let (now, class) = (now(ValueId(value)).unwrap_or_default(), Exactness::Rounding);
        Departure { body, value, op, now, class, index: *row, got, needed, seed }
    });
    Ok(out)
}

/// Rounded values: a form may use one value both rounded and not, so that the bounds of what follows hold both.
fn is_narrow(g: &Graph, v: ValueId) -> bool {
    g.ty(v).tensor().is_some_and(|t| matches!(t.dtype(), Some(DType::Bf16 | DType::F16)))
}

fn dtype(g: &Graph, v: ValueId) -> DType {
    match g.ty(v) {
        Type::Tensor(t) => t.dtype().unwrap_or(DType::F32),
        Type::State(s) => s.dtype,
        Type::Tuple(_) => DType::F32,
    }
}

/// A wrong element: its index, what it is, what it must be.
type Wrong = Option<(usize, String, String)>;

fn exact(got: &Held, want: &Held) -> Wrong {
    let show = |d: &Data, i: usize| match d {
        Data::F32(v) => v.get(i).map_or_else(|| "nothing".into(), |x| format!("{x:e} ({:#010x})", x.to_bits())),
        Data::I32(v) => v.get(i).map_or_else(|| "nothing".into(), i32::to_string),
    };
    let (got, want) = (got.data(), want.data());
    first_difference(&got, &want, |_| true).map(|i| (i, show(&got, i), show(&want, i)))
}

fn bounded(
    got: &Held,
    (left, v): (&BoundOutputs, u32),
    right: Option<(&BoundOutputs, u32)>,
    dtype: DType,
    unbounded: &mut u64,
) -> Wrong {
    let Data::F32(got) = got.data() else { return None };
    let bounds = floats(left, v);
    let more = right.map(|(right, now)| floats(right, now)).unwrap_or_default();
    for (i, x) in got.iter().enumerate() {
        let Some(l) = bounds.get(i) else { return Some((i, format!("{x:e}"), "no such element".into())) };
        let b = Bounded { value: l.value, error: l.error + more.get(i).map_or(0.0, |r| r.error) };
        *unbounded += u64::from(b.error.is_infinite());
        if !accepts(&b, dtype, *x) {
            return Some((i, format!("{x:e}"), format!("{:e} +- {:e}", b.value, b.error)));
        }
    }
    None
}

/// Elements of a value's bound.
fn floats(of: &BoundOutputs, v: u32) -> Vec<Bounded> {
    let name = result(v);
    let tensor = of.tensors.get(&name).map(|t| t.floats().to_vec());
    tensor.or_else(|| of.states.get(&name).map(|s| s.slots().concat())).unwrap_or_default()
}

impl Held {
    fn data(&self) -> Data {
        match self {
            Held::Tensor(t) => t.data.clone(),
            Held::State(s) => Data::F32(s.slots().concat()),
        }
    }
}

/// Name of a value's result in a cut form, and of the leaf that stands in for it. Roles of bodies are words.
fn result(v: u32) -> String {
    format!("%{v}")
}

fn stand_in(v: u32) -> String {
    format!("%{v}.given")
}

/// A form whose values are results, and whose ops read given values in place of computed ones.
struct Cut {
    graph: Graph,
    /// Values with a stand-in: number here, number of the value that is given for it.
    given: Vec<(u32, u32)>,
    /// By number: the node that computes the value.
    computed: Vec<ValueId>,
}

impl Cut {
    /// `given` names what stands in for a value, if anything does. Glue on weights and constants is never given.
    fn new(g: &Graph, given: &dyn Fn(ValueId) -> Option<u32>) -> Cut {
        let mut cut = Cut {
            graph: Graph { name: g.name.clone(), bodies: g.bodies.clone(), ..Graph::default() },
            given: vec![],
            computed: vec![],
        };
        let mut read: Vec<ValueId> = Vec::new();
        let mut varies: Vec<bool> = Vec::new();
        for id in g.ids() {
            let node = g.node(id);
            let args = node.args.iter().map(|a| read[a.index()]).collect();
            let here = cut.push(Node { op: node.op.clone(), args, ty: node.ty.clone() });
            cut.computed.push(here);
            read.push(here);
            let leaf = matches!(node.op, Op::Input { .. } | Op::State { .. });
            varies.push(leaf || node.args.iter().any(|a| varies[a.index()]));
            if !varies[id.index()] || matches!(node.ty, Type::Tuple(_)) {
                continue;
            }
            cut.graph.outputs.push((result(id.0), here));
            let Some(from) = given(id).filter(|_| !leaf) else { continue };
            let (name, args) = (stand_in(id.0), vec![]);
            let op = match &node.ty {
                Type::State(_) => Op::State { name },
                _ => Op::Input { name, domain: Domain::Normal },
            };
            read[id.index()] = cut.push(Node { op, args, ty: node.ty.clone() });
            cut.given.push((id.0, from));
        }
        cut
    }

    fn push(&mut self, node: Node) -> ValueId {
        self.graph.nodes.push(node);
        ValueId(self.graph.nodes.len() as u32 - 1)
    }

    /// Inputs and states: those drawn, and what stands in.
    fn leaves(&self, drawn: &Given, values: &Values) -> (BTreeMap<String, Tensor>, BTreeMap<String, StateData>) {
        let (mut inputs, mut states) = (drawn.inputs.clone(), drawn.states.clone());
        for (v, from) in &self.given {
            match values.get(from) {
                Some(Held::Tensor(t)) => {
                    inputs.insert(stand_in(*v), t.clone());
                }
                Some(Held::State(s)) => {
                    states.insert(stand_in(*v), s.clone());
                }
                None => {}
            }
        }
        (inputs, states)
    }

    /// The bits of every value.
    fn values(&self, drawn: &Given, values: &Values) -> Result<Values, IrError> {
        let (inputs, mut states) = self.leaves(drawn, values);
        let weights = |name: &str| drawn.weight(name);
        let tensors = eval_graph(&self.graph, &inputs, &weights, &mut states, &drawn.batch, &mut |_, _| {})?;
        let number = |name: &str| name.strip_prefix('%').and_then(|n| n.parse::<u32>().ok());
        let tensors = tensors.into_iter().filter_map(|(n, t)| Some((number(&n)?, Held::Tensor(t))));
        Ok(tensors.chain(states.into_iter().filter_map(|(n, s)| Some((number(&n)?, Held::State(s))))).collect())
    }

    /// The bounds of every value.
    fn bounds(&self, drawn: &Given, values: &Values, casts: Casts) -> Result<BoundOutputs, IrError> {
        let (inputs, states) = self.leaves(drawn, values);
        let inputs = inputs.iter().map(|(n, t)| (n.clone(), BoundedTensor::exact(t))).collect();
        let mut bounded: BTreeMap<String, StateData<Bounded>> = BTreeMap::new();
        for (name, id) in self.graph.states() {
            let (Some(ty), Some(s)) = (self.graph.ty(id).state(), states.get(name)) else { continue };
            let mut new = StateData::new(ty, s.slots().len());
            for (to, from) in new.slots_mut().iter_mut().zip(s.slots()) {
                *to = from.iter().map(|x| Bounded::exact(*x)).collect();
            }
            bounded.insert(name.to_owned(), new);
        }
        let chosen = |(v, from): &(u32, u32)| match (&self.graph.node(self.computed[*v as usize]).op, values.get(from))
        {
            (Op::TopK { .. } | Op::IndexSelect { .. }, Some(Held::Tensor(t))) => {
                Some((self.computed[*v as usize], t.clone()))
            }
            _ => None,
        };
        let selections = self.given.iter().filter_map(chosen).collect();
        let given = BoundInputs {
            inputs: &inputs,
            weights: &|name| drawn.weight(name),
            states: &bounded,
            batch: &drawn.batch,
            selections: &selections,
            truncating: false,
            casts,
        };
        eval_bounds(&self.graph, &given)
    }
}
