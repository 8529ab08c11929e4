//! KDA, gated linear attention with a per-channel decay (specification section 6), as a recurrence over rows.

use unglue_ir::IrError;
use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;
use unglue_ir::order::Order;
use unglue_ir::types::StateKind;

use crate::maths::{Maths, V};

/// eps of the l2 norms of q and k: part of the model's definition, not of its config.
pub const L2_EPS: f32 = 1e-6;

/// Sizes and constants of the block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KdaConfig {
    /// D, width of the block's input and output.
    pub width: u64,
    /// H.
    pub heads: u64,
    /// K = V, key and value width of a head.
    pub dim: u64,
    /// W, taps of the short convolution.
    pub taps: u64,
    /// lambda, the scale of the bounded decay gate.
    pub lower_bound: f32,
    pub norm_eps: f32,
}

impl KdaConfig {
    /// HK.
    pub fn inner(&self) -> u64 {
        self.heads * self.dim
    }
}

/// The block: normed x `[R, D]` -> out `[R, D]`, with the states `conv` and `recurrent` as outputs.
pub fn block(m: &mut Maths, c: &KdaConfig, x: ValueId) -> V {
    let (h, k, inner) = (c.heads, c.dim, c.inner());
    let p = m.linear(x, "qkv_proj", 3 * inner)?;
    let b = m.linear(x, "b_proj", h)?;
    let f_a = m.linear(x, "f_a_proj", k)?;
    let g_a = m.linear(x, "g_a_proj", k)?;

    let taps = m.bf16_weight("conv1d", &[3 * inner, c.taps]);
    let conv = m.act_state("conv", StateKind::Slot { shape: vec![c.taps - 1, 3 * inner] });
    let (mixed, window) = short_conv(m, p, taps, conv)?;
    m.b.output("conv", window);
    let [q, key, v] = heads(m, c, mixed)?;
    let (q, key) = (query(m, c, q)?, m.l2_norm(key, L2_EPS)?);
    let v = m.f32(v)?;

    let f = m.linear(f_a, "f_b_proj", inner)?;
    let dt_bias = m.f32_weight("dt_bias", &[inner]);
    let a_log = m.f32_weight("a_log", &[h]);
    let g = log_decay(m, c, f, dt_bias, a_log)?;
    let decay = m.exp(g)?;
    let beta = beta(m, b)?;

    let state = m.f32_state("recurrent", StateKind::Slot { shape: vec![h, k, k] });
    let (o, state) = recurrence(m, c, [q, key, v, decay, beta], state)?;
    m.b.output("recurrent", state);
    let o = m.act(o)?;

    let gate = m.linear(g_a, "g_b_proj", inner)?;
    let o_norm = m.bf16_weight("o_norm", &[k]);
    let y = gated_norm(m, c, o, gate, o_norm)?;
    let y = m.view(y, &[inner])?;
    m.linear(y, "o_proj", c.width)
}

/// SiLU of the causal depthwise convolution of p `[R, 3HK]`, rounded, and the next window.
pub fn short_conv(m: &mut Maths, p: ValueId, taps: ValueId, window: ValueId) -> Result<(ValueId, ValueId), IrError> {
    let a = m.b.add(Op::CausalConv, &[p, taps, window])?;
    let c = m.silu(a)?;
    let c = m.act(c)?;
    let next = m.b.add(Op::ConvUpdate, &[p, window])?;
    Ok((c, next))
}

/// q, k and v as `[R, H, K]`.
pub fn heads(m: &mut Maths, c: &KdaConfig, mixed: ValueId) -> Result<[ValueId; 3], IrError> {
    let mut parts = [mixed; 3];
    for (i, part) in parts.iter_mut().enumerate() {
        let flat = m.part(mixed, i as u64 * c.inner(), c.inner())?;
        *part = m.view(flat, &[c.heads, c.dim])?;
    }
    Ok(parts)
}

/// l2norm(q) * K^-0.5.
pub fn query(m: &mut Maths, c: &KdaConfig, q: ValueId) -> V {
    let unit = m.l2_norm(q, L2_EPS)?;
    m.times(unit, (c.dim as f64).powf(-0.5) as f32)
}

/// g = lambda * sigmoid(exp(A_log) * (f + dt_bias)) as `[R, H, K]`, f32.
pub fn log_decay(m: &mut Maths, c: &KdaConfig, f: ValueId, dt_bias: ValueId, a_log: ValueId) -> V {
    let f = m.f32(f)?;
    let dt_bias = m.along_last(dt_bias, 2)?;
    let s = m.add(f, dt_bias)?;
    let s = m.view(s, &[c.heads, c.dim])?;
    let a = m.exp(a_log)?;
    let a = m.param(a, &[1, c.heads, 1])?;
    let scaled = m.mul(s, a)?;
    let gate = m.sigmoid(scaled)?;
    m.times(gate, c.lower_bound)
}

/// sigmoid(b) as `[R, H, 1]`, f32.
pub fn beta(m: &mut Maths, b: ValueId) -> V {
    let b = m.f32(b)?;
    let beta = m.sigmoid(b)?;
    let h = m.last(beta);
    m.view(beta, &[h, 1])
}

/// The delta rule over (q, k, v, decay, beta): o `[R, H, V]` in f32, and the next state.
pub fn recurrence(
    m: &mut Maths,
    c: &KdaConfig,
    args: [ValueId; 5],
    state: ValueId,
) -> Result<(ValueId, ValueId), IrError> {
    let [q, k, v, decay, beta] = args;
    let order = Order::of_strided(c.dim);
    let both = m.b.add(Op::DeltaRule { order }, &[q, k, v, decay, beta, state])?;
    Ok((m.project(both, 0)?, m.project(both, 1)?))
}

/// o * rsqrt(mean_K(o^2) + eps) * w * sigmoid(gate) per head, rounded: `[R, H, K]`.
pub fn gated_norm(m: &mut Maths, c: &KdaConfig, o: ValueId, gate: ValueId, w: ValueId) -> V {
    let normed = m.rms_norm_f32(o, w, c.norm_eps)?;
    let gate = m.f32(gate)?;
    let gate = m.view(gate, &[c.heads, c.dim])?;
    let gate = m.sigmoid(gate)?;
    let y = m.mul(normed, gate)?;
    m.act(y)
}
