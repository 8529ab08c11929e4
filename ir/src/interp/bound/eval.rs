//! Evaluation of one graph in `bound` mode.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::IrError;
use crate::graph::{Graph, ValueId};
use crate::interp::batch::{Batch, Dims};
use crate::interp::bound::mix::{self, Sums};
use crate::interp::bound::{Bounded, UNIT, groups, sum};
use crate::interp::contract::{Grouped, Heads};
use crate::interp::eval::{WeightFn, check_graph, move_elements};
use crate::interp::select::{self, Budget, IndexScale};
use crate::interp::state::{self, Delta, StateData};
use crate::interp::value::{Data, Rows, Tensor, WeightRef};
use crate::interp::{moves, refuse};
use crate::op::{Binary, Op, ReduceKind};
use crate::order::Order;
use crate::types::{DType, Dim, Type};

/// Elements of a [`BoundedTensor`].
#[derive(Clone, Debug, PartialEq)]
pub enum BoundedData {
    Float(Vec<Bounded>),
    Int(Vec<i32>),
}

/// A tensor whose floats carry bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct BoundedTensor {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub data: BoundedData,
}

impl BoundedTensor {
    /// A tensor without errors.
    pub fn exact(t: &Tensor) -> BoundedTensor {
        let data = match &t.data {
            Data::F32(v) => BoundedData::Float(v.iter().map(|x| Bounded::exact(*x)).collect()),
            Data::I32(v) => BoundedData::Int(v.clone()),
        };
        BoundedTensor { dtype: t.dtype, shape: t.shape.clone(), data }
    }

    pub fn floats(&self) -> &[Bounded] {
        match &self.data {
            BoundedData::Float(v) => v,
            BoundedData::Int(_) => &[],
        }
    }

    pub fn ints(&self) -> &[i32] {
        match &self.data {
            BoundedData::Int(v) => v,
            BoundedData::Float(_) => &[],
        }
    }

    fn len(&self) -> usize {
        self.floats().len().max(self.ints().len())
    }

    /// Index of the first element for which `live` holds and that is not right.
    pub fn first_outside(&self, got: &Data, live: impl Fn(usize) -> bool) -> Option<usize> {
        let wrong = |i: usize| match (&self.data, got) {
            (BoundedData::Float(v), Data::F32(got)) => {
                v.get(i).zip(got.get(i)).is_none_or(|(b, x)| !super::accepts(b, self.dtype, *x))
            }
            (BoundedData::Int(v), Data::I32(got)) => v.get(i) != got.get(i),
            _ => true,
        };
        (0..self.len()).find(|i| live(*i) && wrong(*i))
    }

    /// What an element must be, in words.
    pub fn shown(&self, i: usize) -> String {
        match &self.data {
            BoundedData::Float(v) => v.get(i).map(|b| format!("{:e} +- {:e}", b.value, b.error)),
            BoundedData::Int(v) => v.get(i).map(ToString::to_string),
        }
        .unwrap_or_default()
    }

    /// Index of the first element of a kernel's result that is not right; a length that differs is wrong at its end.
    pub fn first_wrong(&self, got: &Tensor) -> Option<usize> {
        let wrong = match &self.data {
            BoundedData::Float(v) => v.iter().zip(got.floats()).position(|(b, x)| !super::accepts(b, self.dtype, *x)),
            BoundedData::Int(v) => v.iter().zip(got.ints()).position(|(a, b)| a != b),
        };
        let short = self.len().min(got.data_len());
        wrong.or((self.shape != got.shape || short != self.len()).then_some(short))
    }
}

/// What casts to bf16 and f16 do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Casts {
    /// They round, as the graph says.
    #[default]
    Declared,
    /// The bound holds the results with and without each of them: what a form of the graph with fewer may give.
    Optional,
}

/// What [`eval_bounds`] takes besides the graph.
pub struct BoundInputs<'a, 'f, 'w> {
    pub inputs: &'a BTreeMap<String, BoundedTensor>,
    pub weights: &'a WeightFn<'f, 'w>,
    pub states: &'a BTreeMap<String, StateData<Bounded>>,
    pub batch: &'a Batch,
    /// Selections that a kernel made, by the node of the `top_k` or `index_select`: they are checked, and the
    /// evaluation goes on with them.
    pub selections: &'a BTreeMap<ValueId, Tensor>,
    /// Matmuls were computed by matrix tiles, whose accumulators may truncate.
    pub truncating: bool,
    pub casts: Casts,
}

/// What [`eval_bounds`] gives.
#[derive(Clone, Debug, Default)]
pub struct BoundOutputs {
    pub tensors: BTreeMap<String, BoundedTensor>,
    pub states: BTreeMap<String, StateData<Bounded>>,
    /// Supplied selections that no right scores could give: node, row, and the index or token at fault.
    pub wrong_selections: Vec<(ValueId, usize, i32)>,
}

#[derive(Clone)]
enum Value<'w> {
    Tensor(Arc<BoundedTensor>),
    Weight(Arc<WeightRef<'w>>),
    State(Arc<StateData<Bounded>>),
    Tuple(Vec<Value<'w>>),
}

/// Evaluates a graph with bounds.
///
/// # Errors
/// As [`crate::interp::eval_graph`].
pub fn eval_bounds(g: &Graph, given: &BoundInputs) -> Result<BoundOutputs, IrError> {
    given.batch.check()?;
    check_graph(g)?;
    let mut logits = 0;
    for (name, id) in g.inputs() {
        let at = g.ty(id).tensor().and_then(|t| t.shape.iter().position(|d| *d == Dim::Logits));
        if let (Some(i), Some(t)) = (at, given.inputs.get(name)) {
            logits = t.shape.get(i).copied().unwrap_or(0);
        }
    }
    let dims = Dims::of(given.batch, logits);
    let mut step = Step { given, dims, wrong: Vec::new() };
    let inputs = g.inputs().map(|(name, id)| step.input(name, g.ty(id))).collect::<Result<Vec<_>, _>>()?;
    let mut out = BoundOutputs::default();
    for (name, value) in step.run(g, inputs, true)? {
        match value {
            Value::State(s) => {
                out.states.insert(name, s.as_ref().clone());
            }
            other => {
                out.tensors.insert(name, tensor_of(&other)?.as_ref().clone());
            }
        }
    }
    out.wrong_selections = step.wrong;
    Ok(out)
}

fn tensor_of(v: &Value) -> Result<Arc<BoundedTensor>, IrError> {
    match v {
        Value::Tensor(t) => Ok(t.clone()),
        Value::Weight(w) => Ok(Arc::new(BoundedTensor::exact(&w.to_tensor()))),
        _ => Err(refuse("value-kind", "operand", "a state or tuple", "a tensor is needed here")),
    }
}

fn state_of<'a>(v: &'a Value) -> Result<&'a StateData<Bounded>, IrError> {
    match v {
        Value::State(s) => Ok(s),
        _ => Err(refuse("value-kind", "operand", "not a state", "a state is needed here")),
    }
}

/// Second operands of contractions are weights, or tensors made of weights: their elements have no error.
fn rows_of<'w>(v: &Value<'w>) -> Result<(Arc<dyn Rows + 'w>, Vec<usize>), IrError> {
    match v {
        Value::Weight(w) => Ok((w.clone(), w.shape.iter().map(|&d| d as usize).collect())),
        other => {
            let t = tensor_of(other)?;
            if t.floats().iter().any(|x| x.error != 0.0) {
                return Err(refuse("bound-operand", "contraction", "a second operand with errors", "use a weight"));
            }
            let data = t.floats().iter().map(|x| x.value as f32).collect();
            Ok((Arc::new(Tensor { dtype: t.dtype, shape: t.shape.clone(), data: Data::F32(data) }), t.shape.clone()))
        }
    }
}

struct Step<'a, 'f, 'w> {
    given: &'a BoundInputs<'a, 'f, 'w>,
    dims: Dims,
    wrong: Vec<(ValueId, usize, i32)>,
}

impl<'w> Step<'_, '_, 'w> {
    fn input(&self, name: &str, ty: &Type) -> Result<Value<'w>, IrError> {
        let t = self.given.inputs.get(name);
        let t = t.ok_or_else(|| refuse("input-missing", name, "nothing", "give every input by its name"))?;
        let want = ty.tensor().map(|w| (w.dtype(), self.dims.shape(&w.shape)));
        if want != Some((Some(t.dtype), t.shape.clone())) || t.len() != t.shape.iter().product::<usize>() {
            let found = format!("{}{:?}, needed {ty}", t.dtype.name(), t.shape);
            return Err(refuse("input-type", name, &found, "give a tensor of the declared type"));
        }
        Ok(Value::Tensor(Arc::new(t.clone())))
    }

    fn leaf(&self, op: &Op, ty: &Type) -> Result<Value<'w>, IrError> {
        match op {
            Op::Weight { name } => {
                let w = (self.given.weights)(name)?;
                w.check()?;
                let shape: Vec<Option<u64>> = w.shape.iter().map(|d| Some(*d)).collect();
                let want = ty.tensor().map(|t| (t.format, t.shape.iter().map(|d| d.fixed()).collect()));
                if want != Some((w.format, shape)) {
                    return Err(refuse("weight-type", name, &format!("needed {ty}"), "give the declared type"));
                }
                Ok(Value::Weight(Arc::new(w)))
            }
            Op::State { name } => {
                let s = self.given.states.get(name);
                let s = s.ok_or_else(|| refuse("state-missing", name, "nothing", "give every state"))?;
                let slots = s.slots().len() as i64;
                if !ty.state().is_some_and(|ty| s.fits(ty))
                    || self.given.batch.slot.iter().any(|b| i64::from(*b) >= slots)
                {
                    return Err(refuse(
                        "state-type",
                        name,
                        &format!("content does not fit {ty}"),
                        "see StateData::new",
                    ));
                }
                Ok(Value::State(Arc::new(s.clone())))
            }
            other => Err(refuse("leaf", other.name(), "not a leaf", "internal")),
        }
    }

    fn run(&mut self, g: &Graph, inputs: Vec<Value<'w>>, top: bool) -> Result<Vec<(String, Value<'w>)>, IrError> {
        let mut values: Vec<Value<'w>> = Vec::with_capacity(g.nodes.len());
        let mut inputs = inputs.into_iter();
        for id in g.ids() {
            let node = g.node(id);
            let value = match &node.op {
                Op::Input { name, .. } => {
                    inputs.next().ok_or_else(|| refuse("input-missing", &g.name, name, "give every input"))?
                }
                Op::Weight { .. } | Op::State { .. } => self.leaf(&node.op, &node.ty)?,
                op => {
                    let args: Vec<Value> = node.args.iter().map(|a| values[a.index()].clone()).collect();
                    self.apply(g, (op, &node.ty), &args, top.then_some(id))?
                }
            };
            values.push(value);
        }
        Ok(g.outputs.iter().map(|(name, id)| (name.clone(), values[id.index()].clone())).collect())
    }

    fn apply(
        &mut self,
        g: &Graph,
        (op, ty): (&Op, &Type),
        args: &[Value<'w>],
        id: Option<ValueId>,
    ) -> Result<Value<'w>, IrError> {
        let batch = self.given.batch;
        let state = |s: StateData<Bounded>| Ok(Value::State(Arc::new(s)));
        match op {
            Op::Project(i) => match &args[0] {
                Value::Tuple(parts) => Ok(parts[*i as usize].clone()),
                _ => Err(refuse("value-kind", "project", "not a tuple", "project takes a tuple")),
            },
            Op::Repeat { body, count } => {
                let mut args = args.to_vec();
                for _ in 0..*count {
                    let out = self.run(&g.bodies[*body as usize], args.clone(), false)?.pop();
                    args[0] = out.ok_or_else(|| refuse("repeat-result", &g.name, "no output", "return one"))?.1;
                }
                Ok(args.swap_remove(0))
            }
            Op::ConvUpdate => state(state::conv_update(tensor_of(&args[0])?.floats(), state_of(&args[1])?, batch)),
            Op::TokenWrite => state(state::token_write(tensor_of(&args[0])?.floats(), state_of(&args[1])?, batch)),
            Op::PoolWrite => state(state::pool_write(tensor_of(&args[0])?.floats(), state_of(&args[1])?, batch)),
            Op::TailUpdate => {
                let (x, y) = (tensor_of(&args[0])?, tensor_of(&args[1])?);
                state(state::tail_update([x.floats(), y.floats()], state_of(&args[2])?, batch))
            }
            Op::DeltaRule { order } => {
                let t = args[..5].iter().map(tensor_of).collect::<Result<Vec<_>, _>>()?;
                let [q, k, v, decay, beta] = [0, 1, 2, 3, 4].map(|i| t[i].floats());
                let a = Delta { q, k, v, decay, beta, chains: select::strided_chains(*order) };
                let (o, next) = mix::delta_rule(&a, state_of(&args[5])?, batch);
                let o = BoundedTensor { dtype: DType::F32, shape: t[2].shape.clone(), data: BoundedData::Float(o) };
                Ok(Value::Tuple(vec![Value::Tensor(Arc::new(o)), Value::State(Arc::new(next))]))
            }
            _ => {
                let ty = ty.tensor().ok_or_else(|| refuse("value-kind", op.name(), "no tensor", "internal"))?;
                let shape = self.dims.shape(&ty.shape);
                let data = self.tensor_op(op, args, &shape, id)?;
                let dtype = ty.dtype().unwrap_or(DType::F32);
                Ok(Value::Tensor(Arc::new(BoundedTensor { dtype, shape, data })))
            }
        }
    }

    fn tensor_op(
        &mut self,
        op: &Op,
        args: &[Value<'w>],
        to: &[usize],
        id: Option<ValueId>,
    ) -> Result<BoundedData, IrError> {
        use BoundedData::{Float, Int};
        let each = |f: &dyn Fn(Bounded) -> Bounded| -> Result<BoundedData, IrError> {
            Ok(Float(tensor_of(&args[0])?.floats().iter().map(|x| f(*x)).collect()))
        };
        match op {
            Op::ConstF32(bits) => Ok(Float(vec![Bounded::exact(f32::from_bits(*bits))])),
            Op::Unary(u) => each(&|x| x.unary(*u)),
            Op::Cast(dtype) => match self.given.casts {
                Casts::Declared => each(&|x| x.cast(*dtype)),
                Casts::Optional => each(&|x| x.cast_or_not(*dtype)),
            },
            Op::Binary(b) => {
                let (x, y) = (tensor_of(&args[0])?, tensor_of(&args[1])?);
                let (i, j) = (moves::broadcast_index(&x.shape, to), moves::broadcast_index(&y.shape, to));
                Ok(Float(i.into_iter().zip(j).map(|(i, j)| x.floats()[i].binary(*b, y.floats()[j])).collect()))
            }
            Op::Reduce { kind, axis, order } => {
                Ok(Float(reduce(*kind, *order, &*tensor_of(&args[0])?, *axis as usize)))
            }
            Op::Reshape(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Concat { .. } => {
                let t = args.iter().map(tensor_of).collect::<Result<Vec<_>, _>>()?;
                if let Int(_) = t[0].data {
                    let parts: Vec<_> = t.iter().map(|t| (t.ints(), t.shape.as_slice())).collect();
                    return Ok(Int(move_elements(op, &parts, to)));
                }
                let parts: Vec<_> = t.iter().map(|t| (t.floats(), t.shape.as_slice())).collect();
                Ok(Float(move_elements(op, &parts, to)))
            }
            Op::EmbedRows | Op::GatherRows | Op::GatherLast => gather(op, args),
            Op::MatMul { .. } | Op::BatchMatMul { .. } | Op::GroupedMatMul { .. } => {
                contraction(op, args, self.given.truncating)
            }
            Op::TopK { .. } | Op::IndexSelect { .. } => Ok(Int(self.selection(op, &*tensor_of(&args[0])?, id)?)),
            _ => self.batch_op(op, args),
        }
    }

    fn batch_op(&self, op: &Op, args: &[Value<'w>]) -> Result<BoundedData, IrError> {
        let (x, batch) = (tensor_of(&args[0])?, self.given.batch);
        let x = x.floats();
        let f = f32::from_bits;
        Ok(BoundedData::Float(match op {
            Op::CausalConv => mix::causal_conv(x, tensor_of(&args[1])?.floats(), state_of(&args[2])?, batch),
            Op::PoolWindow { part } => state::pool_window(x, state_of(&args[1])?, *part as usize, batch),
            Op::IndexScores { dot_scale, head_scale, order } => {
                let scale = IndexScale { dot: f(*dot_scale), head: f(*head_scale), order: *order };
                mix::index_scores(x, tensor_of(&args[1])?.floats(), state_of(&args[2])?, &scale, batch)
            }
            Op::AttendSplits { scale, .. } => {
                mix::attend_splits(x, tensor_of(&args[2])?.ints(), state_of(&args[1])?, f(*scale), batch)
            }
            Op::AttendCombine => {
                let shape = &tensor_of(&args[0])?.shape;
                mix::attend_combine(x, shape[2], shape[3])
            }
            other => return Err(refuse("op", other.name(), "no meaning here", "internal")),
        }))
    }

    /// The kernel's selection, checked, or ours from the values.
    fn selection(&mut self, op: &Op, scores: &BoundedTensor, id: Option<ValueId>) -> Result<Vec<i32>, IrError> {
        let values: Vec<f32> = scores.floats().iter().map(|b| b.value as f32).collect();
        let width = scores.shape.last().copied().unwrap_or(1);
        let batch = self.given.batch;
        let own = match op {
            Op::TopK { k, limit, part } => {
                let choose = |s| select::choose_by_parts(s, *k as usize, *limit, *part);
                values.chunks(width.max(1)).flat_map(choose).collect()
            }
            Op::IndexSelect { budget, pool, tail } => {
                let b = Budget { budget: *budget as usize, pool: *pool as usize, tail: *tail };
                select::index_select(&values, b, batch)
            }
            other => return Err(refuse("op", other.name(), "not a selection", "internal")),
        };
        let Some((id, given)) = id.and_then(|id| self.given.selections.get(&id).map(|t| (id, t))) else {
            return Ok(own);
        };
        if given.ints().len() != own.len() {
            return Err(refuse("selection-size", op.name(), &format!("{:?}", given.shape), "give the kernel's result"));
        }
        let rows = scores.floats().len().checked_div(width).unwrap_or(batch.rows());
        let n = own.len() / rows.max(1);
        for (r, chosen) in given.ints().chunks(n.max(1)).enumerate() {
            let scores = &scores.floats()[r * width..(r + 1) * width];
            if let Some(at) = wrong_row(op, scores, chosen, batch, r) {
                self.wrong.push((id, r, at));
            }
        }
        Ok(given.ints().to_vec())
    }
}

fn wrong_row(op: &Op, scores: &[Bounded], chosen: &[i32], batch: &Batch, r: usize) -> Option<i32> {
    if let Op::TopK { k, part: Some(part), .. } = op {
        let (k, part) = ((*k as usize).max(1), (*part as usize).max(1));
        let mut parts = (0..).step_by(part).zip(scores.chunks(part).zip(chosen.chunks(k)));
        return parts.find_map(|(first, (scores, chosen))| {
            let own: Vec<i32> = chosen.iter().map(|c| c.wrapping_sub(first)).collect();
            wrong_row(&Op::top_k(k as u64), scores, &own, batch, r).map(|c| c.wrapping_add(first))
        });
    }
    let Op::IndexSelect { budget, pool, tail } = op else {
        // Each place may hold what its neighbour could: falling order up to the bounds.
        let unordered = chosen.windows(2).find(|c| {
            let at = |i: i32| usize::try_from(i).ok().and_then(|i| scores.get(i));
            at(c[0]).zip(at(c[1])).is_some_and(|(a, b)| a.hi() < b.lo())
        });
        let wrong = match op {
            Op::TopK { limit: Some(limit), .. } => groups::wrong_choice(scores, chosen, *limit),
            _ => mix::wrong_choice(scores, chosen),
        };
        return wrong.or(unordered.map(|c| c[1]));
    };
    let b = Budget { budget: *budget as usize, pool: *pool as usize, tail: *tail };
    let Some((position, _)) = batch.row(r) else { return chosen.iter().copied().find(|t| *t != -1) };
    let complete = ((position + 1) / b.pool).min(batch.pools);
    match mix::pools_of(chosen, position, complete, b) {
        Some(pools) => mix::wrong_choice(&scores[..complete], &pools).map(|p| p * b.pool as i32),
        None => Some(chosen.first().copied().unwrap_or(-1)),
    }
}

fn reduce(kind: ReduceKind, order: Order, t: &BoundedTensor, axis: usize) -> Vec<Bounded> {
    let (outer, inner) = moves::around(&t.shape, axis);
    let (n, x) = (t.shape[axis], t.floats());
    let mut out = Vec::with_capacity(outer * inner);
    for o in 0..outer {
        for i in 0..inner {
            let line = (0..n).map(|k| x[(o * n + k) * inner + i]);
            out.push(match kind {
                ReduceKind::Sum => sum(line, order.depth(n as u64), UNIT),
                ReduceKind::Max => line.reduce(|a, b| a.binary(Binary::Max, b)).unwrap_or_default(),
            });
        }
    }
    out
}

fn gather(op: &Op, args: &[Value]) -> Result<BoundedData, IrError> {
    let ids = tensor_of(&args[1])?;
    let x = tensor_of(&args[0])?;
    let width = x.shape[1..].iter().product::<usize>();
    if let (Op::GatherLast, BoundedData::Int(x)) = (op, &x.data) {
        let k = ids.shape.last().copied().unwrap_or(1);
        return Ok(BoundedData::Int(moves::gather_last(x, width, ids.ints(), k)));
    }
    Ok(BoundedData::Float(match op {
        Op::GatherLast => moves::gather_last(x.floats(), width, ids.ints(), ids.shape.last().copied().unwrap_or(1)),
        _ => moves::gather_rows(x.floats(), width, ids.ints()),
    }))
}

fn contraction(op: &Op, args: &[Value], truncating: bool) -> Result<BoundedData, IrError> {
    let x = tensor_of(&args[0])?;
    let k = x.shape.last().copied().unwrap_or(1);
    Ok(BoundedData::Float(match op {
        Op::MatMul { order } => {
            let (w, shape) = rows_of(&args[1])?;
            mix::matmul(x.floats(), k, &*w, 0, shape[0], Sums { order: *order, truncating })
        }
        Op::BatchMatMul { transposed, order } => {
            let (w, shape) = rows_of(&args[1])?;
            let n = if *transposed { shape[2] } else { shape[1] };
            let d = Heads { rows: x.shape[0], heads: x.shape[1], k, n };
            mix::batch_matmul(x.floats(), &*w, &d, *transposed, Sums { order: *order, truncating })
        }
        Op::GroupedMatMul { order } => {
            let (ids, slots) = (tensor_of(&args[1])?, tensor_of(&args[2])?);
            let (w, shape) = rows_of(&args[3])?;
            let g = Grouped {
                x: &[],
                per_choice: x.shape.len() == 3,
                k,
                ids: ids.ints(),
                choices: ids.shape[1],
                slots: slots.ints(),
                w: &*w,
                w_slots: shape[0],
                n: shape[1],
            };
            mix::grouped_matmul(x.floats(), &g, Sums { order: *order, truncating })
        }
        other => return Err(refuse("op", other.name(), "not a contraction", "internal")),
    }))
}
