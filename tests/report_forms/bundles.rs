//! Bundles for all tests here, each compiled once, and the command on them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::Value;
use tempfile::TempDir;

pub const INPUT: i32 = 3;
pub const BAD_BUNDLE: i32 = 4;
/// A kernel of the tiny model that the emulator has run.
pub const EMULATED: &str = "kda_o_proj";

/// The tiny golden model in f32, with counts of one kernel from the emulator.
pub static TINY: LazyLock<PathBuf> = LazyLock::new(|| {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");
    let bundle = compile("report-forms-tiny.ug", model, &["--dtype", "f32"]);
    done(&["verify", bundle.to_str().unwrap(), "--device", "gfx12-emu", "--kernel", EMULATED, "--draws", "1"]);
    bundle
});

/// GLM-5.3-Flash.
pub static REAL: LazyLock<PathBuf> = LazyLock::new(|| {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/models/configs/glm-5.3-flash.json");
    compile("report-forms-real.ug", config, &[])
});

fn compile(name: &str, model: &str, more: &[&str]) -> PathBuf {
    let bundle = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let args = ["compile", model, "-o", bundle.to_str().unwrap(), "--target", "gfx1201", "--json"];
    done(&[&args[..], more].concat());
    bundle
}

pub fn unglue(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unglue")).args(args).output().unwrap()
}

/// Standard output of a command that must succeed.
pub fn done(args: &[&str]) -> String {
    let done = unglue(args);
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// The message of a command that must fail with `code`, and print nothing.
pub fn refused(args: &[&str], code: i32) -> String {
    let done = unglue(args);
    let message = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(code), "{args:?}: {message}");
    assert!(done.stdout.is_empty(), "{args:?}");
    message
}

pub fn report(bundle: &Path, more: &[&str]) -> String {
    done(&[&["report", bundle.to_str().unwrap()], more].concat())
}

/// What `report` with `option` writes to a file; it prints nothing.
pub fn written(bundle: &Path, option: &str, more: &[&str]) -> String {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("out");
    assert_eq!(report(bundle, &[&[option, file.to_str().unwrap()], more].concat()), "");
    std::fs::read_to_string(file).unwrap()
}

pub fn document(bundle: &Path) -> Value {
    serde_json::from_str(&report(bundle, &["--json"])).unwrap()
}

/// A copy of the tiny bundle with another report, hashes and all.
pub fn edited(edit: impl FnOnce(&mut Value)) -> (TempDir, PathBuf) {
    use unglue_runtime::manifest::PartKind;
    use unglue_runtime::{Bundle, PartData, write_bundle};
    let tiny = Bundle::open(&*TINY).unwrap();
    let mut report: Value = serde_json::from_slice(tiny.report().unwrap()).unwrap();
    edit(&mut report);
    let part = |part: &unglue_runtime::manifest::Part| {
        let bytes = match part.kind {
            PartKind::Report => report.to_string().into_bytes(),
            _ => tiny.part(&part.path).unwrap().to_vec(),
        };
        PartData { path: part.path.clone(), kind: part.kind.clone(), bytes }
    };
    let parts: Vec<PartData> = tiny.manifest().parts.iter().map(part).collect();
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("b");
    write_bundle(&path, tiny.manifest().clone(), &parts).unwrap();
    (dir, path)
}
