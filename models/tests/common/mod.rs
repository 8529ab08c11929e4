//! What the golden tests share: the golden files, errors relative to them, and runs of graphs and trunks.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;
use unglue_ir::IrError;
use unglue_ir::graph::Graph;
use unglue_ir::interp::{Batch, StateData, States, Tensor, WeightRef, eval_graph, run_module};
use unglue_ir::module::WeightDecl;
use unglue_ir::types::{DType, StateType};
use unglue_models::checkpoint::Checkpoint;
use unglue_models::config::FieldPolicy;
use unglue_models::glm5_next::{BuildOptions, Config, trunk};
use unglue_models::safetensors::{SafeTensors, Stored};
use unglue_models::{Activation, Trunk};

/// A path below `tests/golden`, for tests of this package and of the workspace's root.
pub fn golden(path: &str) -> PathBuf {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let here = package.join("tests/golden");
    if here.is_dir() { here.join(path) } else { package.join("../tests/golden").join(path) }
}

/// A golden safetensors file.
pub struct Golden(SafeTensors);

impl Golden {
    pub fn open(path: &str) -> Golden {
        Golden(SafeTensors::open(&golden(path)).unwrap())
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.tensor(name).is_some()
    }

    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.0.tensor(name).unwrap_or_else(|| panic!("{name}")).shape.iter().map(|&d| d as usize).collect()
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        let t = self.0.tensor(name).unwrap_or_else(|| panic!("{name}"));
        match t.dtype {
            Stored::F32 => t.bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
            Stored::Bf16 => t
                .bytes
                .chunks_exact(2)
                .map(|b| f32::from_bits(u32::from(u16::from_le_bytes(b.try_into().unwrap())) << 16))
                .collect(),
            other => panic!("{name} is {other}"),
        }
    }

    pub fn ints(&self, name: &str) -> Vec<i32> {
        let t = self.0.tensor(name).unwrap_or_else(|| panic!("{name}"));
        match t.dtype {
            Stored::I32 => t.bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect(),
            Stored::I64 => t.bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as i32).collect(),
            other => panic!("{name} is {other}"),
        }
    }

    /// As an f32 tensor of its own shape.
    pub fn tensor(&self, name: &str) -> Tensor {
        Tensor::f32(&self.shape(name), self.floats(name))
    }

    /// As an f32 tensor of another shape.
    pub fn viewed(&self, name: &str, shape: &[usize]) -> Tensor {
        Tensor::f32(shape, self.floats(name))
    }

    /// As a weight in its stored dtype, with another shape.
    pub fn weight(&self, name: &str, shape: &[u64]) -> WeightRef<'_> {
        let t = self.0.tensor(name).unwrap_or_else(|| panic!("{name}"));
        WeightRef::new(t.dtype.ir().unwrap(), shape, t.bytes).unwrap()
    }
}

/// |a - b| / |b| over whole tensors.
pub fn rel(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let (mut err, mut norm) = (0.0f64, 0.0f64);
    for (&x, &y) in a.iter().zip(b) {
        err += (f64::from(x) - f64::from(y)).powi(2);
        norm += f64::from(y).powi(2);
    }
    if err == 0.0 { 0.0 } else { (err / norm.max(1e-300)).sqrt() }
}

/// Largest errors seen, per kind of tensor.
#[derive(Default)]
pub struct Errors(BTreeMap<String, (f64, f64)>);

impl Errors {
    /// Records an error under a kind and fails if it exceeds what the specification accepts.
    pub fn check(&mut self, kind: &str, what: &str, a: &[f32], b: &[f32], accept: f64) {
        let e = rel(a, b);
        let entry = self.0.entry(kind.into()).or_insert((0.0, accept));
        entry.0 = entry.0.max(e);
        assert!(e <= accept, "{what}: {e:.2e}, accepted {accept:.0e}");
    }

    pub fn print(&self, title: &str) {
        for (kind, (e, accept)) in &self.0 {
            println!("{title:24} {kind:20} {e:.2e} (accept {accept:.0e})");
        }
    }
}

/// Evaluates a graph.
pub struct Eval<'a> {
    pub weights: BTreeMap<String, WeightRef<'a>>,
    pub states: BTreeMap<String, StateData>,
}

impl<'a> Eval<'a> {
    /// Zero states with one slot for a graph, and these weights.
    pub fn new(g: &Graph, weights: impl IntoIterator<Item = (&'static str, WeightRef<'a>)>) -> Eval<'a> {
        let types = g.states().map(|(n, id)| (n.to_string(), g.ty(id).state().unwrap().clone()));
        let states = types.map(|(n, ty): (String, StateType)| (n, StateData::new(&ty, 1))).collect();
        Eval { weights: weights.into_iter().map(|(n, w)| (n.to_string(), w)).collect(), states }
    }

    pub fn run(&mut self, g: &Graph, inputs: Vec<(&str, Tensor)>, batch: &Batch) -> BTreeMap<String, Tensor> {
        let inputs = inputs.into_iter().map(|(n, t)| (n.to_string(), t)).collect();
        let weights = |name: &str| -> Result<WeightRef<'a>, IrError> {
            Ok(self.weights.get(name).unwrap_or_else(|| panic!("no weight {name}")).clone())
        };
        eval_graph(g, &inputs, &weights, &mut self.states, batch, &mut |_, _| {}).unwrap()
    }

    pub fn state(&self, name: &str) -> &[f32] {
        &self.states[name].slots()[0]
    }
}

/// Rows `a..b` of a tensor.
pub fn rows(t: &Tensor, a: usize, b: usize) -> Tensor {
    let width: usize = t.shape[1..].iter().product();
    let mut shape = t.shape.clone();
    shape[0] = b - a;
    Tensor { dtype: t.dtype, shape, ..Tensor::f32(&[], t.floats()[a * width..b * width].to_vec()) }
}

pub fn config(path: &str) -> Config {
    let text = std::fs::read_to_string(golden(path)).unwrap();
    Config::from_json(&text, &FieldPolicy::default()).unwrap()
}

/// The tiny model, its trunk and its checkpoint.
pub struct Tiny {
    pub config: Config,
    pub trunk: Trunk,
    pub checkpoint: Checkpoint,
    pub info: Value,
}

impl Tiny {
    pub fn new(dtype: Activation) -> Tiny {
        Tiny::of(config("glm5_next_tiny/config.json"), dtype)
    }

    /// With another config of the same shapes.
    pub fn of(config: Config, dtype: Activation) -> Tiny {
        Tiny::in_folder("glm5_next_tiny", config, dtype, vec![0, 2, 3])
    }

    pub fn in_folder(folder: &str, config: Config, dtype: Activation, aux: Vec<u32>) -> Tiny {
        let options = BuildOptions { dtype, aux, ..BuildOptions::default() };
        let trunk = trunk(&config, &options).unwrap();
        let checkpoint = Checkpoint::open(&golden(folder)).unwrap();
        checkpoint.check_against(&trunk.module, &trunk.skip).unwrap();
        let text = std::fs::read_to_string(golden(&format!("{folder}/expected.json"))).unwrap();
        Tiny { config, trunk, checkpoint, info: serde_json::from_str(&text).unwrap() }
    }

    pub fn states(&self, slots: usize) -> States {
        States::new(&self.trunk.module.states, slots)
    }

    pub fn case(&self, name: &str) -> Case {
        let c = &self.info["cases"][name];
        let ids = |v: &Value| v.as_array().unwrap().iter().map(|i| i.as_u64().unwrap() as i32).collect::<Vec<_>>();
        Case {
            name: name.into(),
            ids: ids(&c["ids"]),
            prefill: c["prefill"].as_u64().unwrap() as usize,
            greedy: ids(&c["greedy"]["fp32"]["ids"]),
        }
    }

    pub fn weight<'a>(&'a self, decl: &WeightDecl) -> Result<WeightRef<'a>, IrError> {
        let shape: Vec<u64> = decl.ty.shape.iter().map(|d| d.fixed().unwrap()).collect();
        WeightRef::stored(
            decl.ty.format,
            &shape,
            self.checkpoint.weight(decl).unwrap(),
            self.checkpoint.scales(decl).unwrap(),
        )
    }

    /// One step; observed taps are added to the outputs.
    pub fn step(&self, ids: &[i32], batch: &Batch, states: &mut States, wanted: &[i32]) -> BTreeMap<String, Tensor> {
        let experts = self.config.moe.experts as i32;
        let mut inputs = BTreeMap::new();
        inputs.insert("ids".to_string(), Tensor::i32(&[ids.len()], ids.to_vec()));
        inputs.insert("logit_rows".to_string(), Tensor::i32(&[wanted.len()], wanted.to_vec()));
        for decl in self.trunk.module.inputs.iter().filter(|d| d.name.ends_with(".slots")) {
            inputs.insert(decl.name.clone(), Tensor::i32(&[experts as usize], (0..experts).collect()));
        }
        let taps: BTreeMap<_, _> =
            self.trunk.taps().into_iter().map(|t| ((t.call as usize, t.value), t.name)).collect();
        let mut seen = BTreeMap::new();
        let mut observe = |call: usize, id, t: &Tensor| {
            if let Some(name) = taps.get(&(call, id)) {
                seen.insert(name.clone(), t.clone());
            }
        };
        let weights = |decl: &WeightDecl| self.weight(decl);
        let mut out = run_module(&self.trunk.module, &inputs, &weights, states, batch, &mut observe).unwrap();
        out.append(&mut seen);
        out
    }
}

pub struct Case {
    pub name: String,
    pub ids: Vec<i32>,
    pub prefill: usize,
    pub greedy: Vec<i32>,
}

impl Case {
    /// The steps of a run: prefill in chunks of at most `chunk` rows, then single tokens.
    pub fn steps(&self, chunk: usize) -> Vec<(usize, usize)> {
        let mut steps = Vec::new();
        let mut at = 0;
        while at < self.ids.len() {
            let end = if at < self.prefill { (at + chunk).min(self.prefill) } else { at + 1 };
            steps.push((at, end));
            at = end;
        }
        steps
    }
}

/// Rows of every output, over the steps of a run.
#[derive(Default)]
pub struct Rows {
    pub steps: BTreeMap<String, Vec<Tensor>>,
}

impl Rows {
    pub fn push(&mut self, out: BTreeMap<String, Tensor>) {
        for (name, t) in out {
            self.steps.entry(name).or_default().push(t);
        }
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.steps[name].iter().flat_map(|t| t.floats().iter().copied()).collect()
    }

    pub fn ints(&self, name: &str) -> Vec<i32> {
        self.steps[name].iter().flat_map(|t| t.ints().iter().copied()).collect()
    }

    /// Rows of scores padded with -inf to a common width.
    pub fn padded(&self, name: &str, width: usize) -> Vec<f32> {
        let mut all = Vec::new();
        for t in &self.steps[name] {
            let w = t.shape[1];
            for r in 0..t.shape[0] {
                all.extend_from_slice(&t.floats()[r * w..(r + 1) * w]);
                all.resize(all.len() + width - w, f32::NEG_INFINITY);
            }
        }
        all
    }
}

/// Experts ascending with their weights, as the golden files have them.
pub fn by_expert(ids: &[i32], weights: &[f32], k: usize) -> (Vec<i32>, Vec<f32>) {
    let mut out = (Vec::new(), Vec::new());
    for (ids, weights) in ids.chunks(k).zip(weights.chunks(k)) {
        let mut pairs: Vec<(i32, f32)> = ids.iter().copied().zip(weights.iter().copied()).collect();
        pairs.sort_by_key(|p| p.0);
        out.0.extend(pairs.iter().map(|p| p.0));
        out.1.extend(pairs.iter().map(|p| p.1));
    }
    out
}

pub const F32: DType = DType::F32;
