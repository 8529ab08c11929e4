//! `unglue explain` on the tiny golden model.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::{Value, json};
use unglue_ir::module::Module;
use unglue_ir::op::Op;
use unglue_runtime::Bundle;

const USAGE: i32 = 2;
const BUNDLE: i32 = 4;

/// The tiny model in bf16, compiled once for all tests.
static TINY: LazyLock<PathBuf> = LazyLock::new(|| {
    let bundle = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explain-tiny.ug");
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");
    let done = unglue(&["compile", model, "-o", bundle.to_str().unwrap(), "--dtype", "bf16"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    bundle
});

fn unglue(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unglue")).args(args).output().unwrap()
}

fn explain(args: &[&str]) -> String {
    let done = unglue(&[&["explain", TINY.to_str().unwrap()], args].concat());
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

fn json_of(args: &[&str]) -> Value {
    serde_json::from_str(&explain(&[args, &["--json"]].concat())).unwrap()
}

/// The message with which a wrong command line is refused.
fn refused(args: &[&str]) -> String {
    let done = unglue(&[&["explain", TINY.to_str().unwrap()], args].concat());
    assert_eq!(done.status.code(), Some(USAGE), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    assert!(done.stdout.is_empty());
    String::from_utf8(done.stderr).unwrap()
}

fn trunk() -> Module {
    let bundle = Bundle::open(&*TINY).unwrap();
    unglue_ir::text::parse_module(std::str::from_utf8(bundle.trunk_ir().unwrap()).unwrap()).unwrap()
}

#[test]
fn every_kernel_can_be_explained() {
    let bundle = Bundle::open(&*TINY).unwrap();
    let report: Value = serde_json::from_slice(bundle.report().unwrap()).unwrap();
    // One of each class: a process each is slow.
    let mut seen = std::collections::BTreeSet::new();
    for kernel in bundle.manifest().kernels.iter().filter(|k| seen.insert(k.class.clone())) {
        let story = json_of(&[&kernel.name]);
        assert_eq!((&story["kernel"], &story["class"]), (&json!(kernel.name), &json!(kernel.class)));
        let held: u64 = story["ops"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(held, kernel.ops.len() as u64);
        let at = |b: &Value| {
            b["bodies"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|b| b["kernels"].as_array().unwrap())
                .cloned()
                .collect::<Vec<_>>()
        };
        let here: Vec<Value> = report["buckets"].as_array().unwrap().iter().flat_map(at).collect();
        let here: Vec<_> = here.iter().filter(|k| k["name"] == json!(kernel.name)).collect();
        assert_eq!(story["places"].as_array().unwrap().len(), here.len(), "{}", kernel.name);
        assert!(story["growths"].as_array().unwrap().iter().all(|g| here.iter().any(|k| k["steps"] == g["steps"])));
        let text = explain(&[&kernel.name]);
        let lines = story["lines"].as_array().unwrap();
        assert!(!lines.is_empty() && lines.iter().all(|l| l.as_str().unwrap().starts_with("models/src/glm5_next/")));
        let parts =
            ["Where it runs", "Machine code", "schedule: ", "one launch costs", "Not fused with", "declared in"];
        for part in parts.into_iter().chain(["What it costs by being a kernel of its own"]) {
            assert!(
                text.contains(part) || part == "Not fused with" && text.contains("No other kernel"),
                "{part}: {text}"
            );
        }
        assert!(text.lines().all(|l| l.chars().count() <= 120), "{text}");
    }
}

/// Every declared value is explained, and what the rewritten body computes is in a kernel of it.
#[test]
fn every_op_of_a_body_is_somewhere() {
    let trunk = trunk();
    let body = trunk.bodies.iter().find(|b| b.name.starts_with("kda")).unwrap();
    for name in body.nodes.iter().map(|n| n.op.name()).collect::<std::collections::BTreeSet<_>>() {
        let stories = json_of(&[name, "--body", &body.name]);
        let stories = stories.as_array().unwrap();
        assert_eq!(stories.len(), body.nodes.iter().filter(|n| n.op.name() == name).count());
        for story in stories {
            let node = &body.nodes[story["value"].as_u64().unwrap() as usize];
            assert_eq!(story["ty"], json!(node.ty.to_string()));
            let lists = story["lists"].as_array().unwrap();
            match story["became"]["kind"].as_str().unwrap() {
                "op" => assert!(lists.iter().all(|l| !l["kernels"].as_array().unwrap().is_empty()), "{story}"),
                _ => assert!(lists.is_empty() && !matches!(node.op, Op::MatMul { .. }), "{story}"),
            }
        }
    }
}

#[test]
fn an_op_says_its_rules_kernel_and_fusions() {
    let trunk = trunk();
    let body = trunk.bodies.iter().find(|b| b.name.starts_with("kda")).unwrap();
    let number = body.nodes.iter().position(|n| matches!(n.op, Op::MatMul { .. })).unwrap();
    let text = explain(&[&format!("{}%{number}", body.name)]);
    let declared = ["Declared in models/src/glm5_next/", ".rs:"];
    for part in ["Rewriting: ", "in kernel ", "fusions that it took part in", " ns)"].into_iter().chain(declared) {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (with, other) = (format!("%{number}"), format!("{}%{number}", body.name));
    assert_eq!(json_of(&[&with, "--body", &body.name]), json_of(&[&other]));
    let story = &json_of(&[&other, "--rows", "1"])[0];
    assert_eq!(story["lists"][0]["rows"], json!([1]));
    let now = story["became"]["value"].as_u64().unwrap();
    let back = json_of(&[&format!("{}%{now}", body.name), "--rewritten", "--rows", "1"]);
    assert!(back.as_array().unwrap().contains(story), "{back}");
    let rewritten = json_of(&["div"]);
    let rewritten = rewritten.as_array().unwrap();
    assert!(rewritten.iter().any(|s| !s["rules"].as_array().unwrap().is_empty()), "some division was rewritten");
}

#[test]
fn a_name_of_ops_lists_all_of_them() {
    let text = explain(&["matmul"]);
    assert!(text.contains("All matmul of the declared trunk"), "{text}");
    let all = trunk().bodies.iter().flat_map(|b| &b.nodes).filter(|n| matches!(n.op, Op::MatMul { .. })).count();
    assert_eq!(json_of(&["matmul"]).as_array().unwrap().len(), all);
}

#[test]
fn unknown_names_list_the_nearest() {
    assert!(refused(&["matmull"]).contains("nearest: matmul"), "{}", refused(&["matmull"]));
    assert!(refused(&["delta_rul"]).contains("delta_rule"));
    assert!(refused(&["kdaa%1"]).contains("kda"));
    assert!(refused(&["matmul", "--body", "dens"]).contains("dense"));
    assert!(refused(&["%x"]).contains("%12"));
    assert!(refused(&["%99999"]).contains("a number below"));
    assert!(refused(&["matmul", "--rows", "2"]).contains("1, 4, 16"));
}

#[test]
fn a_missing_bundle_is_refused() {
    let done = unglue(&["explain", "/nowhere.ug", "matmul"]);
    assert_eq!(done.status.code(), Some(BUNDLE));
    assert!(done.stdout.is_empty() && String::from_utf8_lossy(&done.stderr).contains("/nowhere.ug"));
}

/// Ops of a module that was given as text have the lines of the text, those inside of a `repeat` included.
#[test]
fn ops_of_ir_text_have_its_lines() {
    let dir = tempfile::TempDir::new().unwrap();
    let (file, bundle) = (dir.path().join("trunk.ir"), dir.path().join("trunk.ug"));
    let text = unglue_ir::text::print_module(&trunk());
    std::fs::write(&file, &text).unwrap();
    let cheap = ["--cover", "greedy", "--target", "x86-64", "--json"];
    let done = unglue(&[&["compile", file.to_str().unwrap(), "-o", bundle.to_str().unwrap()], &cheap[..]].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let report: Value = serde_json::from_slice(Bundle::open(&bundle).unwrap().report().unwrap()).unwrap();
    let text: Vec<&str> = text.lines().collect();
    let mut repeats = 0;
    for op in report["buckets"][0]["bodies"].as_array().unwrap().iter().flat_map(|b| b["ops"].as_array().unwrap()) {
        let lines: Vec<&str> = op["lines"].as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
        let code = |at: &str| text[at.strip_prefix("trunk.ir:").unwrap().parse::<usize>().unwrap() - 1];
        assert!(!lines.is_empty() && lines.iter().all(|l| code(l).trim_start().starts_with('%')), "{op}");
        if op["op"] == "repeat" {
            repeats += 1;
            for part in ["= repeat", "= div"] {
                assert!(lines.iter().any(|l| code(l).contains(part)), "{part}: {op}");
            }
        }
    }
    assert!(repeats > 0);
}
