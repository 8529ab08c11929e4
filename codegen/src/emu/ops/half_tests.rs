//! What the tests of ops cannot see one by one: that LLVM prints their names, and how operations work together.

use super::{dot, double, half as halves, matrix, packed};
use crate::emu::op::Op;
use crate::emu::snippet::{Surroundings, run};
use crate::emu::wave::Wave;
use crate::llvm::assemble::assemble;
use crate::target::{Target, by_name};

fn target() -> &'static Target {
    by_name("gfx1201").unwrap()
}

fn execute(text: &str, w: &mut Wave, perturb: Option<u32>) {
    let code = assemble(text, target()).unwrap();
    let mut around = Surroundings { perturb, ..Surroundings::default() };
    run(&code, target(), w, &mut around).unwrap_or_else(|fault| unreachable!("{text}: {fault}"));
}

/// One random 64-bit number after the other.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    let x = (*state ^ *state >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 32
}

/// Operands of an op in LLVM's syntax, by its name.
fn sample(op: &Op) -> String {
    let name = op.name;
    if let Some(rest) = name.strip_prefix("v_dot2acc_") {
        return format!("v_dual_dot2acc_{rest} v0, v1, v2 :: v_dual_add_f32 v3, v6, v7");
    }
    let candidates = [
        "v0, v1",
        "v0, v1, v2",
        "v0, v1, v2, v3",
        "v0, v1, 0x4200, v2",
        "v0, v1, v2, 0x4200",
        "s0, s1",
        "v[0:1], v[2:3]",
        "v[0:1], v[2:3], v4",
        "v0, v[2:3]",
        "v[0:1], v[2:3], v[4:5]",
        "v[0:1], v[2:3], v[4:5], v[6:7]",
        "v[0:1], vcc_lo, v[2:3], v[4:5], v[6:7]",
        "v[0:7], v[8:11], v[12:15], v[16:23]",
        "v[0:7], v[8:9], v[12:13], v[16:23]",
        "v[0:7], v8, v12, v[16:23]",
        "v[0:3], v[8:11], v[12:15], v[16:19]",
        "v[0:7], v[8:11], v[12:19], v20",
        "v[0:3], v[8:11], v[12:19], v20",
        "v[0:7], v[8:9], v[12:15], v20",
        "v[0:7], v8, v[12:13], v20",
    ];
    let mut texts = candidates.iter().map(|operands| format!("{name} {operands}"));
    texts.find(|text| assemble(text, target()).is_ok()).unwrap_or_else(|| unreachable!("LLVM has no {name}"))
}

#[test]
fn llvm_has_each() {
    for op in [halves::OPS, packed::OPS, dot::OPS, matrix::OPS, double::OPS].into_iter().flatten().copied().flatten() {
        let mut w = Wave::new(0);
        execute(&sample(op), &mut w, Some(1));
    }
}

/// The steps that LLVM emits for a division.
const DIVISION: &str = "\
v_div_scale_f64 v[4:5], null, v[2:3], v[2:3], v[0:1]
v_div_scale_f64 v[10:11], vcc_lo, v[0:1], v[2:3], v[0:1]
v_rcp_f64_e32 v[6:7], v[4:5]
v_fma_f64 v[8:9], -v[4:5], v[6:7], 1.0
v_fma_f64 v[6:7], v[6:7], v[8:9], v[6:7]
v_fma_f64 v[8:9], -v[4:5], v[6:7], 1.0
v_fma_f64 v[6:7], v[6:7], v[8:9], v[6:7]
v_mul_f64_e32 v[8:9], v[10:11], v[6:7]
v_fma_f64 v[4:5], -v[4:5], v[8:9], v[10:11]
v_div_fmas_f64 v[4:5], v[4:5], v[6:7], v[8:9]
v_div_fixup_f64 v[12:13], v[4:5], v[2:3], v[0:1]";

#[test]
fn division_is_correctly_rounded() {
    let code = assemble(DIVISION, target()).unwrap();
    let mut state = 1;
    for round in 0..1500 {
        let mut w = Wave::new(0);
        let perturb = (round % 2 == 0).then_some(round);
        let mut operands = || {
            std::array::from_fn(|_| match (random(&mut state), round % 4) {
                (x, 0) => x,
                // Around 1, near the ends of the range, and few bits.
                (x, 1) => x & !(0x7ff << 52) | (1000 + (x >> 52) % 40) << 52,
                (x, 2) => x & !(0x7f0 << 52) | if x & 1 == 0 { 0 } else { 0x7f0 << 52 },
                (x, _) => x & (0xfff << 52 | 0xff << 44),
            })
        };
        let (a, b): ([u64; 32], [u64; 32]) = (operands(), operands());
        w.set_lanes64(0, &a, u32::MAX);
        w.set_lanes64(2, &b, u32::MAX);
        run(&code, target(), &mut w, &mut Surroundings { perturb, ..Surroundings::default() }).unwrap();
        let found = w.lanes64(crate::emu::step::Operand::V(12));
        for l in 0..32 {
            let (a, b) = (f64::from_bits(a[l]), f64::from_bits(b[l]));
            let (found, right) = (f64::from_bits(found[l]), a / b);
            let same = found.to_bits() == right.to_bits() || found.is_nan() && right.is_nan();
            assert!(same, "{a:e} / {b:e}: {found:e}, not {right:e}");
        }
    }
}

/// Element bits of row (or column) r, k, in the layout of the facts sheet.
fn element(w: &Wave, first: usize, bits: usize, per_lane: usize, r: usize, k: usize) -> u32 {
    let (half, x) = match bits {
        16 if per_lane == 8 => (k / 4 % 2, 4 * (k / 8) + k % 4),
        16 => (k / 8 % 2, 8 * (k / 16) + k % 8),
        _ => (k / per_lane, k % per_lane),
    };
    w.vgpr[first + x * bits / 32][r + 16 * half] >> (x * bits % 32) & ((1u32 << bits) - 1)
}

fn filled(seed: u64, mut value: impl FnMut(u64) -> u32) -> Wave {
    let (mut w, mut state) = (Wave::new(0), seed);
    w.vgpr.iter_mut().flatten().for_each(|x| *x = value(random(&mut state)));
    w
}

fn small_halves(x: u64) -> u32 {
    let half = |x: u64| u32::from(half::f16::from_f32((x % 33) as f32 - 16.0).to_bits());
    half(x & 0xffff) | half(x >> 16 & 0xffff) << 16
}

#[test]
fn wmma_f16() {
    let f = |bits: u32| half::f16::from_bits(bits as u16).to_f32();
    let mut w = filled(3, small_halves);
    w.vgpr[16..24].iter_mut().flatten().for_each(|x| *x = ((*x % 100) as f32).to_bits());
    let before = w.vgpr.clone();
    w.set_exec(1);
    execute("v_wmma_f32_16x16x16_f16 v[0:7], v[8:11], v[12:15], v[16:23] neg_lo:[1,0,1] neg_hi:[1,0,0]", &mut w, None);
    for row in 0..16 {
        for column in 0..16 {
            let (e, l) = (row % 8, column + 16 * (row / 8));
            let mut sum = -f32::from_bits(before[16 + e][l]);
            for k in 0..16 {
                sum -= f(element(&w, 8, 16, 8, row, k)) * f(element(&w, 12, 16, 8, column, k));
            }
            assert_eq!(f32::from_bits(w.vgpr[e][l]), sum, "{row} {column}");
        }
    }
    execute("v_wmma_f16_16x16x16_f16 v[0:3], v[8:11], v[12:15], 2.0", &mut w, None);
    let sum: f32 = (0..16).map(|k| f(element(&w, 8, 16, 8, 13, k)) * f(element(&w, 12, 16, 8, 3, k))).sum();
    assert_eq!(f(w.vgpr[2][19] >> 16), half::f16::from_f32(sum + 2.0).to_f32());
}

#[test]
fn wmma_integers() {
    let mut w = filled(4, |x| x as u32);
    let c = w.vgpr[17][20];
    execute("v_wmma_i32_16x16x16_iu8 v[0:7], v[8:9], v[12:13], v[16:23] neg_lo:[1,0,0]", &mut w, None);
    let product = |k| element(&w, 8, 8, 8, 9, k) as u8 as i8 as i32 * element(&w, 12, 8, 8, 4, k) as i32;
    let sum = (0..16).map(product).sum::<i32>();
    assert_eq!(w.vgpr[1][20], c.wrapping_add(sum.cast_unsigned()));
    execute("v_wmma_i32_16x16x32_iu4 v[0:7], v[8:9], v[12:13], 5 neg_lo:[0,1,0]", &mut w, None);
    let signed = |x: u32| if x > 7 { x as i32 - 16 } else { x as i32 };
    let product = |k| element(&w, 8, 4, 16, 1, k) as i32 * signed(element(&w, 12, 4, 16, 2, k));
    assert_eq!(w.vgpr[1][2].cast_signed(), 5 + (0..32).map(product).sum::<i32>());
}

#[test]
fn packed_halves_and_constants() {
    let mut w = Wave::new(0);
    w.vgpr[1] = [0x4000_3c00; 32];
    execute("v_pk_add_f16 v0, v1, 1.0", &mut w, None);
    assert_eq!(w.vgpr[0][7], 0x4000_4000);
    execute("v_pk_add_f16 v0, v1, 1.0 op_sel_hi:[1,0]", &mut w, None);
    assert_eq!(w.vgpr[0][7], 0x4200_4000);
    execute("v_pk_mul_f16 v0, v1, v1 op_sel:[1,0] op_sel_hi:[0,1] neg_lo:[1,0]", &mut w, None);
    assert_eq!(w.vgpr[0][7], 0x4000_c000);
    execute("v_pk_add_u16 v0, v1, -1 clamp", &mut w, None);
    assert_eq!(w.vgpr[0][7], 0xffff_ffff);
    execute("v_pk_sub_i16 v0, 0, v1", &mut w, None);
    assert_eq!(w.vgpr[0][7], 0xc000_c400);
    w.vgpr[2] = [2.5f32.to_bits(); 32];
    execute("v_fma_mix_f32 v0, v1, |v2|, -v2 op_sel:[1,0,0] op_sel_hi:[1,0,0]", &mut w, None);
    assert_eq!(w.vgpr[0][7], 2.5f32.to_bits());
    execute("v_fma_mixhi_f16 v0, v1, v2, 1.0 op_sel_hi:[1,0,0]", &mut w, None);
    assert_eq!(w.vgpr[0][7], 0x4300_0000);
    execute("v_dual_dot2acc_f32_f16 v2, v1, v1 :: v_dual_add_f32 v3, v6, v7", &mut w, None);
    assert_eq!(w.vgpr[2][7], 7.5f32.to_bits());
}

/// In units of 2^-24.
fn fixed(x: u32) -> i128 {
    (super::formats::f16(x) * f64::from(1 << 24)) as i128
}

#[test]
fn fma_rounds_once() {
    use super::formats::{f16, to_f16};
    let mut state = 9;
    for round in 0..2_000_000u32 {
        let x = random(&mut state);
        let [a, mut b, mut c] = [x & 0xffff, x >> 16 & 0xffff, x >> 32 & 0xffff].map(|x| x as u32);
        if round % 2 == 0 {
            // Ties of the product, with little beside them.
            (b, c) = (b & 0xfe00 | 0x3c00, c & 0x83ff);
        }
        if [a, b, c].iter().any(|x| x & 0x7c00 == 0x7c00) {
            continue;
        }
        let exact = fixed(a) * fixed(b) + (fixed(c) << 24);
        // 40 bits and a sticky one are enough for any rounding to f16.
        let shift = (128 - exact.unsigned_abs().leading_zeros()).saturating_sub(40);
        let lost = exact.unsigned_abs() & ((1 << shift) - 1) != 0;
        let kept = (exact.unsigned_abs() >> shift) as f64 * 2.0 + f64::from(u8::from(lost));
        let scale = f64::from_bits(((1023 + i64::from(shift) - 49) as u64) << 52);
        let right = to_f16(if exact < 0 { -kept } else { kept } * scale);
        let found = to_f16(halves::v_fma_f16(f16(a), f16(b), f16(c)));
        assert!(
            found == right || exact == 0 && found & 0x7fff == 0,
            "{a:#x} {b:#x} {c:#x}: {found:#x}, not {right:#x}"
        );
    }
}

#[test]
fn special_values() {
    let cases = [
        ("v_min_num_f16 v0, v1, v2", 0x7e01, 0x3c00, 0x3c00),
        ("v_minimum_f16 v0, v1, v2", 0x7c01, 0x3c00, 0x7e01),
        ("v_max_num_f16 v0, v1, v2", 0x8000, 0, 0),
        ("v_med3_num_f16 v0, v1, v2, 2.0", 0x3c00, 0x4400, 0x4000),
        ("v_fract_f16 v0, v1", 0x8001, 0, 0x3bff),
        ("v_ldexp_f16 v0, v1, v2", 0x3c00, 0xffe8, 1),
        ("v_ldexp_f16 v0, v1, v2", 0xbc00, 0x7fff, 0xfc00),
        ("v_frexp_exp_i16_f16 v0, v1", 1, 0, 0xffe9),
        ("v_frexp_mant_f16 v0, v1", 0x8001, 0, 0xb800),
        ("v_rndne_f16 v0, v1", 0xb800, 0, 0x8000),
        ("v_add_f16_e64 v0, v1, -|v2| clamp", 0x4000, 0xbc00, 0x3c00),
        ("v_sin_f16 v0, v1", 0x3400, 0, 0x3c00),
        ("v_cos_f16 v0, v1", 0x7c00, 0, 0x7e00),
        ("v_log_f16 v0, v1", 0x8000, 0, 0xfc00),
        ("v_add_f16 v0, 0.15915494, v1", 0, 0, 0x3118),
        ("v_div_fixup_f16 v0, v1, v2, 1.0", 0x3c00, 0x8000, 0xfc00),
    ];
    for (text, a, b, right) in cases {
        let mut w = Wave::new(0);
        (w.vgpr[1], w.vgpr[2]) = ([a; 32], [b; 32]);
        execute(text, &mut w, None);
        let found = w.vgpr[0][3];
        assert!(found == right || right == 0x7e00 && found & 0x7e00 == 0x7e00, "{text}: {found:#x}, not {right:#x}");
    }
    let mut w = Wave::new(0);
    w.set_lanes64(2, &[f64::from_bits(3).to_bits(); 32], u32::MAX);
    execute("v_frexp_exp_i32_f64 v0, v[2:3]\nv_ldexp_f64 v[4:5], v[2:3], 0x432", &mut w, None);
    assert_eq!(w.vgpr[0][0].cast_signed(), -1072);
    assert_eq!(w.lanes64(crate::emu::step::Operand::V(4))[0], 3.0f64.to_bits());
    execute("v_ldexp_f64 v[4:5], 1.0, -1074", &mut w, None);
    assert_eq!(w.lanes64(crate::emu::step::Operand::V(4))[0], 1);
}

#[test]
fn halves_of_registers() {
    let mut w = Wave::new(0);
    w.vgpr[0] = [0x1111_2222; 32];
    w.vgpr[1] = [0x4000_3c00; 32];
    execute("v_minimum_f16 v0, v1, v1 op_sel:[1,0,1]", &mut w, None);
    assert_eq!(w.vgpr[0][7], 0x3c00_2222);
    execute("v_fma_f16 v0, v1, v1, v1 op_sel:[1,1,0,0]", &mut w, None);
    assert_eq!(w.vgpr[0][7], 0x3c00_4500);
    let named = crate::emu::step::step("v_add_f16_e64 v0.h, v1.l, v1.h op_sel:[0,1,1]", 0, 256, 106).unwrap();
    assert_eq!(named.args[2], crate::emu::step::Operand::Half(1, true));
    let (lanes, _) = super::half::half_source(&w, &named, 2, 1).unwrap();
    assert_eq!(lanes[0], 0x4000);
}
