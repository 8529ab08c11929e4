//! Attention over selected rows: one workgroup a row and head. Scores and probabilities stand in workgroup memory;
//! values are summed in splits of 64 selected rows, dealt over the waves.

use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;
use unglue_ir::order::{SPLIT_CHAINS, SPLIT_ROWS};
use unglue_passes::schedule::strip_reshapes;

use super::index::Ix;
use super::interface::state_leaf;
use super::state::RowPlace;
use super::{Gen, Kept, Res, StepBuffer, StepScalar};
use crate::kp::{Addr, Bin, Bound, Cmp, Mem, Place, Reduce, Val};

/// Places whose rows a wave loads at the same time for their scores. One after the other, each waits for its id, its block
/// and its row: 2,048 places took 219 us on an H200.
const PLACES_AT_ONCE: u64 = 4;

/// What the phases share.
struct Attention {
    node: ValueId,
    width: u64,
    selected: u64,
    query: Place,
    query_base: Val,
    latent: Place,
    ids: Place,
    ids_base: Val,
    /// Score, then probability, of each place of the selection.
    scores: Place,
    /// Block of each place, -1 if there is no row, and the row inside of it.
    blocks: Place,
    inside: Place,
    row: RowPlace,
}

impl Gen<'_> {
    pub fn attend_form(&mut self, node: ValueId, heads: u64, width: u64) -> Res<()> {
        self.row = self.group(1);
        let rows = self.scalar(StepScalar::Rows);
        let here = self.b.cmp(Cmp::Lt, self.row, rows);
        self.when(here, |s| {
            let a = s.attention(node, heads, width)?;
            s.selected_rows(&a)?;
            s.attend_scores(&a)?;
            let any = s.attend_probabilities(&a)?;
            s.attend_values(&a, any)
        })
    }

    fn attention(&mut self, node: ValueId, heads: u64, width: u64) -> Res<Attention> {
        let args = self.g.node(node).args.clone();
        let (query, _) = self.leaf(strip_reshapes(self.g, args[0]))?;
        let (latent, _) = self.leaf(state_leaf(self.g, args[1]))?;
        let (ids, _) = self.leaf(strip_reshapes(self.g, args[2]))?;
        let selected = self.elements(args[2])?;
        let head = self.group(0);
        let per_row = self.b.i((heads * width) as i64);
        let row = self.b.mul(self.row, per_row);
        let w = self.b.i(width as i64);
        let line = self.b.mul(head, w);
        let query_base = self.b.add(row, line);
        let n = self.b.i(selected as i64);
        let ids_base = self.b.mul(self.row, n);
        let scores = self.shared_array(node, Mem::F32, selected);
        let blocks = self.b.shared("blocks", Mem::I32, selected);
        let inside = self.b.shared("inside", Mem::I32, selected);
        let row = self.row_place();
        Ok(Attention { node, width, selected, query, query_base, latent, ids, ids_base, scores, blocks, inside, row })
    }

    /// Resolves all places through the block table, one a lane: four integer divisions each, which every wave would repeat
    /// for every piece of a row. Barrier.
    fn selected_rows(&mut self, a: &Attention) -> Res<()> {
        let (size, per_seq) = (self.scalar(StepScalar::BlockSize), self.scalar(StepScalar::BlocksPerSeq));
        let blocks = self.scalar(StepScalar::NumBlocks);
        let table = self.iface.step(&mut self.b, StepBuffer::BlockTable);
        let line = self.b.mul(a.row.seq, per_seq);
        self.for_elements(a.selected, |s, at| {
            let id = s.load(a.ids, Some(a.ids_base), at);
            let (zero, none) = (s.b.i(0), s.b.i(-1));
            let (entry, inside) = (s.b.div(id, size), s.b.rem(id, size));
            let (known, listed) = (s.b.cmp(Cmp::Ge, id, zero), s.b.cmp(Cmp::Lt, entry, per_seq));
            let known = s.b.and(known, listed);
            let mut fine = s.b.and(known, a.row.live);
            let index = s.b.select(fine, entry, zero);
            let bound = match s.mask {
                Some(m) => Bound::Mask(s.b.and(m, fine)),
                None => Bound::Mask(fine),
            };
            let block = s.b.load(table, Addr::Lanes { base: line, index }, bound, 1);
            let (ge, lt) = (s.b.cmp(Cmp::Ge, block, zero), s.b.cmp(Cmp::Lt, block, blocks));
            fine = s.b.and(fine, ge);
            fine = s.b.and(fine, lt);
            let block = s.b.select(fine, block, none);
            s.store(a.blocks, None, at, block);
            s.store(a.inside, None, at, inside);
            Ok(())
        })?;
        self.b.barrier();
        Ok(())
    }

    /// First element of the latent row of place `j` (uniform), and whether there is one. Where there is none, a row of block
    /// 0 stands in for it: a load without a branch does not keep others from being in flight beside it.
    fn selected_row(&mut self, a: &Attention, j: Val) -> (Val, Val) {
        let (block, inside) = (self.b.load_uniform(a.blocks, j), self.b.load_uniform(a.inside, j));
        let (zero, size) = (self.b.i(0), self.scalar(StepScalar::BlockSize));
        let fine = self.b.cmp(Cmp::Ge, block, zero);
        let (block, inside) = (self.b.select(fine, block, zero), self.b.select(fine, inside, zero));
        let (block, size, inside) = (self.b.wide(block), self.b.wide(size), self.b.wide(inside));
        let row = self.b.bin(Bin::Mul, block, size);
        let row = self.b.bin(Bin::Add, row, inside);
        let width = self.b.i64(a.width as i64);
        (self.b.bin(Bin::Mul, row, width), fine)
    }

    /// scale * (query . row) of every place, some places of a wave at a time; -inf where there is none.
    fn attend_scores(&mut self, a: &Attention) -> Res<()> {
        let Op::Attend { scale, .. } = self.g.node(a.node).op else { return self.fault(a.node, "not attention") };
        let places = if a.selected.is_multiple_of(PLACES_AT_ONCE) { PLACES_AT_ONCE } else { 1 };
        let (wave, each) = (self.b.wave(), self.b.i(places as i64));
        let (start, end) = (self.b.mul(wave, each), self.b.i(a.selected as i64));
        let step = (u64::from(self.b.waves()) * places) as i64;
        self.looped((start, end, step), &[], |s, first, _| {
            let at: Vec<Val> = (0..places).map(|u| s.offset(first, u)).collect();
            let rows: Vec<(Val, Val)> = at.iter().map(|&j| s.selected_row(a, j)).collect();
            let bases: Vec<Val> = rows.iter().map(|r| r.0).collect();
            let dots = s.row_dots(a, &bases)?;
            for ((j, (_, fine)), dot) in at.into_iter().zip(rows).zip(dots) {
                let (scale, none) = (s.b.f(f32::from_bits(scale)), s.b.f(f32::NEG_INFINITY));
                let score = s.b.mul(dot, scale);
                let score = s.b.select(fine, score, none);
                s.b.store(a.scores, Addr::Uniform { base: j }, Bound::All, score);
            }
            Ok(vec![])
        })?;
        self.b.barrier();
        Ok(())
    }

    fn offset(&mut self, first: Val, u: u64) -> Val {
        if u == 0 {
            return first;
        }
        let u = self.b.i(u as i64);
        self.b.add(first, u)
    }

    /// Dot products of the query with rows that start at `rows`, in the `lanes` order.
    fn row_dots(&mut self, a: &Attention, rows: &[Val]) -> Res<Vec<Val>> {
        let zero = self.b.f(0.0);
        let init: Vec<Val> = rows.iter().map(|_| self.b.splat(zero, 8)).collect();
        let (start, end) = (self.b.i(0), self.b.i(a.width as i64));
        let whole = a.width.is_multiple_of(256);
        let acc = self.looped((start, end, 256), &init, |s, c, acc| {
            let left = s.b.sub(end, c);
            let bound = if whole { Bound::All } else { Bound::Count(left) };
            let wide = s.b.wide(c);
            let q_base = s.b.add(a.query_base, c);
            let q = s.b.load(a.query, Addr::Contig { base: q_base }, bound, 8);
            let mut keys = Vec::new();
            for &row in rows {
                let base = s.b.bin(Bin::Add, row, wide);
                keys.push(s.b.load(a.latent, Addr::Contig { base }, bound, 8));
            }
            Ok(keys.iter().zip(acc).map(|(&k, &a)| s.b.fma(q, k, a)).collect())
        })?;
        let total = |s: &mut Self, v: Val| {
            let parts: Vec<Val> = (0..8).map(|i| s.b.component(v, i)).collect();
            let lane = s.strided_total(&parts);
            s.b.reduce(Reduce::Add, lane)
        };
        Ok(acc.into_iter().map(|v| total(self, v)).collect())
    }

    /// Replaces scores by exp(score - max); returns (their sum, whether any place was selected).
    fn attend_probabilities(&mut self, a: &Attention) -> Res<(Val, Val)> {
        let n = a.selected;
        let max = self.workgroup_max(n, |s, at| Ok(s.load(a.scores, None, at)))?;
        self.for_elements(n, |s, at| {
            let score = s.load(a.scores, None, at);
            let shifted = s.b.sub(score, max);
            let p = unglue_ir::math::exp(&mut s.b, shifted);
            let id = s.load(a.ids, Some(a.ids_base), at);
            let known = s.is(Cmp::Ge, id, 0);
            let zero = s.b.f(0.0);
            let p = s.b.select(known, p, zero);
            s.store(a.scores, None, at, p);
            Ok(())
        })?;
        self.b.barrier();
        let sum = self.workgroup_sum(n, |s, at| Ok(s.load(a.scores, None, at)))?;
        let any = self.workgroup_max(n, |s, at| {
            let id = s.load(a.ids, Some(a.ids_base), at);
            let known = s.is(Cmp::Ge, id, 0);
            let (yes, no) = (s.b.f(1.0), s.b.f(0.0));
            Ok(s.b.select(known, yes, no))
        })?;
        let zero = self.b.f(0.0);
        let any = self.b.cmp(Cmp::Gt, any, zero);
        let any = self.b.and(any, a.row.live);
        Ok((sum, any))
    }

    fn attend_values(&mut self, a: &Attention, (sum, any): (Val, Val)) -> Res<()> {
        let waves = u64::from(self.b.waves());
        let partial = self.b.shared("partial", Mem::F32, waves * a.width);
        let wave = self.b.wave();
        let (zero, end) = (self.b.i(0), self.b.i(a.width as i64));
        // A lane takes eight columns: what the rows' addresses cost is shared by 256 of them.
        self.looped((zero, end, 256), &[], |s, c, _| {
            let left = s.b.sub(end, c);
            let bound = if a.width.is_multiple_of(256) { Bound::All } else { Bound::Count(left) };
            let total = s.wave_splits(a, c, bound)?;
            let w = s.b.i(a.width as i64);
            let line = s.b.mul(wave, w);
            let base = s.b.add(line, c);
            s.b.store(partial, Addr::Contig { base }, bound, total);
            Ok(vec![])
        })?;
        self.b.barrier();
        self.attend_outputs(a, partial, waves, sum, any)
    }

    /// This wave's splits, added in ascending order: eight columns a lane, from column `c` on.
    fn wave_splits(&mut self, a: &Attention, c: Val, bound: Bound) -> Res<Val> {
        let zero = self.b.f(0.0);
        let init = self.b.splat(zero, 8);
        let wave = self.b.wave();
        let rows = self.b.i(SPLIT_ROWS as i64);
        let start = self.b.mul(wave, rows);
        let end = self.b.i(a.selected as i64);
        let step = SPLIT_ROWS as i64 * i64::from(self.b.waves());
        let total = self.looped((start, end, step), &[init], |s, first, acc| {
            let split = s.b.i(SPLIT_ROWS as i64);
            let stop = s.b.add(first, split);
            let stop = s.b.bin(Bin::Min, stop, end);
            let chains: Vec<Val> = (0..SPLIT_CHAINS).map(|_| init).collect();
            let chains = s.looped((first, stop, SPLIT_CHAINS as i64), &chains, |s, j, acc| {
                Ok(s.split_terms(a, j, (c, bound), acc))
            })?;
            let sum = s.strided_total(&chains);
            Ok(vec![s.b.bin(Bin::Add, acc[0], sum)])
        })?;
        Ok(total[0])
    }

    /// fma(p, row, acc) for places j to j + 7, one for each chain; places past the end and absent rows add +0. All rows
    /// are loaded before the first is used.
    fn split_terms(&mut self, a: &Attention, j: Val, (c, bound): (Val, Bound), acc: &[Val]) -> Vec<Val> {
        let whole = a.selected.is_multiple_of(SPLIT_CHAINS);
        let zero = self.b.f(0.0);
        let mut terms = Vec::new();
        for u in 0..SPLIT_CHAINS {
            let mut at = self.offset(j, u);
            let mut inside = None;
            if !whole {
                inside = Some(self.is(Cmp::Lt, at, a.selected as i64));
                let last = self.b.i(a.selected as i64 - 1);
                at = self.b.bin(Bin::Min, at, last);
            }
            let mut p = self.b.load_uniform(a.scores, at);
            let (base, mut fine) = self.selected_row(a, at);
            if let Some(inside) = inside {
                p = self.b.select(inside, p, zero);
                fine = self.b.and(fine, inside);
            }
            let c = self.b.wide(c);
            let base = self.b.bin(Bin::Add, base, c);
            terms.push((p, fine, self.b.load(a.latent, Addr::Contig { base }, bound, 8)));
        }
        let mut add = |((p, fine, v), &acc): ((Val, Val, Val), &Val)| {
            let v = self.b.select(fine, v, zero);
            self.b.fma(p, v, acc)
        };
        terms.into_iter().zip(acc).map(&mut add).collect()
    }

    fn attend_outputs(&mut self, a: &Attention, partial: Place, waves: u64, sum: Val, any: Val) -> Res<()> {
        let head = Ix::uni(self.group(0));
        self.for_elements(a.width, |s, at| {
            let parts: Vec<Val> = (0..waves)
                .map(|w| {
                    let line = s.b.i((w * a.width) as i64);
                    s.load(partial, Some(line), at)
                })
                .collect();
            let total = s.strided_total(&parts);
            let mean = s.b.div(total, sum);
            let zero = s.b.f(0.0);
            let context = s.b.select(any, mean, zero);
            s.kept.insert(a.node, Kept::Lane(vec![context]));
            for i in 0..s.g.outputs.len() {
                let (name, value) = &s.g.outputs[i];
                let v = strip_reshapes(s.g, *value);
                let mem = s.mem(v)?;
                let place = s.iface.output(&mut s.b, name, mem);
                let x = s.eval(v, &[head, at])?;
                s.store(place, Some(a.query_base), at, x);
            }
            Ok(())
        })
    }
}
