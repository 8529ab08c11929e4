//! What `unglue bisect` says of a wrong kernel.

use serde_json::{Value, json};
use unglue_codegen::check::Mismatch;
use unglue_codegen::check::split::Found;
use unglue_ir::graph::ValueId;

use super::step::Differs;
use super::{Before, Wrong};
use crate::cli;
use crate::error::CliError;
use crate::report::view::Op;

/// Body and op of the report that a value of the kernel's graph is.
pub type Placed<'a> = &'a dyn Fn(ValueId) -> Option<(&'a str, &'a Op)>;

/// Prints what was found; the error that ends the command.
pub fn told(args: &cli::Bisect, w: &Wrong, placed: Placed) -> CliError {
    let name = |v: ValueId| format!("%{} {}", v.0, w.graph.node(v).op.name());
    let (kind, what, op) = match &w.split.found {
        Found::Op { value, wrong } => {
            let (named, op) = op(&name(*value), placed(*value), wrong);
            ("op", format!("first wrong op: {named}: {wrong}"), op)
        }
        Found::Whole { wrong } => {
            let text = "every op by itself is right, and the kernel made anew is wrong: it takes their being together";
            ("whole", format!("{text}: {wrong}"), Value::Null)
        }
        Found::OldCode => {
            let text =
                "the kernel made anew is right: the bundle holds other code than this build of unglue makes of it";
            ("old_code", text.to_owned(), Value::Null)
        }
    };
    let skipped: Vec<String> = w.split.skipped.iter().map(|(v, why)| format!("{}: {why}", name(*v))).collect();
    let (differs, right, all, inputs) = match w.before {
        Before::Kernels { right, all } => (None, Some(right), Some(all), "drawn inputs"),
        Before::Step(at) => (Some(at), None, None, "what the launch was given"),
    };
    if args.json {
        let value = json!({
            "device": args.device, "differs": differs, "kernels": all, "right_before": right,
            "wrong": mismatch(w.wrong), "found": kind, "op": op, "parts": w.split.tried, "skipped": skipped,
        });
        println!("{value}");
    } else {
        match w.before {
            Before::Step(at) => println!("{}", of_the_step(at)),
            Before::Kernels { right, all } => {
                println!("{right} of {all} kernels are right; then {}", w.case.entry.name);
            }
        }
        println!("on {inputs}: {}", w.wrong);
        skipped.iter().for_each(|s| println!("no kernel of its own: {s}"));
        println!("{} parts were made anew; {what}", w.split.tried);
    }
    CliError::Failed(format!("kernel {}: {what}", w.case.entry.name))
}

/// The op in words and as JSON.
fn op(value: &str, placed: Option<(&str, &Op)>, wrong: &Mismatch) -> (String, Value) {
    let place = placed.map(|(body, op)| format!("{body}%{}", op.value));
    let lines = placed.map(|(_, op)| op.lines.clone()).unwrap_or_default();
    let mut text = format!("{value} of the kernel's graph");
    if let Some(place) = &place {
        text.push_str(&format!(", which is {place} of the rewritten body"));
    }
    if !lines.is_empty() {
        text.push_str(&format!(", from {}", lines.join(", ")));
    }
    (text, json!({"value": value, "rewritten": place, "lines": lines, "wrong": mismatch(wrong)}))
}

/// A launch is wrong in the step, and its kernel right on the same inputs.
pub fn only_in_the_step(args: &cli::Bisect, d: &Differs) -> CliError {
    let what = "alone its kernel is right on what the launch was given: look at what else ran on the device, or at places \
                that its buffers share in the arena";
    of_a_launch(args, d, "only_in_the_step", what)
}

/// A launch is right on what it was given, and what it leaves is not what the trunk declares.
pub fn not_declared(args: &cli::Bisect, d: &Differs) -> CliError {
    let what = "the launch is right on what it was given: the rewriting, its arguments, or a buffer that was overwritten \
                are wrong; needed: the declared value; `unglue run --tap` on a bundle with taps reads values before it";
    of_a_launch(args, d, "not_declared", what)
}

fn of_a_launch(args: &cli::Bisect, d: &Differs, found: &str, what: &str) -> CliError {
    if args.json {
        println!("{}", json!({"device": args.device, "differs": d, "found": found}));
    } else {
        println!("{}\n{what}", of_the_step(d));
    }
    CliError::Failed(format!("kernel {}: {}; {what}", d.kernel, of_the_step(d)))
}

fn of_the_step(d: &Differs) -> String {
    let token = d.token.map(|t| format!(" of token {t}")).unwrap_or_default();
    format!(
        "first launch that differs: number {} of the list for {} row(s), {}, at {} (element {}{token}): device {}, \
         interpreter {}; {} outputs and states were compared",
        d.launch, d.rows_max, d.kernel, d.value, d.element, d.device, d.interpreter, d.compared
    )
}

fn mismatch(w: &Mismatch) -> Value {
    json!({
        "kernel": w.kernel, "value": w.value, "index": w.index, "row": w.row, "device": w.device,
        "interpreter": w.interpreter, "seed": w.seed,
    })
}
