//! `--force-fuse` and `--forbid-fuse` on the tiny golden model.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::Value;
use unglue_runtime::Bundle;

const USAGE: i32 = 2;
const COMPILE: i32 = 5;

fn compile(name: &str, more: &[&str]) -> (PathBuf, Output) {
    let bundle = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("wishes-{name}.ug"));
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");
    let args = [&["compile", model, "-o", bundle.to_str().unwrap(), "--dtype", "f32"], more].concat();
    let done = Command::new(env!("CARGO_BIN_EXE_unglue")).args(args).output().unwrap();
    (bundle, done)
}

/// The report of the build without wishes.
static PLAIN: LazyLock<Value> = LazyLock::new(|| {
    let (bundle, done) = compile("plain", &[]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(Bundle::open(bundle).unwrap().report().unwrap()).unwrap()
});

/// Body and kernels of every refused pair in the list of one row, with the verdict.
fn rejections(kind: &str) -> Vec<(String, String, Value)> {
    let mut found = Vec::new();
    for body in PLAIN["buckets"][0]["bodies"].as_array().unwrap() {
        for k in body["kernels"].as_array().unwrap() {
            for r in k["rejected"].as_array().unwrap().iter().filter(|r| r["verdict"]["kind"] == kind) {
                let text = |v: &Value| v.as_str().unwrap().to_owned();
                found.push((text(&k["in_body"]), text(&r["with"]), r["verdict"].clone()));
            }
        }
    }
    found
}

fn refused(code: i32, name: &str, args: &[&str]) -> String {
    let (_, done) = compile(name, args);
    let text = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(code), "{args:?}: {text}");
    text
}

/// An op that stands alone: forcing it says the recorded reason.
#[test]
fn a_recorded_obstacle_is_the_error() {
    let (a, b, verdict) = rejections("obstacle").into_iter().next().unwrap();
    let e = refused(COMPILE, "obstacle", &["--force-fuse", &format!("{a},{b}@1")]);
    let reason = format!("{}: {}", verdict["rule"].as_str().unwrap(), verdict["detail"].as_str().unwrap());
    assert!(e.contains(&reason) && e.contains(&a) && e.contains(&b) && e.contains("at most 1 row"), "{reason}: {e}");
}

/// Two declared ops that fusion put together come apart, and forcing them together costs nothing.
#[test]
fn ops_are_forbidden_and_forced_by_their_declared_numbers() {
    let body = PLAIN["saturation"].as_array().unwrap().iter().position(|s| s["body"] == "dense").unwrap();
    let became: Vec<Option<u64>> = serde_json::from_value(PLAIN["saturation"][body]["became"].clone()).unwrap();
    let kernels = |report: &Value, value: u64| -> Value {
        let ops = report["buckets"][0]["bodies"][body]["ops"].as_array().unwrap();
        ops.iter().find(|o| o["value"].as_u64() == Some(value)).map_or(Value::Null, |o| o["kernels"].clone())
    };
    let known: Vec<(usize, u64)> = became.iter().enumerate().filter_map(|(i, b)| Some((i, (*b)?))).collect();
    let one = |v: u64| kernels(&PLAIN, v).as_array().is_some_and(|k| k.len() == 1);
    let known: Vec<_> = known.into_iter().filter(|(_, v)| one(*v)).collect();
    let ((a, va), (b, vb)) = known
        .iter()
        .flat_map(|x| known.iter().map(move |y| (*x, *y)))
        .find(|((_, x), (_, y))| x < y && kernels(&PLAIN, *x) == kernels(&PLAIN, *y))
        .unwrap();
    let pair = format!("dense%{a},dense%{b}");
    let (bundle, done) = compile("forbid", &["--forbid-fuse", &pair]);
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success() && text.contains("forbade ") && text.contains("in dense"), "{text}");
    let report: Value = serde_json::from_slice(Bundle::open(&bundle).unwrap().report().unwrap()).unwrap();
    let (ka, kb) = (kernels(&report, va), kernels(&report, vb));
    assert!(ka.as_array().unwrap().iter().all(|k| !kb.as_array().unwrap().contains(k)), "{ka} {kb}");
    let shown = Command::new(env!("CARGO_BIN_EXE_unglue")).arg("report").arg(&bundle).output().unwrap();
    assert!(String::from_utf8_lossy(&shown.stdout).contains("Fusions that the command line asked for"));
    let (_, done) = compile("force", &["--force-fuse", &format!("{pair}@1")]);
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success() && text.contains("forced ") && text.contains("+0 ns"), "{text}");
    // The launch list of long steps, and no other.
    let long = ["--max-rows", "64", "--cover", "greedy", "--forbid-fuse"];
    let (_, done) = compile("long", &[&long[..], &[&format!("{pair}@64")]].concat());
    let text = String::from_utf8(done.stdout).unwrap();
    let forbade: Vec<&str> = text.lines().filter(|l| l.contains("forbade ")).collect();
    assert!(!forbade.is_empty() && forbade.iter().all(|l| l.contains("up to 64 rows")), "{text}");
}

#[test]
fn names_that_mean_nothing_are_refused() {
    assert!(refused(USAGE, "bad", &["--force-fuse", "dense%1"]).contains("two names with a comma"));
    assert!(refused(USAGE, "bad", &["--force-fuse", "dense%1,dense%2@3"]).contains("[1, 4, 16]"));
    let more = ["--max-rows", "64", "--force-fuse", "dense%1,dense%2@32"];
    assert!(refused(USAGE, "bad", &more).contains("[1, 4, 16, 64]"));
    assert!(refused(USAGE, "bad", &["--force-fuse", "dense%1,dense%2@many"]).contains("a number"));
    assert!(refused(USAGE, "bad", &["--force-fuse", "dens%1,dense%2"]).contains("nearest: dense"));
    assert!(refused(USAGE, "bad", &["--forbid-fuse", "matmul,top_k"]).contains("one of them by number"));
    let (a, ..) = rejections("obstacle").into_iter().next().unwrap();
    assert!(refused(USAGE, "bad", &["--forbid-fuse", &format!("{a},no_such_kernel")]).contains("nearest: "));
}
