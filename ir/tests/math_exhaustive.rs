//! P1 over all 2^32 inputs: the worst error of every function, in ulps of its result. `--features long-tests`.
#![cfg(feature = "long-tests")]

mod accuracy;

#[test]
fn every_input() {
    for f in accuracy::FUNCTIONS {
        let worst = accuracy::sweep(f, 1);
        println!("{}: {worst}", f.name);
        assert!(worst.ulps <= f.limit, "{}: {worst}", f.name);
    }
}

/// One number at a time and many at once are one definition.
#[test]
fn single_and_many_agree() {
    for f in accuracy::FUNCTIONS {
        for bits in (0..=u32::MAX).step_by(65_537) {
            let x = f32::from_bits(bits);
            let mut many = [x];
            (f.all)(&mut many);
            let one = (f.got)(x);
            assert!(one.to_bits() == many[0].to_bits() || (one.is_nan() && many[0].is_nan()), "{} at {x:e}", f.name);
        }
    }
}
