//! How far B may be above A.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::compare::{Difference, Metric, Number, Scope};
use crate::cli;
use crate::error::CliError;

/// A number, or a percentage of A.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    value: f64,
    percent: bool,
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Limit, String> {
        let (number, percent) = match text.strip_suffix('%') {
            Some(number) => (number, true),
            None => (text, false),
        };
        let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        match number.parse::<f64>() {
            Ok(value) if plain && value.is_finite() => Ok(Limit { value, percent }),
            _ => Err(format!("limit: found `{text}`; needed a number or a percentage, such as 0, 8 or 2.5%")),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.value, if self.percent { "%" } else { "" })
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl Limit {
    /// True if `above` is more than the limit allows, from `a` on; plain numbers are in `unit`.
    fn is_broken(self, a: u64, above: u64, unit: f64) -> bool {
        let allowed = if self.percent { a as f64 * self.value / 100.0 } else { self.value * unit };
        above as f64 > allowed
    }
}

/// A figure of B that is too far above A's.
#[derive(Clone, Debug, Serialize)]
pub struct Exceeded {
    /// The option.
    pub option: &'static str,
    pub limit: Limit,
    #[serde(flatten)]
    pub number: Number,
}

/// A limit and the figures it speaks of.
struct Rule {
    option: &'static str,
    limit: Option<Limit>,
    metrics: &'static [Metric],
    /// Of machine code, which needs a target that both sides have.
    code: bool,
}

fn rules(l: &cli::Limits) -> [Rule; 9] {
    let list = |option, limit, metrics| Rule { option, limit, metrics, code: false };
    let code = |option, limit, metrics| Rule { option, limit, metrics, code: true };
    [
        list("--max-launches", l.max_launches, &[Metric::Launches, Metric::Pointwise]),
        list("--max-bytes", l.max_bytes, &[Metric::Dram, Metric::Activations, Metric::Moved, Metric::Arena]),
        list("--max-time", l.max_time, &[Metric::Time]),
        code("--max-vgprs", l.max_vgprs, &[Metric::Vgprs]),
        code("--max-sgprs", l.max_sgprs, &[Metric::Sgprs]),
        code("--max-lds", l.max_lds, &[Metric::Lds]),
        code("--max-spills", l.max_spills, &[Metric::Spills]),
        code("--max-code", l.max_code, &[Metric::Code]),
        code("--max-occupancy-drop", l.max_occupancy_drop, &[Metric::Occupancy]),
    ]
}

/// Every figure that breaks a limit, in the order of the options.
///
/// # Errors
/// [`CliError::Usage`] if a limit cannot be checked: A and B have other targets or launch lists.
pub fn exceeded(limits: &cli::Limits, d: &Difference) -> Result<Vec<Exceeded>, CliError> {
    let mut found = Vec::new();
    for rule in rules(limits) {
        let Some(limit) = rule.limit else { continue };
        let refused = |found: &str, needed: &str| {
            Err(CliError::Usage { rule: rule.option, found: found.into(), needed: needed.into() })
        };
        if rule.code && d.targets.is_empty() {
            let needed = "a target that both have code for: compile with --target gfx1201";
            return refused("no target in both A and B", needed);
        }
        if !rule.code && !d.lists_only_in_one.is_empty() {
            return refused("different launch lists in A and B", "the same lists, or no such limit");
        }
        // Times and launches of single kernels move when ops move between kernels: only lists and layer kinds count.
        let counts = |n: &&Number| rule.metrics.contains(&n.metric) && !matches!(n.scope, Scope::KernelInList { .. });
        for n in d.numbers.iter().filter(counts) {
            let above = match n.metric {
                Metric::Occupancy => n.a.saturating_sub(n.b),
                _ => n.b.saturating_sub(n.a),
            };
            let unit = if n.metric == Metric::Time { 1000.0 } else { 1.0 };
            if limit.is_broken(n.a, above, unit) {
                found.push(Exceeded { option: rule.option, limit, number: n.clone() });
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_or_percentages() {
        for good in ["0", "8", "2.5%", "0%", "100%"] {
            assert_eq!(good.parse::<Limit>().unwrap().to_string(), good);
        }
        for bad in ["", "%", "x", "-1", "1e3", "inf", "NaN", "1 %", "5%%", "."] {
            assert!(bad.parse::<Limit>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_limit_is_what_may_be_added() {
        let limit = |text: &str| text.parse::<Limit>().unwrap();
        assert!(!limit("0").is_broken(10, 0, 1.0) && limit("0").is_broken(10, 1, 1.0));
        assert!(!limit("1%").is_broken(200, 2, 1.0) && limit("1%").is_broken(200, 3, 1.0));
        assert!(!limit("2").is_broken(0, 2000, 1000.0) && limit("2").is_broken(0, 2001, 1000.0));
        assert!(limit("50%").is_broken(0, 1, 1.0), "anything is above nothing");
    }
}
