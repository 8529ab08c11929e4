//! Plans: buffers that are needed at once never overlap, arguments are written before they are read, taps survive.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{bucket, module};
use proptest::prelude::*;
use unglue_passes::cost::GFX1201;
use unglue_passes::plan::{Access, Arg, Plan, plan};
use unglue_passes::traffic::tensor_bytes;
use unglue_passes::{BodyCover, CoverOptions, Limits, Numerics, Strategy, arena, cover, optimise};

fn planned(layers: usize, strategy: Strategy) -> (unglue_ir::module::Module, Vec<Vec<BodyCover>>, Plan) {
    let m = module(layers);
    let buckets = [bucket(1), bucket(4), bucket(16)];
    let bodies: Vec<_> = m.bodies.iter().map(|b| optimise(b, Numerics::Exact, &Limits::default()).unwrap().0).collect();
    let of_bucket =
        |b| bodies.iter().map(|g| cover(g, b, &GFX1201, strategy, &CoverOptions::default()).unwrap()).collect();
    let covers: Vec<Vec<BodyCover>> = buckets.iter().map(of_bucket).collect();
    let plan = plan(&m, &covers, &buckets).unwrap();
    (m, covers, plan)
}

#[test]
fn every_buffer_is_written_once_before_it_is_read() {
    for strategy in [Strategy::None, Strategy::Greedy] {
        let (_, _, p) = planned(3, strategy);
        for b in &p.buckets {
            let mut written = vec![false; p.buffers.len()];
            for l in &b.launches {
                let params = &p.kernels[l.kernel as usize].params;
                assert_eq!(params.len(), l.args.len());
                for (param, arg) in params.iter().zip(&l.args) {
                    let Arg::Buffer(n) = arg else { continue };
                    let n = *n as usize;
                    match param.access {
                        Access::Read => assert!(written[n], "{} reads {} too early", l.site, p.buffers[n].name),
                        _ => {
                            assert!(!std::mem::replace(&mut written[n], true), "{} is written twice", p.buffers[n].name)
                        }
                    }
                }
            }
        }
        assert!(p.state_written.iter().all(|w| *w));
    }
}

#[test]
fn live_buffers_never_overlap_and_taps_live_to_the_end() {
    for strategy in [Strategy::None, Strategy::Greedy] {
        let (_, _, p) = planned(4, strategy);
        for b in &p.buckets {
            let placed: Vec<(u64, u64, u32, u32)> = (0..p.buffers.len())
                .filter_map(|i| {
                    let ((from, to), at) = (b.live[i]?, b.offsets[i]?);
                    assert_eq!(at % 256, 0);
                    Some((at, at + tensor_bytes(&p.buffers[i].ty, &b.bucket), from, to))
                })
                .collect();
            check_disjoint(&placed, b.arena_bytes);
            let end = b.launches.len() as u32 - 1;
            for tap in &p.taps {
                assert_eq!(b.live[tap.buffer as usize].unwrap().1, end);
            }
        }
    }
}

fn check_disjoint(placed: &[(u64, u64, u32, u32)], length: u64) {
    for (i, a) in placed.iter().enumerate() {
        assert!(a.1 <= length);
        for b in &placed[i + 1..] {
            let (space, time) = (a.0 < b.1 && b.0 < a.1, a.2 <= b.3 && b.2 <= a.3);
            assert!(!(space && time), "{a:?} and {b:?}");
        }
    }
}

#[test]
fn layers_share_kernels_and_runs_are_equal() {
    let (_, covers, p) = planned(4, Strategy::Greedy);
    let per_bucket: usize = covers[0].iter().map(|c| c.kernels.len()).sum();
    assert!(p.kernels.len() <= per_bucket * 3);
    assert_eq!(p, planned(4, Strategy::Greedy).2);
    let mut names: Vec<_> = p.kernels.iter().map(|k| k.kernel.name.clone()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), p.kernels.len());
}

#[test]
fn the_report_counts_the_launches_of_the_plan() {
    let (m, covers, p) = planned(2, Strategy::Greedy);
    let r = unglue_passes::report::report(&m, vec![], &covers, &p, &GFX1201);
    for (bucket, planned) in r.buckets.iter().zip(&p.buckets) {
        assert_eq!(bucket.total.launches, planned.launches.len() as u64);
        assert_eq!(bucket.by_class.values().map(|t| t.launches).sum::<u64>(), bucket.total.launches);
        assert!(bucket.unfused_launches > bucket.total.launches);
        for body in &bucket.bodies {
            assert!(body.ops.iter().all(|o| !o.kernels.is_empty()));
        }
    }
}

proptest! {
    #[test]
    fn arenas_of_random_buffers_never_overlap(
        list in prop::collection::vec((0u32..40, 0u32..12, 1u64..5000, any::<bool>()), 1..60)
    ) {
        let live: Vec<_> = list.iter().map(|(from, len, _, used)| used.then_some((*from, from + len))).collect();
        let sizes: Vec<u64> = list.iter().map(|l| l.2).collect();
        let names: Vec<String> = (0..list.len()).map(|i| format!("b{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (offsets, length) = arena::place(&live, &sizes, &names);
        let placed: Vec<_> = (0..list.len())
            .filter_map(|i| {
                let ((from, to), at) = (live[i]?, offsets[i]?);
                Some((at, at + sizes[i], from, to))
            })
            .collect();
        prop_assert_eq!(placed.len(), live.iter().flatten().count());
        check_disjoint(&placed, length);
    }
}
