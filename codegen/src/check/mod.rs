//! Runs one kernel alone on a device and compares it with the interpreter (numerics P4).
//!
//! In: a kernel's graph, what its parameters stand for, a device that has its code loaded, and a seed, or what a step
//! gave the kernel. Out: the first element that differs, or nothing. With a seed, inputs are drawn from their domains.
//! What lies past the step's end or a buffer's end, and state that is not the step's, holds patterns, so that reading
//! or writing it shows.

mod compare;
mod draw;
mod given;
pub mod repeat;
pub mod rewrite;
#[cfg(feature = "llvm")]
pub mod split;
mod state;

use std::collections::BTreeMap;

use unglue_ir::graph::Graph;
use unglue_ir::interp::Data;
use unglue_ir::op::Op;
use unglue_ir::types::{DType, Dim};
use unglue_passes::schedule::{Bucket, GridAxis, strip_reshapes};
use unglue_runtime::{ArgValue, BufferId, Device, RuntimeError};

use crate::error::CodegenError;
use crate::generate::{FAULT_TOKEN, StepBuffer, StepScalar, Use};

use compare::{Expected, first_difference, output, row_elements, state_dtype};

pub use compare::judge;
pub use given::{Buffers, Given, StepRows};
pub use state::{Paged, block_table};

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
    /// Results are compared within the bound of their ops (numerics P4): sums on matrix tiles have an order of their
    /// own. All others are compared bit for bit.
    pub bounded: bool,
}

/// The first wrong element of a kernel.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("kernel `{kernel}`, {value}[{index}] (row {row}): device {device}, interpreter {interpreter}, {}", origin(*seed))]
pub struct Mismatch {
    pub kernel: String,
    pub value: String,
    pub index: usize,
    pub row: usize,
    pub device: String,
    pub interpreter: String,
    /// Of the draw; none if the inputs are a step's.
    pub seed: Option<u64>,
}

fn origin(seed: Option<u64>) -> String {
    seed.map_or_else(|| "inputs of the step".into(), |s| format!("seed {s}"))
}

/// Sizes of the paged state that a check lays out.
#[derive(Clone, Copy, Debug)]
pub struct Paging {
    pub block_size: usize,
    pub blocks_per_seq: usize,
    pub num_blocks: usize,
    pub max_slots: usize,
}

/// Runs the subject once on drawn inputs; `Ok(Some)` is a wrong result.
///
/// # Errors
/// [`CodegenError::Check`] if the kernel cannot be run or interpreted at all.
pub fn check(device: &mut dyn Device, subject: &Subject, seed: u64) -> Result<Option<Mismatch>, CodegenError> {
    check_then(device, subject, seed, &mut |_, _, _| Ok(()))
}

/// What comes after a launch that was right: the device, the grid and the arguments, whose buffers are still there.
pub type Then<'a> = &'a mut dyn FnMut(&mut dyn Device, [u32; 3], &[ArgValue]) -> Result<(), RuntimeError>;

/// As [`check`], and calls `then` if the results are right.
///
/// # Errors
/// As [`check`].
pub fn check_then(
    device: &mut dyn Device,
    subject: &Subject,
    seed: u64,
    then: Then,
) -> Result<Option<Mismatch>, CodegenError> {
    let drawn = draw::draw_all(subject.graph, &subject.bucket, seed).map_err(|e| cannot(subject, &e))?;
    run(device, subject, &drawn, then)
}

/// Runs the subject once on what it is given; `Ok(Some)` is a wrong result.
///
/// # Errors
/// As [`check`].
pub fn check_given(
    device: &mut dyn Device,
    subject: &Subject,
    given: &Given,
) -> Result<Option<Mismatch>, CodegenError> {
    run(device, subject, given, &mut |_, _, _| Ok(()))
}

fn run(
    device: &mut dyn Device,
    subject: &Subject,
    given: &Given,
    then: Then,
) -> Result<Option<Mismatch>, CodegenError> {
    with_run(device, subject, given, |run| {
        let launch = run.prepare()?;
        let wrong = run.launch_and_compare(&launch)?;
        if wrong.is_none() {
            then(run.device, launch.grid, &launch.args).map_err(|e| cannot(subject, &e))?;
        }
        Ok(wrong)
    })
}

/// Calls `f` with a run, and frees what it took.
fn with_run<T>(
    device: &mut dyn Device,
    subject: &Subject,
    given: &Given,
    f: impl FnOnce(&mut Run<'_, '_>) -> Result<T, CodegenError>,
) -> Result<T, CodegenError> {
    let expected = Expected::of(subject, given)?;
    let mut run = Run { device, subject, given, expected, buffers: BTreeMap::new() };
    let out = f(&mut run);
    run.free()?;
    out
}

fn cannot(subject: &Subject, e: &dyn std::fmt::Display) -> CodegenError {
    CodegenError::Check { kernel: subject.name.into(), found: e.to_string() }
}

/// What is behind the end of rows and buffers: NaN as floats, -1 as numbers.
const PATTERN: u8 = 0xff;
/// What outputs hold before: no NaN, which reading too far would give as well.
const UNWRITTEN: u8 = 0xa5;
/// Counters of grid finishes.
const COUNTERS: usize = unglue_runtime::COUNTERS as usize;
/// Buffers are filled up to a multiple of this: behind it a device can make accesses fault.
const SLACK: usize = 64;

/// One run on the device.
struct Run<'a, 'd> {
    device: &'d mut dyn Device,
    subject: &'a Subject<'a>,
    given: &'a Given<'a>,
    expected: Expected<'a>,
    /// Device buffer of each parameter, with its length; the pattern fills it up to a multiple of [`SLACK`].
    buffers: BTreeMap<usize, (BufferId, usize)>,
}

/// Grid and arguments of the subject's launch.
struct Launch {
    grid: [u32; 3],
    args: Vec<ArgValue>,
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

/// The mismatch of a kernel that did what the device forbids, as the device tells it.
pub fn trapped(subject: &Subject, given: &Given, found: String) -> Mismatch {
    let (kernel, interpreter) = (subject.name.into(), "no fault".into());
    Mismatch { kernel, value: "launch".into(), index: 0, row: 0, device: found, interpreter, seed: given.seed }
}

impl Run<'_, '_> {
    /// Buffers with what the subject is given.
    fn prepare(&mut self) -> Result<Launch, CodegenError> {
        let mut args = Vec::new();
        for (i, of) in self.subject.uses.iter().enumerate() {
            args.push(match of {
                Use::Scalar(s) => ArgValue::Scalar(self.scalar(*s)),
                other => {
                    let mut bytes = self.content(other)?;
                    let len = bytes.len();
                    bytes.resize(len.max(1).next_multiple_of(SLACK), pattern(other));
                    let id = self.device.alloc(bytes.len() as u64).map_err(|e| cannot(self.subject, &e))?;
                    self.buffers.insert(i, (id, len));
                    self.device.write(id, 0, &bytes).map_err(|e| cannot(self.subject, &e))?;
                    ArgValue::Buffer { id, offset: 0, bytes: len as u64 }
                }
            });
        }
        let grid = self.subject.grid.map(|g| g.value(&self.subject.bucket) as u32);
        Ok(Launch { grid, args })
    }

    fn launch_and_compare(&mut self, launch: &Launch) -> Result<Option<Mismatch>, CodegenError> {
        match self.device.launch(self.subject.number, launch.grid, &launch.args) {
            Ok(()) => {}
            Err(RuntimeError::KernelTrap { found, .. }) => return Ok(Some(trapped(self.subject, self.given, found))),
            Err(e) => return Err(cannot(self.subject, &e)),
        }
        for (i, of) in self.subject.uses.iter().enumerate() {
            let wrong = match of {
                Use::Output(name) => self.expected.output(name, &self.read(i)?)?,
                Use::State(name) => self.expected.state(name, &self.content(of)?, &self.read(i)?)?,
                Use::Step(StepBuffer::Status) => self.compare_status(i)?,
                Use::Step(StepBuffer::Counter) => self.compare_counter(i)?,
                _ => None,
            };
            let wrong = match wrong {
                None => self.untouched(i, of)?,
                some => some,
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
        let (b, p) = (&self.given.batch, &self.given.paging);
        let n = match s {
            StepScalar::Rows => b.rows(),
            StepScalar::Seqs => b.slot.len(),
            StepScalar::Logits => self.given.logits,
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
        let d = self.given;
        let missing = |name: &str| cannot(self.subject, &format!("`{name}` is not in the kernel's graph"));
        let ints = |v: &[i32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        Ok(match of {
            Use::Input(name) => {
                let t = d.inputs.get(name).ok_or_else(|| missing(name))?;
                let mut bytes = encode(t.dtype, &t.data);
                let rows = t.shape.first().copied().unwrap_or(1).max(1);
                let per_row = bytes.len() / rows;
                // Rows past the end.
                bytes.resize((per_row * self.subject.bucket.rows_max as usize).max(bytes.len()), PATTERN);
                bytes
            }
            Use::Weight(name) => d.weights.get(name).ok_or_else(|| missing(name))?.by_rows().0.into_owned(),
            Use::Scales(name) => d.weights.get(name).ok_or_else(|| missing(name))?.by_rows().1.into_owned(),
            Use::State(name) => {
                let s = d.states.get(name).ok_or_else(|| missing(name))?;
                d.paged().to_device(s, state_dtype(self.subject.graph, name))
            }
            Use::Output(name) => {
                let v = output(self.subject, name)?;
                let n = row_elements(self.subject, v);
                vec![UNWRITTEN; n * bytes_of(self.subject.graph, v) * self.subject.bucket.rows_max as usize]
            }
            Use::Step(s) => ints(match s {
                StepBuffer::Positions => &d.batch.positions,
                StepBuffer::RowSeq => &d.batch.row_seq,
                StepBuffer::QStart => &d.batch.q_start,
                StepBuffer::Slot => &d.batch.slot,
                StepBuffer::BlockTable => &d.block_table,
                StepBuffer::Status => &[0; 4],
                StepBuffer::Counter => &[0; COUNTERS],
            }),
            Use::Scalar(_) => vec![],
        })
    }

    /// A buffer with what fills it up.
    fn read(&self, param: usize) -> Result<Vec<u8>, CodegenError> {
        let (id, len) = self.buffers[&param];
        let mut bytes = vec![0; len.max(1).next_multiple_of(SLACK)];
        self.device.read(id, 0, &mut bytes).map_err(|e| cannot(self.subject, &e))?;
        Ok(bytes)
    }

    /// The status word names the first token id outside of the embedding table.
    fn compare_status(&self, param: usize) -> Result<Option<Mismatch>, CodegenError> {
        let bad = bad_token(self.subject.graph, self.given);
        let number = self.subject.number as i32 + 1;
        let want = Data::I32(bad.map_or(vec![0; 4], |(row, token)| vec![number, row, token, FAULT_TOKEN as i32]));
        let got = decode(DType::I32, &self.read(param)?);
        let wrong = first_difference(&got, &want, |_| true);
        Ok(wrong.map(|i| self.expected.mismatch("status", (i, 0), &got, &want)))
    }

    /// The next launch counts from zero again.
    fn compare_counter(&self, param: usize) -> Result<Option<Mismatch>, CodegenError> {
        let want = Data::I32(vec![0; COUNTERS]);
        let got = decode(DType::I32, &self.read(param)?);
        let wrong = first_difference(&got, &want, |_| true);
        Ok(wrong.map(|i| self.expected.mismatch("counter", (i, 0), &got, &want)))
    }

    /// Nothing is written behind the step's rows, nor behind a buffer's end.
    fn untouched(&self, param: usize, of: &Use) -> Result<Option<Mismatch>, CodegenError> {
        let Some((_, len)) = self.buffers.get(&param) else { return Ok(None) };
        let start = match of {
            Use::Output(name) => {
                let v = output(self.subject, name)?;
                let t = self.subject.graph.ty(v).tensor();
                let rows = match t.and_then(|t| t.shape.first()) {
                    Some(Dim::Rows) => self.given.batch.rows(),
                    Some(Dim::Logits) => self.given.logits,
                    _ => self.subject.bucket.rows_max as usize,
                };
                rows * row_elements(self.subject, v) * bytes_of(self.subject.graph, v)
            }
            _ => *len,
        };
        let bytes = self.read(param)?;
        let wrong = bytes.get(start..).and_then(|b| b.iter().position(|b| *b != pattern(of)));
        Ok(wrong.map(|i| Mismatch {
            kernel: self.subject.name.into(),
            value: format!("{of:?}"),
            index: start + i,
            row: 0,
            device: format!("byte {:#04x} behind the end at byte {start}", bytes[start + i]),
            interpreter: "untouched".into(),
            seed: self.given.seed,
        }))
    }
}

fn pattern(of: &Use) -> u8 {
    if matches!(of, Use::Output(_)) { UNWRITTEN } else { PATTERN }
}

fn bytes_of(g: &Graph, v: unglue_ir::graph::ValueId) -> usize {
    g.ty(v).tensor().and_then(|t| t.dtype()).map_or(4, |d| d.bytes() as usize)
}

/// Row and id of the first token that the embedding table does not have.
fn bad_token(g: &Graph, given: &Given) -> Option<(i32, i32)> {
    let embed = g.ids().find(|id| g.node(*id).op == Op::EmbedRows)?;
    let (table, ids) = (g.node(embed).args[0], strip_reshapes(g, g.node(embed).args[1]));
    let end = g.ty(table).tensor()?.shape.first()?.fixed()?;
    let Op::Input { name, .. } = &g.node(ids).op else { return None };
    let Data::I32(ids) = &given.inputs.get(name)?.data else { return None };
    let bad = |id: &i32| u64::try_from(*id).map_or(true, |id| id >= end);
    ids.iter().position(bad).map(|row| (row as i32, ids[row]))
}
