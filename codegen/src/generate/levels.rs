//! Kept values of a head, level by level: values that do not follow from one another are formed side by side, by waves of
//! their own, with one barrier behind all of them.

use unglue_ir::graph::ValueId;
use unglue_ir::op::{Op, ReduceKind};
use unglue_passes::schedule::{Place as Keep, Staged};

use super::index::Ix;
use super::sums::CHAINS;
use super::{Gen, Kept, Res};
use crate::kp::{Bin, Cmp, LANES, Mem, Place, Val};

/// Where a lane stands in an array of workgroup memory. Lanes and waves without an element repeat the last one, so that no
/// load waits behind a branch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub at: Ix,
    /// Where it would stand if there were an element for each lane.
    own: Ix,
    /// The wave has elements of its own (uniform); `None` if all waves have.
    here: Option<Val>,
    /// The lane has an element of its own; `None` if all lanes of such a wave have.
    lanes: Option<Val>,
}

impl Gen<'_> {
    /// Blocks of 32 elements.
    fn blocks(n: u64) -> u64 {
        n.div_ceil(u64::from(LANES))
    }

    /// Elements 0..n over all lanes of all waves; several spots a lane where there are more. Where there are fewer, waves
    /// begin again: any of them can form the elements.
    pub(super) fn spots(&mut self, n: u64) -> Vec<Spot> {
        let (waves, blocks) = (u64::from(self.b.waves()), Self::blocks(n));
        (0..blocks.div_ceil(waves)).map(|round| self.spot(n, round * waves)).collect()
    }

    /// The spot of this wave, of those from block `first` on.
    fn spot(&mut self, n: u64, first: u64) -> Spot {
        let (waves, blocks) = (u64::from(self.b.waves()), Self::blocks(n));
        let (wave, lanes) = (self.b.wave(), self.b.i(i64::from(LANES)));
        let number = self.ahead(wave, first as u32);
        let own = Ix::Seq { base: self.b.mul(number, lanes), aligned: true };
        let partial = first + waves > blocks;
        let here = partial.then(|| self.is(Cmp::Lt, number, blocks as i64));
        let number = match blocks < waves {
            true => {
                let n = self.b.i(blocks as i64);
                self.b.rem(number, n)
            }
            false if partial => {
                let last = self.b.i(blocks as i64 - 1);
                self.b.bin(Bin::Min, number, last)
            }
            false => number,
        };
        let base = self.b.mul(number, lanes);
        let at = Ix::Seq { base, aligned: true };
        if n.is_multiple_of(u64::from(LANES)) {
            return Spot { at, own, here, lanes: None };
        }
        let (at_lane, last) = (at.lanes(&mut self.b), self.b.i(n as i64 - 1));
        let exists = self.b.cmp(Cmp::Le, at_lane, last);
        Spot { at: Ix::Lane(self.b.bin(Bin::Min, at_lane, last)), own, here, lanes: Some(exists) }
    }

    /// Runs `f`, which stores at a spot, in the waves that have it.
    pub(super) fn at_spot(&mut self, spot: &Spot, f: impl FnOnce(&mut Self) -> Res<()>) -> Res<()> {
        match spot.here {
            Some(here) => self.when(here, |s| s.in_lanes(spot, f)),
            None => self.in_lanes(spot, f),
        }
    }

    fn in_lanes(&mut self, spot: &Spot, f: impl FnOnce(&mut Self) -> Res<()>) -> Res<()> {
        let outer = std::mem::replace(&mut self.mask, spot.lanes);
        let out = f(self);
        self.mask = outer;
        out
    }

    /// An array with room for what waves without elements of their own store.
    pub(super) fn padded_array(&mut self, id: ValueId, n: u64, spots: &[Spot]) -> Place {
        let all = spots.len() as u64 * u64::from(self.b.waves() * LANES);
        self.shared_array(id, Mem::F32, n.max(all))
    }

    /// Stores to a padded array, without a branch: LLVM would move the loads that `v` is formed from there too.
    pub(super) fn store_padded(&mut self, place: Place, spot: &Spot, v: Val) -> Res<()> {
        if spot.lanes.is_none() {
            self.store(place, None, spot.own, v);
            return Ok(());
        }
        self.at_spot(spot, |s| {
            s.store(place, None, spot.at, v);
            Ok(())
        })
    }

    /// Forms kept values of a head in order. Collective.
    pub(super) fn keep_levels(&mut self, staged: &[Staged]) -> Res<()> {
        let mut level: Vec<Staged> = Vec::new();
        for s in staged {
            if self.follows(s.node, &level) {
                self.keep_level(&mut level)?;
            }
            let wide = self.is_wide(s.node)?;
            match s.place {
                Keep::Registers if wide => self.keep_sum(s)?,
                Keep::Shared { .. } if !wide => level.push(*s),
                _ => self.keep(s, 1)?,
            }
        }
        self.keep_level(&mut level)
    }

    /// True if forming a value reads one of `level`.
    fn follows(&self, id: ValueId, level: &[Staged]) -> bool {
        let mut todo = vec![id];
        while let Some(at) = todo.pop() {
            if level.iter().any(|s| s.node == at) {
                return true;
            }
            if at == id || !self.kept.contains_key(&at) {
                todo.extend(&self.g.node(at).args);
            }
        }
        false
    }

    /// One sum that all lanes need: each wave forms a short one by itself, without a barrier.
    fn keep_sum(&mut self, s: &Staged) -> Res<()> {
        let Op::Reduce { kind: ReduceKind::Sum, axis, .. } = self.g.node(s.node).op else { return self.keep(s, 1) };
        let (a, arg) = (axis as usize - 1, self.g.node(s.node).args[0]);
        let n = self.dims(arg)?[a];
        if n > CHAINS {
            return self.keep(s, 1);
        }
        let idx = self.scope_index(s.node, Ix::Const(0))?;
        let sum = self.wave_sum(n, |g, at| g.reduce_term(s.node, a, &idx, at))?;
        self.kept.insert(s.node, Kept::Regs(vec![sum]));
        Ok(())
    }

    /// Forms the values of a level, dealt to the waves one after the other.
    fn keep_level(&mut self, level: &mut Vec<Staged>) -> Res<()> {
        let waves = u64::from(self.b.waves());
        let mut next = 0u64;
        let mut formed = Vec::new();
        for s in level.drain(..) {
            let mem = self.shared_mem(s.node)?;
            let place = self.shared_array(s.node, mem, s.elements);
            let blocks = Self::blocks(s.elements);
            if blocks >= waves {
                for spot in self.spots(s.elements) {
                    self.at_spot(&spot, |g| g.form_at(&s, place, &spot))?;
                }
            } else {
                // Waves begin again at multiples of the blocks: from there each finds the block of its spot.
                let first = next.next_multiple_of(blocks);
                let first = if first + blocks > waves { 0 } else { first };
                next = first + blocks;
                let wave = self.b.wave();
                let mine = self.in_range(wave, first, next);
                let spot = self.spot(s.elements, 0);
                self.when(mine, |g| g.in_lanes(&spot, |g| g.form_at(&s, place, &spot)))?;
            }
            formed.push((s, place));
        }
        if formed.is_empty() {
            return Ok(());
        }
        self.b.barrier();
        for (s, place) in formed {
            let kept = match self.dims(s.node)?.as_slice() {
                // Heads one after the other.
                [_] => Kept::OfHead { place, elements: s.elements, shares: 1 },
                _ => Kept::Shared { place, elements: s.elements, by_row: false },
            };
            self.kept.insert(s.node, kept);
            // What was formed inline before now has a place.
            self.memo.iter_mut().for_each(|m| m.retain(|(v, _), _| *v != s.node));
        }
        Ok(())
    }

    fn form_at(&mut self, s: &Staged, place: Place, spot: &Spot) -> Res<()> {
        let idx = self.scope_index(s.node, spot.at)?;
        let v = self.eval(s.node, &idx)?;
        self.store(place, None, spot.at, v);
        Ok(())
    }
}
