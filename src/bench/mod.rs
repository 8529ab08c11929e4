//! `unglue bench`: the time of each kernel of a launch list alone, on a device with a clock.
//!
//! Each kernel is checked against the interpreter first: one that is wrong gets no time. With `--steps`, whole steps are
//! timed instead.

mod model;
mod steps;

use serde_json::json;
use unglue_codegen::check::{Subject, check_then};
use unglue_ir::graph::Node;
use unglue_ir::op::Op;
use unglue_passes::cost::{CostTable, kernel_cost};
use unglue_passes::schedule::schedule;
use unglue_runtime::{Bundle, Device};

use crate::cli;
use crate::device::DeviceKind;
use crate::error::CliError;
use crate::verify::{Case, cases, with_subject};

/// Bytes of the copy that the rates are compared with.
const COPY_BYTES: u64 = 4 << 30;

/// One kernel's times in microseconds, sorted.
struct Timed {
    name: String,
    launches: usize,
    times: Vec<f32>,
    /// Bytes of weights, state and activations that it must move, each once; none if they follow from which experts have
    /// a slot.
    bytes: Option<u64>,
    /// Microseconds by the cost table of the device's target; none if it has no table.
    modelled: Option<f64>,
    wrong: Option<String>,
}

impl Timed {
    fn median(&self) -> f32 {
        median(&self.times)
    }

    /// Gigabytes a second of what must move.
    fn rate(&self) -> Option<f64> {
        Some(self.bytes? as f64 / f64::from(self.median()) / 1e3)
    }
}

/// The middle one of sorted times.
fn median(sorted: &[f32]) -> f32 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(f32::NAN)
}

pub fn run(args: &cli::Bench) -> Result<(), CliError> {
    let kind = DeviceKind::of(&args.device, "")?;
    let bundle = Bundle::open(&args.bundle).map_err(CliError::Bundle)?;
    if let Some(n) = args.steps {
        let timed = steps::run(bundle, kind, args, n)?;
        println!("{}", if args.json { timed.json().to_string() } else { timed.text(args.rows) });
        return Ok(());
    }
    let m = bundle.manifest();
    let mut device = kind.open(0).map_err(CliError::Device)?;
    let code = bundle.code(device.target()).map_err(CliError::Bundle)?;
    device.load(&m.kernels, &code).map_err(CliError::Bundle)?;
    let copy = device.copy_rate(COPY_BYTES).map_err(CliError::Device)?.ok_or_else(|| CliError::Usage {
        rule: "--device",
        found: args.device.clone(),
        needed: "a device with a clock: cuda".into(),
    })?;
    let mut all = Vec::new();
    let of_list: Vec<Case> =
        cases(m, args.kernel.as_deref())?.into_iter().filter(|c| c.bucket.rows_max == args.rows).collect();
    for case in &of_list {
        let timed = time(device.as_mut(), case, args)?;
        if !args.json {
            print_row(&timed, copy);
        }
        all.push(timed);
    }
    if args.json {
        let rows: Vec<_> = all.iter().map(row).collect();
        let pairs = ordered(&all);
        let bench = json!({"device": device.name(), "copy_gb_s": copy / 1e9, "rows": args.rows, "kernels": rows,
            "pairs": pairs.all, "pairs_modelled_rightly": pairs.right});
        println!("{bench}");
    } else {
        let sum: f64 = all.iter().map(|t| f64::from(t.median()) * t.launches as f64).sum();
        println!("{:.1} us for {} launches, one by one; copy {:.0} GB/s read", sum, launches(&all), copy / 1e9);
        let pairs = ordered(&all);
        println!("of {} pairs that differ by more than 5 %, the cost model orders {} rightly", pairs.all, pairs.right);
    }
    match all.iter().find_map(|t| t.wrong.as_ref()) {
        Some(first) => Err(CliError::Failed(first.clone())),
        None => Ok(()),
    }
}

fn launches(all: &[Timed]) -> usize {
    all.iter().map(|t| t.launches).sum()
}

fn time(device: &mut dyn Device, case: &Case, args: &cli::Bench) -> Result<Timed, CliError> {
    let launches = case.bucket.launches.iter().filter(|l| l.kernel == case.kernel).count();
    let mut timed =
        Timed { name: case.entry.name.clone(), launches, times: vec![], bytes: None, modelled: None, wrong: None };
    let table = CostTable::of(device.target());
    let wrong = with_subject(case, |subject| {
        (timed.bytes, timed.modelled) = table.map_or((None, None), |table| model_of(subject, table));
        let wrong = check_then(device, subject, args.seed, &mut |device, grid, launch| {
            timed.times = device.time(subject.number, grid, launch, args.rounds)?.unwrap_or_default();
            Ok(())
        })?;
        Ok(wrong)
    })?;
    timed.wrong = wrong.map(|w| w.to_string());
    timed.times.sort_by(f32::total_cmp);
    Ok(timed)
}

/// Bytes of weights, state and activations, each once, and modelled microseconds. Which experts a grouped matmul reads
/// depends on the slots that were drawn: neither then.
fn model_of(subject: &Subject, table: &CostTable) -> (Option<u64>, Option<f64>) {
    let through_slots = |n: &Node| matches!(n.op, Op::GroupedMatMul { .. });
    if subject.graph.nodes.iter().any(through_slots) {
        return (None, None);
    }
    let Ok(s) = schedule(subject.graph, &subject.bucket) else { return (None, None) };
    let cost = kernel_cost(subject.graph, &s, &subject.bucket, table);
    let t = cost.traffic;
    (Some(t.dram() + t.read_bytes + t.written_bytes), Some(cost.ns as f64 / 1e3))
}

/// How many pairs of the kernels the cost model orders as the clock does.
fn ordered(all: &[Timed]) -> model::Pairs {
    let times: Vec<(f64, f64)> =
        all.iter().filter_map(|t| Some((f64::from(t.median()), t.modelled?))).filter(|t| t.0.is_finite()).collect();
    model::pairs(&times)
}

fn row(t: &Timed) -> serde_json::Value {
    let ends = (t.times.first(), t.times.last());
    json!({"name": t.name, "launches": t.launches, "us": t.median(), "us_least": ends.0, "us_most": ends.1,
        "bytes": t.bytes, "modelled_us": t.modelled, "wrong": t.wrong})
}

fn print_row(t: &Timed, copy: f64) {
    match (&t.wrong, t.times.as_slice()) {
        (Some(w), _) => println!("WRONG {w}"),
        (None, [least, .., most]) => {
            let moved = t.bytes.zip(t.rate()).map_or("bytes follow from the slots".to_owned(), |(bytes, rate)| {
                format!(
                    "{bytes:>10} bytes {rate:>6.0} GB/s, {:>3.0} % of the copy's",
                    100.0 * rate * 1e9 / (2.0 * copy)
                )
            });
            let us = t.median();
            let modelled = t.modelled.map_or(String::new(), |us| format!(", modelled {us:.1} us"));
            println!("{:<63} x{:<3} {us:>8.1} us ({least:.1} to {most:.1})  {moved}{modelled}", t.name, t.launches);
        }
        _ => println!("{:<63} x{:<3} not timed", t.name, t.launches),
    }
}
