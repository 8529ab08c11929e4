//! `unglue report` on the tiny golden model.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::{Value, json};
use tempfile::TempDir;
use unglue_runtime::manifest::{Manifest, PartKind};
use unglue_runtime::{Bundle, PartData, write_bundle};

/// Exit code for a bad bundle.
const BAD_BUNDLE: i32 = 4;

/// The tiny model in f32, compiled once for all tests.
static TINY: LazyLock<PathBuf> = LazyLock::new(|| {
    let bundle = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report-tiny.ug");
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");
    let done = unglue(&["compile", model, "-o", bundle.to_str().unwrap(), "--dtype", "f32", "--target", "x86-64"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    bundle
});

fn unglue(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unglue")).args(args).output().unwrap()
}

fn report(bundle: &Path, more: &[&str]) -> String {
    let done = unglue(&[&["report", bundle.to_str().unwrap()], more].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// The tiny bundle with the text of its report replaced, hashes and all.
fn with_report(change: impl FnOnce(&[u8]) -> Vec<u8>) -> TempDir {
    let tiny = Bundle::open(&*TINY).unwrap();
    let manifest: Manifest = tiny.manifest().clone();
    let mut change = Some(change);
    let parts: Vec<PartData> = manifest
        .parts
        .iter()
        .map(|part| {
            let old = tiny.part(&part.path).unwrap();
            let bytes = match part.kind {
                PartKind::Report => change.take().unwrap()(old),
                _ => old.to_vec(),
            };
            PartData { path: part.path.clone(), kind: part.kind.clone(), bytes }
        })
        .collect();
    let dir = TempDir::new().unwrap();
    write_bundle(dir.path().join("b"), manifest, &parts).unwrap();
    dir
}

/// The message with which a bundle is refused as a bad one.
fn refused(bundle: &Path) -> String {
    let done = unglue(&["report", bundle.to_str().unwrap()]);
    assert_eq!(done.status.code(), Some(BAD_BUNDLE), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(done.stdout.is_empty());
    String::from_utf8(done.stderr).unwrap()
}

/// Changes the report as JSON.
fn edited(edit: impl FnOnce(&mut Value)) -> TempDir {
    with_report(|text| {
        let mut value = serde_json::from_slice(text).unwrap();
        edit(&mut value);
        serde_json::to_vec(&value).unwrap()
    })
}

/// After a change of rules, costs or schedules: `INSTA_UPDATE=always cargo test --test report`, and look at the diff.
#[test]
fn summary_of_the_tiny_model() {
    let text = report(&TINY, &[]);
    // The first line has the path and a hash of all code.
    let (first, rest) = text.split_once('\n').unwrap();
    assert!(first.starts_with("bundle ") && first.contains("sha256"), "{first}");
    let (summary, _) = rest.split_once("\nRewriting:").unwrap();
    insta::assert_snapshot!("report_summary", summary);
}

#[test]
fn text_fits_120_columns_and_has_no_colour() {
    let text = report(&TINY, &[]);
    let (_, rest) = text.split_once('\n').unwrap();
    for line in rest.lines() {
        assert!(line.chars().count() <= 120, "{line}");
        assert!(!line.contains('\x1b'), "{line}");
    }
}

#[test]
fn text_names_every_kernel_and_every_reason() {
    let text = report(&TINY, &[]);
    for kernel in &Bundle::open(&*TINY).unwrap().manifest().kernels {
        let listed = text.lines().any(|l| l.split_whitespace().nth(1) == Some(&kernel.name));
        assert!(listed, "{} is not in a table", kernel.name);
    }
    for title in ["Rewriting:", "cover \"exact\"", "Ops that stand alone", "[modelled]"] {
        assert!(text.contains(title), "no {title}");
    }
}

#[test]
fn json_counts_what_the_manifest_launches() {
    let all: Value = serde_json::from_str(&report(&TINY, &["--json"])).unwrap();
    let tiny = Bundle::open(&*TINY).unwrap();
    let buckets = &tiny.manifest().buckets;
    assert_eq!(all["manifest"]["buckets"].as_array().unwrap().len(), buckets.len());
    assert_eq!(all["report"]["buckets"].as_array().unwrap().len(), buckets.len());
    for (i, bucket) in buckets.iter().enumerate() {
        let reported = &all["report"]["buckets"][i];
        let launches = json!(bucket.launches.len());
        assert_eq!(all["manifest"]["buckets"][i]["launches"], launches);
        assert_eq!(reported["total"]["launches"], launches);
        for by in ["by_class", "by_body"] {
            let sum: u64 = reported[by].as_object().unwrap().values().map(|t| t["launches"].as_u64().unwrap()).sum();
            assert_eq!(json!(sum), launches, "{by}");
        }
    }
    assert_eq!(all["report"]["kernels"], json!(tiny.manifest().kernels.len()));
    assert_eq!(all["manifest"]["sha256"], json!(tiny.sha256()));
}

/// A step that fills its list has the sums of the list, and no step takes less than its floor.
#[test]
fn steps_agree_with_the_launch_lists() {
    let all: Value = serde_json::from_str(&report(&TINY, &["--json"])).unwrap();
    let steps = all["report"]["steps"].as_array().unwrap();
    let rows: Vec<u64> = steps.iter().map(|s| s["rows"].as_u64().unwrap()).collect();
    assert_eq!(rows, [1, 5, 8]);
    let list = &all["report"]["buckets"][0];
    assert_eq!(steps[0]["all"]["fused"]["launches"], list["total"]["launches"]);
    assert_eq!(steps[0]["all"]["fused"]["predicted_ns"], list["total"]["predicted_ns"]);
    assert_eq!(steps[0]["all"]["unfused"]["launches"], list["unfused_launches"]);
    assert_eq!(steps[0]["all"]["unfused"]["predicted_ns"], list["unfused_ns"]);
    assert_eq!(steps[1]["all"]["fused"]["launches"], all["report"]["buckets"][2]["total"]["launches"]);
    assert_eq!((&steps[1]["list_rows"], &steps[1]["seqs"]), (&json!(16), &json!(4)));
    let ns = |s: &Value, what: &str| s["all"][what]["predicted_ns"].as_u64().unwrap();
    for step in steps {
        let classes = step["by_class"].as_object().unwrap();
        for (of, figure) in [("fused", "launches"), ("unfused", "predicted_ns"), ("floor", "bytes")] {
            let sum: u64 = classes.values().map(|c| c[of][figure].as_u64().unwrap()).sum();
            assert_eq!(json!(sum), step["all"][of][figure], "{of} {figure}");
        }
        let floor = step["all"]["floor"]["ns"].as_u64().unwrap();
        assert!(0 < floor && floor < ns(step, "fused") && ns(step, "fused") < ns(step, "unfused"), "{step}");
    }
    let text = report(&TINY, &[]);
    assert!(text.contains("Steps of a few rows, by class of kernel [counted launches; modelled times]"), "{text}");
}

/// `verify` in the emulator leaves counts beside the bundle; they show as long as the bundle is that very one.
#[test]
fn emulated_counts_belong_to_their_bundle() {
    let dir = TempDir::new().unwrap();
    let bundle = dir.path().join("b.ug");
    let path = bundle.to_str().unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");
    let compile = |layers: &str| {
        let done = unglue(&["compile", model, "-o", path, "--dtype", "f32", "--target", "gfx1201", "--layers", layers]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    compile("0");
    assert!(!report(&bundle, &[]).contains("[emulated]"));
    let verified = unglue(&["verify", path, "--device", "gfx12-emu", "--draws", "1", "--kernel", "kda_o_proj"]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    let all: Value = serde_json::from_str(&report(&bundle, &["--json"])).unwrap();
    let counts = &all["emulated"]["kernels"]["kda_o_proj"]["counts"];
    // 64 outputs of 96 inputs in f32, each weight loaded once; the sums leave as f32.
    let loaded: u64 = counts["bytes"]["global_load"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    assert!(loaded >= 64 * 64 * 4, "{counts}");
    assert!(counts["instructions"]["valu"].as_u64().unwrap() > 0, "{counts}");
    let text = report(&bundle, &[]);
    assert!(text.contains("Executed by one launch of each kernel [emulated]"), "{text}");
    assert!(text.contains("kernel(s) were not executed"), "{text}");
    assert!(text.lines().all(|l| l.chars().count() <= 120), "{text}");
    compile("0-1");
    assert!(!report(&bundle, &[]).contains("[emulated]"), "counts of another bundle");
    std::fs::write(dir.path().join("b.ug.gfx12-emu.json"), "{").unwrap();
    let done = unglue(&["report", path]);
    assert_eq!(done.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&done.stderr).contains("verify --device gfx12-emu"));
}

/// A bundle without code for the emulator.
#[test]
fn emulator_needs_gfx1201_code() {
    let done = unglue(&["verify", TINY.to_str().unwrap(), "--device", "gfx12-emu"]);
    assert_eq!(done.status.code(), Some(BAD_BUNDLE));
    let message = String::from_utf8(done.stderr).unwrap();
    assert!(message.contains("x86-64") && message.contains("--target gfx1201"), "{message}");
}

#[test]
fn report_that_is_cut_off_is_a_bad_bundle() {
    let dir = with_report(|text| text[..text.len() / 2].to_vec());
    let message = refused(&dir.path().join("b"));
    assert!(message.contains("report.json") && message.contains("JSON that is no report"), "{message}");
}

#[test]
fn report_without_a_field_is_a_bad_bundle() {
    let dir = edited(|r| drop(r["buckets"][0].as_object_mut().unwrap().remove("by_class")));
    assert!(refused(&dir.path().join("b")).contains("by_class"));
}

#[test]
fn report_that_counts_other_launches_is_a_bad_bundle() {
    let dir = edited(|r| r["buckets"][0]["total"]["launches"] = json!(1));
    assert!(refused(&dir.path().join("b")).contains("1 launches for 1 rows"));
}

#[test]
fn report_of_an_unknown_kernel_is_a_bad_bundle() {
    let dir = edited(|r| r["buckets"][0]["bodies"][0]["kernels"][0]["name"] = json!("nobody"));
    assert!(refused(&dir.path().join("b")).contains("kernel nobody"));
}

#[test]
fn report_changed_on_disk_is_a_bad_bundle() {
    let dir = with_report(<[u8]>::to_vec);
    let path = dir.path().join("b/report.json");
    let mut text = std::fs::read(&path).unwrap();
    text[0] = b'[';
    std::fs::write(&path, text).unwrap();
    assert!(refused(&dir.path().join("b")).contains("part hash"));
}
