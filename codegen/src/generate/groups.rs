//! Group limits of a top-k: which elements belong to the best groups.

use unglue_ir::graph::ValueId;
use unglue_ir::op::GroupLimit;

use super::index::Ix;
use super::top_k::TAKEN;
use super::{Gen, Res};
use crate::kp::{Addr, Bin, Bound, Cmp, LANES, Mem, Place, Reduce, Val};

/// Flags in workgroup memory: 1 for each group that is kept.
#[derive(Clone, Copy)]
pub(super) struct KeptGroups {
    flags: Place,
    /// Elements of a group.
    size: u64,
}

impl Gen<'_> {
    /// Finds the groups that a limit keeps: a wave scores a group at a time, then each group is placed among all. Collective.
    pub(super) fn kept_groups(&mut self, scores: ValueId, n: u64, limit: GroupLimit) -> Res<KeptGroups> {
        let GroupLimit { groups, kept } = limit;
        let (keys, flags) = (self.b.shared("groups", Mem::I32, groups), self.b.shared("kept", Mem::I32, groups));
        let size = n / groups;
        let outer = self.mask.take();
        let (wave, end) = (self.b.wave(), self.b.i(groups as i64));
        let step = i64::from(self.b.waves());
        self.looped((wave, end, step), &[], |s, group, _| {
            let key = s.group_key(scores, group, size)?;
            s.b.store(keys, Addr::Uniform { base: group }, Bound::All, key);
            Ok(vec![])
        })?;
        self.b.barrier();
        self.for_elements(groups, |s, at| {
            let key = s.load(keys, None, at);
            let number = at.lanes(&mut s.b);
            let zero = s.b.i(0);
            let none = s.b.splat(zero, 1);
            let before = s.looped((zero, end, 1), &[none], |s, other, c| {
                let rival = s.b.load_uniform(keys, other);
                let (more, same) = (s.b.cmp(Cmp::Gt, rival, key), s.b.cmp(Cmp::Eq, rival, key));
                let lower = s.b.cmp(Cmp::Lt, other, number);
                let tie = s.b.and(same, lower);
                let first = s.b.bin(Bin::Or, more, tie);
                let one = s.flag(first);
                Ok(vec![s.b.add(c[0], one)])
            })?;
            let inside = s.is(Cmp::Lt, before[0], kept as i64);
            let flag = s.flag(inside);
            s.store(flags, None, at, flag);
            Ok(())
        })?;
        self.b.barrier();
        self.mask = outer;
        Ok(KeptGroups { flags, size })
    }

    /// Keys of elements `at` where their groups are kept; that of no element elsewhere.
    pub(super) fn key_of_kept(&mut self, groups: KeptGroups, at: Val, key: Val) -> Val {
        let size = self.b.i(groups.size as i64);
        let group = self.b.div(at, size);
        let flag = self.load(groups.flags, None, Ix::Lane(group));
        let (kept, taken) = (self.is(Cmp::Ne, flag, 0), self.b.i(i64::from(TAKEN)));
        self.b.select(kept, key, taken)
    }

    /// Key of a group's score: the sum of its two highest elements, or its only one.
    fn group_key(&mut self, scores: ValueId, group: Val, size: u64) -> Res<Val> {
        let n = self.b.i(size as i64);
        let first = self.b.mul(group, n);
        let none = self.b.i(-1);
        let best = self.best_but(scores, first, size, none)?;
        let mut sum = self.score_at(scores, first, best)?;
        if size > 1 {
            let second = self.best_but(scores, first, size, best)?;
            let second = self.score_at(scores, first, second)?;
            sum = self.b.add(sum, second);
        }
        Ok(self.score_key(sum))
    }

    fn score_at(&mut self, scores: ValueId, first: Val, at: Val) -> Res<Val> {
        let at = self.b.add(first, at);
        self.eval(scores, &[Ix::uni(at)])
    }

    /// Place of the best of `size` elements from `first` on but for the one at `taken`.
    fn best_but(&mut self, scores: ValueId, first: Val, size: u64, taken: Val) -> Res<Val> {
        let (low, far) = (self.b.i(i64::from(TAKEN)), self.b.i(i64::from(i32::MAX)));
        let (low, far) = (self.b.splat(low, 1), self.b.splat(far, 1));
        let (zero, end) = (self.b.i(0), self.b.i(size as i64));
        let best = self.looped((zero, end, i64::from(LANES)), &[low, far], |s, i, c| {
            let at = Ix::Seq { base: i, aligned: true };
            s.mask_below(at, size);
            let base = s.b.add(first, i);
            let x = s.eval(scores, &[Ix::Seq { base, aligned: false }])?;
            let key = s.score_key(x);
            let number = at.lanes(&mut s.b);
            let (inside, other) = (s.mask.take(), s.b.cmp(Cmp::Ne, number, taken));
            let fits = inside.map_or(other, |m| s.b.and(m, other));
            let key = s.b.select(fits, key, low);
            let better = s.b.cmp(Cmp::Gt, key, c[0]);
            Ok(vec![s.b.select(better, key, c[0]), s.b.select(better, number, c[1])])
        })?;
        let top = self.b.reduce(Reduce::Max, best[0]);
        let ties = self.b.cmp(Cmp::Eq, best[0], top);
        let first = self.b.select(ties, best[1], far);
        Ok(self.b.reduce(Reduce::Min, first))
    }
}
