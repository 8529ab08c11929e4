//! One sequence through a device: the first launch of its steps that is wrong.
//!
//! Each launch is judged by itself: on what it was given, the interpreter must leave the same outputs and states, bit
//! for bit, or within the bound of the ops where products are on matrix tiles. In a bundle whose steps have the
//! declared bits (exact, and no tiles in the launch lists) the declared trunk runs beside it: a launch that is right
//! on what it was given may have been given something else than the trunk says. A stored value is then compared with
//! the declared value that became it. Values that a rule brought in have none; what they lead to is compared later on.

use std::collections::{BTreeMap, BTreeSet};

use unglue_codegen::check::Given;
use unglue_ir::graph::ValueId;
use unglue_ir::interp::Tensor;
use unglue_ir::module::Module;
use unglue_models::checkpoint::Checkpoint;
use unglue_models::safetensors::Stored;
use unglue_passes::schedule::Fit;
use unglue_runtime::manifest::{Arg, Manifest, Products};
use unglue_runtime::{BufferReader, LaunchEvent, Moment, RuntimeError};

use super::launch::{self, Watched, Wrong};
use crate::cli;
use crate::device::DeviceKind;
use crate::error::CliError;
use crate::report::view::Report;
use crate::run::device::{OnDevice, weights_folder};
use crate::run::dump::Array;
use crate::run::interp::Interpreter;
use crate::run::{Engine, Work};
use crate::verify::{Case, fit_of};

/// A call and a declared value of its body.
type Place = (usize, u32);

/// The declared trunk's values of a step, and its states after it.
type Declared = (BTreeMap<Place, Array>, BTreeMap<String, Array>);

/// A launch with a wrong output or state.
#[derive(Debug, serde::Serialize)]
pub struct Differs {
    /// Number in the launch list of so many rows.
    pub launch: usize,
    pub rows_max: u64,
    pub kernel: String,
    /// `layer3.kda%12`: the declared value that an output is; `state layer3.matrix`.
    pub value: String,
    /// Token of the sequence; none for states.
    pub token: Option<usize>,
    /// Element of the token's row, or of the state.
    pub element: usize,
    pub device: String,
    pub interpreter: String,
    /// Outputs and states of that launch and of those before it that were compared.
    pub compared: usize,
}

/// What is wrong with the first wrong launch.
pub enum Found {
    /// What it left does not follow from what it was given.
    Launch { at: Differs, place: (usize, usize), given: Box<Given<'static>> },
    /// It does, and is not what the trunk declares.
    Declared(Differs),
}

/// What the steps left.
pub struct Outcome {
    pub found: Option<Found>,
    /// Outputs and states that were compared.
    pub compared: usize,
    /// The declared trunk ran beside the device.
    pub declared: bool,
}

/// The side by side run.
struct Steps<'a> {
    m: &'a Manifest,
    fit: &'static Fit,
    stored: BTreeMap<u32, Place>,
    /// Declared values and states of the step, if the bundle has their bits.
    values: Option<Declared>,
    /// First token of the step.
    start: usize,
    next: Option<Watched>,
    compared: usize,
    found: Option<Found>,
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
) -> Result<Outcome, CliError> {
    let run = run_of(args, ids, m);
    let work = Work::of(&run)?;
    let mut device = OnDevice::open(&run, kind, &work)?;
    let declared = has_declared_bits(m, &work);
    let mut interpreter = Interpreter::of(trunk.clone(), Checkpoint::open(&weights_folder(&run)?)?);
    let stored = stored(trunk, report, m);
    let mut steps = Steps { m, fit: fit_of(m)?, stored, values: None, start: 0, next: None, compared: 0, found: None };
    for step in work.steps() {
        let ids = work.ids().get(step.clone()).unwrap_or_default();
        steps.start = step.start;
        if declared {
            steps.values = Some(declared_values(&mut interpreter, ids, &steps.stored)?);
        }
        let mut hook = |e: &LaunchEvent<'_>, r: &dyn BufferReader| steps.at(e, r).map_err(|e| e.to_string());
        let ran = device.observed(ids, &mut hook);
        steps.ended(ran)?;
        if steps.found.is_some() {
            break;
        }
    }
    Ok(Outcome { found: steps.found, compared: steps.compared, declared })
}

fn run_of(args: &cli::Bisect, ids: &str, m: &Manifest) -> cli::Run {
    cli::Run {
        edges: cli::Edges::default(),
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
    }
}

/// Whether all values of the steps have the declared bits.
fn has_declared_bits(m: &Manifest, work: &Work) -> bool {
    let tiles = |k: u32| m.kernels.get(k as usize).is_some_and(|k| k.products == Products::Tiles);
    let list = |rows: usize| m.buckets.iter().find(|b| b.rows_max >= rows as u64);
    let on_lanes = |rows: usize| list(rows).is_some_and(|b| !b.launches.iter().any(|l| tiles(l.kernel)));
    m.options.numerics == "exact" && work.steps().into_iter().all(|s| on_lanes(s.len()))
}

/// The declared trunk's step: stored values, and states after it.
fn declared_values(
    interpreter: &mut Interpreter,
    ids: &[i32],
    stored: &BTreeMap<u32, Place>,
) -> Result<Declared, CliError> {
    let wanted: BTreeSet<Place> = stored.values().copied().collect();
    let mut values = BTreeMap::new();
    interpreter.observed(ids, &mut |call: usize, id: ValueId, t: &Tensor| {
        if wanted.contains(&(call, id.0)) {
            values.insert((call, id.0), t.into());
        }
    })?;
    Ok((values, interpreter.states()?.into_iter().collect()))
}

impl<'a> Steps<'a> {
    /// Before a launch: keeps what it is given. After it: compares. Once something is wrong, stops the step.
    fn at(&mut self, e: &LaunchEvent<'_>, reader: &dyn BufferReader) -> Result<(), CliError> {
        let place = (e.bucket, e.launch);
        let case = case(self.m, place, self.fit)?;
        if e.moment == Moment::Before {
            self.next = Some(launch::before(&case, place, reader)?);
            return Ok(());
        }
        let Some(watched) = self.next.take() else { return Ok(()) };
        let (compared, wrong) = launch::after(&case, &watched, reader)?;
        self.compared += compared;
        self.found = match wrong {
            Some(wrong) => Some(self.launch(&case, watched, wrong)),
            None => self.not_declared(&case, e, &watched, reader)?.map(Found::Declared),
        };
        match &self.found {
            None => Ok(()),
            Some(_) => Err(CliError::Failed("the launch is wrong".into())),
        }
    }

    /// How the device's step ended. An error after a wrong launch says nothing; a fault is one.
    fn ended(&mut self, ran: Result<(), CliError>) -> Result<(), CliError> {
        match ran {
            Err(CliError::Device(RuntimeError::KernelTrap { found, .. })) if self.next.is_some() => {
                if let Some(watched) = self.next.take() {
                    let case = case(self.m, watched.place, self.fit)?;
                    let wrong = launch::forbidden(&case, &watched, found)?;
                    self.found = Some(self.launch(&case, watched, wrong));
                }
                Ok(())
            }
            Err(e) if self.found.is_none() => Err(e),
            _ => Ok(()),
        }
    }

    fn launch(&self, case: &Case, watched: Watched, wrong: Wrong) -> Found {
        let arg = wrong.param.and_then(|p| case.launch.args.get(p)).copied();
        let value = match arg {
            Some(Arg::State(s)) => state_name(self.m, s),
            Some(Arg::Buffer(b)) if self.stored.contains_key(&b) => named(&case.launch.site, self.stored[&b]),
            _ => format!("{} {} of the kernel's graph", case.launch.site, wrong.mismatch.value),
        };
        let at = Differs {
            value,
            token: wrong.row.map(|row| self.start + row),
            element: wrong.element,
            device: wrong.mismatch.device,
            interpreter: wrong.mismatch.interpreter,
            ..self.differs(case, watched.place)
        };
        Found::Launch { at, place: watched.place, given: Box::new(watched.given) }
    }

    fn differs(&self, case: &Case, (_, launch): (usize, usize)) -> Differs {
        Differs {
            launch,
            rows_max: case.bucket.rows_max,
            kernel: case.entry.name.clone(),
            value: String::new(),
            token: None,
            element: 0,
            device: String::new(),
            interpreter: String::new(),
            compared: self.compared,
        }
    }

    /// The first output, then state, of a launch that is not the declared one.
    fn not_declared(
        &self,
        case: &Case,
        e: &LaunchEvent<'_>,
        watched: &Watched,
        reader: &dyn BufferReader,
    ) -> Result<Option<Differs>, CliError> {
        let Some((values, states)) = &self.values else { return Ok(None) };
        for (buffer, place) in outputs(self.m, e).into_iter().filter_map(|b| Some((b, *self.stored.get(&b)?))) {
            let Some(want) = values.get(&place) else { continue };
            let got: Array = reader.read_buffer(buffer).map_err(CliError::Device)?.into();
            if let Some(at) = difference(&got, want) {
                let rows = want.shape.first().copied().unwrap_or(1).max(1) as usize;
                let per_row = (want.bytes.len() / (want.dtype.bytes() as usize).max(1) / rows).max(1);
                let (value, token) = (named(&case.launch.site, place), Some(self.start + at / per_row));
                let found = Differs { value, token, element: at % per_row, ..self.differs(case, watched.place) };
                return Ok(Some(with_values(found, (&got, want), at)));
            }
        }
        for (state, content) in launch::written(case, watched, reader)? {
            let Some(decl) = self.m.states.get(state as usize) else { continue };
            let Some(want) = states.get(&decl.name) else { continue };
            let got = Array::floats(want.dtype, want.shape.clone(), &content);
            if let Some(at) = difference(&got, want) {
                let value = state_name(self.m, state);
                let found = Differs { value, element: at, ..self.differs(case, watched.place) };
                return Ok(Some(with_values(found, (&got, want), at)));
            }
        }
        Ok(None)
    }
}

/// # Errors
/// [`CliError::Bundle`] if the bundle has no such launch.
pub fn case<'a>(m: &'a Manifest, place: (usize, usize), fit: &'static Fit) -> Result<Case<'a>, CliError> {
    let known = || m.buckets.iter().map(|b| b.launches.len().to_string()).collect::<Vec<_>>().join(", ");
    let unknown = || RuntimeError::Unknown { what: "launch", name: format!("{place:?}"), known: known() };
    Case::of(m, place, fit).ok_or_else(|| CliError::Bundle(unknown()))
}

fn named(site: &str, (_, value): Place) -> String {
    format!("{site}%{value}")
}

fn state_name(m: &Manifest, state: u32) -> String {
    format!("state {}", m.states.get(state as usize).map(|s| s.name.as_str()).unwrap_or_default())
}

fn with_values(found: Differs, (got, want): (&Array, &Array), at: usize) -> Differs {
    Differs { device: shown(got, at), interpreter: shown(want, at), ..found }
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
