//! Logical state to the device's layout: slots, and pages through a shuffled block table.

use unglue_ir::graph::Graph;
use unglue_ir::interp::draw::Rng;
use unglue_ir::interp::{Batch, Data, StateData};
use unglue_ir::op::Op;
use unglue_ir::types::{DType, StateKind, StateType, Type};
use unglue_passes::schedule::Bucket;

use super::{Drawn, Paging, encode};

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

/// Every block at most once, in no order.
pub fn block_table(rng: &mut Rng, p: &Paging, seqs: usize) -> Vec<i32> {
    let mut blocks: Vec<i32> = (0..p.num_blocks as i32).collect();
    for i in (1..blocks.len()).rev() {
        blocks.swap(i, rng.below(i as u64 + 1) as usize);
    }
    blocks.truncate(seqs * p.blocks_per_seq);
    blocks
}

/// Random content: everything that the batch's sequences can have seen, this step's rows included.
pub fn draw_state(rng: &mut Rng, ty: &StateType, batch: &Batch, slots: usize) -> StateData {
    let mut data = StateData::new(ty, slots);
    let width = data.width();
    let mut fill = |n: usize| -> Vec<f32> {
        (0..n).map(|_| unglue_ir::interp::value::round_to(ty.dtype, rng.normal() * 0.5)).collect()
    };
    for (b, &slot) in batch.slot.iter().enumerate() {
        let Ok(slot) = usize::try_from(slot) else { continue };
        let (start, end) = (batch.q_start[b] as usize, batch.q_start[b + 1] as usize);
        let seen = batch.positions.get(start).map_or(0, |p| *p as usize) + (end - start);
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

/// The device buffer that holds a logical state; places that no sequence owns hold a pattern.
pub(super) fn to_device(s: &StateData, dtype: DType, d: &Drawn) -> Vec<u8> {
    let p = &d.paging;
    let bytes = dtype.bytes() as usize;
    let width = s.width();
    match s {
        StateData::Slot { .. } | StateData::Tail { .. } => {
            let flat: Vec<f32> = s.slots().iter().flatten().copied().collect();
            encode(dtype, &Data::F32(flat))
        }
        StateData::Token { .. } | StateData::Pool { .. } => {
            let per_block = match s {
                StateData::Pool { pool, .. } => p.block_size / pool,
                _ => p.block_size,
            };
            let mut out = vec![0u8; p.num_blocks * per_block * width * bytes];
            for (b, &slot) in d.batch.slot.iter().enumerate() {
                let Ok(slot) = usize::try_from(slot) else { continue };
                let rows = s.slots()[slot].len() / width.max(1);
                for i in 0..rows {
                    let Some(block) = d.block_table.get(b * p.blocks_per_seq + i / per_block) else { continue };
                    let at = (*block as usize * per_block + i % per_block) * width * bytes;
                    let row = encode(dtype, &Data::F32(s.slots()[slot][i * width..(i + 1) * width].to_vec()));
                    out[at..at + row.len()].copy_from_slice(&row);
                }
            }
            out
        }
    }
}
