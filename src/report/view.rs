//! The report of a bundle as this command reads it. Every field that is shown must be there and of its type; what must
//! agree with the manifest is checked. Fields that are not shown may come and go.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use unglue_runtime::manifest::{Bucket as Launches, Manifest};

/// The whole report.
#[derive(Debug, Deserialize)]
pub struct Report {
    pub costs: Costs,
    /// What every time is.
    pub tag: String,
    pub saturation: Vec<Saturation>,
    pub classes: Vec<Class>,
    pub buckets: Vec<Bucket>,
    /// What steps of a few rows take.
    pub steps: Vec<StepLoad>,
    /// Distinct kernels.
    pub kernels: u64,
}

/// The machine model that chose the kernels.
#[derive(Debug, Deserialize)]
pub struct Costs {
    pub target: String,
}

#[derive(Debug, Deserialize)]
pub struct Saturation {
    pub body: String,
    pub nodes_in: u64,
    pub nodes_out: u64,
    pub e_nodes: u64,
    pub classes: u64,
    pub iterations: u64,
    pub stop: String,
    pub fired: BTreeMap<String, u64>,
    /// Those of them on the way to the extracted form.
    pub paid: BTreeMap<String, u64>,
    /// By declared value: its number in the extracted form.
    pub became: Vec<Option<u64>>,
    /// By declared value: the rules that changed its form.
    pub rewritten: BTreeMap<u64, Vec<String>>,
    pub exactness: String,
    pub cost_in: u64,
    pub cost_out: u64,
    pub kept_declared: bool,
    pub repeats: Vec<Saturation>,
}

/// A step of one row at one level of `--numerics`.
#[derive(Debug, Deserialize)]
pub struct Class {
    pub numerics: String,
    pub launches: u64,
    pub predicted_ns: u64,
    pub bodies: Vec<ClassBody>,
}

/// One call of a body there.
#[derive(Debug, Deserialize)]
pub struct ClassBody {
    pub body: String,
    /// Declared values whose form is not exact.
    pub loose: u64,
    pub launches: u64,
    pub predicted_ns: u64,
}

#[derive(Debug, Deserialize)]
pub struct Bucket {
    pub rows_max: u64,
    pub seqs_max: u64,
    pub bodies: Vec<Body>,
    pub total: Totals,
    pub by_class: BTreeMap<String, Totals>,
    pub by_body: BTreeMap<String, Totals>,
    pub activations: Activations,
    /// Launches that only compute element by element.
    pub pointwise_launches: u64,
    pub unfused_launches: u64,
    pub unfused_ns: u64,
    pub arena_bytes: u64,
    pub unshared_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Totals {
    pub launches: u64,
    pub predicted_ns: u64,
    pub dram_bytes: u64,
    pub cache_bytes: u64,
}

/// Bytes of activations.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Activations {
    /// Each tensor written once, and read once by each launch that reads it.
    pub moved_bytes: u64,
    /// Written once and read once.
    pub least_bytes: u64,
    /// Read by every workgroup that needs it.
    pub issued_bytes: u64,
}

/// A step, with the launch list that it runs.
#[derive(Debug, Deserialize)]
pub struct StepLoad {
    pub rows: u64,
    pub seqs: u64,
    pub list_rows: u64,
    pub all: ClassLoad,
    pub by_class: BTreeMap<String, ClassLoad>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub struct ClassLoad {
    pub fused: Load,
    pub unfused: Load,
    pub floor: Floor,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Load {
    pub launches: u64,
    pub predicted_ns: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Floor {
    pub bytes: u64,
    pub ns: u64,
}

#[derive(Debug, Deserialize)]
pub struct Body {
    pub body: String,
    pub cover: Cover,
    pub ops: Vec<Op>,
    /// In launch order.
    pub kernels: Vec<Kernel>,
    /// Of one call.
    pub activations: Activations,
    pub pointwise: u64,
}

#[derive(Debug, Deserialize)]
pub struct Cover {
    pub unfused: u64,
    pub candidates: u64,
    pub fusions: u64,
    pub recomputed: u64,
    pub obstacles: BTreeMap<String, u64>,
    /// The integer program, if it was asked.
    pub exact: Option<Exact>,
    pub wishes: Wishes,
}

/// What the integer program did.
#[derive(Debug, Deserialize)]
pub struct Exact {
    pub candidates: u64,
    pub dominated: u64,
    /// Sets that were not looked at.
    pub cut: u64,
    pub variables: u64,
    pub cycle_cuts: u64,
    pub rounds: u64,
    pub greedy_ns: u64,
    pub objective_ns: u64,
    pub bound_ns: u64,
    pub gap_ppm: u64,
    pub kept_greedy: Option<String>,
}

/// Fusions that the command line asked for.
#[derive(Debug, Deserialize)]
pub struct Wishes {
    pub forced: Vec<Forced>,
    pub forbidden: Vec<[String; 2]>,
}

#[derive(Debug, Deserialize)]
pub struct Forced {
    pub a: String,
    pub b: String,
    pub delta_ns: i64,
}

#[derive(Debug, Deserialize)]
pub struct Op {
    pub value: u64,
    pub op: String,
    /// Where the model declares it.
    pub lines: Vec<String>,
    /// The kernels that compute it, by their names in the body.
    pub kernels: Vec<String>,
    /// Why it has a kernel to itself, if it has.
    pub alone: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct Kernel {
    /// Name in the bundle.
    pub name: String,
    /// Name in the body.
    pub in_body: String,
    pub class: String,
    /// Where the model declares its ops.
    pub lines: Vec<String>,
    pub reads: Vec<Port>,
    pub writes: Vec<Port>,
    pub traffic: Traffic,
    pub intensity: Option<f64>,
    pub workgroups: u64,
    pub schedule: String,
    pub predicted_ns: u64,
    pub t0_ns: u64,
    pub gap_ns: u64,
    /// Life of the longest wave, and what it costs if that is too long; part of `predicted_ns`.
    pub wave_cycles: u64,
    pub penalty_ns: u64,
    pub bound: String,
    pub by_target: BTreeMap<String, TargetTime>,
    /// It lies on the longest chain of kernels of its body that wait for each other.
    pub serial_chain: bool,
    pub removal: Removal,
    pub steps: Vec<Step>,
    pub rejected: Vec<Rejection>,
}

/// A value at the boundary of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Port {
    pub name: String,
    /// Number in the rewritten body; none for a leaf of it.
    pub value: Option<u64>,
    pub ty: String,
    /// None for a state.
    pub bytes: Option<u64>,
}

impl Port {
    /// `v98 (%98): bf16[R, 64], 128B`.
    pub fn text(&self) -> String {
        let number = self.value.map_or_else(String::new, |v| format!(" (%{v})"));
        let size = self.bytes.map_or_else(String::new, |b| format!(", {}", super::tables::bytes(b)));
        format!("{}{number}: {}{size}", self.name, self.ty)
    }
}

/// One launch with another target's cost table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct TargetTime {
    pub predicted_ns: u64,
    pub gap_ns: u64,
}

/// What would be saved at most if its neighbours did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Removal {
    pub launch_ns: u64,
    pub gap_ns: u64,
    pub bytes: u64,
    pub bytes_ns: u64,
    pub total_ns: u64,
}

/// One fusion: a group takes up another. Groups go by the number of the op that they started as.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Step {
    pub text: String,
    pub into: u64,
    pub from: u64,
}

/// A neighbour, by its name in the body, that stayed apart.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Rejection {
    pub with: String,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Verdict {
    NotTried,
    Obstacle { rule: String, detail: String },
    Cost { loss_ns: u64 },
    Cycle,
    Forbidden,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Traffic {
    pub weight_bytes: u64,
    pub state_bytes: u64,
    pub read_bytes: u64,
    /// Activations read by all workgroups together.
    pub reread_bytes: u64,
    pub written_bytes: u64,
    pub flops: u64,
}

/// What is wrong with a report: found and needed.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong {
    pub found: String,
    pub needed: String,
}

fn wrong<T>(found: impl Into<String>, needed: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong { found: found.into(), needed: needed.into() })
}

/// Reads the text of a report and checks that it speaks of the manifest's kernels and launches.
pub fn parse(text: &[u8], manifest: &Manifest) -> Result<Report, Wrong> {
    let report: Report = serde_json::from_slice(text)
        .or_else(|e| wrong(format!("JSON that is no report ({e})"), "the fields that `unglue compile` writes"))?;
    if report.kernels != manifest.kernels.len() as u64 {
        return wrong(format!("{} kernels", report.kernels), format!("the manifest's {}", manifest.kernels.len()));
    }
    if report.buckets.len() != manifest.buckets.len() {
        let needed = format!("the manifest's {}", manifest.buckets.len());
        return wrong(format!("{} launch lists", report.buckets.len()), needed);
    }
    let names: BTreeSet<&str> = manifest.kernels.iter().map(|k| k.name.as_str()).collect();
    for (bucket, launches) in report.buckets.iter().zip(&manifest.buckets) {
        check_bucket(bucket, launches, manifest)?;
        let launched = bucket.bodies.iter().filter(|b| bucket.by_body.contains_key(&b.body));
        for kernel in launched.flat_map(|b| &b.kernels) {
            if !names.contains(kernel.name.as_str()) {
                return wrong(format!("kernel {}", kernel.name), "a kernel of the manifest");
            }
        }
    }
    Ok(report)
}

fn check_bucket(bucket: &Bucket, launches: &Launches, manifest: &Manifest) -> Result<(), Wrong> {
    let size = |rows: u64, seqs: u64| format!("a launch list for {rows} rows of {seqs} sequences");
    if (bucket.rows_max, bucket.seqs_max) != (launches.rows_max, launches.seqs_max) {
        return wrong(size(bucket.rows_max, bucket.seqs_max), size(launches.rows_max, launches.seqs_max));
    }
    let mut by_class: BTreeMap<&str, u64> = BTreeMap::new();
    for kernel in launches.launches.iter().filter_map(|l| manifest.kernels.get(l.kernel as usize)) {
        *by_class.entry(&kernel.class).or_default() += 1;
    }
    let reported: BTreeMap<&str, u64> = bucket.by_class.iter().map(|(c, t)| (c.as_str(), t.launches)).collect();
    let count = |n: u64, classes: &BTreeMap<&str, u64>| {
        let classes: Vec<String> = classes.iter().map(|(c, n)| format!("{n} {c}")).collect();
        format!("{n} launches for {} rows ({})", bucket.rows_max, classes.join(", "))
    };
    let all = launches.launches.len() as u64;
    if bucket.total.launches != all || by_class != reported {
        return wrong(count(bucket.total.launches, &reported), count(all, &by_class));
    }
    Ok(())
}
