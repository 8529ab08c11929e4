//! Rules about views and concatenation. Values are not computed, so all of them are exact.

use unglue_ir::op::Op;
use unglue_ir::types::{DType, Dim};

use super::soundness::{Draw, Sample};
use super::{Rule, Term};
use crate::analysis::View;
use crate::kernel::Exactness;
use crate::language::ENode;

const EXACT: Exactness = Exactness::Exact;
const ELEMENTWISE: &str = "an elementwise op gives each element from the same element, wherever it stands";

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "view-same",
        class: EXACT,
        when: Some("the view has the type of its operand"),
        reason: "a view to the shape that the value has changes nothing",
        find: view_same,
        sample: view_same_sample,
    },
    Rule {
        name: "reshape-of-reshape",
        class: EXACT,
        when: Some("the operand of the inner reshape has as many elements of each symbolic axis"),
        reason: "reshapes keep the order of elements, so only the last shape counts",
        find: reshape_of_reshape,
        sample: |d| {
            let x = d.activation(DType::F32);
            let (flat, split) = d.reshapes(x)?;
            let y = d.op(flat, &[x])?;
            d.apply(split, &[y])
        },
    },
    Rule {
        name: "broadcast-of-broadcast",
        class: EXACT,
        when: None,
        reason: "an axis that has grown does not grow again, so only the last extents count",
        find: broadcast_of_broadcast,
        sample: |d| {
            let x = d.tensor(DType::F32, &[Dim::Rows, Dim::Fixed(1), Dim::Fixed(1)]);
            let y = d.op(Op::Broadcast(vec![Dim::Rows, Dim::Fixed(4), Dim::Fixed(1)]), &[x])?;
            d.apply(Op::Broadcast(vec![Dim::Rows, Dim::Fixed(4), Dim::Fixed(8)]), &[y])
        },
    },
    Rule {
        name: "slice-of-slice",
        class: EXACT,
        when: Some("both slice one axis"),
        reason: "starts along one axis add",
        find: slice_of_slice,
        sample: |d| {
            let x = d.tensor(DType::F32, &[Dim::Rows, Dim::Fixed(12)]);
            let y = d.op(Op::Slice { axis: 1, start: 2, len: 9 }, &[x])?;
            d.apply(Op::Slice { axis: 1, start: 3, len: 4 }, &[y])
        },
    },
    Rule {
        name: "slice-of-concat",
        class: EXACT,
        when: Some("the slice lies inside one part, along one axis"),
        reason: "a slice that lies inside one part is a slice of that part",
        find: slice_of_concat,
        sample: slice_of_concat_sample,
    },
    Rule {
        name: "concat-of-one",
        class: EXACT,
        when: Some("there is one part"),
        reason: "one part is the whole",
        find: |_, n| match (&n.op, n.args.as_slice()) {
            (Op::Concat { .. }, [x]) => vec![Term::Class(*x)],
            _ => vec![],
        },
        sample: |d| {
            let x = d.activation(DType::Bf16);
            d.apply(Op::Concat { axis: 1 }, &[x])
        },
    },
    Rule {
        name: "concat-of-slices",
        class: EXACT,
        when: Some("the slices are adjacent, in order, and cover the whole axis"),
        reason: "adjacent slices that cover an axis in order are the value",
        find: concat_of_slices,
        sample: |d| {
            let x = d.tensor(DType::F32, &[Dim::Rows, Dim::Fixed(9)]);
            let a = d.op(Op::Slice { axis: 1, start: 0, len: 4 }, &[x])?;
            let b = d.op(Op::Slice { axis: 1, start: 4, len: 5 }, &[x])?;
            d.apply(Op::Concat { axis: 1 }, &[a, b])
        },
    },
    Rule {
        name: "elementwise-before-view",
        class: EXACT,
        when: None,
        reason: ELEMENTWISE,
        find: elementwise_before_view,
        sample: |d| {
            let x = d.tensor(DType::F32, &[Dim::Rows, Dim::Fixed(1), Dim::Fixed(6)]);
            let grow = Op::Broadcast(vec![Dim::Rows, Dim::Fixed(5), Dim::Fixed(6)]);
            let view = d.pick(&[grow, Op::Reshape(vec![Dim::Rows, Dim::Fixed(6)])]);
            let y = d.op(view, &[x])?;
            let op = d.elementwise();
            d.apply(op, &[y])
        },
    },
    Rule {
        name: "slice-before-elementwise",
        class: EXACT,
        when: None,
        reason: ELEMENTWISE,
        find: slice_before_elementwise,
        sample: |d| {
            let x = d.tensor(DType::F32, &[Dim::Rows, Dim::Fixed(7)]);
            let op = d.elementwise();
            let y = d.op(op, &[x])?;
            d.apply(Op::Slice { axis: 1, start: 2, len: 4 }, &[y])
        },
    },
    Rule {
        name: "implicit-broadcast",
        class: EXACT,
        when: Some("the result keeps its type without the broadcast"),
        reason: "arithmetic grows axes of extent 1 itself",
        find: implicit_broadcast,
        sample: |d| {
            let x = d.tensor(DType::F32, &[Dim::Rows, Dim::Fixed(1)]);
            let y = d.tensor(DType::F32, &[Dim::Rows, Dim::Fixed(6)]);
            let x = d.op(Op::Broadcast(vec![Dim::Rows, Dim::Fixed(6)]), &[x])?;
            let op = d.binary();
            if d.flip() { d.apply(op, &[x, y]) } else { d.apply(op, &[y, x]) }
        },
    },
];

fn view_same(v: View, n: &ENode) -> Vec<Term> {
    let is_view = matches!(n.op, Op::Reshape(_) | Op::Broadcast(_) | Op::Slice { .. });
    if is_view && v.node_ty(n).as_ref() == v.ty(n.args[0]) { vec![Term::Class(n.args[0])] } else { vec![] }
}

fn view_same_sample(d: &mut Draw) -> Option<Sample> {
    let x = d.tensor(DType::F32, &[Dim::Rows, Dim::Fixed(5)]);
    let to = vec![Dim::Rows, Dim::Fixed(5)];
    let op = d.pick(&[Op::Reshape(to.clone()), Op::Broadcast(to), Op::Slice { axis: 1, start: 0, len: 5 }]);
    d.apply(op, &[x])
}

fn reshape_of_reshape(v: View, n: &ENode) -> Vec<Term> {
    if !matches!(n.op, Op::Reshape(_)) {
        return vec![];
    }
    let inner = v.nodes(n.args[0]).filter(|i| matches!(i.op, Op::Reshape(_)));
    let direct = inner.map(|i| i.args[0]).filter(|x| v.infer(&n.op, &[*x]).is_some());
    direct.map(|x| Term::op(n.op.clone(), &[x])).collect()
}

fn broadcast_of_broadcast(v: View, n: &ENode) -> Vec<Term> {
    if !matches!(n.op, Op::Broadcast(_)) {
        return vec![];
    }
    let inner = v.nodes(n.args[0]).filter(|i| matches!(i.op, Op::Broadcast(_)));
    inner.map(|i| Term::op(n.op.clone(), &[i.args[0]])).collect()
}

fn slice_of_slice(v: View, n: &ENode) -> Vec<Term> {
    let Op::Slice { axis, start, len } = n.op else { return vec![] };
    let inner = v.nodes(n.args[0]).filter_map(|i| match i.op {
        Op::Slice { axis: a, start: s, .. } if a == axis => Some((s, i.args[0])),
        _ => None,
    });
    inner.map(|(s, x)| Term::op(Op::Slice { axis, start: s + start, len }, &[x])).collect()
}

/// Extent of an axis.
fn extent(v: View, id: egg::Id, axis: u32) -> Option<u64> {
    v.shape(id).get(axis as usize).and_then(|d| d.fixed())
}

fn slice_of_concat(v: View, n: &ENode) -> Vec<Term> {
    let Op::Slice { axis, start, len } = n.op else { return vec![] };
    let mut found = Vec::new();
    for concat in v.nodes(n.args[0]).filter(|i| i.op == Op::Concat { axis }) {
        let mut from = 0;
        for &part in &concat.args {
            let Some(size) = extent(v, part, axis) else { break };
            if from <= start && start + len <= from + size {
                found.push(Term::op(Op::Slice { axis, start: start - from, len }, &[part]));
                break;
            }
            from += size;
        }
    }
    found
}

fn slice_of_concat_sample(d: &mut Draw) -> Option<Sample> {
    let a = d.tensor(DType::F32, &[Dim::Rows, Dim::Fixed(4)]);
    let b = d.tensor(DType::F32, &[Dim::Rows, Dim::Fixed(5)]);
    let joined = d.op(Op::Concat { axis: 1 }, &[a, b])?;
    let (start, len) = d.pick(&[(0, 4), (4, 5), (1, 2), (5, 3)]);
    d.apply(Op::Slice { axis: 1, start, len }, &[joined])
}

fn concat_of_slices(v: View, n: &ENode) -> Vec<Term> {
    let Op::Concat { axis } = n.op else { return vec![] };
    let Some(&first) = n.args.first() else { return vec![] };
    let sources = v.nodes(first).filter_map(|i| match i.op {
        Op::Slice { axis: a, start: 0, .. } if a == axis => Some(i.args[0]),
        _ => None,
    });
    let covers = |x: egg::Id| {
        let mut from = 0;
        for &part in &n.args {
            let Some(len) = extent(v, part, axis) else { return false };
            let here = |i: &ENode| i.op == Op::Slice { axis, start: from, len } && v.same(i.args[0], x);
            if !v.nodes(part).any(here) {
                return false;
            }
            from += len;
        }
        extent(v, x, axis) == Some(from)
    };
    sources.filter(|x| covers(*x)).map(Term::Class).collect()
}

fn is_elementwise(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Cast(_))
}

fn elementwise_before_view(v: View, n: &ENode) -> Vec<Term> {
    if !is_elementwise(&n.op) {
        return vec![];
    }
    let views = v.nodes(n.args[0]).filter(|i| matches!(i.op, Op::Reshape(_) | Op::Broadcast(_)));
    views.map(|i| Term::Node(i.op.clone(), vec![Term::op(n.op.clone(), &[i.args[0]])])).collect()
}

fn slice_before_elementwise(v: View, n: &ENode) -> Vec<Term> {
    if !matches!(n.op, Op::Slice { .. }) {
        return vec![];
    }
    let inner = v.nodes(n.args[0]).filter(|i| is_elementwise(&i.op));
    inner.map(|i| Term::Node(i.op.clone(), vec![Term::op(n.op.clone(), &[i.args[0]])])).collect()
}

fn implicit_broadcast(v: View, n: &ENode) -> Vec<Term> {
    if !matches!(n.op, Op::Binary(_)) {
        return vec![];
    }
    let ty = v.node_ty(n);
    let mut found = Vec::new();
    for side in 0..2 {
        for grown in v.nodes(n.args[side]).filter(|i| matches!(i.op, Op::Broadcast(_))) {
            let mut args = [n.args[0], n.args[1]];
            args[side] = grown.args[0];
            if v.infer(&n.op, &args) == ty {
                found.push(Term::op(n.op.clone(), &args));
            }
        }
    }
    found
}
