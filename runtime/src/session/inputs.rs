//! A step's arguments: what they must be, and how they become device arrays.

use crate::device::BufferId;
use crate::layout::Geometry;
use crate::manifest::{Bucket, Manifest, Mem, StepInput, StepScalar};
use crate::{Result, RuntimeError};

/// Sums a buffer over ranks; not in this version.
pub type AllReduceCallback = fn(buffer: BufferId, elements: u64, mem: Mem);

/// The arguments of a step over T rows of B sequences, ragged. Rows `q_start[b] .. q_start[b + 1]` are of sequence b;
/// rows of none are padding, and so is a sequence with slot -1: it writes nothing.
#[derive(Clone, Debug, Default)]
pub struct StepBatch {
    /// `[T]` token ids. A kernel reports one out of range.
    pub ids: Vec<i32>,
    /// `[T]` position of each row in its sequence, from 0.
    pub positions: Vec<i32>,
    /// `[B + 1]`, from 0, ascending, at most T.
    pub q_start: Vec<i32>,
    /// `[B]` tokens of each sequence after this step.
    pub seq_len: Vec<i32>,
    /// `[B]` state slot of each sequence, no two alike but -1.
    pub slot: Vec<i32>,
    /// `[B, M]` with M = [`Geometry::blocks_per_seq`]; entries past a sequence's tokens are not looked at.
    pub block_table: Vec<i32>,
    /// `[L]` rows whose logits are wanted.
    pub logit_rows: Vec<i32>,
    /// Not in this version.
    pub embeds: Option<Vec<f32>>,
    /// Not in this version.
    pub accepted: Option<Vec<i32>>,
    /// Not in this version.
    pub positions3: Option<Vec<i32>>,
    /// Not in this version.
    pub all_reduce: Option<AllReduceCallback>,
}

/// Capacities of the device arrays.
/// Elements of [`StepInput::Counter`]: 1 KiB.
pub const COUNTERS: u64 = 256;

pub(super) struct InputSizes {
    rows: u64,
    seqs: u64,
    logits: u64,
    blocks_per_seq: u64,
}

impl InputSizes {
    pub(super) fn new(manifest: &Manifest, geometry: &Geometry) -> Self {
        let most = |of: fn(&Bucket) -> u64| manifest.buckets.iter().map(of).max().unwrap_or(0);
        InputSizes {
            rows: most(|b| b.rows_max),
            seqs: most(|b| b.seqs_max),
            logits: most(|b| b.logits_max),
            blocks_per_seq: geometry.blocks_per_seq(),
        }
    }

    /// Bytes of an array. Every factor is below 2^31 and sequences are below 2^21.
    pub(super) fn bytes(&self, input: StepInput) -> u64 {
        4 * match input {
            StepInput::Ids | StepInput::Positions | StepInput::RowSeq => self.rows,
            StepInput::QStart => self.seqs + 1,
            StepInput::SeqLen | StepInput::Slot => self.seqs,
            StepInput::BlockTable => self.seqs * self.blocks_per_seq,
            StepInput::LogitRows => self.logits,
            StepInput::Status => 4,
            StepInput::Counter => COUNTERS,
        }
    }
}

fn wrong(rule: &'static str, found: impl std::fmt::Display, needed: impl std::fmt::Display) -> RuntimeError {
    RuntimeError::Batch { rule, found: found.to_string(), needed: needed.to_string() }
}

impl StepBatch {
    /// Sequences B.
    pub fn seqs(&self) -> usize {
        self.slot.len()
    }

    /// Checks everything but the range of token ids. With `unchecked`, slots and blocks are left to the kernels.
    pub(super) fn check(&self, geometry: &Geometry, unchecked: bool) -> Result<()> {
        self.not_yet()?;
        self.lengths(geometry)?;
        let rows = self.ids.len() as i32;
        let ordered =
            self.q_start.is_sorted() && self.q_start.first() == Some(&0) && self.q_start.last() <= Some(&rows);
        if !ordered {
            return Err(wrong("q_start", format!("{:?}", self.q_start), format!("ascending from 0 to at most {rows}")));
        }
        if let Some(row) = self.logit_rows.iter().find(|r| !(0..rows).contains(*r)) {
            return Err(wrong("logit_rows", row, format!("rows below {rows}")));
        }
        if let Some(p) = self.positions.iter().find(|&&p| p < 0 || p as u64 >= geometry.max_ctx) {
            return Err(wrong("positions", p, format!("0 to {}", geometry.max_ctx - 1)));
        }
        if let Some(n) = self.seq_len.iter().find(|&&n| n < 0 || n as u64 > geometry.max_ctx) {
            return Err(wrong("seq_len", n, format!("0 to {}", geometry.max_ctx)));
        }
        if unchecked { Ok(()) } else { self.places(geometry) }
    }

    fn not_yet(&self) -> Result<()> {
        let given = [
            ("embeds", self.embeds.is_some()),
            ("accepted", self.accepted.is_some()),
            ("positions3", self.positions3.is_some()),
            ("all_reduce", self.all_reduce.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((what, _)) => Err(RuntimeError::NotYet { what }),
            None => Ok(()),
        }
    }

    fn lengths(&self, geometry: &Geometry) -> Result<()> {
        let (rows, seqs) = (self.ids.len(), self.seqs());
        if rows == 0 || seqs == 0 {
            return Err(wrong("size", format!("{rows} rows of {seqs} sequences"), "at least one of each"));
        }
        let table = seqs as u64 * geometry.blocks_per_seq();
        let lengths = [
            ("positions", self.positions.len(), rows as u64),
            ("q_start", self.q_start.len(), seqs as u64 + 1),
            ("seq_len", self.seq_len.len(), seqs as u64),
            ("block_table", self.block_table.len(), table),
        ];
        match lengths.into_iter().find(|(_, found, needed)| *found as u64 != *needed) {
            Some((name, found, needed)) => Err(wrong(name, format!("{found} entries"), format!("{needed} entries"))),
            None => Ok(()),
        }
    }

    /// Checks slots, and the blocks that each sequence uses.
    fn places(&self, geometry: &Geometry) -> Result<()> {
        let mut taken = std::collections::BTreeSet::new();
        for (b, &slot) in self.slot.iter().enumerate().filter(|(_, slot)| **slot != -1) {
            if slot < 0 || slot as u64 >= geometry.max_slots {
                return Err(wrong("slot", slot, format!("-1 or below {}", geometry.max_slots)));
            }
            if !taken.insert(slot) {
                return Err(wrong("slot", format!("{slot} twice"), "a slot of its own for each sequence"));
            }
            let (from, to) = (self.q_start[b] as usize, self.q_start[b + 1] as usize);
            let furthest = self.positions[from..to].iter().map(|p| p + 1).max().unwrap_or(0);
            let blocks = (furthest.max(self.seq_len[b]) as u64).div_ceil(geometry.block_size) as usize;
            // With no paged state there are no blocks, and none is used.
            let used = if geometry.num_blocks == 0 { 0 } else { blocks };
            let first = b * geometry.blocks_per_seq() as usize;
            let used = &self.block_table[first..first + used];
            if let Some(block) = used.iter().find(|&&n| n < 0 || n as u64 >= geometry.num_blocks) {
                return Err(wrong(
                    "block_table",
                    block,
                    format!("blocks below {} for sequence {b}", geometry.num_blocks),
                ));
            }
        }
        Ok(())
    }

    /// The device arrays, padded to the bucket: ids, positions and logit rows with 0, `q_start` with its last entry,
    /// lengths with 0, all others with -1. Status and counter are all zero.
    pub(super) fn array(&self, input: StepInput, bucket: &Bucket, geometry: &Geometry) -> Vec<i32> {
        let (rows, seqs) = (bucket.rows_max as usize, bucket.seqs_max as usize);
        let padded = |values: &[i32], len: usize, pad: i32| {
            let mut values = values.to_vec();
            values.resize(len, pad);
            values
        };
        match input {
            StepInput::Ids => padded(&self.ids, rows, 0),
            StepInput::Positions => padded(&self.positions, rows, 0),
            StepInput::RowSeq => padded(&self.row_seq(), rows, -1),
            StepInput::QStart => padded(&self.q_start, seqs + 1, self.q_start.last().copied().unwrap_or(0)),
            StepInput::SeqLen => padded(&self.seq_len, seqs, 0),
            StepInput::Slot => padded(&self.slot, seqs, -1),
            StepInput::BlockTable => padded(&self.block_table, seqs * geometry.blocks_per_seq() as usize, -1),
            StepInput::LogitRows => padded(&self.logit_rows, bucket.logits_max as usize, 0),
            StepInput::Status => vec![0; 4],
            StepInput::Counter => vec![0; COUNTERS as usize],
        }
    }

    /// Sequence of each row, -1 for padding rows.
    fn row_seq(&self) -> Vec<i32> {
        let mut rows = vec![-1; self.ids.len()];
        for (b, ends) in self.q_start.windows(2).enumerate() {
            rows[ends[0] as usize..ends[1] as usize].fill(b as i32);
        }
        rows
    }

    pub(super) fn scalar(&self, scalar: StepScalar, geometry: &Geometry, pool: u64) -> i32 {
        let value = match scalar {
            StepScalar::Rows => self.ids.len() as u64,
            StepScalar::Seqs => self.seqs() as u64,
            StepScalar::Logits => self.logit_rows.len() as u64,
            StepScalar::BlockSize => geometry.block_size,
            StepScalar::BlocksPerSeq => geometry.blocks_per_seq(),
            StepScalar::MaxSlots => geometry.max_slots,
            StepScalar::NumBlocks => geometry.num_blocks,
            StepScalar::PoolsPerBlock => geometry.block_size / pool,
        };
        // Each is below 2^31 by the checks of geometry and buckets.
        value as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_padded_to_the_bucket() {
        let batch = StepBatch {
            ids: vec![5, 6, 7],
            positions: vec![8, 9, 3],
            q_start: vec![0, 2],
            seq_len: vec![10],
            slot: vec![1],
            block_table: vec![4, 2],
            logit_rows: vec![1],
            ..StepBatch::default()
        };
        let bucket = Bucket {
            rows_max: 4,
            seqs_max: 2,
            logits_max: 3,
            pools: 0,
            arena_bytes: 0,
            offsets: vec![],
            launches: vec![],
        };
        let geometry = Geometry { block_size: 8, num_blocks: 5, max_slots: 2, max_ctx: 16 };
        batch.check(&geometry, false).unwrap();
        let expected: [&[i32]; 10] = [
            &[5, 6, 7, 0],
            &[8, 9, 3, 0],
            &[0, 0, -1, -1],
            &[0, 2, 2],
            &[10, 0],
            &[1, -1],
            &[4, 2, -1, -1],
            &[1, 0, 0],
            &[0, 0, 0, 0],
            &[0; COUNTERS as usize],
        ];
        for (input, expected) in StepInput::ALL.into_iter().zip(expected) {
            assert_eq!(batch.array(input, &bucket, &geometry), expected, "{input:?}");
        }
    }
}
