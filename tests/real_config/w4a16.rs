//! The build that is served: routed experts in int4, the rest as above.

use std::sync::OnceLock;

use unglue_runtime::Bundle;
use unglue_runtime::manifest::Mem;

use super::{EXPERTS, GPU, LAUNCHES, LAYERS, MOE_LAYERS, assert_budget, assert_fits, assert_waves, compiled};

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/configs/glm-5.3-flash-w4a16.json");
const BUDGET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/configs/glm-5.3-flash-w4a16.budget.json");

fn bundle() -> &'static Bundle {
    static BUNDLE: OnceLock<Bundle> = OnceLock::new();
    BUNDLE.get_or_init(|| compiled(CONFIG, "real-config-w4a16.ug", GPU))
}

#[test]
fn w4a16_kernels_fit_the_gpu() {
    assert_fits(bundle().manifest());
    assert_waves(bundle());
}

#[test]
fn w4a16_stays_within_the_budget() {
    assert_budget(bundle(), BUDGET);
}

#[test]
fn w4a16_launches_are_few_and_none_is_pointwise() {
    let first = &bundle().manifest().buckets[0];
    assert!(first.launches.len() <= LAUNCHES, "{} launches in {LAYERS} layers", first.launches.len());
    let report: serde_json::Value = serde_json::from_slice(bundle().report().unwrap()).unwrap();
    assert_eq!(report["buckets"][0]["pointwise_launches"], 0);
}

/// 302 of 316 billion weights are int4: 8 a word, and an f16 scale for each group of 128.
#[test]
fn w4a16_experts_are_words_and_scales() {
    let m = bundle().manifest();
    let stacks = |mem| m.weights.iter().filter(|w| w.sources.len() == EXPERTS && w.mem == mem).collect::<Vec<_>>();
    let (words, scales) = (stacks(Mem::I32), stacks(Mem::F16));
    assert_eq!((words.len(), scales.len()), (3 * MOE_LAYERS, 3 * MOE_LAYERS));
    let elements = |w: &unglue_runtime::manifest::Weight| w.shape.iter().product::<u64>();
    assert!(words.iter().zip(&scales).all(|(w, s)| elements(w) * 8 == elements(s) * 128));
}
