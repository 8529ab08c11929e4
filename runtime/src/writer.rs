//! Writing a bundle: all of it or nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::bundle::{io, read_manifest, seal, sha256_hex, unlisted};
use crate::manifest::{MANIFEST_FILE, Manifest, Part, PartKind};
use crate::validate::validate;
use crate::{Result, RuntimeError};

/// A file to go into a bundle.
#[derive(Clone, Debug)]
pub struct PartData {
    /// See [`Part::path`].
    pub path: String,
    /// See [`Part::kind`].
    pub kind: PartKind,
    /// The content.
    pub bytes: Vec<u8>,
}

/// Writes a bundle folder at `dest`. `manifest.parts` is filled from `parts`. The result is a function of the arguments
/// alone. Everything is checked first, then written to a folder beside `dest`, then renamed. An unglue bundle at `dest`
/// is replaced; anything else there is left alone and is an error. On an error nothing is left behind.
pub fn write_bundle(dest: impl AsRef<Path>, mut manifest: Manifest, parts: &[PartData]) -> Result<()> {
    let dest = dest.as_ref();
    let mut parts: Vec<&PartData> = parts.iter().collect();
    parts.sort_by(|a, b| a.path.cmp(&b.path));
    manifest.parts = parts.iter().map(|p| describe(p)).collect();
    validate(&manifest)?;
    let replaces = check_destination(dest)?;
    let body = manifest_text(dest, &manifest)?;
    let fresh = Scratch::beside(dest, "new")?;
    fs::create_dir(&fresh.0).map_err(io("create", &fresh.0))?;
    for part in parts {
        let path = fresh.0.join(&part.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(io("create", parent))?;
        }
        write_file(&path, &part.bytes)?;
    }
    write_file(&fresh.0.join(MANIFEST_FILE), &body)?;
    if !replaces {
        return fs::rename(&fresh.0, dest).map_err(io("rename a folder to", dest));
    }
    let old = Scratch::beside(dest, "old")?;
    fs::rename(dest, &old.0).map_err(io("rename", dest))?;
    if let Err(error) = fs::rename(&fresh.0, dest) {
        // Put the old bundle back; if even that fails it stays under its temporary name rather than being lost.
        if fs::rename(&old.0, dest).is_err() {
            std::mem::forget(old);
        }
        return Err(io("rename a folder to", dest)(error));
    }
    Ok(())
}

fn describe(part: &PartData) -> Part {
    let (bytes, sha256) = (part.bytes.len() as u64, sha256_hex(&part.bytes));
    Part { path: part.path.clone(), kind: part.kind.clone(), bytes, sha256 }
}

fn manifest_text(dest: &Path, manifest: &Manifest) -> Result<Vec<u8>> {
    let path = dest.join(MANIFEST_FILE);
    let mut body = serde_json::to_vec_pretty(manifest).map_err(|e| io("encode", &path)(std::io::Error::other(e)))?;
    body.push(b'\n');
    let last = seal(&body);
    body.extend_from_slice(last.as_bytes());
    Ok(body)
}

/// Checks that [`write_bundle`] may write to `dest`: its folder exists, and it is free or an unglue bundle. True if a
/// bundle would be replaced.
///
/// # Errors
/// [`RuntimeError::Destination`] says what is in the way.
pub fn check_destination(dest: &Path) -> Result<bool> {
    let refuse = |found: &str| RuntimeError::Destination { path: dest.to_path_buf(), found: found.to_string() };
    let parent = dest.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        return Err(refuse(&format!("would be in {}, which is no folder", parent.display())));
    }
    let meta = match fs::symlink_metadata(dest) {
        Ok(meta) => meta,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(io("look at", dest)(e)),
    };
    if !meta.is_dir() {
        return Err(refuse("is no folder"));
    }
    let (manifest, _) = read_manifest(dest).map_err(|_| refuse("holds no intact unglue manifest"))?;
    let listed: BTreeSet<&str> = manifest.parts.iter().map(|p| p.path.as_str()).collect();
    match unlisted(dest, &listed)? {
        None => Ok(true),
        Some(extra) => Err(refuse(&format!("holds {} beside the bundle's files", extra.display()))),
    }
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = fs::File::create_new(path).map_err(io("create", path))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io("write", path))
}

/// A folder name beside the destination; whatever has that name is removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn beside(dest: &Path, label: &str) -> Result<Self> {
        let refuse = || RuntimeError::Destination { path: dest.to_path_buf(), found: "has no folder name".to_string() };
        let name = dest.file_name().ok_or_else(refuse)?.to_string_lossy();
        let parent = dest.parent().unwrap_or(Path::new(""));
        for n in 0..1000 {
            let path = parent.join(format!(".{name}.{label}.{}.{n}", std::process::id()));
            if fs::symlink_metadata(&path).is_err() {
                return Ok(Scratch(path));
            }
        }
        Err(RuntimeError::Destination { path: dest.to_path_buf(), found: "has 1000 temporary siblings".to_string() })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The only failure that matters, "it does not exist", is the usual case: the folder was renamed.
        let _ = fs::remove_dir_all(&self.0);
    }
}
