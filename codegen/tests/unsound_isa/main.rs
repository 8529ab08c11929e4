//! Mutated machine code: a gate or the emulator finds every change, by name.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../kernels/bodies.rs"]
#[allow(dead_code, reason = "bodies of kernels that are not mutated")]
mod bodies;
mod mutations;

use object::{Object, ObjectSection, ObjectSymbol};
use unglue_codegen::bundle::describe::{Facts, kernel};
use unglue_codegen::check::{Mismatch, Subject, check};
use unglue_codegen::emu::{EmuDevice, EmuOptions, Schedule as Order};
use unglue_codegen::generate::{Generated, generate};
use unglue_codegen::llvm::assemble::assemble;
use unglue_codegen::llvm::disasm;
use unglue_codegen::target::Target;
use unglue_codegen::{CodegenError, gates, link, llvm, target};
use unglue_ir::graph::Graph;
use unglue_passes::schedule::{Bucket, Schedule, fit, schedule};
use unglue_runtime::{Code, Device, manifest};

use mutations::{Finder, MUTATIONS, Mutation, Which};

fn gfx1201() -> &'static Target {
    target::by_name("gfx1201").unwrap()
}

/// A kernel with its machine code.
struct Subjected {
    graph: Graph,
    bucket: Bucket,
    schedule: Schedule,
    made: Generated,
    code: Vec<u8>,
}

fn subjected(m: &Mutation) -> Subjected {
    let graph = (m.graph)();
    let bucket = Bucket { rows_max: m.rows_max, seqs_max: 4.min(m.rows_max), pools: 0, fit: &fit::GFX1201 };
    let schedule = schedule(&graph, &bucket).unwrap_or_else(|o| panic!("{}: {o:?}", m.name));
    let made = generate(m.name, &graph, &schedule, bucket.pools).unwrap_or_else(|e| panic!("{e}"));
    let object = llvm::compile_object(&made.program, gfx1201()).unwrap_or_else(|e| panic!("{e}"));
    let code = link::shared_object(&[(m.name.into(), object)], gfx1201()).unwrap();
    Subjected { graph, bucket, schedule, made, code }
}

/// Bytes of the kernel's code in the file.
fn place(code: &[u8], name: &str) -> std::ops::Range<usize> {
    let file = object::File::parse(code).unwrap();
    let symbol = file.symbols().find(|s| s.name() == Ok(name)).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let first = (symbol.address() - text.address() + text.file_range().unwrap().0) as usize;
    first..first + symbol.size() as usize
}

/// The instructions with their places in the file.
fn instructions(code: &[u8], name: &str) -> Vec<(std::ops::Range<usize>, String)> {
    let place = place(code, name);
    let mut starts: Vec<(usize, String)> = Vec::new();
    disasm::each(&code[place.clone()], gfx1201(), |at, text| starts.push((place.start + at, text.to_owned()))).unwrap();
    let ends = starts.iter().skip(1).map(|(at, _)| *at).chain([place.end]).collect::<Vec<_>>();
    starts.into_iter().zip(ends).map(|((start, text), end)| (start..end, text)).collect()
}

/// Writes an instruction over another that is as long or longer.
fn patch(code: &mut [u8], place: std::ops::Range<usize>, text: &str) {
    let mut bytes = if text.is_empty() { vec![] } else { assemble(text, gfx1201()).unwrap_or_else(|e| panic!("{e}")) };
    let nop = assemble("s_nop 0", gfx1201()).unwrap();
    assert!(bytes.len() <= place.len(), "`{text}` is longer than what it replaces");
    while bytes.len() < place.len() {
        bytes.extend(&nop);
    }
    code[place].copy_from_slice(&bytes);
}

fn mutated(s: &Subjected, m: &Mutation) -> Option<Vec<u8>> {
    let all = instructions(&s.code, m.name);
    let mut found: Vec<_> = all.into_iter().filter_map(|(at, text)| Some((at, (m.change)(&text)?))).collect();
    match m.which {
        Which::All => {}
        Which::First => found.truncate(1),
    }
    let mut code = s.code.clone();
    let any = !found.is_empty();
    found.into_iter().for_each(|(at, text)| patch(&mut code, at, &text));
    any.then_some(code)
}

/// What finds something wrong with code.
#[derive(Debug)]
enum Found {
    Gate(&'static str),
    Emulator(Mismatch),
}

/// The gates, then the emulator in three orders.
fn find(s: &Subjected, name: &str, code: &[u8]) -> Option<Found> {
    match gates::check(code, &s.made.program, gfx1201()) {
        Err(CodegenError::Gate { gate, .. }) => return Some(Found::Gate(gate)),
        Err(e) => panic!("{e}"),
        Ok(_) => {}
    }
    let facts = Facts { class: "other".into(), exactness: manifest::Exactness::Exact, ops: vec![] };
    let k = kernel(&s.graph, &s.schedule, &s.made, facts);
    let limit = EmuOptions { threads: 1, step_limit: 1 << 22, ..EmuOptions::default() };
    let mut device = EmuDevice::new(limit).unwrap();
    device.load(&[k], &[Code { kernel: Some(0), bytes: code }]).unwrap();
    let (uses, grid) = (&s.made.uses, s.schedule.grid());
    let subject = Subject { name, number: 0, graph: &s.graph, uses, grid, bucket: s.bucket, bounded: false };
    for seed in 0..6 {
        let schedule = [Order::Forward, Order::Reverse, Order::Random(seed)][seed as usize % 3];
        device.set_options(EmuOptions { schedule, ..device.options() });
        if let Some(wrong) = check(&mut device, &subject, seed).unwrap_or_else(|e| panic!("{e}")) {
            return Some(Found::Emulator(wrong));
        }
    }
    None
}

/// What is wrong with a mutation; `None` if it is found as it should be.
fn missed(m: &Mutation) -> Option<String> {
    let s = subjected(m);
    if let Some(found) = find(&s, m.name, &s.code) {
        return Some(format!("{}: wrong before it is mutated: {found:?}", m.name));
    }
    let Some(code) = mutated(&s, m) else {
        let all: Vec<String> = instructions(&s.code, m.name).into_iter().map(|(_, text)| text).collect();
        return Some(format!("{}: the mutation found nothing to change in\n{}", m.name, all.join("\n")));
    };
    let found = find(&s, m.name, &code);
    println!("{:<28} {found:?}", m.name);
    let as_it_should = match (&found, m.finder) {
        (Some(Found::Gate(gate)), Finder::Gate(wanted)) => *gate == wanted,
        (Some(Found::Emulator(wrong)), Finder::Fault(part)) => wrong.value == "launch" && wrong.device.contains(part),
        (Some(_), Finder::Result) => true,
        _ => false,
    };
    (!as_it_should).then(|| format!("{}: needed {:?}, found {found:?}", m.name, m.finder))
}

#[test]
fn every_mutation_is_found() {
    assert!(MUTATIONS.len() >= 20, "{}", MUTATIONS.len());
    let wrong: Vec<String> = MUTATIONS.iter().filter_map(missed).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
