//! How outputs are dealt to waves: none streams longer than it should live, and what is shared stays shared.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{bucket, linear, norm, plain, rows, streams};
use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Binary, Domain, Op};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Dim, Format, Packing, ScaleType, TensorType};
use unglue_passes::cost::{GFX1201, SM_90, kernel_cost};
use unglue_passes::schedule::{Bucket, Form, Schedule, Split, fit, schedule};
use unglue_passes::traffic::traffic;

fn matmul(n: u64, k: u64) -> Graph {
    let mut b = Builder::new("matmul");
    let x = streams(&mut b, &[k]);
    let y = linear(&mut b, x, "w", n, k);
    b.output("y", y);
    b.finish()
}

/// One output's share of `choices` experts in int4 and of a shared one in bf16.
fn down(n: u64, k: u64, choices: u64) -> Graph {
    let mut b = Builder::new("down");
    let x = b.input("x", TensorType::plain(DType::Bf16, rows(&[choices, k])), Domain::Normal);
    let shared = b.input("shared", TensorType::plain(DType::Bf16, rows(&[k])), Domain::Normal);
    let ids = b.input("ids", TensorType::plain(DType::I32, rows(&[choices])), Domain::Distinct(64));
    let slots = b.input("slots", plain(DType::I32, &[64]), Domain::Slots(64));
    let format = Format::Int4 { group: 128, packing: Packing::Rows, scales: ScaleType::F16 };
    let w = b.weight("w", TensorType { format, shape: [64, n, k].map(Dim::Fixed).to_vec() });
    let y = b.add(Op::GroupedMatMul { order: Order::Runs }, &[x, ids, slots, w]).unwrap();
    let y = b.sum(y, 1).unwrap();
    let y = b.reshape(y, &rows(&[n])).unwrap();
    let z = linear(&mut b, shared, "v", n, k);
    let y = b.binary(Binary::Add, y, z).unwrap();
    b.output("y", y);
    b.finish()
}

fn heads(h: u64, k: u64, n: u64) -> Graph {
    let mut b = Builder::new("heads");
    let x = streams(&mut b, &[h, k]);
    let w = b.weight("w", plain(DType::Bf16, &[h, k, n]));
    let y = b.add(Op::BatchMatMul { transposed: true, order: Order::of_strided(k) }, &[x, w]).unwrap();
    b.output("y", y);
    b.finish()
}

/// Outputs of a set, waves of a set, waves of a workgroup.
fn dealt(s: &Schedule) -> [u32; 3] {
    let Form::Skinny(form) = &s.form else { panic!("{}", s.describe()) };
    let [segment] = form.segments.as_slice() else { panic!("{}", s.describe()) };
    [segment.outputs_per_wave, segment.split_k, s.waves]
}

/// bf16 rows of 3, 8, 16, 24 and 32 KiB, with one row of the operand; a launch that is over sooner than a
/// wave may live; heads, whose lanes have an output each.
#[test]
fn waves_are_short() {
    for (g, rows, want) in [
        (matmul(16384, 1536), 1, [2, 1, 4]),
        (matmul(24576, 4096), 1, [1, 2, 4]),
        (matmul(4096, 8192), 1, [1, 4, 4]),
        (matmul(4096, 12288), 1, [1, 4, 4]),
        (matmul(4096, 16384), 1, [1, 8, 8]),
        (matmul(288, 4096), 1, [1, 1, 4]),
        (heads(64, 256, 512), 1, [32, 4, 4]),
    ] {
        let s = schedule(&g, &bucket(rows)).unwrap();
        assert_eq!(dealt(&s), want, "{}", s.describe());
        let cost = kernel_cost(&g, &s, &bucket(rows), &GFX1201);
        assert_eq!(cost.penalty_ns, 0, "{}: {cost:?}", s.describe());
    }
}

/// Eight choices of 1 KiB go to four waves as they are, the shared row by columns; workgroups have several outputs, so that
/// the operands of all choices are not read for each.
#[test]
fn choices_are_dealt_whole() {
    let (g, b) = (down(4096, 2048, 8), bucket(1));
    let s = schedule(&g, &b).unwrap();
    assert_eq!(dealt(&s), [1, 4, 16]);
    let Form::Skinny(form) = &s.form else { panic!() };
    let segment = &form.segments[0];
    let (slots, elements) = segment.slots(&g, 1);
    let of = |split| slots.iter().find(|s| s.split == split).map(|s| (s.choices, s.places)).unwrap();
    assert_eq!([of(Split::Sums), of(Split::Columns)], [(8, 1), (1, 32)]);
    assert_eq!((elements, segment.exchange_bytes(&g, 1, s.waves)), (64, 4 * 64 * 4));
    let t = traffic(&g, &s, &b);
    assert!(t.reread_bytes < t.weight_bytes, "{t:?}");
    let cost = kernel_cost(&g, &s, &b, &GFX1201);
    assert_eq!(cost.penalty_ns, 0, "{cost:?}");
}

/// Every workgroup forms the operand first: more of them would form it more often.
#[test]
fn operands_formed_first_stay_with_few_workgroups() {
    let mut b = Builder::new("norm_matmul");
    let x = streams(&mut b, &[4096]);
    let x = norm(&mut b, x, "norm", 4096);
    let y = linear(&mut b, x, "w", 24576, 4096);
    b.output("y", y);
    let s = schedule(&b.finish(), &bucket(1)).unwrap();
    assert_eq!(dealt(&s), [32, 1, 4]);
}

#[test]
fn a_machine_without_the_penalty_keeps_its_waves() {
    let b = Bucket { fit: &fit::SM_90, ..bucket(1) };
    let s = schedule(&matmul(24576, 4096), &b).unwrap();
    assert_eq!((dealt(&s), SM_90.wave_penalty.value), ([2, 1, 4], 0));
}

/// A workgroup of a head reads that head's part of the operand.
#[test]
fn heads_read_their_own_part() {
    let (g, b) = (heads(64, 256, 512), bucket(1));
    let s = schedule(&g, &b).unwrap();
    let workgroups = s.workgroups(&b);
    let all =
        |v: ValueId| g.ty(v).tensor().map_or(0, |t| 2 * t.shape.iter().filter_map(|d| d.fixed()).product::<u64>());
    let x = g.inputs().next().unwrap().1;
    assert_eq!(traffic(&g, &s, &b).reread_bytes, all(x) * workgroups / 64);
}
