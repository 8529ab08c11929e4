//! Control flow, barriers and several waves on the host; every program also builds for gfx1201.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

mod support;

use support::*;
use unglue_codegen::kp::*;

#[test]
fn if_with_results_and_nested_loops() {
    // Per group g: sum over i < g+3, j < i of (i odd ? i * j : -j), and the last i.
    let mut b = B::new("nested", 1);
    let to = b.buffer(Mem::I32, Access::Write);
    let (g, zero, one, two, three) = (b.group(), b.i32(0), b.i32(1), b.i32(2), b.i32(3));
    let end = b.bin(Bin::Add, g, three);
    let sums = b.for_loop(zero, end, one, &[zero, zero], |b, i, outer| {
        let inner = b.for_loop(zero, i, one, &[outer[0]], |b, j, acc| {
            let odd = b.bin(Bin::And, i, one);
            let odd = b.cmp(Cmp::Eq, odd, one);
            let term = b.branch(odd, |b| vec![b.bin(Bin::Mul, i, j)], |b| vec![b.un(Un::Neg, j)]);
            vec![b.bin(Bin::Add, acc[0], term[0])]
        });
        vec![inner[0], i]
    });
    let at = b.bin(Bin::Mul, g, two);
    b.store(to, Addr::Uniform { base: at }, Bound::All, sums[0]);
    let at = b.bin(Bin::Add, at, one);
    b.store(to, Addr::Uniform { base: at }, Bound::All, sums[1]);
    let mut got = vec![0i32; 10];
    Host::new(&b.finish()).run(&[out(&mut got)], 5);
    for g in 0..5i32 {
        let sum: i32 = (0..g + 3).flat_map(|i| (0..i).map(move |j| if i % 2 == 1 { i * j } else { -j })).sum();
        assert_eq!(got[2 * g as usize..][..2], [sum, g + 2]);
    }
}

#[test]
fn swapped_carried_values() {
    let mut b = B::new("swap", 4);
    let (x, to) = (b.buffer(Mem::I32, Access::Read), b.buffer(Mem::I32, Access::Write));
    let sh = b.shared(Mem::I32, 128);
    let (n, zero, one, width, w) = (b.scalar(), b.i32(0), b.i32(1), b.i32(32), b.wave());
    let base = b.bin(Bin::Mul, w, width);
    let v = b.load(x, Addr::Contig { base }, Bound::All, 1);
    let neg = b.un(Un::Neg, v);
    let r = b.for_loop(zero, n, one, &[v, neg], |b, _, c| {
        b.store(sh, Addr::Contig { base }, Bound::All, c[0]);
        b.barrier();
        vec![c[1], c[0]]
    });
    let r = b.bin(Bin::Sub, r[0], r[1]);
    b.store(to, Addr::Contig { base }, Bound::All, r);
    let p = b.finish();
    let x: Vec<i32> = (0..128).collect();
    for rounds in [0u64, 1, 2, 5] {
        let mut got = vec![0i32; 128];
        Host::new(&p).run(&[arg(&x), out(&mut got), rounds], 1);
        let sign = if rounds % 2 == 0 { 2 } else { -2 };
        assert_eq!(got, x.iter().map(|v| sign * v).collect::<Vec<_>>());
    }
}

/// Tree sum of one value per wave and lane through shared memory: values live across barriers and rounds.
#[test]
fn tree_sum_through_shared_memory() {
    for waves in [1u32, 2, 8] {
        let n = 32 * waves as i32;
        let mut b = B::new("tree", waves);
        let (x, to) = (b.buffer(Mem::F32, Access::Read), b.buffer(Mem::F32, Access::Write));
        let sh = b.shared(Mem::F32, n as u32);
        let _pad = b.shared(Mem::Bf16, 3);
        let (g, w, width, l) = (b.group(), b.wave(), b.i32(32), b.lane_id());
        let start = b.bin(Bin::Mul, w, width);
        let size = b.i32(n);
        let group_start = b.bin(Bin::Mul, g, size);
        let from = b.bin(Bin::Add, group_start, start);
        let v = b.load(x, Addr::Contig { base: from }, Bound::All, 1);
        b.store(sh, Addr::Contig { base: start }, Bound::All, v);
        let mut half = n / 2;
        while half > 0 {
            b.barrier();
            let h = b.i32(half);
            let first = b.splat(start, 1);
            let id = b.bin(Bin::Add, first, l);
            let limit = b.splat(h, 1);
            let mask = b.cmp(Cmp::Lt, id, limit);
            let zero = b.i32(0);
            let mine = b.load(sh, Addr::Lanes { base: zero, index: id }, Bound::Mask(mask), 1);
            let other = b.load(sh, Addr::Lanes { base: h, index: id }, Bound::Mask(mask), 1);
            let sum = b.bin(Bin::Add, mine, other);
            b.barrier();
            b.store(sh, Addr::Lanes { base: zero, index: id }, Bound::Mask(mask), sum);
            half /= 2;
        }
        b.barrier();
        let zero = b.i32(0);
        let total = b.load(sh, Addr::Uniform { base: zero }, Bound::All, 1);
        let total = b.splat(total, 1);
        let r = b.bin(Bin::Sub, v, total);
        b.store(to, Addr::Contig { base: from }, Bound::All, r);
        let x: Vec<f32> = (0..2 * n).map(|i| i as f32 * 0.37 - 20.0).collect();
        let mut got = vec![0f32; 2 * n as usize];
        Host::new(&b.finish()).run(&[arg(&x), out(&mut got)], 2);
        for (x, got) in x.chunks(n as usize).zip(got.chunks(n as usize)) {
            let mut tree = x.to_vec();
            while tree.len() > 1 {
                let half = tree.len() / 2;
                tree = (0..half).map(|i| tree[i] + tree[i + half]).collect();
            }
            for i in 0..n as usize {
                assert_eq!(got[i].to_bits(), (x[i] - tree[0]).to_bits());
            }
        }
    }
}

/// A loop with barriers: each round every wave publishes, waits, and takes its neighbour's value; an accumulator, a bool
/// lane value and the loop index live across.
#[test]
fn ring_in_a_loop_with_barriers() {
    let (waves, rounds) = (4u32, 5i32);
    let mut b = B::new("ring", waves);
    let (x, to) = (b.buffer(Mem::I32, Access::Read), b.buffer(Mem::I32, Access::Write));
    let sh = b.shared(Mem::I32, 32 * waves);
    let (n, w, width, zero, one) = (b.scalar(), b.wave(), b.i32(32), b.i32(0), b.i32(1));
    let mine = b.bin(Bin::Mul, w, width);
    let count = b.i32(waves as i32);
    let next = b.bin(Bin::Add, w, one);
    let next = b.bin(Bin::Rem, next, count);
    let neighbour = b.bin(Bin::Mul, next, width);
    let v = b.load(x, Addr::Contig { base: mine }, Bound::All, 1);
    let ten = b.i32(10);
    let limit = b.splat(ten, 1);
    let small = b.cmp(Cmp::Lt, v, limit);
    let zeros = b.splat(zero, 1);
    let r = b.for_loop(zero, n, one, &[v, zeros], |b, i, c| {
        b.store(sh, Addr::Contig { base: mine }, Bound::All, c[0]);
        let scaled = {
            let k = b.splat(i, 1);
            b.bin(Bin::Mul, c[0], k)
        };
        b.barrier();
        let got = b.load(sh, Addr::Contig { base: neighbour }, Bound::All, 1);
        let acc = b.bin(Bin::Add, c[1], scaled);
        let even = b.bin(Bin::And, i, one);
        let even = b.cmp(Cmp::Eq, even, zero);
        let acc = b.branch(
            even,
            |b| {
                b.barrier();
                vec![b.bin(Bin::Add, acc, got)]
            },
            |b| {
                b.barrier();
                vec![b.bin(Bin::Sub, acc, got)]
            },
        );
        vec![got, acc[0]]
    });
    let r = b.def(lane(Elem::I32), Expr::Select(small, r[0], r[1]));
    b.store(to, Addr::Contig { base: mine }, Bound::All, r);
    let p = b.finish();
    let x: Vec<i32> = (0..128).map(|i| i * 7 % 23).collect();
    let mut got = vec![0i32; 128];
    Host::new(&p).run(&[arg(&x), out(&mut got), rounds as u64], 1);
    let (mut cur, mut acc) = (x.clone(), vec![0i32; 128]);
    for i in 0..rounds {
        let moved: Vec<i32> = (0..128).map(|j| cur[(j + 32) % 128]).collect();
        for j in 0..128 {
            acc[j] += cur[j] * i + if i % 2 == 0 { moved[j] } else { -moved[j] };
        }
        cur = moved;
    }
    for j in 0..128 {
        assert_eq!(got[j], if x[j] < 10 { cur[j] } else { acc[j] }, "{j}");
    }
}

/// A uniform value of a segment bounds a loop with barriers; a wave-dependent branch stays inside a segment.
#[test]
fn bounds_from_memory_and_wave_branches() {
    let mut b = B::new("bounds", 2);
    let (x, to) = (b.buffer(Mem::I32, Access::Read), b.buffer(Mem::I32, Access::ReadWrite));
    let (zero, one, w) = (b.i32(0), b.i32(1), b.wave());
    let n = b.load(x, Addr::Uniform { base: zero }, Bound::All, 1);
    let first = b.cmp(Cmp::Eq, w, zero);
    let r = b.for_loop(zero, n, one, &[w], |b, _, c| {
        let odd = b.branch(first, |b| vec![b.bin(Bin::Add, c[0], one)], |b| vec![b.bin(Bin::Sub, c[0], one)]);
        b.barrier();
        vec![odd[0]]
    });
    b.store(to, Addr::Uniform { base: w }, Bound::All, r[0]);
    let mut got = [0i32; 2];
    Host::new(&b.finish()).run(&[arg(&[6i32]), out(&mut got)], 1);
    assert_eq!(got, [6, -5]);
}

#[test]
fn offsets_beyond_32_bits() {
    // 6 GiB of address space, of which only the last page is touched.
    let mut b = B::new("far", 1);
    let x = b.buffer(Mem::F32, Access::ReadWrite);
    let (s, l) = (b.scalar(), b.lane_id());
    let wide = b.conv(Conv::I32ToI64, s);
    let four = b.def(U(Elem::I64), Expr::I64(4));
    let base = b.bin(Bin::Mul, wide, four);
    let index = b.conv(Conv::I32ToI64, l);
    let v = b.load(x, Addr::Lanes { base, index }, Bound::All, 1);
    let v = b.bin(Bin::Add, v, v);
    b.store(x, Addr::Contig { base }, Bound::All, v);
    let data: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let there = guarded(&data);
    let elements = 0x2000_0000i64 * 4;
    let start = (there.as_ptr() as i64 - elements * 4) as u64;
    Host::new(&b.finish()).run(&[start, 0x2000_0000], 1);
    assert_eq!(there, data.iter().map(|v| v * 2.0).collect::<Vec<_>>());
}
