//! Measured times beside those of the cost model.

/// Two times differ if the longer is more than this part above the shorter: less is the spread of a measurement.
const DIFFERS: f64 = 0.05;

/// Pairs of kernels whose measured times differ: those that the cost model has in the same order, and all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairs {
    pub right: usize,
    pub all: usize,
}

/// Counts pairs of (measured, modelled) times.
pub fn pairs(times: &[(f64, f64)]) -> Pairs {
    let mut found = Pairs { right: 0, all: 0 };
    for (i, a) in times.iter().enumerate() {
        for b in &times[i + 1..] {
            let (less, more) = if a.0 <= b.0 { (a, b) } else { (b, a) };
            if more.0 > less.0 * (1.0 + DIFFERS) {
                found.all += 1;
                found.right += usize::from(less.1 < more.1);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pairs_that_differ_count() {
        // 10.0 and 10.4 are the same; 30 is modelled as the shortest of all.
        let times = [(10.0, 9.0), (10.4, 3.0), (20.0, 12.0), (30.0, 2.0)];
        assert_eq!(pairs(&times), Pairs { right: 2, all: 5 });
    }

    #[test]
    fn equal_models_order_nothing() {
        assert_eq!(pairs(&[(1.0, 5.0), (2.0, 5.0)]), Pairs { right: 0, all: 1 });
    }
}
