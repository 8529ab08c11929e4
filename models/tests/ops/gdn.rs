//! Gated DeltaNet at real sizes against `qwen4_exp_ops`: a delta rule whose decay is one number a head, and whose key heads
//! serve three value heads each.

use crate::common::{Errors, Eval, F32, Golden, rows};
use crate::rules::generated;
use unglue_ir::IrError;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::interp::{Batch, Tensor, WeightRef};
use unglue_ir::op::{Binary, Op, Unary};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, StateKind};
use unglue_models::glm5_next::kda;
use unglue_models::maths::{Maths, V, led};

/// What the specification accepts of operators in f32.
const ACCEPT: f64 = 2e-5;
const DIM: u64 = 128;
const TAPS: u64 = 4;
const EPS: f32 = 1e-6;

/// Heads of keys and of values.
#[derive(Clone, Copy)]
struct Heads {
    keys: u64,
    values: u64,
}

const REAL: Heads = Heads { keys: 16, values: 48 };

impl Heads {
    fn channels(self) -> u64 {
        (2 * self.keys + self.values) * DIM
    }

    /// `[R, keys, n]` -> `[R, values, n]`: a key head serves neighbouring value heads.
    fn shared(self, m: &mut Maths, x: ValueId) -> V {
        let (n, each) = (m.last(x), self.values / self.keys);
        let first = m.b.shape(x)[0];
        let alone = m.view(x, &[self.keys, 1, n])?;
        let wide = m.b.add(Op::Broadcast(led(first, &[self.keys, each, n])), &[alone])?;
        m.view(wide, &[self.values, n])
    }
}

/// log1p(e^x) as the kernels have it: max(x, 0) + log1p(exp(-|x|)).
fn softplus(m: &mut Maths, x: ValueId) -> V {
    let positive = m.with(Binary::Max, x, 0.0)?;
    let size = m.b.unary(Unary::Abs, x)?;
    let down = m.b.unary(Unary::Neg, size)?;
    let small = m.exp(down)?;
    let rest = m.b.unary(Unary::Log1p, small)?;
    m.add(positive, rest)
}

/// -exp(A_log) * softplus(a + dt_bias), `[R, H]`.
fn log_decay(m: &mut Maths, a: ValueId, h: u64) -> V {
    let (a_log, bias) = (m.bf16_weight("a_log", &[h]), m.bf16_weight("dt_bias", &[h]));
    let bias = m.along_last(bias, 2)?;
    let shifted = m.add(a, bias)?;
    let soft = softplus(m, shifted)?;
    let a_log = m.along_last(a_log, 2)?;
    let rate = m.exp(a_log)?;
    let down = m.b.unary(Unary::Neg, rate)?;
    m.mul(down, soft)
}

/// The recurrence from given queries and keys `[R, Hk, K]`, values `[R, Hv, K]`, decays and betas `[R, Hv]`.
fn recurrence(m: &mut Maths, heads: Heads, [q, k, v, g, beta]: [ValueId; 5]) -> Result<(ValueId, ValueId), IrError> {
    let unit = m.l2_norm(q, EPS)?;
    let q = m.times(unit, (DIM as f32).powf(-0.5))?;
    let k = m.l2_norm(k, EPS)?;
    let (q, k) = (heads.shared(m, q)?, heads.shared(m, k)?);
    let decay = m.exp(g)?;
    let first = m.b.shape(decay)[0];
    let decay = m.view(decay, &[heads.values, 1])?;
    let decay = m.b.add(Op::Broadcast(led(first, &[heads.values, DIM])), &[decay])?;
    let beta = m.view(beta, &[heads.values, 1])?;
    let state = m.f32_state("recurrent", StateKind::Slot { shape: vec![heads.values, DIM, DIM] });
    let rule = m.b.add(Op::DeltaRule { order: Order::of_strided(DIM) }, &[q, k, v, decay, beta, state])?;
    Ok((m.project(rule, 0)?, m.project(rule, 1)?))
}

/// The block behind its input projections.
fn decode_graph() -> Result<Graph, IrError> {
    let heads = REAL;
    let (c, hv) = (heads.channels(), heads.values);
    let mut m = Maths::new("gdn_parts", F32);
    let qkv = m.activation("qkv", &[c]);
    let taps = m.bf16_weight("conv1d", &[c, TAPS]);
    let window = m.act_state("conv", StateKind::Slot { shape: vec![TAPS - 1, c] });
    let (u, window) = kda::short_conv(&mut m, qkv, taps, window)?;
    let part = |m: &mut Maths, start: u64, h: u64| {
        let x = m.part(u, start * DIM, h * DIM)?;
        m.view(x, &[h, DIM])
    };
    let q = part(&mut m, 0, heads.keys)?;
    let k = part(&mut m, heads.keys, heads.keys)?;
    let v = part(&mut m, 2 * heads.keys, hv)?;
    let (a, b) = (m.activation("a", &[hv]), m.activation("b", &[hv]));
    let g = log_decay(&mut m, a, hv)?;
    let beta = m.sigmoid(b)?;
    let (core, state) = recurrence(&mut m, heads, [q, k, v, g, beta])?;
    let w = m.bf16_weight("norm", &[DIM]);
    let normed = m.rms_norm_f32(core, w, EPS)?;
    let z = m.activation("z", &[hv * DIM]);
    let gate = m.sigmoid(z)?;
    let gate = m.view(gate, &[hv, DIM])?;
    let y = m.mul(normed, gate)?;
    for (name, value) in
        [("u", u), ("g", g), ("beta", beta), ("core", core), ("y", y), ("conv", window), ("recurrent", state)]
    {
        m.b.output(name, value);
    }
    Ok(m.finish().0)
}

#[test]
fn gdn_decode() {
    let g = Golden::open("qwen4_exp_ops/gdn_decode.safetensors");
    let graph = decode_graph().unwrap();
    let (c, hv) = (REAL.channels(), REAL.values);
    let weight = |seed, rule, shape: &[u64]| {
        WeightRef::new(DType::Bf16, shape, generated(seed, rule, shape.iter().product())).unwrap()
    };
    let weights = [
        ("conv1d", weight(21, (0.7, 0.0), &[c, TAPS])),
        ("a_log", weight(22, (1.5, -1.0), &[hv])),
        ("dt_bias", weight(23, (1.5, -1.0), &[hv])),
        ("norm", weight(24, (0.4, 1.0), &[DIM])),
    ];
    let mut e = Eval::new(&graph, weights);
    let floats = |bytes: Vec<u8>| -> Vec<f32> {
        bytes.chunks(2).map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16)).collect()
    };
    e.states.get_mut("conv").unwrap().slots_mut()[0] = floats(generated(25, (1.7, 0.0), (TAPS - 1) * c));
    e.states.get_mut("recurrent").unwrap().slots_mut()[0] = floats(generated(26, (0.2, 0.0), hv * DIM * DIM));
    let inputs = ["qkv", "a", "b", "z"].map(|name| (name, g.tensor(name)));
    let mut errors = Errors::default();
    for t in 0..2 {
        let step = inputs.iter().map(|(name, x)| (*name, rows(x, t, t + 1))).collect();
        let out = e.run(&graph, step, &Batch::new(&[(0, 3 + t, 1)], 0));
        for name in ["u", "g", "beta", "core", "y"] {
            let want = g.floats(&format!("fp32.{name}.{t}"));
            errors.check(name, name, out[name].floats(), &want, ACCEPT);
        }
    }
    let (head, state) = ((DIM * DIM) as usize, e.state("recurrent"));
    let kept: Vec<f32> = [0, 1, 2, 47].iter().flat_map(|h| state[h * head..(h + 1) * head].to_vec()).collect();
    errors.check("state", "four heads", &kept, &g.floats("fp32.S_heads"), ACCEPT);
    let sums: Vec<f32> = state.chunks(head).map(|h| h.iter().map(|x| f64::from(*x)).sum::<f64>() as f32).collect();
    errors.check("state", "sum of each head", &sums, &g.floats("fp32.S_sum"), ACCEPT);
    errors.print("gdn decode");
}

/// 130 tokens, some of tiny queries or keys, in steps of up to 16.
#[test]
fn gdn_prefill() {
    let g = Golden::open("qwen4_exp_ops/gdn_prefill.safetensors");
    let heads = Heads { keys: 1, values: 3 };
    let mut m = Maths::new("gdn_prefill", F32);
    let of_keys = ["q", "k"].map(|name| m.activation(name, &[heads.keys, DIM]));
    let v = m.activation("v", &[heads.values, DIM]);
    let (decay, beta) = (m.activation("g", &[heads.values]), m.activation("beta", &[heads.values]));
    let (o, state) = recurrence(&mut m, heads, [of_keys[0], of_keys[1], v, decay, beta]).unwrap();
    m.b.output("o", o);
    m.b.output("recurrent", state);
    let graph = m.finish().0;
    let inputs = ["q", "k", "v", "g", "beta"].map(|name| (name, g.tensor(name)));
    let (mut e, mut o, mut at) = (Eval::new(&graph, []), Vec::new(), 0);
    for n in [1, 15, 16, 16, 16, 16, 16, 16, 16, 2] {
        let part: Vec<(&str, Tensor)> = inputs.iter().map(|(name, x)| (*name, rows(x, at, at + n))).collect();
        o.extend_from_slice(e.run(&graph, part, &Batch::new(&[(0, at, n)], 0))["o"].floats());
        at += n;
    }
    let mut errors = Errors::default();
    errors.check("o", "recurrent", &o, &g.floats("fp32.recurrent.o"), ACCEPT);
    errors.check("o", "chunked", &o, &g.floats("fp32.chunked.o"), ACCEPT);
    errors.check("state", "state", e.state("recurrent"), &g.floats("fp32.S"), ACCEPT);
    errors.print("gdn prefill");
}
