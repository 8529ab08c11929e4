//! One sequence through a device and the interpreter side by side: the first launch whose outputs differ.
//!
//! A stored value is compared with the declared value that became it. Values that a rule brought in have none; what they
//! lead to is compared later on.

use std::collections::{BTreeMap, BTreeSet};

use unglue_ir::graph::ValueId;
use unglue_ir::interp::Tensor;
use unglue_ir::module::Module;
use unglue_models::checkpoint::Checkpoint;
use unglue_models::safetensors::Stored;
use unglue_runtime::manifest::{Arg, Manifest};
use unglue_runtime::{BufferReader, LaunchEvent};

use crate::cli;
use crate::device::DeviceKind;
use crate::error::CliError;
use crate::report::view::Report;
use crate::run::Work;
use crate::run::device::{OnDevice, weights_folder};
use crate::run::dump::Array;
use crate::run::interp::Interpreter;

/// A call and a declared value of its body.
type Place = (usize, u32);

/// A launch with a wrong output.
#[derive(Debug, serde::Serialize)]
pub struct Differs {
    /// Number in the launch list of so many rows.
    pub launch: usize,
    pub rows_max: u64,
    pub kernel: String,
    /// `layer3.kda%12`: the declared value that the output is.
    pub value: String,
    /// Token of the sequence, and element of its row.
    pub token: usize,
    pub element: usize,
    pub device: String,
    pub interpreter: String,
    /// Outputs of that launch and of those before it that were compared.
    pub compared: usize,
}

/// Feeds the ids in steps of as many rows as the bundle takes.
///
/// # Errors
/// [`CliError`] if the bundle, its weights or the ids do not fit together.
pub fn first(
    args: &cli::Bisect,
    ids: &str,
    trunk: &Module,
    report: &Report,
    m: &Manifest,
    kind: DeviceKind,
) -> Result<Option<Differs>, CliError> {
    if m.options.numerics != "exact" {
        let needed = "exact: only there every value has the interpreter's bits".into();
        return Err(CliError::Usage { rule: "--ids", found: format!("numerics {}", m.options.numerics), needed });
    }
    let run = cli::Run {
        input: args.bundle.clone(),
        weights: args.weights.clone(),
        ids: ids.to_owned(),
        steps: 0,
        decode_from: None,
        chunk: m.buckets.iter().map(|b| b.rows_max as usize).max().unwrap_or(1),
        device: args.device.clone(),
        threads: 0,
        dump: None,
        taps: false,
        block: None,
        trunk: cli::Trunk::default(),
        json: args.json,
    };
    let work = Work::of(&run)?;
    let mut device = OnDevice::open(&run, kind, &work)?;
    let mut interpreter = Interpreter::of(trunk.clone(), Checkpoint::open(&weights_folder(&run)?)?);
    let stored = stored(trunk, report, m);
    let wanted: BTreeSet<Place> = stored.values().copied().collect();
    let mut found = None;
    let mut compared = 0;
    for step in work.steps() {
        let ids = work.ids().get(step.clone()).unwrap_or_default();
        let mut values: BTreeMap<Place, Array> = BTreeMap::new();
        interpreter.observed(ids, &mut |call: usize, id: ValueId, t: &Tensor| {
            if wanted.contains(&(call, id.0)) {
                values.insert((call, id.0), t.into());
            }
        })?;
        let mut hook = |e: &LaunchEvent<'_>, reader: &dyn BufferReader| {
            for (buffer, place) in outputs(m, e).into_iter().filter_map(|b| Some((b, *stored.get(&b)?))) {
                let Some(want) = values.get(&place).filter(|_| found.is_none()) else { continue };
                let got: Array = reader.read_buffer(buffer).map_err(|e| e.to_string())?.into();
                compared += 1;
                found = difference(&got, want).map(|at| differs(m, e, place, (&got, want), (step.start, at), compared));
            }
            Ok(())
        };
        device.observed(ids, &mut hook)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// By buffer: the declared value that it holds.
fn stored(trunk: &Module, report: &Report, m: &Manifest) -> BTreeMap<u32, Place> {
    let mut calls: BTreeMap<String, usize> = BTreeMap::new();
    for (i, call) in trunk.calls.iter().enumerate() {
        let body = &trunk.bodies[call.body as usize].name;
        calls.entry(call.layer.map_or_else(|| body.clone(), |l| format!("layer{l}.{body}"))).or_insert(i);
    }
    let of = |name: &str| -> Option<Place> {
        let (site, role) = name.rsplit_once('.')?;
        let call = *calls.get(site)?;
        let body = trunk.calls[call].body as usize;
        let output = trunk.bodies[body].outputs.iter().find(|(n, _)| n == role).map(|(_, v)| v.0);
        let inner = || {
            let now: u64 = role.strip_prefix('v')?.parse().ok()?;
            let became = &report.saturation.get(body)?.became;
            became.iter().position(|b| *b == Some(now)).map(|v| v as u32)
        };
        Some((call, output.or_else(inner)?))
    };
    (0u32..).zip(&m.buffers).filter_map(|(i, b)| Some((i, of(&b.name)?))).collect()
}

/// Buffers that a launch writes.
fn outputs(m: &Manifest, e: &LaunchEvent<'_>) -> Vec<u32> {
    let launch = m.buckets.get(e.bucket).and_then(|b| b.launches.get(e.launch));
    let Some(launch) = launch else { return vec![] };
    let ports = m.kernels.get(launch.kernel as usize).map(|k| k.interface.outputs.as_slice()).unwrap_or_default();
    let buffer = |p: &unglue_runtime::manifest::Port| match launch.args.get(p.param as usize) {
        Some(Arg::Buffer(b)) => Some(*b),
        _ => None,
    };
    ports.iter().filter_map(buffer).collect()
}

/// The first element whose bits differ; NaN equals NaN. Arrays of other sizes are views, and not compared.
fn difference(got: &Array, want: &Array) -> Option<usize> {
    let size = got.dtype.bytes() as usize;
    if got.dtype != want.dtype || got.bytes.len() != want.bytes.len() || size == 0 {
        return None;
    }
    let nan = |b: &[u8]| float(got.dtype, b).is_some_and(f32::is_nan);
    let mut pairs = got.bytes.chunks_exact(size).zip(want.bytes.chunks_exact(size));
    pairs.position(|(a, b)| a != b && !(nan(a) && nan(b)))
}

fn float(dtype: Stored, bytes: &[u8]) -> Option<f32> {
    match (dtype, bytes) {
        (Stored::F32, &[a, b, c, d]) => Some(f32::from_le_bytes([a, b, c, d])),
        (Stored::Bf16, &[a, b]) => Some(f32::from_bits(u32::from(u16::from_le_bytes([a, b])) << 16)),
        _ => None,
    }
}

fn shown(a: &Array, at: usize) -> String {
    let size = a.dtype.bytes() as usize;
    let bytes = a.bytes.get(at * size..(at + 1) * size).unwrap_or_default();
    match (float(a.dtype, bytes), bytes) {
        (Some(x), _) => format!("{x:e}"),
        (None, &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]).to_string(),
        (None, other) => format!("{other:02x?}"),
    }
}

/// `at`: the element, in a step that starts at token `start`.
fn differs(
    m: &Manifest,
    e: &LaunchEvent<'_>,
    (_, value): Place,
    (got, want): (&Array, &Array),
    (start, at): (usize, usize),
    compared: usize,
) -> Differs {
    let rows = want.shape.first().copied().unwrap_or(1).max(1) as usize;
    let size = want.dtype.bytes() as usize;
    let per_row = (want.bytes.len() / size.max(1) / rows).max(1);
    Differs {
        launch: e.launch,
        rows_max: m.buckets.get(e.bucket).map_or(0, |b| b.rows_max),
        kernel: e.kernel.to_owned(),
        value: format!("{}%{value}", e.site),
        token: start + at / per_row,
        element: at % per_row,
        device: shown(got, at),
        interpreter: shown(want, at),
        compared,
    }
}
