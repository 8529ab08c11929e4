//! The config of GLM-5.3-Flash (specification section 1): its field table, and the sizes that the builders use.

use crate::config::{Field, FieldPolicy, Fields, Literal, Table};
use crate::error::ModelError;

use unglue_ir::op::GroupLimit;
use unglue_ir::types::Format;

use crate::quantisation;

use super::dsa::{IndexConfig, MlaConfig};
use super::feed_forward::{MlpConfig, MoeConfig};
use super::hyper_connection::HcConfig;
use super::kda::KdaConfig;

const TRUE: &[Literal] = &[Literal::Bool(true)];
const FALSE: &[Literal] = &[Literal::Bool(false)];
const ONE: &[Literal] = &[Literal::Int(1)];
const BF16: &[Literal] = &[Literal::Text("bfloat16")];

/// Every field of a `glm5_next` config, nested or flat, in both spellings.
pub static TABLE: Table = Table {
    opened: &["linear_attn_config", quantisation::OBJECT],
    more: &quantisation::FIELDS,
    fields: &[
        Field::used("hidden_size"),
        Field::used("num_hidden_layers"),
        Field::used("vocab_size"),
        Field::used("layer_types"),
        Field::used("mlp_layer_types"),
        Field::used("first_k_dense_replace"),
        Field::used("rms_norm_eps"),
        Field::used("hc_mult"),
        Field::used("hc_eps"),
        Field::used("hc_sinkhorn_iters"),
        Field::used("linear_num_heads"),
        Field::used("linear_head_dim"),
        Field::used("linear_conv_kernel_dim"),
        Field::used("linear_lower_bound"),
        Field::used("linear_attn_config.num_heads"),
        Field::used("linear_attn_config.head_dim"),
        Field::used("linear_attn_config.short_conv_kernel_size"),
        Field::used("linear_attn_config.gate_lower_bound"),
        Field::used("linear_attn_config.kda_layers"),
        Field::used("linear_attn_config.full_attn_layers"),
        Field::used("num_attention_heads"),
        Field::used("num_key_value_heads"),
        Field::used("q_lora_rank"),
        Field::used("kv_lora_rank"),
        Field::used("qk_nope_head_dim"),
        Field::used("qk_head_dim"),
        Field::used("v_head_dim"),
        Field::used("index_n_heads"),
        Field::used("index_head_dim"),
        Field::used("index_topk"),
        Field::used("index_kpool"),
        Field::used("index_kpool_always_select_tail"),
        Field::used("indexer_types"),
        Field::used("intermediate_size"),
        Field::used("moe_intermediate_size"),
        Field::used("n_routed_experts"),
        Field::used("num_experts_per_tok"),
        Field::used("n_shared_experts"),
        Field::used("n_group"),
        Field::used("topk_group"),
        Field::used("routed_scaling_factor"),
        Field::used("swiglu_limit"),
        Field::used("max_position_embeddings"),
        Field::equal("model_type", &[Literal::Text("glm5_next_text"), Literal::Text("glm5_next")]),
        Field::equal("dtype", BF16),
        Field::equal("torch_dtype", BF16),
        Field::equal("hidden_act", &[Literal::Text("silu")]),
        Field::equal("attention_bias", FALSE),
        Field::equal("tie_word_embeddings", FALSE),
        Field::equal("qk_rope_head_dim", &[Literal::Int(0)]),
        Field::equal("norm_topk_prob", TRUE),
        Field::equal("scoring_func", &[Literal::Text("sigmoid")]),
        Field::equal("topk_method", &[Literal::Text("noaux_tc")]),
        Field::equal("moe_router_dtype", &[Literal::Text("float32")]),
        Field::equal("moe_layer_freq", ONE),
        Field::equal("mhc", TRUE),
        Field::equal("mla_use_nope", TRUE),
        Field::equal("index_kpool_compress", TRUE),
        // Rotary leftovers: there is no rotary embedding in the text trunk.
        Field::ignored("rope_parameters"),
        Field::ignored("rope_theta"),
        Field::ignored("rope_scaling"),
        Field::ignored("indexer_rope_interleave"),
        Field::ignored("rope_interleave"),
        Field::ignored("head_dim"),
        // The MTP block is not part of the trunk.
        Field::ignored("num_nextn_predict_layers"),
        Field::ignored("index_share_for_mtp_iteration"),
        // Training, generation and the vision part.
        Field::ignored("attention_dropout"),
        Field::ignored("initializer_range"),
        Field::ignored("output_router_logits"),
        Field::ignored("router_aux_loss_coef"),
        Field::ignored("use_cache"),
        Field::ignored("bos_token_id"),
        Field::ignored("eos_token_id"),
        Field::ignored("pad_token_id"),
        Field::ignored("image_token_id"),
        Field::ignored("image_start_token_id"),
        Field::ignored("image_end_token_id"),
        Field::ignored("video_token_id"),
        Field::ignored("video_start_token_id"),
        Field::ignored("video_end_token_id"),
        Field::ignored("vision_config"),
        Field::ignored("architectures"),
        Field::ignored("auto_map"),
        Field::ignored("transformers_version"),
        Field::ignored("_name_or_path"),
    ],
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attention {
    Kda,
    Dsa,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FeedForward {
    Dense,
    Moe,
}

/// The kinds of one layer's two blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layer {
    pub attention: Attention,
    pub feed_forward: FeedForward,
}

/// A checked config.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub vocab: u64,
    pub layers: Vec<Layer>,
    pub hc: HcConfig,
    pub kda: KdaConfig,
    pub mla: MlaConfig,
    pub dense: MlpConfig,
    pub moe: MoeConfig,
    pub max_positions: u64,
}

impl Config {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// A field that is missing, unknown, of the wrong type or range, contradicting, or asks for something not built.
    pub fn from_json(text: &str, policy: &FieldPolicy) -> Result<Config, ModelError> {
        let f = Fields::read(text, &TABLE, policy)?;
        let experts = quantisation::format(&f)?.unwrap_or(quantisation::PLAIN);
        let (width, norm_eps) = (f.size(&["hidden_size"])?, epsilon(&f, "rms_norm_eps")?);
        let config = Config {
            vocab: f.size(&["vocab_size"])?,
            layers: layers(&f)?,
            hc: HcConfig {
                width,
                streams: f.integer(&["hc_mult"], 1, 32)?,
                norm_eps,
                eps: epsilon(&f, "hc_eps")?,
                iters: f.integer(&["hc_sinkhorn_iters"], 1, 1000)? as u32,
            },
            kda: kda(&f, width, norm_eps)?,
            mla: mla(&f, width, norm_eps)?,
            dense: mlp(&f, width, f.size(&["intermediate_size"])?)?,
            moe: moe(&f, width, experts)?,
            max_positions: f.size(&["max_position_embeddings"])?,
        };
        Ok(config)
    }
}

fn epsilon(f: &Fields, name: &str) -> Result<f32, ModelError> {
    f.real(&[name], 1e-30, 1.0)
}

fn kda(f: &Fields, width: u64, norm_eps: f32) -> Result<KdaConfig, ModelError> {
    const BOUND: [&str; 2] = ["linear_lower_bound", "linear_attn_config.gate_lower_bound"];
    if f.is_null(&BOUND)? {
        return Err(ModelError::Unsupported {
            what: "config field `linear_lower_bound`".into(),
            found: "null (softplus gate)".into(),
            supported: "a number (bounded gate)".into(),
        });
    }
    Ok(KdaConfig {
        width,
        heads: f.size(&["linear_num_heads", "linear_attn_config.num_heads"])?,
        dim: f.size(&["linear_head_dim", "linear_attn_config.head_dim"])?,
        taps: f.integer(&["linear_conv_kernel_dim", "linear_attn_config.short_conv_kernel_size"], 2, 32)?,
        lower_bound: f.real(&BOUND, -1e4, -1e-4)?,
        norm_eps,
    })
}

fn mla(f: &Fields, width: u64, norm_eps: f32) -> Result<MlaConfig, ModelError> {
    let heads = f.size(&["num_attention_heads"])?;
    let key_dim = f.size(&["qk_nope_head_dim"])?;
    for (name, want, why) in [
        ("num_key_value_heads", heads, "num_attention_heads: every head reads the one latent"),
        ("qk_head_dim", key_dim, "qk_nope_head_dim: there is no rotary part"),
    ] {
        if f.has(name) {
            let found = f.size(&[name])?;
            agree(found == want, "attention sizes", format!("`{name}` is {found}, not {want}"), why)?;
        }
    }
    let (topk, pool) = (f.size(&["index_topk"])?, f.integer(&["index_kpool"], 1, 32)?);
    agree(
        topk % pool == 0,
        "indexer budget",
        format!("index_topk {topk} is not a multiple of index_kpool {pool}"),
        "whole pools are selected",
    )?;
    Ok(MlaConfig {
        width,
        heads,
        q_rank: f.size(&["q_lora_rank"])?,
        rank: f.size(&["kv_lora_rank"])?,
        key_dim,
        value_dim: f.size(&["v_head_dim"])?,
        norm_eps,
        index: IndexConfig {
            heads: f.size(&["index_n_heads"])?,
            dim: f.size(&["index_head_dim"])?,
            budget: topk / pool,
            pool,
            tail: f.flag(&["index_kpool_always_select_tail"])?,
        },
    })
}

fn mlp(f: &Fields, width: u64, inner: u64) -> Result<MlpConfig, ModelError> {
    Ok(MlpConfig { width, inner, limit: f.real(&["swiglu_limit"], 1e-6, 1e30)? })
}

fn moe(f: &Fields, width: u64, stored: Format) -> Result<MoeConfig, ModelError> {
    let inner = f.size(&["moe_intermediate_size"])?;
    let experts = f.integer(&["n_routed_experts"], 1, 4096)?;
    let chosen = f.integer(&["num_experts_per_tok"], 1, 32)?;
    agree(
        chosen <= experts,
        "experts of a token",
        format!("num_experts_per_tok {chosen} of n_routed_experts {experts}"),
        "at most all",
    )?;
    let limit = group_limit(f, experts, chosen)?;
    if let Format::Int4 { group, .. } = stored {
        let whole = [width, inner].iter().all(|k| k.is_multiple_of(u64::from(group)));
        let found = format!("hidden_size {width} and moe_intermediate_size {inner} in groups of {group}");
        agree(whole, "int4 groups", found, "whole groups of inputs")?;
    }
    let shared = f.integer(&["n_shared_experts"], 1, 1024)?;
    Ok(MoeConfig {
        expert: mlp(f, width, inner)?,
        shared: mlp(f, width, inner * shared)?,
        experts,
        chosen,
        limit,
        scale: f.real(&["routed_scaling_factor"], 1e-6, 1e6)?,
        slots: experts,
        stored,
    })
}

/// Group-limited routing, unless all experts are one group or all groups stay. The fields are optional: one group then.
fn group_limit(f: &Fields, experts: u64, chosen: u64) -> Result<Option<GroupLimit>, ModelError> {
    let count = |name: &str| if f.has(name) { f.integer(&[name], 1, experts) } else { Ok(1) };
    let (groups, kept) = (count("n_group")?, count("topk_group")?);
    agree(
        experts.is_multiple_of(groups),
        "expert groups",
        format!("n_routed_experts {experts} in n_group {groups}"),
        "n_group divides n_routed_experts",
    )?;
    agree(
        kept <= groups,
        "expert groups",
        format!("topk_group {kept} of n_group {groups}"),
        "topk_group of at most n_group",
    )?;
    let open = kept * (experts / groups);
    agree(
        chosen <= open,
        "experts of a token",
        format!("num_experts_per_tok {chosen} of the {open} experts in topk_group {kept} of n_group {groups}"),
        "num_experts_per_tok <= topk_group * n_routed_experts / n_group",
    )?;
    Ok((kept < groups).then_some(GroupLimit { groups, kept }))
}

fn layers(f: &Fields) -> Result<Vec<Layer>, ModelError> {
    let n = f.integer(&["num_hidden_layers"], 1, 512)?;
    let attention = attention_kinds(f, n)?;
    let feed_forward = feed_forward_kinds(f, n)?;
    if let Some(types) = f.strings("indexer_types")? {
        length("indexer_types", types.len(), n)?;
        if let Some(other) = types.iter().find(|t| **t != "full") {
            return Err(ModelError::Unsupported {
                what: "config field `indexer_types`".into(),
                found: format!("an entry \"{other}\""),
                supported: "all \"full\"".into(),
            });
        }
    }
    let pair = |(attention, feed_forward)| Layer { attention, feed_forward };
    Ok(attention.into_iter().zip(feed_forward).map(pair).collect())
}

fn attention_kinds(f: &Fields, n: u64) -> Result<Vec<Attention>, ModelError> {
    let types = f.strings("layer_types")?.ok_or(ModelError::MissingField { field: "layer_types".into() })?;
    length("layer_types", types.len(), n)?;
    let mut kinds = Vec::new();
    for (i, name) in types.iter().enumerate() {
        kinds.push(match *name {
            "linear_attention" => Attention::Kda,
            "deepseek_sparse_attention" | "indexed_attention" | "full_attention" => Attention::Dsa,
            other => {
                return Err(ModelError::Field {
                    field: format!("layer_types[{i}]"),
                    found: format!("\"{other}\""),
                    needed: "linear_attention, deepseek_sparse_attention, indexed_attention or full_attention".into(),
                });
            }
        });
    }
    for (field, kind) in
        [("linear_attn_config.kda_layers", Attention::Kda), ("linear_attn_config.full_attn_layers", Attention::Dsa)]
    {
        let Some(listed) = f.integers(field)? else { continue };
        let want: Vec<u64> = (0..n).filter(|&i| kinds.get(i as usize) == Some(&kind)).collect();
        agree(listed == want, "layer kinds", format!("`{field}` is {listed:?}"), &format!("{want:?} by layer_types"))?;
    }
    Ok(kinds)
}

fn feed_forward_kinds(f: &Fields, n: u64) -> Result<Vec<FeedForward>, ModelError> {
    let first = f.has("first_k_dense_replace").then(|| f.integer(&["first_k_dense_replace"], 0, n)).transpose()?;
    let by_count = first.map(|k| (0..n).map(|i| if i < k { FeedForward::Dense } else { FeedForward::Moe }).collect());
    let Some(types) = f.strings("mlp_layer_types")? else {
        return by_count.ok_or(ModelError::MissingField { field: "mlp_layer_types` or `first_k_dense_replace".into() });
    };
    length("mlp_layer_types", types.len(), n)?;
    let mut kinds = Vec::new();
    for (i, name) in types.iter().enumerate() {
        kinds.push(match *name {
            "dense" => FeedForward::Dense,
            "sparse" => FeedForward::Moe,
            other => {
                return Err(ModelError::Field {
                    field: format!("mlp_layer_types[{i}]"),
                    found: format!("\"{other}\""),
                    needed: "dense or sparse".into(),
                });
            }
        });
    }
    agree(
        by_count.is_none_or(|by_count: Vec<FeedForward>| by_count == kinds),
        "feed-forward kinds",
        "`mlp_layer_types` and `first_k_dense_replace` differ".into(),
        "the same layers dense",
    )?;
    Ok(kinds)
}

fn length(field: &str, found: usize, n: u64) -> Result<(), ModelError> {
    if found as u64 == n {
        return Ok(());
    }
    Err(ModelError::Field {
        field: field.into(),
        found: format!("a list of {found}"),
        needed: format!("{n} entries, one a layer"),
    })
}

fn agree(holds: bool, rule: &'static str, found: String, needed: &str) -> Result<(), ModelError> {
    if holds { Ok(()) } else { Err(ModelError::Inconsistent { rule, found, needed: needed.into() }) }
}
