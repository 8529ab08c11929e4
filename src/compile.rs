//! `unglue compile`: trunk -> saturated bodies -> kernels -> code -> bundle.

use std::path::Path;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use unglue_codegen::bundle;
use unglue_codegen::cache::{Cache, Taken};
use unglue_codegen::target::{self, Target};
use unglue_ir::module::Module;
use unglue_ir::types::Type;
use unglue_runtime::{PartData, RuntimeError, check_destination, manifest, write_bundle};

use crate::cli;
use crate::error::CliError;
use crate::fuse::{self, Fused};
use crate::limits::{KV_BLOCK, MAX_CTX, MAX_ROWS, MAX_SEQS, ROWS};
use crate::source::{self, Source, origin_path};

pub fn run(args: &cli::Compile) -> Result<(), CliError> {
    let start = Instant::now();
    refuse_not_yet(args)?;
    free_output(&args.output)?;
    let targets = targets(&args.target)?;
    faults(args.fault, &targets)?;
    let source = source::load(&args.input, &args.trunk)?;
    let bar = progress(args.json);
    bar.set_message("verifying the trunk");
    unglue_ir::verify::module(&source.module)?;
    if let (Some(folder), Some(trunk)) = (&source.checkpoint, &source.trunk) {
        let checkpoint = unglue_models::checkpoint::Checkpoint::open(folder)?;
        checkpoint.check_against(&trunk.module, &trunk.skip)?;
    }
    let fused = fuse::fuse(&source, args, &bar)?;
    let jobs = if args.jobs == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { args.jobs };
    bar.set_length(fused.plan.kernels.len() as u64);
    bar.set_message("compiling kernels");
    let cache = args.cache.as_deref().map(Cache::new).transpose()?;
    let progress = |done: usize, _| bar.set_position(done as u64);
    let delay = args.fault.map(|cli::Fault::Delay(seed)| seed);
    let how = bundle::How { delay, jobs, cache: cache.as_ref(), progress: &progress };
    let kernels = bundle::compile(&fused.plan, &targets, &how)?;
    bar.set_message("linking and writing");
    let mut parts = bundle::parts(&kernels, &targets)?;
    let options = options(args, &source);
    let m = bundle::manifest(&fused.module, &fused.plan, &kernels, &targets, source.model.clone(), options)?;
    parts.push(text_part("trunk.ir", manifest::PartKind::TrunkIr, unglue_ir::text::print_module(&source.module)));
    let report = serde_json::to_string_pretty(&fused.report).map_err(|e| CliError::input(&args.output, e))?;
    parts.push(text_part("report.json", manifest::PartKind::Report, report));
    write_bundle(&args.output, m, &parts).map_err(CliError::Bundle)?;
    remember_origin(&args.output, &source)?;
    bar.finish_and_clear();
    summary(args, &source, &fused, start, cache.map(|c| c.taken()));
    Ok(())
}

fn text_part(path: &str, kind: manifest::PartKind, text: String) -> PartData {
    PartData { path: path.into(), kind, bytes: text.into_bytes() }
}

fn progress(quiet: bool) -> ProgressBar {
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
    if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} {msg} {wide_bar} {pos}/{len}") {
        bar.set_style(style);
    }
    bar
}

/// Fails before the work is done, not after it.
fn free_output(output: &Path) -> Result<(), CliError> {
    match check_destination(output) {
        Ok(_) => Ok(()),
        Err(RuntimeError::Destination { path, found }) => Err(CliError::Usage {
            rule: "--output",
            found: format!("{}, which {found}", path.display()),
            needed: "a free path in a folder that exists, or an unglue bundle to replace".into(),
        }),
        Err(e) => Err(CliError::Bundle(e)),
    }
}

/// Options that stand in the manifest already but have one value only.
fn refuse_not_yet(args: &cli::Compile) -> Result<(), CliError> {
    let fixed: [(&'static str, String, String); 5] = [
        ("--tp", args.tp.to_string(), "1".into()),
        ("--max-seqs", args.max_seqs.to_string(), MAX_SEQS.to_string()),
        ("--max-ctx", args.max_ctx.to_string(), MAX_CTX.to_string()),
        ("--kv-block", args.kv_block.to_string(), KV_BLOCK.to_string()),
        ("--kv-dtype", args.kv_dtype.clone(), "activation".into()),
    ];
    if !(ROWS[2]..=MAX_ROWS).contains(&args.max_rows) {
        let needed = format!("{} to {MAX_ROWS} rows", ROWS[2]);
        return Err(CliError::Usage { rule: "--max-rows", found: args.max_rows.to_string(), needed });
    }
    match fixed.into_iter().find(|(_, found, only)| found != only) {
        Some((what, found, only)) => Err(CliError::NotYet { what, found, only }),
        None => Ok(()),
    }
}

fn targets(names: &[String]) -> Result<Vec<&'static Target>, CliError> {
    let known = || target::TARGETS.iter().map(|t| t.name).collect::<Vec<_>>().join(", ");
    let mut out: Vec<&'static Target> = Vec::new();
    for name in names {
        let t = target::by_name(name);
        let t = t.ok_or_else(|| CliError::Usage {
            rule: "--target",
            found: name.clone(),
            needed: format!("one of {}", known()),
        })?;
        if !out.contains(&t) {
            out.push(t);
        }
    }
    out.sort_by_key(|t| t.name);
    Ok(out)
}

/// Delays need a clock.
fn faults(fault: Option<cli::Fault>, targets: &[&'static Target]) -> Result<(), CliError> {
    let without: Vec<&str> = targets.iter().filter(|t| !t.clock).map(|t| t.name).collect();
    match fault {
        Some(fault) if !without.is_empty() => {
            let clocks: Vec<&str> = target::TARGETS.iter().filter(|t| t.clock).map(|t| t.name).collect();
            Err(CliError::Usage {
                rule: "--fault",
                found: format!("{fault} for {}, which has no clock", without.join(", ")),
                needed: format!("--target {}", clocks.join(",")),
            })
        }
        _ => Ok(()),
    }
}

fn options(args: &cli::Compile, source: &Source) -> manifest::Options {
    let dtype = match source.trunk {
        Some(_) if args.trunk.dtype == cli::Dtype::F32 => manifest::Mem::F32,
        Some(_) => manifest::Mem::Bf16,
        None => text_dtype(&source.module),
    };
    manifest::Options {
        dtype,
        layers: source.model.layers.clone(),
        aux: source.aux.clone(),
        cover: fuse::strategy(args.cover).name().into(),
        numerics: fuse::numerics(args.numerics).name().into(),
        schedules: fuse::machine(&args.target).fit.target.into(),
        tp: 1,
        max_rows: u64::from(args.max_rows),
        max_seqs: u64::from(MAX_SEQS),
        max_ctx: MAX_CTX,
        kv_block: KV_BLOCK,
        kv_dtype: dtype,
        fault: args.fault.map(|fault| fault.to_string()),
    }
}

/// Activation dtype of a module from text: that of its first computed bf16 or f32 result between bodies.
fn text_dtype(module: &Module) -> manifest::Mem {
    let bf16 = module
        .bodies
        .iter()
        .flat_map(|b| b.inputs().map(move |(_, v)| b.ty(v)))
        .any(|t| matches!(t, Type::Tensor(t) if t.dtype() == Some(unglue_ir::types::DType::Bf16)));
    if bf16 { manifest::Mem::Bf16 } else { manifest::Mem::F32 }
}

fn remember_origin(bundle: &Path, source: &Source) -> Result<(), CliError> {
    let path = origin_path(bundle);
    match &source.checkpoint {
        Some(folder) => {
            let folder = folder.canonicalize().map_err(|e| CliError::input(folder, e))?;
            let text = folder.to_string_lossy().into_owned();
            std::fs::write(&path, text).map_err(|e| CliError::input(path, e))
        }
        None => {
            if path.exists() {
                std::fs::remove_file(&path).map_err(|e| CliError::input(path, e))?;
            }
            Ok(())
        }
    }
}

/// Peak resident memory of this process, from the kernel's accounting.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib / 1024)
}

fn summary(args: &cli::Compile, source: &Source, fused: &Fused, start: Instant, cache: Option<Taken>) {
    let declared: usize = source.module.calls.iter().map(|c| source.module.bodies[c.body as usize].nodes.len()).sum();
    let seconds = start.elapsed().as_secs_f64();
    let peak = peak_mib();
    let launches: Vec<(u32, usize)> =
        fused.plan.buckets.iter().map(|b| (b.bucket.rows_max, b.launches.len())).collect();
    if args.json {
        let value = json!({
            "bundle": args.output.display().to_string(),
            "ops_declared": declared,
            "kernels": fused.plan.kernels.len(),
            "launches": launches.iter().map(|(r, n)| json!({"rows": r, "launches": n})).collect::<Vec<_>>(),
            "wishes": fused.wishes.iter().map(|(body, rows, w)| json!({"body": body, "rows": rows, "wishes": w})).collect::<Vec<_>>(),
            "cache": cache,
            "seconds": seconds,
            "peak_mib": peak,
        });
        println!("{value}");
        return;
    }
    println!("{} layers, {declared} ops declared, {} kernels", source.model.layers.len(), fused.plan.kernels.len());
    for (rows, n) in launches {
        println!("  up to {rows:>2} rows: {n} launches a step");
    }
    if let Some(b) = fused.report.buckets.first() {
        for (class, t) in &b.by_class {
            println!("    {class:<18} {:>5} launches", t.launches);
        }
    }
    for line in fused.wishes.iter().flat_map(fuse::wish_lines) {
        println!("{line}");
    }
    if let Some(Taken { hits, misses, spoiled }) = cache {
        println!("object files: {hits} from the cache, {misses} compiled ({spoiled} of them spoiled in the cache)");
    }
    let peak = peak.map_or(String::new(), |m| format!(", {m} MiB at most"));
    println!("compiled in {seconds:.1} s{peak}: {}", args.output.display());
}
