//! Weights that a kernel asks for before it waits for earlier launches.
//!
//! In skinny form a wave knows its weight rows from its number alone: it asks for the first bytes of them. Experts' weights
//! follow from ids, which an earlier launch writes.

use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;
use unglue_ir::order::Order;
use unglue_passes::schedule::{Form, Segment, Skinny, YAxis, strip_reshapes};

use super::packed::INT4_PER_WORD;
use super::{Gen, Part, Res};
use crate::kp::{Bin, Cmp, Place, Val};

/// Bytes of which weight rows must be a multiple.
const UNIT: u64 = 16;

impl<'a> Gen<'a> {
    /// Puts what is asked for in front of the await. Comes last: the parameters are there.
    pub(super) fn prefetches(&mut self, parts: &'a [Part<'a>]) -> Res<()> {
        let mut b = std::mem::replace(&mut self.b, crate::kp::build::Builder::new("", 1));
        let out = b.ahead(|b| {
            std::mem::swap(&mut self.b, b);
            let out = if parts.is_empty() { self.of_form() } else { self.of_sections(parts) };
            std::mem::swap(&mut self.b, b);
            out
        });
        self.b = b;
        out
    }

    fn of_sections(&mut self, parts: &'a [Part<'a>]) -> Res<()> {
        let group = self.b.group(0);
        for part in parts.iter().filter(|part| matches!(part.section.schedule.form, Form::Skinny(_))) {
            let first = part.section.first;
            let inside = self.in_range(group, first, first + part.section.workgroups());
            self.when(inside, |g| {
                let kernel = (g.g, g.schedule);
                (g.g, g.schedule) = (&part.graph, &part.section.schedule);
                g.place = Some(g.place_in(part.section, group));
                let out = g.of_form();
                (g.g, g.schedule, g.place) = (kernel.0, kernel.1, None);
                out
            })?;
        }
        Ok(())
    }

    fn of_form(&mut self) -> Res<()> {
        let Form::Skinny(s) = &self.schedule.form else { return Ok(()) };
        let block = self.group(0);
        let mut start = 0u64;
        for segment in &s.segments {
            let blocks = Skinny::blocks(segment, self.b.waves());
            let anchors: Vec<ValueId> = segment.anchors.iter().copied().filter(|a| self.is_known(*a)).collect();
            if !anchors.is_empty() {
                let mine = self.in_range(block, start, start + blocks);
                let first = self.b.i(start as i64);
                let local = self.b.sub(block, first);
                self.when(mine, |g| g.of_segment(s, segment, local, &anchors))?;
            }
            start += blocks;
        }
        Ok(())
    }

    /// True if a wave's weight rows follow one another and from its number.
    fn is_known(&self, anchor: ValueId) -> bool {
        let node = self.g.node(anchor);
        let weight = node.args.last().map(|w| &self.g.node(strip_reshapes(self.g, *w)).op);
        let strided = matches!(node.op, Op::BatchMatMul { transposed: true, order: Order::Strided(_) });
        matches!(node.op, Op::MatMul { .. } | Op::BatchMatMul { .. })
            && !strided
            && matches!(weight, Some(Op::Weight { .. }))
    }

    fn of_segment(&mut self, s: &Skinny, segment: &Segment, local: Val, anchors: &[ValueId]) -> Res<()> {
        // Waves that share sums ask for the same rows, each for no more than its share of the workgroup's bytes.
        let sets = self.b.i(i64::from(self.b.waves() / segment.split_k));
        let set = self.set_number(segment.split_k);
        let number = self.b.mul(local, sets);
        let number = self.b.add(number, set);
        let per = self.b.i(i64::from(segment.outputs_per_wave));
        let n0 = self.b.mul(number, per);
        let all = self.b.i(segment.n as i64);
        let left = self.b.sub(all, n0);
        let outputs = self.b.bin(Bin::Min, left, per);
        let zero = self.b.i(0);
        let has = self.b.cmp(Cmp::Lt, zero, outputs);
        let share = self.b.waves() * anchors.len() as u32;
        self.when(has, |g| anchors.iter().try_for_each(|a| g.of_anchor(s.y, *a, [n0, outputs], share)))
    }

    /// Asks for the rows of some outputs of a contraction.
    fn of_anchor(&mut self, y: YAxis, anchor: ValueId, [n0, outputs]: [Val; 2], share: u32) -> Res<()> {
        let args = &self.g.node(anchor).args;
        let weight = strip_reshapes(self.g, *args.last().unwrap_or(&anchor));
        let k = self.dims(args[0])?.last().copied().unwrap_or(1);
        let shape = self.dims(*args.last().unwrap_or(&anchor))?;
        let (Place::Buffer(from), mem) = self.leaf(weight)? else { return Ok(()) };
        let row_len = if self.packed(weight).is_some() { k / INT4_PER_WORD } else { k };
        let row_bytes = row_len * mem.bytes();
        if !row_bytes.is_multiple_of(UNIT) {
            return Ok(());
        }
        let mut base = self.scaled(n0, row_len);
        if matches!(self.g.node(anchor).op, Op::BatchMatMul { .. }) && matches!(y, YAxis::Choices(_) | YAxis::Heads(_))
        {
            let head = self.group(1);
            let before = self.scaled(head, shape.iter().skip(1).product());
            base = self.b.bin(Bin::Add, base, before);
        }
        let row_bytes = self.b.i(row_bytes as i64);
        let bytes = self.b.mul(outputs, row_bytes);
        self.b.prefetch(from, base, bytes, share);
        Ok(())
    }
}
