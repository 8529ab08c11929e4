//! One element of any value at any index: the ops of the graph, turned into code.

use unglue_ir::graph::ValueId;
use unglue_ir::math;
use unglue_ir::op::{Binary, Op, ReduceKind, Unary};
use unglue_ir::types::{DType, Dim};

use super::index::{Ix, flatten, reshaped};
use super::{Gen, Kept, Res, StepBuffer, has_rows};
use crate::kp::{Bin, Bound, Cmp, Place, Reduce, Un, Val};

/// Largest number of elements in registers that a lane index may choose among.
const SELECT_MAX: usize = 64;

impl Gen<'_> {
    /// Value `id` at `idx` (one index for each axis but the rows). f32 or i32; uniform if all indices are.
    pub fn eval(&mut self, id: ValueId, idx: &[Ix]) -> Res<Val> {
        let key = (id, idx.to_vec());
        if let Some(v) = self.memo.iter().rev().find_map(|m| m.get(&key)) {
            return Ok(*v);
        }
        let v = match self.kept.get(&id).cloned() {
            Some(kept) => self.eval_kept(id, &kept, idx)?,
            None => self.eval_op(id, idx)?,
        };
        if let Some(m) = self.memo.last_mut() {
            m.insert(key, v);
        }
        Ok(v)
    }

    fn eval_kept(&mut self, id: ValueId, kept: &Kept, idx: &[Ix]) -> Res<Val> {
        match kept {
            Kept::Regs(regs) => self.at_register(id, regs, idx),
            Kept::Shared { place, elements, by_row } => {
                let dims = self.dims(id)?;
                // In a head scope only the head's own elements are kept.
                let flat = match self.head {
                    Some((h, _)) if dims.len() == 2 && dims[0] == h => idx[1],
                    _ => flatten(&dims, idx, &mut self.b),
                };
                let base = if *by_row {
                    let n = self.b.i(*elements as i64);
                    Some(self.b.mul(self.row, n))
                } else {
                    None
                };
                Ok(self.load(*place, base, flat))
            }
            Kept::OfHead { place, elements, shares } => {
                let dims = self.dims(id)?;
                let flat = flatten(&dims, idx, &mut self.b);
                let number = self.part_of_head(id, *shares)?;
                let width = self.b.i(-(*elements as i64));
                let back = Ix::Uni { val: self.b.mul(number, width), aligned: elements.is_multiple_of(32) };
                let own = flat.add(back, &mut self.b);
                Ok(self.load(*place, None, own))
            }
            Kept::Exchanged { place } => {
                let dims = self.dims(id)?;
                let (base, flat) = (self.row_base(&dims), flatten(&dims, idx, &mut self.b));
                Ok(self.load(*place, Some(base), flat))
            }
            Kept::Channels { .. } => self.fault(id, "channels of several heads"),
            Kept::Tile { place, columns } => {
                let dims = self.dims(id)?;
                let (base, own) = self.in_columns(&dims, idx, *columns);
                Ok(self.load(*place, Some(base), own))
            }
            Kept::Lane(values) => match values.as_slice() {
                [one] => Ok(*one),
                many => match idx.first() {
                    Some(Ix::Const(j)) if (*j as usize) < many.len() => Ok(many[*j as usize]),
                    _ => self.fault(id, "an inner choice that is no constant"),
                },
            },
        }
    }

    fn at_register(&mut self, id: ValueId, regs: &[Val], idx: &[Ix]) -> Res<Val> {
        let dims = self.dims(id)?;
        let flat = match self.head {
            Some((h, _)) if dims.len() == 2 && dims[0] == h => idx[1],
            _ => flatten(&dims, idx, &mut self.b),
        };
        if let Ix::Const(i) = flat {
            return match regs.get(i as usize) {
                Some(v) => Ok(*v),
                None => self.fault(id, "index beyond the kept elements"),
            };
        }
        if regs.len() == 1 {
            return Ok(regs[0]);
        }
        if regs.len() > SELECT_MAX {
            return self.fault(id, format!("{} registers behind a lane index", regs.len()));
        }
        let at = match flat.uniform(&mut self.b) {
            Some(u) => u,
            None => flat.lanes(&mut self.b),
        };
        let mut out = regs[0];
        for (i, &v) in regs.iter().enumerate().skip(1) {
            let i = self.b.i(i as i64);
            let here = self.b.cmp(Cmp::Eq, at, i);
            out = self.b.select(here, v, out);
        }
        Ok(out)
    }

    pub fn load(&mut self, place: Place, base: Option<Val>, flat: Ix) -> Val {
        if let Some(v) = self.load_neighbours(place, base, flat) {
            return v;
        }
        let addr = flat.address(base, &mut self.b);
        let bound = match flat {
            Ix::Seq { .. } | Ix::Wide { .. } | Ix::Lane(_) => self.bound(),
            _ => Bound::All,
        };
        self.b.load(place, addr, bound, 1)
    }

    fn eval_op(&mut self, id: ValueId, idx: &[Ix]) -> Res<Val> {
        let node = self.g.node(id);
        let args = &node.args;
        match &node.op {
            Op::Input { .. } | Op::Weight { .. } => self.eval_leaf(id, idx),
            Op::ConstF32(bits) => Ok(self.b.f(f32::from_bits(*bits))),
            Op::Unary(u) => {
                let x = self.eval(args[0], idx)?;
                Ok(self.unary(*u, x))
            }
            Op::Binary(op) => {
                let (x, y) = (self.operand(id, args[0], idx)?, self.operand(id, args[1], idx)?);
                let op = match op {
                    Binary::Add => Bin::Add,
                    Binary::Sub => Bin::Sub,
                    Binary::Mul => Bin::Mul,
                    Binary::Div => Bin::Div,
                    Binary::Min => Bin::Min,
                    Binary::Max => Bin::Max,
                };
                Ok(self.b.bin(op, x, y))
            }
            Op::Cast(to) => {
                let x = self.eval(args[0], idx)?;
                let from = self.tensor(args[0])?.dtype();
                Ok(match to {
                    DType::Bf16 if from != Some(DType::Bf16) => self.b.un(Un::RoundBf16, x),
                    DType::F16 if from != Some(DType::F16) => self.b.un(Un::RoundF16, x),
                    _ => x,
                })
            }
            Op::Reshape(_) => {
                let at = self.reshaped_index(id, idx)?;
                self.eval(args[0], &at)
            }
            Op::Broadcast(_) => self.operand(id, args[0], idx),
            Op::Slice { axis, start, .. } => {
                if let Some(Kept::Channels { place, segment, width }) = self.kept.get(&args[0]).cloned() {
                    let own = self.own_channel(id, idx[0], start / segment * width, width)?;
                    return Ok(self.load(place, None, own));
                }
                let at = self.sliced_index(id, (*axis, *start), idx)?;
                self.eval(args[0], &at)
            }
            Op::Concat { axis } => self.eval_concat(id, *axis, idx),
            Op::Reduce { kind, axis, .. } => self.eval_small_reduce(id, *kind, *axis, idx),
            Op::GatherLast => {
                let at = self.eval(args[1], idx)?;
                let ix = match self.b.ty(at) {
                    crate::kp::Ty::Uniform(_) => Ix::uni(at),
                    _ => Ix::Lane(at),
                };
                self.eval(args[0], &[ix])
            }
            Op::EmbedRows => self.eval_embed(id, idx),
            Op::GatherRows => self.eval_gather_rows(id, idx),
            Op::CausalConv => self.eval_conv(id, idx),
            Op::PoolWindow { part } => self.eval_pool_window(id, *part, idx),
            _ => self.fault(id, "no inline form"),
        }
    }

    /// Axis number without the row axis.
    pub(super) fn axis(&self, id: ValueId, axis: u32) -> Res<usize> {
        let rows = usize::from(has_rows(self.tensor(id)?));
        match (axis as usize).checked_sub(rows) {
            Some(a) => Ok(a),
            None => self.fault(id, "works on the row axis"),
        }
    }

    /// Index of the element that a reshape shows at `idx`.
    pub(super) fn reshaped_index(&mut self, id: ValueId, idx: &[Ix]) -> Res<Vec<Ix>> {
        let (to, from) = (self.dims(id)?, self.dims(self.g.node(id).args[0])?);
        Ok(reshaped(&to, &from, idx, &mut self.b))
    }

    /// Index of the element that a slice shows at `idx`.
    pub(super) fn sliced_index(&mut self, id: ValueId, (axis, start): (u32, u64), idx: &[Ix]) -> Res<Vec<Ix>> {
        let a = self.axis(id, axis)?;
        let mut at = idx.to_vec();
        at[a] = at[a].add(Ix::Const(start), &mut self.b);
        Ok(at)
    }

    /// An operand under broadcasting.
    fn operand(&mut self, parent: ValueId, child: ValueId, idx: &[Ix]) -> Res<Val> {
        let at = self.operand_index(parent, child, idx)?;
        self.eval(child, &at)
    }

    /// Index of an operand under broadcasting: axes of extent 1 are read at 0.
    pub(super) fn operand_index(&self, parent: ValueId, child: ValueId, idx: &[Ix]) -> Res<Vec<Ix>> {
        let (p, c) = (self.tensor(parent)?, self.tensor(child)?);
        let offset = usize::from(has_rows(p));
        Ok(c.shape
            .iter()
            .enumerate()
            .filter(|(_, d)| !matches!(d, Dim::Rows | Dim::Logits | Dim::Seqs))
            .map(|(i, d)| if d.is_one() || i < offset { Ix::Const(0) } else { idx[i - offset] })
            .collect())
    }

    fn eval_leaf(&mut self, id: ValueId, idx: &[Ix]) -> Res<Val> {
        let (place, _) = self.leaf(id)?;
        let dims = self.dims(id)?;
        let rows = has_rows(self.tensor(id)?);
        let flat = flatten(&dims, idx, &mut self.b);
        let base = if rows { Some(self.row_base(&dims)) } else { None };
        Ok(self.load(place, base, flat))
    }

    /// First element of the current row.
    pub fn row_base(&mut self, dims: &[u64]) -> Val {
        let n: u64 = dims.iter().product();
        let n = self.b.i(n as i64);
        self.b.mul(self.row, n)
    }

    pub fn unary(&mut self, u: Unary, x: Val) -> Val {
        match u {
            Unary::Neg => self.b.un(Un::Neg, x),
            Unary::Abs => self.b.un(Un::Abs, x),
            Unary::Exp => math::exp(&mut self.b, x),
            Unary::Log => math::log(&mut self.b, x),
            Unary::Log1p => math::log1p(&mut self.b, x),
            Unary::Sqrt => self.b.un(Un::Sqrt, x),
            Unary::Rsqrt => math::rsqrt(&mut self.b, x),
            Unary::Sigmoid => math::sigmoid(&mut self.b, x),
        }
    }

    fn eval_concat(&mut self, id: ValueId, axis: u32, idx: &[Ix]) -> Res<Val> {
        let a = self.axis(id, axis)?;
        let outer = self.mask;
        let mut start = 0u64;
        let mut out: Option<Val> = None;
        for &arg in &self.g.node(id).args {
            let n = self.dims(arg)?[a];
            if let Ix::Const(i) = idx[a] {
                if (start..start + n).contains(&i) {
                    let mut at = idx.to_vec();
                    at[a] = Ix::Const(i - start);
                    return self.eval(arg, &at);
                }
                start += n;
                continue;
            }
            let at_axis = idx[a].lanes(&mut self.b);
            let (lo, hi) = (self.b.i(start as i64), self.b.i((start + n) as i64));
            let (ge, lt) = (self.b.cmp(Cmp::Ge, at_axis, lo), self.b.cmp(Cmp::Lt, at_axis, hi));
            let mut inside = self.b.and(ge, lt);
            if let Some(m) = outer {
                inside = self.b.and(m, inside);
            }
            let local = self.b.sub(at_axis, lo);
            let zero = self.b.i(0);
            let safe = self.b.select(inside, local, zero);
            let mut at = idx.to_vec();
            at[a] = Ix::Lane(safe);
            self.mask = Some(inside);
            // The mask is part of the value: nothing formed under it may be shared.
            let v = self.scoped(|s| s.eval(arg, &at))?;
            self.mask = outer;
            out = Some(match out {
                None => v,
                Some(o) => self.b.select(inside, v, o),
            });
            start += n;
        }
        match out {
            Some(v) => Ok(v),
            None => self.fault(id, "index outside of the joined axis"),
        }
    }

    /// Reductions over a small axis, unrolled in ascending order.
    fn eval_small_reduce(&mut self, id: ValueId, kind: ReduceKind, axis: u32, idx: &[Ix]) -> Res<Val> {
        let arg = self.g.node(id).args[0];
        let a = self.axis(arg, axis)?;
        let n = self.dims(arg)?[a];
        if n > 32 {
            return self.fault(id, format!("a reduction over {n} elements was not kept"));
        }
        let mut acc: Option<Val> = match kind {
            ReduceKind::Sum => Some(self.b.f(0.0)),
            ReduceKind::Max => None,
        };
        for j in 0..n {
            let mut at = idx.to_vec();
            at[a] = Ix::Const(j);
            let x = self.eval(arg, &at)?;
            acc = Some(match (acc, kind) {
                (Some(y), ReduceKind::Sum) => self.b.bin(Bin::Add, y, x),
                (Some(y), ReduceKind::Max) => self.b.bin(Bin::Max, y, x),
                (None, _) => x,
            });
        }
        match acc {
            Some(v) => Ok(v),
            None => self.fault(id, "an empty axis"),
        }
    }

    /// A row of the table; an id outside of it gives zeros and a fault in the status word, and touches no memory.
    fn eval_embed(&mut self, id: ValueId, idx: &[Ix]) -> Res<Val> {
        let (table, ids) = (self.g.node(id).args[0], self.g.node(id).args[1]);
        let rows = self.dims(table)?[0];
        let width = self.dims(table)?[1];
        let token = self.eval(ids, &[])?;
        let (zero, end) = (self.b.i(0), self.b.i(rows as i64));
        let (ge, lt) = (self.b.cmp(Cmp::Ge, token, zero), self.b.cmp(Cmp::Lt, token, end));
        let fine = self.b.and(ge, lt);
        let safe = self.b.select(fine, token, zero);
        let (wide, width) = (self.b.wide(safe), self.b.i64(width as i64));
        let base = self.b.bin(Bin::Mul, wide, width);
        let (place, _) = self.leaf(table)?;
        let v = self.load(place, Some(base), idx[0]);
        let nothing = self.b.f(0.0);
        Ok(self.b.select(fine, v, nothing))
    }

    /// Rows of another axis: the operand is a leaf.
    fn eval_gather_rows(&mut self, id: ValueId, idx: &[Ix]) -> Res<Val> {
        let (x, rows) = (self.g.node(id).args[0], self.g.node(id).args[1]);
        let at = self.eval(rows, &[])?;
        let count = self.scalar(super::StepScalar::Rows);
        let zero = self.b.i(0);
        let (ge, lt) = (self.b.cmp(Cmp::Ge, at, zero), self.b.cmp(Cmp::Lt, at, count));
        let fine = self.b.and(ge, lt);
        let safe = self.b.select(fine, at, zero);
        let dims = self.dims(x)?;
        let n = self.b.i(dims.iter().product::<u64>() as i64);
        let base = self.b.mul(safe, n);
        let leaf = unglue_passes::schedule::strip_reshapes(self.g, x);
        let (place, _) = self.leaf(leaf)?;
        let flat = flatten(&dims, idx, &mut self.b);
        let v = self.load(place, Some(base), flat);
        let nothing = self.b.f(0.0);
        Ok(self.b.select(fine, v, nothing))
    }

    /// Converts a step array's element at the current row.
    pub fn row_step(&mut self, s: StepBuffer) -> Val {
        let row = self.row;
        self.step_value(s, row)
    }

    /// Maximum of a lane value over the wave, as a uniform.
    pub fn wave_max(&mut self, v: Val) -> Val {
        self.b.reduce(Reduce::Max, v)
    }
}
