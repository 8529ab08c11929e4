//! `unglue bisect`: the first op whose value a bundle gets wrong.
//!
//! In: a bundle and a device. Every kernel is checked by itself on drawn inputs, in launch order; or, with token ids,
//! each launch of their steps on what it was given there. The kernel of the first that is wrong is split on the same
//! inputs: its ops, one after the other, are made anew as kernels of nothing but the op and what it needs.

mod launch;
mod step;
mod told;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use unglue_codegen::CodegenError;
use unglue_codegen::check::split::{self, Part, Split};
use unglue_codegen::check::{Given, Mismatch, Subject, check, check_given};
use unglue_codegen::target::{self, Target};
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::module::Module;
use unglue_ir::op as ir;
use unglue_passes::facts::{Facts, Kind};
use unglue_passes::names::is_number;
use unglue_passes::schedule::strip_reshapes;
use unglue_runtime::{Bundle, Code};

use crate::cli;
use crate::device::DeviceKind;
use crate::error::CliError;
use crate::report;
use crate::report::view::{Op, Report};
use crate::verify::bodies::{self, in_bounds};
use crate::verify::subject::UnderTest;
use crate::verify::{Case, Draws, cases, fit_of, verify_case, with_subject};
use step::{Differs, Found};

pub fn run(args: &cli::Bisect) -> Result<(), CliError> {
    let kind = DeviceKind::of(&args.device, "")?;
    let (bundle, report) = report::open(&args.bundle)?;
    match &args.ids {
        Some(ids) => in_steps(args, ids, kind, &bundle, &report),
        None => on_draws(args, kind, &bundle, &report),
    }
}

fn on_draws(args: &cli::Bisect, kind: DeviceKind, bundle: &Bundle, report: &Report) -> Result<(), CliError> {
    let cases = cases(bundle.manifest(), None)?;
    let mut device = UnderTest::open(kind, bundle)?;
    let draws = Draws { first: args.seed, draws: args.draws, repeat: 0 };
    let inputs = Inputs::Drawn;
    for (i, case) in cases.iter().enumerate() {
        if let Some(wrong) = verify_case(&mut device, case, &draws, &mut BTreeMap::new())? {
            let target = target_of(&mut device)?;
            let graph = case.graph()?;
            let split = split_on(args, kind, target, case, &graph, &inputs)?;
            let place = |v| reported(report, case, &graph, v);
            let before = Before::Kernels { right: i, all: cases.len() };
            let found = Wrong { case, graph: &graph, before, wrong: &wrong, split: &split };
            return Err(told::told(args, &found, &place));
        }
    }
    let text = format!("{} kernels, {} draws each, none wrong", cases.len(), args.draws);
    right(args, &json!({"device": args.device, "kernels": cases.len(), "wrong": null}), &text)
}

/// The first wrong launch of the ids' steps; its kernel is split on what that launch was given.
fn in_steps(args: &cli::Bisect, ids: &str, kind: DeviceKind, bundle: &Bundle, report: &Report) -> Result<(), CliError> {
    let m = bundle.manifest();
    let outcome = step::first(args, ids, &trunk(bundle)?, report, m, kind)?;
    let (at, place, given) = match outcome.found {
        None => {
            if !outcome.declared {
                in_bounds(&bodies::check(bundle, (args.seed, args.draws))?)?;
            }
            let compared = outcome.compared;
            let value = json!({"launches": "all", "compared": compared, "declared": outcome.declared, "wrong": null});
            let beside = if outcome.declared { ", and every value is the declared one" } else { "" };
            return right(args, &value, &format!("no launch is wrong in {compared} outputs and states{beside}"));
        }
        Some(Found::Declared(at)) => return Err(told::not_declared(args, &at)),
        Some(Found::Launch { at, place, given }) => (at, place, given),
    };
    let case = step::case(m, place, fit_of(m)?)?;
    let mut device = UnderTest::open(kind, bundle)?;
    let inputs = Inputs::OfStep(&given);
    let wrong = with_subject(&case, |s| Ok(on_inputs(&mut device, s, &inputs, (args.seed, args.draws))?))?;
    let Some(wrong) = wrong else { return Err(told::only_in_the_step(args, &at)) };
    let (target, graph) = (target_of(&mut device)?, case.graph()?);
    let split = split_on(args, kind, target, &case, &graph, &inputs)?;
    let place = |v| reported(report, &case, &graph, v);
    let found = Wrong { case: &case, graph: &graph, before: Before::Step(&at), wrong: &wrong, split: &split };
    Err(told::told(args, &found, &place))
}

/// What kernels run on.
enum Inputs<'a> {
    Drawn,
    /// What a launch of a step was given.
    OfStep(&'a Given<'static>),
}

/// Runs a kernel `draws` times: on as many draws, or on one input. An emulator orders waves differently each time.
fn on_inputs(
    under: &mut UnderTest,
    subject: &Subject,
    inputs: &Inputs,
    (first, draws): (u64, u64),
) -> Result<Option<Mismatch>, CodegenError> {
    for draw in 0..draws.max(1) {
        let seed = first.wrapping_add(draw);
        under.prepare(draw, seed);
        let wrong = match inputs {
            Inputs::Drawn => check(under.device(), subject, seed)?,
            Inputs::OfStep(given) => check_given(under.device(), subject, given)?,
        };
        if wrong.is_some() {
            return Ok(wrong);
        }
    }
    Ok(None)
}

fn split_on(
    args: &cli::Bisect,
    kind: DeviceKind,
    target: &Target,
    case: &Case,
    graph: &Graph,
    inputs: &Inputs,
) -> Result<Split, CliError> {
    let draws = (args.seed, args.draws);
    Ok(split::split(graph, &case.step(), &mut |part| checked(kind, target, &part, case, (inputs, draws)))?)
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

/// What was right before a wrong kernel.
enum Before<'a> {
    /// So many kernels on drawn inputs.
    Kernels { right: usize, all: usize },
    /// The launches of a step up to this one.
    Step(&'a Differs),
}

/// A wrong kernel that was split.
struct Wrong<'a> {
    case: &'a Case<'a>,
    graph: &'a Graph,
    before: Before<'a>,
    wrong: &'a Mismatch,
    split: &'a Split,
}

fn target_of(device: &mut UnderTest) -> Result<&'static Target, CliError> {
    let name = device.device().target();
    let needed = || target::TARGETS.iter().map(|t| t.name).collect::<Vec<_>>().join(", ");
    target::by_name(name).ok_or_else(|| CliError::Usage { rule: "--device", found: name.into(), needed: needed() })
}

/// Compiles a part and runs it on a device of its own, on the inputs that the kernel was checked on.
fn checked(
    kind: DeviceKind,
    target: &Target,
    part: &Part,
    case: &Case,
    (inputs, draws): (&Inputs, (u64, u64)),
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
    on_inputs(&mut under, &subject, inputs, draws)
}

/// A cast of what another kernel of the body computes. Where it is free in the kernel's own graph, to which that value is an
/// input, it is an op of the body all the same.
fn casts_a_value(graph: &Graph, id: ValueId) -> bool {
    let node = graph.node(id);
    let given = |from: ValueId| match &graph.node(strip_reshapes(graph, from)).op {
        ir::Op::Input { name, .. } => is_number(name),
        _ => false,
    };
    matches!(node.op, ir::Op::Cast(_)) && given(node.args[0])
}

/// The op of the report that a value of a kernel's graph is: both list the same ops in the same order.
fn reported<'a>(report: &'a Report, case: &Case, graph: &Graph, value: ValueId) -> Option<(&'a str, &'a Op)> {
    let bucket = report.buckets.iter().find(|b| b.rows_max == case.bucket.rows_max)?;
    let holds = |b: &&crate::report::view::Body| b.kernels.iter().any(|k| k.name == case.entry.name);
    let body = bucket.bodies.iter().find(holds)?;
    let in_body = &body.kernels.iter().find(|k| k.name == case.entry.name)?.in_body;
    let ops: Vec<&Op> = body.ops.iter().filter(|op| op.kernels.contains(in_body)).collect();
    let facts = Facts::new(graph);
    let here: Vec<ValueId> =
        graph.ids().filter(|id| facts.kind(*id) == Kind::Op || casts_a_value(graph, *id)).collect();
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
