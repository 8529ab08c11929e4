//! Sums over blocks of 32 neighbours: in workgroups of their own, or behind a contraction whose workgroup has the blocks.

use std::collections::HashMap;

use unglue_ir::graph::ValueId;
use unglue_ir::types::Dim;
use unglue_passes::schedule::{BLOCK, BlockSum, Blocks, FINISH_COUNTERS, Segment, block_sum, strip_reshapes};

use super::index::{Ix, flatten, unflatten};
use super::{Gen, Kept, Res, StepScalar};
use crate::kp::{Bin, Cmp, LANES, Val};

const _: () = assert!(FINISH_COUNTERS as u64 <= unglue_runtime::COUNTERS, "each row that finishes apart has a counter");

/// What workgroup memory holds of a value: of some rows, elements `first..first + width` of its last axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    pub first: Val,
    pub width: u64,
    pub first_row: Val,
}

/// Values that the waves of a workgroup hand one another.
pub(super) type Tiles = Vec<(ValueId, Kept)>;

/// A wave's share of its workgroup's blocks.
struct Share {
    /// Number of the wave's block.
    block: Val,
    /// The wave's number among those of its block.
    wave: Val,
    /// Waves of a block.
    waves: u64,
}

impl Gen<'_> {
    pub fn blocks_form(&mut self, f: &Blocks) -> Res<()> {
        self.row = self.group(1);
        let count = self.scalar(if f.rows == Dim::Logits { StepScalar::Logits } else { StepScalar::Rows });
        let here = self.b.cmp(Cmp::Lt, self.row, count);
        self.when(here, |s| {
            let block = s.group(0);
            let first = s.b.bin(Bin::Or, block, s.row);
            let first = s.is(Cmp::Eq, first, 0);
            s.report_tokens(first)?;
            for &o in &f.columns {
                s.block_columns(o, block)?;
            }
            let share = s.share_of_blocks(block, 1);
            let column = s.block_column(block);
            s.block_sums(&f.sums, &share, column)?;
            match &f.finish {
                Some(finish) => s.finish_stage_of_row(finish, f.blocks),
                None => Ok(()),
            }
        })
    }

    /// Writes a block's elements of an output, a line of 32 a wave at a time.
    fn block_columns(&mut self, output: usize, block: Val) -> Res<()> {
        let (name, value) = &self.g.outputs[output];
        let v = strip_reshapes(self.g, *value);
        let (dims, mem) = (self.dims(v)?, self.mem(v)?);
        let place = self.iface.output(&mut self.b, name, mem);
        let lead = &dims[..dims.len() - 1];
        let lines = lead.iter().product();
        let share = self.share_of_blocks(block, 1);
        let column = self.block_column(block);
        for i in 0..share.rounds(lines) {
            let (line, inside) = self.share_item(&share, i, lines);
            let mut idx = unflatten(lead, line, &mut self.b);
            idx.push(column);
            let write = |s: &mut Self| {
                let x = s.eval(v, &idx)?;
                let (base, flat) = (s.row_base(&dims), flatten(&dims, &idx, &mut s.b));
                s.store(place, Some(base), flat, x);
                Ok(())
            };
            self.when_inside(inside, write)?;
        }
        Ok(())
    }

    /// First element of a block.
    fn block_column(&mut self, block: Val) -> Ix {
        let n = self.b.i(BLOCK as i64);
        Ix::Seq { base: self.b.mul(block, n), aligned: true }
    }

    /// The wave's `i`-th item of `items`, and whether it has one, if not all waves have. Waves without repeat the last.
    fn share_item(&mut self, share: &Share, i: u64, items: u64) -> (Ix, Option<Val>) {
        let (before, last) = (self.b.i((i * share.waves) as i64), self.b.i(items as i64 - 1));
        let number = self.b.add(share.wave, before);
        let whole = (i + 1) * share.waves <= items;
        let inside = (!whole).then(|| self.b.cmp(Cmp::Le, number, last));
        let item = match items {
            1 => Ix::Const(0),
            _ if whole => Ix::uni(number),
            _ => Ix::uni(self.b.bin(Bin::Min, number, last)),
        };
        (item, inside)
    }

    /// Runs `f` for waves that have an item of [`Self::share_item`].
    fn when_inside(&mut self, inside: Option<Val>, f: impl FnOnce(&mut Self) -> Res<()>) -> Res<()> {
        match inside {
            Some(inside) => self.when(inside, f),
            None => f(self),
        }
    }

    /// The waves' shares of `count` blocks from block `first` on, `count` a divisor of their number.
    fn share_of_blocks(&mut self, first: Val, count: u64) -> Share {
        let (wave, waves) = (self.b.wave(), u64::from(self.b.waves()));
        if count == 1 {
            return Share { block: first, wave, waves };
        }
        let n = self.b.i(count as i64);
        let own = self.b.rem(wave, n);
        Share { block: self.b.add(first, own), wave: self.b.div(wave, n), waves: waves / count }
    }

    /// Forms the current row's sums over a wave's block, which starts at `column`.
    fn block_sums(&mut self, outputs: &[usize], share: &Share, column: Ix) -> Res<()> {
        for &o in outputs {
            let v = strip_reshapes(self.g, self.g.outputs[o].1);
            match block_sum(self.g, v) {
                Some(sum) => self.sums_of_block(o, v, &sum, share, column)?,
                None => return self.fault(v, "not a sum over blocks"),
            }
        }
        Ok(())
    }

    /// All sums of the wave's block are formed up to the last step side by side: their loads are in flight together.
    fn sums_of_block(&mut self, output: usize, v: ValueId, sum: &BlockSum, share: &Share, column: Ix) -> Res<()> {
        let mem = self.mem(v)?;
        let place = self.iface.output(&mut self.b, &self.g.outputs[output].0, mem);
        let items = sum.of_block();
        let mut formed = Vec::new();
        for i in 0..share.rounds(items) {
            let (item, inside) = self.share_item(share, i, items);
            let mut idx = unflatten(&sum.lead, item, &mut self.b);
            idx.push(column);
            let x = self.eval(sum.of, &idx)?;
            formed.push((item, inside, self.b.splat(x, 1)));
        }
        let base = self.row_base(&[items * sum.blocks()]);
        for (item, inside, x) in formed {
            let total = self.block_total(x);
            let at = item.mul(sum.blocks(), &mut self.b).add(Ix::uni(share.block), &mut self.b);
            let write = |s: &mut Self| {
                s.store(place, Some(base), at, total);
                Ok(())
            };
            self.when_inside(inside, write)?;
        }
        Ok(())
    }

    /// Workgroup memory for what a segment's sums over blocks read, of all rows that its waves take at once.
    pub fn tiles(&mut self, segment: &Segment, n0: Val, rows: &[Val]) -> Res<Tiles> {
        let width = u64::from(segment.outputs_per_wave * self.b.waves());
        let (wave, per) = (self.b.wave(), self.b.i(i64::from(segment.outputs_per_wave)));
        let own = self.b.mul(wave, per);
        let columns = Columns { first: self.b.sub(n0, own), width, first_row: rows[0] };
        let mut tiles = Vec::new();
        for &v in &segment.tiles {
            let mem = self.shared_mem(v)?;
            let each = columns.of_row(&self.dims(v)?);
            let place = self.shared_array(v, mem, each * rows.len() as u64);
            tiles.push((v, Kept::Tile { place, columns }));
        }
        Ok(tiles)
    }

    /// Copies the wave's elements of the current row to workgroup memory.
    pub fn write_tiles(&mut self, segment: &Segment, n0: Val, tiles: &Tiles) -> Res<()> {
        let at = Ix::Seq { base: n0, aligned: segment.outputs_per_wave == 32 };
        let outer = self.mask;
        self.mask_outputs(segment, at);
        for (v, tile) in tiles {
            let Kept::Tile { place, columns } = *tile else { continue };
            let dims = self.dims(*v)?;
            let lead = &dims[..dims.len() - 1];
            for flat in 0..lead.iter().product() {
                let mut idx = unflatten(lead, Ix::Const(flat), &mut self.b);
                idx.push(at);
                let x = self.eval(*v, &idx)?;
                let (base, own) = self.in_columns(&dims, &idx, columns);
                self.store(place, Some(base), own, x);
            }
        }
        self.mask = outer;
        Ok(())
    }

    /// A segment's sums over blocks, once all waves have copied their elements of `rows`. Rows past the end repeat the last
    /// one, with its sums. A loop: unrolled, four rows take 13.5 KiB of code instead of 9.6, and as many VGPRs (gfx1201).
    pub fn segment_block_sums(&mut self, segment: &Segment, rows: &[Val], tiles: Tiles) -> Res<()> {
        let Some((_, Kept::Tile { columns, .. })) = tiles.first().cloned() else { return Ok(()) };
        self.b.barrier();
        let held = self.kept.clone();
        let memo = std::mem::replace(&mut self.memo, vec![HashMap::new()]);
        self.kept.extend(tiles);
        let n = self.b.i(BLOCK as i64);
        let first = self.b.div(columns.first, n);
        let share = self.share_of_blocks(first, columns.width / BLOCK);
        let column = self.block_column(share.block);
        let (zero, end) = (self.b.i(0), self.b.i(rows.len() as i64));
        let (first, last) = (rows[0], rows[rows.len() - 1]);
        self.looped((zero, end, 1), &[], |g, i, _| {
            let row = g.b.add(first, i);
            g.row = g.b.bin(Bin::Min, row, last);
            g.block_sums(&segment.block_sums, &share, column)?;
            Ok(vec![])
        })?;
        (self.memo, self.kept) = (memo, held);
        // The next rows take the same places.
        self.b.barrier();
        Ok(())
    }

    /// Restricts the mask to the wave's own outputs, which start at `at`.
    pub(super) fn mask_outputs(&mut self, segment: &Segment, at: Ix) {
        self.mask_below(at, segment.n);
        if segment.outputs_per_wave != LANES {
            let (lane, per) = (self.b.lane(), self.b.i(i64::from(segment.outputs_per_wave)));
            let mine = self.b.cmp(Cmp::Lt, lane, per);
            self.mask = Some(match self.mask {
                Some(m) => self.b.and(m, mine),
                None => mine,
            });
        }
    }

    /// Element `idx` of a value of extents `dims`, among the columns that workgroup memory holds of the current row: where
    /// the row starts, and the element's place in it.
    pub(super) fn in_columns(&mut self, dims: &[u64], idx: &[Ix], columns: Columns) -> (Val, Ix) {
        let each = self.b.i(columns.of_row(dims) as i64);
        let row = self.b.sub(self.row, columns.first_row);
        let base = self.b.mul(row, each);
        let (mut dims, mut idx) = (dims.to_vec(), idx.to_vec());
        if let (Some(n), Some(at)) = (dims.last_mut(), idx.last_mut()) {
            *n = columns.width;
            let zero = self.b.i(0);
            let back = Ix::Uni { val: self.b.sub(zero, columns.first), aligned: true };
            *at = at.add(back, &mut self.b);
        }
        (base, flatten(&dims, &idx, &mut self.b))
    }
}

impl Columns {
    /// Elements of one row of a value of extents `dims`.
    fn of_row(&self, dims: &[u64]) -> u64 {
        dims.iter().rev().skip(1).product::<u64>() * self.width
    }
}

impl Share {
    fn rounds(&self, items: u64) -> u64 {
        items.div_ceil(self.waves)
    }
}
