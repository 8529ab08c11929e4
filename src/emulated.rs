//! What the emulator counted, kept beside a bundle (`BUNDLE.gfx12-emu.json`): written by `verify`, shown by `report`.
//!
//! It is no part of the bundle, which holds only what its input says; it names the bundle that it was counted on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use unglue_codegen::counts::CountReport;
use unglue_runtime::Bundle;

use crate::error::CliError;
use crate::output;

const SUFFIX: &str = ".gfx12-emu.json";
const FORMAT: u32 = 1;

/// Counts of a bundle's kernels, one launch each.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Emulated {
    pub format: u32,
    /// sha256 of the bundle.
    pub bundle: String,
    /// By kernel name.
    pub kernels: BTreeMap<String, Executed>,
}

/// One launch of a kernel.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Executed {
    /// Launch list whose grid it had.
    pub rows_max: u64,
    pub seqs_max: u64,
    /// Seed of the drawn inputs.
    pub seed: u64,
    pub counts: CountReport,
}

fn path_of(bundle: &Path) -> PathBuf {
    let mut name = bundle.file_name().unwrap_or_default().to_os_string();
    name.push(SUFFIX);
    bundle.with_file_name(name)
}

/// What was counted on this very bundle; nothing if nothing was, or on another.
pub fn read(bundle: &Bundle) -> Result<Option<Emulated>, CliError> {
    let path = path_of(bundle.path());
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(CliError::input(path, e)),
    };
    let again = "remove it and run `unglue verify --device gfx12-emu` again";
    let found: Emulated =
        serde_json::from_slice(&text).map_err(|e| CliError::input(&path, format!("no counts ({e}); {again}")))?;
    if found.format != FORMAT {
        return Err(CliError::input(&path, format!("format {}, needed {FORMAT}; {again}", found.format)));
    }
    Ok((found.bundle == bundle.sha256()).then_some(found))
}

/// Adds counts to those of this bundle, or replaces another's.
pub fn write(bundle: &Bundle, kernels: BTreeMap<String, Executed>) -> Result<PathBuf, CliError> {
    let path = path_of(bundle.path());
    // A file that cannot be read is replaced.
    let mut all = read(bundle).ok().flatten().map_or_else(BTreeMap::new, |e| e.kernels);
    all.extend(kernels);
    let all = Emulated { format: FORMAT, bundle: bundle.sha256().into(), kernels: all };
    let text = serde_json::to_string_pretty(&all).map_err(|e| CliError::input(&path, e))?;
    output::write(&path, &(text + "\n"))?;
    Ok(path)
}
