//! `unglue diff`: what changed between two builds.
//!
//! In: two bundles, or a bundle and a budget file; limits. Out: launches, times, bytes, kernels and rules that differ. If a
//! figure of B is above A's by more than a limit, the command fails.

mod budget;
mod compare;
mod limits;
mod snapshot;
mod text;

pub use limits::Limit;

use crate::cli;
use crate::error::CliError;
use crate::report;
use compare::Difference;
use snapshot::Snapshot;

pub fn run(args: &cli::Diff) -> Result<(), CliError> {
    let a = Snapshot::read(&args.a)?;
    if let Some(file) = &args.write_budget {
        return budget::write(file, &a);
    }
    let Some(b) = &args.b else {
        return Err(CliError::Usage { rule: "B", found: "nothing".into(), needed: "what A is compared with".into() });
    };
    let b = Snapshot::read(b)?;
    let difference = Difference::of(&a, &b);
    let exceeded = limits::exceeded(&args.limits, &difference)?;
    let text = if args.json {
        format!("{}\n", text::json(&a, &b, &difference, &exceeded))
    } else {
        text::text(&a, &b, &difference, &exceeded, report::bold())
    };
    report::print(&text)?;
    match exceeded.first() {
        None => Ok(()),
        Some(e) => {
            let first = text::exceeded_text(e);
            Err(CliError::Failed(format!(
                "B exceeds A by more than allowed in {} figure(s); first: {first}",
                exceeded.len()
            )))
        }
    }
}
