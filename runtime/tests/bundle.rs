//! Writing and opening bundles: what is refused, and that nothing is left behind.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{code, manifest, parts, write_to};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use unglue_runtime::manifest::*;
use unglue_runtime::{Bundle, PartData, RuntimeError, write_bundle};

fn fresh() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bundle");
    write_to(&path);
    (dir, path)
}

/// Writes a manifest with a right last line.
fn reseal(bundle: &Path, body: &str) {
    let hash: String = Sha256::digest(body).iter().map(|b| format!("{b:02x}")).collect();
    fs::write(bundle.join(MANIFEST_FILE), format!("{body}{{\"sha256\":\"{hash}\"}}\n")).unwrap();
}

/// The manifest without its last line.
fn body(bundle: &Path) -> String {
    let text = fs::read_to_string(bundle.join(MANIFEST_FILE)).unwrap();
    text[..text.trim_end().rfind('\n').unwrap() + 1].to_string()
}

fn error(path: &Path) -> RuntimeError {
    Bundle::open(path).unwrap_err()
}

#[test]
fn what_is_written_is_read() {
    let (dir, path) = fresh();
    let bundle = Bundle::open(&path).unwrap();
    assert_eq!(bundle.trunk_ir(), Some(b"trunk".as_slice()));
    assert_eq!(bundle.report(), Some(b"{}".as_slice()));
    assert_eq!(bundle.part("trunk.ir"), bundle.trunk_ir());
    assert_eq!(bundle.part("nothing"), None);
    assert!(bundle.code(TARGET_X86_64).unwrap()[0].bytes.starts_with(b"\x7fELF"));
    let wrong = bundle.code("gfx1201").unwrap_err().to_string();
    assert!(wrong.contains("x86-64") && wrong.contains("--target gfx1201"), "{wrong}");
    let without = Manifest { parts: vec![], ..bundle.manifest().clone() };
    assert_eq!(without, manifest());
    let second = dir.path().join("second");
    write_bundle(&second, manifest(), &parts(bundle.code(TARGET_X86_64).unwrap()[0].bytes.to_vec())).unwrap();
    let again = Bundle::open(&second).unwrap();
    assert_eq!(again.sha256(), bundle.sha256(), "two builds are equal");
    assert_eq!(fs::read(path.join(MANIFEST_FILE)).unwrap(), fs::read(second.join(MANIFEST_FILE)).unwrap());
}

#[test]
fn a_changed_or_cut_manifest_is_refused() {
    let (_dir, path) = fresh();
    let file = path.join(MANIFEST_FILE);
    let good = fs::read(&file).unwrap();
    for i in (0..good.len()).step_by(13).chain(good.len() - 80..good.len()) {
        for bit in [1, 0x80] {
            let mut bad = good.clone();
            bad[i] ^= bit;
            fs::write(&file, &bad).unwrap();
            let error = error(&path);
            assert!(matches!(error, RuntimeError::Corrupt { .. } | RuntimeError::Format { .. }), "byte {i}: {error}");
        }
    }
    for len in (0..good.len()).step_by(97).chain(good.len() - 80..good.len()) {
        fs::write(&file, &good[..len]).unwrap();
        let error = error(&path);
        assert!(matches!(error, RuntimeError::Corrupt { .. } | RuntimeError::Format { .. }), "cut at {len}: {error}");
    }
    fs::write(&file, [good.as_slice(), b"\n"].concat()).unwrap();
    Bundle::open(&path).unwrap_err();
    fs::write(&file, &good).unwrap();
    Bundle::open(&path).unwrap();
}

#[test]
fn a_changed_cut_or_missing_part_is_refused() {
    let (_dir, path) = fresh();
    for (name, step) in [("trunk.ir", 1), ("report.json", 1), ("code/x86-64.so", 501)] {
        let file = path.join(name);
        let good = fs::read(&file).unwrap();
        for i in (0..good.len()).step_by(step) {
            let mut bad = good.clone();
            bad[i] ^= 1;
            fs::write(&file, &bad).unwrap();
            assert!(matches!(error(&path), RuntimeError::Corrupt { what: "part hash", .. }), "{name} {i}");
        }
        fs::write(&file, &good[1..]).unwrap();
        assert!(matches!(error(&path), RuntimeError::Corrupt { what: "part length", .. }), "{name}");
        fs::remove_file(&file).unwrap();
        assert!(matches!(error(&path), RuntimeError::MissingPart { .. }), "{name}");
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        assert!(matches!(error(&path), RuntimeError::Unlisted { .. }), "{name}");
        fs::remove_file(&file).unwrap();
        fs::write(&file, &good).unwrap();
    }
    Bundle::open(&path).unwrap();
}

#[test]
fn an_unlisted_file_or_folder_is_refused() {
    let (_dir, path) = fresh();
    for name in ["x", ".hidden", "code/y", "code/x86-64.so.bak"] {
        fs::write(path.join(name), "").unwrap();
        let error = error(&path);
        assert!(matches!(&error, RuntimeError::Unlisted { path: p } if p.ends_with(name)), "{error}");
        fs::remove_file(path.join(name)).unwrap();
    }
    fs::create_dir(path.join("empty")).unwrap();
    assert!(matches!(error(&path), RuntimeError::Unlisted { .. }));
    fs::remove_dir(path.join("empty")).unwrap();
    Bundle::open(&path).unwrap();
}

#[test]
fn foreign_files_and_unknown_versions_are_refused() {
    let (dir, path) = fresh();
    assert!(matches!(error(&dir.path().join("nowhere")), RuntimeError::Io { .. }));
    assert!(matches!(error(&path.join("trunk.ir")), RuntimeError::Io { .. }));
    let good = body(&path);
    let format = |text: String, needle: &str| {
        reseal(&path, &text);
        let error = error(&path);
        assert!(matches!(error, RuntimeError::Format { .. }) && error.to_string().contains(needle), "{error}");
    };
    let version = |v: String| good.replace(&format!("\"version\": {VERSION}"), &format!("\"version\": {v}"));
    for other in [VERSION - 1, VERSION + 1] {
        format(version(other.to_string()), &format!("version {other}"));
    }
    format(version(format!("\"{VERSION}\"")), "without a version");
    format(good.replace(FORMAT, "other"), &format!("other version {VERSION}"));
    format("{}\n".into(), "no format name");
    format("[1, 2]\n".into(), "no format name");
    format("hello\n".into(), "JSON");
    format(good.replacen("\"streams\"", "\"new_field\": 1, \"streams\"", 1), "new_field");
    format(good.replacen("\"streams\": 1", "\"streams\": -1", 1), "JSON");
    format(good.replacen("\"streams\": 1", "\"streams\": 1e99", 1), "JSON");
    format("[".repeat(100_000) + "\n", "JSON");
    fs::remove_file(path.join(MANIFEST_FILE)).unwrap();
    fs::create_dir(path.join(MANIFEST_FILE)).unwrap();
    assert!(matches!(error(&path), RuntimeError::Format { .. }));
}

#[test]
fn part_paths_cannot_escape() {
    let (dir, path) = fresh();
    let code = code();
    let long = "a".repeat(201);
    let bad = ["../x", "/x", "a/../x", "a//x", "", ".", "a/.", "a\\x", "a\0x", "manifest.json", ".git", "a b", &long];
    for bad in bad {
        let mut parts = parts(code.clone());
        parts[0].path = bad.into();
        let error = write_bundle(dir.path().join("new"), manifest(), &parts).unwrap_err();
        assert!(error.to_string().contains("part path"), "{bad}: {error}");
        reseal(&path, &body(&path).replacen("\"trunk.ir\"", &serde_json::to_string(bad).unwrap(), 1));
        let error = self::error(&path);
        assert!(error.to_string().contains("part path"), "{bad}: {error}");
        fs::remove_dir_all(&path).unwrap();
        write_to(&path);
    }
    for (a, b, rule) in [("x", "X", "unique"), ("x", "x", "unique"), ("x", "x/y", "is a file")] {
        let mut parts = parts(code.clone());
        (parts[0].path, parts[1].path) = (a.into(), b.into());
        let error = write_bundle(dir.path().join("new"), manifest(), &parts).unwrap_err();
        assert!(error.to_string().contains(rule), "{error}");
    }
    assert_eq!(names(dir.path()), ["bundle"]);
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn code_parts_are_complete() {
    let dir = tempfile::tempdir().unwrap();
    let part = |i: usize, target: &str, kernel| PartData {
        path: format!("code/{i}"),
        kind: PartKind::Code { target: target.into(), kernel },
        bytes: vec![1],
    };
    let write = |kernels: &[Option<u32>]| {
        let parts: Vec<PartData> = kernels.iter().enumerate().map(|(i, k)| part(i, "gfx1201", *k)).collect();
        write_bundle(dir.path().join("b"), manifest(), &parts)
    };
    write(&[Some(0), Some(1), Some(2)]).unwrap();
    write(&[None]).unwrap();
    write(&[Some(0), Some(1)]).unwrap_err();
    write(&[Some(0), Some(1), Some(1)]).unwrap_err();
    write(&[Some(0), Some(1), Some(3)]).unwrap_err();
    write(&[None, Some(0), Some(1)]).unwrap_err();
    write(&[None, None]).unwrap_err();
    write_bundle(dir.path().join("b"), manifest(), &[part(0, "", None)]).unwrap_err();
    let twice = |kind: PartKind| [0, 1].map(|i| PartData { kind: kind.clone(), ..part(i, "", None) });
    write_bundle(dir.path().join("b"), manifest(), &twice(PartKind::Report)).unwrap_err();
    write_bundle(dir.path().join("b"), manifest(), &twice(PartKind::TrunkIr)).unwrap_err();
    assert_eq!(Bundle::open(dir.path().join("b")).unwrap().targets().into_iter().collect::<Vec<_>>(), ["gfx1201"]);
}

#[test]
fn only_a_bundle_is_replaced() {
    let (dir, path) = fresh();
    let parts = parts(code());
    write_bundle(&path, manifest(), &parts[1..]).unwrap();
    assert!(Bundle::open(&path).unwrap().trunk_ir().is_none());
    fs::write(path.join("notes.txt"), "mine").unwrap();
    let error = write_bundle(&path, manifest(), &parts).unwrap_err();
    assert!(matches!(&error, RuntimeError::Destination { .. }) && error.to_string().contains("notes.txt"), "{error}");
    assert_eq!(fs::read_to_string(path.join("notes.txt")).unwrap(), "mine");
    let (file, folder) = (dir.path().join("file"), dir.path().join("folder"));
    fs::write(&file, "x").unwrap();
    fs::create_dir(&folder).unwrap();
    for other in [&file, &folder] {
        let error = write_bundle(other, manifest(), &parts).unwrap_err();
        assert!(matches!(error, RuntimeError::Destination { .. }), "{error}");
    }
    assert!(matches!(write_bundle("/", manifest(), &parts), Err(RuntimeError::Destination { .. })));
    assert_eq!(names(dir.path()), ["bundle", "file", "folder"]);
}

#[test]
fn a_failed_write_leaves_nothing() {
    let (dir, path) = fresh();
    let before = fs::read(path.join(MANIFEST_FILE)).unwrap();
    let mut bad = manifest();
    bad.kernels[0].name = "no name".into();
    write_bundle(&path, bad.clone(), &parts(code())).unwrap_err();
    write_bundle(dir.path().join("new"), bad, &parts(code())).unwrap_err();
    // Where the folder's path just fits the system's limit, a part's path does not: this fails between two files.
    let mut deep = dir.path().join("deep");
    while deep.as_os_str().len() < 3900 {
        deep.push("d".repeat(100));
    }
    fs::create_dir_all(&deep).unwrap();
    let mut failing = parts(code());
    failing[1].path = "z".repeat(200);
    let error = write_bundle(deep.join("b"), manifest(), &failing).unwrap_err();
    assert!(matches!(&error, RuntimeError::Io { path, .. } if path.to_string_lossy().contains("zzz")), "{error}");
    assert!(names(&deep).is_empty());
    fs::remove_dir_all(dir.path().join("deep")).unwrap();
    assert!(matches!(
        write_bundle(dir.path().join("no/parent"), manifest(), &parts(code())),
        Err(RuntimeError::Destination { .. })
    ));
    assert_eq!(names(dir.path()), ["bundle"]);
    assert_eq!(fs::read(path.join(MANIFEST_FILE)).unwrap(), before);
}
