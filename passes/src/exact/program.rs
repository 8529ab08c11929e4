//! The integer program: which candidates become kernels, and which form each class of the body takes.
//!
//! One binary variable a candidate. Every op is computed once, or, where some candidate may compute it again, by each kernel
//! that needs it. Kernels must not wait for each other: a cycle among chosen kernels is forbidden when it turns up, with all
//! cycles that run through the same ops, and the program is solved again.
//!
//! Among several forms of a body ops are classes, and there is one more variable a pick: a class has one, and a candidate is
//! chosen only with the picks that it takes for granted.

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
/// A pick that changes bits counts more than a launch and its bytes: of two forms that take as long, the stricter wins.
const UNITS_A_LOOSE_PICK: u64 = 128;
/// Solutions with a cycle that are cut off.
pub const MAX_ROUNDS: u64 = 40;

/// What the program must respect in one launch list.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Ops that some kernel computes.
    pub ops: Vec<usize>,
    /// Ops that are computed if some kernel reads them.
    pub optional: Vec<usize>,
    /// Ops that some form stores where another does not.
    pub stored: Bits,
    /// Numbers of outputs, each stored by one kernel.
    pub outputs: Vec<usize>,
    /// Pairs of op sets that share no kernel.
    pub forbid: Vec<(Bits, Bits)>,
    /// Pairs of ops of which some kernel holds both.
    pub force: Vec<(usize, usize)>,
    /// What the kernels may be at most.
    pub most: Option<Most>,
}

/// Time and number of the kernels of a launch list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Most {
    pub ns: u64,
    pub launches: u64,
}

/// The candidates of one launch list.
#[derive(Clone, Debug, Default)]
pub struct Part {
    pub pool: Pool,
    pub terms: Terms,
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
    most: u64,
    /// Each counts its ns instead of one.
    in_ns: bool,
}

/// What classes can be, by numbers of picks; nothing if a body has one form.
#[derive(Clone, Debug, Default)]
pub struct Choosable {
    /// By class that has several picks.
    pub classes: Vec<Vec<usize>>,
    /// Picks that change bits.
    pub loose: BTreeSet<usize>,
}

/// Chooses the cheapest candidates that cover the body.
pub fn solve(part: &Part, picks: &Choosable) -> Solved {
    let mut cuts: Vec<Cut> = Vec::new();
    let mut solved = Solved::default();
    loop {
        let found = once(part, picks, &cuts, &mut solved);
        solved.rounds += 1;
        let Some(chosen) = found else {
            solved.end = End::Nothing;
            return solved;
        };
        let cycles = cycle_cuts(&part.pool, &chosen).into_iter();
        let cycles = cycles.map(|(members, most)| Cut { members, most: most as u64, in_ns: false });
        let new: Vec<Cut> = cycles.chain(most_cuts(part, &chosen)).collect();
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
fn once(part: &Part, picks: &Choosable, cuts: &[Cut], solved: &mut Solved) -> Option<Vec<usize>> {
    let list = &part.pool.list;
    let mut vars = ProblemVariables::new();
    let x: Vec<Variable> = list.iter().map(|_| vars.add(variable().binary())).collect();
    let y: BTreeMap<usize, Variable> =
        picks.classes.iter().flatten().map(|pick| (*pick, vars.add(variable().binary()))).collect();
    let more = More::new(part, &mut vars);
    let most = list.iter().map(|c| c.bytes).max().unwrap_or(0).max(1);
    let loose: Expression = picks.loose.iter().filter_map(|p| y.get(p)).map(|v| *v * UNITS_A_LOOSE_PICK as f64).sum();
    let objective: Expression = loose + x.iter().zip(list).map(|(v, c)| *v * units(c, most) as f64).sum::<Expression>();
    let mut model = vars.minimise(objective).using(coin_cbc);
    cover_rows(&mut model, part, &x, &more);
    pick_rows(&mut model, part, &x, &y);
    for class in &picks.classes {
        let sum: Expression = class.iter().map(|pick| y[pick]).sum();
        model.add_constraint(constraint!(sum <= 1));
    }
    for cut in cuts {
        let weight = |i: usize| if cut.in_ns { list[i].ns as f64 } else { 1.0 };
        let sum: Expression = cut.members.iter().map(|i| x[*i] * weight(*i)).sum();
        model.add_constraint(constraint!(sum <= cut.most as f64));
    }
    let rows = model.as_inner().num_rows();
    let variables = x.len() + y.len() + more.computed.len() + more.stored.len();
    (solved.variables, solved.rows) = (variables as u64, u64::from(rows));
    if let Some(most) = part.terms.most {
        // Branches that take longer are not searched: without it GLM-5.3-Flash compiles in 25 s, with it in 15.
        let cutoff = most.ns.saturating_add(1).saturating_mul(UNITS_PER_NS);
        model.set_parameter("cutoff", &cutoff.to_string());
    }
    run(model, x.len(), solved)
}

/// Variables beside the candidates, by op.
struct More {
    /// 1 if one kernel computes the op for all.
    computed: BTreeMap<usize, Variable>,
    /// 1 if some kernel stores it.
    stored: BTreeMap<usize, Variable>,
}

impl More {
    fn new(part: &Part, vars: &mut ProblemVariables) -> More {
        let mut unit = |op: usize| (op, vars.add(variable().min(0).max(1)));
        let mut open = ops_of(&part.pool, |c| &c.soft);
        part.terms.optional.iter().for_each(|op| open.grow_and_insert(*op));
        let computed = open.ones().map(&mut unit).collect();
        More { computed, stored: part.terms.stored.ones().map(&mut unit).collect() }
    }
}

/// Every op is computed, every output stored, wishes are obeyed.
fn cover_rows(model: &mut CoinCbcProblem, Part { pool, terms }: &Part, x: &[Variable], more: &More) {
    for &op in terms.ops.iter().chain(&terms.optional) {
        let mut once: Expression = members(pool, |c| c.is_solid(op)).map(|i| x[i]).sum();
        let Some(&z) = more.computed.get(&op) else {
            model.add_constraint(constraint!(once == 1));
            continue;
        };
        once -= z;
        model.add_constraint(constraint!(once == 0));
        for i in members(pool, |c| c.soft.contains(op)) {
            model.add_constraint(constraint!(x[i] + z <= 1));
        }
        if !more.stored.contains_key(&op) {
            for i in members(pool, |c| c.reads.contains(op)) {
                model.add_constraint(constraint!(x[i] - z <= 0));
            }
        }
    }
    for (&op, &s) in &more.stored {
        let mut stored: Expression = members(pool, |c| c.across.stores.contains(op)).map(|i| x[i]).sum();
        stored -= s;
        model.add_constraint(constraint!(stored == 0));
        for i in members(pool, |c| c.reads.contains(op)) {
            model.add_constraint(constraint!(x[i] - s <= 0));
        }
    }
    for &output in &terms.outputs {
        let stored: Expression = members(pool, |c| c.across.outputs.contains(output)).map(|i| x[i]).sum();
        model.add_constraint(constraint!(stored == 1));
    }
    for i in members(pool, |c| is_forbidden(c, terms)) {
        model.add_constraint(constraint!(x[i] <= 0));
    }
    for &(a, b) in &terms.force {
        let both: Expression = members(pool, |c| c.ops.contains(a) && c.ops.contains(b)).map(|i| x[i]).sum();
        model.add_constraint(constraint!(both >= 1));
    }
}

/// No candidate without its picks. Of candidates that compute one op for all, one is chosen at most: they share a row.
fn pick_rows(model: &mut CoinCbcProblem, part: &Part, x: &[Variable], y: &BTreeMap<usize, Variable>) {
    let mut rows: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for (i, c) in part.pool.list.iter().enumerate() {
        let Some(first) = c.ops.ones().find(|op| c.is_solid(*op)) else { continue };
        for pick in &c.across.picks {
            rows.entry((*pick, first)).or_default().push(i);
        }
    }
    for ((pick, _), of) in rows {
        let Some(&y) = y.get(&pick) else { continue };
        let mut sum: Expression = of.into_iter().map(|i| x[i]).sum();
        sum -= y;
        model.add_constraint(constraint!(sum <= 0));
    }
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
fn cycle_cuts(pool: &Pool, chosen: &[usize]) -> Vec<(BTreeSet<usize>, usize)> {
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
        cuts.push((links.iter().flat_map(family).collect(), links.len() - 1));
    }
    cuts
}

/// What a choice takes above [`Terms::most`]. Rows over all candidates make relaxations less whole: they are added where
/// they are needed.
fn most_cuts(Part { pool, terms }: &Part, chosen: &[usize]) -> Vec<Cut> {
    let Some(most) = terms.most else { return vec![] };
    let ns: u64 = chosen.iter().map(|i| pool.list[*i].ns).sum();
    let over = [(ns > most.ns, most.ns, true), (chosen.len() as u64 > most.launches, most.launches, false)];
    let cut = |(_, most, in_ns)| Cut { members: (0..pool.list.len()).collect(), most, in_ns };
    over.into_iter().filter(|(over, ..)| *over).map(cut).collect()
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
    use super::super::pool::Across;
    use super::*;

    fn bits(ops: &[usize]) -> Bits {
        let mut b = Bits::with_capacity(2);
        b.extend(ops.iter().copied());
        b
    }

    fn candidate(ops: &[usize], needs: &[usize], ns: u64, bytes: u64) -> Candidate {
        Candidate { ops: bits(ops), needs: bits(needs), reads: bits(needs), ns, bytes, ..Candidate::default() }
    }

    fn chosen(list: Vec<Candidate>) -> Vec<usize> {
        let terms = Terms { ops: vec![0, 1], ..Terms::default() };
        solve(&Part { pool: Pool { list, dominated: 0 }, terms }, &Choosable::default()).chosen
    }

    #[test]
    fn of_equal_times_fewer_launches_then_fewer_bytes_win() {
        let two = [candidate(&[0], &[], 50, 10), candidate(&[1], &[0], 50, 10)];
        let one = |ns, bytes| candidate(&[0, 1], &[], ns, bytes);
        assert_eq!(chosen([two.to_vec(), vec![one(100, 1000)]].concat()), [2], "one launch, though more bytes");
        assert_eq!(chosen([two.to_vec(), vec![one(101, 10)]].concat()), [0, 1], "one ns is more than any tie");
        assert_eq!(chosen(vec![one(100, 1000), one(100, 500), one(100, 900)]), [1], "least bytes");
    }

    /// A candidate that takes a pick for granted, and stores what it makes.
    fn picking(pick: usize, c: Candidate) -> Candidate {
        let across = Across { stores: c.ops.clone(), picks: vec![pick], ..Across::default() };
        Candidate { across, ..c }
    }

    fn part(list: Vec<Candidate>, ops: Vec<usize>) -> Part {
        Part { pool: Pool { list, dominated: 0 }, terms: Terms { ops, ..Terms::default() } }
    }

    /// One class with the picks 0, which is exact, and 1, which is not.
    fn two_picks() -> Choosable {
        Choosable { classes: vec![vec![0, 1]], loose: BTreeSet::from([1]) }
    }

    #[test]
    fn kernels_of_two_forms_of_one_class_are_no_cover() {
        let forms = |first: [u64; 2], second: [u64; 2]| {
            let form = |pick: usize| {
                [
                    picking(pick, candidate(&[0], &[], first[pick], 1)),
                    picking(pick, candidate(&[1], &[0], second[pick], 1)),
                ]
            };
            part([form(0), form(1)].concat(), vec![0, 1])
        };
        // The cheapest kernel of op 0 has pick 0, that of op 1 has pick 1: the sum of the two would be 20.
        let torn = forms([10, 50], [40, 10]);
        let solved = solve(&torn, &two_picks());
        assert_eq!((solved.end, solved.chosen), (End::Optimal, vec![0, 1]));
        assert_eq!(solve(&forms([40, 10], [40, 10]), &two_picks()).chosen, [2, 3]);
        let most = Some(Most { ns: 49, launches: 2 });
        let bound = Part { terms: Terms { most, ..torn.terms.clone() }, ..torn };
        assert_eq!(solve(&bound, &two_picks()).end, End::Nothing, "only torn kernels take less than 50");
    }

    #[test]
    fn fewer_launches_are_kept_where_they_are_asked_for() {
        let list = vec![candidate(&[0], &[], 10, 1), candidate(&[1], &[0], 10, 1), candidate(&[0, 1], &[], 21, 1)];
        let chosen = |most| {
            let part = part(list.clone(), vec![0, 1]);
            let terms = Terms { most, ..part.terms };
            solve(&Part { terms, ..part }, &Choosable::default()).chosen
        };
        assert_eq!(chosen(None), [0, 1]);
        assert_eq!(chosen(Some(Most { ns: 21, launches: 1 })), [2]);
        assert!(chosen(Some(Most { ns: 20, launches: 1 })).is_empty());
    }

    #[test]
    fn of_equal_times_the_stricter_pick_wins() {
        let both = |exact, loose| {
            let one = |pick, ns| picking(pick, candidate(&[0], &[], ns, 1));
            solve(&part(vec![one(0, exact), one(1, loose)], vec![0]), &two_picks()).chosen
        };
        assert_eq!([both(50, 50), both(50, 49), both(50, 51)], [[0], [1], [0]]);
    }

    #[test]
    fn kernels_of_several_forms_that_wait_for_each_other_are_no_cover() {
        // By pick 0 op 1 comes behind op 0, by pick 1 it is the other way round; the kernels of ops 0 and 1 that are cheap
        // know only their own operands, not each other's pick.
        let free = |ops: &[usize], needs: &[usize], ns| {
            let c = candidate(ops, needs, ns, 1);
            Candidate { across: Across { stores: c.ops.clone(), ..Across::default() }, ..c }
        };
        let list = vec![free(&[0], &[1], 10), free(&[1], &[0], 10), picking(0, candidate(&[0], &[], 30, 1))];
        let solved = solve(&part(list.clone(), vec![0, 1]), &two_picks());
        assert_eq!((solved.end, &solved.chosen, solved.rounds), (End::Optimal, &vec![1, 2], 2));
        assert_eq!(solved.cuts, 1);
        assert_eq!(solve(&part(list.clone(), vec![0, 1]), &two_picks()), solved, "two runs");
        assert_eq!(solve(&part(list[..2].to_vec(), vec![0, 1]), &two_picks()).end, End::Nothing, "only the cycle");
    }

    #[test]
    fn an_op_that_only_one_form_has_is_computed_for_its_readers_alone() {
        // Op 1 reads op 0 by pick 0, and nothing by pick 1.
        let list = |dear| {
            vec![
                picking(0, candidate(&[0], &[], 10, 1)),
                picking(0, candidate(&[1], &[0], 10, 1)),
                picking(1, candidate(&[1], &[], dear, 1)),
            ]
        };
        let chosen = |dear| {
            let terms = Terms { ops: vec![1], optional: vec![0], ..Terms::default() };
            solve(&Part { pool: Pool { list: list(dear), dominated: 0 }, terms }, &two_picks()).chosen
        };
        assert_eq!([chosen(30), chosen(15)], [vec![0, 1], vec![2]]);
    }
}
