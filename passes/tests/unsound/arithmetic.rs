//! Wrong rules about f32 arithmetic and casts: identities of real numbers that f32 does not have.

use unglue_ir::op::{Binary, Op, Unary};
use unglue_ir::types::DType;
use unglue_passes::analysis::View;
use unglue_passes::language::ENode;
use unglue_passes::rules::Term;

use super::{Finder, Wrong, bin, exact, nested, two, unary, with_constant, zeros};

const BITS: Finder = Finder::Bits;

/// Nodes of an operand's class that are this op.
fn inner<'a>(v: View<'a>, n: &ENode, at: usize, op: Op) -> impl Iterator<Item = &'a ENode> {
    let class = n.args.get(at).copied();
    class.into_iter().flat_map(move |c| v.nodes(c)).filter(move |i| i.op == op)
}

/// Op and constant on its right.
fn right_constant(v: View, n: &ENode, op: Binary) -> Option<f32> {
    (n.op == bin(op)).then(|| v.constant(n.args[1])).flatten()
}

fn reciprocal(v: View, n: &ENode) -> Vec<Term> {
    let Some(c) = right_constant(v, n, Binary::Div) else { return vec![] };
    let r = Term::Node(Op::ConstF32((1.0 / c).to_bits()), vec![]);
    vec![Term::Node(bin(Binary::Mul), vec![Term::Class(n.args[0]), r])]
}

pub const WRONG: &[Wrong] = &[
    exact(
        "add-zero",
        BITS,
        |v, n| if right_constant(v, n, Binary::Add) == Some(0.0) { vec![Term::Class(n.args[0])] } else { vec![] },
        |d| with_constant(d, Binary::Add, 0.0),
    ),
    exact(
        "mul-zero",
        BITS,
        |v, n| if right_constant(v, n, Binary::Mul) == Some(0.0) { vec![zeros(v, n.args[0])] } else { vec![] },
        |d| with_constant(d, Binary::Mul, 0.0),
    ),
    exact(
        "sub-self-is-zero",
        BITS,
        |v, n| match n.op {
            Op::Binary(Binary::Sub) if v.same(n.args[0], n.args[1]) => vec![zeros(v, n.args[0])],
            _ => vec![],
        },
        |d| {
            let x = d.activation(DType::F32);
            d.apply(bin(Binary::Sub), &[x, x])
        },
    ),
    exact(
        "max-drops-nan",
        BITS,
        |v, n| match right_constant(v, n, Binary::Max) {
            Some(c) if c.is_nan() => vec![Term::Class(n.args[0])],
            _ => vec![],
        },
        |d| with_constant(d, Binary::Max, f32::NAN),
    ),
    exact(
        "max-of-constants-drops-nan",
        BITS,
        // The tighter bound by the host's maximum, which prefers numbers.
        |v, n| {
            let Some(b) = right_constant(v, n, Binary::Max) else { return vec![] };
            let bounds = inner(v, n, 0, bin(Binary::Max)).filter_map(|i| Some((i.args[0], v.constant(i.args[1])?)));
            let tighter = |a: f32| Term::Node(Op::ConstF32(a.max(b).to_bits()), vec![]);
            bounds.map(|(x, a)| Term::Node(bin(Binary::Max), vec![Term::Class(x), tighter(a)])).collect()
        },
        |d| {
            let x = d.activation(DType::F32);
            let (a, b) = (d.constant(f32::NAN), d.constant(0.5));
            let bounded = d.op(bin(Binary::Max), &[x, a])?;
            d.apply(bin(Binary::Max), &[bounded, b])
        },
    ),
    exact(
        "min-of-negatives-is-minimum",
        BITS,
        |v, n| {
            let mut found = vec![];
            for a in inner(v, n, 0, unary(Unary::Neg)).filter(|_| n.op == bin(Binary::Min)) {
                for b in inner(v, n, 1, unary(Unary::Neg)) {
                    let least = Term::op(bin(Binary::Min), &[a.args[0], b.args[0]]);
                    found.push(Term::Node(unary(Unary::Neg), vec![least]));
                }
            }
            found
        },
        |d| nested(d, bin(Binary::Min), &[unary(Unary::Neg), unary(Unary::Neg)]),
    ),
    exact(
        "clamp-bounds-swapped",
        BITS,
        |v, n| {
            let maxima = inner(v, n, 0, bin(Binary::Max)).filter(|_| n.op == bin(Binary::Min));
            let swapped = |i: &ENode| {
                let first = Term::op(bin(Binary::Max), &[i.args[0], n.args[1]]);
                Term::Node(bin(Binary::Min), vec![first, Term::Class(i.args[1])])
            };
            maxima.map(swapped).collect()
        },
        |d| {
            let x = d.activation(DType::F32);
            let (lo, hi) = (d.constant(-1.0), d.constant(1.0));
            let y = d.op(bin(Binary::Max), &[x, lo])?;
            d.apply(bin(Binary::Min), &[y, hi])
        },
    ),
    exact(
        "add-associates",
        BITS,
        |v, n| {
            let sums = inner(v, n, 0, bin(Binary::Add)).filter(|_| n.op == bin(Binary::Add));
            let moved = |i: &ENode| {
                let right = Term::op(bin(Binary::Add), &[i.args[1], n.args[1]]);
                Term::Node(bin(Binary::Add), vec![Term::Class(i.args[0]), right])
            };
            sums.map(moved).collect()
        },
        |d| nested(d, bin(Binary::Add), &[bin(Binary::Add)]),
    ),
    exact(
        "mul-distributes",
        BITS,
        |v, n| {
            let sums = inner(v, n, 0, bin(Binary::Add)).filter(|_| n.op == bin(Binary::Mul));
            let part = |i: &ENode, k: usize| Term::op(bin(Binary::Mul), &[i.args[k], n.args[1]]);
            sums.map(|i| Term::Node(bin(Binary::Add), vec![part(i, 0), part(i, 1)])).collect()
        },
        |d| nested(d, bin(Binary::Mul), &[bin(Binary::Add)]),
    ),
    exact(
        "product-divided-by-a-factor",
        BITS,
        |v, n| {
            let products =
                inner(v, n, 0, bin(Binary::Mul)).filter(|i| n.op == bin(Binary::Div) && i.args[1] == n.args[1]);
            products.map(|i| Term::Class(i.args[0])).collect()
        },
        |d| {
            let (x, y) = (d.activation(DType::F32), d.activation(DType::F32));
            let product = d.op(bin(Binary::Mul), &[x, y])?;
            d.apply(bin(Binary::Div), &[product, y])
        },
    ),
    exact("div-by-three-as-mul", BITS, reciprocal, |d| with_constant(d, Binary::Div, 3.0)),
    // 1 / 2^-149 overflows: the reciprocal of a power of two is not always exact.
    exact("div-by-denormal-as-mul", BITS, reciprocal, |d| with_constant(d, Binary::Div, 1e-45)),
    exact(
        "sub-commutes",
        BITS,
        |_, n| match n.op {
            Op::Binary(Binary::Sub) => vec![Term::op(bin(Binary::Sub), &[n.args[1], n.args[0]])],
            _ => vec![],
        },
        |d| two(d, Binary::Sub),
    ),
    // The difference of equal numbers is +0; negated it is -0.
    exact(
        "negated-difference-turned-round",
        BITS,
        |v, n| {
            let differences = inner(v, n, 0, bin(Binary::Sub)).filter(|_| n.op == unary(Unary::Neg));
            differences.map(|i| Term::op(bin(Binary::Sub), &[i.args[1], i.args[0]])).collect()
        },
        |d| {
            let (x, y) = (d.activation(DType::F32), d.activation(DType::F32));
            let small = d.op(bin(Binary::Min), &[x, y])?;
            let difference = d.op(bin(Binary::Sub), &[x, small])?;
            d.apply(unary(Unary::Neg), &[difference])
        },
    ),
    exact(
        "abs-of-difference-is-sum",
        BITS,
        |v, n| {
            let differences = inner(v, n, 0, bin(Binary::Sub)).filter(|_| n.op == unary(Unary::Abs));
            let size = |x: egg::Id| Term::op(unary(Unary::Abs), &[x]);
            differences.map(|i| Term::Node(bin(Binary::Sub), vec![size(i.args[0]), size(i.args[1])])).collect()
        },
        |d| nested(d, unary(Unary::Abs), &[bin(Binary::Sub)]),
    ),
    exact(
        "sqrt-of-square",
        BITS,
        |v, n| {
            let squares = inner(v, n, 0, bin(Binary::Mul)).filter(|_| n.op == unary(Unary::Sqrt));
            squares.filter(|i| v.same(i.args[0], i.args[1])).map(|i| Term::Class(i.args[0])).collect()
        },
        |d| {
            let x = d.activation(DType::F32);
            let y = d.op(bin(Binary::Mul), &[x, x])?;
            d.apply(unary(Unary::Sqrt), &[y])
        },
    ),
    exact(
        "rsqrt-of-square",
        BITS,
        |v, n| {
            let squares = inner(v, n, 0, bin(Binary::Mul)).filter(|_| n.op == unary(Unary::Rsqrt));
            let one = || Term::Node(Op::ConstF32(1f32.to_bits()), vec![]);
            let same = squares.filter(|i| v.same(i.args[0], i.args[1]));
            same.map(|i| Term::Node(bin(Binary::Div), vec![one(), Term::Class(i.args[0])])).collect()
        },
        |d| {
            let x = d.activation(DType::F32);
            let y = d.op(bin(Binary::Mul), &[x, x])?;
            d.apply(unary(Unary::Rsqrt), &[y])
        },
    ),
    exact(
        "product-of-exponentials",
        BITS,
        |v, n| {
            let mut found = vec![];
            for a in inner(v, n, 0, unary(Unary::Exp)).filter(|_| n.op == bin(Binary::Mul)) {
                for b in inner(v, n, 1, unary(Unary::Exp)) {
                    let sum = Term::op(bin(Binary::Add), &[a.args[0], b.args[0]]);
                    found.push(Term::Node(unary(Unary::Exp), vec![sum]));
                }
            }
            found
        },
        |d| nested(d, bin(Binary::Mul), &[unary(Unary::Exp), unary(Unary::Exp)]),
    ),
    exact(
        "log-of-exponential",
        BITS,
        |v, n| {
            let powers = inner(v, n, 0, unary(Unary::Exp)).filter(|_| n.op == unary(Unary::Log));
            powers.map(|i| Term::Class(i.args[0])).collect()
        },
        |d| nested(d, unary(Unary::Log), &[unary(Unary::Exp)]),
    ),
    exact(
        "sigmoid-of-negative",
        BITS,
        |v, n| {
            let negatives = inner(v, n, 0, unary(Unary::Neg)).filter(|_| n.op == unary(Unary::Sigmoid));
            let one = || Term::Node(Op::ConstF32(1f32.to_bits()), vec![]);
            let other = |x: egg::Id| Term::op(unary(Unary::Sigmoid), &[x]);
            negatives.map(|i| Term::Node(bin(Binary::Sub), vec![one(), other(i.args[0])])).collect()
        },
        |d| nested(d, unary(Unary::Sigmoid), &[unary(Unary::Neg)]),
    ),
    exact(
        "log1p-called-exact",
        BITS,
        |v, n| {
            let sums = inner(v, n, 0, bin(Binary::Add)).filter(|_| n.op == unary(Unary::Log));
            let ones = sums.filter(|i| v.constant(i.args[1]) == Some(1.0));
            ones.map(|i| Term::op(unary(Unary::Log1p), &[i.args[0]])).collect()
        },
        |d| {
            let (x, one) = (d.positive(), d.constant(1.0));
            let sum = d.op(bin(Binary::Add), &[x, one])?;
            d.apply(unary(Unary::Log), &[sum])
        },
    ),
    exact(
        "rounding-marked-exact",
        BITS,
        |v, n| {
            let casts = inner(v, n, 0, Op::Cast(DType::Bf16)).filter(|_| n.op == Op::Cast(DType::F32));
            casts.filter(|i| v.dtype(i.args[0]) == Some(DType::F32)).map(|i| Term::Class(i.args[0])).collect()
        },
        |d| {
            let x = d.activation(DType::F32);
            let y = d.op(Op::Cast(DType::Bf16), &[x])?;
            d.apply(Op::Cast(DType::F32), &[y])
        },
    ),
    exact(
        "cast-before-addition",
        BITS,
        // bf16(x + y) from the sum of rounded summands.
        |v, n| {
            let sums = inner(v, n, 0, bin(Binary::Add)).filter(|_| n.op == Op::Cast(DType::Bf16));
            let rounded = |x: egg::Id| Term::Node(Op::Cast(DType::F32), vec![Term::op(Op::Cast(DType::Bf16), &[x])]);
            let sum = |i: &ENode| Term::Node(bin(Binary::Add), vec![rounded(i.args[0]), rounded(i.args[1])]);
            sums.map(|i| Term::Node(Op::Cast(DType::Bf16), vec![sum(i)])).collect()
        },
        |d| nested(d, Op::Cast(DType::Bf16), &[bin(Binary::Add)]),
    ),
    exact(
        "cast-through-f16-dropped",
        BITS,
        // Two roundings are not one: the first may land on a tie of the second.
        |v, n| {
            let wide = inner(v, n, 0, Op::Cast(DType::F32)).filter(|_| n.op == Op::Cast(DType::Bf16));
            let narrow = wide.flat_map(|i| inner(v, i, 0, Op::Cast(DType::F16)));
            narrow.map(|i| Term::op(Op::Cast(DType::Bf16), &[i.args[0]])).collect()
        },
        |d| {
            let x = d.activation(DType::F32);
            let narrow = d.op(Op::Cast(DType::F16), &[x])?;
            let wide = d.op(Op::Cast(DType::F32), &[narrow])?;
            d.apply(Op::Cast(DType::Bf16), &[wide])
        },
    ),
    exact(
        "cast-dropped",
        Finder::Type,
        |_, n| match n.op {
            Op::Cast(DType::Bf16) => vec![Term::Class(n.args[0])],
            _ => vec![],
        },
        |d| {
            let x = d.activation(DType::F32);
            d.apply(Op::Cast(DType::Bf16), &[x])
        },
    ),
];
