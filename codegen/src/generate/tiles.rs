//! Tiles form: a workgroup's block of rows and outputs, on matrix tiles.
//!
//! Rounds of `step` inputs: while the waves multiply what one half of workgroup memory holds, the next inputs are on
//! their way to the other. Rows and outputs past the end repeat the last one and are not stored; inputs past the end are
//! zeros. Levels of int4 weights are multiplied as bf16, exactly; each round's sums are then scaled and added in f32, as the
//! runs of lanes are: accumulators of whole groups beside them would spill. The sums pass through workgroup memory too, in the
//! place of the operands, after which the epilogue has one output a lane, as in skinny form.

use std::collections::HashMap;

use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;
use unglue_passes::schedule::{Over, Segment, Tiles, strip_reshapes};

use super::experts::{Chosen, ListArrays};
use super::index::Ix;
use super::tile_lines::{Fetched, Lie, Lines, PAD, Source, Taken, VECTOR};
use super::{Gen, Kept, Res, Stream};
use crate::kp::{Addr, Bin, Bound, Cmp, LANES, Mem, Place, Side, TILE, TileAt, Val};

/// Elements of a line of sums: the outputs that lanes take at a time, and the same.
const SUMS_PITCH: u32 = LANES + 4;
/// Sums of a wave that are in workgroup memory at once, of one contraction.
const SUMS: u32 = TILE * SUMS_PITCH;

/// Workgroup memory of a kernel.
struct Arrays {
    x: Place,
    /// Lines of all contractions that meet in an output, one contraction after the other.
    w: Place,
    /// An array for each of these contractions, if weights have scales.
    scales: Vec<Place>,
    /// f32, of each of these contractions.
    sums: Vec<Place>,
    list: Option<ListArrays>,
}

/// A workgroup's block.
struct Block<'t> {
    form: &'t Tiles,
    segment: &'t Segment,
    arrays: &'t Arrays,
    rows: Rows,
    /// Matrix of the weights: an expert's slot, or a head.
    matrix: Option<Val>,
    /// First output.
    n0: Val,
}

impl Block<'_> {
    /// Tiles of sums that a wave has of each contraction.
    fn contraction_tiles(&self) -> usize {
        let block = self.form.block;
        (block.wave_rows / TILE * (block.wave_outputs / TILE)) as usize
    }

    /// Tiles of sums that a wave has.
    fn wave_tiles(&self) -> usize {
        self.segment.anchors.len() * self.contraction_tiles()
    }
}

/// The rows of a block.
#[derive(Clone, Copy)]
enum Rows {
    /// Those of the step from `first` on.
    Step { first: Val, end: Val },
    /// Those that a list names.
    Listed { list: Place, left: Val, choices: u64 },
}

/// Operands of a block's contractions.
struct Operands {
    x: Lines,
    w: Vec<Lines>,
}

impl Gen<'_> {
    pub fn tiles_form(&mut self, t: &Tiles) -> Res<()> {
        let arrays = self.tile_arrays(t)?;
        if let Over::Experts { .. } = t.over {
            return self.tile_segments(t, |g, segment, n0| g.expert_blocks(t, segment, &arrays, n0));
        }
        let (end, line) = (self.row_count(), self.group(1));
        let per = self.b.i(i64::from(t.block.rows));
        let first = self.b.mul(line, per);
        let matrix = matches!(t.over, Over::Heads(_)).then(|| self.group(2));
        let here = self.b.cmp(Cmp::Lt, first, end);
        self.across = matrix;
        self.when(here, |g| {
            g.tile_segments(t, |g, segment, n0| {
                let rows = Rows::Step { first, end };
                g.tile_block(&Block { form: t, segment, arrays: &arrays, rows, matrix, n0 }, None)
            })
        })?;
        self.across = None;
        Ok(())
    }

    /// Runs `f` with the segment and the first output that the workgroup has along grid axis 0.
    fn tile_segments(&mut self, t: &Tiles, f: impl Fn(&mut Self, &Segment, Val) -> Res<()>) -> Res<()> {
        let (block, mut start) = (self.group(0), 0);
        for segment in &t.skinny.segments {
            let blocks = t.blocks(segment);
            let mine = self.in_range(block, start, start + blocks);
            let first = self.b.i(start as i64);
            self.when(mine, |g| {
                let (local, per) = (g.b.sub(block, first), g.b.i(i64::from(t.block.outputs)));
                let n0 = g.b.mul(local, per);
                f(g, segment, n0)
            })?;
            start += blocks;
        }
        Ok(())
    }

    fn tile_arrays(&mut self, t: &Tiles) -> Res<Arrays> {
        let segments = &t.skinny.segments;
        let Some(first) = segments.first().and_then(|s| s.anchors.first()) else {
            return self.fault(ValueId(0), "tiles without a contraction");
        };
        let mem = self.mem(strip_reshapes(self.g, self.g.node(*first).args[0]))?;
        let zipped = segments.iter().map(|s| s.anchors.len()).max().unwrap_or(1);
        let line = u64::from(t.step + PAD);
        let (rows, outputs) = (u64::from(t.block.rows), u64::from(t.block.outputs));
        let x = self.b.shared("x", mem, 2 * rows * line);
        // Levels become pairs of bf16, a word each.
        let (w_mem, elements) = if t.group.is_some() { (Mem::I32, outputs * line) } else { (mem, 2 * outputs * line) };
        let w = self.b.shared("w", w_mem, elements * zipped as u64);
        let mut arrays = Arrays { x, w, scales: vec![], sums: vec![], list: None };
        let sums = u64::from(self.b.waves() * SUMS);
        for (i, place) in (0..zipped).zip([x, w]) {
            if t.group.is_some() {
                arrays.scales.push(self.b.shared(&format!("scales{i}"), Mem::F32, 2 * outputs));
            }
            arrays.sums.push(self.b.shared_over(&format!("sums{i}"), Mem::F32, sums, place));
        }
        if let Over::Experts { .. } = t.over {
            arrays.list = Some(self.list_arrays(t.block.rows));
        }
        Ok(arrays)
    }

    /// The blocks of rows that chose the workgroup's expert. An expert without a slot gives zeros, as ids that name none do.
    fn expert_blocks(&mut self, t: &Tiles, segment: &Segment, arrays: &Arrays, n0: Val) -> Res<()> {
        let (Over::Experts { experts, choices }, Some(lists), Some(&anchor)) =
            (t.over, arrays.list, segment.anchors.first())
        else {
            return self.fault(ValueId(0), "no experts");
        };
        let args = self.g.node(anchor).args.clone();
        let (ids, expert) = (self.leaf(strip_reshapes(self.g, args[1]))?.0, self.group(1));
        let chosen = self.chosen(lists, (ids, choices), (expert, experts))?;
        let slots = self.dims(args[3])?[0];
        let (slot, valid) = self.slot_of_expert(&args, expert, slots)?;
        let zero = self.b.i(0);
        self.looped((zero, chosen.total, i64::from(t.block.rows)), &[], |g, first, _| {
            let rows = g.expert_rows(t, &chosen, first, choices)?;
            let block = Block { form: t, segment, arrays, rows, matrix: Some(slot), n0 };
            g.tile_block(&block, Some(valid))?;
            Ok(vec![])
        })?;
        self.across = None;
        Ok(())
    }

    fn expert_rows(&mut self, t: &Tiles, chosen: &Chosen, first: Val, choices: u64) -> Res<Rows> {
        // The block before has read its list and its operands.
        self.b.barrier();
        self.list_pairs(chosen, first)?;
        self.b.barrier();
        let (left, most) = (self.b.sub(chosen.total, first), self.b.i(i64::from(t.block.rows)));
        let left = self.b.bin(Bin::Min, left, most);
        Ok(Rows::Listed { list: chosen.list, left, choices })
    }

    /// Forms a block. `valid`: its matrix exists; sums are zeros and nothing is read otherwise.
    fn tile_block(&mut self, at: &Block, valid: Option<Val>) -> Res<()> {
        let sums = match valid {
            None => self.block_sums_of(at)?,
            Some(valid) => {
                let tiles = at.wave_tiles();
                self.choose_all(valid, |g| g.block_sums_of(at), |g| Ok(vec![g.b.tile_zero(); tiles]))?
            }
        };
        self.tile_epilogue(at, &sums)
    }

    fn block_sums_of(&mut self, at: &Block) -> Res<Vec<Val>> {
        let Some(first) = at.segment.anchors.first() else { return self.fault(ValueId(0), "no contraction") };
        // Contractions that meet have one operand (the schedule's rule).
        let x = self.row_lines(at, *first)?;
        let numbered = at.segment.anchors.iter().enumerate();
        let w = numbered.map(|(i, anchor)| self.weight_lines(at, *anchor, i)).collect::<Res<Vec<_>>>()?;
        self.tile_sums(at, &Operands { x, w })
    }

    fn row_lines(&mut self, at: &Block, anchor: ValueId) -> Res<Lines> {
        let x = self.g.node(anchor).args[0];
        let dims = self.dims(x)?;
        let (all, k) = (dims.iter().product(), *dims.last().unwrap_or(&1));
        let (from, _) = self.leaf(strip_reshapes(self.g, x))?;
        let (pitch, start, lines) = match at.rows {
            Rows::Step { first, end } => {
                let start = at.matrix.map(|head| self.scaled(head, k));
                (all, start, Taken::Range { first, end })
            }
            // Rows of one operand for all choices, or one for each.
            Rows::Listed { list, left, choices } => {
                let choices = if dims.len() == 1 { choices } else { 1 };
                (k, None, Taken::Listed { pairs: list, left, choices })
            }
        };
        let source = Source { from, start, pitch, k, lie: Lie::Along };
        Ok(self.tile_lines(at.form, &source, at.arrays.x, (at.form.block.rows, lines), 0))
    }

    fn weight_lines(&mut self, at: &Block, anchor: ValueId, number: usize) -> Res<Lines> {
        let (g, t) = (self.g, at.form);
        let node = g.node(anchor);
        let across = matches!(node.op, Op::BatchMatMul { transposed: true, .. });
        let Some(w) = node.args.last().map(|w| strip_reshapes(g, *w)) else { return self.fault(anchor, "no weight") };
        let ((from, mem), (n, k)) = (self.leaf(w)?, (at.segment.n, *self.dims(node.args[0])?.last().unwrap_or(&1)));
        let packed = self.iface.scales(&mut self.b, g, w);
        let (lie, pitch) = match packed {
            Some(_) => (Lie::Packed, k / 8),
            None if across => (Lie::Across(n), k),
            None => (Lie::Along, k),
        };
        if let (Place::Buffer(param), Lie::Along, true) = (from, lie, k.is_multiple_of(VECTOR)) {
            self.streams.insert(Stream { param, row_bytes: k * mem.bytes(), lane_bytes: 16 });
        }
        let end = self.b.i(n as i64);
        let block = (t.block.outputs, Taken::Range { first: at.n0, end });
        let start = at.matrix.map(|m| self.scaled(m, n * pitch));
        let ahead = number as u32 * 2;
        let mut lines = self.tile_lines(t, &Source { from, start, pitch, k, lie }, at.arrays.w, block, ahead);
        if let (Some((from, group)), Some(&to)) = (packed, at.arrays.scales.get(number)) {
            let pitch = k / u64::from(group);
            let start = at.matrix.map(|m| self.scaled(m, n * pitch));
            let source = Source { from, start, pitch, k, lie: Lie::Along };
            lines.scales = Some(self.tile_scales(&source, u64::from(group), to, block));
        }
        Ok(lines)
    }

    /// The wave's sums: for each contraction its tiles, those of one line of outputs after the other.
    fn tile_sums(&mut self, at: &Block, o: &Operands) -> Res<Vec<Val>> {
        let step = i64::from(at.form.step);
        let zero = self.b.i(0);
        let first = self.fetch_all(at, o, zero);
        self.put_all(o, zero, &first);
        self.b.barrier();
        let nothing = self.b.tile_zero();
        let mut sums = vec![nothing; at.wave_tiles()];
        let behind = (o.x.k.div_ceil(u64::from(at.form.step)).max(1) as i64 - 1) * step;
        if behind > 0 {
            let end = self.b.i(behind);
            sums = self.looped((zero, end, step), &sums, |g, k, sums| {
                let (one, ahead) = (g.b.i(1), g.b.i(step));
                let next = g.b.add(k, ahead);
                let fetched = g.fetch_all(at, o, next);
                let half = g.half_of(k, step);
                let sums = g.round_of_rows(at, o, half, sums)?;
                let other = g.b.sub(one, half);
                g.put_all(o, other, &fetched);
                g.b.barrier();
                Ok(sums)
            })?;
        }
        let last = self.b.i(behind);
        let half = self.half_of(last, step);
        self.round_of_rows(at, o, half, &sums)
    }

    /// Which half of workgroup memory holds the round that starts at k.
    fn half_of(&mut self, k: Val, step: i64) -> Val {
        if let Some(k) = self.b.known_int(k) {
            return self.b.i(i64::from(k) / step % 2);
        }
        let (one, shift) = (self.b.i(1), self.b.i(i64::from(step.trailing_zeros())));
        let number = self.b.bin(Bin::Lshr, k, shift);
        self.b.and(number, one)
    }

    fn fetch_all(&mut self, at: &Block, o: &Operands, k: Val) -> Vec<Fetched> {
        std::iter::once(&o.x).chain(&o.w).map(|l| self.tile_fetch(l, at.form.step, k)).collect()
    }

    fn put_all(&mut self, o: &Operands, half: Val, fetched: &[Fetched]) {
        std::iter::once(&o.x).chain(&o.w).zip(fetched).for_each(|(l, fetched)| self.tile_put(l, half, fetched));
    }

    /// Adds the products of one half, in waves that have rows.
    fn round_of_rows(&mut self, at: &Block, o: &Operands, half: Val, sums: &[Val]) -> Res<Vec<Val>> {
        let Rows::Listed { left, .. } = at.rows else { return Ok(self.tile_round(at, o, half, sums)) };
        let [first, _] = self.wave_part(at);
        let here = self.b.cmp(Cmp::Lt, first, left);
        self.choose_all(here, |g| Ok(g.tile_round(at, o, half, sums)), |_| Ok(sums.to_vec()))
    }

    /// First row and first output of the wave's part of the block.
    fn wave_part(&mut self, at: &Block) -> [Val; 2] {
        let (block, wave) = (at.form.block, self.b.wave());
        let across = self.b.i(i64::from(block.waves_across()));
        let [row, output] = if block.waves_across() == 1 {
            [wave, self.b.i(0)]
        } else {
            [self.b.div(wave, across), self.b.rem(wave, across)]
        };
        let (rows, outputs) = (self.b.i(block.wave_rows.into()), self.b.i(block.wave_outputs.into()));
        [self.b.mul(row, rows), self.b.mul(output, outputs)]
    }

    /// Adds the products of one half of workgroup memory; those of int4 levels are summed over the round and scaled first.
    fn tile_round(&mut self, at: &Block, o: &Operands, half: Val, sums: &[Val]) -> Vec<Val> {
        let mut sums = sums.to_vec();
        let (block, depths) = (at.form.block, at.form.step / TILE);
        let (down, across) = ((block.wave_rows / TILE) as usize, (block.wave_outputs / TILE) as usize);
        let [row, output] = self.wave_part(at);
        let tile = |n: usize| TILE * n as u32;
        let rows = |g: &mut Self, depth| -> Vec<Val> {
            let line = |i| (g.ahead(row, tile(i)), depth);
            let lines: Vec<_> = (0..down).map(line).collect();
            lines.into_iter().map(|line| g.tile_at(Side::A, &o.x, half, line)).collect()
        };
        if at.form.group.is_none() {
            for depth in 0..depths {
                let a = rows(self, depth);
                for (w, sums) in o.w.iter().zip(sums.chunks_mut(down * across)) {
                    for n in 0..across {
                        let line = self.ahead(output, tile(n));
                        let b = self.tile_at(Side::B, w, half, (line, depth));
                        for (i, &a) in a.iter().enumerate() {
                            let sum = &mut sums[i * across + n];
                            *sum = self.b.tile_mma(a, b, *sum);
                        }
                    }
                }
            }
            return sums;
        }
        // One tile after the other: the sums of a round are short-lived, beside those of all rounds.
        let rows: Vec<Vec<Val>> = (0..depths).map(|depth| rows(self, depth)).collect();
        for (w, sums) in o.w.iter().zip(sums.chunks_mut(down * across)) {
            for (n, sum) in sums.iter_mut().enumerate() {
                let line = self.ahead(output, tile(n % across));
                let mut own = self.b.tile_zero();
                for (depth, a) in (0..).zip(&rows) {
                    let b = self.tile_at(Side::B, w, half, (line, depth));
                    own = self.b.tile_mma(a[n / across], b, own);
                }
                *sum = self.scaled_sum(w, half, line, (own, *sum));
            }
        }
        sums
    }

    /// The tile of 16 lines from `line` on, at the depth of so many tiles of the round.
    fn tile_at(&mut self, side: Side, l: &Lines, half: Val, (line, depth): (Val, u32)) -> Val {
        let pitch = self.b.i(i64::from(l.pitch));
        let (start, first) = (self.half_start(l, half, l.half), self.b.mul(line, pitch));
        let depth = self.b.i(i64::from(depth * TILE));
        let base = self.b.add(start, first);
        let base = self.b.add(base, depth);
        self.b.tile_load(TileAt { side, from: l.to, base, pitch: l.pitch, lines: None, depth: None })
    }

    /// `onto` and a round's sums times the scales of the outputs from `line` on.
    fn scaled_sum(&mut self, w: &Lines, half: Val, line: Val, (sums, onto): (Val, Val)) -> Val {
        let Some(scales) = &w.scales else { return onto };
        let size = self.b.i(i64::from(scales.lines));
        let start = self.b.mul(half, size);
        let base = self.b.add(start, line);
        self.b.tile_fma(sums, scales.to, base, onto)
    }

    /// Where the wave's sums of contraction `number` stand.
    fn sums_place(&mut self, at: &Block, number: usize) -> Res<(Place, Val)> {
        let Some(&place) = at.arrays.sums.get(number) else { return self.fault(ValueId(0), "no place for sums") };
        let (wave, size) = (self.b.wave(), self.b.i(i64::from(SUMS)));
        Ok((place, self.b.mul(wave, size)))
    }

    /// Hands the sums to the lanes, 32 outputs of 16 of the wave's rows at a time.
    fn tile_epilogue(&mut self, at: &Block, sums: &[Val]) -> Res<()> {
        let block = at.form.block;
        let (across, per) = ((block.wave_outputs / TILE) as usize, (LANES / TILE) as usize);
        let [row, output] = self.wave_part(at);
        let first_output = self.b.add(at.n0, output);
        for i in 0..(block.wave_rows / TILE) as usize {
            for part in 0..across / per {
                // Sums lie where operands, or the sums before them, were read.
                self.b.barrier();
                for (number, tiles) in sums.chunks(at.contraction_tiles()).enumerate() {
                    let (place, own) = self.sums_place(at, number)?;
                    for (j, &tile) in tiles.iter().skip(i * across + part * per).take(per).enumerate() {
                        let base = self.ahead(own, TILE * j as u32);
                        self.b.tile_store(place, base, SUMS_PITCH, tile);
                    }
                }
                self.b.barrier();
                let n0 = self.ahead(first_output, LANES * part as u32);
                let inside = self.is(Cmp::Lt, n0, at.segment.n as i64);
                let first = self.ahead(row, TILE * i as u32);
                self.when(inside, |g| g.tile_rows(at, first, n0))?;
            }
        }
        Ok(())
    }

    /// The epilogue of 16 rows of the block from `ahead` on.
    fn tile_rows(&mut self, at: &Block, ahead: Val, n0: Val) -> Res<()> {
        let (zero, stripe) = (self.b.i(0), self.b.i(i64::from(TILE)));
        let (first, left) = match at.rows {
            Rows::Step { first, end } => {
                let first = self.b.add(first, ahead);
                (first, self.b.sub(end, first))
            }
            Rows::Listed { left, .. } => (ahead, self.b.sub(left, ahead)),
        };
        let left = self.b.bin(Bin::Min, left, stripe);
        let outer = self.mask;
        self.looped((zero, left, 1), &[], |g, r, _| {
            let row = g.b.add(first, r);
            g.take_row(at, row);
            for (number, &anchor) in at.segment.anchors.iter().enumerate() {
                let sum = g.sum_of_row(at, number, r)?;
                g.kept.insert(anchor, Kept::Lane(vec![sum]));
            }
            let here = Ix::Seq { base: n0, aligned: true };
            if !at.segment.n.is_multiple_of(u64::from(LANES)) {
                g.mask_below(here, at.segment.n);
            }
            g.memo.push(HashMap::new());
            let out =
                at.segment.outputs.iter().try_for_each(|o| g.epilogue_output(&at.form.skinny, at.segment, *o, here));
            g.memo.pop();
            g.mask = outer;
            out.map(|()| vec![])
        })?;
        Ok(())
    }

    /// Makes a row of the block the one that is formed: by its number in the step, or its place in the list.
    fn take_row(&mut self, at: &Block, row: Val) {
        let Rows::Listed { list, choices, .. } = at.rows else {
            self.row = row;
            return;
        };
        let pair = self.b.load_uniform(list, row);
        let choices = self.b.i(choices as i64);
        self.row = self.b.div(pair, choices);
        self.across = Some(self.b.rem(pair, choices));
    }

    /// The sums of the wave's row r, an output a lane.
    fn sum_of_row(&mut self, at: &Block, number: usize, r: Val) -> Res<Val> {
        let (place, own) = self.sums_place(at, number)?;
        let pitch = self.b.i(i64::from(SUMS_PITCH));
        let line = self.b.mul(r, pitch);
        let base = self.b.add(own, line);
        Ok(self.b.load(place, Addr::Contig { base }, Bound::All, 1))
    }
}
