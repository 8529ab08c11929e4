//! Operations. Glue is declared in primitives; heavy ops are few and carry their order of summation.

use crate::order::Order;
use crate::types::{DType, Dim};

/// f32 functions of one element (numerics P1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unary {
    Neg,
    Abs,
    Exp,
    Log,
    Log1p,
    Sqrt,
    /// 1 / sqrt(x), both correctly rounded.
    Rsqrt,
    /// t = exp(-|x|); (x >= 0 ? 1 : t) / (1 + t).
    Sigmoid,
}

impl Unary {
    /// Name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Unary::Neg => "neg",
            Unary::Abs => "abs",
            Unary::Exp => "exp",
            Unary::Log => "log",
            Unary::Log1p => "log1p",
            Unary::Sqrt => "sqrt",
            Unary::Rsqrt => "rsqrt",
            Unary::Sigmoid => "sigmoid",
        }
    }
}

/// f32 functions of two elements. `Min` and `Max` are IEEE 754-2019 minimum and maximum (NaN wins, -0 < +0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
}

impl Binary {
    /// Name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
            Binary::Min => "min",
            Binary::Max => "max",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReduceKind {
    Sum,
    Max,
}

/// Which inputs a tensor may hold; `verify` and property tests draw from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Domain {
    /// Normally distributed values.
    Normal,
    /// Integers in 0..n.
    Below(u64),
    /// Each row: distinct integers in 0..n, in any order.
    Distinct(u64),
    /// Each row: distinct integers in 0..n, ascending, then -1.
    Ascending(u64),
    /// Each row: token positions at or before the row's own, ascending, then -1.
    Selected,
    /// Uniform in (0, 1): scores, gates, decay factors.
    Unit,
    /// Expert -> slot of a table with n slots, or -1.
    Slots(u64),
    /// Row numbers of the step.
    RowIndex,
}

/// Restricts a selection over E elements to the `kept` best of `groups` groups, each of E / groups elements that follow one
/// another. A group's score is the f32 sum of its two highest elements, or its only one; groups are ordered as elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupLimit {
    pub groups: u64,
    pub kept: u64,
}

/// An operation. Operands are listed as `(x, w) -> result`; R is the row axis, first in every activation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// An argument of the graph.
    Input {
        name: String,
        domain: Domain,
    },
    /// A parameter, by its role in the graph.
    Weight {
        name: String,
    },
    /// The old version of a state, by its role in the graph.
    State {
        name: String,
    },
    /// f32 scalar (shape `[]`), by its bits.
    ConstF32(u32),

    /// f32 -> f32, elementwise.
    Unary(Unary),
    /// f32, f32 -> f32. Equal ranks; axes are equal or 1; a scalar goes with any shape.
    Binary(Binary),
    /// float -> float; to bf16 or f16 it rounds to nearest even.
    Cast(DType),
    Reshape(Vec<Dim>),
    /// Axes of extent 1 grow to the given extent.
    Broadcast(Vec<Dim>),
    Slice {
        axis: u32,
        start: u64,
        len: u64,
    },
    Concat {
        axis: u32,
    },
    /// Over one axis, which becomes 1. `order` matters for sums. A middle axis has at most 32 elements.
    Reduce {
        kind: ReduceKind,
        axis: u32,
        order: Order,
    },
    /// `(carried, invariants...) -> carried` after `count` rounds of `Graph::bodies[body]`.
    Repeat {
        body: u32,
        count: u32,
    },

    /// `(x [.., K], w [N, K]) -> f32 [.., N]`.
    MatMul {
        order: Order,
    },
    /// Per head: `(x [R, H, K], w [H, N, K]) -> f32 [R, H, N]`; with `w` as `[H, K, N]` if `transposed`.
    BatchMatMul {
        transposed: bool,
        order: Order,
    },
    /// `(x [R, K] | [R, k, K], ids i32 [R, k], slots i32 [E], w [S, N, K]) -> f32 [R, k, N]`: row r, choice j uses
    /// `w[slots[ids[r, j]]]`; slot -1 gives zeros.
    GroupedMatMul {
        order: Order,
    },
    /// `(scores f32 [.., E]) -> i32 [.., k]` by falling score, then rising index; NaN ranks below every number. With `part`,
    /// the k best of each `part` neighbours (of the last ones, where fewer are left): `i32 [.., ceil(E / part) * k]`.
    TopK {
        k: u64,
        limit: Option<GroupLimit>,
        part: Option<u64>,
    },
    /// `(x f32 | i32 [R, E], ids i32 [R, k]) -> [R, k]`.
    GatherLast,
    /// `(table [V, D], ids i32 [R]) -> [R, D]`.
    EmbedRows,
    /// `(x [R, ..], rows i32 [L]) -> [L, ..]`.
    GatherRows,

    /// `(x [R, C], w [C, W], state slot [W-1, C]) -> f32 [R, C]`: sum over taps by fma from +0, oldest first, current
    /// token last; rows before the sequence come from the state (oldest first).
    CausalConv,
    /// `(x [R, C], state) -> state` holding each sequence's last W-1 rows.
    ConvUpdate,
    /// `(q [R, H, K], k [R, H, K], v [R, H, V], decay [R, H, K], beta [R, H, 1], state slot f32 [H, K, V]) ->
    /// (o f32 [R, H, V], state)`, all f32. Per row: S *= decay; d = (v - S^T k) * beta; S = fma(k, d, S); o = S^T q.
    DeltaRule {
        order: Order,
    },
    /// Component of a tuple.
    Project(u32),

    /// `(x [R, d], state token) -> state` with this step's rows at their positions.
    TokenWrite,
    /// `(x [R, d], state tail) -> [R, pool, d]`: the rows of the pool that contains each row's token, from this step or
    /// from part `part` of the tail; places after the row's own are 0.
    PoolWindow {
        part: u32,
    },
    /// `(x0 [R, d], x1 [R, d], state tail) -> state`.
    TailUpdate,
    /// `(x [R, d], state pool) -> state`: rows whose token completes a pool are written.
    PoolWrite,
    /// `(q [R, h, d], w [R, h], state pool) -> f32 [R, P]`: head_scale * sum_a w_a * max(dot_scale * (q_a . K_p), 0),
    /// a ascending from +0 by fma; -inf where pool p is not complete at the row. Scales are f32 bits.
    IndexScores {
        dot_scale: u32,
        head_scale: u32,
        order: Order,
    },
    /// `(scores f32 [R, P]) -> i32 [R, budget * pool + pool - 1]`: tokens of the `budget` best complete pools (ties:
    /// lower pool), then the row's unfinished pool if `tail`; ascending, padded with -1.
    IndexSelect {
        budget: u64,
        pool: u64,
        tail: bool,
    },
    /// `(q [R, h, r], state token, ids i32 [R, n]) -> f32 [R, h, n / 128, r + 2]`, rounded up: attention within each split of
    /// 128 places (order `Splits`). With s the scores scale * (q_h . row) and m their maximum: the r sums of exp(s - m) * row,
    /// then m and the sum of exp(s - m). Places of -1 are absent; a split without any other has sums of 0 and m of -inf.
    /// `scale` is f32 bits; `order` is that of the dot products.
    AttendSplits {
        scale: u32,
        order: Order,
    },
    /// `(splits f32 [R, h, S, r + 2]) -> f32 [R, h, r]`: attention over what [`Op::AttendSplits`] gives: with m the greatest
    /// maximum and w = exp(m_s - m), the sums of w * values over those of w * sum; 0 where no place is selected.
    AttendCombine,
}

impl Op {
    /// [`Op::TopK`] among all elements.
    pub fn top_k(k: u64) -> Op {
        Op::TopK { k, limit: None, part: None }
    }

    /// Name in the text form.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input { .. } => "input",
            Op::Weight { .. } => "weight",
            Op::State { .. } => "state",
            Op::ConstF32(_) => "const",
            Op::Unary(u) => u.name(),
            Op::Binary(b) => b.name(),
            Op::Cast(_) => "cast",
            Op::Reshape(_) => "reshape",
            Op::Broadcast(_) => "broadcast",
            Op::Slice { .. } => "slice",
            Op::Concat { .. } => "concat",
            Op::Reduce { kind: ReduceKind::Sum, .. } => "sum",
            Op::Reduce { kind: ReduceKind::Max, .. } => "reduce_max",
            Op::Repeat { .. } => "repeat",
            Op::MatMul { .. } => "matmul",
            Op::BatchMatMul { .. } => "batch_matmul",
            Op::GroupedMatMul { .. } => "grouped_matmul",
            Op::TopK { .. } => "top_k",
            Op::GatherLast => "gather_last",
            Op::EmbedRows => "embed_rows",
            Op::GatherRows => "gather_rows",
            Op::CausalConv => "causal_conv",
            Op::ConvUpdate => "conv_update",
            Op::DeltaRule { .. } => "delta_rule",
            Op::Project(_) => "project",
            Op::TokenWrite => "token_write",
            Op::PoolWindow { .. } => "pool_window",
            Op::TailUpdate => "tail_update",
            Op::PoolWrite => "pool_write",
            Op::IndexScores { .. } => "index_scores",
            Op::IndexSelect { .. } => "index_select",
            Op::AttendSplits { .. } => "attend_splits",
            Op::AttendCombine => "attend_combine",
        }
    }
}
