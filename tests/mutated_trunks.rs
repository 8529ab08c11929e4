//! Trunks that no model has: the tiny model with its glue changed compiles with no rule and no kernel of its own, and
//! its bundle gives the interpreter's bits.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use unglue_ir::IrError;
use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::interp::draw::Rng;
use unglue_ir::interp::value::round_to;
use unglue_ir::interp::{Batch, Data, States, Tensor, WeightRef, run_module};
use unglue_ir::module::{Arg, Call, Module, WeightDecl};
use unglue_ir::op::{Binary, Op, ReduceKind, Unary};
use unglue_ir::types::{DType, Dim, StateKind, Type};
use unglue_models::Activation;
use unglue_models::checkpoint::Checkpoint;
use unglue_models::config::FieldPolicy;
use unglue_models::glm5_next::{self, BuildOptions, Config};
use unglue_models::safetensors::{SafeTensors, Stored, TensorOut, write};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");
/// More than one chunk, more than one pool.
const IDS: [i32; 21] = [7, 3, 99, 250, 11, 12, 13, 200, 5, 64, 65, 1, 0, 255, 31, 77, 8, 9, 140, 141, 7];
const CHUNK: usize = 16;
const STEPS: usize = 4;

// Graphs.

type V = Result<ValueId, IrError>;

/// A value in place of the node `id`, whose operands are `args` now; `None` keeps the node.
type Rule<'a> = dyn FnMut(&mut Builder, &Graph, ValueId, &[ValueId]) -> Option<ValueId> + 'a;

/// Rebuilds a graph with `rule` applied to every node; values that nothing needs any more are left out.
fn rewritten(g: &Graph, rule: &mut Rule) -> Graph {
    pruned(&copied(g, &vec![true; g.nodes.len()], rule))
}

fn pruned(g: &Graph) -> Graph {
    let mut live = vec![false; g.nodes.len()];
    g.outputs.iter().for_each(|(_, v)| live[v.index()] = true);
    for id in g.ids().collect::<Vec<_>>().into_iter().rev() {
        if live[id.index()] {
            g.node(id).args.iter().for_each(|a| live[a.index()] = true);
        }
    }
    copied(g, &live, &mut |_, _, _, _| None)
}

fn copied(g: &Graph, wanted: &[bool], rule: &mut Rule) -> Graph {
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

fn copy(b: &mut Builder, g: &Graph, id: ValueId, args: &[ValueId]) -> ValueId {
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
fn is_op<'g>(g: &'g Graph, id: ValueId, op: &Op) -> Option<&'g [ValueId]> {
    (g.node(id).op == *op).then(|| g.node(id).args.as_slice())
}

fn with(b: &mut Builder, op: Binary, x: ValueId, c: f32) -> V {
    let c = b.constant(c);
    b.binary(op, x, c)
}

/// GELU in its tanh form for SiLU: x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)) for x * sigmoid(x).
fn gelu(b: &mut Builder, g: &Graph, id: ValueId, args: &[ValueId]) -> Option<ValueId> {
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
fn layer_norm(b: &mut Builder, g: &Graph, id: ValueId, args: &[ValueId]) -> Option<ValueId> {
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
fn no_gate(_: &mut Builder, g: &Graph, id: ValueId, args: &[ValueId]) -> Option<ValueId> {
    let [a, s] = is_op(g, id, &Op::Binary(Binary::Mul))? else { return None };
    let gate = is_op(g, *s, &Op::Unary(Unary::Sigmoid))?;
    (gate != [*a] && !matches!(g.node(*a).op, Op::ConstF32(_))).then(|| args[0])
}

/// Scales or clamps `count` f32 values of a body, at places that the seed names.
fn glued(g: &Graph, seed: u64, count: usize) -> Graph {
    let rows = |id: &ValueId| {
        let t = g.ty(*id).tensor();
        let leading = t.and_then(|t| t.shape.first()).is_some_and(|d| matches!(d, Dim::Rows | Dim::Logits));
        leading && t.and_then(|t| t.dtype()) == Some(DType::F32) && !matches!(g.node(*id).op, Op::Input { .. })
    };
    let mut places: Vec<ValueId> = g.ids().filter(rows).collect();
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

// Modules.

/// Replaces a body; calls lose what it has no use for any more.
fn set_body(m: &mut Module, name: &str, new: Graph) {
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
fn kept<'g, T: Clone>(
    old: impl Iterator<Item = (&'g str, ValueId)>,
    new: impl Iterator<Item = (&'g str, ValueId)>,
    list: &[T],
) -> Vec<T> {
    let of: BTreeMap<&str, &T> = old.map(|(name, _)| name).zip(list).collect();
    new.map(|(name, _)| of[name].clone()).collect()
}

/// Weights that no call takes leave the module.
fn drop_weights(m: &mut Module) {
    let used = |i: usize, calls: &[Call]| calls.iter().any(|c| c.weights.contains(&(i as u32)));
    let keep: Vec<usize> = (0..m.weights.len()).filter(|i| used(*i, &m.calls)).collect();
    m.weights = keep.iter().map(|i| m.weights[*i].clone()).collect();
    for w in m.calls.iter_mut().flat_map(|c| &mut c.weights) {
        *w = keep.iter().position(|i| *i == *w as usize).unwrap() as u32;
    }
}

fn mutate(m: &mut Module, name: &str, rule: &mut Rule) {
    let body = m.bodies.iter().find(|b| b.name == name).unwrap();
    let new = rewritten(body, rule);
    set_body(m, name, new);
}

fn names(m: &Module) -> Vec<String> {
    m.bodies.iter().map(|b| b.name.clone()).collect()
}

/// The tiny model's trunk with changed config fields.
fn trunk(fields: &[(&str, u64)], dtype: Activation) -> Module {
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

// Compiling, running, comparing.

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutated_trunks").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs a command that must succeed; its standard output.
fn unglue(what: &str, args: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_unglue")).args(args).output().unwrap();
    let text = [String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr)].concat();
    assert!(done.status.success(), "{what}: unglue {}:\n{text}", args.join(" "));
    String::from_utf8(done.stdout).unwrap()
}

/// Compiles the module for both targets, verifies every kernel, and runs the bundle against the interpreter.
fn agrees(name: &str, m: &Module, weights: &Path) {
    unglue_ir::verify::module(m).unwrap_or_else(|e| panic!("{name}: {e}"));
    let folder = scratch(name);
    let path = |file: &str| folder.join(file).to_str().unwrap().to_string();
    let (ir, bundle, dump) = (path("x.ir"), path("x.ug"), path("x.safetensors"));
    std::fs::write(&ir, unglue_ir::text::print_module(m)).unwrap();
    unglue(name, &["compile", &ir, "-o", &bundle, "--target", "x86-64,gfx1201", "--json"]);
    unglue(name, &["verify", &bundle, "--device", "cpu", "--draws", "1"]);
    let ids = IDS.map(|i| i.to_string()).join(",");
    let (steps, single, weights_arg) = (STEPS.to_string(), CHUNK.to_string(), weights.to_str().unwrap());
    let feed = ["--ids", &ids, "--decode-from", &single, "--steps", &steps, "--dump", &dump, "--json"];
    let said = unglue(name, &[&["run", &bundle, "--weights", weights_arg][..], &feed].concat());
    let said: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    let file = SafeTensors::open(Path::new(&dump)).unwrap();
    let got = file.tensor("logits").unwrap();
    let (want, generated) = interpreted(m, weights);
    assert_eq!(said["ids"], Value::from(generated), "{name}: generated ids");
    assert_eq!(got.dtype, Stored::F32, "{name}");
    let got: Vec<u32> = got.bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(got.len(), want.len(), "{name}");
    let wrong = got.iter().zip(&want).position(|(a, b)| *a != b.to_bits());
    assert_eq!(wrong, None, "{name}: first wrong logit");
    assert!(want.iter().all(|x| x.is_finite()) && want.iter().any(|x| *x != want[0]), "{name}: logits say nothing");
}

/// Logits of the given ids, a chunk and then one at a time, and what follows greedily.
fn interpreted(m: &Module, weights: &Path) -> (Vec<f32>, Vec<i32>) {
    let checkpoint = Checkpoint::open(weights).unwrap();
    let weight = |decl: &WeightDecl| {
        let shape: Vec<u64> = decl.ty.shape.iter().map(|d| d.fixed().unwrap()).collect();
        WeightRef::new(decl.ty.dtype().unwrap(), &shape, checkpoint.weight(decl).unwrap())
    };
    let pool = m.states.iter().find_map(|s| match s.ty.kind {
        StateKind::Pool { pool, .. } => Some(pool as usize),
        _ => None,
    });
    let mut states = States::new(&m.states, 1);
    let (mut logits, mut generated) = (Vec::new(), Vec::new());
    let mut fed = 0;
    let given = std::iter::once(&IDS[..CHUNK]).chain(IDS[CHUNK..].chunks(1)).map(|c| Some(c.to_vec()));
    for chunk in given.chain((1..STEPS).map(|_| None)) {
        let chunk = chunk.unwrap_or_else(|| generated[generated.len() - 1..].to_vec());
        let n = chunk.len();
        let batch = Batch::new(&[(0, fed, n)], pool.unwrap());
        let mut inputs = BTreeMap::from([
            ("ids".to_string(), Tensor::i32(&[n], chunk)),
            ("logit_rows".to_string(), Tensor::i32(&[n], (0..n as i32).collect())),
        ]);
        for decl in m.inputs.iter().filter(|d| !inputs.contains_key(&d.name)).cloned().collect::<Vec<_>>() {
            let experts = decl.ty.shape[0].fixed().unwrap() as usize;
            inputs.insert(decl.name, Tensor::i32(&[experts], (0..experts as i32).collect()));
        }
        let out = run_module(m, &inputs, &weight, &mut states, &batch, &mut |_, _, _| {}).unwrap();
        let Data::F32(rows) = &out["logits"].data else { panic!("logits are floats") };
        fed += n;
        if fed <= IDS.len() {
            logits.extend_from_slice(rows);
        }
        if fed >= IDS.len() {
            generated.push(*out["argmax"].ints().last().unwrap());
        }
    }
    (logits, generated)
}

/// A random checkpoint for a module, in a folder of its own.
fn checkpoint_for(name: &str, m: &Module) -> PathBuf {
    let mut rng = Rng::new(m.weights.len() as u64);
    let mut tensors: BTreeMap<&str, (DType, &[u64], Vec<u8>)> = BTreeMap::new();
    for s in m.weights.iter().flat_map(|w| &w.sources) {
        tensors.entry(&s.tensor).or_insert_with(|| (s.dtype, &s.shape, random(&mut rng, s.dtype, &s.shape)));
    }
    let list: Vec<TensorOut> = tensors
        .iter()
        .map(|(name, (dtype, shape, bytes))| TensorOut { name, dtype: Stored::of(*dtype), shape, bytes })
        .collect();
    let folder = scratch(&format!("{name}.checkpoint"));
    write(&folder.join("model.safetensors"), &list).unwrap();
    folder
}

/// Vectors near 1, matrices near 0.
fn random(rng: &mut Rng, dtype: DType, shape: &[u64]) -> Vec<u8> {
    let scale = 1.0 / (*shape.last().unwrap() as f32).sqrt();
    let middle = if shape.len() == 1 { 0.5 } else { 0.0 };
    let values = (0..shape.iter().product::<u64>()).map(|_| round_to(dtype, middle + rng.normal() * scale));
    match dtype {
        DType::Bf16 => values.flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect(),
        DType::F32 => values.flat_map(|x| x.to_le_bytes()).collect(),
        other => panic!("{other:?} in the tiny model"),
    }
}

#[test]
fn other_activation_and_norm() {
    let mut m = trunk(&[], Activation::F32);
    for name in ["kda", "dense", "moe"] {
        mutate(&mut m, name, &mut gelu);
    }
    mutate(&mut m, "dense", &mut layer_norm);
    // GELU is a gated value too: the convolution is left without an activation, the norm without its gate.
    let weights = m.weights.len();
    mutate(&mut m, "kda", &mut no_gate);
    assert!(m.weights.len() < weights, "the gate's projections are still there");
    agrees("glue", &m, Path::new(MODEL));
}

#[test]
fn fewer_rounds_and_extra_glue() {
    let mut m = trunk(&[("hc_sinkhorn_iters", 3)], Activation::F32);
    for (i, name) in names(&m).iter().enumerate() {
        let body = m.bodies.iter().find(|b| b.name == *name).unwrap();
        let new = glued(body, 40 + i as u64, 4);
        set_body(&mut m, name, new);
    }
    agrees("rounds", &m, Path::new(MODEL));
}

#[test]
fn two_streams_and_no_gate() {
    let mut m = trunk(&[("hc_mult", 2)], Activation::F32);
    mutate(&mut m, "kda", &mut no_gate);
    agrees("two", &m, &checkpoint_for("two", &m));
}

#[test]
fn six_streams_and_gelu() {
    let mut m = trunk(&[("hc_mult", 6)], Activation::F32);
    mutate(&mut m, "kda", &mut gelu);
    agrees("six", &m, &checkpoint_for("six", &m));
}

#[test]
fn all_of_it_in_bf16() {
    let mut m = trunk(&[("hc_sinkhorn_iters", 1)], Activation::Bf16);
    for (i, name) in names(&m).iter().enumerate() {
        let body = m.bodies.iter().find(|b| b.name == *name).unwrap();
        let new = glued(&rewritten(body, &mut gelu), 7 + i as u64, 3);
        set_body(&mut m, name, new);
    }
    mutate(&mut m, "dsa", &mut layer_norm);
    agrees("bf16", &m, Path::new(MODEL));
}

#[test]
fn unused_arguments_are_noticed() {
    // The helper that calls rely on: lists follow the roles, not the order of nodes.
    let list = kept(
        [("a", ValueId(0)), ("b", ValueId(1))].into_iter(),
        [("b", ValueId(0))].into_iter(),
        &[Arg::Input(4), Arg::Input(5)],
    );
    assert_eq!(list, [Arg::Input(5)]);
}
