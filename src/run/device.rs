//! A bundle on a device.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use unglue_models::checkpoint::Checkpoint;
use unglue_models::safetensors::Stored;
#[cfg(feature = "compile")]
use unglue_runtime::Hook;
use unglue_runtime::manifest::{MANIFEST_FILE, Manifest, Mem, Source};
use unglue_runtime::{
    BufferReader, Bundle, Counters, Feed, Geometry, LaunchEvent, LogitRows, Moment, RuntimeError, SequenceState,
    Session, SessionOptions, slice_tensor,
};

use super::dump::{Array, Dump};
use super::{Engine, Limits, Work};
use crate::cli;
use crate::device::DeviceKind;
use crate::error::CliError;

/// A session with one sequence.
pub struct OnDevice {
    session: Session,
    sequence: SequenceState,
    kind: DeviceKind,
    threads: usize,
    /// Per bucket.
    reads: Vec<Reads>,
}

/// Per launch, the names and buffers that are read after it.
type Reads = Vec<Vec<(String, u32)>>;

impl OnDevice {
    /// Opens and checks everything that `args` name.
    pub fn open(args: &cli::Run, kind: DeviceKind, work: &Work) -> Result<OnDevice, CliError> {
        if !args.input.join(MANIFEST_FILE).is_file()
            && (args.input.is_file() || args.input.join("config.json").is_file())
        {
            let message = "no bundle; compile it first (unglue compile), or pass --device interp";
            return Err(CliError::input(&args.input, message));
        }
        let bundle = Bundle::open(&args.input).map_err(CliError::Bundle)?;
        let manifest = bundle.manifest();
        fixed_at_compile(&args.trunk, manifest)?;
        work.check(&limits(manifest))?;
        let folder = weights_folder(args)?;
        let checkpoint = Checkpoint::open(&folder)?;
        let geometry = geometry(manifest, args, work);
        let reads = reads(manifest);
        let told = |e| explained(e, &folder);
        let device = kind.open(args.threads).map_err(told)?;
        let provider = |source: &Source| tensor(&checkpoint, source);
        let options = SessionOptions { edges: args.edges.into(), ..SessionOptions::default() };
        let mut session = Session::create(Arc::new(bundle), device, &provider, geometry, options).map_err(told)?;
        let sequence = session.open_sequence().map_err(CliError::Device)?;
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if args.threads == 0 { all() } else { args.threads };
        Ok(OnDevice { session, sequence, kind, threads, reads })
    }

    /// Feeds the next ids with a look at each launch.
    #[cfg(feature = "compile")]
    pub fn observed(&mut self, ids: &[i32], hook: &mut Hook<'_>) -> Result<(), CliError> {
        let mut feeds = [Feed { seq: &mut self.sequence, ids, logits: LogitRows::All }];
        self.session.feed_batch(&mut feeds, Some(hook)).map_err(CliError::Device)?;
        Ok(())
    }
}

/// Options of the trunk say nothing to a bundle; one that contradicts it would otherwise be passed over in silence.
fn fixed_at_compile(trunk: &cli::Trunk, manifest: &Manifest) -> Result<(), CliError> {
    let needed = || "with --device interp only: a bundle has what it was compiled with".to_string();
    let usage = |rule, found: String| Err(CliError::Usage { rule, found, needed: needed() });
    if let Some(layers) = &trunk.layers {
        return usage("--layers", layers.clone());
    }
    if !trunk.aux.is_empty() {
        return usage("--aux", format!("{:?}", trunk.aux));
    }
    if !trunk.tap.is_empty() {
        return usage("--tap", trunk.tap.join(", "));
    }
    if !trunk.allow_field.is_empty() {
        return usage("--allow-field", trunk.allow_field.join(", "));
    }
    if trunk.dtype == cli::Dtype::F32 && manifest.options.dtype != Mem::F32 {
        return usage("--dtype", format!("f32 for a bundle of {}", manifest.options.dtype));
    }
    Ok(())
}

fn limits(manifest: &Manifest) -> Limits {
    let rows = manifest.buckets.iter().map(|b| b.rows_max).max();
    Limits { vocab: manifest.model.vocab_size, rows, context: manifest.options.max_ctx }
}

/// Room for the run and no more: results do not depend on it.
fn geometry(manifest: &Manifest, args: &cli::Run, work: &Work) -> Geometry {
    let block_size = args.block.unwrap_or(manifest.options.kv_block);
    let max_ctx = work.tokens().max(1);
    Geometry { block_size, num_blocks: max_ctx.div_ceil(block_size.max(1)), max_slots: 1, max_ctx }
}

/// The checkpoint folder that a command line names, or that the bundle was compiled from.
pub fn weights_folder(args: &cli::Run) -> Result<PathBuf, CliError> {
    if let Some(folder) = &args.weights {
        return Ok(folder.clone());
    }
    let origin = crate::source::origin_path(&args.input);
    match std::fs::read_to_string(&origin) {
        Ok(folder) => Ok(folder.trim_end_matches('\n').into()),
        Err(_) => Err(CliError::Usage {
            rule: "--weights",
            found: "none, and the bundle does not say which checkpoint it was compiled from".into(),
            needed: "the checkpoint folder: --weights DIR".into(),
        }),
    }
}

/// Says of an error whose fault it is: the command line's, the checkpoint's, the bundle's or the device's.
fn explained(error: RuntimeError, weights: &Path) -> CliError {
    match error {
        RuntimeError::Geometry { rule: "block size", found, needed } => {
            CliError::Usage { rule: "--block", found, needed }
        }
        RuntimeError::Device { rule: "threads", found, needed } => CliError::Usage { rule: "--threads", found, needed },
        e @ RuntimeError::Weight { .. } => CliError::input(weights, e),
        e @ (RuntimeError::WrongTarget { .. } | RuntimeError::CodeLoad { .. }) => CliError::Bundle(e),
        e => CliError::Device(e),
    }
}

/// The mapped bytes of a source, if the checkpoint has it as the bundle expects it.
fn tensor<'a>(checkpoint: &'a Checkpoint, source: &Source) -> Result<Cow<'a, [u8]>, String> {
    let Some(found) = checkpoint.tensor(&source.tensor) else { return Err("no such tensor".into()) };
    let dtype = match source.dtype {
        Mem::F32 => Stored::F32,
        Mem::Bf16 => Stored::Bf16,
        Mem::F16 => Stored::F16,
        Mem::I32 => Stored::I32,
    };
    if found.dtype != dtype || found.shape != source.shape {
        return Err(format!("{} {:?} where the bundle expects {dtype} {:?}", found.dtype, found.shape, source.shape));
    }
    slice_tensor(found.bytes, source)
}

/// What to read after which launch. The logits, which leave the last launch, are read like any tap: in their own dtype.
fn reads(manifest: &Manifest) -> Vec<Reads> {
    let mut all: Vec<Reads> = manifest.buckets.iter().map(|b| vec![Vec::new(); b.launches.len()]).collect();
    for (bucket, reads) in all.iter_mut().enumerate() {
        for tap in &manifest.outputs.taps {
            let launch = tap.after_launch.get(bucket).and_then(|&l| reads.get_mut(l as usize));
            if let Some(list) = launch {
                list.push((tap.name.clone(), tap.buffer));
            }
        }
        if let Some(list) = reads.last_mut() {
            list.push(("logits".into(), manifest.outputs.logits));
        }
    }
    all
}

impl Engine for OnDevice {
    fn step(&mut self, ids: &[i32], wanted: bool, dump: Option<&mut Dump>) -> Result<Option<i32>, CliError> {
        let logits = match (&dump, wanted) {
            (Some(_), _) => LogitRows::All,
            (None, true) => LogitRows::Last,
            (None, false) => LogitRows::None,
        };
        let mut feeds = [Feed { seq: &mut self.sequence, ids, logits }];
        let reads = &self.reads;
        let out = match dump {
            None => self.session.feed_batch(&mut feeds, None),
            Some(dump) => {
                let mut hook = |e: &LaunchEvent<'_>, reader: &dyn BufferReader| {
                    let here = reads.get(e.bucket).filter(|_| e.moment == Moment::After);
                    let here = here.and_then(|b| b.get(e.launch)).map(Vec::as_slice);
                    for (name, buffer) in here.unwrap_or_default() {
                        if dump.wants(name) {
                            dump.push(name, reader.read_buffer(*buffer).map_err(|e| e.to_string())?.into());
                        }
                    }
                    Ok(())
                };
                self.session.feed_batch(&mut feeds, Some(&mut hook))
            }
        };
        Ok(out.map_err(CliError::Device)?.argmax.last().copied())
    }

    fn states(&self) -> Result<Vec<(String, Array)>, CliError> {
        let read = |name: &String| {
            let value = self.session.read_state(&self.sequence, name).map_err(CliError::Device)?;
            Ok((name.clone(), value.into()))
        };
        self.session.bundle().manifest().states.iter().map(|s| read(&s.name)).collect()
    }

    fn device(&self) -> &'static str {
        self.kind.name()
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn counters(&self) -> Option<Counters> {
        Some(self.session.counters())
    }
}
