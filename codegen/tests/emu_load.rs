//! Loading of code objects by the emulator: real ones, damaged ones, and what it has no model for.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

#[path = "isa/handmade.rs"]
mod handmade;
mod support;

use handmade::{object, object_of};
use object::{Object, ObjectSection, ObjectSymbol};
use proptest::prelude::*;
use support::{gemv, gfx1201};
use unglue_codegen::emu::fault::Fault;
use unglue_codegen::emu::load::{Kernel, LoadError, load};
use unglue_codegen::emu::{EmuDevice, EmuOptions};
use unglue_codegen::target::{Target, by_name};
use unglue_runtime::{ArgValue, Code, Device, manifest};

fn gfx() -> &'static Target {
    by_name("gfx1201").unwrap()
}

fn k(bytes: &[u8]) -> Result<Kernel, LoadError> {
    load(bytes, "k", gfx())
}

/// Place in the file of the descriptor of `name`.
fn descriptor(bytes: &[u8], name: &str) -> usize {
    let file = object::File::parse(bytes).unwrap();
    let symbol = file.symbols().find(|s| s.name() == Ok(&format!("{name}.kd"))).unwrap();
    let section = file.section_by_name(".rodata").unwrap();
    (section.file_range().unwrap().0 + symbol.address() - section.address()) as usize
}

const PLAIN: &str = ".amdhsa_user_sgpr_kernarg_segment_ptr 1\n.amdhsa_group_segment_fixed_size 512\n\
                     .amdhsa_private_segment_fixed_size 48\n.amdhsa_kernarg_size 24";

#[test]
fn what_a_descriptor_says() {
    let kernel = k(&object("s_nop 0\ns_endpgm", PLAIN, "")).unwrap();
    assert_eq!((kernel.lds_bytes, kernel.scratch_bytes, kernel.kernarg_bytes), (512, 48, 24));
    assert_eq!(kernel.code.steps.len(), 2);
    assert!(kernel.code.steps[1].text.starts_with("s_endpgm"));
    assert!(kernel.entry.is_multiple_of(256) && kernel.entry < kernel.image_bytes);
}

/// A code object of the compiler's pipeline, its every 64th truncation, and a kernel that it lacks.
#[test]
fn of_the_pipeline() {
    let (bytes, resources) = gfx1201(&gemv(4, true));
    let kernel = load(&bytes, "gemv", gfx()).unwrap();
    assert_eq!((kernel.kernarg_bytes, kernel.lds_bytes), (resources.kernarg_bytes, resources.lds_bytes));
    assert!(kernel.code.steps.iter().any(|s| s.text.starts_with("global_load_b128")));
    for len in (0..bytes.len()).step_by(64) {
        // Sections that only tools read may be cut off.
        match load(&bytes[..len], "gemv", gfx()) {
            Err(LoadError::Format(_) | LoadError::Range(_) | LoadError::Symbol(_)) => {}
            Err(other) => panic!("{len} of {} bytes: {other}", bytes.len()),
            Ok(_) => panic!("{len} of {} bytes load", bytes.len()),
        }
    }
    for name in ["", "gem", "gemv.kd", "other", "gemv\0"] {
        assert!(matches!(load(&bytes, name, gfx()), Err(LoadError::Symbol(_))), "{name}");
    }
}

#[test]
fn other_machines() {
    let good = object("s_endpgm", "", "");
    k(&good).unwrap();
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        k(&bytes)
    };
    // e_flags, e_machine of a 64-bit ELF header.
    assert!(matches!(with(48, 0x41), Err(LoadError::Machine { flags, .. }) if flags & 0xff == 0x41));
    assert!(matches!(with(18, 62), Err(LoadError::Machine { machine: 62, .. })));
    assert!(matches!(k(b""), Err(LoadError::Format(_))));
    assert!(matches!(k(b"\x7fELF"), Err(LoadError::Format(_))));
    assert!(matches!(k(&[0; 4096]), Err(LoadError::Format(_))));
    // 32 bits, big-endian.
    assert!(matches!(with(4, 1), Err(LoadError::Format(_))));
    assert!(with(5, 2).is_err());
}

/// The error about a descriptor that has `bits` set (or, if false, cleared) in the byte at `at`.
fn asks(at: usize, bits: u8, set: bool) -> String {
    let mut bytes = object("s_endpgm", PLAIN, "");
    let place = descriptor(&bytes, "k") + at;
    bytes[place] = if set { bytes[place] | bits } else { bytes[place] & !bits };
    match k(&bytes) {
        Err(LoadError::Descriptor(what)) => what,
        other => panic!("{:?}", other.map(|_| ())),
    }
}

#[test]
fn what_is_not_modelled() {
    // Bits of COMPUTE_PGM_RSRC1: 12..16 rounding, 16..20 denormals.
    assert!(asks(49, 0x10, true).contains("rounding"));
    assert!(asks(49, 0xc0, true).contains("rounding"));
    for bits in [0x1, 0x2, 0x4, 0x8, 0xf] {
        assert!(asks(50, bits, false).contains("denormal"), "{bits}");
    }
    // Properties: 1 dispatch pointer, 2 queue pointer, 4 dispatch id, 10 wave32.
    for bits in [1, 2, 4, 16] {
        assert!(asks(56, bits, true).contains("user SGPRs"), "{bits}");
    }
    assert!(asks(57, 4, false).contains("waves of 64"));
    let bytes = object("s_endpgm", ".amdhsa_user_sgpr_dispatch_ptr 1", "");
    assert!(matches!(k(&bytes), Err(LoadError::Descriptor(_))));
    let bytes = object("s_endpgm", ".amdhsa_float_denorm_mode_32 0", "");
    assert!(matches!(k(&bytes), Err(LoadError::Descriptor(_))));
}

/// An entry outside of the file's code, and code that ends inside of an instruction.
#[test]
fn entries() {
    let good = object("s_endpgm", "", "");
    let place = descriptor(&good, "k") + 16;
    for offset in [i64::MIN, -1 << 40, 1 << 40, i64::MAX] {
        let mut bytes = good.clone();
        bytes[place..place + 8].copy_from_slice(&offset.to_le_bytes());
        assert!(matches!(k(&bytes), Err(LoadError::Range(_))), "{offset}");
    }
    assert!(matches!(k(&object("", "", "")), Err(LoadError::Range(_))));
}

fn code_fault(bytes: &[u8]) -> Fault {
    match k(bytes) {
        Err(LoadError::Code(trap)) => trap.fault,
        other => panic!("{:?}", other.map(|_| ())),
    }
}

#[test]
fn code_that_cannot_run() {
    assert!(matches!(code_fault(&object("s_nop 0\n.long 0xffffffff\ns_endpgm", "", "")), Fault::Decode(_)));
    // The descriptor gives 16.
    let fault = code_fault(&object("v_add_f32 v16, v0, v0\ns_endpgm", "", ""));
    assert!(matches!(fault, Fault::RegisterRange(_)), "{fault}");
    k(&object("v_add_f32 v15, v0, v0\ns_endpgm", "", "")).unwrap();
    assert_eq!(code_fault(&object("s_rfe_b64 s[0:1]", "", "")), Fault::UnknownInstruction);
}

/// Addresses in data are relocated to where the code object lies.
#[test]
fn relocations() {
    use unglue_codegen::emu::memory::{CODE_BASE, Space};
    let data = ".data\n.p2align 3\n.globl table\ntable:\n.quad k\n.quad table+4\n";
    let bytes = object("s_endpgm", "", data);
    let kernel = k(&bytes).unwrap();
    let at =
        object::File::parse(&*bytes).unwrap().dynamic_symbols().find(|s| s.name() == Ok("table")).unwrap().address();
    let mut space = Space::default();
    let base = space.add(kernel.region());
    assert_eq!(base, CODE_BASE);
    let mut words = [0; 4];
    space.load_words(base + at, &mut words).unwrap();
    let pointer = |n: usize| u64::from(words[n]) | u64::from(words[n + 1]) << 32;
    assert_eq!((pointer(0), pointer(2)), (base + kernel.entry, base + at + 4));
}

/// Each item puts its wave's number and, by a half's name, its lane into LDS, and stores what the other wave's put there.
const OTHER_COMPILER: &str = "s_load_b64 s[2:3], s[0:1], 0x0
s_bfe_u32 s4, ttmp8, 0x50019
v_and_b32 v1, 31, v0
v_mov_b32 v2, s4
v_mov_b16 v2.h, v1.l
v_lshlrev_b32 v3, 2, v0
ds_store_b32 v3, v2
s_wait_dscnt 0x0
s_barrier_signal -1
s_barrier_wait -1
v_xor_b32 v4, 0x80, v3
ds_load_b32 v5, v4
s_wait_dscnt 0x0
s_wait_kmcnt 0x0
global_store_b32 v3, v5, s[2:3]
s_endpgm";

const METADATA: &str = ".amdgpu_metadata
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: k
    .symbol: k.kd
    .kernarg_segment_size: 24
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 32
    .sgpr_count: 8
    .vgpr_count: 8
    .max_flat_workgroup_size: 64
.end_amdgpu_metadata";

/// Code that names halves, takes its LDS from the launch, and has hidden arguments after its own.
#[test]
fn of_another_compiler() {
    let t = Target { features: "+real-true16", ..*gfx() };
    let directives = ".amdhsa_user_sgpr_kernarg_segment_ptr 1\n.amdhsa_kernarg_size 24";
    let bytes = object_of(&t, OTHER_COMPILER, directives, METADATA);
    let kernel = k(&bytes).unwrap();
    assert!(kernel.code.steps.iter().any(|s| s.text.contains("v2.h, v1.l")));
    let run = |shared_bytes: u64| {
        let kind = manifest::ParamKind::Buffer { mem: manifest::Mem::I32, access: manifest::Access::Write };
        let param = manifest::Param { name: "out".into(), kind };
        let program = support::B::new("k", 2).finish();
        let mut described = support::described(&program, |_| param.clone());
        (described.shared_bytes, described.params) = (shared_bytes, vec![param.clone()]);
        let mut device = EmuDevice::new(EmuOptions { threads: 1, ..EmuOptions::default() }).unwrap();
        device.load(&[described], &[Code { kernel: Some(0), bytes: &bytes }]).unwrap();
        let id = device.alloc(256).unwrap();
        let launched = device.launch(0, [1, 1, 1], &[ArgValue::Buffer { id, offset: 0, bytes: 256 }]);
        let mut out = vec![0; 256];
        device.read(id, 0, &mut out).unwrap();
        launched.map(|()| out).map_err(|e| e.to_string())
    };
    let want: Vec<u8> = (0..64u32).flat_map(|i| ((1 - i / 32) | (i % 32) << 16).to_le_bytes()).collect();
    assert_eq!(run(256), Ok(want));
    let short = run(128).unwrap_err();
    assert!(short.contains("of 128 that the kernel has"), "{short}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a few bytes are changed to: loads or says why, never panics.
    #[test]
    fn changed_bytes(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        static GOOD: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
            let data = ".data\n.p2align 3\n.globl table\ntable:\n.quad k\n";
            object("s_nop 0\ns_add_co_i32 s0, s1, 0x12345678\ns_endpgm", PLAIN, data)
        });
        let mut bytes = GOOD.clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = k(&bytes);
    }

    /// As before, where it hurts most: ELF header, program headers, descriptor, code.
    #[test]
    fn changed_headers(changes in prop::collection::vec((0usize..0x400, any::<u8>()), 1..4)) {
        static GOOD: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| object("s_endpgm", PLAIN, ""));
        let mut bytes = GOOD.clone();
        for (at, value) in changes {
            bytes[at] = value;
        }
        let _ = k(&bytes);
    }
}
