//! `quantization_config`: how a checkpoint stores what it quantises. Which linears those are, the tensors say.

use serde_json::Value;
use unglue_ir::types::{DType, Format, Packing, ScaleType};

use crate::config::{Field, Fields, describe};
use crate::error::ModelError;

/// The object in a config.
pub const OBJECT: &str = "quantization_config";

/// Fields of the object, in the table of a config; those that are used are checked by [`format`].
pub const FIELDS: [Field; 37] = [
    Field::used("quantization_config.quant_method"),
    Field::used("quantization_config.bits"),
    Field::used("quantization_config.group_size"),
    Field::used("quantization_config.sym"),
    Field::used("quantization_config.desc_act"),
    Field::used("quantization_config.act_order"),
    Field::used("quantization_config.data_type"),
    Field::used("quantization_config.packing_format"),
    Field::used("quantization_config.checkpoint_format"),
    Field::used("quantization_config.format"),
    Field::used("quantization_config.config_groups"),
    Field::used("quantization_config.kv_cache_scheme"),
    // Block fp8 is refused by its method, not by the first of its fields.
    Field::used("quantization_config.weight_block_size"),
    Field::used("quantization_config.activation_scheme"),
    Field::used("quantization_config.fmt"),
    Field::used("quantization_config.modules_to_not_convert"),
    // What is left out shows in the tensors.
    Field::ignored("quantization_config.extra_config"),
    Field::ignored("quantization_config.block_name_to_quantize"),
    Field::ignored("quantization_config.ignore"),
    Field::ignored("quantization_config.lm_head"),
    // How the quantiser worked.
    Field::ignored("quantization_config.autoround_version"),
    Field::ignored("quantization_config.iters"),
    Field::ignored("quantization_config.batch_size"),
    Field::ignored("quantization_config.seqlen"),
    Field::ignored("quantization_config.nsamples"),
    Field::ignored("quantization_config.low_gpu_mem_usage"),
    Field::ignored("quantization_config.enable_quanted_input"),
    Field::ignored("quantization_config.damp_percent"),
    Field::ignored("quantization_config.static_groups"),
    Field::ignored("quantization_config.true_sequential"),
    Field::ignored("quantization_config.model_name_or_path"),
    Field::ignored("quantization_config.model_file_base_name"),
    Field::ignored("quantization_config.meta"),
    Field::ignored("quantization_config.version"),
    Field::ignored("quantization_config.quantization_status"),
    Field::ignored("quantization_config.global_compression_ratio"),
    Field::ignored("quantization_config.sparsity_config"),
];

/// Storage of a config's quantised linears; `None` without a `quantization_config`.
///
/// # Errors
/// Anything but symmetric int4 in groups of 32, 64 or 128 inputs, in their order, packed as GPTQ or compressed-tensors do.
pub fn format(f: &Fields) -> Result<Option<Format>, ModelError> {
    if !f.names().any(|n| n.starts_with(OBJECT)) {
        return Ok(None);
    }
    let at = |field: &str| format!("{OBJECT}.{field}");
    let field = |name: &str| f.value(&at(name)).filter(|v| !v.is_null());
    let method = field("quant_method").and_then(Value::as_str);
    match method {
        Some("auto-round") => {
            is(&at("packing_format"), field("packing_format"), &["auto_round:auto_gptq".into(), "auto_gptq".into()])?;
        }
        Some("gptq") => optional(&at("checkpoint_format"), field("checkpoint_format"), "gptq".into())?,
        Some("compressed-tensors") => return compressed(&at, &field).map(Some),
        _ => {
            let known = ["auto-round".into(), "gptq".into(), "compressed-tensors".into()];
            return is(&at("quant_method"), field("quant_method"), &known).map(|()| None);
        }
    }
    is(&at("bits"), field("bits"), &[4.into()])?;
    is(&at("sym"), field("sym"), &[true.into()])?;
    for order in ["desc_act", "act_order"] {
        optional(&at(order), field(order), false.into())?;
    }
    optional(&at("data_type"), field("data_type"), "int".into())?;
    let group = group(&at("group_size"), field("group_size"))?;
    Ok(Some(Format::Int4 { group, packing: Packing::GptqColumns, scales: ScaleType::F16 }))
}

/// One group of linears, weights only.
fn compressed<'a>(
    at: &impl Fn(&str) -> String,
    field: &impl Fn(&str) -> Option<&'a Value>,
) -> Result<Format, ModelError> {
    is(&at("format"), field("format"), &["pack-quantized".into()])?;
    let groups = field("config_groups").and_then(Value::as_object);
    let only = groups.filter(|g| g.len() == 1).and_then(|g| g.iter().next());
    let Some((name, only)) = only else {
        let found = groups.map_or("no object".into(), |g| format!("{} groups", g.len()));
        return Err(unsupported(&at("config_groups"), found, "one group of linears".into()));
    };
    let place = |part: &str| at(&format!("config_groups.{name}.{part}"));
    let part = |part: &str| only.get(part).filter(|v| !v.is_null());
    for activations in ["input_activations", "output_activations"] {
        if let Some(v) = part(activations) {
            return Err(unsupported(&place(activations), describe(v), "null: weights alone are quantised".into()));
        }
    }
    let weight = |name: &str| part("weights").and_then(|w| w.get(name)).filter(|v| !v.is_null());
    let place = |name: &str| place(&format!("weights.{name}"));
    is(&place("num_bits"), weight("num_bits"), &[4.into()])?;
    is(&place("type"), weight("type"), &["int".into()])?;
    is(&place("symmetric"), weight("symmetric"), &[true.into()])?;
    is(&place("strategy"), weight("strategy"), &["group".into()])?;
    optional(&place("actorder"), weight("actorder"), false.into())?;
    let group = group(&place("group_size"), weight("group_size"))?;
    // Its scales have the dtype of the model, which is bf16.
    Ok(Format::Int4 { group, packing: Packing::Rows, scales: ScaleType::Bf16 })
}

fn unsupported(field: &str, found: String, supported: String) -> ModelError {
    ModelError::Unsupported { what: format!("config field `{field}`"), found, supported }
}

fn is(field: &str, found: Option<&Value>, allowed: &[Value]) -> Result<(), ModelError> {
    if found.is_some_and(|v| allowed.contains(v)) {
        return Ok(());
    }
    let list: Vec<String> = allowed.iter().map(Value::to_string).collect();
    Err(unsupported(field, found.map_or("absent".into(), describe), list.join(" or ")))
}

fn optional(field: &str, found: Option<&Value>, allowed: Value) -> Result<(), ModelError> {
    if found.is_none() { Ok(()) } else { is(field, found, &[allowed]) }
}

fn group(field: &str, found: Option<&Value>) -> Result<u32, ModelError> {
    is(field, found, &[32.into(), 64.into(), 128.into()])?;
    Ok(found.and_then(Value::as_u64).unwrap_or(0) as u32)
}

/// Storage of a weight that no method touches.
pub const PLAIN: Format = Format::Plain(DType::Bf16);
