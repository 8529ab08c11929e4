//! `unglue report --trace`: the predicted timeline of a one-row step as Chrome trace events, which Perfetto opens.
//!
//! One complete event a launch (category `kernel`, as profilers have it), and one a call of a body (category `call`) on a
//! track of its own. Times are microseconds from the start of the step; every one of them is modelled.

use serde_json::{Value, json};
use unglue_runtime::Bundle;

use super::timeline::{self, Timed};
use super::view::{Report, Wrong};

const KERNELS: u32 = 0;
const CALLS: u32 = 1;

/// The text of the trace: the launch list of the fewest rows.
///
/// # Errors
/// If report and launches do not fit together.
pub fn text(bundle: &Bundle, report: &Report) -> Result<String, Wrong> {
    let m = bundle.manifest();
    let (Some(list), Some(reported)) = (m.buckets.first(), report.buckets.first()) else {
        return Err(Wrong { found: "no launch list".into(), needed: "at least one".into() });
    };
    let timed = timeline::of(m, list, reported)?;
    let model = &m.model.name;
    let process = format!(
        "{model}, step of {} row(s), {} by the cost model of {}",
        list.rows_max, report.tag, report.costs.target
    );
    let mut events = vec![
        json!({ "name": "process_name", "ph": "M", "pid": 0, "args": { "name": process } }),
        json!({ "name": "thread_name", "ph": "M", "pid": 0, "tid": KERNELS, "args": { "name": "kernels" } }),
        json!({ "name": "thread_name", "ph": "M", "pid": 0, "tid": CALLS, "args": { "name": "calls" } }),
    ];
    events.extend(timed.iter().map(|t| kernel(t, &report.tag)));
    events.extend(timed.chunk_by(|a, b| a.launch.site == b.launch.site).filter_map(call));
    let other = json!({
        "bundle": bundle.sha256(),
        "tag": report.tag,
        "rows": list.rows_max,
        "predicted_us": us(reported.total.predicted_ns),
    });
    let head = format!("{{\"displayTimeUnit\":\"ns\",\"otherData\":{other},\"traceEvents\":[\n");
    let lines: Vec<String> = events.iter().map(Value::to_string).collect();
    Ok(format!("{head}{}\n]}}\n", lines.join(",\n")))
}

/// Nanoseconds as the format's microseconds.
fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

fn kernel(t: &Timed, tag: &str) -> Value {
    let k = t.kernel;
    json!({
        "name": k.name, "cat": "kernel", "ph": "X", "pid": 0, "tid": KERNELS,
        "ts": us(t.start_ns), "dur": us(k.predicted_ns),
        "args": {
            "class": k.class,
            "site": t.launch.site,
            "dram_bytes": k.traffic.weight_bytes.saturating_add(k.traffic.state_bytes),
            "cache_bytes": k.traffic.reread_bytes.saturating_add(k.traffic.written_bytes),
            "flops": k.traffic.flops,
            "bound": k.bound,
            "gap_us": us(k.gap_ns),
            "workgroups": k.workgroups,
            "tag": tag,
        },
    })
}

/// Launches in a row of one call of a body, without the gap behind the last.
fn call(launches: &[Timed]) -> Option<Value> {
    let (first, last) = (launches.first()?, launches.last()?);
    let end = last.start_ns.saturating_add(last.kernel.predicted_ns);
    Some(json!({
        "name": first.launch.site, "cat": "call", "ph": "X", "pid": 0, "tid": CALLS,
        "ts": us(first.start_ns), "dur": us(end.saturating_sub(first.start_ns)),
        "args": { "launches": launches.len() },
    }))
}
