//! The bundle manifest: what a compiled trunk needs to run, as plain data.
//!
//! These types are the file format. `manifest.json` is `Manifest` as pretty JSON, then a last line
//! `{"sha256":"..."}` with the hash of every byte before that line. Unknown fields are refused; a change of meaning
//! raises [`VERSION`]. Sizes are bytes or elements as stated on each field, and indices count from 0 into the list of
//! the manifest that the field names. Nothing here depends on the host or on time.

mod kernel;

use serde::{Deserialize, Serialize};

pub use kernel::{Access, Exactness, Interface, Kernel, Param, ParamKind, Port, Products, Resources};

/// The value of [`Manifest::format`].
pub const FORMAT: &str = "unglue-bundle";
/// The only version of the format that this runtime reads and writes.
pub const VERSION: u32 = 3;
/// Name of the manifest file inside the bundle folder.
pub const MANIFEST_FILE: &str = "manifest.json";
/// Alignment in bytes of every activation inside a bucket's arena.
pub const ARENA_ALIGN: u64 = 256;
/// Longest kernel name, in bytes.
pub const MAX_KERNEL_NAME: usize = 63;
/// Target name of the embedded CPU code part.
pub const TARGET_X86_64: &str = "x86-64";
/// Target of the CUDA device.
pub const TARGET_SM_90: &str = "sm_90";

/// The whole manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Always [`FORMAT`].
    pub format: String,
    /// Always [`VERSION`].
    pub version: u32,
    /// What was compiled.
    pub model: Model,
    /// How it was compiled.
    pub options: Options,
    /// Every other file of the bundle. Filled by [`crate::write_bundle`], sorted by path.
    pub parts: Vec<Part>,
    /// Device buffers filled once from the checkpoint.
    pub weights: Vec<Weight>,
    /// State that lives across steps.
    pub states: Vec<State>,
    /// Activations; placed per bucket in that bucket's arena.
    pub buffers: Vec<Buffer>,
    /// The distinct kernels, in the order that [`Launch::kernel`] counts.
    pub kernels: Vec<Kernel>,
    /// Launch lists, ascending in `rows_max`.
    pub buckets: Vec<Bucket>,
    /// Expert-to-slot maps, one per layer with grouped experts.
    pub slot_tables: Vec<SlotTable>,
    /// Where results are found.
    pub outputs: Outputs,
    /// Targets, ascending, whose kernels wait by themselves for what earlier launches wrote: a launch may start before the
    /// one in front of it has ended. Left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaits: Vec<String>,
    /// Points where ranks sum a buffer. Must be empty so far (tensor parallelism 1).
    pub all_reduce: Vec<AllReduce>,
}

/// The compiled model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Model family, for example `glm5_next`.
    pub name: String,
    /// Width D of one residual stream, in elements.
    pub hidden_size: u64,
    /// Vocabulary V: logits per row; token ids are `0..vocab_size`.
    pub vocab_size: u64,
    /// Number n of residual streams (1 without hyper-connections).
    pub streams: u64,
    /// Layers of the checkpoint that the trunk keeps, ascending, by their checkpoint numbers.
    pub layers: Vec<u32>,
}

/// The options that decided the build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Activation dtype: `bf16` or `f32`.
    pub dtype: Mem,
    /// `--layers`, checkpoint numbers; equal to `model.layers`.
    pub layers: Vec<u32>,
    /// Layers whose completed streams are captured for drafters.
    pub aux: Vec<u32>,
    /// How kernels were chosen, for example `eager` or `optimal`.
    pub cover: String,
    /// `exact`, `rounding` or `fast`.
    pub numerics: String,
    /// Target whose machine kernels and launches were chosen for; all targets of the bundle share them.
    pub schedules: String,
    /// Tensor-parallel ranks; 1 so far.
    pub tp: u32,
    /// Most rows T of a step over all buckets.
    pub max_rows: u64,
    /// Most sequences B of a step over all buckets.
    pub max_seqs: u64,
    /// Longest context of one sequence, in tokens.
    pub max_ctx: u64,
    /// Block size in tokens that a session takes when it is given none. Run-time block sizes may differ.
    pub kv_block: u64,
    /// Storage dtype of token state.
    pub kv_dtype: Mem,
    /// What was built wrong on purpose, to test with: `delay=SEED`. Sessions refuse such bundles. Left out if nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// Element type in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mem {
    F32,
    Bf16,
    F16,
    I32,
}

impl Mem {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Mem::F32 | Mem::I32 => 4,
            Mem::Bf16 | Mem::F16 => 2,
        }
    }

    /// The name used in the manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Mem::F32 => "f32",
            Mem::Bf16 => "bf16",
            Mem::F16 => "f16",
            Mem::I32 => "i32",
        }
    }
}

impl std::fmt::Display for Mem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// One file of the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Relative path with `/`; components of `[A-Za-z0-9._-]`.
    pub path: String,
    /// What the file is.
    pub kind: PartKind,
    /// Length in bytes.
    pub bytes: u64,
    /// sha256 of the content, 64 lower-case hex digits.
    pub sha256: String,
}

/// What a part holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PartKind {
    /// Machine code for `target` (`x86-64`, `gfx1201`, `sm_90`): of one kernel (an index), or of all kernels.
    Code { target: String, kernel: Option<u32> },
    /// IR text of the whole trunk.
    TrunkIr,
    /// The build report, JSON.
    Report,
}

/// One axis of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "DimText", into = "DimText")]
pub enum Dim {
    /// So many elements (in JSON: a number).
    Fixed(u64),
    /// Rows R of the bucket: `rows_max`.
    Rows,
    /// Sequences B of the bucket: `seqs_max`.
    Seqs,
    /// Logit rows of the bucket: `logits_max`.
    Logits,
    /// Pooled-key capacity of the bucket: `pools`.
    Pools,
}

/// [`Dim`] as JSON: a number or the symbol's name.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(untagged)]
enum DimText {
    Fixed(u64),
    Symbol(Symbol),
}

impl From<DimText> for Dim {
    fn from(text: DimText) -> Self {
        match text {
            DimText::Fixed(n) => Dim::Fixed(n),
            DimText::Symbol(Symbol::Rows) => Dim::Rows,
            DimText::Symbol(Symbol::Seqs) => Dim::Seqs,
            DimText::Symbol(Symbol::Logits) => Dim::Logits,
            DimText::Symbol(Symbol::Pools) => Dim::Pools,
        }
    }
}

impl From<Dim> for DimText {
    fn from(dim: Dim) -> Self {
        match dim {
            Dim::Fixed(n) => DimText::Fixed(n),
            Dim::Rows => DimText::Symbol(Symbol::Rows),
            Dim::Seqs => DimText::Symbol(Symbol::Seqs),
            Dim::Logits => DimText::Symbol(Symbol::Logits),
            Dim::Pools => DimText::Symbol(Symbol::Pools),
        }
    }
}

/// A size that the bucket decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Symbol {
    Rows,
    Seqs,
    Logits,
    Pools,
}

/// A device buffer that holds checkpoint data: the concatenation of its sources, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// Unique name.
    pub name: String,
    /// Element type; equal to the `dtype` of every source (data is never converted).
    pub mem: Mem,
    /// Row-major shape; its product is the sum of the sources' elements. Grouped weights lead with the slots S.
    pub shape: Vec<u64>,
    /// At least one. Expert stacks list one source per expert slot.
    pub sources: Vec<Source>,
}

/// Part of one checkpoint tensor, contiguous and row-major after slicing and transposing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Name in the checkpoint.
    pub tensor: String,
    /// Element type in the checkpoint.
    pub dtype: Mem,
    /// Shape in the checkpoint.
    pub shape: Vec<u64>,
    /// The tensor reshaped (row-major, equal product) before slicing.
    pub view: Vec<u64>,
    /// The part of the view that is taken; all of it without.
    pub slice: Option<Slice>,
    /// The view is `[K, N]` and its transpose `[N, K]` is taken, as for words and scales of GPTQ checkpoints. Excludes a
    /// slice.
    pub transposed: bool,
}

/// `start .. start + len` of axis `axis` of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// Axis of the view, from 0.
    pub axis: u32,
    /// First index.
    pub start: u64,
    /// Number of indices; at least 1.
    pub len: u64,
}

/// A buffer that lives across steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Unique name.
    pub name: String,
    /// Checkpoint number of its layer.
    pub layer: u32,
    /// What it is for.
    pub role: StateRole,
    /// How it is laid out.
    pub kind: StateKind,
    /// Element type.
    pub mem: Mem,
}

/// What a state is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateRole {
    /// Matrix of a linear-attention layer.
    Recurrent,
    /// Window of a short convolution.
    Conv,
    /// Latent (or key and value) rows of attention.
    Latent,
    /// Pooled keys of an indexer.
    PoolKeys,
    /// Raw rows of the unfinished pool.
    Tail,
}

/// Layout of a state; row-major, element counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StateKind {
    /// `[max_slots, shape...]`, one record per sequence slot.
    Slot { shape: Vec<u64> },
    /// Paged, `[num_blocks, block_size, width]`: token t of sequence b is in block `block_table[b, t / block_size]`.
    Token { width: u64 },
    /// Paged, `[num_blocks, block_size / pool, width]`: pool p holds tokens `p * pool ..`, in the same block as they.
    Pool { width: u64, pool: u64 },
    /// `[max_slots, 2, pool, width]`: token t is at place `t mod pool`.
    Tail { pool: u64, width: u64 },
}

/// An activation. Its content at the start of a step is undefined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// Unique name.
    pub name: String,
    /// Element type.
    pub mem: Mem,
    /// Row-major shape.
    pub shape: Vec<Dim>,
}

/// The launch list for steps up to a size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// Most rows T; the value of `rows`.
    pub rows_max: u64,
    /// Most sequences B; the value of `seqs`.
    pub seqs_max: u64,
    /// Most logit rows; the value of `logits`.
    pub logits_max: u64,
    /// Pools of the longest context, `ceil(max_ctx / pool)`; the value of `pools`. 0 if the model has no pools.
    pub pools: u64,
    /// Length of the arena, bytes.
    pub arena_bytes: u64,
    /// Per buffer, its place in the arena in bytes ([`ARENA_ALIGN`]), or none if this bucket does not use it.
    pub offsets: Vec<Option<u64>>,
    /// In order; each sees everything that the ones before it wrote.
    pub launches: Vec<Launch>,
}

/// One kernel launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// Index into [`Manifest::kernels`].
    pub kernel: u32,
    /// Workgroups along x, y, z; decided by the bucket alone.
    pub grid: [GridDim; 3],
    /// One per parameter.
    pub args: Vec<Arg>,
    /// Checkpoint number of the layer, if it belongs to one.
    pub layer: Option<u32>,
    /// Where in the trunk, for reports, for example `layer3.attn`.
    pub site: String,
}

/// `ceil(symbol * mul / div)` workgroups, with the symbol's value in the bucket (1 without a symbol).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GridDim {
    pub symbol: Option<Symbol>,
    pub mul: u64,
    /// At least 1.
    pub div: u64,
}

impl GridDim {
    /// A fixed number of workgroups.
    pub const fn fixed(n: u64) -> Self {
        GridDim { symbol: None, mul: n, div: 1 }
    }
}

/// What a launch passes for one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arg {
    /// Index into [`Manifest::weights`]; read only.
    Weight(u32),
    /// Index into [`Manifest::states`].
    State(u32),
    /// Index into [`Manifest::buffers`].
    Buffer(u32),
    /// A device array of the step; read only, but for `status` and `counter`.
    Input(StepInput),
    /// A number of the step.
    Scalar(StepScalar),
    /// A constant.
    Const(i32),
    /// Index into [`Manifest::slot_tables`]; i32 `[experts]`, read only.
    SlotTable(u32),
}

/// Device arrays of a step, all i32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepInput {
    /// `[T]` token ids.
    Ids,
    /// `[T]` position of the row in its sequence, from 0.
    Positions,
    /// `[T]` sequence index b of the row, -1 for padding rows.
    RowSeq,
    /// `[B + 1]` first row of each sequence.
    QStart,
    /// `[B]` tokens of the sequence after this step.
    SeqLen,
    /// `[B]` state slot, -1 for a padding sequence: it writes nothing.
    Slot,
    /// `[B, M]` block of each `block_size` tokens.
    BlockTable,
    /// `[L]` rows whose logits are wanted.
    LogitRows,
    /// `[4]` first fault of the step: kernel index + 1 (0: none), row, value, [`crate::FaultKind`] code. One workgroup of
    /// the kernel that finds a fault writes it, if word 0 is still 0; no access is made with the faulty value.
    Status,
    /// `[16]` arrivals of workgroups at the places where the last one goes on. Kernels count there and set it back: zero
    /// before and after each launch, whatever the step; all kernels share it, since launches run one after the other.
    Counter,
}

impl StepInput {
    /// Every input, in the order of the enum.
    pub const ALL: [StepInput; 10] = [
        StepInput::Ids,
        StepInput::Positions,
        StepInput::RowSeq,
        StepInput::QStart,
        StepInput::SeqLen,
        StepInput::Slot,
        StepInput::BlockTable,
        StepInput::LogitRows,
        StepInput::Status,
        StepInput::Counter,
    ];

    /// True for arrays that a kernel may write.
    pub fn is_written(self) -> bool {
        matches!(self, StepInput::Status | StepInput::Counter)
    }

    /// True for arrays that each step writes anew before its first launch.
    pub fn is_of_step(self) -> bool {
        self != StepInput::Counter
    }
}

/// Numbers of a step, all i32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepScalar {
    /// T of this step (not of the bucket).
    Rows,
    /// B of this step.
    Seqs,
    /// L of this step.
    Logits,
    /// Tokens per block.
    BlockSize,
    /// M, the row stride of the block table.
    BlocksPerSeq,
    /// Leading axis of slot and tail states.
    MaxSlots,
    /// Leading axis of token and pool states.
    NumBlocks,
    /// Block size / pool size (block size if the model has no pools).
    PoolsPerBlock,
}

/// Expert-to-slot map of one layer: i32 `[experts]`, -1 is "skip"; starts as the identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotTable {
    /// Checkpoint number of the layer.
    pub layer: u32,
    /// Experts E: length of the table.
    pub experts: u64,
    /// Slots S: leading axis of the layer's grouped weights.
    pub slots: u64,
}

/// Where results are found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outputs {
    /// Index into [`Manifest::buffers`]: float `[logits, vocab_size]`, valid after the last launch.
    pub logits: u32,
    /// Index into [`Manifest::buffers`]: i32 `[logits]`, valid after the last launch.
    pub argmax: u32,
    /// Values inside the trunk that a caller may read.
    pub taps: Vec<Tap>,
}

/// A value inside the trunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tap {
    /// Unique, for example `layer3.streams`, `layer3.router_ids`, `aux.layer2`, `final_hidden`.
    pub name: String,
    /// Index into [`Manifest::buffers`].
    pub buffer: u32,
    /// Per bucket, the index of the launch after which it is valid (the next launch may overwrite it).
    pub after_launch: Vec<u32>,
}

/// A sum over ranks; none so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllReduce {
    /// Index into [`Manifest::buffers`].
    pub buffer: u32,
    /// Per bucket, the index of the launch after which the ranks sum.
    pub after_launch: Vec<u32>,
}
