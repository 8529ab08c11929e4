//! Loads and stores on the host: every format, address form and bound, with inaccessible pages around the data; every
//! program also builds for gfx1201.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

mod support;

use half::{bf16, f16};
use support::*;
use unglue_codegen::kp::*;

const MEMS: [Mem; 4] = [Mem::F32, Mem::Bf16, Mem::F16, Mem::I32];

/// Raw bytes of integers up to 200, exact in every format.
fn encode(mem: Mem, values: &[i32]) -> Vec<u8> {
    let one = |v: &i32| match mem {
        Mem::F32 => (*v as f32).to_le_bytes().to_vec(),
        Mem::I32 => v.to_le_bytes().to_vec(),
        Mem::Bf16 => bf16::from_f32(*v as f32).to_le_bytes().to_vec(),
        Mem::F16 => f16::from_f32(*v as f32).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(one).collect()
}

#[derive(Clone, Copy, Debug)]
enum Form {
    All,
    Count,
    ContigMask,
    Lanes,
    LanesMask,
    WideLanes,
}

/// Copies elements from `x` to `y` in one access each way. Lane addresses go backwards.
fn copy(mem: Mem, vec: u8, form: Form) -> Program {
    let mut b = B::new("copy", 1);
    let (x, y) = (b.buffer(mem, Access::Read), b.buffer(mem, Access::ReadWrite));
    let (base, count, lane_id) = (b.scalar(), b.scalar(), b.lane_id());
    // Mask: lanes below `count`.
    let limit = b.splat(count, 1);
    let mask = b.cmp(Cmp::Lt, lane_id, limit);
    let (last, width) = (b.i32(31), b.i32(i32::from(vec)));
    let (last, width) = (b.splat(last, 1), b.splat(width, 1));
    let index = b.bin(Bin::Sub, last, lane_id);
    let index = b.bin(Bin::Mul, index, width);
    let wide = b.conv(Conv::I32ToI64, index);
    let wide_base = b.conv(Conv::I32ToI64, base);
    let (addr, bound) = match form {
        Form::All => (Addr::Contig { base }, Bound::All),
        Form::Count => (Addr::Contig { base }, Bound::Count(count)),
        Form::ContigMask => (Addr::Contig { base: wide_base }, Bound::Mask(mask)),
        Form::Lanes => (Addr::Lanes { base, index }, Bound::All),
        Form::LanesMask => (Addr::Lanes { base, index }, Bound::Mask(mask)),
        Form::WideLanes => (Addr::Lanes { base: wide_base, index: wide }, Bound::Mask(mask)),
    };
    let v = b.load(x, addr, bound, vec);
    b.store(y, addr, bound, v);
    // The loaded value itself, masked elements included, as i32.
    let z = b.buffer(Mem::I32, Access::Write);
    let i = if mem == Mem::I32 { v } else { b.conv(Conv::F32ToI32, v) };
    let zero = b.i32(0);
    b.store(z, Addr::Contig { base: zero }, Bound::All, i);
    b.finish()
}

/// Runs a compiled `copy` with `present` elements in memory from `base` on; elements beyond lie in an inaccessible page.
fn check(host: &Host, (mem, vec, form): (Mem, u8, Form), count: i32, present: usize) {
    let n = 32 * usize::from(vec);
    let base = 5usize;
    let values: Vec<i32> = (0..base + present).map(|i| i as i32 % 200 + 1).collect();
    let x = guarded(&encode(mem, &values));
    let y = guarded(&encode(mem, &vec![-1; base + present]));
    let mut z = vec![7i32; n];
    host.run(&[arg(x), out(y), base as u64, count as u32 as u64, out(&mut z)], 1);
    let mut want_y = vec![-1; base + present];
    for (i, z) in z.iter().enumerate() {
        let (lane, v) = (i / usize::from(vec), i % usize::from(vec));
        let (on, element) = match form {
            Form::All => (true, i),
            Form::Count => ((i as i32) < count, i),
            Form::ContigMask => ((lane as i32) < count, i),
            Form::Lanes => (true, (31 - lane) * usize::from(vec) + v),
            Form::LanesMask | Form::WideLanes => ((lane as i32) < count, (31 - lane) * usize::from(vec) + v),
        };
        let want = if on { (base + element) as i32 % 200 + 1 } else { 0 };
        assert_eq!(*z, want, "{mem:?} x{vec} {form:?} {count}: element {i}");
        if on {
            want_y[base + element] = want;
        }
    }
    assert_eq!(y, encode(mem, &want_y), "{mem:?} x{vec} {form:?} {count}: stored");
}

#[test]
fn contiguous() {
    for mem in MEMS {
        for vec in [1, 2, 4, 8] {
            let host = Host::new(&copy(mem, vec, Form::All));
            check(&host, (mem, vec, Form::All), 0, 32 * usize::from(vec));
        }
    }
}

#[test]
fn counted_tails() {
    for mem in MEMS {
        for vec in [1u8, 2, 8] {
            let n = 32 * i32::from(vec);
            let host = Host::new(&copy(mem, vec, Form::Count));
            for count in [-3, 0, 1, 7, n / 2 + 1, n - 1, n, n + 100] {
                check(&host, (mem, vec, Form::Count), count, count.clamp(0, n) as usize);
            }
        }
    }
}

#[test]
fn masked() {
    for mem in MEMS {
        for vec in [1u8, 4] {
            let host = Host::new(&copy(mem, vec, Form::ContigMask));
            for count in [0, 1, 19, 32] {
                check(&host, (mem, vec, Form::ContigMask), count, count as usize * usize::from(vec));
            }
        }
    }
}

#[test]
fn lane_addresses() {
    for mem in MEMS {
        for vec in [1u8, 2, 8] {
            let n = 32 * usize::from(vec);
            let host = Host::new(&copy(mem, vec, Form::Lanes));
            check(&host, (mem, vec, Form::Lanes), 32, n);
            for form in [Form::LanesMask, Form::WideLanes] {
                let host = Host::new(&copy(mem, vec, form));
                for count in [0, 9, 32] {
                    check(&host, (mem, vec, form), count, n);
                }
            }
        }
    }
}

#[test]
fn masked_lanes_touch_nothing() {
    // Lanes beyond the mask have wild indices; with no active lane the buffer may be empty.
    for mem in MEMS {
        for (vec, active) in [(1u8, 2), (8, 2), (1, 0), (8, 0)] {
            let mut b = B::new("wild", 1);
            let (x, y) = (b.buffer(mem, Access::Read), b.buffer(mem, Access::Write));
            let (l, limit, wild, zero) = (b.lane_id(), b.i32(active), b.i32(0x0fff_fff0), b.i32(0));
            let (limit, wild) = (b.splat(limit, 1), b.splat(wild, 1));
            let width = b.i32(i32::from(vec));
            let width = b.splat(width, 1);
            let mask = b.cmp(Cmp::Lt, l, limit);
            let index = b.bin(Bin::Mul, l, width);
            let index = b.def(lane(Elem::I32), Expr::Select(mask, index, wild));
            let v = b.load(x, Addr::Lanes { base: zero, index }, Bound::Mask(mask), vec);
            b.store(y, Addr::Lanes { base: zero, index }, Bound::Mask(mask), v);
            let values: Vec<i32> = (1..=active * i32::from(vec)).collect();
            let x = guarded(&encode(mem, &values));
            let y = guarded(&encode(mem, &vec![0; values.len()]));
            Host::new(&b.finish()).run(&[arg(x), out(y)], 1);
            assert_eq!(x, y);
        }
    }
}

#[test]
fn stores_round_to_nearest_even() {
    let bits = [0x3f80_8000u32, 0x3f81_8000, 0x0000_8001, 0x7f7f_ffff, 0x7fc0_0001, 0x477f_f000, 0x3300_0000, 0x1];
    let x: Vec<f32> = (0..32).map(|i| f32::from_bits(bits[i % 8] ^ ((i as u32 / 8 % 2) << 31))).collect();
    for mem in [Mem::Bf16, Mem::F16] {
        let mut b = B::new("rounding", 1);
        let (from, to) = (b.buffer(Mem::F32, Access::Read), b.buffer(mem, Access::Write));
        let zero = b.i32(0);
        let v = b.load(from, Addr::Contig { base: zero }, Bound::All, 1);
        b.store(to, Addr::Contig { base: zero }, Bound::All, v);
        let first = b.load(from, Addr::Uniform { base: zero }, Bound::All, 1);
        let end = b.i32(32);
        b.store(to, Addr::Uniform { base: end }, Bound::All, first);
        let mut got = [0u16; 33];
        Host::new(&b.finish()).run(&[arg(&x), out(&mut got)], 1);
        for i in 0..33 {
            let v = x[i % 32];
            let want = if mem == Mem::Bf16 { bf16::from_f32(v).to_bits() } else { f16::from_f32(v).to_bits() };
            if v.is_nan() {
                assert!(if mem == Mem::Bf16 {
                    bf16::from_bits(got[i]).is_nan()
                } else {
                    f16::from_bits(got[i]).is_nan()
                });
            } else {
                assert_eq!(got[i], want, "{v:?}");
            }
        }
    }
}

#[test]
fn uniform_loads_of_every_format() {
    for mem in MEMS {
        let mut b = B::new("uniform", 1);
        let (x, y) = (b.buffer(mem, Access::Read), b.buffer(mem, Access::Write));
        let three = b.def(U(Elem::I64), Expr::I64(3));
        let v = b.load(x, Addr::Uniform { base: three }, Bound::All, 1);
        let zero = b.i32(0);
        b.store(y, Addr::Uniform { base: zero }, Bound::All, v);
        let x = guarded(&encode(mem, &[1, 2, 3, 77]));
        let y = guarded(&encode(mem, &[0]));
        Host::new(&b.finish()).run(&[arg(x), out(y)], 1);
        assert_eq!(y, encode(mem, &[77]));
    }
}
