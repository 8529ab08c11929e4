//! Feed-forward blocks (specification section 8): the dense SwiGLU MLP, and the mixture of experts with its router.

use unglue_ir::IrError;
use unglue_ir::graph::ValueId;
use unglue_ir::op::{Binary, Domain, GroupLimit, Op};
use unglue_ir::order::Order;
use unglue_ir::types::{Dim, Format, TensorType};

use crate::maths::{Maths, V};

/// Keeps the normalisation of router weights away from 0 / 0: part of the model's definition.
pub const ROUTER_EPS: f32 = 1e-20;

/// Sizes of a SwiGLU MLP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlpConfig {
    /// D.
    pub width: u64,
    /// F.
    pub inner: u64,
    /// c, the clamp of gate and up.
    pub limit: f32,
}

/// Sizes of the mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeConfig {
    /// One routed expert.
    pub expert: MlpConfig,
    /// The shared expert.
    pub shared: MlpConfig,
    /// E.
    pub experts: u64,
    /// k, experts of a token.
    pub chosen: u64,
    /// Groups of experts that a token is limited to.
    pub limit: Option<GroupLimit>,
    /// routed_scaling_factor.
    pub scale: f32,
    /// Experts that the stacked weights hold; `slots` maps the others to -1 or onto them.
    pub slots: u64,
    /// How the weights of the routed experts are stored.
    pub stored: Format,
}

/// Weights of the three linears of a SwiGLU MLP, by role.
pub const DENSE_ROLES: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];
pub const SHARED_ROLES: [&str; 3] = ["shared_gate", "shared_up", "shared_down"];

/// SiLU(min(g, c)) * clamp(u, -c, c), rounded.
pub fn swiglu(m: &mut Maths, gate: ValueId, up: ValueId, limit: f32) -> V {
    let (gate, up) = (m.f32(gate)?, m.f32(up)?);
    let gate = m.with(Binary::Min, gate, limit)?;
    let up = m.with(Binary::Min, up, limit)?;
    let up = m.with(Binary::Max, up, -limit)?;
    let gate = m.silu(gate)?;
    let y = m.mul(gate, up)?;
    m.act(y)
}

/// down(SwiGLU(gate x, up x)) in f32, not rounded.
pub fn mlp_f32(m: &mut Maths, c: &MlpConfig, x: ValueId, [gate, up, down]: [&str; 3]) -> V {
    let gate = m.linear(x, gate, c.inner)?;
    let up = m.linear(x, up, c.inner)?;
    let h = swiglu(m, gate, up, c.limit)?;
    let down = m.bf16_weight(down, &[c.width, c.inner]);
    m.matmul(h, down)
}

/// The dense block.
pub fn mlp(m: &mut Maths, c: &MlpConfig, x: ValueId) -> V {
    let y = mlp_f32(m, c, x, DENSE_ROLES)?;
    m.act(y)
}

/// The routed choice of a row.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// f32 `[R, E]`.
    pub logits: ValueId,
    /// i32 `[R, k]`, by falling biased score.
    pub ids: ValueId,
    /// f32 `[R, k]`, normalised and scaled.
    pub weights: ValueId,
}

/// k best of sigmoid(W x) + bias, in the best groups if they are limited; weights from the unbiased scores.
pub fn route(m: &mut Maths, c: &MoeConfig, x: ValueId) -> Result<Route, IrError> {
    let w = m.bf16_weight("router", &[c.experts, c.expert.width]);
    let logits = m.matmul(x, w)?;
    let scores = m.sigmoid(logits)?;
    let bias = m.f32_weight("router_bias", &[c.experts]);
    let bias = m.along_last(bias, 2)?;
    let biased = m.add(scores, bias)?;
    let ids = m.b.add(Op::TopK { k: c.chosen, limit: c.limit, part: None }, &[biased])?;
    let chosen = m.b.add(Op::GatherLast, &[scores, ids])?;
    let sum = m.sum_last(chosen)?;
    let sum = m.plus(sum, ROUTER_EPS)?;
    let share = m.div(chosen, sum)?;
    let weights = m.times(share, c.scale)?;
    Ok(Route { logits, ids, weights })
}

/// sum over the chosen experts of w_e MLP_e(x), f32 `[R, D]`.
pub fn routed(m: &mut Maths, c: &MoeConfig, x: ValueId, route: &Route) -> V {
    let (d, f, s) = (c.expert.width, c.expert.inner, c.slots);
    let slots = m.i32_input("slots", vec![Dim::Fixed(c.experts)], Domain::Slots(s));
    let mut weight = |role: &str, shape: [u64; 3]| {
        let shape = shape.map(Dim::Fixed).to_vec();
        m.b.weight(role, TensorType { format: c.stored, shape })
    };
    let gate = weight("expert_gate", [s, f, d]);
    let up = weight("expert_up", [s, f, d]);
    let down = weight("expert_down", [s, d, f]);

    let gate = grouped(m, x, route.ids, slots, gate)?;
    let gate = m.act(gate)?;
    let up = grouped(m, x, route.ids, slots, up)?;
    let up = m.act(up)?;
    let h = swiglu(m, gate, up, c.expert.limit)?;
    let y = grouped(m, h, route.ids, slots, down)?;

    let weights = m.view(route.weights, &[c.chosen, 1])?;
    let weighted = m.mul(y, weights)?;
    let sum = m.b.sum(weighted, 1)?;
    m.view(sum, &[d])
}

fn grouped(m: &mut Maths, x: ValueId, ids: ValueId, slots: ValueId, w: ValueId) -> V {
    let order = m.b.ty(w).tensor().map_or(Order::Lanes, Order::of_rows);
    m.b.add(Op::GroupedMatMul { order }, &[x, ids, slots, w])
}

/// The sparse block: routed experts + shared expert with one rounding; the choice is a result.
pub fn moe(m: &mut Maths, c: &MoeConfig, x: ValueId) -> V {
    let route = route(m, c, x)?;
    m.tap("router_logits", route.logits);
    let routed = routed(m, c, x, &route)?;
    let shared = mlp_f32(m, &c.shared, x, SHARED_ROLES)?;
    let y = m.add(routed, shared)?;
    m.b.output("router_ids", route.ids);
    m.b.output("router_weights", route.weights);
    m.act(y)
}
