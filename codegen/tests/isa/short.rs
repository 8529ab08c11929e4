//! 16-bit integers, halves that `op_sel` selects, saturating sums, swaps.

use crate::harness::Expect::Bits;
use crate::harness::{Def, Dst, Expect, NEG, NONE, POISON, Report, SATURATES, check, decode, execute_one};
use crate::values::Kind::{F16, I16, I32, Mask};
use crate::values::{Random, sets};
use unglue_codegen::emu::step;
use unglue_codegen::emu::wave::Wave;

fn i(x: i64) -> Expect {
    Bits(x.cast_unsigned() & 0xffff)
}

fn s(x: &[u64], k: usize) -> i64 {
    i64::from(x[k] as u16 as i16)
}

fn u(x: &[u64], k: usize) -> i64 {
    x[k] as i64
}

const fn two(name: &'static str, f: fn(&[u64]) -> Expect) -> Def {
    Def::new(name, &[I16, I16], Dst::B16, NONE, f)
}

const fn saturating(name: &'static str, f: fn(&[u64]) -> Expect) -> Def {
    Def { mods: SATURATES, ..two(name, f) }
}

const fn three(name: &'static str, f: fn(&[u64]) -> Expect) -> Def {
    Def::new(name, &[I16, I16, I16], Dst::B16, NONE, f)
}

fn middle(mut v: [i64; 3]) -> i64 {
    v.sort_unstable();
    v[1]
}

const SHORT: &[Def] = &[
    saturating("v_add_nc_u16", |x| i(u(x, 0) + u(x, 1))),
    saturating("v_sub_nc_u16", |x| i(u(x, 0) - u(x, 1))),
    saturating("v_add_nc_i16", |x| i(s(x, 0) + s(x, 1))),
    saturating("v_sub_nc_i16", |x| i(s(x, 0) - s(x, 1))),
    two("v_mul_lo_u16", |x| i(u(x, 0) * u(x, 1))),
    two("v_min_u16", |x| i(u(x, 0).min(u(x, 1)))),
    two("v_max_u16", |x| i(u(x, 0).max(u(x, 1)))),
    two("v_min_i16", |x| i(s(x, 0).min(s(x, 1)))),
    two("v_max_i16", |x| i(s(x, 0).max(s(x, 1)))),
    two("v_lshlrev_b16", |x| i(u(x, 1) << (x[0] & 15))),
    two("v_lshrrev_b16", |x| i(u(x, 1) >> (x[0] & 15))),
    two("v_ashrrev_i16", |x| i(s(x, 1) >> (x[0] & 15))),
    two("v_and_b16", |x| i(u(x, 0) & u(x, 1))),
    two("v_or_b16", |x| i(u(x, 0) | u(x, 1))),
    two("v_xor_b16", |x| i(u(x, 0) ^ u(x, 1))),
    Def::new("v_not_b16", &[I16], Dst::B16, NONE, |x| i(!u(x, 0))),
    three("v_mad_u16", |x| i(u(x, 0) * u(x, 1) + u(x, 2))),
    three("v_mad_i16", |x| i(s(x, 0) * s(x, 1) + s(x, 2))),
    three("v_min3_u16", |x| i(u(x, 0).min(u(x, 1)).min(u(x, 2)))),
    three("v_min3_i16", |x| i(s(x, 0).min(s(x, 1)).min(s(x, 2)))),
    three("v_max3_u16", |x| i(u(x, 0).max(u(x, 1)).max(u(x, 2)))),
    three("v_max3_i16", |x| i(s(x, 0).max(s(x, 1)).max(s(x, 2)))),
    three("v_med3_u16", |x| i(middle([u(x, 0), u(x, 1), u(x, 2)]))),
    three("v_med3_i16", |x| i(middle([s(x, 0), s(x, 1), s(x, 2)]))),
    Def::new("v_mad_u32_u16", &[I16, I16, I32], Dst::B32, NONE, |x| {
        Bits((u(x, 0) * u(x, 1) + u(x, 2)).cast_unsigned() & 0xffff_ffff)
    }),
    Def::new("v_mad_i32_i16", &[I16, I16, I32], Dst::B32, NONE, |x| {
        Bits((s(x, 0) * s(x, 1) + u(x, 2)).cast_unsigned() & 0xffff_ffff)
    }),
    Def::new("v_cndmask_b16", &[F16, F16, Mask], Dst::B16, NEG, |x| Bits(x[x[2] as usize])),
];

pub const ALL: &[&[Def]] = &[SHORT];
pub const DEFINED: &[&str] = &["v_swap_b32", "v_swap_b16", "v_mov_b16", "v_nop"];

#[test]
fn short_integers() {
    check(SHORT);
}

/// What v2 becomes, from v0 to v3.
type OnRegisters = fn(&[u32; 4]) -> u32;
/// What v0 and v1 become.
type OnPair = fn(u32, u32) -> (u32, u32);

/// Runs texts on random registers v0, v1, v3, with v2 as destination: each with what v2 must become.
fn on_registers(cases: &[(&str, OnRegisters)], refusal: Option<&str>) {
    let mut report = Report::default();
    let lines: Vec<String> = cases.iter().map(|(text, _)| (*text).to_owned()).collect();
    for ((text, want), step) in cases.iter().zip(decode(&lines)) {
        let step = match (step, refusal) {
            (Ok(step), _) => step,
            (Err(fault), Some(allowed)) if fault.contains(allowed) => continue,
            (Err(fault), _) => {
                report.add(&format!("{text}: {fault}"));
                continue;
            }
        };
        let mut r = Random::new(text);
        for set in sets(&[I32, I32], text) {
            let mut w = Wave::new(POISON);
            for (l, row) in set.iter().enumerate() {
                (w.vgpr[0][l], w.vgpr[1][l]) = (row[0] as u32, row[1] as u32);
                (w.vgpr[2][l], w.vgpr[3][l]) = (r.next() as u32, r.next() as u32);
            }
            let before = [0, 1, 2, 3].map(|n| w.vgpr[n]);
            if let Err(fault) = execute_one(&mut w, &step) {
                report.add(&format!("{text}: {fault}"));
                break;
            }
            let wrong = (0..32).find_map(|l| {
                let x = [0, 1, 2, 3].map(|n: usize| before[n][l]);
                let (want, got) = (want(&x), w.vgpr[2][l]);
                (want != got).then(|| format!("{text}, registers {x:x?}: {got:#x}, want {want:#x}"))
            });
            if let Some(message) = wrong {
                report.add(&message);
                break;
            }
        }
    }
    report.end();
}

fn low(x: u32) -> u32 {
    x & 0xffff
}

fn set_high(old: u32, x: u32) -> u32 {
    low(old) | x << 16
}

fn set_low(old: u32, x: u32) -> u32 {
    old & 0xffff_0000 | low(x)
}

/// Bit k of `op_sel` takes the high half of source k, bit 3 writes the high half.
#[test]
fn halves_by_op_sel() {
    on_registers(
        &[
            ("v_add_nc_u16 v2, v0, v1 op_sel:[1,0,0]", |x| set_low(x[2], (x[0] >> 16).wrapping_add(x[1]))),
            ("v_add_nc_u16 v2, v0, v1 op_sel:[0,1,0]", |x| set_low(x[2], (x[1] >> 16).wrapping_add(x[0]))),
            ("v_add_nc_u16 v2, v0, v1 op_sel:[1,0,1]", |x| set_high(x[2], (x[0] >> 16).wrapping_add(x[1]))),
            ("v_sub_nc_i16 v2, v0, v1 op_sel:[1,1,1]", |x| set_high(x[2], (x[0] >> 16).wrapping_sub(x[1] >> 16))),
            ("v_mad_u16 v2, v0, v1, v3 op_sel:[0,0,1,1]", |x| {
                set_high(x[2], low(x[0]).wrapping_mul(low(x[1])).wrapping_add(x[3] >> 16))
            }),
            ("v_mad_u32_u16 v2, v0, v1, v3 op_sel:[1,0,0,0]", |x| {
                (x[0] >> 16).wrapping_mul(low(x[1])).wrapping_add(x[3])
            }),
            ("v_mad_i32_i16 v2, v0, v1, v3 op_sel:[0,1,0,0]", |x| {
                let product = i32::from(x[0] as i16).wrapping_mul(x[1].cast_signed() >> 16);
                product.cast_unsigned().wrapping_add(x[3])
            }),
        ],
        None,
    );
}

/// `clamp` saturates integers; the text has no word about it, so an emulator may refuse it.
#[test]
fn saturation() {
    fn wide(x: u32) -> i64 {
        i64::from(x.cast_signed())
    }
    fn to_i32(x: i64) -> u32 {
        (x.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32).cast_unsigned()
    }
    fn to_i16(x: i64) -> u32 {
        u32::from((x.clamp(-0x8000, 0x7fff) as i16).cast_unsigned())
    }
    fn short(x: u32) -> i64 {
        i64::from(x as u16 as i16)
    }
    on_registers(
        &[
            ("v_add_nc_u32 v2, v0, v1 clamp", |x| x[0].saturating_add(x[1])),
            ("v_sub_nc_u32 v2, v0, v1 clamp", |x| x[0].saturating_sub(x[1])),
            ("v_subrev_nc_u32 v2, v0, v1 clamp", |x| x[1].saturating_sub(x[0])),
            ("v_add_nc_i32 v2, v0, v1 clamp", |x| to_i32(wide(x[0]) + wide(x[1]))),
            ("v_sub_nc_i32 v2, v0, v1 clamp", |x| to_i32(wide(x[0]) - wide(x[1]))),
            ("v_add_nc_u16 v2, v0, v1 clamp", |x| set_low(x[2], (low(x[0]) + low(x[1])).min(0xffff))),
            ("v_sub_nc_u16 v2, v0, v1 clamp", |x| set_low(x[2], low(x[0]).saturating_sub(low(x[1])))),
            ("v_add_nc_i16 v2, v0, v1 clamp", |x| set_low(x[2], to_i16(short(x[0]) + short(x[1])))),
            ("v_sub_nc_i16 v2, v0, v1 clamp", |x| set_low(x[2], to_i16(short(x[0]) - short(x[1])))),
            ("v_mad_u32_u24 v2, v0, v1, v3 clamp", |x| {
                let product = u64::from(x[0] & 0xff_ffff) * u64::from(x[1] & 0xff_ffff);
                (product + u64::from(x[3])).min(0xffff_ffff) as u32
            }),
            ("v_mad_i32_i24 v2, v0, v1, v3 clamp", |x| {
                let signed = |v: u32| i64::from(v.cast_signed() << 8 >> 8);
                to_i32(signed(x[0]) * signed(x[1]) + wide(x[3]))
            }),
        ],
        Some("modifier clamp"),
    );
}

#[test]
fn swap() {
    let step = decode(&["v_swap_b32 v2, v0".to_owned()]).remove(0).unwrap();
    for exec in [u32::MAX, 0xaaaa_aaaa, 0, 1 << 13] {
        let mut w = Wave::new(POISON);
        let (a, b) = (std::array::from_fn(|l| l as u32), std::array::from_fn(|l| 100 + l as u32));
        (w.vgpr[2], w.vgpr[0]) = (a, b);
        w.set_exec(exec);
        execute_one(&mut w, &step).unwrap();
        for l in 0..32 {
            let want = if exec >> l & 1 == 1 { (b[l], a[l]) } else { (a[l], b[l]) };
            assert_eq!((w.vgpr[2][l], w.vgpr[0][l]), want, "lane {l}, exec {exec:#x}");
        }
    }
}

/// Halves by name, which only LLVM's `real-true16` prints: the assembler of this project's target does not take them,
/// so they go to the emulator as text.
#[test]
fn halves_by_name() {
    let cases: &[(&str, OnPair)] = &[
        ("v_mov_b16_e32 v0.h, v1.l", |a, b| (set_high(a, b), b)),
        ("v_mov_b16_e32 v0.l, v1.h", |a, b| (set_low(a, b >> 16), b)),
        ("v_mov_b16_e32 v0.h, v0.l", |a, b| (set_high(a, a), b)),
        ("v_mov_b16_e32 v0.h, 0x1234", |a, b| (set_high(a, 0x1234), b)),
        ("v_swap_b16 v0.h, v1.l", |a, b| (set_high(a, b), set_low(b, a >> 16))),
        ("v_swap_b16 v0.l, v0.h", |a, b| (a.rotate_left(16), b)),
        ("v_add_nc_u16 v0.h, v0.l, v1.h", |a, b| (set_high(a, low(a).wrapping_add(b >> 16)), b)),
        ("v_lshlrev_b16 v0.l, 4, v0.h", |a, b| (set_low(a, a >> 16 << 4), b)),
        ("v_nop", |a, b| (a, b)),
    ];
    let mut report = Report::default();
    for (text, want) in cases {
        let step = match step::step(text, 0, 256, 106) {
            Ok(step) => step,
            Err(fault) => {
                report.add(&format!("{text}: {fault}"));
                continue;
            }
        };
        let mut r = Random::new(text);
        for exec in [u32::MAX, 0xaaaa_aaaa, 0] {
            let mut w = Wave::new(POISON);
            let (a, b): ([u32; 32], [u32; 32]) =
                (std::array::from_fn(|_| r.next() as u32), std::array::from_fn(|_| r.next() as u32));
            (w.vgpr[0], w.vgpr[1]) = (a, b);
            w.set_exec(exec);
            if let Err(fault) = execute_one(&mut w, &step) {
                report.add(&format!("{text}: {fault}"));
                break;
            }
            for l in 0..32 {
                let want = if exec >> l & 1 == 1 { want(a[l], b[l]) } else { (a[l], b[l]) };
                let got = (w.vgpr[0][l], w.vgpr[1][l]);
                if got != want {
                    report.add(&format!("{text}, {:#x} and {:#x}: {got:x?}, want {want:x?}", a[l], b[l]));
                    break;
                }
            }
        }
    }
    report.end();
}
