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
    /// Rows of the launch list that the trace is of; none if no list is wholly in it.
    pub list_rows: Option<u64>,
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
    /// The launch list that the trace is of, or the smallest that has the kernel: its launches there, and the predicted
    /// time of one.
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

/// A launch list: by kernel its launches, and the predicted ns of one.
struct List<'a> {
    rows: u64,
    launches: BTreeMap<&'a str, u64>,
    predicted: BTreeMap<&'a str, u64>,
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
    let tag = format!("measured ({file})");
    let mut out = Measured { tag, list_rows: None, kernels: vec![], unknown: vec![], missing: vec![] };
    let measured: BTreeMap<String, Durations> =
        by_name.into_iter().map(|(name, all)| (name.clone(), summary(name, all))).collect();
    let lists = lists(m, report);
    let traced = list_of(&lists, &measured);
    out.list_rows = traced.map(|list| list.rows);
    let beside = |d: &Durations| traced.into_iter().chain(&lists).find_map(|list| joined(d, list));
    for k in &m.kernels {
        match measured.get(&k.name).and_then(beside) {
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

/// The launch lists, the smallest first.
fn lists<'a>(m: &'a Manifest, report: &'a Report) -> Vec<List<'a>> {
    let of = m.buckets.iter().zip(&report.buckets).map(|(list, reported)| {
        let mut launches: BTreeMap<&str, u64> = BTreeMap::new();
        for kernel in list.launches.iter().filter_map(|l| m.kernels.get(l.kernel as usize)) {
            *launches.entry(kernel.name.as_str()).or_default() += 1;
        }
        let kernels = reported.bodies.iter().flat_map(|b| &b.kernels);
        let predicted = kernels.map(|k| (k.name.as_str(), k.predicted_ns)).collect();
        List { rows: list.rows_max, launches, predicted }
    });
    of.collect()
}

/// The list that a trace is of: of those whose kernels are all in it the one with a kernel that no other of them has. If
/// many have one, or none, the one with the most launches in agreement; of equals the smallest.
fn list_of<'a, 'b>(lists: &'b [List<'a>], measured: &BTreeMap<String, Durations>) -> Option<&'b List<'a>> {
    let in_trace = |list: &List<'_>| list.launches.keys().all(|&name| measured.contains_key(name));
    let whole: Vec<&List<'a>> = lists.iter().filter(|list| !list.launches.is_empty() && in_trace(list)).collect();
    let alone = |name: &str| whole.iter().filter(|list| list.launches.contains_key(name)).count() == 1;
    let own: Vec<&List<'a>> =
        whole.iter().copied().filter(|list| list.launches.keys().any(|&name| alone(name))).collect();
    let of = if own.is_empty() { whole } else { own };
    // Of equal keys `max_by_key` takes the last.
    of.into_iter().rev().max_by_key(|list| agreeing(list, measured))
}

/// Launches of kernels that are in the trace as often as the same number of steps launches them.
fn agreeing(list: &List<'_>, measured: &BTreeMap<String, Durations>) -> u64 {
    let mut by_steps: BTreeMap<u64, u64> = BTreeMap::new();
    for (&name, &launches) in &list.launches {
        let count = measured.get(name).map_or(0, |d| d.count);
        if count.is_multiple_of(launches) {
            *by_steps.entry(count / launches).or_default() += launches;
        }
    }
    by_steps.into_values().max().unwrap_or(0)
}

/// None if the list does not have the kernel.
fn joined(measured: &Durations, list: &List<'_>) -> Option<Joined> {
    let name = measured.name.as_str();
    let (launches, predicted_ns) = (*list.launches.get(name)?, *list.predicted.get(name)?);
    let predicted_us = predicted_ns as f64 / 1000.0;
    let ratio = (predicted_ns > 0).then(|| measured.median_us / predicted_us);
    Some(Joined { measured: measured.clone(), rows: list.rows, launches, predicted_us, ratio })
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
    let beside = match of.list_rows {
        Some(rows) => format!(
            "The kernels are set beside the list of {rows} row(s): of the launch lists that are wholly in the trace the one \
             with kernels of its own, else with the most launches in agreement. Kernels that it lacks are set beside the \
             smallest list that has them."
        ),
        None => {
            "No launch list is wholly in the trace: each kernel is set beside the smallest list that has it.".into()
        }
    };
    page.note(&beside);
    page.note(
        "rows, launches: of the list. count: events of the trace. Times are of one launch, without the gap behind it. \
         ratio: measured by predicted.",
    );
    let names = |names: Vec<String>| if names.is_empty() { "none".into() } else { names.join(", ") };
    page.note(&format!("Kernels of the bundle that the trace does not have: {}", names(of.missing.clone())));
    let unknown = of.unknown.iter().map(|d| format!("{} ({} x {:.1} us)", d.name, d.count, d.median_us)).collect();
    page.note(&format!("Kernels of the trace that the bundle does not have: {}", names(unknown)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list<'a>(rows: u64, launches: &[(&'a str, u64)]) -> List<'a> {
        List { rows, launches: launches.iter().copied().collect(), predicted: BTreeMap::new() }
    }

    /// Rows of the list that a trace with these events is of.
    fn rows(lists: &[List<'_>], counts: &[(&str, u64)]) -> Option<u64> {
        let durations = |&(name, count): &(&str, u64)| Durations { name: name.into(), count, median_us: 1.0 };
        let measured: BTreeMap<String, Durations> = counts.iter().map(durations).map(|d| (d.name.clone(), d)).collect();
        list_of(lists, &measured).map(|list| list.rows)
    }

    #[test]
    fn a_kernel_of_its_own_tells_the_list() {
        let lists = [list(1, &[("both", 1), ("one", 2)]), list(16, &[("both", 1), ("many", 3)])];
        assert_eq!(rows(&lists, &[("both", 1), ("one", 2)]), Some(1));
        assert_eq!(rows(&lists, &[("both", 1), ("many", 3), ("memset", 9)]), Some(16));
        assert_eq!(rows(&lists, &[("both", 1)]), None, "no list is whole");
        let within = [list(1, &[("a", 1)]), list(4, &[("a", 1), ("b", 1)]), list(16, &[])];
        assert_eq!(rows(&within, &[("a", 1)]), Some(1));
        assert_eq!(rows(&within, &[("a", 1), ("b", 1)]), Some(4));
        assert_eq!(rows(&within, &[("c", 1)]), None, "a list without launches is never taken");
    }

    #[test]
    fn else_the_most_launches_in_agreement_do() {
        // One step of a row and two of many.
        let lists = [list(1, &[("both", 1), ("one", 2)]), list(16, &[("both", 1), ("many", 3)])];
        assert_eq!(rows(&lists, &[("both", 3), ("one", 2), ("many", 6)]), Some(16));
        let same = [list(1, &[("a", 1), ("b", 1)]), list(4, &[("a", 1), ("b", 2)])];
        assert_eq!(rows(&same, &[("a", 5), ("b", 5)]), Some(1));
        assert_eq!(rows(&same, &[("a", 5), ("b", 10)]), Some(4));
        let equal = [list(1, &[("a", 1), ("b", 1)]), list(4, &[("a", 1), ("b", 1)])];
        assert_eq!(rows(&equal, &[("a", 2), ("b", 2)]), Some(1), "of equals the smallest");
    }
}
