//! Scalar loads: widths, address forms, faults, counts.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use unglue_codegen::counts::{Class, Traffic};
use unglue_codegen::emu::fault::Fault;
use unglue_codegen::emu::memory::Words;
use unglue_codegen::emu::snippet::Surroundings;
use unglue_codegen::emu::wave::Wave;

use super::stage::{Access, Part, Random, Report, exec, loaded, only, random_wave, region, words};

/// Opcodes that are defined here.
#[rustfmt::skip]
pub const DEFINED: &[&str] = &[
    "s_load_i8", "s_load_u8", "s_load_i16", "s_load_u16", "s_load_b32", "s_load_b64", "s_load_b96", "s_load_b128",
    "s_load_b256", "s_load_b512",
];

const LOADS: [Access; 10] = [
    ("i8", 1, true, Part::Whole),
    ("u8", 1, false, Part::Whole),
    ("i16", 2, true, Part::Whole),
    ("u16", 2, false, Part::Whole),
    ("b32", 4, false, Part::Whole),
    ("b64", 8, false, Part::Whole),
    ("b96", 12, false, Part::Whole),
    ("b128", 16, false, Part::Whole),
    ("b256", 32, false, Part::Whole),
    ("b512", 64, false, Part::Whole),
];

const BYTES: u32 = 4096;

/// Address operands, the base to put into s[2:3] for an address, and s4 or m0.
struct Form {
    operands: &'static str,
    immediate: i64,
    offset: u32,
}

const FORMS: [Form; 8] = [
    Form { operands: "s[2:3], 0x0", immediate: 0, offset: 0 },
    Form { operands: "s[2:3], 0x7ffff8", immediate: 0x7f_fff8, offset: 0 },
    Form { operands: "s[2:3], -0x800000", immediate: -0x80_0000, offset: 0 },
    Form { operands: "s[2:3], -0x4", immediate: -4, offset: 0 },
    Form { operands: "s[2:3], s4 offset:0x0", immediate: 0, offset: 0x40 },
    // The register is unsigned.
    Form { operands: "s[2:3], s4 offset:0x10", immediate: 16, offset: 0xffff_fff0 },
    Form { operands: "s[2:3], s4 offset:-0x10", immediate: -16, offset: 0x1234_5678 },
    Form { operands: "s[2:3], m0 offset:0x8", immediate: 8, offset: 0x8000_0000 },
];

fn destination(bytes: u32) -> String {
    match bytes.div_ceil(4) {
        1 => "s16".into(),
        n => format!("s[16:{}]", 15 + n),
    }
}

fn surroundings(words: &Words) -> (Surroundings<'_>, u64) {
    let mut around = Surroundings::default();
    let base = around.space.add(region("data", words, BYTES.into()));
    (around, base)
}

fn point(w: &mut Wave, form: &Form, address: u64) {
    let base = address.wrapping_sub(form.offset.into()).wrapping_sub(form.immediate.cast_unsigned());
    w.set_s64(2, base);
    w.sgpr[4] = form.offset;
    w.set_s(125, form.offset);
}

#[test]
fn widths_and_forms() {
    let (mut r, mut report) = (Random(10), Report::default());
    let data = r.bytes(BYTES as usize);
    let memory = words(&data);
    let (mut around, base) = surroundings(&memory);
    for access in LOADS {
        let (name, bytes, ..) = access;
        for form in &FORMS {
            let text = format!("s_load_{name} {}, {}", destination(bytes), form.operands);
            let places = [0, BYTES - bytes, r.below((BYTES - bytes) / bytes.min(4)) * bytes.min(4)];
            for at in places {
                let mut w = random_wave(&mut r);
                // Lanes play no part.
                w.set_exec(0);
                point(&mut w, form, base + u64::from(at));
                let mut want = w.sgpr.to_vec();
                for k in 0..bytes.div_ceil(4) as usize {
                    want[16 + k] = loaded(access, &data[at as usize..], k, 0);
                }
                let scc = w.scc;
                let got = exec(&text, &mut w, &mut around);
                let counted = got
                    .as_ref()
                    .map(|c| (only(c, Traffic::ScalarLoad, 8 * bytes), c.instructions[Class::ScalarLoad as usize]));
                if counted != Ok((Ok(u64::from(bytes)), 1)) || w.sgpr.to_vec() != want || w.scc != scc {
                    report.add(&text, || {
                        format!("{counted:?} at {at}: {:x?}, expected {:x?}", &w.sgpr[16..20], &want[16..20])
                    });
                }
            }
        }
    }
}

/// Address registers are read before the destination is written.
#[test]
fn destination_over_address() {
    let data: Vec<u8> = (0..=255).collect();
    let memory = words(&[data.clone(), vec![0; BYTES as usize - 256]].concat());
    let (mut around, base) = surroundings(&memory);
    let mut w = Wave::new(0);
    w.set_s64(2, base);
    exec("s_load_b64 s[2:3], s[2:3], 0x10", &mut w, &mut around).unwrap();
    assert_eq!((w.sgpr[2], w.sgpr[3]), (0x1312_1110, 0x1716_1514));
    w.set_s64(2, base);
    exec("s_load_b128 s[0:3], s[2:3], 0x20", &mut w, &mut around).unwrap();
    assert_eq!(w.sgpr[..4], [0x2322_2120, 0x2726_2524, 0x2b2a_2928, 0x2f2e_2d2c]);
    w.set_s64(2, base);
    exec("s_load_b32 vcc_lo, s[2:3], 0x4\ns_load_b64 vcc, s[2:3], 0x8", &mut w, &mut around).unwrap();
    assert_eq!(w.s64(106), 0x0f0e_0d0c_0b0a_0908);
}

#[test]
fn faults() {
    let memory = words(&vec![7; BYTES as usize]);
    let (mut around, base) = surroundings(&memory);
    let end = base + u64::from(BYTES);
    let mut run = |text: &str, address: u64| {
        let mut w = Wave::new(0);
        w.set_s64(2, address);
        exec(text, &mut w, &mut around).unwrap_err()
    };
    let outside = |bytes, at: i64| Fault::Memory {
        bytes,
        place: format!("byte {at} of `data` ({BYTES} bytes)"),
        why: "lies outside of the buffer",
    };
    let end_at = i64::from(BYTES);
    assert_eq!(run("s_load_b32 s16, s[2:3], 0x0", end), outside(4, end_at));
    assert_eq!(run("s_load_b32 s16, s[2:3], 0x0", base - 4), outside(4, -4));
    assert_eq!(run("s_load_b64 s[16:17], s[2:3], 0x0", end - 4), outside(8, end_at - 4));
    assert_eq!(run("s_load_b512 s[16:31], s[2:3], 0x0", end - 60), outside(64, end_at - 60));
    assert_eq!(run("s_load_b512 s[16:31], s[2:3], -0x4", base), outside(64, -4));
    assert_eq!(run("s_load_u8 s16, s[2:3], 0x0", end), outside(1, end_at));
    assert_eq!(run("s_load_u16 s16, s[2:3], 0x0", base - 2), outside(2, -2));
    for (text, bytes, at) in [("b32 s16", 4, 2), ("b128 s[16:19]", 16, 1), ("i16 s16", 2, 3)] {
        let place = format!("byte {at} of `data` ({BYTES} bytes)");
        assert_eq!(run(&format!("s_load_{text}, s[2:3], 0x0"), base + at), Fault::Misaligned { bytes, place });
    }
    let null = Fault::Memory { bytes: 4, place: "address 0x0".into(), why: "lies in no buffer" };
    assert_eq!(run("s_load_b32 s16, s[2:3], 0x0", 0), null);
}

/// What may only be read can be read.
#[test]
fn read_only() {
    let memory = words(&[1, 2, 3, 4]);
    let mut around = Surroundings::default();
    let rights = unglue_codegen::emu::memory::Rights::Read;
    let base = around.space.add(unglue_codegen::emu::memory::Region { rights, ..region("r", &memory, 4) });
    let mut w = Wave::new(0);
    w.set_s64(2, base);
    exec("s_load_b32 s16, s[2:3], 0x0", &mut w, &mut around).unwrap();
    assert_eq!(w.sgpr[16], 0x0403_0201);
}
