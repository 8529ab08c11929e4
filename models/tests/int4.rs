//! The tiny trunk with routed experts in int4: golden values, both packings, and what is refused.
// Helpers of a test crate are tests too; clippy sees only the functions marked so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;

use common::{Case, Errors, Golden, Rows, Tiny, config, golden};
use serde_json::{Value, json};
use unglue_ir::interp::{Batch, WeightRef};
use unglue_models::checkpoint::Checkpoint;
use unglue_models::config::FieldPolicy;
use unglue_models::glm5_next::{BuildOptions, Config, trunk};
use unglue_models::safetensors::{SafeTensors, Stored, TensorOut, write};
use unglue_models::{Activation, Trunk};

const FOLDER: &str = "glm5_next_tiny_w4a16";
const EXPERT: &str = "model.language_model.layers.3.mlp.experts.5.up_proj";

fn tiny(dtype: Activation) -> Tiny {
    Tiny::in_folder(FOLDER, config(&format!("{FOLDER}/config.json")), dtype, vec![1, 3])
}

fn run(tiny: &Tiny, case: &Case) -> Rows {
    let (mut states, mut rows) = (tiny.states(2), Rows::default());
    for (a, b) in case.steps(16) {
        let batch = Batch::new(&[(1, a, b - a)], tiny.config.mla.index.pool as usize);
        let wanted: Vec<i32> = (0..(b - a) as i32).collect();
        rows.push(tiny.step(&case.ids[a..b], &batch, &mut states, &wanted));
    }
    rows
}

#[test]
fn values_are_the_golden_ones() {
    let (tiny, g) = (tiny(Activation::F32), Golden::open(&format!("{FOLDER}/expected.safetensors")));
    let case = tiny.case("long");
    let rows = run(&tiny, &case);
    let mut errors = Errors::default();
    let mut names: Vec<String> = (0..5).map(|i| format!("layer{i}.streams")).collect();
    names.extend(["layer3.mlp_out", "layer4.mlp_out", "final_hidden", "logits"].map(String::from));
    for name in &names {
        errors.check(name, name, &rows.floats(name), &g.floats(&format!("long.fp32.{name}")), 1e-5);
    }
    errors.print("fp32 int4 long");
}

#[test]
fn greedy_ids_are_the_golden_ones() {
    for dtype in [Activation::F32, Activation::Bf16] {
        let tiny = tiny(dtype);
        let (case, pool) = (tiny.case("long"), tiny.config.mla.index.pool as usize);
        let mut states = tiny.states(1);
        let (mut tokens, mut at, mut next) = (Vec::new(), 0, 0);
        for (a, b) in case.steps(16).into_iter().filter(|s| s.1 <= case.prefill) {
            let batch = Batch::new(&[(0, a, b - a)], pool);
            let out = tiny.step(&case.ids[a..b], &batch, &mut states, &[(b - a) as i32 - 1]);
            (at, next) = (b, out["argmax"].ints()[0]);
        }
        while tokens.len() < case.greedy.len() {
            tokens.push(next);
            let out = tiny.step(&[next], &Batch::new(&[(0, at, 1)], pool), &mut states, &[0]);
            (at, next) = (at + 1, out["argmax"].ints()[0]);
        }
        assert_eq!(tokens, case.greedy, "{dtype:?}");
    }
}

/// A tensor to be written: dtype, shape, bytes.
type Tensor = (Stored, Vec<u64>, Vec<u8>);

fn tensors() -> BTreeMap<String, Tensor> {
    let whole = SafeTensors::open(&golden(&format!("{FOLDER}/model.safetensors"))).unwrap();
    let read = |n: &str| whole.tensor(n).map(|t| (t.dtype, t.shape.to_vec(), t.bytes.to_vec())).unwrap();
    whole.names().map(|n| (n.to_string(), read(n))).collect()
}

fn open(tensors: &BTreeMap<String, Tensor>) -> (tempfile::TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    let list: Vec<TensorOut> =
        tensors.iter().map(|(name, (dtype, shape, bytes))| TensorOut { name, dtype: *dtype, shape, bytes }).collect();
    write(&dir.path().join("model.safetensors"), &list).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    (dir, checkpoint)
}

fn check(tensors: &BTreeMap<String, Tensor>, trunk: &Trunk) -> Result<(), String> {
    open(tensors).1.check_against(&trunk.module, &trunk.skip).map_err(|e| e.to_string())
}

fn ints(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

#[test]
fn what_the_format_does_not_say_is_refused() {
    let trunk = tiny(Activation::F32).trunk;
    let good = tensors();
    check(&good, &trunk).unwrap();
    let changed = |name: &str, value: Option<Tensor>| {
        let (mut all, name) = (good.clone(), format!("{EXPERT}.{name}"));
        match value {
            Some(t) => all.insert(name, t),
            None => all.remove(&name),
        };
        check(&all, &trunk)
    };
    let zeros = |words: Vec<u32>| Some((Stored::I32, vec![1, 16], ints(words)));
    let one_off = (0..16).map(|i| if i == 9 { 0x7777_7877 } else { 0x7777_7777 }).collect();
    let order = |f: &dyn Fn(u32) -> u32| Some((Stored::I32, vec![128], ints((0..128).map(f))));
    changed("g_idx", order(&|k| k / 128)).unwrap();
    for (name, value, words) in [
        ("qzeros", zeros(one_off), ["asymmetric", "word 9 is 0x77777877"]),
        ("qzeros", zeros(vec![0x8888_8888; 16]), ["asymmetric", "0x88888888"]),
        ("qzeros", Some((Stored::I32, vec![16], ints([0x7777_7777; 16]))), ["type", "[1, 16]"]),
        ("qzeros", None, ["names", "missing"]),
        ("g_idx", order(&|k| k % 2), ["activation order", "input 1 in group 1"]),
        ("qweight", None, ["names", "missing"]),
        ("scales", Some((Stored::Bf16, vec![1, 128], vec![0; 256])), ["type", "F16 [1, 128]"]),
    ] {
        let error = changed(name, value).unwrap_err();
        assert!(error.contains(&format!("{EXPERT}.{name}")), "{error}");
        words.iter().for_each(|w| assert!(error.contains(w), "{w}: {error}"));
    }
    // Other linears in int4 are seen, whatever the config says of them.
    let mut all = good.clone();
    let t = all[&format!("{EXPERT}.qweight")].clone();
    all.insert("model.language_model.layers.3.mlp.shared_experts.up_proj.qweight".into(), t);
    let error = check(&all, &trunk).unwrap_err();
    assert!(error.contains("shared_experts.up_proj.qweight") && error.contains("routed experts"), "{error}");
}

/// The same levels and scales as compressed-tensors stores them.
fn compressed() -> BTreeMap<String, Tensor> {
    let turned = |(dtype, shape, bytes): &Tensor| {
        let (a, b, size) = (shape[0] as usize, shape[1] as usize, dtype.bytes() as usize);
        let at = |i: usize| (i % a * b + i / a) * size;
        let bytes = (0..a * b).flat_map(|i| bytes[at(i)..at(i) + size].to_vec()).collect();
        (*dtype, vec![shape[1], shape[0]], bytes)
    };
    let bf16 = |(_, shape, bytes): Tensor| {
        let wide = bytes.as_chunks::<2>().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32());
        (Stored::Bf16, shape, wide.flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect())
    };
    let mut out = BTreeMap::new();
    for (name, t) in tensors() {
        let (base, ending) = name.rsplit_once('.').unwrap();
        match ending {
            "qweight" => {
                let (n, k) = (t.1[1], t.1[0] * 8);
                let shape = [n, k].iter().flat_map(|d| d.to_le_bytes()).collect();
                out.insert(format!("{base}.weight_shape"), (Stored::I64, vec![2], shape));
                out.insert(format!("{base}.weight_packed"), turned(&t));
            }
            "scales" => drop(out.insert(format!("{base}.weight_scale"), bf16(turned(&t)))),
            "qzeros" => {}
            _ => drop(out.insert(name, t)),
        }
    }
    out
}

fn with(object: Value) -> Value {
    let text = std::fs::read_to_string(golden(&format!("{FOLDER}/config.checkpoint_style.json"))).unwrap();
    let mut v: Value = serde_json::from_str(&text).unwrap();
    v["quantization_config"] = object;
    v
}

fn read(v: &Value) -> Result<Config, String> {
    Config::from_json(&v.to_string(), &FieldPolicy::default()).map_err(|e| e.to_string())
}

fn compressed_config() -> Value {
    let weights = json!({"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 128, "actorder": null});
    let group =
        json!({"weights": weights, "input_activations": null, "output_activations": null, "targets": ["Linear"]});
    json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": null,
    })
}

#[test]
fn compressed_tensors_hold_the_same_levels() {
    let gptq = tiny(Activation::F32);
    let config = read(&with(compressed_config())).unwrap();
    let trunk = trunk(&config, &BuildOptions::default()).unwrap();
    let all = compressed();
    let (_dir, checkpoint) = open(&all);
    checkpoint.check_against(&trunk.module, &trunk.skip).unwrap();
    let decl = |t: &Trunk| t.module.weights.iter().find(|w| w.name == "layer4.expert_down").unwrap().clone();
    let (ours, theirs) = (decl(&trunk), decl(&gptq.trunk));
    let (bytes, scales) = (checkpoint.weight(&ours).unwrap(), checkpoint.scales(&ours).unwrap());
    let rows = WeightRef::stored(ours.ty.format, &[18, 128, 128], bytes, scales).unwrap();
    // Words agree; scales lose bits from f16 to bf16.
    assert_eq!(rows.by_rows().0, gptq.weight(&theirs).unwrap().by_rows().0);
    for (name, value, word) in [
        ("weight_zero_point", (Stored::I32, vec![1, 16], vec![0; 64]), "asymmetric"),
        ("weight_g_idx", (Stored::I32, vec![128], vec![0; 512]), "activation order"),
        ("weight_shape", (Stored::I64, vec![2], [[127u8, 0, 0, 0, 0, 0, 0, 0]; 2].concat()), "[128, 128]"),
    ] {
        let mut all = all.clone();
        all.insert(format!("{EXPERT}.{name}"), value);
        let error = check(&all, &trunk).unwrap_err();
        assert!(error.contains(word) && error.contains(EXPERT), "{error}");
    }
}

#[test]
fn configs_that_are_not_read_are_named() {
    let good = json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true, "desc_act": false});
    read(&with(good.clone())).unwrap();
    assert!(
        matches!(read(&with(Value::Null)), Ok(c) if c.moe.stored == unglue_ir::types::Format::Plain(unglue_ir::types::DType::Bf16))
    );
    for (field, value) in [
        ("quant_method", json!("fp8")),
        ("bits", json!(8)),
        ("group_size", json!(-1)),
        ("group_size", json!(16)),
        ("sym", json!(false)),
        ("desc_act", json!(true)),
        ("checkpoint_format", json!("gptq_v2")),
        ("data_type", json!("mx_fp")),
    ] {
        let mut object = good.clone();
        object[field] = value.clone();
        let error = read(&with(object)).unwrap_err();
        assert!(error.contains(&format!("quantization_config.{field}")) && error.contains("supported"), "{error}");
    }
    for (path, value) in [
        ("/config_groups/group_0/weights/symmetric", json!(false)),
        ("/config_groups/group_0/weights/actorder", json!("weight")),
        ("/config_groups/group_0/weights/group_size", json!(256)),
        ("/config_groups/group_0/input_activations", json!({"num_bits": 8})),
        ("/config_groups", json!({})),
        ("/format", json!("float-quantized")),
    ] {
        let mut object = compressed_config();
        *object.pointer_mut(path).unwrap() = value;
        let error = read(&with(object)).unwrap_err();
        let field = path.replace('/', ".");
        assert!(error.contains(&format!("quantization_config{field}")) && error.contains("supported"), "{error}");
    }
    // Groups must fill the inputs of every expert's linear.
    let mut v = with(good);
    v["text_config"]["moe_intermediate_size"] = json!(160);
    assert!(read(&v).unwrap_err().contains("int4 groups"));
}
