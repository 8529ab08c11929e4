//! State: one function resolves token and pool rows through the block table; writes happen once and never outside.

use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;
use unglue_ir::types::StateKind;
use unglue_passes::schedule::strip_reshapes;

use super::index::{Ix, unflatten};
use super::interface::state_leaf;
use super::{Gen, Res, StepBuffer, StepScalar};
use crate::kp::{Addr, Bin, Cmp, Place, Val};

/// The sequence of the current row.
#[derive(Clone, Copy, Debug)]
pub struct RowPlace {
    /// Sequence number, 0 if the row is padding.
    pub seq: Val,
    /// Row of the step where the sequence starts.
    pub start: Val,
    /// Slot, 0 if there is none.
    pub slot: Val,
    /// The row belongs to a sequence.
    pub known: Val,
    /// The row belongs to a sequence with a slot inside the state.
    pub live: Val,
    pub position: Val,
}

/// The sequence that a workgroup has.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    /// Its rows of the step, from `start` to before `end`.
    pub start: Val,
    pub end: Val,
    /// Slot, 0 if there is none.
    pub slot: Val,
    /// It has a slot inside the state.
    pub live: Val,
}

impl Gen<'_> {
    pub fn state_kind(&self, id: ValueId) -> Res<&StateKind> {
        match self.g.ty(id).state() {
            Some(s) => Ok(&s.kind),
            None => self.fault(id, "not a state"),
        }
    }

    /// Slot of a sequence, with a flag that it exists.
    pub fn slot_of(&mut self, seq: Val) -> (Val, Val) {
        let slot = self.step_value(StepBuffer::Slot, seq);
        let max = self.scalar(StepScalar::MaxSlots);
        let zero = self.b.i(0);
        let (ge, lt) = (self.b.cmp(Cmp::Ge, slot, zero), self.b.cmp(Cmp::Lt, slot, max));
        let fine = self.b.and(ge, lt);
        (self.b.select(fine, slot, zero), fine)
    }

    pub fn row_place(&mut self) -> RowPlace {
        let raw = self.row_step(StepBuffer::RowSeq);
        let seqs = self.scalar(StepScalar::Seqs);
        let zero = self.b.i(0);
        let (ge, lt) = (self.b.cmp(Cmp::Ge, raw, zero), self.b.cmp(Cmp::Lt, raw, seqs));
        let known = self.b.and(ge, lt);
        let seq = self.b.select(known, raw, zero);
        let start = self.step_value(StepBuffer::QStart, seq);
        let (slot, has_slot) = self.slot_of(seq);
        let live = self.b.and(known, has_slot);
        let position = self.row_step(StepBuffer::Positions);
        RowPlace { seq, start, slot, known, live, position }
    }

    /// Physical row of a token (or, with `pool`, of its pool) and whether it exists. Uniform position.
    pub fn token_row(&mut self, seq: Val, position: Val, pool: u64) -> (Val, Val) {
        let size = self.scalar(StepScalar::BlockSize);
        let per_seq = self.scalar(StepScalar::BlocksPerSeq);
        let blocks = self.scalar(StepScalar::NumBlocks);
        let zero = self.b.i(0);
        let not_negative = self.b.cmp(Cmp::Ge, position, zero);
        let position = self.b.select(not_negative, position, zero);
        let (entry, inside) = (self.b.div(position, size), self.b.rem(position, size));
        let known = self.b.cmp(Cmp::Lt, entry, per_seq);
        let known = self.b.and(known, not_negative);
        let entry = self.b.select(known, entry, zero);
        let line = self.b.mul(seq, per_seq);
        let at = self.b.add(line, entry);
        let block = self.step_value(StepBuffer::BlockTable, at);
        let (ge, lt) = (self.b.cmp(Cmp::Ge, block, zero), self.b.cmp(Cmp::Lt, block, blocks));
        let exists = self.b.and(ge, lt);
        let fine = self.b.and(exists, known);
        let block = self.b.select(fine, block, zero);
        let pool = self.b.i(pool as i64);
        let (rows, inside) = (self.b.div(size, pool), self.b.div(inside, pool));
        let (block, rows, inside) = (self.b.wide(block), self.b.wide(rows), self.b.wide(inside));
        let first = self.b.bin(Bin::Mul, block, rows);
        (self.b.bin(Bin::Add, first, inside), fine)
    }

    /// `row * width` as i64.
    pub fn scaled(&mut self, row: Val, width: u64) -> Val {
        let row = self.b.wide(row);
        let width = self.b.i64(width as i64);
        self.b.bin(Bin::Mul, row, width)
    }

    fn state_place(&mut self, id: ValueId) -> Res<(ValueId, Place)> {
        let leaf = state_leaf(self.g, id);
        let (place, _) = self.leaf(leaf)?;
        Ok((leaf, place))
    }

    /// Element `flat` of row `row` of a leaf activation.
    fn row_of(&mut self, x: ValueId, row: Val, flat: Ix) -> Res<Val> {
        let elements = self.elements(x)?;
        let leaf = strip_reshapes(self.g, x);
        let (place, _) = self.leaf(leaf)?;
        let n = self.b.i(elements as i64);
        let base = self.b.mul(row, n);
        Ok(self.load(place, Some(base), flat))
    }

    /// Causal convolution at one channel: taps by fma from +0, oldest first.
    pub fn eval_conv(&mut self, id: ValueId, idx: &[Ix]) -> Res<Val> {
        let loaded = self.taps.remove(&(id, idx.to_vec()));
        let terms = match loaded {
            Some(terms) => terms,
            None => self.conv_terms(id, idx)?,
        };
        let mut acc = self.b.f(0.0);
        for [value, weight] in terms {
            acc = self.b.fma(value, weight, acc);
        }
        Ok(acc)
    }

    /// Values and taps of a convolution at one channel, oldest first. Both places where a value may stand are loaded, the
    /// row of the step and the line of the window: no load waits behind a branch.
    pub(super) fn conv_terms(&mut self, id: ValueId, idx: &[Ix]) -> Res<Vec<[Val; 2]>> {
        let args = self.g.node(id).args.clone();
        let dims = self.dims(args[1])?;
        let (channels, taps) = (dims[0], dims[1]);
        let (_, state) = self.state_place(args[2])?;
        let (start, slot, live) = match self.sequence {
            Some(s) => (s.start, s.slot, s.live),
            None => {
                let p = self.row_place();
                (p.start, p.slot, p.live)
            }
        };
        let place = self.b.sub(self.row, start);
        let mut terms = Vec::new();
        for w in 0..taps {
            let weight = self.eval(args[1], &[idx[0], Ix::Const(w)])?;
            let back = (taps - 1 - w) as i64;
            if back == 0 {
                let now = self.row_of(args[0], self.row, idx[0])?;
                terms.push([self.lane_like(now, idx), weight]);
                continue;
            }
            let recent = self.is(Cmp::Ge, place, back);
            let (distance, line, zero) = (self.b.i(back), self.b.i(w as i64), self.b.i(0));
            let row = self.b.sub(self.row, distance);
            let row = self.b.select(recent, row, self.row);
            let line = self.b.add(place, line);
            let line = self.b.select(recent, zero, line);
            let new = self.row_of(args[0], row, idx[0])?;
            let old = self.slot_line(state, slot, taps - 1, line, channels, idx[0]);
            let nothing = self.b.f(0.0);
            let old = self.b.select(live, old, nothing);
            let (new, old) = (self.lane_like(new, idx), self.lane_like(old, idx));
            terms.push([self.b.select(recent, new, old), weight]);
        }
        Ok(terms)
    }

    /// Gives both sides of a choice one shape.
    fn lane_like(&mut self, v: Val, idx: &[Ix]) -> Val {
        let lanes = idx.iter().any(|i| matches!(i, Ix::Seq { .. } | Ix::Wide { .. } | Ix::Lane(_)));
        if lanes { self.b.splat(v, 1) } else { v }
    }

    /// `state[slot][line][at]` of a slot state of `lines` lines.
    fn slot_line(&mut self, state: Place, slot: Val, lines: u64, line: Val, width: u64, at: Ix) -> Val {
        let first = self.scaled(slot, lines * width);
        let offset = self.scaled(line, width);
        let base = self.b.bin(Bin::Add, first, offset);
        self.load(state, Some(base), at)
    }

    /// Rows of the current row's pool: from this step, else from the tail; later places are 0.
    pub fn eval_pool_window(&mut self, id: ValueId, part: u32, idx: &[Ix]) -> Res<Val> {
        let args = self.g.node(id).args.clone();
        let StateKind::Tail { pool, width } = *self.state_kind(args[1])? else { return self.fault(id, "not a tail") };
        let Some(place) = idx[0].uniform(&mut self.b) else { return self.fault(id, "a lane index of the pool axis") };
        let (_, state) = self.state_place(args[1])?;
        let p = self.row_place();
        let k = self.b.i(pool as i64);
        let own = self.b.rem(p.position, k);
        let back = self.b.sub(own, place);
        let past = self.is(Cmp::Ge, back, 0);
        let row = self.b.sub(self.row, back);
        let recent = self.b.cmp(Cmp::Ge, row, p.start);
        let value = self.choose(
            recent,
            |s| {
                // Places after the row's own are masked below; the row number must stay inside the step.
                let safe = s.b.select(past, row, s.row);
                let v = s.row_of(args[0], safe, idx[1])?;
                Ok(s.lane_like(v, idx))
            },
            |s| {
                let line = s.b.i(i64::from(part) * pool as i64);
                let line = s.b.add(line, place);
                let v = s.slot_line(state, p.slot, 2 * pool, line, width, idx[1]);
                let nothing = s.b.f(0.0);
                let v = s.b.select(p.live, v, nothing);
                Ok(s.lane_like(v, idx))
            },
        )?;
        let nothing = self.b.f(0.0);
        Ok(self.b.select(past, value, nothing))
    }

    /// Writes the new version of a state for the current row.
    pub fn write_state(&mut self, id: ValueId) -> Res<()> {
        let args = self.g.node(id).args.clone();
        match self.g.node(id).op {
            Op::TokenWrite => self.write_paged(id, args[0], 1),
            Op::PoolWrite => {
                let StateKind::Pool { pool, .. } = *self.state_kind(args[1])? else {
                    return self.fault(id, "not a pool");
                };
                self.write_paged(id, args[0], pool)
            }
            Op::TailUpdate => self.write_tail(id, &args),
            Op::ConvUpdate => {
                let channels = self.elements(args[0])?;
                let p = self.row_place();
                let next = self.b.i(1);
                let next = self.b.add(p.seq, next);
                let end = self.step_value(StepBuffer::QStart, next);
                let one = self.b.i(1);
                let after = self.b.add(self.row, one);
                let last = self.b.cmp(Cmp::Eq, after, end);
                let doit = self.b.and(last, p.live);
                self.when(doit, |s| s.for_elements(channels, |s, at| s.shift_window(id, p.start, end, p.slot, at)))
            }
            _ => self.fault(id, "writes no state"),
        }
    }

    fn write_paged(&mut self, id: ValueId, x: ValueId, pool: u64) -> Res<()> {
        let width = self.elements(x)?;
        let (_, state) = self.state_place(id)?;
        let p = self.row_place();
        let (row, exists) = self.token_row(p.seq, p.position, pool);
        let mut doit = self.b.and(p.live, exists);
        if pool > 1 {
            let k = self.b.i(pool as i64);
            let own = self.b.rem(p.position, k);
            let last = self.is(Cmp::Eq, own, pool as i64 - 1);
            doit = self.b.and(doit, last);
        }
        let base = self.scaled(row, width);
        self.when(doit, |s| {
            s.for_elements(width, |s, at| {
                let dims = s.dims(x)?;
                let idx = unflatten(&dims, at, &mut s.b);
                let v = s.eval(x, &idx)?;
                s.store(state, Some(base), at, v);
                Ok(())
            })
        })
    }

    /// The last row of the step for each place of the tail is kept.
    fn write_tail(&mut self, id: ValueId, args: &[ValueId]) -> Res<()> {
        let StateKind::Tail { pool, width } = *self.state_kind(id)? else { return self.fault(id, "not a tail") };
        let (_, state) = self.state_place(id)?;
        let p = self.row_place();
        let one = self.b.i(1);
        let next = self.b.add(p.seq, one);
        let end = self.step_value(StepBuffer::QStart, next);
        let k = self.b.i(pool as i64);
        let later = self.b.add(self.row, k);
        let last = self.b.cmp(Cmp::Ge, later, end);
        let doit = self.b.and(last, p.live);
        let place = self.b.rem(p.position, k);
        self.when(doit, |s| {
            for (part, &x) in args[..2].iter().enumerate() {
                let line = s.b.i(part as i64 * pool as i64);
                let line = s.b.add(line, place);
                let first = s.scaled(p.slot, 2 * pool * width);
                let offset = s.scaled(line, width);
                let base = s.b.bin(Bin::Add, first, offset);
                s.for_elements(width, |s, at| {
                    let v = s.eval(x, &[at])?;
                    s.store(state, Some(base), at, v);
                    Ok(())
                })?;
            }
            Ok(())
        })
    }

    /// One channel of a convolution window: lines move up by the sequence's rows.
    pub fn shift_window(&mut self, id: ValueId, start: Val, end: Val, slot: Val, at: Ix) -> Res<()> {
        let lines = self.window_lines(id, (start, end), slot, at)?;
        self.replace_window(id, slot, at, &lines)
    }

    /// The next lines of one channel of a convolution window, for a sequence that has a row. Line i holds what was i rows
    /// after the oldest that is kept; as with [`Gen::conv_terms`] no load waits behind a branch.
    pub(super) fn window_lines(&mut self, id: ValueId, (start, end): (Val, Val), slot: Val, at: Ix) -> Res<Vec<Val>> {
        let (x, old) = (self.g.node(id).args[0], self.g.node(id).args[1]);
        let StateKind::Slot { shape } = self.state_kind(old)?.clone() else {
            return self.fault(id, "not a slot state");
        };
        let (lines, width) = (shape[0], shape[1]);
        let (_, state) = self.state_place(id)?;
        let count = self.b.sub(end, start);
        let mut out = Vec::new();
        for line in 0..lines {
            let back = self.b.i(line as i64 - lines as i64);
            let row = self.b.add(count, back);
            let recent = self.is(Cmp::Ge, row, 0);
            let (zero, from) = (self.b.i(0), self.b.i(line as i64));
            let row = self.b.select(recent, row, zero);
            let row = self.b.add(start, row);
            let from = self.b.add(from, count);
            let from = self.b.select(recent, zero, from);
            let new = self.row_of(x, row, at)?;
            let old = self.slot_line(state, slot, lines, from, width, at);
            let (new, old) = (self.lane_like(new, &[at]), self.lane_like(old, &[at]));
            out.push(self.b.select(recent, new, old));
        }
        Ok(out)
    }

    /// Stores all lines of one channel of a convolution window.
    pub(super) fn replace_window(&mut self, id: ValueId, slot: Val, at: Ix, lines: &[Val]) -> Res<()> {
        let (_, state) = self.state_place(id)?;
        let width = self.elements(self.g.node(id).args[0])?;
        for (i, &line) in (0u64..).zip(lines) {
            let first = self.scaled(slot, lines.len() as u64 * width);
            let offset = self.b.i64((i * width) as i64);
            let base = self.b.bin(Bin::Add, first, offset);
            self.store(state, Some(base), at, line);
        }
        Ok(())
    }

    pub fn store(&mut self, to: Place, base: Option<Val>, at: Ix, v: Val) {
        let addr = at.address(base, &mut self.b);
        let bound = match at {
            Ix::Seq { .. } | Ix::Wide { .. } | Ix::Lane(_) => self.bound(),
            _ => crate::kp::Bound::All,
        };
        if let Addr::Uniform { .. } = addr {
            let v = match self.b.ty(v) {
                crate::kp::Ty::Uniform(_) => v,
                _ => {
                    let first = self.b.i(0);
                    self.b.read_lane(v, first)
                }
            };
            self.b.store(to, addr, bound, v);
        } else {
            self.b.store(to, addr, bound, v);
        }
    }

    /// Stores all elements of an output for the current row.
    pub fn write_output(&mut self, number: usize) -> Res<()> {
        let (name, value) = &self.g.outputs[number];
        let v = strip_reshapes(self.g, *value);
        let dims = self.dims(v)?;
        let n: u64 = dims.iter().product();
        let mem = self.mem(v)?;
        let place = self.iface.output(&mut self.b, name, mem);
        let base = self.row_base(&dims);
        self.form_elements((v, n), (place, Some(base)))
    }
}
