//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::diff::Limit;
#[cfg(feature = "compile")]
use crate::wish::Pair;

/// Exit codes, as `--help` says.
const EXIT: &str = "Exit codes: 0 success; 1 a check failed (verify, bisect, bench, diff); 2 wrong command line; \
3 bad input (config, checkpoint, IR text, ids); 4 bad bundle; 5 compilation failed; 6 the device or a step failed.";

/// Compiles trunks of language models into bundles of few fused kernels, and runs them.
#[derive(Debug, Parser)]
#[command(name = "unglue", version, after_help = EXIT)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compile a config, a checkpoint folder or IR text into a bundle
    #[cfg(feature = "compile")]
    Compile(Compile),
    /// Run a bundle (or, with --device interp, a config or checkpoint without compiling)
    Run(Run),
    /// Compare every kernel of a bundle with the reference interpreter
    Verify(Verify),
    /// Time every kernel of a launch list alone, after checking it
    Bench(Bench),
    /// Find the first op whose value a bundle gets wrong: checks kernels in launch order, and splits the first wrong one
    #[cfg(feature = "compile")]
    Bisect(Bisect),
    /// Show what a bundle holds: kernels, launches per token, fusion, resources
    Report(Report),
    /// Show what changed between two bundles, or a bundle and a budget; with limits, fail if it grew
    Diff(Diff),
    /// Show how a kernel grew and what it costs, or where an op of the trunk went and why
    Explain(Explain),
    /// List the rewrite rules; with a bundle, how often each fired and paid
    Rules(Rules),
}

/// Activation dtype.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Dtype {
    #[default]
    Bf16,
    F32,
}

#[cfg(feature = "compile")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Cover {
    /// Choose kernels by an integer program over candidates; greedy's where it finds nothing better
    #[default]
    Exact,
    /// Fuse while the cost model gains
    Greedy,
    /// One kernel per op: the unfused baseline
    None,
}

/// A fault to test with.
#[cfg(feature = "compile")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Late arrivals, drawn from a seed.
    Delay(u64),
}

#[cfg(feature = "compile")]
impl std::str::FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seed = text.strip_prefix("delay=").and_then(|seed| seed.parse().ok());
        seed.map(Fault::Delay).ok_or_else(|| "needed delay=SEED with a number".to_owned())
    }
}

#[cfg(feature = "compile")]
impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Delay(seed) => write!(f, "delay={seed}"),
        }
    }
}

/// How a launch follows the one in front of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Edges {
    /// It starts when that one has ended
    #[default]
    Plain,
    /// It starts when that one's workgroups have, and waits for their end itself
    Dependent,
}

impl From<Edges> for unglue_runtime::Edges {
    fn from(edges: Edges) -> Self {
        match edges {
            Edges::Plain => Self::Plain,
            Edges::Dependent => Self::Dependent,
        }
    }
}

/// Which rewrites a build may make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Numerics {
    /// Those that keep every bit, given equal sums
    #[default]
    Exact,
    /// Also those that leave a rounding out or move it toward higher precision
    Rounding,
    /// Also those that change summands; hardware approximations and flushing of denormals are not made yet
    Fast,
}

/// What a trunk is built from; shared by `compile` and `run --device interp`.
#[derive(Clone, Debug, Default, Args)]
pub struct Trunk {
    /// Layers to keep, by checkpoint number: 0-3 or 0-2,7 (embedding, final norm and head stay)
    #[arg(long, value_name = "A-B")]
    pub layers: Option<String>,
    /// Dtype of activations and token state; weights keep their stored dtype
    #[arg(long, value_enum, default_value_t)]
    pub dtype: Dtype,
    /// Layers (0-based) whose completed streams are captured for drafters: 5,14,24
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub aux: Vec<u32>,
    /// Experts that the stacked weights of a layer hold; the others get slots at run time
    #[arg(long, value_name = "N")]
    pub expert_slots: Option<u64>,
    /// Inner values to store as results of the step: an op as `unglue explain` takes it (kda%12, %12, top_k). `run --dump`
    /// writes them
    #[arg(long, value_name = "OP", value_delimiter = ',')]
    pub tap: Vec<String>,
    /// Config fields to accept although they are unknown
    #[arg(long, value_name = "NAME")]
    pub allow_field: Vec<String>,
}

#[cfg(feature = "compile")]
#[derive(Debug, Args)]
pub struct Compile {
    /// config.json, a checkpoint folder that holds one, or IR text (.ir)
    pub input: PathBuf,
    /// Folder of the bundle
    #[arg(short, long, value_name = "BUNDLE")]
    pub output: PathBuf,
    /// Targets: x86-64, gfx1201, sm_90
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "x86-64")]
    pub target: Vec<String>,
    #[command(flatten)]
    pub trunk: Trunk,
    #[arg(long, value_enum, default_value_t)]
    pub cover: Cover,
    /// How far results may be from those of the declared trunk; each kernel says its own class
    #[arg(long, value_enum, default_value_t)]
    pub numerics: Numerics,
    /// Compute A and B in one kernel, whatever it costs: ops as `unglue explain` takes them (kda%12, %12, top_k), or kernels
    /// by their names in the body; @1 after them: only in the launch list of at most 1 row (of those that the bundle has)
    #[arg(long, value_name = "A,B[@ROWS]")]
    pub force_fuse: Vec<Pair>,
    /// Keep A and B in different kernels; a kernel stands for all of its ops
    #[arg(long, value_name = "A,B[@ROWS]")]
    pub forbid_fuse: Vec<Pair>,
    /// Build a fault in, to test with: delay=SEED lets workgroups come late to where they meet, by cycles drawn from the seed
    /// (sm_90). Results stay the same; verify takes such a bundle, run does not
    #[arg(long, value_name = "FAULT")]
    pub fault: Option<Fault>,
    /// Threads of code generation; 0 takes all cores. The bundle does not depend on it
    #[arg(long, default_value_t = 0)]
    pub jobs: usize,
    /// Folder of object files by what they are made from: what it has is not compiled again. The bundle does not depend on
    /// it; it can be shared, and deleted at any time
    #[arg(long, value_name = "DIR", env = "UNGLUE_CACHE")]
    pub cache: Option<PathBuf>,
    /// Tensor-parallel ranks (only 1 yet)
    #[arg(long, default_value_t = 1)]
    pub tp: u32,
    /// Most rows of a step, 16 to 2048: above 16 a launch list of its own for prompts, with matmuls on matrix tiles
    #[arg(long, default_value_t = 16)]
    pub max_rows: u32,
    /// Most sequences of a step (only 4 yet)
    #[arg(long, default_value_t = 4)]
    pub max_seqs: u32,
    /// Longest context in tokens (only 32768 yet)
    #[arg(long, default_value_t = 32768)]
    pub max_ctx: u64,
    /// Tokens of a block of paged state that sessions take by default (only 64 yet; any multiple of the pool size works at run time)
    #[arg(long, default_value_t = 64)]
    pub kv_block: u64,
    /// Storage of token state (only `activation` yet: the dtype of --dtype)
    #[arg(long, default_value = "activation")]
    pub kv_dtype: String,
    /// Machine-readable summary on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Run {
    /// A bundle; with --device interp a config.json or a checkpoint folder
    pub input: PathBuf,
    /// Checkpoint folder; the one that was compiled by default
    #[arg(long, value_name = "DIR")]
    pub weights: Option<PathBuf>,
    /// Token ids: 1,2,3 or @FILE (a JSON array, or numbers separated by commas or spaces)
    #[arg(long, value_name = "IDS")]
    pub ids: String,
    /// Tokens to generate greedily; all but the last are fed back
    #[arg(long, default_value_t = 16)]
    pub steps: usize,
    /// Feed ids from this index (0-based) on one at a time
    #[arg(long, value_name = "K")]
    pub decode_from: Option<usize>,
    /// Rows fed at a time before that; more than 16 need a bundle compiled with --max-rows
    #[arg(long, default_value_t = 16)]
    pub chunk: usize,
    /// cpu; cuda: sm_90 code on an NVIDIA GPU; gfx12-emu: gfx1201 code in the emulator; interp: the reference interpreter
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// Threads of the cpu or gfx12-emu device; 0 takes all cores. Results do not depend on it
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// How launches follow one another
    #[arg(long, value_enum, default_value_t)]
    pub edges: Edges,
    /// Write the logits of all fed rows to a safetensors file
    #[arg(long, value_name = "FILE")]
    pub dump: Option<PathBuf>,
    /// With --dump: streams, router and indexer choices, captures and the states after the fed ids as well
    #[arg(long, requires = "dump")]
    pub taps: bool,
    /// Tokens of a block of paged state (a multiple of the model's pool size)
    #[arg(long, value_name = "TOKENS")]
    pub block: Option<u64>,
    #[command(flatten)]
    pub trunk: Trunk,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Verify {
    pub bundle: PathBuf,
    /// cpu; cuda: sm_90 code on an NVIDIA GPU; gfx12-emu: gfx1201 code in the emulator
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// Only this kernel
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
    /// First seed of the drawn inputs
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Draws per kernel
    #[arg(long, default_value_t = 3)]
    pub draws: u64,
    /// Launch each kernel whose workgroups meet so many times more per draw, and compare all bits with the first launch's
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub repeat: u32,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Bench {
    pub bundle: PathBuf,
    /// A device with a clock: cuda
    #[arg(long, default_value = "cuda")]
    pub device: String,
    /// Only this kernel
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
    /// Launch list: the one for steps of up to so many rows
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub rows: u64,
    /// Time so many whole steps instead, by single launches and by recorded lists, with drawn weights; on any device
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub steps: Option<u32>,
    /// With --steps: tokens that the sequence has before
    #[arg(long, value_name = "N", default_value_t = 0, requires = "steps")]
    pub context: u64,
    /// With --steps: how launches follow one another; both in turns by default, where the bundle and the device can
    #[arg(long, value_enum, requires = "steps")]
    pub edges: Option<Edges>,
    /// Launches per kernel, each with cold caches
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub rounds: u32,
    /// Seed of the drawn inputs
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    #[arg(long)]
    pub json: bool,
}

#[cfg(feature = "compile")]
#[derive(Debug, Args)]
pub struct Bisect {
    pub bundle: PathBuf,
    /// cpu; cuda: sm_90 code on an NVIDIA GPU; gfx12-emu: gfx1201 code in the emulator
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// Find the first wrong launch in steps over these token ids instead, on what it is given there: 1,2,3 or @FILE
    #[arg(long, value_name = "IDS")]
    pub ids: Option<String>,
    /// With --ids: checkpoint folder; the one that was compiled by default
    #[arg(long, value_name = "DIR", requires = "ids")]
    pub weights: Option<PathBuf>,
    /// First seed of the drawn inputs
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Draws per kernel, and per part of the first wrong one
    #[arg(long, default_value_t = 3)]
    pub draws: u64,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Report {
    pub bundle: PathBuf,
    /// The whole report as JSON
    #[arg(long)]
    pub json: bool,
    /// Write the report as one HTML page, which needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the predicted timeline of a one-row step as Chrome trace events, which Perfetto opens
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write one Markdown table for each layer kind, with every launch of a one-row step
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Set a profiler's trace (Chrome trace events of category kernel) beside the predictions
    #[arg(long, value_name = "TRACE")]
    pub measured: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Diff {
    /// A bundle, or a budget file
    pub a: PathBuf,
    /// What is compared with it: a bundle, or a budget file
    #[arg(required_unless_present = "write_budget", conflicts_with = "write_budget")]
    pub b: Option<PathBuf>,
    /// Write a budget of A instead: its launches, bytes and times, and the gfx1201 resources of each kernel
    #[arg(long, value_name = "FILE")]
    pub write_budget: Option<PathBuf>,
    #[command(flatten)]
    pub limits: Limits,
    #[arg(long)]
    pub json: bool,
}

/// How far B may be above A. Without limits nothing fails.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Limits: how far B may be above A, as a number or a percentage of A (0, 8, 2.5%)")]
pub struct Limits {
    /// Launches, of each launch list and of each layer kind in it; those that only compute element by element by themselves
    #[arg(long, value_name = "N[%]")]
    pub max_launches: Option<Limit>,
    /// Bytes of each launch list: DRAM, activations as issued and once for each reader, arena
    #[arg(long, value_name = "N[%]")]
    pub max_bytes: Option<Limit>,
    /// Predicted time of each launch list; a plain number is in microseconds
    #[arg(long, value_name = "N[%]")]
    pub max_time: Option<Limit>,
    /// VGPRs of each kernel, and the most of any
    #[arg(long, value_name = "N[%]")]
    pub max_vgprs: Option<Limit>,
    /// SGPRs of each kernel, and the most of any
    #[arg(long, value_name = "N[%]")]
    pub max_sgprs: Option<Limit>,
    /// Workgroup memory of each kernel in bytes, and the most of any
    #[arg(long, value_name = "N[%]")]
    pub max_lds: Option<Limit>,
    /// Spilled registers of each kernel, and of all
    #[arg(long, value_name = "N[%]")]
    pub max_spills: Option<Limit>,
    /// Bytes of machine code of each kernel, and of all
    #[arg(long, value_name = "N[%]")]
    pub max_code: Option<Limit>,
    /// Waves a SIMD unit that each kernel may lose, and the least of any
    #[arg(long, value_name = "N[%]")]
    pub max_occupancy_drop: Option<Limit>,
}

#[derive(Debug, Args)]
pub struct Explain {
    pub bundle: PathBuf,
    /// A kernel by name; an op by number (%12, kda%12) or by name (matmul)
    #[arg(value_name = "KERNEL|OP")]
    pub what: String,
    /// Only in this body of the trunk (a layer kind)
    #[arg(long, value_name = "NAME")]
    pub body: Option<String>,
    /// Only the launch list for steps of up to N rows
    #[arg(long, value_name = "N")]
    pub rows: Option<u64>,
    /// Numbers of ops count in the rewritten body, as tables of `unglue report` do, and not in the declared one
    #[arg(long)]
    pub rewritten: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Rules {
    /// The build that fired them
    pub bundle: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}
