//! `unglue report`: what a bundle holds, as tables, as JSON, as a page or as a trace.
//!
//! In: a bundle, which is checked as a runtime would check it. Out: its launches, kernels, fusion and resources. Each
//! figure says where it is from: a count of the launch lists, the cost model, the finished machine code, the emulator, or
//! a profiler's trace.

mod classes;
mod executed;
mod html;
mod markdown;
mod measured;
mod steps;
pub(crate) mod tables;
mod timeline;
mod trace;
pub(crate) mod view;
mod warnings;

use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;

use serde_json::{Value, json};
use unglue_runtime::manifest::{Kernel, Manifest};
use unglue_runtime::{Bundle, RuntimeError};

use crate::cli;
use crate::emulated::{self, Emulated};
use crate::error::CliError;
use crate::output;
use measured::Measured;

pub fn run(args: &cli::Report) -> Result<(), CliError> {
    let (bundle, report) = open(&args.bundle)?;
    let emulated = emulated::read(&bundle)?;
    let measured = args.measured.as_deref().map(|path| measured::read(path, bundle.manifest(), &report)).transpose()?;
    let json = || document(&bundle, &report, emulated.as_ref(), measured.as_ref());
    if let Some(path) = &args.html {
        let page = html::page(&bundle, &report, json()?).map_err(|w| broken(&bundle, w))?;
        output::write(path, &page)?;
    }
    if let Some(path) = &args.trace {
        output::write(path, &trace::text(&bundle, &report).map_err(|w| broken(&bundle, w))?)?;
    }
    if let Some(path) = &args.markdown {
        output::write(path, &markdown::text(&report))?;
    }
    if args.json {
        print(&format!("{}\n", json()?))
    } else if args.html.is_some() || args.trace.is_some() || args.markdown.is_some() {
        Ok(())
    } else {
        print(&tables::text(&bundle, &report, emulated.as_ref(), measured.as_ref(), bold()))
    }
}

/// The whole report as JSON. Without a trace there is no `measured` in it.
fn document(
    bundle: &Bundle,
    parsed: &view::Report,
    emulated: Option<&Emulated>,
    measured: Option<&Measured>,
) -> Result<Value, CliError> {
    let report: Value = serde_json::from_slice(bundle.report().unwrap_or_default())
        .map_err(|e| broken(bundle, view::Wrong { found: e.to_string(), needed: "JSON".into() }))?;
    let warnings = warnings::of(bundle.manifest(), parsed);
    let mut all = json!({ "manifest": summary(bundle), "report": report, "warnings": warnings, "emulated": emulated });
    if let Some(measured) = measured {
        all["measured"] = json!(measured);
    }
    Ok(all)
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
