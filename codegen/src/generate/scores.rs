//! Pool scores: one pool a lane. Pools that are not complete at the row get -inf and touch no memory.

use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;
use unglue_ir::types::StateKind;
use unglue_passes::schedule::strip_reshapes;

use super::index::Ix;
use super::interface::state_leaf;
use super::state::RowPlace;
use super::{Gen, Res, StepBuffer, StepScalar};
use crate::kp::{Addr, Bin, Bound, Cmp, Conv, Mem, Place, Un, Val};

/// Components of one load of a pooled key: the chains of the `strided8` order.
const VEC: u64 = 8;
/// Heads that share the loads of keys, the most first; as many as divide all heads. Each has eight registers a lane.
const HEADS_AT_ONCE: [u32; 3] = [4, 2, 1];

impl Gen<'_> {
    pub fn scores_form(&mut self, node: ValueId) -> Res<()> {
        self.row = self.group(1);
        let rows = self.scalar(StepScalar::Rows);
        let here = self.b.cmp(Cmp::Lt, self.row, rows);
        self.when(here, |s| s.score_pools(node))
    }

    fn score_pools(&mut self, node: ValueId) -> Res<()> {
        let args = self.g.node(node).args.clone();
        let StateKind::Pool { width, pool } = *self.state_kind(args[2])? else { return self.fault(node, "not a pool") };
        let heads = self.dims(args[0])?[0];
        let total = self.pools;
        let (x, wave) = (self.group(0), self.b.wave());
        let (waves, lanes) = (self.b.i(i64::from(self.b.waves())), self.b.i(32));
        let number = self.b.mul(x, waves);
        let number = self.b.add(number, wave);
        let first = self.b.mul(number, lanes);
        let at = Ix::Seq { base: first, aligned: true };
        self.mask_below(at, total);
        let inside = self.mask;
        let p = self.row_place();
        let (index, complete, stored) = self.pool_rows(&p, at, pool, width);
        self.mask = Some(match inside {
            Some(m) => self.b.and(m, stored),
            None => stored,
        });
        let (keys, _) = self.leaf(state_leaf(self.g, args[2]))?;
        let score = self.head_sum(node, (keys, index), heads, width)?;
        let low = self.b.f(f32::NEG_INFINITY);
        let score = self.b.select(complete, score, low);
        self.mask = inside;
        let name = self.g.outputs[0].0.clone();
        let place = self.iface.output(&mut self.b, &name, Mem::F32);
        let base = self.row_base(&[total]);
        self.store(place, Some(base), at, score);
        Ok(())
    }

    /// First element of each lane's pooled key, whether the pool is complete at the row, and whether its key is stored:
    /// a sequence without a slot has complete pools whose keys are 0.
    fn pool_rows(&mut self, p: &RowPlace, at: Ix, pool: u64, width: u64) -> (Val, Val, Val) {
        let numbers = at.lanes(&mut self.b);
        let (size, per_seq) = (self.scalar(StepScalar::BlockSize), self.scalar(StepScalar::BlocksPerSeq));
        let blocks = self.scalar(StepScalar::NumBlocks);
        let k = self.b.i(pool as i64);
        let one = self.b.i(1);
        let seen = self.b.add(p.position, one);
        let done = self.b.div(seen, k);
        let mut fine = self.b.cmp(Cmp::Lt, numbers, done);
        let slotless = self.b.un(Un::Not, p.live);
        let slotless = self.b.and(slotless, p.known);
        let zeros = self.b.and(fine, slotless);
        fine = self.b.and(fine, p.live);
        let rows = self.b.div(size, k);
        let (entry, inside) = (self.b.div(numbers, rows), self.b.rem(numbers, rows));
        let listed = self.b.cmp(Cmp::Lt, entry, per_seq);
        fine = self.b.and(fine, listed);
        let line = self.b.mul(p.seq, per_seq);
        let place = self.iface.step(&mut self.b, StepBuffer::BlockTable);
        let block = self.b.load(place, Addr::Lanes { base: line, index: entry }, Bound::Mask(fine), 1);
        let zero = self.b.i(0);
        let (ge, lt) = (self.b.cmp(Cmp::Ge, block, zero), self.b.cmp(Cmp::Lt, block, blocks));
        let exists = self.b.and(ge, lt);
        fine = self.b.and(fine, exists);
        let block = self.b.select(fine, block, zero);
        let (block, rows, inside) = (self.b.wide(block), self.b.wide(rows), self.b.wide(inside));
        let first = self.b.bin(Bin::Mul, block, rows);
        let row = self.b.bin(Bin::Add, first, inside);
        let width = self.b.i64(width as i64);
        let complete = self.b.bin(Bin::Or, fine, zeros);
        (self.b.bin(Bin::Mul, row, width), complete, fine)
    }

    /// head_scale * sum_a w_a * max(dot_scale * (q_a . K), 0), heads ascending by fma from +0.
    fn head_sum(&mut self, node: ValueId, keys: (Place, Val), heads: u64, width: u64) -> Res<Val> {
        let Op::IndexScores { dot_scale, head_scale, .. } = self.g.node(node).op else { return self.fault(node, "op") };
        let args = self.g.node(node).args.clone();
        let (query, _) = self.leaf(strip_reshapes(self.g, args[0]))?;
        let (weights, _) = self.leaf(strip_reshapes(self.g, args[1]))?;
        let zero = self.b.f(0.0);
        let init = self.b.splat(zero, 1);
        let n = self.b.i(heads as i64);
        let line = self.b.mul(self.row, n);
        let at_once = HEADS_AT_ONCE.into_iter().find(|n| heads.is_multiple_of(u64::from(*n))).unwrap_or(1);
        let (start, end) = (self.b.i(0), self.b.i(heads as i64));
        let total = self.looped((start, end, i64::from(at_once)), &[init], |s, a, acc| {
            let first = s.b.add(line, a);
            let numbers: Vec<Val> = (0..at_once).map(|h| s.ahead(first, h)).collect();
            let dots = s.pool_dots(query, &numbers, keys, width)?;
            let mut total = acc[0];
            for (head, dot) in numbers.into_iter().zip(dots) {
                let scale = s.b.f(f32::from_bits(dot_scale));
                let scaled = s.b.mul(dot, scale);
                let relu = s.b.bin(Bin::Max, scaled, zero);
                let w = s.b.load_uniform(weights, head);
                total = s.b.fma(w, relu, total);
            }
            Ok(vec![total])
        })?;
        let scale = self.b.f(f32::from_bits(head_scale));
        Ok(self.b.mul(total[0], scale))
    }

    /// Dot products of some heads' queries and each lane's key, in the `strided8` order. A part of a key is loaded once.
    fn pool_dots(&mut self, query: Place, heads: &[Val], (keys, index): (Place, Val), width: u64) -> Res<Vec<Val>> {
        let zero = self.b.f(0.0);
        let init = vec![self.b.splat(zero, VEC as u8); heads.len()];
        let bound = self.bound();
        let w = self.b.i(width as i64);
        let lines: Vec<Val> = heads.iter().map(|&head| self.b.mul(head, w)).collect();
        let (start, end) = (self.b.i(0), self.b.i(width as i64));
        let same = self.b.i(0);
        let same = self.b.splat(same, 1);
        let acc = self.looped((start, end, VEC as i64), &init, |s, c, acc| {
            let k = s.b.load(keys, Addr::Lanes { base: c, index }, bound, VEC as u8);
            let dot = |(&line, &acc): (&Val, &Val)| {
                let base = s.b.add(line, c);
                let q = s.b.load(query, Addr::Lanes { base, index: same }, Bound::All, VEC as u8);
                s.b.fma(q, k, acc)
            };
            Ok(lines.iter().zip(acc).map(dot).collect())
        })?;
        Ok(acc.into_iter().map(|v| self.components_total(v)).collect())
    }

    /// Truth as 0 or 1.
    pub fn flag(&mut self, cond: Val) -> Val {
        self.b.conv(Conv::BoolToI32, cond)
    }
}
