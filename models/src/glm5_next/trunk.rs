//! The trunk as calls of bodies. A layer is two calls, attention then feed-forward; each forms the mHC maps of the streams
//! that it receives, runs its block, and leaves the next streams. `begin` makes the first ones.

use std::ops::RangeInclusive;

use unglue_ir::IrError;
use unglue_ir::graph::ValueId;
use unglue_ir::op::{Domain, Op};
use unglue_ir::types::{DType, Dim, TensorType};

use crate::assembly::{Activation, Assembly, Built, Trunk};
use crate::checkpoint::SkipRules;
use crate::error::ModelError;
use crate::maths::{Maths, V, led};

use super::config::{Attention, Config, FeedForward};
use super::dsa::{self, Selection};
use super::names::{Names, PREFIX, VISION};
use super::{feed_forward, hyper_connection as hc, kda};

/// What to build of a config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuildOptions {
    /// Checkpoint numbers of the layers to keep, ascending; embedding, final norm and head stay. `None`: all.
    pub layers: Option<Vec<RangeInclusive<u32>>>,
    pub dtype: Activation,
    /// Layers whose streams leave the step averaged, as `aux.layer<i>`.
    pub aux: Vec<u32>,
    /// Experts that the stacked weights hold (the first of the checkpoint); all if `None`.
    pub expert_slots: Option<u64>,
}

/// Which of a layer's two sites a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    Attention(Attention),
    FeedForward(FeedForward),
}

impl Site {
    /// The part of role names that tells the sites apart.
    fn tag(self) -> &'static str {
        match self {
            Site::Attention(_) => "attn",
            Site::FeedForward(_) => "ffn",
        }
    }
}

/// A body of a layer: a site and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    pub site: Site,
    /// The mean over the streams is a result.
    pub aux: bool,
}

impl Variant {
    /// Name of the body.
    pub fn name(self) -> String {
        let kind = match self.site {
            Site::Attention(Attention::Kda) => "kda",
            Site::Attention(Attention::Dsa) => "dsa",
            Site::FeedForward(FeedForward::Dense) => "dense",
            Site::FeedForward(FeedForward::Moe) => "moe",
        };
        format!("{kind}{}", if self.aux { "_aux" } else { "" })
    }
}

/// Builds the trunk of a config.
///
/// # Errors
/// Options that do not fit the config, or sizes that the IR refuses.
pub fn trunk(config: &Config, options: &BuildOptions) -> Result<Trunk, ModelError> {
    let layers = kept_layers(config, options)?;
    let config = &with_slots(config, options)?;
    let act = options.dtype.dtype();
    let mut a = Assembly::new("glm5_next");

    let body = a.body("begin", || built("begin", act, |m| begin(m, config)))?;
    let mut call = a.call(body, None, &Names { config, layer: None })?;
    for &layer in &layers {
        let kinds = config.layers[layer as usize];
        let attention = Variant { site: Site::Attention(kinds.attention), aux: false };
        let aux = options.aux.contains(&layer);
        let ffn = Variant { site: Site::FeedForward(kinds.feed_forward), aux };
        for variant in [attention, ffn] {
            let name = variant.name();
            let body = a.body(&name, || built(&name, act, |m| layer_body(m, config, variant)))?;
            call = a.call(body, Some(call), &Names { config, layer: Some(layer) })?;
            for result in ["indexer_ids", "router_ids", "router_weights"] {
                a.output(call, result, format!("layer{layer}.{result}"));
            }
        }
        a.output(call, "streams", format!("layer{layer}.streams"));
        a.output(call, "aux", format!("aux.layer{layer}"));
    }
    let body = a.body("end", || built("end", act, |m| end(m, config)))?;
    let last = a.call(body, Some(call), &Names { config, layer: None })?;
    for result in ["final_hidden", "logits", "argmax"] {
        a.output(last, result, result.into());
    }
    Ok(a.finish(skip_rules(config, &layers)))
}

fn skip_rules(config: &Config, layers: &[u32]) -> SkipRules {
    SkipRules {
        prefixes: vec![VISION.into()],
        layer_prefix: format!("{PREFIX}layers."),
        layers: layers.to_vec(),
        expert_prefix: "mlp.experts.".into(),
        experts: config.moe.slots,
        experts_of_model: config.moe.experts,
    }
}

/// The layers to build, checked.
fn kept_layers(config: &Config, options: &BuildOptions) -> Result<Vec<u32>, ModelError> {
    let n = config.layers.len() as u32;
    let Some(ranges) = &options.layers else { return check_aux((0..n).collect(), options) };
    let wrong = |found: String| ModelError::Options {
        option: "--layers",
        found,
        needed: format!("ascending ranges inside 0-{}", n.saturating_sub(1)),
    };
    let mut kept: Vec<u32> = Vec::new();
    for range in ranges {
        let after = kept.last().is_none_or(|&last| *range.start() > last);
        if range.start() > range.end() || *range.end() >= n || !after {
            return Err(wrong(format!("{}-{}", range.start(), range.end())));
        }
        kept.extend(range.clone());
    }
    if kept.is_empty() {
        return Err(wrong("no layer".into()));
    }
    check_aux(kept, options)
}

fn check_aux(kept: Vec<u32>, options: &BuildOptions) -> Result<Vec<u32>, ModelError> {
    match options.aux.iter().find(|a| !kept.contains(a)) {
        None => Ok(kept),
        Some(missing) => Err(ModelError::Options {
            option: "--aux",
            found: format!("layer {missing}"),
            needed: "layers that are built".into(),
        }),
    }
}

fn with_slots(config: &Config, options: &BuildOptions) -> Result<Config, ModelError> {
    let mut config = config.clone();
    if let Some(slots) = options.expert_slots {
        if slots == 0 || slots > config.moe.experts {
            return Err(ModelError::Options {
                option: "--expert-slots",
                found: slots.to_string(),
                needed: format!("1 to {}", config.moe.experts),
            });
        }
        config.moe.slots = slots;
    }
    Ok(config)
}

/// Builds one body.
pub(super) fn built(
    name: &str,
    act: DType,
    build: impl FnOnce(&mut Maths) -> Result<(), IrError>,
) -> Result<Built, ModelError> {
    let mut m = Maths::new(name, act);
    build(&mut m).map_err(ModelError::ir(name))?;
    Ok(m.into())
}

/// X = n copies of the token's embedding.
fn begin(m: &mut Maths, c: &Config) -> Result<(), IrError> {
    let ids = m.i32_input("ids", vec![Dim::Rows], Domain::Below(c.vocab));
    let table = m.bf16_weight("embed_tokens", &[c.vocab, c.hc.width]);
    let e = m.b.add(Op::EmbedRows, &[table, ids])?;
    let e = m.act(e)?;
    let e = m.view(e, &[1, c.hc.width])?;
    let x = m.b.add(Op::Broadcast(led(Dim::Rows, &[c.hc.streams, c.hc.width])), &[e])?;
    m.b.output("streams", x);
    Ok(())
}

/// One body of a layer: maps, collapse, norm, block, post.
fn layer_body(m: &mut Maths, c: &Config, v: Variant) -> Result<(), IrError> {
    let x = m.activation("streams", &[c.hc.streams, c.hc.width]);
    let x = site(m, c, v.site, x, Selection::Computed)?;
    m.b.output("streams", x);
    if v.aux {
        let mean = hc::mean(m, &c.hc, x)?;
        m.b.output("aux", mean);
    }
    Ok(())
}

/// One site: streams -> next streams.
pub(super) fn site(m: &mut Maths, c: &Config, site: Site, x: ValueId, selection: Selection) -> V {
    let tag = site.tag();
    let fn_weight = m.bf16_weight(&format!("hc_{tag}_fn"), &[c.hc.maps(), c.hc.flat()]);
    let (z, sq) = hc::sums(m, &c.hc, x, fn_weight)?;
    let base = m.f32_weight(&format!("hc_{tag}_base"), &[c.hc.maps()]);
    let scale = m.f32_weight(&format!("hc_{tag}_scale"), &[3]);
    let mix = hc::finish(m, &c.hc, z, sq, base, scale)?;
    let u = hc::collapse(m, &c.hc, x, mix.pre)?;
    let norm = m.bf16_weight(&format!("{tag}_norm"), &[c.hc.width]);
    let u = m.rms_norm(u, norm, c.hc.norm_eps)?;
    let y = match site {
        Site::Attention(Attention::Kda) => kda::block(m, &c.kda, u)?,
        Site::Attention(Attention::Dsa) => dsa::block(m, &c.mla, u, selection)?,
        Site::FeedForward(FeedForward::Dense) => feed_forward::mlp(m, &c.dense, u)?,
        Site::FeedForward(FeedForward::Moe) => feed_forward::moe(m, &c.moe, u)?,
    };
    let tap = if tag == "attn" { "attn" } else { "mlp" };
    for (name, value) in [("in", u), ("out", y), ("post", mix.post), ("comb", mix.comb)] {
        m.tap(&format!("{tap}_{name}"), value);
    }
    hc::post(m, &c.hc, x, y, &mix)
}

/// Mean over the streams of the wanted rows, final norm, logits and their best token.
fn end(m: &mut Maths, c: &Config) -> Result<(), IrError> {
    let x = m.activation("streams", &[c.hc.streams, c.hc.width]);
    let rows = m.b.input("logit_rows", TensorType::plain(DType::I32, vec![Dim::Logits]), Domain::RowIndex);
    let x = m.b.add(Op::GatherRows, &[x, rows])?;
    let mean = hc::mean(m, &c.hc, x)?;
    let norm = m.bf16_weight("final_norm", &[c.hc.width]);
    let hidden = m.rms_norm(mean, norm, c.hc.norm_eps)?;
    let head = m.bf16_weight("lm_head", &[c.vocab, c.hc.width]);
    let logits = m.matmul(hidden, head)?;
    let best = m.best(logits, c.vocab)?;
    let best = m.b.reshape(best, &[Dim::Logits])?;
    m.b.output("final_hidden", hidden);
    m.b.output("logits", logits);
    m.b.output("argmax", best);
    Ok(())
}
