//! The mutations, by name: each is one mistake that a generator or a lowering could make.

use unglue_codegen::kp::*;
use unglue_ir::graph::Graph;

use super::rewrite::{Change, Edit};
use super::{blocks, bodies, finishes, shared_heads};

/// What of `check` finds a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finder {
    /// An output has other bits than the interpreter's.
    Output,
    /// A state has.
    State,
    /// Something behind the step's rows, or behind a buffer's end, is written.
    Behind,
    /// The status word is another.
    Status,
    /// A counter is not zero again.
    Counter,
    /// The device refuses an access.
    Fault,
}

/// One mistake in one kernel.
pub struct Mutation {
    pub name: &'static str,
    pub finder: Finder,
    pub graph: fn() -> Graph,
    pub rows_max: u32,
    pub pools: u64,
    pub mutate: fn(&mut Program),
}

pub const fn m(
    name: &'static str,
    finder: Finder,
    (graph, rows_max, pools): (fn() -> Graph, u32, u64),
    mutate: fn(&mut Program),
) -> Mutation {
    Mutation { name, finder, graph, rows_max, pools, mutate }
}

const OUTPUT: Finder = Finder::Output;
const STATE: Finder = Finder::State;
const BEHIND: Finder = Finder::Behind;
const STATUS: Finder = Finder::Status;
const COUNTER: Finder = Finder::Counter;

pub fn all() -> Vec<Mutation> {
    let mut list = arithmetic();
    list.extend(addresses());
    list.extend(handovers());
    list.extend(over_blocks());
    list.extend(shared_heads::all());
    list
}

/// What waves hand one another for sums over blocks.
fn over_blocks() -> Vec<Mutation> {
    let graph = || blocks::matmul_post_sums(4, 70, 96, 24);
    vec![
        m("barrier_before_block_sums_dropped", OUTPUT, (graph, 4, 0), |p| drop_barrier(&mut Edit::of(p))),
        m("sum_of_a_block_for_the_one_before", OUTPUT, (graph, 4, 0), neighbouring_block),
        m("lanes_of_a_block_swapped", OUTPUT, (graph, 4, 0), |p| xor(p, 16, 2)),
    ]
}

fn neighbouring_block(p: &mut Program) {
    let mut e = Edit::of(p);
    let out = e.place("out_z");
    e.first(|e, s| match s {
        Stmt::Store { to, addr: Addr::Uniform { base }, bound, value } if *to == out => {
            let mut list = vec![];
            let base = before(e, &mut list, *base, 1);
            list.push(Stmt::Store { to: out, addr: Addr::Uniform { base }, bound: *bound, value: *value });
            Change::With(list)
        }
        _ => Change::Keep,
    });
}

/// What workgroups hand to the last one to arrive.
fn handovers() -> Vec<Mutation> {
    vec![
        m("one_arrival_too_few", COUNTER, (|| finishes::gate_router(70, 60, 4), 4, 0), |p| arrivals(p, -1)),
        m("one_arrival_too_many", COUNTER, (|| finishes::gate_router(70, 60, 4), 4, 0), |p| arrivals(p, 1)),
        m("arrival_before_the_stores", OUTPUT, (|| finishes::gate_router(70, 60, 4), 4, 0), early_arrival),
        m("all_workgroups_for_some", COUNTER, (|| finishes::router_beside_experts(96, 60, 4), 4, 0), |p| {
            arrivals(p, 9)
        }),
        m("row_finished_from_another", OUTPUT, (|| finishes::gate_router(70, 60, 4), 4, 0), first_row_only),
    ]
}

pub fn arrivals(p: &mut Program, off: i32) {
    Edit::of(p).first(|e, s| {
        let Stmt::GridFinish { counter, index, arrivals, body } = s else { return Change::Keep };
        let mut out = vec![];
        let off = e.int(&mut out, off);
        let arrivals = e.add(&mut out, e.ty(*arrivals), Expr::Bin(Bin::Add, *arrivals, off));
        out.push(Stmt::GridFinish { counter: *counter, index: *index, arrivals, body: body.clone() });
        Change::With(out)
    });
}

/// The contractions come behind the arrival.
fn early_arrival(p: &mut Program) {
    let at = p.body.iter().rposition(|s| matches!(s, Stmt::If { .. })).unwrap();
    let segment = p.body.remove(at);
    p.body.push(segment);
}

/// Every finished row reads what was exchanged of the first.
fn first_row_only(p: &mut Program) {
    let exchanged = |p: &Program, place: Place| match place {
        Place::Buffer(i) => matches!(&p.params[i as usize], Param::Buffer { access: Access::Exchange, .. }),
        Place::Shared(_) => false,
    };
    let copy = p.clone();
    Edit::of(p).first(|e, s| match s {
        Stmt::Let(v, Expr::Load { from, addr: Addr::Contig { base }, bound, vec }) if exchanged(&copy, *from) => {
            let Some(Expr::Bin(Bin::Add, _, at)) = e.def(*base) else { return Change::Keep };
            let addr = Addr::Contig { base: at };
            Change::With(vec![Stmt::Let(*v, Expr::Load { from: *from, addr, bound: *bound, vec: *vec })])
        }
        _ => Change::Keep,
    });
}

/// Sums, lanes, waves, values.
fn arithmetic() -> Vec<Mutation> {
    vec![
        m("last_chunk_dropped", OUTPUT, (|| bodies::matmul(33, 700), 4, 0), shorter_loop),
        m("last_summand_dropped", OUTPUT, (|| bodies::matmul(33, 700), 4, 0), |p| constant(p, 188, 187)),
        m("count_widened", OUTPUT, (|| bodies::matmul(33, 700), 4, 0), |p| constant(p, 188, 189)),
        m("mask_widened", OUTPUT, (|| bodies::rms_norm(199), 4, 0), wider_mask),
        m("mask_narrowed", OUTPUT, (|| bodies::head_norm(6, 40), 4, 0), narrower_mask),
        m("carried_value_not_updated", STATE, (|| bodies::delta(2, 32, 32), 4, 0), stale_value),
        m("barrier_dropped", OUTPUT, (|| bodies::rms_norm(200), 4, 0), |p| drop_barrier(&mut Edit::of(p))),
        m("barrier_before_the_store", OUTPUT, (|| bodies::rms_norm(200), 4, 0), early_barrier),
        m("barrier_of_a_round_dropped", OUTPUT, (|| bodies::sinkhorn(6, 19), 4, 0), drop_barrier_in_loop),
        m("barrier_of_the_best_dropped", OUTPUT, (|| bodies::router(288, 8), 4, 0), drop_barrier_of_best),
        m("lanes_swapped", OUTPUT, (|| bodies::layer_norm(96), 4, 0), |p| xor(p, 4, 16)),
        m("lanes_swapped_at_the_end", OUTPUT, (|| bodies::site_sums(4, 96), 4, 0), |p| xor(p, 8, 1)),
        m("reduction_steps_swapped", OUTPUT, (|| bodies::layer_norm(96), 4, 0), swapped_steps),
        m("fma_as_mul_and_add", OUTPUT, (|| bodies::matmul_swiglu(80, 600), 4, 0), split_fma),
        m("rounding_dropped", OUTPUT, (|| bodies::matmul_post(4, 96, 64), 4, 0), no_rounding),
        m("scale_of_router_one_ulp_off", OUTPUT, (|| bodies::router(18, 4), 4, 0), |p| one_ulp(p, 2.5)),
        m("scale_of_scores_one_ulp_off", OUTPUT, (|| bodies::scores(8, 32, 4), 4, 70), |p| one_ulp(p, 0.25)),
        m("minimum_for_maximum", OUTPUT, (|| bodies::attend(4, 64, 19), 4, 0), minimum),
    ]
}

/// Rows, slots, blocks, choices.
fn addresses() -> Vec<Mutation> {
    vec![
        m("neighbouring_row_stored", OUTPUT, (|| bodies::swiglu(200), 4, 0), neighbouring_row),
        m("row_behind_the_end_stored", BEHIND, (|| bodies::swiglu(200), 4, 0), row_too_many),
        m("rows_counted_for_wanted_rows", BEHIND, (|| bodies::head(96, 50), 4, 0), |p| {
            constant_rows(p, "n_logit_rows")
        }),
        m("state_written_for_padding", STATE, (|| bodies::token_write(64), 4, 0), |p| not_negative(p, "step_row_seq")),
        m("tail_written_for_padding", STATE, (|| bodies::tail_update(32, 4), 4, 16), |p| {
            not_negative(p, "step_row_seq")
        }),
        m("state_written_without_a_slot", STATE, (|| bodies::delta(2, 32, 32), 4, 0), |p| not_negative(p, "step_slot")),
        m("window_written_without_a_slot", STATE, (|| bodies::conv_update(96, 4), 4, 0), |p| {
            not_negative(p, "step_slot")
        }),
        m("pools_of_another_slot_read", OUTPUT, (|| bodies::scores(8, 32, 4), 4, 70), |p| not_negative(p, "step_slot")),
        m("absent_expert_used", OUTPUT, (|| bodies::experts_down(18, 5, 4, 40, 96), 4, 0), |p| {
            not_negative(p, "in_slots")
        }),
        m("block_table_one_off", STATE, (|| bodies::token_write(64), 4, 0), block_before),
        m("last_token_id_not_reported", STATUS, (|| bodies::embed(3, 96, 4), 4, 0), first_bad_id_passes),
        m("tie_takes_the_later_round", OUTPUT, (|| finishes::argmax(1000), 16, 0), later_round),
        m("tie_takes_the_higher_index", OUTPUT, (|| bodies::router(18, 4), 4, 0), higher_index),
        m("weight_from_the_biased_score", OUTPUT, (|| bodies::router(18, 4), 4, 0), biased_weight),
        m("one_tie_too_many", OUTPUT, (|| bodies::select(4, 4), 4, 70), tie_too_many),
    ]
}

fn constant(p: &mut Program, from: i32, to: i32) {
    Edit::of(p).expr(|_, x| (*x == Expr::I32(from)).then_some(Expr::I32(to)));
}

fn one_ulp(p: &mut Program, of: f32) {
    Edit::of(p).expr(|_, x| (*x == Expr::F32(of.to_bits())).then_some(Expr::F32(of.to_bits() + 1)));
}

/// The number of rows is the most that there can be.
fn constant_rows(p: &mut Program, scalar: &str) {
    let at = p.params.iter().position(|q| matches!(q, Param::Scalar { name } if name == scalar));
    let at = at.unwrap_or_else(|| panic!("no `{scalar}`")) as u32;
    Edit::of(p).expr(|_, x| (*x == Expr::Scalar(at)).then_some(Expr::I32(4)));
}

fn shorter_loop(p: &mut Program) {
    Edit::of(p).first(|e, s| match s {
        Stmt::For(f) if e.is_int(f.step, 256) && e.is_int(f.end, 512) => {
            let mut out = vec![];
            let end = e.int(&mut out, 256);
            out.push(Stmt::For(For { end, ..f.clone() }));
            Change::With(out)
        }
        _ => Change::Keep,
    });
}

fn wider_mask(p: &mut Program) {
    Edit::of(p).expr(|e, x| match x {
        Expr::Cmp(Cmp::Lt, a, b) if e.is_int(*b, 199) => Some(Expr::Cmp(Cmp::Le, *a, *b)),
        _ => None,
    });
}

fn narrower_mask(p: &mut Program) {
    // The first group of chains is inside in any case.
    let mut groups = 0..;
    Edit::of(p).first(|e, s| match s {
        Stmt::Let(v, Expr::Cmp(Cmp::Lt, a, b)) if e.is_int(*b, 40) && groups.next() == Some(1) => {
            let mut out = vec![];
            let end = e.int(&mut out, 39);
            let end = e.add(&mut out, e.ty(*b), Expr::Splat(end, 1));
            out.push(Stmt::Let(*v, Expr::Cmp(Cmp::Lt, *a, end)));
            Change::With(out)
        }
        _ => Change::Keep,
    });
}

fn stale_value(p: &mut Program) {
    Edit::of(p).first(|_, s| match s {
        Stmt::For(f) if f.carried.len() >= 32 => {
            let mut f = f.clone();
            f.carried[31].next = f.carried[31].param;
            Change::With(vec![Stmt::For(f)])
        }
        _ => Change::Keep,
    });
}

fn drop_barrier(e: &mut Edit) {
    e.first(|_, s| if *s == Stmt::Barrier { Change::Drop } else { Change::Keep });
}

fn early_barrier(p: &mut Program) {
    let mut e = Edit::of(p);
    drop_barrier(&mut e);
    let sum = e.place("sum");
    e.first(|_, s| match s {
        Stmt::Store { to, .. } if *to == sum => Change::With(vec![Stmt::Barrier, s.clone()]),
        _ => Change::Keep,
    });
}

fn drop_barrier_in_loop(p: &mut Program) {
    Edit::of(p).first(|_, s| match s {
        Stmt::For(f) if f.body.contains(&Stmt::Barrier) => {
            let mut f = f.clone();
            let at = f.body.iter().position(|s| *s == Stmt::Barrier).unwrap();
            f.body.remove(at);
            Change::With(vec![Stmt::For(f)])
        }
        _ => Change::Keep,
    });
}

/// The one between the waves' best elements and their reading.
fn drop_barrier_of_best(p: &mut Program) {
    let mut e = Edit::of(p);
    let at = e.place("at");
    let mut stored = false;
    e.first(|_, s| match s {
        Stmt::Store { to, .. } => {
            stored |= *to == at;
            Change::Keep
        }
        Stmt::Barrier if stored => Change::Drop,
        _ => Change::Keep,
    });
}

fn xor(p: &mut Program, from: u8, to: u8) {
    Edit::of(p).expr(|_, x| match x {
        Expr::XorLane(v, mask) if *mask == from => Some(Expr::XorLane(*v, to)),
        _ => None,
    });
}

fn swapped_steps(p: &mut Program) {
    xor(p, 4, 31);
    xor(p, 1, 4);
    xor(p, 31, 1);
}

fn split_fma(p: &mut Program) {
    Edit::of(p).first(|e, s| match s {
        Stmt::Let(v, Expr::Fma(a, b, c)) => {
            let mut out = vec![];
            let product = e.add(&mut out, e.ty(*v), Expr::Bin(Bin::Mul, *a, *b));
            out.push(Stmt::Let(*v, Expr::Bin(Bin::Add, product, *c)));
            Change::With(out)
        }
        _ => Change::Keep,
    });
}

fn no_rounding(p: &mut Program) {
    Edit::of(p).first(|e, s| match s {
        Stmt::Let(v, Expr::Un(Un::RoundBf16, x)) => {
            let mut out = vec![];
            let minus = e.add(&mut out, e.ty(*v), Expr::Un(Un::Neg, *x));
            out.push(Stmt::Let(*v, Expr::Un(Un::Neg, minus)));
            Change::With(out)
        }
        _ => Change::Keep,
    });
}

fn minimum(p: &mut Program) {
    Edit::of(p).expr(|e, x| match x {
        Expr::Bin(Bin::Max, a, b) if e.ty(*a).elem() == Elem::F32 => Some(Expr::Bin(Bin::Min, *a, *b)),
        _ => None,
    });
}

/// `max(base - n, 0)`.
fn before(e: &mut Edit, out: &mut Vec<Stmt>, base: Val, n: i32) -> Val {
    let ty = e.ty(base);
    let (n, zero) = (e.int(out, n), e.int(out, 0));
    let less = e.add(out, ty, Expr::Bin(Bin::Sub, base, n));
    e.add(out, ty, Expr::Bin(Bin::Max, less, zero))
}

fn neighbouring_row(p: &mut Program) {
    let mut e = Edit::of(p);
    let out = e.place("out_out");
    e.first(|e, s| match s {
        Stmt::Store { to, addr: Addr::Contig { base }, bound, value } if *to == out => {
            let mut list = vec![];
            let base = before(e, &mut list, *base, 200);
            let addr = Addr::Contig { base };
            list.push(Stmt::Store { to: out, addr, bound: *bound, value: *value });
            Change::With(list)
        }
        _ => Change::Keep,
    });
}

fn row_too_many(p: &mut Program) {
    Edit::of(p).expr(|e, x| match x {
        Expr::Cmp(Cmp::Lt, a, b) if e.def(*a) == Some(Expr::Group(0)) => Some(Expr::Cmp(Cmp::Le, *a, *b)),
        _ => None,
    });
}

/// What is loaded from an array, 0 in place of -1.
fn not_negative(p: &mut Program, array: &str) {
    let mut e = Edit::of(p);
    let place = e.place(array);
    e.first(|e, s| match s {
        Stmt::Let(v, x @ Expr::Load { from, .. }) if *from == place => {
            let mut out = vec![];
            let loaded = e.add(&mut out, e.ty(*v), x.clone());
            let zero = e.int(&mut out, 0);
            out.push(Stmt::Let(*v, Expr::Bin(Bin::Max, loaded, zero)));
            Change::With(out)
        }
        _ => Change::Keep,
    });
}

fn block_before(p: &mut Program) {
    let mut e = Edit::of(p);
    let table = e.place("step_block_table");
    e.first(|e, s| match s {
        Stmt::Let(v, Expr::Load { from, addr: Addr::Uniform { base }, bound, vec }) if *from == table => {
            let mut out = vec![];
            let base = before(e, &mut out, *base, 1);
            let addr = Addr::Uniform { base };
            out.push(Stmt::Let(*v, Expr::Load { from: table, addr, bound: *bound, vec: *vec }));
            Change::With(out)
        }
        _ => Change::Keep,
    });
}

fn first_bad_id_passes(p: &mut Program) {
    Edit::of(p).expr(|e, x| match x {
        Expr::Cmp(Cmp::Ge, a, b) if e.is_int(*b, 3) => Some(Expr::Cmp(Cmp::Gt, *a, *b)),
        _ => None,
    });
}

fn later_round(p: &mut Program) {
    Edit::of(p).expr(|e, x| match x {
        Expr::Cmp(Cmp::Gt, a, b) if e.ty(*a) == Ty::Lane(Elem::I32, 1) => Some(Expr::Cmp(Cmp::Ge, *a, *b)),
        _ => None,
    });
}

/// Of the lanes that tie, the second takes the place of the first, if there are two.
fn higher_index(p: &mut Program) {
    Edit::of(p).first(|e, s| {
        let Stmt::Let(v, Expr::Un(Un::Ctz, ties)) = s else { return Change::Keep };
        let (ty, mut out) = (e.ty(*ties), vec![]);
        let (zero, one) = (e.int(&mut out, 0), e.int(&mut out, 1));
        let less = e.add(&mut out, ty, Expr::Bin(Bin::Sub, *ties, one));
        let others = e.add(&mut out, ty, Expr::Bin(Bin::And, *ties, less));
        let several = e.add(&mut out, Ty::Uniform(Elem::Bool), Expr::Cmp(Cmp::Ne, others, zero));
        let taken = e.add(&mut out, ty, Expr::Select(several, others, *ties));
        out.push(Stmt::Let(*v, Expr::Un(Un::Ctz, taken)));
        Change::With(out)
    });
}

fn biased_weight(p: &mut Program) {
    let mut e = Edit::of(p);
    // Values 2 and 4 of the graph: the scores, and their sums with the bias.
    let (scores, biased) = (e.place("v2"), e.place("v4"));
    e.expr(|_, x| match x {
        Expr::Load { from, addr: addr @ Addr::Lanes { .. }, bound, vec } if *from == scores => {
            Some(Expr::Load { from: biased, addr: *addr, bound: *bound, vec: *vec })
        }
        _ => None,
    });
}

fn tie_too_many(p: &mut Program) {
    let is_rank = |e: &Edit, v: Val| match e.def(v) {
        Some(Expr::Bin(Bin::Add, scan, _)) => matches!(e.def(scan), Some(Expr::ScanAdd(_))),
        _ => false,
    };
    Edit::of(p).expr(|e, x| match x {
        Expr::Cmp(Cmp::Lt, a, b) if is_rank(e, *a) => Some(Expr::Cmp(Cmp::Le, *a, *b)),
        _ => None,
    });
}
