//! Whole rows by neighbours: a lane has up to eight elements that follow one another, in one load of each operand.

use std::collections::BTreeSet;

use unglue_ir::graph::ValueId;
use unglue_passes::schedule::{Place as Keep, Staged, strip_reshapes};

use super::index::{Ix, behind};
use super::{Gen, Res, Use};
use crate::kp::{Addr, Bound, LANES, Place, Val};

/// Neighbours of a lane at most: 16 bytes of bf16.
const NEIGHBOURS: u64 = 8;
/// Elements of a lane that are formed without a loop: their loads are in flight together, and their code is 32 times an
/// element's.
const WITHOUT_LOOP: u64 = 32;

impl Gen<'_> {
    /// Neighbours that a lane takes of `n` elements; 1 where lanes would not have as many each.
    fn neighbours(&self, n: u64) -> u64 {
        let lanes = u64::from(LANES * self.b.waves());
        let fits = |width: &u64| n.is_multiple_of(lanes * width);
        if !self.by_neighbours || self.mask.is_some() || self.head.is_some() {
            return 1;
        }
        [NEIGHBOURS, 4, 2].into_iter().find(fits).unwrap_or(1)
    }

    /// Forms elements 0..n of a value over all lanes of all waves, and stores them.
    pub(super) fn form_elements(&mut self, (id, n): (ValueId, u64), to: (Place, Option<Val>)) -> Res<()> {
        let width = self.neighbours(n);
        if width == 1 {
            return self.for_elements(n, |s, at| {
                let idx = s.scope_index(id, at)?;
                let v = s.eval(id, &idx)?;
                s.store(to.0, to.1, at, v);
                Ok(())
            });
        }
        let round = u64::from(LANES * self.b.waves()) * width;
        if n / round * width <= WITHOUT_LOOP {
            self.ahead_of(id, n, &BTreeSet::new())?;
            for first in (0..n).step_by(round as usize) {
                let first = self.b.i(first as i64);
                self.form_neighbours((id, first, width), to)?;
            }
            return Ok(());
        }
        let (zero, end) = (self.b.i(0), self.b.i(n as i64));
        self.looped((zero, end, round as i64), &[], |s, first, _| {
            s.form_neighbours((id, first, width), to)?;
            Ok(vec![])
        })?;
        Ok(())
    }

    /// This wave's place in a round of neighbours that starts at `first`.
    fn of_wave(&mut self, first: Val, width: u64) -> Val {
        let (wave, each) = (self.b.wave(), self.b.i((u64::from(LANES) * width) as i64));
        let own = self.b.mul(wave, each);
        self.b.add(first, own)
    }

    fn form_neighbours(&mut self, (id, first, width): (ValueId, Val, u64), to: (Place, Option<Val>)) -> Res<()> {
        let base = self.of_wave(first, width);
        let mut parts = Vec::new();
        for part in 0..width {
            let at = Ix::Wide { base, width: width as u8, part: part as u8, aligned: true };
            let idx = self.scope_index(id, at)?;
            let v = self.eval(id, &idx)?;
            parts.push(self.b.splat(v, 1));
        }
        let base = behind(to.1, base, &mut self.b);
        let v = self.b.pack(parts);
        self.b.store(to.0, Addr::Contig { base }, Bound::All, v);
        // What workgroup memory holds changes with the next store there.
        self.loaded.iter_mut().for_each(|m| m.retain(|(place, _), _| matches!(place, Place::Buffer(_))));
        Ok(())
    }

    /// One of the neighbours that start at an index, which are loaded together when the first of them is needed.
    pub(super) fn load_neighbours(&mut self, place: Place, base: Option<Val>, flat: Ix) -> Option<Val> {
        let Ix::Wide { base: first, width, part, .. } = flat else { return None };
        if self.mask.is_some() || self.is_exchanged(place) {
            return None;
        }
        let base = behind(base, first, &mut self.b);
        let key = (place, base);
        let all = match self.loaded.iter().rev().find_map(|m| m.get(&key)) {
            Some(all) => *all,
            None => {
                let all = self.b.load(place, Addr::Contig { base }, Bound::All, width);
                self.loaded.last_mut().map(|m| m.insert(key, all));
                all
            }
        };
        Some(self.b.component(all, part))
    }

    fn is_exchanged(&self, place: Place) -> bool {
        let Place::Buffer(i) = place else { return false };
        matches!(self.iface.uses.get(i as usize), Some(Use::Output(name)) if self.iface.exchanged.contains(name))
    }

    /// Loads what elements 0..n of a value are formed from, as far as it is given; `kept_later` as in [`Gen::load_ahead`].
    fn ahead_of(&mut self, id: ValueId, n: u64, kept_later: &BTreeSet<ValueId>) -> Res<()> {
        let width = self.neighbours(n);
        let round = u64::from(LANES * self.b.waves()) * width;
        if width == 1 || n / round * width > WITHOUT_LOOP {
            return Ok(());
        }
        for first in (0..n).step_by(round as usize) {
            let first = self.b.i(first as i64);
            let base = self.of_wave(first, width);
            let at = Ix::Wide { base, width: width as u8, part: 0, aligned: true };
            let idx = self.scope_index(id, at)?;
            self.load_operands_ahead(id, &idx, kept_later)?;
        }
        Ok(())
    }

    /// Starts loading what a row's kept values and outputs are formed from, as far as it is given.
    pub(super) fn row_ahead(&mut self, staged: &[Staged], outputs: &[usize]) -> Res<()> {
        let kept_later: BTreeSet<ValueId> = staged.iter().map(|s| s.node).collect();
        for s in staged {
            let formed = matches!(s.place, Keep::Shared { .. }) && !self.kept.contains_key(&s.node);
            if formed && self.is_inline(s.node)? {
                self.ahead_of(s.node, s.elements, &kept_later)?;
            }
        }
        for &o in outputs {
            let v = strip_reshapes(self.g, self.g.outputs[o].1);
            if self.g.ty(v).tensor().is_some() && !kept_later.contains(&v) {
                let n = self.elements(v)?;
                self.ahead_of(v, n, &kept_later)?;
            }
        }
        Ok(())
    }
}
