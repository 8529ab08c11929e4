//! Wrong kernels are split down to the op that was mutated.

use unglue_codegen::check::split::{Found, Made, Part, Split, make, split};
use unglue_codegen::check::{Given, Mismatch, Paging, Subject, check, check_given};
use unglue_codegen::error::CodegenError;
use unglue_codegen::kp::{Bin, Expr, Program, Un};
use unglue_codegen::target;
use unglue_ir::builder::Builder;
use unglue_ir::graph::Graph;
use unglue_ir::interp::{Batch, Tensor};
use unglue_ir::op::{Binary, Domain, Unary};
use unglue_ir::types::{DType, Dim, TensorType};
use unglue_passes::schedule::{Bucket, fit};
use unglue_runtime::{Code, CpuDevice, CpuOptions, Device, Guard};

use crate::rewrite::Edit;

const ROWS: u32 = 4;
const WIDTH: u64 = 96;
/// Far beyond the square of anything that is drawn.
const LIMIT: f32 = 1000.0;

/// Values 3 to 7: x * x, its sum, the root of that, x by it, and the larger of that and 0.
fn normed() -> Graph {
    let mut b = Builder::new("normed");
    let x = b.input("x", TensorType::plain(DType::F32, [Dim::Rows, Dim::Fixed(WIDTH)]), Domain::Normal);
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

fn checked(part: &Part, made: &Made, given: Option<&Given>) -> Result<Option<Mismatch>, CodegenError> {
    let options = CpuOptions { threads: 1, guard: Guard::Aligned, poison_shared: true };
    let mut device = CpuDevice::new(options).unwrap();
    device.load(std::slice::from_ref(&made.entry), &[Code { kernel: None, bytes: &made.code }]).unwrap();
    let (name, graph) = (&made.entry.name, &part.graph);
    let subject =
        Subject { name, number: 0, graph, uses: &made.uses, grid: made.grid, bucket: bucket(), bounded: false };
    if let Some(given) = given {
        return check_given(&mut device, &subject, given);
    }
    for seed in 0..3 {
        if let Some(wrong) = check(&mut device, &subject, seed)? {
            return Ok(Some(wrong));
        }
    }
    Ok(None)
}

/// Splits a graph whose kernels a faulty generator makes.
fn split_with(graph: &Graph, given: Option<&Given>, fault: impl Fn(&mut Program)) -> Split {
    let mut run = |mut part: Part| {
        fault(&mut part.generated.program);
        let made = make(&part, target::by_name("x86-64").unwrap())?;
        checked(&part, &made, given)
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
    let last = split_with(&graph, None, min_for_max);
    assert_eq!(op_name(&graph, &last.found), "max", "{last:?}");
    let middle = split_with(&graph, None, no_root);
    assert_eq!(op_name(&graph, &middle.found), "sqrt", "{middle:?}");
    assert!(middle.tried < last.tried && last.skipped.is_empty(), "{middle:?} {last:?}");
}

#[test]
fn right_code_is_told_from_wrong_wholes() {
    let graph = normed();
    let none = split_with(&graph, None, |_| {});
    assert_eq!((none.found, none.tried), (Found::OldCode, 6));
    // Only the whole kernel stores `y`: what is wrong there alone is wrong in no part.
    let only_whole = split_with(&graph, None, |p| {
        if p.name == "whole" {
            min_for_max(p)
        }
    });
    assert!(matches!(only_whole.found, Found::Whole { .. }), "{only_whole:?}");
}

/// Values 1 to 4: x * x, the smaller of that and the limit, and its root.
fn limited() -> Graph {
    let mut b = Builder::new("limited");
    let x = b.input("x", TensorType::plain(DType::F32, [Dim::Rows, Dim::Fixed(WIDTH)]), Domain::Normal);
    let square = b.binary(Binary::Mul, x, x).unwrap();
    let limit = b.constant(LIMIT);
    let near = b.binary(Binary::Min, square, limit).unwrap();
    let y = b.unary(Unary::Sqrt, near).unwrap();
    b.output("y", y);
    b.finish()
}

/// One row of `x` and nothing else.
fn row_of(x: f32) -> Given<'static> {
    let row = Tensor::f32(&[1, WIDTH as usize], vec![x; WIDTH as usize]);
    Given {
        batch: Batch::new(&[(0, 0, 1)], 0),
        block_table: vec![0],
        paging: Paging { block_size: 1, blocks_per_seq: 1, num_blocks: 1, max_slots: 1 },
        logits: 1,
        inputs: [("x".to_owned(), row)].into(),
        weights: [].into(),
        states: [].into(),
        seed: None,
    }
}

#[test]
fn a_fault_that_no_draw_shows_is_split_on_what_was_given() {
    let graph = limited();
    let half_limit = |p: &mut Program| {
        Edit::of(p).expr(|_, e| match e {
            Expr::F32(bits) if *bits == LIMIT.to_bits() => Some(Expr::F32((LIMIT / 2.0).to_bits())),
            _ => None,
        });
    };
    assert_eq!(split_with(&graph, None, half_limit).found, Found::OldCode, "drawn inputs must not show it");
    assert_eq!(split_with(&graph, Some(&row_of(20.0)), half_limit).found, Found::OldCode, "nor numbers below both");
    let found = split_with(&graph, Some(&row_of(25.0)), half_limit);
    assert_eq!(op_name(&graph, &found.found), "min", "{found:?}");
}
