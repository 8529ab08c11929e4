//! Selections and attention over them.

use std::cmp::Ordering;

use rayon::prelude::*;

use crate::interp::batch::Batch;
use crate::interp::fast::{self, combine_halves, maximum};
use crate::interp::pointwise::sum;
use crate::interp::state::StateData;
use crate::op::GroupLimit;
use crate::order::{Order, SPLIT_CHAINS, SPLIT_ROWS, SPLIT_SUM, SPLITS_CHAINS};

/// Falling score; NaN below every number, -inf included; -0 equals +0.
fn falling(a: f32, b: f32) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        _ => b.partial_cmp(&a).unwrap_or(Ordering::Equal),
    }
}

/// Indices of the k best scores: falling score, then rising index. Always k distinct indices in range (k <= len).
pub fn top_k(scores: &[f32], k: usize) -> Vec<i32> {
    best_of(scores, (0..scores.len()).collect(), k)
}

/// [`top_k`] among the elements that a limit leaves: at least k.
pub fn choose(scores: &[f32], k: usize, limit: Option<GroupLimit>) -> Vec<i32> {
    let Some(limit) = limit else { return top_k(scores, k) };
    let size = (scores.len() / (limit.groups as usize).max(1)).max(1);
    let of_groups: Vec<f32> = scores.chunks(size).map(group_score).collect();
    let kept = top_k(&of_groups, limit.kept as usize);
    let open = (0..scores.len()).filter(|i| kept.contains(&((i / size) as i32))).collect();
    best_of(scores, open, k)
}

/// [`choose`] of a row, or of each `part` neighbours of it; indices count from the row's start.
pub fn choose_by_parts(scores: &[f32], k: usize, limit: Option<GroupLimit>, part: Option<u64>) -> Vec<i32> {
    let Some(part) = part.map(|part| (part as usize).max(1)) else { return choose(scores, k, limit) };
    let of_part = |(i, part_scores): (usize, &[f32])| {
        let ids = top_k(part_scores, k);
        ids.into_iter().map(move |id| (i * part) as i32 + id).collect::<Vec<_>>()
    };
    scores.chunks(part).enumerate().flat_map(of_part).collect()
}

/// Sum of the two highest scores, or the only one.
fn group_score(group: &[f32]) -> f32 {
    top_k(group, 2).into_iter().map(|i| group[i as usize]).reduce(|a, b| a + b).unwrap_or(f32::NAN)
}

/// The k best of these elements, which ascend.
fn best_of(scores: &[f32], mut order: Vec<usize>, k: usize) -> Vec<i32> {
    order.sort_by(|&a, &b| falling(scores[a], scores[b]).then(a.cmp(&b)));
    order.into_iter().take(k).map(|i| i as i32).collect()
}

/// Scalars of `index_scores`.
pub(crate) struct IndexScale {
    pub dot: f32,
    pub head: f32,
    pub order: Order,
}

/// `q [R, h, d]`, `w [R, h]` against the pools of each row's sequence: `[R, P]`. Row at position t has
/// P_t = floor((t + 1) / pool) complete pools; -inf beyond them and on padding rows. A pool never written is 0.
pub(crate) fn index_scores(q: &[f32], w: &[f32], state: &StateData, scale: &IndexScale, batch: &Batch) -> Vec<f32> {
    let mut out = vec![f32::NEG_INFINITY; batch.rows() * batch.pools];
    let StateData::Pool { width: d, pool, .. } = *state else { return out };
    if batch.pools == 0 {
        return out;
    }
    let (heads, chains) = (w.len() / batch.rows().max(1), strided_chains(scale.order));
    let zeros = vec![0.0f32; d];
    out.par_chunks_mut(batch.pools).enumerate().for_each(|(r, out)| {
        let Some((position, slot)) = batch.row(r) else { return };
        let mut acc = vec![0.0f32; chains];
        for (p, o) in out.iter_mut().enumerate().take((position + 1) / pool) {
            let key = state.row(slot, p).unwrap_or(&zeros);
            let mut total = 0.0f32;
            for a in 0..heads {
                let at = r * heads + a;
                let s = scale.dot * fast::dot_strided(&q[at * d..(at + 1) * d], key, &mut acc);
                total = w[at].mul_add(maximum(s, 0.0), total);
            }
            *o = scale.head * total;
        }
    });
    out
}

pub(crate) fn strided_chains(order: Order) -> usize {
    match order {
        Order::Strided(c) => c.max(1) as usize,
        _ => 1,
    }
}

/// Extents of `index_select`.
#[derive(Clone, Copy)]
pub(crate) struct Budget {
    pub budget: usize,
    pub pool: usize,
    pub tail: bool,
}

/// Per row: tokens of the best `budget` of its complete pools (ties: the lower pool; NaN below every number), then the
/// tokens of its unfinished pool up to itself if `tail`; ascending, padded with -1 to budget * pool + pool - 1.
pub(crate) fn index_select(scores: &[f32], b: Budget, batch: &Batch) -> Vec<i32> {
    let n = b.budget * b.pool + b.pool - 1;
    let mut out = Vec::with_capacity(batch.rows() * n);
    for r in 0..batch.rows() {
        let mut tokens: Vec<i32> = Vec::with_capacity(n);
        if let Some((position, _)) = batch.row(r) {
            let complete = ((position + 1) / b.pool).min(batch.pools);
            let row = &scores[r * batch.pools..r * batch.pools + complete];
            let mut pools = top_k(row, b.budget);
            pools.sort_unstable();
            tokens.extend(pools.iter().flat_map(|p| (0..b.pool as i32).map(move |j| p * b.pool as i32 + j)));
            if b.tail {
                let start = (position + 1) / b.pool * b.pool;
                tokens.extend((start..=position).map(|t| t as i32));
            }
        }
        tokens.resize(n, -1);
        out.extend(tokens);
    }
    out
}

/// `q [R, h, r]` over the rows of a token state that `ids [R, n]` names, split by split: `[R, h, S, r + 2]`.
///
/// Per row, head and split of 128 places of `ids`, places of -1 absent: s_j = scale * (q . row_j), the dot product in
/// `Lanes`; m = maximum of s_j, -inf without any; p_j = exp(s_j - m), or exp(s_j) where m is -inf; value_c = sum of
/// p_j * row_j[c] by fma in 8 chains (absent +0), and +0; l = sum of p_j in 32 chains (absent +0). Result: the values, m, l. Rows of the state
/// that do not exist are 0.
pub(crate) fn attend_splits(q: &[f32], ids: &[i32], state: &StateData, scale: f32, batch: &Batch) -> Vec<f32> {
    let (rows, w) = (batch.rows(), state.width());
    let (n, per_row) = (ids.len() / rows.max(1), q.len() / rows.max(1));
    if per_row == 0 || n == 0 {
        return Vec::new();
    }
    let line = n.div_ceil(SPLIT_ROWS as usize) * (w + 2);
    let mut out = vec![0.0f32; q.len() / w * line];
    let zeros = vec![0.0f32; w];
    out.par_chunks_mut(line).enumerate().for_each(|(i, out)| {
        let r = i * w / per_row;
        let slot = batch.row(r).map(|(_, slot)| slot);
        let ids = ids[r * n..(r + 1) * n].chunks(SPLIT_ROWS as usize);
        for (ids, out) in ids.zip(out.chunks_mut(w + 2)) {
            let row = |&id: &i32| Some(state.row(slot?, usize::try_from(id).ok()?).unwrap_or(&zeros));
            let picked: Vec<Option<&[f32]>> = ids.iter().map(row).collect();
            attend_split(&q[i * w..(i + 1) * w], &picked, scale, out);
        }
    });
    out
}

/// What is subtracted from scores: their maximum, or 0 where that is -inf.
fn shift(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

fn attend_split(q: &[f32], rows: &[Option<&[f32]>], scale: f32, out: &mut [f32]) {
    let scores: Vec<Option<f32>> = rows.iter().map(|row| row.map(|row| scale * fast::dot_lanes(q, row))).collect();
    let m = scores.iter().flatten().copied().fold(f32::NEG_INFINITY, maximum);
    let p: Vec<f32> = scores.iter().map(|s| s.map_or(0.0, |s| fast::exp(s - shift(m)))).collect();
    let w = q.len();
    let mut chains = vec![0.0f32; SPLIT_CHAINS as usize * w];
    for (place, (p, row)) in p.iter().zip(rows).enumerate() {
        let c = place % SPLIT_CHAINS as usize;
        let acc = &mut chains[c * w..(c + 1) * w];
        match row {
            Some(row) => fast::axpy(*p, row, acc),
            None => acc.iter_mut().for_each(|a| *a += 0.0),
        }
    }
    let mut column = [0.0f32; SPLIT_CHAINS as usize];
    for (c, o) in out.iter_mut().take(w).enumerate() {
        column.iter_mut().enumerate().for_each(|(i, v)| *v = chains[i * w + c]);
        // No sum is -0, whether absent places are added or left out.
        *o = combine_halves(&mut column) + 0.0;
    }
    out[w] = m;
    out[w + 1] = sum(SPLIT_SUM, &p);
}

/// `splits [R, h, S, w]`, each with values, maximum m_s and sum l_s: `[R, h, w - 2]`.
///
/// m = greatest m_s; w_s = exp(m_s - m), or exp(m_s) where m is -inf; value_c and l = sums of w_s times those of the splits,
/// by fma in 2 chains; result value_c / l, and 0 where l is 0: no place is selected, or every score is -inf.
pub(crate) fn attend_combine(splits: &[f32], count: usize, w: usize) -> Vec<f32> {
    let values = w.saturating_sub(2);
    let mut out = vec![0.0f32; splits.len() / (count * w).max(1) * values];
    if values == 0 {
        return out;
    }
    out.par_chunks_mut(values).zip(splits.par_chunks(count * w)).for_each(|(out, splits)| {
        let m = splits.chunks(w).map(|s| s[values]).fold(f32::NEG_INFINITY, maximum);
        let weights: Vec<f32> = splits.chunks(w).map(|s| fast::exp(s[values] - shift(m))).collect();
        let total = |c: usize| {
            let mut chains = [0.0f32; SPLITS_CHAINS as usize];
            for (i, (split, p)) in splits.chunks(w).zip(&weights).enumerate() {
                let chain = &mut chains[i % SPLITS_CHAINS as usize];
                *chain = p.mul_add(split[c], *chain);
            }
            combine_halves(&mut chains)
        };
        let l = total(values + 1);
        out.iter_mut().enumerate().for_each(|(c, o)| *o = if l == 0.0 { 0.0 } else { total(c) / l });
    });
    out
}
