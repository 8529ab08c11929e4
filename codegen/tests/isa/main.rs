//! Conformance of the gfx12 emulator: each opcode against a definition written from the ISA's text.
//!
//! A module per theme holds definitions and tests. The last test here holds the lists against the emulator's table:
//! every opcode of the table is defined and every defined opcode is in the table.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;

use unglue_codegen::emu::op::accepts;
use unglue_codegen::emu::{ops, step};

mod atomics;
mod buffer;
mod compare;
mod control;
mod convert;
mod cross_lane;
mod division;
mod dot;
mod double;
mod dpp;
mod faults;
mod float32;
mod forms;
mod fp8;
mod global;
mod half;
mod handmade;
mod harness;
mod integer;
mod lds;
mod matrix;
mod packed;
mod pairs;
mod rig;
mod scalar;
mod scalar_float;
mod scratch;
mod short;
mod smem;
mod soft;
mod stage;
mod values;

use harness::{Def, SATURATES};

/// Those that the emulator's table has.
fn known(defs: &[Def]) -> Vec<Def> {
    defs.iter().filter(|def| step::lookup(def.name).is_some()).copied().collect()
}

/// Definitions that the harness runs.
fn definitions() -> Vec<&'static Def> {
    let groups = [float32::ALL, integer::ALL, short::ALL, compare::ALL, convert::ALL, division::ALL, fp8::ALL];
    groups.into_iter().flatten().copied().flatten().collect()
}

/// Definitions of opcodes that the table need not have.
fn optional() -> Vec<&'static Def> {
    [float32::OPTIONAL, integer::OPTIONAL, convert::OPTIONAL].into_iter().flatten().copied().flatten().collect()
}

/// Opcodes with a test of their own.
fn listed() -> Vec<&'static str> {
    let lists: &[&[&str]] = &[
        atomics::DEFINED,
        buffer::DEFINED,
        control::DEFINED,
        cross_lane::DEFINED,
        division::DEFINED,
        dot::DEFINED,
        double::DEFINED,
        dpp::DEFINED,
        faults::DEFINED,
        fp8::DEFINED,
        global::DEFINED,
        half::DEFINED,
        lds::DEFINED,
        matrix::DEFINED,
        packed::DEFINED,
        pairs::DEFINED,
        scalar::DEFINED,
        scalar_float::DEFINED,
        scratch::DEFINED,
        short::DEFINED,
        smem::DEFINED,
    ];
    lists.iter().copied().flatten().copied().collect()
}

/// Modifiers on which definitions and table have to agree.
const COMPARED: u16 = accepts::NEG_ABS | accepts::CLAMP;

#[test]
fn complete() {
    let defined: BTreeSet<&str> = definitions().iter().map(|def| def.name).chain(listed()).collect();
    let optional: BTreeSet<&str> = optional().iter().map(|def| def.name).chain(fp8::OPTIONAL.iter().copied()).collect();
    let table: BTreeSet<&str> = ops::all().map(|op| op.name).collect();
    let undefined: Vec<_> = table.iter().filter(|name| !defined.contains(*name) && !optional.contains(*name)).collect();
    let absent: Vec<_> = defined.difference(&table).collect();
    let untested: Vec<_> = definitions()
        .into_iter()
        .filter_map(|def| {
            let saturates = if def.mods & SATURATES != 0 { accepts::CLAMP } else { 0 };
            let accepted = step::lookup(def.name)?.accepts & COMPARED & !saturates;
            (accepted & !def.mods != 0).then(|| format!("{} {:#x}", def.name, accepted & !def.mods))
        })
        .collect();
    assert!(
        undefined.is_empty() && absent.is_empty() && untested.is_empty(),
        "in the table without a definition: {undefined:?}\n\
         defined, not in the table: {absent:?}\n\
         modifiers that the table accepts and no definition tests: {untested:?}"
    );
}

#[test]
fn names_are_unique() {
    let mut seen = BTreeSet::new();
    for op in ops::all() {
        assert!(seen.insert(op.name), "{} twice", op.name);
    }
}
