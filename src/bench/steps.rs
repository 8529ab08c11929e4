//! Whole steps on a device: launched one kernel at a time, and as a list that the device recorded.
//!
//! Weights are drawn: what a step takes depends on their bytes, not on their values. Steps of both kinds take turns in one
//! session, each from the id to the logits on the host.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use unglue_ir::IrError;
use unglue_ir::interp::draw::{Rng, draw_weight};
use unglue_ir::types::{DType, Format};
use unglue_runtime::manifest::{Mem, Source};
use unglue_runtime::{Bundle, Feed, Geometry, LogitRows, Session, SessionOptions, slice_tensor};

use super::median;
use crate::cli;
use crate::device::DeviceKind;
use crate::error::CliError;

/// Steps of each kind before the clock starts: the first ones record lists and meet code that was never run.
const WARM: u32 = 3;
/// Drawn values that a weight repeats, or a few more.
const DRAWN: u64 = 1 << 16;

/// Medians in microseconds.
pub struct Steps {
    /// Launches of a step.
    pub launches: usize,
    pub single_us: f32,
    pub list_us: f32,
    /// Steps that were a replay, of all that could be.
    pub replays: (u64, u64),
}

impl Steps {
    pub fn json(&self) -> Value {
        json!({"launches": self.launches, "single_us": self.single_us, "list_us": self.list_us,
            "replays": self.replays.0, "list_steps": self.replays.1})
    }

    pub fn text(&self, rows: u64) -> String {
        format!(
            "a step of {rows} row(s), {} launches: {:.1} us one by one, {:.1} us as one list ({:.2} times as fast)",
            self.launches,
            self.single_us,
            self.list_us,
            self.single_us / self.list_us
        )
    }
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
    let tokens = args.rows.saturating_mul(2 * u64::from(steps.saturating_add(WARM)));
    let geometry = Geometry {
        block_size: m.options.kv_block,
        num_blocks: tokens.div_ceil(m.options.kv_block.max(1)),
        max_slots: 1,
        max_ctx: tokens,
    };
    let vocab = i32::try_from(m.model.vocab_size).unwrap_or(i32::MAX).max(1);
    let provider = |source: &Source| {
        let whole = drawn(source, args.seed).map_err(|e| e.to_string())?;
        slice_tensor(&whole, source).map(|part| Cow::Owned(part.into_owned()))
    };
    let mut session = Session::create(Arc::clone(&bundle), device, &provider, geometry, SessionOptions::default())
        .map_err(CliError::Device)?;
    let mut sequence = session.open_sequence().map_err(CliError::Device)?;
    let mut times = [Vec::new(), Vec::new()];
    for step in 0..steps + WARM {
        let ids: Vec<i32> = (0..args.rows).map(|row| (step as i32 * 31 + row as i32 * 7) % vocab).collect();
        for (single, times) in [true, false].into_iter().zip(&mut times) {
            session.set_single_launches(single);
            let start = Instant::now();
            let mut feeds = [Feed { seq: &mut sequence, ids: &ids, logits: LogitRows::Last }];
            session.feed_batch(&mut feeds, None).map_err(CliError::Device)?;
            if step >= WARM {
                times.push(start.elapsed().as_secs_f32() * 1e6);
            }
        }
    }
    let replays = (session.counters().replays, u64::from(steps + WARM));
    let [single_us, list_us] = times.map(|mut times| {
        times.sort_by(f32::total_cmp);
        median(&times)
    });
    Ok(Steps { launches, single_us, list_us, replays })
}

fn lists(bundle: &Bundle) -> String {
    bundle.manifest().buckets.iter().map(|b| b.rows_max.to_string()).collect::<Vec<_>>().join(", ")
}

/// Bytes of a tensor: some rows of a drawn weight, over and over, or of words.
fn drawn(source: &Source, seed: u64) -> Result<Vec<u8>, IrError> {
    let rng = &mut Rng::new(seed);
    let inputs = source.shape.last().copied().unwrap_or(1).max(1);
    let float = |rng: &mut Rng, dtype: DType| {
        let some = [DRAWN.div_ceil(inputs), inputs];
        Ok(draw_weight(rng, Format::Plain(dtype), &some)?.bytes.into_owned())
    };
    let block: Vec<u8> = match source.dtype {
        Mem::F32 => float(rng, DType::F32)?,
        Mem::Bf16 => float(rng, DType::Bf16)?,
        Mem::F16 => float(rng, DType::F16)?,
        Mem::I32 => (0..DRAWN).flat_map(|_| (rng.next_u64() as u32).to_le_bytes()).collect(),
    };
    let elements: u64 = source.shape.iter().product();
    let bytes = usize::try_from(elements.saturating_mul(source.dtype.bytes())).unwrap_or(usize::MAX);
    Ok(block.iter().copied().cycle().take(bytes).collect())
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
            let bytes = drawn(&source, 1).unwrap();
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
