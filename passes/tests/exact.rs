//! The integer program: no dearer than the greedy search nor than any partition but for ties, the same in every run, its
//! limits told.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{all, bucket, gated, streams_of};
use unglue_ir::graph::{Graph, ValueId};
use unglue_passes::candidates::{Evaluator, Partition};
use unglue_passes::carve::Stores;
use unglue_passes::cost::GFX1201;
use unglue_passes::exact::{MAX_GROWN, MAX_ROUNDS};
use unglue_passes::facts::Facts;
use unglue_passes::{BodyCover, CoverOptions, Limits, Numerics, Strategy, cover, launch_order, optimise, tie_ns};

fn covered(body: &Graph, strategy: Strategy, rows: u32) -> BodyCover {
    cover(body, &bucket(rows), &GFX1201, strategy, &CoverOptions::default()).unwrap()
}

fn small(body: &Graph) -> Graph {
    optimise(body, Numerics::Exact, &Limits::default()).unwrap().0
}

/// All ways to deal `n` things to groups: the group of each.
fn partitions(n: usize) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for _ in 0..n {
        let grow = |p: &Vec<usize>| {
            let groups = p.iter().max().map_or(0, |m| m + 1);
            (0..=groups).map(|g| [p.clone(), vec![g]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(grow).collect();
    }
    all
}

/// The cheapest acyclic partition of the ops into kernels with a schedule, by trying all.
fn cheapest_partition(covered: &BodyCover, rows: u32) -> u64 {
    let (body, bucket) = (&covered.body, bucket(rows));
    let held: BTreeSet<ValueId> = covered.kernels.iter().flat_map(|k| k.ops.iter().copied()).collect();
    let facts = Facts::with_ops(body, &held);
    let stores = Stores::new(&facts);
    let mut evaluator = Evaluator::new(&facts, &stores, &bucket, &GFX1201);
    let ops: Vec<ValueId> = facts.ops().collect();
    assert!(ops.len() <= 8, "{}: {} ops", body.name, ops.len());
    let mut best = u64::MAX;
    for dealt in partitions(ops.len()) {
        let mut groups: BTreeMap<usize, BTreeSet<ValueId>> = BTreeMap::new();
        for (op, g) in ops.iter().zip(dealt) {
            groups.entry(g).or_default().insert(*op);
        }
        let mut p = Partition::default();
        groups.into_values().for_each(|ops| p.insert(*ops.first().unwrap(), ops));
        if launch_order::sort(&p.edges(&facts)).is_none() {
            continue;
        }
        let costs: Option<Vec<u64>> = p
            .groups
            .iter()
            .map(|(g, ops)| Some(evaluator.evaluate(&p, ops, &BTreeSet::from([*g])).ok()?.cost.total()))
            .collect();
        best = best.min(costs.map_or(u64::MAX, |c| c.iter().sum()));
    }
    best
}

#[test]
fn exact_is_the_optimum_of_small_bodies_and_beats_greedy() {
    let mut beaten = 0;
    for body in [streams_of(64), streams_of(4096), streams_of(8192), gated(64, 8), gated(4096, 512)] {
        let body = small(&body);
        for r in [1, 4, 16] {
            let (exact, greedy) = (covered(&body, Strategy::Exact, r), covered(&body, Strategy::Greedy, r));
            let best = cheapest_partition(&exact, r);
            let (now, was) = (exact.stats.predicted_ns, greedy.stats.predicted_ns);
            let at = format!("{}, {r} rows: greedy {was}, best {best}, {:?}", body.name, exact.stats.exact);
            assert!(now <= best + tie_ns(best) && (exact.stats.recomputed > 0 || now >= best), "{at}");
            beaten += u32::from(best < was && now == best);
        }
    }
    assert!(beaten > 0);
}

#[test]
fn exact_is_better_than_greedy_or_is_greedy_and_tells_its_bound() {
    for body in all() {
        let body = small(&body);
        for r in [1, 4, 16] {
            let (exact, greedy) = (covered(&body, Strategy::Exact, r), covered(&body, Strategy::Greedy, r));
            let (now, was) = (exact.stats.predicted_ns, greedy.stats.predicted_ns);
            let e = exact.stats.exact.unwrap();
            assert_eq!((e.objective_ns, e.greedy_ns), (now, was), "{}", body.name);
            assert_eq!(e.kept_greedy.is_none(), exact.kernels != greedy.kernels, "{}: {e:?}", body.name);
            let fewer = exact.kernels.len() < greedy.kernels.len();
            assert!(now <= was || fewer && now <= was + tie_ns(was), "{}: {e:?}", body.name);
            assert!(e.bound_ns <= now && e.rounds <= MAX_ROUNDS, "{}: {e:?}", body.name);
            assert_eq!(e.gap_ppm, ((now - e.bound_ns) * 1_000_000).div_ceil(now));
            assert!(e.candidates >= exact.stats.unfused, "{}: {e:?}", body.name);
            assert!(greedy.stats.exact.is_none());
        }
    }
}

#[test]
fn limits_are_told() {
    let e = covered(&small(&common::hyper()), Strategy::Exact, 1).stats.exact.unwrap();
    assert!(e.cut > 0, "{e:?}: {MAX_GROWN} sets are not all of them");
    let e = covered(&small(&common::begin()), Strategy::Exact, 1).stats.exact.unwrap();
    assert_eq!(e.cut, 0, "{e:?}: so few ops have few sets");
}

#[test]
fn two_runs_are_equal() {
    for body in all() {
        let body = small(&body);
        assert_eq!(covered(&body, Strategy::Exact, 4), covered(&body, Strategy::Exact, 4));
    }
}
