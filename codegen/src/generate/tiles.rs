//! Tiles form: a workgroup's block of rows and outputs, on matrix tiles.
//!
//! Rounds of `step` inputs: while the waves multiply what one half of workgroup memory holds, the next inputs are on
//! their way to the other. Rows and outputs past the end repeat the last one and are not stored; inputs past the end are
//! zeros. The sums pass through workgroup memory too, after which the epilogue has one output a lane, as in skinny form.

use std::collections::HashMap;

use unglue_ir::graph::ValueId;
use unglue_passes::schedule::{Segment, Tiles, strip_reshapes};

use super::index::Ix;
use super::{Gen, Kept, Res, Stream};
use crate::kp::{Addr, Bin, Bound, Cmp, LANES, Mem, Place, Side, TILE, TileAt, Val};

/// Elements between the ends of a line of operands and the next: rows that start in different banks.
const PAD: u32 = 8;
/// Elements of a line of sums: the outputs that lanes take at a time, and the same.
const SUMS_PITCH: u32 = LANES + 4;
/// Most elements that a lane loads at once.
const VECTOR: u64 = 8;

/// Workgroup memory of a kernel.
struct Arrays {
    x: Place,
    /// One array for each contraction that meets others in an output.
    w: Vec<Place>,
    sums: Place,
}

/// Lines of an operand: how they come from a buffer to workgroup memory.
struct Lines {
    from: Place,
    to: Place,
    k: u64,
    /// Elements of both halves of `to`, each.
    half: u32,
    /// First element of the block (i64).
    base: Val,
    /// For each load of a lane: its element behind `base`, its place in a half, and its input.
    loads: Vec<[Val; 3]>,
    vector: u64,
}

/// A workgroup's block.
struct Block<'t> {
    form: &'t Tiles,
    segment: &'t Segment,
    arrays: &'t Arrays,
    /// First row, and rows of the step.
    rows: [Val; 2],
    /// First output.
    n0: Val,
}

impl Gen<'_> {
    pub fn tiles_form(&mut self, t: &Tiles) -> Res<()> {
        let arrays = self.tile_arrays(t)?;
        let (end, block, line) = (self.row_count(), self.group(0), self.group(1));
        let per = self.b.i(i64::from(t.rows));
        let row0 = self.b.mul(line, per);
        let here = self.b.cmp(Cmp::Lt, row0, end);
        self.when(here, |g| {
            let mut start = 0;
            for segment in &t.skinny.segments {
                let blocks = t.blocks(segment);
                let mine = g.in_range(block, start, start + blocks);
                let first = g.b.i(start as i64);
                g.when(mine, |g| {
                    let (local, per) = (g.b.sub(block, first), g.b.i(i64::from(t.outputs)));
                    let n0 = g.b.mul(local, per);
                    g.tile_block(&Block { form: t, segment, arrays: &arrays, rows: [row0, end], n0 })
                })?;
                start += blocks;
            }
            Ok(())
        })
    }

    fn tile_arrays(&mut self, t: &Tiles) -> Res<Arrays> {
        let segments = &t.skinny.segments;
        let Some(first) = segments.first().and_then(|s| s.anchors.first()) else {
            return self.fault(ValueId(0), "tiles without a contraction");
        };
        let mem = self.mem(strip_reshapes(self.g, self.g.node(*first).args[0]))?;
        let zipped = segments.iter().map(|s| s.anchors.len()).max().unwrap_or(1);
        let line = u64::from(t.step + PAD);
        let x = self.b.shared("x", mem, 2 * u64::from(t.rows) * line);
        let w = (0..zipped).map(|i| self.b.shared(&format!("w{i}"), mem, 2 * u64::from(t.outputs) * line)).collect();
        let each = u64::from(self.b.waves()) * zipped as u64 * u64::from(TILE * SUMS_PITCH);
        let sums = self.b.shared("sums", Mem::F32, each);
        Ok(Arrays { x, w, sums })
    }

    fn tile_block(&mut self, at: &Block) -> Res<()> {
        let mut lines = Vec::new();
        for (i, &anchor) in at.segment.anchors.iter().enumerate() {
            let args = self.g.node(anchor).args.clone();
            if i == 0 {
                // Contractions that meet have one operand (the schedule's rule).
                lines.push(self.row_lines(at, strip_reshapes(self.g, args[0]))?);
            }
            lines.push(self.weight_lines(at, strip_reshapes(self.g, args[1]), i)?);
        }
        let sums = self.tile_sums(at, &lines)?;
        self.tile_epilogue(at, &sums)
    }

    fn row_lines(&mut self, at: &Block, x: ValueId) -> Res<Lines> {
        let (from, k) = (self.leaf(x)?.0, self.dims(x)?.iter().product());
        let [row0, end] = at.rows;
        self.tile_lines(at.form, (from, at.arrays.x), k, (at.form.rows, row0, end))
    }

    fn weight_lines(&mut self, at: &Block, w: ValueId, number: usize) -> Res<Lines> {
        let ((from, mem), shape) = (self.leaf(w)?, self.dims(w)?);
        let k = *shape.last().unwrap_or(&1);
        if let (Place::Buffer(param), true) = (from, k.is_multiple_of(VECTOR)) {
            self.streams.insert(Stream { param, row_bytes: k * mem.bytes() });
        }
        let (end, Some(&to)) = (self.b.i(at.segment.n as i64), at.arrays.w.get(number)) else {
            return self.fault(w, "more weights than arrays");
        };
        self.tile_lines(at.form, (from, to), k, (at.form.outputs, at.n0, end))
    }

    /// Deals the elements of `count` lines from `first` on, of those below `end`, to the lanes of all waves.
    fn tile_lines(
        &mut self,
        t: &Tiles,
        (from, to): (Place, Place),
        k: u64,
        (count, first, end): (u32, Val, Val),
    ) -> Res<Lines> {
        let vector = [VECTOR, 4, 2, 1].into_iter().find(|v| k.is_multiple_of(*v)).unwrap_or(1);
        let a_line = u64::from(t.step) / vector;
        let threads = u64::from(self.b.waves() * LANES);
        let base = self.scaled(first, k);
        let (wave, lane, width) = (self.b.wave(), self.b.lane(), self.b.i(i64::from(LANES)));
        let start = self.b.mul(wave, width);
        let thread = self.b.add(start, lane);
        let (one, length, pitch) = (self.b.i(1), self.b.i(k as i64), self.b.i(i64::from(t.step + PAD)));
        let last = self.b.sub(end, one);
        let last = self.b.sub(last, first);
        let mut loads = Vec::new();
        for i in 0..(u64::from(count) * a_line).div_ceil(threads) {
            let ahead = self.b.i((i * threads) as i64);
            let number = self.b.add(thread, ahead);
            let (shift, low) = (self.b.i(i64::from(a_line.trailing_zeros())), self.b.i(a_line as i64 - 1));
            let (line, place) = (self.b.bin(Bin::Lshr, number, shift), self.b.and(number, low));
            let (known, vector) = (self.b.bin(Bin::Min, line, last), self.b.i(vector as i64));
            let input = self.b.mul(place, vector);
            let (element, there) = (self.b.mul(known, length), self.b.mul(line, pitch));
            loads.push([self.b.add(element, input), self.b.add(there, input), input]);
        }
        Ok(Lines { from, to, k, half: count * (t.step + PAD), base, loads, vector })
    }

    /// Loads the round of inputs from `k` on.
    fn tile_fetch(&mut self, lines: &Lines, step: u32, k: Val) -> Vec<Val> {
        let wide = self.b.wide(k);
        let base = self.b.bin(Bin::Add, lines.base, wide);
        let end = self.b.i(lines.k as i64);
        let mut out = Vec::new();
        for &[element, _, input] in &lines.loads {
            let bound = if lines.k.is_multiple_of(u64::from(step)) {
                Bound::All
            } else {
                let at = self.b.add(k, input);
                Bound::Mask(self.b.cmp(Cmp::Lt, at, end))
            };
            out.push(self.b.load(lines.from, Addr::Lanes { base, index: element }, bound, lines.vector as u8));
        }
        out
    }

    fn tile_put(&mut self, lines: &Lines, half: Val, values: &[Val]) {
        let size = self.b.i(i64::from(lines.half));
        let base = self.b.mul(half, size);
        for (&[_, there, _], &value) in lines.loads.iter().zip(values) {
            self.b.store(lines.to, Addr::Lanes { base, index: there }, Bound::All, value);
        }
    }

    /// Sums of the wave's rows: for each contraction, its tiles along the outputs.
    fn tile_sums(&mut self, at: &Block, lines: &[Lines]) -> Res<Vec<Vec<Val>>> {
        let step = at.form.step;
        let k = lines.first().map_or(0, |l| l.k);
        let (zero, one) = (self.b.i(0), self.b.i(1));
        for l in lines {
            let first = self.tile_fetch(l, step, zero);
            self.tile_put(l, zero, &first);
        }
        self.b.barrier();
        let across = (at.form.outputs / TILE) as usize;
        let nothing = self.b.tile_zero();
        let mut sums = vec![nothing; at.segment.anchors.len() * across];
        let rounds = k.div_ceil(u64::from(step)).max(1);
        if rounds > 1 {
            let end = self.b.i(((rounds - 1) * u64::from(step)) as i64);
            sums = self.looped((zero, end, i64::from(step)), &sums, |g, k, sums| {
                let (ahead, shift) = (g.b.i(i64::from(step)), g.b.i(i64::from(step.trailing_zeros())));
                let next = g.b.add(k, ahead);
                let round = g.b.bin(Bin::Lshr, k, shift);
                let half = g.b.and(round, one);
                let other = g.b.sub(one, half);
                let fetched: Vec<Vec<Val>> = lines.iter().map(|l| g.tile_fetch(l, step, next)).collect();
                let sums = g.tile_round(at, lines, half, sums);
                lines.iter().zip(&fetched).for_each(|(l, values)| g.tile_put(l, other, values));
                g.b.barrier();
                Ok(sums)
            })?;
        }
        let half = self.b.i(((rounds - 1) % 2) as i64);
        let sums = self.tile_round(at, lines, half, &sums);
        Ok(sums.chunks(across).map(<[Val]>::to_vec).collect())
    }

    /// Adds the products of one half of workgroup memory.
    fn tile_round(&mut self, at: &Block, lines: &[Lines], half: Val, sums: &[Val]) -> Vec<Val> {
        let pitch = at.form.step + PAD;
        let mut sums = sums.to_vec();
        let across = (at.form.outputs / TILE) as usize;
        let wave = self.b.wave();
        for depth in (0..at.form.step).step_by(TILE as usize) {
            let tile = |g: &mut Self, side, l: &Lines, line: Val| {
                let (size, pitch_v) = (g.b.i(i64::from(l.half)), g.b.i(i64::from(pitch)));
                let (start, first) = (g.b.mul(half, size), g.b.mul(line, pitch_v));
                let depth = g.b.i(i64::from(depth));
                let base = g.b.add(start, first);
                let base = g.b.add(base, depth);
                g.b.tile_load(TileAt { side, from: l.to, base, pitch, lines: None, depth: None })
            };
            let Some((x, weights)) = lines.split_first() else { continue };
            let stripe = self.b.i(i64::from(TILE));
            let row = self.b.mul(wave, stripe);
            let a = tile(self, Side::A, x, row);
            for (w, sums) in weights.iter().zip(sums.chunks_mut(across)) {
                for (n, sum) in sums.iter_mut().enumerate() {
                    let line = self.b.i((n as u32 * TILE).into());
                    let b = tile(self, Side::B, w, line);
                    *sum = self.b.tile_mma(a, b, *sum);
                }
            }
        }
        sums
    }

    /// Hands the sums to the lanes, 32 outputs of each of the wave's rows at a time.
    fn tile_epilogue(&mut self, at: &Block, sums: &[Vec<Val>]) -> Res<()> {
        let each = TILE * SUMS_PITCH;
        let (wave, stripe, [row0, end]) = (self.b.wave(), self.b.i(i64::from(TILE)), at.rows);
        let size = self.b.i(i64::from(each) * sums.len() as i64);
        let own = self.b.mul(wave, size);
        let ahead = self.b.mul(wave, stripe);
        let row0 = self.b.add(row0, ahead);
        let left = self.b.sub(end, row0);
        let left = self.b.bin(Bin::Min, left, stripe);
        let per = (LANES / TILE) as usize;
        for part in 0..at.form.outputs / LANES {
            if part > 0 {
                self.b.barrier();
            }
            for (a, tiles) in sums.iter().enumerate() {
                for (i, &tile) in tiles.iter().skip(part as usize * per).take(per).enumerate() {
                    let to = self.b.i(i64::from(each) * a as i64 + i64::from(TILE) * i as i64);
                    let base = self.b.add(own, to);
                    self.b.tile_store(at.arrays.sums, base, SUMS_PITCH, tile);
                }
            }
            self.b.barrier();
            let ahead = self.b.i(i64::from(part * LANES));
            let n0 = self.b.add(at.n0, ahead);
            let inside = self.is(Cmp::Lt, n0, at.segment.n as i64);
            self.when(inside, |g| g.tile_rows(at, n0, (own, row0, left)))?;
        }
        Ok(())
    }

    /// The epilogue of `left` rows from `row0` on, whose sums stand from `own` on.
    fn tile_rows(&mut self, at: &Block, n0: Val, (own, row0, left): (Val, Val, Val)) -> Res<()> {
        let zero = self.b.i(0);
        let outer = self.mask;
        self.looped((zero, left, 1), &[], |g, r, _| {
            g.row = g.b.add(row0, r);
            let pitch = g.b.i(i64::from(SUMS_PITCH));
            let line = g.b.mul(r, pitch);
            let base = g.b.add(own, line);
            for (a, &anchor) in at.segment.anchors.iter().enumerate() {
                let to = g.b.i(i64::from(TILE * SUMS_PITCH) * a as i64);
                let base = g.b.add(base, to);
                let sum = g.b.load(at.arrays.sums, Addr::Contig { base }, Bound::All, 1);
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
}
