//! Attention over selected rows: one workgroup a row and some of its heads. Row numbers, scores and probabilities stand in
//! workgroup memory. A row that is loaded serves all heads of the workgroup: for scores a wave takes whole rows, for values
//! its columns of every row.

use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;
use unglue_ir::order::{SPLIT_CHAINS, SPLIT_ROWS, SPLIT_WAVES};
use unglue_passes::schedule::strip_reshapes;

use super::index::Ix;
use super::interface::state_leaf;
use super::state::RowPlace;
use super::{Gen, Kept, Res, StepBuffer, StepScalar};
use crate::kp::{Addr, Bin, Bound, Cmp, LANES, Mem, Place, Val};

/// Pairs of head and place whose dot products a wave forms at the same time, each in eight registers a lane. The rows of the
/// places are loaded together: one after the other, each waits for its number and for itself.
const DOTS: u64 = 8;
/// Columns of a piece of a dot product: eight a lane.
const PIECE: u64 = 256;
/// Pieces of queries that stay in registers, of all heads together, eight a lane and piece.
const HELD_PIECES: u64 = 8;
/// Columns of values that a lane forms.
const COLUMNS: u64 = 2;

/// Places whose rows a wave loads at the same time for their values: 16 KiB a workgroup are in flight, or 32 where one head
/// leaves the registers.
fn rows_at_once(heads: u64) -> u64 {
    SPLIT_CHAINS * if heads == 1 { 4 } else { 2 }
}

/// What the phases share.
struct Attention {
    node: ValueId,
    heads: u64,
    width: u64,
    selected: u64,
    /// Heads of the workgroup.
    at_once: u64,
    /// Places in workgroup memory: the selected ones, and absent ones up to a whole number of [`rows_at_once`].
    places: u64,
    query: Place,
    /// Number of each head, and the first element of its query and of its context. Behind the last head, the last one's.
    lines: Vec<(Val, Val)>,
    latent: Place,
    ids: Place,
    ids_base: Val,
    /// Score, then probability, of each place, head by head.
    scores: Place,
    /// Row of the state of each place, -1 if there is none: sessions have no more rows than i32 counts.
    rows: Place,
    row: RowPlace,
}

/// The columns that a wave forms: 2 a lane from `first` on, of which those of `bound` exist.
#[derive(Clone, Copy)]
struct Columns {
    first: Val,
    bound: Bound,
}

impl Gen<'_> {
    /// `sizes`: heads, width, heads of a workgroup.
    pub fn attend_form(&mut self, node: ValueId, sizes: [u64; 3]) -> Res<()> {
        self.row = self.group(1);
        let rows = self.scalar(StepScalar::Rows);
        let here = self.b.cmp(Cmp::Lt, self.row, rows);
        self.when(here, |s| {
            let a = s.attention(node, sizes)?;
            s.selected_rows(&a)?;
            s.attend_scores(&a)?;
            let (sums, any) = s.attend_probabilities(&a)?;
            s.attend_values(&a, &sums, any)
        })
    }

    fn attention(&mut self, node: ValueId, [heads, width, at_once]: [u64; 3]) -> Res<Attention> {
        let args = self.g.node(node).args.clone();
        let (query, _) = self.leaf(strip_reshapes(self.g, args[0]))?;
        let (latent, _) = self.leaf(state_leaf(self.g, args[1]))?;
        let (ids, _) = self.leaf(strip_reshapes(self.g, args[2]))?;
        let selected = self.elements(args[2])?;
        let places = selected.next_multiple_of(rows_at_once(at_once));
        let n = self.b.i(selected as i64);
        let ids_base = self.b.mul(self.row, n);
        let lines = self.head_lines(heads, width, at_once);
        let scores = self.shared_array(node, Mem::F32, at_once * places);
        let rows = self.b.shared("rows", Mem::I32, places);
        let row = self.row_place();
        Ok(Attention {
            node,
            heads,
            width,
            selected,
            at_once,
            places,
            query,
            lines,
            latent,
            ids,
            ids_base,
            scores,
            rows,
            row,
        })
    }

    fn head_lines(&mut self, heads: u64, width: u64, at_once: u64) -> Vec<(Val, Val)> {
        let (group, each) = (self.group(0), self.b.i(at_once as i64));
        let first = self.b.mul(group, each);
        let per_row = self.b.i((heads * width) as i64);
        let row = self.b.mul(self.row, per_row);
        let (last, width) = (self.b.i(heads as i64 - 1), self.b.i(width as i64));
        let line = |h: u64| {
            let mut head = self.ahead(first, h as u32);
            if !heads.is_multiple_of(at_once) {
                head = self.b.bin(Bin::Min, head, last);
            }
            let line = self.b.mul(head, width);
            (head, self.b.add(row, line))
        };
        (0..at_once).map(line).collect()
    }

    /// The id of a place; -1 behind the selected ones.
    fn selected_id(&mut self, a: &Attention, at: Ix) -> Val {
        if a.places == a.selected {
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
            let (zero, none) = (s.b.i(0), s.b.i(-1));
            let (entry, inside) = (s.b.div(id, size), s.b.rem(id, size));
            let (known, listed) = (s.b.cmp(Cmp::Ge, id, zero), s.b.cmp(Cmp::Lt, entry, per_seq));
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
        (self.scaled(row, a.width), fine)
    }

    /// scale * (query . row) of every place and head, some places of a wave at a time. What stands in for absent rows has
    /// scores too.
    fn attend_scores(&mut self, a: &Attention) -> Res<()> {
        let Op::Attend { scale, .. } = self.g.node(a.node).op else { return self.fault(a.node, "not attention") };
        let places = DOTS / a.at_once;
        let (index, stores) = self.score_lanes(a, places);
        let held = if a.width.div_ceil(PIECE) * a.at_once <= HELD_PIECES { self.queries(a) } else { vec![] };
        let (wave, each) = (self.b.wave(), self.b.i(places as i64));
        let (start, end) = (self.b.mul(wave, each), self.b.i(a.places as i64));
        let step = (u64::from(self.b.waves()) * places) as i64;
        self.looped((start, end, step), &[], |s, first, _| {
            let at: Vec<Val> = (0..places).map(|u| s.ahead(first, u as u32)).collect();
            let rows: Vec<Val> = at.into_iter().map(|at| s.selected_row(a, at).0).collect();
            let dots = s.row_dots(a, &held, &rows);
            let (dot, scale) = (s.sums_over_lanes(dots), s.b.f(f32::from_bits(scale)));
            let score = s.b.mul(dot, scale);
            s.b.store(a.scores, Addr::Lanes { base: first, index }, stores, score);
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
        let left = a.width - first;
        let bound = if left >= PIECE { Bound::All } else { Bound::Count(self.b.i(left as i64)) };
        self.b.load(from, Addr::Contig { base }, bound, 8)
    }

    /// All queries, by piece and head.
    fn queries(&mut self, a: &Attention) -> Vec<Vec<Val>> {
        let of = |n| a.lines.iter().map(|&(_, line)| self.piece(a, a.query, line, n)).collect();
        (0..a.width.div_ceil(PIECE)).map(of).collect()
    }

    /// Dot products of each query with each of the rows that start at `rows`, in the `lanes` order up to the sum over the
    /// lanes. Queries that are not `held` are loaded.
    fn row_dots(&mut self, a: &Attention, held: &[Vec<Val>], rows: &[Val]) -> Vec<Val> {
        let zero = self.b.f(0.0);
        let mut sums = vec![self.b.splat(zero, 8); a.lines.len() * rows.len()];
        let pieces = a.width.div_ceil(PIECE);
        let load = |s: &mut Self, n| rows.iter().map(|&row| s.piece(a, a.latent, row, n)).collect::<Vec<_>>();
        let mut keys = load(self, 0);
        for n in 0..pieces {
            // The next piece is on its way while this one is used.
            let next = if n + 1 < pieces { load(self, n + 1) } else { vec![] };
            for (h, sums) in sums.chunks_mut(rows.len()).enumerate() {
                let query = match held.get(n as usize) {
                    Some(queries) => queries[h],
                    None => self.piece(a, a.query, a.lines[h].1, n),
                };
                for (sum, &key) in sums.iter_mut().zip(&keys) {
                    *sum = self.b.fma(query, key, *sum);
                }
            }
            keys = next;
        }
        sums.into_iter().map(|v| self.components_total(v)).collect()
    }

    /// Each head's score at a place; -inf where there is no row.
    fn place_scores(&mut self, a: &Attention, at: Ix) -> Vec<Val> {
        let row = self.load(a.rows, None, at);
        let (there, none) = (self.is(Cmp::Ge, row, 0), self.b.f(f32::NEG_INFINITY));
        let score = |h| {
            let line = self.score_line(a, h);
            let score = self.load(a.scores, Some(line), at);
            self.b.select(there, score, none)
        };
        (0..a.at_once).map(score).collect()
    }

    fn score_line(&mut self, a: &Attention, head: u64) -> Val {
        self.b.i((head * a.places) as i64)
    }

    /// Replaces scores by exp(score - max); each head's sum of them, and whether any place was selected.
    fn attend_probabilities(&mut self, a: &Attention) -> Res<(Vec<Val>, Val)> {
        let n = a.selected;
        let maxima = self.workgroup_maxima(n, a.at_once, |s, at| Ok(s.place_scores(a, at)))?;
        self.for_elements(a.places, |s, at| {
            let (scores, id) = (s.place_scores(a, at), s.selected_id(a, at));
            let (known, zero) = (s.is(Cmp::Ge, id, 0), s.b.f(0.0));
            for (h, (score, max)) in (0..).zip(scores.into_iter().zip(maxima)) {
                let shifted = s.b.sub(score, max);
                let p = unglue_ir::math::exp(&mut s.b, shifted);
                let p = s.b.select(known, p, zero);
                let line = s.score_line(a, h);
                s.store(a.scores, Some(line), at, p);
            }
            Ok(())
        })?;
        self.b.barrier();
        let scratch = self.sum_scratch();
        let mut sums = Vec::new();
        for h in 0..a.at_once {
            let line = self.score_line(a, h);
            sums.push(self.workgroup_sum_in(scratch, n, |s, at| Ok(s.load(a.scores, Some(line), at)))?);
            // The next head's chains replace this one's.
            self.b.barrier();
        }
        let any = self.workgroup_max(n, |s, at| {
            let id = s.load(a.ids, Some(a.ids_base), at);
            let known = s.is(Cmp::Ge, id, 0);
            let (yes, no) = (s.b.f(1.0), s.b.f(0.0));
            Ok(s.b.select(known, yes, no))
        })?;
        let zero = self.b.f(0.0);
        let any = self.b.cmp(Cmp::Gt, any, zero);
        Ok((sums, self.b.and(any, a.row.live)))
    }

    /// Each wave has columns of its own, so that no wave waits for another's sums.
    fn attend_values(&mut self, a: &Attention, sums: &[Val], any: Val) -> Res<()> {
        let columns = COLUMNS * u64::from(LANES);
        let (wave, each) = (self.b.wave(), self.b.i(columns as i64));
        let (start, end) = (self.b.mul(wave, each), self.b.i(a.width as i64));
        let step = (columns * u64::from(self.b.waves())) as i64;
        self.looped((start, end, step), &[], |s, first, _| {
            let left = s.b.sub(end, first);
            let bound = if a.width.is_multiple_of(columns) { Bound::All } else { Bound::Count(left) };
            let none = s.b.i(0);
            let totals = s.halves(a, Columns { first, bound }, 1, none)?;
            for (h, (&total, &sum)) in totals.iter().zip(sums).enumerate() {
                s.head_outputs(a, h, Columns { first, bound }, (total, sum, any))?;
            }
            Ok(vec![])
        })?;
        Ok(())
    }

    /// +0 in each head's columns.
    fn no_values(&mut self, a: &Attention) -> Vec<Val> {
        let zero = self.b.f(0.0);
        vec![self.b.splat(zero, COLUMNS as u8); a.lines.len()]
    }

    /// The tree of the `splits` order from its end: what the waves `wave` and `wave + half` of that order come to, each with
    /// the waves that were added to it before, head by head. The waves are those of the order, whoever forms their sums.
    fn halves(&mut self, a: &Attention, columns: Columns, half: u64, wave: Val) -> Res<Vec<Val>> {
        if half == SPLIT_WAVES {
            return self.wave_splits(a, columns, wave);
        }
        let (start, end, none) = (self.b.i(0), self.b.i(2), self.no_values(a));
        self.looped((start, end, 1), &none, |s, i, lower| {
            let n = s.b.i(half as i64);
            let other = s.b.mul(i, n);
            let wave = s.b.add(wave, other);
            let upper = s.halves(a, columns, 2 * half, wave)?;
            let second = s.is(Cmp::Gt, i, 0);
            let add = |(&lower, upper): (&Val, Val)| {
                let sum = s.b.add(lower, upper);
                s.b.select(second, sum, upper)
            };
            Ok(lower.iter().zip(upper).map(add).collect())
        })
    }

    /// The splits of one wave of the order, added in ascending order.
    fn wave_splits(&mut self, a: &Attention, columns: Columns, wave: Val) -> Res<Vec<Val>> {
        let (rows, none) = (self.b.i(SPLIT_ROWS as i64), self.no_values(a));
        let (start, end) = (self.b.mul(wave, rows), self.b.i(a.places as i64));
        self.looped((start, end, (SPLIT_ROWS * SPLIT_WAVES) as i64), &none, |s, first, totals| {
            let stop = s.b.add(first, rows);
            let stop = s.b.bin(Bin::Min, stop, end);
            let chains: Vec<Val> = none.iter().flat_map(|&none| [none; SPLIT_CHAINS as usize]).collect();
            let range = (first, stop, rows_at_once(a.at_once) as i64);
            let chains = s.looped(range, &chains, |s, at, chains| Ok(s.split_terms(a, columns, at, chains)))?;
            let splits = chains.chunks(SPLIT_CHAINS as usize);
            let add = |(&total, chains): (&Val, &[Val])| {
                let split = s.strided_total(chains);
                s.b.add(total, split)
            };
            Ok(totals.iter().zip(splits).map(add).collect())
        })
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
        let rows: Vec<(Val, Val)> = (0..rows_at_once(a.at_once)).map(load).collect();
        let mut chains = chains.to_vec();
        for (group, rows) in (0..).zip(rows.chunks(SPLIT_CHAINS as usize)) {
            let terms: Vec<Val> = rows.iter().map(|&(fine, row)| self.b.select(fine, row, zero)).collect();
            for (h, chains) in (0..).zip(chains.chunks_mut(SPLIT_CHAINS as usize)) {
                let p = self.probabilities(a, h, first, group);
                for (u, (chain, &term)) in (0..).zip(chains.iter_mut().zip(&terms)) {
                    let p = self.b.component(p, u);
                    *chain = self.b.fma(p, term, *chain);
                }
            }
        }
        chains
    }

    /// The eight probabilities of a head from place `first + 8 * group` on, the same in every lane.
    fn probabilities(&mut self, a: &Attention, head: u64, first: Val, group: u64) -> Val {
        let offset = self.b.i((head * a.places + group * SPLIT_CHAINS) as i64);
        let (base, same) = (self.b.add(first, offset), self.b.i(0));
        let index = self.b.splat(same, 1);
        self.b.load(a.scores, Addr::Lanes { base, index }, Bound::All, SPLIT_CHAINS as u8)
    }

    /// Stores what the outputs have of one head of the workgroup, if it is one, and of some columns.
    fn head_outputs(&mut self, a: &Attention, h: usize, columns: Columns, of: (Val, Val, Val)) -> Res<()> {
        if a.heads.is_multiple_of(a.at_once) {
            return self.column_outputs(a, h, columns, of);
        }
        let (group, each) = (self.group(0), self.b.i(a.at_once as i64));
        let first = self.b.mul(group, each);
        let head = self.ahead(first, h as u32);
        let exists = self.is(Cmp::Lt, head, a.heads as i64);
        self.when(exists, |s| s.column_outputs(a, h, columns, of))
    }

    fn column_outputs(&mut self, a: &Attention, h: usize, columns: Columns, of: (Val, Val, Val)) -> Res<()> {
        let ((total, sum, any), (head, line)) = (of, a.lines[h]);
        for column in 0..COLUMNS as u8 {
            let (lane, each) = (self.b.lane(), self.b.i(COLUMNS as i64));
            let at = self.b.mul(lane, each);
            let at = self.b.add(at, columns.first);
            let at = Ix::Lane(self.ahead(at, column.into()));
            let outer = self.mask;
            if columns.bound != Bound::All {
                self.mask_below(at, a.width);
            }
            let (total, zero) = (self.b.component(total, column), self.b.f(0.0));
            let mean = self.b.div(total, sum);
            let context = self.b.select(any, mean, zero);
            self.kept.insert(a.node, Kept::Lane(vec![context]));
            for i in 0..self.g.outputs.len() {
                let (name, value) = &self.g.outputs[i];
                let v = strip_reshapes(self.g, *value);
                let mem = self.mem(v)?;
                let place = self.iface.output(&mut self.b, name, mem);
                let x = self.eval(v, &[Ix::uni(head), at])?;
                self.store(place, Some(line), at, x);
            }
            self.mask = outer;
        }
        Ok(())
    }
}
