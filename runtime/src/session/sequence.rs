//! Sequences: a slot, blocks as they grow, and steps that need no thought about either.

use super::step::{Hook, StepOutput};
use super::{Session, StepBatch};
use crate::{Result, RuntimeError};

/// One sequence of a session. Give it back with [`Session::close_sequence`]; a dropped one keeps its slot and blocks.
#[derive(Debug)]
pub struct SequenceState {
    pub(super) slot: u32,
    /// Block of each `block_size` tokens.
    pub(super) blocks: Vec<i32>,
    /// Tokens so far.
    pub(super) len: u64,
    /// A step failed half-way, so that the state is undefined.
    broken: bool,
}

impl SequenceState {
    /// Tokens so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if it has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its state slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Its blocks, in order of tokens.
    pub fn blocks(&self) -> &[i32] {
        &self.blocks
    }
}

/// Which rows' logits are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogitRows {
    /// The last row's.
    #[default]
    Last,
    /// Every row's.
    All,
    /// None.
    None,
}

/// Tokens for one sequence of a step.
#[derive(Debug)]
pub struct Feed<'a> {
    pub seq: &'a mut SequenceState,
    /// The next tokens.
    pub ids: &'a [i32],
    pub logits: LogitRows,
}

/// All state of a sequence, in logical order: independent of slot and blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    len: u64,
    states: Vec<Vec<u8>>,
}

impl Snapshot {
    /// Tokens of the sequence.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if the sequence had no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

fn refuse(rule: &'static str, found: String, needed: String, help: &'static str) -> RuntimeError {
    RuntimeError::Sequence { rule, found, needed, help }
}

impl Session {
    /// A new, empty sequence with a slot of its own.
    pub fn open_sequence(&mut self) -> Result<SequenceState> {
        let full = |n| refuse("slots", format!("all {n} slots in use"), "a free slot".into(), "close a sequence");
        let slot = *self.free_slots.first().ok_or_else(|| full(self.geometry.max_slots))?;
        self.reset_slot(slot)?;
        self.free_slots.remove(&slot);
        Ok(SequenceState { slot, blocks: Vec::new(), len: 0, broken: false })
    }

    /// Gives a sequence's slot and blocks back.
    pub fn close_sequence(&mut self, seq: SequenceState) {
        self.free_blocks.extend(seq.blocks.iter().rev());
        self.free_slots.insert(seq.slot);
    }

    /// Makes a sequence empty again.
    pub fn reset(&mut self, seq: &mut SequenceState) -> Result<()> {
        self.reset_slot(seq.slot)?;
        self.free_blocks.extend(seq.blocks.drain(..).rev());
        seq.len = 0;
        seq.broken = false;
        Ok(())
    }

    /// Runs one step over the next tokens of one sequence.
    pub fn feed(&mut self, seq: &mut SequenceState, ids: &[i32], logits: LogitRows) -> Result<StepOutput> {
        self.feed_batch(&mut [Feed { seq, ids, logits }], None)
    }

    /// Runs one step over the next tokens of several sequences; logit rows come in the order of `feeds`.
    pub fn feed_batch(&mut self, feeds: &mut [Feed<'_>], hook: Option<&mut Hook<'_>>) -> Result<StepOutput> {
        let rows: usize = feeds.iter().map(|f| f.ids.len()).sum();
        if rows as u64 > self.max_rows() {
            let (chunk, found) = (self.max_rows(), format!("{rows} rows"));
            return Err(RuntimeError::TooLarge { found, needed: format!("{chunk} rows"), chunk });
        }
        for feed in feeds.iter_mut() {
            if feed.seq.broken {
                let found = format!("slot {} after a failed step", feed.seq.slot);
                return Err(refuse("intact state", found, "a state that is defined".into(), "reset or restore it"));
            }
            self.grow(feed.seq, feed.seq.len.saturating_add(feed.ids.len() as u64))?;
        }
        let batch = self.batch(feeds);
        let out = self.run(&batch, hook);
        for feed in feeds {
            // A step that was refused ran nothing.
            match &out {
                Ok(_) => feed.seq.len += feed.ids.len() as u64,
                Err(RuntimeError::Batch { .. } | RuntimeError::TooLarge { .. }) => {}
                Err(_) => feed.seq.broken = true,
            }
        }
        out
    }

    /// All state of a sequence.
    pub fn snapshot(&self, seq: &SequenceState) -> Result<Snapshot> {
        let states = (0..self.held.states.len()).map(|i| Ok(self.read_part(seq, i)?.bytes)).collect::<Result<_>>()?;
        Ok(Snapshot { len: seq.len, states })
    }

    /// Makes `seq` continue from a snapshot of this or another sequence.
    pub fn restore(&mut self, seq: &mut SequenceState, snapshot: &Snapshot) -> Result<()> {
        if snapshot.states.len() != self.held.states.len() {
            let (found, needed) = (snapshot.states.len(), self.held.states.len());
            return Err(refuse("snapshot", format!("{found} states"), format!("{needed}"), "take it from this bundle"));
        }
        self.grow(seq, snapshot.len)?;
        seq.broken = true;
        seq.len = snapshot.len;
        for (i, bytes) in snapshot.states.iter().enumerate() {
            self.write_part(seq, i, bytes)?;
        }
        seq.broken = false;
        Ok(())
    }

    /// Gives a sequence blocks for `tokens` tokens.
    fn grow(&mut self, seq: &mut SequenceState, tokens: u64) -> Result<()> {
        if tokens > self.geometry.max_ctx {
            let needed = format!("at most {}", self.geometry.max_ctx);
            return Err(refuse("context", format!("{tokens} tokens"), needed, "reset it, or take a longer --max-ctx"));
        }
        let wanted = if self.geometry.num_blocks == 0 { 0 } else { tokens.div_ceil(self.geometry.block_size) as usize };
        let missing = wanted.saturating_sub(seq.blocks.len());
        if missing > self.free_blocks.len() {
            let found = format!("{} free", self.free_blocks.len());
            return Err(refuse("blocks", found, format!("{missing} more"), "close a sequence, or create more blocks"));
        }
        let kept = self.free_blocks.len() - missing;
        seq.blocks.extend(self.free_blocks.drain(kept..).rev());
        Ok(())
    }

    fn batch(&self, feeds: &[Feed<'_>]) -> StepBatch {
        let mut batch = StepBatch { q_start: vec![0], ..StepBatch::default() };
        let blocks_per_seq = self.geometry.blocks_per_seq() as usize;
        for feed in feeds {
            let (seq, first) = (&*feed.seq, batch.ids.len() as i32);
            // The context is below 2^31.
            let (from, to) = (seq.len as i32, (seq.len + feed.ids.len() as u64) as i32);
            batch.ids.extend_from_slice(feed.ids);
            batch.positions.extend(from..to);
            let last = batch.ids.len() as i32;
            batch.q_start.push(last);
            batch.seq_len.push(to);
            batch.slot.push(seq.slot as i32);
            batch.block_table.extend_from_slice(&seq.blocks);
            batch.block_table.resize(batch.slot.len() * blocks_per_seq, -1);
            match feed.logits {
                LogitRows::Last if last > first => batch.logit_rows.push(last - 1),
                LogitRows::All => batch.logit_rows.extend(first..last),
                LogitRows::Last | LogitRows::None => {}
            }
        }
        batch
    }
}
