//! What a head's workgroup reads for one row before anything waits: weight rows of its outputs, its channels of a convolution,
//! and the operands of what is kept later.

use std::collections::BTreeSet;

use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;
use unglue_passes::schedule::{Segment, Staged, YAxis, strip_reshapes};

use super::index::Ix;
use super::levels::Spot;
use super::skinny::{LANE_BYTES, Span};
use super::sums::CHAINS;
use super::{Gen, Kept, Res, Stream};
use crate::kp::{Addr, Bin, Bound, Cmp, LANES, Mem, Place, Val};

/// Components of a lane's load of a weight row.
const WIDE: u64 = 8;

/// Loads of a contraction that a wave has in flight: 32 registers.
const IN_FLIGHT: u64 = 8;

/// A head's outputs of one contraction, their first weight rows on the way from memory.
pub(super) struct HeadRows {
    id: ValueId,
    /// Where the outputs are kept.
    place: Place,
    /// Outputs of the head, or of one of the `shares` workgroups that share it.
    elements: u64,
    shares: u64,
    weight: Place,
    /// First element of the head's weight rows.
    base: Val,
    k: u64,
    /// Loads of `CHAINS` elements that a wave has in flight, a power of two.
    loads: u64,
    /// The operand, as the lanes of a row take it.
    operand: Val,
    /// The first loads.
    weights: Vec<Val>,
}

impl HeadRows {
    /// Whole weight rows of a load, one after the other.
    fn rows_a_load(&self) -> u64 {
        CHAINS / self.k
    }

    /// Lanes that share a weight row.
    fn lanes(&self) -> u64 {
        self.k / WIDE
    }

    /// Outputs of a wave's loads.
    fn outputs(&self) -> u64 {
        self.loads * self.rows_a_load()
    }
}

impl Gen<'_> {
    /// Starts loading the weight rows of a head's outputs; none for extents that do not fill loads of all lanes evenly
    /// ([`Gen::keep_head_matmul`] takes those).
    pub(super) fn load_head_rows(&mut self, s: &Staged) -> Res<Option<HeadRows>> {
        let (id, elements, waves) = (s.node, s.elements, u64::from(self.b.waves()));
        let args = &self.g.node(id).args;
        let (x, w) = (strip_reshapes(self.g, args[0]), strip_reshapes(self.g, args[1]));
        let k = self.dims(w)?[1];
        let shares = self.shares_of(s)?;
        let number = self.part_of_head(id, shares)?;
        let fills = k.is_power_of_two() && (WIDE..=CHAINS).contains(&k) && (elements * k).is_multiple_of(CHAINS);
        if !fills || self.packed(w).is_some() {
            return Ok(None);
        }
        let ((weight, mem), (from, _)) = (self.leaf(w)?, self.leaf(x)?);
        if let Place::Buffer(param) = weight {
            self.streams.insert(Stream { param, row_bytes: CHAINS * mem.bytes(), lane_bytes: LANE_BYTES });
        }
        let loads = (elements * k / CHAINS).div_ceil(waves).next_power_of_two().min(IN_FLIGHT).min(k / WIDE);
        let base = self.scaled(number, elements * k);
        let base = self.of_this_row(base);
        let (lane, wide, inside) = (self.b.lane(), self.b.i(WIDE as i64), self.b.i(k as i64 - 1));
        let index = self.b.mul(lane, wide);
        let index = self.b.and(index, inside);
        let row = self.row_base(&[k]);
        let operand = self.b.load(from, Addr::Lanes { base: row, index }, Bound::All, WIDE as u8);
        let place = self.shared_array(id, Mem::F32, elements);
        let mut rows = HeadRows { id, place, elements, shares, weight, base, k, loads, operand, weights: vec![] };
        rows.weights = self.weight_rows(&rows, 0);
        Ok(Some(rows))
    }

    /// The wave's first output of a round, counted in the head.
    fn first_output(&mut self, rows: &HeadRows, round: u64) -> Val {
        let (wave, waves, own) = (self.b.wave(), self.b.waves(), self.b.i(rows.outputs() as i64));
        let number = self.ahead(wave, round as u32 * waves);
        self.b.mul(number, own)
    }

    /// The weight rows of a wave's outputs of a round, all in flight at once.
    fn weight_rows(&mut self, rows: &HeadRows, round: u64) -> Vec<Val> {
        let first = self.first_output(rows, round);
        let each = rows.rows_a_load();
        let end = (round + 1) * u64::from(self.b.waves()) * rows.outputs();
        let load = |i: u64| {
            let row = self.ahead(first, (i * each) as u32);
            // Rows past the end repeat the last ones.
            let row = if end > rows.elements {
                let last = self.b.i((rows.elements - each) as i64);
                self.b.bin(Bin::Min, row, last)
            } else {
                row
            };
            let offset = self.scaled(row, rows.k);
            let base = self.b.bin(Bin::Add, rows.base, offset);
            self.b.load(rows.weight, Addr::Contig { base }, Bound::All, WIDE as u8)
        };
        (0..rows.loads).map(load).collect()
    }

    /// The same number, which LLVM takes for another in each row: what all rows load would stay in registers around the
    /// loop over them, and spill.
    fn of_this_row(&mut self, base: Val) -> Val {
        if self.b.known_int(self.row).is_some() {
            return base;
        }
        let zero = self.b.i(0);
        let none = self.b.bin(Bin::Min, self.row, zero);
        let none = self.b.wide(none);
        self.b.bin(Bin::Add, base, none)
    }

    /// Sums of weight rows, in the `lanes` order, into workgroup memory. A barrier is to follow.
    pub(super) fn keep_head_rows(&mut self, rows: &HeadRows) {
        self.round_sums(rows, 0, &rows.weights);
        for round in 1..rows.elements.div_ceil(u64::from(self.b.waves()) * rows.outputs()) {
            let weights = self.weight_rows(rows, round);
            self.round_sums(rows, round, &weights);
        }
        let HeadRows { place, elements, shares, .. } = *rows;
        self.kept.insert(rows.id, Kept::OfHead { place, elements, shares });
    }

    fn round_sums(&mut self, rows: &HeadRows, round: u64, weights: &[Val]) {
        let lanes = rows.lanes();
        let zero = self.b.f(0.0);
        let none = self.b.splat(zero, WIDE as u8);
        let mut sums = Vec::new();
        for &w in weights {
            let products = self.b.fma(rows.operand, w, none);
            let sum = self.components_total(products);
            // Chains beyond the row's end hold +0.
            sums.push(if lanes < u64::from(LANES) { self.b.bin(Bin::Add, sum, zero) } else { sum });
        }
        let share = lanes / rows.loads;
        let sum = self.sums_in_groups(sums, lanes as u32);
        let (lane, first) = (self.b.lane(), self.first_output(rows, round));
        let (lanes, share, each) =
            (self.b.i(lanes as i64), self.b.i(share as i64), self.b.i(rows.rows_a_load() as i64));
        let (row, inside) = (self.b.div(lane, lanes), self.b.rem(lane, lanes));
        let (load, copy) = (self.b.div(inside, share), self.b.rem(inside, share));
        let number = self.b.mul(load, each);
        let number = self.b.add(number, row);
        let own = self.b.add(number, first);
        let end = self.b.i(rows.elements as i64);
        let (one, exists) = (self.is(Cmp::Eq, copy, 0), self.b.cmp(Cmp::Lt, own, end));
        let mask = self.b.and(one, exists);
        self.b.store(rows.place, Addr::Lanes { base: first, index: number }, Bound::Mask(mask), sum);
    }

    /// A head's outputs of a contraction, 32 of them a wave at a time, into workgroup memory. Collective.
    pub(super) fn keep_head_matmul(&mut self, s: &Staged) -> Res<()> {
        let Staged { node: id, elements, .. } = *s;
        let (n, shares) = (self.elements(id)?, self.shares_of(s)?);
        let number = self.part_of_head(id, shares)?;
        let place = self.shared_array(id, Mem::F32, elements);
        let per = elements.min(u64::from(LANES)) as u32;
        let segment = Segment {
            anchors: vec![id],
            outputs: vec![],
            n,
            outputs_per_wave: per,
            outputs_at_once: 1,
            split_k: 1,
            inner_choices: None,
            block_sums: vec![],
            tiles: vec![],
        };
        let row = self.row;
        self.for_elements(elements, |g, at| {
            let width = g.b.i(elements as i64);
            let first = g.b.mul(number, width);
            let Ix::Seq { base, .. } = at else { return g.fault(id, "elements that do not follow one another") };
            let span = Span { n0: g.b.add(first, base), rows: vec![row] };
            let mask = g.mask.take();
            let lines = g.lines(YAxis::None, &span, id, None)?;
            let sums = g.lane_sums(&segment, &span, &lines)?;
            g.mask = mask;
            g.store(place, None, at, sums[0]);
            Ok(())
        })?;
        self.b.barrier();
        self.kept.insert(id, Kept::OfHead { place, elements, shares });
        Ok(())
    }

    /// Workgroups to which a head's outputs of a contraction are dealt.
    fn shares_of(&self, s: &Staged) -> Res<u64> {
        let Some((heads, _)) = self.head else { return self.fault(s.node, "a contraction outside of a head") };
        Ok(self.elements(s.node)? / (heads * s.elements))
    }

    /// Number of the head, or of the workgroup where it has one of `shares` parts of the head.
    pub(super) fn part_of_head(&mut self, id: ValueId, shares: u64) -> Res<Val> {
        match self.head {
            Some((_, head)) if shares == 1 => Ok(head),
            Some(_) => Ok(self.group(0)),
            None => self.fault(id, "kept for a head outside of one"),
        }
    }

    /// Channel number `own` of the head: of each segment of `segment` channels it has `width`, behind those of lower heads.
    pub(super) fn head_channel(&mut self, own: Ix, (segment, width): (u64, u64)) -> Ix {
        let (number, inside) = own.div_rem(width, &mut self.b);
        let first = number.mul(segment, &mut self.b);
        let head = self.head.map_or(Ix::Const(0), |(_, head)| Ix::uni(head)).mul(width, &mut self.b);
        let base = first.add(head, &mut self.b);
        inside.add(base, &mut self.b)
    }

    /// Where channel `inside` of a segment is kept, which is one of the head's `width`; the segment's first is kept at
    /// `first`.
    pub(super) fn own_channel(&mut self, id: ValueId, inside: Ix, first: u64, width: u64) -> Res<Ix> {
        let Some((_, head)) = self.head else { return self.fault(id, "kept for a head outside of one") };
        let back = self.b.i(-(width as i64));
        let back = Ix::Uni { val: self.b.mul(head, back), aligned: width.is_multiple_of(u64::from(LANES)) };
        let own = inside.add(back, &mut self.b);
        Ok(own.add(Ix::Const(first), &mut self.b))
    }

    /// Forms the head's channels of a value over whole segments, into workgroup memory. A barrier is to follow.
    pub(super) fn keep_channels(&mut self, s: &Staged, (segment, width): (u64, u64), spots: &[Spot]) -> Res<()> {
        let place = self.padded_array(s.node, s.elements, spots);
        for spot in spots {
            let channel = self.head_channel(spot.at, (segment, width));
            let v = self.eval(s.node, &[channel])?;
            self.store_padded(place, spot, v)?;
        }
        self.kept.insert(s.node, Kept::Channels { place, segment, width });
        Ok(())
    }

    /// Loads what a value at `idx` is formed from, as far as it is given and stands at the same index: later uses find it in
    /// registers. Stops at kept values and at those of `kept_later`.
    pub(super) fn load_ahead(&mut self, id: ValueId, idx: &[Ix], kept_later: &BTreeSet<ValueId>) -> Res<()> {
        if self.kept.contains_key(&id) || kept_later.contains(&id) {
            return Ok(());
        }
        self.load_operands_ahead(id, idx, kept_later)
    }

    /// As [`Gen::load_ahead`], for a value that is kept later itself.
    pub(super) fn load_operands_ahead(&mut self, id: ValueId, idx: &[Ix], kept_later: &BTreeSet<ValueId>) -> Res<()> {
        let node = self.g.node(id);
        match &node.op {
            Op::Input { .. } | Op::Weight { .. } => self.eval(id, idx).map(|_| ()),
            Op::Unary(_) | Op::Cast(_) => self.load_ahead(node.args[0], idx, kept_later),
            Op::Binary(_) | Op::Broadcast(_) => node.args.iter().try_for_each(|&arg| {
                let at = self.operand_index(id, arg, idx)?;
                self.load_ahead(arg, &at, kept_later)
            }),
            Op::Reshape(_) => {
                let at = self.reshaped_index(id, idx)?;
                self.load_ahead(node.args[0], &at, kept_later)
            }
            Op::Slice { axis, start, .. } => {
                let at = self.sliced_index(id, (*axis, *start), idx)?;
                self.load_ahead(node.args[0], &at, kept_later)
            }
            Op::GatherRows | Op::EmbedRows if self.by_neighbours => self.eval(id, idx).map(|_| ()),
            Op::Reduce { axis, .. } if self.by_neighbours && !self.is_wide(id)? => {
                let (arg, a) = (node.args[0], self.axis(node.args[0], *axis)?);
                for j in 0..self.dims(arg)?[a] {
                    let mut at = idx.to_vec();
                    at[a] = Ix::Const(j);
                    self.load_ahead(arg, &at, kept_later)?;
                }
                Ok(())
            }
            Op::CausalConv => {
                let terms = self.conv_terms(id, idx)?;
                self.taps.insert((id, idx.to_vec()), terms);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
