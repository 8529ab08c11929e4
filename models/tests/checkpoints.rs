//! Readers: what a folder may hold, and what each kind of broken file says. Mutated headers give errors, never panics.
// Helpers of a test crate are tests too; clippy sees only the functions marked so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::Path;

use common::{Tiny, golden};
use proptest::prelude::*;
use serde_json::{Value, json};
use unglue_models::checkpoint::{Checkpoint, SkipRules};
use unglue_models::safetensors::{SafeTensors, Stored, TensorOut, write};
use unglue_models::{Activation, ModelError};

fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

fn open(bytes: &[u8]) -> Result<SafeTensors, ModelError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    SafeTensors::open(&path)
}

fn out<'a>(name: &'a str, dtype: Stored, shape: &'a [u64], bytes: &'a [u8]) -> TensorOut<'a> {
    TensorOut { name, dtype, shape, bytes }
}

#[test]
fn what_is_written_reads_back_and_is_deterministic() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.safetensors"), dir.path().join("b.safetensors"));
    let tensors = [
        out("y", Stored::F32, &[2, 1], &[1, 2, 3, 4, 5, 6, 7, 8]),
        out("x", Stored::Bf16, &[3], &[9, 8, 7, 6, 5, 4]),
        out("none", Stored::I64, &[0, 4], &[]),
    ];
    write(&a, &tensors).unwrap();
    write(&b, &tensors).unwrap();
    assert_eq!(std::fs::read(&a).unwrap(), std::fs::read(&b).unwrap());
    let f = SafeTensors::open(&a).unwrap();
    assert_eq!(f.names().collect::<Vec<_>>(), ["none", "x", "y"]);
    let y = f.tensor("y").unwrap();
    assert_eq!((y.dtype, y.shape, y.bytes), (Stored::F32, &[2u64, 1][..], &[1u8, 2, 3, 4, 5, 6, 7, 8][..]));
    assert_eq!(f.tensor("none").unwrap().bytes.len(), 0);
    // Nothing else is left in the folder, and a refused write leaves nothing.
    let twice = [tensors[0], tensors[0]];
    assert!(write(&dir.path().join("c.safetensors"), &twice).is_err());
    assert!(write(&dir.path().join("d.safetensors"), &[out("x", Stored::F32, &[2], &[0; 4])]).is_err());
    assert!(write(&dir.path().join("missing/e.safetensors"), &tensors).is_err());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn broken_headers_are_named() {
    let entry = |dtype: &str, shape: &str, a: u64, b: u64| {
        format!("{{\"x\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{a},{b}]}}}}")
    };
    assert!(open(&file(&entry("F32", "[2]", 0, 8), &[0; 8])).is_ok());
    let twice = entry("F32", "[1]", 0, 4).replace('}', "")
        + "},\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
    for (bytes, word) in [
        (vec![], "header length"),
        (vec![1, 2, 3], "header length"),
        ([&(1u64 << 60).to_le_bytes()[..], b"{}"].concat(), "header length"),
        (file("[]", &[]), "header"),
        (file("{", &[]), "header"),
        (file("\u{1}", &[]), "header"),
        (file("{\"x\":3}", &[]), "entry"),
        (file(&entry("F31", "[2]", 0, 8), &[0; 8]), "dtype"),
        (file(&entry("F32", "[2]", 0, 8), &[0; 7]), "offsets"),
        (file(&entry("F32", "[2]", 8, 0), &[0; 8]), "offsets"),
        (file(&entry("F32", "[2]", 0, 4), &[0; 8]), "size"),
        (file(&entry("F32", "[4294967296,4294967296,4]", 0, 8), &[0; 8]), "size"),
        (file(&entry("F32", "[-1]", 0, 8), &[0; 8]), "entry"),
        (file(&entry("F32", "[1.5]", 0, 8), &[0; 8]), "entry"),
        (file(&entry("F32", "[1]", 0, u64::MAX), &[0; 8]), "offsets"),
        (file(&entry("F32", &format!("{:?}", vec![1; 17]), 0, 4), &[0; 8]), "shape"),
        (file(&twice, &[0; 8]), "twice"),
        (
            file(
                "{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\
                 \"y\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
                &[0; 8],
            ),
            "shared with",
        ),
    ] {
        let error = open(&bytes).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("model.safetensors"), "{word}: {error}");
    }
}

#[test]
fn a_folder_must_hold_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("model.safetensors.index.json"), "{error}");
    assert!(Checkpoint::open(Path::new("/nowhere")).is_err());
}

/// The tiny checkpoint in two shards; `edit` changes the index.
fn shards(edit: impl FnOnce(&mut Value)) -> (tempfile::TempDir, Result<Checkpoint, ModelError>) {
    let whole = SafeTensors::open(&golden("glm5_next_tiny/model.safetensors")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<&str> = whole.names().collect();
    let mut index = json!({"metadata": {}, "weight_map": {}});
    for (i, part) in names.chunks(names.len().div_ceil(2)).enumerate() {
        let shard = format!("model-{i}.safetensors");
        let tensors: Vec<TensorOut> = part
            .iter()
            .map(|n| whole.tensor(n).map(|t| out(n, t.dtype, t.shape, t.bytes)).unwrap())
            // A stale duplicate in the other shard, as in the int4 release: only the index counts.
            .chain((i == 1).then(|| out("lm_head.weight", Stored::F32, &[1], &[0; 4])))
            .collect();
        write(&dir.path().join(&shard), &tensors).unwrap();
        part.iter().for_each(|n| index["weight_map"][*n] = json!(shard));
    }
    edit(&mut index);
    std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    let opened = Checkpoint::open(dir.path());
    (dir, opened)
}

#[test]
fn shards_read_as_the_single_file_does() {
    let tiny = Tiny::new(Activation::Bf16);
    let (_dir, sharded) = shards(|_| {});
    let sharded = sharded.unwrap();
    sharded.check_against(&tiny.trunk.module, &tiny.trunk.skip).unwrap();
    for decl in &tiny.trunk.module.weights {
        assert!(sharded.weight(decl).unwrap() == tiny.checkpoint.weight(decl).unwrap(), "{}", decl.name);
    }
}

#[test]
fn broken_indexes_are_named() {
    for (edit, word) in [
        (Box::new(|v: &mut Value| *v = json!([])) as Box<dyn FnOnce(&mut Value)>, "weight_map"),
        (Box::new(|v| v["weight_map"]["lm_head.weight"] = json!(3)), "lm_head.weight"),
        (Box::new(|v| v["weight_map"]["lm_head.weight"] = json!("../model.safetensors")), "beside the index"),
        (Box::new(|v| v["weight_map"]["lm_head.weight"] = json!("other.safetensors")), "other.safetensors"),
        (Box::new(|v| v["weight_map"]["extra"] = json!("model-0.safetensors")), "extra"),
    ] {
        let error = shards(edit).1.unwrap_err().to_string();
        assert!(error.contains(word), "{word}: {error}");
    }
}

/// The tiny checkpoint with some tensors changed.
fn changed(edit: impl Fn(&str, &mut Vec<(String, Stored, Vec<u64>, Vec<u8>)>)) -> String {
    let tiny = Tiny::new(Activation::Bf16);
    let whole = SafeTensors::open(&golden("glm5_next_tiny/model.safetensors")).unwrap();
    let mut all = Vec::new();
    for name in whole.names() {
        let t = whole.tensor(name).unwrap();
        all.push((name.to_string(), t.dtype, t.shape.to_vec(), t.bytes.to_vec()));
        edit(name, &mut all);
    }
    let dir = tempfile::tempdir().unwrap();
    let tensors: Vec<TensorOut> = all.iter().map(|(n, d, s, b)| out(n, *d, s, b)).collect();
    write(&dir.path().join("model.safetensors"), &tensors).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let checked = checkpoint.check_against(&tiny.trunk.module, &tiny.trunk.skip);
    checked.map_or_else(|e| e.to_string(), |()| "fits".into())
}

#[test]
fn tensors_that_do_not_fit_the_trunk_are_named() {
    let conv = "model.language_model.layers.0.self_attn.q_conv1d.weight";
    assert_eq!(changed(|_, _| {}), "fits");
    let missing = changed(|n, all| {
        if n == conv {
            all.pop();
        }
    });
    assert!(missing.contains(conv) && missing.contains("missing"), "{missing}");
    let reshaped = changed(|n, all| {
        if n == conv {
            all.last_mut().unwrap().2 = vec![128, 4];
        }
    });
    assert!(reshaped.contains(conv) && reshaped.contains("BF16 [128, 4]; needed BF16 [128, 1, 4]"), "{reshaped}");
    let widened = changed(|n, all| {
        if n == conv {
            let last = all.last_mut().unwrap();
            (last.1, last.3) = (Stored::F32, vec![0; 4 * 128 * 4]);
        }
    });
    assert!(widened.contains(conv) && widened.contains("F32"), "{widened}");
    let add = |name: &'static str| {
        changed(move |n, all| {
            if n == "lm_head.weight" {
                all.push((name.into(), Stored::F32, vec![1], vec![0; 4]));
            }
        })
    };
    assert!(add("model.language_model.layers.4.self_attn.extra").contains("unknown to the model"));
    assert!(add("rotary.inv_freq").contains("rotary.inv_freq"));
    assert_eq!(add("model.visual.whatever"), "fits");
    assert_eq!(add("model.language_model.layers.5.eh_proj.weight"), "fits");
    assert!(add("model.language_model.layers.3.mlp.experts.0.up_proj.qweight").contains("not supported yet"));
    assert!(add("model.language_model.layers.3.mlp.gate.weight_scale_inv").contains("not supported yet"));
}

#[test]
fn skip_rules_follow_layers_and_experts() {
    let rules = SkipRules {
        prefixes: vec!["model.visual.".into()],
        layer_prefix: "model.language_model.layers.".into(),
        layers: vec![0, 3],
        expert_prefix: "mlp.experts.".into(),
        experts: 12,
        experts_of_model: 288,
    };
    for (name, skipped) in [
        ("model.visual.x", true),
        ("model.visualx", false),
        ("model.language_model.layers.0.x", false),
        ("model.language_model.layers.1.x", true),
        ("model.language_model.layers.45.x", true),
        ("model.language_model.layers.+3.x", false),
        ("model.language_model.layers.99999999999999999999.x", false),
        ("model.language_model.layers.3.mlp.experts.11.up_proj.weight", false),
        ("model.language_model.layers.3.mlp.experts.12.up_proj.weight", true),
        ("model.language_model.layers.3.mlp.experts.288.up_proj.weight", false),
        ("lm_head.weight", false),
    ] {
        assert_eq!(rules.skips(name), skipped, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 600, ..ProptestConfig::default() })]

    /// Bytes of length and header scratched, and the file cut.
    #[test]
    fn mutated_headers_never_panic(
        scratches in prop::collection::vec((0usize..260, any::<u8>()), 0..6),
        cut in 0usize..300,
    ) {
        let header = "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},\
                      \"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]}}";
        let mut bytes = file(header, &[7; 16]);
        for (at, byte) in scratches {
            let n = bytes.len();
            bytes[at % n] = byte;
        }
        bytes.truncate(bytes.len().saturating_sub(cut / 4));
        if let Ok(f) = open(&bytes) {
            for name in f.names() {
                let t = f.tensor(name).unwrap();
                prop_assert_eq!(t.shape.iter().product::<u64>() * t.dtype.bytes(), t.bytes.len() as u64);
            }
        }
    }

    /// Headers with any numbers in them.
    #[test]
    fn any_offsets_and_shapes_never_panic(shape in prop::collection::vec(any::<u64>(), 0..4), a in any::<u64>(), b in any::<u64>()) {
        let header = json!({"x": {"dtype": "F32", "shape": shape, "data_offsets": [a, b]}}).to_string();
        let _ = open(&file(&header, &[0; 64]));
    }
}
