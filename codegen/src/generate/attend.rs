//! Attention over selected rows: one workgroup some heads of a row, and one split of the selected places or all of them. Row
//! numbers, scores and probabilities stand in workgroup memory. A row that is loaded serves all heads of a set of waves: for
//! scores a wave takes whole rows, for values its columns of every row.

use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;
use unglue_ir::order::{SPLIT_CHAINS, SPLIT_ROWS};
use unglue_passes::schedule::{Attend, SET_HEADS, SET_WAVES, strip_reshapes};

use super::index::Ix;
use super::interface::state_leaf;
use super::state::RowPlace;
use super::{Gen, Res, StepBuffer, StepScalar};
use crate::kp::{Addr, Bin, Bound, Cmp, LANES, Mem, Place, Reduce, Val};

/// Pairs of head and place whose dot products a wave forms at the same time, each in eight registers a lane. The rows of the
/// places are loaded together: one after the other, each waits for its number and for itself.
const DOTS: u64 = 8;
/// Columns of a piece of a dot product: eight a lane.
const PIECE: u64 = 256;
/// Pieces of queries that stay in registers, of all heads of a set together, eight a lane and piece.
const HELD_PIECES: u64 = 8;
/// Columns of values that a lane forms.
pub(super) const COLUMNS: u64 = 2;

/// Places whose rows a wave loads at the same time for their values: 16 KiB a set of waves are in flight.
const ROWS_AT_ONCE: u64 = 2 * SPLIT_CHAINS;
/// Instead of a row's number: the place is absent, or it has an id and the state no such row, which reads 0.
const ABSENT: i64 = -1;
const NO_ROW: i64 = -2;

/// What the phases share.
pub(super) struct Attention<'a> {
    pub form: &'a Attend,
    /// The op that forms splits.
    node: ValueId,
    /// Places of all splits.
    selected: u64,
    /// First place and number of the workgroup's split, if it has one.
    split: Option<(Val, Val)>,
    /// Places in workgroup memory: those of the workgroup's splits, up to whole waves.
    places: u64,
    /// How many of them have ids.
    filled: Val,
    query: Place,
    /// Heads of a set of waves.
    set_heads: u64,
    /// The wave's number in its set, and its set's first head in the workgroup.
    wave: Val,
    first: Val,
    /// First element of each query of the set. Behind the last head, the last one's.
    lines: Vec<Val>,
    latent: Place,
    ids: Place,
    ids_base: Val,
    /// Score, then probability, of each place, head by head.
    scores: Place,
    /// Row of the state of each place, [`ABSENT`] or [`NO_ROW`]: sessions have no more rows than i32 counts.
    rows: Place,
    row: RowPlace,
}

/// The columns that a wave forms: 2 a lane from `first` on, of which those of `bound` exist.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub first: Val,
    pub bound: Bound,
}

impl Gen<'_> {
    pub fn attend_form(&mut self, form: &Attend) -> Res<()> {
        let Some(node) = form.splits else { return self.combine_form(form) };
        self.row = self.group(if form.is_split() { 2 } else { 1 });
        let rows = self.scalar(StepScalar::Rows);
        let here = self.b.cmp(Cmp::Lt, self.row, rows);
        self.when(here, |s| {
            let a = s.attention(node, form)?;
            s.selected_rows(&a)?;
            s.attend_scores(&a)?;
            if form.is_split() { s.attend_split(&a) } else { s.attend_whole(&a) }
        })
    }

    fn attention<'a>(&mut self, node: ValueId, form: &'a Attend) -> Res<Attention<'a>> {
        let args = self.g.node(node).args.clone();
        let (query, _) = self.leaf(strip_reshapes(self.g, args[0]))?;
        let (latent, _) = self.leaf(state_leaf(self.g, args[1]))?;
        let (ids, _) = self.leaf(strip_reshapes(self.g, args[2]))?;
        let selected = self.elements(args[2])?;
        let n = self.b.i(selected as i64);
        let ids_base = self.b.mul(self.row, n);
        let split = form.is_split().then(|| self.own_split(form.count));
        let each = self.b.i(SPLIT_ROWS as i64);
        let (places, filled) = match split {
            Some((first, _)) => {
                let left = self.b.sub(n, first);
                (SPLIT_ROWS, self.b.bin(Bin::Min, left, each))
            }
            None if form.count > 1 => (form.count * SPLIT_ROWS, n),
            None => (selected.next_multiple_of(u64::from(LANES)), n),
        };
        let set_heads = form.at_once.min(SET_HEADS);
        let (wave, first) = self.set_of_wave(form.at_once.div_ceil(SET_HEADS));
        let lines = (0..set_heads).map(|h| self.query_line(form, first, h)).collect();
        let scores = self.shared_array(node, Mem::F32, form.at_once * places);
        let rows = self.b.shared("rows", Mem::I32, places);
        let row = self.row_place();
        Ok(Attention {
            form,
            node,
            selected,
            split,
            places,
            filled,
            query,
            set_heads,
            wave,
            first,
            lines,
            latent,
            ids,
            ids_base,
            scores,
            rows,
            row,
        })
    }

    /// First place and number of the workgroup's split. The last split, which may have the fewest places, starts first: at
    /// the end it would keep a few workgroups waiting for their places.
    fn own_split(&mut self, count: u64) -> (Val, Val) {
        let (group, last) = (self.group(1), self.b.i(count as i64 - 1));
        let number = self.b.sub(last, group);
        let each = self.b.i(SPLIT_ROWS as i64);
        (self.b.mul(number, each), number)
    }

    /// The wave's number in its set and the set's first head. Neighbours take the same rows at the same time.
    fn set_of_wave(&mut self, sets: u64) -> (Val, Val) {
        let (wave, zero) = (self.b.wave(), self.b.i(0));
        if sets == 1 {
            return (wave, zero);
        }
        let (sets, each) = (self.b.i(sets as i64), self.b.i(SET_HEADS as i64));
        let set = self.b.rem(wave, sets);
        (self.b.div(wave, sets), self.b.mul(set, each))
    }

    /// First element of the query of head `first + h` of the workgroup.
    fn query_line(&mut self, form: &Attend, first: Val, h: u64) -> Val {
        let local = self.ahead(first, h as u32);
        let (head, _) = self.head_of(form, local);
        let row = self.row_base(&[form.heads * form.width]);
        let width = self.b.i(form.width as i64);
        let line = self.b.mul(head, width);
        self.b.add(row, line)
    }

    /// Number of head `local` of the workgroup, and whether it is one, if not all are. Behind the last head, the last one's.
    pub(super) fn head_of(&mut self, form: &Attend, local: Val) -> (Val, Option<Val>) {
        let (group, each) = (self.group(0), self.b.i(form.at_once as i64));
        let first = self.b.mul(group, each);
        let head = self.b.add(first, local);
        if form.heads.is_multiple_of(form.at_once) {
            return (head, None);
        }
        let last = self.b.i(form.heads as i64 - 1);
        let exists = self.b.cmp(Cmp::Le, head, last);
        (self.b.bin(Bin::Min, head, last), Some(exists))
    }

    /// Runs `f` where `exists` holds.
    pub(super) fn where_head(&mut self, exists: Option<Val>, f: impl FnOnce(&mut Self) -> Res<()>) -> Res<()> {
        match exists {
            Some(exists) => self.when(exists, f),
            None => f(self),
        }
    }

    /// The id of a place of the workgroup; -1 behind the selected ones.
    fn selected_id(&mut self, a: &Attention, at: Ix) -> Val {
        let at = match a.split {
            Some((first, _)) => at.add(Ix::uni(first), &mut self.b),
            None => at,
        };
        let all = if a.split.is_some() { a.form.count * SPLIT_ROWS } else { a.places };
        if all == a.selected {
            return self.load(a.ids, Some(a.ids_base), at);
        }
        let outer = self.mask;
        self.mask_below(at, a.selected);
        let (id, none) = (self.load(a.ids, Some(a.ids_base), at), self.b.i(-1));
        let inside = std::mem::replace(&mut self.mask, outer);
        inside.map_or(id, |inside| self.b.select(inside, id, none))
    }

    /// Resolves all places through the block table, one a lane: two integer divisions each, which every wave would repeat
    /// for every row. Barrier.
    fn selected_rows(&mut self, a: &Attention) -> Res<()> {
        let (size, per_seq) = (self.scalar(StepScalar::BlockSize), self.scalar(StepScalar::BlocksPerSeq));
        let blocks = self.scalar(StepScalar::NumBlocks);
        let table = self.iface.step(&mut self.b, StepBuffer::BlockTable);
        let line = self.b.mul(a.row.seq, per_seq);
        self.for_elements(a.places, |s, at| {
            let id = s.selected_id(a, at);
            let (zero, absent, none) = (s.b.i(0), s.b.i(ABSENT), s.b.i(NO_ROW));
            let (entry, inside) = (s.b.div(id, size), s.b.rem(id, size));
            let (known, listed) = (s.b.cmp(Cmp::Ge, id, zero), s.b.cmp(Cmp::Lt, entry, per_seq));
            let given = s.b.and(known, a.row.known);
            let none = s.b.select(given, none, absent);
            let known = s.b.and(known, listed);
            let mut fine = s.b.and(known, a.row.live);
            let index = s.b.select(fine, entry, zero);
            let bound = match s.mask {
                Some(m) => Bound::Mask(s.b.and(m, fine)),
                None => Bound::Mask(fine),
            };
            let block = s.b.load(table, Addr::Lanes { base: line, index }, bound, 1);
            let (ge, lt) = (s.b.cmp(Cmp::Ge, block, zero), s.b.cmp(Cmp::Lt, block, blocks));
            fine = s.b.and(fine, ge);
            fine = s.b.and(fine, lt);
            let row = s.b.mul(block, size);
            let row = s.b.add(row, inside);
            let row = s.b.select(fine, row, none);
            s.store(a.rows, None, at, row);
            Ok(())
        })?;
        self.b.barrier();
        Ok(())
    }

    /// First element of the latent row of place `at` (uniform), and whether there is one. Where there is none, row 0 stands
    /// in for it: a load without a branch does not keep others from being in flight beside it.
    fn selected_row(&mut self, a: &Attention, at: Val) -> (Val, Val) {
        let (row, zero) = (self.b.load_uniform(a.rows, at), self.b.i(0));
        let fine = self.b.cmp(Cmp::Ge, row, zero);
        let row = self.b.bin(Bin::Max, row, zero);
        (self.scaled(row, a.form.width), fine)
    }

    /// scale * (query . row) of every place and head, some places of a wave at a time. What stands in for absent rows has
    /// scores too.
    fn attend_scores(&mut self, a: &Attention) -> Res<()> {
        let Op::AttendSplits { scale, .. } = self.g.node(a.node).op else { return self.fault(a.node, "not attention") };
        let places = DOTS / a.set_heads.next_power_of_two();
        let (index, stores) = self.score_lanes(a, places);
        let held = if a.form.width.div_ceil(PIECE) * a.set_heads <= HELD_PIECES { self.queries(a) } else { vec![] };
        let (line, each) = (self.b.i(a.places as i64), self.b.i(places as i64));
        let own = self.b.mul(a.first, line);
        let start = self.b.mul(a.wave, each);
        self.looped((start, a.filled, (u64::from(SET_WAVES) * places) as i64), &[], |s, first, _| {
            let at: Vec<Val> = (0..places).map(|u| s.ahead(first, u as u32)).collect();
            let rows: Vec<Val> = at.into_iter().map(|at| s.selected_row(a, at).0).collect();
            let dots = s.row_dots(a, &held, &rows);
            let (dot, scale) = (s.sums_over_lanes(dots), s.b.f(f32::from_bits(scale)));
            let score = s.b.mul(dot, scale);
            let base = s.b.add(first, own);
            s.b.store(a.scores, Addr::Lanes { base, index }, stores, score);
            Ok(vec![])
        })?;
        self.b.barrier();
        Ok(())
    }

    /// Where a lane stores the sum that [`Gen::sums_over_lanes`] leaves it with, behind the first place's score of the first
    /// head, and which lanes do.
    fn score_lanes(&mut self, a: &Attention, places: u64) -> (Val, Bound) {
        let (lane, each) = (self.b.lane(), self.b.i((u64::from(LANES) / DOTS) as i64));
        let (number, other) = (self.b.div(lane, each), self.b.rem(lane, each));
        let (n, line) = (self.b.i(places as i64), self.b.i(a.places as i64));
        let (head, place) = (self.b.div(number, n), self.b.rem(number, n));
        let index = self.b.mul(head, line);
        (self.b.add(index, place), Bound::Mask(self.is(Cmp::Eq, other, 0)))
    }

    /// Piece `number` of the line at `line` (i32 or i64).
    fn piece(&mut self, a: &Attention, from: Place, line: Val, number: u64) -> Val {
        let first = number * PIECE;
        let offset = self.b.i(first as i64);
        let base = self.plus(line, offset);
        let left = a.form.width - first;
        let bound = if left >= PIECE { Bound::All } else { Bound::Count(self.b.i(left as i64)) };
        self.b.load(from, Addr::Contig { base }, bound, 8)
    }

    /// All queries, by piece and head.
    fn queries(&mut self, a: &Attention) -> Vec<Vec<Val>> {
        let of = |n| a.lines.iter().map(|&line| self.piece(a, a.query, line, n)).collect();
        (0..a.form.width.div_ceil(PIECE)).map(of).collect()
    }

    /// Dot products of each query with each of the rows that start at `rows`, in the `lanes` order up to the sum over the
    /// lanes. Queries that are not `held` are loaded.
    fn row_dots(&mut self, a: &Attention, held: &[Vec<Val>], rows: &[Val]) -> Vec<Val> {
        let zero = self.b.f(0.0);
        let mut sums = vec![self.b.splat(zero, 8); a.lines.len() * rows.len()];
        let pieces = a.form.width.div_ceil(PIECE);
        let load = |s: &mut Self, n| rows.iter().map(|&row| s.piece(a, a.latent, row, n)).collect::<Vec<_>>();
        let mut keys = load(self, 0);
        for n in 0..pieces {
            // The next piece is on its way while this one is used.
            let next = if n + 1 < pieces { load(self, n + 1) } else { vec![] };
            for (h, sums) in sums.chunks_mut(rows.len()).enumerate() {
                let query = match held.get(n as usize) {
                    Some(queries) => queries[h],
                    None => self.piece(a, a.query, a.lines[h], n),
                };
                for (sum, &key) in sums.iter_mut().zip(&keys) {
                    *sum = self.b.fma(query, key, *sum);
                }
            }
            keys = next;
        }
        sums.into_iter().map(|v| self.components_total(v)).collect()
    }

    /// Replaces scores by exp(score - max), split by split and head by head, a wave each. `keep` is given the number of the
    /// head in the workgroup, that of the split among the workgroup's, the maximum, and the sum. Barrier.
    fn probabilities(&mut self, a: &Attention, keep: impl FnOnce(&mut Self, [Val; 4]) -> Res<()>) -> Res<()> {
        let splits = if a.split.is_some() { 1 } else { a.form.count };
        let (wave, end) = (self.b.wave(), self.b.i((splits * a.form.at_once) as i64));
        self.looped((wave, end, i64::from(self.b.waves())), &[], |s, unit, _| {
            let heads = s.b.i(a.form.at_once as i64);
            let (split, head) = (s.b.div(unit, heads), s.b.rem(unit, heads));
            let (each, line) = (s.b.i(SPLIT_ROWS as i64), s.b.i(a.places as i64));
            let (first, line) = (s.b.mul(split, each), s.b.mul(head, line));
            let (low, zero) = (s.b.f(f32::NEG_INFINITY), s.b.f(0.0));
            let rounds = a.places.min(SPLIT_ROWS) / u64::from(LANES);
            let mut found = Vec::new();
            let mut max = s.b.splat(low, 1);
            for round in 0..rounds {
                let base = s.ahead(first, (round * u64::from(LANES)) as u32);
                let at = Ix::Seq { base, aligned: true };
                let (score, there) = s.place_score(a, line, at);
                max = s.b.bin(Bin::Max, max, score);
                found.push((at, score, there));
            }
            let max = s.wave_max(max);
            let shift = s.shift(max);
            let mut sum = s.b.splat(zero, 1);
            for (at, score, there) in found {
                let shifted = s.b.sub(score, shift);
                let p = unglue_ir::math::exp(&mut s.b, shifted);
                let p = s.b.select(there, p, zero);
                sum = s.b.add(sum, p);
                s.store(a.scores, Some(line), at, p);
            }
            let sum = s.b.reduce(Reduce::Add, sum);
            keep(s, [head, split, max, sum])?;
            Ok(vec![])
        })?;
        self.b.barrier();
        Ok(())
    }

    /// The score of a head, whose scores start at `line`, at a place, and whether the place is there; -inf where it is not.
    fn place_score(&mut self, a: &Attention, line: Val, at: Ix) -> (Val, Val) {
        let scale = if let Op::AttendSplits { scale, .. } = self.g.node(a.node).op { scale } else { 0 };
        let row = self.load(a.rows, None, at);
        let (stored, there) = (self.is(Cmp::Ge, row, 0), self.is(Cmp::Ne, row, ABSENT));
        let (nothing, none) = (self.b.f(f32::from_bits(scale) * 0.0), self.b.f(f32::NEG_INFINITY));
        // Places without a row may have no score at all.
        let outer = self.mask.replace(stored);
        let score = self.load(a.scores, Some(line), at);
        self.mask = outer;
        let score = self.b.select(stored, score, nothing);
        (self.b.select(there, score, none), there)
    }

    /// What is subtracted from scores: their maximum, or 0 where that is -inf.
    pub(super) fn shift(&mut self, max: Val) -> Val {
        let (low, zero) = (self.b.f(f32::NEG_INFINITY), self.b.f(0.0));
        let none = self.b.cmp(Cmp::Eq, max, low);
        self.b.select(none, zero, max)
    }

    /// One split: values, maximum and sum are stored, and the last workgroup of these heads to arrive combines them.
    fn attend_split(&mut self, a: &Attention) -> Res<()> {
        let to = self.splits_output(a.node)?;
        let Some((_, number)) = a.split else { return self.fault(a.node, "a workgroup without a split") };
        let (width, one) = (self.b.i(a.form.width as i64), self.b.i(1));
        self.probabilities(a, |s, [head, _, max, sum]| {
            let (head, exists) = s.head_of(a.form, head);
            let line = s.split_line(a.form, head, number);
            s.where_head(exists, |s| {
                let base = s.plus(line, width);
                s.b.store(to, Addr::Uniform { base }, Bound::All, max);
                let base = s.plus(base, one);
                s.b.store(to, Addr::Uniform { base }, Bound::All, sum);
                Ok(())
            })
        })?;
        let (zero, end) = (self.b.i(0), a.filled);
        self.columns(a, |s, columns| {
            let values = s.split_values(a, columns, (zero, end))?;
            for (h, value) in (0..).zip(values) {
                let local = s.ahead(a.first, h);
                let (head, exists) = s.head_of(a.form, local);
                let line = s.split_line(a.form, head, number);
                s.where_head(exists, |s| {
                    let base = s.plus(line, columns.first);
                    s.b.store(to, Addr::Contig { base }, columns.bound, value);
                    Ok(())
                })?;
            }
            Ok(())
        })?;
        self.combine_last(a.form)
    }

    /// All splits, one after the other: they combine in registers.
    fn attend_whole(&mut self, a: &Attention) -> Res<()> {
        let stats = self.split_stats(a.form);
        self.probabilities(a, |s, [head, split, max, sum]| {
            let at = s.stat_at(a.form, head, split);
            s.b.store(stats.weights, Addr::Uniform { base: at }, Bound::All, max);
            s.b.store(stats.sums, Addr::Uniform { base: at }, Bound::All, sum);
            Ok(())
        })?;
        self.weigh_own_splits(a.form, &stats)?;
        let (zero, none) = (self.b.i(0), self.no_values(a));
        let (count, each) = (self.b.i(a.form.count as i64), self.b.i(SPLIT_ROWS as i64));
        self.columns(a, |s, columns| {
            // The chain that a split is added to goes to the end: their sum is the same in either order.
            let chains: Vec<Val> = none.iter().chain(&none).copied().collect();
            let chains = s.looped((zero, count, 1), &chains, |s, split, chains| {
                let first = s.b.mul(split, each);
                let stop = s.b.add(first, each);
                let stop = s.b.bin(Bin::Min, stop, a.filled);
                let values = s.split_values(a, columns, (first, stop))?;
                let (own, other) = chains.split_at(values.len());
                let mut next = other.to_vec();
                for (h, (value, &chain)) in (0..).zip(values.into_iter().zip(own)) {
                    let local = s.ahead(a.first, h);
                    let at = s.stat_at(a.form, local, split);
                    let weight = s.b.load_uniform(stats.weights, at);
                    next.push(s.b.fma(weight, value, chain));
                }
                Ok(next)
            })?;
            let (first, second) = chains.split_at(none.len());
            for (h, (&first, &second)) in (0..).zip(first.iter().zip(second)) {
                let local = s.ahead(a.first, h);
                let total = s.b.add(first, second);
                let sum = s.weighted_sum(a.form, &stats, local)?;
                s.column_outputs(a.form, local, columns, (total, sum))?;
            }
            Ok(())
        })
    }

    /// Each wave has columns of its own, so that no wave waits for another's sums.
    fn columns(&mut self, a: &Attention, f: impl FnOnce(&mut Self, Columns) -> Res<()>) -> Res<()> {
        let columns = COLUMNS * u64::from(LANES);
        let (each, end) = (self.b.i(columns as i64), self.b.i(a.form.width as i64));
        let start = self.b.mul(a.wave, each);
        self.looped((start, end, (columns * u64::from(SET_WAVES)) as i64), &[], |s, first, _| {
            let left = s.b.sub(end, first);
            let bound = if a.form.width.is_multiple_of(columns) { Bound::All } else { Bound::Count(left) };
            f(s, Columns { first, bound })?;
            Ok(vec![])
        })?;
        Ok(())
    }

    /// +0 in each head's columns.
    fn no_values(&mut self, a: &Attention) -> Vec<Val> {
        let zero = self.b.f(0.0);
        vec![self.b.splat(zero, COLUMNS as u8); a.lines.len()]
    }

    /// Sums of p * row over the places of one split, for each head of the set.
    fn split_values(&mut self, a: &Attention, columns: Columns, (first, stop): (Val, Val)) -> Res<Vec<Val>> {
        let none = self.no_values(a);
        let chains: Vec<Val> = none.iter().flat_map(|&none| [none; SPLIT_CHAINS as usize]).collect();
        let range = (first, stop, ROWS_AT_ONCE as i64);
        let chains = self.looped(range, &chains, |s, at, chains| Ok(s.split_terms(a, columns, at, chains)))?;
        let mut values = Vec::new();
        for chains in chains.chunks(SPLIT_CHAINS as usize) {
            let total = self.strided_total(chains);
            // No sum is -0, however many absent places were added.
            let zero = self.b.f(0.0);
            values.push(self.b.add(total, zero));
        }
        Ok(values)
    }

    /// fma(p, row, chain) for the places from `first` on, chain by chain and head by head; absent rows add +0. All rows are
    /// loaded before the first is used.
    fn split_terms(&mut self, a: &Attention, columns: Columns, first: Val, chains: &[Val]) -> Vec<Val> {
        let (column, zero) = (self.b.wide(columns.first), self.b.f(0.0));
        let load = |u: u64| {
            let at = self.ahead(first, u as u32);
            let (row, fine) = self.selected_row(a, at);
            let base = self.b.add(row, column);
            (fine, self.b.load(a.latent, Addr::Contig { base }, columns.bound, COLUMNS as u8))
        };
        let rows: Vec<(Val, Val)> = (0..ROWS_AT_ONCE).map(load).collect();
        let mut chains = chains.to_vec();
        for (group, rows) in (0..).zip(rows.chunks(SPLIT_CHAINS as usize)) {
            let terms: Vec<Val> = rows.iter().map(|&(fine, row)| self.b.select(fine, row, zero)).collect();
            for (h, chains) in (0..).zip(chains.chunks_mut(SPLIT_CHAINS as usize)) {
                let p = self.eight_probabilities(a, h, first, group);
                for (u, (chain, &term)) in (0..).zip(chains.iter_mut().zip(&terms)) {
                    let p = self.b.component(p, u);
                    *chain = self.b.fma(p, term, *chain);
                }
            }
        }
        chains
    }

    /// The eight probabilities of a head of the set from place `first + 8 * group` on, the same in every lane.
    fn eight_probabilities(&mut self, a: &Attention, head: u64, first: Val, group: u64) -> Val {
        let local = self.ahead(a.first, head as u32);
        let (line, offset) = (self.b.i(a.places as i64), self.b.i((group * SPLIT_CHAINS) as i64));
        let line = self.b.mul(local, line);
        let (base, same) = (self.b.add(first, offset), self.b.i(0));
        let base = self.b.add(base, line);
        let index = self.b.splat(same, 1);
        self.b.load(a.scores, Addr::Lanes { base, index }, Bound::All, SPLIT_CHAINS as u8)
    }
}
