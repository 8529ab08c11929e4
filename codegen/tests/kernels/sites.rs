//! Hyper-connection sites: their weights from sums, the collapsed and normalised streams, and whole ones.

use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Binary, Unary};
use unglue_ir::types::DType;

use super::blocks::sums_of;
use super::bodies::{R, bin, f, f32_of, input, rms, scaled, sinkhorn_of, un, weight};
use super::finishes::exchanging;

/// pre, post, comb from a site's sums; the collapsed, normalised streams.
fn finish_of(b: &mut Builder, n: u64, d: u64) -> (ValueId, ValueId, ValueId) {
    let x = input(b, "x", DType::Bf16, &[R, f(n), f(d)]);
    let z = input(b, "z", DType::F32, &[R, f(n * (n + 2))]);
    let sq = input(b, "sq", DType::F32, &[R, f(1)]);
    let sq = bin(b, Binary::Mul, sq, sq);
    site_of(b, x, (z, sq), (n, d))
}

/// The same of sums that the kernel forms.
fn site_of(
    b: &mut Builder,
    x: ValueId,
    (z, sq): (ValueId, ValueId),
    (n, d): (u64, u64),
) -> (ValueId, ValueId, ValueId) {
    let base = weight(b, "base", DType::F32, &[n * (n + 2)]);
    let mean = scaled(b, Binary::Div, sq, (n * d) as f32);
    let mean = scaled(b, Binary::Add, mean, 1e-5);
    let rho = un(b, Unary::Rsqrt, mean);
    let z = bin(b, Binary::Mul, z, rho);
    let base = b.reshape(base, &[f(1), f(n * (n + 2))]).unwrap();
    let z = bin(b, Binary::Add, z, base);
    let pre = b.slice(z, 1, 0, n).unwrap();
    let pre = un(b, Unary::Sigmoid, pre);
    let post = b.slice(z, 1, n, n).unwrap();
    let post = un(b, Unary::Sigmoid, post);
    let comb = b.slice(z, 1, 2 * n, n * n).unwrap();
    let comb = b.reshape(comb, &[R, f(n), f(n)]).unwrap();
    let comb = sinkhorn_of(b, comb, 19);
    let pre = b.reshape(pre, &[R, f(n), f(1)]).unwrap();
    let xf = f32_of(b, x);
    let u = bin(b, Binary::Mul, xf, pre);
    let u = b.sum(u, 1).unwrap();
    let u = b.reshape(u, &[R, f(d)]).unwrap();
    let u = b.cast(u, DType::Bf16).unwrap();
    let u = f32_of(b, u);
    let w = weight(b, "norm", DType::Bf16, &[d]);
    let y = rms(b, u, w);
    (b.cast(y, DType::Bf16).unwrap(), post, comb)
}

pub fn hyper_finish(n: u64, d: u64) -> Graph {
    let mut b = Builder::new("hyper_finish");
    let (y, post, comb) = finish_of(&mut b, n, d);
    b.output("y", y);
    b.output("post", post);
    b.output("comb", comb);
    b.finish()
}

pub fn finish_matmul(n: u64, d: u64, out: u64) -> Graph {
    let mut b = Builder::new("finish_matmul");
    let (y, post, comb) = finish_of(&mut b, n, d);
    let w = weight(&mut b, "w", DType::Bf16, &[out, d]);
    let o = b.matmul(y, w).unwrap();
    let o = b.cast(o, DType::Bf16).unwrap();
    b.output("o", o);
    b.output("post", post);
    b.output("comb", comb);
    b.finish()
}

/// A hyper-connection site: sums over blocks of n streams, finished to its weights and the normalised sum of the streams.
pub fn site(n: u64, d: u64) -> Graph {
    let mut b = Builder::new("site");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(n), f(d)]);
    let maps = n * (n + 2);
    let (z, sq) = sums_of(&mut b, x, (n, d), maps);
    let z = b.reshape(z, &[R, f(maps), f(d / 32)]).unwrap();
    let (z, sq) = (b.sum(z, 2).unwrap(), b.sum(sq, 1).unwrap());
    let z = b.reshape(z, &[R, f(maps)]).unwrap();
    let (y, post, comb) = site_of(&mut b, x, (z, sq), (n, d));
    b.output("y", y);
    b.output("post", post);
    b.output("comb", comb);
    exchanging(b.finish())
}
