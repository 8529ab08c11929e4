//! Typing rules: the result type of an op from its operands. Builder, parser and verifier all call [`infer`].

mod rule;

use crate::error::IrError;
use crate::graph::Graph;
use crate::op::{GroupLimit, Op, ReduceKind};
use crate::order::{Order, SEQUENTIAL_MAX, SPLIT_ROWS};
use crate::types::{DType, Dim, Format, StateKind, TensorType, Type};

use rule::Rule;

/// Largest product of fixed extents in one value: sizes stay far from u64 overflow when multiplied by rows and bytes.
pub const MAX_ELEMENTS: u64 = 1 << 48;

/// Most axes of one value.
pub const MAX_RANK: usize = 8;

/// [`Op::name`], for callers that know it under this path.
pub fn op_name(op: &Op) -> &'static str {
    op.name()
}

/// Result type of `op` on operands of types `args`; `bodies` are those of the graph (for `repeat`).
///
/// # Errors
/// [`IrError::Type`] names the broken rule and the actual types. Leaves (`input`, `weight`, `state`) carry their type
/// and are refused here.
pub fn infer(op: &Op, args: &[&Type], bodies: &[Graph]) -> Result<Type, IrError> {
    let rule = Rule { op, args };
    let ty = match op {
        Op::Input { .. } | Op::Weight { .. } | Op::State { .. } => {
            return Err(rule.refuse("leaf", "a leaf has no operands to infer from", "give its type"));
        }
        Op::ConstF32(_) => rule.count(0).map(|()| tensor(DType::F32, vec![]))?,
        Op::Unary(_) | Op::Binary(_) | Op::Cast(_) => pointwise(&rule)?,
        Op::Reshape(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Concat { .. } => shape_op(&rule)?,
        Op::Reduce { .. } => reduce(&rule)?,
        Op::Repeat { body, .. } => repeat(&rule, *body, bodies)?,
        Op::MatMul { .. } | Op::BatchMatMul { .. } | Op::GroupedMatMul { .. } => contraction(&rule)?,
        Op::TopK { .. } | Op::GatherLast | Op::EmbedRows | Op::GatherRows => gather(&rule)?,
        Op::CausalConv | Op::ConvUpdate | Op::DeltaRule { .. } => recurrent(&rule)?,
        Op::Project(i) => project(&rule, *i)?,
        Op::TokenWrite | Op::PoolWindow { .. } | Op::TailUpdate | Op::PoolWrite => token_state(&rule)?,
        Op::IndexScores { .. } | Op::IndexSelect { .. } | Op::AttendSplits { .. } | Op::AttendCombine => {
            selection(&rule)?
        }
    };
    check_size(&rule, &ty)?;
    Ok(ty)
}

fn tensor(d: DType, shape: Vec<Dim>) -> Type {
    Type::Tensor(TensorType::plain(d, shape))
}

/// Product of the fixed extents of a shape, or `None` beyond [`MAX_ELEMENTS`].
pub fn fixed_elements(shape: &[Dim]) -> Option<u64> {
    let product = shape.iter().filter_map(|d| d.fixed()).try_fold(1u64, |a, n| a.checked_mul(n))?;
    (product <= MAX_ELEMENTS).then_some(product)
}

fn check_size(rule: &Rule, ty: &Type) -> Result<(), IrError> {
    match ty {
        Type::Tensor(t) if t.shape.iter().any(|d| d.fixed() == Some(0)) => {
            Err(rule.refuse("empty", format!("{t}"), "extents are at least 1"))
        }
        Type::Tensor(t) if t.rank() > MAX_RANK => {
            Err(rule.refuse("rank-limit", format!("{t}"), "a value has at most 8 axes"))
        }
        Type::Tensor(t) if fixed_elements(&t.shape).is_none() => {
            Err(rule.refuse("size", format!("{t}"), "a value has at most 2^48 elements a row"))
        }
        Type::Tuple(ts) => ts.iter().try_for_each(|t| check_size(rule, t)),
        _ => Ok(()),
    }
}

fn pointwise(r: &Rule) -> Result<Type, IrError> {
    match r.op {
        Op::Unary(_) => {
            r.count(1)?;
            Ok(tensor(DType::F32, r.f32(0)?.to_vec()))
        }
        Op::Cast(to) => {
            r.count(1)?;
            let shape = r.float(0)?;
            if !matches!(to, DType::F32 | DType::Bf16 | DType::F16) {
                return Err(r.refuse("cast-dtype", to.name(), "cast between f32, bf16 and f16"));
            }
            Ok(tensor(*to, shape.to_vec()))
        }
        _ => {
            r.count(2)?;
            let (a, b) = (r.f32(0)?, r.f32(1)?);
            if a.is_empty() || b.is_empty() {
                return Ok(tensor(DType::F32, if a.is_empty() { b.to_vec() } else { a.to_vec() }));
            }
            if a.len() != b.len() {
                return Err(r.refuse("broadcast-rank", format!("ranks {} and {}", a.len(), b.len()), "reshape one"));
            }
            let mut shape = Vec::with_capacity(a.len());
            for (&x, &y) in a.iter().zip(b) {
                match (x, y) {
                    (x, y) if x == y => shape.push(x),
                    (x, y) if y.is_one() => shape.push(x),
                    (x, y) if x.is_one() => shape.push(y),
                    (x, y) => {
                        return Err(r.refuse("broadcast", format!("{x} against {y}"), "axes are equal or 1"));
                    }
                }
            }
            Ok(tensor(DType::F32, shape))
        }
    }
}

fn symbols(shape: &[Dim]) -> Vec<Dim> {
    shape.iter().copied().filter(|d| d.fixed().is_none()).collect()
}

fn shape_op(r: &Rule) -> Result<Type, IrError> {
    let t = r.tensor(0)?;
    let dtype = t.dtype().ok_or_else(|| r.refuse("plain", t.to_string(), "packed weights keep their shape"))?;
    match r.op {
        Op::Reshape(to) => {
            r.count(1)?;
            let same = symbols(&t.shape) == symbols(to)
                && fixed_elements(&t.shape).is_some()
                && fixed_elements(&t.shape) == fixed_elements(to)
                && t.shape.first().is_some_and(|d| d.fixed().is_none())
                    == to.first().is_some_and(|d| d.fixed().is_none());
            if !same {
                let found = format!("{t} to {}", TensorType::plain(dtype, to.clone()));
                return Err(r.refuse("reshape", found, "element counts must agree and symbols stay in front"));
            }
            Ok(tensor(dtype, to.clone()))
        }
        Op::Broadcast(to) => {
            r.count(1)?;
            r.rank(to, t.rank(), "the result")?;
            if t.shape.iter().zip(to).any(|(a, b)| a != b && !a.is_one()) {
                let found = format!("{t} to {}", TensorType::plain(dtype, to.clone()));
                return Err(r.refuse("broadcast", found, "only axes of extent 1 grow"));
            }
            Ok(tensor(dtype, to.clone()))
        }
        Op::Slice { axis, start, len } => {
            r.count(1)?;
            let a = r.axis(&t.shape, *axis)?;
            let n = r.fixed(t.shape[a], "the sliced axis")?;
            if *len == 0 || start.checked_add(*len).is_none_or(|end| end > n) {
                return Err(r.refuse("slice-range", format!("{start}+{len} of {n}"), "stay inside the axis"));
            }
            let mut shape = t.shape.clone();
            shape[a] = Dim::Fixed(*len);
            Ok(tensor(dtype, shape))
        }
        _ => concat(r, dtype),
    }
}

fn concat(r: &Rule, dtype: DType) -> Result<Type, IrError> {
    let Op::Concat { axis } = r.op else { return Err(r.refuse("concat", "another op", "internal")) };
    let mut shape = r.tensor(0)?.shape.clone();
    let a = r.axis(&shape, *axis)?;
    let mut total = 0u64;
    for i in 0..r.args.len() {
        let t = r.typed(i, &[dtype])?;
        r.rank(t, shape.len(), "each operand")?;
        for (j, (&x, &y)) in shape.iter().zip(t).enumerate() {
            if j != a {
                r.same(x, y, "concat")?;
            }
        }
        total = total
            .checked_add(r.fixed(t[a], "the joined axis")?)
            .ok_or_else(|| r.refuse("size", "the joined axis exceeds 2^64", "join less"))?;
    }
    shape[a] = Dim::Fixed(total);
    Ok(tensor(dtype, shape))
}

fn reduce(r: &Rule) -> Result<Type, IrError> {
    let Op::Reduce { kind, axis, order } = r.op else { return Err(r.refuse("reduce", "another op", "internal")) };
    r.count(1)?;
    let shape = r.f32(0)?;
    let a = r.axis(shape, *axis)?;
    let n = r.fixed(shape[a], "the reduced axis")?;
    if a + 1 != shape.len() && n > SEQUENTIAL_MAX {
        return Err(r.refuse("reduce-axis", format!("axis {a} of extent {n}"), "reduce the last axis, or at most 32"));
    }
    if *kind == ReduceKind::Sum {
        let last = a + 1 == shape.len();
        let ok = *order == Order::Sequential || (*order == Order::Lanes && last);
        r.order(*order, n, "sequential, or lanes over the last axis", ok)?;
    } else if *order != Order::Sequential {
        // A maximum has no order: one spelling keeps equal ops equal.
        return Err(r.refuse("order-kind", format!("{}, needed sequential", order.name()), "a maximum has no order"));
    }
    let mut out = shape.to_vec();
    out[a] = Dim::Fixed(1);
    Ok(tensor(DType::F32, out))
}

fn repeat(r: &Rule, body: u32, bodies: &[Graph]) -> Result<Type, IrError> {
    let g = bodies
        .get(body as usize)
        .ok_or_else(|| r.refuse("repeat-body", format!("body {body} of {}", bodies.len()), "name an existing body"))?;
    let params: Vec<&Type> = g.inputs().map(|(_, id)| g.ty(id)).collect();
    if params.len() != r.args.len() || params.iter().zip(r.args).any(|(a, b)| a != b) {
        let want: Vec<String> = params.iter().map(|t| t.to_string()).collect();
        return Err(r.refuse(
            "repeat-operands",
            format!("body takes ({})", want.join(", ")),
            "match the body's inputs",
        ));
    }
    match (g.outputs.as_slice(), params.first()) {
        ([(_, out)], Some(&first)) if g.ty(*out) == first => Ok(first.clone()),
        _ => Err(r.refuse("repeat-result", "the body must return its first input's type", "return the carried value")),
    }
}

fn contraction(r: &Rule) -> Result<Type, IrError> {
    match r.op {
        Op::MatMul { order } => {
            r.count(2)?;
            let (x, w) = (r.float(0)?, r.weight(1, 2)?);
            let Some(&k) = x.last() else { return Err(r.refuse("rank", "x is a scalar", "give x an axis")) };
            r.same(k, w.shape[1], "contracted axis")?;
            rows_order(r, *order, w)?;
            let mut out = x.to_vec();
            out[x.len() - 1] = w.shape[0];
            Ok(tensor(DType::F32, out))
        }
        Op::BatchMatMul { transposed, order } => {
            r.count(2)?;
            let (x, w) = (r.float(0)?, r.float(1)?);
            r.rank(x, 3, "x")?;
            r.weight(1, 3)?;
            r.same(x[1], w[0], "heads")?;
            let (n, k) = if *transposed { (w[2], w[1]) } else { (w[1], w[2]) };
            r.same(x[2], k, "contracted axis")?;
            let (allowed, ok) = match transposed {
                true => ("strided", matches!(order, Order::Strided(_))),
                false => ("lanes", *order == Order::Lanes),
            };
            r.order(*order, r.fixed(k, "K")?, allowed, ok)?;
            Ok(tensor(DType::F32, vec![x[0], x[1], n]))
        }
        _ => grouped(r),
    }
}

/// The order of a contraction along the rows of `w`; an int4 weight has whole runs, each inside one group.
fn rows_order(r: &Rule, order: Order, w: &TensorType) -> Result<(), IrError> {
    let k = r.fixed(w.shape[w.rank() - 1], "K")?;
    if let Format::Int4 { group, .. } = w.format
        && (!matches!(group, 32 | 64 | 128) || !k.is_multiple_of(u64::from(group)))
    {
        let hint = "groups have 32, 64 or 128 inputs and fill the contracted axis; quantise the model so";
        return Err(r.refuse("int4-group", format!("{k} inputs in groups of {group}"), hint));
    }
    let needed = Order::of_rows(w);
    r.order(order, k, &needed.name(), order == needed)
}

fn grouped(r: &Rule) -> Result<Type, IrError> {
    let Op::GroupedMatMul { order } = r.op else { return Err(r.refuse("grouped", "another op", "internal")) };
    r.count(4)?;
    let (x, ids, slots, w) = (r.float(0)?, r.i32(1)?, r.i32(2)?, r.weight(3, 3)?);
    r.rank(ids, 2, "ids")?;
    r.rank(slots, 1, "slots")?;
    let (Some(&first), Some(&k)) = (x.first(), x.last()) else {
        return Err(r.refuse("rank", "x is a scalar", "x is [R, K] or [R, k, K]"));
    };
    r.same(first, ids[0], "rows")?;
    if x.len() == 3 {
        r.same(x[1], ids[1], "choices")?;
    } else {
        r.rank(x, 2, "x")?;
    }
    r.same(k, w.shape[2], "contracted axis")?;
    rows_order(r, *order, w)?;
    Ok(tensor(DType::F32, vec![first, ids[1], w.shape[1]]))
}

/// Whole groups, and enough elements in those that are kept.
fn group_limit(r: &Rule, k: u64, e: u64, l: GroupLimit) -> Result<(), IrError> {
    let found = || format!("k {k} of {e} in {} of {} groups", l.kept, l.groups);
    if l.groups == 0 || !e.is_multiple_of(l.groups) || l.kept == 0 || l.kept > l.groups {
        let hint = "groups divide the axis, 1 <= kept <= groups";
        return Err(r.refuse("top-k-groups", found(), hint));
    }
    if k > e / l.groups * l.kept {
        return Err(r.refuse("top-k-groups", found(), "k <= the elements of the kept groups"));
    }
    Ok(())
}

/// Ids of a top-k by parts.
fn part_ids(r: &Rule, k: u64, e: u64, part: u64, limit: Option<GroupLimit>) -> Result<u64, IrError> {
    let found = || format!("k {k}, parts of {part} of {e}");
    if limit.is_some() {
        return Err(r.refuse("top-k-parts", found(), "no groups beside parts"));
    }
    let last = e.checked_rem(part).map(|rest| if rest == 0 { part } else { rest });
    match last {
        Some(last) if k <= last => Ok(e.div_ceil(part) * k),
        _ => Err(r.refuse("top-k-parts", found(), "k <= the elements of the last part")),
    }
}

fn gather(r: &Rule) -> Result<Type, IrError> {
    match r.op {
        Op::TopK { k, limit, part } => {
            r.count(1)?;
            let s = r.f32(0)?;
            let Some(&last) = s.last() else { return Err(r.refuse("rank", "scores are a scalar", "give an axis")) };
            let e = r.fixed(last, "the scored axis")?;
            if *k == 0 || *k > e {
                return Err(r.refuse("top-k-range", format!("k {k} of {e}"), "1 <= k <= the axis"));
            }
            limit.map_or(Ok(()), |l| group_limit(r, *k, e, l))?;
            let mut out = s.to_vec();
            out[s.len() - 1] = Dim::Fixed(part.map_or(Ok(*k), |part| part_ids(r, *k, e, part, *limit))?);
            Ok(tensor(DType::I32, out))
        }
        Op::GatherLast => {
            r.count(2)?;
            let integers = r.tensor(0)?.dtype() == Some(DType::I32);
            let (x, ids) = (if integers { r.i32(0)? } else { r.f32(0)? }, r.i32(1)?);
            r.rank(x, 2, "x")?;
            r.rank(ids, 2, "ids")?;
            r.same(x[0], ids[0], "rows")?;
            Ok(tensor(if integers { DType::I32 } else { DType::F32 }, ids.to_vec()))
        }
        Op::EmbedRows => {
            r.count(2)?;
            let dtype = r.tensor(0)?.dtype();
            let (table, ids) = (r.float(0)?, r.i32(1)?);
            r.weight(0, 2)?;
            r.rank(ids, 1, "ids")?;
            Ok(tensor(dtype.unwrap_or(DType::F32), vec![ids[0], table[1]]))
        }
        _ => {
            r.count(2)?;
            let dtype = r.tensor(0)?.dtype();
            let (x, rows) = (r.float(0)?, r.i32(1)?);
            r.rank(rows, 1, "rows")?;
            if x.first() != Some(&Dim::Rows) {
                return Err(r.refuse("rows-axis", "x has no row axis", "gather rows of an activation"));
            }
            let mut out = x.to_vec();
            out[0] = rows[0];
            Ok(tensor(dtype.unwrap_or(DType::F32), out))
        }
    }
}

fn slot_shape<'a>(r: &'a Rule, i: usize, rank: usize) -> Result<&'a [u64], IrError> {
    match &r.state(i)?.kind {
        StateKind::Slot { shape } if shape.len() == rank => Ok(shape),
        _ => Err(r.refuse("state-kind", format!("operand {i} is {}", r.args[i]), "pass a slot state of this rank")),
    }
}

fn rows_of<'a>(r: &Rule, x: &'a [Dim], rank: usize) -> Result<&'a [Dim], IrError> {
    r.rank(x, rank, "x")?;
    if x[0] != Dim::Rows {
        return Err(r.refuse("rows-axis", format!("first axis is {}", x[0]), "ops that mix rows take [R, ..]"));
    }
    Ok(x)
}

fn recurrent(r: &Rule) -> Result<Type, IrError> {
    match r.op {
        Op::CausalConv => {
            r.count(3)?;
            r.float(0)?;
            // The window's old rows count as x: in another dtype they would make the result depend on chunking.
            let (s, dtype) = (slot_shape(r, 2, 2)?, r.state(2)?.dtype);
            let (x, w) = (rows_of(r, r.typed(0, &[dtype])?, 2)?, r.float(1)?);
            r.rank(w, 2, "taps")?;
            r.same(x[1], w[0], "channels")?;
            r.same(w[1], Dim::Fixed(s[0].saturating_add(1)), "taps against state rows + 1")?;
            r.same(x[1], Dim::Fixed(s[1]), "channels against the state")?;
            let taps = r.fixed(w[1], "taps")?;
            if taps > SEQUENTIAL_MAX {
                return Err(r.refuse("taps", format!("{taps}"), "at most 32 taps"));
            }
            Ok(tensor(DType::F32, x.to_vec()))
        }
        Op::ConvUpdate => {
            r.count(2)?;
            let state = r.state(1)?;
            let (x, s) = (rows_of(r, r.typed(0, &[state.dtype])?, 2)?, slot_shape(r, 1, 2)?);
            r.same(x[1], Dim::Fixed(s[1]), "channels against the state")?;
            Ok(Type::State(state.clone()))
        }
        _ => delta_rule(r),
    }
}

fn delta_rule(r: &Rule) -> Result<Type, IrError> {
    let Op::DeltaRule { order } = r.op else { return Err(r.refuse("delta-rule", "another op", "internal")) };
    r.count(6)?;
    let q = rows_of(r, r.f32(0)?, 3)?;
    let (k, v, g, b) = (r.f32(1)?, r.f32(2)?, r.f32(3)?, r.f32(4)?);
    r.rank(v, 3, "v")?;
    let s = slot_shape(r, 5, 3)?;
    for (shape, want, what) in [
        (k, q.to_vec(), "k"),
        (g, q.to_vec(), "decay"),
        (v, vec![q[0], q[1], v[2]], "v"),
        (b, vec![q[0], q[1], Dim::Fixed(1)], "beta"),
    ] {
        if shape != want.as_slice() {
            return Err(r.refuse("delta-rule-shape", what, "q, k, decay [R, H, K]; v [R, H, V]; beta [R, H, 1]"));
        }
    }
    let state = [Dim::Fixed(s[0]), Dim::Fixed(s[1]), Dim::Fixed(s[2])];
    if [q[1], q[2], v[2]] != state || r.state(5)?.dtype != DType::F32 {
        return Err(r.refuse("delta-rule-state", r.args[5].to_string(), "the state is f32 [H, K, V]"));
    }
    r.order(*order, r.fixed(q[2], "K")?, "strided", matches!(order, Order::Strided(_)))?;
    Ok(Type::Tuple(vec![tensor(DType::F32, v.to_vec()), Type::State(r.state(5)?.clone())]))
}

fn project(r: &Rule, i: u32) -> Result<Type, IrError> {
    r.count(1)?;
    match r.args[0] {
        Type::Tuple(ts) if (i as usize) < ts.len() => Ok(ts[i as usize].clone()),
        other => Err(r.refuse("project", format!("component {i} of {other}"), "name a component of a tuple")),
    }
}

fn token_state(r: &Rule) -> Result<Type, IrError> {
    let mismatch = |i: usize| {
        r.refuse(
            "state-kind",
            format!("operand {i} is {}", r.args[i]),
            "pass a state of the op's kind: token, pool or tail",
        )
    };
    match r.op {
        Op::TokenWrite | Op::PoolWrite => {
            r.count(2)?;
            let s = r.state(1)?;
            let x = rows_of(r, r.typed(0, &[s.dtype])?, 2)?;
            let width = match (&s.kind, r.op) {
                (StateKind::Token { width }, Op::TokenWrite) => *width,
                (StateKind::Pool { width, .. }, Op::PoolWrite) => *width,
                _ => return Err(mismatch(1)),
            };
            r.same(x[1], Dim::Fixed(width), "width")?;
            Ok(Type::State(s.clone()))
        }
        Op::PoolWindow { part } => {
            r.count(2)?;
            let s = r.state(1)?;
            let x = rows_of(r, r.typed(0, &[s.dtype])?, 2)?;
            let StateKind::Tail { pool, width } = s.kind else { return Err(mismatch(1)) };
            r.same(x[1], Dim::Fixed(width), "width")?;
            if *part > 1 {
                return Err(r.refuse("tail-part", format!("part {part}"), "a tail has parts 0 and 1"));
            }
            Ok(tensor(s.dtype, vec![x[0], Dim::Fixed(pool), x[1]]))
        }
        _ => {
            r.count(3)?;
            let s = r.state(2)?;
            let StateKind::Tail { width, .. } = s.kind else { return Err(mismatch(2)) };
            for i in 0..2 {
                let x = rows_of(r, r.typed(i, &[s.dtype])?, 2)?;
                r.same(x[1], Dim::Fixed(width), "width")?;
            }
            Ok(Type::State(s.clone()))
        }
    }
}

fn selection(r: &Rule) -> Result<Type, IrError> {
    match r.op {
        Op::IndexScores { order, .. } => {
            r.count(3)?;
            let (q, w) = (rows_of(r, r.float(0)?, 3)?, r.float(1)?);
            let StateKind::Pool { width, .. } = r.state(2)?.kind else {
                return Err(r.refuse("state-kind", r.args[2].to_string(), "pass a pool state"));
            };
            r.float_state(2)?;
            r.rank(w, 2, "head weights")?;
            r.same(w[0], q[0], "rows")?;
            r.same(w[1], q[1], "heads")?;
            r.same(q[2], Dim::Fixed(width), "width")?;
            if r.fixed(q[1], "heads")? > SEQUENTIAL_MAX * 8 {
                return Err(r.refuse("index-heads", q[1].to_string(), "at most 256 indexer heads"));
            }
            r.order(*order, width, "strided8", *order == Order::Strided(8))?;
            Ok(tensor(DType::F32, vec![q[0], Dim::Pools]))
        }
        Op::IndexSelect { budget, pool, .. } => {
            r.count(1)?;
            let s = rows_of(r, r.f32(0)?, 2)?;
            r.same(s[1], Dim::Pools, "pools")?;
            let n = budget.checked_mul(*pool).and_then(|n| n.checked_add(*pool)).filter(|n| *n > 0 && *n <= 1 << 24);
            match n {
                Some(n) if *budget > 0 && *pool > 0 => Ok(tensor(DType::I32, vec![s[0], Dim::Fixed(n - 1)])),
                _ => Err(r.refuse("index-budget", format!("{budget} x {pool}"), "1 <= budget * pool <= 2^24")),
            }
        }
        Op::AttendCombine => {
            r.count(1)?;
            let x = rows_of(r, r.f32(0)?, 4)?;
            match r.fixed(x[3], "width")? {
                0..=2 => Err(r.refuse("attend-width", x[3].to_string(), "values, their maximum and their sum")),
                width => Ok(tensor(DType::F32, vec![x[0], x[1], Dim::Fixed(width - 2)])),
            }
        }
        _ => {
            let Op::AttendSplits { order, .. } = r.op else { return Err(r.refuse("attend", "another op", "internal")) };
            r.count(3)?;
            let (q, ids) = (rows_of(r, r.float(0)?, 3)?, r.i32(2)?);
            let StateKind::Token { width } = r.state(1)?.kind else {
                return Err(r.refuse("state-kind", r.args[1].to_string(), "pass a token state"));
            };
            r.float_state(1)?;
            r.rank(ids, 2, "ids")?;
            r.same(ids[0], q[0], "rows")?;
            r.same(q[2], Dim::Fixed(width), "width")?;
            r.order(*order, width, "lanes", *order == Order::Lanes)?;
            let selected = r.fixed(ids[1], "selected rows")?;
            r.order(Order::Splits, selected, "splits", true)?;
            let splits = Dim::Fixed(selected.div_ceil(SPLIT_ROWS));
            Ok(tensor(DType::F32, vec![q[0], q[1], splits, Dim::Fixed(width.saturating_add(2))]))
        }
    }
}
