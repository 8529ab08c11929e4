//! The module of the real config: its bodies, its calls, and its tensors against `glm5_next_tensors.py`.
// Helpers of a test crate are tests too; clippy sees only the functions marked so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;

use unglue_ir::module::Source;
use unglue_ir::{text, verify};
use unglue_models::config::FieldPolicy;
use unglue_models::glm5_next::{BuildOptions, Config, trunk};
use unglue_models::safetensors::Stored;
use unglue_models::{Activation, Trunk};

const REAL: &str = include_str!("../configs/glm-5.3-flash.json");

fn real(options: &BuildOptions) -> Trunk {
    trunk(&Config::from_json(REAL, &FieldPolicy::default()).unwrap(), options).unwrap()
}

fn sources(t: &Trunk) -> BTreeMap<&str, &Source> {
    t.module.weights.iter().flat_map(|w| &w.sources).map(|s| (s.tensor.as_str(), s)).collect()
}

#[test]
fn bodies_are_shared_by_layers() {
    let t = real(&BuildOptions::default());
    let names: Vec<&str> = t.module.bodies.iter().map(|b| b.name.as_str()).collect();
    assert_eq!(names, ["begin", "kda", "dense", "dsa", "moe", "end"]);
    assert_eq!(t.module.calls.len(), 92);
    // KDA: conv and recurrent; DSA: latent, pool_keys and tail.
    assert_eq!(t.module.states.len(), 34 * 2 + 11 * 3);
    let aux = real(&BuildOptions { aux: vec![5, 14, 24, 33, 42], ..Default::default() });
    assert_eq!(aux.module.bodies.len(), 7);
    assert_eq!(aux.module.outputs.iter().filter(|o| o.name.starts_with("aux.layer")).count(), 5);
}

/// `glm5_next_tensors.py bf16` without `model.visual.` and `.layers.45.`: 38,770 tensors in the release, less 347 of
/// the vision part, less 889 of the MTP block. The hash is FNV-1a of its sorted lines `name\tdtype\tAxBxC\n`.
#[test]
fn tensors_are_those_of_the_release() {
    let t = real(&BuildOptions::default());
    let sources = sources(&t);
    assert_eq!(sources.len(), 38_770 - 347 - 889);
    let bytes = |s: &Source| s.shape.iter().product::<u64>() * s.dtype.bytes();
    assert_eq!(sources.values().map(|s| bytes(s)).sum::<u64>(), 626_654_214_392);
    assert_eq!(sources.values().filter(|s| s.dtype == common::F32).count(), 290);
    assert_eq!(sources.values().map(|s| s.shape.iter().product::<u64>()).sum::<u64>(), 313_326_811_966);
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for (name, s) in sources {
        let shape: Vec<String> = s.shape.iter().map(|d| d.to_string()).collect();
        for byte in format!("{name}\t{}\t{}\n", Stored::of(s.dtype), shape.join("x")).bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    assert_eq!(hash, 0x31fb_04c2_4821_ef91);
}

/// Every source is taken once, or in parts that do not overlap and leave nothing out.
#[test]
fn no_part_of_a_tensor_is_lost() {
    let t = real(&BuildOptions::default());
    let mut taken: BTreeMap<&str, u64> = BTreeMap::new();
    for s in t.module.weights.iter().flat_map(|w| &w.sources) {
        let all = s.view.iter().product::<u64>();
        let part = s.slice.as_ref().map_or(all, |p| all / s.view[p.axis as usize] * p.len);
        *taken.entry(&s.tensor).or_default() += part;
    }
    for (name, s) in sources(&t) {
        assert_eq!(taken[name], s.shape.iter().product::<u64>(), "{name}");
    }
}

#[test]
fn modules_verify_and_round_trip_as_text() {
    let few =
        |dtype| BuildOptions { layers: Some(vec![2..=4, 44..=44]), dtype, aux: vec![4, 44], expert_slots: Some(12) };
    for options in [BuildOptions::default(), few(Activation::Bf16), few(Activation::F32)] {
        let t = real(&options);
        verify::module(&t.module).unwrap();
        let printed = text::print_module(&t.module);
        assert_eq!(text::parse_module(&printed).unwrap(), t.module);
    }
}

#[test]
fn kept_layers_keep_their_numbers() {
    let t = real(&BuildOptions { layers: Some(vec![2..=3]), expert_slots: Some(12), ..Default::default() });
    let layers: Vec<_> = t.module.calls.iter().map(|c| c.layer).collect();
    assert_eq!(layers, [None, Some(2), Some(2), Some(3), Some(3), None]);
    let weight = |name: &str| t.module.weights.iter().find(|w| w.name == name).unwrap();
    assert_eq!(weight("layer3.hc_attn_fn").sources[0].tensor, "model.language_model.layers.3.hc_attn_fn");
    assert_eq!(weight("layer3.expert_up").sources.len(), 12);
    assert!(t.skip.skips("model.language_model.layers.4.hc_attn_fn"));
    assert!(t.skip.skips("model.language_model.layers.3.mlp.experts.12.up_proj.weight"));
    assert!(!t.skip.skips("model.language_model.layers.3.mlp.experts.11.up_proj.weight"));
}

#[test]
fn taps_name_values_of_calls() {
    let t = real(&BuildOptions { layers: Some(vec![3..=3]), ..Default::default() });
    let names: Vec<String> = t.taps().into_iter().map(|t| t.name).collect();
    for name in ["attn_in", "attn_out", "attn_post", "attn_comb", "mlp_in", "indexer_scores", "router_logits"] {
        assert!(names.contains(&format!("layer3.{name}")), "{name} of {names:?}");
    }
    let logits = t.tap("layer3.router_logits").unwrap();
    let body = &t.module.bodies[t.module.calls[logits.call as usize].body as usize];
    assert_eq!(body.ty(logits.value).to_string(), "f32[R, 288]");
}
