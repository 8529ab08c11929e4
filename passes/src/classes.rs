//! What each class of rewrites would save: launches and predicted time of a step of one row at each level of `--numerics`.
//!
//! With the integer program, levels up to the build's are as it chose them, and looser ones are priced for that step alone:
//! none is slower than a stricter one. Otherwise bodies are rewritten by the extractor's costs at the levels that the build
//! does not have; forms that are equal are covered once.

use schemars::JsonSchema;
use serde::Serialize;
use unglue_ir::graph::Graph;
use unglue_ir::module::Module;

use crate::choice::Choice;
use crate::cost::CostTable;
use crate::cover::{CoverOptions, Strategy, cover};
use crate::error::PassError;
use crate::kernel::{BodyCover, Exactness, Numerics};
use crate::saturate::{Limits, SaturationStats, optimise};
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
/// `levels`: by body, the choices of all levels, whose first launch list has `bucket`; none if none were made.
///
/// # Errors
/// As [`optimise`] and [`cover`].
pub fn classes(
    declared: &Module,
    bucket: &Bucket,
    costs: &CostTable,
    strategy: Strategy,
    built: &[BodyCover],
    levels: &[Vec<Choice>],
) -> Result<Vec<ClassReport>, PassError> {
    let mut reports: Vec<ClassReport> =
        Numerics::ALL.map(|numerics| ClassReport { numerics, launches: 0, predicted_ns: 0, bodies: vec![] }).into();
    for (i, body) in declared.bodies.iter().enumerate() {
        let calls = declared.calls.iter().filter(|c| c.body as usize == i).count() as u64;
        let of = |c: &BodyCover| (c.body.clone(), c.stats.kernels, c.stats.predicted_ns);
        let mut known: Vec<(Graph, u64, u64)> = built.get(i).map(of).into_iter().collect();
        if let Some(levels) = levels.get(i) {
            for (r, choice) in reports.iter_mut().zip(levels) {
                let first = choice.takes.first().map(|t| (t.launches, t.ns));
                r.add(&choice.stats, calls, first.unwrap_or_default());
            }
            continue;
        }
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
            r.add(&stats, calls, (launches, predicted_ns));
        }
    }
    Ok(reports)
}

impl ClassReport {
    /// Adds a body; launches and ns are those of one of its `calls`.
    fn add(&mut self, stats: &SaturationStats, calls: u64, (launches, predicted_ns): (u64, u64)) {
        self.launches += calls * launches;
        self.predicted_ns += calls * predicted_ns;
        let (loose, exactness) = (stats.loose.len() as u64, stats.exactness);
        self.bodies.push(ClassBody { body: stats.body.clone(), exactness, loose, launches, predicted_ns });
    }
}
