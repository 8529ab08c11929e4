//! Skinny form: contractions over few rows, with glue before and behind.
//!
//! A wave owns up to 32 outputs. For each it streams the weight row once for all unrolled rows, reduces over the lanes
//! and leaves the sum in the lane that has the output's number; then the epilogue runs with one output a lane. What needs
//! whole rows comes last ([`super::finish`]).

use std::collections::HashMap;

use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;
use unglue_ir::order::Order;
use unglue_ir::types::Dim;
use unglue_passes::schedule::{Label, Segment, Skinny, YAxis, strip_reshapes};

use super::Stream;
use super::blocks::Tiles;
use super::index::{Ix, flatten};
use super::packed::{self, INT4_PER_WORD, Packed};
use super::{Gen, Kept, Res, StepScalar};
use crate::kp::{Addr, Bin, Bound, Cmp, Place, Val};

/// Elements of a weight row that a wave, or a set of waves, loads at once: 8 components in each of 32 lanes.
pub(super) const CHUNK: u64 = 256;
/// Bytes of 16-bit weights that a lane loads at once if no other wave has a part of the row.
pub(super) const LANE_BYTES: u32 = 16;
/// Weights beyond this many elements are addressed with 64 bits: byte offsets stay inside 32 bits below it.
const WIDE_ELEMENTS: u64 = 1 << 29;

/// One contraction for one wave: where its weight and its operand start.
pub(super) struct Lines {
    pub k: u64,
    pub weight: Place,
    /// Elements of a weight row: k, or its words if it is int4.
    row_len: u64,
    row_bytes: u64,
    /// First element of the output's weight row is `base + n * row_len`.
    pub weight_base: Option<Val>,
    /// Scales of an int4 weight.
    packed: Option<Packed>,
    pub x: Place,
    /// First element of each unrolled row's operand.
    pub x_bases: Vec<Val>,
    /// The expert has a slot; `None` if there is no choice.
    pub valid: Option<Val>,
    wide: bool,
}

/// Position of a wave, or of a set of waves that share sums, inside a segment.
pub(super) struct Span {
    /// Its first output.
    pub n0: Val,
    pub rows: Vec<Val>,
}

/// The part of each 256 inputs that a wave takes: `vec` of them in each lane, from `first` on.
pub(super) struct Strip {
    pub first: Val,
    pub vec: u8,
}

impl Gen<'_> {
    pub fn skinny_form(&mut self, s: &Skinny) -> Res<()> {
        let rows = self.row_count();
        if s.rows_on_grid {
            self.row = self.group(2);
            let here = self.b.cmp(Cmp::Lt, self.row, rows);
            return self.when(here, |g| {
                g.prologue(s)?;
                g.segments(s, rows)
            });
        }
        self.prologue(s)?;
        self.segments(s, rows)?;
        self.finish_stage(s, rows)
    }

    /// Rows of the kernel's leading axis in this step.
    pub(super) fn row_count(&mut self) -> Val {
        let leads = |id| self.g.ty(id).tensor().and_then(|t| t.shape.first()) == Some(&Dim::Logits);
        let logits = self.g.outputs.iter().any(|(_, v)| leads(*v));
        self.scalar(if logits { StepScalar::Logits } else { StepScalar::Rows })
    }

    fn prologue(&mut self, s: &Skinny) -> Res<()> {
        let staged = self.schedule.staged.clone();
        let rows = s.rows_kept;
        if rows == 0 {
            return Ok(());
        }
        let first = self.first_group();
        self.report_tokens(first)?;
        if rows == 1 {
            self.keep_all(&staged, 1)?;
            return self.side_outputs(s);
        }
        let (zero, end) = (self.b.i(0), self.row_count());
        self.looped((zero, end, 1), &[], |g, row, _| {
            g.row = row;
            g.keep_all(&staged, rows)?;
            g.side_outputs(s)?;
            g.b.barrier();
            Ok(vec![])
        })?;
        Ok(())
    }

    /// Values that only the first workgroup writes.
    fn side_outputs(&mut self, s: &Skinny) -> Res<()> {
        if s.side_outputs.is_empty() {
            return Ok(());
        }
        let first = self.first_group();
        self.when(first, |g| s.side_outputs.iter().try_for_each(|o| g.write_output(*o)))
    }

    /// True in the first workgroup along the grid axes that do not count rows.
    fn first_group(&mut self) -> Val {
        let (x, y) = (self.group(0), self.group(1));
        let sum = self.b.bin(Bin::Or, x, y);
        self.is(Cmp::Eq, sum, 0)
    }

    fn segments(&mut self, s: &Skinny, rows: Val) -> Res<()> {
        let block = self.group(0);
        let mut start = 0u64;
        self.reserve_exchange(s);
        for segment in &s.segments {
            let blocks = Skinny::blocks(segment, self.b.waves());
            let mine = self.in_range(block, start, start + blocks);
            let lo = self.b.i(start as i64);
            self.when(mine, |g| {
                let local = g.b.sub(block, lo);
                let sets = g.b.i(i64::from(g.b.waves() / segment.split_k));
                let set = g.set_number(segment.split_k);
                let number = g.b.mul(local, sets);
                let number = g.b.add(number, set);
                let per = g.b.i(i64::from(segment.outputs_per_wave));
                let n0 = g.b.mul(number, per);
                if !segment.block_sums.is_empty() || segment.split_k > 1 {
                    // All waves meet. A workgroup has whole blocks; sets of waves past the end repeat the last output.
                    return g.wave_rows(s, segment, n0, rows);
                }
                let inside = g.is(Cmp::Lt, n0, segment.n as i64);
                g.when(inside, |g| g.wave_rows(s, segment, n0, rows))
            })?;
            start += blocks;
        }
        Ok(())
    }

    fn wave_rows(&mut self, s: &Skinny, segment: &Segment, n0: Val, rows: Val) -> Res<()> {
        if s.rows_on_grid || s.row_unroll == 1 {
            let row = self.row;
            return self.wave_outputs(s, segment, &Span { n0, rows: vec![row] });
        }
        let zero = self.b.i(0);
        self.looped((zero, rows, i64::from(s.row_unroll)), &[], |g, first, _| {
            let one = g.b.i(1);
            let last = g.b.sub(rows, one);
            let list = (0..s.row_unroll)
                .map(|i| {
                    let i = g.b.i(i64::from(i));
                    let row = g.b.add(first, i);
                    // Rows past the end repeat the last one; their results are not stored.
                    g.b.bin(Bin::Min, row, last)
                })
                .collect();
            g.wave_outputs(s, segment, &Span { n0, rows: list })?;
            Ok(vec![])
        })?;
        Ok(())
    }

    fn wave_outputs(&mut self, s: &Skinny, segment: &Segment, span: &Span) -> Res<()> {
        if segment.split_k > 1 {
            return self.split_outputs(s, segment, span);
        }
        let mut sums: HashMap<ValueId, Vec<Vec<Val>>> = HashMap::new();
        for &anchor in &segment.anchors {
            let choices = match self.g.node(anchor).op {
                Op::GroupedMatMul { .. } => segment.inner_choices.unwrap_or(1),
                _ => 1,
            };
            let per_choice = (0..choices)
                .map(|j| {
                    let j = segment.inner_choices.map(|_| Ix::Const(j));
                    self.anchor_sums(s, segment, span, anchor, j)
                })
                .collect::<Res<Vec<_>>>()?;
            sums.insert(anchor, per_choice);
        }
        let tiles = self.tiles(segment, span.n0, &span.rows)?;
        for r in 0..span.rows.len() {
            if r == 0 {
                self.row_outputs(s, segment, span, (&sums, &tiles), r)?;
                continue;
            }
            // A row past the end repeats the one before. Behind a branch, too, each row's operands are loaded when it is
            // its turn: those of four rows at once would not fit the SGPRs.
            let real = self.b.cmp(Cmp::Lt, span.rows[r - 1], span.rows[r]);
            self.when(real, |g| g.row_outputs(s, segment, span, (&sums, &tiles), r))?;
        }
        self.segment_block_sums(segment, &span.rows, tiles)
    }

    /// Forms a segment's outputs of one row from the sums of all rows at once, by anchor and choice.
    fn row_outputs(
        &mut self,
        s: &Skinny,
        segment: &Segment,
        span: &Span,
        (sums, tiles): (&HashMap<ValueId, Vec<Vec<Val>>>, &Tiles),
        r: usize,
    ) -> Res<()> {
        self.row = span.rows[r];
        let held = self.kept.clone();
        for (&anchor, per_choice) in sums {
            self.kept.insert(anchor, Kept::Lane(per_choice.iter().map(|rows| rows[r]).collect()));
        }
        self.memo.push(HashMap::new());
        let out = self.epilogue(s, segment, span.n0).and_then(|()| self.write_tiles(segment, span.n0, tiles));
        self.memo.pop();
        self.kept = held;
        out
    }

    /// The sums of one anchor (and choice): for each unrolled row a lane value, output n0 + l in lane l.
    fn anchor_sums(
        &mut self,
        s: &Skinny,
        segment: &Segment,
        span: &Span,
        anchor: ValueId,
        j: Option<Ix>,
    ) -> Res<Vec<Val>> {
        match self.g.node(anchor).op {
            Op::Reduce { axis, .. } => self.row_sums(span, anchor, axis),
            Op::BatchMatMul { transposed: true, order: Order::Strided(chains) } => {
                let lines = self.lines(s.y, span, anchor, j)?;
                self.strided_sums(segment, span, &lines, u64::from(chains))
            }
            _ => {
                let lines = self.lines(s.y, span, anchor, j)?;
                self.valid_sums(segment, span, &lines)
            }
        }
    }

    /// Sums of an expert that may have no slot, zeros and no access then, or of a contraction without choice.
    pub(super) fn valid_sums(&mut self, segment: &Segment, span: &Span, lines: &Lines) -> Res<Vec<Val>> {
        let Some(valid) = lines.valid else { return self.lane_sums(segment, span, lines) };
        let one = self.choose(
            valid,
            |g| Ok(g.lane_sums(segment, span, lines)?[0]),
            |g| {
                let zero = g.b.f(0.0);
                Ok(g.b.splat(zero, 1))
            },
        )?;
        Ok(vec![one])
    }

    fn row_sums(&mut self, span: &Span, anchor: ValueId, axis: u32) -> Res<Vec<Val>> {
        let arg = self.g.node(anchor).args[0];
        let a = axis as usize - 1;
        let n = self.dims(arg)?[a];
        let mut out = Vec::new();
        for &row in &span.rows {
            self.row = row;
            self.memo.push(HashMap::new());
            let sum = self.wave_sum(n, |s, at| s.reduce_term(anchor, a, &[Ix::Const(0)], at));
            self.memo.pop();
            let sum = sum?;
            out.push(self.b.splat(sum, 1));
        }
        Ok(out)
    }

    /// Finds weight and operand of an anchor.
    pub(super) fn lines(&mut self, y: YAxis, span: &Span, anchor: ValueId, j: Option<Ix>) -> Res<Lines> {
        let args = self.g.node(anchor).args.clone();
        let w = *args.last().unwrap_or(&anchor);
        let shape: Vec<u64> = self.dims(w)?;
        let (weight, mem) = self.leaf(strip_reshapes(self.g, w))?;
        let xdims = self.dims(args[0])?;
        let k = *xdims.last().unwrap_or(&1);
        let packed = self.packed(strip_reshapes(self.g, w));
        let row_len = if packed.is_some() { k / INT4_PER_WORD } else { k };
        let elements = shape.iter().product::<u64>() / k.max(1) * row_len;
        let choice = match (j.and_then(|j| j.uniform(&mut self.b)), y) {
            (Some(j), _) => j,
            (None, YAxis::Choices(_) | YAxis::Heads(_)) => self.group(1),
            _ => self.b.i(0),
        };
        let wide = elements > WIDE_ELEMENTS;
        let (mut weight_base, mut packed_base, mut valid) = (None, None, None);
        match self.g.node(anchor).op {
            Op::BatchMatMul { .. } => {
                let per = self.b.i((shape[1] * shape[2]) as i64);
                weight_base = Some(self.b.mul(choice, per));
            }
            Op::GroupedMatMul { .. } => {
                let (slot, fine) = self.expert_slot(&args, span.rows[0], choice, shape[0])?;
                weight_base = Some(self.scaled(slot, shape[1] * row_len));
                packed_base = Some(self.scaled(slot, shape[1]));
                valid = Some(fine);
            }
            _ => {}
        }
        let packed = packed.map(|p| p.behind(packed_base));
        let (x, x_bases) = self.operand_lines(&args, &xdims, span, choice)?;
        let row_bytes = row_len * mem.bytes();
        Ok(Lines { k, weight, row_len, row_bytes, weight_base, packed, x, x_bases, valid, wide })
    }

    fn operand_lines(&mut self, args: &[ValueId], dims: &[u64], span: &Span, choice: Val) -> Res<(Place, Vec<Val>)> {
        let leaf = strip_reshapes(self.g, args[0]);
        let per_row: u64 = dims.iter().product();
        let k = *dims.last().unwrap_or(&1);
        let (place, by_row) = match self.kept.get(&leaf) {
            Some(Kept::Shared { place, by_row, .. }) => (*place, *by_row),
            _ => (self.leaf(leaf)?.0, true),
        };
        let bases = span
            .rows
            .iter()
            .map(|&row| {
                let n = self.b.i(per_row as i64);
                let base = if by_row { self.b.mul(row, n) } else { self.b.i(0) };
                if dims.len() == 2 {
                    let k = self.b.i(k as i64);
                    let inner = self.b.mul(choice, k);
                    return self.b.add(base, inner);
                }
                base
            })
            .collect();
        Ok((place, bases))
    }

    /// Contraction along contiguous weight rows, in the `lanes` order.
    pub(super) fn lane_sums(&mut self, segment: &Segment, span: &Span, lines: &Lines) -> Res<Vec<Val>> {
        self.insert_stream(lines, 1);
        let zero = self.b.f(0.0);
        let init: Vec<Val> = span.rows.iter().map(|_| self.b.splat(zero, 1)).collect();
        let (start, end) = (self.b.i(0), self.b.i(i64::from(segment.outputs_per_wave)));
        self.looped((start, end, i64::from(segment.outputs_at_once)), &init, |g, first, acc| {
            let last = g.b.i(segment.n as i64 - 1);
            let lane = g.b.lane();
            let numbers: Vec<Val> = (0..segment.outputs_at_once).map(|i| g.ahead(first, i)).collect();
            // Outputs past the end repeat the last one; their lanes are masked in the epilogue.
            let outputs: Vec<Val> = numbers
                .iter()
                .map(|&i| {
                    let n = g.b.add(span.n0, i);
                    g.b.bin(Bin::Min, n, last)
                })
                .collect();
            let mut out = acc.to_vec();
            for (sums, &i) in g.output_sums(lines, &outputs)?.iter().zip(&numbers) {
                let here = g.b.cmp(Cmp::Eq, lane, i);
                for (&sum, slot) in sums.iter().zip(&mut out) {
                    *slot = g.b.select(here, sum, *slot);
                }
            }
            Ok(out)
        })
    }

    /// Notes a weight whose rows sets of `waves` waves stream together. Shorter rows have no whole vector of all lanes: their
    /// elements are loaded one by one.
    pub(super) fn insert_stream(&mut self, lines: &Lines, waves: u32) {
        if let Place::Buffer(param) = lines.weight
            && lines.row_len >= if lines.packed.is_some() { packed::WORDS } else { CHUNK }
        {
            self.streams.insert(Stream { param, row_bytes: lines.row_bytes, lane_bytes: LANE_BYTES / waves });
        }
    }

    /// For each of some outputs, its sums for all unrolled rows, uniform.
    fn output_sums(&mut self, lines: &Lines, outputs: &[Val]) -> Res<Vec<Vec<Val>>> {
        let bases: Vec<Val> = outputs.iter().map(|&n| self.weight_row(lines, n)).collect();
        match &lines.packed {
            Some(packed) => self.packed_products(lines, packed, outputs, &bases),
            None => self.dot_products(lines, &bases),
        }
    }

    pub(super) fn weight_row(&mut self, lines: &Lines, n: Val) -> Val {
        let wide = lines.wide || lines.weight_base.is_some_and(|v| self.b.ty(v).elem() == crate::kp::Elem::I64);
        let offset = if wide {
            self.scaled(n, lines.row_len)
        } else {
            let k = self.b.i(lines.row_len as i64);
            self.b.mul(n, k)
        };
        match lines.weight_base {
            Some(base) if wide => {
                let base = self.b.wide(base);
                self.b.bin(Bin::Add, base, offset)
            }
            Some(base) => self.b.add(base, offset),
            None => offset,
        }
    }

    /// Outputs whose weight rows start at `rows`, for all unrolled rows of the operand.
    fn dot_products(&mut self, lines: &Lines, rows: &[Val]) -> Res<Vec<Vec<Val>>> {
        let strip = Strip { first: self.b.i(0), vec: 8 };
        let acc = self.chains(lines, rows, &strip)?;
        let sums: Vec<Val> = acc.into_iter().map(|v| self.lanes_total(v)).collect();
        Ok(sums.chunks(lines.x_bases.len()).map(<[Val]>::to_vec).collect())
    }

    /// Chains of the outputs whose weight rows start at `rows`, by output, then by row of the operand. Their rows are
    /// streamed at the same time: each piece of the operand is loaded and widened once for all of them.
    pub(super) fn chains(&mut self, lines: &Lines, rows: &[Val], strip: &Strip) -> Res<Vec<Val>> {
        let zero = self.b.f(0.0);
        let chains = rows.len() * lines.x_bases.len();
        let mut acc: Vec<Val> = (0..chains).map(|_| self.b.splat(zero, strip.vec)).collect();
        let full = lines.k / CHUNK * CHUNK;
        if full > 0 {
            let (start, end) = (self.b.i(0), self.b.i(full as i64));
            acc = self.looped((start, end, CHUNK as i64), &acc, |g, c, acc| {
                Ok(g.chunk(lines, rows, (c, strip), Bound::All, acc))
            })?;
        }
        if full < lines.k {
            let c = self.b.i(full as i64);
            let rest = self.b.i((lines.k - full) as i64);
            let rest = self.b.sub(rest, strip.first);
            acc = self.chunk(lines, rows, (c, strip), Bound::Count(rest), &acc);
        }
        Ok(acc)
    }

    /// Adds the products of one piece: chains by output, then by row.
    fn chunk(&mut self, lines: &Lines, rows: &[Val], (c, strip): (Val, &Strip), bound: Bound, acc: &[Val]) -> Vec<Val> {
        let c = self.b.add(c, strip.first);
        let mut weights = Vec::new();
        for &row in rows {
            let Addr::Uniform { base } = Ix::uni(c).address(Some(row), &mut self.b) else { return acc.to_vec() };
            weights.push(self.b.load(lines.weight, Addr::Contig { base }, bound, strip.vec));
        }
        let operands: Vec<Val> = lines
            .x_bases
            .iter()
            .map(|&x| {
                let base = self.b.add(x, c);
                self.b.load(lines.x, Addr::Contig { base }, bound, strip.vec)
            })
            .collect();
        let pairs = weights.iter().flat_map(|&w| operands.iter().map(move |&x| (w, x)));
        pairs.zip(acc).map(|((w, x), &a)| self.b.fma(x, w, a)).collect()
    }

    /// Forms the segment's outputs from the lanes' sums, for the current row.
    pub(super) fn epilogue(&mut self, s: &Skinny, segment: &Segment, n0: Val) -> Res<()> {
        let outer = self.mask;
        let at = Ix::Seq { base: n0, aligned: segment.outputs_per_wave == 32 };
        self.mask_outputs(segment, at);
        for &o in &segment.outputs {
            self.epilogue_output(s, segment, o, at)?;
        }
        self.mask = outer;
        Ok(())
    }

    pub(super) fn epilogue_output(&mut self, s: &Skinny, segment: &Segment, output: usize, at: Ix) -> Res<()> {
        let (name, value) = &self.g.outputs[output];
        let v = strip_reshapes(self.g, *value);
        let dims = self.dims(v)?;
        let labels = match s.labels.get(&v) {
            Some(l) => l[1..].to_vec(),
            None => return self.fault(v, "an output without labels"),
        };
        let mem = self.mem(v)?;
        let place = self.iface.output(&mut self.b, name, mem);
        let loops: Vec<u64> = dims
            .iter()
            .zip(&labels)
            .map(|(&n, l)| match l {
                Label::Small => n,
                Label::Choice if segment.inner_choices.is_some() => n,
                _ => 1,
            })
            .collect();
        let base = self.row_base(&dims);
        for flat in 0..loops.iter().product() {
            let small = super::index::unflatten(&loops, Ix::Const(flat), &mut self.b);
            let idx: Vec<Ix> = labels
                .iter()
                .zip(&small)
                .zip(&dims)
                .map(|((l, &i), &n)| match l {
                    Label::Out if n == 1 && segment.n == 1 => Ix::Const(0),
                    Label::Out => at,
                    Label::Head => Ix::uni(self.across()),
                    Label::Choice if segment.inner_choices.is_none() => Ix::uni(self.across()),
                    _ => i,
                })
                .collect();
            let x = self.eval(v, &idx)?;
            let flat = flatten(&dims, &idx, &mut self.b);
            self.store(place, Some(base), flat, x);
        }
        Ok(())
    }
}
