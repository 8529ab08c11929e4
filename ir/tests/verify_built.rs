//! Rules that only a graph or module built by hand can break: the parser refuses such text before the verifier sees it.

// Helpers outside `#[test]` functions fail the test as well.
#![allow(clippy::unwrap_used, clippy::panic)]

use unglue_ir::graph::{Graph, Node, ValueId};
use unglue_ir::infer::infer;
use unglue_ir::op::{Domain, Op, Unary};
use unglue_ir::order::Order;
use unglue_ir::text::{parse_graph, parse_module};
use unglue_ir::types::{DType, Dim, TensorType, Type};
use unglue_ir::{IrError, verify};

fn tensor(shape: &[Dim]) -> Type {
    Type::Tensor(TensorType::plain(DType::F32, shape))
}

fn simple() -> Graph {
    let text = "graph @g { %0 = input \"x\" normal: f32[R, 4] %1 = neg %0: f32[R, 4] return \"y\" %1 }";
    parse_graph(text).unwrap()
}

fn rule(result: Result<(), IrError>) -> &'static str {
    match result {
        Err(IrError::Structure { rule, .. } | IrError::Type { rule, .. }) => rule,
        other => panic!("{other:?}"),
    }
}

/// The rule that refuses the simple graph after `f`.
fn broken(f: impl FnOnce(&mut Graph)) -> &'static str {
    let mut g = simple();
    f(&mut g);
    rule(verify::graph(&g))
}

#[test]
fn graphs() {
    assert_eq!(broken(|g| g.nodes[1].args = vec![ValueId(1)]), "operand-order");
    assert_eq!(broken(|g| g.nodes[1].args = vec![ValueId(u32::MAX)]), "operand-order");
    assert_eq!(broken(|g| g.nodes[1].ty = tensor(&[Dim::Rows])), "node-type");
    assert_eq!(broken(|g| g.nodes[0].ty = Type::Tuple(vec![])), "leaf");
    assert_eq!(broken(|g| g.nodes[0].op = Op::State { name: "s".into() }), "leaf");
    assert_eq!(broken(|g| g.outputs[0].1 = ValueId(2)), "output-range");
    assert_eq!(broken(|g| g.nodes[1].op = Op::Repeat { body: 0, count: 1 }), "repeat-body");
    assert_eq!(broken(|g| g.bodies = vec![simple(), simple()]), "duplicate-name");
}

#[test]
fn nesting_and_size() {
    let wrap = |body: Graph| {
        let mut g = simple();
        g.nodes[1].op = Op::Repeat { body: 0, count: 1 };
        g.bodies = vec![body];
        g
    };
    let four = (0..4).fold(simple(), |g, _| wrap(g));
    assert_eq!(verify::graph(&four), Ok(()));
    assert_eq!(rule(verify::graph(&wrap(four))), "nesting");
    let mut long = simple();
    for i in 1..verify::MAX_REPEAT_NODES as u32 + 1 {
        long.nodes.push(Node {
            op: Op::Unary(Unary::Neg),
            args: vec![ValueId(i)],
            ty: tensor(&[Dim::Rows, Dim::Fixed(4)]),
        });
    }
    long.outputs[0].1 = ValueId(long.nodes.len() as u32 - 1);
    assert_eq!(verify::graph(&long), Ok(()));
    assert_eq!(rule(verify::graph(&wrap(long))), "graph-size");
}

#[test]
fn orders_of_other_than_powers_of_two() {
    let x = tensor(&[Dim::Rows, Dim::Fixed(2), Dim::Fixed(4)]);
    let w = tensor(&[Dim::Fixed(2), Dim::Fixed(4), Dim::Fixed(4)]);
    for chains in [0, 3, u32::MAX] {
        let op = Op::BatchMatMul { transposed: true, order: Order::Strided(chains) };
        assert_eq!(rule(infer(&op, &[&x, &w], &[]).map(|_| ())), "order-chains");
    }
    assert_eq!(rule(infer(&Op::Input { name: "x".into(), domain: Domain::Normal }, &[], &[]).map(|_| ())), "leaf");
}

#[test]
fn modules() {
    let text = include_str!("filetests/valid/module.ir");
    let m = parse_module(text).unwrap();
    assert_eq!(verify::module(&m), Ok(()));
    let broken = |f: &dyn Fn(&mut unglue_ir::module::Module)| {
        let mut m = m.clone();
        f(&mut m);
        // Printing shows a broken module as well.
        assert!(!m.to_string().is_empty());
        rule(verify::module(&m))
    };
    assert_eq!(broken(&|m| m.calls[0].body = 9), "call-body");
    assert_eq!(broken(&|m| m.calls[0].weights[0] = 9), "call-range");
    assert_eq!(broken(&|m| m.calls[1].states[0] = 9), "call-range");
    assert_eq!(broken(&|m| m.calls[0].args[0] = unglue_ir::module::Arg::Input(9)), "call-range");
    assert_eq!(broken(&|m| m.weights[0].name = m.weights[1].name.clone()), "duplicate-name");
    assert_eq!(broken(&|m| m.inputs[0].name = m.inputs[1].name.clone()), "duplicate-name");
    assert_eq!(broken(&|m| m.states[0].name = m.states[1].name.clone()), "duplicate-name");
    assert_eq!(broken(&|m| m.bodies[0].name = m.bodies[1].name.clone()), "duplicate-name");
}
