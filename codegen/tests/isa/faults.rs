//! What must fail, and as what: exact faults of memory, LDS, scratch and decoding.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use unglue_codegen::emu::fault::Fault;
use unglue_codegen::emu::lds::Lds;
use unglue_codegen::emu::memory::{Region, Rights, Space, Words};
use unglue_codegen::emu::snippet::Surroundings;
use unglue_codegen::emu::step::{decode, step};
use unglue_codegen::emu::wave::{PRIVATE_APERTURE, SHARED_APERTURE, Wave};

use super::stage::{code, contents, exec, gfx, region, words};

/// No opcode is defined here.
pub const DEFINED: &[&str] = &[];

const BYTES: u64 = 100;

/// A wave of one active lane, 9, whose v[2:3] is an address; the others point nowhere.
fn pointing(address: u64) -> Wave {
    let mut w = Wave::new(0);
    w.set_exec(1 << 9);
    (w.vgpr[2][9], w.vgpr[3][9]) = (address as u32, (address >> 32) as u32);
    w
}

fn memory_fault(bytes: u32, at: i64, why: &'static str) -> Fault {
    Fault::Memory { bytes, place: format!("byte {at} of `data` ({BYTES} bytes)"), why }
}

const OUTSIDE: &str = "lies outside of the buffer";
const READ_ONLY: &str = "writes to what the kernel may only read";

/// Global accesses: text, bytes, whether it writes.
const ACCESSES: [(&str, u32, bool); 12] = [
    ("global_load_u8 v8, v[2:3], off", 1, false),
    ("global_load_d16_hi_b16 v8, v[2:3], off", 2, false),
    ("global_load_b32 v8, v[2:3], off", 4, false),
    ("global_load_b64 v[8:9], v[2:3], off", 8, false),
    ("global_load_b96 v[8:10], v[2:3], off", 12, false),
    ("flat_load_b128 v[8:11], v[2:3]", 16, false),
    ("global_store_b8 v[2:3], v8, off", 1, true),
    ("global_store_b16 v[2:3], v8, off", 2, true),
    ("flat_store_b32 v[2:3], v8", 4, true),
    ("global_store_b128 v[2:3], v[8:11], off", 16, true),
    ("global_atomic_add_u32 v8, v[2:3], v9, off th:TH_ATOMIC_RETURN", 4, true),
    ("global_atomic_add_u64 v[2:3], v[8:9], off", 8, true),
];

fn in_region(rights: Rights, test: impl Fn(&mut Surroundings<'_>, u64)) {
    let memory = Words::zeroed(BYTES as usize + 8);
    // The region lies at an offset, as in an arena; what surrounds it is no part of it.
    let mut around = Surroundings::default();
    let base = around.space.add(Region { name: "data", words: &memory, offset: 8, bytes: BYTES, rights });
    test(&mut around, base);
    assert_eq!(contents(&memory, 8), [0; 8]);
}

#[test]
fn outside_of_buffers() {
    for (text, bytes, _) in ACCESSES {
        in_region(Rights::ReadWrite, |around, base| {
            let step = u64::from(bytes.min(8));
            let last = (BYTES - u64::from(bytes)) / step * step;
            let mut run = |at: u64| exec(text, &mut pointing(base.wrapping_add(at)), around).map(|_| ());
            assert_eq!(run(last), Ok(()), "{text}");
            // The first place that does not fit whole, one past the end, and one before the start.
            for at in [last + step, BYTES.next_multiple_of(step), step.wrapping_neg()] {
                assert_eq!(run(at), Err(memory_fault(bytes, at.cast_signed(), OUTSIDE)), "{text} at {at}");
            }
        });
    }
}

#[test]
fn read_only_buffers() {
    for (text, bytes, writes) in ACCESSES {
        in_region(Rights::Read, |around, base| {
            let want = if writes { Err(memory_fault(bytes, 8, READ_ONLY)) } else { Ok(()) };
            assert_eq!(exec(text, &mut pointing(base + 8), around).map(|_| ()), want, "{text}");
        });
    }
}

#[test]
fn misaligned_buffers() {
    for (text, bytes, _) in ACCESSES {
        for odd in [1, 2, 4] {
            let align = if text.contains("u64") { 8 } else { u64::from(bytes.min(4)) };
            in_region(Rights::ReadWrite, |around, base| {
                let place = format!("byte {} of `data` ({BYTES} bytes)", 8 + odd);
                let fault = Err(Fault::Misaligned { bytes, place });
                let want = if odd % align == 0 { Ok(()) } else { fault };
                assert_eq!(exec(text, &mut pointing(base + 8 + odd), around).map(|_| ()), want, "{text} + {odd}");
            });
        }
    }
}

#[test]
fn null_and_wild_addresses() {
    // Aligned, so that only the place is wrong.
    for address in [0, 0x1230, 1 << 39, 1 << 63, u64::MAX - 15] {
        for (text, bytes, _) in ACCESSES {
            in_region(Rights::ReadWrite, |around, _| {
                let fault = Fault::Memory { bytes, place: format!("address {address:#x}"), why: "lies in no buffer" };
                assert_eq!(exec(text, &mut pointing(address), around).unwrap_err(), fault, "{text}");
            });
        }
    }
}

/// Lanes that are off may point anywhere.
#[test]
fn inactive_lanes_do_not_fault() {
    for (text, ..) in ACCESSES {
        let mut w = pointing(0);
        w.set_exec(0);
        exec(text, &mut w, &mut Surroundings::default()).unwrap();
    }
}

/// An overrun of one buffer does not reach the next.
#[test]
fn buffers_are_far_apart() {
    let (one, two) = (words(&[1; 16]), words(&[2; 16]));
    let mut space = Space::default();
    let (a, b) = (space.add(region("one", &one, 16)), space.add(region("two", &two, 16)));
    assert!(b - a > 1 << 33);
    for far in [16, 4096, 1 << 32, 1 << 38] {
        assert!(space.load(a + far, 4).is_err() && space.load(b - far, 4).is_err(), "{far}");
    }
    assert_eq!((space.load(a, 4), space.load(b + 12, 4)), (Ok(0x0101_0101), Ok(0x0202_0202)));
}

#[test]
fn outside_of_lds() {
    let cases = [
        ("ds_load_b32 v8, v2", 4, 60, 64),
        ("ds_load_u8 v8, v2", 1, 63, 64),
        ("ds_load_b128 v[8:11], v2", 16, 48, 64),
        ("ds_store_b64 v2, v[8:9]", 8, 56, 64),
        ("ds_store_b8 v2, v8", 1, 63, 64),
        ("ds_load_b32 v8, v2 offset:16", 4, 44, 48),
        ("ds_add_u32 v2, v8", 4, 60, 64),
        ("ds_add_rtn_u64 v[10:11], v2, v[8:9]", 8, 56, 64),
    ];
    for (text, bytes, last, beyond) in cases {
        let run = |at: u32| {
            let mut around = Surroundings { lds: Lds::new(64, 1), ..Surroundings::default() };
            let mut w = pointing(at.into());
            exec(text, &mut w, &mut around).map(|_| ())
        };
        assert_eq!(run(last), Ok(()), "{text}");
        let offset = if text.contains("offset") { 16 } else { 0 };
        let at = u64::from(beyond + offset);
        assert_eq!(run(beyond), Err(Fault::LdsBounds { bytes, offset: at, len: 64 }), "{text}");
        assert!(matches!(run(0u32.wrapping_sub(16)), Err(Fault::LdsBounds { .. }) | Ok(())), "{text}");
    }
    // No LDS at all.
    let mut around = Surroundings { lds: Lds::new(0, 1), ..Surroundings::default() };
    let fault = Fault::LdsBounds { bytes: 4, offset: 0, len: 0 };
    assert_eq!(exec("ds_load_b32 v8, v2", &mut pointing(0), &mut around).unwrap_err(), fault);
}

#[test]
fn misaligned_lds() {
    for (text, bytes, at) in [("ds_load_b32 v8, v2", 4, 2), ("ds_store_b16 v2, v8", 2, 1), ("ds_add_u32 v2, v8", 4, 1)]
    {
        let got = exec(text, &mut pointing(at), &mut Surroundings::default()).unwrap_err();
        assert_eq!(got, Fault::Misaligned { bytes, place: format!("LDS byte {at}") }, "{text}");
    }
}

#[test]
fn outside_of_scratch() {
    let cases = [
        ("scratch_load_b32 v8, v2, off", 4, 28, 32),
        ("scratch_load_u8 v8, v2, off", 1, 31, 32),
        ("scratch_store_b128 v2, v[8:11], off", 16, 16, 20),
        ("scratch_store_b16 v2, v8, off offset:4", 2, 26, 28),
    ];
    for (text, bytes, last, beyond) in cases {
        let run = |at: u32| {
            let mut around = Surroundings { scratch_bytes: 32, ..Surroundings::default() };
            let mut w = pointing(at.into());
            w.scratch = vec![0; 32 * 32];
            exec(text, &mut w, &mut around).map(|_| ())
        };
        assert_eq!(run(last), Ok(()), "{text}");
        let offset = u64::from(beyond + if text.contains("offset") { 4 } else { 0 });
        assert_eq!(run(beyond), Err(Fault::ScratchBounds { bytes, offset, len: 32 }), "{text}");
    }
    let mut around = Surroundings::default();
    let got = exec("scratch_load_b32 v8, off, off", &mut pointing(0), &mut around).unwrap_err();
    assert_eq!(got, Fault::ScratchBounds { bytes: 4, offset: 0, len: 0 });
}

#[test]
fn outside_of_apertures() {
    let run = |text: &str, address: u64| {
        let mut around = Surroundings { lds: Lds::new(64, 1), scratch_bytes: 32, ..Surroundings::default() };
        let mut w = pointing(address);
        w.scratch = vec![0; 32 * 32];
        exec(text, &mut w, &mut around).map(|_| ())
    };
    let load = "flat_load_b32 v8, v[2:3]";
    assert_eq!(run(load, SHARED_APERTURE + 60), Ok(()));
    assert_eq!(run(load, SHARED_APERTURE + 64), Err(Fault::LdsBounds { bytes: 4, offset: 64, len: 64 }));
    assert_eq!(run(load, PRIVATE_APERTURE + 28), Ok(()));
    assert_eq!(run(load, PRIVATE_APERTURE + 32), Err(Fault::ScratchBounds { bytes: 4, offset: 32, len: 32 }));
    assert!(run("global_load_b32 v8, v[2:3], off", SHARED_APERTURE).is_err());
}

/// What decoding refuses, and as what.
#[test]
fn decoding() {
    let one = |text: &str| step(text, 0, 8, 16).map(|_| ());
    assert_eq!(one("v_add_f32_e32 v7, v0, v1"), Ok(()));
    for text in ["v_add_f32_e32 v8, v0, v1", "v_add_f32_e32 v0, v255, v1", "global_load_b128 v[5:8], v[0:1], off"] {
        assert!(matches!(one(text), Err(Fault::RegisterRange(_))), "{text}");
    }
    for text in ["s_mov_b32 s16, 0", "s_mov_b64 s[15:16], 0", "global_load_b32 v0, v1, s[16:17]"] {
        assert!(matches!(one(text), Err(Fault::RegisterRange(_))), "{text}: {:?}", one(text));
    }
    // VCC, exec, m0, ttmp and null are always there.
    for text in ["s_mov_b32 vcc_lo, ttmp9", "s_mov_b32 m0, exec_lo", "s_mov_b32 null, 0"] {
        assert_eq!(one(text), Ok(()), "{text}");
    }
    for text in
        ["image_sample v0, v1, s[0:7], s[8:11] dmask:0x1", "v_nonsense_b32 v0, v1", "export mrt0 v0, v0, v0, v0"]
    {
        assert!(matches!(one(text), Err(Fault::UnknownInstruction | Fault::Decode(_))), "{text}: {:?}", one(text));
    }
    assert_eq!(one("v_nonsense_b32 v0, v1"), Err(Fault::UnknownInstruction));
    assert_eq!(one("v_and_or_b32 v0, v1, v2, v3 clamp"), Err(Fault::Modifier("clamp")));
    assert_eq!(one("v_add_nc_u32_e64 v0, -v1, v2"), Err(Fault::Modifier("neg or abs")));
    assert_eq!(one("v_add_f32_e64 v0, v1, v2 op_sel:[0,0,1]"), Err(Fault::Modifier("op_sel")));
    assert_eq!(one("s_branch 4 offset0:3"), Err(Fault::Modifier("offset0 or offset1")));
    assert!(matches!(one("v_add_f32_e32 v0, q1, v2"), Err(Fault::Decode(_))));
}

/// Instructions that exist and have no model: refused, not guessed.
#[test]
fn not_modelled() {
    let all = [
        "s_call_b64 s[0:1], 4",
        "s_version 1",
        "s_movrels_b32 s0, s1",
        "s_movreld_b64 s[0:1], s[2:3]",
        "s_rfe_b64 s[0:1]",
        "s_barrier_init -1",
        "s_alloc_vgpr s0",
        "s_sleep_var s0",
        "s_and_saveexec_b64 s[0:1], s[2:3]",
        "s_buffer_load_b32 s0, s[4:7], 0x4",
        "ds_load_addtid_b32 v0",
        "ds_append v0",
        "ds_condxchg32_rtn_b64 v[0:1], v2, v[4:5]",
        "global_load_addtid_b32 v0, s[2:3]",
        "global_load_block v[0:31], v[40:41], off",
        "scratch_load_block v[0:31], off, off",
        "global_atomic_ordered_add_b64 v[0:1], v[2:3], v[4:5], off th:TH_ATOMIC_RETURN",
    ];
    for text in all {
        assert_eq!(
            exec(text, &mut Wave::new(0), &mut Surroundings::default()),
            Err(Fault::UnknownInstruction),
            "{text}"
        );
    }
}

/// Code that is no instruction, and where.
#[test]
fn bytes_that_are_no_instruction() {
    let mut bytes = code("s_nop 0\ns_nop 0");
    bytes.extend([0xff; 4]);
    let trap = decode(&bytes, gfx(), 256, 106).unwrap_err();
    assert!(matches!(&trap.fault, Fault::Decode(found) if found.contains("offset 0x8")), "{trap}");
    // A literal that is cut off.
    let cut = code("s_nop 0\ns_mov_b32 s0, 0x12345678");
    let trap = decode(&cut[..8], gfx(), 256, 106).unwrap_err();
    assert!(matches!(trap.fault, Fault::Decode(_)), "{trap}");
    for len in 1..4 {
        assert!(decode(&cut[..len], gfx(), 256, 106).is_err(), "{len}");
    }
    let trap = decode(&code("s_nop 0\nv_add_f32 v8, v0, v0"), gfx(), 8, 106).unwrap_err();
    assert_eq!((trap.pc, trap.text.starts_with("v_add_f32")), (4, true), "{trap}");
}
