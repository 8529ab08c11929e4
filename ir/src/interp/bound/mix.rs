//! Bounds of the ops that mix rows, contract or select.

use crate::interp::batch::Batch;
use crate::interp::bound::{Bounded, HALF_STEP, OVERFLOW, UNIT, sum};
use crate::interp::contract::{Grouped, Heads};
use crate::interp::select::{Budget, IndexScale};
use crate::interp::state::{Delta, StateData, window_row};
use crate::interp::value::Rows;
use crate::op::{Binary, Unary};
use crate::order::{Order, RUN, SPLIT_CHAINS, SPLIT_ROWS, SPLIT_SUM, SPLITS_CHAINS};

/// A sum's error per addition, and the way it is formed.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub order: Order,
    /// Accumulators of matrix tiles may truncate: a whole ulp instead of half.
    pub truncating: bool,
}

impl Sums {
    pub fn dot<'a>(self, pairs: impl ExactSizeIterator<Item = (&'a Bounded, Bounded)>) -> Bounded {
        let n = pairs.len() as u64;
        let unit = if self.truncating { 2.0 * UNIT } else { UNIT };
        sum(pairs.map(|(a, b)| a.product(b)), self.order.depth(n), unit)
    }

    /// Sum of x * level * scale; `scales` has one entry a run.
    fn runs(self, x: &[Bounded], levels: &[f32], scales: &[f32]) -> Bounded {
        let scale = |k: usize| scales[k / RUN as usize];
        let weight = |k: usize| Bounded::exact(levels[k] * scale(k));
        let sum = self.dot(x.iter().enumerate().map(|(k, x)| (x, weight(k))));
        // A run is summed before its scale: its denormals grow with the scale, and it may overflow where the whole does not.
        let size = |(k, x): (usize, &Bounded)| x.product(Bounded::exact(levels[k])).size();
        let reach: f64 = x.iter().enumerate().map(size).filter(|s| s.is_finite()).sum();
        if reach >= OVERFLOW {
            return Bounded { value: sum.value, error: f64::INFINITY };
        }
        let grown: f64 = (0..x.len()).map(|k| f64::from(scale(k).abs()) * HALF_STEP).sum();
        Bounded::of(sum.value, sum.error + grown)
    }

    fn row(self, x: &[Bounded], w: &[f32]) -> Bounded {
        self.dot(x.iter().zip(w.iter().map(|w| Bounded::exact(*w))))
    }
}

/// `x [m, k]` times rows of `w`: `[m, cols]`.
pub(super) fn matmul(x: &[Bounded], k: usize, w: &dyn Rows, base: usize, cols: usize, sums: Sums) -> Vec<Bounded> {
    let m = x.len() / k.max(1);
    let mut out = vec![Bounded::default(); m * cols];
    let mut row = vec![0.0f32; k];
    let packed = w.int4();
    for n in 0..cols {
        if let Some(packed) = &packed {
            let mut scales = vec![0.0; k / RUN as usize];
            packed.row(base / k + n, &mut row, &mut scales);
            for (r, x) in x.chunks_exact(k).enumerate() {
                out[r * cols + n] = sums.runs(x, &row, &scales);
            }
            continue;
        }
        w.decode(base + n * k, &mut row);
        for (r, x) in x.chunks_exact(k).enumerate() {
            out[r * cols + n] = sums.row(x, &row);
        }
    }
    out
}

pub(super) fn batch_matmul(x: &[Bounded], w: &dyn Rows, d: &Heads, transposed: bool, sums: Sums) -> Vec<Bounded> {
    let mut out = vec![Bounded::default(); d.rows * d.heads * d.n];
    let mut matrix = vec![0.0f32; d.k * d.n];
    for h in 0..d.heads {
        w.decode(h * d.k * d.n, &mut matrix);
        for r in 0..d.rows {
            let at = r * d.heads + h;
            let x = &x[at * d.k..(at + 1) * d.k];
            for n in 0..d.n {
                let weight = |k: usize| matrix[if transposed { k * d.n + n } else { n * d.k + k }];
                out[at * d.n + n] = sums.dot(x.iter().enumerate().map(|(k, x)| (x, Bounded::exact(weight(k)))));
            }
        }
    }
    out
}

/// `g` names rows and slots; its own `x` is not read.
pub(super) fn grouped_matmul(x: &[Bounded], g: &Grouped, sums: Sums) -> Vec<Bounded> {
    let mut out = vec![Bounded::default(); g.ids.len() * g.n];
    for i in 0..g.ids.len() {
        if let Some(slot) = g.slot(i) {
            let row = &x[g.input(i)..g.input(i) + g.k];
            out[i * g.n..(i + 1) * g.n].copy_from_slice(&matmul(row, g.k, g.w, slot * g.n * g.k, g.n, sums));
        }
    }
    out
}

pub(super) fn causal_conv(x: &[Bounded], taps: &[Bounded], s: &StateData<Bounded>, batch: &Batch) -> Vec<Bounded> {
    let c = s.width();
    let w = taps.len() / c.max(1);
    let mut out = vec![Bounded::default(); x.len()];
    for seq in batch.seqs() {
        for (i, r) in seq.rows.clone().enumerate() {
            let rows: Vec<Option<&[Bounded]>> = (0..w).map(|tap| window_row(x, s, &seq, i, w - 1 - tap)).collect();
            for ch in 0..c {
                let term = |tap: usize| rows[tap].map_or(Bounded::default(), |row| row[ch].product(taps[ch * w + tap]));
                out[r * c + ch] = sum((0..w).map(term), w as u64, UNIT);
            }
        }
    }
    out
}

pub(super) fn delta_rule(
    a: &Delta<Bounded>,
    state: &StateData<Bounded>,
    batch: &Batch,
) -> (Vec<Bounded>, StateData<Bounded>) {
    let mut next = state.clone();
    let mut out = vec![Bounded::default(); a.v.len()];
    let StateData::Slot { shape, .. } = state else { return (out, next) };
    let (heads, kd, vd) = (shape[0], shape[1], shape[2]);
    let sums = Sums { order: Order::Strided(a.chains as u32), truncating: false };
    for seq in batch.seqs() {
        let block = seq.slot.and_then(|s| state.slots().get(s));
        let mut s = block.cloned().unwrap_or_else(|| vec![Bounded::default(); heads * kd * vd]);
        for r in seq.rows.clone() {
            for (h, s) in s.chunks_exact_mut(kd * vd).enumerate() {
                let (at_k, at_v) = ((r * heads + h) * kd, (r * heads + h) * vd);
                let (key, query) = (&a.k[at_k..at_k + kd], &a.q[at_k..at_k + kd]);
                for v in 0..vd {
                    for k in 0..kd {
                        s[k * vd + v] = s[k * vd + v].binary(Binary::Mul, a.decay[at_k + k]);
                    }
                    let dot = sums.dot(key.iter().enumerate().map(|(k, x)| (x, s[k * vd + v])));
                    let d = a.v[at_v + v].binary(Binary::Sub, dot).binary(Binary::Mul, a.beta[r * heads + h]);
                    for k in 0..kd {
                        s[k * vd + v] = key[k].fma(d, s[k * vd + v]);
                    }
                    out[at_v + v] = sums.dot(query.iter().enumerate().map(|(k, x)| (x, s[k * vd + v])));
                }
            }
        }
        if let Some(block) = seq.slot.and_then(|i| next.slots_mut().get_mut(i)) {
            *block = s;
        }
    }
    (out, next)
}

pub(super) fn index_scores(
    q: &[Bounded],
    w: &[Bounded],
    state: &StateData<Bounded>,
    scale: &IndexScale,
    batch: &Batch,
) -> Vec<Bounded> {
    let mut out = vec![Bounded { value: f64::NEG_INFINITY, error: 0.0 }; batch.rows() * batch.pools];
    let StateData::Pool { width: d, pool, .. } = *state else { return out };
    let heads = w.len() / batch.rows().max(1);
    let (zeros, zero) = (vec![Bounded::default(); d], Bounded::default());
    let sums = Sums { order: scale.order, truncating: false };
    for r in 0..batch.rows() {
        let Some((position, slot)) = batch.row(r) else { continue };
        for p in 0..((position + 1) / pool).min(batch.pools) {
            let key = state.row(slot, p).unwrap_or(&zeros);
            let term = |a: usize| {
                let at = r * heads + a;
                let dot = sums.dot(q[at * d..(at + 1) * d].iter().zip(key.iter().copied()));
                let s = Bounded::exact(scale.dot).binary(Binary::Mul, dot).binary(Binary::Max, zero);
                w[at].product(s)
            };
            let total = sum((0..heads).map(term), heads as u64, UNIT);
            out[r * batch.pools + p] = Bounded::exact(scale.head).binary(Binary::Mul, total);
        }
    }
    out
}

pub(super) fn attend_splits(
    q: &[Bounded],
    ids: &[i32],
    state: &StateData<Bounded>,
    scale: f32,
    batch: &Batch,
) -> Vec<Bounded> {
    let (rows, w) = (batch.rows().max(1), state.width().max(1));
    let (n, per_row) = (ids.len() / rows, q.len() / rows);
    let zeros = vec![Bounded::default(); w];
    let mut out = Vec::new();
    for (i, q) in q.chunks(w).enumerate() {
        let r = i * w / per_row.max(1);
        let slot = batch.row(r).map(|(_, slot)| slot);
        for ids in ids[r * n..(r + 1) * n].chunks(SPLIT_ROWS as usize) {
            let row = |&id: &i32| Some(state.row(slot?, usize::try_from(id).ok()?).unwrap_or(&zeros));
            let picked: Vec<&[Bounded]> = ids.iter().filter_map(row).collect();
            out.extend(attend_split(q, &picked, scale));
        }
    }
    out
}

/// x - m, or x where m is -inf.
fn shifted(x: Bounded, m: Bounded) -> Bounded {
    if m.value == f64::NEG_INFINITY { x } else { x.binary(Binary::Sub, m) }
}

fn greatest(x: impl Iterator<Item = Bounded>) -> Bounded {
    let least = Bounded { value: f64::NEG_INFINITY, error: 0.0 };
    x.reduce(|a, b| a.binary(Binary::Max, b)).unwrap_or(least)
}

fn attend_split(q: &[Bounded], rows: &[&[Bounded]], scale: f32) -> Vec<Bounded> {
    let lanes = Sums { order: Order::Lanes, truncating: false };
    let score = |row: &&[Bounded]| {
        let dot = lanes.dot(q.iter().zip(row.iter().copied()));
        Bounded::exact(scale).binary(Binary::Mul, dot)
    };
    let scores: Vec<Bounded> = rows.iter().map(score).collect();
    let m = greatest(scores.iter().copied());
    let p: Vec<Bounded> = scores.iter().map(|s| shifted(*s, m).unary(Unary::Exp)).collect();
    let depth = Order::Strided(SPLIT_CHAINS as u32).depth(SPLIT_ROWS);
    let value = |c: usize| sum(p.iter().zip(rows).map(|(p, row)| p.product(row[c])), depth, UNIT);
    let l = sum(p.iter().copied(), SPLIT_SUM.depth(SPLIT_ROWS), UNIT);
    (0..q.len()).map(value).chain([m, l]).collect()
}

pub(super) fn attend_combine(splits: &[Bounded], count: usize, w: usize) -> Vec<Bounded> {
    let values = w.saturating_sub(2);
    let depth = Order::Strided(SPLITS_CHAINS as u32).depth(count as u64);
    let mut out = Vec::new();
    for splits in splits.chunks((count * w).max(1)) {
        let m = greatest(splits.chunks(w).map(|s| s[values]));
        let weights: Vec<Bounded> = splits.chunks(w).map(|s| shifted(s[values], m).unary(Unary::Exp)).collect();
        let total = |c: usize| sum(weights.iter().zip(splits.chunks(w)).map(|(p, s)| p.product(s[c])), depth, UNIT);
        let l = total(values + 1);
        let none = l == Bounded::default();
        out.extend((0..values).map(|c| if none { l } else { total(c).binary(Binary::Div, l) }));
    }
    out
}

/// Index of the first score that was chosen wrongly, if any: every chosen score's interval must reach the best
/// rejected one's, and between exact ties the lower index wins. Repetitions and indices out of range are wrong.
pub(super) fn wrong_choice(scores: &[Bounded], chosen: &[i32]) -> Option<i32> {
    let mut taken = vec![false; scores.len()];
    for &c in chosen {
        match usize::try_from(c).ok().and_then(|c| taken.get_mut(c)) {
            Some(t) if !*t => *t = true,
            _ => return Some(c),
        }
    }
    // NaN ranks below every number.
    let end = |x: f64| if x.is_nan() { f64::NEG_INFINITY } else { x };
    let mut best: Option<(f64, usize)> = None;
    for (i, s) in scores.iter().enumerate().filter(|(i, _)| !taken[*i]) {
        let lo = if s.error == f64::INFINITY { f64::NEG_INFINITY } else { end(s.lo()) };
        if best.is_none_or(|(b, _)| lo > b) {
            best = Some((lo, i));
        }
    }
    let (lo, rejected) = best?;
    chosen.iter().copied().find(|&c| {
        let s = scores[c as usize];
        let hi = if s.error == f64::INFINITY { f64::INFINITY } else { end(s.hi()) };
        let exact = s.error == 0.0 && scores[rejected].error == 0.0 && !s.value.is_nan();
        hi < lo || (hi == lo && exact && c as usize > rejected)
    })
}

/// Pools that a row's token list names; `None` if it is not a list that `index_select` could give.
pub(super) fn pools_of(tokens: &[i32], position: usize, complete: usize, b: Budget) -> Option<Vec<i32>> {
    let pool = b.pool as i32;
    let count = complete.min(b.budget);
    let (chosen, rest) = tokens.split_at_checked(count * b.pool)?;
    let tail: Vec<i32> = match b.tail {
        true => (((position + 1) / b.pool * b.pool)..=position).map(|t| t as i32).collect(),
        false => Vec::new(),
    };
    let padded = rest.iter().copied().eq(tail.iter().copied().chain(std::iter::repeat(-1)).take(rest.len()));
    let runs = chosen.chunks(b.pool).all(|run| run[0] % pool == 0 && run.windows(2).all(|t| t[1] == t[0] + 1));
    let pools: Vec<i32> = chosen.iter().step_by(b.pool).map(|t| t / pool).collect();
    (padded && runs && pools.windows(2).all(|p| p[0] < p[1])).then_some(pools)
}
