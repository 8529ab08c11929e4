//! Elementwise and cross-lane expressions on the host, bit for bit; every program also builds for gfx1201.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

mod support;

use half::{bf16, f16};
use support::*;
use unglue_codegen::kp::*;

/// Interesting floats: zeros, denormals, ties of both 16-bit formats, extremes, infinities, NaNs.
fn floats() -> Vec<f32> {
    let bits = [
        0x0000_0000,
        0x8000_0000,
        0x0000_0001,
        0x8000_0001,
        0x007f_ffff,
        0x0080_0000,
        0x3f80_0000,
        0xbf80_0000,
        0x3f80_8000,
        0x3f81_8000,
        0x3f80_8001,
        0x3f80_7fff,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0xffc1_2345,
        0x7f80_0001,
        0x3f80_1000,
        0x3f80_3000,
        0x477f_e000,
        0x477f_f000,
        0x477f_efff,
        0x3380_0000,
        0x3300_0000,
        0x3300_0001,
        0x3380_1000,
        0x3fc0_0000,
        0x4020_0000,
        0xc020_0000,
        0x4f00_0000,
        0xcf00_0000,
        0x4eff_ffff,
        0x5f00_0000,
        0x0000_8000,
        0x0001_8000,
        0x7f7f_8000,
        0x4049_0fdb,
        0xc2f6_e979,
    ];
    bits.map(f32::from_bits).to_vec()
}

/// Every pair of interesting floats, padded to a multiple of `n`.
fn pairs(n: usize) -> (Vec<f32>, Vec<f32>) {
    let f = floats();
    let mut all: Vec<(f32, f32)> = f.iter().flat_map(|a| f.iter().map(move |b| (*a, *b))).collect();
    all.resize(all.len().next_multiple_of(n), (1.0, 2.0));
    all.into_iter().unzip()
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// out = op(a, b, c) over vectors of `vec` components, one workgroup per 32 * vec elements.
fn map3(name: &str, vec: u8, mems: (Mem, Mem), op: impl Fn(&mut B, Val, Val, Val) -> Val) -> Program {
    let mut b = B::new(name, 1);
    let ins: Vec<Place> = (0..3).map(|_| b.buffer(mems.0, Access::Read)).collect();
    let to = b.buffer(mems.1, Access::Write);
    let (g, n) = (b.group(), b.i32(32 * i32::from(vec)));
    let base = b.bin(Bin::Mul, g, n);
    let v: Vec<Val> = ins.iter().map(|p| b.load(*p, Addr::Contig { base }, Bound::All, vec)).collect();
    let r = op(&mut b, v[0], v[1], v[2]);
    b.store(to, Addr::Contig { base }, Bound::All, r);
    b.finish()
}

fn run_f32(p: &Program, vec: u8, a: &[f32], b: &[f32], c: &[f32]) -> Vec<f32> {
    let mut to = vec![0f32; a.len()];
    Host::new(p).run(&[arg(a), arg(b), arg(c), out(&mut to)], (a.len() / (32 * usize::from(vec))) as i32);
    to
}

fn minimum(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        f32::NAN
    } else if a == b {
        if a.is_sign_negative() { a } else { b }
    } else {
        a.min(b)
    }
}

#[test]
fn float_binary() {
    type Op = (Bin, fn(f32, f32) -> f32);
    let ops: [Op; 6] = [
        (Bin::Add, |a, b| a + b),
        (Bin::Sub, |a, b| a - b),
        (Bin::Mul, |a, b| a * b),
        (Bin::Div, |a, b| a / b),
        (Bin::Min, minimum),
        (Bin::Max, |a, b| -minimum(-a, -b)),
    ];
    for vec in [1, 8] {
        let (a, b) = pairs(32 * usize::from(vec));
        for (op, expected) in ops {
            let p = map3("float_binary", vec, (Mem::F32, Mem::F32), |k, a, b, _| k.bin(op, a, b));
            for (i, got) in run_f32(&p, vec, &a, &b, &b).into_iter().enumerate() {
                let want = expected(a[i], b[i]);
                assert!(same(got, want), "{op:?} {:?} {:?}: {got:?}, not {want:?}", a[i], b[i]);
            }
        }
    }
}

#[test]
fn float_unary_fma_select() {
    type Op = (&'static str, fn(&mut B, Val, Val, Val) -> Val, fn(f32, f32, f32) -> f32);
    let ops: [Op; 10] = [
        ("neg", |k, a, _, _| k.un(Un::Neg, a), |a, _, _| -a),
        ("abs", |k, a, _, _| k.un(Un::Abs, a), |a, _, _| a.abs()),
        ("sqrt", |k, a, _, _| k.un(Un::Sqrt, a), |a, _, _| a.sqrt()),
        ("rint", |k, a, _, _| k.un(Un::Rint, a), |a, _, _| a.round_ties_even()),
        ("bf16", |k, a, _, _| k.un(Un::RoundBf16, a), |a, _, _| bf16::from_f32(a).to_f32()),
        ("f16", |k, a, _, _| k.un(Un::RoundF16, a), |a, _, _| f16::from_f32(a).to_f32()),
        ("fma", |k, a, b, c| k.fma(a, b, c), |a, b, c| a.mul_add(b, c)),
        (
            "no contraction",
            |k, a, b, c| {
                let m = k.bin(Bin::Mul, a, b);
                k.bin(Bin::Add, m, c)
            },
            |a, b, c| a * b + c,
        ),
        (
            "select",
            |k, a, b, c| {
                let m = k.cmp(Cmp::Lt, a, b);
                let ty = k.ty(a);
                k.def(ty, Expr::Select(m, b, c))
            },
            |a, b, c| if a < b { b } else { c },
        ),
        (
            "uniform select",
            |k, a, b, _| {
                let t = k.def(U(Elem::Bool), Expr::Bool(false));
                let ty = k.ty(a);
                k.def(ty, Expr::Select(t, a, b))
            },
            |_, b, _| b,
        ),
    ];
    for vec in [1, 8] {
        let (a, b) = pairs(32 * usize::from(vec));
        let c: Vec<f32> = a.iter().rev().copied().collect();
        for (name, op, expected) in ops {
            let p = map3("float_unary", vec, (Mem::F32, Mem::F32), op);
            for (i, got) in run_f32(&p, vec, &a, &b, &c).into_iter().enumerate() {
                let want = expected(a[i], b[i], c[i]);
                assert!(same(got, want), "{name} {:?} {:?} {:?}: {got:?}, not {want:?}", a[i], b[i], c[i]);
            }
        }
    }
}

#[test]
fn comparisons() {
    type Op = (Cmp, fn(f32, f32) -> bool, fn(i32, i32) -> bool);
    let ops: [Op; 6] = [
        (Cmp::Eq, |a, b| a == b, |a, b| a == b),
        (Cmp::Ne, |a, b| a != b, |a, b| a != b),
        (Cmp::Lt, |a, b| a < b, |a, b| a < b),
        (Cmp::Le, |a, b| a <= b, |a, b| a <= b),
        (Cmp::Gt, |a, b| a > b, |a, b| a > b),
        (Cmp::Ge, |a, b| a >= b, |a, b| a >= b),
    ];
    let (a, b) = pairs(64);
    for (op, float, int) in ops {
        let p = map3("comparisons", 2, (Mem::F32, Mem::I32), |k, a, b, _| {
            let (x, y) = (k.conv(Conv::F32Bits, a), k.conv(Conv::F32Bits, b));
            let (f, i) = (k.cmp(op, a, b), k.cmp(op, x, y));
            let nf = k.un(Un::Not, f);
            let (f, i) = (k.conv(Conv::BoolToI32, nf), k.conv(Conv::BoolToI32, i));
            let two = k.i32(2);
            let two = k.splat(two, 2);
            let i = k.bin(Bin::Mul, i, two);
            k.bin(Bin::Add, f, i)
        });
        let mut to = vec![0i32; a.len()];
        Host::new(&p).run(&[arg(&a), arg(&b), arg(&b), out(&mut to)], (a.len() / 64) as i32);
        for i in 0..a.len() {
            let ints = (a[i].to_bits() as i32, b[i].to_bits() as i32);
            let want = i32::from(!float(a[i], b[i])) + 2 * i32::from(int(ints.0, ints.1));
            assert_eq!(to[i], want, "{op:?} {:?} {:?}", a[i], b[i]);
        }
    }
}

#[test]
fn integers() {
    type Op = (Bin, fn(i32, i32, u32) -> i32);
    let ops: [Op; 13] = [
        (Bin::Add, |a, b, _| a.wrapping_add(b)),
        (Bin::Sub, |a, b, _| a.wrapping_sub(b)),
        (Bin::Mul, |a, b, _| a.wrapping_mul(b)),
        (Bin::Div, |a, b, _| a.wrapping_div(b)),
        (Bin::Rem, |a, b, _| a.wrapping_rem(b)),
        (Bin::Min, |a, b, _| a.min(b)),
        (Bin::Max, |a, b, _| a.max(b)),
        (Bin::And, |a, b, _| a & b),
        (Bin::Or, |a, b, _| a | b),
        (Bin::Xor, |a, b, _| a ^ b),
        (Bin::Shl, |a, _, s| a << s),
        (Bin::Lshr, |a, _, s| ((a as u32) >> s) as i32),
        (Bin::Ashr, |a, _, s| a >> s),
    ];
    let base = [0, 1, -1, 2, -2, 7, -7, 31, 1000, -1000, i32::MAX, i32::MIN + 1, 0x0102_0304, -559_038_737, 65535, 3];
    let mut a: Vec<i32> = base.iter().flat_map(|a| [*a; 16]).collect();
    let mut b: Vec<i32> = base.iter().cycle().take(256).map(|b| if *b == 0 { 5 } else { *b }).collect();
    a.reverse();
    b.rotate_left(3);
    let c: Vec<i32> = (0..256).map(|i| i % 32).collect();
    for wide in [false, true] {
        for (op, expected) in ops {
            let shift = matches!(op, Bin::Shl | Bin::Lshr | Bin::Ashr);
            if wide && matches!(op, Bin::Lshr) {
                continue; // the upper half matters there: see `wide_integers`
            }
            let p = map3("integers", 4, (Mem::I32, Mem::I32), |k, a, b, c| {
                let b = if shift { c } else { b };
                if !wide {
                    return k.bin(op, a, b);
                }
                let (a, b) = (k.conv(Conv::I32ToI64, a), k.conv(Conv::I32ToI64, b));
                let r = k.bin(op, a, b);
                k.conv(Conv::I64ToI32, r)
            });
            let mut to = vec![0i32; 256];
            Host::new(&p).run(&[arg(&a), arg(&b), arg(&c), out(&mut to)], 2);
            for i in 0..256 {
                assert_eq!(to[i], expected(a[i], b[i], c[i] as u32), "{op:?} {} {}", a[i], b[i]);
            }
        }
    }
}

#[test]
fn wide_integers() {
    let p = map3("wide_integers", 1, (Mem::I32, Mem::I32), |k, a, b, _| {
        let (x, y) = (k.conv(Conv::I32ToI64, a), k.conv(Conv::I32ToI64, b));
        let product = k.bin(Bin::Mul, x, y);
        let by = k.def(U(Elem::I64), Expr::I64(32));
        let by = k.splat(by, 1);
        let high = k.bin(Bin::Ashr, product, by);
        let negative = k.un(Un::Neg, high);
        k.conv(Conv::I64ToI32, negative)
    });
    let a: Vec<i32> = (0..32).map(|i| (i * 123_456_789i64 - 1_999_999_999) as i32).collect();
    let b: Vec<i32> = (0..32).map(|i| (i * 7_654_321i64 + 1_000_000_007) as i32).collect();
    let mut to = vec![0i32; 32];
    Host::new(&p).run(&[arg(&a), arg(&b), arg(&b), out(&mut to)], 1);
    for i in 0..32 {
        assert_eq!(to[i], -((i64::from(a[i]) * i64::from(b[i])) >> 32) as i32);
    }
}

#[test]
fn unsigned_less() {
    let p = map3("unsigned_less", 1, (Mem::I32, Mem::I32), |k, a, b, _| {
        let m = k.cmp(Cmp::Ult, a, b);
        k.conv(Conv::BoolToI32, m)
    });
    let a: Vec<i32> = (0..32).map(|i| i - 16).collect();
    let b = vec![4i32; 32];
    let mut to = vec![9i32; 32];
    Host::new(&p).run(&[arg(&a), arg(&b), arg(&b), out(&mut to)], 1);
    for i in 0..32 {
        assert_eq!(to[i], i32::from((a[i] as u32) < 4));
    }
}

#[test]
fn lowest_set_bit() {
    let p = map3("lowest_set_bit", 1, (Mem::I32, Mem::I32), |k, a, _, _| k.un(Un::Ctz, a));
    let a: Vec<i32> = (0..32).map(|i| (0x7654_3211i32 | 1) << i).collect();
    let mut to = vec![-1i32; 32];
    Host::new(&p).run(&[arg(&a), arg(&a), arg(&a), out(&mut to)], 1);
    assert_eq!(to, (0..32).collect::<Vec<_>>());
}

#[test]
fn conversions() {
    let mut a = floats();
    a.extend([2_147_483_520.0, -2_147_483_648.0, 1e10, -1e10, 0.99, -0.99, 3.7, -3.7]);
    a.resize(64, 0.5);
    let p = map3("to_int", 2, (Mem::F32, Mem::I32), |k, a, _, _| k.conv(Conv::F32ToI32, a));
    let mut to = vec![0i32; 64];
    Host::new(&p).run(&[arg(&a), arg(&a), arg(&a), out(&mut to)], 1);
    for i in 0..64 {
        assert_eq!(to[i], a[i] as i32, "{:?}", a[i]);
    }
    let ints: Vec<i32> =
        (0..64).map(|i| if i < 32 { i32::MAX.wrapping_add(i * 63) } else { 0x0100_0000 + i - 40 }).collect();
    let p = map3("to_float", 2, (Mem::I32, Mem::F32), |k, a, _, _| {
        let f = k.conv(Conv::I32ToF32, a);
        let bits = k.conv(Conv::F32Bits, f);
        k.conv(Conv::BitsF32, bits)
    });
    let mut to = vec![0f32; 64];
    Host::new(&p).run(&[arg(&ints), arg(&ints), arg(&ints), out(&mut to)], 1);
    for i in 0..64 {
        assert_eq!(to[i], ints[i] as f32);
    }
}

#[test]
fn shapes() {
    // out[l * 8 + v] = pack of components in reverse, plus a splat of component 0.
    for vec in [2u8, 4, 8] {
        let p = map3("shapes", vec, (Mem::F32, Mem::F32), |k, a, _, _| {
            let parts: Vec<Val> = (0..vec).rev().map(|i| k.component(a, i)).collect();
            let packed = k.def(Ty::Lane(Elem::F32, vec), Expr::Pack(parts));
            let first = k.component(a, 0);
            let first = k.splat(first, vec);
            k.bin(Bin::Add, packed, first)
        });
        let n = 32 * usize::from(vec);
        let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let got = run_f32(&p, vec, &a, &a, &a);
        for (i, got) in got.iter().enumerate() {
            let (lane, v) = (i / usize::from(vec), i % usize::from(vec));
            let first = lane * usize::from(vec);
            assert_eq!(*got, (first + usize::from(vec) - 1 - v + first) as f32);
        }
    }
}

fn butterfly(x: &[f32], op: impl Fn(f32, f32) -> f32) -> f32 {
    let mut x = x.to_vec();
    for step in [16, 8, 4, 2, 1] {
        x = (0..32).map(|l| op(x[l], x[l ^ step])).collect();
    }
    x[0]
}

#[test]
fn reductions_keep_their_order() {
    let mut seed = 12345u32;
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / 1000.0 - 8000.0
    };
    for round in 0..20 {
        let mut a: Vec<f32> = (0..32).map(|_| next()).collect();
        if round > 15 {
            a[round] = [-0.0, f32::NAN, f32::INFINITY, 1e-42][round - 16];
        }
        let mut p = B::new("reductions", 1);
        let (x, to) = (p.buffer(Mem::F32, Access::Read), p.buffer(Mem::F32, Access::Write));
        let zero = p.i32(0);
        let v = p.load(x, Addr::Contig { base: zero }, Bound::All, 1);
        for (i, r) in [Reduce::Add, Reduce::Min, Reduce::Max].into_iter().enumerate() {
            let (r, base) = (p.reduce(r, v), p.i32(i as i32));
            p.store(to, Addr::Uniform { base }, Bound::All, r);
        }
        let mut got = [0f32; 3];
        Host::new(&p.finish()).run(&[arg(&a), out(&mut got)], 1);
        let want = [butterfly(&a, |a, b| a + b), butterfly(&a, minimum), butterfly(&a, |a, b| -minimum(-a, -b))];
        for i in 0..3 {
            assert!(same(got[i], want[i]), "{i}: {got:?} {want:?}");
        }
    }
}

#[test]
fn integer_reductions_and_lanes() {
    let mut p = B::new("lanes", 1);
    let (x, to) = (p.buffer(Mem::I32, Access::Read), p.buffer(Mem::I32, Access::Write));
    let zero = p.i32(0);
    let v = p.load(x, Addr::Contig { base: zero }, Bound::All, 1);
    let five = p.i32(5);
    let five = p.splat(five, 1);
    let scaled = p.bin(Bin::Mul, v, five); // r * 5 + dpp(x): LLVM 22.1.8 encodes that wrongly with DPP
    let mut results = vec![];
    for r in [Reduce::Add, Reduce::Min, Reduce::Max] {
        results.push(p.reduce(r, scaled));
    }
    let seven = p.i32(7);
    results.push(p.def(U(Elem::I32), Expr::ReadLane(v, seven)));
    let limit = p.splat(zero, 1);
    let negative = p.cmp(Cmp::Lt, v, limit);
    results.push(p.def(U(Elem::I32), Expr::Ballot(negative)));
    let bit = p.def(U(Elem::Bool), Expr::ReadLane(negative, seven));
    results.push(p.conv(Conv::BoolToI32, bit));
    for (i, r) in results.iter().enumerate() {
        let base = p.i32(i as i32);
        p.store(to, Addr::Uniform { base }, Bound::All, *r);
    }
    let scan = p.def(lane(Elem::I32), Expr::ScanAdd(v));
    let base = p.i32(32);
    p.store(to, Addr::Contig { base }, Bound::All, scan);
    for mask in 1..32u8 {
        let moved = p.def(lane(Elem::I32), Expr::XorLane(v, mask));
        let scaled_move = p.bin(Bin::Add, scaled, moved);
        let base = p.i32(32 + 32 * i32::from(mask));
        p.store(to, Addr::Contig { base }, Bound::All, scaled_move);
    }
    let a: Vec<i32> = (0..32).map(|i| (i * 37 % 101) - 50).collect();
    let mut got = vec![0i32; 32 * 33];
    Host::new(&p.finish()).run(&[arg(&a), out(&mut got)], 1);
    let ballot = (0..32).fold(0u32, |m, i| m | u32::from(a[i] < 0) << i) as i32;
    assert_eq!(got[0], a.iter().sum::<i32>() * 5);
    assert_eq!(got[1], a.iter().min().unwrap() * 5);
    assert_eq!(got[2], a.iter().max().unwrap() * 5);
    assert_eq!(got[3..6], [a[7], ballot, i32::from(a[7] < 0)]);
    for l in 0..32 {
        assert_eq!(got[32 + l], a[..l].iter().sum::<i32>());
        for mask in 1..32 {
            assert_eq!(got[32 + 32 * mask + l], a[l ^ mask] + 5 * a[l]);
        }
    }
}

#[test]
fn launch_values() {
    let mut p = B::new("launch_values", 2);
    let to = p.buffer(Mem::I32, Access::Write);
    let s = p.scalar();
    let axes: Vec<Val> = (0..3).map(|i| p.def(U(Elem::I32), Expr::Group(i))).collect();
    let (wave, l, n) = (p.wave(), p.lane_id(), p.i32(32));
    let mut all = s;
    for a in axes.iter().chain([&wave]) {
        let hundred = p.i32(100);
        all = p.bin(Bin::Mul, all, hundred);
        all = p.bin(Bin::Add, all, *a);
    }
    let all = p.splat(all, 1);
    let sum = p.bin(Bin::Add, all, l);
    let two = p.i32(2);
    let block = p.bin(Bin::Mul, axes[0], two);
    let block = p.bin(Bin::Add, block, wave);
    let base = p.bin(Bin::Mul, block, n);
    p.store(to, Addr::Contig { base }, Bound::All, sum);
    let mut got = vec![0i32; 128];
    Host::new(&p.finish()).run(&[out(&mut got), 0xffff_ffff_0000_0003], 2);
    for (i, got) in got.iter().enumerate() {
        let (group, wave, l) = (i / 64, i / 32 % 2, i % 32);
        assert_eq!(*got as usize, (((3 * 100 + group) * 100 + 7) * 100 + 9) * 100 + wave + l);
    }
}
