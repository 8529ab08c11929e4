//! Rules about casts.

use unglue_ir::op::Op;
use unglue_ir::types::DType;

use super::soundness::{Draw, Sample};
use super::{Rule, Term};
use crate::analysis::View;
use crate::kernel::Exactness;
use crate::language::ENode;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "cast-same",
        class: Exactness::Exact,
        when: Some("the value has the dtype"),
        reason: "a value that has the dtype already is not rounded",
        find: cast_same,
        sample: |d| {
            let x = d.activation(DType::Bf16);
            d.apply(Op::Cast(DType::Bf16), &[x])
        },
    },
    Rule {
        name: "cast-after-widening",
        class: Exactness::Exact,
        when: Some("the inner cast widens bf16 or f16 to f32"),
        reason: "bf16 and f16 widen to f32 without rounding, so only the second cast rounds, and it sees the same number",
        find: cast_after_widening,
        sample: cast_after_widening_sample,
    },
];

fn cast_same(v: View, n: &ENode) -> Vec<Term> {
    match n.op {
        Op::Cast(to) if v.dtype(n.args[0]) == Some(to) => vec![Term::Class(n.args[0])],
        _ => vec![],
    }
}

fn cast_after_widening(v: View, n: &ENode) -> Vec<Term> {
    let Op::Cast(to) = n.op else { return vec![] };
    let inner = v.nodes(n.args[0]).filter(|i| i.op == Op::Cast(DType::F32));
    let narrow = inner.map(|i| i.args[0]).filter(|x| matches!(v.dtype(*x), Some(DType::Bf16 | DType::F16)));
    let rewrite = |x| if v.dtype(x) == Some(to) { Term::Class(x) } else { Term::op(Op::Cast(to), &[x]) };
    narrow.map(rewrite).collect()
}

fn cast_after_widening_sample(d: &mut Draw) -> Option<Sample> {
    let from = d.pick(&[DType::Bf16, DType::F16]);
    let to = d.pick(&[DType::Bf16, DType::F16]);
    let x = d.activation(from);
    let wide = d.op(Op::Cast(DType::F32), &[x])?;
    d.apply(Op::Cast(to), &[wide])
}
