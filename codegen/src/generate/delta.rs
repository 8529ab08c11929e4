//! Delta form: one workgroup a sequence and head, or several that share the head's columns. Each lane owns one value column
//! of the state, in registers.
//!
//! A row takes three round trips of memory: who the sequence is, then everything that is given, then what is stored. So all
//! loads of a row come first ([`super::heads`]), and what is formed from them meets in workgroup memory ([`super::levels`]).

use std::collections::BTreeSet;

use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;
use unglue_ir::order::Order;
use unglue_passes::schedule::{Finish, Form, Staged, strip_reshapes};

use super::heads::HeadRows;
use super::index::Ix;
use super::interface::state_leaf;
use super::levels::Spot;
use super::state::Sequence;
use super::{Gen, Kept, Res, StepBuffer, StepScalar};
use crate::kp::{Bin, Cmp, Mem, Place, Val};

/// The state of one head.
pub(super) struct Head {
    state: Place,
    /// First element of the head's state.
    base: Val,
    heads: u64,
    keys: u64,
    values: u64,
    /// Sets of waves that share the keys.
    pub parts: u64,
    chains: u64,
    /// Value columns of this workgroup, and the first of them.
    own_values: u64,
    first: Ix,
    pub seq: Sequence,
    /// The sequence has rows in this step.
    some: Val,
}

/// One channel of the convolution window behind the step.
pub(super) struct NextWindow {
    update: ValueId,
    spot: Spot,
    channel: Ix,
    lines: Vec<Val>,
}

/// Kept values of a row by when they are formed.
struct Kinds<'a> {
    /// Contractions of given rows.
    matmuls: Vec<Staged>,
    /// Values over the channels of all heads.
    channels: Vec<Staged>,
    before: Vec<Staged>,
    /// What follows from the rule's result.
    behind: Vec<Staged>,
    /// Where workgroups share a head, what the last of them does.
    finish: Option<&'a Finish>,
}

impl Head {
    /// Keys that one lane holds.
    fn own_keys(&self) -> u64 {
        self.keys.div_ceil(self.parts)
    }

    /// Channels of all heads in a segment of a convolution, and of one head.
    fn channels(&self) -> (u64, u64) {
        (self.heads * self.keys, self.keys)
    }

    /// Chains that one part sums, or a stage of them.
    fn own_chains(&self) -> u64 {
        (self.chains / self.parts).max(1)
    }

    /// Parts that sum the same chains one after the other.
    fn stages(&self) -> u64 {
        (self.parts / self.chains).max(1)
    }

    /// Terms of a chain that one part sums.
    fn own_terms(&self) -> u64 {
        self.keys / self.chains / self.stages()
    }
}

impl<'a> Gen<'a> {
    pub fn delta_form(&mut self, node: ValueId, heads: u64) -> Res<()> {
        let Form::Delta { keys, values, parts, one_row: alone, .. } = self.schedule.form else {
            return self.fault(node, "form");
        };
        let Op::DeltaRule { order: Order::Strided(chains) } = self.g.node(node).op else {
            return self.fault(node, "order");
        };
        let own_values = values / self.schedule.shares();
        let ((head, first), number) = (self.head_and_first(own_values), self.group(1));
        let seqs = self.scalar(StepScalar::Seqs);
        let here = self.b.cmp(Cmp::Lt, number, seqs);
        self.when(here, |s| {
            s.head = Some((heads, head));
            let one = s.b.i(1);
            let next = s.b.add(number, one);
            let (start, end) = (s.step_value(StepBuffer::QStart, number), s.step_value(StepBuffer::QStart, next));
            let some = s.b.cmp(Cmp::Gt, end, start);
            let (slot, live) = s.slot_of(number);
            let (state, _) = s.leaf(state_leaf(s.g, node))?;
            let of_slot = s.scaled(slot, heads * keys * values);
            let offset = s.scaled(head, keys * values);
            let base = s.b.bin(Bin::Add, of_slot, offset);
            // A step of one row has that of its first sequence: no load waits for its number.
            let (start, end) = if alone { (s.b.i(0), s.b.i(1)) } else { (start, end) };
            let seq = Sequence { start, end, slot, live };
            s.sequence = Some(seq);
            let chains = u64::from(chains);
            let h = Head { state, base, heads, keys, values, parts, chains, own_values, first, seq, some };
            let next = if alone { s.only_row(node, &h)? } else { s.delta_rows(node, &h)? };
            s.store_states(&h, &next)
        })
    }

    /// Number of the workgroup's head, and the first of its columns.
    fn head_and_first(&mut self, own_values: u64) -> (Val, Ix) {
        let (number, shares) = (self.group(0), self.schedule.shares());
        if shares == 1 {
            return (number, Ix::Const(0));
        }
        let n = self.b.i(shares as i64);
        let share = Ix::uni(self.b.rem(number, n));
        (self.b.div(number, n), share.mul(own_values, &mut self.b))
    }

    /// Replaces the workgroup's columns of the state, and the head's channels of the convolution window where no other
    /// workgroup reads them. What the window moves is loaded first.
    fn store_states(&mut self, h: &Head, next: &[Val]) -> Res<()> {
        let doit = self.b.and(h.seq.live, h.some);
        let alone = self.schedule.shares() == 1;
        self.when(doit, |s| {
            let windows = if alone { s.next_windows(h)? } else { vec![] };
            let outer = s.mask;
            let column = s.column(h);
            for (i, &v) in next.iter().enumerate() {
                let base = s.key_row(h, i as u64);
                s.store(h.state, Some(base), column, v);
            }
            s.mask = outer;
            s.replace_windows(h, windows)
        })
    }

    pub(super) fn replace_windows(&mut self, h: &Head, windows: Vec<NextWindow>) -> Res<()> {
        for w in windows {
            self.at_spot(&w.spot, |s| s.replace_window(w.update, h.seq.slot, w.channel, &w.lines))?;
        }
        Ok(())
    }

    /// The next lines of the convolution window for this head's channels.
    fn next_windows(&mut self, h: &Head) -> Res<Vec<NextWindow>> {
        let update = self.g.ids().find(|id| self.g.node(*id).op == Op::ConvUpdate);
        let Some(update) = update else { return Ok(vec![]) };
        let channels = self.elements(self.g.node(update).args[0])?;
        let spots = self.spots(channels / h.heads);
        let lines = spots.into_iter().map(|spot| {
            let channel = self.head_channel(spot.at, h.channels());
            let Sequence { start, end, slot, .. } = h.seq;
            let lines = self.window_lines(update, (start, end), slot, channel)?;
            Ok(NextWindow { update, spot, channel, lines })
        });
        lines.collect()
    }

    /// Waves over the value columns.
    fn column_waves(&mut self, h: &Head) -> u64 {
        u64::from(self.b.waves()) / h.parts
    }

    /// Column of this lane, of the head's.
    pub(super) fn column(&mut self, h: &Head) -> Ix {
        let own = self.own_column(h);
        own.add(h.first, &mut self.b)
    }

    /// Column of this lane, of the workgroup's.
    fn own_column(&mut self, h: &Head) -> Ix {
        let waves = self.column_waves(h);
        let (wave, n) = (self.b.wave(), self.b.i(waves as i64));
        let wave = self.b.rem(wave, n);
        let lanes = self.b.i(32);
        let base = self.b.mul(wave, lanes);
        let at = Ix::Seq { base, aligned: true };
        if !h.own_values.is_multiple_of(32 * waves) {
            self.mask_below(at, h.own_values);
        }
        at
    }

    /// Key number `i` of this wave's part: part p has the chains p * own .. of every round. Of more parts than chains, every
    /// chains-th has the same chain, and later rounds of it.
    fn key(&mut self, h: &Head, i: u64) -> Ix {
        if h.parts == 1 {
            return Ix::Const(i);
        }
        let own = h.own_chains();
        let start = i / own * h.chains + i % own;
        let part = self.part(h);
        let offset = match h.stages() {
            1 => {
                let own = self.b.i(own as i64);
                self.b.mul(part, own)
            }
            _ => {
                let (chains, each) = (self.b.i(h.chains as i64), self.b.i((h.own_terms() * h.chains) as i64));
                let (stage, chain) = (self.b.div(part, chains), self.b.rem(part, chains));
                let rounds = self.b.mul(stage, each);
                self.b.add(rounds, chain)
            }
        };
        let start = self.b.i(start as i64);
        Ix::uni(self.b.add(offset, start))
    }

    pub(super) fn part(&mut self, h: &Head) -> Val {
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

    /// The head's state as it is stored, key by key.
    fn load_state(&mut self, h: &Head) -> Vec<Val> {
        let outer = self.mask;
        let column = self.column(h);
        let keys = (0..h.own_keys()).map(|i| {
            let base = self.key_row(h, i);
            self.load(h.state, Some(base), column)
        });
        let keys = keys.collect();
        self.mask = outer;
        keys
    }

    /// A sequence without a slot starts from zeros.
    fn of_live(&mut self, h: &Head, state: &[Val]) -> Vec<Val> {
        let zero = self.b.f(0.0);
        state.iter().map(|&v| self.b.select(h.seq.live, v, zero)).collect()
    }

    fn delta_rows(&mut self, node: ValueId, h: &Head) -> Res<Vec<Val>> {
        let init = self.load_state(h);
        let init = self.of_live(h, &init);
        let kinds = self.kinds(node)?;
        self.looped((h.seq.start, h.seq.end, 1), &init, |s, row, state| {
            s.row = row;
            let given = s.load_row(node, h, &kinds)?;
            s.keep_given(h, &kinds, &given)?;
            let next = s.row_rule(node, h, &kinds, state)?;
            s.write_head_outputs()?;
            // The next row replaces what this one keeps in workgroup memory.
            s.b.barrier();
            Ok(next)
        })
    }

    /// The row of a step that has one: without a loop, its loads and those of the state are in flight together.
    fn only_row(&mut self, node: ValueId, h: &Head) -> Res<Vec<Val>> {
        self.row = self.b.i(0);
        let kinds = self.kinds(node)?;
        let given = self.load_row(node, h, &kinds)?;
        let state = self.load_state(h);
        let windows = if kinds.finish.is_some() { self.next_windows(h)? } else { vec![] };
        self.keep_given(h, &kinds, &given)?;
        let state = self.of_live(h, &state);
        let Some(finish) = kinds.finish else {
            let next = self.row_rule(node, h, &kinds, &state)?;
            self.when(h.some, |s| s.write_head_outputs())?;
            return Ok(next);
        };
        self.keep_levels(&kinds.before)?;
        let (o, next) = self.delta_step(node, h, &state)?;
        self.when(h.some, |s| s.hand_over(h, finish, o)?.finish_head(h, finish, windows))?;
        self.taps.clear();
        Ok(next)
    }

    fn kinds(&self, node: ValueId) -> Res<Kinds<'a>> {
        let behind = self.behind(node);
        let finish = self.schedule.finish();
        let mut kinds = Kinds { matmuls: vec![], channels: vec![], before: vec![], behind: vec![], finish };
        for s in &self.schedule.staged {
            match self.g.node(s.node).op {
                Op::MatMul { .. } => kinds.matmuls.push(*s),
                _ if self.dims(s.node)?.len() == 1 => kinds.channels.push(*s),
                _ if behind.contains(&s.node) => kinds.behind.push(*s),
                _ => kinds.before.push(*s),
            }
        }
        // The result is kept where it is formed.
        kinds.behind.retain(|s| self.g.node(s.node).args.first() != Some(&node));
        let finished = finish.iter().flat_map(|f| f.staged.iter().filter(|s| !f.exchanged.contains(&s.node)));
        kinds.behind.extend(finished);
        Ok(kinds)
    }

    /// Starts all loads of a row: weight rows of the head's contractions, and what is given of all that is formed.
    fn load_row(&mut self, node: ValueId, h: &Head, kinds: &Kinds) -> Res<Vec<Option<HeadRows>>> {
        let rows = kinds.matmuls.iter().map(|s| self.load_head_rows(s)).collect::<Res<Vec<_>>>()?;
        let finished = kinds.finish.iter().flat_map(|f| &f.staged);
        let later: BTreeSet<ValueId> = self.schedule.staged.iter().chain(finished).map(|s| s.node).collect();
        for s in &kinds.channels {
            for spot in self.spots(s.elements) {
                let channel = self.head_channel(spot.at, h.channels());
                self.load_operands_ahead(s.node, &[channel], &later)?;
            }
        }
        for s in kinds.before.iter().chain(&kinds.behind) {
            for spot in self.spots(s.elements) {
                let at = if s.elements == 1 { Ix::Const(0) } else { spot.at };
                let idx = self.scope_index(s.node, at)?;
                self.load_operands_ahead(s.node, &idx, &later)?;
            }
        }
        let head = self.head.map_or(Ix::Const(0), |(_, number)| Ix::uni(number));
        let (outer, args) = (self.mask, &self.g.node(node).args);
        let column = self.column(h);
        self.load_ahead(args[2], &[head, column], &later)?;
        self.mask = outer;
        self.load_ahead(args[4], &[head, Ix::Const(0)], &later)?;
        let handed = kinds.finish.map_or(&[][..], |f| &f.exchanged);
        for &v in handed {
            let at = self.handed_index(h, v)?;
            self.load_operands_ahead(v, &at, &later)?;
        }
        for (_, v) in self.g.outputs.iter().filter(|(_, v)| self.g.ty(*v).tensor().is_some()) {
            let v = strip_reshapes(self.g, *v);
            if handed.contains(&v) {
                continue;
            }
            let width = self.dims(v)?.last().copied().unwrap_or(1);
            for spot in self.spots(width) {
                self.load_ahead(v, &[head, spot.at], &later)?;
            }
        }
        Ok(rows)
    }

    /// Keeps what follows from loads alone. Collective.
    fn keep_given(&mut self, h: &Head, kinds: &Kinds, rows: &[Option<HeadRows>]) -> Res<()> {
        for s in &kinds.channels {
            let spots = self.spots(s.elements);
            self.keep_channels(s, h.channels(), &spots)?;
        }
        rows.iter().flatten().for_each(|rows| self.keep_head_rows(rows));
        if !kinds.channels.is_empty() || rows.iter().any(Option::is_some) {
            self.b.barrier();
        }
        for (s, _) in kinds.matmuls.iter().zip(rows).filter(|(_, rows)| rows.is_none()) {
            self.keep_head_matmul(s)?;
        }
        Ok(())
    }

    /// One row from what is kept of it; gives the state behind it.
    fn row_rule(&mut self, node: ValueId, h: &Head, kinds: &Kinds, state: &[Val]) -> Res<Vec<Val>> {
        self.keep_levels(&kinds.before)?;
        let (o, next) = self.delta_step(node, h, state)?;
        self.keep_result(node, h, o)?;
        self.keep_levels(&kinds.behind)?;
        self.taps.clear();
        Ok(next)
    }

    /// Values that follow from the rule's result.
    fn behind(&self, node: ValueId) -> BTreeSet<ValueId> {
        let mut set = BTreeSet::from([node]);
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
        let own = self.own_column(h);
        let column = own.add(h.first, &mut self.b);
        let head = self.head.map_or(Ix::Const(0), |(_, number)| Ix::uni(number));
        let (value, beta) = (self.eval(v, &[head, column])?, self.eval(beta, &[head, Ix::Const(0)])?);
        let (mut decayed, mut keys) = (Vec::new(), Vec::new());
        let mut sums = self.no_sums(h);
        for (i, &s) in state.iter().enumerate() {
            let at = [head, self.key(h, i as u64)];
            let (g, key) = (self.eval(decay, &at)?, self.eval(k, &at)?);
            let s = self.b.mul(s, g);
            self.add_term(h, &mut sums, i, (key, s));
            decayed.push(s);
            keys.push(key);
        }
        let predicted = self.key_total(h, sums, own, (&keys, &decayed))?;
        let error = self.b.sub(value, predicted);
        let delta = self.b.mul(error, beta);
        let (mut next, mut queries) = (Vec::new(), Vec::new());
        let mut sums = self.no_sums(h);
        for (i, &s) in decayed.iter().enumerate() {
            let at = [head, self.key(h, i as u64)];
            let (key, query) = (self.eval(k, &at)?, self.eval(q, &at)?);
            let s = self.b.fma(key, delta, s);
            self.add_term(h, &mut sums, i, (query, s));
            next.push(s);
            queries.push(query);
        }
        let o = self.key_total(h, sums, own, (&queries, &next))?;
        self.mask = outer;
        Ok((o, next))
    }

    fn no_sums(&mut self, h: &Head) -> Vec<Val> {
        let zero = self.b.f(0.0);
        vec![self.b.splat(zero, 1); h.own_chains() as usize]
    }

    /// Adds the wave's `i`-th term to its chain, unless chains wait for parts that come first.
    fn add_term(&mut self, h: &Head, sums: &mut [Val], i: usize, (factor, s): (Val, Val)) {
        if h.stages() == 1 {
            let c = i % sums.len();
            sums[c] = self.b.fma(factor, s, sums[c]);
        }
    }

    /// Sum over all keys, in every lane. Parts meet in workgroup memory: the tree's first step. May hold barriers.
    fn key_total(&mut self, h: &Head, mut sums: Vec<Val>, column: Ix, (factors, state): (&[Val], &[Val])) -> Res<Val> {
        if h.parts == 1 {
            // Chains without a term in the last round add +0.
            let (zero, rest) = (self.b.f(0.0), h.keys as usize % sums.len());
            if rest > 0 {
                for s in &mut sums[rest..] {
                    *s = self.b.bin(Bin::Add, *s, zero);
                }
            }
            return Ok(self.strided_total(&sums));
        }
        let place = self.b.shared("chains", Mem::F32, h.chains * h.own_values);
        match h.stages() {
            1 => self.store_chains(h, place, sums, column),
            _ => self.chains_in_stages(h, place, column, (factors, state))?,
        }
        self.b.barrier();
        let all: Vec<Val> = (0..h.chains)
            .map(|c| {
                let line = self.b.i((c * h.own_values) as i64);
                self.load(place, Some(line), column)
            })
            .collect();
        Ok(self.strided_total(&all))
    }

    /// Sums of a part's own chains.
    fn store_chains(&mut self, h: &Head, place: Place, sums: Vec<Val>, column: Ix) {
        let part = self.part(h);
        let width = self.b.i((h.own_chains() * h.own_values) as i64);
        let first = self.b.mul(part, width);
        for (c, s) in sums.into_iter().enumerate() {
            let line = self.b.i((c as u64 * h.own_values) as i64);
            let base = self.b.add(first, line);
            self.store(place, Some(base), column, s);
        }
    }

    /// One chain a part, of which several parts have terms: each goes on from what the one before has stored.
    fn chains_in_stages(&mut self, h: &Head, place: Place, column: Ix, (factors, state): (&[Val], &[Val])) -> Res<()> {
        let (part, chains) = (self.part(h), self.b.i(h.chains as i64));
        let (stage, chain) = (self.b.div(part, chains), self.b.rem(part, chains));
        let width = self.b.i(h.own_values as i64);
        let line = self.b.mul(chain, width);
        for number in 0..h.stages() {
            if number > 0 {
                self.b.barrier();
            }
            let mine = self.is(Cmp::Eq, stage, number as i64);
            self.when(mine, |s| {
                let zero = s.b.f(0.0);
                let so_far = if number == 0 { s.b.splat(zero, 1) } else { s.load(place, Some(line), column) };
                let terms = factors.iter().zip(state);
                let sum = terms.fold(so_far, |sum, (&factor, &x)| s.b.fma(factor, x, sum));
                s.store(place, Some(line), column, sum);
                Ok(())
            })?;
        }
        Ok(())
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

    /// The outputs' elements of this head.
    fn write_head_outputs(&mut self) -> Res<()> {
        for number in 0..self.g.outputs.len() {
            if self.g.ty(self.g.outputs[number].1).tensor().is_some() {
                self.write_head_output(number)?;
            }
        }
        Ok(())
    }

    pub(super) fn write_head_output(&mut self, number: usize) -> Res<()> {
        let (name, value) = &self.g.outputs[number];
        let v = strip_reshapes(self.g, *value);
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
        for spot in self.spots(dims[1]) {
            self.at_spot(&spot, |s| {
                let x = s.eval(v, &[Ix::uni(head), spot.at])?;
                s.store(place, Some(base), spot.at, x);
                Ok(())
            })?;
        }
        Ok(())
    }
}
