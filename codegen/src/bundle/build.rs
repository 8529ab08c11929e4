//! Kernels of a plan: generated once, compiled for every target in parallel, gated.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use unglue_passes::Exactness;
use unglue_passes::plan::{Plan, PlannedKernel};
use unglue_passes::schedule::{Bucket, fit};
use unglue_runtime::manifest;

use super::describe::{self, Facts};
use crate::cache::Cache;
use crate::error::CodegenError;
use crate::gates::{self, Resources};
use crate::generate::{self, Generated};
use crate::kp::fault;
use crate::target::Target;
use crate::{link, llvm};

/// A kernel with its code for each target.
pub struct Compiled {
    pub generated: Generated,
    pub entry: manifest::Kernel,
    /// Object file, code object or text per target, in the order of the targets.
    pub code: Vec<Vec<u8>>,
}

/// Called after each kernel with (done, all).
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// How kernels are compiled; the result depends on the fault alone.
pub struct How<'a> {
    /// Seed of the delays that are built into grid finishes, to test with.
    pub delay: Option<u64>,
    /// Threads.
    pub jobs: usize,
    /// Object files of earlier builds.
    pub cache: Option<&'a Cache>,
    pub progress: Progress<'a>,
}

/// First bucket that launches each kernel: the one that it was scheduled for.
fn buckets_of(plan: &Plan) -> Vec<Bucket> {
    let default = Bucket { rows_max: 1, seqs_max: 1, pools: 0, fit: &fit::GFX1201 };
    let mut out = vec![default; plan.kernels.len()];
    for b in plan.buckets.iter().rev() {
        for launch in &b.launches {
            out[launch.kernel as usize] = b.bucket;
        }
    }
    out
}

/// Compiles all kernels of a plan.
///
/// # Errors
/// The error of the first kernel, in plan order, that cannot be compiled.
pub fn compile(plan: &Plan, targets: &[&'static Target], how: &How) -> Result<Vec<Compiled>, CodegenError> {
    let buckets = buckets_of(plan);
    let done = AtomicUsize::new(0);
    let all = plan.kernels.len();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(how.jobs).stack_size(32 << 20).build().map_err(|e| {
        CodegenError::Link { what: "kernels".into(), target: "host", linker: "rayon".into(), message: e.to_string() }
    })?;
    let results: Vec<Result<Compiled, CodegenError>> = pool.install(|| {
        plan.kernels
            .par_iter()
            .zip(buckets)
            .map(|(k, bucket)| {
                let out = compile_kernel(k, bucket, targets, how);
                (how.progress)(done.fetch_add(1, Ordering::Relaxed) + 1, all);
                out
            })
            .collect()
    });
    results.into_iter().collect()
}

fn compile_kernel(
    k: &PlannedKernel,
    bucket: Bucket,
    targets: &[&'static Target],
    how: &How,
) -> Result<Compiled, CodegenError> {
    let kernel = &k.kernel;
    let mut generated = generate::generate(&kernel.name, &kernel.graph, &kernel.schedule, bucket.pools)?;
    if let Some(seed) = how.delay {
        generated.program = fault::delayed(&generated.program, seed);
    }
    let facts = Facts {
        class: kernel.class.name().into(),
        exactness: match kernel.exactness {
            Exactness::Exact => manifest::Exactness::Exact,
            Exactness::Rounding => manifest::Exactness::Rounding,
            Exactness::Reassociating => manifest::Exactness::Reassociating,
        },
        ops: op_names(k),
    };
    let mut entry = describe::kernel(&kernel.graph, &kernel.schedule, &generated, facts);
    let mut code = Vec::with_capacity(targets.len());
    for t in targets {
        let object = llvm::compile_cached(&generated.program, t, how.cache)?;
        if t.packaging.per_kernel() {
            let linked = link::kernel(&kernel.name, object, t)?;
            let streams: Vec<gates::Stream> = generated.streams.iter().copied().collect();
            let r = gates::check_streams(&linked, &generated.program, t, &streams)?;
            entry.resources.insert(t.name.into(), resources(&r));
            code.push(linked);
        } else {
            code.push(object);
        }
    }
    Ok(Compiled { generated, entry, code })
}

/// Ops of a kernel, in order, without views and leaves.
fn op_names(k: &PlannedKernel) -> Vec<String> {
    let g = &k.kernel.graph;
    let formed = |id: &unglue_ir::graph::ValueId| {
        let op = &g.node(*id).op;
        !unglue_passes::schedule::is_leaf(op) && !unglue_passes::schedule::is_view(op)
    };
    g.ids().filter(formed).map(|id| format!("%{} {}", id.0, unglue_ir::infer::op_name(&g.node(id).op))).collect()
}

fn resources(r: &Resources) -> manifest::Resources {
    manifest::Resources {
        vgprs: r.vgprs,
        sgprs: r.sgprs,
        vgpr_spills: r.vgpr_spills,
        sgpr_spills: r.sgpr_spills,
        lds_bytes: r.lds_bytes.into(),
        scratch_bytes: r.scratch_bytes.into(),
        occupancy: r.occupancy,
        code_bytes: r.code_bytes,
    }
}

/// Code parts of a bundle: one file for all kernels, or one a kernel.
///
/// # Errors
/// [`CodegenError::Link`] if the linker refuses.
pub fn parts(kernels: &[Compiled], targets: &[&'static Target]) -> Result<Vec<unglue_runtime::PartData>, CodegenError> {
    let mut parts = Vec::new();
    for (i, t) in targets.iter().enumerate() {
        if t.packaging.per_kernel() {
            for (n, k) in kernels.iter().enumerate() {
                parts.push(unglue_runtime::PartData {
                    path: format!("code/{}/{}.{}", t.name, k.entry.name, t.packaging.extension()),
                    kind: manifest::PartKind::Code { target: t.name.into(), kernel: Some(n as u32) },
                    bytes: k.code[i].clone(),
                });
            }
            continue;
        }
        let objects: Vec<(String, Vec<u8>)> =
            kernels.iter().map(|k| (k.entry.name.clone(), k.code[i].clone())).collect();
        parts.push(unglue_runtime::PartData {
            path: format!("code/{}.so", t.name),
            kind: manifest::PartKind::Code { target: t.name.into(), kernel: None },
            bytes: link::shared_object(&objects, t)?,
        });
    }
    Ok(parts)
}

/// Parameters of a kernel by what they stand for.
pub fn parameter_index(k: &PlannedKernel) -> BTreeMap<(unglue_passes::plan::Role, &str), usize> {
    k.params.iter().enumerate().map(|(i, p)| ((p.role, p.name.as_str()), i)).collect()
}
