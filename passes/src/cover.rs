//! Chooses which ops become which kernels, for one body and bucket.
//!
//! In: an extracted body, the cost table, a strategy. Out: a [`BodyCover`]: kernels in launch order that compute every op
//! of the body and store each value once. The greedy search is a heuristic; [`crate::exact`] chooses by an integer program
//! and says how far from the best choice of its candidates it may be.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use unglue_ir::graph::{Graph, ValueId};

use crate::candidates::{Evaluator, Partition};
use crate::carve::Stores;
use crate::cost::CostTable;
use crate::error::PassError;
use crate::exact::{self, ExactStats};
use crate::facts::Facts;
use crate::kernel::{BodyCover, CoverStats, Exactness};
use crate::schedule::Bucket;
use crate::search::Search;
use crate::wishes::{self, Wish};

/// How kernels are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// One op per kernel.
    None,
    #[default]
    Greedy,
    /// The integer program; the greedy cover where it finds nothing better.
    Exact,
}

impl Strategy {
    pub fn name(self) -> &'static str {
        match self {
            Strategy::None => "none",
            Strategy::Greedy => "greedy",
            Strategy::Exact => "exact",
        }
    }
}

/// Wishes of the caller, in values of the extracted body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoverOptions {
    /// Pairs that must not share a kernel.
    pub forbid: Vec<Wish>,
    /// Pairs that must share a kernel, whatever it costs.
    pub force: Vec<Wish>,
    /// Rewrite classes of the body's values, where not exact: [`crate::saturate::SaturationStats::touched`].
    pub touched: BTreeMap<u32, Exactness>,
    /// Kernels of a cover that was found elsewhere, or nothing: the cover is no dearer, but for ties.
    pub seed: Vec<BTreeSet<ValueId>>,
}

/// Covers a body with kernels.
///
/// # Errors
/// [`PassError::Cover`] if an op has no schedule, or a forced pair cannot be one kernel.
pub fn cover(
    body: &Graph,
    bucket: &Bucket,
    costs: &CostTable,
    strategy: Strategy,
    options: &CoverOptions,
) -> Result<BodyCover, PassError> {
    cover_with(body, bucket, costs, strategy, options, &mut |_, _| {})
}

/// [`cover`], with a look at what the search has when it ends, and at the views that it stores.
pub(crate) fn cover_with(
    body: &Graph,
    bucket: &Bucket,
    costs: &CostTable,
    strategy: Strategy,
    options: &CoverOptions,
    look: &mut dyn FnMut(&mut Search, &BTreeSet<ValueId>),
) -> Result<BodyCover, PassError> {
    let views = stored_views(body, bucket, costs);
    let facts = Facts::with_ops(body, &views);
    let stores = Stores::new(&facts);
    let evaluator = Evaluator::new(&facts, &stores, bucket, costs);
    let mut search = Search::new(&facts, evaluator, strategy != Strategy::None);
    let unfused = search.partition.groups.len() as u64;
    let unfused_ns = search.total_ns();
    let seed = &options.seed;
    let mut exact = run(&mut search, strategy, seed);
    look(&mut search, &views);
    let wishes = wishes::obey(&mut search, options, bucket, &mut |search| exact = run(search, strategy, seed))?;
    let kernels = search.kernels(&options.touched)?;
    let stats = CoverStats {
        strategy: strategy.name().into(),
        unfused,
        kernels: kernels.len() as u64,
        candidates: search.evaluator.candidates(),
        obstacles: search.evaluator.obstacles.clone(),
        fusions: search.fusions,
        recomputed: facts.ops().filter(|op| search.partition.is_recomputed(*op)).count() as u64,
        predicted_ns: kernels.iter().map(|k| k.cost.total()).sum(),
        unfused_ns,
        exact,
        wishes,
    };
    Ok(BodyCover { body: body.clone(), kernels, stats })
}

/// Searches from the present partition on.
fn run(search: &mut Search, strategy: Strategy, seed: &[BTreeSet<ValueId>]) -> Option<ExactStats> {
    if strategy != Strategy::None {
        search.greedy();
    }
    (strategy == Strategy::Exact).then(|| exact::improve(search, seed))
}

/// Slices and broadcasts that some op cannot take as they are in a kernel of its own: they get kernels too.
pub(crate) fn stored_views(body: &Graph, bucket: &Bucket, costs: &CostTable) -> BTreeSet<ValueId> {
    let mut stored = BTreeSet::new();
    loop {
        let facts = Facts::with_ops(body, &stored);
        let stores = Stores::new(&facts);
        let mut evaluator = Evaluator::new(&facts, &stores, bucket, costs);
        let singles = Partition::singles(&facts);
        let before = stored.len();
        for (&op, ops) in &singles.groups {
            if evaluator.evaluate(&singles, ops, &BTreeSet::from([op])).is_err() {
                stored.extend(facts.views_under(op));
            }
        }
        if stored.len() == before {
            return stored;
        }
    }
}
