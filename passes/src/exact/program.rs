//! The integer program: which candidates become kernels.
//!
//! One binary variable a candidate. Every op is computed once, or, where some candidate may compute it again, by each
//! kernel that needs it. Kernels must not wait for each other: a cycle among chosen kernels is forbidden when it turns up,
//! with all cycles that run through the same ops, and the program is solved again.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use good_lp::solvers::coin_cbc::{CoinCbcProblem, coin_cbc};
use good_lp::{Expression, ProblemVariables, SolverModel, Variable, constraint, variable};

use super::pool::{Candidate, Pool};
use super::reach::Bits;

/// Nodes of the solver's search tree, for each solution.
pub const MAX_NODES: u32 = 500;
/// The objective's unit: 1/1,024 ns. What is below 1 ns only breaks ties: a launch counts 32, and the most bytes of
/// activations that a candidate moves 32, so that the fifteen or so kernels of a cover stay below it.
const UNITS_PER_NS: u64 = 1024;
const UNITS_A_LAUNCH: u64 = 32;
const UNITS_OF_MOST_BYTES: u64 = 32;
/// Solutions with a cycle that are cut off.
pub const MAX_ROUNDS: u64 = 40;

/// What the program must respect beside the body.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// All ops of the body.
    pub ops: Vec<usize>,
    /// Pairs of op sets that share no kernel.
    pub forbid: Vec<(Bits, Bits)>,
    /// Pairs of ops of which some kernel holds both.
    pub force: Vec<(usize, usize)>,
}

/// How the search ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    #[default]
    Optimal,
    /// The solver ran out of nodes; the best it had.
    Nodes,
    /// Cycles were left when the rounds ran out.
    Rounds,
    /// The solver found nothing.
    Nothing,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Solved {
    pub end: End,
    /// Numbers of the chosen candidates, ascending; empty unless the end is [`End::Optimal`] or [`End::Nodes`].
    pub chosen: Vec<usize>,
    /// No cover by these candidates costs less, in ns.
    pub bound_ns: u64,
    pub variables: u64,
    pub rows: u64,
    /// Constraints that forbid cycles.
    pub cuts: u64,
    /// Times the solver ran.
    pub rounds: u64,
}

/// A constraint: sum of candidates at most `most`.
struct Cut {
    members: BTreeSet<usize>,
    most: usize,
}

/// Chooses the cheapest candidates that cover the body.
pub fn solve(pool: &Pool, terms: &Terms) -> Solved {
    let mut cuts: Vec<Cut> = Vec::new();
    let mut solved = Solved::default();
    loop {
        let found = once(pool, terms, &cuts, &mut solved);
        solved.rounds += 1;
        let Some(chosen) = found else {
            solved.end = End::Nothing;
            return solved;
        };
        let new = cycle_cuts(pool, &chosen);
        if new.is_empty() {
            solved.chosen = chosen;
            return solved;
        }
        if solved.rounds >= MAX_ROUNDS {
            solved.end = End::Rounds;
            return solved;
        }
        cuts.extend(new);
        solved.cuts = cuts.len() as u64;
    }
}

/// Builds and solves the program once; none if the solver has no integer solution.
fn once(pool: &Pool, terms: &Terms, cuts: &[Cut], solved: &mut Solved) -> Option<Vec<usize>> {
    let mut vars = ProblemVariables::new();
    let x: Vec<Variable> = pool.list.iter().map(|_| vars.add(variable().binary())).collect();
    // Ops that some candidate computes again: 1 if one kernel computes and stores it.
    let again = ops_of(pool, |c| &c.soft);
    let z: BTreeMap<usize, Variable> = again.ones().map(|op| (op, vars.add(variable().min(0).max(1)))).collect();
    let most = pool.list.iter().map(|c| c.bytes).max().unwrap_or(0).max(1);
    let objective: Expression = x.iter().zip(&pool.list).map(|(v, c)| *v * units(c, most) as f64).sum();
    let mut model = vars.minimise(objective).using(coin_cbc);
    for &op in &terms.ops {
        let mut once: Expression = members(pool, |c| c.is_solid(op)).map(|i| x[i]).sum();
        if let Some(&z) = z.get(&op) {
            once -= z;
            model.add_constraint(constraint!(once == 0));
            for i in members(pool, |c| c.soft.contains(op)) {
                model.add_constraint(constraint!(x[i] + z <= 1));
            }
            for i in members(pool, |c| c.needs.contains(op)) {
                model.add_constraint(constraint!(x[i] - z <= 0));
            }
        } else {
            model.add_constraint(constraint!(once == 1));
        }
    }
    for cut in cuts {
        let sum: Expression = cut.members.iter().map(|i| x[*i]).sum();
        model.add_constraint(constraint!(sum <= cut.most as f64));
    }
    for i in members(pool, |c| is_forbidden(c, terms)) {
        model.add_constraint(constraint!(x[i] <= 0));
    }
    for &(a, b) in &terms.force {
        let both: Expression = members(pool, |c| c.ops.contains(a) && c.ops.contains(b)).map(|i| x[i]).sum();
        model.add_constraint(constraint!(both >= 1));
    }
    let rows = model.as_inner().num_rows();
    (solved.variables, solved.rows) = ((x.len() + z.len()) as u64, u64::from(rows));
    run(model, x.len(), solved)
}

/// What a candidate adds to the objective: its time, then its launch, then its bytes out of `most`.
fn units(c: &Candidate, most: u64) -> u64 {
    let bytes = u128::from(c.bytes) * u128::from(UNITS_OF_MOST_BYTES) / u128::from(most);
    c.ns.saturating_mul(UNITS_PER_NS).saturating_add(UNITS_A_LAUNCH).saturating_add(bytes as u64)
}

fn is_forbidden(c: &Candidate, terms: &Terms) -> bool {
    terms.forbid.iter().any(|(a, b)| !c.ops.is_disjoint(a) && !c.ops.is_disjoint(b))
}

/// Through the inner model: `good_lp` drops solution and bound of a solver that stops at its node limit.
fn run(mut model: CoinCbcProblem, candidates: usize, solved: &mut Solved) -> Option<Vec<usize>> {
    // One thread. The random seeds are fixed by default, and no limit is a time. Preprocessing, cutting planes and
    // heuristics take most of the time (cuts and heuristics: 5.1 of 6.8 s over GLM-5.3-Flash), and the relaxations of
    // these programs are whole, or nearly so, without them.
    let nodes = MAX_NODES.to_string();
    let off = ["preprocess", "cutsOnOff", "heuristicsOnOff"].map(|key| (key, "off"));
    for (key, value) in [("threads", "0"), ("maxN", nodes.as_str())].into_iter().chain(off) {
        model.set_parameter(key, value);
    }
    let done = model.as_inner().solve();
    let raw = done.raw();
    let values = raw.col_solution();
    let whole = |v: &f64| (v - v.round()).abs() < 1e-4;
    if raw.is_proven_infeasible() || values.len() < candidates || !values.iter().take(candidates).all(whole) {
        return None;
    }
    let optimal = raw.is_proven_optimal();
    solved.end = if optimal { End::Optimal } else { End::Nodes };
    let bound = if optimal { raw.obj_value() } else { raw.best_possible_value() };
    solved.bound_ns = bound.max(0.0) as u64 / UNITS_PER_NS;
    Some((0..candidates).filter(|i| values[*i] > 0.5).collect())
}

fn members<'p>(pool: &'p Pool, wanted: impl Fn(&Candidate) -> bool + 'p) -> impl Iterator<Item = usize> + 'p {
    pool.list.iter().enumerate().filter(move |(_, c)| wanted(c)).map(|(i, _)| i)
}

fn ops_of(pool: &Pool, bits: impl Fn(&Candidate) -> &Bits) -> Bits {
    pool.list.iter().fold(Bits::default(), |mut all, c| {
        all.union_with(bits(c));
        all
    })
}

/// For each shortest cycle among the chosen: at most all but one of the kernels that could close it.
///
/// A cycle runs through ops o1..ok: kernel i waits for o(i-1) and makes o(i), each made by one kernel alone. Of all
/// candidates that wait for o(i-1) and make o(i) at most one is chosen, and if one is for every i, they are a cycle.
fn cycle_cuts(pool: &Pool, chosen: &[usize]) -> Vec<Cut> {
    let mut seen: BTreeSet<Vec<usize>> = BTreeSet::new();
    let mut cuts = Vec::new();
    for &start in chosen {
        let Some(mut ops) = shortest_cycle(pool, chosen, start) else { continue };
        let least = (0..ops.len()).min_by_key(|i| ops[*i]).unwrap_or(0);
        ops.rotate_left(least);
        if !seen.insert(ops.clone()) {
            continue;
        }
        let waits = ops.iter().cycle().skip(ops.len() - 1);
        let links: Vec<(usize, usize)> = waits.copied().zip(ops.iter().copied()).collect();
        let family = |&(from, to): &(usize, usize)| members(pool, move |c| c.needs.contains(from) && c.is_solid(to));
        cuts.push(Cut { members: links.iter().flat_map(family).collect(), most: links.len() - 1 });
    }
    cuts
}

/// The ops through which the shortest way from `start` back to itself runs.
fn shortest_cycle(pool: &Pool, chosen: &[usize], start: usize) -> Option<Vec<usize>> {
    let link = |a: usize, b: usize| {
        let (a, b) = (&pool.list[a], &pool.list[b]);
        b.needs.ones().find(|op| a.is_solid(*op))
    };
    let mut from: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    let mut todo = VecDeque::from([start]);
    while let Some(at) = todo.pop_front() {
        for &next in chosen.iter().filter(|n| **n != at) {
            let Some(op) = link(at, next) else { continue };
            if next == start {
                let mut ops = vec![op];
                let mut back = at;
                while back != start {
                    let (before, op) = *from.get(&back)?;
                    ops.push(op);
                    back = before;
                }
                ops.reverse();
                return Some(ops);
            }
            if let Entry::Vacant(free) = from.entry(next) {
                free.insert((at, op));
                todo.push_back(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(ops: &[usize]) -> Bits {
        let mut b = Bits::with_capacity(2);
        b.extend(ops.iter().copied());
        b
    }

    fn candidate(ops: &[usize], needs: &[usize], ns: u64, bytes: u64) -> Candidate {
        Candidate { ops: bits(ops), soft: bits(&[]), needs: bits(needs), ns, bytes }
    }

    fn chosen(list: Vec<Candidate>) -> Vec<usize> {
        let terms = Terms { ops: vec![0, 1], ..Terms::default() };
        solve(&Pool { list, dominated: 0 }, &terms).chosen
    }

    #[test]
    fn of_equal_times_fewer_launches_then_fewer_bytes_win() {
        let two = [candidate(&[0], &[], 50, 10), candidate(&[1], &[0], 50, 10)];
        let one = |ns, bytes| candidate(&[0, 1], &[], ns, bytes);
        assert_eq!(chosen([two.to_vec(), vec![one(100, 1000)]].concat()), [2], "one launch, though more bytes");
        assert_eq!(chosen([two.to_vec(), vec![one(101, 10)]].concat()), [0, 1], "one ns is more than any tie");
        assert_eq!(chosen(vec![one(100, 1000), one(100, 500), one(100, 900)]), [1], "least bytes");
    }
}
