//! Elementwise ops, reductions, and sums in an order.

use crate::interp::fast::{self, binary, combine_halves, combine_lanes, maximum};
use crate::interp::moves::{around, broadcast_index};
use crate::op::{Binary, ReduceKind};
use crate::order::{LANE_CHAINS, Order, RUN, SPLIT_CHAINS, SPLIT_ROWS, SPLITS_CHAINS};

/// Sum of `x` in an order: chains start at +0 and add their elements in ascending order.
///
/// A sum has whole rounds: with n elements and C chains every chain has ceil(n / C) of them, and absent ones are +0.
pub fn sum(order: Order, x: &[f32]) -> f32 {
    match order {
        Order::Sequential => x.iter().fold(0.0, |a, b| a + b),
        Order::Lanes => {
            let mut chains = [0.0f32; LANE_CHAINS as usize];
            for round in x.chunks(chains.len()) {
                chains.iter_mut().zip(round).for_each(|(c, v)| *c += v);
            }
            combine_lanes(&mut chains)
        }
        Order::Runs => dot(order, x, &vec![1.0; x.len()]),
        Order::Strided(n) => {
            let mut chains = vec![0.0f32; n.max(1) as usize];
            for round in x.chunks(chains.len()) {
                chains.iter_mut().zip(round).for_each(|(c, v)| *c += v);
            }
            combine_halves(&mut chains)
        }
        Order::Splits => {
            let mut chains = [0.0f32; SPLITS_CHAINS as usize];
            for (j, split) in x.chunks(SPLIT_ROWS as usize).enumerate() {
                chains[j % SPLITS_CHAINS as usize] += sum(Order::Strided(SPLIT_CHAINS as u32), split);
            }
            combine_halves(&mut chains)
        }
    }
}

/// Sum of products in an order, by fma. Absent products are fma(+0, +0, chain).
pub fn dot(order: Order, x: &[f32], w: &[f32]) -> f32 {
    match order {
        Order::Lanes => fast::dot_lanes(x, w),
        Order::Runs => {
            let whole = |x: &[f32]| {
                let mut x = x.to_vec();
                x.resize(x.len().next_multiple_of(RUN as usize), 0.0);
                x
            };
            let (x, w) = (whole(x), whole(w));
            fast::dot_runs(&x, &w, &vec![1.0; x.len() / RUN as usize])
        }
        Order::Sequential => fast::dot_strided(x, w, &mut [0.0]),
        Order::Strided(n) => fast::dot_strided(x, w, &mut vec![0.0; n.max(1) as usize]),
        Order::Splits => {
            let mut chains = [0.0f32; SPLITS_CHAINS as usize];
            let (xs, ws) = (x.chunks(SPLIT_ROWS as usize), w.chunks(SPLIT_ROWS as usize));
            for (j, (a, b)) in xs.zip(ws).enumerate() {
                chains[j % SPLITS_CHAINS as usize] += fast::dot_strided(a, b, &mut [0.0; SPLIT_CHAINS as usize]);
            }
            combine_halves(&mut chains)
        }
    }
}

/// Binary op with broadcasting; `to` is the result's shape.
pub(crate) fn apply_binary(b: Binary, x: (&[f32], &[usize]), y: (&[f32], &[usize]), to: &[usize]) -> Vec<f32> {
    if x.1 == to && y.1 == to {
        return x.0.iter().zip(y.0).map(|(a, c)| binary(b, *a, *c)).collect();
    }
    let (xi, yi) = (broadcast_index(x.1, to), broadcast_index(y.1, to));
    xi.into_iter().zip(yi).map(|(i, j)| binary(b, x.0[i], y.0[j])).collect()
}

/// Reduction over `axis`, which becomes 1. `max` is the IEEE maximum: NaN wins.
pub(crate) fn reduce(kind: ReduceKind, order: Order, x: &[f32], shape: &[usize], axis: usize) -> Vec<f32> {
    let (outer, inner) = around(shape, axis);
    let n = shape[axis];
    let mut line = vec![0.0f32; n];
    let mut out = Vec::with_capacity(outer * inner);
    for o in 0..outer {
        for i in 0..inner {
            for (k, v) in line.iter_mut().enumerate() {
                *v = x[(o * n + k) * inner + i];
            }
            out.push(match kind {
                ReduceKind::Sum => sum(order, &line),
                ReduceKind::Max => line.iter().fold(f32::NEG_INFINITY, |a, b| maximum(a, *b)),
            });
        }
    }
    out
}
