//! The tiny model's trunk, and mutations of its glue.
#![allow(dead_code, reason = "each test takes its part")]

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use unglue_ir::IrError;
use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::interp::draw::Rng;
use unglue_ir::module::{Call, Module};
use unglue_ir::op::{Binary, Op, ReduceKind, Unary};
use unglue_ir::types::{DType, Dim, Type};
use unglue_models::Activation;
use unglue_models::config::FieldPolicy;
use unglue_models::glm5_next::{self, BuildOptions, Config};

pub const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");

pub type V = Result<ValueId, IrError>;

/// A value in place of the node `id`, whose operands are `args` now; `None` keeps the node.
pub type Rule<'a> = dyn FnMut(&mut Builder, &Graph, ValueId, &[ValueId]) -> Option<ValueId> + 'a;

/// Rebuilds a graph with `rule` applied to every node; values that nothing needs any more are left out.
pub fn rewritten(g: &Graph, rule: &mut Rule) -> Graph {
    pruned(&copied(g, &vec![true; g.nodes.len()], rule))
}

pub fn pruned(g: &Graph) -> Graph {
    let mut live = vec![false; g.nodes.len()];
    g.outputs.iter().for_each(|(_, v)| live[v.index()] = true);
    for id in g.ids().collect::<Vec<_>>().into_iter().rev() {
        if live[id.index()] {
            g.node(id).args.iter().for_each(|a| live[a.index()] = true);
        }
    }
    copied(g, &live, &mut |_, _, _, _| None)
}

pub fn copied(g: &Graph, wanted: &[bool], rule: &mut Rule) -> Graph {
    let mut b = Builder::new(&g.name);
    let mut new: Vec<Option<ValueId>> = vec![None; g.nodes.len()];
    for id in g.ids().filter(|id| wanted[id.index()]) {
        let args: Vec<ValueId> = g.node(id).args.iter().map(|a| new[a.index()].unwrap()).collect();
        let value = rule(&mut b, g, id, &args).unwrap_or_else(|| copy(&mut b, g, id, &args));
        new[id.index()] = Some(value);
    }
    for (name, v) in &g.outputs {
        b.output(name, new[v.index()].unwrap());
    }
    b.finish()
}

pub fn copy(b: &mut Builder, g: &Graph, id: ValueId, args: &[ValueId]) -> ValueId {
    match (&g.node(id).op, g.ty(id)) {
        (Op::Input { name, domain }, Type::Tensor(t)) => b.input(name, t.clone(), *domain),
        (Op::Weight { name }, Type::Tensor(t)) => b.weight(name, t.clone()),
        (Op::State { name }, Type::State(t)) => b.state(name, t.clone()),
        (Op::ConstF32(bits), _) => b.constant(f32::from_bits(*bits)),
        (Op::Repeat { body, count }, _) => {
            let body = b.body(g.bodies[*body as usize].clone());
            b.add(Op::Repeat { body, count: *count }, args).unwrap()
        }
        (op, _) => b.add(op.clone(), args).unwrap(),
    }
}

/// `id` as this op, with its operands.
pub fn is_op<'g>(g: &'g Graph, id: ValueId, op: &Op) -> Option<&'g [ValueId]> {
    (g.node(id).op == *op).then(|| g.node(id).args.as_slice())
}

pub fn with(b: &mut Builder, op: Binary, x: ValueId, c: f32) -> V {
    let c = b.constant(c);
    b.binary(op, x, c)
}

/// GELU in its tanh form for SiLU: x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)) for x * sigmoid(x).
pub fn gelu(b: &mut Builder, g: &Graph, id: ValueId, args: &[ValueId]) -> Option<ValueId> {
    let [x, s] = is_op(g, id, &Op::Binary(Binary::Mul))? else { return None };
    (is_op(g, *s, &Op::Unary(Unary::Sigmoid))? == [*x]).then_some(())?;
    let made = |b: &mut Builder, x: ValueId| -> V {
        let square = b.binary(Binary::Mul, x, x)?;
        let cube = b.binary(Binary::Mul, square, x)?;
        let cube = with(b, Binary::Mul, cube, 0.044_715)?;
        let inner = b.binary(Binary::Add, x, cube)?;
        let inner = with(b, Binary::Mul, inner, 1.595_769)?;
        let s = b.unary(Unary::Sigmoid, inner)?;
        b.binary(Binary::Mul, x, s)
    };
    Some(made(b, args[0]).unwrap())
}

/// LayerNorm for RMSNorm: x * rsqrt(mean(x^2) + eps) becomes the same of x - mean(x).
pub fn layer_norm(b: &mut Builder, g: &Graph, id: ValueId, args: &[ValueId]) -> Option<ValueId> {
    let [x, rho] = is_op(g, id, &Op::Binary(Binary::Mul))? else { return None };
    let [shifted] = is_op(g, *rho, &Op::Unary(Unary::Rsqrt))? else { return None };
    let [mean, eps] = is_op(g, *shifted, &Op::Binary(Binary::Add))? else { return None };
    let [sum, n] = is_op(g, *mean, &Op::Binary(Binary::Div))? else { return None };
    let Op::Reduce { kind: ReduceKind::Sum, axis, .. } = g.node(*sum).op else { return None };
    let square = g.node(*sum).args[0];
    (is_op(g, square, &Op::Binary(Binary::Mul))? == [*x, *x]).then_some(())?;
    let (Op::ConstF32(n), Op::ConstF32(eps)) = (&g.node(*n).op, &g.node(*eps).op) else { return None };
    let (n, eps) = (f32::from_bits(*n), f32::from_bits(*eps));
    let made = |b: &mut Builder, x: ValueId| -> V {
        let sum = b.sum(x, axis)?;
        let mean = with(b, Binary::Div, sum, n)?;
        let centred = b.binary(Binary::Sub, x, mean)?;
        let square = b.binary(Binary::Mul, centred, centred)?;
        let sum = b.sum(square, axis)?;
        let var = with(b, Binary::Div, sum, n)?;
        let shifted = with(b, Binary::Add, var, eps)?;
        let rho = b.unary(Unary::Rsqrt, shifted)?;
        b.binary(Binary::Mul, centred, rho)
    };
    Some(made(b, args[0]).unwrap())
}

/// Without the output gate: a * sigmoid(g) becomes a, for an a that is not g and no constant.
pub fn no_gate(_: &mut Builder, g: &Graph, id: ValueId, args: &[ValueId]) -> Option<ValueId> {
    let [a, s] = is_op(g, id, &Op::Binary(Binary::Mul))? else { return None };
    let gate = is_op(g, *s, &Op::Unary(Unary::Sigmoid))?;
    (gate != [*a] && !matches!(g.node(*a).op, Op::ConstF32(_))).then(|| args[0])
}

/// f32 values of rows that a body computes.
fn places(g: &Graph) -> Vec<ValueId> {
    let rows = |id: &ValueId| {
        let t = g.ty(*id).tensor();
        let leading = t.and_then(|t| t.shape.first()).is_some_and(|d| matches!(d, Dim::Rows | Dim::Logits));
        leading && t.and_then(|t| t.dtype()) == Some(DType::F32) && !matches!(g.node(*id).op, Op::Input { .. })
    };
    g.ids().filter(rows).collect()
}

/// Scales or clamps `count` f32 values of a body, at places that the seed names.
pub fn glued(g: &Graph, seed: u64, count: usize) -> Graph {
    let mut places = places(g);
    let mut rng = Rng::new(seed);
    let mut chosen = BTreeMap::new();
    for i in 0..count.min(places.len()) {
        chosen.insert(places.swap_remove(rng.below(places.len() as u64) as usize), i);
    }
    rewritten(g, &mut |b, g, id, args| {
        let kind = *chosen.get(&id)?;
        let x = copy(b, g, id, args);
        let glued = if kind % 2 == 0 {
            with(b, Binary::Mul, x, 0.8125)
        } else {
            with(b, Binary::Min, x, 0.75).and_then(|y| with(b, Binary::Max, y, -0.5))
        };
        Some(glued.unwrap())
    })
}

/// Replaces a body; calls lose what it has no use for any more.
pub fn set_body(m: &mut Module, name: &str, new: Graph) {
    let i = m.bodies.iter().position(|b| b.name == name).unwrap();
    let old = std::mem::replace(&mut m.bodies[i], new);
    assert_ne!(old, m.bodies[i], "{name}: the mutation found nothing to change");
    let new = &m.bodies[i];
    for call in m.calls.iter_mut().filter(|c| c.body as usize == i) {
        call.args = kept(old.inputs(), new.inputs(), &call.args);
        call.weights = kept(old.weights(), new.weights(), &call.weights);
        call.states = kept(old.states(), new.states(), &call.states);
    }
    drop_weights(m);
}

/// The part of a list parallel to `old` that is parallel to `new`.
pub fn kept<'g, T: Clone>(
    old: impl Iterator<Item = (&'g str, ValueId)>,
    new: impl Iterator<Item = (&'g str, ValueId)>,
    list: &[T],
) -> Vec<T> {
    let of: BTreeMap<&str, &T> = old.map(|(name, _)| name).zip(list).collect();
    new.map(|(name, _)| of[name].clone()).collect()
}

/// Weights that no call takes leave the module.
pub fn drop_weights(m: &mut Module) {
    let used = |i: usize, calls: &[Call]| calls.iter().any(|c| c.weights.contains(&(i as u32)));
    let keep: Vec<usize> = (0..m.weights.len()).filter(|i| used(*i, &m.calls)).collect();
    m.weights = keep.iter().map(|i| m.weights[*i].clone()).collect();
    for w in m.calls.iter_mut().flat_map(|c| &mut c.weights) {
        *w = keep.iter().position(|i| *i == *w as usize).unwrap() as u32;
    }
}

pub fn mutate(m: &mut Module, name: &str, rule: &mut Rule) {
    let body = m.bodies.iter().find(|b| b.name == name).unwrap();
    let new = rewritten(body, rule);
    set_body(m, name, new);
}

/// Bodies that compute f32 values of rows; a bf16 embedding alone has none.
pub fn names(m: &Module) -> Vec<String> {
    m.bodies.iter().filter(|b| !places(b).is_empty()).map(|b| b.name.clone()).collect()
}

/// The tiny model's trunk with changed config fields.
pub fn trunk(fields: &[(&str, u64)], dtype: Activation) -> Module {
    let text = std::fs::read_to_string(Path::new(MODEL).join("config.json")).unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    for (name, value) in fields {
        let field = json["text_config"].get_mut(*name).unwrap();
        assert_ne!(*field, Value::from(*value), "{name}");
        *field = (*value).into();
    }
    let config = Config::from_json(&json.to_string(), &FieldPolicy::default()).unwrap();
    glm5_next::trunk(&config, &BuildOptions { dtype, ..BuildOptions::default() }).unwrap().module
}
