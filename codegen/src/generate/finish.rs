//! Finish stage of the skinny form and of that over blocks: the last workgroup to arrive forms what needs whole rows.

use std::collections::{BTreeSet, HashMap};

use unglue_ir::graph::{Graph, ValueId};
use unglue_passes::schedule::{Finish, Place as Keep, Schedule, Skinny, Staged, strip_reshapes};

use super::{Gen, Kept, Res};
use crate::kp::{Addr, Bin, Bound, Cmp, LANES, Place, Val};

/// The output that an exchanged value is stored to: the first of its name.
fn output_of(g: &Graph, value: ValueId) -> Option<&str> {
    g.outputs.iter().find(|(_, v)| strip_reshapes(g, *v) == value).map(|(name, _)| name.as_str())
}

/// Names of the outputs that workgroups exchange.
pub(super) fn exchanged_outputs(g: &Graph, schedule: &Schedule) -> BTreeSet<String> {
    let values = schedule.finish().map(|f| f.exchanged.as_slice()).unwrap_or_default();
    values.iter().filter_map(|v| output_of(g, *v)).map(str::to_owned).collect()
}

impl Gen<'_> {
    /// Workgroups that stored exchanged values arrive; the last of them finishes all rows. The others never come here.
    pub fn finish_stage(&mut self, s: &Skinny, rows: Val) -> Res<()> {
        let Some(finish) = &s.finish else { return Ok(()) };
        let (mut start, mut arrivals, mut all) = (0, 0, true);
        let block = self.group(0);
        let mut comes = self.b.bool(false);
        for (i, segment) in s.segments.iter().enumerate() {
            let blocks = Skinny::blocks(segment, self.b.waves());
            if finish.segments.contains(&i) {
                arrivals += blocks;
                let inside = self.in_range(block, start, start + blocks);
                comes = self.b.bin(Bin::Or, comes, inside);
            } else {
                all = false;
            }
            start += blocks;
        }
        let first = self.b.i(0);
        if all {
            return self.last_to_arrive((first, arrivals), |g| g.finish_rows(finish, rows));
        }
        self.when(comes, |g| g.last_to_arrive((first, arrivals), |g| g.finish_rows(finish, rows)))
    }

    /// `arrivals` workgroups have stored parts of the current row; the last of them finishes it.
    pub fn finish_stage_of_row(&mut self, finish: &Finish, arrivals: u64) -> Res<()> {
        let row = self.row;
        self.last_to_arrive((row, arrivals), |g| g.finishing(finish, |g| g.finish_row(finish)))
    }

    /// `from <= v < to`, uniform.
    pub fn in_range(&mut self, v: Val, from: u64, to: u64) -> Val {
        let (low, high) = (self.is(Cmp::Ge, v, from as i64), self.is(Cmp::Lt, v, to as i64));
        self.b.and(low, high)
    }

    fn finish_rows(&mut self, finish: &Finish, rows: Val) -> Res<()> {
        let zero = self.b.i(0);
        let each_row = |g: &mut Self| {
            g.looped((zero, rows, 1), &[], |g, row, _| {
                g.row = row;
                g.finish_row(finish)?;
                // The next row takes the same places.
                g.b.barrier();
                Ok(vec![])
            })
        };
        self.finishing(finish, each_row).map(|_| ())
    }

    /// Everything that is loaded comes before the first store: it is in flight together, what was exchanged first, since
    /// more follows from it.
    fn finish_row(&mut self, finish: &Finish) -> Res<()> {
        let (copied, formed): (Vec<Staged>, Vec<Staged>) =
            finish.staged.iter().copied().partition(|s| finish.exchanged.contains(&s.node));
        let loaded = copied.iter().map(|s| self.load_exchanged(s)).collect::<Res<Vec<_>>>()?;
        self.row_ahead(&formed, &finish.outputs)?;
        for (s, loads) in copied.iter().zip(loaded) {
            self.copy_exchanged(s, loads)?;
        }
        if !copied.is_empty() {
            self.b.barrier();
        }
        self.keep_all(&formed, 1)?;
        finish.outputs.iter().try_for_each(|o| self.write_output(*o))
    }

    /// Runs `f` where values are formed from what was exchanged.
    pub(super) fn finishing<T>(&mut self, finish: &Finish, f: impl FnOnce(&mut Self) -> Res<T>) -> Res<T> {
        // Values of the workgroup's own outputs have no meaning for whole rows: every value is formed from what was
        // exchanged.
        let memo = std::mem::replace(&mut self.memo, vec![HashMap::new()]);
        let kept = std::mem::take(&mut self.kept);
        let own = self.row;
        for &v in &finish.exchanged {
            let exchanged = self.exchanged(v)?;
            self.kept.insert(v, exchanged);
        }
        self.by_neighbours = true;
        let out = f(self);
        self.by_neighbours = false;
        (self.memo, self.kept, self.row) = (memo, kept, own);
        out
    }

    /// Where all rows of an exchanged value stand.
    fn exchanged(&mut self, v: ValueId) -> Res<Kept> {
        let (place, elements) = (self.exchange_place(v)?, self.elements(v)?);
        Ok(Kept::Shared { place, elements, by_row: true })
    }

    /// The buffer through which workgroups hand a value over.
    pub(super) fn exchange_place(&mut self, v: ValueId) -> Res<Place> {
        let Some(name) = output_of(self.g, v) else { return self.fault(v, "an exchanged value without a buffer") };
        let mem = self.mem(v)?;
        Ok(self.iface.output(&mut self.b, name, mem))
    }

    /// Loads the current row of an exchanged value that is copied to workgroup memory.
    fn load_exchanged(&mut self, s: &Staged) -> Res<Vec<(Val, Bound, Val)>> {
        let (Some(Kept::Shared { place: from, .. }), Keep::Shared { .. }) = (self.kept.get(&s.node).cloned(), s.place)
        else {
            return self.fault(s.node, "an exchanged value that is not copied to workgroup memory");
        };
        let own = self.row_base(&[s.elements]);
        let (wave, lanes) = (self.b.wave(), self.b.i(i64::from(LANES)));
        let first = self.b.mul(wave, lanes);
        let step = u64::from(self.b.waves() * LANES);
        let mut loaded = Vec::new();
        for at in (0..s.elements).step_by(step as usize) {
            let at = self.b.i(at as i64);
            let at = self.b.add(at, first);
            let n = self.b.i(s.elements as i64);
            // Masked loads beside others leave pointers of both kinds in the lanes of one register, which the gate refuses.
            let bound = if s.elements.is_multiple_of(step) { Bound::All } else { Bound::Count(self.b.sub(n, at)) };
            let base = self.b.add(own, at);
            loaded.push((at, bound, self.b.load(from, Addr::Contig { base }, bound, 1)));
        }
        Ok(loaded)
    }

    /// Stores what [`Gen::load_exchanged`] loaded to workgroup memory. A barrier is to follow.
    fn copy_exchanged(&mut self, s: &Staged, loaded: Vec<(Val, Bound, Val)>) -> Res<()> {
        let mem = self.mem(s.node)?;
        let to = self.shared_array(s.node, mem, s.elements);
        for (at, bound, v) in loaded {
            self.b.store(to, Addr::Contig { base: at }, bound, v);
        }
        self.kept.insert(s.node, Kept::Shared { place: to, elements: s.elements, by_row: false });
        Ok(())
    }
}
