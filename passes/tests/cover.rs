//! Invariants of covers: every op computed, every value stored once, an order that respects data and state, and kernels
//! that the IR verifier accepts and that together compute the body's bits.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{all, bucket};
use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::interp::draw::{Rng, draw, draw_weight};
use unglue_ir::interp::{Batch, Dims, StateData, Tensor, WeightRef, eval_graph};
use unglue_ir::op::{Op, Unary};
use unglue_ir::types::DType;
use unglue_passes::cost::GFX1201;
use unglue_passes::facts::Facts;
use unglue_passes::kernel::Verdict;
use unglue_passes::schedule::{Bucket, Fit, fit};
use unglue_passes::{BodyCover, CoverOptions, Limits, Numerics, Strategy, Subject, Wish, cover, optimise, tie_ns};

fn covered(body: &Graph, strategy: Strategy, rows: u32) -> BodyCover {
    let (body, _) = optimise(body, Numerics::Exact, &Limits::default()).unwrap();
    cover(&body, &bucket(rows), &GFX1201, strategy, &CoverOptions::default()).unwrap()
}

fn check_invariants(c: &BodyCover) {
    let facts = Facts::new(&c.body);
    let computed: BTreeSet<ValueId> = c.kernels.iter().flat_map(|k| k.ops.iter().copied()).collect();
    assert!(facts.ops().all(|op| computed.contains(&op)), "{}: every op is in a kernel", c.body.name);
    let mut stored: BTreeMap<ValueId, usize> = BTreeMap::new();
    let mut names = BTreeSet::new();
    for (i, k) in c.kernels.iter().enumerate() {
        assert!(names.insert(&k.name) && k.name.len() <= 63, "{}", k.name);
        unglue_ir::verify::graph(&k.graph).unwrap_or_else(|e| panic!("{}: {e}", k.name));
        for (_, v) in &k.reads {
            let root = facts.storage(*v);
            let leaf = matches!(c.body.node(root).op, Op::Input { .. } | Op::Weight { .. } | Op::State { .. });
            assert!(leaf || stored.contains_key(&root), "{} reads %{} before it is stored", k.name, root.0);
        }
        for (_, v) in &k.writes {
            assert!(stored.insert(facts.storage(*v), i).is_none(), "%{} is stored twice", v.0);
        }
    }
    for (name, v) in &c.body.outputs {
        assert!(stored.contains_key(&facts.storage(*v)), "output {name} is stored");
    }
    for (reader, writer) in facts.order() {
        let last = c.kernels.iter().rposition(|k| k.ops.contains(reader)).unwrap();
        let first = c.kernels.iter().position(|k| k.ops.contains(writer)).unwrap();
        assert!(last <= first, "%{} reads a state after %{} replaced it", reader.0, writer.0);
    }
}

#[test]
fn covers_keep_their_invariants() {
    for body in all() {
        unglue_ir::verify::graph(&body).unwrap();
        for strategy in [Strategy::None, Strategy::Greedy, Strategy::Exact] {
            for rows in [1, 4, 16] {
                check_invariants(&covered(&body, strategy, rows));
            }
        }
    }
}

#[test]
fn greedy_launches_less_and_never_predicts_more() {
    for body in all() {
        let (none, greedy) = (covered(&body, Strategy::None, 1), covered(&body, Strategy::Greedy, 1));
        assert!(greedy.kernels.len() * 2 <= none.kernels.len().max(4), "{}: {}", body.name, greedy.kernels.len());
        assert!(greedy.stats.predicted_ns <= none.stats.predicted_ns);
    }
}

#[test]
fn two_runs_are_equal() {
    for body in all() {
        assert_eq!(covered(&body, Strategy::Greedy, 4), covered(&body, Strategy::Greedy, 4));
    }
}

/// gfx1201 with waves as long as they get: both covers of [`common::siblings`] pay for them.
static LONG_WAVES: Fit = Fit { wave_bytes: None, ..fit::GFX1201 };

/// Of kernels that stay apart, no join is as good as none; a join that is says what it loses.
#[test]
fn fewer_launches_win_a_tie() {
    let mut ties = 0;
    for body in all().into_iter().chain((1..=8).map(common::siblings)) {
        let (body, _) = optimise(&body, Numerics::Exact, &Limits::default()).unwrap();
        for (strategy, rows) in [(Strategy::Greedy, 1), (Strategy::Exact, 1), (Strategy::Exact, 16)] {
            let bucket = Bucket { fit: &LONG_WAVES, ..bucket(rows) };
            let c = cover(&body, &bucket, &GFX1201, strategy, &CoverOptions::default()).unwrap();
            let ns = |name: &str| c.kernels.iter().find(|k| k.name == name).unwrap().cost.total();
            for (kernel, r) in c.kernels.iter().flat_map(|k| k.rejected.iter().map(move |r| (k, r))) {
                let Verdict::Cost { loss_ns } = r.verdict else { continue };
                let apart = ns(&kernel.name) + ns(&r.with);
                assert!(loss_ns > tie_ns(apart), "{}: {} with {}: {loss_ns}", body.name, kernel.name, r.with);
            }
            for (kernel, step) in c.kernels.iter().flat_map(|k| k.steps.iter().map(move |s| (k, s))) {
                let Some((_, loss)) = step.text.split_once("(tie, ") else { continue };
                let loss: i64 = loss.strip_suffix(" ns)").unwrap().parse().unwrap();
                assert!(loss <= 0 && loss.unsigned_abs() <= tie_ns(kernel.cost.total()), "{}", step.text);
                ties += i32::from(loss < 0);
            }
        }
    }
    assert!(ties > 0);
}

#[test]
fn options_are_obeyed() {
    let body = covered(&common::swiglu(), Strategy::None, 1).body;
    let find = |op: &str| body.ids().filter(|i| body.node(*i).op.name() == op).collect::<Vec<_>>();
    let (sig, muls) = (find("sigmoid"), find("mul"));
    let user = muls.iter().copied().find(|m| body.node(*m).args.contains(&sig[0])).unwrap();
    let together = |options: &CoverOptions, strategy| {
        let c = cover(&body, &bucket(1), &GFX1201, strategy, options).unwrap();
        check_invariants(&c);
        c.kernels.iter().any(|k| k.ops.contains(&sig[0]) && k.ops.contains(&user))
    };
    let force = CoverOptions { force: vec![Wish::ops(sig[0], user)], ..CoverOptions::default() };
    let forbid = CoverOptions { forbid: vec![Wish::ops(sig[0], user)], ..CoverOptions::default() };
    assert!(together(&force, Strategy::None));
    assert!(together(&CoverOptions::default(), Strategy::Greedy));
    assert!(!together(&forbid, Strategy::Greedy));
    assert!(together(&force, Strategy::Exact) && !together(&forbid, Strategy::Exact));
}

/// The recorded reason of each kernel that is one op is what forcing says.
#[test]
fn forcing_reproduces_the_recorded_reason() {
    let (mut costs, mut obstacles) = (0, 0);
    for body in [common::head(4096, 154_880), common::hyper(), common::conv(), common::router()] {
        let (body, _) = optimise(&body, Numerics::Exact, &Limits::default()).unwrap();
        for (strategy, rows) in [(Strategy::Greedy, 1), (Strategy::Exact, 4), (Strategy::Exact, 16)] {
            let plain = cover(&body, &bucket(rows), &GFX1201, strategy, &CoverOptions::default()).unwrap();
            for (kernel, r) in plain.kernels.iter().flat_map(|k| k.rejected.iter().map(move |r| (k, r))) {
                let sides = (Subject::Kernel(kernel.name.clone()), Subject::Kernel(r.with.clone()));
                let force = vec![Wish { a: sides.0, b: sides.1 }];
                let options = CoverOptions { force, ..CoverOptions::default() };
                let forced = cover(&body, &bucket(rows), &GFX1201, strategy, &options);
                match (&r.verdict, forced) {
                    (Verdict::Cost { loss_ns }, Ok(c)) => {
                        costs += 1;
                        check_invariants(&c);
                        assert_eq!(c.stats.wishes.forced[0].delta_ns, *loss_ns as i64, "{} {}", kernel.name, r.with);
                        let delta = c.stats.predicted_ns as i64 - plain.stats.predicted_ns as i64;
                        assert_eq!(delta, *loss_ns as i64);
                    }
                    (Verdict::Obstacle { rule, detail }, Err(e)) => {
                        obstacles += 1;
                        assert!(e.to_string().contains(&format!("{rule}: {detail}")), "{e}");
                    }
                    (Verdict::Cycle, Err(e)) => assert!(e.to_string().contains("another kernel lies between"), "{e}"),
                    (verdict, forced) => panic!("{} {}: {verdict:?}, {forced:?}", kernel.name, r.with),
                }
            }
        }
    }
    assert!(costs > 0 && obstacles > 0, "{costs} costs, {obstacles} obstacles");
}

#[test]
fn an_impossible_force_names_place_and_way_out() {
    let body = covered(&common::conv(), Strategy::None, 1).body;
    let find = |op: &str| body.ids().find(|i| body.node(*i).op.name() == op).unwrap();
    let force = vec![Wish::ops(find("causal_conv"), find("conv_update"))];
    let options = CoverOptions { force, ..CoverOptions::default() };
    let e = cover(&body, &bucket(4), &GFX1201, Strategy::Exact, &options).unwrap_err().to_string();
    for part in ["causal_conv%", "conv_update%", "force-obstacle", "at most 4 row(s)", ";"] {
        assert!(e.contains(part), "{part}: {e}");
    }
    let options = CoverOptions { force: vec![Wish::ops(ValueId(0), find("matmul"))], ..CoverOptions::default() };
    let e = cover(&body, &bucket(4), &GFX1201, Strategy::Exact, &options).unwrap_err().to_string();
    assert!(e.contains("wish-unknown") && e.contains("%0"), "{e}");
}

struct World {
    batch: Batch,
    weights: BTreeMap<String, WeightRef<'static>>,
}

fn eval(
    g: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    states: &mut BTreeMap<String, StateData>,
    w: &World,
) -> BTreeMap<String, Tensor> {
    let weights = |role: &str| Ok::<_, unglue_ir::IrError>(w.weights[role].clone());
    eval_graph(g, inputs, &weights, states, &w.batch, &mut |_, _| {}).unwrap()
}

/// Runs the kernels one after the other, each alone, and compares with the body as declared.
fn check_bits(declared: &Graph, c: &BodyCover) {
    let mut rng = Rng::new(7);
    let batch = Batch::new(&[(0, 5, 2), (1, 0, 1)], 0);
    let dims = Dims::of(&batch, 0);
    let mut inputs = BTreeMap::new();
    for (name, id) in declared.inputs() {
        let Op::Input { domain, .. } = declared.node(id).op else { continue };
        inputs.insert(name.to_owned(), draw(&mut rng, declared.ty(id).tensor().unwrap(), domain, &dims, &batch));
    }
    let mut weights = BTreeMap::new();
    for (name, id) in declared.weights() {
        let t = declared.ty(id).tensor().unwrap();
        let shape: Vec<u64> = t.shape.iter().map(|d| d.fixed().unwrap()).collect();
        weights.insert(name.to_owned(), draw_weight(&mut rng, t.format, &shape).unwrap());
    }
    let world = World { batch, weights };
    let new_states =
        || declared.states().map(|(n, id)| (n.to_owned(), StateData::new(declared.ty(id).state().unwrap(), 2)));
    let (mut before, mut after): (BTreeMap<_, _>, BTreeMap<_, _>) = (new_states().collect(), new_states().collect());
    let want = eval(declared, &inputs, &mut before, &world);

    let facts = Facts::new(&c.body);
    let mut memory: BTreeMap<ValueId, Tensor> = BTreeMap::new();
    for k in &c.kernels {
        let mut args = BTreeMap::new();
        for ((name, id), v) in
            k.graph.inputs().map(|(n, id)| ((n, id), k.reads.iter().find(|(r, _)| r == n).unwrap().1))
        {
            let mut t = inputs.get(name).cloned().unwrap_or_else(|| memory[&facts.storage(v)].clone());
            t.shape = dims.shape(&k.graph.ty(id).tensor().unwrap().shape);
            args.insert(name.to_owned(), t);
        }
        let mut got = eval(&k.graph, &args, &mut after, &world);
        for (name, v) in &k.writes {
            if let Some(t) = got.remove(name) {
                memory.insert(facts.storage(*v), t);
            }
        }
    }
    for (name, v) in &c.body.outputs {
        if let Some(want) = want.get(name) {
            let got = &memory[&facts.storage(*v)];
            assert!(want.data == got.data, "{}: output {name} differs", c.body.name);
        }
    }
    assert_eq!(before, after, "{}: states differ", c.body.name);
}

#[test]
fn kernels_one_after_the_other_give_the_bits_of_the_declared_body() {
    for body in all() {
        for strategy in [Strategy::None, Strategy::Greedy, Strategy::Exact] {
            check_bits(&body, &covered(&body, strategy, 4));
        }
    }
}

/// What blocks a fusion is named as an op of the body, and belongs to one of the two kernels.
#[test]
fn obstacles_name_ops_of_the_body() {
    let mut named = 0;
    for body in all() {
        let cover = cover(&body, &bucket(4), &GFX1201, Strategy::Greedy, &CoverOptions::default()).unwrap();
        for k in &cover.kernels {
            for r in &k.rejected {
                let Verdict::Obstacle { detail, .. } = &r.verdict else { continue };
                let Some((op, rest)) = detail.split_once('%') else { continue };
                let op = op.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap();
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                let node = &body.nodes[digits.parse::<usize>().unwrap()];
                assert_eq!(node.op.name(), op, "{}: {detail}", k.name);
                named += 1;
            }
        }
    }
    assert!(named > 0, "no obstacle names an op");
}

/// Readers widen what they load; a copy that is a result has a kernel of its own.
#[test]
fn wider_copies_of_inputs_are_free() {
    let body = |stored: bool| {
        let mut b = Builder::new("wider");
        let x = common::streams(&mut b, &[common::D]);
        let f = b.cast(x, DType::F32).unwrap();
        let y = b.unary(Unary::Neg, f).unwrap();
        b.output("y", y);
        if stored {
            b.output("f", f);
        }
        b.finish()
    };
    let ops = |g: &Graph| Facts::new(g).ops().map(|id| g.node(id).op.name()).collect::<Vec<_>>();
    assert_eq!(ops(&body(false)), ["neg"]);
    assert_eq!(ops(&body(true)), ["cast", "neg"]);
}
