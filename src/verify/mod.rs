//! `unglue verify`: every kernel of a bundle alone against the reference interpreter, and rewritten bodies against the
//! declared ones where the build is not exact.

pub(crate) mod bodies;
pub(crate) mod subject;
mod uses;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use unglue_codegen::check::repeat::{check_repeated, meets};
use unglue_codegen::check::{Mismatch, Subject, check};
use unglue_ir::graph::Graph;
use unglue_passes::schedule::{Bucket, Fit, fit};
use unglue_runtime::{Bundle, RuntimeError, manifest};

use crate::cli;
use crate::device::DeviceKind;
use crate::emulated::{self, Executed};
use crate::error::CliError;
use bodies::Checked;
use subject::UnderTest;

/// What each kernel is checked on.
pub(crate) struct Draws {
    /// Seed of the first.
    pub first: u64,
    pub draws: u64,
    /// Launches more of a kernel whose workgroups meet.
    pub repeat: u32,
}

/// One kernel and a launch that uses it.
pub(crate) struct Case<'a> {
    pub kernel: u32,
    pub entry: &'a manifest::Kernel,
    pub launch: &'a manifest::Launch,
    pub bucket: &'a manifest::Bucket,
    pub fit: &'static Fit,
}

impl<'a> Case<'a> {
    /// A launch by its numbers, if the bundle has it.
    #[cfg(feature = "compile")]
    pub fn of(m: &'a manifest::Manifest, (bucket, launch): (usize, usize), fit: &'static Fit) -> Option<Case<'a>> {
        let bucket = m.buckets.get(bucket)?;
        let launch = bucket.launches.get(launch)?;
        Some(Case { kernel: launch.kernel, entry: m.kernels.get(launch.kernel as usize)?, launch, bucket, fit })
    }

    pub fn step(&self) -> Bucket {
        Bucket {
            rows_max: self.bucket.rows_max as u32,
            seqs_max: self.bucket.seqs_max as u32,
            pools: self.bucket.pools,
            fit: self.fit,
        }
    }

    /// # Errors
    /// [`CliError::Ir`] if the kernel's text is no graph.
    pub fn graph(&self) -> Result<Graph, CliError> {
        let graph = unglue_ir::text::parse_graph(&self.entry.ir)?;
        unglue_ir::verify::graph(&graph)?;
        Ok(graph)
    }
}

pub fn run(args: &cli::Verify) -> Result<(), CliError> {
    let kind = DeviceKind::of(&args.device, "")?;
    let bundle = Bundle::open(&args.bundle).map_err(CliError::Bundle)?;
    let m = bundle.manifest();
    let cases = cases(m, args.kernel.as_deref())?;
    let mut device = UnderTest::open(kind, &bundle)?;
    let mut executed: BTreeMap<String, Executed> = BTreeMap::new();
    let draws = Draws { first: args.seed, draws: args.draws, repeat: args.repeat };
    let mut repeated = 0;
    let mut wrong: Vec<Mismatch> = Vec::new();
    for case in &cases {
        repeated += u32::from(args.repeat > 0 && case_meets(case)?);
        let found = verify_case(&mut device, case, &draws, &mut executed)?;
        if !args.json {
            match &found {
                None => println!("ok    {:<63} {}", case.entry.name, case.entry.class),
                Some(e) => println!("WRONG {e}"),
            }
        }
        wrong.extend(found);
    }
    let bodies = if args.kernel.is_none() { bodies::check(&bundle, (args.seed, args.draws))? } else { vec![] };
    if args.json {
        println!("{}", summary(args, (cases.len(), repeated), &wrong, &bodies));
    } else {
        bodies.iter().for_each(|b| println!("{}", body_line(b)));
        let repeats = match args.repeat {
            0 => String::new(),
            n => format!(", {n} repetitions of {repeated} kernels whose workgroups meet"),
        };
        println!("{} kernels, {} draws each{repeats}, {} wrong", cases.len(), args.draws, wrong.len());
    }
    keep(&bundle, executed);
    if let Some(first) = wrong.first() {
        let text = format!("{} of {} kernels differ; first: {first}", wrong.len(), cases.len());
        return Err(CliError::Failed(text));
    }
    bodies::in_bounds(&bodies)
}

fn summary(args: &cli::Verify, (kernels, repeated): (usize, u32), wrong: &[Mismatch], bodies: &[Checked]) -> Value {
    let mismatch = |w: &Mismatch| {
        json!({"kernel": w.kernel, "value": w.value, "index": w.index, "row": w.row, "device": w.device,
            "interpreter": w.interpreter, "seed": w.seed})
    };
    let body = |b: &Checked| {
        let compared = b.compared.as_ref().map(|c| {
            let wrong = c.wrong.as_ref().map(ToString::to_string);
            json!({"values": c.values, "unbounded": c.unbounded, "wrong": wrong})
        });
        json!({"body": b.body, "compared": compared})
    };
    let wrong: Vec<_> = wrong.iter().map(mismatch).collect();
    let bodies: Vec<_> = bodies.iter().map(body).collect();
    json!({"device": args.device, "kernels": kernels, "draws": args.draws,
        "repeated": repeated, "wrong": wrong, "bodies": bodies})
}

fn body_line(b: &Checked) -> String {
    let Some(c) = &b.compared else { return format!("left  body {}: too many weights to draw", b.body) };
    match &c.wrong {
        Some(e) => format!("WRONG {e}"),
        None => {
            let classes = c.values.iter().map(|(class, n)| format!("{n} {}", class.name()));
            let values = classes.collect::<Vec<_>>().join(", ");
            format!("ok    body {}: values compared in the bound of their class: {values}", b.body)
        }
    }
}

/// The machine that a bundle's schedules are fitted to.
///
/// # Errors
/// [`CliError::Bundle`] if this version knows none of that name.
pub(crate) fn fit_of(m: &manifest::Manifest) -> Result<&'static Fit, CliError> {
    let unknown = || {
        let known = fit::FITS.map(|f| f.target).join(", ");
        CliError::Bundle(RuntimeError::Unknown {
            what: "machine of schedules",
            name: m.options.schedules.clone(),
            known,
        })
    };
    Fit::of(&m.options.schedules).ok_or_else(unknown)
}

/// Each kernel with the first launch that uses it, in the order of these launches.
pub(crate) fn cases<'a>(m: &'a manifest::Manifest, only: Option<&str>) -> Result<Vec<Case<'a>>, CliError> {
    let mut first: BTreeMap<u32, Case<'a>> = BTreeMap::new();
    let fit = fit_of(m)?;
    for bucket in &m.buckets {
        for launch in &bucket.launches {
            let entry = &m.kernels[launch.kernel as usize];
            if only.is_none_or(|n| n == entry.name) {
                first.entry(launch.kernel).or_insert(Case { kernel: launch.kernel, entry, launch, bucket, fit });
            }
        }
    }
    match (only, first.is_empty()) {
        (Some(name), true) => Err(CliError::Usage {
            rule: "--kernel",
            found: name.into(),
            needed: "a kernel of the bundle, as `unglue report` lists them".into(),
        }),
        _ => Ok(first.into_values().collect()),
    }
}

pub(crate) fn verify_case(
    device: &mut UnderTest,
    case: &Case,
    on: &Draws,
    executed: &mut BTreeMap<String, Executed>,
) -> Result<Option<Mismatch>, CliError> {
    with_subject(case, |subject| {
        for draw in 0..on.draws.max(1) {
            let seed = on.first.wrapping_add(draw);
            device.prepare(draw, seed);
            let found = if on.repeat > 0 && meets(subject.uses) {
                check_repeated(device.device(), subject, seed, on.repeat)?
            } else {
                check(device.device(), subject, seed)?
            };
            if let Some(wrong) = found {
                return Ok(Some(wrong));
            }
            // Counts of the first draw: later ones run in another order. Those of repetitions would be sums.
            if let (0, 0, Some(counts)) = (draw, on.repeat, device.counted()) {
                let (rows_max, seqs_max) = (case.bucket.rows_max, case.bucket.seqs_max);
                executed.insert(case.entry.name.clone(), Executed { rows_max, seqs_max, seed, counts });
            }
        }
        Ok(None)
    })
}

/// Whether workgroups of a case's kernel meet.
fn case_meets(case: &Case) -> Result<bool, CliError> {
    with_subject(case, |subject| Ok(meets(subject.uses)))
}

/// Calls `f` with the case's kernel and graph.
pub(crate) fn with_subject<T>(case: &Case, f: impl FnOnce(&Subject) -> Result<T, CliError>) -> Result<T, CliError> {
    let graph = case.graph()?;
    let (uses, grid) = (uses::uses(case, &graph)?, uses::grid(&case.launch.grid));
    let (name, number, bucket) = (case.entry.name.as_str(), case.kernel, case.step());
    let bounded = case.entry.products == manifest::Products::Tiles;
    f(&Subject { name, number, graph: &graph, uses: &uses, grid, bucket, bounded })
}

/// Keeps the emulator's counts for `unglue report`. The check's result does not depend on whether that works.
fn keep(bundle: &Bundle, executed: BTreeMap<String, Executed>) {
    if executed.is_empty() {
        return;
    }
    if let Err(e) = emulated::write(bundle, executed) {
        eprintln!("note: the counts for `unglue report` were not kept: {e}");
    }
}
