//! `unglue bisect`: the first op whose value a bundle gets wrong.
//!
//! In: a bundle and a device. Every kernel is checked by itself on drawn inputs, in launch order; or, with token ids, a
//! step runs beside the interpreter up to the first launch whose outputs differ, and its kernel is checked. The first
//! wrong kernel is split: its ops, one after the other, are made anew as kernels of nothing but the op and what it needs.

mod step;
mod told;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use unglue_codegen::CodegenError;
use unglue_codegen::check::split::{self, Part, Split};
use unglue_codegen::check::{Mismatch, Subject, check};
use unglue_codegen::target::{self, Target};
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::module::Module;
use unglue_passes::facts::Facts;
use unglue_runtime::{Bundle, Code};

use crate::cli;
use crate::device::DeviceKind;
use crate::error::CliError;
use crate::report;
use crate::report::view::{Op, Report};
use crate::verify::subject::UnderTest;
use crate::verify::{Case, cases, verify_case};

pub fn run(args: &cli::Bisect) -> Result<(), CliError> {
    let kind = DeviceKind::of(&args.device, "")?;
    let (bundle, report) = report::open(&args.bundle)?;
    let m = bundle.manifest();
    let mut cases = cases(m, None)?;
    let differs = match &args.ids {
        None => None,
        Some(ids) => match step::first(args, ids, &trunk(&bundle)?, &report, m, kind)? {
            None => return right(args, &json!({"launches": "all", "wrong": null}), "no launch of the step differs"),
            some => some,
        },
    };
    if let Some(d) = &differs {
        cases.retain(|c| c.entry.name == d.kernel);
    }
    let mut device = UnderTest::open(kind, &bundle)?;
    let draws = (args.seed, args.draws);
    for (i, case) in cases.iter().enumerate() {
        if let Some(wrong) = verify_case(&mut device, case, draws, &mut BTreeMap::new())? {
            let graph = case.graph()?;
            let target = target_of(&mut device)?;
            let split = split::split(&graph, &case.step(), &mut |part| checked(kind, target, &part, case, draws))?;
            let place = |v| reported(&report, case, &graph, v);
            let found = Wrong { case, graph: &graph, before: i, all: cases.len(), wrong: &wrong, split: &split };
            return Err(told::told(args, differs.as_ref(), &found, &place));
        }
    }
    match &differs {
        Some(differs) => Err(told::only_in_the_step(args, differs)),
        None => {
            let text = format!("{} kernels, {} draws each, none wrong", cases.len(), args.draws);
            right(args, &json!({"device": args.device, "kernels": cases.len(), "wrong": null}), &text)
        }
    }
}

fn right(args: &cli::Bisect, value: &Value, text: &str) -> Result<(), CliError> {
    if args.json {
        println!("{value}");
    } else {
        println!("{text}");
    }
    Ok(())
}

/// The trunk as it was declared.
fn trunk(bundle: &Bundle) -> Result<Module, CliError> {
    let text = bundle.trunk_ir().and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default();
    Ok(unglue_ir::text::parse_module(text)?)
}

/// A wrong kernel: `before` of `all` are right, and it was split.
struct Wrong<'a> {
    case: &'a Case<'a>,
    graph: &'a Graph,
    before: usize,
    all: usize,
    wrong: &'a Mismatch,
    split: &'a Split,
}

fn target_of(device: &mut UnderTest) -> Result<&'static Target, CliError> {
    let name = device.device().target();
    let needed = || target::TARGETS.iter().map(|t| t.name).collect::<Vec<_>>().join(", ");
    target::by_name(name).ok_or_else(|| CliError::Usage { rule: "--device", found: name.into(), needed: needed() })
}

/// Compiles a part and runs it on a device of its own, on the draws that the kernel was checked on.
fn checked(
    kind: DeviceKind,
    target: &Target,
    part: &Part,
    case: &Case,
    (first, draws): (u64, u64),
) -> Result<Option<Mismatch>, CodegenError> {
    let made = split::make(part, target)?;
    let cannot = |e: String| CodegenError::Check { kernel: made.entry.name.clone(), found: e };
    let mut under = UnderTest::empty(kind).map_err(|e| cannot(e.to_string()))?;
    let kernel = target.packaging.per_kernel().then_some(0);
    let code = [Code { kernel, bytes: &made.code }];
    let loaded = under.device().load(std::slice::from_ref(&made.entry), &code);
    loaded.map_err(|e| cannot(e.to_string()))?;
    let subject = Subject {
        name: &made.entry.name,
        number: 0,
        graph: &part.graph,
        uses: &made.uses,
        grid: made.grid,
        bucket: case.step(),
        bounded: made.entry.products == unglue_runtime::manifest::Products::Tiles,
    };
    for draw in 0..draws.max(1) {
        let seed = first.wrapping_add(draw);
        under.prepare(draw, seed);
        if let Some(wrong) = check(under.device(), &subject, seed)? {
            return Ok(Some(wrong));
        }
    }
    Ok(None)
}

/// The op of the report that a value of a kernel's graph is: both list the same ops in the same order.
fn reported<'a>(report: &'a Report, case: &Case, graph: &Graph, value: ValueId) -> Option<(&'a str, &'a Op)> {
    let bucket = report.buckets.iter().find(|b| b.rows_max == case.bucket.rows_max)?;
    let holds = |b: &&crate::report::view::Body| b.kernels.iter().any(|k| k.name == case.entry.name);
    let body = bucket.bodies.iter().find(holds)?;
    let in_body = &body.kernels.iter().find(|k| k.name == case.entry.name)?.in_body;
    let ops: Vec<&Op> = body.ops.iter().filter(|op| op.kernels.contains(in_body)).collect();
    let here: Vec<ValueId> = Facts::new(graph).ops().collect();
    let agree = ops.len() == here.len() && ops.iter().zip(&here).all(|(o, v)| o.op == graph.node(*v).op.name());
    let at = here.iter().position(|v| *v == value).filter(|_| agree)?;
    Some((&body.body, ops.get(at)?))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    /// Every op of every kernel's graph is an op of the report.
    #[test]
    fn ops_of_kernels_are_ops_of_the_report() {
        let dir = tempfile::TempDir::new().unwrap();
        let bundle = dir.path().join("b.ug");
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");
        let line = ["unglue", "compile", model, "-o", bundle.to_str().unwrap(), "--layers", "2-3", "--json"];
        let Command::Compile(args) = Cli::parse_from(line).command else { panic!("not compile") };
        crate::compile::run(&args).unwrap();
        let (bundle, report) = report::open(&bundle).unwrap();
        for case in cases(bundle.manifest(), None).unwrap() {
            let graph = case.graph().unwrap();
            for op in Facts::new(&graph).ops() {
                let found = reported(&report, &case, &graph, op).map(|(_, o)| o.op.as_str());
                assert_eq!(found, Some(graph.node(op).op.name()), "{} {}", case.entry.name, op.0);
            }
        }
    }
}
