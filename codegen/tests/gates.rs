//! Gates on the instructions of small kernels: for each rule what passes, and what fails by its name.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

#[path = "kernels/bodies.rs"]
#[allow(dead_code, reason = "bodies of other kernels")]
mod bodies;
mod support;

use support::*;
use unglue_codegen::error::CodegenError;
use unglue_codegen::gates::finish::{self, Exchange};
use unglue_codegen::gates::isa::{self, Code, destinations};
use unglue_codegen::gates::{self, Gate, Stream, streams, waits};
use unglue_codegen::generate::generate;
use unglue_codegen::kp::*;
use unglue_codegen::{isa as printed, link, llvm, target};
use unglue_ir::graph::Graph;
use unglue_passes::schedule::{Bucket, fit, schedule};

fn gfx() -> &'static target::Target {
    target::by_name("gfx1201").unwrap()
}

/// Assembles lines; each ends at a `;` or the line's end.
fn code(text: &str) -> Code {
    let bytes = llvm::assemble::assemble(&text.replace(';', "\n"), gfx()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    isa::decode(&bytes, gfx()).unwrap_or_else(|e| panic!("{e:?}\n{text}"))
}

/// The failed gate and what it found, or nothing.
fn said<T>(gate: Gate<T>) -> (&'static str, String) {
    gate.map_or_else(|failed| (failed.gate, failed.found), |_| ("", String::new()))
}

fn waits_of(text: &str) -> (&'static str, String) {
    said(waits::check(&code(&format!("{text}\ns_endpgm"))))
}

#[track_caller]
fn passes(text: &str) {
    assert_eq!(waits_of(text), ("", String::new()), "{text}");
}

#[track_caller]
fn fails(gate: &str, part: &str, text: &str) {
    let (found, what) = waits_of(text);
    assert!(found == gate && what.contains(part), "{found}: {what} for\n{text}");
}

#[test]
fn loads_are_waited_for_before_use() {
    const LOAD: &str = "global_load_b64 v[0:1], v4, s[0:1]";
    for wait in ["s_wait_loadcnt 0x0", "s_wait_loadcnt_dscnt 0x3f", "s_wait_idle"] {
        passes(&format!("{LOAD}; {wait}; v_mov_b32 v2, v1"));
    }
    for wait in ["s_nop 0", "s_wait_loadcnt 0x1", "s_wait_dscnt 0x0", "s_wait_storecnt 0x0", "s_wait_kmcnt 0x0"] {
        fails("waits", "v1", &format!("{LOAD}; {wait}; v_mov_b32 v2, v1"));
    }
    passes(&format!("{LOAD}; v_mov_b32 v2, v4"));
    // Read by address, by data, in either half of a pair; overwritten.
    for user in [
        "global_load_b32 v5, v0, s[0:1]",
        "global_store_b32 v4, v0, s[0:1]",
        "ds_store_b32 v4, v1",
        "v_dual_mov_b32 v2, v3 :: v_dual_mov_b32 v7, v0",
        "v_mov_b32 v1, 0",
        "v_fmac_f32 v1, v2, v3",
        "ds_load_b32 v1, v4",
        "v_readfirstlane_b32 s4, v0",
    ] {
        fails("waits", "global_load_b64 v[0:1], v4, s[0:1]` at 0x0 may still write", &format!("{LOAD}; {user}"));
    }
}

#[test]
fn loads_of_one_counter_end_in_order() {
    let three = "global_load_b32 v0, v9, s[0:1]; global_load_b32 v1, v9, s[0:1]; global_load_b32 v2, v9, s[0:1];";
    for (left, ready) in [(0, 3), (1, 2), (2, 1), (3, 0)] {
        for v in 0..3 {
            let text = format!("{three} s_wait_loadcnt {left}; v_mov_b32 v8, v{v}");
            if v < ready { passes(&text) } else { fails("waits", &format!("v{v}"), &text) }
        }
    }
    // Stores count elsewhere; invalidates and atomics that return count here.
    passes("global_load_b32 v0, v9, s[0:1]; global_inv scope:SCOPE_DEV; s_wait_loadcnt 1; v_mov_b32 v8, v0");
    let atomic = "global_load_b32 v0, v9, s[0:1]; global_atomic_add_u32 v1, v9, v2, s[0:1] th:TH_ATOMIC_RETURN;";
    passes(&format!("{atomic} s_wait_loadcnt 1; v_mov_b32 v8, v0"));
    fails("waits", "v1", &format!("{atomic} s_wait_loadcnt 1; v_mov_b32 v8, v1"));
    for other in
        ["global_store_b32 v9, v3, s[0:1]", "global_atomic_add_u32 v9, v3, s[0:1]", "global_wb", "ds_load_b32 v5, v9"]
    {
        fails("waits", "v0", &format!("global_load_b32 v0, v9, s[0:1]; {other}; s_wait_loadcnt 1; v_mov_b32 v8, v0"));
    }
    // A later load into the same register comes later; one of half of it does not replace it.
    let twice = "global_load_b32 v0, v9, s[0:1]; global_load_b32 v0, v9, s[2:3];";
    passes(&format!("{twice} s_wait_loadcnt 0; v_mov_b32 v8, v0"));
    fails("waits", "v0", &format!("{twice} s_wait_loadcnt 1; v_mov_b32 v8, v0"));
    fails("waits", "v0", "global_load_b32 v0, v9, s[0:1]; global_load_d16_hi_b16 v0, v9, s[0:1]");
    passes("v_mov_b32 v0, v9; global_load_b128 v[0:3], v0, s[0:1]");
}

#[test]
fn two_counters_in_one_wait() {
    let both =
        "global_load_b32 v0, v9, s[0:1]; global_load_b32 v1, v9, s[0:1]; ds_load_b32 v2, v9; ds_load_b32 v3, v9;";
    passes(&format!("{both} s_wait_loadcnt_dscnt 0x100; v_add_f32 v4, v0, v2; v_mov_b32 v5, v3"));
    fails("waits", "v1", &format!("{both} s_wait_loadcnt_dscnt 0x100; v_mov_b32 v4, v1"));
    passes(&format!("{both} s_wait_loadcnt_dscnt 0x1; v_add_f32 v4, v1, v2"));
    fails("waits", "v3", &format!("{both} s_wait_loadcnt_dscnt 0x1; v_mov_b32 v4, v3"));
    passes(&format!("{both} s_wait_storecnt_dscnt 0x3f00; v_mov_b32 v4, v3"));
    fails("waits", "v0", &format!("{both} s_wait_storecnt_dscnt 0x0; v_mov_b32 v4, v0"));
}

#[test]
fn lane_moves_and_returning_atomics_of_lds_are_loads() {
    for move_ in ["ds_bpermute_b32 v0, v1, v2", "ds_swizzle_b32 v0, v1", "ds_add_rtn_u32 v0, v1, v2"] {
        fails("waits", "v0", &format!("{move_}; s_wait_loadcnt 0; v_mov_b32 v3, v0"));
        passes(&format!("{move_}; s_wait_dscnt 0; v_mov_b32 v3, v0"));
    }
    passes("ds_add_u32 v0, v1; v_mov_b32 v0, 0");
}

#[test]
fn scalar_loads_end_in_any_order() {
    let two = "s_load_b64 s[4:5], s[0:1], 0x0; s_load_b32 s6, s[0:1], 0x8;";
    passes(&format!("{two} s_wait_kmcnt 0; s_add_co_i32 s7, s4, s6"));
    fails("waits", "s4", &format!("{two} s_wait_kmcnt 1; s_mov_b32 s7, s4"));
    fails("waits", "s6", &format!("{two} s_mov_b32 s6, 0"));
    fails("waits", "s4", &format!("{two} global_load_b32 v0, v1, s[4:5]"));
    fails("waits", "s6", &format!("{two} s_load_b32 s6, s[0:1], 0x0"));
    fails("waits", "vcc_lo", "s_load_b64 vcc, s[0:1], 0x0; v_div_fmas_f32 v0, v1, v2, v3");
    fails("waits", "vcc_lo", "s_load_b64 vcc, s[0:1], 0x0; s_cbranch_vccz end; end:");
}

#[test]
fn flat_accesses_end_in_any_order() {
    let load = "flat_load_b32 v0, v[2:3]; global_load_b32 v1, v4, s[0:1]; ds_load_b32 v5, v4;";
    passes(&format!("{load} s_wait_loadcnt_dscnt 0; v_mov_b32 v8, v0"));
    for wait in ["s_wait_loadcnt 0", "s_wait_dscnt 0", "s_wait_loadcnt_dscnt 0x101", "s_nop 0"] {
        fails("waits", "v0", &format!("{load} {wait}; v_mov_b32 v8, v0"));
    }
}

#[test]
fn every_path_counts() {
    let branch = |one: &str, other: &str| {
        format!(
            "global_load_b32 v0, v9, s[0:1]; s_cbranch_scc1 other; {one}; s_branch join; other: {other}; join: v_mov_b32 v8, v0"
        )
    };
    passes(&branch("s_wait_loadcnt 0", "s_wait_loadcnt 0"));
    fails("waits", "v0", &branch("s_wait_loadcnt 0", "s_nop 0"));
    fails("waits", "v0", &branch("s_nop 0", "s_wait_loadcnt 0"));
    // The path with fewer later loads decides.
    let uneven = |left: u8| {
        let more = "global_load_b32 v1, v9, s[0:1]";
        format!(
            "global_load_b32 v0, v9, s[0:1]; s_cbranch_scc1 other; {more}; {more}; other: {more}; s_wait_loadcnt {left}; v_mov_b32 v8, v0"
        )
    };
    passes(&uneven(1));
    fails("waits", "v0", &uneven(2));
}

#[test]
fn loops_count() {
    // The load of one round is used in the next.
    let rounds = |wait: &str| {
        format!(
            "s_mov_b32 s4, 8; v_mov_b32 v0, 0; loop: {wait}; v_add_f32 v1, v1, v0; global_load_b32 v0, v9, s[0:1]; \
             s_sub_co_i32 s4, s4, 1; s_cmp_lg_u32 s4, 0; s_cbranch_scc1 loop"
        )
    };
    passes(&rounds("s_wait_loadcnt 0"));
    fails("waits", "v0", &rounds("s_nop 0"));
    // Two in flight, each used a round later.
    let piped = |left: u8| {
        format!(
            "global_load_b32 v0, v9, s[0:1]; global_load_b32 v1, v9, s[0:1]; loop: s_wait_loadcnt {left}; v_mov_b32 v2, v0; \
             global_load_b32 v0, v9, s[0:1]; s_wait_loadcnt 1; v_mov_b32 v3, v1; global_load_b32 v1, v9, s[0:1]; s_cbranch_scc1 loop"
        )
    };
    passes(&piped(1));
    fails("waits", "v0", &piped(2));
}

#[test]
fn lds_is_settled_before_a_barrier() {
    for access in ["ds_store_b32 v0, v1", "ds_add_u32 v0, v1", "ds_load_b32 v2, v0", "flat_store_b32 v[2:3], v0"] {
        fails("waits-barrier", "s_barrier_signal -1", &format!("{access}; s_barrier_signal -1; s_barrier_wait -1"));
        passes(&format!("{access}; s_wait_dscnt 0; s_barrier_signal -1; s_barrier_wait -1"));
        fails("waits-barrier", "", &format!("s_cbranch_scc1 on; {access}; on: s_barrier_signal -1; s_barrier_wait -1"));
    }
    passes("ds_bpermute_b32 v0, v1, v2; global_store_b32 v4, v1, s[0:1]; s_barrier_signal -1; s_barrier_wait -1");
    let after = "ds_store_b32 v0, v1; ds_bpermute_b32 v2, v1, v1;";
    passes(&format!("{after} s_wait_dscnt 1; s_barrier_signal -1"));
    fails("waits-barrier", "", &format!("{after} s_wait_dscnt 2; s_barrier_signal -1"));
}

#[test]
fn what_cannot_be_judged_is_refused() {
    let refused = |text: &str| {
        let bytes = llvm::assemble::assemble(text, gfx()).unwrap();
        said(isa::decode(&bytes, gfx())).0
    };
    for text in
        ["s_swappc_b64 s[0:1], s[2:3]", "v_movrels_b32 v0, v1", "s_barrier_signal_isfirst -1", "ds_direct_load v0"]
    {
        assert_eq!(refused(text), "unmodelled", "{text}");
    }
    assert_eq!(refused("s_branch 100"), "branch");
    let runs_off = code("s_nop 0");
    assert_eq!(said(waits::check(&runs_off)).0, "branch");
    assert_eq!(said(waits::check(&code("s_cbranch_scc1 on; s_endpgm; on: s_nop 0"))).0, "branch");
    assert_eq!(said(isa::decode(&[0xff; 12], gfx())).0, "disassembly");
}

#[test]
fn destinations_by_name() {
    for (text, dsts) in [
        ("v_add_f32_e32 v0, v1, v2", 1),
        ("v_cmp_gt_u32_e32 vcc_lo, 8, v2", 1),
        ("v_cmpx_gt_i32_e32 0, v1", 0),
        ("v_add_co_ci_u32_e64 v5, null, s3, v3, vcc_lo", 2),
        ("v_div_scale_f32 v0, vcc_lo, v1, v2, v3", 2),
        ("v_mad_co_u64_u32 v[0:1], null, v2, v3, v[4:5]", 2),
        ("s_cmp_lg_u32 s0, 0", 0),
        ("s_and_saveexec_b32 s0, vcc_lo", 1),
        ("s_setreg_imm32_b32 0x801, 3", 0),
        ("ds_store_b32 v0, v1", 0),
        ("ds_add_rtn_u32 v0, v1, v2", 1),
        ("ds_add_u32 v0, v1", 0),
        ("global_atomic_add_u32 v0, v1, s[0:1] scope:SCOPE_DEV", 0),
        ("global_atomic_add_u32 v0, v1, v2, s[0:1] th:TH_ATOMIC_RETURN", 1),
        ("global_inv scope:SCOPE_DEV", 0),
        ("s_load_b64 s[0:1], s[2:3], 0x0", 1),
        ("s_wait_kmcnt 0x0", 0),
        ("v_nop", 0),
    ] {
        assert_eq!(destinations(&printed::parse(text, 0).unwrap()), dsts, "{text}");
    }
}

/// The gate goes by names, the emulator by its table.
#[test]
fn destinations_agree_with_the_emulator() {
    let differ: Vec<String> = unglue_codegen::emu::ops::all()
        .filter_map(|op| {
            let inst = printed::Inst {
                name: op.name.into(),
                args: vec![],
                mods: printed::Mods::default(),
                pair: None,
                size: 0,
            };
            let found = destinations(&inst);
            (found != usize::from(op.dsts)).then(|| format!("{}: gate {found}, emulator {}", op.name, op.dsts))
        })
        .collect();
    assert!(differ.is_empty(), "{differ:?}");
}

/// The last workgroup sums what all stored: exchanged parameter at 8, counter at 16. Several waves meet at barriers.
fn finishing(several: bool) -> String {
    let barrier = if several { "s_barrier_signal -1\ns_barrier_wait -1\nglobal_inv scope:SCOPE_SE\n" } else { "" };
    let (tell, told) =
        if several { ("ds_store_b32 v7, v8", "ds_load_b32 v8, v7\ns_wait_dscnt 0x0") } else { ("s_nop 0", "s_nop 0") };
    format!(
        "s_clause 0x1
s_load_b64 s[2:3], s[0:1], 0x0
s_load_b128 s[4:7], s[0:1], 0x8
v_lshlrev_b32_e32 v2, 2, v0
s_wait_kmcnt 0x0
v_add_co_u32 v4, vcc_lo, s4, v2
v_add_co_ci_u32_e64 v5, null, s5, 0, vcc_lo
v_cmp_eq_u32_e32 vcc_lo, 0, v0
global_store_b32 v[4:5], v6, off
s_wait_storecnt 0x0
{barrier}s_and_saveexec_b32 s3, vcc_lo
s_cbranch_execz join
s_mov_b32 s10, exec_lo
v_mbcnt_lo_u32_b32 v1, s10, 0
s_wait_loadcnt 0x0
v_cmpx_eq_u32_e32 0, v1
s_cbranch_execz inner
v_mov_b32_e32 v8, 0
v_mov_b32_e32 v9, 1
global_atomic_add_u32 v8, v8, v9, s[6:7] th:TH_ATOMIC_RETURN scope:SCOPE_DEV
inner:
s_or_b32 exec_lo, exec_lo, s10
s_wait_loadcnt 0x0
{tell}
join:
s_or_b32 exec_lo, exec_lo, s3
s_wait_loadcnt_dscnt 0x0
{barrier}{told}
v_readfirstlane_b32 s8, v8
s_cmp_lg_u32 s8, 7
s_cbranch_scc1 end
s_wait_loadcnt 0x0
global_inv scope:SCOPE_DEV
s_and_saveexec_b32 s9, vcc_lo
s_cbranch_execz body
global_store_b32 v7, v7, s[6:7] scope:SCOPE_DEV
body:
s_or_b32 exec_lo, exec_lo, s9
loop:
v_add_nc_u32_e32 v4, 4, v4
global_load_b32 v1, v[4:5], off scope:SCOPE_DEV
s_wait_loadcnt 0x0
v_add_f32_e32 v6, v6, v1
s_cmp_lg_u32 s8, 0
s_cbranch_scc1 loop
global_store_b32 v2, v6, s[2:3]
end:
s_endpgm"
    )
}

fn exchange() -> Exchange {
    Exchange { finishes: 1, exchanged_params: vec![1], kernarg_offsets: vec![8] }
}

fn finish_of(text: &str, several: bool) -> (&'static str, String) {
    said(finish::check(&code(text), &exchange(), if several { 4 } else { 1 }))
}

#[test]
fn a_finish_in_order_passes() {
    for several in [false, true] {
        let text = finishing(several);
        assert_eq!(finish_of(&text, several), ("", String::new()), "{text}");
        assert_eq!(waits_of(&text), ("", String::new()), "{text}");
        let written = text.replace("s_wait_storecnt 0x0", "global_wb scope:SCOPE_DEV\ns_wait_storecnt 0x0");
        assert_eq!(finish_of(&written, several), ("", String::new()));
    }
    // One wave's kernel in several waves lacks the barriers.
    let (gate, found) = finish_of(&finishing(false), true);
    assert!(gate == "finish" && found.contains("barrier of all waves"), "{found}");
}

#[test]
fn each_step_of_a_finish_is_needed() {
    for several in [false, true] {
        for (from, to, part) in [
            ("s_wait_storecnt 0x0", "s_nop 0", "s_wait_storecnt"),
            ("s_wait_storecnt 0x0", "s_wait_storecnt 0x1", "s_wait_storecnt"),
            ("th:TH_ATOMIC_RETURN scope:SCOPE_DEV", "th:TH_ATOMIC_RETURN scope:SCOPE_SE", "no atomic of device scope"),
            ("global_inv scope:SCOPE_DEV", "global_inv scope:SCOPE_SE", "without `global_inv scope:SCOPE_DEV`"),
            ("global_inv scope:SCOPE_DEV", "s_nop 0", "without `global_inv scope:SCOPE_DEV`"),
            ("v[4:5], off scope:SCOPE_DEV", "v[4:5], off", "device scope"),
            ("v[4:5], off scope:SCOPE_DEV", "v[4:5], off scope:SCOPE_SE", "device scope"),
            // A store again, after the arrival.
            ("loop:", "global_store_b32 v[4:5], v6, off\nloop:", "an atomic of device scope"),
            // A way around.
            ("v_lshlrev_b32_e32 v2, 2, v0", "s_cmp_lg_u32 ttmp9, 0\ns_cbranch_scc1 loop", "an atomic of device scope"),
            ("s_cbranch_execz join", "s_cbranch_scc1 join", "an atomic of device scope"),
        ] {
            let text = finishing(several).replace(from, to);
            let (gate, found) = finish_of(&text, several);
            assert!(gate == "finish" && found.contains(part), "{from} -> {to}: {gate}: {found}");
        }
        let late = finishing(several)
            .replace("s_wait_loadcnt 0x0\n", "")
            .replace("s_wait_loadcnt_dscnt 0x0", "s_wait_dscnt 0x0");
        let (gate, found) = finish_of(&late, several);
        assert!(gate == "finish" && found.contains("`s_wait_loadcnt 0x0` after the atomic"), "{found}");
    }
    let barrier = "s_barrier_signal -1\ns_barrier_wait -1\n";
    let text = finishing(true);
    let first = text.replacen(barrier, "", 1);
    assert!(finish_of(&first, true).1.contains("without a barrier of all waves after a store"));
    let at = text.rfind(barrier).unwrap();
    let second = format!("{}{}", &text[..at], &text[at + barrier.len()..]);
    assert!(finish_of(&second, true).1.contains("a barrier of all waves after the atomic"));
}

#[test]
fn exchanged_data_is_not_loaded_by_scalar_loads() {
    for (load, bad) in [
        ("s_load_b32 s12, s[4:5], 0x10", true),
        ("s_load_b32 s12, s[2:3], 0x10", false),
        ("s_load_b32 s12, s[6:7], 0x10", false),
        ("s_mov_b64 s[12:13], s[4:5]\ns_load_b32 s14, s[12:13], 0x0", true),
        ("s_add_nc_u64 s[12:13], s[4:5], 16\ns_load_b32 s14, s[12:13], 0x0", true),
        ("s_add_co_u32 s12, s4, s8\ns_add_co_ci_u32 s13, s5, 0\ns_load_b32 s14, s[12:13], 0x0", true),
        ("s_addk_co_i32 s4, 0x10\ns_load_b32 s14, s[4:5], 0x0", true),
        ("v_readfirstlane_b32 s12, v4\nv_readfirstlane_b32 s13, v5\ns_load_b32 s14, s[12:13], 0x0", true),
        ("s_mov_b64 s[4:5], s[2:3]\ns_load_b32 s14, s[4:5], 0x0", false),
        ("s_load_b64 s[12:13], s[0:1], 0x8\ns_wait_kmcnt 0x0\ns_load_b32 s14, s[12:13], 0x0", true),
        ("s_load_b64 s[12:13], s[0:1], 0x10\ns_wait_kmcnt 0x0\ns_load_b32 s14, s[12:13], 0x0", false),
        ("s_add_nc_u64 s[12:13], s[0:1], 8\ns_load_b64 s[12:13], s[12:13], 0x0\ns_load_b32 s14, s[12:13], 0x0", true),
        ("s_cselect_b32 s2, s4, s2\ns_cselect_b32 s3, s5, s3\ns_load_b32 s14, s[2:3], 0x0", true),
        // What is loaded through a pointer is data.
        (
            "global_load_b32 v1, v[4:5], off scope:SCOPE_DEV\nv_readfirstlane_b32 s12, v1\ns_load_b32 s14, s[2:3], s12 offset:0x0",
            false,
        ),
    ] {
        let text = finishing(false).replace("loop:", &format!("{load}\nloop:"));
        let want = if bad { "exchanged-scalar" } else { "" };
        assert_eq!(finish_of(&text, false).0, want, "{load}");
    }
}

/// Lanes that are off keep the exchanged address: the load comes after they are on again.
#[test]
fn marks_of_lanes_that_are_off_stay() {
    let text = |on: &str| {
        finishing(false).replace(
            "v_add_nc_u32_e32 v4, 4, v4\nglobal_load_b32 v1, v[4:5], off scope:SCOPE_DEV",
            &format!(
                "v_mov_b32_e32 v10, v4\nv_mov_b32_e32 v11, v5\ns_and_saveexec_b32 s9, vcc_lo\nv_mov_b32_e32 v10, s2\n\
                 v_mov_b32_e32 v11, s3\n{on}\nglobal_load_b32 v1, v[10:11], off"
            ),
        )
    };
    assert_eq!(finish_of(&text("s_nop 0"), false), ("", String::new()));
    assert_eq!(finish_of(&text("s_or_b32 exec_lo, exec_lo, s9"), false).0, "finish");
    let over = "s_or_b32 exec_lo, exec_lo, s9\nv_mov_b32_e32 v10, s2\nv_mov_b32_e32 v11, s3";
    assert_eq!(finish_of(&text(over), false), ("", String::new()));
}

#[test]
fn nothing_exchanged_is_nothing_to_check() {
    let text = code("s_endpgm");
    assert_eq!(said(finish::check(&text, &Exchange::default(), 1)), ("", String::new()));
    assert_eq!(said(finish::check(&text, &exchange(), 1)).0, "finish");
}

/// Rows of two parameters, at 0 and 8: an outer loop of outputs and an inner one over each row, with loads in both.
fn streaming(inner: &str, outer: &str) -> Code {
    code(&format!(
        "s_load_b128 s[4:7], s[0:1], 0x0
s_wait_kmcnt 0x0
v_lshlrev_b32_e32 v20, 4, v0
s_mov_b32 s9, 32
outer:
s_mov_b32 s8, 4
s_mov_b64 s[10:11], s[4:5]
row:
{inner}
s_add_nc_u64 s[10:11], s[10:11], 0x200
s_sub_co_i32 s8, s8, 1
s_cmp_lg_u32 s8, 0
s_cbranch_scc1 row
{outer}
s_sub_co_i32 s9, s9, 1
s_cmp_lg_u32 s9, 0
s_cbranch_scc1 outer
s_endpgm"
    ))
}

#[test]
fn streams_are_wide() {
    const WIDE: &str = "global_load_b128 v[0:3], v20, s[10:11]";
    const NARROW: &str = "global_load_b32 v4, v20, s[10:11]";
    const FIXED: &str = "global_load_b32 v4, v20, s[4:5]";
    const VECTOR: &str = "v_add_co_u32 v6, vcc_lo, s10, v20\nv_add_co_ci_u32_e64 v7, null, s11, 0, vcc_lo\n";
    let of = |code: &Code, row_bytes: u64| {
        said(streams::check(code, &[Stream { param: 0, row_bytes, lane_bytes: 16 }], &[0, 8]))
    };
    for (inner, outer, gate) in [
        (WIDE, "s_nop 0", ""),
        (NARROW, "s_nop 0", "b128"),
        ("global_load_b64 v[4:5], v20, s[10:11]", "s_nop 0", "b128"),
        ("s_nop 0", "s_nop 0", "b128"),
        // What is left of a row, once a row.
        (WIDE, NARROW, ""),
        // The stream is narrow, something beside it is not.
        (NARROW, WIDE, "b128"),
        // The same place in every round.
        (FIXED, WIDE, ""),
        (FIXED, "s_nop 0", "b128"),
        // Other buffers load as they like; theirs is no wide load of the stream either.
        ("global_load_b128 v[0:3], v20, s[10:11]\nglobal_load_b32 v4, v20, s[6:7]", "s_nop 0", ""),
        ("global_load_b32 v4, v20, s[10:11]\nglobal_load_b128 v[0:3], v20, s[6:7]", "s_nop 0", "b128"),
    ] {
        let code = streaming(inner, outer);
        let (found, what) = of(&code, 2048);
        assert_eq!(found, gate, "{inner}, {outer}: {what}");
        assert_eq!(of(&code, 480).0, "", "a row shorter than a vector of all lanes");
        assert_eq!(of(&code, 2056).0, "", "a row that is not aligned");
    }
    let vector = streaming(&format!("{VECTOR}global_load_b32 v4, v[6:7], off"), "s_nop 0");
    assert_eq!(of(&vector, 512).0, "b128");
    let vector = streaming(&format!("{VECTOR}global_load_b128 v[0:3], v[6:7], off"), "s_nop 0");
    assert_eq!(of(&vector, 512).0, "");
    // Two streams, one of them narrow.
    let two = streaming(&format!("{WIDE}\nglobal_load_u16 v4, v20, s[6:7]"), "s_nop 0");
    let both = [0, 1].map(|param| Stream { param, row_bytes: 1024, lane_bytes: 16 });
    let (gate, found) = said(streams::check(&two, &both, &[0, 8]));
    assert!(gate == "b128" && found.contains("parameter 1 in rows of 1024 bytes"), "{found}");
}

#[test]
fn gates_run_on_code_objects() {
    let p = gemv(4, true);
    let (object, _) = gfx1201(&p);
    let streamed =
        |row_bytes| gates::check_streams(&object, &p, gfx(), &[Stream { param: 0, row_bytes, lane_bytes: 16 }]);
    streamed(2048).unwrap();
    // Without its waits the same code fails.
    let text = object.clone();
    let mut patched = 0;
    let mut bad = text;
    for word in bad.chunks_exact_mut(4) {
        if word[2..] == [0xc0, 0xbf] {
            word.copy_from_slice(&[0, 0, 0x80, 0xbf]); // s_wait_loadcnt -> s_nop
            patched += 1;
        }
    }
    assert!(patched > 0);
    let gate = |object: &[u8], p: &Program| match gates::check(object, p, gfx()).unwrap_err() {
        CodegenError::Gate { gate, .. } => gate,
        other => panic!("{other}"),
    };
    assert_eq!(gate(&bad, &p), "waits");
    // One component a lane: a narrow stream.
    let mut b = B::new("narrow", 1);
    let (w, y, k) = (b.buffer(Mem::Bf16, Access::Read), b.buffer(Mem::F32, Access::Write), b.scalar());
    let (zero, step, fzero) = (b.i32(0), b.i32(32), b.f32(0.0));
    let init = b.splat(fzero, 1);
    let acc = b.for_loop(zero, k, step, &[init], |b, i, acc| {
        let v = b.load(w, Addr::Contig { base: i }, Bound::All, 1);
        vec![b.bin(Bin::Add, acc[0], v)]
    });
    b.store(y, Addr::Contig { base: zero }, Bound::All, acc[0]);
    let p = b.finish();
    let object = llvm::compile_object(&p, gfx()).unwrap();
    let code = link::shared_object(&[(p.name.clone(), object)], gfx()).unwrap();
    gates::check(&code, &p, gfx()).unwrap();
    let error =
        gates::check_streams(&code, &p, gfx(), &[Stream { param: 0, row_bytes: 4096, lane_bytes: 16 }]).unwrap_err();
    assert!(error.to_string().contains("`b128`") && error.to_string().contains("global_load_u16"), "{error}");
}

/// Row bytes of a kernel's streams; its code passes the gates.
fn streams_of(name: &str, graph: &Graph, rows_max: u32) -> Vec<u64> {
    let bucket = Bucket { rows_max, seqs_max: 1, pools: 0, fit: &fit::GFX1201 };
    let s = schedule(graph, &bucket).unwrap_or_else(|o| panic!("{name}: {o:?}"));
    let made = generate(name, graph, &s, bucket.pools).unwrap();
    let object = llvm::compile_object(&made.program, gfx()).unwrap();
    let code = link::shared_object(&[(name.to_owned(), object)], gfx()).unwrap();
    let streams: Vec<Stream> = made.streams.iter().copied().collect();
    gates::check_streams(&code, &made.program, gfx(), &streams).unwrap_or_else(|e| panic!("{name}, {streams:?}: {e}"));
    for stream in &streams {
        let param = &made.program.params[stream.param as usize];
        assert!(matches!(param, Param::Buffer { access: Access::Constant | Access::Read, .. }), "{param:?}");
    }
    streams.iter().map(|s| s.row_bytes).collect()
}

/// Whole vectors only, a rest, loops that are unrolled or not.
#[test]
fn generated_contractions_stream_wide() {
    for k in [128, 256, 512, 700, 704, 1024, 1104, 4096] {
        for rows in [1, 4] {
            let mut found = streams_of(&format!("matmul_{k}_{rows}"), &bodies::matmul(33, k), rows);
            found.sort_unstable();
            let want = if k < 256 { vec![] } else { vec![2 * k, 4 * k] };
            assert_eq!(found, want);
        }
    }
    assert_eq!(streams_of("heads", &bodies::batch_matmul(4, 512, 40, false), 1), [1024]);
    // One output a lane: the weight's rows run across the lanes.
    assert!(streams_of("strided", &bodies::batch_matmul(4, 512, 40, true), 1).is_empty());
    assert_eq!(streams_of("experts", &bodies::experts_up(8, 6, 2, 640, 64), 1), [1280, 1280]);
}
