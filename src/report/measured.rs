//! `unglue report --measured`: a profiler's trace beside what was predicted, joined by kernel name.
//!
//! In: Chrome trace events, as an object with `traceEvents` or as an array; of them those with a category `kernel` count.
//! Durations are microseconds, as the format has them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use unglue_runtime::manifest::Manifest;

use super::tables::Page;
use super::view::Report;
use crate::error::CliError;

/// The suffix that AMD's profilers give kernels: the name of the kernel's descriptor.
const DESCRIPTOR: &str = ".kd";

#[derive(Debug, Serialize)]
pub struct Measured {
    /// `measured (FILE)`: what the counts and medians are.
    pub tag: String,
    /// Kernels of both, by name.
    pub kernels: Vec<Joined>,
    /// In the trace and not in the bundle, by name.
    pub unknown: Vec<Durations>,
    /// In the bundle and not in the trace.
    pub missing: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Joined {
    #[serde(flatten)]
    pub measured: Durations,
    /// The smallest launch list that has the kernel: its launches there, and the predicted time of one.
    pub rows: u64,
    pub launches: u64,
    pub predicted_us: f64,
    /// Measured by predicted; none if nothing was predicted.
    pub ratio: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Durations {
    pub name: String,
    pub count: u64,
    pub median_us: f64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Trace {
    Object {
        #[serde(rename = "traceEvents")]
        events: Vec<Event>,
    },
    Array(Vec<Event>),
}

/// Fields that this command reads. Other events than kernels may hold anything in them.
#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    name: Value,
    #[serde(default)]
    cat: Value,
    #[serde(default)]
    dur: Value,
}

/// Reads a trace and joins it with a bundle's kernels.
///
/// # Errors
/// [`CliError::Input`] if the file cannot be read, is no trace, or has no kernel or a bad one.
pub fn read(path: &Path, m: &Manifest, report: &Report) -> Result<Measured, CliError> {
    let text = std::fs::read(path).map_err(|e| CliError::input(path, e))?;
    let by_name = durations(&text).map_err(|message| CliError::input(path, format!("measured trace: {message}")))?;
    let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let mut out = Measured { tag: format!("measured ({file})"), kernels: vec![], unknown: vec![], missing: vec![] };
    let measured: BTreeMap<String, Durations> =
        by_name.into_iter().map(|(name, all)| (name.clone(), summary(name, all))).collect();
    for k in &m.kernels {
        match measured.get(&k.name).and_then(|d| joined(d, m, report)) {
            Some(joined) => out.kernels.push(joined),
            None => out.missing.push(k.name.clone()),
        }
    }
    out.kernels.sort_by(|a, b| a.measured.name.cmp(&b.measured.name));
    out.missing.sort();
    let known = |name: &str| out.kernels.iter().any(|k| k.measured.name == name);
    out.unknown = measured.into_values().filter(|d| !known(&d.name)).collect();
    Ok(out)
}

/// Microseconds of every kernel event, by kernel name.
fn durations(text: &[u8]) -> Result<BTreeMap<String, Vec<f64>>, String> {
    let needed = "needed Chrome trace events: an array, or an object with `traceEvents`";
    let trace: Trace = serde_json::from_slice(text).map_err(|e| format!("found JSON that is none ({e}); {needed}"))?;
    let (Trace::Object { events } | Trace::Array(events)) = trace;
    let mut out: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let is_kernel = |e: &Event| e.cat.as_str().is_some_and(|c| c.split(',').any(|c| c.trim() == "kernel"));
    for (i, event) in events.iter().enumerate().filter(|(_, e)| is_kernel(e)) {
        let Some(name) = event.name.as_str() else {
            return Err(format!("found name {} in event {i}; needed the name of a kernel", event.name));
        };
        let Some(dur) = event.dur.as_f64().filter(|d| *d >= 0.0) else {
            return Err(format!("found dur {} in event {i} ({name}); needed microseconds, at least 0", event.dur));
        };
        out.entry(name.strip_suffix(DESCRIPTOR).unwrap_or(name).into()).or_default().push(dur);
    }
    if out.is_empty() {
        return Err(format!("found {} events, none of category kernel; needed a profile of a device", events.len()));
    }
    Ok(out)
}

fn summary(name: String, mut all: Vec<f64>) -> Durations {
    all.sort_by(f64::total_cmp);
    let middle = |i: usize| all.get(i).copied().unwrap_or(0.0);
    let n = all.len();
    let median_us = if n % 2 == 1 { middle(n / 2) } else { (middle((n / 2).saturating_sub(1)) + middle(n / 2)) / 2.0 };
    Durations { name, count: n as u64, median_us }
}

/// None if no launch list has the kernel.
fn joined(measured: &Durations, m: &Manifest, report: &Report) -> Option<Joined> {
    m.buckets.iter().zip(&report.buckets).find_map(|(list, reported)| {
        let is_it = |k: u32| m.kernels.get(k as usize).is_some_and(|k| k.name == measured.name);
        let launches = list.launches.iter().filter(|l| is_it(l.kernel)).count() as u64;
        let kernel = reported.bodies.iter().flat_map(|b| &b.kernels).find(|k| k.name == measured.name)?;
        let predicted_us = kernel.predicted_ns as f64 / 1000.0;
        let ratio = (kernel.predicted_ns > 0).then(|| measured.median_us / predicted_us);
        let rows = list.rows_max;
        (launches > 0).then(|| Joined { measured: measured.clone(), rows, launches, predicted_us, ratio })
    })
}

/// The section of the text report.
pub fn section(page: &mut Page, of: &Measured, tag: &str) {
    page.title(format!("Measured beside predicted [{} counts and medians; {tag} predictions]", of.tag));
    let row = |k: &Joined| {
        vec![
            k.measured.name.clone(),
            k.rows.to_string(),
            k.launches.to_string(),
            k.measured.count.to_string(),
            format!("{:.1}", k.measured.median_us),
            format!("{:.1}", k.predicted_us),
            k.ratio.map_or_else(|| "-".into(), |r| format!("{r:.2}")),
        ]
    };
    let heads = ["kernel", ">rows", ">launches", ">count", ">median us", ">predicted us", ">ratio"];
    page.table(&heads, of.kernels.iter().map(row).collect());
    page.note(
        "rows, launches: the smallest launch list that has the kernel. count: events of the trace. Times are of one launch, \
         without the gap behind it. ratio: measured by predicted.",
    );
    let names = |names: Vec<String>| if names.is_empty() { "none".into() } else { names.join(", ") };
    page.note(&format!("Kernels of the bundle that the trace does not have: {}", names(of.missing.clone())));
    let unknown = of.unknown.iter().map(|d| format!("{} ({} x {:.1} us)", d.name, d.count, d.median_us)).collect();
    page.note(&format!("Kernels of the trace that the bundle does not have: {}", names(unknown)));
}
