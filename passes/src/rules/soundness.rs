//! Soundness of a rule by trial: random instances of its left side are evaluated against its right side by the reference
//! interpreter. Exact rules must give equal bits; others must stay within the bound of numerics P4.

use std::collections::BTreeMap;

use egg::Id;
use unglue_ir::builder::Builder;
use unglue_ir::error::IrError;
use unglue_ir::graph::{Graph, Node, ValueId};
use unglue_ir::infer::infer;
use unglue_ir::interp::bound::{BoundInputs, Bounded, BoundedTensor, Casts, accepts, eval_bounds};
use unglue_ir::interp::draw::Rng;
use unglue_ir::interp::{Batch, Tensor, WeightRef, eval_graph};
use unglue_ir::op::{Binary, Domain, Op, Unary};
use unglue_ir::types::{DType, Dim, TensorType, Type};

use super::{Rule, Term};
use crate::analysis::{Classes, View};
use crate::kernel::Exactness;
use crate::saturate::classes_of;

/// Rows of a sample's step.
const ROWS: usize = 3;

/// Values at which f32 identities break.
const SPECIAL: [f32; 22] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.1,
    -2.5,
    3.0,
    1e-45,
    -1e-45,
    1.1e-38,
    -3e-39,
    1.175_494_4e-38,
    16_777_217.0,
    1e-7,
    3e30,
    -1e38,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    1.003_906_2,
];

/// What an input of a sample holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    /// Special values and normal ones.
    Any,
    /// As `Any`, without what overflows when rounded.
    Moderate,
    /// Positive and finite.
    Positive,
    /// Normal numbers only.
    Tame,
}

/// Makes random left sides.
#[derive(Debug)]
pub struct Draw {
    builder: Builder,
    rng: Rng,
    fills: BTreeMap<String, Fill>,
}

/// An instance of a left side.
#[derive(Clone, Debug)]
pub struct Sample {
    graph: Graph,
    root: ValueId,
    fills: BTreeMap<String, Fill>,
}

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw { builder: Builder::new("sample"), rng: Rng::new(seed), fills: BTreeMap::new() }
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.rng.below(from.len() as u64) as usize].clone()
    }

    pub fn flip(&mut self) -> bool {
        self.rng.below(2) == 1
    }

    /// One of the special values.
    pub fn special(&mut self) -> f32 {
        self.pick(&SPECIAL)
    }

    fn input(&mut self, dtype: DType, shape: &[Dim], fill: Fill) -> ValueId {
        let name = format!("x{}", self.fills.len());
        self.fills.insert(name.clone(), fill);
        self.builder.input(&name, TensorType::plain(dtype, shape), Domain::Normal)
    }

    /// An input of any values: the same shape each time, so that inputs go together.
    pub fn activation(&mut self, dtype: DType) -> ValueId {
        self.input(dtype, &[Dim::Rows, Dim::Fixed(16)], Fill::Any)
    }

    pub fn tensor(&mut self, dtype: DType, shape: &[Dim]) -> ValueId {
        self.input(dtype, shape, Fill::Any)
    }

    /// Any values but those that overflow when rounded.
    pub fn moderate(&mut self) -> ValueId {
        self.input(DType::F32, &[Dim::Rows, Dim::Fixed(16)], Fill::Moderate)
    }

    pub fn positive(&mut self) -> ValueId {
        self.input(DType::F32, &[Dim::Rows, Dim::Fixed(16)], Fill::Positive)
    }

    /// Normal numbers, for rules whose bounds would be infinite otherwise.
    pub fn tame(&mut self, shape: &[Dim]) -> ValueId {
        self.input(DType::F32, shape, Fill::Tame)
    }

    pub fn weight(&mut self, shape: &[u64]) -> ValueId {
        let dims: Vec<Dim> = shape.iter().map(|n| Dim::Fixed(*n)).collect();
        self.builder.weight("w", TensorType::plain(DType::F32, dims))
    }

    pub fn constant(&mut self, x: f32) -> ValueId {
        self.builder.constant(x)
    }

    pub fn elementwise(&mut self) -> Op {
        self.pick(&[
            Op::Cast(DType::Bf16),
            Op::Cast(DType::F16),
            Op::Unary(Unary::Neg),
            Op::Unary(Unary::Exp),
            Op::Unary(Unary::Sigmoid),
        ])
    }

    pub fn binary(&mut self) -> Op {
        let all = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Min, Binary::Max];
        Op::Binary(self.pick(&all))
    }

    /// A reshape of an activation to flat, and one to another shape.
    pub fn reshapes(&mut self, x: ValueId) -> Option<(Op, Op)> {
        let shape = self.builder.shape(x);
        let last = shape.last().and_then(|d| d.fixed())?;
        let flat = vec![Dim::Rows, Dim::Fixed(1), Dim::Fixed(last)];
        Some((Op::Reshape(flat), Op::Reshape(vec![Dim::Rows, Dim::Fixed(4), Dim::Fixed(last / 4)])))
    }

    pub fn op(&mut self, op: Op, args: &[ValueId]) -> Option<ValueId> {
        self.builder.add(op, args).ok()
    }

    /// Adds the root.
    pub fn apply(&mut self, op: Op, args: &[ValueId]) -> Option<Sample> {
        let root = self.op(op, args)?;
        self.as_root(root)
    }

    pub fn as_root(&mut self, root: ValueId) -> Option<Sample> {
        self.builder.output("left", root);
        let graph = std::mem::take(&mut self.builder).finish();
        Some(Sample { graph, root, fills: self.fills.clone() })
    }
}

/// Why a rule is wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Unsound {
    pub rule: &'static str,
    pub found: String,
}

/// Tries a rule on `rounds` samples; how often it fired.
///
/// # Errors
/// The first sample on which left and right differ by more than the rule's class allows.
pub fn check(rule: &Rule, rounds: u64) -> Result<u64, Unsound> {
    let mut fired = 0;
    for seed in 0..rounds {
        let Some(sample) = (rule.sample)(&mut Draw::new(seed * 7919 + 1)) else {
            return Err(Unsound { rule: rule.name, found: "its sample is no valid graph".into() });
        };
        for right in right_sides(rule, &sample) {
            fired += 1;
            let wrong = |found: String| Unsound { rule: rule.name, found: format!("seed {seed}: {found}") };
            let graph = right.map_err(&wrong)?;
            compare(rule, &sample, &graph, seed).map_err(|e| wrong(e.to_string())).and_then(|bad| match bad {
                Some(found) => Err(wrong(found)),
                None => Ok(()),
            })?;
        }
    }
    Ok(fired)
}

/// The sample's graph with each right side as a second output.
fn right_sides(rule: &Rule, sample: &Sample) -> Vec<Result<Graph, String>> {
    let (classes, ids) = classes_of(&sample.graph);
    let root = ids[sample.root.index()];
    let view = View::exact(&classes);
    let terms: Vec<Term> = classes[root].nodes.iter().flat_map(|n| (rule.find)(view, n)).collect();
    terms.iter().map(|t| with_right(sample, t, &classes, &ids)).collect()
}

fn with_right(sample: &Sample, term: &Term, classes: &Classes, ids: &[Id]) -> Result<Graph, String> {
    let mut graph = sample.graph.clone();
    let right = build(&mut graph, term, classes, ids)?;
    if graph.ty(right) != graph.ty(sample.root) {
        return Err(format!("type {} became {}", graph.ty(sample.root), graph.ty(right)));
    }
    graph.outputs.push(("right".into(), right));
    Ok(graph)
}

fn build(graph: &mut Graph, term: &Term, classes: &Classes, ids: &[Id]) -> Result<ValueId, String> {
    match term {
        Term::Class(id) => {
            let at = ids.iter().position(|i| classes.find(*i) == classes.find(*id));
            at.map(|i| ValueId(i as u32)).ok_or_else(|| "a class outside the sample".into())
        }
        Term::Node(op, args) => {
            let args = args.iter().map(|a| build(graph, a, classes, ids)).collect::<Result<Vec<_>, _>>()?;
            let types: Vec<&Type> = args.iter().map(|a| graph.ty(*a)).collect();
            let ty = infer(op, &types, &graph.bodies).map_err(|e| e.to_string())?;
            graph.nodes.push(Node { op: op.clone(), args, ty });
            Ok(ValueId(graph.nodes.len() as u32 - 1))
        }
    }
}

fn value(rng: &mut Rng, fill: Fill) -> f32 {
    let special = SPECIAL[rng.below(SPECIAL.len() as u64) as usize];
    match fill {
        Fill::Any if rng.below(2) == 0 => special,
        Fill::Moderate if special.abs() < 1e38 && rng.below(2) == 0 => special,
        Fill::Positive => (rng.normal() * 6.0).exp2(),
        _ => rng.normal() * 4.0,
    }
}

fn draw_inputs(sample: &Sample, rng: &mut Rng) -> BTreeMap<String, Tensor> {
    let mut inputs = BTreeMap::new();
    for (name, id) in sample.graph.inputs() {
        let fill = sample.fills.get(name).copied().unwrap_or(Fill::Any);
        let Some(t) = sample.graph.ty(id).tensor() else { continue };
        let extent = |d: &Dim| match d {
            Dim::Fixed(n) => *n as usize,
            _ => ROWS,
        };
        let shape: Vec<usize> = t.shape.iter().map(extent).collect();
        let n: usize = shape.iter().product();
        let values = (0..n).map(|_| value(rng, fill)).collect();
        inputs.insert(name.to_owned(), Tensor::float(t.dtype().unwrap_or(DType::F32), &shape, values));
    }
    inputs
}

/// What differs between the outputs `left` and `right`, if anything does.
fn compare(rule: &Rule, sample: &Sample, graph: &Graph, seed: u64) -> Result<Option<String>, IrError> {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let inputs = draw_inputs(sample, &mut rng);
    let batch = Batch::new(&[(0, 0, ROWS)], 0);
    let weights = |role: &str| -> Result<WeightRef<'static>, IrError> {
        let found = graph.weights().find(|(n, _)| *n == role).and_then(|(_, id)| graph.ty(id).tensor());
        let shape: Vec<u64> = found.map(|t| t.shape.iter().filter_map(|d| d.fixed()).collect()).unwrap_or_default();
        let mut rng = Rng::new(99);
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.normal()).collect();
        WeightRef::from_f32(DType::F32, &shape, &values)
    };
    let got = eval_graph(graph, &inputs, &weights, &mut BTreeMap::new(), &batch, &mut |_, _| {})?;
    let (Some(left), Some(right)) = (got.get("left"), got.get("right")) else {
        return Ok(Some("a side has no value".into()));
    };
    if rule.class == Exactness::Exact {
        return Ok(first_difference(left, right));
    }
    let exact: BTreeMap<String, BoundedTensor> =
        inputs.iter().map(|(n, t)| (n.clone(), BoundedTensor::exact(t))).collect();
    let (states, selections, truncating) = (BTreeMap::new(), BTreeMap::new(), false);
    let (weights, batch, states, selections) = (&weights, &batch, &states, &selections);
    let given = |casts| BoundInputs { inputs: &exact, weights, states, batch, selections, truncating, casts };
    if rule.class == Exactness::Rounding {
        let ideal = eval_bounds(&unrounded(graph)?, &given(Casts::Declared))?.tensors;
        let bound = eval_bounds(graph, &given(Casts::Optional))?.tensors;
        let (Some(ideal), Some(bound)) = (ideal.get("left"), bound.get("left")) else {
            return Ok(Some("left has no bound".into()));
        };
        return Ok(farther(ideal, left, right).or_else(|| outside(bound, None, right)));
    }
    let bounds = eval_bounds(graph, &given(Casts::Declared))?.tensors;
    let (Some(l), Some(r)) = (bounds.get("left"), bounds.get("right")) else {
        return Ok(Some("a side has no bound".into()));
    };
    Ok(outside(l, Some(r), right))
}

/// The left side alone, with its casts to narrow dtypes taken out: what its roundings are measured against.
fn unrounded(graph: &Graph) -> Result<Graph, IrError> {
    let mut g = graph.clone();
    for i in 0..g.nodes.len() {
        let node = g.nodes[i].clone();
        if matches!(node.op, Op::Input { .. } | Op::Weight { .. } | Op::State { .. }) {
            continue;
        }
        let op = if matches!(node.op, Op::Cast(_)) { Op::Cast(DType::F32) } else { node.op };
        let types: Vec<&Type> = node.args.iter().map(|a| g.ty(*a)).collect();
        let ty = infer(&op, &types, &g.bodies)?;
        g.nodes[i] = Node { op, args: node.args, ty };
    }
    g.outputs.retain(|(name, _)| name == "left");
    Ok(g)
}

/// A rounding rule removes a rounding or moves it toward higher precision: the right side is no farther from the value
/// without the declared roundings than the left side is, but for f32 roundings of its own.
fn farther(ideal: &BoundedTensor, left: &Tensor, right: &Tensor) -> Option<String> {
    for (i, ((u, l), x)) in ideal.floats().iter().zip(left.floats()).zip(right.floats()).enumerate() {
        let own = f64::from(x.abs()) * 2f64.powi(-23) + f64::from(f32::from_bits(1));
        let near = (f64::from(*x) - u.value).abs() <= (f64::from(*l) - u.value).abs() + u.error + own;
        let same = x == l || x.is_nan() && l.is_nan() || accepts(u, right.dtype, *x);
        if !near && !same {
            return Some(format!("element {i}: {x:e} is farther from {:e} than {l:e}", u.value));
        }
    }
    None
}

fn first_difference(left: &Tensor, right: &Tensor) -> Option<String> {
    if left.dtype != right.dtype || left.shape != right.shape || left.ints() != right.ints() {
        return Some("types or integers differ".into());
    }
    let equal = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    let at = left.floats().iter().zip(right.floats()).position(|(a, b)| !equal(*a, *b))?;
    Some(format!("element {at}: left {:e}, right {:e}", left.floats()[at], right.floats()[at]))
}

/// Bound of a rewrite (P4): the left side's; of a reassociating one, the sum of both sides'.
fn outside(left: &BoundedTensor, right: Option<&BoundedTensor>, got: &Tensor) -> Option<String> {
    for (i, (l, x)) in left.floats().iter().zip(got.floats()).enumerate() {
        let more = right.and_then(|r| r.floats().get(i)).map_or(0.0, |r| r.error);
        let bound = Bounded { value: l.value, error: l.error + more };
        if !accepts(&bound, got.dtype, *x) {
            return Some(format!("element {i}: {x:e} outside {:e} +- {:e}", bound.value, bound.error));
        }
    }
    None
}
