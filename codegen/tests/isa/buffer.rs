//! Loads and stores through buffer descriptors: widths, offsets, what lies beyond the buffer, what is refused.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use unglue_codegen::counts::{Class, Traffic};
use unglue_codegen::emu::fault::Fault;
use unglue_codegen::emu::snippet::Surroundings;
use unglue_codegen::emu::wave::Wave;

use super::global::{masks, own_places, places};
use super::stage::{
    Accesses, LOADS, Random, Report, STORES, after_load, after_store, contents, exec, random_wave, region, registers,
    words,
};

/// Opcodes that are defined here.
#[rustfmt::skip]
pub const DEFINED: &[&str] = &[
    "buffer_load_u8", "buffer_load_i8", "buffer_load_u16", "buffer_load_i16", "buffer_load_b32", "buffer_load_b64",
    "buffer_load_b96", "buffer_load_b128", "buffer_load_d16_u8", "buffer_load_d16_i8", "buffer_load_d16_b16",
    "buffer_load_d16_hi_u8", "buffer_load_d16_hi_i8", "buffer_load_d16_hi_b16", "buffer_store_b8", "buffer_store_b16",
    "buffer_store_b32", "buffer_store_b64", "buffer_store_b96", "buffer_store_b128", "buffer_store_d16_hi_b8",
    "buffer_store_d16_hi_b16",
];

/// Bytes of memory, of which the descriptor covers the first.
const BYTES: u32 = 2048;
const COVERED: u32 = 1536;
/// Checks by offset alone, 32-bit elements; type 0.
const RAW: u32 = 0x3102_7000;

fn describe(w: &mut Wave, base: u64) {
    let high = (base >> 32) as u32;
    for (n, word) in [base as u32, high, COVERED, RAW].into_iter().enumerate() {
        w.sgpr[4 + n] = word;
    }
}

/// Offsets of lanes, some far beyond the buffer, and where they point; none where they point beyond it.
fn point(w: &mut Wave, at: &[u32; 32], immediate: u32) -> [Option<usize>; 32] {
    std::array::from_fn(|l| {
        let beyond = l % 5 == 3;
        w.vgpr[2][l] = if beyond { [0x8000_0000, COVERED][l % 2] } else { at[l].wrapping_sub(immediate) };
        let offset = u64::from(w.vgpr[2][l]) + u64::from(immediate);
        (offset < COVERED.into()).then_some(offset as usize)
    })
}

#[test]
fn loads() {
    let (mut r, mut report) = (Random(70), Report::default());
    let data = r.bytes(BYTES as usize);
    let memory = words(&data);
    let mut around = Surroundings::default();
    let base = around.space.add(region("data", &memory, BYTES.into()));
    for access in LOADS {
        let (name, bytes, ..) = access;
        for immediate in [0, 64] {
            let text = format!("buffer_load_{name} {}, v2, s[4:7], null offen offset:{immediate}", registers(8, bytes));
            for mask in masks(&mut r) {
                let mut w = random_wave(&mut r);
                let mut at = places(&mut r, bytes, COVERED);
                at.iter_mut().for_each(|at| *at = (*at).max(immediate));
                w.set_exec(mask);
                describe(&mut w, base);
                let at = point(&mut w, &at, immediate);
                let want = after_load(&w, access, |l| at[l].map_or(&[0; 16][..], |at| &data[at..]));
                inside(LOAD, bytes, (mask, &at)).load(&text, (&mut w, &mut around), &want, &mut report);
            }
        }
    }
}

const LOAD: (Class, Traffic) = (Class::GlobalLoad, Traffic::GlobalLoad);
const STORE: (Class, Traffic) = (Class::GlobalStore, Traffic::GlobalStore);

/// Lanes beyond the buffer move nothing.
fn inside((class, traffic): (Class, Traffic), bytes: u32, (mask, at): (u32, &[Option<usize>; 32])) -> Accesses {
    let lanes = (0..32).filter(|l| mask >> l & 1 == 1 && at[*l].is_some()).count() as u32;
    Accesses { class, traffic, bytes, lanes }
}

#[test]
fn stores() {
    let (mut r, mut report) = (Random(71), Report::default());
    for access in STORES {
        let (name, bytes, ..) = access;
        let text = format!("buffer_store_{name} {}, v2, s[4:7], null offen", registers(8, bytes));
        for mask in masks(&mut r) {
            let mut data = r.bytes(BYTES as usize);
            let memory = words(&data);
            let mut around = Surroundings::default();
            let base = around.space.add(region("data", &memory, BYTES.into()));
            let (mut w, at) = (random_wave(&mut r), own_places(&mut r, bytes, COVERED));
            w.set_exec(mask);
            describe(&mut w, base);
            let at = point(&mut w, &at, 0);
            after_store(&w, access, |l| at[l], &mut data);
            let same = |_: &mut Surroundings<'_>| contents(&memory, BYTES as usize) == data;
            inside(STORE, bytes, (mask, &at)).store(&text, (&mut w, &mut around), same, &mut report);
        }
    }
}

/// Without an offset register, all lanes are at the immediate one.
#[test]
fn no_offset_register() {
    let data: Vec<u8> = (0..=255).collect();
    let memory = words(&data);
    let mut around = Surroundings::default();
    let base = around.space.add(region("data", &memory, 256));
    let mut w = Wave::new(0);
    describe(&mut w, base);
    exec("buffer_load_b32 v8, off, s[4:7], null offset:12", &mut w, &mut around).unwrap();
    assert_eq!(w.vgpr[8], [0x0f0e_0d0c; 32]);
}

/// Other kinds of buffers, scalar offsets, accesses across the end, and what the memory behind the descriptor lacks.
#[test]
fn refused() {
    let memory = words(&[0; 64]);
    let mut around = Surroundings::default();
    let base = around.space.add(region("data", &memory, 64));
    let mut run = |text: &str, change: &dyn Fn(&mut Wave)| {
        let mut w = Wave::new(0);
        describe(&mut w, base);
        change(&mut w);
        exec(text, &mut w, &mut around).map(|_| ())
    };
    let text = "buffer_load_b64 v[8:9], v2, s[4:7], null offen";
    assert_eq!(run(text, &|_| {}), Ok(()));
    let kinds: [&dyn Fn(&mut Wave); 4] = [
        &|w| w.sgpr[5] |= 4 << 16,       // stride
        &|w| w.sgpr[5] |= 1 << 30,       // swizzle
        &|w| w.sgpr[7] |= 1 << 23,       // index from the lane
        &|w| w.sgpr[7] &= !(1u32 << 28), // checks by index
    ];
    for change in kinds {
        assert!(matches!(run(text, change), Err(Fault::Operand(found)) if found.contains("descriptor")));
    }
    let scalar = run("buffer_load_b64 v[8:9], v2, s[4:7], s9 offen", &|w| w.sgpr[9] = 8);
    assert!(matches!(scalar, Err(Fault::Operand(found)) if found.contains("scalar offset")));
    assert!(matches!(run("buffer_load_b64 v[8:9], v2, s[4:7], null idxen", &|_| {}), Err(Fault::Decode(_))));
    let across = run(text, &|w| w.vgpr[2] = [COVERED - 4; 32]);
    assert!(matches!(across, Err(Fault::Memory { why: "lies partly outside of it", .. })));
    let beyond = run(text, &|w| w.vgpr[2] = [64; 32]);
    assert!(matches!(beyond, Err(Fault::Memory { why: "lies outside of the buffer", .. })), "covered, not there");
}
