//! `unglue diff` on the tiny golden model.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::{Value, json};
use tempfile::TempDir;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const INPUT: i32 = 3;
const BUNDLE: i32 = 4;

/// The tiny model in f32, whole, compiled once for all tests.
static TINY: LazyLock<PathBuf> = LazyLock::new(|| compile("diff-tiny.ug", "gfx1201", &[]));
/// Its first two layers, without code for the GPU.
static SMALL: LazyLock<PathBuf> = LazyLock::new(|| compile("diff-small.ug", "x86-64", &["--layers", "0-1"]));

fn compile(name: &str, target: &str, more: &[&str]) -> PathBuf {
    let bundle = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let args = ["compile", MODEL, "-o", bundle.to_str().unwrap(), "--dtype", "f32", "--target", target];
    let done = unglue(&[&args[..], more].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    bundle
}

fn unglue(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unglue")).args(args).output().unwrap()
}

fn diff(a: &Path, b: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let done = unglue(&[&["diff", a.to_str().unwrap(), b.to_str().unwrap()], more].concat());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.code(), text(done.stdout), text(done.stderr))
}

fn json_of(a: &Path, b: &Path, more: &[&str]) -> Value {
    let (code, out, err) = diff(a, b, &[&["--json"], more].concat());
    assert!(code == Some(0) || code == Some(FAILED), "{err}");
    serde_json::from_str(&out).unwrap()
}

/// A budget of the tiny model, changed.
fn budget(change: impl FnOnce(&mut Value)) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("budget.json");
    let done = unglue(&["diff", TINY.to_str().unwrap(), "--write-budget", path.to_str().unwrap()]);
    assert!(done.status.success() && done.stdout.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut value: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(&path, value.to_string()).unwrap();
    (dir, path)
}

const ALL_ZERO: [&str; 18] = [
    "--max-launches",
    "0",
    "--max-bytes",
    "0",
    "--max-time",
    "0",
    "--max-vgprs",
    "0",
    "--max-sgprs",
    "0",
    "--max-lds",
    "0",
    "--max-spills",
    "0",
    "--max-code",
    "0",
    "--max-occupancy-drop",
    "0%",
];

#[test]
fn a_bundle_equals_itself_and_its_budget() {
    let (_dir, budget) = budget(|_| {});
    for a in [&*TINY, &budget] {
        let d = json_of(a, &TINY, &ALL_ZERO);
        assert_eq!(d["exceeded"], json!([]));
        assert_eq!(d["kernels"], json!({"gained": [], "lost": [], "numbers": [], "properties": []}));
        let (code, text, _) = diff(a, &TINY, &ALL_ZERO);
        assert_eq!(code, Some(0));
        assert!(!text.contains("->") && !text.contains('\x1b'), "{text}");
        assert!(text.lines().skip(2).all(|l| l.chars().count() <= 120), "{text}");
    }
}

#[test]
fn every_figure_of_a_launch_list_has_its_head() {
    let d = json_of(&TINY, &TINY, &[]);
    let of_scope = |scope: &str| -> Vec<Value> {
        d["numbers"].as_array().unwrap().iter().filter(|n| n["scope"] == scope).cloned().collect()
    };
    let (_, text, _) = diff(&TINY, &TINY, &[]);
    // Columns are two spaces apart at least; heads may have one space in them.
    let table = |title: &str| -> Vec<Vec<String>> {
        let (_, section) = text.split_once(title).unwrap();
        let lines = section.lines().skip(1).take_while(|l| !l.is_empty()).filter(|l| !l.starts_with("--"));
        lines.map(|l| l.split("  ").map(str::trim).filter(|c| !c.is_empty()).map(String::from).collect()).collect()
    };
    let steps = table("A step, by launch list [");
    let heads = ["rows", "launches", "us", "DRAM", "activations", "moved", "least moved", "pointwise", "arena"];
    assert_eq!(steps[0], heads);
    let numbers = of_scope("list");
    let lists = numbers.len() / (heads.len() - 1);
    assert_eq!((lists, numbers.len() % (heads.len() - 1)), (3, 0));
    for row in &steps[1..=lists] {
        assert_eq!(row.len(), heads.len(), "{row:?}");
        let rows: u64 = row[0].parse().unwrap();
        let of_row = |metric: &str| {
            let found = numbers.iter().find(|n| n["rows"] == rows && n["metric"] == metric);
            found.unwrap()["a"].to_string()
        };
        assert_eq!((&row[1], &row[7]), (&of_row("launches"), &of_row("pointwise")));
    }
    let code = table("Machine code of all kernels [");
    assert_eq!(code[0], ["target", "kernels", "VGPRs", "SGPRs", "LDS", "spills", "occupancy", "code"]);
    assert_eq!((code[1].len(), of_scope("target").len()), (code[0].len(), code[0].len() - 1));
}

#[test]
fn budgets_are_stable_and_one_kernel_a_line() {
    let dir = TempDir::new().unwrap();
    let write = |name: &str| {
        let path = dir.path().join(name);
        assert!(unglue(&["diff", TINY.to_str().unwrap(), "--write-budget", path.to_str().unwrap()]).status.success());
        std::fs::read_to_string(path).unwrap()
    };
    let text = write("a");
    assert_eq!(text, write("b"));
    let kernels = serde_json::from_str::<Value>(&text).unwrap()["kernels"].as_object().unwrap().len();
    assert_eq!(text.lines().filter(|l| l.contains("\"vgprs\"")).count(), kernels);
    assert!(kernels > 20 && text.ends_with("}\n"));
}

#[test]
fn growth_beyond_a_limit_fails_and_is_named() {
    let (_dir, path) = budget(|b| {
        let list = &mut b["lists"][0];
        list["launches"] = json!(list["launches"].as_u64().unwrap() - 2);
        list["kinds"]["kda"] = json!(list["kinds"]["kda"].as_u64().unwrap() - 2);
    });
    let (code, text, err) = diff(&path, &TINY, &["--max-launches", "1"]);
    assert_eq!(code, Some(FAILED), "{err}");
    assert!(err.contains("2 figure(s)") && err.contains("launches of steps of 1 row(s)"), "{err}");
    assert!(text.contains("Above the limits") && text.contains("(+2); --max-launches 1"), "{text}");
    assert_eq!(diff(&path, &TINY, &["--max-launches", "2"]).0, Some(0));
    assert_eq!(diff(&path, &TINY, &["--max-launches", "50%"]).0, Some(0));
    assert_eq!(diff(&path, &TINY, &["--max-bytes", "0"]).0, Some(0));
    assert_eq!(diff(&path, &TINY, &[]).0, Some(0), "no limit, no failure");
    // B below A is no failure.
    assert_eq!(diff(&TINY, &path, &ALL_ZERO).0, Some(0));
}

#[test]
fn registers_and_occupancy_are_checked_by_kernel() {
    let mut kernel = String::new();
    let (_dir, path) = budget(|b| {
        let (name, taken) = b["kernels"].as_object_mut().unwrap().iter_mut().next().unwrap();
        kernel = name.clone();
        taken["vgprs"] = json!(taken["vgprs"].as_u64().unwrap() - 4);
        taken["occupancy"] = json!(taken["occupancy"].as_u64().unwrap() + 1);
    });
    let d = json_of(&path, &TINY, &["--max-vgprs", "3", "--max-occupancy-drop", "0"]);
    let exceeded = d["exceeded"].as_array().unwrap();
    let found: Vec<&Value> = exceeded.iter().map(|e| &e["metric"]).collect();
    assert_eq!(found, ["vgprs", "occupancy"]);
    assert!(exceeded.iter().all(|e| e["kernel"] == json!(kernel) && e["target"] == "gfx1201"), "{exceeded:?}");
    let (code, text, _) = diff(&path, &TINY, &["--max-vgprs", "4", "--max-occupancy-drop", "1"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("VGPRs, gfx1201") && text.contains(&kernel), "{text}");
}

#[test]
fn kernels_gained_and_lost_are_listed() {
    let d = json_of(&TINY, &SMALL, &[]);
    let list = |key: &str| d["kernels"][key].as_array().unwrap().len();
    assert!(list("lost") > 10, "{d}");
    let back = json_of(&SMALL, &TINY, &[]);
    assert_eq!(back["kernels"]["gained"], d["kernels"]["lost"]);
    let launches = |d: &Value, side: &str| d["numbers"][0][side].as_u64().unwrap();
    assert_eq!((launches(&d, "a"), launches(&d, "b")), (launches(&back, "b"), launches(&back, "a")));
    assert!(launches(&d, "a") > launches(&d, "b"));
    assert!(!d["rules"].as_array().unwrap().is_empty() && !d["graphs"].as_array().unwrap().is_empty());
    let (_, text, _) = diff(&TINY, &SMALL, &[]);
    assert!(text.contains("built from different inputs") && text.contains("no target in common"), "{text}");
    for kernel in d["kernels"]["lost"].as_array().unwrap() {
        assert!(text.contains(kernel.as_str().unwrap()), "{kernel}");
    }
}

#[test]
fn limits_that_cannot_be_checked_are_refused() {
    let (code, out, err) = diff(&TINY, &SMALL, &["--max-vgprs", "8"]);
    assert_eq!((code, out.as_str()), (Some(USAGE), ""));
    assert!(err.contains("--max-vgprs") && err.contains("no target in both"), "{err}");
    let (_dir, path) = budget(|b| drop(b["lists"].as_array_mut().unwrap().pop()));
    let (code, _, err) = diff(&path, &TINY, &["--max-time", "0"]);
    assert_eq!(code, Some(USAGE));
    assert!(err.contains("different launch lists"), "{err}");
}

#[test]
fn wrong_command_lines_are_refused() {
    for bad in ["x", "-1", "5%%", "1e3", ""] {
        let (code, out, err) = diff(&TINY, &TINY, &[&format!("--max-bytes={bad}")]);
        assert_eq!((code, out.as_str()), (Some(USAGE), ""), "{bad}");
        assert!(err.contains("--max-bytes"), "{err}");
    }
    assert_eq!(unglue(&["diff", TINY.to_str().unwrap()]).status.code(), Some(USAGE));
}

#[test]
fn sides_that_are_neither_bundle_nor_budget_are_refused() {
    let (code, _, err) = diff(&TINY, Path::new("/nowhere.ug"), &[]);
    assert_eq!(code, Some(BUNDLE));
    assert!(err.contains("/nowhere.ug"), "{err}");
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("no.json");
    for text in ["", "{}", "[1]", "\u{0}", "{\"format\": \"unglue-budget\"}"] {
        std::fs::write(&file, text).unwrap();
        let (code, out, err) = diff(&file, &TINY, &[]);
        assert_eq!((code, out.as_str()), (Some(INPUT), ""), "{text}");
        assert!(err.contains("no.json") && err.contains("--write-budget"), "{err}");
    }
    let (_dir, other) = budget(|b| b["version"] = json!(99));
    let (code, _, err) = diff(&other, &TINY, &[]);
    assert_eq!(code, Some(INPUT));
    assert!(err.contains("unglue-budget 99"), "{err}");
}

#[test]
fn a_budget_needs_code_for_the_gpu_and_a_place() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("b.json");
    let done = unglue(&["diff", SMALL.to_str().unwrap(), "--write-budget", path.to_str().unwrap()]);
    assert_eq!(done.status.code(), Some(USAGE));
    assert!(String::from_utf8_lossy(&done.stderr).contains("--target gfx1201") && !path.exists());
    let done = unglue(&["diff", TINY.to_str().unwrap(), "--write-budget", "/nowhere/b.json"]);
    assert_eq!(done.status.code(), Some(INPUT));
}
