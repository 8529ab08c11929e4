//! A grouped W4A16 expert matmul in the gfx1201 emulator: this compiler's kernel beside what Triton's AMD backend makes.
//!
//! ```text
//! VENV/bin/python benches/triton/compile.py FOLDER
//! cargo bench -p unglue-codegen --bench triton_gfx1201 -- FOLDER
//! ```
//!
//! The job is the experts' gate and up of GLM-5.3-Flash: 2 x 2,048 outputs, 4,096 inputs, int4 in groups of 32, eight of 288
//! experts a row; for one row and for 16. Every kernel is made for all outputs and executes some of them: counts are
//! proportional to outputs. Results are compared with f64 sums within the bound of bf16 products. Rows that are wrong, or
//! whose compiler printed anything, are void and say so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Deserialize;
use unglue_codegen::bundle::describe::{Facts, kernel};
use unglue_codegen::counts::{CLASSES, Class, Counts, Traffic, WIDTHS};
use unglue_codegen::emu::{EmuDevice, EmuOptions};
use unglue_codegen::gates::{self, Resources};
use unglue_codegen::generate::{self, Use};
use unglue_codegen::target::{self, Target};
use unglue_codegen::{link, llvm};
use unglue_ir::builder::Builder;
use unglue_ir::graph::Graph;
use unglue_ir::interp::WeightRef;
use unglue_ir::interp::draw::{Rng, draw_weight};
use unglue_ir::interp::value::round_bf16;
use unglue_ir::op::{Binary, Domain, Op, Unary};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Dim, Format, Packing, ScaleType, TensorType};
use unglue_passes::schedule::{Bucket, Schedule, fit, schedule};
use unglue_runtime::manifest::{self, Access, Mem, ParamKind};
use unglue_runtime::{ArgValue, Code, Device};

type Failure = Box<dyn std::error::Error>;

/// Outputs and inputs of the job.
const N: u64 = 4096;
const K: u64 = 4096;
const GROUP: u64 = 32;
const TOP: u64 = 8;
const EXPERTS: u64 = 288;
/// Rows of the steps.
const STEPS: [u64; 2] = [1, 16];
/// Weights of a graph.
const WEIGHTS: [&str; 2] = ["gate", "up"];
/// Pairs of a tile.
const TILE: usize = 16;
/// Outputs that Triton's kernels execute.
const EXECUTED: u64 = 128;
const FORMAT: Format = Format::Int4 { group: GROUP as u32, packing: Packing::Rows, scales: ScaleType::F16 };

fn main() -> ExitCode {
    let folder = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let Some(folder) = folder else {
        println!("no folder given: `python benches/triton/compile.py FOLDER` first, then this with `-- FOLDER`");
        return ExitCode::from(2);
    };
    match table(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Runs every kernel on steps of each size and prints the table.
fn table(folder: &Path) -> Result<(), Failure> {
    let text = std::fs::read_to_string(folder.join("configs.json"))
        .map_err(|e| format!("{}: {e}; `python benches/triton/compile.py` writes it", folder.display()))?;
    let compiled: Compiled = serde_json::from_str(&text)?;
    if (compiled.group, compiled.top) != (GROUP, TOP) {
        return Err(format!("groups of {}, {} experts a row: not this job", compiled.group, compiled.top).into());
    }
    let mut steps = Vec::new();
    for rows in STEPS {
        let choice = Choice::draw(rows);
        let ours = [Ours::make(&choice, 1)?, Ours::make(&choice, 2)?];
        let outputs = ours.iter().map(|o| o.weights * o.outputs).max().unwrap_or_default();
        let job = Job::draw(choice, outputs.max(EXECUTED))?;
        println!("rows {rows}: {} pairs, {} experts", job.choice.slots.len(), job.choice.used);
        steps.push((job, ours));
    }
    println!("Triton {}\n\n{HEADER}", compiled.version);
    for (i, name) in ["unglue", "unglue, SwiGLU too"].into_iter().enumerate() {
        let resources: Vec<Resources> = steps.iter().map(|(_, ours)| ours[i].resources).collect();
        let measured: Result<Vec<_>, _> = steps.iter().map(|(job, ours)| ours[i].run(job)).collect();
        print_row(name, &resources, &measured?);
    }
    for config in &compiled.configs {
        let measured: Result<Vec<_>, _> = steps.iter().map(|(job, _)| config.run(folder, job)).collect();
        match measured {
            Ok(measured) => print_row(&config.name, &[config.resources()?], &measured),
            Err(e) => println!("| {} | void: {} |", config.name, e.to_string().replace(['|', '\n'], " ")),
        }
    }
    Ok(())
}

const HEADER: &str = "\
| kernel | VGPRs | SGPRs | spills | scratch | LDS | waves/SIMD | VALU per 32 weights | WMMA per 1,024 | all per 32 | \
b128 of loads | loaded / needed | error / bound |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |";

/// A cell for steps of each size: one text where they agree.
fn cell<T>(of: &[T], text: impl Fn(&T) -> String) -> String {
    let mut texts: Vec<String> = of.iter().map(text).collect();
    texts.dedup();
    texts.join(", ")
}

fn print_row(name: &str, resources: &[Resources], measured: &[Measured]) {
    let number = |of: fn(&Resources) -> u32| cell(resources, |r| of(r).to_string());
    let per = |of: fn(&Measured) -> f64| cell(measured, |m| format!("{:.2}", of(m)));
    let cells = [
        name.to_owned(),
        number(|r| r.vgprs),
        number(|r| r.sgprs),
        number(|r| r.vgpr_spills + r.sgpr_spills),
        number(|r| r.scratch_bytes),
        number(|r| r.lds_bytes),
        number(|r| r.occupancy),
        per(|m| m.per_32(&[Class::Valu, Class::Transcendental, Class::CrossLane])),
        per(|m| 32.0 * m.per_32(&[Class::Wmma])),
        per(|m| m.per_32(&CLASSES)),
        cell(measured, |m| format!("{:.0} %", 100.0 * m.loads(128) / m.loads(0))),
        per(|m| {
            let loaded = m.counts.traffic(Traffic::GlobalLoad) + m.counts.traffic(Traffic::ScalarLoad);
            loaded as f64 / m.needed as f64
        }),
        cell(measured, |m| format!("{:.3}", m.error)),
    ];
    println!("| {} |", cells.join(" | "));
}

/// What a launch took.
struct Measured {
    counts: Counts,
    /// Weights that pairs are multiplied with.
    weights: u64,
    /// Bytes of the weights in use and of the activations, once each.
    needed: u64,
    /// Largest error, in bounds.
    error: f64,
}

impl Measured {
    /// Wave instructions of some classes for each 32 weights.
    fn per_32(&self, classes: &[Class]) -> f64 {
        let n: u64 = classes.iter().map(|c| self.counts.instructions[*c as usize]).sum();
        n as f64 / (self.weights as f64 / 32.0)
    }

    /// Loads of lanes from global memory that have at least so many bits.
    fn loads(&self, bits: u32) -> f64 {
        let widths = WIDTHS.iter().zip(&self.counts.bytes[Traffic::GlobalLoad as usize]);
        widths.filter(|(w, _)| **w >= bits).map(|(w, bytes)| *bytes as f64 * 8.0 / f64::from(*w)).sum()
    }
}

/// Which experts rows take.
struct Choice {
    rows: u64,
    /// Expert ids `[rows, TOP]`.
    ids: Vec<i32>,
    /// Slot of each expert, -1 if no row takes it.
    slot_of: Vec<i32>,
    /// Slots of `ids`.
    slots: Vec<usize>,
    /// Experts that some row takes.
    used: u64,
}

impl Choice {
    fn draw(rows: u64) -> Choice {
        let (mut rng, mut ids) = (Rng::new(rows), Vec::new());
        for _ in 0..rows {
            let start = ids.len();
            while ids.len() < start + TOP as usize {
                let id = rng.below(EXPERTS) as i32;
                if !ids[start..].contains(&id) {
                    ids.push(id);
                }
            }
        }
        let (mut slot_of, mut used) = (vec![-1; EXPERTS as usize], 0);
        let slots = ids.iter().map(|id| {
            let slot: &mut i32 = &mut slot_of[*id as usize];
            if *slot < 0 {
                *slot = used;
                used += 1;
            }
            *slot as usize
        });
        let slots = slots.collect();
        Choice { rows, ids, slot_of, slots, used: used as u64 }
    }
}

/// Operands and what must come out.
struct Job {
    choice: Choice,
    /// Outputs that `words`, `scales` and `want` have.
    outputs: u64,
    /// bf16 `[rows, K]`.
    x: Vec<f32>,
    /// `[used, outputs, K/8]` and `[used, outputs, K/GROUP]`, little-endian.
    words: Vec<u8>,
    scales: Vec<u8>,
    /// Sum and bound `[pairs, outputs]`.
    want: Vec<(f64, f64)>,
}

impl Job {
    fn draw(choice: Choice, outputs: u64) -> Result<Job, Failure> {
        let mut rng = Rng::new(7);
        let x: Vec<f32> = (0..choice.rows * K).map(|_| round_bf16(rng.normal())).collect();
        let weight = draw_weight(&mut rng, FORMAT, &[choice.used, outputs, K])?;
        let (words, scales) = weight.by_rows();
        let (words, scales) = (words.into_owned(), scales.into_owned());
        let want = reference(&choice, &x, &weight, outputs as usize);
        Ok(Job { choice, outputs, x, words, scales, want })
    }

    fn x_bytes(&self) -> Vec<u8> {
        self.x.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect()
    }

    /// What a launch of the first `outputs` outputs took; `out` is bf16 `[pairs, stride]`. With two weights, the first
    /// outputs are the gate's, as many more are up's, and SwiGLU of both comes out.
    fn measure(
        &self,
        counts: Counts,
        (out, stride): (&[u8], u64),
        outputs: u64,
        weights: u64,
    ) -> Result<Measured, Failure> {
        let mut error = 0f64;
        for (pair, row) in out.chunks_exact(2 * stride as usize).enumerate() {
            let want = &self.want[pair * self.outputs as usize..];
            for (n, bytes) in row.as_chunks::<2>().0.iter().take(outputs as usize).enumerate() {
                let got = f64::from(f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16));
                let (want, bound) = match weights {
                    1 => want[n],
                    _ => swiglu(want[n], want[n + outputs as usize]),
                };
                let off = (got - want).abs() / bound;
                if off.is_nan() || off > 1.0 {
                    return Err(format!("pair {pair}, output {n}: {got}, needed {want} within {bound}").into());
                }
                error = error.max(off);
            }
        }
        let pairs = self.choice.slots.len() as u64;
        let stored = self.choice.used * weights * outputs * (K / 2 + K / GROUP * 2);
        let needed = stored + self.choice.rows * K * 2 + pairs * 4;
        Ok(Measured { counts, weights: pairs * weights * outputs * K, needed, error })
    }
}

/// g sigmoid(g) u of two sums with their bounds, and its bound in bf16. The first factor's slope is at most 1.1.
fn swiglu((gate, gate_bound): (f64, f64), (up, up_bound): (f64, f64)) -> (f64, f64) {
    let (silu, off) = (gate / (1.0 + (-gate).exp()), 1.1 * gate_bound);
    let value = silu * up;
    (value, off * up.abs() + silu.abs() * up_bound + off * up_bound + value.abs() * 2f64.powi(-8))
}

/// f64 sums, and the bound of products whose weight was rounded to bf16 (2^-9 each), of f32 sums, and of a result in bf16.
fn reference(choice: &Choice, x: &[f32], weight: &WeightRef, outputs: usize) -> Vec<(f64, f64)> {
    let (k, products) = (K as usize, weight.to_tensor());
    let mut want = Vec::with_capacity(choice.slots.len() * outputs);
    for (pair, slot) in choice.slots.iter().enumerate() {
        let row = &x[pair / TOP as usize * k..][..k];
        for n in 0..outputs {
            let w = &products.floats()[(slot * outputs + n) * k..][..k];
            let (mut sum, mut size) = (0f64, 0f64);
            for (x, w) in row.iter().zip(w) {
                let product = f64::from(*x) * f64::from(*w);
                (sum, size) = (sum + product, size + product.abs());
            }
            want.push((sum, size * (2f64.powi(-9) + 2f64.powi(-11)) + sum.abs() * 2f64.powi(-8)));
        }
    }
    want
}

fn gfx1201() -> Result<&'static Target, Failure> {
    target::by_name("gfx1201").ok_or_else(|| "no target gfx1201".into())
}

fn upload(device: &mut EmuDevice, bytes: &[u8]) -> Result<ArgValue, Failure> {
    let id = device.alloc(bytes.len() as u64)?;
    device.write(id, 0, bytes)?;
    Ok(ArgValue::Buffer { id, offset: 0, bytes: bytes.len() as u64 })
}

fn ints(of: impl IntoIterator<Item = i32>) -> Vec<u8> {
    of.into_iter().flat_map(i32::to_le_bytes).collect()
}

/// Launches the only kernel of a device; the counts, and the buffer `out`.
fn launch(
    device: &mut EmuDevice,
    name: &str,
    grid: [u32; 3],
    args: &[ArgValue],
    out: usize,
) -> Result<(Counts, Vec<u8>), Failure> {
    device.launch(0, grid, args)?;
    let counts = device.take_counts().remove(name).ok_or("no counts")?;
    let Some(ArgValue::Buffer { id, bytes, .. }) = args.get(out) else { return Err("no output".into()) };
    let mut data = vec![0; *bytes as usize];
    device.read(*id, 0, &mut data)?;
    Ok((counts, data))
}

/// This compiler's kernel.
struct Ours {
    uses: Vec<Use>,
    described: manifest::Kernel,
    code: Vec<u8>,
    resources: Resources,
    /// One workgroup along the outputs, all along the other axes.
    grid: [u32; 3],
    /// One of N outputs, or two of half as many.
    weights: u64,
    /// Outputs that it executes of each.
    outputs: u64,
}

/// One weight of N outputs; with two, gate and up and their SwiGLU, as a bundle has them.
fn graph(choice: &Choice, weights: u64) -> Result<Graph, Failure> {
    let mut b = Builder::new("experts");
    let x = b.input("x", TensorType::plain(DType::Bf16, [Dim::Rows, Dim::Fixed(K)]), Domain::Normal);
    let ids = TensorType::plain(DType::I32, [Dim::Rows, Dim::Fixed(TOP)]);
    let ids = b.input("ids", ids, Domain::Distinct(EXPERTS));
    let slots = TensorType::plain(DType::I32, [Dim::Fixed(EXPERTS)]);
    let slots = b.input("slots", slots, Domain::Slots(choice.used));
    let mut sums = Vec::new();
    for name in WEIGHTS.into_iter().take(weights as usize) {
        let shape = [choice.used, N / weights, K].map(Dim::Fixed).to_vec();
        let w = b.weight(name, TensorType { format: FORMAT, shape });
        let y = b.add(Op::GroupedMatMul { order: Order::Runs }, &[x, ids, slots, w])?;
        sums.push(b.cast(y, DType::Bf16)?);
    }
    let y = match sums[..] {
        [gate, up] => {
            let (gate, up) = (b.cast(gate, DType::F32)?, b.cast(up, DType::F32)?);
            let sigmoid = b.unary(Unary::Sigmoid, gate)?;
            let silu = b.binary(Binary::Mul, gate, sigmoid)?;
            let y = b.binary(Binary::Mul, silu, up)?;
            b.cast(y, DType::Bf16)?
        }
        _ => sums[0],
    };
    b.output("y", y);
    Ok(b.finish())
}

impl Ours {
    fn make(choice: &Choice, weights: u64) -> Result<Ours, Failure> {
        let rows = choice.rows as u32;
        let bucket = Bucket { rows_max: rows, seqs_max: rows, pools: 0, fit: &fit::GFX1201 };
        let (g, t) = (graph(choice, weights)?, gfx1201()?);
        let s: Schedule = schedule(&g, &bucket).map_err(|o| format!("{o:?}"))?;
        let made = generate::generate("experts", &g, &s, bucket.pools)?;
        let code = link::kernel("experts", llvm::compile_object(&made.program, t)?, t)?;
        let streams: Vec<_> = made.streams.iter().copied().collect();
        let resources = gates::check_streams(&code, &made.program, t, &streams)?;
        let facts = Facts { class: "grouped matmul".into(), exactness: manifest::Exactness::Exact, ops: vec![] };
        let described = kernel(&g, &s, &made, facts);
        let [x, y, z] = s.grid().map(|axis| axis.value(&bucket));
        let outputs = N / weights / x;
        if outputs * weights * x != N {
            return Err(format!("{x} workgroups for {weights} times {} outputs", N / weights).into());
        }
        println!("unglue, weights {weights}: {}", s.describe());
        Ok(Ours { uses: made.uses, described, code, resources, grid: [1, y as u32, z as u32], weights, outputs })
    }

    fn run(&self, job: &Job) -> Result<Measured, Failure> {
        let mut device = EmuDevice::new(EmuOptions::default())?;
        let part = Code { kernel: Some(0), bytes: &self.code };
        device.load(std::slice::from_ref(&self.described), &[part])?;
        let (mut args, mut out) = (Vec::new(), 0);
        for of in &self.uses {
            args.push(match of {
                Use::Input(name) if name == "x" => upload(&mut device, &job.x_bytes())?,
                Use::Input(name) if name == "ids" => upload(&mut device, &ints(job.choice.ids.iter().copied()))?,
                Use::Input(_) => upload(&mut device, &ints(job.choice.slot_of.iter().copied()))?,
                Use::Weight(name) => self.spread(&mut device, &job.words, job, name)?,
                Use::Scales(name) => self.spread(&mut device, &job.scales, job, name)?,
                Use::Output(_) => {
                    out = args.len();
                    let bytes = job.choice.slots.len() as u64 * N / self.weights * 2;
                    ArgValue::Buffer { id: device.alloc(bytes)?, offset: 0, bytes }
                }
                Use::Scalar(generate::StepScalar::Rows) => ArgValue::Scalar(job.choice.rows as i32),
                Use::Scalar(_) => ArgValue::Scalar(1),
                Use::State(_) | Use::Step(_) => upload(&mut device, &[0; 64])?,
            });
        }
        let (counts, data) = launch(&mut device, "experts", self.grid, &args, out)?;
        job.measure(counts, (&data, N / self.weights), self.outputs, self.weights)
    }

    /// A weight of all outputs, of which those that are executed are there.
    fn spread(&self, device: &mut EmuDevice, data: &[u8], job: &Job, name: &str) -> Result<ArgValue, Failure> {
        let slot = data.len() / job.choice.used as usize;
        let row = slot / job.outputs as usize;
        let first = if name == WEIGHTS[1] { self.outputs as usize * row } else { 0 };
        let stride = row as u64 * N / self.weights;
        let bytes = stride * job.choice.used;
        let id = device.alloc(bytes)?;
        for (i, part) in data.chunks_exact(slot).enumerate() {
            device.write(id, i as u64 * stride, &part[first..][..self.outputs as usize * row])?;
        }
        Ok(ArgValue::Buffer { id, offset: 0, bytes })
    }
}

/// `configs.json` of `benches/triton/compile.py`.
#[derive(Deserialize)]
struct Compiled {
    version: String,
    group: u64,
    top: u64,
    configs: Vec<Config>,
}

/// A kernel that Triton compiled, or the text of its error.
#[derive(Deserialize)]
struct Config {
    name: String,
    /// Symbol in the code object.
    kernel: String,
    /// Outputs of a program.
    outputs: u64,
    /// Pairs of a program.
    rows: usize,
    waves: u32,
    error: String,
    #[serde(default)]
    lds_bytes: u32,
    #[serde(default)]
    vgprs: u32,
    #[serde(default)]
    sgprs: u32,
    #[serde(default)]
    vgpr_spills: u32,
    #[serde(default)]
    sgpr_spills: u32,
    #[serde(default)]
    scratch_bytes: u32,
}

impl Config {
    fn resources(&self) -> Result<Resources, Failure> {
        let gpu = gfx1201()?.gpu.as_ref().ok_or("no GPU")?;
        let mut r = Resources {
            vgprs: self.vgprs,
            sgprs: self.sgprs,
            vgpr_spills: self.vgpr_spills,
            sgpr_spills: self.sgpr_spills,
            lds_bytes: self.lds_bytes,
            scratch_bytes: self.scratch_bytes,
            ..Resources::default()
        };
        r.occupancy = gates::occupancy(&r, self.waves, gpu);
        Ok(r)
    }

    fn described(&self) -> manifest::Kernel {
        let buffer = |mem, access| ParamKind::Buffer { mem, access };
        let params = [
            ("x", buffer(Mem::Bf16, Access::Read)),
            ("words", buffer(Mem::I32, Access::Read)),
            ("scales", buffer(Mem::F16, Access::Read)),
            ("pairs", buffer(Mem::I32, Access::Read)),
            ("experts", buffer(Mem::I32, Access::Read)),
            ("out", buffer(Mem::Bf16, Access::Write)),
            ("N", ParamKind::Scalar),
            ("K", ParamKind::Scalar),
        ];
        manifest::Kernel {
            name: self.kernel.clone(),
            waves: self.waves,
            shared_bytes: self.lds_bytes.into(),
            params: params.map(|(name, kind)| manifest::Param { name: name.into(), kind }).to_vec(),
            class: "grouped matmul".into(),
            exactness: manifest::Exactness::Rounding,
            schedule: String::new(),
            ops: vec![],
            ir: String::new(),
            orders: vec![],
            products: manifest::Products::Tiles,
            resources: BTreeMap::new(),
            interface: manifest::Interface::default(),
        }
    }

    /// Pairs of each program, by expert, -1 where there is none, and its expert's slot.
    fn blocks(&self, job: &Job) -> (Vec<i32>, Vec<i32>) {
        let (mut pairs, mut experts) = (Vec::new(), Vec::new());
        for slot in 0..job.choice.used as usize {
            let of: Vec<i32> = (0..).zip(&job.choice.slots).filter(|(_, s)| **s == slot).map(|(p, _)| p).collect();
            for block in of.chunks(self.rows) {
                pairs.extend(block);
                pairs.resize(pairs.len().next_multiple_of(self.rows), -1);
                experts.push(slot as i32);
            }
        }
        (pairs, experts)
    }

    fn run(&self, folder: &Path, job: &Job) -> Result<Measured, Failure> {
        if !self.error.is_empty() {
            return Err(self.error.lines().next().unwrap_or_default().into());
        }
        if ![1, TILE].contains(&self.rows) || !EXECUTED.is_multiple_of(self.outputs) {
            return Err(format!("programs of {} pairs and {} outputs", self.rows, self.outputs).into());
        }
        let file: PathBuf = folder.join(format!("{}.hsaco", self.name));
        let code = std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let mut device = EmuDevice::new(EmuOptions::default())?;
        device.load(&[self.described()], &[Code { kernel: Some(0), bytes: &code }])?;
        let (pairs, experts) = self.blocks(job);
        let grid = [(EXECUTED / self.outputs) as u32, experts.len() as u32, 1];
        let bytes = job.choice.slots.len() as u64 * job.outputs * 2;
        let args = [
            upload(&mut device, &job.x_bytes())?,
            upload(&mut device, &job.words)?,
            upload(&mut device, &job.scales)?,
            upload(&mut device, &ints(pairs))?,
            upload(&mut device, &ints(experts))?,
            ArgValue::Buffer { id: device.alloc(bytes)?, offset: 0, bytes },
            ArgValue::Scalar(job.outputs as i32),
            ArgValue::Scalar(K as i32),
        ];
        let (counts, data) = launch(&mut device, &self.kernel, grid, &args, 5)?;
        job.measure(counts, (&data, job.outputs), EXECUTED, 1)
    }
}
