//! Names that are nearly a given one.

use crate::error::CliError;

/// Names shown.
const SHOWN: usize = 5;

/// The error for a name that is none of `names`: it lists the nearest.
pub fn unknown(rule: &'static str, found: &str, kind: &str, names: Vec<String>) -> CliError {
    let near = nearest(found, names);
    CliError::Usage { rule, found: found.into(), needed: format!("{kind}; nearest: {}", near.join(", ")) }
}

/// By the edits that make the given name a part of the other, then by those that make it the other; of equals in
/// alphabetic order.
fn nearest(to: &str, mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names.dedup();
    names.sort_by_cached_key(|n| (distance(to, n, true), distance(to, n, false)));
    names.truncate(SHOWN);
    names
}

/// Levenshtein distance of `a` to `b`, or to the nearest part of `b`.
fn distance(a: &str, b: &str, part: bool) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).map(|j| if part { 0 } else { j }).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    let whole = row[b.len()];
    if part { row.into_iter().min().unwrap_or(whole) } else { whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_edits() {
        assert_eq!(distance("matmul", "matmul", false), 0);
        assert_eq!(distance("matmull", "matmul", false), 1);
        assert_eq!(distance("", "abc", false), 3);
        assert_eq!(distance("kitten", "sitting", false), 3);
        assert_eq!(distance("o_prj", "kda_o_proj", true), 1);
    }

    #[test]
    fn the_nearest_come_first() {
        let names = ["sum", "kda_o_proj", "mul", "matmul"].map(str::to_owned).to_vec();
        assert_eq!(nearest("o_prj", names.clone())[0], "kda_o_proj");
        assert_eq!(nearest("matmull", names)[0], "matmul");
    }
}
