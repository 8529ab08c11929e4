//! What each class of rewrites would save: launches and predicted time of a step of one row at each level of `--numerics`.
//!
//! Bodies are rewritten and covered anew at the levels that the build does not have; forms that are equal are covered
//! once. Covers are the greedy ones, also where the build's are exact ones: levels are compared by one strategy.

use schemars::JsonSchema;
use serde::Serialize;
use unglue_ir::graph::Graph;
use unglue_ir::module::Module;

use crate::cost::CostTable;
use crate::cover::{CoverOptions, Strategy, cover};
use crate::error::PassError;
use crate::kernel::{BodyCover, Exactness, Numerics};
use crate::saturate::{Limits, optimise};
use crate::schedule::Bucket;

/// A step at one level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ClassReport {
    pub numerics: Numerics,
    /// Launches of the step.
    pub launches: u64,
    /// Tag `modelled`.
    pub predicted_ns: u64,
    /// In the order of the module.
    pub bodies: Vec<ClassBody>,
}

/// One call of a body at one level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ClassBody {
    pub body: String,
    /// The weakest class of its kernels.
    pub exactness: Exactness,
    /// Declared values whose form is not exact.
    pub loose: u64,
    pub launches: u64,
    pub predicted_ns: u64,
}

/// Compares the levels. `built`: the covers of the build in `bucket`, if they are greedy ones that no wish has changed.
///
/// # Errors
/// As [`optimise`] and [`cover`].
pub fn classes(
    declared: &Module,
    bucket: &Bucket,
    costs: &CostTable,
    strategy: Strategy,
    built: &[BodyCover],
) -> Result<Vec<ClassReport>, PassError> {
    let strategy = strategy.min(Strategy::Greedy);
    let mut reports: Vec<ClassReport> =
        Numerics::ALL.map(|numerics| ClassReport { numerics, launches: 0, predicted_ns: 0, bodies: vec![] }).into();
    for (i, body) in declared.bodies.iter().enumerate() {
        let calls = declared.calls.iter().filter(|c| c.body as usize == i).count() as u64;
        let of = |c: &BodyCover| (c.body.clone(), c.stats.kernels, c.stats.predicted_ns);
        let mut known: Vec<(Graph, u64, u64)> = built.get(i).map(of).into_iter().collect();
        for r in &mut reports {
            let (form, stats) = optimise(body, r.numerics, &Limits::default())?;
            let found = known.iter().find(|(g, ..)| *g == form).map(|(_, launches, ns)| (*launches, *ns));
            let (launches, predicted_ns) = match found {
                Some(found) => found,
                None => {
                    let c = cover(&form, bucket, costs, strategy, &CoverOptions::default())?;
                    known.push(of(&c));
                    (c.stats.kernels, c.stats.predicted_ns)
                }
            };
            r.launches += calls * launches;
            r.predicted_ns += calls * predicted_ns;
            let (loose, exactness) = (stats.loose.len() as u64, stats.exactness);
            r.bodies.push(ClassBody { body: body.name.clone(), exactness, loose, launches, predicted_ns });
        }
    }
    Ok(reports)
}
