//! The cases: single operations against `glm5_next_ops`. How graphs are run is the including test's: its
//! `common::Eval`.

use crate::common::{self, Errors, Eval, F32, Golden, rel, rows};
use unglue_ir::interp::{Batch, Data, StateData, Tensor, WeightRef};
use unglue_ir::op::{Domain, Op};
use unglue_ir::types::{DType, Dim, StateKind, TensorType};
use unglue_models::glm5_next::blocks;
use unglue_models::glm5_next::dsa::{self, IndexConfig, MlaConfig};
use unglue_models::glm5_next::feed_forward::{self, MlpConfig, MoeConfig};
use unglue_models::glm5_next::hyper_connection::HcConfig;
use unglue_models::glm5_next::kda::{self, KdaConfig};
use unglue_models::maths::Maths;

const ACCEPT: f64 = 2e-6;
const ACCEPT_LONG: f64 = 5e-6;

fn one_seq(first: usize, rows: usize, pool: usize) -> Batch {
    Batch::new(&[(0, first, rows)], pool)
}

fn mhc(file: &str, width: u64) {
    let g = Golden::open(&format!("glm5_next_ops/{file}.safetensors"));
    let c = HcConfig { width, streams: 4, norm_eps: 1e-5, eps: 1e-6, iters: 20 };
    let t = g.shape("x")[0];
    let batch = one_seq(0, t, 0);
    let mut errors = Errors::default();

    let pre = blocks::hyper_connection_pre(&c, F32).unwrap().graph;
    let weights = [
        ("hc_attn_fn", g.weight("fn", &[24, 4 * width])),
        ("hc_attn_base", g.weight("base", &[24])),
        ("hc_attn_scale", g.weight("scale", &[3])),
    ];
    let out = Eval::new(&pre, weights).run(&pre, vec![("streams", g.tensor("x"))], &batch);
    for name in ["pre", "post", "comb", "collapsed"] {
        errors.check(name, name, out[name].floats(), &g.floats(name), ACCEPT);
    }

    let post = blocks::hyper_connection_post(&c, F32).unwrap().graph;
    let inputs = vec![
        ("streams", g.tensor("x")),
        ("y", g.tensor("out")),
        ("post", out["post"].clone()),
        ("comb", out["comb"].clone()),
    ];
    let out = Eval::new(&post, []).run(&post, inputs, &batch);
    errors.check("new_streams", "new_streams", out["streams"].floats(), &g.floats("new_streams"), ACCEPT);
    errors.print(file);
}

#[test]
fn mhc_d256() {
    mhc("mhc_d256", 256);
}

#[test]
fn mhc_d4096() {
    mhc("mhc_d4096", 4096);
}

#[test]
fn sinkhorn() {
    let g = Golden::open("glm5_next_ops/sinkhorn.safetensors");
    let mut errors = Errors::default();
    for n in [4u64, 2] {
        for iters in [1, 2, 3, 20] {
            let c = HcConfig { width: 1, streams: n, norm_eps: 1e-5, eps: 1e-6, iters };
            let graph = blocks::sinkhorn(&c).unwrap().graph;
            let logits = g.tensor(&format!("logits_n{n}"));
            let batch = one_seq(0, logits.shape[0], 0);
            let out = Eval::new(&graph, []).run(&graph, vec![("logits", logits)], &batch);
            let name = format!("out_n{n}_it{iters}");
            errors.check("comb", &name, out["comb"].floats(), &g.floats(&name), ACCEPT);
        }
    }
    errors.print("sinkhorn");
}

const KDA: KdaConfig = KdaConfig { width: 256, heads: 2, dim: 128, taps: 4, lower_bound: -5.0, norm_eps: 1e-5 };

/// The inner part of the block, from raw projections.
fn kda_graph() -> unglue_ir::graph::Graph {
    let (c, inner) = (&KDA, KDA.inner());
    let mut m = Maths::new("kda_parts", F32);
    let p = m.activation("qkv", &[3 * inner]);
    let taps = m.bf16_weight("conv1d", &[3 * inner, c.taps]);
    let window = m.act_state("conv", StateKind::Slot { shape: vec![c.taps - 1, 3 * inner] });
    let (mixed, window) = kda::short_conv(&mut m, p, taps, window).unwrap();
    let [q, k, v] = kda::heads(&mut m, c, mixed).unwrap();
    let q = kda::query(&mut m, c, q).unwrap();
    let k = m.l2_norm(k, kda::L2_EPS).unwrap();
    let f = m.activation("f", &[inner]);
    let (dt_bias, a_log) = (m.f32_weight("dt_bias", &[inner]), m.f32_weight("a_log", &[c.heads]));
    let g = kda::log_decay(&mut m, c, f, dt_bias, a_log).unwrap();
    let decay = m.exp(g).unwrap();
    let b = m.activation("b", &[c.heads]);
    let beta = kda::beta(&mut m, b).unwrap();
    let state = m.f32_state("recurrent", StateKind::Slot { shape: vec![c.heads, c.dim, c.dim] });
    let (o, state) = kda::recurrence(&mut m, c, [q, k, v, decay, beta], state).unwrap();
    let z = m.activation("z", &[inner]);
    let w = m.bf16_weight("o_norm", &[c.dim]);
    let gated = kda::gated_norm(&mut m, c, o, z, w).unwrap();
    for (name, value) in [
        ("conv_out", mixed),
        ("q_norm", q),
        ("k_norm", k),
        ("log_decay", g),
        ("beta", beta),
        ("o", o),
        ("gated", gated),
        ("conv", window),
        ("recurrent", state),
    ] {
        m.b.output(name, value);
    }
    m.finish().0
}

#[test]
fn kda_steps() {
    let g = Golden::open("glm5_next_ops/kda.safetensors");
    let graph = kda_graph();
    let (t, inner) = (130, KDA.inner() as usize);
    let inputs = [
        ("qkv", g.tensor("qkv")),
        ("f", g.viewed("f", &[t, inner])),
        ("b", g.tensor("b")),
        ("z", g.viewed("z", &[t, inner])),
    ];
    let start = || {
        let weights = [
            ("conv1d", g.weight("conv_w", &[3 * KDA.inner(), 4])),
            ("dt_bias", g.weight("dt_bias", &[KDA.inner()])),
            ("a_log", g.weight("A_log", &[2])),
            ("o_norm", g.weight("o_norm_w", &[128])),
        ];
        let mut e = Eval::new(&graph, weights);
        for (name, from) in [("conv", "conv_tail"), ("recurrent", "S0")] {
            e.states.get_mut(name).unwrap().slots_mut()[0] = g.floats(from);
        }
        e
    };
    let mut errors = Errors::default();
    let mut e = start();
    let mut all: std::collections::BTreeMap<String, Vec<f32>> = Default::default();
    let mut at = 0;
    for n in [1, 7, 16, 16, 16, 16, 16, 16, 16, 10] {
        let part = inputs.iter().map(|(name, x)| (*name, rows(x, at, at + n))).collect();
        let out = e.run(&graph, part, &one_seq(3 + at, n, 0));
        out.into_iter().for_each(|(k, v)| all.entry(k).or_default().extend_from_slice(v.floats()));
        at += n;
        for (rows, name) in [(1, "S_after1"), (8, "S_after8")] {
            if at == rows {
                errors.check("S_after1_8", name, e.state("recurrent"), &g.floats(name), ACCEPT);
            }
        }
    }
    assert_eq!(at, t);
    errors.check("S_end", "S_end", e.state("recurrent"), &g.floats("S_end"), ACCEPT_LONG);
    errors.check("new_tail", "new_tail", e.state("conv"), &g.floats("new_tail"), 0.0);
    for name in ["conv_out", "q_norm", "k_norm", "log_decay", "beta"] {
        errors.check(name, name, &all[name], &g.floats(name), ACCEPT);
    }
    for name in ["o", "gated"] {
        errors.check(name, name, &all[name], &g.floats(name), ACCEPT_LONG);
    }
    errors.print("kda");

    // The same bits whatever the chunking.
    let mut whole = start();
    let out = whole.run(&graph, inputs.to_vec(), &one_seq(3, t, 0));
    assert!(out["gated"].floats() == all["gated"] && whole.state("recurrent") == e.state("recurrent"));
}

#[test]
fn router() {
    let g = Golden::open("glm5_next_ops/router.safetensors");
    let mlp = MlpConfig { width: 4096, inner: 64, limit: 10.0 };
    let stored = unglue_ir::types::Format::Plain(DType::Bf16);
    let c =
        MoeConfig { expert: mlp, shared: mlp, experts: 288, chosen: 8, limit: None, scale: 2.5, slots: 288, stored };
    let graph = blocks::router(&c, F32).unwrap().graph;
    let weights = [("router", g.weight("w", &[288, 4096])), ("router_bias", g.weight("bias", &[288]))];
    let out = Eval::new(&graph, weights).run(&graph, vec![("x", g.tensor("x"))], &one_seq(0, 6, 0));
    let (ids, weights) = common::by_expert(out["ids"].ints(), out["weights"].floats(), 8);
    assert_eq!(ids, g.ints("ids"));
    let mut errors = Errors::default();
    errors.check("logits", "logits", out["logits"].floats(), &g.floats("logits"), ACCEPT);
    errors.check("weights", "weights", &weights, &g.floats("weights"), ACCEPT);
    errors.print("router");
}

#[test]
fn swiglu() {
    let g = Golden::open("glm5_next_ops/swiglu.safetensors");
    let mut errors = Errors::default();
    for limit in [10.0f32, 2.0] {
        let mut m = Maths::new("swiglu", F32);
        let (gate, up) = (m.activation("gate", &[96]), m.activation("up", &[96]));
        let y = feed_forward::swiglu(&mut m, gate, up, limit).unwrap();
        m.b.output("y", y);
        let graph = m.finish().0;
        let name = |x: &str| format!("limit{limit}_{x}");
        let inputs = vec![("gate", g.tensor(&name("gate"))), ("up", g.tensor(&name("up")))];
        let out = Eval::new(&graph, []).run(&graph, inputs, &one_seq(0, 5, 0));
        errors.check("out", &name("out"), out["y"].floats(), &g.floats(&name("out")), ACCEPT);
    }
    errors.print("swiglu");
}

#[test]
fn indexer() {
    let g = Golden::open("glm5_next_ops/indexer.safetensors");
    let c = IndexConfig { heads: 32, dim: 128, budget: 4, pool: 4, tail: true };
    let mut m = Maths::new("indexer", F32);
    let raw = m.activation("k_raw", &[c.dim]);
    let (w, bias) = (m.bf16_weight("w", &[c.dim]), m.bf16_weight("b", &[c.dim]));
    let key = m.layer_norm(raw, w, bias, dsa::INDEX_NORM_EPS).unwrap();
    let gate = m.activation("gate", &[c.dim]);
    let ape = m.bf16_weight("ape", &[c.pool, c.dim]);
    let pools = dsa::pools(&mut m, &c, key, gate, ape).unwrap();
    let (q, hw) = (m.activation("q", &[c.heads, c.dim]), m.activation("head_w", &[c.heads]));
    let scores = dsa::scores(&mut m, &c, q, hw, pools).unwrap();
    let ids = dsa::best(&mut m, &c, scores).unwrap();
    for (name, value) in [("k", key), ("scores", scores), ("ids", ids)] {
        m.b.output(name, value);
    }
    let graph = m.finish().0;
    let weights =
        [("w", g.weight("k_norm_w", &[128])), ("b", g.weight("k_norm_b", &[128])), ("ape", g.weight("ape", &[4, 128]))];
    let mut e = Eval::new(&graph, weights);
    let (mut keys, mut all_scores, mut all_ids) = (Vec::new(), common::Rows::default(), Vec::new());
    let mut at = 0;
    // Chunks that start and end inside pools.
    for n in [1, 2, 5, 16, 3, 1, 10] {
        let part = |name: &str| rows(&g.tensor(name), at, at + n);
        let inputs =
            vec![("k_raw", part("k_raw")), ("gate", part("gate")), ("q", part("q")), ("head_w", part("head_w"))];
        let mut out = e.run(&graph, inputs, &one_seq(at, n, 4));
        keys.extend_from_slice(out["k"].floats());
        all_ids.extend_from_slice(out["ids"].ints());
        all_scores.push([("s".to_string(), out.remove("scores").unwrap())].into());
        at += n;
    }
    assert_eq!(at, 38);
    let mut errors = Errors::default();
    errors.check("k", "k", &keys, &g.floats("k"), ACCEPT);
    errors.check("pool_keys", "pool_keys", e.state("pool_keys"), &g.floats("pool_keys"), ACCEPT);
    let (ours, want) = (all_scores.padded("s", 9), g.floats("scores_masked"));
    check_scores(&mut errors, &ours, &want);
    assert_eq!(all_ids, g.ints("ids"));
    errors.print("indexer");
}

fn check_scores(errors: &mut Errors, ours: &[f32], want: &[f32]) {
    let open = |x: &[f32]| x.iter().map(|v| v.is_finite()).collect::<Vec<_>>();
    assert_eq!(open(ours), open(want));
    let finite = |x: &[f32]| x.iter().copied().filter(|v| v.is_finite()).collect::<Vec<_>>();
    errors.check("scores", "scores", &finite(ours), &finite(want), ACCEPT);
}

#[test]
fn indexer_selection_at_the_real_budget() {
    let g = Golden::open("glm5_next_ops/indexer.safetensors");
    let c = IndexConfig { heads: 32, dim: 128, budget: 512, pool: 4, tail: true };
    let mut m = Maths::new("select", F32);
    let ty = TensorType::plain(F32, vec![Dim::Rows, Dim::Pools]);
    let scores = m.b.input("scores", ty, Domain::Normal);
    let ids = dsa::best(&mut m, &c, scores).unwrap();
    m.b.output("ids", ids);
    let graph = m.finish().0;
    let seqs: Vec<(i32, usize, usize)> =
        g.ints("big_positions").iter().enumerate().map(|(i, &p)| (i as i32, p as usize, 1)).collect();
    let batch = Batch::new(&seqs, 4);
    assert_eq!(batch.pools, 700);
    let out = Eval::new(&graph, []).run(&graph, vec![("scores", g.tensor("big_scores"))], &batch);
    assert_eq!(out["ids"].ints(), g.ints("big_ids"));
}

#[test]
fn mla_decode() {
    let g = Golden::open("glm5_next_ops/mla_decode.safetensors");
    let (h, dn, dv, r, s) = (5u64, 64u64, 48u64, 96u64, 40usize);
    let index = IndexConfig { heads: 1, dim: 8, budget: 4, pool: 4, tail: true };
    let c = MlaConfig { width: 1, heads: h, q_rank: 1, rank: r, key_dim: dn, value_dim: dv, norm_eps: 1e-5, index };
    let mut m = Maths::new("mla", F32);
    let q = m.activation("q", &[h, dn]);
    let (w_uk, w_uv) = (m.bf16_weight("w_uk", &[h, dn, r]), m.bf16_weight("w_uv", &[h, dv, r]));
    let last = m.activation("last", &[r]);
    let cache = m.act_state("latent", StateKind::Token { width: r });
    let cache = m.b.add(Op::TokenWrite, &[last, cache]).unwrap();
    let ids = dsa::given(&mut m, &c.index);
    let absorbed = dsa::absorb(&mut m, &c, q, w_uk).unwrap();
    let ctx = dsa::attend(&mut m, &c, absorbed, cache, ids).unwrap();
    let o = dsa::expand(&mut m, ctx, w_uv).unwrap();
    for (name, value) in [("q_absorbed", absorbed), ("ctx", ctx), ("o", o), ("latent", cache)] {
        m.b.output(name, value);
    }
    let graph = m.finish().0;
    let kv = g.floats("kv_b");
    let part = |from: u64, n: u64| {
        let rows = (0..h).flat_map(|i| (i * (dn + dv) + from) * r..(i * (dn + dv) + from + n) * r);
        let values: Vec<f32> = rows.map(|i| kv[i as usize]).collect();
        WeightRef::from_f32(DType::Bf16, &[h, n, r], &values).unwrap()
    };
    let latent = g.tensor("latent");
    let mut e = Eval::new(&graph, [("w_uk", part(0, dn)), ("w_uv", part(dn, dv))]);
    let before = rows(&latent, 0, s - 1).floats().to_vec();
    e.states.insert("latent".into(), StateData::Token { width: r as usize, slots: vec![before] });
    let ids = Tensor::i32(&[1, 19], g.ints("ids"));
    let q = g.viewed("q", &[1, h as usize, dn as usize]);
    let inputs = vec![("q", q), ("last", rows(&latent, s - 1, s)), ("indexer_ids", ids)];
    let out = e.run(&graph, inputs, &one_seq(s - 1, 1, 0));
    let mut errors = Errors::default();
    for name in ["q_absorbed", "ctx", "o"] {
        errors.check(name, name, out[name].floats(), &g.floats(name), ACCEPT);
    }
    errors.print("mla_decode");
}

#[test]
fn norms() {
    let g = Golden::open("glm5_next_ops/norms.safetensors");
    let graph = blocks::norms(200, F32, 1e-5, dsa::INDEX_NORM_EPS, kda::L2_EPS).unwrap().graph;
    let weights = [("w", g.weight("w", &[200])), ("b", g.weight("b", &[200]))];
    let out = Eval::new(&graph, weights).run(&graph, vec![("x", g.tensor("x"))], &one_seq(0, 6, 0));
    let mut errors = Errors::default();
    for name in ["rms", "layer", "l2"] {
        let want = g.floats(name);
        errors.check(name, name, out[name].floats(), &want, ACCEPT);
        // Row by row: the rows where the epsilons matter are tiny.
        for r in 0..6 {
            let row = |x: &[f32]| x[r * 200..(r + 1) * 200].to_vec();
            let e = rel(&row(out[name].floats()), &row(&want));
            assert!(e <= ACCEPT, "{name} row {r}: {e:e}");
        }
    }
    errors.print("norms");
}

#[test]
fn helpers_keep_rows() {
    let t = Tensor::f32(&[3, 2], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(rows(&t, 1, 2).data, Data::F32(vec![2.0, 3.0]));
}
