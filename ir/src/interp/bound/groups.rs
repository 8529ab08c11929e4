//! Selections among the best groups of elements.

use super::{Bounded, mix};
use crate::op::GroupLimit;

/// Smallest and largest score that a group may have. NaN counts as -inf: it ranks below every number.
fn group_score(group: &[Bounded]) -> (f64, f64) {
    let of = |end: &dyn Fn(&Bounded) -> f64| {
        let mut ends: Vec<f64> =
            group.iter().map(end).map(|x| if x.is_nan() { f64::NEG_INFINITY } else { x }).collect();
        ends.sort_by(|a, b| b.total_cmp(a));
        let sum: f64 = ends.iter().take(2).sum();
        // The sum is rounded once; inf - inf ranks as NaN.
        let rounded = sum.abs() * f64::from(f32::EPSILON);
        if sum.is_nan() { (f64::NEG_INFINITY, 0.0) } else { (sum, rounded) }
    };
    let ((lo, down), (hi, up)) = (of(&|b| b.lo()), of(&|b| b.hi()));
    (if lo.is_finite() { lo - down } else { lo }, if hi.is_finite() { hi + up } else { hi })
}

/// As [`mix::wrong_choice`], for the best groups only: each chosen element's group must be one that could be kept, and the
/// rejected elements that count are those of groups which are kept for certain.
pub(super) fn wrong_choice(scores: &[Bounded], chosen: &[i32], limit: GroupLimit) -> Option<i32> {
    let kept = limit.kept as usize;
    let size = (scores.len() / (limit.groups as usize).max(1)).max(1);
    let ends: Vec<(f64, f64)> = scores.chunks(size).map(group_score).collect();
    let mut open = vec![false; ends.len()];
    for &c in chosen {
        let group = usize::try_from(c).ok().map(|c| c / size).filter(|g| *g < ends.len());
        let Some(g) = group else { return Some(c) };
        let better = ends.iter().filter(|(lo, _)| *lo > ends[g].1).count();
        open[g] = true;
        if better >= kept || open.iter().filter(|o| **o).count() > kept {
            return Some(c);
        }
    }
    for (g, (lo, _)) in ends.iter().enumerate() {
        let rivals = ends.iter().enumerate().filter(|(j, (_, hi))| *j != g && hi >= lo).count();
        open[g] |= rivals < kept;
    }
    let among: Vec<usize> = (0..scores.len()).filter(|i| open[i / size]).collect();
    let place = |c: i32| among.iter().position(|i| *i == c as usize).map_or(-1, |at| at as i32);
    let (open_scores, places): (Vec<Bounded>, Vec<i32>) =
        (among.iter().map(|i| scores[*i]).collect(), chosen.iter().map(|c| place(*c)).collect());
    let wrong = mix::wrong_choice(&open_scores, &places)?;
    usize::try_from(wrong).ok().and_then(|at| among.get(at)).map(|i| *i as i32)
}
