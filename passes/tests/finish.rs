//! Finish stages: what may be one, what is exchanged, and where the search takes one.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{D, bucket, linear, plain, router, rows, streams};
use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Binary, Domain, Op, Unary};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, StateKind, StateType, TensorType};
use unglue_passes::cost::{GFX1201, kernel_cost};
use unglue_passes::schedule::{Finish, NEEDS_OUTPUT, Schedule, exchanged_without_output, schedule};
use unglue_passes::{CoverOptions, Limits, Numerics, Strategy, cover, optimise};

/// The graph as the passes store it.
fn scheduled(mut g: Graph, rows: u32) -> (Graph, Schedule) {
    let more = exchanged_without_output(&g).unwrap();
    g.outputs.extend(more.into_iter().map(|v| (format!("v{}", v.0), v)));
    let s = schedule(&g, &bucket(rows)).unwrap();
    (g, s)
}

fn finish(s: &Schedule) -> &Finish {
    s.finish().unwrap()
}

fn op_of(g: &Graph, v: ValueId) -> &'static str {
    g.node(v).op.name()
}

/// The rule that refuses a kernel.
fn refused(mut g: Graph) -> &'static str {
    let more = exchanged_without_output(&g).unwrap_or_default();
    g.outputs.extend(more.into_iter().map(|v| (format!("v{}", v.0), v)));
    schedule(&g, &bucket(1)).unwrap_err().rule
}

#[test]
fn a_router_exchanges_what_the_rest_follows_from() {
    let (g, s) = scheduled(router(), 4);
    let f = finish(&s);
    // Biased scores follow from the scores, so that one value is stored.
    assert_eq!(f.exchanged.iter().map(|v| op_of(&g, *v)).collect::<Vec<_>>(), ["sigmoid"]);
    let formed: Vec<&str> = f.nodes.iter().map(|v| op_of(&g, *v)).collect();
    assert!(formed.contains(&"top_k") && formed.contains(&"gather_last") && formed.contains(&"add"), "{formed:?}");
    assert_eq!((f.segments.as_slice(), f.outputs.len()), (&[0][..], 2));
    assert!(f.staged.iter().any(|s| s.node == f.exchanged[0]), "scores are copied first");
    assert!(s.describe().contains("the last workgroup finishes"), "{}", s.describe());
}

#[test]
fn stored_values_are_exchanged_as_they_are() {
    let mut g = router();
    let logits = g.ids().find(|id| op_of(&g, *id) == "matmul").unwrap();
    g.outputs.push(("logits".into(), logits));
    assert_eq!(exchanged_without_output(&g), Ok(vec![]));
    assert_eq!(finish(&schedule(&g, &bucket(1)).unwrap()).exchanged, [logits]);
}

#[test]
fn exchanged_values_need_a_buffer() {
    assert_eq!(schedule(&router(), &bucket(1)).unwrap_err().rule, NEEDS_OUTPUT);
}

#[test]
fn only_workgroups_that_store_arrive() {
    let mut b = Builder::new("beside");
    let x = streams(&mut b, &[D]);
    let (y, z) = (linear(&mut b, x, "first", 96, D), linear(&mut b, x, "second", 40, D));
    let best = b.add(Op::top_k(1), &[z]).unwrap();
    b.output("y", y);
    b.output("best", best);
    let (_, s) = scheduled(b.finish(), 1);
    assert_eq!(finish(&s).segments, [1]);
}

/// Two halves of a matmul's outputs, the other way round, in `dtype`.
fn swapped(dtype: DType) -> Graph {
    let mut b = Builder::new("swapped");
    let x = streams(&mut b, &[D]);
    let y = linear(&mut b, x, "w", 40, D);
    let y = b.cast(y, dtype).unwrap_or(y);
    let (low, high) = (b.slice(y, 1, 0, 20).unwrap(), b.slice(y, 1, 20, 20).unwrap());
    let z = b.add(Op::Concat { axis: 1 }, &[high, low]).unwrap();
    b.output("z", z);
    b.finish()
}

#[test]
fn narrow_values_are_not_exchanged() {
    assert!(finish(&scheduled(swapped(DType::F32), 1).1).exchanged.len() == 1);
    assert_eq!(refused(swapped(DType::Bf16)), "finish-exchange");
}

#[test]
fn one_row_a_workgroup_has_no_finish() {
    let mut b = Builder::new("grouped");
    let (e, k, n) = (6, 2, 40);
    let x = streams(&mut b, &[D]);
    let ids = b.input("ids", TensorType::plain(DType::I32, rows(&[k])), Domain::Distinct(e));
    let slots = b.input("slots", plain(DType::I32, &[e]), Domain::Slots(e));
    let w = b.weight("experts", plain(DType::Bf16, &[e, n, D]));
    let y = b.add(Op::GroupedMatMul { order: Order::Lanes }, &[x, ids, slots, w]).unwrap();
    let y = b.sum(y, 1).unwrap();
    let y = b.reshape(y, &rows(&[n])).unwrap();
    let best = b.add(Op::top_k(1), &[y]).unwrap();
    b.output("best", best);
    assert_eq!(refused(b.finish()), "finish-rows-on-grid");
}

#[test]
fn what_was_formed_before_is_not_finished_with() {
    let mut b = Builder::new("early");
    let x = streams(&mut b, &[D]);
    let h = common::norm(&mut b, x, "norm", D);
    let y = linear(&mut b, h, "w", D, D);
    let sq = b.binary(Binary::Mul, y, y).unwrap();
    let sum = b.sum(sq, 1).unwrap();
    let h = b.cast(h, DType::F32).unwrap();
    let z = b.binary(Binary::Mul, h, sum).unwrap();
    b.output("z", z);
    assert_eq!(refused(b.finish()), "finish-operands");
}

#[test]
fn a_contraction_is_not_finished() {
    let mut b = Builder::new("chained");
    let x = streams(&mut b, &[D]);
    let y = linear(&mut b, x, "w", 40, D);
    let y = b.unary(Unary::Sigmoid, y).unwrap();
    let y = b.cast(y, DType::Bf16).unwrap();
    let z = linear(&mut b, y, "v", 40, 40);
    b.output("z", z);
    assert_eq!(refused(b.finish()), "chained-contractions");
}

/// One row is finished behind the matmul; for sixteen, one after the other, a launch of their own is faster.
#[test]
fn the_search_finishes_where_it_pays() {
    let launches = |rows| {
        let (body, _) = optimise(&router(), Numerics::Exact, &Limits::default()).unwrap();
        cover(&body, &bucket(rows), &GFX1201, Strategy::Greedy, &CoverOptions::default()).unwrap().kernels
    };
    let one = launches(1);
    assert_eq!(one.len(), 1);
    let (kernel, f) = (&one[0], finish(&one[0].schedule));
    assert_eq!(kernel.writes.len(), kernel.graph.outputs.len());
    assert!(kernel.cost.traffic.copied_bytes >= 40 * 4 && kernel.cost.traffic.finish_ops > 0);
    let stored = |v: &ValueId| kernel.graph.outputs.iter().any(|(_, o)| o == v);
    assert!(f.exchanged.iter().all(stored));
    assert_eq!(launches(16).len(), 2);
}

/// The last workgroup's time is in the kernel's; the life of the waves that all workgroups have is not longer by it.
#[test]
fn a_finish_takes_time_and_no_other_waves_life() {
    let price = |g: &Graph, s: &Schedule| kernel_cost(g, s, &bucket(1), &GFX1201);
    let (g, s) = scheduled(router(), 1);
    let with = price(&g, &s);
    let mut b = Builder::new("scores");
    let x = streams(&mut b, &[D]);
    let y = linear(&mut b, x, "gate.weight", 40, D);
    let y = b.unary(Unary::Sigmoid, y).unwrap();
    b.output("scores", y);
    let alone = b.finish();
    let without = price(&alone, &schedule(&alone, &bucket(1)).unwrap());
    let handover = GFX1201.release.value + GFX1201.arrive.value + GFX1201.acquire.value;
    // Top-4 behind it.
    assert!(with.t0_ns >= without.t0_ns + handover + 4 * GFX1201.pick.value, "{with:?} {without:?}");
    assert!(with.ns - with.t0_ns > without.ns - without.t0_ns, "copies and operations of the finish");
    assert!(with.wave_cycles < without.wave_cycles + 100, "{with:?} {without:?}");
}

/// Delta rule over two heads of 128 x `values` whose results are normalised; the norm is scaled by a gate of the row.
fn heads(values: u64) -> Graph {
    let (mut b, h, k) = (Builder::new("heads"), 2, 128);
    let given = |b: &mut Builder, name: &str, width: u64| {
        b.input(name, TensorType::plain(DType::F32, rows(&[h, width])), Domain::Normal)
    };
    let mut args: Vec<ValueId> = ["q", "k"].iter().map(|n| given(&mut b, n, k)).collect();
    args.push(given(&mut b, "v", values));
    args.extend([given(&mut b, "decay", k), given(&mut b, "beta", 1)]);
    let kind = StateKind::Slot { shape: vec![h, k, values] };
    args.push(b.state("s", StateType { kind, dtype: DType::F32 }));
    let t = b.add(Op::DeltaRule { order: Order::of_strided(k) }, &args).unwrap();
    let (o, s) = (b.add(Op::Project(0), &[t]).unwrap(), b.add(Op::Project(1), &[t]).unwrap());
    let squares = b.binary(Binary::Mul, o, o).unwrap();
    let sum = b.sum(squares, 2).unwrap();
    let scale = b.unary(Unary::Rsqrt, sum).unwrap();
    let y = b.binary(Binary::Mul, o, scale).unwrap();
    b.output("y", y);
    b.output("s", s);
    b.finish()
}

#[test]
fn the_last_workgroup_of_a_head_finishes_it() {
    let (g, s) = scheduled(heads(128), 1);
    assert_eq!((s.shares(), s.workgroups(&bucket(1))), (4, 8), "{}", s.describe());
    assert_eq!(finish(&s).exchanged.iter().map(|v| op_of(&g, *v)).collect::<Vec<_>>(), ["project"]);
    assert_eq!((s.rows_to_finish(&bucket(1)), s.finishers()), (1, 2));
    // Unsaid that the result is handed over, the kernel has no buffer for it.
    assert_eq!(schedule(&heads(128), &bucket(1)).unwrap_err().rule, NEEDS_OUTPUT);
    // Columns that are no whole waves, and steps of several rows.
    for (values, rows) in [(96, 1), (128, 4)] {
        assert_eq!(schedule(&heads(values), &bucket(rows)).unwrap().shares(), 1);
    }
}

/// Workgroups of a head read what all of its columns need, each again; the state and its own columns' operands once.
#[test]
fn shared_heads_are_priced_as_generated() {
    let (g, s) = scheduled(heads(128), 1);
    let spread = kernel_cost(&g, &s, &bucket(1), &GFX1201);
    let alone = heads(128);
    let whole = kernel_cost(&alone, &schedule(&alone, &bucket(4)).unwrap(), &bucket(4), &GFX1201);
    assert_eq!(whole.traffic.state_bytes, 4 * spread.traffic.state_bytes);
    let row = |width: u64| 2 * width * 4;
    assert_eq!(spread.traffic.reread_bytes, 4 * (3 * row(128) + row(1)) + row(128));
    assert_eq!(spread.traffic.copied_bytes, 128 * 4);
}
