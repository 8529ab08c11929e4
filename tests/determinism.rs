//! Neither the number of threads nor a cache of object files shows in a bundle.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
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

/// The files of a bundle, and what its build took from the cache.
fn compiled(bundle: &Path, options: &[&str]) -> (BTreeMap<String, Vec<u8>>, Value) {
    let out = bundle.to_str().unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_unglue"))
        .env_remove("UNGLUE_CACHE")
        .args(["compile", MODEL, "-o", out, "--layers", "3", "--target", "x86-64,gfx1201", "--json"])
        .args(options)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut all = BTreeMap::new();
    files(bundle, bundle, &mut all);
    let said: Value = serde_json::from_slice(&done.stdout).unwrap();
    (all, said["cache"].clone())
}

fn assert_equal(one: &BTreeMap<String, Vec<u8>>, other: &BTreeMap<String, Vec<u8>>) {
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (name, bytes) in one {
        let other = &other[name];
        let at = bytes.iter().zip(other).position(|(a, b)| a != b);
        assert!(bytes == other, "{name} differs: {} and {} bytes, first at {at:?}", bytes.len(), other.len());
    }
}

#[test]
fn bundles_depend_neither_on_the_number_of_jobs_nor_on_the_cache() {
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let cache = folder.path().join("cache");
    let cache = cache.to_str().unwrap();
    // Different folders too: a path must not get into a bundle.
    let (one, none) = compiled(&folder.path().join("one.ug"), &["--jobs", "1"]);
    assert!(one.len() > 3, "manifest, trunk, report and code: {:?}", one.keys());
    assert_eq!(none, Value::Null);
    let (three, cold) = compiled(&folder.path().join("three.ug"), &["--jobs", "3", "--cache", cache]);
    assert_equal(&one, &three);
    assert!(cold["misses"].as_u64().unwrap() > 20, "{cold}");
    let (again, warm) = compiled(&folder.path().join("again.ug"), &["--cache", cache]);
    assert_equal(&one, &again);
    assert_eq!((&warm["hits"], &warm["misses"]), (&cold["misses"], &Value::from(0)), "{cold}, {warm}");
}
