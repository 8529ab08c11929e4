//! Rewritten bodies of a bundle against the declared ones, in the bound of their class.
//!
//! Kernels are compared with their own graphs, which are cut out of the rewritten bodies. In an exact build these give the
//! declared bits; in others they do not, and how far they may be is a rule of numerics P4. A bundle holds the declared
//! trunk; the rewriting is repeated here with the form that the report says was chosen, and must be the one that it tells of.

use serde::Deserialize;
use unglue_codegen::check::rewrite::{Compared, Rewrite, check_rewrite};
use unglue_ir::graph::Graph;
use unglue_passes::choice::{ChoiceStats, repeat};
use unglue_passes::schedule::{Bucket, Fit};
use unglue_passes::{Limits, Numerics, optimise};
use unglue_runtime::{Bundle, manifest};

use crate::error::CliError;

/// Weights of a body that are drawn and multiplied in the interpreter; a body with more is left out, and said to be.
const MAX_ELEMENTS: u64 = 1 << 25;

/// What became of one body.
pub struct Checked {
    pub body: String,
    /// None if its weights are too many.
    pub compared: Option<Compared>,
}

/// Compares the bodies of a bundle that is not exact, on `draws.1` draws from seed `draws.0` on; nothing for one that is.
pub fn check(bundle: &Bundle, draws: (u64, u64)) -> Result<Vec<Checked>, CliError> {
    let m = bundle.manifest();
    let numerics = Numerics::by_name(&m.options.numerics).unwrap_or_default();
    let Some(bucket) = m.buckets.last().filter(|_| numerics != Numerics::Exact) else {
        return Ok(vec![]);
    };
    let missing = || CliError::input(bundle.path(), "no trunk or no report in it; compile again");
    let (text, report) = (bundle.trunk_ir().ok_or_else(missing)?, bundle.report().ok_or_else(missing)?);
    let broken = |e: &dyn std::fmt::Display| CliError::input(bundle.path(), e);
    let trunk = unglue_ir::text::parse_module(std::str::from_utf8(text).map_err(|e| broken(&e))?)?;
    unglue_ir::verify::module(&trunk)?;
    let report: serde_json::Value = serde_json::from_slice(report).map_err(|e| broken(&e))?;
    let fit = super::fit_of(m)?;
    let mut checked = Vec::new();
    for (i, declared) in trunk.bodies.iter().enumerate() {
        let choice = match report["saturation"][i].get("choice").filter(|c| !c.is_null()) {
            Some(c) => Some(ChoiceStats::deserialize(c).map_err(|e| broken(&e))?),
            None => None,
        };
        let (rewritten, stats) = match &choice {
            Some(choice) => repeat(declared, &Limits::default(), choice)?,
            None => optimise(declared, numerics, &Limits::default())?,
        };
        let now = serde_json::to_value(&stats).map_err(|e| broken(&e))?;
        if report["saturation"].get(i) != Some(&now) {
            let found =
                format!("body {}: this unglue rewrites it otherwise than the bundle's report says", declared.name);
            return Err(CliError::Failed(format!("{found}; verify with the unglue that compiled the bundle")));
        }
        let r = Rewrite { declared, rewritten: &rewritten, stats: &stats };
        let compared = (elements(declared) <= MAX_ELEMENTS).then(|| on_draws(&r, bucket, fit, draws)).transpose()?;
        checked.push(Checked { body: declared.name.clone(), compared });
    }
    Ok(checked)
}

fn elements(body: &Graph) -> u64 {
    let of = |ty: &unglue_ir::types::Type| {
        let dims = ty.tensor().map(|t| t.shape.iter().map(|d| d.fixed().unwrap_or(1)));
        dims.map_or(0, |d| d.fold(1u64, u64::saturating_mul))
    };
    body.weights().fold(0, |sum, (_, v)| of(body.ty(v)).saturating_add(sum))
}

/// All draws of a body; the last is the first that is wrong.
fn on_draws(
    r: &Rewrite,
    bucket: &manifest::Bucket,
    fit: &'static Fit,
    (first, draws): (u64, u64),
) -> Result<Compared, CliError> {
    let (rows_max, seqs_max) = (bucket.rows_max as u32, bucket.seqs_max as u32);
    let bucket = Bucket { rows_max, seqs_max, pools: bucket.pools, fit };
    let mut all = Compared::default();
    for draw in 0..draws.max(1) {
        let found = check_rewrite(r, &bucket, first.wrapping_add(draw))?;
        all.unbounded += found.unbounded;
        found.values.into_iter().for_each(|(class, n)| *all.values.entry(class).or_default() += n);
        if found.wrong.is_some() {
            return Ok(Compared { wrong: found.wrong, ..all });
        }
    }
    Ok(all)
}

/// The first body of those checked that leaves the bound of its class.
///
/// # Errors
/// [`CliError::Failed`] says where.
pub fn in_bounds(checked: &[Checked]) -> Result<(), CliError> {
    match checked.iter().filter_map(|b| b.compared.as_ref()?.wrong.as_ref()).next() {
        Some(first) => Err(CliError::Failed(format!("a rewritten body leaves the bound of its class: {first}"))),
        None => Ok(()),
    }
}
