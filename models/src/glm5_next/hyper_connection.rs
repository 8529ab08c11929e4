//! mHC, the manifold-constrained hyper-connection (specification section 5), cut at its grid-wide sums: a body receives
//! z = fn . f and sq = sum f^2 of its streams, finishes them, and leaves the sums of its result for the next site.

use unglue_ir::IrError;
use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Binary, Domain, Op};
use unglue_ir::types::{DType, TensorType};

use crate::maths::{Maths, V, rows};

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

/// Grid-wide sums of streams x `[R, n, D]`: z = fn . f `[R, n(n+2)]` and sq = sum f^2 `[R, 1]`, f = x flattened.
pub fn sums(m: &mut Maths, c: &HcConfig, x: ValueId, fn_weight: ValueId) -> Result<(ValueId, ValueId), IrError> {
    let f = m.view(x, &[c.flat()])?;
    let z = m.matmul(f, fn_weight)?;
    let f = m.f32(f)?;
    let square = m.square(f)?;
    let sq = m.sum_last(square)?;
    Ok((z, sq))
}

/// pre, post and comb from a site's sums; base `[n(n+2)]` and scale `[3]` are f32.
pub fn finish(
    m: &mut Maths,
    c: &HcConfig,
    z: ValueId,
    sq: ValueId,
    base: ValueId,
    scale: ValueId,
) -> Result<Mix, IrError> {
    let n = c.streams;
    let mean = m.with(Binary::Div, sq, c.flat() as f32)?;
    let shifted = m.plus(mean, c.norm_eps)?;
    let rho = m.rsqrt(shifted)?;
    let z = m.mul(z, rho)?;

    let pre = affine(m, z, base, scale, 0, 0, n)?;
    let pre = m.sigmoid(pre)?;
    let pre = m.plus(pre, c.eps)?;

    let post = affine(m, z, base, scale, 1, n, n)?;
    let post = m.sigmoid(post)?;
    let post = m.times(post, 2.0)?;

    let a = affine(m, z, base, scale, 2, 2 * n, n * n)?;
    let a = m.view(a, &[n, n])?;
    let comb = sinkhorn(m, c, a)?;
    Ok(Mix { pre, post, comb })
}

/// z * scale_k + base over `len` maps from `start`.
fn affine(m: &mut Maths, z: ValueId, base: ValueId, scale: ValueId, k: u64, start: u64, len: u64) -> V {
    let z = m.part(z, start, len)?;
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
    let body = m.b.body(round);
    m.b.add(Op::Repeat { body, count: c.iters - 1 }, &[columns])
}

/// One round: rows (over j), then columns (over i).
fn sinkhorn_round(c: &HcConfig) -> Result<Graph, IrError> {
    let mut b = Builder::new("sinkhorn_round");
    let ty = TensorType::plain(DType::F32, rows(&[c.streams, c.streams]));
    let x = b.input("m", ty, Domain::Unit);
    let x = normalise(&mut b, x, 2, c.eps)?;
    let x = normalise(&mut b, x, 1, c.eps)?;
    b.output("m", x);
    Ok(b.finish())
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
