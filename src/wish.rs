//! `--force-fuse` and `--forbid-fuse`: names of ops and kernels, and what they stand for in each body.

use std::collections::BTreeSet;
use std::str::FromStr;

use unglue_ir::module::Module;
use unglue_passes::saturate::SaturationStats;
use unglue_passes::wishes::Obeyed;
use unglue_passes::{BodyCover, Subject, Wish};

use crate::cli;
use crate::error::CliError;
use crate::explain::nearest;
use crate::limits::launch_rows;

/// `A,B` or `A,B@ROWS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    a: Name,
    b: Name,
    /// Only in the launch list of at most so many rows.
    rows: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    /// Number in the declared body, and the body if it is named.
    Number(Option<String>, usize),
    /// An op's or a kernel's.
    Word(String),
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Pair, String> {
        let (names, rows) = match text.split_once('@') {
            None => (text, None),
            Some((names, rows)) => {
                let number = rows.parse().map_err(|_| format!("rows `{rows}`; needed: a number, like A,B@16"));
                (names, Some(number?))
            }
        };
        let (a, b) = names.split_once(',').ok_or("needed: two names with a comma between, like kda%12,kda%30")?;
        Ok(Pair { a: a.parse()?, b: b.parse()?, rows })
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        let Some((body, number)) = text.split_once('%') else {
            let plain = !text.is_empty() && !text.contains(',');
            return plain
                .then(|| Name::Word(text.into()))
                .ok_or_else(|| format!("name `{text}`; needed: one op or kernel"));
        };
        let number = number.parse().map_err(|_| format!("op `{text}`; needed: %12, or kda%12 with its body"))?;
        Ok(Name::Number(Some(body.to_owned()).filter(|b| !b.is_empty()), number))
    }
}

/// A wish in the values of one body.
struct Resolved {
    body: usize,
    rows: Option<u32>,
    force: bool,
    wish: Wish,
}

/// All wishes.
pub struct Wishes(Vec<Resolved>);

/// Finds the bodies in which each pair means something.
///
/// # Errors
/// [`CliError::Usage`] if a name stands for no op, or for several.
pub fn resolve(args: &cli::Compile, trunk: &Module, stats: &[SaturationStats]) -> Result<Wishes, CliError> {
    let pairs = args.force_fuse.iter().map(|p| ("--force-fuse", p));
    let mut all = Vec::new();
    for (rule, pair) in pairs.chain(args.forbid_fuse.iter().map(|p| ("--forbid-fuse", p))) {
        let (before, lists) = (all.len(), launch_rows(args.max_rows));
        if let Some(rows) = pair.rows.filter(|r| !lists.contains(r)) {
            let needed = format!("the rows of a launch list of the bundle, one of {lists:?}; --max-rows adds one");
            return Err(CliError::Usage { rule, found: format!("@{rows}"), needed });
        }
        for (body, s) in stats.iter().enumerate() {
            let (a, b) = (side(rule, &pair.a, trunk, body, s)?, side(rule, &pair.b, trunk, body, s)?);
            if let (Some(a), Some(b)) = (a, b) {
                let wish = Wish { a, b };
                all.push(Resolved { body, rows: pair.rows, force: rule == "--force-fuse", wish });
            }
        }
        if all.len() == before {
            let needed = "two ops of one body; `unglue explain BUNDLE NAME` lists them".into();
            return Err(CliError::Usage { rule, found: "ops that no body holds both of".into(), needed });
        }
    }
    Ok(Wishes(all))
}

/// What a name stands for in a body; none if the body does not have it.
fn side(
    rule: &'static str,
    name: &Name,
    trunk: &Module,
    body: usize,
    stats: &SaturationStats,
) -> Result<Option<Subject>, CliError> {
    let nodes = &trunk.bodies[body].nodes;
    let usage = |found: String, needed: &str| CliError::Usage { rule, found, needed: needed.into() };
    match name {
        Name::Number(Some(named), _) if !trunk.bodies.iter().any(|b| b.name == *named) => {
            let bodies = trunk.bodies.iter().map(|b| b.name.clone()).collect();
            Err(nearest::unknown(rule, named, "a body of the trunk", bodies))
        }
        Name::Number(named, number) => {
            let here = named.as_ref().is_none_or(|n| *n == stats.body) && *number < nodes.len();
            if !here {
                return Ok(None);
            }
            match stats.became.get(*number).copied().flatten() {
                Some(now) => Ok(Some(Subject::Op(unglue_ir::graph::ValueId(now)))),
                None if named.is_none() => Ok(None),
                None => Err(usage(format!("{}%{number}", stats.body), "an op that the rewritten body needs")),
            }
        }
        Name::Word(word) => {
            if !trunk.bodies.iter().flat_map(|b| &b.nodes).any(|n| n.op.name() == word) {
                return Ok(Some(Subject::Kernel(word.clone())));
            }
            let of_name = nodes.iter().enumerate().filter(|(_, n)| n.op.name() == word);
            let now: BTreeSet<u32> = of_name.filter_map(|(i, _)| stats.became.get(i).copied().flatten()).collect();
            match now.len() {
                0 => Ok(None),
                1 => Ok(now.first().map(|v| Subject::Op(unglue_ir::graph::ValueId(*v)))),
                n => Err(usage(format!("{n} ops {word} in {}", stats.body), "one of them by number, like kda%12")),
            }
        }
    }
}

impl Wishes {
    /// Those to force and those to forbid in a body, for a launch list.
    pub fn of(&self, body: usize, rows: u32) -> (Vec<Wish>, Vec<Wish>) {
        let here = self.0.iter().filter(|r| r.body == body && r.rows.is_none_or(|n| n == rows));
        let (force, forbid): (Vec<_>, Vec<_>) = here.partition(|r| r.force);
        let wishes = |list: Vec<&Resolved>| list.into_iter().map(|r| r.wish.clone()).collect();
        (wishes(force), wishes(forbid))
    }

    /// A kernel that no cover has is a wrong name.
    ///
    /// # Errors
    /// [`CliError::Usage`] with the nearest names.
    pub fn check(&self, obeyed: &[(String, u32, Obeyed)], covers: &[Vec<BodyCover>]) -> Result<(), CliError> {
        let forced = obeyed.iter().flat_map(|(.., o)| &o.forced).flat_map(|f| [&f.a, &f.b]);
        let forbidden = obeyed.iter().flat_map(|(.., o)| &o.forbidden).flatten();
        let met: BTreeSet<&String> = forced.chain(forbidden).collect();
        for r in &self.0 {
            let rule = if r.force { "--force-fuse" } else { "--forbid-fuse" };
            for side in [&r.wish.a, &r.wish.b] {
                if let Subject::Kernel(name) = side
                    && !met.contains(name)
                {
                    let kernels = covers.iter().flatten().flat_map(|c| &c.kernels).map(|k| k.name.clone()).collect();
                    return Err(nearest::unknown(
                        rule,
                        name,
                        "an op or a kernel beside the other of one body",
                        kernels,
                    ));
                }
            }
        }
        Ok(())
    }
}
