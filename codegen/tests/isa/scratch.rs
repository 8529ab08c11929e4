//! Private memory: each lane has its own bytes.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use unglue_codegen::counts::{Class, Traffic};
use unglue_codegen::emu::snippet::Surroundings;
use unglue_codegen::emu::wave::Wave;

use super::global::{masks, places};
use super::stage::{LOADS, Random, Report, STORES, exec, loaded, only, random_wave, registers, stored};

/// Opcodes that are defined here.
#[rustfmt::skip]
pub const DEFINED: &[&str] = &[
    "scratch_load_u8", "scratch_load_i8", "scratch_load_u16", "scratch_load_i16", "scratch_load_b32",
    "scratch_load_b64", "scratch_load_b96", "scratch_load_b128", "scratch_load_d16_u8", "scratch_load_d16_i8",
    "scratch_load_d16_b16", "scratch_load_d16_hi_u8", "scratch_load_d16_hi_i8", "scratch_load_d16_hi_b16",
    "scratch_store_b8", "scratch_store_b16", "scratch_store_b32", "scratch_store_b64", "scratch_store_b96",
    "scratch_store_b128", "scratch_store_d16_hi_b8", "scratch_store_d16_hi_b16",
];

const BYTES: u32 = 128;

/// Address operands: (vector, scalar), immediate.
const FORMS: [(&str, &str, i64); 7] = [
    ("off", "off", 0),
    ("off", "off", 12),
    ("v2", "off", 0),
    ("v2", "off", -8),
    ("off", "s4", 4),
    ("v2", "s4", 0),
    ("v2", "s4", -4),
];

/// Sets address registers for a place in each lane; gives the places, which are equal where no register tells lanes
/// apart.
fn point(w: &mut Wave, form: (&str, &str, i64), bytes: u32, r: &mut Random) -> [u32; 32] {
    let (vector, scalar, immediate) = form;
    let mut at = places(r, bytes, BYTES);
    let mut base = 0;
    match (vector, scalar) {
        ("off", "off") => at = [immediate as u32; 32],
        ("off", _) => {
            at = [immediate as u32 + 4 * r.below(8); 32];
            w.sgpr[4] = at[0] - immediate as u32;
        }
        (_, "off") => {}
        _ => {
            base = 16;
            w.sgpr[4] = base;
        }
    }
    let start = i64::from(base) + immediate;
    if vector != "off" {
        // Offsets below 0 would wrap.
        at = at.map(|a| if i64::from(a) < start { a + 16 } else { a });
        at = at.map(|a| a.min(BYTES - bytes));
        w.vgpr[2] = at.map(|a| (i64::from(a) - start) as u32);
    }
    at
}

#[test]
fn loads() {
    let (mut r, mut report) = (Random(30), Report::default());
    for access in LOADS {
        let (name, bytes, ..) = access;
        for form in FORMS {
            let text = text("load", name, form, bytes);
            for mask in masks(&mut r) {
                let mut around = Surroundings { scratch_bytes: BYTES, ..Surroundings::default() };
                let mut w = random_wave(&mut r);
                w.scratch = r.bytes(32 * BYTES as usize);
                w.set_exec(mask);
                let at = point(&mut w, form, bytes, &mut r);
                let mut want = w.vgpr.to_vec();
                for l in (0..32).filter(|l| mask >> l & 1 == 1) {
                    let own = &w.scratch[l * BYTES as usize..];
                    for k in 0..bytes.div_ceil(4) as usize {
                        want[8 + k][l] = loaded(access, &own[at[l] as usize..], k, want[8 + k][l]);
                    }
                }
                let got = exec(&text, &mut w, &mut around);
                let counted = got
                    .as_ref()
                    .map(|c| (only(c, Traffic::ScratchLoad, 8 * bytes), c.instructions[Class::Scratch as usize]));
                let lanes = u64::from(mask.count_ones());
                if counted != Ok((Ok(lanes * u64::from(bytes)), 1)) || w.vgpr.to_vec() != want {
                    report.add(&text, || {
                        format!("exec {mask:x}: {counted:?}, v8 {:x?}, expected {:x?}", w.vgpr[8], want[8])
                    });
                }
            }
        }
    }
}

fn text(what: &str, name: &str, form: (&str, &str, i64), bytes: u32) -> String {
    let (vector, scalar, immediate) = form;
    let data = registers(8, bytes);
    let offset = if immediate == 0 { String::new() } else { format!(" offset:{immediate}") };
    match what {
        "load" => format!("scratch_load_{name} {data}, {vector}, {scalar}{offset}"),
        _ => format!("scratch_store_{name} {vector}, {data}, {scalar}{offset}"),
    }
}

#[test]
fn stores() {
    let (mut r, mut report) = (Random(31), Report::default());
    for access in STORES {
        let (name, bytes, ..) = access;
        for form in FORMS {
            let text = text("store", name, form, bytes);
            for mask in masks(&mut r) {
                let mut around = Surroundings { scratch_bytes: BYTES, ..Surroundings::default() };
                let mut w = random_wave(&mut r);
                w.scratch = r.bytes(32 * BYTES as usize);
                w.set_exec(mask);
                let at = point(&mut w, form, bytes, &mut r);
                let mut want = w.scratch.clone();
                for l in (0..32).filter(|l| mask >> l & 1 == 1) {
                    let held: Vec<u32> = (8..12).map(|n| w.vgpr[n][l]).collect();
                    let first = l * BYTES as usize + at[l] as usize;
                    want[first..first + bytes as usize].copy_from_slice(&stored(access, &held));
                }
                let got = exec(&text, &mut w, &mut around);
                let counted = got
                    .as_ref()
                    .map(|c| (only(c, Traffic::ScratchStore, 8 * bytes), c.instructions[Class::Scratch as usize]));
                let lanes = u64::from(mask.count_ones());
                if counted != Ok((Ok(lanes * u64::from(bytes)), 1)) || w.scratch != want {
                    report.add(&text, || {
                        format!("exec {mask:x}: {counted:?}, scratch as expected: {}", w.scratch == want)
                    });
                }
            }
        }
    }
}
