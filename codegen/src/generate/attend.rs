//! Attention over selected rows: one workgroup a row and head. Scores and probabilities stand in workgroup memory;
//! values are summed in splits of 64 selected rows, dealt over the waves.

use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;
use unglue_ir::order::{SPLIT_CHAINS, SPLIT_ROWS};
use unglue_passes::schedule::strip_reshapes;

use super::index::Ix;
use super::interface::state_leaf;
use super::state::RowPlace;
use super::{Gen, Kept, Res, StepScalar};
use crate::kp::{Addr, Bin, Bound, Cmp, Mem, Place, Reduce, Val};

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
    row: RowPlace,
}

impl Gen<'_> {
    pub fn attend_form(&mut self, node: ValueId, heads: u64, width: u64) -> Res<()> {
        self.row = self.group(1);
        let rows = self.scalar(StepScalar::Rows);
        let here = self.b.cmp(Cmp::Lt, self.row, rows);
        self.when(here, |s| {
            let a = s.attention(node, heads, width)?;
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
        let row = self.row_place();
        Ok(Attention { node, width, selected, query, query_base, latent, ids, ids_base, scores, row })
    }

    /// First element of the latent row of place `j` (uniform), and whether there is one.
    fn selected_row(&mut self, a: &Attention, j: Val) -> (Val, Val) {
        let at = self.b.add(a.ids_base, j);
        let id = self.b.load_uniform(a.ids, at);
        let known = self.is(Cmp::Ge, id, 0);
        let (row, exists) = self.token_row(a.row.seq, id, 1);
        let known = self.b.and(known, exists);
        let fine = self.b.and(known, a.row.live);
        (self.scaled(row, a.width), fine)
    }

    /// scale * (query . row) of every place, one wave a place; -inf where there is none.
    fn attend_scores(&mut self, a: &Attention) -> Res<()> {
        let Op::Attend { scale, .. } = self.g.node(a.node).op else { return self.fault(a.node, "not attention") };
        let wave = self.b.wave();
        let end = self.b.i(a.selected as i64);
        let step = i64::from(self.b.waves());
        self.looped((wave, end, step), &[], |s, j, _| {
            let (base, fine) = s.selected_row(a, j);
            let score = s.choose(
                fine,
                |s| {
                    let dot = s.row_dot(a, base)?;
                    let scale = s.b.f(f32::from_bits(scale));
                    Ok(s.b.mul(dot, scale))
                },
                |s| Ok(s.b.f(f32::NEG_INFINITY)),
            )?;
            s.b.store(a.scores, Addr::Uniform { base: j }, Bound::All, score);
            Ok(vec![])
        })?;
        self.b.barrier();
        Ok(())
    }

    /// Dot product in the `lanes` order.
    fn row_dot(&mut self, a: &Attention, row: Val) -> Res<Val> {
        let zero = self.b.f(0.0);
        let init = self.b.splat(zero, 8);
        let (start, end) = (self.b.i(0), self.b.i(a.width as i64));
        let whole = a.width.is_multiple_of(256);
        let acc = self.looped((start, end, 256), &[init], |s, c, acc| {
            let left = s.b.sub(end, c);
            let bound = if whole { Bound::All } else { Bound::Count(left) };
            let wide = s.b.wide(c);
            let k_base = s.b.bin(Bin::Add, row, wide);
            let q_base = s.b.add(a.query_base, c);
            let k = s.b.load(a.latent, Addr::Contig { base: k_base }, bound, 8);
            let q = s.b.load(a.query, Addr::Contig { base: q_base }, bound, 8);
            Ok(vec![s.b.fma(q, k, acc[0])])
        })?;
        let parts: Vec<Val> = (0..8).map(|i| self.b.component(acc[0], i)).collect();
        let lane = self.strided_total(&parts);
        Ok(self.b.reduce(Reduce::Add, lane))
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
                (0..SPLIT_CHAINS).map(|u| s.split_term(a, (j, u), (c, bound), acc[u as usize])).collect()
            })?;
            let sum = s.strided_total(&chains);
            Ok(vec![s.b.bin(Bin::Add, acc[0], sum)])
        })?;
        Ok(total[0])
    }

    /// fma(p_j, row_j, acc) for place j + u; places past the end and absent rows add +0.
    fn split_term(&mut self, a: &Attention, (j, u): (Val, u64), (c, bound): (Val, Bound), acc: Val) -> Res<Val> {
        let u = self.b.i(u as i64);
        let at = self.b.add(j, u);
        let inside = self.is(Cmp::Lt, at, a.selected as i64);
        self.choose(
            inside,
            |s| {
                let p = s.b.load_uniform(a.scores, at);
                let (base, fine) = s.selected_row(a, at);
                let (c, base) = (s.b.wide(c), s.b.wide(base));
                let base = s.b.bin(Bin::Add, base, c);
                let v = s.b.load(a.latent, Addr::Contig { base }, bound, 8);
                let zero = s.b.f(0.0);
                let v = s.b.select(fine, v, zero);
                Ok(s.b.fma(p, v, acc))
            },
            |s| {
                let zero = s.b.f(0.0);
                Ok(s.b.bin(Bin::Add, acc, zero))
            },
        )
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
