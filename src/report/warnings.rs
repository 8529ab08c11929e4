//! Warnings of a build: kernels that the machine model says are shaped against the machine. Nothing fails by them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use unglue_runtime::manifest::Manifest;

use super::tables::{Page, us};
use super::view::{Kernel, Report};

/// Waves a SIMD that a kernel needs to keep DRAM busy (`specs/costmodel.md` 6, rule 1).
pub const STREAMING_OCCUPANCY: u32 = 8;

/// All warnings, by kernel.
#[derive(Debug, Default, Serialize)]
pub struct Warnings {
    pub low_occupancy: Vec<LowOccupancy>,
    pub long_waves: Vec<LongWaves>,
}

/// A kernel that DRAM limits in some launch list, with fewer than [`STREAMING_OCCUPANCY`] waves a SIMD.
#[derive(Debug, Serialize)]
pub struct LowOccupancy {
    pub kernel: String,
    pub target: String,
    pub occupancy: u32,
}

/// A kernel that pays for waves that live too long.
#[derive(Debug, Serialize)]
pub struct LongWaves {
    pub kernel: String,
    /// The largest step of the launch list.
    pub rows: u64,
    pub cycles: u64,
    pub penalty_ns: u64,
}

/// Checks every kernel that is launched. Occupancy is read from machine code, 0 on targets that have none.
pub fn of(m: &Manifest, report: &Report) -> Warnings {
    let launched = || {
        report.buckets.iter().flat_map(|b| {
            let bodies = b.bodies.iter().filter(|x| b.by_body.contains_key(&x.body));
            bodies.flat_map(|x| &x.kernels).map(move |k| (b.rows_max, k))
        })
    };
    let streaming: BTreeSet<&str> =
        launched().filter(|(_, k)| k.bound == "dram").map(|(_, k)| k.name.as_str()).collect();
    let mut warnings = Warnings::default();
    for k in m.kernels.iter().filter(|k| streaming.contains(k.name.as_str())) {
        for (target, r) in k.resources.iter().filter(|(_, r)| (1..STREAMING_OCCUPANCY).contains(&r.occupancy)) {
            let (kernel, target) = (k.name.clone(), target.clone());
            warnings.low_occupancy.push(LowOccupancy { kernel, target, occupancy: r.occupancy });
        }
    }
    let long: BTreeMap<(&str, u64), &Kernel> =
        launched().filter(|(_, k)| k.penalty_ns > 0).map(|(rows, k)| ((k.name.as_str(), rows), k)).collect();
    warnings.long_waves.extend(long.into_iter().map(|((kernel, rows), k)| LongWaves {
        kernel: kernel.into(),
        rows,
        cycles: k.wave_cycles,
        penalty_ns: k.penalty_ns,
    }));
    warnings
}

pub fn page(page: &mut Page, m: &Manifest, report: &Report) {
    let warnings = of(m, report);
    page.title(format!("Warnings [occupancy compiled; waves {}]", report.tag));
    if warnings.low_occupancy.is_empty() && warnings.long_waves.is_empty() {
        page.line("none");
        return;
    }
    if !warnings.low_occupancy.is_empty() {
        let rows = warnings.low_occupancy.iter();
        let rows = rows.map(|w| vec![w.kernel.clone(), w.target.clone(), w.occupancy.to_string()]).collect();
        page.table(&["limited by DRAM, few waves a SIMD", "target", ">occupancy"], rows);
        page.note(&format!("A kernel that streams weights wants {STREAMING_OCCUPANCY} waves a SIMD or more."));
    }
    if !warnings.long_waves.is_empty() {
        let row =
            |w: &LongWaves| vec![w.kernel.clone(), w.rows.to_string(), (w.cycles / 1000).to_string(), us(w.penalty_ns)];
        page.table(
            &["waves that live too long", ">rows", ">kcycles", ">us each"],
            warnings.long_waves.iter().map(row).collect(),
        );
        page.note("us each: what that costs a launch, part of its time above. More and shorter waves would avoid it.");
    }
}
