//! Splits a wrong kernel down to an op: for each op in turn a kernel of nothing but it and what it needs is made anew,
//! and checked by itself.
//!
//! In: the kernel's graph, and how to make and run a kernel. Out: the first op whose value is wrong while everything
//! before it is right; or that only the whole is wrong; or that the whole, made anew, is right.

use std::collections::BTreeSet;

use unglue_ir::graph::{Graph, ValueId};
use unglue_passes::carve::{Carved, carve, with_stores};
use unglue_passes::facts::Facts;
use unglue_passes::schedule::{Bucket, GridAxis, NEEDS_OUTPUT, Schedule, exchanged_without_output, schedule};
use unglue_runtime::manifest;

use super::Mismatch;
use crate::bundle::describe;
use crate::error::CodegenError;
use crate::generate::{Generated, Use, generate};
use crate::target::Target;
use crate::{link, llvm};

/// A part of a kernel as a kernel of its own.
#[derive(Clone, Debug)]
pub struct Part {
    pub graph: Graph,
    pub schedule: Schedule,
    pub generated: Generated,
}

/// A part, compiled.
#[derive(Debug)]
pub struct Made {
    pub entry: manifest::Kernel,
    /// What the target's linker made of it.
    pub code: Vec<u8>,
    pub uses: Vec<Use>,
    pub grid: [GridAxis; 3],
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// The value of this op of the graph; every op before it that has a kernel of its own is right.
    Op { value: ValueId, wrong: Mismatch },
    /// Every op by itself is right, and the whole is wrong: it takes their being together.
    Whole { wrong: Mismatch },
    /// The whole is right when it is made anew: the code under test is not what this compiler makes.
    OldCode,
}

/// How a kernel was split.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    pub found: Found,
    /// Ops that no kernel of their own takes, with the reason. They were seen only inside later ones.
    pub skipped: Vec<(ValueId, String)>,
    /// Kernels that were made and checked.
    pub tried: u64,
}

/// Makes a kernel and checks it on all draws.
pub type Run<'a> = &'a mut dyn FnMut(Part) -> Result<Option<Mismatch>, CodegenError>;

/// Finds the first wrong op of `graph`, a kernel for steps of `bucket`.
///
/// # Errors
/// [`CodegenError`] if a part cannot be generated, or run at all.
pub fn split(graph: &Graph, bucket: &Bucket, run: Run) -> Result<Split, CodegenError> {
    let facts = Facts::new(graph);
    let mut split = Split { found: Found::OldCode, skipped: vec![], tried: 0 };
    let all: Vec<ValueId> = facts.ops().collect();
    for &op in &all {
        let name = format!("op{}", op.0);
        match part(&name, &facts, &needed(&facts, op), results(&facts, op), bucket)? {
            Err(why) => split.skipped.push((op, why)),
            Ok(part) => {
                split.tried += 1;
                if let Some(wrong) = run(part)? {
                    split.found = Found::Op { value: op, wrong };
                    return Ok(split);
                }
            }
        }
    }
    if let Ok(whole) = part("whole", &facts, &all.into_iter().collect(), graph.outputs.clone(), bucket)? {
        split.tried += 1;
        if let Some(wrong) = run(whole)? {
            split.found = Found::Whole { wrong };
        }
    }
    Ok(split)
}

/// An op and all that it is computed from.
fn needed(facts: &Facts, op: ValueId) -> BTreeSet<ValueId> {
    let mut found = BTreeSet::new();
    let mut todo = vec![op];
    while let Some(op) = todo.pop() {
        if found.insert(op) {
            todo.extend(facts.reads(op).iter().filter_map(|b| facts.maker(*b)));
        }
    }
    found
}

/// What a kernel that ends in `op` stores: states go by their roles.
fn results(facts: &Facts, op: ValueId) -> Vec<(String, ValueId)> {
    let name = |v: ValueId| facts.role(v).map_or_else(|| format!("v{}", v.0), str::to_owned);
    facts.results(op).iter().map(|v| (name(*v), *v)).collect()
}

/// The kernel of some ops, or why they are none.
fn part(
    name: &str,
    facts: &Facts,
    ops: &BTreeSet<ValueId>,
    writes: Vec<(String, ValueId)>,
    bucket: &Bucket,
) -> Result<Result<Part, String>, CodegenError> {
    let mut carved: Carved = carve(facts, ops, writes);
    let mut found = schedule(&carved.graph, bucket);
    if matches!(&found, Err(o) if o.rule == NEEDS_OUTPUT) {
        found = exchanged_without_output(&carved.graph).and_then(|more| {
            carved = with_stores(facts, ops, carved.clone(), &more);
            schedule(&carved.graph, bucket)
        });
    }
    let schedule = match found {
        Ok(schedule) => schedule,
        Err(o) => return Ok(Err(format!("{}: {}", o.rule, o.detail))),
    };
    let generated = generate(name, &carved.graph, &schedule, bucket.pools)?;
    Ok(Ok(Part { graph: carved.graph, schedule, generated }))
}

/// Compiles a part for a target.
///
/// # Errors
/// [`CodegenError`] if LLVM or the linker refuses.
pub fn make(part: &Part, target: &Target) -> Result<Made, CodegenError> {
    let name = part.generated.program.name.clone();
    let facts = describe::Facts { class: "part".into(), exactness: manifest::Exactness::Exact, ops: vec![] };
    let object = llvm::compile_object(&part.generated.program, target)?;
    Ok(Made {
        entry: describe::kernel(&part.graph, &part.schedule, &part.generated, facts),
        code: link::kernel(&name, object, target)?,
        uses: part.generated.uses.clone(),
        grid: part.schedule.grid(),
    })
}
