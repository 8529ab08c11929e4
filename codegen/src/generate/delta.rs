//! Delta form: one workgroup a sequence and head. Each lane owns one value column of the state, in registers.

use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;
use unglue_ir::order::Order;
use unglue_passes::schedule::{Form, Staged};

use super::index::Ix;
use super::interface::state_leaf;
use super::{Gen, Kept, Res, StepBuffer, StepScalar};
use crate::kp::{Bin, Cmp, Mem, Place, Val};

/// The state of one head.
struct Head {
    state: Place,
    /// First element of the head's state.
    base: Val,
    keys: u64,
    values: u64,
    parts: u64,
    chains: u64,
    live: Val,
}

impl Head {
    /// Keys that one lane holds.
    fn own_keys(&self) -> u64 {
        self.keys.div_ceil(self.parts)
    }

    /// Chains that one part sums.
    fn own_chains(&self) -> u64 {
        self.chains / self.parts
    }
}

impl Gen<'_> {
    pub fn delta_form(&mut self, node: ValueId, heads: u64) -> Res<()> {
        let Form::Delta { keys, values, parts, .. } = self.schedule.form else { return self.fault(node, "form") };
        let Op::DeltaRule { order: Order::Strided(chains) } = self.g.node(node).op else {
            return self.fault(node, "order");
        };
        let (head, seq) = (self.group(0), self.group(1));
        let seqs = self.scalar(StepScalar::Seqs);
        let here = self.b.cmp(Cmp::Lt, seq, seqs);
        self.when(here, |s| {
            s.head = Some((heads, head));
            let one = s.b.i(1);
            let next = s.b.add(seq, one);
            let (start, end) = (s.step_value(StepBuffer::QStart, seq), s.step_value(StepBuffer::QStart, next));
            let (slot, live) = s.slot_of(seq);
            let (state, _) = s.leaf(state_leaf(s.g, node))?;
            let first = s.scaled(slot, heads * keys * values);
            let offset = s.scaled(head, keys * values);
            let base = s.b.bin(Bin::Add, first, offset);
            let h = Head { state, base, keys, values, parts, chains: u64::from(chains), live };
            s.delta_rows(node, &h, (start, end))?;
            let some = s.b.cmp(Cmp::Gt, end, start);
            let doit = s.b.and(live, some);
            s.when(doit, |s| s.shift_channels((start, end), slot, heads, keys))
        })
    }

    /// Waves over the value columns.
    fn column_waves(&mut self, h: &Head) -> u64 {
        u64::from(self.b.waves()) / h.parts
    }

    /// Column of this lane.
    fn column(&mut self, h: &Head) -> Ix {
        let waves = self.column_waves(h);
        let (wave, n) = (self.b.wave(), self.b.i(waves as i64));
        let wave = self.b.rem(wave, n);
        let lanes = self.b.i(32);
        let base = self.b.mul(wave, lanes);
        let at = Ix::Seq { base, aligned: true };
        if !h.values.is_multiple_of(32 * waves) {
            self.mask_below(at, h.values);
        }
        at
    }

    /// Key number `i` of this wave's part: part p has the chains p * own .. of every round.
    fn key(&mut self, h: &Head, i: u64) -> Ix {
        if h.parts == 1 {
            return Ix::Const(i);
        }
        let own = h.own_chains();
        let start = i / own * h.chains + i % own;
        let part = self.part(h);
        let offset = self.b.i(own as i64);
        let offset = self.b.mul(part, offset);
        let start = self.b.i(start as i64);
        Ix::uni(self.b.add(offset, start))
    }

    fn part(&mut self, h: &Head) -> Val {
        let waves = self.column_waves(h);
        let (wave, n) = (self.b.wave(), self.b.i(waves as i64));
        self.b.div(wave, n)
    }

    /// First element of a key's row of the head's state.
    fn key_row(&mut self, h: &Head, i: u64) -> Val {
        let key = self.key(h, i);
        let row = key.uniform(&mut self.b).unwrap_or(h.base);
        let offset = self.scaled(row, h.values);
        self.b.bin(Bin::Add, h.base, offset)
    }

    fn delta_rows(&mut self, node: ValueId, h: &Head, (start, end): (Val, Val)) -> Res<()> {
        let outer = self.mask;
        let column = self.column(h);
        let zero = self.b.f(0.0);
        let mut init = Vec::new();
        for i in 0..h.own_keys() {
            let base = self.key_row(h, i);
            let v = self.load(h.state, Some(base), column);
            init.push(self.b.select(h.live, v, zero));
        }
        let staged = self.schedule.staged.clone();
        let behind = self.behind(node);
        self.mask = outer;
        let last = self.looped((start, end, 1), &init, |s, row, state| {
            s.row = row;
            let before: Vec<Staged> = staged.iter().copied().filter(|k| !behind.contains(&k.node)).collect();
            s.keep_all(&before, 1)?;
            let (o, next) = s.delta_step(node, h, state)?;
            s.keep_result(node, h, o)?;
            let after: Vec<Staged> =
                staged.iter().copied().filter(|k| behind.contains(&k.node) && !s.kept.contains_key(&k.node)).collect();
            s.keep_all(&after, 1)?;
            for i in 0..s.g.outputs.len() {
                if s.g.ty(s.g.outputs[i].1).tensor().is_some() {
                    s.write_head_output(i)?;
                }
            }
            // The next row replaces what this one keeps in workgroup memory.
            s.b.barrier();
            Ok(next)
        })?;
        self.when(h.live, |s| {
            let column = s.column(h);
            for (i, &v) in last.iter().enumerate() {
                let base = s.key_row(h, i as u64);
                s.store(h.state, Some(base), column, v);
            }
            Ok(())
        })
    }

    /// Values that follow from the rule's result.
    fn behind(&self, node: ValueId) -> std::collections::BTreeSet<ValueId> {
        let mut set = std::collections::BTreeSet::from([node]);
        for id in self.g.ids() {
            if self.g.node(id).args.iter().any(|a| set.contains(a)) {
                set.insert(id);
            }
        }
        set
    }

    /// One row of the rule: decay, prediction, correction, update, output.
    fn delta_step(&mut self, node: ValueId, h: &Head, state: &[Val]) -> Res<(Val, Vec<Val>)> {
        let n = self.g.node(node);
        let [q, k, v, decay, beta] = [n.args[0], n.args[1], n.args[2], n.args[3], n.args[4]];
        let outer = self.mask;
        let column = self.column(h);
        let head = self.head.map_or(Ix::Const(0), |(_, number)| Ix::uni(number));
        let mut decayed = Vec::new();
        let mut sums = self.no_sums(h);
        for (i, &s) in state.iter().enumerate() {
            let at = [head, self.key(h, i as u64)];
            let (g, key) = (self.eval(decay, &at)?, self.eval(k, &at)?);
            let s = self.b.mul(s, g);
            let c = i % sums.len();
            sums[c] = self.b.fma(key, s, sums[c]);
            decayed.push(s);
        }
        let predicted = self.key_total(h, sums, column);
        let (value, beta) = (self.eval(v, &[head, column])?, self.eval(beta, &[head, Ix::Const(0)])?);
        let error = self.b.sub(value, predicted);
        let delta = self.b.mul(error, beta);
        let mut sums = self.no_sums(h);
        let mut next = Vec::new();
        for (i, &s) in decayed.iter().enumerate() {
            let at = [head, self.key(h, i as u64)];
            let (key, query) = (self.eval(k, &at)?, self.eval(q, &at)?);
            let s = self.b.fma(key, delta, s);
            let c = i % sums.len();
            sums[c] = self.b.fma(query, s, sums[c]);
            next.push(s);
        }
        let o = self.key_total(h, sums, column);
        self.mask = outer;
        Ok((o, next))
    }

    fn no_sums(&mut self, h: &Head) -> Vec<Val> {
        let zero = self.b.f(0.0);
        vec![self.b.splat(zero, 1); h.own_chains() as usize]
    }

    /// Sum over all keys, in every lane. Parts meet in workgroup memory: the tree's first step. May hold a barrier.
    fn key_total(&mut self, h: &Head, mut sums: Vec<Val>, column: Ix) -> Val {
        if h.parts == 1 {
            // Chains without a term in the last round add +0.
            let (zero, rest) = (self.b.f(0.0), h.keys as usize % sums.len());
            if rest > 0 {
                for s in &mut sums[rest..] {
                    *s = self.b.bin(Bin::Add, *s, zero);
                }
            }
            return self.strided_total(&sums);
        }
        let own = h.own_chains();
        let place = self.b.shared("chains", Mem::F32, h.chains * h.values);
        let part = self.part(h);
        let width = self.b.i((own * h.values) as i64);
        let first = self.b.mul(part, width);
        for (c, &s) in sums.iter().enumerate() {
            let line = self.b.i((c as u64 * h.values) as i64);
            let base = self.b.add(first, line);
            self.store(place, Some(base), column, s);
        }
        self.b.barrier();
        let all: Vec<Val> = (0..h.chains)
            .map(|c| {
                let line = self.b.i((c * h.values) as i64);
                self.load(place, Some(line), column)
            })
            .collect();
        self.strided_total(&all)
    }

    /// The result leaves the lanes through workgroup memory.
    fn keep_result(&mut self, node: ValueId, h: &Head, o: Val) -> Res<()> {
        let Some(result) =
            self.g.ids().find(|id| self.g.node(*id).op == Op::Project(0) && self.g.node(*id).args[0] == node)
        else {
            return Ok(());
        };
        let place = self.shared_array(result, Mem::F32, h.values);
        let part = self.part(h);
        let first = self.is(Cmp::Eq, part, 0);
        self.when(first, |s| {
            let outer = s.mask;
            let column = s.column(h);
            s.store(place, None, column, o);
            s.mask = outer;
            Ok(())
        })?;
        self.b.barrier();
        self.kept.insert(result, Kept::Shared { place, elements: h.values, by_row: false });
        Ok(())
    }

    /// An output's elements of this head.
    fn write_head_output(&mut self, number: usize) -> Res<()> {
        let (name, value) = &self.g.outputs[number];
        let v = unglue_passes::schedule::strip_reshapes(self.g, *value);
        let dims = self.dims(v)?;
        let Some((heads, head)) = self.head else { return self.fault(v, "no head") };
        if dims.len() != 2 || dims[0] != heads {
            return self.fault(v, "an output without a head axis");
        }
        let mem = self.mem(v)?;
        let place = self.iface.output(&mut self.b, name, mem);
        let row = self.row_base(&dims);
        let width = self.b.i(dims[1] as i64);
        let line = self.b.mul(head, width);
        let base = self.b.add(row, line);
        self.for_elements(dims[1], |s, at| {
            let x = s.eval(v, &[Ix::uni(head), at])?;
            s.store(place, Some(base), at, x);
            Ok(())
        })
    }

    /// Moves the convolution window of this head's channels on.
    fn shift_channels(&mut self, (start, end): (Val, Val), slot: Val, heads: u64, keys: u64) -> Res<()> {
        let update = self.g.ids().find(|id| self.g.node(*id).op == Op::ConvUpdate);
        let (Some(update), Some((_, head))) = (update, self.head) else { return Ok(()) };
        let channels = self.elements(self.g.node(update).args[0])?;
        let segment = heads * keys;
        for s in 0..channels / segment {
            let width = self.b.i(keys as i64);
            let own = self.b.mul(head, width);
            let first = self.b.i((s * segment) as i64);
            let base = self.b.add(first, own);
            let offset = Ix::Uni { val: base, aligned: keys.is_multiple_of(32) && (s * segment).is_multiple_of(32) };
            self.for_elements(keys, |g, at| {
                let at = at.add(offset, &mut g.b);
                g.shift_window(update, start, end, slot, at)
            })?;
        }
        Ok(())
    }
}
