//! The vocabulary of trunk builders: f32 arithmetic over IR values, and the glue that all models share (norms, SiLU,
//! softmax, linears), declared in primitives. Arithmetic is f32; [`Maths::act`] is where a value rounds.

use unglue_ir::IrError;
use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Binary, Domain, Op, Unary};
use unglue_ir::types::{DType, Dim, StateKind, StateType, TensorType};

/// Result of adding a node.
pub type V = Result<ValueId, IrError>;

/// Scores from which on the best of a row is looked for by parts.
const LONG_ROW: u64 = 16384;
/// Scores of a part: eight for each lane of a row workgroup, 76 parts for a vocabulary of 154,880.
const PART: u64 = 2048;

/// Axes of fixed extents.
pub fn fixed(extents: &[u64]) -> Vec<Dim> {
    extents.iter().map(|&n| Dim::Fixed(n)).collect()
}

/// `[R, extents..]`.
pub fn rows(extents: &[u64]) -> Vec<Dim> {
    led(Dim::Rows, extents)
}

/// `[first, extents..]`.
pub fn led(first: Dim, extents: &[u64]) -> Vec<Dim> {
    std::iter::once(first).chain(extents.iter().map(|&n| Dim::Fixed(n))).collect()
}

/// Builder of one body with an activation dtype and a list of named inner values. A value's source line is that of the
/// call from outside this vocabulary.
#[derive(Debug)]
pub struct Maths {
    pub b: Builder,
    act: DType,
    taps: Vec<(String, ValueId)>,
}

impl Maths {
    pub fn new(name: &str, act: DType) -> Self {
        Maths { b: Builder::new(name), act, taps: Vec::new() }
    }

    /// The dtype in which activations are stored between kernels.
    pub fn act_dtype(&self) -> DType {
        self.act
    }

    /// Names an inner value for observers of the interpreter; it does not become an output.
    pub fn tap(&mut self, name: &str, value: ValueId) {
        self.taps.push((name.into(), value));
    }

    pub fn finish(self) -> (Graph, Vec<(String, ValueId)>) {
        (self.b.finish(), self.taps)
    }

    // Leaves.

    /// An activation `[R, extents..]` in the activation dtype.
    #[track_caller]
    pub fn activation(&mut self, name: &str, extents: &[u64]) -> ValueId {
        self.b.input(name, TensorType::plain(self.act, rows(extents)), Domain::Normal)
    }

    /// An f32 argument `[R, extents..]`.
    #[track_caller]
    pub fn f32_input(&mut self, name: &str, extents: &[u64], domain: Domain) -> ValueId {
        self.b.input(name, TensorType::plain(DType::F32, rows(extents)), domain)
    }

    /// An i32 argument.
    #[track_caller]
    pub fn i32_input(&mut self, name: &str, shape: Vec<Dim>, domain: Domain) -> ValueId {
        self.b.input(name, TensorType::plain(DType::I32, shape), domain)
    }

    /// A parameter that checkpoints store in bf16.
    #[track_caller]
    pub fn bf16_weight(&mut self, role: &str, extents: &[u64]) -> ValueId {
        self.b.weight(role, TensorType::plain(DType::Bf16, fixed(extents)))
    }

    /// A parameter that checkpoints store in f32.
    #[track_caller]
    pub fn f32_weight(&mut self, role: &str, extents: &[u64]) -> ValueId {
        self.b.weight(role, TensorType::plain(DType::F32, fixed(extents)))
    }

    /// A state in the activation dtype.
    #[track_caller]
    pub fn act_state(&mut self, role: &str, kind: StateKind) -> ValueId {
        self.b.state(role, StateType { kind, dtype: self.act })
    }

    /// A state kept in f32.
    #[track_caller]
    pub fn f32_state(&mut self, role: &str, kind: StateKind) -> ValueId {
        self.b.state(role, StateType { kind, dtype: DType::F32 })
    }

    // f32 arithmetic.

    #[track_caller]
    pub fn add(&mut self, x: ValueId, y: ValueId) -> V {
        self.b.binary(Binary::Add, x, y)
    }

    #[track_caller]
    pub fn sub(&mut self, x: ValueId, y: ValueId) -> V {
        self.b.binary(Binary::Sub, x, y)
    }

    #[track_caller]
    pub fn mul(&mut self, x: ValueId, y: ValueId) -> V {
        self.b.binary(Binary::Mul, x, y)
    }

    #[track_caller]
    pub fn div(&mut self, x: ValueId, y: ValueId) -> V {
        self.b.binary(Binary::Div, x, y)
    }

    /// x op c for a constant c.
    #[track_caller]
    pub fn with(&mut self, op: Binary, x: ValueId, c: f32) -> V {
        let c = self.b.constant(c);
        self.b.binary(op, x, c)
    }

    /// x + c.
    #[track_caller]
    pub fn plus(&mut self, x: ValueId, c: f32) -> V {
        self.with(Binary::Add, x, c)
    }

    /// x * c.
    #[track_caller]
    pub fn times(&mut self, x: ValueId, c: f32) -> V {
        self.with(Binary::Mul, x, c)
    }

    #[track_caller]
    pub fn exp(&mut self, x: ValueId) -> V {
        self.b.unary(Unary::Exp, x)
    }

    #[track_caller]
    pub fn sqrt(&mut self, x: ValueId) -> V {
        self.b.unary(Unary::Sqrt, x)
    }

    #[track_caller]
    pub fn rsqrt(&mut self, x: ValueId) -> V {
        self.b.unary(Unary::Rsqrt, x)
    }

    #[track_caller]
    pub fn sigmoid(&mut self, x: ValueId) -> V {
        self.b.unary(Unary::Sigmoid, x)
    }

    /// x * sigmoid(x).
    #[track_caller]
    pub fn silu(&mut self, x: ValueId) -> V {
        let s = self.sigmoid(x)?;
        self.mul(x, s)
    }

    #[track_caller]
    pub fn square(&mut self, x: ValueId) -> V {
        self.mul(x, x)
    }

    // Casts and shapes.

    /// To f32: where arithmetic starts.
    #[track_caller]
    pub fn f32(&mut self, x: ValueId) -> V {
        self.b.cast(x, DType::F32)
    }

    /// To the activation dtype: the one place where a value rounds.
    #[track_caller]
    pub fn act(&mut self, x: ValueId) -> V {
        self.b.cast(x, self.act)
    }

    /// `[R, extents..]` with as many elements a row.
    #[track_caller]
    pub fn view(&mut self, x: ValueId, extents: &[u64]) -> V {
        let first = self.b.shape(x).first().copied().unwrap_or(Dim::Rows);
        self.b.reshape(x, &led(first, extents))
    }

    /// A parameter in f32 with this shape, ready to meet activations of equal rank.
    #[track_caller]
    pub fn param(&mut self, w: ValueId, extents: &[u64]) -> V {
        let w = self.f32(w)?;
        self.b.reshape(w, &fixed(extents))
    }

    /// A vector in f32 along the last of `rank` axes.
    #[track_caller]
    pub fn along_last(&mut self, w: ValueId, rank: usize) -> V {
        let n = self.last(w);
        let mut shape = vec![1; rank.saturating_sub(1)];
        shape.push(n);
        self.param(w, &shape)
    }

    /// Part of the last axis.
    #[track_caller]
    pub fn part(&mut self, x: ValueId, start: u64, len: u64) -> V {
        let axis = self.rank(x).saturating_sub(1) as u32;
        self.b.slice(x, axis, start, len)
    }

    pub fn rank(&self, x: ValueId) -> usize {
        self.b.shape(x).len()
    }

    /// Extent of the last axis (1 for a scalar or a symbol).
    pub fn last(&self, x: ValueId) -> u64 {
        self.b.shape(x).last().and_then(|d| d.fixed()).unwrap_or(1)
    }

    // Sums.

    /// Sum over the last axis, which becomes 1.
    #[track_caller]
    pub fn sum_last(&mut self, x: ValueId) -> V {
        let axis = self.rank(x).saturating_sub(1) as u32;
        self.b.sum(x, axis)
    }

    /// Mean over the last axis: sum / n.
    #[track_caller]
    pub fn mean_last(&mut self, x: ValueId) -> V {
        let n = self.last(x);
        let sum = self.sum_last(x)?;
        self.with(Binary::Div, sum, n as f32)
    }

    /// softmax over a small axis: exp(x - max) / sum.
    #[track_caller]
    pub fn softmax(&mut self, x: ValueId, axis: u32) -> V {
        let top = self.b.max_over(x, axis)?;
        let shifted = self.sub(x, top)?;
        let e = self.exp(shifted)?;
        let sum = self.b.sum(e, axis)?;
        self.div(e, sum)
    }

    // Glue shared by models.

    /// x w^T in f32, not rounded.
    #[track_caller]
    pub fn matmul(&mut self, x: ValueId, w: ValueId) -> V {
        self.b.matmul(x, w)
    }

    /// x w^T, rounded, with the parameter `role` `[n, K]`.
    #[track_caller]
    pub fn linear(&mut self, x: ValueId, role: &str, n: u64) -> V {
        let k = self.last(x);
        let w = self.bf16_weight(role, &[n, k]);
        let y = self.matmul(x, w)?;
        self.act(y)
    }

    /// The best of `n` scores of each row, `[R, n] -> [R, 1]`. Of long rows parts are searched first, side by side: parts
    /// ascend, so that ties and NaN go to the same element.
    #[track_caller]
    pub fn best(&mut self, scores: ValueId, n: u64) -> V {
        if n < LONG_ROW {
            return self.b.add(Op::top_k(1), &[scores]);
        }
        let ids = self.b.add(Op::TopK { k: 1, limit: None, part: Some(PART) }, &[scores])?;
        let best = self.b.add(Op::GatherLast, &[scores, ids])?;
        let place = self.b.add(Op::top_k(1), &[best])?;
        self.b.add(Op::GatherLast, &[ids, place])
    }

    /// x * rsqrt(mean(x^2) + eps) * w, in f32, not rounded.
    #[track_caller]
    pub fn rms_norm_f32(&mut self, x: ValueId, w: ValueId, eps: f32) -> V {
        let x = self.f32(x)?;
        let square = self.square(x)?;
        let mean = self.mean_last(square)?;
        let shifted = self.plus(mean, eps)?;
        let rho = self.rsqrt(shifted)?;
        let unit = self.mul(x, rho)?;
        let rank = self.rank(x);
        let w = self.along_last(w, rank)?;
        self.mul(unit, w)
    }

    /// RMSNorm with one rounding at the end.
    #[track_caller]
    pub fn rms_norm(&mut self, x: ValueId, w: ValueId, eps: f32) -> V {
        let y = self.rms_norm_f32(x, w, eps)?;
        self.act(y)
    }

    /// (x - mean) * rsqrt(var + eps) * w + b with biased variance and one rounding at the end.
    #[track_caller]
    pub fn layer_norm(&mut self, x: ValueId, w: ValueId, bias: ValueId, eps: f32) -> V {
        let x = self.f32(x)?;
        let mean = self.mean_last(x)?;
        let centred = self.sub(x, mean)?;
        let square = self.square(centred)?;
        let var = self.mean_last(square)?;
        let shifted = self.plus(var, eps)?;
        let rho = self.rsqrt(shifted)?;
        let unit = self.mul(centred, rho)?;
        let rank = self.rank(x);
        let (w, bias) = (self.along_last(w, rank)?, self.along_last(bias, rank)?);
        let scaled = self.mul(unit, w)?;
        let y = self.add(scaled, bias)?;
        self.act(y)
    }

    /// x / sqrt(sum(x^2) + eps) over the last axis, f32.
    #[track_caller]
    pub fn l2_norm(&mut self, x: ValueId, eps: f32) -> V {
        let x = self.f32(x)?;
        let square = self.square(x)?;
        let sum = self.sum_last(square)?;
        let shifted = self.plus(sum, eps)?;
        let norm = self.sqrt(shifted)?;
        self.div(x, norm)
    }

    /// Component of an op with several results.
    #[track_caller]
    pub fn project(&mut self, tuple: ValueId, i: u32) -> V {
        self.b.add(Op::Project(i), &[tuple])
    }
}
