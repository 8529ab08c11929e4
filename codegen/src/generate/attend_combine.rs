//! Combination of attention's splits: weights of the splits of each head, then the weighted sums of their values.

use unglue_ir::graph::ValueId;
use unglue_ir::order::SPLITS_CHAINS;
use unglue_passes::schedule::{ATTEND_COUNTERS, Attend, SPLITS_AT_ONCE, strip_reshapes};

use super::attend::{COLUMNS, Columns};
use super::index::Ix;
use super::{Gen, Kept, Res, StepScalar};
use crate::kp::{Addr, Bin, Bound, Cmp, LANES, Mem, Place, Val};

/// Of more splits than [`SPLITS_AT_ONCE`], so many at once; a multiple of the chains.
const SPLITS_A_ROUND: u64 = 16;

const _: () =
    assert!(ATTEND_COUNTERS <= unglue_runtime::COUNTERS, "each group of heads that finishes apart has a counter");

/// Workgroup memory for each head's splits.
pub(super) struct Stats {
    /// Maxima, then weights.
    pub weights: Place,
    pub sums: Place,
}

/// Where finished splits stand.
#[derive(Clone, Copy)]
struct Stored {
    place: Place,
    /// A head of the workgroup, whether there is one, and its number.
    local: Val,
    exists: Option<Val>,
    head: Val,
}

impl Gen<'_> {
    /// The kernel's output of what `node` forms.
    pub(super) fn splits_output(&mut self, node: ValueId) -> Res<Place> {
        let output = self.g.outputs.iter().find(|(_, v)| strip_reshapes(self.g, *v) == node);
        match output.map(|(name, _)| name.clone()) {
            Some(name) => Ok(self.iface.output(&mut self.b, &name, Mem::F32)),
            None => self.fault(node, "splits without a buffer"),
        }
    }

    /// First element of a split of a head of the current row.
    pub(super) fn split_line(&mut self, form: &Attend, head: Val, split: Val) -> Val {
        let each = form.width + 2;
        let row = self.scaled(self.row, form.heads * form.count * each);
        let (count, each) = (self.b.i(form.count as i64), self.b.i(each as i64));
        let number = self.b.mul(head, count);
        let number = self.b.add(number, split);
        let offset = self.b.mul(number, each);
        self.plus(row, offset)
    }

    pub(super) fn split_stats(&mut self, form: &Attend) -> Stats {
        let n = form.at_once * form.count;
        Stats { weights: self.b.shared("weights", Mem::F32, n), sums: self.b.shared("split_sums", Mem::F32, n) }
    }

    /// Where a split of head `local` stands in [`Stats`].
    pub(super) fn stat_at(&mut self, form: &Attend, local: Val, split: Val) -> Val {
        let count = self.b.i(form.count as i64);
        let line = self.b.mul(local, count);
        self.b.add(line, split)
    }

    /// Combines given splits.
    pub(super) fn combine_form(&mut self, form: &Attend) -> Res<()> {
        let Some(node) = form.combine else { return self.fault(ValueId(0), "nothing to combine") };
        self.row = self.group(1);
        let rows = self.scalar(StepScalar::Rows);
        let here = self.b.cmp(Cmp::Lt, self.row, rows);
        let (place, _) = self.leaf(strip_reshapes(self.g, self.g.node(node).args[0]))?;
        self.when(here, |s| s.combine(form, place))
    }

    /// All splits of the workgroup's heads arrive; the last one combines them.
    pub(super) fn combine_last(&mut self, form: &Attend) -> Res<()> {
        let (Some(finish), Some(splits)) = (&form.finish, form.splits) else { return Ok(()) };
        let (group, groups) = (self.group(0), self.b.i(form.groups() as i64));
        let counter = self.b.mul(self.row, groups);
        let counter = self.b.add(counter, group);
        self.last_to_arrive((counter, form.count), |g| {
            g.finishing(finish, |g| match g.kept.get(&splits) {
                Some(&Kept::Shared { place, .. }) => g.combine(form, place),
                _ => g.fault(splits, "splits that are not exchanged"),
            })
        })
    }

    /// Combines the workgroup's heads of splits that stand at `place`.
    fn combine(&mut self, form: &Attend, place: Place) -> Res<()> {
        let stats = self.split_stats(form);
        self.weigh_stored_splits(form, &stats, place)?;
        let columns = COLUMNS * u64::from(LANES);
        let blocks = form.width.div_ceil(columns);
        let (wave, end) = (self.b.wave(), self.b.i((form.at_once * blocks) as i64));
        self.looped((wave, end, i64::from(self.b.waves())), &[], |s, item, _| {
            let (n, each) = (s.b.i(blocks as i64), s.b.i(columns as i64));
            let (local, block) = (s.b.div(item, n), s.b.rem(item, n));
            let first = s.b.mul(block, each);
            let (head, exists) = s.head_of(form, local);
            let of = Stored { place, local, exists, head };
            s.combine_columns(form, &stats, of, first)?;
            Ok(vec![])
        })?;
        Ok(())
    }

    /// Columns `first..first + 64` of a head, two a lane.
    fn combine_columns(&mut self, form: &Attend, stats: &Stats, of: Stored, first: Val) -> Res<()> {
        let zero = self.b.f(0.0);
        let none = self.b.splat(zero, 1);
        let mut chains = vec![none; (SPLITS_CHAINS * COLUMNS) as usize];
        let mut done = 0;
        if form.count > SPLITS_AT_ONCE {
            done = form.count / SPLITS_A_ROUND * SPLITS_A_ROUND;
            let (start, end) = (self.b.i(0), self.b.i(done as i64));
            chains = self.looped((start, end, SPLITS_A_ROUND as i64), &chains, |s, split, chains| {
                Ok(s.weighted(form, stats, of, (first, split, SPLITS_A_ROUND), chains))
            })?;
        }
        let split = self.b.i(done as i64);
        let chains = self.weighted(form, stats, of, (first, split, form.count - done), &chains);
        let sum = self.weighted_sum(form, stats, of.local)?;
        for (column, chains) in (0..).zip(chains.chunks(SPLITS_CHAINS as usize)) {
            let total = self.strided_total(chains);
            let base = self.ahead(first, column * LANES);
            let at = Ix::Seq { base, aligned: true };
            self.context_outputs(form, (of.head, of.exists), at, (total, sum))?;
        }
        Ok(())
    }

    /// fma(weight, value, chain) for `count` splits from `split` on; all values are loaded before the first is used.
    fn weighted(
        &mut self,
        form: &Attend,
        stats: &Stats,
        of: Stored,
        (first, split, count): (Val, Val, u64),
        chains: &[Val],
    ) -> Vec<Val> {
        let each = form.width + 2;
        let line = self.split_line(form, of.head, split);
        let line = self.plus(line, first);
        let mut loaded = Vec::new();
        for i in 0..count {
            for column in 0..COLUMNS {
                let offset = column * u64::from(LANES);
                let at = self.b.i((i * each + offset) as i64);
                let base = self.plus(line, at);
                let bound = self.columns_from(form, first, offset);
                loaded.push(self.b.load(of.place, Addr::Contig { base }, bound, 1));
            }
        }
        let mut chains = chains.to_vec();
        for (i, values) in (0..).zip(loaded.chunks(COLUMNS as usize)) {
            let split = self.ahead(split, i);
            let at = self.stat_at(form, of.local, split);
            let weight = self.b.load_uniform(stats.weights, at);
            for (column, value) in values.iter().enumerate() {
                let chain = &mut chains[column * SPLITS_CHAINS as usize + i as usize % SPLITS_CHAINS as usize];
                *chain = self.b.fma(weight, *value, *chain);
            }
        }
        chains
    }

    /// Which columns from `first + offset` on exist.
    fn columns_from(&mut self, form: &Attend, first: Val, offset: u64) -> Bound {
        if form.width.is_multiple_of(COLUMNS * u64::from(LANES)) {
            return Bound::All;
        }
        let end = self.b.i(form.width as i64 - offset as i64);
        Bound::Count(self.b.sub(end, first))
    }

    /// Weights from maxima in workgroup memory. Barrier.
    pub(super) fn weigh_own_splits(&mut self, form: &Attend, stats: &Stats) -> Res<()> {
        self.weigh_splits(form, stats, |s, local, split| {
            let count = s.b.i(form.count as i64);
            let line = s.b.mul(local, count);
            Ok((s.load(stats.weights, Some(line), split), None))
        })
    }

    /// Weights and sums of splits that stand at `place`. Barrier.
    fn weigh_stored_splits(&mut self, form: &Attend, stats: &Stats, place: Place) -> Res<()> {
        self.weigh_splits(form, stats, |s, local, split| {
            let (head, _) = s.head_of(form, local);
            let (zero, width) = (s.b.i(0), s.b.i(form.width as i64));
            let line = s.split_line(form, head, zero);
            let base = s.plus(line, width);
            let at = split.mul(form.width + 2, &mut s.b);
            let max = s.load(place, Some(base), at);
            let one = s.b.i(1);
            let base = s.plus(base, one);
            Ok((max, Some(s.load(place, Some(base), at))))
        })
    }

    /// exp(max - greatest max) of each head's splits, a wave a head and a lane a split. `load` gives maxima, and sums where
    /// they are not in workgroup memory yet.
    fn weigh_splits(
        &mut self,
        form: &Attend,
        stats: &Stats,
        load: impl FnOnce(&mut Self, Val, Ix) -> Res<(Val, Option<Val>)>,
    ) -> Res<()> {
        let (wave, end) = (self.b.wave(), self.b.i(form.at_once as i64));
        self.looped((wave, end, i64::from(self.b.waves())), &[], |s, local, _| {
            let low = s.b.f(f32::NEG_INFINITY);
            let low = s.b.splat(low, 1);
            let (zero, count) = (s.b.i(0), s.b.i(form.count as i64));
            let line = s.b.mul(local, count);
            let best = s.looped((zero, count, i64::from(LANES)), &[low], |s, first, best| {
                let at = Ix::Seq { base: first, aligned: true };
                let outer = s.mask;
                s.mask_below(at, form.count);
                let (max, sum) = load(s, local, at)?;
                if let Some(sum) = sum {
                    s.store(stats.weights, Some(line), at, max);
                    s.store(stats.sums, Some(line), at, sum);
                }
                let there = std::mem::replace(&mut s.mask, outer);
                let max = there.map_or(max, |there| s.b.select(there, max, low));
                Ok(vec![s.b.bin(Bin::Max, best[0], max)])
            })?;
            let best = s.wave_max(best[0]);
            let shift = s.shift(best);
            s.looped((zero, count, i64::from(LANES)), &[], |s, first, _| {
                let at = Ix::Seq { base: first, aligned: true };
                let outer = s.mask;
                s.mask_below(at, form.count);
                let max = s.load(stats.weights, Some(line), at);
                let shifted = s.b.sub(max, shift);
                let weight = unglue_ir::math::exp(&mut s.b, shifted);
                s.store(stats.weights, Some(line), at, weight);
                s.mask = outer;
                Ok(vec![])
            })?;
            Ok(vec![])
        })?;
        self.b.barrier();
        Ok(())
    }

    /// Weighted sum of a head's probabilities over its splits. The chain that a split is added to goes to the end: their sum
    /// is the same in either order.
    pub(super) fn weighted_sum(&mut self, form: &Attend, stats: &Stats, local: Val) -> Res<Val> {
        let (zero, start, end) = (self.b.f(0.0), self.b.i(0), self.b.i(form.count as i64));
        let chains = self.looped((start, end, 1), &[zero, zero], |s, split, chains| {
            let at = s.stat_at(form, local, split);
            let (weight, sum) = (s.b.load_uniform(stats.weights, at), s.b.load_uniform(stats.sums, at));
            Ok(vec![chains[1], s.b.fma(weight, sum, chains[0])])
        })?;
        Ok(self.b.add(chains[0], chains[1]))
    }

    /// Stores what the outputs have of some columns of a head of the workgroup, if it is one: `of` are its totals, two
    /// neighbouring columns a lane, and its sum.
    pub(super) fn column_outputs(
        &mut self,
        form: &Attend,
        local: Val,
        columns: Columns,
        (total, sum): (Val, Val),
    ) -> Res<()> {
        let head = self.head_of(form, local);
        for column in 0..COLUMNS as u8 {
            let (lane, each) = (self.b.lane(), self.b.i(COLUMNS as i64));
            let at = self.b.mul(lane, each);
            let at = self.b.add(at, columns.first);
            let at = Ix::Lane(self.ahead(at, column.into()));
            let total = self.b.component(total, column);
            self.context_outputs(form, head, at, (total, sum))?;
        }
        Ok(())
    }

    /// Stores what the outputs have of one column a lane of a head, if it is one.
    fn context_outputs(
        &mut self,
        form: &Attend,
        (head, exists): (Val, Option<Val>),
        at: Ix,
        (total, sum): (Val, Val),
    ) -> Res<()> {
        let Some(node) = form.combine else { return self.fault(ValueId(0), "nothing to combine") };
        let outer = self.mask;
        if !form.width.is_multiple_of(COLUMNS * u64::from(LANES)) {
            self.mask_below(at, form.width);
        }
        let (mean, zero) = (self.b.div(total, sum), self.b.f(0.0));
        let empty = self.b.cmp(Cmp::Eq, sum, zero);
        let context = self.b.select(empty, zero, mean);
        let context = self.b.splat(context, 1);
        self.kept.insert(node, Kept::Lane(vec![context]));
        let width = self.b.i(form.width as i64);
        let row = self.row_base(&[form.heads * form.width]);
        let line = self.b.mul(head, width);
        let line = self.b.add(row, line);
        self.where_head(exists, |s| {
            for i in 0..s.g.outputs.len() {
                let (name, value) = &s.g.outputs[i];
                let v = strip_reshapes(s.g, *value);
                if Some(v) == form.splits {
                    continue;
                }
                let mem = s.mem(v)?;
                let place = s.iface.output(&mut s.b, name, mem);
                let x = s.eval(v, &[Ix::uni(head), at])?;
                s.store(place, Some(line), at, x);
            }
            Ok(())
        })?;
        self.mask = outer;
        Ok(())
    }
}
