//! State of one sequence in logical order.

use half::{bf16, f16};

use super::{SequenceState, Session};
use crate::layout::array_bytes;
use crate::manifest::{Mem, State, StateKind};
use crate::{Result, RuntimeError};

/// An array read from the device, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Element type.
    pub mem: Mem,
    /// Elements per axis.
    pub shape: Vec<u64>,
    /// The elements, little-endian.
    pub bytes: Vec<u8>,
}

impl Value {
    /// As f32: exact from bf16 and f16, rounded from i32.
    pub fn to_f32(&self) -> Vec<f32> {
        let (words, halves) = (self.words(), self.bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])));
        match self.mem {
            Mem::F32 => words.map(f32::from_bits).collect(),
            Mem::I32 => words.map(|w| w as i32 as f32).collect(),
            Mem::Bf16 => halves.map(|h| bf16::from_bits(h).to_f32()).collect(),
            Mem::F16 => halves.map(|h| f16::from_bits(h).to_f32()).collect(),
        }
    }

    /// As i32: i32 as it is, floats cut toward zero.
    pub fn to_i32(&self) -> Vec<i32> {
        match self.mem {
            Mem::I32 => self.words().map(|w| w as i32).collect(),
            Mem::F32 | Mem::Bf16 | Mem::F16 => self.to_f32().into_iter().map(|x| x as i32).collect(),
        }
    }

    fn words(&self) -> impl Iterator<Item = u32> + '_ {
        self.bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }
}

/// Shape of one sequence's part of a state, in logical order.
fn logical_shape(state: &State, len: u64) -> Vec<u64> {
    match &state.kind {
        StateKind::Slot { shape } => shape.clone(),
        StateKind::Tail { pool, width } => vec![2, *pool, *width],
        StateKind::Token { width } => vec![len, *width],
        StateKind::Pool { width, pool } => vec![len / pool, *width],
    }
}

impl Session {
    /// A sequence's part of the state `name`: a slot's record; `[2, pool, width]` of a tail; `[tokens, width]` and
    /// `[complete pools, width]` in order of tokens, through the sequence's blocks.
    pub fn read_state(&self, seq: &SequenceState, name: &str) -> Result<Value> {
        self.read_part(seq, self.find_state(name)?)
    }

    /// Overwrites what [`Session::read_state`] reads.
    pub fn write_state(&mut self, seq: &SequenceState, name: &str, bytes: &[u8]) -> Result<()> {
        let index = self.find_state(name)?;
        self.write_part(seq, index, bytes)
    }

    /// Zeroes the state that belongs to a slot.
    pub fn reset_slot(&mut self, slot: u32) -> Result<()> {
        if u64::from(slot) >= self.geometry.max_slots {
            let needed = format!("a slot below {}", self.geometry.max_slots);
            return Err(RuntimeError::Batch { rule: "slot", found: slot.to_string(), needed });
        }
        for index in 0..self.held.states.len() {
            let state = &self.manifest().states[index];
            if matches!(state.kind, StateKind::Slot { .. } | StateKind::Tail { .. }) {
                let bytes = array_bytes(&logical_shape(state, 0), state.mem, &state.name)?;
                self.device.fill(self.held.states[index].0, u64::from(slot) * bytes, bytes, 0)?;
            }
        }
        Ok(())
    }

    fn find_state(&self, name: &str) -> Result<usize> {
        let states = &self.manifest().states;
        states.iter().position(|s| s.name == name).ok_or_else(|| {
            let known = states.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", ");
            RuntimeError::Unknown { what: "state", name: name.to_string(), known }
        })
    }

    pub(super) fn read_part(&self, seq: &SequenceState, index: usize) -> Result<Value> {
        let state = &self.manifest().states[index];
        let shape = logical_shape(state, seq.len);
        let mut bytes = zeroed(array_bytes(&shape, state.mem, &state.name)?)?;
        let mut rest = bytes.as_mut_slice();
        for (offset, len) in self.segments(seq, state)? {
            let (head, tail) = rest.split_at_mut((len as usize).min(rest.len()));
            self.device.read(self.held.states[index].0, offset, head)?;
            rest = tail;
        }
        Ok(Value { mem: state.mem, shape, bytes })
    }

    pub(super) fn write_part(&mut self, seq: &SequenceState, index: usize, bytes: &[u8]) -> Result<()> {
        let state = &self.manifest().states[index];
        let segments = self.segments(seq, state)?;
        let needed: u64 = segments.iter().map(|(_, len)| len).sum();
        if bytes.len() as u64 != needed {
            let found = format!("{} bytes for {}", bytes.len(), state.name);
            let help = "give the state's logical shape";
            let needed = format!("{needed} bytes for {} tokens", seq.len);
            return Err(RuntimeError::Sequence { rule: "state size", found, needed, help });
        }
        let mut rest = bytes;
        for (offset, len) in segments {
            let (head, tail) = rest.split_at((len as usize).min(rest.len()));
            self.device.write(self.held.states[index].0, offset, head)?;
            rest = tail;
        }
        Ok(())
    }

    /// Where a sequence's part of a state is: byte ranges of the state's buffer, in logical order.
    fn segments(&self, seq: &SequenceState, state: &State) -> Result<Vec<(u64, u64)>> {
        let bytes = array_bytes(&logical_shape(state, seq.len), state.mem, &state.name)?;
        let (width, per_block) = match state.kind {
            StateKind::Slot { .. } | StateKind::Tail { .. } => return Ok(vec![(u64::from(seq.slot) * bytes, bytes)]),
            StateKind::Token { width } => (width, self.geometry.block_size),
            StateKind::Pool { width, pool } => (width, self.geometry.block_size / pool),
        };
        let page = per_block * width * state.mem.bytes();
        let lengths = (0..bytes.div_ceil(page)).map(|i| (bytes - i * page).min(page));
        Ok(seq.blocks.iter().zip(lengths).map(|(&block, len)| (block as u64 * page, len)).collect())
    }
}

/// Host memory for a copy of state: its size comes from a manifest.
fn zeroed(bytes: u64) -> Result<Vec<u8>> {
    let failed = |_| RuntimeError::OutOfMemory { bytes, detail: "a copy of state on the host".into() };
    let len = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut out = Vec::new();
    out.try_reserve_exact(len).map_err(failed)?;
    out.resize(len, 0);
    Ok(out)
}
