//! Random well-typed graphs and modules: a tape of numbers chooses ops, so that proptest can shrink it.

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::module::{Arg, Call, InputDecl, Module, ModuleOutput, Source, SourceSlice, StateDecl, WeightDecl};
use unglue_ir::op::{Binary, Domain, GroupLimit, Op, ReduceKind, Unary};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Dim, Format, Packing, ScaleType, StateKind, StateType, TensorType, Type};

use unglue_ir::builder::Builder;

/// Choices, 0 when the tape has run out.
pub struct Tape<'a>(std::slice::Iter<'a, u32>);

impl<'a> Tape<'a> {
    pub fn new(numbers: &'a [u32]) -> Self {
        Tape(numbers.iter())
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.0.next().map_or(0, |x| *x as usize % n.max(1))
    }

    pub fn bits(&mut self) -> u32 {
        self.0.next().copied().unwrap_or(0)
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}

const DTYPES: [DType; 4] = [DType::F32, DType::Bf16, DType::F16, DType::F8E4m3];
const UNARY: [Unary; 8] =
    [Unary::Neg, Unary::Abs, Unary::Exp, Unary::Log, Unary::Log1p, Unary::Sqrt, Unary::Rsqrt, Unary::Sigmoid];
const BINARY: [Binary; 6] = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Min, Binary::Max];
const ORDERS: [Order; 7] = [
    Order::Sequential,
    Order::Lanes,
    Order::Runs,
    Order::Splits,
    Order::Strided(1),
    Order::Strided(2),
    Order::Strided(8),
];

/// A name that needs escapes now and then.
fn name(t: &mut Tape, kind: &str, i: usize) -> String {
    let tail = t.pick(&["", ".x", "\"", "\\", " #", "\n", "\u{e9}", "\u{1f600}", "\u{0}", "%0 = @g {"]);
    format!("{kind}{i}{tail}")
}

fn dim(t: &mut Tape) -> Dim {
    Dim::Fixed(t.pick(&[1, 2, 4, 8, 16, 32, 64]))
}

fn activation(t: &mut Tape) -> Vec<Dim> {
    let mut shape = vec![t.pick(&[Dim::Rows, Dim::Rows, Dim::Rows, Dim::Seqs, Dim::Logits, Dim::Fixed(3)])];
    (0..t.below(3)).for_each(|_| shape.push(dim(t)));
    if shape[0] == Dim::Rows && t.below(8) == 0 {
        shape.truncate(1);
        shape.push(Dim::Pools);
    }
    shape
}

fn input(t: &mut Tape, b: &mut Builder, i: usize) -> ValueId {
    let name = name(t, "input", i);
    let n = 64 + u64::from(t.bits() >> 2);
    let ids = |domain, shape: Vec<Dim>| (TensorType::plain(DType::I32, shape), domain);
    let (ty, domain) = match t.below(10) {
        0 => ids(Domain::Below(n), activation(t)),
        1 => ids(Domain::Distinct(n), vec![Dim::Rows, dim(t)]),
        2 => ids(Domain::Ascending(n), vec![Dim::Rows, dim(t)]),
        3 => ids(Domain::Selected, vec![Dim::Rows, dim(t)]),
        4 => ids(Domain::Slots(n), vec![dim(t)]),
        5 => ids(Domain::RowIndex, vec![Dim::Logits]),
        6 => (TensorType::plain(t.pick(&DTYPES), activation(t)), Domain::Unit),
        7 => (TensorType::plain(DType::F32, vec![]), Domain::Normal),
        _ => (TensorType::plain(t.pick(&DTYPES), activation(t)), Domain::Normal),
    };
    b.input(&name, ty, domain)
}

fn weight(t: &mut Tape, b: &mut Builder, i: usize) -> ValueId {
    let name = name(t, "weight", i);
    let packing = t.pick(&[Packing::GptqColumns, Packing::Rows]);
    let format = match t.below(4) {
        0 => Format::Int4 { group: t.pick(&[32, 128]), packing, scales: t.pick(&[ScaleType::F16, ScaleType::Bf16]) },
        1 => Format::F8Block { rows: t.pick(&[1, 128]), cols: 128 },
        _ => Format::Plain(t.pick(&DTYPES)),
    };
    let mut shape = vec![dim(t), Dim::Fixed(t.pick(&[8, 16, 64]))];
    if t.below(3) == 0 {
        shape.insert(0, dim(t));
    }
    b.weight(&name, TensorType { format, shape })
}

/// A value whose type fits, if there is one.
fn value(t: &mut Tape, b: &Builder, ids: &[ValueId], fits: impl Fn(&Type) -> bool) -> Option<ValueId> {
    let all: Vec<ValueId> = ids.iter().copied().filter(|id| fits(b.ty(*id))).collect();
    (!all.is_empty()).then(|| t.pick(&all))
}

fn plain(ty: &Type) -> bool {
    ty.tensor().is_some_and(|t| t.dtype().is_some())
}

/// Any op with any attributes; most do not fit their operands, and the builder refuses those.
fn op(t: &mut Tape, bodies: usize, shape: &[Dim]) -> Op {
    let order = t.pick(&ORDERS);
    let axis = t.below(shape.len().max(1)) as u32;
    match t.below(24) {
        0..4 => Op::Unary(t.pick(&UNARY)),
        4..9 => Op::Binary(t.pick(&BINARY)),
        9..11 => Op::Cast(t.pick(&DTYPES)),
        // The verifier wants pools last.
        11 if shape.contains(&Dim::Pools) => Op::Cast(DType::F32),
        11 => Op::Reshape([shape, &[Dim::Fixed(1)]].concat()),
        12 => Op::Broadcast(shape.iter().map(|d| if d.is_one() { Dim::Fixed(4) } else { *d }).collect()),
        13 => Op::Slice { axis, start: t.below(4) as u64, len: 1 + t.below(4) as u64 },
        14 => Op::Concat { axis },
        15 | 16 => Op::Reduce { kind: t.pick(&[ReduceKind::Sum, ReduceKind::Max]), axis, order },
        17 => Op::Repeat { body: t.below(bodies) as u32, count: 1 + t.below(20) as u32 },
        18 => Op::MatMul { order: Order::Lanes },
        19 => Op::BatchMatMul { transposed: t.below(2) == 0, order },
        20 => {
            let limit =
                (t.below(2) == 0).then(|| GroupLimit { groups: t.pick(&[1, 2, 4]), kept: 1 + t.below(2) as u64 });
            let part = (t.below(4) == 0).then(|| 1 + t.below(40) as u64);
            Op::TopK { k: 1 + t.below(4) as u64, limit, part }
        }
        21 => t.pick(&[Op::GatherLast, Op::EmbedRows, Op::GatherRows]),
        22 => Op::IndexSelect { budget: 1 + t.below(9) as u64, pool: 4, tail: t.below(2) == 0 },
        _ => Op::GroupedMatMul { order: Order::Lanes },
    }
}

fn step(t: &mut Tape, b: &mut Builder, bodies: usize, ids: &mut Vec<ValueId>) {
    let Some(x) = value(t, b, ids, plain) else { return };
    let shape = b.shape(x);
    let op = op(t, bodies, &shape);
    let others = match op {
        Op::Binary(_) | Op::Concat { .. } | Op::MatMul { .. } | Op::BatchMatMul { .. } => 1,
        Op::GatherLast | Op::EmbedRows | Op::GatherRows => 1,
        Op::GroupedMatMul { .. } => 3,
        _ => 0,
    };
    let mut args = vec![x];
    for _ in 0..others {
        args.extend(value(t, b, ids, |ty| ty.tensor().is_some()));
    }
    ids.extend(b.add(op, &args));
}

/// One of the ops on states with operands made to fit. Returns written states with their roles.
fn state_step(t: &mut Tape, b: &mut Builder, i: usize) -> Option<(String, ValueId)> {
    let role = name(t, "state", i);
    let dtype = t.pick(&[DType::F32, DType::Bf16]);
    let (w, pool) = (8, 4);
    let input = |b: &mut Builder, d: DType, shape: Vec<Dim>| {
        b.input(&format!("s{i}.{}.{}", d.name(), shape.len()), TensorType::plain(d, shape), Domain::Normal)
    };
    let x = input(b, dtype, vec![Dim::Rows, Dim::Fixed(w)]);
    let heads = input(b, DType::F32, vec![Dim::Rows, Dim::Fixed(2), Dim::Fixed(w)]);
    let state = |b: &mut Builder, kind| b.state(&role, StateType { kind, dtype });
    let written = match t.below(5) {
        0 => {
            let s = state(b, StateKind::Slot { shape: vec![3, w] });
            let taps = b.weight(&format!("taps{i}"), TensorType::plain(DType::F32, vec![Dim::Fixed(w), Dim::Fixed(4)]));
            b.add(Op::CausalConv, &[x, taps, s]).unwrap();
            b.add(Op::ConvUpdate, &[x, s]).unwrap()
        }
        1 => {
            let kind = StateKind::Slot { shape: vec![2, w, w] };
            let s = b.state(&role, StateType { kind, dtype: DType::F32 });
            let beta = b.slice(heads, 2, 0, 1).unwrap();
            let op = Op::DeltaRule { order: Order::Strided(t.pick(&[1, 2, 8])) };
            let both = b.add(op, &[heads, heads, heads, heads, beta, s]).unwrap();
            if t.below(2) == 0 {
                b.add(Op::Project(0), &[both]).unwrap();
            }
            b.add(Op::Project(1), &[both]).unwrap()
        }
        2 => {
            let s = state(b, StateKind::Token { width: w });
            let next = b.add(Op::TokenWrite, &[x, s]).unwrap();
            let ty = TensorType::plain(DType::I32, vec![Dim::Rows, Dim::Fixed(5)]);
            let ids = b.input(&format!("s{i}.ids"), ty, Domain::Selected);
            b.attend(f32::from_bits(t.bits()), [heads, t.pick(&[s, next]), ids]).unwrap();
            next
        }
        3 => {
            let s = state(b, StateKind::Tail { pool, width: w });
            b.add(Op::PoolWindow { part: t.below(2) as u32 }, &[x, s]).unwrap();
            b.add(Op::TailUpdate, &[x, x, s]).unwrap()
        }
        _ => {
            let s = state(b, StateKind::Pool { pool, width: w });
            let weights = b.input(
                &format!("s{i}.heads"),
                TensorType::plain(DType::F32, vec![Dim::Rows, Dim::Fixed(2)]),
                Domain::Unit,
            );
            let op = Op::IndexScores { dot_scale: t.bits(), head_scale: t.bits(), order: Order::Strided(8) };
            let scores = b.add(op, &[heads, weights, s]).unwrap();
            b.add(Op::IndexSelect { budget: 1 + t.below(9) as u64, pool, tail: t.below(2) == 0 }, &[scores]).unwrap();
            if t.below(4) == 0 {
                return None;
            }
            b.add(Op::PoolWrite, &[x, s]).unwrap()
        }
    };
    Some((role, written))
}

/// A contraction per head or per expert, which random operands hardly ever fit.
fn contraction_step(t: &mut Tape, b: &mut Builder, i: usize) -> ValueId {
    let x = b.input(
        &format!("c{i}.x"),
        TensorType::plain(DType::Bf16, [Dim::Rows, Dim::Fixed(4), Dim::Fixed(32)]),
        Domain::Normal,
    );
    let (rows, inner) = (Dim::Fixed(8), Dim::Fixed(32));
    if t.below(2) == 0 {
        let transposed = t.below(2) == 0;
        let order = if transposed { t.pick(&[Order::Strided(1), Order::Strided(4)]) } else { Order::Lanes };
        let shape = if transposed { [Dim::Fixed(4), inner, rows] } else { [Dim::Fixed(4), rows, inner] };
        let w = b.weight(&format!("c{i}.w"), TensorType::plain(DType::F16, shape));
        return b.add(Op::BatchMatMul { transposed, order }, &[x, w]).unwrap();
    }
    let ids = TensorType::plain(DType::I32, [Dim::Rows, Dim::Fixed(4)]);
    let ids = b.input(&format!("c{i}.ids"), ids, Domain::Distinct(16));
    let slots = b.input(&format!("c{i}.slots"), TensorType::plain(DType::I32, [Dim::Fixed(16)]), Domain::Slots(8));
    let format = Format::Int4 { group: 32, packing: Packing::Rows, scales: ScaleType::F16 };
    let w = b.weight(&format!("c{i}.w"), TensorType { format, shape: vec![Dim::Fixed(8), rows, inner] });
    b.add(Op::GroupedMatMul { order: Order::Runs }, &[x, ids, slots, w]).unwrap()
}

/// A body for repeat: its single input through pointwise ops and a nested repeat.
fn repeat_body(t: &mut Tape, i: usize, depth: usize, shape: &[Dim]) -> Graph {
    let mut b = Builder::new(&format!("body{i}_{depth}"));
    let x = b.input("x", TensorType::plain(DType::F32, shape.to_vec()), Domain::Normal);
    let mut y = b.unary(t.pick(&UNARY), x).unwrap();
    if depth < 3 && t.below(2) == 0 {
        let body = b.body(repeat_body(t, i, depth + 1, shape));
        y = b.add(Op::Repeat { body, count: 1 + t.below(3) as u32 }, &[y]).unwrap();
    }
    let c = b.constant(f32::from_bits(t.bits()));
    y = b.binary(t.pick(&BINARY), y, c).unwrap();
    b.output("x", y);
    b.finish()
}

/// A graph that satisfies every rule.
pub fn graph(t: &mut Tape, graph_name: &str) -> Graph {
    let mut b = Builder::new(graph_name);
    let repeated = activation(t);
    let seed = b.input("seed", TensorType::plain(DType::F32, repeated.clone()), Domain::Normal);
    let bodies = t.below(3);
    for i in 0..bodies {
        let body = b.body(repeat_body(t, i, 0, &repeated));
        b.add(Op::Repeat { body, count: 1 + t.below(20) as u32 }, &[seed]).unwrap();
    }
    let (mut written, mut ids, mut i) = (Vec::new(), vec![seed], 0);
    while !t.is_empty() && i < 60 {
        i += 1;
        match t.below(9) {
            8 => ids.push(contraction_step(t, &mut b, i)),
            0 => ids.push(input(t, &mut b, i)),
            1 => ids.push(weight(t, &mut b, i)),
            2 => written.extend(state_step(t, &mut b, i)),
            3 => ids.push(b.constant(f32::from_bits(t.bits()))),
            _ => step(t, &mut b, bodies, &mut ids),
        }
    }
    finish(b.finish(), written)
}

/// Returns what nothing uses.
fn finish(mut g: Graph, written: Vec<(String, ValueId)>) -> Graph {
    let users = g.users();
    for (i, id) in g.ids().enumerate() {
        if users[i].is_empty() && g.ty(id).tensor().is_some() {
            g.outputs.push((format!("out{i}"), id));
        }
    }
    g.outputs.extend(written);
    g
}

fn source(t: &mut Tape, dtype: DType, n: u64) -> Source {
    let slice = (t.below(2) == 0).then(|| SourceSlice { axis: 1, start: t.below(9) as u64, len: n });
    let shape = vec![1, slice.as_ref().map_or(n, |s| s.start + n + 1)];
    let view = if slice.is_none() && t.below(2) == 0 { vec![n] } else { shape.clone() };
    Source { tensor: name(t, "model.", 0), dtype, shape, view, slice }
}

/// A module that satisfies every rule: bodies called once or more, each result returned.
pub fn module(t: &mut Tape) -> Module {
    let mut m = Module { name: "random_1".into(), ..Module::default() };
    for i in 0..1 + t.below(3) {
        let numbers: Vec<u32> = (0..t.below(60)).map(|_| t.bits()).collect();
        m.bodies.push(graph(&mut Tape::new(&numbers), &format!("body_{i}")));
        for layer in 0..1 + t.below(3) {
            call(t, &mut m, i, layer);
        }
    }
    m
}

fn call(t: &mut Tape, m: &mut Module, body: usize, layer: usize) {
    let n = m.calls.len();
    let mut call = Call { body: body as u32, layer: None, args: vec![], weights: vec![], states: vec![] };
    call.layer = (t.below(2) == 0).then_some(layer as u32);
    let g = m.bodies[body].clone();
    for id in g.ids() {
        match (&g.node(id).op, g.ty(id)) {
            (Op::Input { name, domain }, Type::Tensor(ty)) => {
                let earlier = m.calls.iter().enumerate().find_map(|(c, earlier)| {
                    let outputs = &m.bodies[earlier.body as usize].outputs;
                    let output =
                        outputs.iter().position(|(_, o)| m.bodies[earlier.body as usize].ty(*o).tensor() == Some(ty));
                    output.map(|output| Arg::Result { call: c as u32, output: output as u32 })
                });
                call.args.push(earlier.filter(|_| t.below(2) == 0).unwrap_or_else(|| {
                    m.inputs.push(InputDecl { name: format!("{n}.{name}"), ty: ty.clone(), domain: *domain });
                    Arg::Input(m.inputs.len() as u32 - 1)
                }));
            }
            (Op::Weight { name }, Type::Tensor(ty)) => {
                let elements: u64 = ty.shape.iter().filter_map(|d| d.fixed()).product();
                let half = elements / 2;
                let dtype = ty.dtype().unwrap_or(DType::I32);
                let sources = vec![source(t, dtype, half), source(t, dtype, elements - half)];
                m.weights.push(WeightDecl { name: format!("{n}.{name}"), ty: ty.clone(), sources });
                call.weights.push(m.weights.len() as u32 - 1);
            }
            (Op::State { name }, Type::State(ty)) => {
                m.states.push(StateDecl { name: format!("{n}.{name}"), ty: ty.clone() });
                call.states.push(m.states.len() as u32 - 1);
            }
            _ => {}
        }
    }
    for (output, (name, id)) in g.outputs.iter().enumerate() {
        if g.ty(*id).tensor().is_some() {
            let name = format!("{n}.{name}");
            m.outputs.push(ModuleOutput { name, call: n as u32, output: output as u32 });
        }
    }
    m.calls.push(call);
}
