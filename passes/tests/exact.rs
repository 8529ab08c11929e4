//! The integer program: no dearer than the greedy search nor than any partition but for ties, the same in every run, its
//! limits told.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{all, bucket, gated, streams_of};
use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Binary;
use unglue_ir::types::DType;
use unglue_passes::candidates::{Evaluator, Partition};
use unglue_passes::carve::Stores;
use unglue_passes::choice::{Choice, Effort, Lists, choose, repeat};
use unglue_passes::cost::GFX1201;
use unglue_passes::exact::{MAX_GROWN, MAX_ROUNDS};
use unglue_passes::extract::{Pick, Picks};
use unglue_passes::facts::Facts;
use unglue_passes::rules::table;
use unglue_passes::saturate::{Saturated, saturate};
use unglue_passes::schedule::Bucket;
use unglue_passes::{
    BodyCover, CoverOptions, Exactness, Kernel, Limits, Numerics, Strategy, cover, launch_order, optimise, tie_ns,
};

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

/// x is squared and rounded, and what comes of that is scaled by its own sum: a rounding that a looser level may leave out.
fn rounded(n: u64) -> Graph {
    let mut b = Builder::new("rounded");
    let x = common::streams(&mut b, &[n]);
    let f = b.cast(x, DType::F32).unwrap();
    let p = b.binary(Binary::Mul, f, f).unwrap();
    let narrow = b.cast(p, DType::Bf16).unwrap();
    let wide = b.cast(narrow, DType::F32).unwrap();
    let sum = b.sum(wide, 1).unwrap();
    let four = b.constant(4.0);
    let part = b.binary(Binary::Div, sum, four).unwrap();
    let y = b.binary(Binary::Mul, wide, part).unwrap();
    b.output("y", y);
    b.finish()
}

/// Every form of a body: each way to pick for each class that ends and reads all leaves.
fn all_forms(s: &Saturated) -> Vec<Graph> {
    let mut all: Vec<Picks> = vec![Picks::new()];
    for (id, options) in &s.options {
        let with = |p: &Picks| {
            let pick = |o: &Pick| p.clone().into_iter().chain([(*id, o.clone())]).collect::<Picks>();
            options.iter().map(pick).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(with).collect();
        assert!(all.len() <= 4096);
    }
    let mut graphs: Vec<Graph> = Vec::new();
    for picks in all {
        let Ok(Some((form, _))) = s.whole_form(&picks) else { continue };
        if !graphs.contains(&form.graph) {
            graphs.push(form.graph);
        }
    }
    graphs
}

fn levels(body: &Graph, level: Numerics, buckets: &[Bucket], effort: Effort) -> Vec<Choice> {
    let lists = Lists { buckets, costs: &GFX1201 };
    let strict = choose(body, Numerics::Exact, &Limits::default(), lists, vec![], Effort::Covered).unwrap();
    choose(body, level, &Limits::default(), lists, strict, effort).unwrap()
}

fn ns(choice: &Choice) -> Vec<u64> {
    choice.takes.iter().map(|t| t.ns).collect()
}

#[test]
fn form_and_cover_together_are_the_optimum_of_small_bodies() {
    for body in [rounded(4096), rounded(64)] {
        for level in [Numerics::Rounding, Numerics::Fast] {
            let rules: Vec<_> = table().into_iter().filter(|r| level.allows(r.class)).collect();
            let forms = all_forms(&saturate(&body, &rules, &Limits::default()).unwrap());
            assert!(forms.len() > 1, "{}: {}", body.name, forms.len());
            for r in [1, 16] {
                let best = forms.iter().map(|f| cheapest_partition(&covered(f, Strategy::Exact, r), r)).min().unwrap();
                let levels = levels(&body, level, &[bucket(r)], Effort::Covered);
                let cover = &levels.last().unwrap().covers[0];
                let now = cover.stats.predicted_ns;
                let at = format!("{}, {level:?}, {r} rows: best {best}, {now}", body.name);
                assert!(now <= best + tie_ns(best) && (cover.stats.recomputed > 0 || now >= best), "{at}");
            }
        }
    }
}

/// A looser level chooses among more; what the stricter one has is one of its choices.
#[test]
fn levels_only_gain_in_every_launch_list() {
    let buckets = [1, 4, 16].map(bucket);
    let (mut by_level, mut by_form) = (0, 0);
    for body in all().into_iter().chain([rounded(4096), mixed()]) {
        let built = levels(&body, Numerics::Fast, &buckets, Effort::Covered);
        let priced = levels(&body, Numerics::Fast, &buckets, Effort::Priced);
        for of in [&built, &priced] {
            for (strict, loose) in of.iter().zip(&of[1..]) {
                assert!(ns(strict).iter().zip(ns(loose)).all(|(s, l)| l <= *s), "{}", body.name);
                by_level += u32::from(ns(strict) != ns(loose));
            }
        }
        // What a level is priced at, a build takes at most.
        let at_most = |(b, p): (&Choice, &Choice)| ns(b).iter().zip(ns(p)).all(|(b, p)| *b <= p + tie_ns(p));
        assert!(built.iter().zip(&priced).all(at_most), "{}: priced", body.name);
        for (choice, level) in built.iter().zip(Numerics::ALL) {
            assert!(choice.covers.iter().all(|c| c.body == choice.body), "{}: one form", body.name);
            if let Some(told) = &choice.stats.choice {
                assert!(told.bound_ns <= told.objective_ns && told.objective_ns <= told.before_ns, "{told:?}");
                assert!(level >= told.level);
                let repeated = repeat(&body, &Limits::default(), told).unwrap();
                assert_eq!(repeated, (choice.body.clone(), choice.stats.clone()));
            }
            let (greedy, _) = optimise(&body, level, &Limits::default()).unwrap();
            let greedy: u64 = [1, 4, 16].map(|r| covered(&greedy, Strategy::Exact, r).stats.predicted_ns).iter().sum();
            by_form += u32::from(ns(choice).iter().sum::<u64>() < greedy);
        }
        let again = levels(&body, Numerics::Fast, &buckets, Effort::Covered);
        for (a, b) in built.iter().zip(&again) {
            assert!(a.stats == b.stats && a.covers == b.covers, "{}: two runs", body.name);
        }
    }
    assert!(by_level > 0 && by_form > 0, "some body gains by its level: {by_level}, by its form: {by_form}");
}

/// A norm between two matmuls: without the rounding behind the first, twice as many bytes are stored and read again.
fn stored(b: &mut Builder, h: ValueId) {
    let up = common::linear(b, h, "up.weight", 2048, 2048);
    let up = b.cast(up, DType::Bf16).unwrap();
    let normed = common::norm(b, up, "norm.weight", 2048);
    let down = common::linear(b, normed, "down.weight", 2048, 2048);
    let down = b.cast(down, DType::Bf16).unwrap();
    b.output("right", down);
}

/// First a rounding inside a kernel, which is work that can be left out; then one that is stored.
fn mixed() -> Graph {
    let mut b = Builder::new("mixed");
    let x = common::streams(&mut b, &[2048]);
    let f = b.cast(x, DType::F32).unwrap();
    let p = b.binary(Binary::Mul, f, f).unwrap();
    let narrow = b.cast(p, DType::Bf16).unwrap();
    let wide = b.cast(narrow, DType::F32).unwrap();
    let sum = b.sum(wide, 1).unwrap();
    let y = b.binary(Binary::Mul, wide, sum).unwrap();
    b.output("left", y);
    let h = b.cast(y, DType::Bf16).unwrap();
    stored(&mut b, h);
    b.finish()
}

fn boundary() -> Graph {
    let mut b = Builder::new("boundary");
    let h = common::streams(&mut b, &[2048]);
    stored(&mut b, h);
    b.finish()
}

/// Each rounding is left out by its worth, and kernels that have nothing of it keep their class.
#[test]
fn kernels_that_gain_nothing_stay_exact() {
    let writes_left = |k: &Kernel| k.graph.outputs.iter().any(|(name, _)| name == "left");
    for r in [4, 16] {
        let levels = levels(&mixed(), Numerics::Rounding, &[bucket(r)], Effort::Covered);
        let (strict, loose) = (&levels[0], &levels[1]);
        assert!(ns(loose) < ns(strict), "{:?} {:?}", ns(loose), ns(strict));
        let kernels = &loose.covers[0].kernels;
        assert!(kernels.iter().any(|k| k.exactness == Exactness::Rounding), "{r} rows");
        for k in kernels {
            assert!(k.exactness == Exactness::Exact || writes_left(k), "{r} rows: {}", k.name);
        }
    }
}

/// The form with the cheapest arithmetic leaves the rounding out, and is slower: the level stays as it is without.
#[test]
fn a_rounding_whose_bytes_cost_more_stays() {
    let (body, r) = (boundary(), 4);
    let levels = levels(&body, Numerics::Fast, &[bucket(r)], Effort::Covered);
    assert!(levels.iter().all(|l| ns(l) == ns(&levels[0]) && l.body == levels[0].body && l.stats.loose.is_empty()));
    let (greedy, stats) = optimise(&body, Numerics::Fast, &Limits::default()).unwrap();
    let greedy = covered(&greedy, Strategy::Exact, r).stats.predicted_ns;
    assert!(stats.exactness > Exactness::Exact && greedy > ns(&levels[0])[0]);
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
