//! Opening a bundle: every hash, length and rule is checked here, once.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::device::Code;
use crate::manifest::{MANIFEST_FILE, Manifest, Part, PartKind};
use crate::validate::{known_format, validate};
use crate::{Result, RuntimeError};

/// No manifest may be longer, in bytes.
const MAX_MANIFEST: u64 = 1 << 30;
/// Folders inside a bundle may not nest deeper.
const MAX_DEPTH: usize = 16;

/// An opened bundle: checked, immutable, in memory.
#[derive(Debug)]
pub struct Bundle {
    path: PathBuf,
    manifest: Manifest,
    parts: Vec<Vec<u8>>,
    sha256: String,
}

impl Bundle {
    /// Opens the bundle folder at `path` and checks all of it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let (manifest, sha256) = read_manifest(path)?;
        validate(&manifest)?;
        let listed: BTreeSet<&str> = manifest.parts.iter().map(|p| p.path.as_str()).collect();
        if let Some(extra) = unlisted(path, &listed)? {
            return Err(RuntimeError::Unlisted { path: extra });
        }
        let parts = manifest.parts.iter().map(|part| read_part(path, part)).collect::<Result<_>>()?;
        Ok(Bundle { path: path.to_path_buf(), manifest, parts, sha256 })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The manifest, checked.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// sha256 of the manifest, which names every part by its hash: the identity of the bundle.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Content of the part at `path` of the manifest.
    pub fn part(&self, path: &str) -> Option<&[u8]> {
        self.find(|p| p.path == path)
    }

    /// IR text of the trunk, if the bundle has it.
    pub fn trunk_ir(&self) -> Option<&[u8]> {
        self.find(|p| p.kind == PartKind::TrunkIr)
    }

    /// The build report, if the bundle has it.
    pub fn report(&self) -> Option<&[u8]> {
        self.find(|p| p.kind == PartKind::Report)
    }

    /// The code for `target`.
    pub fn code(&self, target: &str) -> Result<Vec<Code<'_>>> {
        let all = self.manifest.parts.iter().zip(&self.parts);
        let code: Vec<Code<'_>> = all
            .filter_map(|(part, bytes)| match &part.kind {
                PartKind::Code { target: t, kernel } if t == target => Some(Code { kernel: *kernel, bytes }),
                _ => None,
            })
            .collect();
        if code.is_empty() {
            let found = self.targets().into_iter().collect::<Vec<_>>().join(", ");
            let found = if found.is_empty() { "no target".to_string() } else { found };
            return Err(RuntimeError::WrongTarget { found, needed: target.to_string() });
        }
        Ok(code)
    }

    /// The targets that the bundle has code for.
    pub fn targets(&self) -> BTreeSet<&str> {
        let target = |p: &'_ Part| matches!(p.kind, PartKind::Code { .. });
        let parts = self.manifest.parts.iter().filter(|p| target(p));
        parts
            .filter_map(|p| if let PartKind::Code { target, .. } = &p.kind { Some(target.as_str()) } else { None })
            .collect()
    }

    fn find(&self, wanted: impl Fn(&Part) -> bool) -> Option<&[u8]> {
        let i = self.manifest.parts.iter().position(wanted)?;
        self.parts.get(i).map(Vec::as_slice)
    }
}

/// Lower-case hex of the sha256 of `bytes`.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// The manifest's last line for a body.
pub(crate) fn seal(body: &[u8]) -> String {
    format!("{{\"sha256\":\"{}\"}}\n", sha256_hex(body))
}

/// An I/O error.
pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> RuntimeError {
    let path = path.to_path_buf();
    move |source| RuntimeError::Io { action, path, source }
}

/// Reads `folder`'s manifest and checks its format, version and hash, but none of its rules.
pub(crate) fn read_manifest(folder: &Path) -> Result<(Manifest, String)> {
    let path = folder.join(MANIFEST_FILE);
    let meta = fs::symlink_metadata(&path).map_err(io("find", &path))?;
    let no_bundle = |found: &str, needed: &str| RuntimeError::Format {
        path: path.clone(),
        found: found.to_string(),
        needed: needed.to_string(),
    };
    if !meta.is_file() || meta.len() > MAX_MANIFEST {
        return Err(no_bundle("no plain file, or one over 1 GiB", "a manifest"));
    }
    let bytes = fs::read(&path).map_err(io("read", &path))?;
    let sealed = bytes.strip_suffix(b"\n").and_then(|b| b.iter().rposition(|&c| c == b'\n'));
    let Some(cut) = sealed.map(|i| i + 1) else {
        return Err(no_bundle(
            "no last line with a hash (is the file cut off?)",
            "{\"sha256\":\"...\"} as the last line",
        ));
    };
    let (body, last) = bytes.split_at(cut);
    // An intact manifest of another version has a hash too, so that its version is what the message is about.
    if last != seal(body).as_bytes() {
        let found = String::from_utf8_lossy(&last[..last.len().min(100)]).trim_end().to_string();
        let needed = seal(body).trim_end().to_string();
        return Err(RuntimeError::Corrupt { what: "manifest hash", path, found, needed });
    }
    let json = |e: serde_json::Error| no_bundle(&format!("JSON that is no manifest ({e})"), "the manifest's fields");
    let value: serde_json::Value = serde_json::from_slice(body).map_err(json)?;
    known_format(&path, &value)?;
    let manifest = serde_json::from_slice(body).map_err(json)?;
    Ok((manifest, sha256_hex(body)))
}

/// A file or an empty folder in `folder` that is neither the manifest nor `listed`, nor a folder of a listed file.
pub(crate) fn unlisted(folder: &Path, listed: &BTreeSet<&str>) -> Result<Option<PathBuf>> {
    let mut todo = vec![(folder.to_path_buf(), String::new(), 0)];
    while let Some((dir, prefix, depth)) = todo.pop() {
        for entry in fs::read_dir(&dir).map_err(io("list", &dir))? {
            let entry = entry.map_err(io("list", &dir))?;
            let kind = entry.file_type().map_err(io("look at", &entry.path()))?;
            let Some(name) = entry.file_name().to_str().map(|n| format!("{prefix}{n}")) else {
                return Ok(Some(entry.path()));
            };
            let inner = format!("{name}/");
            if kind.is_dir() && depth < MAX_DEPTH && listed.iter().any(|p| p.starts_with(&inner)) {
                todo.push((entry.path(), inner, depth + 1));
            } else if !kind.is_file() || (name != MANIFEST_FILE && !listed.contains(name.as_str())) {
                return Ok(Some(entry.path()));
            }
        }
    }
    Ok(None)
}

fn read_part(folder: &Path, part: &Part) -> Result<Vec<u8>> {
    let path = folder.join(&part.path);
    let Ok(meta) = fs::symlink_metadata(&path) else { return Err(RuntimeError::MissingPart { path }) };
    let corrupt =
        |what, found: String, needed: String| RuntimeError::Corrupt { what, path: path.clone(), found, needed };
    if !meta.is_file() || meta.len() != part.bytes {
        return Err(corrupt("part length", format!("{} bytes", meta.len()), format!("{} bytes", part.bytes)));
    }
    let bytes = fs::read(&path).map_err(io("read", &path))?;
    let found = sha256_hex(&bytes);
    if found != part.sha256 {
        return Err(corrupt("part hash", found, part.sha256.clone()));
    }
    Ok(bytes)
}
