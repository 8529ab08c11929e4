//! Selections and attention over them.

use std::cmp::Ordering;

use rayon::prelude::*;

use crate::interp::batch::Batch;
use crate::interp::fast::{self, combine_halves, maximum};
use crate::interp::pointwise::sum;
use crate::interp::state::StateData;
use crate::op::GroupLimit;
use crate::order::{Order, SPLIT_CHAINS, SPLIT_ROWS, SPLIT_WAVES};

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

/// `q [R, h, r]` over the rows of a token state that `ids [R, n]` names: `[R, h, r]`.
///
/// Per row and head, with j the place in `ids` and places of -1 absent: s_j = scale * (q . row_j), the dot product in
/// `Lanes`; m = maximum of s_j; p_j = exp(s_j - m); l = sum of p_j in `Lanes` over all n places (absent +0); value_c =
/// sum of p_j * row_j[c] by fma in `Splits` over the places (absent +0); result value_c / l. A row without any id
/// gives 0. Rows of the state that do not exist are 0.
pub(crate) fn attend(q: &[f32], ids: &[i32], state: &StateData, scale: f32, batch: &Batch) -> Vec<f32> {
    let (rows, w) = (batch.rows(), state.width());
    let (n, per_row) = (ids.len() / rows.max(1), q.len() / rows.max(1));
    let mut out = vec![0.0f32; q.len()];
    if per_row == 0 || n == 0 {
        return out;
    }
    let zeros = vec![0.0f32; w];
    out.par_chunks_mut(w).enumerate().for_each(|(i, out)| {
        let r = i * w / per_row;
        let Some((_, slot)) = batch.row(r) else { return };
        let picked: Vec<Option<&[f32]>> = ids[r * n..(r + 1) * n]
            .iter()
            .map(|&id| usize::try_from(id).ok().map(|t| state.row(slot, t).unwrap_or(&zeros)))
            .collect();
        attend_one(&q[i * w..(i + 1) * w], &picked, scale, out);
    });
    out
}

fn attend_one(q: &[f32], rows: &[Option<&[f32]>], scale: f32, out: &mut [f32]) {
    let scores: Vec<Option<f32>> = rows.iter().map(|row| row.map(|row| scale * fast::dot_lanes(q, row))).collect();
    let Some(m) = scores.iter().flatten().copied().reduce(maximum) else { return };
    let p: Vec<f32> = scores.iter().map(|s| s.map_or(0.0, |s| fast::exp(s - m))).collect();
    let l = sum(Order::Lanes, &p);
    let w = out.len();
    let mut waves = vec![0.0f32; SPLIT_WAVES as usize * w];
    let mut chains = vec![0.0f32; SPLIT_CHAINS as usize * w];
    let mut column = [0.0f32; SPLIT_CHAINS as usize];
    let splits = p.chunks(SPLIT_ROWS as usize).zip(rows.chunks(SPLIT_ROWS as usize));
    for (j, (p, rows)) in splits.enumerate() {
        chains.fill(0.0);
        for (place, (p, row)) in p.iter().zip(rows).enumerate() {
            let c = place % SPLIT_CHAINS as usize;
            let acc = &mut chains[c * w..(c + 1) * w];
            match row {
                Some(row) => fast::axpy(*p, row, acc),
                None => acc.iter_mut().for_each(|a| *a += 0.0),
            }
        }
        let wave = j % SPLIT_WAVES as usize;
        for c in 0..w {
            column.iter_mut().enumerate().for_each(|(i, v)| *v = chains[i * w + c]);
            waves[wave * w + c] += combine_halves(&mut column);
        }
    }
    let mut column = [0.0f32; SPLIT_WAVES as usize];
    for (c, o) in out.iter_mut().enumerate() {
        column.iter_mut().enumerate().for_each(|(i, v)| *v = waves[i * w + c]);
        *o = combine_halves(&mut column) / l;
    }
}
