//! The manifest of a plan.

use unglue_ir::module::{Module, WeightDecl};
use unglue_ir::op::Domain;
use unglue_ir::types::{DType, Dim, Format, Packing, StateKind, TensorType};
use unglue_passes::plan::{Arg, BucketPlan, Launch, Plan, Role};
use unglue_runtime::manifest as m;

use super::build::{Compiled, parameter_index};
use super::describe;
use crate::error::CodegenError;
use crate::generate::{StepBuffer, StepScalar, Use};
use crate::kp::awaits;
use crate::target::Target;

fn refuse(what: &str, found: impl Into<String>) -> CodegenError {
    CodegenError::Bundle { what: what.into(), found: found.into() }
}

fn mem(d: Option<DType>, what: &str) -> Result<m::Mem, CodegenError> {
    match d {
        Some(DType::F32) => Ok(m::Mem::F32),
        Some(DType::Bf16) => Ok(m::Mem::Bf16),
        Some(DType::F16) => Ok(m::Mem::F16),
        Some(DType::I32) => Ok(m::Mem::I32),
        other => Err(refuse(what, format!("dtype {other:?} has no memory format yet"))),
    }
}

fn dims(shape: &[Dim]) -> Vec<m::Dim> {
    shape
        .iter()
        .map(|d| match d {
            Dim::Fixed(n) => m::Dim::Fixed(*n),
            Dim::Rows => m::Dim::Rows,
            Dim::Seqs => m::Dim::Seqs,
            Dim::Logits => m::Dim::Logits,
            Dim::Pools => m::Dim::Pools,
        })
        .collect()
}

fn fixed(ty: &TensorType, what: &str) -> Result<Vec<u64>, CodegenError> {
    ty.shape.iter().map(|d| d.fixed().ok_or_else(|| refuse(what, format!("symbolic extent {d}")))).collect()
}

fn source(s: &unglue_ir::module::Source, transposed: bool) -> Result<m::Source, CodegenError> {
    Ok(m::Source {
        tensor: s.tensor.clone(),
        dtype: mem(Some(s.dtype), &s.tensor)?,
        shape: s.shape.clone(),
        view: s.view.clone(),
        slice: s.slice.as_ref().map(|c| m::Slice { axis: c.axis, start: c.start, len: c.len }),
        transposed,
    })
}

/// The buffers of a weight: its elements, or words and scales of int4, whose rows are brought together.
fn buffers(w: &WeightDecl) -> Result<Vec<m::Weight>, CodegenError> {
    let all = fixed(&w.ty, &w.name)?;
    let Format::Int4 { group, packing, scales } = w.ty.format else {
        let sources = w.sources.iter().map(|s| source(s, false)).collect::<Result<_, _>>()?;
        return Ok(vec![m::Weight { name: w.name.clone(), mem: mem(w.ty.dtype(), &w.name)?, shape: all, sources }]);
    };
    let part = |name: String, dtype: DType, per: u64| {
        let sources = w.sources.iter().filter(|s| s.dtype == dtype);
        let sources = sources.map(|s| source(s, packing == Packing::GptqColumns)).collect::<Result<_, _>>()?;
        let mut shape = all.clone();
        shape.iter_mut().rev().take(1).for_each(|k| *k /= per.max(1));
        Ok(m::Weight { name, mem: mem(Some(dtype), &w.name)?, shape, sources })
    };
    let words = part(w.name.clone(), DType::I32, 8)?;
    Ok(vec![words, part(format!("{}.scales", w.name), scales.dtype(), u64::from(group))?])
}

/// The manifest's weights, and the number of each module weight's first buffer.
fn weights(module: &Module) -> Result<(Vec<m::Weight>, Vec<u32>), CodegenError> {
    let (mut all, mut first) = (Vec::new(), Vec::new());
    for w in &module.weights {
        first.push(all.len() as u32);
        all.extend(buffers(w)?);
    }
    Ok((all, first))
}

/// `layer<i>.<role>` to its parts.
fn state(s: &unglue_ir::module::StateDecl) -> Result<m::State, CodegenError> {
    let parts = s.name.strip_prefix("layer").and_then(|r| r.split_once('.'));
    let layer = parts.and_then(|(n, _)| n.parse().ok());
    let role = match parts.map(|(_, r)| r) {
        Some("recurrent") => Some(m::StateRole::Recurrent),
        Some("conv") => Some(m::StateRole::Conv),
        Some("latent") => Some(m::StateRole::Latent),
        Some("pool_keys") => Some(m::StateRole::PoolKeys),
        Some("tail") => Some(m::StateRole::Tail),
        _ => None,
    };
    let (Some(layer), Some(role)) = (layer, role) else {
        return Err(refuse("states", format!("`{}` is not layer<i>.<recurrent|conv|latent|pool_keys|tail>", s.name)));
    };
    let kind = match &s.ty.kind {
        StateKind::Slot { shape } => m::StateKind::Slot { shape: shape.clone() },
        StateKind::Token { width } => m::StateKind::Token { width: *width },
        StateKind::Pool { width, pool } => m::StateKind::Pool { width: *width, pool: *pool },
        StateKind::Tail { pool, width } => m::StateKind::Tail { pool: *pool, width: *width },
    };
    Ok(m::State { name: s.name.clone(), layer, role, kind, mem: mem(Some(s.ty.dtype), &s.name)? })
}

/// What each module input and weight is to the runtime.
struct Inputs {
    args: Vec<m::Arg>,
    slot_tables: Vec<m::SlotTable>,
    /// Number of each module weight's first buffer.
    weights: Vec<u32>,
}

fn inputs(module: &Module, weights: Vec<u32>) -> Result<Inputs, CodegenError> {
    let mut out = Inputs { args: vec![], slot_tables: vec![], weights };
    for input in &module.inputs {
        let layer =
            input.name.strip_prefix("layer").and_then(|r| r.strip_suffix(".slots")).and_then(|n| n.parse().ok());
        let arg = match (input.name.as_str(), layer, input.domain) {
            ("ids", ..) => m::Arg::Input(m::StepInput::Ids),
            ("logit_rows", ..) => m::Arg::Input(m::StepInput::LogitRows),
            (_, Some(layer), Domain::Slots(slots)) => {
                let experts = fixed(&input.ty, &input.name)?.first().copied().unwrap_or(0);
                out.slot_tables.push(m::SlotTable { layer, experts, slots });
                m::Arg::SlotTable(out.slot_tables.len() as u32 - 1)
            }
            (name, ..) => {
                return Err(refuse(
                    "module inputs",
                    format!("`{name}`: a step has ids, logit_rows and layer<i>.slots"),
                ));
            }
        };
        out.args.push(arg);
    }
    Ok(out)
}

fn step_input(s: StepBuffer) -> m::StepInput {
    match s {
        StepBuffer::Positions => m::StepInput::Positions,
        StepBuffer::RowSeq => m::StepInput::RowSeq,
        StepBuffer::QStart => m::StepInput::QStart,
        StepBuffer::Slot => m::StepInput::Slot,
        StepBuffer::BlockTable => m::StepInput::BlockTable,
        StepBuffer::Status => m::StepInput::Status,
        StepBuffer::Counter => m::StepInput::Counter,
    }
}

fn step_scalar(s: StepScalar, kernel: u32) -> m::Arg {
    m::Arg::Scalar(match s {
        StepScalar::Rows => m::StepScalar::Rows,
        StepScalar::Seqs => m::StepScalar::Seqs,
        StepScalar::Logits => m::StepScalar::Logits,
        StepScalar::BlockSize => m::StepScalar::BlockSize,
        StepScalar::BlocksPerSeq => m::StepScalar::BlocksPerSeq,
        StepScalar::MaxSlots => m::StepScalar::MaxSlots,
        StepScalar::NumBlocks => m::StepScalar::NumBlocks,
        StepScalar::KernelNumber => return m::Arg::Const(kernel as i32 + 1),
    })
}

fn launch(plan: &Plan, l: &Launch, kernels: &[Compiled], inputs: &Inputs) -> Result<m::Launch, CodegenError> {
    let planned = &plan.kernels[l.kernel as usize];
    let compiled = &kernels[l.kernel as usize];
    let index = parameter_index(planned);
    let value = |role: Role, name: &str| -> Result<m::Arg, CodegenError> {
        let arg = index.get(&(role, name)).and_then(|i| l.args.get(*i));
        Ok(match arg {
            Some(Arg::Weight(i)) => m::Arg::Weight(inputs.weights[*i as usize]),
            Some(Arg::State(i)) => m::Arg::State(*i),
            Some(Arg::Buffer(i)) => m::Arg::Buffer(*i),
            Some(Arg::Input(i)) => inputs.args[*i as usize],
            None => return Err(refuse("launch", format!("kernel {} has no argument `{name}`", compiled.entry.name))),
        })
    };
    let args = compiled
        .generated
        .uses
        .iter()
        .map(|of| match of {
            Use::Input(n) => value(Role::Input, n),
            Use::Weight(n) => value(Role::Weight, n),
            // They follow the words.
            Use::Scales(n) => Ok(match value(Role::Weight, n)? {
                m::Arg::Weight(i) => m::Arg::Weight(i + 1),
                other => other,
            }),
            Use::State(n) => value(Role::State, n),
            Use::Output(n) => value(Role::Output, n),
            Use::Step(s) => Ok(m::Arg::Input(step_input(*s))),
            Use::Scalar(s) => Ok(step_scalar(*s, l.kernel)),
        })
        .collect::<Result<_, _>>()?;
    Ok(m::Launch {
        kernel: l.kernel,
        grid: describe::grid(planned.kernel.schedule.grid()),
        args,
        layer: l.layer,
        site: l.site.clone(),
    })
}

fn bucket(plan: &Plan, b: &BucketPlan, kernels: &[Compiled], inputs: &Inputs) -> Result<m::Bucket, CodegenError> {
    Ok(m::Bucket {
        rows_max: u64::from(b.bucket.rows_max),
        seqs_max: u64::from(b.bucket.seqs_max),
        logits_max: u64::from(b.logits_max),
        pools: b.bucket.pools,
        arena_bytes: b.arena_bytes,
        offsets: b.offsets.clone(),
        launches: b.launches.iter().map(|l| launch(plan, l, kernels, inputs)).collect::<Result<_, _>>()?,
    })
}

fn outputs(plan: &Plan) -> Result<m::Outputs, CodegenError> {
    let find = |name: &str| {
        plan.taps
            .iter()
            .find(|t| t.name == name)
            .map(|t| t.buffer)
            .ok_or_else(|| refuse("outputs", format!("no `{name}`")))
    };
    let taps = plan
        .taps
        .iter()
        .filter(|t| t.name != "logits" && t.name != "argmax")
        .map(|t| m::Tap { name: t.name.clone(), buffer: t.buffer, after_launch: t.after_launch.clone() })
        .collect();
    Ok(m::Outputs { logits: find("logits")?, argmax: find("argmax")?, taps })
}

/// The manifest of a compiled plan.
///
/// # Errors
/// [`CodegenError::Bundle`] if the module has something that bundles cannot hold yet.
pub fn manifest(
    module: &Module,
    plan: &Plan,
    kernels: &[Compiled],
    targets: &[&'static Target],
    model: m::Model,
    options: m::Options,
) -> Result<m::Manifest, CodegenError> {
    let (weights, first) = weights(module)?;
    let inputs = inputs(module, first)?;
    let all_await = kernels.iter().all(|k| awaits(&k.generated.program));
    Ok(m::Manifest {
        format: m::FORMAT.into(),
        version: m::VERSION,
        model,
        options,
        parts: vec![],
        weights,
        states: module.states.iter().map(state).collect::<Result<_, _>>()?,
        buffers: plan
            .buffers
            .iter()
            .map(|b| Ok(m::Buffer { name: b.name.clone(), mem: mem(b.ty.dtype(), &b.name)?, shape: dims(&b.ty.shape) }))
            .collect::<Result<_, CodegenError>>()?,
        kernels: kernels.iter().map(|k| k.entry.clone()).collect(),
        buckets: plan.buckets.iter().map(|b| bucket(plan, b, kernels, &inputs)).collect::<Result<_, _>>()?,
        outputs: outputs(plan)?,
        awaits: targets.iter().filter(|t| t.trigger.is_some() && all_await).map(|t| t.name.to_owned()).collect(),
        slot_tables: inputs.slot_tables,
        all_reduce: vec![],
    })
}
