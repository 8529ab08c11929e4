//! Kernels with sums over blocks of 32 neighbours: behind a contraction, in workgroups of their own, and finished.

use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Binary, Domain, Op, ReduceKind};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, TensorType};

use super::bodies::{R, bin, f, f32_of, input, post_of, weight};
use super::finishes::exchanging;

/// x `[R, count, n, d]` over n, then over blocks of d: `[R, count * d / 32]`.
fn over_blocks(b: &mut Builder, x: ValueId, count: u64, d: u64) -> ValueId {
    let x = b.sum(x, 2).unwrap();
    let x = b.reshape(x, &[R, f(count), f(d / 32), f(32)]).unwrap();
    let x = b.add(Op::Reduce { kind: ReduceKind::Sum, axis: 3, order: Order::Lanes }, &[x]).unwrap();
    b.reshape(x, &[R, f(count * d / 32)]).unwrap()
}

/// `m` projections of x `[R, n, d]` and its square sum, over blocks.
pub fn sums_of(b: &mut Builder, x: ValueId, (n, d): (u64, u64), m: u64) -> (ValueId, ValueId) {
    let x = f32_of(b, x);
    let square = bin(b, Binary::Mul, x, x);
    let square = b.reshape(square, &[R, f(1), f(n), f(d)]).unwrap();
    let sq = over_blocks(b, square, 1, d);
    let w = weight(b, "fn", DType::Bf16, &[m, n * d]);
    let w = f32_of(b, w);
    let w = b.reshape(w, &[f(1), f(m), f(n), f(d)]).unwrap();
    let x = b.reshape(x, &[R, f(1), f(n), f(d)]).unwrap();
    let products = bin(b, Binary::Mul, x, w);
    (over_blocks(b, products, m, d), sq)
}

fn mixed(b: &mut Builder, (n, d): (u64, u64), k: u64) -> ValueId {
    let x = input(b, "x", DType::Bf16, &[R, f(k)]);
    let streams = input(b, "streams", DType::Bf16, &[R, f(n), f(d)]);
    let post = input(b, "post", DType::F32, &[R, f(n)]);
    let comb = input(b, "comb", DType::F32, &[R, f(n), f(n)]);
    let w = weight(b, "w", DType::Bf16, &[d, k]);
    let y = b.matmul(x, w).unwrap();
    let y = b.cast(y, DType::Bf16).unwrap();
    post_of(b, y, streams, post, comb, n, d)
}

/// Matmul, its result mixed into n streams, and the streams' sums over blocks.
pub fn matmul_post_sums(n: u64, k: u64, d: u64, m: u64) -> Graph {
    let mut b = Builder::new("matmul_post_sums");
    let x = mixed(&mut b, (n, d), k);
    let (z, sq) = sums_of(&mut b, x, (n, d), m);
    b.output("streams_out", x);
    b.output("z", z);
    b.output("sq", sq);
    b.finish()
}

/// The same, and the blocks' square sums added up behind all workgroups.
pub fn finished_sums(n: u64, k: u64, d: u64, m: u64) -> Graph {
    let mut b = Builder::new("finished_sums");
    let x = mixed(&mut b, (n, d), k);
    let (z, sq) = sums_of(&mut b, x, (n, d), m);
    let z = b.reshape(z, &[R, f(m), f(d / 32)]).unwrap();
    let (z, sq) = (b.sum(z, 2).unwrap(), b.sum(sq, 1).unwrap());
    let z = b.reshape(z, &[R, f(m)]).unwrap();
    let z = bin(&mut b, Binary::Div, z, sq);
    b.output("streams_out", x);
    b.output("z", z);
    exchanging(b.finish())
}

/// Sums over blocks of a matmul that is not stored.
pub fn matmul_sums(k: u64, d: u64, m: u64) -> Graph {
    let mut b = Builder::new("matmul_sums");
    let x = input(&mut b, "x", DType::F32, &[R, f(k)]);
    let w = weight(&mut b, "w", DType::Bf16, &[d, k]);
    let y = b.matmul(x, w).unwrap();
    let y = b.reshape(y, &[R, f(1), f(d)]).unwrap();
    let (z, sq) = sums_of(&mut b, y, (1, d), m);
    b.output("z", z);
    b.output("sq", sq);
    b.finish()
}

/// Embeddings as n streams, and their sums over blocks.
pub fn embed_sums(v: u64, n: u64, d: u64, m: u64) -> Graph {
    let mut b = Builder::new("embed_sums");
    let ids = b.input("tokens", TensorType::plain(DType::I32, vec![R]), Domain::Below(v + 2));
    let table = weight(&mut b, "table", DType::Bf16, &[v, d]);
    let e = b.add(Op::EmbedRows, &[table, ids]).unwrap();
    let e = b.reshape(e, &[R, f(1), f(d)]).unwrap();
    let x = b.add(Op::Broadcast(vec![R, f(n), f(d)]), &[e]).unwrap();
    let (z, sq) = sums_of(&mut b, x, (n, d), m);
    b.output("streams", x);
    b.output("z", z);
    b.output("sq", sq);
    b.finish()
}
