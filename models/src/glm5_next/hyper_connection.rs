//! mHC, the manifold-constrained hyper-connection (specification section 5). Its grid-wide sums z = fn . f and sq = sum f^2
//! are summed over blocks of the width first, so that many workgroups can have a share of them each, then over the blocks.

use unglue_ir::IrError;
use unglue_ir::builder::Builder;
use unglue_ir::graph::ValueId;
use unglue_ir::op::{Binary, Domain, Op, ReduceKind};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, TensorType};

use crate::maths::{Maths, V, rows};

/// Widest block of a stream: a lane an element.
const BLOCK: u64 = 32;

/// The sizes and constants of a site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HcConfig {
    /// D, the width of one stream.
    pub width: u64,
    /// n, the number of residual streams.
    pub streams: u64,
    /// eps of the flat norm.
    pub norm_eps: f32,
    /// eps_h.
    pub eps: f32,
    /// I, Sinkhorn iterations.
    pub iters: u32,
}

impl HcConfig {
    /// n (n + 2): rows of fn.
    pub fn maps(&self) -> u64 {
        self.streams * (self.streams + 2)
    }

    /// nD: length of the flattened streams.
    pub fn flat(&self) -> u64 {
        self.streams * self.width
    }

    /// Elements of a block of the width: the largest power of two up to 32 that divides it.
    pub fn block(&self) -> u64 {
        BLOCK.min(1 << self.width.trailing_zeros().min(BLOCK.ilog2()))
    }

    /// Blocks of the width.
    pub fn blocks(&self) -> u64 {
        self.width / self.block()
    }
}

/// Weights of one token's streams, f32.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// `[R, n]`.
    pub pre: ValueId,
    /// `[R, n]`.
    pub post: ValueId,
    /// `[R, n, n]`; the first index is the source stream.
    pub comb: ValueId,
}

/// Sums over blocks of streams x `[R, n, D]`: of z = fn . f, `[R, n(n+2) blocks]`, and of sq = sum f^2, `[R, blocks]`, f =
/// x flattened. A block is as many neighbours of all streams; its products are added stream after stream for each
/// element, then over the elements in the order `lanes`.
pub fn sums(m: &mut Maths, c: &HcConfig, x: ValueId, fn_weight: ValueId) -> Result<(ValueId, ValueId), IrError> {
    let x = m.f32(x)?;
    let square = m.square(x)?;
    let square = m.view(square, &[1, c.streams, c.width])?;
    let sq = block_sums(m, c, square, 1)?;
    let x = m.view(x, &[1, c.streams, c.width])?;
    let fn_weight = m.param(fn_weight, &[1, c.maps(), c.streams, c.width])?;
    let products = m.mul(x, fn_weight)?;
    let z = block_sums(m, c, products, c.maps())?;
    Ok((z, sq))
}

/// x `[R, count, n, D]` over the streams and the elements of each block: `[R, count * blocks]`.
fn block_sums(m: &mut Maths, c: &HcConfig, x: ValueId, count: u64) -> V {
    let x = m.b.sum(x, 2)?;
    let x = m.view(x, &[count, c.blocks(), c.block()])?;
    let x = m.b.add(Op::Reduce { kind: ReduceKind::Sum, axis: 3, order: Order::Lanes }, &[x])?;
    m.view(x, &[count * c.blocks()])
}

/// Maps `start..start + len` of the blocks' sums, over the blocks: `[R, len]`.
fn over_blocks(m: &mut Maths, c: &HcConfig, z: ValueId, start: u64, len: u64) -> V {
    let z = m.part(z, start * c.blocks(), len * c.blocks())?;
    let z = m.view(z, &[len, c.blocks()])?;
    let z = m.sum_last(z)?;
    m.view(z, &[len])
}

/// pre, post and comb from the blocks' sums of a site; base `[n(n+2)]` and scale `[3]` are f32.
pub fn finish(
    m: &mut Maths,
    c: &HcConfig,
    z: ValueId,
    sq: ValueId,
    base: ValueId,
    scale: ValueId,
) -> Result<Mix, IrError> {
    let n = c.streams;
    let sq = over_blocks(m, c, sq, 0, 1)?;
    let mean = m.with(Binary::Div, sq, c.flat() as f32)?;
    let shifted = m.plus(mean, c.norm_eps)?;
    let rho = m.rsqrt(shifted)?;
    // Each map is summed apart: what needs some of them reads no others.
    let maps = |m: &mut Maths, k: u64, start: u64, len: u64| {
        let z = over_blocks(m, c, z, start, len)?;
        let z = m.mul(z, rho)?;
        affine(m, z, base, scale, k, start, len)
    };

    let pre = maps(m, 0, 0, n)?;
    let pre = m.sigmoid(pre)?;
    let pre = m.plus(pre, c.eps)?;

    let post = maps(m, 1, n, n)?;
    let post = m.sigmoid(post)?;
    let post = m.times(post, 2.0)?;

    let a = maps(m, 2, 2 * n, n * n)?;
    let a = m.view(a, &[n, n])?;
    let comb = sinkhorn(m, c, a)?;
    Ok(Mix { pre, post, comb })
}

/// z * scale_k + base for the `len` maps from `start`, which z has.
fn affine(m: &mut Maths, z: ValueId, base: ValueId, scale: ValueId, k: u64, start: u64, len: u64) -> V {
    let scale = m.part(scale, k, 1)?;
    let scale = m.param(scale, &[1, 1])?;
    let base = m.part(base, start, len)?;
    let base = m.param(base, &[1, len])?;
    let scaled = m.mul(z, scale)?;
    m.add(scaled, base)
}

/// softmax over j, + eps, columns, then I - 1 rounds of rows and columns; `[R, n, n]`.
pub fn sinkhorn(m: &mut Maths, c: &HcConfig, logits: ValueId) -> V {
    let soft = m.softmax(logits, 2)?;
    let soft = m.plus(soft, c.eps)?;
    let columns = normalise(&mut m.b, soft, 1, c.eps)?;
    if c.iters <= 1 {
        return Ok(columns);
    }
    let round = sinkhorn_round(c)?;
    let body = m.b.repeated(round);
    m.b.add(Op::Repeat { body, count: c.iters - 1 }, &[columns])
}

/// One round: rows (over j), then columns (over i).
fn sinkhorn_round(c: &HcConfig) -> Result<Builder, IrError> {
    let mut b = Builder::new("sinkhorn_round");
    let ty = TensorType::plain(DType::F32, rows(&[c.streams, c.streams]));
    let x = b.input("m", ty, Domain::Unit);
    let x = normalise(&mut b, x, 2, c.eps)?;
    let x = normalise(&mut b, x, 1, c.eps)?;
    b.output("m", x);
    Ok(b)
}

/// x / (sum over the axis + eps).
fn normalise(b: &mut Builder, x: ValueId, axis: u32, eps: f32) -> V {
    let sum = b.sum(x, axis)?;
    let eps = b.constant(eps);
    let sum = b.binary(Binary::Add, sum, eps)?;
    b.binary(Binary::Div, x, sum)
}

/// u = sum_i pre_i X_i, rounded: `[R, D]`.
pub fn collapse(m: &mut Maths, c: &HcConfig, x: ValueId, pre: ValueId) -> V {
    let x = m.f32(x)?;
    let pre = m.view(pre, &[c.streams, 1])?;
    let weighted = m.mul(x, pre)?;
    let u = m.b.sum(weighted, 1)?;
    let u = m.view(u, &[c.width])?;
    m.act(u)
}

/// X'_j = post_j y + sum_i comb_ij X_i, rounded: `[R, n, D]`.
pub fn post(m: &mut Maths, c: &HcConfig, x: ValueId, y: ValueId, mix: &Mix) -> V {
    let (n, d) = (c.streams, c.width);
    let y = m.f32(y)?;
    let y = m.view(y, &[1, d])?;
    let post = m.view(mix.post, &[n, 1])?;
    let fresh = m.mul(y, post)?;

    let x = m.f32(x)?;
    let x = m.view(x, &[n, 1, d])?;
    let comb = m.view(mix.comb, &[n, n, 1])?;
    let moved = m.mul(x, comb)?;
    let kept = m.b.sum(moved, 1)?;
    let kept = m.view(kept, &[n, d])?;

    let next = m.add(fresh, kept)?;
    m.act(next)
}

/// Mean over the streams, rounded: `[.., D]`.
pub fn mean(m: &mut Maths, c: &HcConfig, x: ValueId) -> V {
    let x = m.f32(x)?;
    let sum = m.b.sum(x, 1)?;
    let mean = m.with(Binary::Div, sum, c.streams as f32)?;
    let mean = m.view(mean, &[c.width])?;
    m.act(mean)
}
