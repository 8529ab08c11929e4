//! Sums over blocks: who forms them, what is refused, and where the search takes them.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{D, bucket, linear, plain, rows, streams};
use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Binary, Domain, Op, ReduceKind, Unary};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Dim, TensorType};
use unglue_passes::cost::{GFX1201, KernelCost, kernel_cost};
use unglue_passes::schedule::{
    FINISH_COUNTERS, Form, NEEDS_OUTPUT, Obstacle, Schedule, Segment, block_sum, exchanged_without_output, schedule,
};
use unglue_passes::{CoverOptions, Limits, Numerics, Strategy, cover, optimise};

/// x `[R, count, d]` over blocks of its last axis: `[R, count * d / 32]`.
fn over_blocks(b: &mut Builder, x: ValueId, count: u64, d: u64) -> ValueId {
    let x = b.reshape(x, &rows(&[count, d / 32, 32])).unwrap();
    let x = b.add(Op::Reduce { kind: ReduceKind::Sum, axis: 3, order: Order::Lanes }, &[x]).unwrap();
    b.reshape(x, &rows(&[count * d / 32])).unwrap()
}

/// `m` projections of x `[R, d]`, over blocks.
fn projected(b: &mut Builder, x: ValueId, m: u64, d: u64) -> ValueId {
    let x = b.cast(x, DType::F32).unwrap_or(x);
    let x = b.reshape(x, &rows(&[1, d])).unwrap();
    let w = b.weight("fn", plain(DType::F32, &[m, d]));
    let w = b.reshape(w, &[Dim::Fixed(1), Dim::Fixed(m), Dim::Fixed(d)]).unwrap();
    let products = b.binary(Binary::Mul, x, w).unwrap();
    over_blocks(b, products, m, d)
}

/// Matmul of `k` inputs to `d` outputs, stored in bf16, and `m` sums a block of them.
fn matmul_sums(k: u64, d: u64, m: u64) -> Graph {
    let mut b = Builder::new("matmul_sums");
    let x = streams(&mut b, &[k]);
    let y = linear(&mut b, x, "w", d, k);
    let y = b.cast(y, DType::Bf16).unwrap();
    let z = projected(&mut b, y, m, d);
    b.output("y", y);
    b.output("z", z);
    b.finish()
}

fn only_segment(s: &Schedule) -> &Segment {
    let Form::Skinny(form) = &s.form else { panic!("{}", s.describe()) };
    &form.segments[0]
}

fn refusal(g: &Graph, rows: u32) -> Obstacle {
    schedule(g, &bucket(rows)).unwrap_err()
}

#[test]
fn an_epilogue_has_whole_blocks() {
    for (d, per_wave) in [(32, 8), (96, 8), (4096, 8), (8192, 16), (8224, 8), (16384, 32)] {
        let g = matmul_sums(D, d, 24);
        let s = schedule(&g, &bucket(4)).unwrap();
        let segment = only_segment(&s);
        assert_eq!(segment.outputs_per_wave, per_wave, "{d}");
        assert_eq!((segment.outputs.as_slice(), segment.block_sums.as_slice()), (&[0][..], &[1][..]));
        // The stored value goes through workgroup memory, rounded as it is.
        assert_eq!(segment.tiles, [g.outputs[0].1]);
        assert!(s.describe().contains("sums over blocks"), "{}", s.describe());
    }
}

#[test]
fn sums_of_what_is_not_stored_read_the_contraction() {
    let mut g = matmul_sums(D, 96, 3);
    g.outputs.remove(0);
    let s = schedule(&g, &bucket(1)).unwrap();
    let [tile] = only_segment(&s).tiles[..] else { panic!("{}", s.describe()) };
    assert!(matches!(g.node(tile).op, Op::MatMul { .. }));
}

#[test]
fn other_blocks_are_left_to_a_row() {
    let mut b = Builder::new("sixteen");
    let x = streams(&mut b, &[D]);
    let y = linear(&mut b, x, "w", 96, D);
    let y = b.reshape(y, &rows(&[6, 16])).unwrap();
    let y = b.add(Op::Reduce { kind: ReduceKind::Sum, axis: 2, order: Order::Lanes }, &[y]).unwrap();
    b.output("y", y);
    let g = b.finish();
    assert!(block_sum(&g, y).is_none());
    // Nothing but a finish stage could form them.
    assert!(refusal(&g, 1).rule.starts_with("finish"), "{:?}", refusal(&g, 1));
}

#[test]
fn a_block_has_few_sums() {
    assert_eq!(refusal(&matmul_sums(D, 96, 65), 1).rule, "epilogue-size");
}

#[test]
fn heads_have_no_blocks_together() {
    let mut b = Builder::new("heads");
    let q = b.input("heads", TensorType::plain(DType::Bf16, rows(&[4, 32])), Domain::Normal);
    let w = b.weight("w_uk", plain(DType::Bf16, &[4, 64, 32]));
    let y = b.add(Op::BatchMatMul { transposed: false, order: Order::Lanes }, &[q, w]).unwrap();
    let z = over_blocks(&mut b, y, 4, 64);
    b.output("y", y);
    b.output("z", z);
    let rule = refusal(&b.finish(), 1).rule;
    assert!(["block-grid", "block-tile"].contains(&rule), "{rule}");
}

#[test]
fn blocks_on_their_own_take_a_workgroup_each() {
    let mut b = Builder::new("alone");
    let x = streams(&mut b, &[4096]);
    let f = b.cast(x, DType::F32).unwrap();
    let y = b.unary(Unary::Neg, f).unwrap();
    let z = projected(&mut b, y, 24, 4096);
    b.output("y", y);
    b.output("z", z);
    let g = b.finish();
    let s = schedule(&g, &bucket(4)).unwrap();
    let Form::Blocks(form) = &s.form else { panic!("{}", s.describe()) };
    assert_eq!((form.sums.as_slice(), form.columns.as_slice()), (&[1][..], &[0][..]));
    assert_eq!(s.workgroups(&bucket(4)), 128 * 4);
}

/// The graph as the passes store it, with what workgroups exchange among its outputs.
fn exchanging(mut g: Graph) -> (Graph, Vec<ValueId>) {
    let more = exchanged_without_output(&g).unwrap();
    g.outputs.extend(more.iter().map(|v| (format!("v{}", v.0), *v)));
    (g, more)
}

/// What needs all blocks is formed by the last workgroup to arrive: of a row, or behind a contraction.
#[test]
fn sums_of_all_blocks_are_finished() {
    let all = |b: &mut Builder, z: ValueId| {
        let z = b.reshape(z, &rows(&[3, 3])).unwrap();
        let z = b.sum(z, 2).unwrap();
        b.output("all", z);
    };
    let mut b = Builder::new("alone");
    let x = streams(&mut b, &[96]);
    let z = projected(&mut b, x, 3, 96);
    all(&mut b, z);
    let g = b.finish();
    assert_eq!(refusal(&g, 1).rule, NEEDS_OUTPUT);
    let (g, more) = exchanging(g);
    let s = schedule(&g, &bucket(1)).unwrap();
    assert!(matches!(s.form, Form::Blocks(_)), "{}", s.describe());
    assert_eq!(s.finish().unwrap().exchanged, more);

    let mut b = Builder::new("behind");
    let x = streams(&mut b, &[D]);
    let y = linear(&mut b, x, "w", 96, D);
    let z = projected(&mut b, y, 3, 96);
    all(&mut b, z);
    let (g, more) = exchanging(b.finish());
    assert_eq!(more.len(), 1);
    assert!(block_sum(&g, more[0]).is_some());
    let s = schedule(&g, &bucket(1)).unwrap();
    assert_eq!(s.finish().unwrap().exchanged, more);
    assert_eq!((only_segment(&s).block_sums.len(), s.finish().unwrap().segments.as_slice()), (1, &[0][..]));
}

/// Weights of four streams from sums over their blocks, and the weighted, normalised sum of the streams.
fn site(d: u64) -> Graph {
    let mut b = Builder::new("site");
    let x = streams(&mut b, &[4, d]);
    let f = b.cast(x, DType::F32).unwrap();
    let w = b.weight("fn", plain(DType::Bf16, &[24, 4, d]));
    let w = b.cast(w, DType::F32).unwrap();
    let w = b.reshape(w, &[1, 24, 4, d].map(Dim::Fixed)).unwrap();
    let wide = b.reshape(f, &rows(&[1, 4, d])).unwrap();
    let products = b.binary(Binary::Mul, wide, w).unwrap();
    let products = b.sum(products, 2).unwrap();
    let products = b.reshape(products, &rows(&[24, d])).unwrap();
    let z = over_blocks(&mut b, products, 24, d);
    let z = b.reshape(z, &rows(&[24, d / 32])).unwrap();
    let z = b.sum(z, 2).unwrap();
    let z = b.reshape(z, &rows(&[24])).unwrap();
    let pre = b.slice(z, 1, 0, 4).unwrap();
    let pre = b.unary(Unary::Sigmoid, pre).unwrap();
    let pre = b.reshape(pre, &rows(&[4, 1])).unwrap();
    let u = b.binary(Binary::Mul, f, pre).unwrap();
    let u = b.sum(u, 1).unwrap();
    let u = b.reshape(u, &rows(&[d])).unwrap();
    let u = b.cast(u, DType::Bf16).unwrap();
    let y = common::norm(&mut b, u, "norm", d);
    b.output("y", y);
    b.output("maps", z);
    b.finish()
}

/// Each row has a last workgroup of its own, which takes as long as that of a single row.
#[test]
fn rows_of_blocks_finish_apart() {
    let (g, more) = exchanging(site(4096));
    assert_eq!(more.iter().map(|v| block_sum(&g, *v).unwrap().of_block()).collect::<Vec<_>>(), [24]);
    let of = |rows: u32| {
        let s = schedule(&g, &bucket(rows)).unwrap();
        assert!(s.finish().is_some() && s.describe().contains("the last workgroup of a row"), "{}", s.describe());
        (s.workgroups(&bucket(rows)), kernel_cost(&g, &s, &bucket(rows), &GFX1201))
    };
    let ((few, one), (many, sixteen)) = (of(1), of(16));
    assert_eq!((few, many), (128, 16 * 128));
    let handover = GFX1201.release.value + GFX1201.arrive.value + GFX1201.acquire.value;
    assert!(one.t0_ns > handover && sixteen.t0_ns == one.t0_ns, "{one:?} {sixteen:?}");
    let finish = |c: &KernelCost| (c.traffic.copied_bytes, c.traffic.loaded_bytes, c.traffic.finish_ops);
    assert_eq!(finish(&one), finish(&sixteen));
    // The row's streams, the norm's weight, and what was exchanged.
    assert_eq!(finish(&one).0, 4 * 4096 * 2 + 4096 * 2 + 24 * 128 * 4);
    let weights = (24 * 4 * 4096 + 4096) * 2;
    assert_eq!((one.traffic.restream_bytes, sixteen.traffic.restream_bytes), (0, 15 * weights));
    // Rows without a counter are formed by rows.
    assert!(matches!(schedule(&g, &bucket(FINISH_COUNTERS + 1)).unwrap().form, Form::Row { .. }));
}

/// A wider copy of what is given is formed again, not handed over, even where another kernel wants it stored.
#[test]
fn given_values_are_not_exchanged() {
    let mut g = site(4096);
    let wide = g.ids().find(|id| g.node(*id).op == Op::Cast(DType::F32)).unwrap();
    g.outputs.push(("wide".into(), wide));
    let (g, more) = exchanging(g);
    let s = schedule(&g, &bucket(1)).unwrap();
    assert_eq!(s.finish().unwrap().exchanged, more);
    assert_eq!((more.len(), s.finish().unwrap().nodes.contains(&wide)), (1, true));
}

/// A site is one launch for any rows of a short step, and stores no wider copy of the streams.
#[test]
fn the_search_takes_a_site_as_one_kernel() {
    let (body, _) = optimise(&site(4096), Numerics::Exact, &Limits::default()).unwrap();
    for n in [1, 4, 16] {
        let c = cover(&body, &bucket(n), &GFX1201, Strategy::Greedy, &CoverOptions::default()).unwrap();
        let [kernel] = c.kernels.as_slice() else { panic!("{n}: {} kernels", c.kernels.len()) };
        assert!(kernel.schedule.finish().is_some());
        assert_eq!(kernel.graph.outputs.len(), 3, "y, the maps, and their sums over blocks");
    }
}

/// Behind the matmul the sums cost less than a launch, for one row and for four.
#[test]
fn the_search_takes_them_behind_a_matmul() {
    for n in [1, 4] {
        let bucket = bucket(n);
        let (body, _) = optimise(&matmul_sums(512, 4096, 24), Numerics::Exact, &Limits::default()).unwrap();
        let cover = cover(&body, &bucket, &GFX1201, Strategy::Greedy, &CoverOptions::default()).unwrap();
        assert_eq!(cover.kernels.len(), 1, "{n} rows");
        let k = &cover.kernels[0];
        let without = {
            let mut b = Builder::new("matmul");
            let x = streams(&mut b, &[512]);
            let y = linear(&mut b, x, "w", 4096, 512);
            let y = b.cast(y, DType::Bf16).unwrap();
            b.output("y", y);
            b.finish()
        };
        let alone = kernel_cost(&without, &schedule(&without, &bucket).unwrap(), &bucket, &GFX1201);
        let more = kernel_cost(&k.graph, &k.schedule, &bucket, &GFX1201).ns - alone.ns;
        assert!((1000..4000).contains(&more), "{more} ns for the sums, {n} rows");
    }
}

/// Matrix tiles hand their sums to lanes row by row: no workgroup has whole blocks of a row's elements in lanes at once.
#[test]
fn many_rows_with_sums_over_blocks_stay_on_lanes() {
    let s = schedule(&matmul_sums(D, 96, 24), &bucket(64)).unwrap();
    assert_eq!(only_segment(&s).block_sums.len(), 1);
}
