//! Top-k of a row. Total: NaN ranks last, every place gets an index of its own.
//!
//! Scores become sortable keys. For k > 1 each wave lists the k best of its own part of the row by in-wave steps alone, from
//! keys that stay in registers; then each entry finds its place among the other waves' lists by binary search. Barriers
//! stand between the two stages and behind them, whatever k is.

use unglue_ir::graph::ValueId;
use unglue_ir::op::{GroupLimit, Op};
use unglue_passes::schedule::strip_reshapes;

use super::groups::KeptGroups;
use super::index::Ix;
use super::{Gen, Kept, Res, has_rows};
use crate::kp::{Addr, Bin, Bound, Cmp, Conv, LANES, Mem, Place, Reduce, Un, Val};

/// What fills a list up; below every key.
const FILL: i32 = i32::MIN;
/// Key of an element that was taken or is none; no score has it.
pub(super) const TAKEN: i32 = i32::MIN + 1;
/// Key of NaN: below -inf.
const NAN_KEY: i32 = i32::MIN + 2;
/// Elements of a lane that are loaded before the first of them is compared, when only the best is asked for: a round trip
/// of memory is paid once for all of them.
const LOADED: u64 = 8;
/// Elements of a lane's load of a given row.
const TOGETHER: u64 = 4;

/// Where waves leave their lists: keys in falling order and the elements' numbers.
#[derive(Clone, Copy)]
pub(super) struct Lists {
    keys: Place,
    at: Place,
    /// Entries of a list.
    k: u64,
    /// Keys from one list to the next: what a binary search over a list may read.
    stride: u64,
    /// First step of that search.
    step: u64,
}

/// A wave's part of the row, in lanes: lane l has `keys.len()` elements that follow one another.
pub(super) struct Part {
    pub keys: Vec<Val>,
    /// Number of the wave's first element (uniform).
    pub first: Val,
}

impl Gen<'_> {
    /// i32 key whose order is that of the scores: -0 and +0 are one, NaN is lowest.
    pub fn score_key(&mut self, x: Val) -> Val {
        let zero = self.b.f(0.0);
        let x = self.b.bin(Bin::Add, x, zero);
        let bits = self.b.conv(Conv::F32Bits, x);
        let (n31, low) = (self.b.i(31), self.b.i(i64::from(i32::MAX)));
        let sign = self.b.bin(Bin::Ashr, bits, n31);
        let flip = self.b.and(sign, low);
        let key = self.b.bin(Bin::Xor, bits, flip);
        let nan = self.b.cmp(Cmp::Ne, x, x);
        let nan_key = self.b.i(i64::from(NAN_KEY));
        self.b.select(nan, nan_key, key)
    }

    /// Keeps the ids of the k best scores of the current row. Collective.
    pub fn keep_top_k(&mut self, id: ValueId, k: u64, limit: Option<GroupLimit>) -> Res<()> {
        let scores = self.g.node(id).args[0];
        let n = self.elements(scores)?;
        let ids = self.shared_array(id, Mem::I32, k);
        if k == 1 && limit.is_none() {
            self.best(scores, n, ids)?;
        } else {
            let lists = self.lists(k);
            let groups = limit.map(|l| self.kept_groups(scores, n, l)).transpose()?;
            let part = self.own_scores(scores, n, groups)?;
            self.list_part(&lists, part)?;
            self.b.barrier();
            self.merge(&lists, ids)?;
        }
        self.b.barrier();
        self.kept.insert(id, Kept::Shared { place: ids, elements: k, by_row: false });
        Ok(())
    }

    pub(super) fn lists(&mut self, k: u64) -> Lists {
        let step = 1 << k.ilog2();
        let (stride, waves) = (2 * step - 1, u64::from(self.b.waves()));
        let keys = self.b.shared("keys", Mem::I32, waves * stride);
        let at = self.b.shared("at", Mem::I32, waves * k);
        Lists { keys, at, k, stride, step }
    }

    /// Keys of this wave's elements. Lower waves and lower lanes have lower numbers: ties go to the first.
    fn own_scores(&mut self, scores: ValueId, n: u64, groups: Option<KeptGroups>) -> Res<Part> {
        let lanes = u64::from(self.b.waves() * LANES);
        // An odd count, so that lanes with several elements have them in different banks of workgroup memory.
        let each = match n.div_ceil(lanes) {
            few @ ..4 => few,
            many => many | 1,
        };
        let (wave, lane) = (self.b.wave(), self.b.lane());
        let (per_wave, per_lane) = (self.b.i((each * u64::from(LANES)) as i64), self.b.i(each as i64));
        let first = self.b.mul(wave, per_wave);
        let own = self.b.mul(lane, per_lane);
        let own = self.b.add(first, own);
        let (last, taken) = (self.b.i(n as i64 - 1), self.b.i(i64::from(TAKEN)));
        let outer = self.mask.take();
        let mut ats = Vec::new();
        let mut values = Vec::new();
        for i in 0..each {
            let i = self.b.i(i as i64);
            let at = self.b.add(own, i);
            // Lanes without an element read the last one.
            let inside = self.b.bin(Bin::Min, at, last);
            values.push(self.eval(scores, &[Ix::Lane(inside)])?);
            ats.push((at, inside));
        }
        let mut keys = Vec::new();
        for ((at, element), x) in ats.into_iter().zip(values) {
            let mut key = self.score_key(x);
            if let Some(groups) = groups {
                key = self.key_of_kept(groups, element, key);
            }
            let inside = self.b.cmp(Cmp::Le, at, last);
            keys.push(self.b.select(inside, key, taken));
        }
        self.mask = outer;
        Ok(Part { keys, first })
    }

    /// This wave's list: 32 entries at a time, each in a lane.
    pub(super) fn list_part(&mut self, lists: &Lists, part: Part) -> Res<()> {
        let (wave, stride) = (self.b.wave(), self.b.i(lists.stride as i64));
        let start = self.b.mul(wave, stride);
        let k = self.b.i(lists.k as i64);
        let fill = self.b.i(i64::from(FILL));
        let fill = self.b.splat(fill, 1);
        for at in (lists.k..lists.stride).step_by(LANES as usize) {
            let (from, left) = (self.b.i(at as i64), self.b.i((lists.stride - at) as i64));
            let base = self.b.add(start, from);
            self.b.store(lists.keys, Addr::Contig { base }, Bound::Count(left), fill);
        }
        let at_start = self.b.mul(wave, k);
        let first = part.first;
        self.list_blocks(lists, &part.keys, |s, block, rounds, keys| {
            let lane = s.b.lane();
            let none = s.b.i(i64::from(TAKEN));
            let (none, zero) = (s.b.splat(none, 1), s.b.i(0));
            let mut init = keys.to_vec();
            let none_at = s.b.splat(zero, 1);
            init.extend([none, none_at]);
            let mut out = s.looped((zero, rounds, 1), &init, |s, j, c| Ok(s.pick(first, j, lane, c)))?;
            let (Some(at), Some(key)) = (out.pop(), out.pop()) else { return Ok(out) };
            let (key_base, at_base) = (s.b.add(start, block), s.b.add(at_start, block));
            s.b.store(lists.keys, Addr::Contig { base: key_base }, Bound::Count(rounds), key);
            s.b.store(lists.at, Addr::Contig { base: at_base }, Bound::Count(rounds), at);
            Ok(out)
        })
    }

    /// Runs `body` for each 32 entries of a list with the first entry's number, how many they are, and carried values.
    fn list_blocks(
        &mut self,
        lists: &Lists,
        carried: &[Val],
        body: impl FnOnce(&mut Self, Val, Val, &[Val]) -> Res<Vec<Val>>,
    ) -> Res<()> {
        let (zero, k) = (self.b.i(0), self.b.i(lists.k as i64));
        if lists.k <= u64::from(LANES) {
            return body(self, zero, k, carried).map(|_| ());
        }
        self.looped((zero, k, i64::from(LANES)), carried, |s, block, c| {
            let (left, lanes) = (s.b.sub(k, block), s.b.i(i64::from(LANES)));
            let rounds = s.b.bin(Bin::Min, left, lanes);
            body(s, block, rounds, c)
        })?;
        Ok(())
    }

    /// Round `round`: takes the wave's best element off `carried` (a lane's keys, then the listed key and number) and
    /// leaves it to lane `round`.
    fn pick(&mut self, first: Val, round: Val, lane: Val, carried: &[Val]) -> Vec<Val> {
        let each = carried.len() - 2;
        let (keys, listed) = carried.split_at(each);
        let zero = self.b.i(0);
        let (mut best, mut slot) = (keys[0], self.b.splat(zero, 1));
        for (i, &key) in keys.iter().enumerate().skip(1) {
            let i = self.b.i(i as i64);
            let better = self.b.cmp(Cmp::Gt, key, best);
            (best, slot) = (self.b.select(better, key, best), self.b.select(better, i, slot));
        }
        let top = self.b.reduce(Reduce::Max, best);
        let ties = self.b.cmp(Cmp::Eq, best, top);
        let ties = self.b.ballot(ties);
        let winner = self.b.un(Un::Ctz, ties);
        let at_slot = self.b.read_lane(slot, winner);
        let per_lane = self.b.i(each as i64);
        let at = self.b.mul(winner, per_lane);
        let at = self.b.add(at, at_slot);
        let at = self.b.add(first, at);
        let (mine, none, taken) = (self.b.cmp(Cmp::Eq, lane, winner), self.b.i(-1), self.b.i(i64::from(TAKEN)));
        let gone = self.b.select(mine, slot, none);
        let mut out = Vec::with_capacity(carried.len());
        for (i, &key) in keys.iter().enumerate() {
            let i = self.b.i(i as i64);
            let gone = self.b.cmp(Cmp::Eq, gone, i);
            out.push(self.b.select(gone, taken, key));
        }
        let here = self.b.cmp(Cmp::Eq, lane, round);
        out.extend([self.b.select(here, top, listed[0]), self.b.select(here, at, listed[1])]);
        out
    }

    /// Each wave places the entries of its own list among those of all: the first k are the result.
    pub(super) fn merge(&mut self, lists: &Lists, ids: Place) -> Res<()> {
        let waves = self.b.waves();
        let (wave, stride, k) = (self.b.wave(), self.b.i(lists.stride as i64), self.b.i(lists.k as i64));
        let (key_start, at_start) = (self.b.mul(wave, stride), self.b.mul(wave, k));
        self.list_blocks(lists, &[], |s, block, rounds, _| {
            let (key_base, at_base) = (s.b.add(key_start, block), s.b.add(at_start, block));
            let key = s.b.load(lists.keys, Addr::Contig { base: key_base }, Bound::Count(rounds), 1);
            let at = s.b.load(lists.at, Addr::Contig { base: at_base }, Bound::Count(rounds), 1);
            let lane = s.b.lane();
            let mut rank = s.b.add(block, lane);
            for other in 1..waves {
                let before = s.entries_before(lists, wave, key, other);
                rank = s.b.add(rank, before);
            }
            let (inside, listed) = (s.b.cmp(Cmp::Lt, rank, k), s.b.cmp(Cmp::Lt, lane, rounds));
            let mask = s.b.and(inside, listed);
            let base = s.b.i(0);
            s.b.store(ids, Addr::Lanes { base, index: rank }, Bound::Mask(mask), at);
            Ok(vec![])
        })
    }

    /// How many entries of the list of the wave `distance` behind this one come before `key`: equal ones do if their wave
    /// has lower numbers.
    fn entries_before(&mut self, lists: &Lists, wave: Val, key: Val, distance: u32) -> Val {
        let (distance, waves) = (self.b.i(i64::from(distance)), self.b.i(i64::from(self.b.waves())));
        let other = self.b.add(wave, distance);
        let other = self.b.rem(other, waves);
        let lower = self.b.cmp(Cmp::Lt, other, wave);
        let lower = self.b.conv(Conv::BoolToI32, lower);
        let limit = self.b.sub(key, lower);
        let stride = self.b.i(lists.stride as i64);
        let base = self.b.mul(other, stride);
        let zero = self.b.i(0);
        let mut found = self.b.splat(zero, 1);
        let mut step = lists.step;
        while step > 0 {
            let (by, back) = (self.b.i(step as i64), self.b.i(step as i64 - 1));
            let index = self.b.add(found, back);
            let entry = self.b.load(lists.keys, Addr::Lanes { base, index }, Bound::All, 1);
            let more = self.b.cmp(Cmp::Gt, entry, limit);
            let next = self.b.add(found, by);
            found = self.b.select(more, next, found);
            step /= 2;
        }
        found
    }

    /// The best of a row of any length, into `ids[0]`.
    fn best(&mut self, scores: ValueId, n: u64, ids: Place) -> Res<()> {
        let best = self.best_of_lanes(scores, n)?;
        self.best_of_workgroup(best, ids);
        Ok(())
    }

    /// The best of all lanes' keys and elements, into `ids[0]`. A barrier is to follow.
    pub(super) fn best_of_workgroup(&mut self, (key, at): (Val, Val), ids: Place) {
        let waves = u64::from(self.b.waves());
        let (best_key, best_at) = (self.b.shared("key", Mem::I32, waves), self.b.shared("at", Mem::I32, waves));
        let (key, at) = self.best_of_wave(key, at);
        let wave = self.b.wave();
        self.b.store(best_key, Addr::Uniform { base: wave }, Bound::All, key);
        self.b.store(best_at, Addr::Uniform { base: wave }, Bound::All, at);
        self.b.barrier();
        let winner = self.best_of_waves(best_key, best_at, waves);
        let base = self.b.i(0);
        self.b.store(ids, Addr::Uniform { base }, Bound::All, winner);
    }

    /// Best key of each lane's elements and its index; earlier elements win ties.
    fn best_of_lanes(&mut self, scores: ValueId, n: u64) -> Res<(Val, Val)> {
        let (low, far) = (self.b.i(i64::from(TAKEN)), self.b.i(i64::from(i32::MAX)));
        let (low, far) = (self.b.splat(low, 1), self.b.splat(far, 1));
        if let Some(best) = self.best_of_given(scores, n, [low, far])? {
            return Ok((best[0], best[1]));
        }
        let (wave, lanes) = (self.b.wave(), self.b.i(i64::from(LANES)));
        let own = self.b.mul(wave, lanes);
        let step = u64::from(LANES * self.b.waves());
        let full = n / (step * LOADED) * (step * LOADED);
        let mut best = vec![low, far];
        if full > 0 {
            let end = self.b.i(full as i64);
            best = self.looped((own, end, (step * LOADED) as i64), &best, |s, i, c| s.better_of(scores, i, step, c))?;
        }
        let (rest, end) = (self.b.i(full as i64), self.b.i(n as i64));
        let start = self.b.add(rest, own);
        let best = self.looped((start, end, step as i64), &best, |s, i, c| {
            let outer = s.mask;
            let ix = Ix::Seq { base: i, aligned: true };
            s.mask_below(ix, n);
            let x = s.eval(scores, &[ix])?;
            let key = s.score_key(x);
            let key = match s.mask {
                Some(m) => s.b.select(m, key, low),
                None => key,
            };
            s.mask = outer;
            Ok(s.better(key, ix, c))
        })?;
        Ok((best[0], best[1]))
    }

    /// The same of a given row, [`LOADED`] wide loads of a lane at a time; `None` for a row that does not fill them. The last
    /// ones end with the row: elements that were there before are no better than themselves.
    fn best_of_given(&mut self, scores: ValueId, n: u64, none: [Val; 2]) -> Res<Option<Vec<Val>>> {
        let leaf = strip_reshapes(self.g, scores);
        let given = matches!(self.g.node(leaf).op, Op::Input { .. }) && has_rows(self.tensor(scores)?);
        let round = u64::from(LANES * self.b.waves()) * TOGETHER * LOADED;
        if !given || self.kept.contains_key(&leaf) || n < round || !n.is_multiple_of(TOGETHER) {
            return Ok(None);
        }
        let (place, _) = self.leaf(leaf)?;
        let full = n / round * round;
        let (start, end, last) = (self.b.i(0), self.b.i(full as i64), self.b.i((n - round) as i64));
        let best =
            self.looped((start, end, round as i64), &none, |s, first, best| Ok(s.better_round(place, n, first, best)))?;
        Ok(Some(if full < n { self.better_round(place, n, last, &best) } else { best }))
    }

    /// The better of `best` and the elements of a lane's wide loads from element `first` of the row on.
    fn better_round(&mut self, place: Place, n: u64, first: Val, best: &[Val]) -> Vec<Val> {
        let (wave, lane, row) = (self.b.wave(), self.b.lane(), self.row_base(&[n]));
        let each = u64::from(LANES) * TOGETHER;
        let (of_wave, of_lane) = (self.b.i(each as i64), self.b.i(TOGETHER as i64));
        let own = self.b.mul(wave, of_wave);
        let own = self.b.add(first, own);
        let in_wave = self.b.mul(lane, of_lane);
        let mut loads = Vec::new();
        for u in 0..LOADED {
            let next = self.b.i((u * each * u64::from(self.b.waves())) as i64);
            let at = self.b.add(own, next);
            let base = self.b.add(row, at);
            let values = self.b.load(place, Addr::Contig { base }, Bound::All, TOGETHER as u8);
            loads.push((at, values));
        }
        let mut best = best.to_vec();
        for (at, values) in loads {
            let at = self.b.add(at, in_wave);
            for v in 0..TOGETHER {
                let x = self.b.component(values, v as u8);
                let (key, v) = (self.score_key(x), self.b.i(v as i64));
                let at = self.b.add(at, v);
                best = self.better(key, Ix::Lane(at), &best);
            }
        }
        best
    }

    /// The better of `best` and [`LOADED`] elements of a lane that lie `step` apart.
    fn better_of(&mut self, scores: ValueId, start: Val, step: u64, best: &[Val]) -> Res<Vec<Val>> {
        let mut found = Vec::new();
        for u in 0..LOADED {
            let by = self.b.i((u * step) as i64);
            let ix = Ix::Seq { base: self.b.add(start, by), aligned: true };
            found.push((ix, self.eval(scores, &[ix])?));
        }
        let mut best = best.to_vec();
        for (ix, x) in found {
            let key = self.score_key(x);
            best = self.better(key, ix, &best);
        }
        Ok(best)
    }

    fn better(&mut self, key: Val, ix: Ix, best: &[Val]) -> Vec<Val> {
        let at = ix.lanes(&mut self.b);
        let better = self.b.cmp(Cmp::Gt, key, best[0]);
        vec![self.b.select(better, key, best[0]), self.b.select(better, at, best[1])]
    }

    fn best_of_wave(&mut self, key: Val, at: Val) -> (Val, Val) {
        let top = self.b.reduce(Reduce::Max, key);
        let ties = self.b.cmp(Cmp::Eq, key, top);
        let far = self.b.i(i64::from(i32::MAX));
        let first = self.b.select(ties, at, far);
        (top, self.b.reduce(Reduce::Min, first))
    }

    fn best_of_waves(&mut self, keys: Place, ats: Place, waves: u64) -> Val {
        let zero = self.b.i(0);
        let (mut key, mut at) = (self.b.load_uniform(keys, zero), self.b.load_uniform(ats, zero));
        for w in 1..waves {
            let w = self.b.i(w as i64);
            let (k, a) = (self.b.load_uniform(keys, w), self.b.load_uniform(ats, w));
            let (more, same) = (self.b.cmp(Cmp::Gt, k, key), self.b.cmp(Cmp::Eq, k, key));
            let lower = self.b.cmp(Cmp::Lt, a, at);
            let tie = self.b.and(same, lower);
            let better = self.b.bin(Bin::Or, more, tie);
            key = self.b.select(better, k, key);
            at = self.b.select(better, a, at);
        }
        at
    }
}
