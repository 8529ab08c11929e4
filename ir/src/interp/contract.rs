//! Contractions: products by fma into the chains of the op's order. Weights are decoded one row at a time.

use rayon::prelude::*;

use crate::interp::fast;
use crate::interp::value::Rows;
use crate::order::{Order, RUN};

/// Below this many products a contraction stays on one thread.
const PARALLEL: usize = 1 << 18;

/// `x [m, k]` times rows `base + n * k ..` of `w`, n < `cols`: `[m, cols]`. In `Lanes`, or in `Runs` if `w` is int4.
pub(crate) fn matmul(x: &[f32], k: usize, w: &dyn Rows, base: usize, cols: usize) -> Vec<f32> {
    let m = x.len() / k.max(1);
    if m == 0 || cols == 0 {
        return Vec::new();
    }
    let mut by_column = vec![0.0f32; m * cols];
    let packed = w.int4();
    let column = |row: &mut Vec<f32>, (n, out): (usize, &mut [f32])| {
        if let Some(packed) = &packed {
            let mut scales = vec![0.0; k / RUN as usize];
            packed.row(base / k + n, row, &mut scales);
            for (o, x) in out.iter_mut().zip(x.chunks_exact(k)) {
                *o = fast::dot_runs(x, row, &scales);
            }
            return;
        }
        w.decode(base + n * k, row);
        for (o, x) in out.iter_mut().zip(x.chunks_exact(k)) {
            *o = fast::dot_lanes(x, row);
        }
    };
    if m * cols * k < PARALLEL {
        let mut row = vec![0.0; k];
        by_column.chunks_mut(m).enumerate().for_each(|c| column(&mut row, c));
    } else {
        by_column.par_chunks_mut(m).enumerate().for_each_init(|| vec![0.0; k], column);
    }
    let mut out = vec![0.0; m * cols];
    for (n, column) in by_column.chunks(m).enumerate() {
        for (r, v) in column.iter().enumerate() {
            out[r * cols + n] = *v;
        }
    }
    out
}

/// Extents of a per-head contraction.
pub(crate) struct Heads {
    pub rows: usize,
    pub heads: usize,
    pub k: usize,
    pub n: usize,
}

/// Per head: `x [R, H, K]` times `w [H, N, K]`, or `w [H, K, N]` in a strided order: `[R, H, N]`.
pub(crate) fn batch_matmul(x: &[f32], w: &dyn Rows, d: &Heads, transposed: bool, order: Order) -> Vec<f32> {
    let chains = match order {
        Order::Strided(c) => c.max(1) as usize,
        _ => 1,
    };
    let one_head = |h: usize| -> Vec<f32> {
        let mut xs = Vec::with_capacity(d.rows * d.k);
        for r in 0..d.rows {
            let at = (r * d.heads + h) * d.k;
            xs.extend_from_slice(&x[at..at + d.k]);
        }
        if !transposed {
            return matmul(&xs, d.k, w, h * d.n * d.k, d.n);
        }
        let mut matrix = vec![0.0; d.k * d.n];
        w.decode(h * d.k * d.n, &mut matrix);
        let mut acc = vec![0.0; chains * d.n];
        let mut out = vec![0.0; d.rows * d.n];
        for (x, out) in xs.chunks_exact(d.k).zip(out.chunks_exact_mut(d.n)) {
            fast::columns_strided(x, &matrix, &mut acc, out);
        }
        out
    };
    let per_head: Vec<Vec<f32>> = (0..d.heads).into_par_iter().map(one_head).collect();
    let mut out = vec![0.0; d.rows * d.heads * d.n];
    for (h, rows) in per_head.iter().enumerate() {
        for (r, row) in rows.chunks_exact(d.n).enumerate() {
            let at = (r * d.heads + h) * d.n;
            out[at..at + d.n].copy_from_slice(row);
        }
    }
    out
}

/// Operands of a grouped matmul.
pub(crate) struct Grouped<'a> {
    /// `[R, K]`, or `[R, choices, K]` if `per_choice`.
    pub x: &'a [f32],
    pub per_choice: bool,
    pub k: usize,
    pub ids: &'a [i32],
    pub choices: usize,
    pub slots: &'a [i32],
    pub w: &'a dyn Rows,
    pub w_slots: usize,
    pub n: usize,
}

impl Grouped<'_> {
    /// Slot of choice i, or `None` if the id or the slot is out of range: such a choice gives zeros.
    pub fn slot(&self, i: usize) -> Option<usize> {
        let expert = usize::try_from(self.ids[i]).ok()?;
        let slot = usize::try_from(*self.slots.get(expert)?).ok()?;
        (slot < self.w_slots).then_some(slot)
    }

    /// Start of the input row of choice i.
    pub fn input(&self, i: usize) -> usize {
        if self.per_choice { i * self.k } else { i / self.choices * self.k }
    }
}

/// Row r, choice j uses `w[slots[ids[r, j]]]`: `[R, choices, N]`. One pass over each slot that is used.
pub(crate) fn grouped_matmul(g: &Grouped) -> Vec<f32> {
    let mut out = vec![0.0; g.ids.len() * g.n];
    let mut users: std::collections::BTreeMap<usize, Vec<usize>> = std::collections::BTreeMap::new();
    for i in 0..g.ids.len() {
        if let Some(s) = g.slot(i) {
            users.entry(s).or_default().push(i);
        }
    }
    for (slot, users) in users {
        let mut xs = Vec::with_capacity(users.len() * g.k);
        for &i in &users {
            xs.extend_from_slice(&g.x[g.input(i)..g.input(i) + g.k]);
        }
        let rows = matmul(&xs, g.k, g.w, slot * g.n * g.k, g.n);
        for (&i, row) in users.iter().zip(rows.chunks_exact(g.n)) {
            out[i * g.n..(i + 1) * g.n].copy_from_slice(row);
        }
    }
    out
}
