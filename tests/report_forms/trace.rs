//! `--trace`: one complete event a launch, on a line of predicted time.

use std::path::Path;

use serde_json::{Value, json};

use crate::bundles::{BAD_BUNDLE, REAL, TINY, document, edited, refused, written};

/// Nanoseconds of a figure in microseconds; all of them are whole.
fn ns(us: &Value) -> u64 {
    let ns = us.as_f64().unwrap() * 1000.0;
    assert!((ns - ns.round()).abs() < 1e-3, "{us}");
    ns.round() as u64
}

fn events(trace: &Value, cat: &str) -> Vec<Value> {
    trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["cat"] == cat).cloned().collect()
}

fn check(bundle: &Path) {
    let trace: Value = serde_json::from_str(&written(bundle, "--trace", &[])).unwrap();
    let all = document(bundle);
    let one_row = &all["report"]["buckets"][0];
    assert_eq!(one_row["rows_max"], json!(1));
    let kernels = events(&trace, "kernel");
    assert_eq!(json!(kernels.len()), one_row["total"]["launches"]);
    let mut now = 0;
    for event in &kernels {
        assert_eq!((&event["ph"], ns(&event["ts"])), (&json!("X"), now), "{event}");
        now += ns(&event["dur"]) + ns(&event["args"]["gap_us"]);
        for field in ["class", "site", "bound", "tag"] {
            assert!(!event["args"][field].as_str().unwrap().is_empty(), "{field}: {event}");
        }
    }
    // Gaps are in the trace as time in which nothing runs, the last one behind the last event.
    assert_eq!(json!(now), one_row["total"]["predicted_ns"]);
    assert_eq!(ns(&trace["otherData"]["predicted_us"]), now);
    let busy: u64 = kernels.iter().map(|e| ns(&e["dur"])).sum();
    assert!(busy < now, "no gaps");
    for (arg, total) in [("dram_bytes", "dram_bytes"), ("cache_bytes", "cache_bytes"), ("flops", "flops")] {
        let sum: u64 = kernels.iter().map(|e| e["args"][arg].as_u64().unwrap()).sum();
        assert_eq!(json!(sum), one_row["total"][total], "{arg}");
    }
    let calls = events(&trace, "call");
    let launches: u64 = calls.iter().map(|e| e["args"]["launches"].as_u64().unwrap()).sum();
    assert_eq!(launches, kernels.len() as u64);
    assert!(calls.windows(2).all(|w| ns(&w[0]["ts"]) + ns(&w[0]["dur"]) <= ns(&w[1]["ts"])), "calls overlap");
}

#[test]
fn every_launch_of_the_tiny_model_is_an_event() {
    check(&TINY);
}

#[test]
fn every_launch_of_the_real_model_is_an_event() {
    check(&REAL);
}

#[test]
fn trace_is_the_same_each_time() {
    assert_eq!(written(&TINY, "--trace", &[]), written(&TINY, "--trace", &[]));
}

#[test]
fn report_with_another_sum_is_a_bad_bundle() {
    let (_dir, bundle) = edited(|r| r["buckets"][0]["total"]["predicted_ns"] = json!(1));
    for option in ["--trace", "--html"] {
        let out = bundle.with_file_name("out");
        let message = refused(&["report", bundle.to_str().unwrap(), option, out.to_str().unwrap()], BAD_BUNDLE);
        assert!(message.contains("1 ns predicted for 1 rows"), "{message}");
        assert!(!out.exists());
    }
}
