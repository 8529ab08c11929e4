//! Single blocks and single layers as standalone graphs, for tests and for looking at one piece.

use unglue_ir::op::Domain;
use unglue_ir::types::DType;

use crate::assembly::Built;
use crate::error::ModelError;
use crate::maths::Maths;

use super::config::{Config, Layer};
use super::dsa::{self, MlaConfig, Selection};
use super::feed_forward::{self, MlpConfig, MoeConfig};
use super::hyper_connection::{self as hc, HcConfig, Mix};
use super::kda::{self, KdaConfig};
use super::trunk::{Site, built, site};

/// `streams` -> `pre`, `post`, `comb`, `collapsed`; weights `hc_attn_fn`, `hc_attn_base`, `hc_attn_scale`.
pub fn hyper_connection_pre(c: &HcConfig, act: DType) -> Result<Built, ModelError> {
    built("hyper_connection_pre", act, |m| {
        let x = m.activation("streams", &[c.streams, c.width]);
        let fn_weight = m.bf16_weight("hc_attn_fn", &[c.maps(), c.flat()]);
        let base = m.f32_weight("hc_attn_base", &[c.maps()]);
        let scale = m.f32_weight("hc_attn_scale", &[3]);
        let (z, sq) = hc::sums(m, c, x, fn_weight)?;
        let mix = hc::finish(m, c, z, sq, base, scale)?;
        let u = hc::collapse(m, c, x, mix.pre)?;
        for (name, value) in [("pre", mix.pre), ("post", mix.post), ("comb", mix.comb), ("collapsed", u)] {
            m.b.output(name, value);
        }
        Ok(())
    })
}

/// `streams`, `y`, `post`, `comb` -> `streams`.
pub fn hyper_connection_post(c: &HcConfig, act: DType) -> Result<Built, ModelError> {
    built("hyper_connection_post", act, |m| {
        let x = m.activation("streams", &[c.streams, c.width]);
        let y = m.activation("y", &[c.width]);
        let post = m.f32_input("post", &[c.streams], Domain::Unit);
        let comb = m.f32_input("comb", &[c.streams, c.streams], Domain::Unit);
        let next = hc::post(m, c, x, y, &Mix { pre: post, post, comb })?;
        m.b.output("streams", next);
        Ok(())
    })
}

/// `logits [R, n, n]` -> `comb`.
pub fn sinkhorn(c: &HcConfig) -> Result<Built, ModelError> {
    built("sinkhorn", DType::F32, |m| {
        let logits = m.f32_input("logits", &[c.streams, c.streams], Domain::Normal);
        let comb = hc::sinkhorn(m, c, logits)?;
        m.b.output("comb", comb);
        Ok(())
    })
}

/// `x [R, D]` -> `y`, states `conv` and `recurrent`.
pub fn kda(c: &KdaConfig, act: DType) -> Result<Built, ModelError> {
    block("kda", act, c.width, |m, x| kda::block(m, c, x))
}

/// `x [R, D]` (and `indexer_ids` if given) -> `y`, states `latent`, `pool_keys`, `tail`.
pub fn dsa(c: &MlaConfig, act: DType, selection: Selection) -> Result<Built, ModelError> {
    block("dsa", act, c.width, |m, x| dsa::block(m, c, x, selection))
}

/// `x [R, D]` -> `y`.
pub fn mlp(c: &MlpConfig, act: DType) -> Result<Built, ModelError> {
    block("mlp", act, c.width, |m, x| feed_forward::mlp(m, c, x))
}

/// `x [R, D]`, `slots [E]` -> `y`, `router_ids`, `router_weights`.
pub fn moe(c: &MoeConfig, act: DType) -> Result<Built, ModelError> {
    block("moe", act, c.expert.width, |m, x| feed_forward::moe(m, c, x))
}

/// `x [R, D]` -> `logits`, `ids`, `weights`.
pub fn router(c: &MoeConfig, act: DType) -> Result<Built, ModelError> {
    built("router", act, |m| {
        let x = m.activation("x", &[c.expert.width]);
        let route = feed_forward::route(m, c, x)?;
        for (name, value) in [("logits", route.logits), ("ids", route.ids), ("weights", route.weights)] {
            m.b.output(name, value);
        }
        Ok(())
    })
}

/// `x [R, n]` -> `rms`, `layer`, `l2`; weights `w`, `b`.
pub fn norms(n: u64, act: DType, rms_eps: f32, layer_eps: f32, l2_eps: f32) -> Result<Built, ModelError> {
    built("norms", act, |m| {
        let x = m.activation("x", &[n]);
        let (w, b) = (m.bf16_weight("w", &[n]), m.bf16_weight("b", &[n]));
        let rms = m.rms_norm(x, w, rms_eps)?;
        let layer = m.layer_norm(x, w, b, layer_eps)?;
        let l2 = m.l2_norm(x, l2_eps)?;
        for (name, value) in [("rms", rms), ("layer", layer), ("l2", l2)] {
            m.b.output(name, value);
        }
        Ok(())
    })
}

/// A whole layer: `streams` (and `indexer_ids` if given, `slots` if sparse) -> `streams`, states and selections.
pub fn layer(c: &Config, kinds: Layer, act: DType, selection: Selection) -> Result<Built, ModelError> {
    built("layer", act, |m| {
        let mut x = m.activation("streams", &[c.hc.streams, c.hc.width]);
        for kind in [Site::Attention(kinds.attention), Site::FeedForward(kinds.feed_forward)] {
            x = site(m, c, kind, x, selection)?;
        }
        m.b.output("streams", x);
        Ok(())
    })
}

fn block(
    name: &str,
    act: DType,
    width: u64,
    body: impl FnOnce(&mut Maths, unglue_ir::graph::ValueId) -> crate::maths::V,
) -> Result<Built, ModelError> {
    built(name, act, |m| {
        let x = m.activation("x", &[width]);
        let y = body(m, x)?;
        m.b.output("y", y);
        Ok(())
    })
}
