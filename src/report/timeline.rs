//! The launches of a step on a line of predicted time: one after the other, each followed by its gap.

use std::collections::BTreeMap;

use unglue_runtime::manifest::{self, Manifest};

use super::view::{self, Wrong};

/// A launch. Times in ns, modelled.
#[derive(Clone, Copy, Debug)]
pub struct Timed<'a> {
    pub launch: &'a manifest::Launch,
    pub kernel: &'a view::Kernel,
    pub start_ns: u64,
}

/// The launches of a list in order, from 0 on.
///
/// # Errors
/// If the report has no cost of a launched kernel, or another sum than its launches have.
pub fn of<'a>(m: &Manifest, list: &'a manifest::Bucket, reported: &'a view::Bucket) -> Result<Vec<Timed<'a>>, Wrong> {
    // Kernels that do the same work in several bodies are one kernel of the bundle, with one cost.
    let kernels = reported.bodies.iter().flat_map(|b| &b.kernels);
    let costs: BTreeMap<&str, &view::Kernel> = kernels.map(|k| (k.name.as_str(), k)).collect();
    let mut out = Vec::with_capacity(list.launches.len());
    let mut now = 0u64;
    for launch in &list.launches {
        let name = m.kernels.get(launch.kernel as usize).map_or("", |k| k.name.as_str());
        let Some(kernel) = costs.get(name) else {
            let found = format!("no predicted time of kernel {name} for {} rows", list.rows_max);
            return Err(Wrong { found, needed: "one for every launched kernel".into() });
        };
        out.push(Timed { launch, kernel, start_ns: now });
        now = now.saturating_add(kernel.predicted_ns).saturating_add(kernel.gap_ns);
    }
    if now != reported.total.predicted_ns {
        let found = format!("{} ns predicted for {} rows", reported.total.predicted_ns, list.rows_max);
        return Err(Wrong { found, needed: format!("the sum over its launches, {now} ns") });
    }
    Ok(out)
}
