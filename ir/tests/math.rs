//! P1: accuracy and special values of exp, log, log1p and what is made of them.

mod accuracy;

use unglue_ir::math::{self, Scalar};
use unglue_ir::op::Unary;

#[test]
fn dense_sample_is_within_the_promise() {
    for f in accuracy::FUNCTIONS {
        let worst = accuracy::sweep(f, 4099);
        println!("{}: {worst}", f.name);
        assert!(worst.ulps <= f.limit, "{}: {worst}", f.name);
    }
}

/// The stretches where cancellation or the end of the range is near, without gaps.
#[test]
fn critical_stretches_are_within_the_promise() {
    let around = |x: f32| (x.to_bits() - 20_000..x.to_bits() + 20_000).map(f32::from_bits);
    for f in accuracy::FUNCTIONS {
        for x in [
            1.0f32,
            0.5,
            2.0,
            std::f32::consts::FRAC_1_SQRT_2,
            std::f32::consts::SQRT_2,
            0.292_893_2,
            0.414_213_5,
            88.722_84,
            87.336_54,
            103.972_08,
        ] {
            for x in around(x).flat_map(|x| [x, -x]) {
                let e = accuracy::error(f, x, (f.got)(x));
                assert!(e <= f.limit, "{} of {x:e}: {e} ulp", f.name);
            }
        }
    }
}

#[test]
fn special_values() {
    let m = &mut Scalar;
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    assert_eq!(math::exp(m, inf), inf);
    assert_eq!(math::exp(m, -inf).to_bits(), 0);
    assert!(math::exp(m, nan).is_nan() && math::log(m, nan).is_nan() && math::log1p(m, nan).is_nan());
    assert_eq!(math::exp(m, 0.0), 1.0);
    assert_eq!(math::exp(m, -103.0), f32::from_bits(2 - 1), "denormals are kept");
    assert_eq!(math::log(m, 1.0).to_bits(), 0);
    assert_eq!(math::log(m, 0.0), -inf);
    assert_eq!(math::log(m, -0.0), -inf);
    assert!(math::log(m, -1.0).is_nan() && math::log(m, -inf).is_nan());
    assert_eq!(math::log(m, inf), inf);
    assert_eq!(math::log1p(m, -0.0).to_bits(), (-0.0f32).to_bits());
    assert_eq!(math::log1p(m, -1.0), -inf);
    assert!(math::log1p(m, -1.5).is_nan() && math::log1p(m, -inf).is_nan());
    assert_eq!(math::log1p(m, inf), inf);
    assert_eq!(math::sigmoid(m, inf), 1.0);
    assert_eq!(math::sigmoid(m, -inf), 0.0);
    assert_eq!(math::sigmoid(m, 0.0), 0.5);
    assert_eq!(math::rsqrt(m, 4.0), 0.5);
    assert_eq!(math::rsqrt(m, 0.0), inf);
    assert_eq!(math::rsqrt(m, -0.0), -inf);
}

/// The vector path of the interpreter and the scalar definition are one function.
#[test]
fn loops_give_the_bits_of_the_definition() {
    let m = &mut Scalar;
    let inputs: Vec<f32> = (0..=u32::MAX).step_by(65_521).map(f32::from_bits).collect();
    for u in [Unary::Exp, Unary::Log, Unary::Log1p, Unary::Sigmoid, Unary::Rsqrt] {
        let mut got = inputs.clone();
        unglue_ir::interp::unary(u, &mut got);
        for (x, y) in inputs.iter().zip(got) {
            let want = match u {
                Unary::Exp => math::exp(m, *x),
                Unary::Log => math::log(m, *x),
                Unary::Log1p => math::log1p(m, *x),
                Unary::Sigmoid => math::sigmoid(m, *x),
                _ => math::rsqrt(m, *x),
            };
            assert!(y.to_bits() == want.to_bits() || (y.is_nan() && want.is_nan()), "{} of {x:e}", u.name());
        }
    }
}
