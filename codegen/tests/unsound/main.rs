//! Mutated kernels: `check` finds every one of them, each by the part that must find it, and nothing in the kernels that
//! they were made from.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../kernels/blocks.rs"]
#[allow(dead_code, reason = "sums over blocks of kernels that are not mutated")]
mod blocks;
#[path = "../kernels/bodies.rs"]
#[allow(dead_code, reason = "bodies of kernels that are not mutated")]
mod bodies;
#[path = "../kernels/finishes.rs"]
#[allow(dead_code, reason = "finishes of kernels that are not mutated")]
mod finishes;
mod mutations;
#[path = "../kernels/packed_bodies.rs"]
#[allow(dead_code, reason = "bodies of kernels that are not mutated")]
mod packed_bodies;
mod rewrite;
mod shared_heads;
mod split;
#[path = "../kernels/spreads.rs"]
#[allow(dead_code, reason = "heads of kernels that are not mutated")]
mod spreads;
#[path = "../kernels/tile_bodies.rs"]
#[allow(dead_code, reason = "bodies of kernels that are not mutated")]
mod tile_bodies;
mod tile_experts;
mod tiles;

use unglue_codegen::bundle::describe::{Facts, kernel};
use unglue_codegen::check::{Mismatch, Subject, check};
use unglue_codegen::generate::{Generated, generate};
use unglue_codegen::kp::{Program, verify};
use unglue_codegen::{link, llvm, target};
use unglue_ir::graph::Graph;
use unglue_passes::schedule::{Bucket, Products, Schedule, fit, schedule};
use unglue_runtime::{Code, CpuDevice, CpuOptions, Device, Guard, manifest};

use mutations::{Finder, Mutation};

/// Seeds of a check; all that `check` draws beside random numbers is in them.
const SEEDS: u64 = 6;

/// A kernel before it is compiled.
struct Subjected {
    graph: Graph,
    bucket: Bucket,
    schedule: Schedule,
    made: Generated,
}

fn subjected(name: &str, graph: &Graph, rows_max: u32, pools: u64) -> Subjected {
    let bucket = Bucket { rows_max, seqs_max: 4.min(rows_max), pools, fit: &fit::GFX1201 };
    let schedule = schedule(graph, &bucket).unwrap_or_else(|o| panic!("{name}: {o:?}"));
    let made = generate(name, graph, &schedule, bucket.pools).unwrap_or_else(|e| panic!("{name}: {e}"));
    Subjected { graph: graph.clone(), bucket, schedule, made }
}

/// Compiles a program in the kernel's place; what the seeds find.
fn found(s: &Subjected, program: Program) -> Option<Mismatch> {
    let name = program.name.clone();
    verify::verify(&program).unwrap_or_else(|e| panic!("{name}: {e}\n{}", program.to_text()));
    let t = target::by_name("x86-64").unwrap();
    let object = llvm::compile_object(&program, t).unwrap_or_else(|e| panic!("{e}\n{}", program.to_text()));
    found_in(s, program, object)
}

/// What the seeds find in an object of the kernel.
fn found_in(s: &Subjected, program: Program, object: Vec<u8>) -> Option<Mismatch> {
    let (name, t) = (program.name.clone(), target::by_name("x86-64").unwrap());
    let code = link::shared_object(&[(name.clone(), object)], t).unwrap();
    let facts = Facts { class: "other".into(), exactness: manifest::Exactness::Exact, ops: vec![] };
    let made = Generated { program, ..s.made.clone() };
    let k = kernel(&s.graph, &s.schedule, &made, facts);
    let options = CpuOptions { threads: 2, guard: Guard::Aligned, poison_shared: true };
    let mut device = CpuDevice::new(options).unwrap();
    device.load(&[k], &[Code { kernel: None, bytes: &code }]).unwrap();
    let (uses, grid) = (&s.made.uses, s.schedule.grid());
    let bounded = matches!(s.schedule.products, Products::Tiles { .. });
    let subject = Subject { name: &name, number: 0, graph: &s.graph, uses, grid, bucket: s.bucket, bounded };
    (0..SEEDS).find_map(|seed| check(&mut device, &subject, seed).unwrap_or_else(|e| panic!("{e}")))
}

/// What found a mismatch.
fn finder(wrong: &Mismatch, graph: &Graph) -> Finder {
    match wrong.value.as_str() {
        "launch" => Finder::Fault,
        "counter" => Finder::Counter,
        "status" => Finder::Status,
        _ if wrong.interpreter == "untouched" => Finder::Behind,
        value if graph.states().any(|(role, _)| role == value) => Finder::State,
        _ => Finder::Output,
    }
}

/// What is wrong with a mutation; `None` if its finder finds it.
fn missed(m: &Mutation) -> Option<String> {
    let s = subjected(m.name, &(m.graph)(), m.rows_max, m.pools);
    let mut mutated = s.made.program.clone();
    (m.mutate)(&mut mutated);
    if mutated == s.made.program {
        return Some(format!("{}: the mutation found nothing to change\n{}", m.name, mutated.to_text()));
    }
    if let Some(wrong) = found(&s, s.made.program.clone()) {
        return Some(format!("{}: the kernel is wrong before it is mutated: {wrong}", m.name));
    }
    match found(&s, mutated) {
        Some(wrong) => {
            println!("{:<40} {wrong}", m.name);
            let by = finder(&wrong, &s.graph);
            (by != m.finder).then(|| format!("{}: {:?} should find it, found by {by:?}: {wrong}", m.name, m.finder))
        }
        None => Some(format!("{}: not found by {SEEDS} seeds", m.name)),
    }
}

#[test]
fn every_mutated_kernel_is_found_by_its_finder() {
    all_are_found(&mutations::all(), 20);
}

#[test]
fn every_mutated_kernel_on_tiles_is_found_by_its_finder() {
    all_are_found(&tiles::all(), 7);
}

#[test]
fn every_mutated_kernel_over_int4_or_experts_is_found_by_its_finder() {
    all_are_found(&tile_experts::all(), 10);
}

fn all_are_found(all: &[Mutation], least: usize) {
    assert!(all.len() >= least, "{}", all.len());
    let wrong: Vec<String> = all.iter().filter_map(missed).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The reset is no statement: it is taken out of the lowered text.
#[test]
fn a_counter_that_is_not_set_back_is_found() {
    let s = subjected("stale_counter", &finishes::gate_router(70, 60, 4), 4, 0);
    let (p, t) = (&s.made.program, target::by_name("x86-64").unwrap());
    let text = llvm::ir_text(p, t).unwrap();
    let kept: Vec<&str> = text.lines().filter(|l| !l.contains("store atomic i32 0")).collect();
    assert_eq!(kept.len() + 1, text.lines().count());
    let found = |text: &str| found_in(&s, p.clone(), llvm::compile_text(text, &p.name, t).unwrap());
    assert_eq!(found(&text), None);
    assert_eq!(found(&kept.join("\n")).map(|wrong| wrong.value), Some("counter".into()));
}
