//! Waves that share the sums of their outputs (split-K, [`Split`]). Each set of them leaves partial sums in workgroup
//! memory; behind a barrier the tree of each sum is brought to its end, one output a lane, and the epilogue follows.

use std::collections::HashMap;

use unglue_passes::schedule::{Segment, Skinny, Slot, Split};

use super::index::Ix;
use super::skinny::{CHUNK, Lines, Span, Strip};
use super::{Gen, Kept, Res};
use crate::kp::{Addr, Bin, Bound, Cmp, LANES, Mem, Place, Val};

/// Components of a chain group: neighbours c^4, c^2 and c^1 of the order `lanes`.
const GROUP: u8 = 8;

/// Where a set of waves meets.
struct Meeting {
    place: Place,
    /// First element of the set.
    base: Val,
    /// The wave's number in its set.
    part: Val,
    /// Waves of a set.
    waves: u32,
    /// Outputs of a set.
    outputs: u64,
    /// Rows at once.
    rows: u64,
}

impl Gen<'_> {
    /// Workgroup memory for the segment that needs the most.
    pub(super) fn reserve_exchange(&mut self, s: &Skinny) {
        let waves = self.b.waves();
        let bytes = s.segments.iter().map(|x| x.exchange_bytes(self.g, u64::from(s.row_unroll), waves)).max();
        let elements = bytes.unwrap_or(0) / Mem::F32.bytes();
        self.exchange = (elements > 0).then(|| self.b.shared("parts", Mem::F32, elements));
    }

    /// Number of the wave's set among those of its workgroup.
    pub(super) fn set_number(&mut self, waves: u32) -> Val {
        match self.b.waves() == waves && waves > 1 {
            true => self.b.i(0),
            false => {
                let wave = self.b.wave();
                self.shifted(wave, u64::from(waves))
            }
        }
    }

    /// Number of the wave in its set.
    fn part_number(&mut self, waves: u32) -> Val {
        let wave = self.b.wave();
        match self.b.waves() == waves {
            true => wave,
            false => self.below(wave, waves),
        }
    }

    /// `v` modulo a power of two.
    fn below(&mut self, v: Val, n: u32) -> Val {
        let mask = self.b.i(i64::from(n) - 1);
        self.b.and(v, mask)
    }

    /// Forms a set's outputs of some rows. Collective.
    pub(super) fn split_outputs(&mut self, s: &Skinny, segment: &Segment, span: &Span) -> Res<()> {
        let (waves, rows) = (segment.split_k, span.rows.len() as u64);
        let (slots, elements) = segment.slots(self.g, rows);
        let Some(place) = self.exchange else {
            return self.fault(segment.anchors[0], "waves without a place to meet");
        };
        let set = self.set_number(waves);
        let elements = self.b.i(elements as i64);
        let base = self.b.mul(set, elements);
        let part = self.part_number(waves);
        let outputs = u64::from(segment.outputs_per_wave);
        let at = Meeting { place, base, part, waves, outputs, rows };
        for slot in &slots {
            match slot.split {
                Split::Sums => self.leave_sums(s, segment, span, (&at, slot))?,
                Split::Columns => self.leave_columns(s, segment, span, (&at, slot))?,
                Split::Chains(chains) => self.leave_chains(s, segment, span, (&at, slot, chains))?,
            }
        }
        self.b.barrier();
        self.join(s, segment, span, (&at, &slots))?;
        if rows > 1 {
            // The next rows take the same places.
            self.b.barrier();
        }
        Ok(())
    }

    /// First place of a row's outputs.
    fn places(&mut self, at: &Meeting, slot: &Slot, choice: Val, row: Val) -> Val {
        let rows = self.b.i(at.rows as i64);
        let number = self.b.mul(choice, rows);
        let number = self.b.add(number, row);
        let each = self.b.i((at.outputs * slot.places) as i64);
        let behind = self.b.mul(number, each);
        let first = self.b.i(slot.first as i64);
        let behind = self.b.add(behind, first);
        self.b.add(at.base, behind)
    }

    /// Lanes that hold an output of the set.
    fn own_lanes(&mut self, at: &Meeting) -> Bound {
        if at.outputs == u64::from(LANES) {
            return Bound::All;
        }
        let (lane, outputs) = (self.b.lane(), self.b.i(at.outputs as i64));
        Bound::Mask(self.b.cmp(Cmp::Lt, lane, outputs))
    }

    /// Whole sums: the wave's share of the choices, counted through all contractions of the segment.
    fn leave_sums(&mut self, s: &Skinny, segment: &Segment, span: &Span, (at, slot): (&Meeting, &Slot)) -> Res<()> {
        let waves = u64::from(at.waves);
        let ahead = self.b.i((waves - slot.sums_before % waves) as i64);
        let first = self.b.add(at.part, ahead);
        let first = self.below(first, at.waves);
        let end = self.b.i(slot.choices as i64);
        self.looped((first, end, waves as i64), &[], |g, choice, _| {
            let inner = (slot.choices > 1).then(|| Ix::uni(choice));
            let lines = g.lines(s.y, span, slot.anchor, inner)?;
            let sums = g.valid_sums(segment, span, &lines)?;
            let own = g.own_lanes(at);
            for (row, &sum) in sums.iter().enumerate() {
                let row = g.b.i(row as i64);
                let base = g.places(at, slot, choice, row);
                g.b.store(at.place, Addr::Contig { base }, own, sum);
            }
            Ok(vec![])
        })?;
        Ok(())
    }

    /// Sums of 8 chains of the order `lanes`, those of the wave's columns.
    fn leave_columns(&mut self, s: &Skinny, segment: &Segment, span: &Span, (at, slot): (&Meeting, &Slot)) -> Res<()> {
        let lines = self.lines(s.y, span, slot.anchor, None)?;
        self.insert_stream(&lines, at.waves);
        let columns = self.b.i((CHUNK / u64::from(at.waves)) as i64);
        let strip = Strip { first: self.b.mul(at.part, columns), vec: (u32::from(GROUP) / at.waves) as u8 };
        let lane = self.b.lane();
        let group = self.shifted(lane, u64::from(at.waves));
        let number = self.below(lane, at.waves);
        let zero = self.b.i(0);
        let leader = self.b.cmp(Cmp::Eq, number, zero);
        let groups = self.b.i((slot.places / u64::from(at.waves)) as i64);
        let own = self.b.mul(at.part, groups);
        let end = self.b.i(at.outputs as i64);
        self.looped((zero, end, 1), &[], |g, output, _| {
            let sums = g.valid_columns(segment, span, &lines, &strip, output)?;
            let each = g.b.i(slot.places as i64);
            let before = g.b.mul(output, each);
            let before = g.b.add(before, own);
            for (row, &sum) in sums.iter().enumerate() {
                let (choice, row) = (g.b.i(0), g.b.i(row as i64));
                let base = g.places(at, slot, choice, row);
                let base = g.b.add(base, before);
                g.b.store(at.place, Addr::Lanes { base, index: group }, Bound::Mask(leader), sum);
            }
            Ok(vec![])
        })?;
        Ok(())
    }

    /// For each row a lane value: sums of 8 chains, each in as many lanes as the set has waves; zeros for an expert without
    /// a slot.
    fn valid_columns(
        &mut self,
        segment: &Segment,
        span: &Span,
        lines: &Lines,
        strip: &Strip,
        output: Val,
    ) -> Res<Vec<Val>> {
        // Outputs past the end repeat the last one; their lanes are masked in the epilogue.
        let last = self.b.i(segment.n as i64 - 1);
        let n = self.b.add(span.n0, output);
        let n = self.b.bin(Bin::Min, n, last);
        let formed = |g: &mut Self| {
            let row = g.weight_row(lines, n);
            let chains = g.chains(lines, &[row], strip)?;
            Ok(chains.into_iter().map(|v| g.group_total(v, strip.vec)).collect())
        };
        let Some(valid) = lines.valid else { return formed(self) };
        self.choose_all(valid, formed, |g| {
            let zero = g.b.f(0.0);
            let zero = g.b.splat(zero, 1);
            Ok(vec![zero; span.rows.len()])
        })
    }

    /// Steps c^4, c^2 and c^1 of the order `lanes`, where a lane holds `vec` of 8 neighbours.
    fn group_total(&mut self, v: Val, vec: u8) -> Val {
        let mut parts: Vec<Val> = if vec == 1 { vec![v] } else { (0..vec).map(|i| self.b.component(v, i)).collect() };
        for step in [4, 2, 1] {
            if step < vec {
                let half = usize::from(step);
                parts = (0..half).map(|i| self.b.bin(Bin::Add, parts[i], parts[i + half])).collect();
                continue;
            }
            for part in &mut parts {
                let other = self.b.xor_lane(*part, step / vec);
                *part = self.b.bin(Bin::Add, *part, other);
            }
        }
        parts[0]
    }

    /// The wave's chains of the order `strided`.
    fn leave_chains(
        &mut self,
        s: &Skinny,
        segment: &Segment,
        span: &Span,
        (at, slot, chains): (&Meeting, &Slot, u64),
    ) -> Res<()> {
        let lines = self.lines(s.y, span, slot.anchor, None)?;
        let sums = self.strided_part(segment, span, &lines, (chains, at.part, u64::from(at.waves)))?;
        let (lane, each, choice) = (self.b.lane(), self.b.i(slot.places as i64), self.b.i(0));
        let index = self.b.mul(lane, each);
        let own = self.own_lanes(at);
        for (row, &sum) in sums.iter().enumerate() {
            let row = self.b.i(row as i64);
            let base = self.places(at, slot, choice, row);
            let base = self.b.add(base, at.part);
            self.b.store(at.place, Addr::Lanes { base, index }, own, sum);
        }
        Ok(())
    }

    /// Ends the sums and forms the outputs: each wave of the set those of some rows.
    fn join(&mut self, s: &Skinny, segment: &Segment, span: &Span, (at, slots): (&Meeting, &[Slot])) -> Res<()> {
        let (first, outer) = (span.rows[0], self.row);
        if at.rows == 1 {
            let here = self.is(Cmp::Eq, at.part, 0);
            self.when(here, |g| {
                let row = g.b.i(0);
                g.joined_row(s, segment, span, (at, slots, row))
            })?;
        } else {
            let count = self.row_count();
            let left = self.b.sub(count, first);
            let rows = self.b.i(at.rows as i64);
            let end = self.b.bin(Bin::Min, left, rows);
            self.looped((at.part, end, i64::from(at.waves)), &[], |g, row, _| {
                g.joined_row(s, segment, span, (at, slots, row))?;
                Ok(vec![])
            })?;
        }
        self.row = outer;
        Ok(())
    }

    fn joined_row(
        &mut self,
        s: &Skinny,
        segment: &Segment,
        span: &Span,
        (at, slots, row): (&Meeting, &[Slot], Val),
    ) -> Res<()> {
        self.row = self.b.add(span.rows[0], row);
        let held = self.kept.clone();
        for slot in slots {
            let sums = (0..slot.choices).map(|choice| self.joined(at, slot, choice, row)).collect();
            self.kept.insert(slot.anchor, Kept::Lane(sums));
        }
        self.memo.push(HashMap::new());
        let out = self.epilogue(s, segment, span.n0);
        self.memo.pop();
        self.kept = held;
        out
    }

    /// A row's sums, output n0 + l in lane l. Lanes without an output repeat the last.
    fn joined(&mut self, at: &Meeting, slot: &Slot, choice: u64, row: Val) -> Val {
        let choice = self.b.i(choice as i64);
        let base = self.places(at, slot, choice, row);
        let mut output = self.b.lane();
        if at.outputs < u64::from(LANES) {
            let last = self.b.i(at.outputs as i64 - 1);
            output = self.b.bin(Bin::Min, output, last);
        }
        let each = self.b.i(slot.places as i64);
        let index = self.b.mul(output, each);
        let vec = slot.places.min(u64::from(GROUP)) as u8;
        let mut parts = Vec::new();
        for ahead in (0..slot.places as u32).step_by(usize::from(vec)) {
            let base = self.ahead(base, ahead);
            let v = self.b.load(at.place, Addr::Lanes { base, index }, Bound::All, vec);
            match vec {
                1 => parts.push(v),
                _ => parts.extend((0..vec).map(|i| self.b.component(v, i))),
            }
        }
        self.strided_total(&parts)
    }
}
