//! `--measured`: a profiler's trace joined with the predictions by kernel name.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;
use unglue_runtime::Bundle;

use crate::bundles::{INPUT, TINY, document, refused, report, written};

fn file(text: &str) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("prof.json");
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

fn joined(trace: &str) -> Value {
    let (_dir, path) = file(trace);
    let all: Value = serde_json::from_str(&report(&TINY, &["--json", "--measured", path.to_str().unwrap()])).unwrap();
    all["measured"].clone()
}

fn kernel(name: &str, dur: f64) -> Value {
    json!({ "name": name, "cat": "kernel", "ph": "X", "ts": 0, "dur": dur, "pid": 0, "tid": 0 })
}

#[test]
fn own_trace_agrees_with_the_predictions() {
    let own = joined(&written(&TINY, "--trace", &[]));
    let kernels = own["kernels"].as_array().unwrap();
    assert!(kernels.len() > 5);
    for k in kernels {
        assert!((k["ratio"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{k}");
        assert_eq!((&k["count"], &k["rows"]), (&k["launches"], &json!(1)), "{k}");
    }
    assert_eq!(own["unknown"], json!([]));
    assert_eq!(own["tag"], "measured (prof.json)");
    assert_eq!(own["list_rows"], json!(1));
    // What only steps of more rows launch is not in it.
    let all = document(&TINY);
    let entries = all["manifest"]["kernels"].as_array().unwrap().len();
    assert_eq!(kernels.len() + own["missing"].as_array().unwrap().len(), entries);
    assert_eq!(all.get("measured"), None);
}

/// A step of `rows` rows that takes what is predicted for it: one event a launch.
fn step(rows: u64) -> Vec<Value> {
    let bundle = Bundle::open(&*TINY).unwrap();
    let m = bundle.manifest();
    let at = m.buckets.iter().position(|b| b.rows_max == rows).unwrap();
    let all = document(&TINY);
    let bodies = all["report"]["buckets"][at]["bodies"].as_array().unwrap();
    let kernels = bodies.iter().flat_map(|b| b["kernels"].as_array().unwrap());
    let us = |k: &Value| k["predicted_ns"].as_f64().unwrap() / 1000.0;
    let predicted: BTreeMap<&str, f64> = kernels.map(|k| (k["name"].as_str().unwrap(), us(k))).collect();
    let names = m.buckets[at].launches.iter().map(|l| m.kernels[l.kernel as usize].name.as_str());
    names.map(|name| kernel(name, predicted[name])).collect()
}

#[test]
fn a_step_of_each_list_agrees_with_its_own_predictions() {
    for rows in [1, 4, 16] {
        // Two steps, and a kernel that no bundle has.
        let trace = Value::from([step(rows), step(rows), vec![kernel("memset", 1.0)]].concat()).to_string();
        let own = joined(&trace);
        assert_eq!(own["list_rows"], json!(rows));
        let kernels = own["kernels"].as_array().unwrap();
        assert!(kernels.len() > 5);
        for k in kernels {
            assert!((k["ratio"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{k}");
            assert_eq!((&k["rows"], &k["count"]), (&json!(rows), &json!(2 * k["launches"].as_u64().unwrap())), "{k}");
        }
        let (_dir, path) = file(&trace);
        let text = report(&TINY, &["--measured", path.to_str().unwrap()]);
        assert!(text.contains(&format!("set beside the list of {rows} row(s)")), "{text}");
    }
}

#[test]
fn part_of_a_step_is_set_beside_the_smallest_lists() {
    let part = json!([kernel("kda_o_proj", 1.0)]).to_string();
    let m = joined(&part);
    assert_eq!((&m["list_rows"], m["kernels"].as_array().unwrap().len()), (&Value::Null, 1));
    let (_dir, path) = file(&part);
    assert!(report(&TINY, &["--measured", path.to_str().unwrap()]).contains("No launch list is wholly in the trace"));
}

#[test]
fn medians_counts_and_names() {
    let name = document(&TINY)["manifest"]["kernels"][0]["name"].as_str().unwrap().to_owned();
    // Profilers name the descriptor; host events and other categories do not count; an even number has two middles.
    let events = json!([
        kernel(&format!("{name}.kd"), 9.0), kernel(&name, 1.0), kernel(&name, 3.0), kernel(&name, 2.0),
        kernel("memset", 5.0), kernel("memset", 1.0), kernel("memset", 2.0),
        { "name": name, "cat": "cpu_op", "dur": 1000 }, { "ph": "M", "name": 7 },
    ]);
    for trace in [events.to_string(), json!({ "traceEvents": events, "deviceProperties": [] }).to_string()] {
        let m = joined(&trace);
        let k = &m["kernels"][0];
        assert_eq!((&k["name"], &k["count"], &k["median_us"]), (&json!(name), &json!(4), &json!(2.5)));
        let ratio = k["median_us"].as_f64().unwrap() / k["predicted_us"].as_f64().unwrap();
        assert_eq!(k["ratio"], json!(ratio));
        assert_eq!(m["unknown"], json!([{ "name": "memset", "count": 3, "median_us": 2.0 }]));
        assert!(!m["missing"].as_array().unwrap().contains(&json!(name)));
    }
}

#[test]
fn text_report_ends_with_the_comparison() {
    let (_dir, path) = file(&json!([kernel("memset", 5.0), kernel("kda_o_proj", 1.0)]).to_string());
    let text = report(&TINY, &["--measured", path.to_str().unwrap()]);
    let (_, section) = text.split_once("Measured beside predicted [measured (prof.json)").unwrap();
    for part in ["kda_o_proj", "memset (1 x 5.0 us)", "does not have", "ratio"] {
        assert!(section.contains(part), "no {part} in {section}");
    }
    assert!(text.lines().skip(1).all(|l| l.chars().count() <= 120));
    assert!(!report(&TINY, &[]).contains("measured ("));
}

#[test]
fn bad_traces_are_refused() {
    let wrong = [
        ("{", "JSON that is none"),
        ("{\"events\": []}", "traceEvents"),
        ("[{\"name\": \"a\", \"cat\": \"cpu_op\", \"dur\": 1}]", "1 events, none of category kernel"),
        ("[{\"name\": \"a\", \"cat\": \"kernel\"}]", "dur null in event 0 (a)"),
        ("[{\"name\": \"a\", \"cat\": \"kernel\", \"dur\": -1}]", "dur -1 in event 0 (a)"),
        ("[{\"cat\": \"kernel\", \"dur\": 1}]", "name null in event 0"),
    ];
    for (text, says) in wrong {
        let (_dir, path) = file(text);
        let message = refused(&["report", TINY.to_str().unwrap(), "--measured", path.to_str().unwrap()], INPUT);
        assert!(message.contains(says) && message.contains("prof.json"), "{text}: {message}");
    }
    let message = refused(&["report", TINY.to_str().unwrap(), "--measured", "/nowhere/prof.json"], INPUT);
    assert!(message.contains("/nowhere/prof.json"), "{message}");
}
