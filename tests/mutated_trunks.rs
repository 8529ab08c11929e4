//! Trunks that no model has: the tiny model with its glue changed compiles with no rule and no kernel of its own, and
//! its bundle gives the interpreter's bits.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod trunks;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use trunks::{MODEL, gelu, glued, kept, layer_norm, mutate, names, no_gate, rewritten, set_body, trunk};
use unglue_ir::graph::ValueId;
use unglue_ir::interp::draw::Rng;
use unglue_ir::interp::value::round_to;
use unglue_ir::interp::{Batch, Data, States, Tensor, WeightRef, run_module};
use unglue_ir::module::{Arg, Module, WeightDecl};
use unglue_ir::types::{DType, StateKind};
use unglue_models::Activation;
use unglue_models::checkpoint::Checkpoint;
use unglue_models::safetensors::{SafeTensors, Stored, TensorOut, write};
use unglue_runtime::Bundle;

/// More than one chunk, more than one pool.
const IDS: [i32; 21] = [7, 3, 99, 250, 11, 12, 13, 200, 5, 64, 65, 1, 0, 255, 31, 77, 8, 9, 140, 141, 7];
const CHUNK: usize = 16;
const STEPS: usize = 4;

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

/// On which the bundle runs.
const CPU: &str = "x86-64";
/// Beside it code whose registers, waits and accesses the gates check.
const GATED: &str = "x86-64,gfx1201";

/// Compiles the module, verifies every kernel, and runs the bundle against the interpreter.
fn agrees(name: &str, m: &Module, weights: &Path, targets: &str) {
    unglue_ir::verify::module(m).unwrap_or_else(|e| panic!("{name}: {e}"));
    let folder = scratch(name);
    let path = |file: &str| folder.join(file).to_str().unwrap().to_string();
    let (ir, bundle, dump) = (path("x.ir"), path("x.ug"), path("x.safetensors"));
    std::fs::write(&ir, unglue_ir::text::print_module(m)).unwrap();
    unglue(name, &["compile", &ir, "-o", &bundle, "--target", targets, "--json"]);
    let few = unmutated_launches();
    assert!(
        launches(&bundle) <= few,
        "{name}: {} launches in a step of one row, {few} without the change",
        launches(&bundle)
    );
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

/// Launches of a step of one row.
fn launches(bundle: &str) -> usize {
    Bundle::open(Path::new(bundle)).unwrap().manifest().buckets[0].launches.len()
}

/// The same of the trunk as it is declared.
fn unmutated_launches() -> usize {
    static LAUNCHES: OnceLock<usize> = OnceLock::new();
    *LAUNCHES.get_or_init(|| {
        let bundle = scratch("unmutated").join("x.ug").to_str().unwrap().to_string();
        unglue("unmutated", &["compile", MODEL, "-o", &bundle, "--dtype", "f32", "--target", CPU, "--json"]);
        launches(&bundle)
    })
}

/// Logits of the given ids, a chunk and then one at a time, and what follows greedily.
fn interpreted(m: &Module, weights: &Path) -> (Vec<f32>, Vec<i32>) {
    let checkpoint = Checkpoint::open(weights).unwrap();
    let weight = |decl: &WeightDecl| {
        let shape: Vec<u64> = decl.ty.shape.iter().map(|d| d.fixed().unwrap()).collect();
        WeightRef::stored(decl.ty.format, &shape, checkpoint.weight(decl).unwrap(), checkpoint.scales(decl).unwrap())
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
    agrees("glue", &m, Path::new(MODEL), CPU);
}

#[test]
fn fewer_rounds_extra_glue_and_groups_of_experts() {
    let mut m = trunk(&[("hc_sinkhorn_iters", 3), ("n_group", 3), ("topk_group", 2)], Activation::F32);
    for (i, name) in names(&m).iter().enumerate() {
        let body = m.bodies.iter().find(|b| b.name == *name).unwrap();
        let new = glued(body, 40 + i as u64, 4);
        set_body(&mut m, name, new);
    }
    agrees("rounds", &m, Path::new(MODEL), CPU);
}

#[test]
fn two_streams_and_no_gate() {
    let mut m = trunk(&[("hc_mult", 2)], Activation::F32);
    mutate(&mut m, "kda", &mut no_gate);
    agrees("two", &m, &checkpoint_for("two", &m), CPU);
}

#[test]
fn six_streams_and_gelu() {
    let mut m = trunk(&[("hc_mult", 6)], Activation::F32);
    mutate(&mut m, "kda", &mut gelu);
    agrees("six", &m, &checkpoint_for("six", &m), GATED);
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
    agrees("bf16", &m, Path::new(MODEL), GATED);
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
