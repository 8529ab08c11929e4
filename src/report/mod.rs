//! `unglue report`: what a bundle holds, as tables or as JSON.
//!
//! In: a bundle, which is checked as a runtime would check it. Out: its launches, kernels, fusion and resources. Each
//! figure says where it is from: a count of the launch lists, the cost model, or the finished machine code.

mod executed;
pub(crate) mod tables;
pub(crate) mod view;

use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;

use serde_json::{Value, json};
use unglue_runtime::manifest::{Kernel, Manifest};
use unglue_runtime::{Bundle, RuntimeError};

use crate::cli;
use crate::emulated;
use crate::error::CliError;

pub fn run(args: &cli::Report) -> Result<(), CliError> {
    let (bundle, report) = open(&args.bundle)?;
    let emulated = emulated::read(&bundle)?;
    let text = if args.json {
        let all: Value = serde_json::from_slice(bundle.report().unwrap_or_default())
            .map_err(|e| broken(&bundle, view::Wrong { found: e.to_string(), needed: "JSON".into() }))?;
        format!("{}\n", json!({ "manifest": summary(&bundle), "report": all, "emulated": emulated }))
    } else {
        tables::text(&bundle, &report, emulated.as_ref(), bold())
    };
    print(&text)
}

/// A bundle, checked as a runtime would check it, and its report.
pub(crate) fn open(path: &Path) -> Result<(Bundle, view::Report), CliError> {
    let bundle = Bundle::open(path).map_err(CliError::Bundle)?;
    let bytes = bundle.report().ok_or_else(|| {
        let needed = "a report, which `unglue compile` writes".into();
        broken(&bundle, view::Wrong { found: "no report".into(), needed })
    })?;
    let report = view::parse(bytes, bundle.manifest()).map_err(|w| broken(&bundle, w))?;
    Ok((bundle, report))
}

/// True if headings may be set off by terminal codes.
pub(crate) fn bold() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Writes to standard output. A reader that has seen enough is no error.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(CliError::input("standard output", e)),
        _ => Ok(()),
    }
}

pub(crate) fn broken(bundle: &Bundle, wrong: view::Wrong) -> CliError {
    let part = bundle.manifest().parts.iter().find(|p| p.kind == unglue_runtime::manifest::PartKind::Report);
    let path = part.map_or_else(|| bundle.path().to_path_buf(), |p| bundle.path().join(&p.path));
    CliError::Bundle(RuntimeError::Corrupt { what: "report", path, found: wrong.found, needed: wrong.needed })
}

/// What the manifest says, without what only a loader needs.
fn summary(bundle: &Bundle) -> Value {
    let m: &Manifest = bundle.manifest();
    let kernel = |k: &Kernel| {
        json!({
            "name": k.name, "class": k.class, "exactness": k.exactness, "waves": k.waves, "shared_bytes": k.shared_bytes,
            "schedule": k.schedule, "ops": k.ops, "orders": k.orders, "resources": k.resources,
        })
    };
    let buckets: Vec<Value> = m
        .buckets
        .iter()
        .map(|b| {
            json!({
                "rows_max": b.rows_max, "seqs_max": b.seqs_max, "launches": b.launches.len(), "arena_bytes": b.arena_bytes,
            })
        })
        .collect();
    json!({
        "sha256": bundle.sha256(),
        "format": m.format,
        "version": m.version,
        "model": m.model,
        "options": m.options,
        "targets": bundle.targets(),
        "weights": m.weights.len(),
        "states": m.states.len(),
        "buckets": buckets,
        "kernels": m.kernels.iter().map(kernel).collect::<Vec<_>>(),
    })
}
