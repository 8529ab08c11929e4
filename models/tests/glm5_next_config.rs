//! Configs: what is read, and what each kind of bad field says. Mutated configs give errors, never panics.
// Helpers of a test crate are tests too; clippy sees only the functions marked so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{config, golden};
use proptest::prelude::*;
use serde_json::{Value, json};
use unglue_ir::op::{GroupLimit, Op};
use unglue_ir::types::DType;
use unglue_models::ModelError;
use unglue_models::config::FieldPolicy;
use unglue_models::glm5_next::{Attention, BuildOptions, Config, FeedForward, blocks, trunk};

const REAL: &str = include_str!("../configs/glm-5.3-flash.json");

fn tiny() -> Value {
    let text = std::fs::read_to_string(golden("glm5_next_tiny/config.checkpoint_style.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn read(v: &Value) -> Result<Config, ModelError> {
    Config::from_json(&v.to_string(), &FieldPolicy::default())
}

/// The tiny config with one text field changed.
fn with(field: &str, value: Value) -> Value {
    let mut v = tiny();
    v["text_config"][field] = value;
    v
}

fn message(v: &Value) -> String {
    read(v).unwrap_err().to_string()
}

#[test]
fn both_spellings_and_flat_text_configs_read_the_same() {
    let transformers = config("glm5_next_tiny/config.json");
    let released = config("glm5_next_tiny/config.checkpoint_style.json");
    assert_eq!(transformers, released);
    assert_eq!(read(&tiny()["text_config"]).unwrap(), released);
}

#[test]
fn the_real_config_has_the_specified_sizes() {
    let c = Config::from_json(REAL, &FieldPolicy::default()).unwrap();
    let count = |kind| c.layers.iter().filter(|l| l.attention == kind).count();
    assert_eq!((c.layers.len(), count(Attention::Kda), count(Attention::Dsa)), (45, 34, 11));
    assert!(c.layers.iter().enumerate().all(|(i, l)| (l.attention == Attention::Dsa) == (i % 4 == 3)));
    assert!(c.layers.iter().enumerate().all(|(i, l)| (l.feed_forward == FeedForward::Dense) == (i < 3)));
    assert_eq!((c.vocab, c.hc.width, c.hc.streams, c.hc.iters), (154880, 4096, 4, 20));
    assert_eq!((c.hc.maps(), c.hc.flat(), c.kda.inner(), c.kda.taps), (24, 16384, 8192, 4));
    assert_eq!((c.mla.index.budget, c.mla.index.pool, c.mla.index.selected()), (512, 4, 2051));
    assert_eq!((c.moe.experts, c.moe.chosen, c.moe.shared.inner, c.moe.expert.limit), (288, 8, 2048, 10.0));
    assert_eq!((c.kda.lower_bound, c.moe.scale, c.hc.eps, c.hc.norm_eps), (-5.0, 2.5, 1e-6, 1e-5));
}

#[test]
fn unknown_fields_name_the_flag_that_allows_them() {
    let v = with("wormhole", json!(1));
    assert!(message(&v).contains("`--allow-field wormhole`"), "{}", message(&v));
    let policy = FieldPolicy { allow: vec!["wormhole".into()] };
    assert!(Config::from_json(&v.to_string(), &policy).is_ok());
    let mut v = tiny();
    v["text_config"]["linear_attn_config"]["taps"] = json!(1);
    assert!(message(&v).contains("`--allow-field linear_attn_config.taps`"));
}

#[test]
fn every_used_field_is_needed() {
    let fields: Vec<String> = tiny()["text_config"].as_object().unwrap().keys().cloned().collect();
    let mut missing = Vec::new();
    for field in fields {
        let mut v = tiny();
        v["text_config"].as_object_mut().unwrap().remove(&field);
        match read(&v) {
            Err(ModelError::MissingField { .. }) => missing.push(field),
            Err(other) => panic!("{field}: {other}"),
            Ok(_) => {}
        }
    }
    assert_eq!(missing.len(), 27, "{missing:?}");
    assert!(missing.contains(&"linear_attn_config".to_string()) && missing.contains(&"index_kpool".to_string()));
}

#[test]
fn wrong_types_and_ranges_are_named() {
    for (field, value, found) in [
        ("hidden_size", json!("four"), "\"four\""),
        ("hidden_size", json!(-1), "-1"),
        ("hidden_size", json!(0), "0"),
        ("hidden_size", json!(9223372036854775808u64), "9223372036854775808"),
        ("hidden_size", json!(4.0), "4.0"),
        ("rms_norm_eps", json!("1e-5"), "\"1e-5\""),
        ("rms_norm_eps", json!(0.0), "0.0"),
        ("rms_norm_eps", json!(-1e-5), "-0.00001"),
        ("layer_types", json!(["linear_attention"]), "a list of 1"),
        ("layer_types", json!(7), "7"),
        ("layer_types", json!(["a", "b", "c", "d", "e"]), "\"a\""),
        ("mlp_layer_types", json!([1, 2, 3, 4, 5]), "a list of 5"),
        ("index_kpool_always_select_tail", json!("yes"), "\"yes\""),
        ("num_experts_per_tok", json!(33), "33"),
        ("linear_attn_config", json!(3), "3"),
    ] {
        match read(&with(field, value)) {
            Err(ModelError::Field { field: named, found: shown, .. }) => {
                assert!(named.starts_with(field) && shown.contains(found), "{field}: {named}, {shown}");
            }
            other => panic!("{field} {found}: {other:?}"),
        }
    }
}

#[test]
fn contradictions_are_named() {
    for (field, value) in [
        ("index_topk", json!(17)),
        ("num_key_value_heads", json!(2)),
        ("qk_head_dim", json!(50)),
        ("linear_num_heads", json!(5)),
        ("first_k_dense_replace", json!(2)),
        ("num_experts_per_tok", json!(19)),
        ("n_group", json!(4)),
        ("n_group", json!(18)),
        ("topk_group", json!(2)),
    ] {
        let read = read(&with(field, value));
        assert!(matches!(read, Err(ModelError::Inconsistent { .. })), "{field}: {read:?}");
    }
    let mut v = tiny();
    v["text_config"]["linear_attn_config"]["kda_layers"] = json!([0, 1, 2, 3, 4]);
    assert!(matches!(read(&v), Err(ModelError::Inconsistent { .. })));
}

#[test]
fn experts_may_be_limited_to_groups() {
    let grouped = |groups: u64, kept: u64| {
        let mut v = with("n_group", json!(groups));
        v["text_config"]["topk_group"] = json!(kept);
        v
    };
    assert_eq!(read(&tiny()).unwrap().moe.limit, None);
    assert_eq!(read(&grouped(3, 3)).unwrap().moe.limit, None, "all groups stay");
    let c = read(&grouped(3, 2)).unwrap();
    assert_eq!(c.moe.limit, Some(GroupLimit { groups: 3, kept: 2 }));
    let body = blocks::router(&c.moe, DType::Bf16).unwrap().graph;
    let limited = body.nodes.iter().filter(|n| n.op == Op::TopK { k: 4, limit: c.moe.limit, part: None });
    assert_eq!(limited.count(), 1);
    let text = message(&grouped(9, 1));
    assert!(text.contains("num_experts_per_tok 4 of the 2 experts in topk_group 1 of n_group 9"), "{text}");
    let text = message(&grouped(4, 1));
    assert!(text.contains("n_routed_experts 18 in n_group 4") && text.contains("divides"), "{text}");
}

#[test]
fn what_is_not_built_is_refused() {
    for (field, value) in [
        ("attention_bias", json!(true)),
        ("hidden_act", json!("gelu")),
        ("norm_topk_prob", json!(false)),
        ("qk_rope_head_dim", json!(64)),
        ("scoring_func", json!("softmax")),
        ("tie_word_embeddings", json!(true)),
        ("mhc", json!(false)),
        ("indexer_types", json!(["full", "full", "full", "shared", "full"])),
        ("model_type", json!("llama")),
        ("quantization_config", json!({"bits": 4})),
    ] {
        let read = read(&with(field, value));
        assert!(matches!(read, Err(ModelError::Unsupported { .. })), "{field}: {read:?}");
    }
    let mut v = tiny();
    v["text_config"]["linear_attn_config"]["gate_lower_bound"] = Value::Null;
    assert!(message(&v).contains("softplus"));
}

#[test]
fn options_are_checked() {
    let c = config("glm5_next_tiny/config.json");
    let bad = [
        BuildOptions { layers: Some(vec![3..=5]), ..Default::default() },
        BuildOptions { layers: Some(vec![]), ..Default::default() },
        BuildOptions { layers: Some(vec![2..=3, 3..=4]), ..Default::default() },
        BuildOptions { layers: Some(vec![3..=4]), aux: vec![0], ..Default::default() },
        BuildOptions { expert_slots: Some(0), ..Default::default() },
        BuildOptions { expert_slots: Some(19), ..Default::default() },
    ];
    for options in bad {
        assert!(matches!(trunk(&c, &options), Err(ModelError::Options { .. })), "{options:?}");
    }
}

/// Any JSON, small.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        prop_oneof![Just(1u64), Just(2), Just(1 << 31), Just(1 << 63), 0u64..5000].prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z_]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-z_]{1,8}", inner), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

    /// One to three fields replaced: an error, or a config whose trunk builds or is refused.
    #[test]
    fn mutated_configs_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any_json()), 1..4)) {
        let mut v = tiny();
        let names: Vec<String> = v["text_config"].as_object().unwrap().keys().cloned().collect();
        for (at, value) in changes {
            v["text_config"][at.get(&names).as_str()] = value;
        }
        if let Ok(c) = read(&v) {
            let _ = trunk(&c, &BuildOptions::default());
        }
    }

    /// Broken text.
    #[test]
    fn cut_and_scratched_text_never_panics(cut in 0usize..2900, at in 0usize..2900, byte in any::<u8>()) {
        let text = tiny().to_string();
        let mut bytes = text.into_bytes();
        if at < bytes.len() { bytes[at] = byte; }
        bytes.truncate(bytes.len().saturating_sub(cut / 10));
        let _ = Config::from_json(&String::from_utf8_lossy(&bytes), &FieldPolicy::default());
    }
}
