//! Wrong kernels are split down to the op that was mutated.

use unglue_codegen::check::split::{Found, Made, Part, Split, make, split};
use unglue_codegen::check::{Mismatch, Subject, check};
use unglue_codegen::error::CodegenError;
use unglue_codegen::kp::{Bin, Expr, Program, Un};
use unglue_codegen::target;
use unglue_ir::builder::Builder;
use unglue_ir::graph::Graph;
use unglue_ir::op::{Binary, Domain, Unary};
use unglue_ir::types::{DType, Dim, TensorType};
use unglue_passes::schedule::{Bucket, fit};
use unglue_runtime::{Code, CpuDevice, CpuOptions, Device, Guard};

use crate::rewrite::Edit;

const ROWS: u32 = 4;

/// Values 3 to 7: x * x, its sum, the root of that, x by it, and the larger of that and 0.
fn normed() -> Graph {
    let mut b = Builder::new("normed");
    let x = b.input("x", TensorType::plain(DType::F32, [Dim::Rows, Dim::Fixed(96)]), Domain::Normal);
    let square = b.binary(Binary::Mul, x, x).unwrap();
    let sum = b.sum(square, 1).unwrap();
    let root = b.unary(Unary::Sqrt, sum).unwrap();
    let unit = b.binary(Binary::Div, x, root).unwrap();
    let zero = b.constant(0.0);
    let y = b.binary(Binary::Max, unit, zero).unwrap();
    b.output("y", y);
    b.finish()
}

fn bucket() -> Bucket {
    Bucket { rows_max: ROWS, seqs_max: ROWS, pools: 0, fit: &fit::GFX1201 }
}

fn checked(part: &Part, made: &Made) -> Result<Option<Mismatch>, CodegenError> {
    let options = CpuOptions { threads: 1, guard: Guard::Aligned, poison_shared: true };
    let mut device = CpuDevice::new(options).unwrap();
    device.load(std::slice::from_ref(&made.entry), &[Code { kernel: None, bytes: &made.code }]).unwrap();
    let (name, graph) = (&made.entry.name, &part.graph);
    let subject =
        Subject { name, number: 0, graph, uses: &made.uses, grid: made.grid, bucket: bucket(), bounded: false };
    for seed in 0..3 {
        if let Some(wrong) = check(&mut device, &subject, seed)? {
            return Ok(Some(wrong));
        }
    }
    Ok(None)
}

/// Splits a graph whose kernels a faulty generator makes.
fn split_with(graph: &Graph, fault: impl Fn(&mut Program)) -> Split {
    let mut run = |mut part: Part| {
        fault(&mut part.generated.program);
        let made = make(&part, target::by_name("x86-64").unwrap())?;
        checked(&part, &made)
    };
    split(graph, &bucket(), &mut run).unwrap()
}

fn min_for_max(p: &mut Program) {
    Edit::of(p).expr(|_, e| match e {
        Expr::Bin(Bin::Max, a, b) => Some(Expr::Bin(Bin::Min, *a, *b)),
        _ => None,
    });
}

fn no_root(p: &mut Program) {
    Edit::of(p).expr(|_, e| match e {
        Expr::Un(Un::Sqrt, a) => Some(Expr::Un(Un::Neg, *a)),
        _ => None,
    });
}

fn op_name(graph: &Graph, found: &Found) -> String {
    match found {
        Found::Op { value, .. } => graph.node(*value).op.name().to_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn the_first_op_that_a_faulty_generator_gets_wrong_is_named() {
    let graph = normed();
    let last = split_with(&graph, min_for_max);
    assert_eq!(op_name(&graph, &last.found), "max", "{last:?}");
    let middle = split_with(&graph, no_root);
    assert_eq!(op_name(&graph, &middle.found), "sqrt", "{middle:?}");
    assert!(middle.tried < last.tried && last.skipped.is_empty(), "{middle:?} {last:?}");
}

#[test]
fn right_code_is_told_from_wrong_wholes() {
    let graph = normed();
    let none = split_with(&graph, |_| {});
    assert_eq!((none.found, none.tried), (Found::OldCode, 6));
    // Only the whole kernel stores `y`: what is wrong there alone is wrong in no part.
    let only_whole = split_with(&graph, |p| {
        if p.name == "whole" {
            min_for_max(p)
        }
    });
    assert!(matches!(only_whole.found, Found::Whole { .. }), "{only_whole:?}");
}
