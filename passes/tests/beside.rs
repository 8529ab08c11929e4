//! Kernels whose parts share no value: what goes together, how workgroups are dealt, and what that costs.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{D, bucket, linear, norm, plain, rows, streams};
use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Binary, Domain, Op, Unary};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Dim, StateKind, StateType, TensorType};
use unglue_passes::cost::{GFX1201, kernel_cost};
use unglue_passes::schedule::{Form, Schedule, Section, schedule};
use unglue_passes::{CoverOptions, Limits, Numerics, Strategy, cover, optimise};

fn row(b: &mut Builder, name: &str, n: u64) -> ValueId {
    b.input(name, TensorType::plain(DType::Bf16, rows(&[n])), Domain::Normal)
}

/// A write of token rows, with a norm in front.
fn write_tokens(b: &mut Builder) {
    let x = row(b, "latent_in", D);
    let x = norm(b, x, "latent_norm", D);
    let s = b.state("latent", StateType { kind: StateKind::Token { width: D }, dtype: DType::Bf16 });
    let s = b.add(Op::TokenWrite, &[x, s]).unwrap();
    b.output("latent", s);
}

/// Normed projection of `k` inputs.
fn projection(b: &mut Builder, k: u64) {
    let x = row(b, "low", k);
    let h = norm(b, x, "low_norm", k);
    let y = linear(b, h, "q", 96, k);
    b.output("y", y);
}

fn absorb(b: &mut Builder) {
    let q = b.input("heads", TensorType::plain(DType::Bf16, rows(&[4, 32])), Domain::Normal);
    let w = b.weight("w_uk", plain(DType::Bf16, &[4, 32, D]));
    let order = Order::of_strided(32);
    let y = b.add(Op::BatchMatMul { transposed: true, order }, &[q, w]).unwrap();
    b.output("absorbed", y);
}

fn tail(b: &mut Builder) -> [ValueId; 3] {
    let (key, gate) = (row(b, "key", 32), row(b, "gate", 32));
    [key, gate, b.state("tail", StateType { kind: StateKind::Tail { pool: 4, width: 32 }, dtype: DType::Bf16 })]
}

fn update_tail(b: &mut Builder, args: &[ValueId; 3]) {
    let t = b.add(Op::TailUpdate, args).unwrap();
    b.output("tail", t);
}

fn built(parts: impl FnOnce(&mut Builder)) -> Graph {
    let mut b = Builder::new("parts");
    parts(&mut b);
    b.finish()
}

fn sections(s: &Schedule) -> &[Section] {
    match &s.form {
        Form::Beside(sections) => sections,
        other => panic!("{other:?}"),
    }
}

fn refused(parts: impl FnOnce(&mut Builder)) -> &'static str {
    schedule(&built(parts), &bucket(1)).unwrap_err().rule
}

#[test]
fn sections_follow_one_another_along_the_grid() {
    let g = built(|b| {
        projection(b, D);
        write_tokens(b);
    });
    for n in [1, 4] {
        let s = schedule(&g, &bucket(n)).unwrap();
        let [first, second] = sections(&s) else { panic!("{}", s.describe()) };
        assert!(matches!(first.schedule.form, Form::Row { .. }), "the fewest workgroups come first");
        assert_eq!((first.first, first.workgroups()), (0, u64::from(n)));
        assert_eq!(second.first, u64::from(n));
        assert_eq!(s.workgroups(&bucket(n)), first.workgroups() + second.workgroups());
        assert_eq!((first.schedule.waves, s.waves), (second.schedule.waves, second.schedule.waves));
        let both = [first.graph(&g), second.graph(&g)];
        let count = |g: &Graph| g.nodes.iter().filter(|n| !matches!(n.op, Op::ConstF32(_))).count();
        assert_eq!(both.iter().map(count).sum::<usize>(), count(&g), "only constants are shared here");
        let outputs: usize = both.iter().map(|g| g.outputs.len()).sum();
        assert_eq!(outputs, g.outputs.len());
    }
}

/// Shared leaves, and views of them, belong to each section that reads them.
#[test]
fn parts_may_read_the_same_leaf() {
    let g = built(|b| {
        let x = streams(b, &[2, 32]);
        let flat = b.reshape(x, &rows(&[D])).unwrap();
        let y = linear(b, flat, "w", 40, D);
        b.output("y", y);
        let s = b.state("latent", StateType { kind: StateKind::Token { width: D }, dtype: DType::Bf16 });
        let s = b.add(Op::TokenWrite, &[flat, s]).unwrap();
        b.output("latent", s);
    });
    assert_eq!(sections(&schedule(&g, &bucket(4)).unwrap()).len(), 2);
}

#[test]
fn a_state_has_one_section_if_it_is_written() {
    let race = refused(|b| {
        let args = tail(b);
        let w = b.add(Op::PoolWindow { part: 0 }, &[args[0], args[2]]).unwrap();
        let w = b.reshape(w, &rows(&[4 * 32])).unwrap();
        let w = b.cast(w, DType::F32).unwrap();
        b.output("window", w);
        update_tail(b, &args);
    });
    assert_eq!(race, "state-race");
}

#[test]
fn workgroups_of_one_size_go_together() {
    let rule = refused(|b| {
        absorb(b);
        let scores = TensorType::plain(DType::F32, vec![Dim::Rows, Dim::Pools]);
        let scores = b.input("scores", scores, Domain::Normal);
        let ids = b.add(Op::IndexSelect { budget: 4, pool: 4, tail: true }, &[scores]).unwrap();
        b.output("ids", ids);
    });
    assert_eq!(rule, "beside-waves");
}

/// The best four of `n` scores, which a row keeps.
fn choice(b: &mut Builder, n: u64) {
    let scores = b.input("scores", TensorType::plain(DType::F32, rows(&[n])), Domain::Normal);
    let scores = b.unary(Unary::Neg, scores).unwrap();
    let ids = b.add(Op::top_k(4), &[scores]).unwrap();
    b.output("ids", ids);
}

/// Rows of 16 KiB in workgroup memory would leave the other section's waves no company, unless one section has them
/// anyway.
#[test]
fn memory_of_one_section_is_taken_in_all() {
    let wide = |k: u64, n: u64| {
        move |b: &mut Builder| {
            projection(b, k);
            write_tokens(b);
            choice(b, n);
        }
    };
    assert!(schedule(&built(wide(4096, 1024)), &bucket(1)).is_ok());
    assert!(schedule(&built(wide(12288, 128)), &bucket(1)).is_ok());
    assert_eq!(refused(wide(12288, 1024)), "beside-memory");
}

/// A sum of few elements that two parts share, and what follows from it, of one element each.
fn shared_scale(b: &mut Builder, n: u64) -> [ValueId; 2] {
    let parts = b.input("sums", TensorType::plain(DType::F32, rows(&[n])), Domain::Unit);
    let sum = b.sum(parts, 1).unwrap();
    let rho = b.unary(Unary::Rsqrt, sum).unwrap();
    let x = row(b, "x", D);
    let f = b.cast(x, DType::F32).unwrap();
    let h = b.binary(Binary::Mul, f, rho).unwrap();
    let h = b.cast(h, DType::Bf16).unwrap();
    let y = linear(b, h, "w", 96, D);
    let z = b.input("z", TensorType::plain(DType::F32, rows(&[40])), Domain::Normal);
    let z = b.binary(Binary::Mul, z, rho).unwrap();
    let best = b.add(Op::top_k(4), &[z]).unwrap();
    b.output("y", y);
    b.output("best", best);
    [rho, sum]
}

/// Single elements that follow from few others are formed by each section.
#[test]
fn parts_form_single_elements_anew() {
    let g = built(|b| {
        shared_scale(b, 128);
    });
    let s = schedule(&g, &bucket(1)).unwrap();
    let parts: Vec<Graph> = sections(&s).iter().map(|s| s.graph(&g)).collect();
    let sums = |g: &Graph| g.nodes.iter().filter(|n| matches!(n.op, Op::Reduce { .. })).count();
    assert_eq!(parts.iter().map(sums).collect::<Vec<_>>(), [1, 1]);

    let stored = built(|b| {
        let [rho, _] = shared_scale(b, 128);
        b.output("rho", rho);
    });
    let wide = built(|b| {
        shared_scale(b, 2048);
    });
    for g in [stored, wide] {
        // One kernel forms them once, if it forms all.
        assert!(!matches!(schedule(&g, &bucket(1)).map(|s| s.form), Ok(Form::Beside(_))));
    }
}

/// Another graph's nodes and outputs behind those of `g`.
/// What is in the way in one section has the number that it has in the whole kernel.
#[test]
fn obstacles_of_sections_have_the_numbers_of_the_kernel() {
    let g = built(|b| {
        write_tokens(b);
        let x = row(b, "low", D);
        let h = linear(b, x, "first", 96, D);
        let h = b.cast(h, DType::Bf16).unwrap();
        let y = linear(b, h, "second", 32, 96);
        b.output("y", y);
    });
    let obstacle = schedule(&g, &bucket(1)).unwrap_err();
    assert_eq!(obstacle.rule, "chained-contractions");
    let (number, _) = obstacle.detail[1..].split_once(' ').unwrap();
    let named = &g.nodes[number.parse::<usize>().unwrap()].op;
    assert!(matches!(named, Op::MatMul { .. }), "{}: {named:?}", obstacle.detail);
}

fn append(g: &mut Graph, other: Graph) {
    let first = g.nodes.len() as u32;
    g.nodes.extend(other.nodes.into_iter().map(|mut n| {
        n.args.iter_mut().for_each(|a| a.0 += first);
        n
    }));
    g.outputs.extend(other.outputs.into_iter().map(|(name, v)| (name, ValueId(v.0 + first))));
}

/// One section's workgroups arrive; two stages would count at one counter.
#[test]
fn one_section_has_a_finish_stage() {
    let mut g = common::router();
    let scores = g.ids().find(|id| g.node(*id).op.name() == "sigmoid").unwrap();
    g.outputs.push(("scores".into(), scores));
    assert!(schedule(&g, &bucket(1)).unwrap().finish().is_some());
    append(&mut g, built(write_tokens));
    let s = schedule(&g, &bucket(1)).unwrap();
    assert_eq!(sections(&s).iter().map(|s| s.schedule.finish().is_some()).collect::<Vec<_>>(), [false, true]);

    let best = built(|b| {
        let x = TensorType::plain(DType::Bf16, vec![Dim::Logits, Dim::Fixed(D)]);
        let x = b.input("hidden", x, Domain::Normal);
        let logits = linear(b, x, "head", 96, D);
        let ids = b.add(Op::top_k(1), &[logits]).unwrap();
        b.output("logits", logits);
        b.output("best", ids);
    });
    append(&mut g, best);
    assert_eq!(schedule(&g, &bucket(1)).unwrap_err().rule, "beside-finish");
}

/// A launch takes at least its slowest section, and no more than all one after the other.
#[test]
fn sections_overlap() {
    let parts: [fn(&mut Builder); 3] = [|b| projection(b, D), write_tokens, absorb];
    let cost = |parts: &[fn(&mut Builder)]| {
        let g = built(|b| parts.iter().for_each(|p| p(b)));
        kernel_cost(&g, &schedule(&g, &bucket(4)).unwrap(), &bucket(4), &GFX1201)
    };
    let alone: Vec<u64> = parts.iter().map(|p| cost(&[*p]).ns).collect();
    let all = cost(&parts);
    assert!(all.ns >= alone.iter().copied().max().unwrap(), "{} of {alone:?}", all.ns);
    assert!(all.ns < alone.iter().sum(), "{} of {alone:?}", all.ns);
    let weights: u64 = parts.iter().map(|p| cost(&[*p]).traffic.weight_bytes).sum();
    assert_eq!(all.traffic.weight_bytes, weights);
}

/// Parts that only share inputs become one launch.
#[test]
fn the_search_puts_side_blocks_beside_matmuls() {
    let g = built(|b| {
        projection(b, D);
        write_tokens(b);
        let args = tail(b);
        update_tail(b, &args);
    });
    let (body, _) = optimise(&g, Numerics::Exact, &Limits::default()).unwrap();
    let kernels = cover(&body, &bucket(1), &GFX1201, Strategy::Greedy, &CoverOptions::default()).unwrap().kernels;
    assert_eq!(kernels.len(), 1);
    assert_eq!(sections(&kernels[0].schedule).len(), 2);
}
