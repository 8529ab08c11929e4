//! Pool selection: the key of the last selected pool is found bit by bit, then one wave lists tokens in ascending order.

use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;
use unglue_passes::schedule::strip_reshapes;

use super::index::Ix;
use super::{Gen, Res, StepBuffer, StepScalar};
use crate::kp::{Addr, Bin, Bound, Cmp, Mem, Place, Reduce, Val};

struct Selection {
    scores: Place,
    scores_base: Val,
    /// Complete pools at the row.
    complete: Val,
    budget: u64,
    pool: u64,
    out: Place,
    out_base: Val,
    width: u64,
}

impl Gen<'_> {
    pub fn select_form(&mut self, node: ValueId) -> Res<()> {
        let Op::IndexSelect { budget, pool, tail } = self.g.node(node).op else { return self.fault(node, "op") };
        self.row = self.group(0);
        let rows = self.scalar(StepScalar::Rows);
        let here = self.b.cmp(Cmp::Lt, self.row, rows);
        self.when(here, |s| {
            let (scores, _) = s.leaf(strip_reshapes(s.g, s.g.node(node).args[0]))?;
            let total = s.pools;
            let scores_base = s.row_base(&[total]);
            let position = s.row_step(StepBuffer::Positions);
            let one = s.b.i(1);
            let k = s.b.i(pool as i64);
            let seen = s.b.add(position, one);
            let done = s.b.div(seen, k);
            let (zero, all) = (s.b.i(0), s.b.i(total as i64));
            let done = s.b.bin(Bin::Max, done, zero);
            let complete = s.b.bin(Bin::Min, done, all);
            let width = budget * pool + pool - 1;
            let name = s.g.outputs[0].0.clone();
            let out = s.iface.output(&mut s.b, &name, Mem::I32);
            let out_base = s.row_base(&[width]);
            let sel = Selection { scores, scores_base, complete, budget, pool, out, out_base, width };
            let threshold = s.threshold(&sel)?;
            let above = s.count_keys(&sel, threshold, true)?;
            let wave = s.b.wave();
            let first = s.is(Cmp::Eq, wave, 0);
            s.when(first, |s| s.list_tokens(&sel, threshold, above, tail.then_some(position)))
        })
    }

    /// Order-preserving unsigned key of pool `at`.
    fn pool_key(&mut self, sel: &Selection, at: Ix) -> Val {
        let x = self.load(sel.scores, Some(sel.scores_base), at);
        let key = self.score_key(x);
        let top = self.b.i(i64::from(i32::MIN));
        self.b.bin(Bin::Xor, key, top)
    }

    /// Number of complete pools whose key is at least (or above) `key`, over the workgroup. Holds barriers.
    fn count_keys(&mut self, sel: &Selection, key: Val, strictly: bool) -> Res<Val> {
        let waves = u64::from(self.b.waves());
        let scratch = self.b.shared("count", Mem::I32, waves);
        let mine = self.count_mine(sel, key, strictly)?;
        let wave = self.b.wave();
        self.b.store(scratch, Addr::Uniform { base: wave }, Bound::All, mine);
        self.b.barrier();
        let mut sum = self.b.i(0);
        for w in 0..waves {
            let at = self.b.i(w as i64);
            let n = self.b.load_uniform(scratch, at);
            sum = self.b.add(sum, n);
        }
        self.b.barrier();
        Ok(sum)
    }

    fn count_mine(&mut self, sel: &Selection, key: Val, strictly: bool) -> Res<Val> {
        let zero = self.b.i(0);
        let init = self.b.splat(zero, 1);
        let wave = self.b.wave();
        let lanes = self.b.i(32);
        let start = self.b.mul(wave, lanes);
        let step = 32 * i64::from(self.b.waves());
        let count = self.looped((start, sel.complete, step), &[init], |s, i, acc| {
            let at = Ix::Seq { base: i, aligned: true };
            let inside = s.mask_complete(sel, at);
            let own = s.pool_key(sel, at);
            s.mask = None;
            let key = s.b.splat(key, 1);
            let hit = if strictly {
                s.b.cmp(Cmp::Ult, key, own)
            } else {
                let below = s.b.cmp(Cmp::Ult, own, key);
                s.b.un(crate::kp::Un::Not, below)
            };
            let hit = s.b.and(hit, inside);
            let one = s.flag(hit);
            Ok(vec![s.b.add(acc[0], one)])
        })?;
        Ok(self.b.reduce(Reduce::Add, count[0]))
    }

    fn mask_complete(&mut self, sel: &Selection, at: Ix) -> Val {
        let numbers = at.lanes(&mut self.b);
        let inside = self.b.cmp(Cmp::Lt, numbers, sel.complete);
        self.mask = Some(inside);
        inside
    }

    /// Largest key that at least `budget` complete pools reach; 0 if there are no more pools than that.
    fn threshold(&mut self, sel: &Selection) -> Res<Val> {
        let zero = self.b.i(0);
        let (start, end) = (self.b.i(0), self.b.i(32));
        let found = self.looped((start, end, 1), &[zero], |s, i, acc| {
            let (top, one) = (s.b.i(31), s.b.i(1));
            let shift = s.b.sub(top, i);
            let bit = s.b.bin(Bin::Shl, one, shift);
            let trial = s.b.bin(Bin::Or, acc[0], bit);
            let n = s.count_keys(sel, trial, false)?;
            let enough = s.is(Cmp::Ge, n, sel.budget as i64);
            Ok(vec![s.b.select(enough, trial, acc[0])])
        })?;
        Ok(found[0])
    }

    /// One wave writes the tokens of the selected pools, then the unfinished pool, then -1.
    fn list_tokens(&mut self, sel: &Selection, threshold: Val, above: Val, position: Option<Val>) -> Res<()> {
        let budget = self.b.i(sel.budget as i64);
        let ties = self.b.sub(budget, above);
        let zero = self.b.i(0);
        let listed = self.looped((zero, sel.complete, 32), &[zero, zero], |s, i, c| {
            let at = Ix::Seq { base: i, aligned: true };
            let inside = s.mask_complete(sel, at);
            let key = s.pool_key(sel, at);
            s.mask = None;
            let t = s.b.splat(threshold, 1);
            let more = s.b.cmp(Cmp::Ult, t, key);
            let same = s.b.cmp(Cmp::Eq, t, key);
            let same = s.b.and(same, inside);
            let same_flag = s.flag(same);
            let rank = s.b.scan_add(same_flag);
            let rank = s.b.add(rank, c[1]);
            let early = s.b.cmp(Cmp::Lt, rank, ties);
            let tie = s.b.and(same, early);
            let more = s.b.and(more, inside);
            let take = s.b.bin(Bin::Or, more, tie);
            let take_flag = s.flag(take);
            let place = s.b.scan_add(take_flag);
            let place = s.b.add(place, c[0]);
            s.write_tokens(sel, take, place, at);
            let (taken, tied) = (s.b.reduce(Reduce::Add, take_flag), s.b.reduce(Reduce::Add, same_flag));
            Ok(vec![s.b.add(c[0], taken), s.b.add(c[1], tied)])
        })?;
        let k = self.b.i(sel.pool as i64);
        let mut filled = self.b.mul(listed[0], k);
        if let Some(position) = position {
            filled = self.write_tail_tokens(sel, filled, position)?;
        }
        self.write_padding(sel, filled)
    }

    fn write_tokens(&mut self, sel: &Selection, take: Val, place: Val, at: Ix) {
        let numbers = at.lanes(&mut self.b);
        let k = self.b.i(sel.pool as i64);
        let (first, to) = (self.b.mul(numbers, k), self.b.mul(place, k));
        for i in 0..sel.pool {
            let i = self.b.i(i as i64);
            let (token, index) = (self.b.add(first, i), self.b.add(to, i));
            self.b.store(sel.out, Addr::Lanes { base: sel.out_base, index }, Bound::Mask(take), token);
        }
    }

    fn write_tail_tokens(&mut self, sel: &Selection, filled: Val, position: Val) -> Res<Val> {
        let k = self.b.i(sel.pool as i64);
        let one = self.b.i(1);
        let seen = self.b.add(position, one);
        let first = self.b.div(seen, k);
        let first = self.b.mul(first, k);
        let zero = self.b.i(0);
        let seen = self.b.bin(Bin::Max, seen, zero);
        self.looped((first, seen, 1), &[], |s, token, _| {
            let i = s.b.sub(token, first);
            let at = s.b.add(filled, i);
            let base = s.b.add(sel.out_base, at);
            s.b.store(sel.out, Addr::Uniform { base }, Bound::All, token);
            Ok(vec![])
        })?;
        let n = self.b.sub(seen, first);
        let n = self.b.bin(Bin::Max, n, zero);
        Ok(self.b.add(filled, n))
    }

    fn write_padding(&mut self, sel: &Selection, filled: Val) -> Res<()> {
        let end = self.b.i(sel.width as i64);
        self.looped((filled, end, 32), &[], |s, i, _| {
            let left = s.b.sub(end, i);
            let base = s.b.add(sel.out_base, i);
            let none = s.b.i(-1);
            let none = s.b.splat(none, 1);
            s.b.store(sel.out, Addr::Contig { base }, Bound::Count(left), none);
            Ok(vec![])
        })?;
        Ok(())
    }
}
