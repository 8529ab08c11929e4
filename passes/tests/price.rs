//! A kernel that stores more is not cheaper.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{all, bucket, gated, head, streams_of};
use unglue_passes::cost::{GFX1201, kernel_cost};
use unglue_passes::schedule::{is_leaf, schedule};
use unglue_passes::{CoverOptions, Limits, Numerics, Strategy, cover, optimise};

/// A stored value can spare the finish stage a few dependent steps that would form it again.
const STEPS_NS: u64 = 10;

#[test]
fn an_output_more_never_lowers_the_price() {
    let mut compared = 0;
    for body in all().into_iter().chain([gated(4096, 512), head(4096, 4096), streams_of(2048)]) {
        let (body, _) = optimise(&body, Numerics::Exact, &Limits::default()).unwrap();
        for (rows, strategy) in [1, 4, 16].iter().flat_map(|r| [(*r, Strategy::None), (*r, Strategy::Greedy)]) {
            let bucket = bucket(rows);
            let kernels = cover(&body, &bucket, &GFX1201, strategy, &CoverOptions::default()).unwrap().kernels;
            for k in kernels {
                let stored = |v| k.graph.outputs.iter().any(|(_, o)| *o == v);
                let inner = |v: &_| !is_leaf(&k.graph.node(*v).op) && k.graph.ty(*v).tensor().is_some() && !stored(*v);
                for v in k.graph.ids().filter(inner) {
                    let mut more = k.graph.clone();
                    more.outputs.push(("more".into(), v));
                    let Ok(s) = schedule(&more, &bucket) else { continue };
                    let cost = kernel_cost(&more, &s, &bucket, &GFX1201);
                    compared += 1;
                    let at = format!("{} for {rows} rows with %{}", k.name, v.0);
                    assert!(cost.total() + STEPS_NS >= k.cost.total(), "{at}: {cost:?}, without it {:?}", k.cost);
                }
            }
        }
    }
    assert!(compared > 100, "{compared}");
}
