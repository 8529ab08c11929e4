//! Which rules pay: those on the way from a declared value to its extracted form.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;

use unglue_ir::builder::Builder;
use unglue_ir::op::{Binary, Domain, Op};
use unglue_ir::types::{DType, Dim, TensorType};
use unglue_passes::{Limits, Numerics, optimise};

fn counts(of: &[(&str, u64)]) -> BTreeMap<String, u64> {
    of.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
}

/// Values of a body: x, 1, 1 * x, 4, (1 * x) / 4.
fn scaled() -> Builder {
    let mut b = Builder::new("g");
    let x = b.input("x", TensorType::plain(DType::F32, [Dim::Rows, Dim::Fixed(8)]), Domain::Normal);
    let one = b.add(Op::ConstF32(1f32.to_bits()), &[]).unwrap();
    let product = b.add(Op::Binary(Binary::Mul), &[one, x]).unwrap();
    let four = b.add(Op::ConstF32(4f32.to_bits()), &[]).unwrap();
    let y = b.add(Op::Binary(Binary::Div), &[product, four]).unwrap();
    b.output("y", y);
    b
}

#[test]
fn rules_on_the_way_to_the_extracted_form_paid() {
    // x * 0.25: the constant moves to the right, the factor goes, the division becomes a product.
    let (better, s) = optimise(&scaled().finish(), Numerics::Exact, &Limits::default()).unwrap();
    assert!(!s.kept_declared && better.nodes.len() == 3, "{better}");
    assert_eq!(s.paid, counts(&[("constant-right", 1), ("mul-one", 1), ("div-power-of-two", 1)]));
    assert_eq!(s.rewritten[&2], ["constant-right", "mul-one"]);
    assert_eq!(s.rewritten[&4], ["div-power-of-two"]);
    assert_eq!((s.became[0], s.became[2]), (Some(0), Some(0)));
    assert_eq!((s.became[1], s.became[3]), (None, None));
    assert_eq!(s.became[4], better.outputs.first().map(|(_, v)| v.0));
}

#[test]
fn no_rule_pays_more_often_than_it_fired() {
    let (_, s) = optimise(&scaled().finish(), Numerics::Exact, &Limits::default()).unwrap();
    for (rule, n) in &s.paid {
        assert!(n <= &s.fired[rule], "{rule}");
    }
}

#[test]
fn nothing_pays_where_nothing_changes() {
    let mut b = Builder::new("g");
    let x = b.input("x", TensorType::plain(DType::F32, [Dim::Rows, Dim::Fixed(8)]), Domain::Normal);
    let y = b.add(Op::Binary(Binary::Mul), &[x, x]).unwrap();
    b.output("y", y);
    let (_, s) = optimise(&b.finish(), Numerics::Exact, &Limits::default()).unwrap();
    assert!(s.paid.is_empty() && s.rewritten.is_empty());
    assert_eq!(s.became, [Some(0), Some(1)]);
}
