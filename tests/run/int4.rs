//! The tiny model with routed experts in int4, compiled: golden ids, the interpreter's bits, and 4 bits a weight on devices.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::Value;

use super::common::{Case, dump, list, load, scratch, succeed};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny_w4a16");

static BUNDLE: LazyLock<PathBuf> = LazyLock::new(|| {
    let bundle = scratch("int4.ug");
    succeed(&["compile", MODEL, "-o", bundle.to_str().unwrap(), "--target", "x86-64,gfx1201"]);
    bundle
});

#[test]
fn greedy_ids_are_the_golden_ones() {
    let case = Case::in_folder(MODEL, "long");
    let prompt = list(&case.ids[..case.prefill]);
    for (device, steps) in [("interp", 16), ("cpu", 16), ("gfx12-emu", 2)] {
        let input = if device == "interp" { MODEL } else { BUNDLE.to_str().unwrap() };
        let count = steps.to_string();
        let out = succeed(&["run", input, "--ids", &prompt, "--steps", &count, "--device", device, "--json"]);
        let out: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(out["ids"], serde_json::json!(case.greedy[..steps]), "{device}");
    }
}

#[test]
fn bundles_equal_the_interpreter() {
    let case = Case::in_folder(MODEL, "long");
    let want = load(&dump("int4-interp", Path::new(MODEL), &case.ids, &["--device", "interp"]));
    let ours = load(&dump("int4-cpu", &BUNDLE, &case.ids, &["--device", "cpu"]));
    assert!(ours.contains_key("logits") && ours.contains_key("layer4.streams"));
    for (key, value) in &ours {
        assert!(want.get(key) == Some(value), "{key} has other bits");
    }
}

/// Words [18, 128, 16] and scales [18, 128, 1] of each linear, transposed from GPTQ's order; nothing else grows.
#[test]
fn devices_hold_four_bits_a_weight() {
    let text = std::fs::read_to_string(BUNDLE.join("manifest.json")).unwrap();
    let manifest: Value =
        serde_json::from_str(text.lines().collect::<Vec<_>>().split_last().unwrap().1.join("\n").as_str()).unwrap();
    let of = |name: &str| manifest["weights"].as_array().unwrap().iter().find(|w| w["name"] == name).unwrap().clone();
    let (words, scales) = (of("layer3.expert_up"), of("layer3.expert_up.scales"));
    assert_eq!((&words["mem"], &words["shape"]), (&"i32".into(), &serde_json::json!([18, 128, 16])));
    assert_eq!((&scales["mem"], &scales["shape"]), (&"f16".into(), &serde_json::json!([18, 128, 1])));
    for weight in [&words, &scales] {
        let sources = weight["sources"].as_array().unwrap();
        assert!(sources.len() == 18 && sources.iter().all(|s| s["transposed"] == true));
    }
    let plain = of("layer3.shared_up");
    assert!(plain["mem"] == "bf16" && plain["sources"][0]["transposed"] == false);
    let orders = manifest["kernels"].as_array().unwrap().iter().map(|k| k["orders"].to_string());
    let grouped: Vec<String> = orders.filter(|o| o.contains("grouped_matmul")).collect();
    assert!(!grouped.is_empty() && grouped.iter().all(|o| !o.contains("grouped_matmul: lanes")), "{grouped:?}");
}
