//! Contractions over int4 weights, and experts in any format.

use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Binary, Domain, Op};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Format, Packing, ScaleType, TensorType};

use super::bodies::{R, bin, f, input, swiglu_of, weight};

const fn int4(group: u32, packing: Packing, scales: ScaleType) -> Format {
    Format::Int4 { group, packing, scales }
}

/// As AutoRound writes them, and as compressed-tensors does.
pub const FORMATS: [Format; 4] = [
    int4(128, Packing::GptqColumns, ScaleType::F16),
    int4(64, Packing::Rows, ScaleType::Bf16),
    int4(32, Packing::GptqColumns, ScaleType::Bf16),
    int4(32, Packing::Rows, ScaleType::F16),
];

pub fn packed(b: &mut Builder, name: &str, format: Format, shape: &[u64]) -> ValueId {
    b.weight(name, TensorType { format, shape: shape.iter().map(|n| f(*n)).collect() })
}

pub fn matmul(format: Format, n: u64, k: u64) -> Graph {
    let mut b = Builder::new("matmul");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(k)]);
    let w = packed(&mut b, "w", format, &[n, k]);
    let y = b.matmul(x, w).unwrap();
    let y = b.cast(y, DType::Bf16).unwrap();
    b.output("y", y);
    b.finish()
}

/// E experts in S slots, k of them a row, widths D and N. Ids are below `ids`, which may be more than there are experts.
#[derive(Clone, Copy)]
pub struct Experts {
    pub e: u64,
    pub ids: u64,
    pub s: u64,
    pub k: u64,
    pub d: u64,
    pub n: u64,
}

fn choice(b: &mut Builder, c: &Experts) -> [ValueId; 2] {
    let mut ints = |name: &str, shape, domain| b.input(name, TensorType::plain(DType::I32, shape), domain);
    let ids = ints("ids", vec![R, f(c.k)], Domain::Distinct(c.ids));
    [ids, ints("slots", vec![f(c.e)], Domain::Slots(c.s))]
}

fn grouped(b: &mut Builder, format: Format, [x, ids, slots, w]: [ValueId; 4]) -> ValueId {
    let order = if matches!(format, Format::Int4 { .. }) { Order::Runs } else { Order::Lanes };
    b.add(Op::GroupedMatMul { order }, &[x, ids, slots, w]).unwrap()
}

/// Gate and up, rounded, and the clamped SwiGLU.
pub fn up(format: Format, c: &Experts) -> Graph {
    let mut b = Builder::new("up");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(c.d)]);
    let [ids, slots] = choice(&mut b, c);
    let [g, u] = ["g", "u"].map(|name| {
        let w = packed(&mut b, name, format, &[c.s, c.n, c.d]);
        let y = grouped(&mut b, format, [x, ids, slots, w]);
        b.cast(y, DType::Bf16).unwrap()
    });
    let y = swiglu_of(&mut b, g, u, 2.0);
    let y = b.cast(y, DType::Bf16).unwrap();
    b.output("y", y);
    b.finish()
}

/// Down and the router's weights, a result for each choice.
pub fn down_each(format: Format, c: &Experts) -> Graph {
    let mut b = Builder::new("down_each");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(c.k), f(c.n)]);
    let route = input(&mut b, "route", DType::F32, &[R, f(c.k), f(1)]);
    let [ids, slots] = choice(&mut b, c);
    let w = packed(&mut b, "w", format, &[c.s, c.d, c.n]);
    let y = grouped(&mut b, format, [x, ids, slots, w]);
    let y = bin(&mut b, Binary::Mul, y, route);
    b.output("y", y);
    b.finish()
}

/// Down, router weights, sum over choices in f32, a shared expert in bf16, one rounding.
pub fn down(format: Format, c: &Experts) -> Graph {
    let mut b = Builder::new("down");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(c.k), f(c.n)]);
    let shared = input(&mut b, "shared", DType::Bf16, &[R, f(c.n)]);
    let route = input(&mut b, "route", DType::F32, &[R, f(c.k), f(1)]);
    let [ids, slots] = choice(&mut b, c);
    let w = packed(&mut b, "w", format, &[c.s, c.d, c.n]);
    let y = grouped(&mut b, format, [x, ids, slots, w]);
    let y = bin(&mut b, Binary::Mul, y, route);
    let y = b.sum(y, 1).unwrap();
    let y = b.reshape(y, &[R, f(c.d)]).unwrap();
    let v = weight(&mut b, "v", DType::Bf16, &[c.d, c.n]);
    let z = b.matmul(shared, v).unwrap();
    let y = bin(&mut b, Binary::Add, y, z);
    let y = b.cast(y, DType::Bf16).unwrap();
    b.output("y", y);
    b.finish()
}
