//! What a check draws: batches, inputs and weights, and by the seed what random numbers alone would never give.

use std::collections::BTreeMap;

use unglue_ir::IrError;
use unglue_ir::graph::Graph;
use unglue_ir::interp::draw::{Rng, draw, draw_weight};
use unglue_ir::interp::{Batch, Data, Dims, Tensor, WeightRef};
use unglue_ir::op::{Domain, Op};
use unglue_ir::types::{DType, Dim, Format, TensorType, Type};
use unglue_passes::schedule::Bucket;

use super::{Given, Paging, state};

/// What a seed has beside random numbers. Seed 0 has none of it, the first six have all.
#[derive(Clone, Copy, Debug)]
struct Flavour {
    /// The last rows of the step belong to no sequence; their floats are NaN.
    padding: bool,
    /// Floats are few distinct numbers: exact ties.
    ties: bool,
    /// One sequence has no slot.
    slotless: bool,
    /// One row of each input has a NaN, infinities and -0.
    special: bool,
}

impl Flavour {
    fn of(seed: u64) -> Flavour {
        Flavour { padding: seed % 2 == 1, ties: seed % 3 == 2, slotless: seed % 4 == 1, special: seed % 6 == 4 }
    }
}

pub(super) fn draw_all<'a>(g: &Graph, bucket: &Bucket, seed: u64) -> Result<Given<'a>, IrError> {
    let mut rng = Rng::new(seed);
    let flavour = Flavour::of(seed);
    let paging = state::paging(g, bucket, seed);
    let batch = draw_batch(&mut rng, bucket, &paging, flavour);
    let logits = 1 + rng.below(u64::from(bucket.rows_max)) as usize;
    let dims = Dims::of(&batch, logits);
    let mut drawn = Given {
        block_table: state::block_table(&mut rng, &paging, &batch),
        paging,
        logits,
        inputs: BTreeMap::new(),
        weights: BTreeMap::new(),
        states: BTreeMap::new(),
        batch,
        seed: Some(seed),
    };
    for id in g.ids() {
        match (&g.node(id).op, g.ty(id)) {
            (Op::Input { name, domain }, Type::Tensor(t)) => {
                let mut value = draw(&mut rng, t, *domain, &dims, &drawn.batch);
                season(&mut rng, &mut value, (t, *domain), flavour, &drawn.batch);
                drawn.inputs.insert(name.clone(), value);
            }
            (Op::Weight { name }, Type::Tensor(t)) => {
                let shape: Vec<u64> = t.shape.iter().map(|d| d.fixed().unwrap_or(1)).collect();
                let value = match t.format {
                    Format::Plain(dtype) if flavour.ties => coarse_weight(&mut rng, dtype, &shape)?,
                    format => draw_weight(&mut rng, format, &shape)?,
                };
                drawn.weights.insert(name.clone(), value);
            }
            (Op::State { name }, Type::State(t)) => {
                let value = state::draw_state(&mut rng, t, &drawn.batch, drawn.paging.max_slots);
                drawn.states.insert(name.clone(), value);
            }
            _ => {}
        }
    }
    Ok(drawn)
}

/// Sequences of a step: their number, lengths and positions vary with the seed.
fn draw_batch(rng: &mut Rng, bucket: &Bucket, paging: &Paging, flavour: Flavour) -> Batch {
    let most = bucket.rows_max as usize;
    let mut rows = 1 + rng.below(most as u64) as usize;
    let mut padding = 0;
    if flavour.padding && most > 1 {
        rows = rows.max(2);
        padding = 1 + rng.below(rows as u64 - 1) as usize;
    }
    let most_seqs = (bucket.seqs_max as usize).min(paging.max_slots);
    let mut seqs: Vec<(i32, usize, usize)> = Vec::new();
    let mut left = rows - padding;
    while left > 0 && seqs.len() < most_seqs {
        let last = seqs.len() + 1 == most_seqs;
        let n = if last { left } else { 1 + rng.below(left as u64) as usize };
        let longest = (paging.block_size * paging.blocks_per_seq).saturating_sub(n + 1);
        let first = if rng.below(4) == 0 { 0 } else { rng.below(longest.max(1) as u64) as usize };
        // Slots are given from the back, so that a slot is not the sequence's number.
        seqs.push(((paging.max_slots - 1 - seqs.len()) as i32, first, n));
        left -= n;
    }
    let mut batch = Batch::new(&seqs, 0);
    batch.pools = bucket.pools as usize;
    for _ in 0..padding {
        batch.positions.push(rng.below(8) as i32 - 1);
        batch.row_seq.push(-1);
    }
    if flavour.slotless {
        let b = rng.below(batch.slot.len() as u64) as usize;
        batch.slot[b] = -1;
    }
    batch
}

/// Puts the flavour into a drawn input.
fn season(rng: &mut Rng, value: &mut Tensor, (ty, domain): (&TensorType, Domain), flavour: Flavour, batch: &Batch) {
    let Data::F32(data) = &mut value.data else { return };
    let rows = value.shape.first().copied().unwrap_or(1).max(1);
    let per_row = data.len() / rows;
    if per_row == 0 {
        return;
    }
    let unit = domain == Domain::Unit;
    if flavour.ties {
        // The largest number is among them: there ties decide.
        let coarse =
            |x: f32| if unit { ((x * 8.0).floor() + 0.5) / 8.0 } else { (x * 2.0).round().clamp(-2.0, 2.0) / 2.0 };
        data.iter_mut().for_each(|x| *x = coarse(*x));
    }
    if flavour.special && !unit {
        let row = rng.below(rows as u64) as usize;
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0] {
            // One row only, so that the others still compare numbers.
            data[row * per_row + rng.below(per_row as u64) as usize] = x;
        }
    }
    if ty.shape.first() == Some(&Dim::Rows) {
        for (row, _) in batch.row_seq.iter().enumerate().filter(|(_, s)| **s < 0) {
            data[row * per_row..(row + 1) * per_row].fill(f32::NAN);
        }
    }
}

/// As [`draw_weight`], of few distinct numbers.
fn coarse_weight(rng: &mut Rng, dtype: DType, shape: &[u64]) -> Result<WeightRef<'static>, IrError> {
    let scale = 1.0 / (shape.last().copied().unwrap_or(1).max(1) as f32).sqrt();
    let values: Vec<f32> =
        (0..shape.iter().product::<u64>()).map(|_| (rng.normal() * 2.0).round() / 2.0 * scale).collect();
    WeightRef::from_f32(dtype, shape, &values)
}
