//! Names: which checkpoint tensors stand behind a body's weight roles (specification section 11).

use unglue_ir::module::{Source, SourceSlice, WeightDecl};
use unglue_ir::types::{DType, Format, Packing, TensorType};

use crate::assembly::Link;

use super::config::Config;

/// What precedes the names of the text trunk.
pub const PREFIX: &str = "model.language_model.";
/// The vision part.
pub const VISION: &str = "model.visual.";

/// Roles that are one tensor of a layer, and its name below the layer.
const PLAIN: &[(&str, &str)] = &[
    ("hc_attn_fn", "hc_attn_fn"),
    ("hc_attn_base", "hc_attn_base"),
    ("hc_attn_scale", "hc_attn_scale"),
    ("hc_ffn_fn", "hc_ffn_fn"),
    ("hc_ffn_base", "hc_ffn_base"),
    ("hc_ffn_scale", "hc_ffn_scale"),
    ("attn_norm", "input_layernorm.weight"),
    ("ffn_norm", "post_attention_layernorm.weight"),
    ("b_proj", "self_attn.b_proj.weight"),
    ("f_a_proj", "self_attn.f_a_proj.weight"),
    ("f_b_proj", "self_attn.f_b_proj.weight"),
    ("g_a_proj", "self_attn.g_a_proj.weight"),
    ("g_b_proj", "self_attn.g_b_proj.weight"),
    ("a_log", "self_attn.A_log"),
    ("dt_bias", "self_attn.dt_bias"),
    ("o_norm", "self_attn.o_norm.weight"),
    ("o_proj", "self_attn.o_proj.weight"),
    ("q_a_proj", "self_attn.q_a_proj.weight"),
    ("q_a_norm", "self_attn.q_a_layernorm.weight"),
    ("q_b_proj", "self_attn.q_b_proj.weight"),
    ("kv_a_proj", "self_attn.kv_a_proj_with_mqa.weight"),
    ("kv_a_norm", "self_attn.kv_a_layernorm.weight"),
    ("index_q", "self_attn.indexer.wq_b.weight"),
    ("index_k", "self_attn.indexer.wk.weight"),
    ("index_weights", "self_attn.indexer.weights_proj.weight"),
    ("index_k_norm", "self_attn.indexer.k_norm.weight"),
    ("index_k_bias", "self_attn.indexer.k_norm.bias"),
    ("index_ape", "self_attn.indexer.index_kpool_compress_ape"),
    ("index_gate", "self_attn.indexer.index_kpool_compress_gate"),
    ("gate_proj", "mlp.gate_proj.weight"),
    ("up_proj", "mlp.up_proj.weight"),
    ("down_proj", "mlp.down_proj.weight"),
    ("router", "mlp.gate.weight"),
    ("router_bias", "mlp.gate.e_score_correction_bias"),
    ("shared_gate", "mlp.shared_experts.gate_proj.weight"),
    ("shared_up", "mlp.shared_experts.up_proj.weight"),
    ("shared_down", "mlp.shared_experts.down_proj.weight"),
];

/// Roles outside the layers.
const ENDS: &[(&str, &str)] = &[
    ("embed_tokens", "model.language_model.embed_tokens.weight"),
    ("final_norm", "model.language_model.norm.weight"),
    ("lm_head", "lm_head.weight"),
];

/// Roles of one linear of all experts.
const EXPERTS: &[(&str, &str)] =
    &[("expert_gate", "gate_proj"), ("expert_up", "up_proj"), ("expert_down", "down_proj")];

/// How one call of a body is linked.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    pub config: &'a Config,
    pub layer: Option<u32>,
}

impl Link for Names<'_> {
    fn layer(&self) -> Option<u32> {
        self.layer
    }

    fn weight(&self, role: &str, ty: &TensorType) -> Option<WeightDecl> {
        if let Some((_, tensor)) = ENDS.iter().find(|(r, _)| *r == role) {
            let sources = vec![whole((*tensor).into(), ty.dtype()?, &extents(ty)?)];
            return Some(WeightDecl { name: role.into(), ty: ty.clone(), sources });
        }
        layer_weight(self.config, self.layer?, role, ty)
    }

    fn input(&self, role: &str) -> String {
        match (role, self.layer) {
            ("slots" | "indexer_ids", Some(layer)) => format!("layer{layer}.{role}"),
            _ => role.into(),
        }
    }
}

/// The weight behind a role of a layer.
pub fn layer_weight(config: &Config, layer: u32, role: &str, ty: &TensorType) -> Option<WeightDecl> {
    let below = format!("{PREFIX}layers.{layer}.");
    let sources = if let Some((_, tensor)) = PLAIN.iter().find(|(r, _)| *r == role) {
        vec![whole(format!("{below}{tensor}"), ty.dtype()?, &extents(ty)?)]
    } else if let Some((_, linear)) = EXPERTS.iter().find(|(r, _)| *r == role) {
        experts(&below, linear, ty)?
    } else {
        match role {
            "qkv_proj" => projections(config, &below, ty.dtype()?),
            "conv1d" => convolutions(config, &below, ty.dtype()?),
            "w_uk" => vec![latent_part(config, &below, ty.dtype()?, 0, config.mla.key_dim)],
            "w_uv" => vec![latent_part(config, &below, ty.dtype()?, config.mla.key_dim, config.mla.value_dim)],
            _ => return None,
        }
    };
    Some(WeightDecl { name: format!("layer{layer}.{role}"), ty: ty.clone(), sources })
}

fn extents(ty: &TensorType) -> Option<Vec<u64>> {
    ty.shape.iter().map(|d| d.fixed()).collect()
}

fn whole(tensor: String, dtype: DType, shape: &[u64]) -> Source {
    Source { tensor, dtype, shape: shape.to_vec(), view: shape.to_vec(), slice: None }
}

/// One `[N, K]` tensor per stacked expert; of int4 experts the words, then the scales.
fn experts(below: &str, linear: &str, ty: &TensorType) -> Option<Vec<Source>> {
    let shape = extents(ty)?;
    let [slots, n, k] = *shape.as_slice() else { return None };
    let all = |ending: &str, dtype: DType, matrix: [u64; 2]| -> Vec<Source> {
        let tensor = |e: u64| format!("{below}mlp.experts.{e}.{linear}.{ending}");
        (0..slots).map(|e| whole(tensor(e), dtype, &matrix)).collect()
    };
    let Format::Int4 { group, packing, scales } = ty.format else {
        return Some(all("weight", ty.dtype()?, [n, k]));
    };
    let (words, groups, scales) = (k / 8, k / u64::from(group).max(1), scales.dtype());
    let [words, scales] = match packing {
        Packing::GptqColumns => [all("qweight", DType::I32, [words, n]), all("scales", scales, [groups, n])],
        Packing::Rows => [all("weight_packed", DType::I32, [n, words]), all("weight_scale", scales, [n, groups])],
    };
    Some([words, scales].concat())
}

/// The three `[HK, D]` projections as one `[3HK, D]`: their rows are the channels of the convolution.
fn projections(config: &Config, below: &str, dtype: DType) -> Vec<Source> {
    let shape = [config.kda.inner(), config.kda.width];
    ["q", "k", "v"].map(|x| whole(format!("{below}self_attn.{x}_proj.weight"), dtype, &shape)).into()
}

/// The three `[HK, 1, W]` convolutions as one `[3HK, W]`.
fn convolutions(config: &Config, below: &str, dtype: DType) -> Vec<Source> {
    let (inner, taps) = (config.kda.inner(), config.kda.taps);
    let one = |x: &str| Source {
        tensor: format!("{below}self_attn.{x}_conv1d.weight"),
        dtype,
        shape: vec![inner, 1, taps],
        view: vec![inner, taps],
        slice: None,
    };
    ["q", "k", "v"].map(one).into()
}

/// Key or value rows of `kv_b_proj`: per head d_n key rows, then d_v value rows.
fn latent_part(config: &Config, below: &str, dtype: DType, start: u64, len: u64) -> Source {
    let c = &config.mla;
    let both = c.key_dim + c.value_dim;
    Source {
        tensor: format!("{below}self_attn.kv_b_proj.weight"),
        dtype,
        shape: vec![c.heads * both, c.rank],
        view: vec![c.heads, both, c.rank],
        slice: Some(SourceSlice { axis: 1, start, len }),
    }
}
