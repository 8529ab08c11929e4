//! `unglue rules`, alone and on the tiny golden model.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::{Value, json};
use unglue_passes::rules::table;

const BUNDLE: i32 = 4;

/// The tiny model in bf16, compiled once for all tests.
static TINY: LazyLock<PathBuf> = LazyLock::new(|| {
    let bundle = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rules-tiny.ug");
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");
    let done = unglue(&["compile", model, "-o", bundle.to_str().unwrap(), "--dtype", "bf16", "--layers", "0-3"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    bundle
});

fn unglue(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unglue")).args(args).output().unwrap()
}

fn rules(args: &[&str]) -> String {
    let done = unglue(&[&["rules"], args].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn every_rule_is_listed_with_its_reason() {
    let text = rules(&[]);
    let listed: Value = serde_json::from_str(&rules(&["--json"])).unwrap();
    assert_eq!(listed["bundle"], Value::Null);
    let listed = listed["rules"].as_array().unwrap();
    assert_eq!(listed.len(), table().len());
    for (row, rule) in listed.iter().zip(table()) {
        assert_eq!((&row["name"], &row["reason"]), (&json!(rule.name), &json!(rule.reason)));
        assert_eq!((&row["when"], &row["fired"]), (&json!(rule.when), &Value::Null));
        assert!(text.lines().any(|l| l.split_whitespace().next() == Some(rule.name)), "{}", rule.name);
    }
    assert!(text.lines().all(|l| l.chars().count() <= 120), "{text}");
    assert!(!text.contains("fired"), "{text}");
}

#[test]
fn a_bundle_says_how_often_each_fired_and_paid() {
    let path = TINY.to_str().unwrap();
    let listed: Value = serde_json::from_str(&rules(&[path, "--json"])).unwrap();
    let listed = listed["rules"].as_array().unwrap();
    assert_eq!(listed.len(), table().len(), "those that fired nowhere are listed too");
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    for row in listed {
        assert!(number(row, "paid") <= number(row, "fired"), "{row}");
        let bodies = row["bodies"].as_object().unwrap();
        assert_eq!(bodies.values().map(|b| number(b, "fired")).sum::<u64>(), number(row, "fired"), "{row}");
    }
    let sum = |key: &str| listed.iter().map(|row| number(row, key)).sum::<u64>();
    assert!(sum("paid") > 0 && sum("paid") <= sum("fired"));
    assert!(listed.iter().any(|row| number(row, "fired") == 0));
    let text = rules(&[path]);
    assert!(text.contains("fired") && text.contains("paid"), "{text}");
    // Rules of looser classes are off in an exact build.
    let loose = text.lines().find(|l| l.starts_with("skip-rounding")).unwrap();
    assert_eq!(loose.split_whitespace().nth(2), Some("off"), "{loose}");
}

#[test]
fn a_missing_bundle_is_refused() {
    let done = unglue(&["rules", "/nowhere.ug"]);
    assert_eq!(done.status.code(), Some(BUNDLE));
    assert!(done.stdout.is_empty() && String::from_utf8_lossy(&done.stderr).contains("/nowhere.ug"));
}
