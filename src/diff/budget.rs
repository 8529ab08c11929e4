//! Budget files: the figures of a build that should not grow, as JSON that reads and diffs well: one line a launch list,
//! layer kinds included, and one a kernel.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::snapshot::{Build, Kernel, List, Snapshot, Taken};
use crate::error::CliError;
use crate::output;
use crate::source;

const FORMAT: &str = "unglue-budget";
const VERSION: u32 = 2;
/// The target whose resources a budget holds.
const TARGET: &str = "gfx1201";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    format: String,
    version: u32,
    build: Build,
    target: String,
    lists: Vec<List>,
    kernels: BTreeMap<String, Taken>,
}

pub fn read(path: &Path) -> Result<Snapshot, CliError> {
    let text = source::read_text(path)?;
    let way_out = "name a bundle, or a file that `unglue diff BUNDLE --write-budget FILE` wrote";
    let wrong = |found: String| CliError::input(path, format!("budget: found {found}; needed {way_out}"));
    let b: Budget = serde_json::from_str(&text).map_err(|e| wrong(format!("JSON that is no budget ({e})")))?;
    if b.format != FORMAT || b.version != VERSION {
        return Err(wrong(format!("format {} {} (not {FORMAT} {VERSION})", b.format, b.version)));
    }
    let kernel = |(name, taken)| (name, Kernel { form: None, taken: BTreeMap::from([(b.target.clone(), taken)]) });
    Ok(Snapshot {
        path: path.display().to_string(),
        sha256: None,
        build: b.build,
        lists: b.lists,
        kernels: b.kernels.into_iter().map(kernel).collect(),
        rewriting: None,
    })
}

pub fn write(path: &Path, of: &Snapshot) -> Result<(), CliError> {
    let text = text(of).map_err(|e| match e {
        Wrong::NoCode(kernel) => CliError::Usage {
            rule: "--write-budget",
            found: format!("no {TARGET} code of kernel {kernel}"),
            needed: format!("a bundle compiled with --target {TARGET}"),
        },
        Wrong::Json(e) => CliError::input(path, e),
    })?;
    output::write(path, &text)
}

enum Wrong {
    NoCode(String),
    Json(serde_json::Error),
}

fn json(value: &impl Serialize) -> Result<String, Wrong> {
    serde_json::to_string(value).map_err(Wrong::Json)
}

fn text(s: &Snapshot) -> Result<String, Wrong> {
    let mut out = format!("{{\n  \"format\": {}, \"version\": {VERSION},\n", json(&FORMAT)?);
    let _ = write!(out, "  \"build\": {},\n  \"target\": {},\n  \"lists\": [", json(&s.build)?, json(&TARGET)?);
    for (i, list) in s.lists.iter().enumerate() {
        let _ = write!(out, "{}\n    {}", if i == 0 { "" } else { "," }, json(list)?);
    }
    out.push_str("\n  ],\n  \"kernels\": {");
    for (i, (name, kernel)) in s.kernels.iter().enumerate() {
        let taken = kernel.taken.get(TARGET).ok_or_else(|| Wrong::NoCode(name.clone()))?;
        let _ = write!(out, "{}\n    {}: {}", if i == 0 { "" } else { "," }, json(name)?, json(taken)?);
    }
    out.push_str("\n  }\n}\n");
    Ok(out)
}
