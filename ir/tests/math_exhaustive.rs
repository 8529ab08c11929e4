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
