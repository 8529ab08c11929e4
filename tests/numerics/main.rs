//! `--numerics`: rewritten bodies against the declared ones in the bound of their class, on the tiny model and on trunks
//! that no model has; and what a rewrite of each class does to the kernels and to the report.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rules;
#[path = "../trunks/mod.rs"]
mod trunks;

use std::collections::BTreeMap;

use trunks::{gelu, glued, layer_norm, mutate, names, no_gate, rewritten, set_body, trunk};
use unglue_codegen::check::rewrite::{Compared, Rewrite, check_rewrite};
use unglue_ir::graph::Graph;
use unglue_ir::module::Module;
use unglue_ir::op::{Binary, Op};
use unglue_models::Activation;
use unglue_passes::analysis::View;
use unglue_passes::language::ENode;
use unglue_passes::rules::{Rule, Term, table};
use unglue_passes::saturate::optimise_with;
use unglue_passes::schedule::{Bucket, fit};
use unglue_passes::{Exactness, Limits, Numerics, optimise};

const BUCKET: Bucket = Bucket { rows_max: 16, seqs_max: 4, pools: 20, fit: &fit::GFX1201 };
/// All that a draw has beside random numbers: padding, ties, sequences without a slot, NaN and infinities.
const SEEDS: u64 = 6;

fn bodies(m: &Module) -> impl Iterator<Item = &Graph> {
    m.bodies.iter()
}

/// What the seeds compared.
fn compared(declared: &Graph, numerics: Numerics) -> Compared {
    let (graph, stats) = optimise(declared, numerics, &Limits::default()).unwrap();
    let r = Rewrite { declared, rewritten: &graph, stats: &stats };
    let mut all = Compared::default();
    for seed in 0..SEEDS {
        let found = check_rewrite(&r, &BUCKET, seed).unwrap();
        if let Some(wrong) = found.wrong {
            panic!("{numerics:?}: {wrong}");
        }
        all.unbounded += found.unbounded;
        found.values.into_iter().for_each(|(class, n)| *all.values.entry(class).or_default() += n);
    }
    all
}

/// Values compared by class, over all bodies.
fn holds(what: &str, m: &Module, numerics: Numerics) -> BTreeMap<Exactness, u64> {
    let mut values = BTreeMap::new();
    for body in bodies(m) {
        let found = compared(body, numerics);
        assert_eq!(found.unbounded, 0, "{what}, {}: bounds that say nothing", body.name);
        found.values.into_iter().for_each(|(class, n)| *values.entry(class).or_default() += n);
    }
    println!("{what}, {}: {values:?}", numerics.name());
    assert!(values.keys().all(|c| numerics.allows(*c)), "{what}");
    values
}

#[test]
fn bodies_of_the_tiny_model_stay_in_the_bound_of_their_class() {
    for (what, dtype) in [("tiny f32", Activation::F32), ("tiny bf16", Activation::Bf16)] {
        let m = trunk(&[], dtype);
        for numerics in Numerics::ALL {
            let values = holds(what, &m, numerics);
            let loose = values.get(&Exactness::Rounding).copied().unwrap_or(0);
            assert_eq!(loose > 0, dtype == Activation::Bf16 && numerics > Numerics::Exact, "roundings to leave out");
        }
    }
}

#[test]
fn bodies_of_mutated_trunks_stay_in_the_bound_of_their_class() {
    for (what, dtype) in [("mutated f32", Activation::F32), ("mutated bf16", Activation::Bf16)] {
        let mut m = trunk(&[("hc_sinkhorn_iters", 3)], dtype);
        for (i, name) in names(&m).iter().enumerate() {
            let body = m.bodies.iter().find(|b| b.name == *name).unwrap();
            let new = glued(&rewritten(body, &mut gelu), 7 + i as u64, 3);
            set_body(&mut m, name, new);
        }
        mutate(&mut m, "dsa", &mut layer_norm);
        mutate(&mut m, "kda", &mut no_gate);
        for numerics in Numerics::ALL {
            holds(what, &m, numerics);
        }
    }
}

/// x * c is x.
fn drop_scale(v: View, n: &ENode) -> Vec<Term> {
    match n.op {
        Op::Binary(Binary::Mul) if v.constant(n.args[1]).is_some() => vec![Term::Class(n.args[0])],
        _ => vec![],
    }
}

#[test]
fn wrong_rewrites_are_found_in_every_class() {
    let m = trunk(&[], Activation::Bf16);
    let declared = glued(m.bodies.iter().find(|b| b.name == "dense").unwrap(), 7, 3);
    let rule = |name: &str| *table().iter().find(|r| r.name == name).unwrap();
    let scale = |class: Exactness| Rule { name: "drop-scale", class, find: drop_scale, ..rule("mul-one") };
    let wrong = [
        Rule { class: Exactness::Exact, ..rule("skip-rounding") },
        scale(Exactness::Exact),
        scale(Exactness::Rounding),
        scale(Exactness::Reassociating),
    ];
    for rule in wrong {
        let (graph, stats) = optimise_with(&declared, &[rule], &Limits::default()).unwrap();
        assert!(!stats.kept_declared, "{}", rule.name);
        let r = Rewrite { declared: &declared, rewritten: &graph, stats: &stats };
        let found = (0..SEEDS).find_map(|seed| check_rewrite(&r, &BUCKET, seed).unwrap().wrong);
        let found = found.unwrap_or_else(|| panic!("{} as {:?} is not found", rule.name, rule.class));
        assert_eq!(found.class, rule.class, "{found}");
    }
}
