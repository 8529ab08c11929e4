//! The number of threads does not show in a bundle.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");

/// All files below a folder, by path relative to `root`.
fn files(root: &Path, dir: &Path, into: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(root, &path, into);
        } else {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_string();
            into.insert(name, std::fs::read(path).unwrap());
        }
    }
}

fn compiled(bundle: &Path, jobs: &str) -> BTreeMap<String, Vec<u8>> {
    let out = bundle.to_str().unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_unglue"))
        .args(["compile", MODEL, "-o", out, "--target", "x86-64,gfx1201", "--jobs", jobs, "--json"])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut all = BTreeMap::new();
    files(bundle, bundle, &mut all);
    all
}

#[test]
fn bundles_do_not_depend_on_the_number_of_jobs() {
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // Different folders too: a path must not get into a bundle.
    let one = compiled(&folder.path().join("one.ug"), "1");
    let three = compiled(&folder.path().join("three.ug"), "3");
    assert!(one.len() > 3, "manifest, trunk, report and code: {:?}", one.keys());
    assert_eq!(one.keys().collect::<Vec<_>>(), three.keys().collect::<Vec<_>>());
    for (name, bytes) in &one {
        let other = &three[name];
        let at = bytes.iter().zip(other).position(|(a, b)| a != b);
        assert!(bytes == other, "{name} differs: {} and {} bytes, first at {at:?}", bytes.len(), other.len());
    }
}
