//! DSA: latent attention without rotary part, declared absorbed, over the tokens that a pooled indexer selects
//! (specification section 7).

use unglue_ir::IrError;
use unglue_ir::graph::ValueId;
use unglue_ir::op::{Domain, Op};
use unglue_ir::order::Order;
use unglue_ir::types::{Dim, StateKind};

use crate::maths::{Maths, V};

/// eps of the indexer's LayerNorm: part of the model's definition.
pub const INDEX_NORM_EPS: f32 = 1e-6;

/// Sizes of the latent attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlaConfig {
    /// D.
    pub width: u64,
    /// h.
    pub heads: u64,
    /// r_q.
    pub q_rank: u64,
    /// r, the width of the cached latent.
    pub rank: u64,
    /// d_n.
    pub key_dim: u64,
    /// d_v.
    pub value_dim: u64,
    pub norm_eps: f32,
    pub index: IndexConfig,
}

/// Sizes of the indexer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IndexConfig {
    /// h_i.
    pub heads: u64,
    /// d_i.
    pub dim: u64,
    /// T_k / k_p, pools that a query may select.
    pub budget: u64,
    /// k_p, tokens of a pool.
    pub pool: u64,
    /// The unfinished pool is always selected.
    pub tail: bool,
}

impl IndexConfig {
    /// Width of a row of selected tokens.
    pub fn selected(&self) -> u64 {
        self.budget * self.pool + self.pool - 1
    }
}

/// Where the selected tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The block's own indexer; also a result, `indexer_ids`.
    Computed,
    /// The input `indexer_ids`; the indexer's state is still recorded.
    Given,
}

/// The block: normed x `[R, D]` -> out `[R, D]`, with the states `latent`, `pool_keys` and `tail` as outputs.
pub fn block(m: &mut Maths, c: &MlaConfig, x: ValueId, selection: Selection) -> V {
    let q_low = m.linear(x, "q_a_proj", c.q_rank)?;
    let q_norm = m.bf16_weight("q_a_norm", &[c.q_rank]);
    let q_low = m.rms_norm(q_low, q_norm, c.norm_eps)?;
    let q = m.linear(q_low, "q_b_proj", c.heads * c.key_dim)?;
    let q = m.view(q, &[c.heads, c.key_dim])?;

    let latent = m.linear(x, "kv_a_proj", c.rank)?;
    let kv_norm = m.bf16_weight("kv_a_norm", &[c.rank]);
    let latent = m.rms_norm(latent, kv_norm, c.norm_eps)?;
    let cache = m.act_state("latent", StateKind::Token { width: c.rank });
    let cache = m.b.add(Op::TokenWrite, &[latent, cache])?;
    m.b.output("latent", cache);

    let pools = record(m, &c.index, x)?;
    let ids = match selection {
        Selection::Computed => {
            let ids = select(m, &c.index, x, q_low, pools)?;
            m.b.output("indexer_ids", ids);
            ids
        }
        Selection::Given => given(m, &c.index),
    };
    let w_uk = m.bf16_weight("w_uk", &[c.heads, c.key_dim, c.rank]);
    let w_uv = m.bf16_weight("w_uv", &[c.heads, c.value_dim, c.rank]);
    let q = absorb(m, c, q, w_uk)?;
    let context = attend(m, c, q, cache, ids)?;
    let o = expand(m, context, w_uv)?;
    let o = m.view(o, &[c.heads * c.value_dim])?;
    m.linear(o, "o_proj", c.width)
}

/// q' = W_uk^T q per head, rounded: `[R, h, r]`.
pub fn absorb(m: &mut Maths, c: &MlaConfig, q: ValueId, w_uk: ValueId) -> V {
    let order = Order::of_strided(c.key_dim);
    let q = m.b.add(Op::BatchMatMul { transposed: true, order }, &[q, w_uk])?;
    m.act(q)
}

/// sum_s softmax(d_n^-0.5 q' . latent_s) latent_s over the selected rows, rounded: `[R, h, r]`.
pub fn attend(m: &mut Maths, c: &MlaConfig, q: ValueId, cache: ValueId, ids: ValueId) -> V {
    let context = m.b.attend(inverse_sqrt(c.key_dim), [q, cache, ids])?;
    m.act(context)
}

/// W_uv context per head, rounded: `[R, h, d_v]`.
pub fn expand(m: &mut Maths, context: ValueId, w_uv: ValueId) -> V {
    let o = m.b.add(Op::BatchMatMul { transposed: false, order: Order::Lanes }, &[context, w_uv])?;
    m.act(o)
}

fn inverse_sqrt(n: u64) -> f32 {
    (n as f64).powf(-0.5) as f32
}

/// The input `indexer_ids`.
pub fn given(m: &mut Maths, c: &IndexConfig) -> ValueId {
    m.i32_input("indexer_ids", vec![Dim::Rows, Dim::Fixed(c.selected())], Domain::Selected)
}

/// Records keys and gates of x and returns the pools with this step's finished ones.
fn record(m: &mut Maths, c: &IndexConfig, x: ValueId) -> V {
    let key = m.linear(x, "index_k", c.dim)?;
    let (w, bias) = (m.bf16_weight("index_k_norm", &[c.dim]), m.bf16_weight("index_k_bias", &[c.dim]));
    let key = m.layer_norm(key, w, bias, INDEX_NORM_EPS)?;
    let gate = m.linear(x, "index_gate", c.dim)?;
    let ape = m.bf16_weight("index_ape", &[c.pool, c.dim]);
    pools(m, c, key, gate, ape)
}

/// Pooled keys of kappa and xi `[R, d_i]`: windows from this step and the tail, weighted; writes both states.
pub fn pools(m: &mut Maths, c: &IndexConfig, key: ValueId, gate: ValueId, ape: ValueId) -> V {
    let tail = m.act_state("tail", StateKind::Tail { pool: c.pool, width: c.dim });
    let keys = m.b.add(Op::PoolWindow { part: 0 }, &[key, tail])?;
    let gates = m.b.add(Op::PoolWindow { part: 1 }, &[gate, tail])?;
    let pooled = pool(m, c, keys, gates, ape)?;
    let state = m.act_state("pool_keys", StateKind::Pool { width: c.dim, pool: c.pool });
    let state = m.b.add(Op::PoolWrite, &[pooled, state])?;
    let tail = m.b.add(Op::TailUpdate, &[key, gate, tail])?;
    m.b.output("pool_keys", state);
    m.b.output("tail", tail);
    Ok(state)
}

/// sum_j softmax_j(xi_j + ape_j) kappa_j per channel over the tokens of a pool, rounded: `[R, d_i]`.
fn pool(m: &mut Maths, c: &IndexConfig, keys: ValueId, gates: ValueId, ape: ValueId) -> V {
    let gates = m.f32(gates)?;
    let ape = m.param(ape, &[1, c.pool, c.dim])?;
    let logits = m.add(gates, ape)?;
    let weights = m.softmax(logits, 1)?;
    let keys = m.f32(keys)?;
    let weighted = m.mul(weights, keys)?;
    let sum = m.b.sum(weighted, 1)?;
    let sum = m.view(sum, &[c.dim])?;
    m.act(sum)
}

/// Tokens that the row attends to, ascending.
fn select(m: &mut Maths, c: &IndexConfig, x: ValueId, q_low: ValueId, pools: ValueId) -> V {
    let q = m.linear(q_low, "index_q", c.heads * c.dim)?;
    let q = m.view(q, &[c.heads, c.dim])?;
    let w = m.linear(x, "index_weights", c.heads)?;
    let scores = scores(m, c, q, w, pools)?;
    m.tap("indexer_scores", scores);
    best(m, c, scores)
}

/// h_i^-0.5 sum_a w_a ReLU(d_i^-0.5 q_a . K_p) `[R, P]`, -inf where a pool is not complete.
pub fn scores(m: &mut Maths, c: &IndexConfig, q: ValueId, w: ValueId, pools: ValueId) -> Result<ValueId, IrError> {
    let op = Op::IndexScores {
        dot_scale: inverse_sqrt(c.dim).to_bits(),
        head_scale: inverse_sqrt(c.heads).to_bits(),
        order: Order::Strided(8),
    };
    m.b.add(op, &[q, w, pools])
}

/// Tokens of the best pools and of the unfinished one.
pub fn best(m: &mut Maths, c: &IndexConfig, scores: ValueId) -> V {
    m.b.add(Op::IndexSelect { budget: c.budget, pool: c.pool, tail: c.tail }, &[scores])
}
