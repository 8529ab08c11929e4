//! P2: sums in every order against the definition, maximum and minimum, roundings, top-k.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers outside of #[test] functions are tests too.

mod interp_support;

use interp_support::{naive, naive_dot, same};
use proptest::prelude::*;
use unglue_ir::interp::pointwise::{dot, sum};
use unglue_ir::interp::select::top_k;
use unglue_ir::interp::value::{round_bf16, round_to};
use unglue_ir::interp::{maximum, minimum};
use unglue_ir::order::Order;
use unglue_ir::types::DType;

fn orders() -> impl Strategy<Value = Order> {
    prop_oneof![
        Just(Order::Sequential),
        Just(Order::Lanes),
        Just(Order::Splits),
        (0u32..9).prop_map(|n| Order::Strided(1 << n)),
    ]
}

/// Numbers of very different sizes, or any bits at all (denormals, infinities, NaN).
fn numbers(len: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Vec<f32>> {
    let wide = (-1.0f32..1.0, -40i32..40).prop_map(|(m, e)| m * 2f32.powi(e));
    let element = prop_oneof![9 => wide, 1 => any::<u32>().prop_map(f32::from_bits)];
    proptest::collection::vec(element, len)
}

proptest! {
    #[test]
    fn sums_follow_the_definition(order in orders(), x in numbers(0..1500)) {
        let want = naive(order, x.len(), &|acc, i| acc + x[i]);
        prop_assert!(same(sum(order, &x), want), "{} of {}", order.name(), x.len());
    }

    #[test]
    fn dots_follow_the_definition(order in orders(), xw in numbers(0..1500)) {
        let (x, w) = xw.split_at(xw.len() / 2);
        let w = &w[..x.len()];
        prop_assert!(same(dot(order, x, w), naive_dot(order, x, w)), "{} of {}", order.name(), x.len());
    }

    #[test]
    fn underflow_keeps_the_sign_rule(order in orders(), n in 0usize..700) {
        // Every product is far below the smallest denormal and negative: chains hold -0 until an absent element.
        let (x, w) = (vec![-1e-30f32; n], vec![1e-30f32; n]);
        prop_assert!(same(dot(order, &x, &w), naive_dot(order, &x, &w)), "{} of {n}", order.name());
    }

    #[test]
    fn top_k_takes_the_best_again_and_again(mut x in numbers(1..80), ties in any::<bool>(), k in 1usize..80) {
        if ties {
            x.iter_mut().for_each(|v| *v = v.clamp(-1.0, 1.0).round());
        }
        let k = k.min(x.len());
        let mut left: Vec<usize> = (0..x.len()).collect();
        let mut want = Vec::new();
        for _ in 0..k {
            let best = (1..left.len()).fold(0, |b, i| {
                let (a, c) = (x[left[b]], x[left[i]]);
                if c > a || (a.is_nan() && !c.is_nan()) { i } else { b }
            });
            want.push(left.remove(best) as i32);
        }
        prop_assert_eq!(top_k(&x, k), want);
    }

    #[test]
    fn bf16_is_the_nearest_even_neighbour(bits in any::<u32>()) {
        let x = f32::from_bits(bits);
        let got = round_bf16(x);
        prop_assert_eq!(got.to_bits() & 0xffff, 0);
        if x.is_nan() {
            prop_assert!(got.is_nan());
        } else {
            prop_assert!(same(got, half::bf16::from_f32(x).to_f32()));
            let (below, above) = (f32::from_bits(bits & 0xffff_0000), f32::from_bits((bits | 0xffff).wrapping_add(1)));
            if above.is_finite() {
                let d = |y: f32| (f64::from(y) - f64::from(x)).abs();
                prop_assert!(d(got) <= d(below).min(d(above)));
            }
        }
    }
}

#[test]
fn top_k_ranks_nan_below_every_number() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    assert_eq!(top_k(&[nan, -inf, nan, 1.0, inf], 5), [4, 3, 1, 0, 2]);
    assert_eq!(top_k(&[0.0, -0.0, 0.0], 2), [0, 1], "-0 equals +0");
    assert_eq!(top_k(&[nan; 4], 3), [0, 1, 2], "always k distinct indices");
}

#[test]
fn maximum_and_minimum_are_ieee_2019() {
    let nan = f32::NAN;
    for (a, b) in [(0.0f32, -0.0f32), (-0.0, 0.0)] {
        assert_eq!(maximum(a, b).to_bits(), 0);
        assert_eq!(minimum(a, b).to_bits(), (-0.0f32).to_bits());
    }
    assert_eq!(maximum(-0.0, -0.0).to_bits(), (-0.0f32).to_bits());
    assert_eq!(minimum(0.0, 0.0).to_bits(), 0);
    for x in [1.0, f32::INFINITY, f32::NEG_INFINITY, nan] {
        assert!(maximum(x, nan).is_nan() && maximum(nan, x).is_nan());
        assert!(minimum(x, nan).is_nan() && minimum(nan, x).is_nan());
    }
    assert_eq!((maximum(-2.0, 1.0), minimum(-2.0, 1.0)), (1.0, -2.0));
    assert_eq!((maximum(1.5, 1.5), minimum(-1.5, -1.5)), (1.5, -1.5));
}

#[test]
fn casts_keep_denormals_and_overflow_to_infinity() {
    let tiny = f32::from_bits(0x0001_8000);
    assert_eq!(round_to(DType::Bf16, tiny).to_bits(), 0x0002_0000, "ties to even");
    assert_eq!(round_to(DType::Bf16, f32::MAX), f32::INFINITY);
    assert_eq!(round_to(DType::F16, 65_520.0), f32::INFINITY);
    assert_eq!(round_to(DType::F16, 2f32.powi(-24)), 2f32.powi(-24));
    assert_eq!(round_to(DType::F16, 2f32.powi(-25)), 0.0, "ties to even");
    assert!(round_to(DType::Bf16, f32::from_bits(0x7f80_0001)).is_nan());
}
