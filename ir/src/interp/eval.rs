//! Evaluation of one graph in `bits` mode.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::IrError;
use crate::graph::{Graph, ValueId};
use crate::infer::infer;
use crate::interp::batch::{Batch, Dims, logits_of};
use crate::interp::contract::{self, Grouped, Heads};
use crate::interp::select::{self, Budget, IndexScale};
use crate::interp::state::{self, Delta, StateData};
use crate::interp::value::{Data, Rows, Tensor, WeightRef, round_all};
use crate::interp::{fast, moves, pointwise, refuse};
use crate::op::Op;
use crate::order::Order;
use crate::types::{DType, Dim, TensorType, Type};

/// Gives a weight by its role in the graph.
pub type WeightFn<'f, 'w> = dyn Fn(&str) -> Result<WeightRef<'w>, IrError> + 'f;
/// Sees every tensor that a node computes.
pub type Observe<'o> = dyn FnMut(ValueId, &Tensor) + 'o;

#[derive(Clone)]
pub(crate) enum Value<'w> {
    Tensor(Arc<Tensor>),
    Weight(Arc<WeightRef<'w>>),
    State(Arc<StateData>),
    Tuple(Vec<Value<'w>>),
}

impl<'w> From<Tensor> for Value<'w> {
    fn from(t: Tensor) -> Self {
        Value::Tensor(Arc::new(t))
    }
}

/// Evaluates a graph: its tensor outputs by name. Outputs of state type replace the entries of `states` under their
/// names once everything has been computed; on an error `states` is unchanged. `observe` sees inputs and computed
/// tensors in node order (not weights, and not the insides of `repeat`).
///
/// # Errors
/// [`IrError::Eval`] if inputs, weights, states or the batch do not fit the graph; [`IrError::Type`] if the graph
/// itself breaks a typing rule.
pub fn eval_graph<'w>(
    g: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    weights: &WeightFn<'_, 'w>,
    states: &mut BTreeMap<String, StateData>,
    batch: &Batch,
    observe: &mut Observe,
) -> Result<BTreeMap<String, Tensor>, IrError> {
    let shared: BTreeMap<String, Arc<StateData>> =
        states.iter().map(|(k, v)| (k.clone(), Arc::new(v.clone()))).collect();
    let mut args = Vec::new();
    for (name, _) in g.inputs() {
        let t =
            inputs.get(name).ok_or_else(|| refuse("input-missing", &g.name, name, "give every input by its name"))?;
        args.push(Value::from(t.clone()));
    }
    let mut tensors = BTreeMap::new();
    let mut next = Vec::new();
    for (name, value) in eval_values(g, args, weights, &|name| shared.get(name).cloned(), batch, observe)? {
        match value {
            Value::State(s) => next.push((name, s)),
            other => {
                tensors.insert(name, tensor_of(&other)?.as_ref().clone());
            }
        }
    }
    for (name, s) in next {
        states.insert(name, Arc::unwrap_or_clone(s));
    }
    Ok(tensors)
}

/// As [`eval_graph`], with inputs in node order and shared values in and out, in the order of `Graph::outputs`.
pub(crate) fn eval_values<'w>(
    g: &Graph,
    inputs: Vec<Value<'w>>,
    weights: &WeightFn<'_, 'w>,
    states: &dyn Fn(&str) -> Option<Arc<StateData>>,
    batch: &Batch,
    observe: &mut Observe,
) -> Result<Vec<(String, Value<'w>)>, IrError> {
    batch.check()?;
    check_graph(g)?;
    let declared: Vec<&Type> = g.inputs().map(|(_, id)| g.ty(id)).collect();
    let pairs = declared.iter().zip(&inputs).filter_map(|(ty, v)| match (ty, v) {
        (Type::Tensor(t), Value::Tensor(v)) => Some((t.shape.as_slice(), &**v)),
        _ => None,
    });
    let dims = Dims::of(batch, logits_of(pairs));
    let step = Step { batch, dims };
    let mut leaf = |id: ValueId| -> Result<Value<'w>, IrError> {
        match &g.node(id).op {
            Op::Weight { name } => {
                let w = weights(name)?;
                step.check_weight(&w, g.ty(id), name)?;
                Ok(Value::Weight(Arc::new(w)))
            }
            Op::State { name } => {
                let s = states(name).ok_or_else(|| refuse("state-missing", &g.name, name, "give every state"))?;
                step.check_state(&s, g.ty(id), name)?;
                Ok(Value::State(s))
            }
            other => Err(refuse("leaf", &g.name, other.name(), "not a leaf")),
        }
    };
    step.run(g, inputs, &mut leaf, observe)
}

/// Operands precede their users and every node has the type that its op gives: what the code below relies on.
pub(crate) fn check_graph(g: &Graph) -> Result<(), IrError> {
    for id in g.ids() {
        let node = g.node(id);
        if node.args.iter().any(|a| *a >= id) {
            return Err(refuse("operand-order", &g.name, &format!("node {}", id.0), "operands precede their users"));
        }
        if matches!(node.op, Op::Input { .. } | Op::Weight { .. } | Op::State { .. }) {
            continue;
        }
        let types: Vec<&Type> = node.args.iter().map(|a| g.ty(*a)).collect();
        let ty = infer(&node.op, &types, &g.bodies)?;
        if ty != node.ty {
            let found = format!("node {} says {}, its op gives {ty}", id.0, node.ty);
            return Err(refuse("node-type", &g.name, &found, "use the inferred type"));
        }
    }
    if g.outputs.iter().any(|(_, id)| id.index() >= g.nodes.len()) {
        return Err(refuse("output-range", &g.name, "an output names no node", "outputs name nodes of the graph"));
    }
    g.bodies.iter().try_for_each(check_graph)
}

pub(crate) fn tensor_of(v: &Value) -> Result<Arc<Tensor>, IrError> {
    match v {
        Value::Tensor(t) => Ok(t.clone()),
        Value::Weight(w) => Ok(Arc::new(w.to_tensor())),
        _ => Err(refuse("value-kind", "operand", "a state or tuple", "a tensor is needed here")),
    }
}

fn state_of<'a>(v: &'a Value) -> Result<&'a Arc<StateData>, IrError> {
    match v {
        Value::State(s) => Ok(s),
        _ => Err(refuse("value-kind", "operand", "not a state", "a state is needed here")),
    }
}

/// Rows of a contraction's second operand, without converting a weight.
fn rows_of<'a>(v: &'a Value) -> Result<&'a dyn Rows, IrError> {
    match v {
        Value::Tensor(t) => Ok(&**t),
        Value::Weight(w) => Ok(&**w),
        _ => Err(refuse("value-kind", "operand", "a state or tuple", "a tensor is needed here")),
    }
}

fn shape_of(v: &Value) -> Vec<usize> {
    match v {
        Value::Tensor(t) => t.shape.clone(),
        Value::Weight(w) => w.shape.iter().map(|&d| d as usize).collect(),
        _ => Vec::new(),
    }
}

struct Step<'b> {
    batch: &'b Batch,
    dims: Dims,
}

impl Step<'_> {
    fn check_input(&self, t: &Tensor, ty: &Type, name: &str) -> Result<(), IrError> {
        let want = ty.tensor().ok_or_else(|| refuse("input-type", name, "not a tensor", "inputs are tensors"))?;
        let shape = self.dims.shape(&want.shape);
        let kind = matches!(t.data, Data::F32(_)) == t.dtype.is_float();
        if want.dtype() != Some(t.dtype) || shape != t.shape || !kind || t.data_len() != t.elements() {
            let found =
                format!("{}{:?} with {} elements, needed {want} = {shape:?}", t.dtype.name(), t.shape, t.data_len());
            return Err(refuse("input-type", name, &found, "give a tensor of the declared type"));
        }
        Ok(())
    }

    fn check_weight(&self, w: &WeightRef, ty: &Type, name: &str) -> Result<(), IrError> {
        w.check()?;
        let want = ty.tensor().ok_or_else(|| refuse("weight-type", name, "not a tensor", "weights are tensors"))?;
        let fits = want.format == w.format
            && want.shape.len() == w.shape.len()
            && want.shape.iter().zip(&w.shape).all(|(a, b)| a.fixed() == Some(*b));
        if fits {
            return Ok(());
        }
        let given = TensorType { format: w.format, shape: w.shape.iter().map(|n| Dim::Fixed(*n)).collect() };
        Err(refuse("weight-type", name, &format!("{given}, needed {want}"), "give a weight of the declared type"))
    }

    fn check_state(&self, s: &StateData, ty: &Type, name: &str) -> Result<(), IrError> {
        let want = ty.state().ok_or_else(|| refuse("state-type", name, "not a state", "see StateType"))?;
        if !s.fits(want) {
            return Err(refuse("state-type", name, &format!("content does not fit {ty}"), "make it by StateData::new"));
        }
        let slots = s.slots().len();
        match self.batch.slot.iter().find(|&&b| b >= 0 && b as usize >= slots) {
            Some(b) => Err(refuse("state-slot", name, &format!("slot {b} of {slots}"), "make more slots")),
            None => Ok(()),
        }
    }

    fn run<'w>(
        &self,
        g: &Graph,
        inputs: Vec<Value<'w>>,
        leaf: &mut dyn FnMut(ValueId) -> Result<Value<'w>, IrError>,
        observe: &mut Observe,
    ) -> Result<Vec<(String, Value<'w>)>, IrError> {
        let mut values: Vec<Option<Value<'w>>> = vec![None; g.nodes.len()];
        let mut last_use: Vec<usize> = (0..g.nodes.len()).collect();
        for id in g.ids() {
            g.node(id).args.iter().for_each(|a| last_use[a.index()] = id.index());
        }
        g.outputs.iter().for_each(|(_, id)| last_use[id.index()] = usize::MAX);
        let mut inputs = inputs.into_iter();
        for id in g.ids() {
            let node = g.node(id);
            let value = match &node.op {
                Op::Input { name, .. } => {
                    let v = inputs.next().ok_or_else(|| refuse("input-missing", &g.name, name, "give every input"))?;
                    self.check_input(tensor_of(&v)?.as_ref(), &node.ty, name)?;
                    v
                }
                Op::Weight { .. } | Op::State { .. } => leaf(id)?,
                _ => {
                    let args: Option<Vec<Value>> = node.args.iter().map(|a| values[a.index()].clone()).collect();
                    let args = args.ok_or_else(|| refuse("operand-order", &g.name, "a dropped value", "internal"))?;
                    self.apply(g, &node.op, &args, &node.ty)?
                }
            };
            if let Value::Tensor(t) = &value {
                observe(id, t);
            }
            values[id.index()] = Some(value);
            // Large activations do not outlive their last user.
            for a in &node.args {
                if last_use[a.index()] == id.index() {
                    values[a.index()] = None;
                }
            }
        }
        let take = |(name, id): &(String, ValueId)| values[id.index()].clone().map(|v| (name.clone(), v));
        g.outputs.iter().map(|o| take(o).ok_or_else(|| refuse("output", &g.name, &o.0, "internal"))).collect()
    }

    fn apply<'w>(&self, g: &Graph, op: &Op, args: &[Value<'w>], ty: &Type) -> Result<Value<'w>, IrError> {
        match op {
            Op::Project(i) => match &args[0] {
                Value::Tuple(parts) => Ok(parts[*i as usize].clone()),
                _ => Err(refuse("value-kind", "project", "not a tuple", "project takes a tuple")),
            },
            Op::Repeat { body, count } => self.repeat(&g.bodies[*body as usize], *count, args),
            Op::ConvUpdate | Op::TokenWrite | Op::TailUpdate | Op::PoolWrite => self.write_state(op, args),
            Op::DeltaRule { order } => self.delta_rule(args, *order, ty),
            _ => {
                let ty = ty.tensor().ok_or_else(|| refuse("value-kind", op.name(), "no tensor", "internal"))?;
                if let (Op::Reshape(_), Some(Value::Weight(w))) = (op, args.first()) {
                    let shape = self.dims.shape(&ty.shape).iter().map(|&d| d as u64).collect();
                    return Ok(Value::Weight(Arc::new(WeightRef { shape, ..w.as_ref().clone() })));
                }
                let shape = self.dims.shape(&ty.shape);
                let data = self.tensor_op(op, args, &shape)?;
                let t = Tensor { dtype: ty.dtype().unwrap_or(DType::F32), shape, data };
                if t.data_len() != t.elements() {
                    return Err(refuse("result-size", op.name(), &format!("{} for {ty}", t.data_len()), "internal"));
                }
                Ok(t.into())
            }
        }
    }

    fn repeat<'w>(&self, body: &Graph, count: u32, args: &[Value<'w>]) -> Result<Value<'w>, IrError> {
        let mut args = args.to_vec();
        let mut leaf =
            |_: ValueId| Err(refuse("repeat-leaf", &body.name, "a weight or state", "pass it as an operand"));
        for _ in 0..count {
            let mut out = self.run(body, args.clone(), &mut leaf, &mut |_, _| {})?;
            let (_, value) = out.pop().ok_or_else(|| refuse("repeat-result", &body.name, "no output", "return one"))?;
            args[0] = value;
        }
        Ok(args.swap_remove(0))
    }

    fn write_state<'w>(&self, op: &Op, args: &[Value<'w>]) -> Result<Value<'w>, IrError> {
        let x = tensor_of(&args[0])?;
        let next = match op {
            Op::ConvUpdate => state::conv_update(x.floats(), state_of(&args[1])?, self.batch),
            Op::TokenWrite => state::token_write(x.floats(), state_of(&args[1])?, self.batch),
            Op::PoolWrite => state::pool_write(x.floats(), state_of(&args[1])?, self.batch),
            _ => {
                let y = tensor_of(&args[1])?;
                state::tail_update([x.floats(), y.floats()], state_of(&args[2])?, self.batch)
            }
        };
        Ok(Value::State(Arc::new(next)))
    }

    fn delta_rule<'w>(&self, args: &[Value<'w>], order: Order, ty: &Type) -> Result<Value<'w>, IrError> {
        let t: Vec<Arc<Tensor>> = args[..5].iter().map(tensor_of).collect::<Result<_, _>>()?;
        let chains = select::strided_chains(order);
        let (q, k, v) = (t[0].floats(), t[1].floats(), t[2].floats());
        let operands = Delta { q, k, v, decay: t[3].floats(), beta: t[4].floats(), chains };
        let (o, next) = state::delta_rule(&operands, state_of(&args[5])?, self.batch);
        let shape = match ty {
            Type::Tuple(parts) => parts[0].tensor().map(|t| self.dims.shape(&t.shape)).unwrap_or_default(),
            _ => t[2].shape.clone(),
        };
        Ok(Value::Tuple(vec![Tensor::f32(&shape, o).into(), Value::State(Arc::new(next))]))
    }

    fn tensor_op(&self, op: &Op, args: &[Value], to: &[usize]) -> Result<Data, IrError> {
        match op {
            Op::ConstF32(bits) => Ok(Data::F32(vec![f32::from_bits(*bits)])),
            Op::Unary(u) => {
                let mut data = tensor_of(&args[0])?.floats().to_vec();
                fast::unary(*u, &mut data);
                Ok(Data::F32(data))
            }
            Op::Binary(b) => {
                let (x, y) = (tensor_of(&args[0])?, tensor_of(&args[1])?);
                Ok(Data::F32(pointwise::apply_binary(*b, (x.floats(), &x.shape), (y.floats(), &y.shape), to)))
            }
            Op::Cast(dtype) => {
                let mut data = tensor_of(&args[0])?.floats().to_vec();
                round_all(*dtype, &mut data);
                Ok(Data::F32(data))
            }
            Op::Reduce { kind, axis, order } => {
                let x = tensor_of(&args[0])?;
                Ok(Data::F32(pointwise::reduce(*kind, *order, x.floats(), &x.shape, *axis as usize)))
            }
            Op::Reshape(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Concat { .. } => move_op(op, args, to),
            Op::EmbedRows | Op::GatherRows | Op::GatherLast => gather_op(op, args),
            Op::MatMul { .. } | Op::BatchMatMul { .. } | Op::GroupedMatMul { .. } => contraction(op, args),
            _ => self.batch_op(op, args),
        }
    }

    fn batch_op(&self, op: &Op, args: &[Value]) -> Result<Data, IrError> {
        let x = tensor_of(&args[0])?;
        let f = f32::from_bits;
        Ok(match op {
            Op::TopK { k, limit, part } => {
                let n = x.shape.last().copied().unwrap_or(1).max(1);
                let choose = |row| select::choose_by_parts(row, *k as usize, *limit, *part);
                Data::I32(x.floats().chunks(n).flat_map(choose).collect())
            }
            Op::CausalConv => Data::F32(state::causal_conv(
                x.floats(),
                tensor_of(&args[1])?.floats(),
                state_of(&args[2])?,
                self.batch,
            )),
            Op::PoolWindow { part } => {
                Data::F32(state::pool_window(x.floats(), state_of(&args[1])?, *part as usize, self.batch))
            }
            Op::IndexScores { dot_scale, head_scale, order } => {
                let scale = IndexScale { dot: f(*dot_scale), head: f(*head_scale), order: *order };
                let w = tensor_of(&args[1])?;
                Data::F32(select::index_scores(x.floats(), w.floats(), state_of(&args[2])?, &scale, self.batch))
            }
            Op::IndexSelect { budget, pool, tail } => {
                let b = Budget { budget: *budget as usize, pool: *pool as usize, tail: *tail };
                Data::I32(select::index_select(x.floats(), b, self.batch))
            }
            Op::AttendSplits { scale, .. } => {
                let ids = tensor_of(&args[2])?;
                Data::F32(select::attend_splits(x.floats(), ids.ints(), state_of(&args[1])?, f(*scale), self.batch))
            }
            Op::AttendCombine => Data::F32(select::attend_combine(x.floats(), x.shape[2], x.shape[3])),
            other => return Err(refuse("op", other.name(), "no meaning here", "internal")),
        })
    }
}

fn move_op(op: &Op, args: &[Value], to: &[usize]) -> Result<Data, IrError> {
    let tensors: Vec<Arc<Tensor>> = args.iter().map(tensor_of).collect::<Result<_, _>>()?;
    let floats = matches!(tensors[0].data, Data::F32(_));
    Ok(if floats {
        let parts: Vec<(&[f32], &[usize])> = tensors.iter().map(|t| (t.floats(), t.shape.as_slice())).collect();
        Data::F32(move_elements(op, &parts, to))
    } else {
        let parts: Vec<(&[i32], &[usize])> = tensors.iter().map(|t| (t.ints(), t.shape.as_slice())).collect();
        Data::I32(move_elements(op, &parts, to))
    })
}

pub(crate) fn move_elements<T: Copy>(op: &Op, parts: &[(&[T], &[usize])], to: &[usize]) -> Vec<T> {
    let (x, shape) = parts[0];
    match op {
        Op::Broadcast(_) => moves::broadcast(x, shape, to),
        Op::Slice { axis, start, len } => moves::slice(x, shape, *axis as usize, *start as usize, *len as usize),
        Op::Concat { axis } => moves::concat(parts, *axis as usize),
        _ => x.to_vec(),
    }
}

fn gather_op(op: &Op, args: &[Value]) -> Result<Data, IrError> {
    let ids = tensor_of(&args[1])?;
    let shape = shape_of(&args[0]);
    let width = shape[1..].iter().product::<usize>();
    if let Op::EmbedRows = op {
        // Only the rows that are asked for are decoded; an id outside the table gives zeros.
        let table = rows_of(&args[0])?;
        let mut out = vec![0.0f32; ids.ints().len() * width];
        for (row, &id) in out.chunks_mut(width.max(1)).zip(ids.ints()) {
            if let Some(id) = usize::try_from(id).ok().filter(|id| *id < shape[0]) {
                table.decode(id * width, row);
            }
        }
        return Ok(Data::F32(out));
    }
    let x = tensor_of(&args[0])?;
    Ok(match op {
        Op::GatherLast => {
            let k = ids.shape.last().copied().unwrap_or(1);
            match &x.data {
                Data::F32(x) => Data::F32(moves::gather_last(x, width, ids.ints(), k)),
                Data::I32(x) => Data::I32(moves::gather_last(x, width, ids.ints(), k)),
            }
        }
        _ => Data::F32(moves::gather_rows(x.floats(), width, ids.ints())),
    })
}

fn contraction(op: &Op, args: &[Value]) -> Result<Data, IrError> {
    let x = tensor_of(&args[0])?;
    let k = x.shape.last().copied().unwrap_or(1);
    Ok(Data::F32(match op {
        Op::MatMul { .. } => contract::matmul(x.floats(), k, rows_of(&args[1])?, 0, shape_of(&args[1])[0]),
        Op::BatchMatMul { transposed, order } => {
            let w = shape_of(&args[1]);
            let n = if *transposed { w[2] } else { w[1] };
            let d = Heads { rows: x.shape[0], heads: x.shape[1], k, n };
            contract::batch_matmul(x.floats(), rows_of(&args[1])?, &d, *transposed, *order)
        }
        _ => {
            let (ids, slots, w) = (tensor_of(&args[1])?, tensor_of(&args[2])?, shape_of(&args[3]));
            contract::grouped_matmul(&Grouped {
                x: x.floats(),
                per_choice: x.shape.len() == 3,
                k,
                ids: ids.ints(),
                choices: ids.shape[1],
                slots: slots.ints(),
                w: rows_of(&args[3])?,
                w_slots: w[0],
                n: w[1],
            })
        }
    }))
}
