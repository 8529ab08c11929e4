//! Source lines of the model, from its declared values to the ops and kernels of a report.
//!
//! A `repeat` has its own line and those of the ops inside. A value that rewriting kept has the lines of all declared values that became it. One that a rule brought in has those of
//! the declared values that the rule found equal to what it belongs to.

use std::collections::{BTreeMap, BTreeSet};

use unglue_ir::graph::Graph;
use unglue_ir::lines::{GraphLines, SourceLine};

use crate::report::{BodyReport, PassReport};
use crate::saturate::SaturationStats;

type Lines<'a> = BTreeMap<u32, BTreeSet<&'a SourceLine>>;

/// Fills in the lines of ops and kernels. `declared`: the bodies as they were declared, with their lines; bodies without
/// lines keep none.
pub fn attach(report: &mut PassReport, declared: &[Graph], lines: &[GraphLines]) {
    let declared = declared.iter().zip(lines).map(|(graph, lines)| lines.with_inner(graph));
    let of_bodies: Vec<Lines> = report.saturation.iter().zip(declared).map(|(s, lines)| extracted(s, &lines)).collect();
    for bucket in &mut report.buckets {
        for (body, lines) in bucket.bodies.iter_mut().zip(&of_bodies) {
            attach_body(body, lines);
        }
    }
}

/// By value of the extracted form.
fn extracted<'a>(s: &SaturationStats, declared: &[BTreeSet<&'a SourceLine>]) -> Lines<'a> {
    let mut out = Lines::new();
    for (now, lines) in s.became.iter().zip(declared) {
        if let Some(now) = now {
            out.entry(*now).or_default().extend(lines);
        }
    }
    for (now, from) in &s.made_from {
        out.entry(*now).or_default().extend(from.iter().filter_map(|v| declared.get(*v as usize)).flatten());
    }
    out
}

fn attach_body(body: &mut BodyReport, lines: &Lines) {
    let mut of_kernels: BTreeMap<&str, BTreeSet<&SourceLine>> = BTreeMap::new();
    for op in &mut body.ops {
        let here = lines.get(&op.value).cloned().unwrap_or_default();
        op.lines = here.iter().map(ToString::to_string).collect();
        for kernel in &op.kernels {
            of_kernels.entry(kernel).or_default().extend(&here);
        }
    }
    for kernel in &mut body.kernels {
        let here = of_kernels.get(kernel.in_body.as_str()).into_iter().flatten();
        kernel.lines = here.map(ToString::to_string).collect();
    }
}
