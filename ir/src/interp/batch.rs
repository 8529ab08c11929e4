//! The ragged batch of a step: which row belongs to which sequence, at which position.

use std::ops::Range;

use crate::error::IrError;
use crate::interp::refuse;
use crate::interp::value::Tensor;
use crate::types::Dim;

/// Rows and sequences of one step. Rows of a sequence are consecutive and so are their positions; rows with sequence
/// -1 are padding: ops that mix rows give 0 for them (selections: -1, scores: -inf) and they write no state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Position in its sequence, per row.
    pub positions: Vec<i32>,
    /// Sequence of the batch per row; -1 for padding.
    pub row_seq: Vec<i32>,
    /// State slot per sequence; -1 reads zeros and writes nothing.
    pub slot: Vec<i32>,
    /// First row of each sequence, and one past the last row of the last.
    pub q_start: Vec<i32>,
    /// Value of `Dim::Pools`: at least the complete pools of the longest sequence after the step; pools beyond it are
    /// not seen by `index_scores`.
    pub pools: usize,
}

/// One sequence of the step.
#[derive(Clone, Debug)]
pub(crate) struct Seq {
    pub rows: Range<usize>,
    /// Position of its first row in this step.
    pub first: usize,
    pub slot: Option<usize>,
}

impl Batch {
    /// A batch of consecutive sequences, each `(slot, first position, rows)`; `pools` is what the longest can have with
    /// `pool` tokens a pool (0: no pools).
    pub fn new(seqs: &[(i32, usize, usize)], pool: usize) -> Batch {
        let mut b = Batch { q_start: vec![0], ..Batch::default() };
        for (i, &(slot, first, rows)) in seqs.iter().enumerate() {
            b.positions.extend((first..first + rows).map(|p| p as i32));
            b.row_seq.extend(std::iter::repeat_n(i as i32, rows));
            b.slot.push(slot);
            b.q_start.push(b.positions.len() as i32);
            b.pools = b.pools.max((first + rows).checked_div(pool).unwrap_or(0));
        }
        b
    }

    /// Rows of the step, with padding.
    pub fn rows(&self) -> usize {
        self.row_seq.len()
    }

    /// # Errors
    /// [`IrError::Eval`] names the rule of a batch that does not hold.
    pub fn check(&self) -> Result<(), IrError> {
        let bad = |found: String| Err(refuse("batch", "batch", &found, "see interp::Batch"));
        let (rows, seqs) = (self.rows(), self.slot.len());
        if self.positions.len() != rows || self.q_start.len() != seqs + 1 {
            return bad(format!(
                "{} positions of {rows} rows, {} starts of {seqs}",
                self.positions.len(),
                self.q_start.len()
            ));
        }
        let mut owner = vec![-1; rows];
        for b in 0..seqs {
            let (start, end) = (self.q_start[b], self.q_start[b + 1]);
            if start < 0 || end < start || end as usize > rows {
                return bad(format!("sequence {b} has rows {start}..{end} of {rows}"));
            }
            owner[start as usize..end as usize].fill(b as i32);
            let positions = &self.positions[start as usize..end as usize];
            if positions.iter().any(|&p| p < 0) || positions.windows(2).any(|p| p[1] - p[0] != 1) {
                return bad(format!("positions of sequence {b} are not consecutive"));
            }
            if self.slot[b] >= 0 && self.slot[..b].contains(&self.slot[b]) {
                return bad(format!("slot {} is used twice", self.slot[b]));
            }
        }
        if owner != self.row_seq {
            return bad("row_seq disagrees with q_start".into());
        }
        Ok(())
    }

    pub(crate) fn seqs(&self) -> Vec<Seq> {
        (0..self.slot.len())
            .map(|b| {
                let rows = self.q_start[b] as usize..self.q_start[b + 1] as usize;
                let first = self.positions.get(rows.start).map_or(0, |&p| p.max(0) as usize);
                Seq { first: if rows.is_empty() { 0 } else { first }, rows, slot: usize::try_from(self.slot[b]).ok() }
            })
            .collect()
    }

    /// `(position, slot)` of a row; `None` for padding.
    pub(crate) fn row(&self, r: usize) -> Option<(usize, Option<usize>)> {
        let b = usize::try_from(self.row_seq[r]).ok()?;
        Some((self.positions[r] as usize, usize::try_from(self.slot[b]).ok()))
    }
}

/// Values of the symbolic extents in a step.
#[derive(Clone, Copy, Debug)]
pub struct Dims {
    pub rows: usize,
    pub seqs: usize,
    pub logits: usize,
    pub pools: usize,
}

impl Dims {
    pub fn of(batch: &Batch, logits: usize) -> Dims {
        Dims { rows: batch.rows(), seqs: batch.slot.len(), logits, pools: batch.pools }
    }

    pub fn extent(&self, d: Dim) -> usize {
        match d {
            Dim::Fixed(n) => n as usize,
            Dim::Rows => self.rows,
            Dim::Seqs => self.seqs,
            Dim::Logits => self.logits,
            Dim::Pools => self.pools,
        }
    }

    pub fn shape(&self, dims: &[Dim]) -> Vec<usize> {
        dims.iter().map(|&d| self.extent(d)).collect()
    }
}

/// Number of logit rows, from the first tensor whose declared shape has that symbol.
pub(crate) fn logits_of<'a>(inputs: impl Iterator<Item = (&'a [Dim], &'a Tensor)>) -> usize {
    for (dims, t) in inputs {
        if let Some(i) = dims.iter().position(|d| *d == Dim::Logits) {
            return t.shape.get(i).copied().unwrap_or(0);
        }
    }
    0
}
