//! Branches, barriers, waves that end, hints: what moves the program counter or waits.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use unglue_codegen::counts::{Class, Counts};
use unglue_codegen::emu::fault::{Fault, Trap};
use unglue_codegen::emu::group::{GroupOptions, Runner};
use unglue_codegen::emu::load::{LaunchState, load};
use unglue_codegen::emu::memory::{CODE_BASE, Space};
use unglue_codegen::emu::snippet::Surroundings;
use unglue_codegen::emu::wave::Wave;
use unglue_codegen::emu::{Schedule, step};

use super::handmade::object;
use super::stage::{POISON, contents, exec, gfx, region, words};

/// Opcodes that are defined here.
#[rustfmt::skip]
pub const DEFINED: &[&str] = &[
    "s_branch", "s_cbranch_scc0", "s_cbranch_scc1", "s_cbranch_vccz", "s_cbranch_vccnz", "s_cbranch_execz",
    "s_cbranch_execnz", "s_getpc_b64", "s_setpc_b64", "s_swappc_b64", "s_endpgm", "s_trap",
    "s_code_end", "s_barrier_signal", "s_barrier_wait", "s_nop", "s_sleep", "s_clause", "s_delay_alu", "s_wait_alu",
    "s_wait_idle", "s_wait_loadcnt", "s_wait_storecnt", "s_wait_samplecnt", "s_wait_bvhcnt", "s_wait_expcnt",
    "s_wait_dscnt", "s_wait_kmcnt", "s_wait_loadcnt_dscnt", "s_wait_storecnt_dscnt", "s_setprio", "s_icache_inv",
    "s_dcache_inv", "s_prefetch_inst", "s_prefetch_inst_pc_rel", "s_prefetch_data", "s_prefetch_data_pc_rel",
    "global_inv", "global_wb", "global_wbinv", "s_sendmsg",
];

fn run(text: &str, setup: impl Fn(&mut Wave)) -> (Result<Counts, Fault>, Wave) {
    let mut w = Wave::new(0);
    setup(&mut w);
    let got = exec(text, &mut w, &mut Surroundings::default());
    (got, w)
}

/// Whether a branch is taken, by SCC, VCC and exec.
type Taken = fn(bool, u32, u32) -> bool;

/// Taken or not, by SCC, VCC and exec.
#[test]
fn conditions() {
    let cases: &[(&str, Taken)] = &[
        ("s_branch", |_, _, _| true),
        ("s_cbranch_scc0", |scc, _, _| !scc),
        ("s_cbranch_scc1", |scc, _, _| scc),
        ("s_cbranch_vccz", |_, vcc, _| vcc == 0),
        ("s_cbranch_vccnz", |_, vcc, _| vcc != 0),
        ("s_cbranch_execz", |_, _, exec| exec == 0),
        ("s_cbranch_execnz", |_, _, exec| exec != 0),
    ];
    for (name, taken) in cases {
        for n in 0..8u32 {
            let (scc, vcc, exec) = (n & 1 == 1, if n & 2 == 2 { 0x8000_0000 } else { 0 }, n >> 2);
            let text = format!("s_mov_b32 s0, 1\n{name} far\ns_mov_b32 s0, 2\nfar:\ns_mov_b32 s1, 3");
            let (got, w) = run(&text, |w| {
                w.scc = scc;
                w.set_vcc(vcc);
                w.sgpr[107] = 1;
                w.set_exec(exec);
            });
            let counts = got.unwrap();
            let want = if taken(scc, vcc, exec) { 1 } else { 2 };
            assert_eq!((w.sgpr[0], w.sgpr[1]), (want, 3), "{name} {n}");
            assert_eq!((counts.instructions[Class::Branch as usize], counts.total()), (1, u64::from(want) + 2));
        }
    }
}

#[test]
fn loops() {
    let text = "s_mov_b32 s0, 5\ns_mov_b32 s1, 0\ntop:\ns_add_co_i32 s1, s1, s0\ns_add_co_i32 s0, s0, -1\n\
                s_cmp_lg_u32 s0, 0\ns_cbranch_scc1 top\ns_endpgm\ns_mov_b32 s1, 99";
    let (got, w) = run(text, |_| {});
    assert_eq!((got.unwrap().total(), w.sgpr[1]), (2 + 4 * 5 + 1, 15));
}

#[test]
fn addresses_of_code() {
    // s_getpc_b64 gives the address of the next instruction.
    let (got, w) = run("s_nop 0\ns_getpc_b64 s[0:1]\ns_nop 0", |_| {});
    got.unwrap();
    assert_eq!(w.s64(0), CODE_BASE + 8);
    let call = "s_getpc_b64 s[0:1]\ns_add_co_u32 s0, s0, 20\ns_swappc_b64 s[2:3], s[0:1]\ns_mov_b32 s5, 1\ns_endpgm\n\
                s_nop 0\ns_mov_b32 s6, 2\ns_setpc_b64 s[2:3]";
    let (got, w) = run(call, |_| {});
    assert_eq!(got.unwrap().total(), 7);
    assert_eq!((w.s64(2), w.sgpr[5], w.sgpr[6]), (CODE_BASE + 12, 1, 2));
    // Source and destination are one.
    let swap =
        "s_getpc_b64 s[0:1]\ns_add_co_u32 s0, s0, 16\ns_swappc_b64 s[0:1], s[0:1]\ns_mov_b32 s5, 1\ns_nop 0\ns_nop 0";
    let (got, w) = run(swap, |_| {});
    got.unwrap();
    assert_eq!((w.s64(0), w.sgpr[5]), (CODE_BASE + 12, 0));
}

#[test]
fn places_without_an_instruction() {
    let (got, _) = run("s_branch 2\ns_nop 0\ns_mov_b32 s0, 0x12345678\ns_nop 0", |_| {});
    assert_eq!(got.unwrap_err(), Fault::BranchTarget(12));
    let (got, _) = run("s_nop 0\ns_branch -3", |_| {});
    assert_eq!(got.unwrap_err(), Fault::BranchTarget(-4));
    let (got, _) = run("s_branch 3\ns_nop 0", |_| {});
    assert_eq!(got.unwrap_err(), Fault::BranchTarget(16));
    for odd in [2, 1 << 30] {
        let (got, _) = run("s_setpc_b64 s[0:1]\ns_nop 0", |w| w.set_s64(0, CODE_BASE + odd));
        assert_eq!(got.unwrap_err(), Fault::BranchTarget(odd.cast_signed()));
    }
    let (got, _) = run("s_code_end", |_| {});
    assert!(matches!(got.unwrap_err(), Fault::BranchTarget(_)));
    assert_eq!(run("s_trap 2", |_| {}).0.unwrap_err(), Fault::Trap);
}

#[test]
fn hints_do_nothing() {
    let hints = [
        "s_nop 3",
        "s_sleep 1",
        "s_clause 0x1",
        "s_delay_alu instid0(VALU_DEP_1) | instskip(NEXT) | instid1(SALU_CYCLE_1)",
        "s_wait_alu 0xfffe",
        "s_wait_idle",
        "s_wait_loadcnt 0x0",
        "s_wait_storecnt 0x1",
        "s_wait_samplecnt 0x0",
        "s_wait_bvhcnt 0x0",
        "s_wait_expcnt 0x0",
        "s_wait_dscnt 0x0",
        "s_wait_kmcnt 0x0",
        "s_wait_loadcnt_dscnt 0x0",
        "s_wait_storecnt_dscnt 0x0",
        "s_setprio 3",
        "s_icache_inv",
        "s_dcache_inv",
        "s_prefetch_inst s[0:1], 0x10, s2, 3",
        "s_prefetch_inst_pc_rel 0x10, s2, 3",
        "s_prefetch_data s[0:1], 0x10, s2, 3",
        "s_prefetch_data_pc_rel 0x10, s2, 3",
        "global_inv scope:SCOPE_DEV",
        "global_wb scope:SCOPE_SYS",
        "global_wbinv scope:SCOPE_SYS",
        "s_sendmsg sendmsg(MSG_DEALLOC_VGPRS)",
    ];
    for text in hints {
        let mut w = Wave::new(POISON);
        let (s, v) = (w.sgpr.to_vec(), w.vgpr.to_vec());
        let counts = exec(text, &mut w, &mut Surroundings::default()).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!((counts.total(), counts.instructions[Class::Wait as usize]), (1, 1), "{text}");
        assert!(w.sgpr.to_vec() == s && w.vgpr.to_vec() == v, "{text}");
    }
    assert!(matches!(run("s_sendmsg sendmsg(MSG_INTERRUPT)", |_| {}).0, Err(Fault::Operand(_))));
    assert!(matches!(run("s_barrier_signal 3", |_| {}).0, Err(Fault::Operand(_))));
}

/// Runs a workgroup of a whole wave and a wave of one lane, which code tells apart by exec; s[0:1] is the address of
/// 64 bytes. Gives these, and what was counted.
fn two_waves(code: &str, schedule: Schedule, step_limit: u64) -> Result<(Vec<u8>, Counts), Trap> {
    let file = object(code, ".amdhsa_user_sgpr_kernarg_segment_ptr 1\n.amdhsa_group_segment_fixed_size 256", "");
    let kernel = load(&file, "k", gfx()).unwrap();
    let memory = words(&[0; 64]);
    let mut space = Space::default();
    space.add(kernel.region());
    let kernarg = space.add(region("out", &memory, 64));
    let state = LaunchState { kernarg, code_address: CODE_BASE + kernel.entry, items: [33, 1, 1] };
    assert_eq!(state.waves(), 2);
    let options = GroupOptions { schedule, poison: POISON, step_limit, perturb: None };
    let mut runner = Runner::new(&kernel, &space, &state, options);
    runner.run([0; 3])?;
    let counts = runner.counts.clone();
    Ok((contents(&memory, 64), counts))
}

const SCHEDULES: [Schedule; 5] =
    [Schedule::Forward, Schedule::Reverse, Schedule::Random(1), Schedule::Random(2), Schedule::Random(99)];

/// SCC is 1 in the second wave.
const WHICH: &str = "s_cmp_eq_u32 exec_lo, 1\n";
const BOTH: &str = "s_barrier_signal -1\ns_barrier_wait -1\n";

#[test]
fn a_value_passes_a_barrier() {
    for from in ["s_cbranch_scc1", "s_cbranch_scc0"] {
        for schedule in SCHEDULES {
            let code = format!(
                "{WHICH}v_add_nc_u32 v1, 0, 0\n{from} meet\nv_add_nc_u32 v2, 7, 0\nds_store_b32 v1, v2 offset:8\nmeet:\n{BOTH}\
                 {from} read\ns_endpgm\nread:\nds_load_b32 v3, v1 offset:8\nglobal_store_b32 v1, v3, s[0:1]\ns_endpgm"
            );
            let (memory, counts) = two_waves(&code, schedule, 1000).unwrap();
            assert_eq!(memory[..4], [7, 0, 0, 0], "{from} {schedule:?}");
            // Turns that only waited are not counted.
            assert_eq!(counts.instructions[Class::Barrier as usize], 4, "{from} {schedule:?}");
        }
    }
}

#[test]
fn a_missing_barrier_is_a_race() {
    let code = format!(
        "{WHICH}v_add_nc_u32 v1, 0, 0\nv_add_nc_u32 v2, 7, 0\ns_cbranch_scc1 read\nds_store_b32 v1, v2\ns_endpgm\nread:\n\
         ds_load_b32 v3, v1\ns_endpgm"
    );
    for schedule in SCHEDULES {
        let trap = two_waves(&code, schedule, 1000).unwrap_err();
        assert!(matches!(trap.fault, Fault::LdsRace { offset: 0, .. }), "{trap}");
    }
}

/// Signal and wait apart, many rounds, waves of different speed.
#[test]
fn rounds() {
    let code = format!(
        "s_mov_b32 s4, 20\n{WHICH}s_cselect_b32 s5, 1, 9\ntop:\ns_barrier_signal -1\ns_mov_b32 s6, s5\nspin:\n\
         s_add_co_i32 s6, s6, -1\ns_cmp_lg_u32 s6, 0\ns_cbranch_scc1 spin\ns_barrier_wait -1\ns_add_co_i32 s4, s4, -1\n\
         s_cmp_lg_u32 s4, 0\ns_cbranch_scc1 top\ns_endpgm"
    );
    let mut seen = vec![];
    for schedule in SCHEDULES {
        let (_, counts) = two_waves(&code, schedule, 10_000).unwrap();
        assert_eq!(counts.instructions[Class::Barrier as usize], 80);
        seen.push((counts.total(), counts.workgroups));
    }
    assert!(seen.iter().all(|s| *s == seen[0]), "{seen:?}");
}

/// A wave that has ended is no longer waited for.
#[test]
fn ended_waves_drop_out() {
    for other in ["s_cbranch_scc1", "s_cbranch_scc0"] {
        let code = format!("{WHICH}{other} out\n{BOTH}{BOTH}out:\ns_endpgm");
        for schedule in SCHEDULES {
            two_waves(&code, schedule, 1000).unwrap();
        }
        let code = format!("{WHICH}{BOTH}{other} out\n{BOTH}out:\ns_endpgm");
        for schedule in SCHEDULES {
            two_waves(&code, schedule, 1000).unwrap();
        }
    }
}

/// One wave waits while the other spins for ever: no deadlock is provable, the step limit ends it.
#[test]
fn endless_loops() {
    for code in [
        "top:\ns_branch top".to_owned(),
        format!("{WHICH}s_cbranch_scc0 meet\ntop:\ns_branch top\nmeet:\n{BOTH}s_endpgm"),
    ] {
        for schedule in SCHEDULES {
            assert_eq!(two_waves(&code, schedule, 500).unwrap_err().fault, Fault::StepLimit(500));
        }
    }
}

#[test]
fn waits_without_a_signal() {
    for schedule in SCHEDULES {
        let trap = two_waves(&format!("{BOTH}s_barrier_wait -1\ns_endpgm"), schedule, 1000).unwrap_err();
        assert_eq!((trap.fault.clone(), trap.pc), (Fault::WaitWithoutSignal, 8), "{trap}");
        assert!(trap.text.starts_with("s_barrier_wait"));
    }
}

/// The hardware counts signals, whoever gives them: two of one wave would let another's wait go through early.
#[test]
fn signals_run_ahead() {
    let code = format!("s_barrier_signal -1\ns_barrier_signal -1\n{BOTH}s_endpgm");
    for schedule in SCHEDULES {
        let trap = two_waves(&code, schedule, 1000).unwrap_err();
        assert_eq!((trap.fault.clone(), trap.pc), (Fault::SignalTwice, 4), "{trap}");
    }
}

#[test]
fn the_end_of_the_code_is_no_instruction() {
    let trap = two_waves("s_nop 0", Schedule::Forward, 100).unwrap_err();
    assert!(matches!(trap.fault, Fault::BranchTarget(_)), "{trap}");
    assert!(step::decode(&[], gfx(), 8, 8).unwrap().steps.is_empty());
}
