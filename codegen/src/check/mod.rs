//! Runs one kernel alone on a device and compares it with the interpreter (numerics P4).
//!
//! In: a kernel's graph, what its parameters stand for, a device that has its code loaded, a seed. Out: the first
//! element that differs, or nothing. Inputs are drawn from their domains; rows past the step's end, and states of other
//! slots, hold NaN patterns, so that reading them shows.

mod state;

use std::collections::BTreeMap;

use unglue_ir::IrError;
use unglue_ir::graph::Graph;
use unglue_ir::interp::draw::{Rng, draw, draw_weight};
use unglue_ir::interp::{Batch, Data, Dims, StateData, Tensor, WeightRef, eval_graph};
use unglue_ir::op::Op;
use unglue_ir::types::{DType, Type};
use unglue_passes::schedule::{Bucket, GridAxis};
use unglue_runtime::{ArgValue, BufferId, Device};

use crate::error::CodegenError;
use crate::generate::{StepBuffer, StepScalar, Use};

/// A kernel under test.
pub struct Subject<'a> {
    pub name: &'a str,
    /// Number of the kernel in the loaded code.
    pub number: u32,
    pub graph: &'a Graph,
    /// What each parameter stands for.
    pub uses: &'a [Use],
    pub grid: [GridAxis; 3],
    pub bucket: Bucket,
}

/// The first wrong element of a kernel.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("kernel `{kernel}`, {value}[{index}] (row {row}): device {device}, interpreter {interpreter}, seed {seed}")]
pub struct Mismatch {
    pub kernel: String,
    pub value: String,
    pub index: usize,
    pub row: usize,
    pub device: String,
    pub interpreter: String,
    pub seed: u64,
}

/// Sizes of the paged state that a check lays out.
#[derive(Clone, Copy, Debug)]
pub struct Paging {
    pub block_size: usize,
    pub blocks_per_seq: usize,
    pub num_blocks: usize,
    pub max_slots: usize,
}

/// Everything that a check draws.
struct Drawn<'a> {
    batch: Batch,
    block_table: Vec<i32>,
    paging: Paging,
    logits: usize,
    inputs: BTreeMap<String, Tensor>,
    weights: BTreeMap<String, WeightRef<'a>>,
    states: BTreeMap<String, StateData>,
}

/// Runs the subject once on drawn inputs; `Ok(Some)` is a wrong result.
///
/// # Errors
/// [`CodegenError::Check`] if the kernel cannot be run or interpreted at all.
pub fn check(device: &mut dyn Device, subject: &Subject, seed: u64) -> Result<Option<Mismatch>, CodegenError> {
    let drawn = draw_all(subject, seed).map_err(|e| cannot(subject, &e))?;
    let mut states = drawn.states.clone();
    let weights = |name: &str| -> Result<WeightRef<'_>, IrError> {
        drawn.weights.get(name).cloned().ok_or_else(|| IrError::Eval {
            rule: "weight-missing",
            place: name.into(),
            found: "no such weight".into(),
            hint: "draw every weight of the graph",
        })
    };
    let want = eval_graph(subject.graph, &drawn.inputs, &weights, &mut states, &drawn.batch, &mut |_, _| {})
        .map_err(|e| cannot(subject, &e))?;
    let mut run = Run { device, subject, drawn: &drawn, buffers: BTreeMap::new() };
    let out = run.launch_and_compare(&want, &states, seed);
    run.free()?;
    out
}

fn cannot(subject: &Subject, e: &dyn std::fmt::Display) -> CodegenError {
    CodegenError::Check { kernel: subject.name.into(), found: e.to_string() }
}

/// Sequences of a step with `rows` rows at most: their number, lengths and positions vary with the seed.
fn draw_batch(rng: &mut Rng, bucket: &Bucket, paging: &Paging, pools: usize) -> Batch {
    let most = bucket.rows_max as usize;
    let rows = 1 + rng.below(most as u64) as usize;
    let mut seqs: Vec<(i32, usize, usize)> = Vec::new();
    let mut left = rows;
    while left > 0 && seqs.len() < (bucket.seqs_max as usize).min(paging.max_slots) {
        let last = seqs.len() + 1 == (bucket.seqs_max as usize).min(paging.max_slots);
        let n = if last { left } else { 1 + rng.below(left as u64) as usize };
        let longest = (paging.block_size * paging.blocks_per_seq).saturating_sub(n + 1);
        let first = if rng.below(4) == 0 { 0 } else { rng.below(longest.max(1) as u64) as usize };
        // Slots are given from the back, so that a slot is not the sequence's number.
        seqs.push(((paging.max_slots - 1 - seqs.len()) as i32, first, n));
        left -= n;
    }
    let mut batch = Batch::new(&seqs, 0);
    batch.pools = pools;
    batch
}

fn draw_all<'a>(subject: &Subject, seed: u64) -> Result<Drawn<'a>, IrError> {
    let g = subject.graph;
    let mut rng = Rng::new(seed);
    let paging = state::paging(g, &subject.bucket, seed);
    let batch = draw_batch(&mut rng, &subject.bucket, &paging, subject.bucket.pools as usize);
    let logits = 1 + rng.below(u64::from(subject.bucket.rows_max)) as usize;
    let dims = Dims::of(&batch, logits);
    let mut drawn = Drawn {
        block_table: state::block_table(&mut rng, &paging, batch.slot.len()),
        paging,
        logits,
        inputs: BTreeMap::new(),
        weights: BTreeMap::new(),
        states: BTreeMap::new(),
        batch,
    };
    for id in g.ids() {
        match (&g.node(id).op, g.ty(id)) {
            (Op::Input { name, domain }, Type::Tensor(t)) => {
                let value = draw(&mut rng, t, *domain, &dims, &drawn.batch);
                drawn.inputs.insert(name.clone(), value);
            }
            (Op::Weight { name }, Type::Tensor(t)) => {
                let shape: Vec<u64> = t.shape.iter().map(|d| d.fixed().unwrap_or(1)).collect();
                let dtype = t.dtype().unwrap_or(DType::F32);
                drawn.weights.insert(name.clone(), draw_weight(&mut rng, dtype, &shape)?);
            }
            (Op::State { name }, Type::State(t)) => {
                let value = state::draw_state(&mut rng, t, &drawn.batch, drawn.paging.max_slots);
                drawn.states.insert(name.clone(), value);
            }
            _ => {}
        }
    }
    Ok(drawn)
}

/// One run on the device.
struct Run<'a, 'd> {
    device: &'d mut dyn Device,
    subject: &'a Subject<'a>,
    drawn: &'a Drawn<'a>,
    /// Device buffer of each parameter, with its length.
    buffers: BTreeMap<usize, (BufferId, u64)>,
}

/// Bytes of floats or integers in a dtype's storage.
pub fn encode(dtype: DType, data: &Data) -> Vec<u8> {
    match (data, dtype) {
        (Data::I32(v), _) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        (Data::F32(v), DType::Bf16) => v.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect(),
        (Data::F32(v), DType::F16) => v.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
        (Data::F32(v), _) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

/// Inverse of [`encode`].
pub fn decode(dtype: DType, bytes: &[u8]) -> Data {
    let words = |n: usize| bytes.chunks_exact(n);
    match dtype {
        DType::I32 => Data::I32(words(4).map(|c| i32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()),
        DType::Bf16 => {
            Data::F32(words(2).map(|c| f32::from_bits(u32::from(u16::from_le_bytes([c[0], c[1]])) << 16)).collect())
        }
        DType::F16 => Data::F32(words(2).map(|c| half::f16::from_le_bytes([c[0], c[1]]).to_f32()).collect()),
        _ => Data::F32(words(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()),
    }
}

impl Run<'_, '_> {
    fn launch_and_compare(
        &mut self,
        want: &BTreeMap<String, Tensor>,
        states: &BTreeMap<String, StateData>,
        seed: u64,
    ) -> Result<Option<Mismatch>, CodegenError> {
        let mut args = Vec::new();
        for (i, of) in self.subject.uses.iter().enumerate() {
            args.push(match of {
                Use::Scalar(s) => ArgValue::Scalar(self.scalar(*s)),
                other => {
                    let bytes = self.content(other)?;
                    let id = self.device.alloc((bytes.len() as u64).max(4)).map_err(|e| cannot(self.subject, &e))?;
                    self.buffers.insert(i, (id, bytes.len() as u64));
                    self.device.write(id, 0, &bytes).map_err(|e| cannot(self.subject, &e))?;
                    ArgValue::Buffer { id, offset: 0, bytes: bytes.len() as u64 }
                }
            });
        }
        let grid = self.subject.grid.map(|g| g.value(&self.subject.bucket) as u32);
        self.device.launch(self.subject.number, grid, &args).map_err(|e| cannot(self.subject, &e))?;
        for (i, of) in self.subject.uses.iter().enumerate() {
            let wrong = match of {
                Use::Output(name) => self.compare_output(i, name, want, seed)?,
                Use::State(name) => self.compare_state(i, name, states, seed)?,
                _ => None,
            };
            if wrong.is_some() {
                return Ok(wrong);
            }
        }
        Ok(None)
    }

    fn free(&mut self) -> Result<(), CodegenError> {
        for (id, _) in std::mem::take(&mut self.buffers).into_values() {
            self.device.free(id).map_err(|e| cannot(self.subject, &e))?;
        }
        Ok(())
    }

    fn scalar(&self, s: StepScalar) -> i32 {
        let (b, p) = (&self.drawn.batch, &self.drawn.paging);
        let n = match s {
            StepScalar::Rows => b.rows(),
            StepScalar::Seqs => b.slot.len(),
            StepScalar::Logits => self.drawn.logits,
            StepScalar::BlockSize => p.block_size,
            StepScalar::BlocksPerSeq => p.blocks_per_seq,
            StepScalar::MaxSlots => p.max_slots,
            StepScalar::NumBlocks => p.num_blocks,
            StepScalar::KernelNumber => self.subject.number as usize + 1,
        };
        n as i32
    }

    /// Initial bytes of a parameter's buffer.
    fn content(&self, of: &Use) -> Result<Vec<u8>, CodegenError> {
        let d = self.drawn;
        let missing = |name: &str| cannot(self.subject, &format!("`{name}` is not in the kernel's graph"));
        let ints = |v: &[i32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        Ok(match of {
            Use::Input(name) => {
                let t = d.inputs.get(name).ok_or_else(|| missing(name))?;
                let mut bytes = encode(t.dtype, &t.data);
                let rows = t.shape.first().copied().unwrap_or(1).max(1);
                let per_row = bytes.len() / rows;
                // Rows past the end: NaN as floats, -1 as numbers.
                bytes.resize((per_row * self.subject.bucket.rows_max as usize).max(bytes.len()), 0xff);
                bytes
            }
            Use::Weight(name) => d.weights.get(name).ok_or_else(|| missing(name))?.bytes.to_vec(),
            Use::State(name) => {
                let s = d.states.get(name).ok_or_else(|| missing(name))?;
                state::to_device(s, self.state_dtype(name), d)
            }
            Use::Output(name) => {
                let (_, v) = self.output(name)?;
                let n = self.output_row_elements(v);
                vec![0xff; n * bytes_of(self.subject.graph, v) * self.subject.bucket.rows_max as usize]
            }
            Use::Step(s) => ints(match s {
                StepBuffer::Positions => &d.batch.positions,
                StepBuffer::RowSeq => &d.batch.row_seq,
                StepBuffer::QStart => &d.batch.q_start,
                StepBuffer::Slot => &d.batch.slot,
                StepBuffer::BlockTable => &d.block_table,
                StepBuffer::Status => &[0; 4],
            }),
            Use::Scalar(_) => vec![],
        })
    }

    fn state_dtype(&self, name: &str) -> DType {
        let g = self.subject.graph;
        g.states().find(|(n, _)| *n == name).and_then(|(_, id)| g.ty(id).state()).map_or(DType::F32, |s| s.dtype)
    }

    fn output(&self, name: &str) -> Result<(usize, unglue_ir::graph::ValueId), CodegenError> {
        let found = self.subject.graph.outputs.iter().enumerate().find(|(_, (n, _))| n == name);
        match found {
            Some((i, (_, v))) => Ok((i, *v)),
            None => Err(cannot(self.subject, &format!("`{name}` is no output of the kernel's graph"))),
        }
    }

    fn output_row_elements(&self, v: unglue_ir::graph::ValueId) -> usize {
        unglue_passes::schedule::row_elements(self.subject.graph.ty(v), &self.subject.bucket) as usize
    }

    fn read(&self, param: usize) -> Result<Vec<u8>, CodegenError> {
        let (id, len) = self.buffers[&param];
        let mut bytes = vec![0; len as usize];
        self.device.read(id, 0, &mut bytes).map_err(|e| cannot(self.subject, &e))?;
        Ok(bytes)
    }

    fn compare_output(
        &self,
        param: usize,
        name: &str,
        want: &BTreeMap<String, Tensor>,
        seed: u64,
    ) -> Result<Option<Mismatch>, CodegenError> {
        let (_, v) = self.output(name)?;
        let want = want.get(name).ok_or_else(|| cannot(self.subject, &format!("no reference for `{name}`")))?;
        let got = decode(want.dtype, &self.read(param)?);
        let per_row = self.output_row_elements(v).max(1);
        Ok(first_difference(&got, &want.data).map(|i| self.mismatch(name, i, i / per_row, (&got, &want.data), seed)))
    }

    fn compare_state(
        &self,
        param: usize,
        name: &str,
        want: &BTreeMap<String, StateData>,
        seed: u64,
    ) -> Result<Option<Mismatch>, CodegenError> {
        let Some(want) = want.get(name) else { return Ok(None) };
        let dtype = self.state_dtype(name);
        let expected = state::to_device(want, dtype, self.drawn);
        let (got, want) = (decode(dtype, &self.read(param)?), decode(dtype, &expected));
        Ok(first_difference(&got, &want).map(|i| self.mismatch(name, i, 0, (&got, &want), seed)))
    }

    fn mismatch(&self, value: &str, index: usize, row: usize, (got, want): (&Data, &Data), seed: u64) -> Mismatch {
        let show = |d: &Data| match d {
            Data::F32(v) => v.get(index).map(|x| format!("{x:e} ({:#010x})", x.to_bits())),
            Data::I32(v) => v.get(index).map(|x| x.to_string()),
        };
        Mismatch {
            kernel: self.subject.name.into(),
            value: value.into(),
            index,
            row,
            device: show(got).unwrap_or_default(),
            interpreter: show(want).unwrap_or_default(),
            seed,
        }
    }
}

fn bytes_of(g: &Graph, v: unglue_ir::graph::ValueId) -> usize {
    g.ty(v).tensor().and_then(|t| t.dtype()).map_or(4, |d| d.bytes() as usize)
}

/// First element of `want` whose bits differ; NaN equals NaN.
fn first_difference(got: &Data, want: &Data) -> Option<usize> {
    match (got, want) {
        (Data::F32(a), Data::F32(b)) => {
            b.iter().zip(a).position(|(x, y)| x.to_bits() != y.to_bits() && !(x.is_nan() && y.is_nan()))
        }
        (Data::I32(a), Data::I32(b)) => b.iter().zip(a).position(|(x, y)| x != y),
        _ => Some(0),
    }
}
