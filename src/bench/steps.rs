//! Whole steps on a device: launched one kernel at a time, and as a list that the device recorded; with launches that start
//! when the one before has ended, and with those that start earlier.
//!
//! Weights are drawn: what a step takes depends on their bytes, not on their values. Steps of all kinds take turns in one
//! session, each from the id to the logits on the host.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value, json};
use unglue_ir::IrError;
use unglue_ir::interp::draw::{Rng, draw_weight};
use unglue_ir::types::{DType, Format};
use unglue_runtime::manifest::{Mem, Source};
use unglue_runtime::{Bundle, Edges, Feed, Geometry, LogitRows, Session, SessionOptions, slice_tensor};

use super::median;
use crate::cli;
use crate::device::DeviceKind;
use crate::error::CliError;

/// Steps of each kind before the clock starts: the first ones record lists and meet code that was never run.
const WARM: u32 = 3;
/// Drawn values that a weight repeats, or a few more.
const DRAWN: u64 = 1 << 16;

/// What steps took.
pub struct Steps {
    /// Launches of a step.
    pub launches: usize,
    /// By how launches follow one another; at least one.
    pub ways: Vec<Way>,
    /// Steps that were a replay, of all that could be.
    pub replays: (u64, u64),
    /// Tokens before the first timed step.
    pub context: u64,
    /// Experts of a layer, and the slots that they share.
    pub experts: Option<(u64, u64)>,
}

/// Medians in microseconds of steps whose launches follow one another in one way.
pub struct Way {
    pub edges: Edges,
    pub single_us: f32,
    pub list_us: f32,
    /// The list alone, by the device's clock.
    pub device_us: Option<f32>,
}

impl Steps {
    /// The first way's times stand at the top too.
    pub fn json(&self) -> Value {
        let times = |w: &Way| json!({"single_us": w.single_us, "list_us": w.list_us, "device_us": w.device_us});
        let ways = self.ways.iter().map(|w| (w.edges.name().to_owned(), times(w))).collect::<Map<_, _>>();
        let mut all = json!({"launches": self.launches, "edges": ways, "replays": self.replays.0,
            "list_steps": self.replays.1, "context": self.context,
            "experts": self.experts.map(|e| e.0), "expert_slots": self.experts.map(|e| e.1)});
        if let (Some(all), Some(Value::Object(first))) = (all.as_object_mut(), self.ways.first().map(times)) {
            all.extend(first);
        }
        all
    }

    pub fn text(&self, rows: u64) -> String {
        let experts = self.experts.map(|(experts, slots)| format!("; {experts} experts share {slots} slots"));
        let mut lines = vec![format!(
            "a step of {rows} row(s) behind {} tokens, {} launches{}",
            self.context,
            self.launches,
            experts.unwrap_or_default()
        )];
        lines.extend(self.ways.iter().map(|w| {
            let device = w.device_us.map(|us| format!(", of which its launches {us:.1}")).unwrap_or_default();
            format!(
                "  {}: {:.1} us one by one, {:.1} us as one list{device} ({:.2} times as fast)",
                w.edges.name(),
                w.single_us,
                w.list_us,
                w.single_us / w.list_us
            )
        }));
        lines.join("\n")
    }
}

/// The ways that are asked for, or all that the session can.
fn ways(session: &mut Session, args: &cli::Bench) -> Result<Vec<Edges>, CliError> {
    if let Some(edges) = args.edges {
        session.set_edges(edges.into()).map_err(CliError::Device)?;
        return Ok(vec![edges.into()]);
    }
    let both = session.set_edges(Edges::Dependent).is_ok();
    Ok(if both { vec![Edges::Plain, Edges::Dependent] } else { vec![Edges::Plain] })
}

/// Runs `steps` steps of each kind.
pub fn run(bundle: Bundle, kind: DeviceKind, args: &cli::Bench, steps: u32) -> Result<Steps, CliError> {
    let device = kind.open(0).map_err(CliError::Device)?;
    let bundle = Arc::new(bundle);
    let m = bundle.manifest();
    let list = m.buckets.iter().find(|b| b.rows_max >= args.rows).ok_or_else(|| CliError::Usage {
        rule: "--rows",
        found: args.rows.to_string(),
        needed: format!("rows of a launch list: {}", lists(&bundle)),
    })?;
    let launches = list.launches.len();
    // Two kinds of steps for each of two ways at most.
    let tokens = args.rows.saturating_mul(4 * u64::from(steps.saturating_add(WARM))).saturating_add(args.context);
    let geometry = Geometry {
        block_size: m.options.kv_block,
        num_blocks: tokens.div_ceil(m.options.kv_block.max(1)),
        max_slots: 1,
        max_ctx: tokens,
    };
    let vocab = i32::try_from(m.model.vocab_size).unwrap_or(i32::MAX).max(1);
    let blocks = RefCell::new(BTreeMap::new());
    let provider = |source: &Source| {
        let mut blocks = blocks.borrow_mut();
        let inputs = source.shape.last().copied().unwrap_or(1).max(1);
        let block: &Vec<u8> = match blocks.entry((source.dtype.name(), inputs)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(drawn(source.dtype, inputs, args.seed).map_err(|e| e.to_string())?),
        };
        let whole = repeated(block, source);
        slice_tensor(&whole, source).map(|part| Cow::Owned(part.into_owned()))
    };
    let options = SessionOptions { timed_lists: true, ..SessionOptions::default() };
    let mut session =
        Session::create(Arc::clone(&bundle), device, &provider, geometry, options).map_err(CliError::Device)?;
    let experts = share_slots(&mut session, &bundle)?;
    let mut sequence = session.open_sequence().map_err(CliError::Device)?;
    let longest = m.buckets.iter().map(|b| b.rows_max).max().unwrap_or(1);
    let before: Vec<i32> = (0..args.context).map(|at| (at % vocab as u64) as i32).collect();
    for ids in before.chunks(usize::try_from(longest).unwrap_or(1)) {
        let mut feeds = [Feed { seq: &mut sequence, ids, logits: LogitRows::Last }];
        session.feed_batch(&mut feeds, None).map_err(CliError::Device)?;
    }
    let before = session.counters().replays;
    let ways = ways(&mut session, args)?;
    let mut times = vec![Times::default(); ways.len()];
    for step in 0..steps + WARM {
        let ids: Vec<i32> = (0..args.rows).map(|row| (step as i32 * 31 + row as i32 * 7) % vocab).collect();
        for (edges, times) in ways.iter().zip(&mut times) {
            session.set_edges(*edges).map_err(CliError::Device)?;
            for single in [true, false] {
                session.set_single_launches(single);
                let start = Instant::now();
                let mut feeds = [Feed { seq: &mut sequence, ids: &ids, logits: LogitRows::Last }];
                session.feed_batch(&mut feeds, None).map_err(CliError::Device)?;
                if step >= WARM {
                    let us = start.elapsed().as_secs_f32() * 1e6;
                    if single {
                        times.single.push(us)
                    } else {
                        times.list.push(us)
                    }
                    times.device.extend(session.list_us());
                }
            }
        }
    }
    let replays = (session.counters().replays - before, u64::from(steps + WARM) * ways.len() as u64);
    let way = |(edges, t): (Edges, Times)| Way {
        edges,
        single_us: middle(t.single).unwrap_or(f32::NAN),
        list_us: middle(t.list).unwrap_or(f32::NAN),
        device_us: middle(t.device),
    };
    let ways = ways.into_iter().zip(times).map(way).collect();
    Ok(Steps { launches, ways, replays, context: args.context, experts })
}

/// Microseconds of steps of one way.
#[derive(Clone, Default)]
struct Times {
    single: Vec<f32>,
    list: Vec<f32>,
    device: Vec<f32>,
}

fn middle(mut times: Vec<f32>) -> Option<f32> {
    times.sort_by(f32::total_cmp);
    (!times.is_empty()).then(|| median(&times))
}

/// Lets all experts of a layer take turns in the slots that there are, so that each chosen one has a weight to read: the
/// number of experts and of slots, if there are fewer slots.
fn share_slots(session: &mut Session, bundle: &Bundle) -> Result<Option<(u64, u64)>, CliError> {
    let mut shared = None;
    for (index, table) in bundle.manifest().slot_tables.iter().enumerate().filter(|(_, t)| t.slots < t.experts) {
        let slots: Vec<i32> = (0..table.experts).map(|e| (e % table.slots.max(1)) as i32).collect();
        session.set_slot_table(index, &slots).map_err(CliError::Device)?;
        shared = Some((table.experts, table.slots));
    }
    Ok(shared)
}

fn lists(bundle: &Bundle) -> String {
    bundle.manifest().buckets.iter().map(|b| b.rows_max.to_string()).collect::<Vec<_>>().join(", ")
}

/// Bytes of drawn numbers, rows of `inputs` of them, or of words. They are one fewer than fill whole rows: repeated, no row of a
/// weight is like another, as experts that tie would always be the same few.
fn drawn(dtype: Mem, inputs: u64, seed: u64) -> Result<Vec<u8>, IrError> {
    let rng = &mut Rng::new(seed);
    let float = |rng: &mut Rng, dtype: DType| {
        let some = [DRAWN.div_ceil(inputs), inputs];
        draw_weight(rng, Format::Plain(dtype), &some).map(|drawn| drawn.bytes.into_owned())
    };
    let mut block = match dtype {
        Mem::F32 => float(rng, DType::F32)?,
        Mem::Bf16 => float(rng, DType::Bf16)?,
        Mem::F16 => float(rng, DType::F16)?,
        Mem::I32 => return Ok((0..DRAWN).flat_map(|_| (rng.next_u64() as u32).to_le_bytes()).collect()),
    };
    block.truncate(block.len() - dtype.bytes() as usize);
    Ok(block)
}

/// A tensor of drawn numbers, over and over.
fn repeated(block: &[u8], source: &Source) -> Vec<u8> {
    let elements: u64 = source.shape.iter().product();
    let mut left = usize::try_from(elements.saturating_mul(source.dtype.bytes())).unwrap_or(usize::MAX);
    let mut bytes = Vec::with_capacity(left);
    while left > 0 {
        let part = &block[..block.len().min(left)];
        bytes.extend_from_slice(part);
        left -= part.len();
    }
    bytes
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn drawn_weights_are_finite_and_as_long_as_their_shape() {
        for dtype in [Mem::F32, Mem::Bf16, Mem::F16, Mem::I32] {
            let (tensor, shape, view) = ("w".to_owned(), vec![3, 50_000], vec![150_000]);
            let source = Source { tensor, dtype, shape, view, slice: None, transposed: false };
            let bytes = repeated(&drawn(dtype, 50_000, 1).unwrap(), &source);
            assert_eq!(bytes.len() as u64, 150_000 * dtype.bytes());
            let small = |b: &[u8]| match dtype {
                Mem::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]).abs() < 1.0,
                Mem::Bf16 => f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16).abs() < 1.0,
                // Below the exponent of 1.
                Mem::F16 => u16::from_le_bytes([b[0], b[1]]) & 0x7fff < 0x3c00,
                Mem::I32 => true,
            };
            assert!(bytes.chunks(dtype.bytes() as usize).all(small), "{dtype:?}");
        }
    }
}
