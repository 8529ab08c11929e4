//! `unglue report --markdown`: every launch of a one-row step, as one Markdown table for each layer kind.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::tables::{bytes, counts, us};
use super::view::{Body, Bucket, Kernel, Report};

/// Ops that compute or copy element by element: they are counted, not named.
const ELEMENTWISE: [&str; 18] = [
    "abs",
    "add",
    "broadcast",
    "cast",
    "concat",
    "div",
    "exp",
    "log",
    "log1p",
    "max",
    "min",
    "mul",
    "neg",
    "rsqrt",
    "sigmoid",
    "slice",
    "sqrt",
    "sub",
];

/// The launch list of the fewest rows; empty without one.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let Some(list) = report.buckets.first() else { return out };
    let _ = writeln!(
        out,
        "Steps of at most {} row(s). Ops are named but for elementwise ones. weights, state: bytes of DRAM; in, out: bytes of \
         activations, each once; us: {} by the cost model of {}.",
        list.rows_max, report.tag, report.costs.target
    );
    for body in list.bodies.iter().filter(|b| list.by_body.contains_key(&b.body)) {
        section(&mut out, list, body);
    }
    out
}

fn section(out: &mut String, list: &Bucket, body: &Body) {
    let launches = list.by_body.get(&body.body).map_or(0, |t| t.launches);
    let calls = launches.checked_div(body.kernels.len() as u64).unwrap_or(0);
    let plural = |n: u64, one: &str, more: &str| format!("{n} {}", if n == 1 { one } else { more });
    let count = plural(body.kernels.len() as u64, "launch", "launches");
    let _ = writeln!(out, "\n**{}**: {count} a call, {} a step.\n", body.body, plural(calls, "call", "calls"));
    out.push_str("| | kernel | class | ops | weights | state | in | out | us | bound |\n");
    out.push_str("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (i, k) in (1..).zip(&body.kernels) {
        let t = &k.traffic;
        let _ = writeln!(
            out,
            "| {i} | `{}` | {} | {} | {} | {} | {} | {} | {} | {} |",
            k.name,
            k.class,
            ops(body, k),
            bytes(t.weight_bytes),
            bytes(t.state_bytes),
            bytes(t.read_bytes),
            bytes(t.written_bytes),
            us(k.predicted_ns),
            k.bound
        );
    }
}

/// `44: matmul×4, sum×4`.
fn ops(body: &Body, k: &Kernel) -> String {
    let held: Vec<&str> =
        body.ops.iter().filter(|op| op.kernels.contains(&k.in_body)).map(|op| op.op.as_str()).collect();
    let mut named: BTreeMap<String, u64> = BTreeMap::new();
    for op in held.iter().filter(|op| !ELEMENTWISE.contains(op)) {
        *named.entry((*op).to_owned()).or_default() += 1;
    }
    if named.is_empty() { held.len().to_string() } else { format!("{}: {}", held.len(), counts(&named)) }
}
