//! The form of a body and its kernels, chosen together where rewrites may change bits.
//!
//! Levels build upon each other. The strictest has the form with the cheapest arithmetic, and a cover of it in each launch
//! list. A looser one asks an integer program for a mixture of forms and kernels: for each launch list by itself, and then
//! with what one of them picked for the others. A body has one form, whatever the rows of a step, so that its values have
//! the same bits in each. The mixture replaces what the stricter level has only if bits change, and if it takes no longer in
//! any launch list, and less in one; it has no more launches than the strictest level. So a looser level is never slower by
//! the time model, and what gains nothing stays as strict as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use egg::Id;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unglue_ir::graph::{Graph, ValueId};

use crate::cost::CostTable;
use crate::cover::{CoverOptions, Strategy, cover, cover_with, stored_views};
use crate::error::PassError;
use crate::exact::gap_ppm;
use crate::exact::joint::{self, Groups, Joint, Known, Mixture, Most};
use crate::extract::{Extracted, Pick, Picks};
use crate::facts::Facts;
use crate::forms::{self, Forms, taken};
use crate::kernel::{BodyCover, Exactness, Numerics};
use crate::rules::{Rule, table};
use crate::saturate::{Limits, Saturated, SaturationStats, saturate};
use crate::schedule::Bucket;

/// How the form of a body was chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(deny_unknown_fields)]
pub struct ChoiceStats {
    /// The strictest level that gives the form.
    pub level: Numerics,
    /// Forms that the program mixed, and those that were too many.
    pub forms: u64,
    pub forms_cut: u64,
    /// Classes that are not the same in all of them, and what they can be.
    pub classes: u64,
    pub e_nodes: u64,
    /// Classes of the form that are not what the cheapest arithmetic of its level has.
    pub otherwise: u64,
    pub candidates: u64,
    /// Sets that were due when the count of evaluations ran out.
    pub cut: u64,
    pub variables: u64,
    pub rows: u64,
    pub cycle_cuts: u64,
    pub rounds: u64,
    /// Over all launch lists: the covers of the stricter level, those taken, and the program's bound for them.
    pub before_ns: u64,
    pub objective_ns: u64,
    pub bound_ns: u64,
    pub gap_ppm: u64,
    /// Why the form of the stricter level was kept, if it was.
    pub kept: Option<String>,
    /// By class that is not what the cheapest arithmetic has: the number of its pick.
    pub picks: BTreeMap<u32, u32>,
}

/// How much is done for a looser level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Covers are searched: the level can be built.
    Covered,
    /// Kernels are those of the program, and no cover is made: what a build takes at most.
    Priced,
}

/// A body in its form, with its covers.
#[derive(Clone, Debug)]
pub struct Choice {
    pub body: Graph,
    pub stats: SaturationStats,
    /// By launch list: what its kernels are.
    pub takes: Vec<Most>,
    /// By launch list; empty where the level is only priced.
    pub covers: Vec<BodyCover>,
    /// By launch list: kernels that the covers are no dearer than; empty if they come from the form alone.
    pub seeds: Vec<Groups>,
    /// The e-graph and what was taken of it; none where the declared form stays.
    form: Option<Extracted>,
    /// The strictest level; none where the declared form stays.
    strictest: Option<Arc<Strictest>>,
}

/// What looser levels start from.
#[derive(Debug)]
struct Strictest {
    known: Known,
    takes: Vec<Most>,
}

impl Choice {
    /// In the first launch list alone.
    pub fn first(&self) -> Choice {
        let (takes, covers) =
            (self.takes.iter().take(1).copied().collect(), self.covers.iter().take(1).cloned().collect());
        Choice { takes, covers, seeds: self.seeds.iter().take(1).cloned().collect(), ..self.clone() }
    }

    fn ns(&self) -> Vec<u64> {
        self.takes.iter().map(|t| t.ns).collect()
    }

    fn is_better_than(&self, other: &Choice) -> bool {
        is_less(&self.ns(), &other.ns())
    }
}

/// In no launch list more, and in one less.
fn is_less(ns: &[u64], was: &[u64]) -> bool {
    ns != was && ns.iter().zip(was).all(|(now, was)| now <= was)
}

fn takes(covers: &[BodyCover]) -> Vec<Most> {
    covers.iter().map(|c| Most { launches: c.stats.kernels, ns: c.stats.predicted_ns }).collect()
}

/// Launch lists, and the machine they are for.
#[derive(Clone, Copy)]
pub struct Lists<'l> {
    pub buckets: &'l [Bucket],
    pub costs: &'l CostTable,
}

fn rules(numerics: Numerics) -> Vec<Rule> {
    table().into_iter().filter(|r| numerics.allows(r.class)).collect()
}

/// Forms and covers of a body at each level up to `numerics`, from strict to loose. `levels`: those that are known, in the
/// same launch lists or more.
///
/// # Errors
/// As [`crate::optimise`] and [`cover`].
pub fn choose(
    declared: &Graph,
    numerics: Numerics,
    limits: &Limits,
    lists: Lists,
    mut levels: Vec<Choice>,
    effort: Effort,
) -> Result<Vec<Choice>, PassError> {
    for level in Numerics::ALL.into_iter().filter(|l| *l <= numerics).skip(levels.len()) {
        let s = saturate(declared, &rules(level), limits)?;
        let choice = match levels.last() {
            None => strictest(&s, lists)?,
            // No rule of this level found anything.
            Some(before) if s.loosest() < weakest(level) => before.clone(),
            Some(before) => looser(&s, level, before, lists, effort)?,
        };
        levels.push(choice);
    }
    Ok(levels)
}

/// The loosest class that a level allows.
fn weakest(level: Numerics) -> Exactness {
    match level {
        Numerics::Exact => Exactness::Exact,
        Numerics::Rounding => Exactness::Rounding,
        Numerics::Fast => Exactness::Reassociating,
    }
}

fn strictest(s: &Saturated, Lists { buckets, costs }: Lists) -> Result<Choice, PassError> {
    let picks = s.greedy();
    let (body, stats) = s.form(&picks)?;
    let options = CoverOptions { touched: stats.touched.clone(), ..CoverOptions::default() };
    let (mut covers, mut lists) = (Vec::new(), Vec::new());
    for bucket in buckets {
        let mut look = |search: &mut crate::search::Search, views: &BTreeSet<ValueId>| {
            lists.push(joint::searched(search, views));
        };
        covers.push(cover_with(&body, bucket, costs, Strategy::Exact, &options, &mut look)?);
    }
    let takes = takes(&covers);
    let form = if stats.kept_declared { None } else { Some(s.extract(&picks)?) };
    let of = |form| Arc::new(Strictest { known: Known { form, lists }, takes: takes.clone() });
    let strictest = form.clone().map(of);
    Ok(Choice { body, stats, takes, covers, seeds: vec![], form, strictest })
}

/// The choice of a looser level; that of the stricter one where it finds no better.
fn looser(s: &Saturated, level: Numerics, before: &Choice, lists: Lists, effort: Effort) -> Result<Choice, PassError> {
    let known = before.strictest.clone();
    let imported = known.as_ref().and_then(|k| Some((k.clone(), forms::imported(s, &k.known.form)?)));
    let Some((strictest, (picks, ids))) = imported else {
        return Ok(kept(before, "the strictest form is the declared one", ChoiceStats::default(), &Joint::default()));
    };
    let forms = forms::forms(s, &picks)?;
    let joint = joint::choose(s, &forms.list, (&strictest.known, &ids), (lists.buckets, lists.costs), &strictest.takes);
    against(s, level, &forms, &joint, before, lists, effort)
}

/// The best mixture that the programs chose; `before` where none is better.
fn against(
    s: &Saturated,
    level: Numerics,
    forms: &Forms,
    joint: &Joint,
    before: &Choice,
    lists: Lists,
    effort: Effort,
) -> Result<Choice, PassError> {
    let (forms, forms_cut) = (forms.list.len() as u64, forms.cut);
    let before_ns: u64 = before.ns().iter().sum();
    let told = ChoiceStats { level, forms, forms_cut, before_ns, ..Default::default() };
    let mut why = joint.why.as_deref().unwrap_or("no mixture of forms that changes bits is better in a launch list");
    for of in joint.mixtures.iter().filter(|m| is_less(&m.ns, &before.ns())) {
        let new = mixture(s, of, before, lists, effort)?;
        let changes = |new: &Choice| new.stats.exactness > Exactness::Exact;
        if let Some(mut new) = new.filter(|new| changes(new) && new.is_better_than(before)) {
            let objective: u64 = new.ns().iter().sum();
            let picks = new.form.as_ref().map(|f| otherwise(s, &of.picks, f)).unwrap_or_default();
            let otherwise = picks.len() as u64;
            new.stats.choice = Some(tell(ChoiceStats { otherwise, picks, ..told }, joint, objective));
            return Ok(new);
        }
        why = "the best mixture of forms changes no bits, or is worse in a launch list";
    }
    Ok(kept(before, why, told, joint))
}

/// The stricter level's choice, and why it stays.
fn kept(before: &Choice, why: &str, told: ChoiceStats, joint: &Joint) -> Choice {
    let mut choice = before.clone();
    let (level, picks) = choice.stats.choice.take().map(|c| (c.level, c.picks)).unwrap_or_default();
    let before_ns: u64 = before.ns().iter().sum();
    let told = ChoiceStats { level, otherwise: picks.len() as u64, picks, kept: Some(why.into()), before_ns, ..told };
    choice.stats.choice = Some(tell(told, joint, before_ns));
    choice
}

fn tell(told: ChoiceStats, joint: &Joint, objective_ns: u64) -> ChoiceStats {
    let bound_ns = joint.solved.bound_ns.min(objective_ns);
    ChoiceStats {
        classes: joint.classes,
        e_nodes: joint.picks,
        candidates: joint.candidates,
        cut: joint.cut,
        variables: joint.solved.variables,
        rows: joint.solved.rows,
        cycle_cuts: joint.solved.cuts,
        rounds: joint.solved.rounds,
        objective_ns,
        bound_ns,
        gap_ppm: gap_ppm(objective_ns, bound_ns),
        ..told
    }
}

/// The form of picks, with covers no dearer than the kernels; none if it leaves out a leaf or is no form.
fn mixture(
    s: &Saturated,
    Mixture { picks, kernels, ns }: &Mixture,
    before: &Choice,
    Lists { buckets, costs }: Lists,
    effort: Effort,
) -> Result<Option<Choice>, PassError> {
    if s.extract(picks).is_err() {
        return Ok(None);
    }
    let Some((form, stats)) = s.whole_form(picks)? else { return Ok(None) };
    let body = form.graph.clone();
    let (mut seeds, mut covers, mut priced) = (Vec::new(), Vec::new(), Vec::new());
    for ((bucket, kernels), ns) in buckets.iter().zip(kernels).zip(ns) {
        let views = stored_views(&body, bucket, costs);
        let seed = joint::in_form(&form.class_of, &body, kernels, &Facts::with_ops(&body, &views));
        if effort == Effort::Priced {
            priced.push(Most { launches: seed.len() as u64, ns: *ns });
            continue;
        }
        let options = CoverOptions { touched: stats.touched.clone(), seed: seed.clone(), ..CoverOptions::default() };
        covers.push(cover(&body, bucket, costs, Strategy::Exact, &options)?);
        seeds.push(seed);
    }
    let takes = if effort == Effort::Priced { priced } else { takes(&covers) };
    let strictest = before.strictest.clone();
    Ok(Some(Choice { body, stats, takes, covers, seeds, form: Some(form), strictest }))
}

/// Picks of a form that the cheapest arithmetic does not have, by number.
fn otherwise(s: &Saturated, picks: &Picks, form: &Extracted) -> BTreeMap<u32, u32> {
    let greedy = s.greedy();
    let number = |(id, pick): (Id, Pick)| {
        let at = s.options.get(&id)?.iter().position(|p| *p == pick)?;
        (greedy.get(&id) != Some(&pick)).then_some((usize::from(id) as u32, at as u32))
    };
    taken(picks, form).into_iter().filter_map(number).collect()
}

/// Rewrites a body as a build did that chose so; nothing is covered.
///
/// # Errors
/// As [`crate::optimise`]; [`PassError::Rewrite`] if the rules do not give that form.
pub fn repeat(declared: &Graph, limits: &Limits, choice: &ChoiceStats) -> Result<(Graph, SaturationStats), PassError> {
    let s = saturate(declared, &rules(choice.level), limits)?;
    let mut picks = s.greedy();
    if choice.picks.is_empty() {
        let (body, stats) = s.form(&picks)?;
        return Ok((body, SaturationStats { choice: Some(choice.clone()), ..stats }));
    }
    for (id, number) in &choice.picks {
        let id = Id::from(*id as usize);
        let pick = s.options.get(&id).and_then(|of| of.get(*number as usize)).cloned();
        let unknown = || {
            let found = format!("class {id} has no pick {number}");
            PassError::rewrite("choice-pick", &declared.name, found, "verify with the unglue that compiled the bundle")
        };
        picks.insert(id, pick.ok_or_else(unknown)?);
    }
    let unknown = || PassError::rewrite("choice-form", &declared.name, "a leaf is left out", "compile again");
    let (form, stats) = s.whole_form(&picks)?.ok_or_else(unknown)?;
    Ok((form.graph, SaturationStats { choice: Some(choice.clone()), ..stats }))
}
