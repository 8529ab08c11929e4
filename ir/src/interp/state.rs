//! State: logical storage, and the ops that read and write it.
//!
//! Every op gets one version of a state and gives the next; nothing is written in place. A sequence whose slot is -1
//! reads zeros and writes nothing. Rows that were never written are 0.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::interp::batch::{Batch, Seq};
use crate::interp::fast;
use crate::module::StateDecl;
use crate::types::{StateKind, StateType};

/// Content of one state, per slot. `T` is f32 in `bits` mode.
#[derive(Clone, Debug, PartialEq)]
pub enum StateData<T = f32> {
    /// One block of `shape` per slot.
    Slot { shape: Vec<usize>, slots: Vec<Vec<T>> },
    /// Rows by position, as many as were written.
    Token { width: usize, slots: Vec<Vec<T>> },
    /// Rows by pool number, as many as were written.
    Pool { width: usize, pool: usize, slots: Vec<Vec<T>> },
    /// `[2, pool, width]` per slot: token t at place t mod `pool`.
    Tail { pool: usize, width: usize, slots: Vec<Vec<T>> },
}

impl<T: Copy + Default> StateData<T> {
    /// A state of zeros with `slots` slots.
    pub fn new(ty: &StateType, slots: usize) -> Self {
        let zeros = |n: usize| vec![vec![T::default(); n]; slots];
        match &ty.kind {
            StateKind::Slot { shape } => {
                let shape: Vec<usize> = shape.iter().map(|&d| d as usize).collect();
                StateData::Slot { slots: zeros(shape.iter().product()), shape }
            }
            StateKind::Token { width } => StateData::Token { width: *width as usize, slots: zeros(0) },
            StateKind::Pool { width, pool } => {
                StateData::Pool { width: *width as usize, pool: *pool as usize, slots: zeros(0) }
            }
            StateKind::Tail { pool, width } => {
                let (pool, width) = (*pool as usize, *width as usize);
                StateData::Tail { pool, width, slots: zeros(2 * pool * width) }
            }
        }
    }

    /// Whether the content has the kind and extents of a type.
    pub fn fits(&self, ty: &StateType) -> bool {
        let block = match (self, &ty.kind) {
            (StateData::Slot { shape, .. }, StateKind::Slot { shape: want }) => {
                let same = shape.len() == want.len() && shape.iter().zip(want).all(|(a, b)| *a as u64 == *b);
                same.then(|| shape.iter().product())
            }
            (StateData::Token { width, .. }, StateKind::Token { width: want }) => (*width as u64 == *want).then_some(0),
            (StateData::Pool { width, pool, .. }, StateKind::Pool { width: w, pool: p }) => {
                (*width as u64 == *w && *pool as u64 == *p).then_some(0)
            }
            (StateData::Tail { width, pool, .. }, StateKind::Tail { width: w, pool: p }) => {
                (*width as u64 == *w && *pool as u64 == *p).then_some(2 * pool * width)
            }
            _ => None,
        };
        block.is_some_and(|n| self.slots().iter().all(|s| n == 0 || s.len() == n))
    }

    /// Flat content per slot.
    pub fn slots(&self) -> &[Vec<T>] {
        match self {
            StateData::Slot { slots, .. }
            | StateData::Token { slots, .. }
            | StateData::Pool { slots, .. }
            | StateData::Tail { slots, .. } => slots,
        }
    }

    pub fn slots_mut(&mut self) -> &mut [Vec<T>] {
        match self {
            StateData::Slot { slots, .. }
            | StateData::Token { slots, .. }
            | StateData::Pool { slots, .. }
            | StateData::Tail { slots, .. } => slots,
        }
    }

    /// Elements of one row.
    pub fn width(&self) -> usize {
        match self {
            StateData::Slot { shape, .. } => shape.last().copied().unwrap_or(1),
            StateData::Token { width, .. } | StateData::Pool { width, .. } | StateData::Tail { width, .. } => *width,
        }
    }

    /// Row `i` of a slot, if it exists.
    pub fn row(&self, slot: Option<usize>, i: usize) -> Option<&[T]> {
        let w = self.width();
        self.slots().get(slot?)?.get(i.checked_mul(w)?..)?.get(..w)
    }

    /// Writes row `i` of a slot; a state that grows is filled with zeros up to it.
    pub fn set_row(&mut self, slot: Option<usize>, i: usize, row: &[T]) {
        let w = self.width();
        let Some(data) = slot.and_then(|s| self.slots_mut().get_mut(s)) else { return };
        if data.len() < (i + 1) * w {
            data.resize((i + 1) * w, T::default());
        }
        data[i * w..(i + 1) * w].copy_from_slice(row);
    }

    /// Forgets what a slot holds.
    pub fn reset(&mut self, slot: usize) {
        let grows = matches!(self, StateData::Token { .. } | StateData::Pool { .. });
        if let Some(data) = self.slots_mut().get_mut(slot) {
            if grows {
                data.clear();
            } else {
                data.fill(T::default());
            }
        }
    }
}

/// All states of a module, by name.
#[derive(Clone, Debug, Default)]
pub struct States {
    pub(crate) map: BTreeMap<String, Arc<StateData>>,
}

impl States {
    /// Zero states for `slots` sequences.
    pub fn new(decls: &[StateDecl], slots: usize) -> States {
        let map = decls.iter().map(|d| (d.name.clone(), Arc::new(StateData::new(&d.ty, slots)))).collect();
        States { map }
    }

    /// Starts a new sequence in a slot.
    pub fn reset(&mut self, slot: usize) {
        self.map.values_mut().for_each(|s| Arc::make_mut(s).reset(slot));
    }

    pub fn get(&self, name: &str) -> Option<&StateData> {
        self.map.get(name).map(|s| &**s)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut StateData> {
        self.map.get_mut(name).map(Arc::make_mut)
    }

    pub fn set(&mut self, name: &str, data: StateData) {
        self.map.insert(name.into(), Arc::new(data));
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &StateData)> {
        self.map.iter().map(|(k, v)| (k.as_str(), &**v))
    }
}

/// Row of the window that ends at row `i` of a sequence: `back` rows before it, from this step's rows or from the
/// state's last rows (oldest first).
pub(crate) fn window_row<'a, T: Copy + Default>(
    x: &'a [T],
    state: &'a StateData<T>,
    seq: &Seq,
    i: usize,
    back: usize,
) -> Option<&'a [T]> {
    let (c, StateData::Slot { shape, .. }) = (state.width(), state) else { return None };
    if i >= back {
        let at = (seq.rows.start + i - back) * c;
        return Some(&x[at..at + c]);
    }
    state.row(seq.slot, (shape[0] + i).checked_sub(back)?)
}

/// Tap w of the row at position t meets position t - (W-1) + w; per channel by fma from +0, oldest first.
pub(crate) fn causal_conv(x: &[f32], taps: &[f32], state: &StateData, batch: &Batch) -> Vec<f32> {
    let c = state.width();
    let w = taps.len() / c.max(1);
    let mut out = vec![0.0f32; x.len()];
    for seq in batch.seqs() {
        for (i, r) in seq.rows.clone().enumerate() {
            let acc = &mut out[r * c..(r + 1) * c];
            for tap in 0..w {
                let row = window_row(x, state, &seq, i, w - 1 - tap);
                for (ch, a) in acc.iter_mut().enumerate() {
                    *a = row.map_or(0.0, |row| row[ch]).mul_add(taps[ch * w + tap], *a);
                }
            }
        }
    }
    out
}

/// The last W-1 rows of (state ++ this step's rows), per sequence.
pub(crate) fn conv_update<T: Copy + Default>(x: &[T], state: &StateData<T>, batch: &Batch) -> StateData<T> {
    let mut next = state.clone();
    let StateData::Slot { shape, .. } = state else { return next };
    for seq in batch.seqs().iter().filter(|s| s.slot.is_some()) {
        let n = seq.rows.len();
        for place in 0..shape[0] {
            // The window that ends at the last row, if there is one: row n - 1, counted back.
            let back = shape[0] - 1 - place;
            let row = if n == 0 { state.row(seq.slot, place) } else { window_row(x, state, seq, n - 1, back) };
            if let Some(row) = row {
                next.set_row(seq.slot, place, row);
            }
        }
    }
    next
}

/// Operands of the delta rule, all `[R, H, ..]`.
pub(crate) struct Delta<'a, T> {
    pub q: &'a [T],
    pub k: &'a [T],
    pub v: &'a [T],
    pub decay: &'a [T],
    pub beta: &'a [T],
    pub chains: usize,
}

/// Row by row: S *= decay (rounded); d = (v - S^T k) * beta; S = fma(k, d, S); o = S^T q. Contractions over the key
/// axis are by fma, S the first factor's partner, in the op's `Strided` order.
pub(crate) fn delta_rule(a: &Delta<f32>, state: &StateData, batch: &Batch) -> (Vec<f32>, StateData) {
    let mut next = state.clone();
    let mut out = vec![0.0f32; a.v.len()];
    let StateData::Slot { shape, .. } = state else { return (out, next) };
    let (heads, kd, vd) = (shape[0], shape[1], shape[2]);
    for seq in batch.seqs() {
        let block = seq.slot.and_then(|s| state.slots().get(s));
        let mut s = block.cloned().unwrap_or_else(|| vec![0.0; heads * kd * vd]);
        let mut scratch = (vec![0.0; a.chains * vd], vec![0.0; vd]);
        for r in seq.rows.clone() {
            for (h, s) in s.chunks_exact_mut(kd * vd).enumerate() {
                let (at_k, at_v) = ((r * heads + h) * kd, (r * heads + h) * vd);
                let key = &a.k[at_k..at_k + kd];
                for (row, f) in s.chunks_exact_mut(vd).zip(&a.decay[at_k..at_k + kd]) {
                    fast::scale(row, *f);
                }
                let (acc, d) = (&mut scratch.0, &mut scratch.1);
                fast::columns_strided(key, s, acc, d);
                for (d, v) in d.iter_mut().zip(&a.v[at_v..at_v + vd]) {
                    *d = (v - *d) * a.beta[r * heads + h];
                }
                for (row, k) in s.chunks_exact_mut(vd).zip(key) {
                    fast::axpy(*k, d, row);
                }
                fast::columns_strided(&a.q[at_k..at_k + kd], s, acc, &mut out[at_v..at_v + vd]);
            }
        }
        if let Some(block) = seq.slot.and_then(|i| next.slots_mut().get_mut(i)) {
            *block = s;
        }
    }
    (out, next)
}

/// This step's rows at their positions.
pub(crate) fn token_write<T: Copy + Default>(x: &[T], state: &StateData<T>, batch: &Batch) -> StateData<T> {
    let (mut next, w) = (state.clone(), state.width());
    for r in 0..batch.rows() {
        if let Some((position, slot)) = batch.row(r) {
            next.set_row(slot, position, &x[r * w..(r + 1) * w]);
        }
    }
    next
}

/// Rows whose token completes a pool, at the pool's number.
pub(crate) fn pool_write<T: Copy + Default>(x: &[T], state: &StateData<T>, batch: &Batch) -> StateData<T> {
    let mut next = state.clone();
    let StateData::Pool { width: w, pool, .. } = *state else { return next };
    for r in 0..batch.rows() {
        if let Some((position, slot)) = batch.row(r).filter(|(p, _)| (p + 1) % pool == 0) {
            next.set_row(slot, position / pool, &x[r * w..(r + 1) * w]);
        }
    }
    next
}

/// Per row, the rows of the pool that contains its token, `[R, pool, d]`: from this step where the position is one of
/// this step's, else from part `part` of the tail (the version from before the step); places after the row's own are 0.
pub(crate) fn pool_window<T: Copy + Default>(x: &[T], state: &StateData<T>, part: usize, batch: &Batch) -> Vec<T> {
    let StateData::Tail { width: w, pool, .. } = *state else { return Vec::new() };
    let mut out = vec![T::default(); batch.rows() * pool * w];
    for seq in batch.seqs() {
        for r in seq.rows.clone() {
            let position = seq.first + (r - seq.rows.start);
            for place in 0..=position % pool {
                let p = position - position % pool + place;
                let row = match p.checked_sub(seq.first) {
                    Some(i) => Some(&x[(seq.rows.start + i) * w..(seq.rows.start + i + 1) * w]),
                    None => state.row(seq.slot, part * pool + place),
                };
                if let Some(row) = row {
                    out[(r * pool + place) * w..(r * pool + place + 1) * w].copy_from_slice(row);
                }
            }
        }
    }
    out
}

/// Row at position t to place t mod pool of both parts; later rows of the step win.
pub(crate) fn tail_update<T: Copy + Default>(x: [&[T]; 2], state: &StateData<T>, batch: &Batch) -> StateData<T> {
    let mut next = state.clone();
    let StateData::Tail { width: w, pool, .. } = *state else { return next };
    for r in 0..batch.rows() {
        if let Some((position, slot)) = batch.row(r) {
            for (part, x) in x.iter().enumerate() {
                next.set_row(slot, part * pool + position % pool, &x[r * w..(r + 1) * w]);
            }
        }
    }
    next
}
