//! Every kernel of single layers against the interpreter, at half of the real widths and at the real ones.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::process::Command;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const CPU: (&str, &str) = ("cpu", "x86-64");
/// Three draws or more run waves in three orders, with three contents of what nothing has written.
const EMULATOR: (&str, &str) = ("gfx12-emu", "gfx1201");

/// One layer of each kind, with weights of a few experts: more would add bytes, not code.
const LAYERS: [&str; 4] = ["--layers", "0,3-4", "--expert-slots", "12"];

fn succeed(args: &[&str]) -> Value {
    let done = Command::new(env!("CARGO_BIN_EXE_unglue")).args(args).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!(done.status.code(), Some(0), "{args:?}:\n{out}\n{err}");
    serde_json::from_str(&out).unwrap()
}

/// Compiles a config (a path below the repository) and verifies each kernel on a device.
fn verify_config(config: &str, options: &[&str], (device, target): (&str, &str), draws: &str) {
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bundle = folder.path().join("layers.ug");
    let bundle = bundle.to_str().unwrap();
    let config = format!("{}/{config}", env!("CARGO_MANIFEST_DIR"));
    let compiled = succeed(&[&["compile", &config, "-o", bundle, "--target", target, "--json"][..], options].concat());
    let verified = succeed(&["verify", bundle, "--device", device, "--draws", draws, "--json"]);
    assert_eq!(verified["wrong"], Value::Array(vec![]));
    assert!(verified["kernels"].as_u64().unwrap() > 0);
    assert_eq!(verified["kernels"], compiled["kernels"], "each kernel is launched in some bucket");
}

#[test]
fn tiny_model() {
    for (options, draws) in [
        (["--dtype", "f32", "--cover", "none"], "1"),
        (["--dtype", "f32", "--cover", "greedy"], "3"),
        (["--dtype", "bf16", "--cover", "exact"], "3"),
    ] {
        verify_config("tests/golden/glm5_next_tiny", &options, CPU, "3");
        // Three draws take three orders of waves and workgroups; kernels of one op have hardly any to mix up.
        verify_config("tests/golden/glm5_next_tiny", &options, EMULATOR, draws);
    }
}

/// A bundle that is whole, but whose graphs say something else than its code does.
#[test]
fn wrong_kernels_fail_verification() {
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bundle = folder.path().join("wrong.ug");
    let path = bundle.to_str().unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");
    succeed(&["compile", model, "-o", path, "--dtype", "f32", "--layers", "0", "--json"]);
    let manifest = bundle.join("manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let body = &text[..text.trim_end().rfind('\n').unwrap() + 1];
    let changed = body.replace("= sigmoid %", "= neg %");
    assert_ne!(changed, body);
    let hash: String = Sha256::digest(changed.as_bytes()).iter().map(|b| format!("{b:02x}")).collect();
    std::fs::write(&manifest, format!("{changed}{{\"sha256\":\"{hash}\"}}\n")).unwrap();
    let verify = ["verify", path, "--device", "cpu", "--draws", "1"];
    let done = Command::new(env!("CARGO_BIN_EXE_unglue")).args(verify).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!(done.status.code(), Some(1), "{out}\n{err}");
    assert!(out.contains("WRONG kernel `") && err.contains("kernels differ"), "{out}\n{err}");
}

#[test]
fn half_width_layers() {
    verify_config("tests/configs/half.json", &LAYERS, CPU, "1");
}

#[test]
fn half_width_layers_emulated() {
    verify_config("tests/configs/half.json", &LAYERS, EMULATOR, "1");
}

/// Draws the 634 million weights of the embedding and of the output head once a kernel: about 4 GB of memory.
#[test]
#[cfg_attr(not(feature = "long-tests"), ignore = "minutes; needs --features long-tests")]
fn real_dimension_layers() {
    verify_config("models/configs/glm-5.3-flash.json", &LAYERS, CPU, "1");
}

/// The launch lists of all steps; those of one row are the decode path.
#[test]
#[cfg_attr(not(feature = "long-tests"), ignore = "minutes; needs --features long-tests")]
fn real_dimension_layers_emulated() {
    verify_config("models/configs/glm-5.3-flash.json", &LAYERS, EMULATOR, "1");
}

/// Kernels of a build with fewer roundings are compared with their graphs, and the bodies with the declared ones.
#[test]
#[cfg_attr(not(feature = "long-tests"), ignore = "compiles more bundles; needs --features long-tests")]
fn tiny_model_with_fewer_roundings() {
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bundle = folder.path().join("rounding.ug");
    let path = bundle.to_str().unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");
    succeed(&["compile", model, "-o", path, "--numerics", "rounding", "--json"]);
    let verified = succeed(&["verify", path, "--device", "cpu", "--draws", "2", "--json"]);
    assert_eq!(verified["wrong"], Value::Array(vec![]));
    let bodies = verified["bodies"].as_array().unwrap();
    let values = |class: &str| bodies.iter().filter_map(|b| b["compared"]["values"][class].as_u64()).sum::<u64>();
    assert!(values("exact") > 0 && values("rounding") > 0, "{bodies:?}");
    assert!(bodies.iter().all(|b| b["compared"]["wrong"].is_null() && b["compared"]["unbounded"] == 0), "{bodies:?}");
    let text = Command::new(env!("CARGO_BIN_EXE_unglue")).args(["verify", path, "--draws", "1"]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("ok    body kda: values compared in the bound of their class: "), "{text}");
}
