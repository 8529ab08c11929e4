//! Logical state to the device's layout: slots, and pages through a shuffled block table.

use unglue_ir::graph::Graph;
use unglue_ir::interp::draw::Rng;
use unglue_ir::interp::{Batch, Data, StateData};
use unglue_ir::op::Op;
use unglue_ir::types::{DType, StateKind, StateType, Type};
use unglue_passes::schedule::Bucket;

use super::{Paging, decode, encode};

/// Slots of a check: more than its sequences, so that some belong to nobody.
const SLOTS: usize = 6;

/// Page sizes that fit the graph's pools and the bucket's pool capacity.
pub fn paging(g: &Graph, bucket: &Bucket, seed: u64) -> Paging {
    let mut pool = 1;
    for id in g.ids() {
        if let Type::State(StateType {
            kind: StateKind::Pool { pool: p, .. } | StateKind::Tail { pool: p, .. }, ..
        }) = g.ty(id)
        {
            pool = *p as usize;
        }
        if let Op::IndexSelect { pool: p, .. } = g.node(id).op {
            pool = p as usize;
        }
    }
    let block_size = pool * [1, 3, 16][(seed % 3) as usize];
    let context = if bucket.pools > 0 { bucket.pools as usize * pool } else { 96 };
    let blocks_per_seq = context.div_ceil(block_size).min(context / block_size.max(1)).max(1);
    Paging { block_size, blocks_per_seq, num_blocks: blocks_per_seq * SLOTS + 1, max_slots: SLOTS }
}

/// Every block at most once, in no order; what a sequence's tokens do not reach is any number.
pub fn block_table(rng: &mut Rng, p: &Paging, batch: &Batch) -> Vec<i32> {
    let mut blocks: Vec<i32> = (0..p.num_blocks as i32).collect();
    for i in (1..blocks.len()).rev() {
        blocks.swap(i, rng.below(i as u64 + 1) as usize);
    }
    blocks.truncate(batch.slot.len() * p.blocks_per_seq);
    for (b, line) in blocks.chunks_mut(p.blocks_per_seq).enumerate() {
        let unused = line.iter_mut().skip(seen(batch, b).div_ceil(p.block_size));
        unused.for_each(|entry| *entry = rng.below(p.num_blocks as u64 + 2) as i32 - 1);
    }
    blocks
}

/// Tokens of sequence `b` after the step.
fn seen(batch: &Batch, b: usize) -> usize {
    let (start, end) = (batch.q_start[b] as usize, batch.q_start[b + 1] as usize);
    batch.positions.get(start).map_or(0, |p| *p as usize) + (end - start)
}

/// Random content: everything that the batch's sequences can have seen, this step's rows included, and all of what
/// belongs to other slots.
pub fn draw_state(rng: &mut Rng, ty: &StateType, batch: &Batch, slots: usize) -> StateData {
    let mut data = StateData::new(ty, slots);
    let width = data.width();
    let mut fill = |n: usize| -> Vec<f32> {
        (0..n).map(|_| unglue_ir::interp::value::round_to(ty.dtype, rng.normal() * 0.5)).collect()
    };
    for slot in 0..slots {
        let owner = batch.slot.iter().position(|s| *s == slot as i32);
        let seen = owner.map_or(0, |b| seen(batch, b));
        let rows = match &ty.kind {
            StateKind::Token { .. } => seen,
            StateKind::Pool { pool, .. } => seen / *pool as usize,
            _ => data.slots()[slot].len() / width.max(1),
        };
        let content = fill(rows * width);
        data.slots_mut()[slot] = content;
    }
    data
}

/// What places of paged state hold that no sequence owns.
fn nobodys(n: usize) -> Data {
    Data::F32((0..n).map(|i| 0.5 + 0.125 * (i % 13) as f32).collect())
}

/// How a step's sequences keep their state on the device.
#[derive(Clone, Copy, Debug)]
pub struct Paged<'a> {
    pub paging: &'a Paging,
    pub batch: &'a Batch,
    /// Blocks of each sequence, `blocks_per_seq` each.
    pub block_table: &'a [i32],
}

impl Paged<'_> {
    /// The device buffer that holds a logical state; places that no sequence owns hold a pattern.
    pub fn to_device(&self, s: &StateData, dtype: DType) -> Vec<u8> {
        let rows = self.rows_of_block(s).map_or(0, |per_block| self.paging.num_blocks * per_block);
        self.over(encode(dtype, &nobodys(rows * s.width())), s, dtype)
    }

    /// As [`Paged::to_device`]; places that no sequence owns keep what `out`, the buffer before, holds.
    pub fn over(&self, mut out: Vec<u8>, s: &StateData, dtype: DType) -> Vec<u8> {
        let width = s.width();
        let Some(per_block) = self.rows_of_block(s) else {
            let flat: Vec<f32> = s.slots().iter().flatten().copied().collect();
            return encode(dtype, &Data::F32(flat));
        };
        for (b, &slot) in self.batch.slot.iter().enumerate() {
            let Ok(slot) = usize::try_from(slot) else { continue };
            let rows = s.slots()[slot].len() / width.max(1);
            for i in 0..rows {
                let Some(at) = self.place(b, i, per_block) else { continue };
                let row = encode(dtype, &Data::F32(s.slots()[slot][i * width..(i + 1) * width].to_vec()));
                let at = at * row.len();
                if let Some(place) = out.get_mut(at..at + row.len()) {
                    place.copy_from_slice(&row);
                }
            }
        }
        out
    }

    /// Inverse of [`Paged::to_device`] after the step: `s` gets what the buffer holds for the step's sequences; their
    /// tokens are as many as the step left them with.
    pub fn from_device(&self, s: &mut StateData, dtype: DType, bytes: &[u8]) {
        let Data::F32(values) = decode(dtype, bytes) else { return };
        let (width, per_block) = (s.width(), self.rows_of_block(s));
        let pool = if let StateData::Pool { pool, .. } = s { *pool } else { 1 };
        let Some(per_block) = per_block else {
            let mut from = values.into_iter();
            s.slots_mut().iter_mut().flatten().for_each(|x| *x = from.next().unwrap_or(f32::NAN));
            return;
        };
        for (b, &slot) in self.batch.slot.iter().enumerate() {
            let Ok(slot) = usize::try_from(slot) else { continue };
            let places = (0..seen(self.batch, b) / pool).filter_map(|i| self.place(b, i, per_block));
            s.slots_mut()[slot] = places.flat_map(|at| &values[at * width..(at + 1) * width]).copied().collect();
        }
    }

    /// Rows that a block holds; none for state that is not paged.
    fn rows_of_block(&self, s: &StateData) -> Option<usize> {
        match s {
            StateData::Slot { .. } | StateData::Tail { .. } => None,
            StateData::Token { .. } => Some(self.paging.block_size),
            StateData::Pool { pool, .. } => Some(self.paging.block_size / pool),
        }
    }

    /// Row of the buffer that holds row `i` of sequence `b`.
    fn place(&self, b: usize, i: usize, per_block: usize) -> Option<usize> {
        let block = self.block_table.get(b * self.paging.blocks_per_seq + i / per_block)?;
        Some(*block as usize * per_block + i % per_block)
    }
}
