//! Experts of grouped contractions: the slot of one, and the rows that chose it.
//!
//! On matrix tiles the rows of an expert are multiplied together. A workgroup finds them itself: each wave looks through its
//! part of the step's ids, lanes count their own and the prefix sums of the counts are the places, so that the list ascends
//! whatever order waves run in.

use unglue_ir::graph::ValueId;

use super::index::Ix;
use super::{Gen, Res};
use crate::kp::{Addr, Bin, Bound, Cmp, Conv, LANES, Mem, Place, Reduce, Val};

/// Ids that a lane takes at once.
const IDS: u32 = 8;
/// Ids that a wave takes at once.
const AT_ONCE: u32 = IDS * LANES;

/// The choices of one expert in a step: pairs of row and choice, by `row * choices + choice`.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    ids: Place,
    /// Pairs of the step.
    pairs: Val,
    expert: Val,
    experts: u64,
    /// First and last of the wave's own pairs.
    own: [Val; 2],
    /// How many in front of them are the expert's.
    before: Val,
    /// How many there are.
    pub total: Val,
    /// Workgroup memory for `window` of them at a time.
    pub list: Place,
    window: u32,
}

/// Workgroup memory for the lists of an expert.
#[derive(Clone, Copy)]
pub(super) struct ListArrays {
    list: Place,
    counts: Place,
    window: u32,
}

/// The pairs of the lanes, of which some are the expert's.
struct Found {
    pair: Val,
    /// 1 where it is the expert's, else 0; and whether it is.
    ones: Val,
    mine: Val,
}

impl Gen<'_> {
    /// Slot of the expert that a row chose.
    pub(super) fn expert_slot(&mut self, args: &[ValueId], row: Val, choice: Val, slots: u64) -> Res<(Val, Val)> {
        self.row = row;
        let id = self.eval(args[1], &[Ix::uni(choice)])?;
        self.slot_of_expert(args, id, slots)
    }

    /// Slot of an expert, and whether it has one; 0 otherwise.
    pub(super) fn slot_of_expert(&mut self, args: &[ValueId], id: Val, slots: u64) -> Res<(Val, Val)> {
        let experts = self.dims(args[2])?[0];
        let (low, high) = (self.is(Cmp::Ge, id, 0), self.is(Cmp::Lt, id, experts as i64));
        let known = self.b.and(low, high);
        let zero = self.b.i(0);
        let safe = self.b.select(known, id, zero);
        let (table, _) = self.leaf(args[2])?;
        let slot = self.b.load_uniform(table, safe);
        let (low, high) = (self.is(Cmp::Ge, slot, 0), self.is(Cmp::Lt, slot, slots as i64));
        let inside = self.b.and(low, high);
        let fine = self.b.and(inside, known);
        Ok((self.b.select(fine, slot, zero), fine))
    }

    /// Head or choice of the outputs that are formed.
    pub(super) fn across(&mut self) -> Val {
        match self.across {
            Some(number) => number,
            None => self.group(1),
        }
    }

    pub(super) fn list_arrays(&mut self, window: u32) -> ListArrays {
        let list = self.b.shared("list", Mem::I32, u64::from(window));
        let counts = self.b.shared("counts", Mem::I32, u64::from(self.b.waves()));
        ListArrays { list, counts, window }
    }

    /// Counts the choices of `expert`; number `experts` stands for all ids that name none. Collective.
    pub(super) fn chosen(
        &mut self,
        arrays: ListArrays,
        (ids, choices): (Place, u64),
        (expert, experts): (Val, u64),
    ) -> Res<Chosen> {
        let rows = self.row_count();
        let choices = self.b.i(choices as i64);
        let pairs = self.b.mul(rows, choices);
        let waves = self.b.waves();
        let wave = self.b.wave();
        let (round, bits) = (self.b.i(i64::from(AT_ONCE * waves) - 1), self.b.i(i64::from(AT_ONCE * waves)));
        let up = self.b.add(pairs, round);
        let each = self.b.div(up, bits);
        let at_once = self.b.i(i64::from(AT_ONCE));
        let each = self.b.mul(each, at_once);
        let first = self.b.mul(wave, each);
        let end = self.b.add(first, each);
        let own = [first, self.b.bin(Bin::Min, end, pairs)];
        let zero = self.b.i(0);
        let ListArrays { list, counts, window } = arrays;
        let mut c = Chosen { ids, pairs, expert, experts, own, before: zero, total: zero, list, window };
        let none = self.b.splat(zero, 1);
        let count = self.looped((first, own[1], i64::from(AT_ONCE)), &[none], |g, at, count| {
            let found = g.found(&c, at);
            let ones = g.lane_count(&found);
            Ok(vec![g.b.add(count[0], ones)])
        })?;
        let count = self.b.reduce(Reduce::Add, count[0]);
        self.b.store(counts, Addr::Uniform { base: wave }, Bound::All, count);
        self.b.barrier();
        for w in 0..waves {
            let w = self.b.i(i64::from(w));
            let count = self.b.load_uniform(counts, w);
            let lower = self.b.cmp(Cmp::Lt, w, wave);
            let counted = self.b.select(lower, count, zero);
            c.before = self.b.add(c.before, counted);
            c.total = self.b.add(c.total, count);
        }
        Ok(c)
    }

    /// The pairs of the lanes from `at` on; those past the end are nobody's.
    fn found(&mut self, c: &Chosen, at: Val) -> Found {
        let left = self.b.sub(c.pairs, at);
        let ids = self.b.load(c.ids, Addr::Contig { base: at }, Bound::Count(left), IDS as u8);
        let (lane, each) = (self.b.lane(), self.b.i(i64::from(IDS)));
        let first = self.b.mul(lane, each);
        let first = self.b.add(first, at);
        let first = self.b.splat(first, IDS as u8);
        let steps: Vec<Val> = (0..i64::from(IDS)).map(|i| self.b.i(i)).collect();
        let steps = steps.into_iter().map(|v| self.b.splat(v, 1)).collect();
        let steps = self.b.pack(steps);
        let pair = self.b.add(first, steps);
        let (low, high) = (self.is(Cmp::Ge, ids, 0), self.is(Cmp::Lt, ids, c.experts as i64));
        let known = self.b.and(low, high);
        let none = self.b.i(c.experts as i64);
        let id = self.b.select(known, ids, none);
        let (same, exists) = (self.b.cmp(Cmp::Eq, id, c.expert), self.b.cmp(Cmp::Lt, pair, c.pairs));
        let mine = self.b.and(same, exists);
        Found { pair, ones: self.b.conv(Conv::BoolToI32, mine), mine }
    }

    /// How many of a lane's pairs are the expert's.
    fn lane_count(&mut self, found: &Found) -> Val {
        let first = self.b.component(found.ones, 0);
        (1..IDS as u8).fold(first, |sum, i| {
            let one = self.b.component(found.ones, i);
            self.b.add(sum, one)
        })
    }

    /// Lists the expert's pairs from number `first` on, as many as there is room for. Collective; a barrier before and
    /// behind it is the caller's.
    pub(super) fn list_pairs(&mut self, c: &Chosen, first: Val) -> Res<()> {
        let window = self.b.i(i64::from(c.window));
        let zero = self.b.i(0);
        self.looped((c.own[0], c.own[1], i64::from(AT_ONCE)), &[c.before], |g, at, place| {
            let found = g.found(c, at);
            let count = g.lane_count(&found);
            let lower = g.b.scan_add(count);
            let base = g.b.sub(place[0], first);
            let mut index = g.b.add(lower, base);
            for i in 0..IDS as u8 {
                let (pair, mine) = (g.b.component(found.pair, i), g.b.component(found.mine, i));
                let (low, high) = (g.b.cmp(Cmp::Ge, index, zero), g.b.cmp(Cmp::Lt, index, window));
                let inside = g.b.and(low, high);
                let here = g.b.and(mine, inside);
                g.b.store(c.list, Addr::Lanes { base: zero, index }, Bound::Mask(here), pair);
                let one = g.b.component(found.ones, i);
                index = g.b.add(index, one);
            }
            let all = g.b.reduce(Reduce::Add, count);
            Ok(vec![g.b.add(place[0], all)])
        })?;
        Ok(())
    }
}
