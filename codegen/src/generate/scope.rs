//! Values that a scope keeps: formed in order, by all waves together or by each for itself.

use std::collections::HashMap;

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Op, ReduceKind};
use unglue_ir::types::DType;
use unglue_passes::schedule::{Place as Keep, Staged};

use super::index::{Ix, unflatten};
use super::{Gen, Kept, Res, in_place};
use crate::kp::{Addr, Bound, Mem, Place};

impl<'a> Gen<'a> {
    /// Forms the kept values of the current row. `rows`: rows that workgroup memory holds at a time.
    pub fn keep_all(&mut self, staged: &[Staged], rows: u64) -> Res<()> {
        for s in staged {
            self.keep(s, rows)?;
        }
        Ok(())
    }

    pub fn keep(&mut self, s: &Staged, rows: u64) -> Res<()> {
        let g = self.g;
        let id = s.node;
        match (&g.node(id).op, s.place) {
            (Op::Repeat { .. }, _) => self.keep_repeat(id),
            (Op::TopK { k, limit, .. }, _) => self.keep_top_k(id, *k, *limit),
            (Op::Reduce { kind, axis, .. }, place) if self.is_wide(id)? => {
                self.keep_wide(id, *kind, *axis, s.elements, matches!(place, Keep::Registers))
            }
            (_, Keep::Registers) => self.keep_registers(id, s.elements),
            (_, Keep::Shared { .. }) => self.keep_shared(id, s.elements, rows),
        }
    }

    /// True for values that are formed element by element.
    pub(super) fn is_inline(&self, id: ValueId) -> Res<bool> {
        Ok(!matches!(self.g.node(id).op, Op::Repeat { .. } | Op::TopK { .. }) && !self.is_wide(id)?)
    }

    /// True for reductions that `eval` does not unroll.
    pub(super) fn is_wide(&self, id: ValueId) -> Res<bool> {
        let node = self.g.node(id);
        let Op::Reduce { kind, axis, order } = node.op else { return Ok(false) };
        let n = self.tensor(node.args[0])?.shape[axis as usize].fixed().unwrap_or(u64::MAX);
        Ok(match kind {
            ReduceKind::Sum => order == unglue_ir::order::Order::Lanes,
            ReduceKind::Max => n > 32,
        })
    }

    /// Index of element `flat` of the scope: all axes, or those behind the fixed head. Of a value whose heads stand one after
    /// the other it is an element of the head's.
    pub fn scope_index(&mut self, id: ValueId, flat: Ix) -> Res<Vec<Ix>> {
        let dims = self.dims(id)?;
        Ok(match self.head {
            Some((h, number)) if dims.len() == 2 && dims[0] == h => vec![Ix::uni(number), flat],
            Some((h, number)) if dims.len() == 1 => {
                let first = Ix::uni(number).mul(dims[0] / h, &mut self.b);
                vec![flat.add(first, &mut self.b)]
            }
            _ => unflatten(&dims, flat, &mut self.b),
        })
    }

    fn keep_registers(&mut self, id: ValueId, elements: u64) -> Res<()> {
        let mut regs = Vec::new();
        for i in 0..elements {
            let idx = self.scope_index(id, Ix::Const(i))?;
            regs.push(self.eval(id, &idx)?);
        }
        self.kept.insert(id, Kept::Regs(regs));
        Ok(())
    }

    pub(super) fn shared_mem(&self, id: ValueId) -> Res<Mem> {
        Ok(match self.tensor(id)?.dtype() {
            Some(DType::Bf16) => Mem::Bf16,
            Some(DType::F16) => Mem::F16,
            Some(DType::I32) => Mem::I32,
            _ => Mem::F32,
        })
    }

    fn keep_shared(&mut self, id: ValueId, elements: u64, rows: u64) -> Res<()> {
        let mem = self.shared_mem(id)?;
        let replaced = in_place::replaced(self.g, &self.kept, id, elements).filter(|_| rows == 1);
        let same = replaced.filter(|(old, _)| self.shared_mem(*old).is_ok_and(|m| m == mem));
        let place = match same {
            Some((_, place)) => {
                self.b.barrier(); // other waves may still read the old value
                place
            }
            None => self.shared_array(id, mem, elements * rows),
        };
        let base = if rows > 1 {
            let n = self.b.i(elements as i64);
            Some(self.b.mul(self.row, n))
        } else {
            None
        };
        self.form_elements((id, elements), (place, base))?;
        self.b.barrier();
        let old = same.map(|(old, _)| old);
        old.map(|old| self.kept.remove(&old));
        self.kept.insert(id, Kept::Shared { place, elements, by_row: rows > 1 });
        // What was formed inline before now has a place; what was loaded is there no more.
        for m in &mut self.memo {
            m.retain(|(v, _), _| *v != id && Some(*v) != old);
        }
        Ok(())
    }

    pub fn shared_array(&mut self, id: ValueId, mem: Mem, len: u64) -> Place {
        self.b.shared(&format!("v{}", id.0), mem, len)
    }

    fn keep_wide(&mut self, id: ValueId, kind: ReduceKind, axis: u32, elements: u64, registers: bool) -> Res<()> {
        let arg = self.g.node(id).args[0];
        let a = axis as usize - 1;
        let n = self.dims(arg)?[a];
        if registers {
            let idx = self.scope_index(id, Ix::Const(0))?;
            let v = match kind {
                ReduceKind::Sum => self.workgroup_sum(n, |s, at| s.reduce_term(id, a, &idx, at))?,
                ReduceKind::Max => self.workgroup_max(n, |s, at| s.reduce_term(id, a, &idx, at))?,
            };
            self.kept.insert(id, Kept::Regs(vec![v]));
            return Ok(());
        }
        if kind == ReduceKind::Max {
            return self.fault(id, "several wide maxima in a row");
        }
        let place = self.shared_array(id, Mem::F32, elements);
        let wave = self.b.wave();
        let end = self.b.i(elements as i64);
        let step = i64::from(self.b.waves());
        self.looped((wave, end, step), &[], |s, item, _| {
            let idx = s.scope_index(id, Ix::uni(item))?;
            let v = s.wave_sum(n, |s, at| s.reduce_term(id, a, &idx, at))?;
            s.b.store(place, Addr::Uniform { base: item }, Bound::All, v);
            Ok(vec![])
        })?;
        self.b.barrier();
        self.kept.insert(id, Kept::Shared { place, elements, by_row: false });
        Ok(())
    }

    /// A repeat runs in workgroup memory, one element a lane: registers hold one element, not all of them. Collective.
    pub fn keep_repeat(&mut self, id: ValueId) -> Res<()> {
        let g: &'a Graph = self.g;
        let node = g.node(id);
        let Op::Repeat { body, count } = node.op else { return self.fault(id, "not a repeat") };
        let body = &g.bodies[body as usize];
        let mut kept = HashMap::new();
        for (&arg, (_, input)) in node.args.iter().zip(body.inputs()) {
            let n = self.elements(arg)?;
            let place = self.shared_array(arg, Mem::F32, n);
            self.lane_elements(arg, |s, idx, at| {
                let v = s.eval(arg, &idx)?;
                s.store(place, None, at, v);
                Ok(())
            })?;
            kept.insert(input, Kept::Shared { place, elements: n, by_row: false });
        }
        self.b.barrier();
        let Some(carried) = body.inputs().next().map(|(_, v)| v) else { return self.fault(id, "nothing carried") };
        let result = kept.get(&carried).cloned();
        let places = self.body_places(body)?;
        let (zero, end) = (self.b.i(0), self.b.i(i64::from(count)));
        self.looped((zero, end, 1), &[], |s, _, _| {
            s.in_body(body, kept, |s| s.repeat_round(carried, &places))?;
            Ok(vec![])
        })?;
        if let Some(result) = result {
            self.kept.insert(id, result);
        }
        Ok(())
    }

    /// Values of a repeat body that a reduction reads: formed once, not once for each element of the reduction.
    fn body_places(&mut self, body: &'a Graph) -> Res<Vec<(ValueId, Place, u64)>> {
        let mut out: Vec<(ValueId, Place, u64)> = Vec::new();
        for id in body.ids() {
            let Op::Reduce { .. } = body.node(id).op else { continue };
            let arg = body.node(id).args[0];
            let leaf = unglue_passes::schedule::is_leaf(&body.node(arg).op);
            if leaf || out.iter().any(|(v, ..)| *v == arg) {
                continue;
            }
            let n = self.in_body(body, HashMap::new(), |s| s.elements(arg))?;
            let place = self.shared_array(arg, Mem::F32, n);
            out.push((arg, place, n));
        }
        Ok(out)
    }

    /// One round: kept values in order, then the carried value's next version in its own place.
    fn repeat_round(&mut self, carried: ValueId, places: &[(ValueId, Place, u64)]) -> Res<()> {
        for &(id, place, elements) in places {
            self.lane_elements(id, |s, idx, at| {
                let v = s.eval(id, &idx)?;
                s.store(place, None, at, v);
                Ok(())
            })?;
            self.b.barrier();
            self.kept.insert(id, Kept::Shared { place, elements, by_row: false });
            self.memo.iter_mut().for_each(HashMap::clear);
        }
        let Some(Kept::Shared { place, .. }) = self.kept.get(&carried).cloned() else {
            return self.fault(carried, "the carried value has no place");
        };
        let result = self.g.outputs[0].1;
        let outer = self.mask;
        let (idx, at) = self.own_element(result)?;
        let v = self.eval(result, &idx)?;
        if self.result_reads(carried, places) {
            self.b.barrier();
        }
        self.store(place, None, at, v);
        self.mask = outer;
        self.b.barrier();
        Ok(())
    }

    /// Whether a round's result is formed from the carried value itself, and not from kept values alone: those were formed
    /// by all waves before the barrier behind them.
    fn result_reads(&self, carried: ValueId, places: &[(ValueId, Place, u64)]) -> bool {
        let mut todo = vec![self.g.outputs[0].1];
        while let Some(id) = todo.pop() {
            if id == carried {
                return true;
            }
            if !places.iter().any(|(kept, ..)| *kept == id) {
                todo.extend(&self.g.node(id).args);
            }
        }
        false
    }

    /// This lane's element of a small value; lanes beyond it are masked.
    fn own_element(&mut self, id: ValueId) -> Res<(Vec<Ix>, Ix)> {
        let n = self.elements(id)?;
        let (wave, lanes) = (self.b.wave(), self.b.i(32));
        let base = self.b.mul(wave, lanes);
        let at = Ix::Seq { base, aligned: true };
        self.mask_below(at, n);
        let dims = self.dims(id)?;
        Ok((unflatten(&dims, at, &mut self.b), at))
    }

    /// Runs `f` for this lane's element, without a loop.
    fn lane_elements(&mut self, id: ValueId, f: impl FnOnce(&mut Self, Vec<Ix>, Ix) -> Res<()>) -> Res<()> {
        let outer = self.mask;
        self.memo.push(HashMap::new());
        let (idx, at) = self.own_element(id)?;
        let out = f(self, idx, at);
        self.memo.pop();
        self.mask = outer;
        out
    }

    /// Evaluates values of a repeat body: another graph with its own kept values.
    fn in_body<T>(
        &mut self,
        body: &'a Graph,
        kept: HashMap<ValueId, Kept>,
        f: impl FnOnce(&mut Self) -> Res<T>,
    ) -> Res<T> {
        let (g, outer) = (self.g, std::mem::replace(&mut self.kept, kept));
        let memo = std::mem::replace(&mut self.memo, vec![HashMap::new()]);
        self.g = body;
        let out = f(self);
        self.g = g;
        self.kept = outer;
        self.memo = memo;
        out
    }
}
