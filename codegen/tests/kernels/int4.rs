//! Kernels over int4 weights.

use unglue_codegen::counts::{Class, Traffic};
use unglue_codegen::emu::{EmuDevice, EmuOptions};
use unglue_codegen::kp::{Addr, Elem, Expr, Param, Place, Stmt, Ty, Val};
use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Binary, Domain, Op};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Format, Packing, ScaleType, TensorType};
use unglue_runtime::{Code, Device};

use super::bodies::{R, bin, f, input, swiglu_of, weight};
use super::{Made, all_buckets, run};

const fn int4(group: u32, packing: Packing, scales: ScaleType) -> Format {
    Format::Int4 { group, packing, scales }
}

/// As AutoRound writes them, and as compressed-tensors does.
const FORMATS: [Format; 4] = [
    int4(128, Packing::GptqColumns, ScaleType::F16),
    int4(64, Packing::Rows, ScaleType::Bf16),
    int4(32, Packing::GptqColumns, ScaleType::Bf16),
    int4(32, Packing::Rows, ScaleType::F16),
];

fn packed(b: &mut Builder, name: &str, format: Format, shape: &[u64]) -> ValueId {
    b.weight(name, TensorType { format, shape: shape.iter().map(|n| f(*n)).collect() })
}

fn matmul(format: Format, n: u64, k: u64) -> Graph {
    let mut b = Builder::new("matmul");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(k)]);
    let w = packed(&mut b, "w", format, &[n, k]);
    let y = b.matmul(x, w).unwrap();
    let y = b.cast(y, DType::Bf16).unwrap();
    b.output("y", y);
    b.finish()
}

/// E experts in S slots, k of them a row, widths D and N.
struct Experts {
    e: u64,
    s: u64,
    k: u64,
    d: u64,
    n: u64,
}

fn choice(b: &mut Builder, c: &Experts) -> [ValueId; 2] {
    let mut ints = |name: &str, shape, domain| b.input(name, TensorType::plain(DType::I32, shape), domain);
    let ids = ints("ids", vec![R, f(c.k)], Domain::Distinct(c.e));
    [ids, ints("slots", vec![f(c.e)], Domain::Slots(c.s))]
}

/// Gate and up, rounded, and the clamped SwiGLU.
fn up(format: Format, c: &Experts) -> Graph {
    let mut b = Builder::new("up");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(c.d)]);
    let [ids, slots] = choice(&mut b, c);
    let [g, u] = ["g", "u"].map(|name| {
        let w = packed(&mut b, name, format, &[c.s, c.n, c.d]);
        let y = b.add(Op::GroupedMatMul { order: Order::Runs }, &[x, ids, slots, w]).unwrap();
        b.cast(y, DType::Bf16).unwrap()
    });
    let y = swiglu_of(&mut b, g, u, 2.0);
    let y = b.cast(y, DType::Bf16).unwrap();
    b.output("y", y);
    b.finish()
}

/// Down, router weights, sum over choices in f32, a shared expert in bf16, one rounding.
fn down(format: Format, c: &Experts) -> Graph {
    let mut b = Builder::new("down");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(c.k), f(c.n)]);
    let shared = input(&mut b, "shared", DType::Bf16, &[R, f(c.n)]);
    let route = input(&mut b, "route", DType::F32, &[R, f(c.k), f(1)]);
    let [ids, slots] = choice(&mut b, c);
    let w = packed(&mut b, "w", format, &[c.s, c.d, c.n]);
    let y = b.add(Op::GroupedMatMul { order: Order::Runs }, &[x, ids, slots, w]).unwrap();
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

/// Some experts have no slot, and N is no multiple of a wave's outputs.
#[test]
fn experts_in_int4() {
    for (i, format) in FORMATS.into_iter().enumerate() {
        let c = Experts { e: 18, s: 5, k: 4, d: 384, n: 128 };
        all_buckets(&format!("up{i}"), &up(format, &c), 0);
        all_buckets(&format!("down{i}"), &down(format, &Experts { d: 70, ..c }), 0);
    }
}

/// Less than a round of the wave, one, one and a part.
#[test]
fn rounds_of_runs() {
    for (i, format) in FORMATS.into_iter().enumerate() {
        for k in [128, 1024, 1152] {
            run(&format!("matmul{i}_{k}"), &matmul(format, 37, k), 4, 0);
        }
    }
}

/// Bases of what lanes load from buffers.
fn bases(stmts: &[Stmt], out: &mut Vec<(u32, Val)>) {
    for stmt in stmts {
        match stmt {
            Stmt::Let(_, Expr::Load { from: Place::Buffer(i), addr, .. }) => match addr {
                Addr::Contig { base } | Addr::Lanes { base, .. } => out.push((*i, *base)),
                Addr::Uniform { .. } => {}
            },
            Stmt::If { then, otherwise, .. } => [then, otherwise].iter().for_each(|b| bases(b, out)),
            Stmt::For(f) => bases(&f.body, out),
            _ => {}
        }
    }
}

/// 288 x 4096 x 4096 levels take more than 2^31 bytes: experts start at 64-bit offsets, in words and in scales.
#[test]
fn offsets_of_experts_are_wide() {
    let c = Experts { e: 288, s: 288, k: 8, d: 4096, n: 4096 };
    let g = up(FORMATS[0], &c);
    let made = Made::new("wide", &g, 1, 0);
    let p = &made.made.program;
    let mut all = Vec::new();
    bases(&p.body, &mut all);
    let of = |prefix: &str| {
        let named = |i: u32| matches!(&p.params[i as usize], Param::Buffer { name, .. } if name.starts_with(prefix));
        let bases: Vec<Val> = all.iter().filter(|(i, _)| named(*i)).map(|(_, base)| *base).collect();
        assert!(bases.len() >= 2 && bases.iter().all(|b| p.types[b.0 as usize] == Ty::Uniform(Elem::I64)), "{prefix}");
    };
    of("w_");
    of("s_");
}

/// What the emulator counts for one row: issued vector instructions for 32 weights, and each byte of a weight once.
#[test]
fn instructions_and_bytes() {
    let (n, k) = (64, 4096);
    for format in FORMATS {
        let g = matmul(format, n, k);
        let made = Made::new("counted", &g, 1, 0);
        let mut emulator = EmuDevice::new(EmuOptions::default()).unwrap();
        emulator.load(&[made.described()], &[Code { kernel: Some(0), bytes: &made.code("gfx1201") }]).unwrap();
        made.compare(&mut emulator, 0);
        let counts = emulator.take_counts().into_values().next().unwrap();
        let valu = [Class::Valu, Class::Transcendental, Class::CrossLane];
        let valu: u64 = valu.iter().map(|c| counts.instructions[*c as usize]).sum();
        let per_weight = valu as f64 / (n * k / 32) as f64;
        println!("{format:?}: {per_weight:.2} VALU a weight");
        assert!(per_weight <= 4.5, "{format:?}: {per_weight} VALU a weight");
        // Every output reads the row of x anew, from the cache. Lanes that share a scale ask for it each.
        let row_of_x = k * 2;
        assert_eq!(counts.traffic(Traffic::GlobalLoad), n * (k / 2 + k / 32 * 2 + row_of_x), "{format:?}");
    }
}
