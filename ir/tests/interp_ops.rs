//! Each op against a direct evaluation written here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers outside of #[test] functions are tests too.

mod interp_support;

use interp_support::{F, Net, R, assert_close, assert_same, naive, naive_dot};
use unglue_ir::builder::Builder;
use unglue_ir::interp::{Batch, Tensor, WeightRef, maximum};
use unglue_ir::math::{self, Scalar};
use unglue_ir::op::{Binary, Domain, Op, ReduceKind, Unary};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Dim, Format, Packing, ScaleType, StateKind, TensorType};

fn rows(n: usize) -> Batch {
    Batch::new(&[(0, 0, n)], 4)
}

#[test]
fn unary_and_binary() {
    let special = [0.0, -0.0, 1.5, -2.25, f32::INFINITY, f32::NAN, 1e-41, 3e38];
    for u in [Unary::Neg, Unary::Abs, Unary::Exp, Unary::Log, Unary::Log1p, Unary::Sqrt, Unary::Rsqrt, Unary::Sigmoid] {
        let mut n = Net::new(1);
        let x = n.input("x", &[R, F(4)], Tensor::f32(&[2, 4], special.to_vec()));
        let y = n.op(Op::Unary(u), &[x]);
        let m = &mut Scalar;
        let want = special.map(|x| match u {
            Unary::Neg => -x,
            Unary::Abs => x.abs(),
            Unary::Exp => math::exp(m, x),
            Unary::Log => math::log(m, x),
            Unary::Log1p => math::log1p(m, x),
            Unary::Sqrt => x.sqrt(),
            Unary::Rsqrt => 1.0 / x.sqrt(),
            Unary::Sigmoid => math::sigmoid(m, x),
        });
        assert_same(n.eval(y, &rows(2)).floats(), &want, u.name());
    }
    // [R, 3, 1] with [R, 1, 2], and with a scalar.
    let mut n = Net::new(2);
    let x = n.normal("x", DType::F32, &[R, F(3), F(1)], 2);
    let y = n.normal("y", DType::F32, &[R, F(1), F(2)], 2);
    let (a, b) = (n.inputs["x"].floats().to_vec(), n.inputs["y"].floats().to_vec());
    let d = n.op(Op::Binary(Binary::Div), &[x, y]);
    let two = n.b.constant(2.0);
    let s = n.op(Op::Binary(Binary::Sub), &[two, d]);
    let got = n.eval(s, &rows(2));
    let want: Vec<f32> = (0..12).map(|i| 2.0 - a[i / 2] / b[i / 6 * 2 + i % 2]).collect();
    assert_eq!(got.shape, [2, 3, 2]);
    assert_same(got.floats(), &want, "broadcast");
}

#[test]
fn shapes() {
    let mut n = Net::new(3);
    let x = n.normal("x", DType::Bf16, &[R, F(3), F(4)], 2);
    let v = n.inputs["x"].floats().to_vec();
    let s = n.op(Op::Slice { axis: 1, start: 1, len: 2 }, &[x]);
    let t = n.op(Op::Slice { axis: 2, start: 3, len: 1 }, &[x]);
    let t = n.op(Op::Broadcast(vec![R, F(3), F(4)]), &[t]);
    let c = n.op(Op::Concat { axis: 1 }, &[s, t]);
    let c = n.op(Op::Reshape(vec![R, F(20)]), &[c]);
    let got = n.eval(c, &rows(2));
    let mut want = Vec::new();
    for r in 0..2 {
        want.extend_from_slice(&v[r * 12 + 4..r * 12 + 12]);
        want.extend((0..12).map(|i| v[r * 12 + i / 4 * 4 + 3]));
    }
    assert_eq!((got.dtype, got.shape.clone()), (DType::Bf16, vec![2, 20]));
    assert_same(got.floats(), &want, "slice, broadcast, concat, reshape");
}

#[test]
fn reductions() {
    for (axis, order) in [(1u32, Order::Sequential), (2, Order::Lanes), (2, Order::Sequential)] {
        let mut n = Net::new(4);
        let k = if order == Order::Lanes { 300 } else { 20 };
        let x = n.normal("x", DType::F32, &[R, F(5), F(k as u64)], 2);
        let v = n.inputs["x"].floats().to_vec();
        let y = n.op(Op::Reduce { kind: ReduceKind::Sum, axis, order }, &[x]);
        let want: Vec<f32> = if axis == 2 {
            v.chunks(k).map(|row| naive(order, k, &|acc, i| acc + row[i])).collect()
        } else {
            (0..2 * k).map(|i| (0..5).fold(0.0, |acc, j| acc + v[i / k * 5 * k + j * k + i % k])).collect()
        };
        assert_same(n.eval(y, &rows(2)).floats(), &want, "sum");
    }
    let mut n = Net::new(5);
    let x = n.input("x", &[R, F(3)], Tensor::f32(&[2, 3], vec![-0.0, -3.0, -0.0, 1.0, f32::NAN, 2.0]));
    let y = n.op(Op::Reduce { kind: ReduceKind::Max, axis: 1, order: Order::Sequential }, &[x]);
    assert_same(n.eval(y, &rows(2)).floats(), &[-0.0, f32::NAN], "max");
}

#[test]
fn repeat_runs_its_body_count_times() {
    let mut body = Builder::new("body");
    let ty = TensorType::plain(DType::F32, vec![R, F(2)]);
    let x = body.input("x", ty.clone(), Domain::Normal);
    let step = body.input("step", ty, Domain::Normal);
    let y = body.binary(Binary::Add, x, step).unwrap();
    body.output("x", y);
    let mut n = Net::new(6);
    let x = n.input("x", &[R, F(2)], Tensor::f32(&[1, 2], vec![1.0, 2.0]));
    let s = n.input("s", &[R, F(2)], Tensor::f32(&[1, 2], vec![0.5, 0.25]));
    let id = n.b.body(body.finish());
    let y = n.op(Op::Repeat { body: id, count: 4 }, &[x, s]);
    assert_same(n.eval(y, &rows(1)).floats(), &[3.0, 3.0], "repeat");
}

#[test]
fn matmul_decodes_every_plain_format() {
    for (dtype, k) in [(DType::F32, 5), (DType::Bf16, 256), (DType::F16, 300), (DType::Bf16, 1000), (DType::F32, 777)] {
        let mut n = Net::new(7);
        let (m, cols) = (3, 70);
        let x = n.normal("x", DType::Bf16, &[R, F(k as u64)], m);
        let values = n.normals(cols * k);
        let w = WeightRef::from_f32(dtype, &[cols as u64, k as u64], &values).unwrap();
        let stored = w.to_tensor().floats().to_vec();
        let xs = n.inputs["x"].floats().to_vec();
        let w = n.weight("w", w);
        let y = n.op(Op::MatMul { order: Order::Lanes }, &[x, w]);
        let want: Vec<f32> = (0..m * cols)
            .map(|i| naive_dot(Order::Lanes, &xs[i / cols * k..][..k], &stored[i % cols * k..][..k]))
            .collect();
        assert_same(n.eval(y, &rows(m)).floats(), &want, dtype.name());
    }
}

/// The order in its own words: lanes of 32 chains of runs, each run's sum scaled once.
fn naive_runs(x: &[f32], levels: &[f32], scale: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; 32];
    for run in 0..x.len().div_ceil(1024) * 32 {
        let chain = |c: usize| {
            let at = |j: usize| run * 32 + j * 8 + c;
            (0..4).filter(|j| at(*j) < x.len()).fold(0.0f32, |sum, j| x[at(j)].mul_add(levels[at(j)], sum))
        };
        let pair = |c: usize| chain(c) + chain(c + 4);
        let sum = (pair(0) + pair(2)) + (pair(1) + pair(3));
        let s = if run * 32 < x.len() { scale(run * 32) } else { 0.0 };
        lanes[run % 32] = s.mul_add(sum, lanes[run % 32]);
    }
    for half in [16, 8, 4, 2, 1] {
        for l in 0..half {
            lanes[l] += lanes[l + half];
        }
    }
    lanes[0]
}

/// Words and scales of both packings, written out from levels and scales `[matrices, N, K]`, `[matrices, N, K/group]`.
fn pack(columns: bool, [matrices, n, k]: [usize; 3], group: usize, levels: &[u8], scales: &[f32]) -> [Vec<u8>; 2] {
    let entries = |per_row: usize, entry: &dyn Fn(usize, usize) -> Vec<u8>| -> Vec<u8> {
        let mut out = Vec::new();
        for m in 0..matrices {
            let (outer, inner) = if columns { (per_row, n) } else { (n, per_row) };
            for a in 0..outer {
                for b in 0..inner {
                    let (row, i) = if columns { (b, a) } else { (a, b) };
                    out.extend(entry(m * n + row, i));
                }
            }
        }
        out
    };
    let word = |row: usize, i: usize| {
        let nibble = |j: usize| u32::from(levels[row * k + 8 * i + j]) << (4 * j);
        (0..8).map(nibble).sum::<u32>().to_le_bytes().to_vec()
    };
    let scale = |row: usize, g: usize| half::f16::from_f32(scales[row * k / group + g]).to_le_bytes().to_vec();
    [entries(k / 8, &word), entries(k / group, &scale)]
}

#[test]
fn int4_in_both_packings() {
    for (packing, group, k) in [
        (Packing::GptqColumns, 128, 384),
        (Packing::Rows, 32, 96),
        (Packing::GptqColumns, 64, 1024),
        (Packing::Rows, 128, 2176),
    ] {
        let (matrices, n, m) = (3usize, 5usize, 2usize);
        let mut net = Net::new(11);
        let x = net.normal("x", DType::Bf16, &[R, F(k as u64)], m);
        let levels: Vec<u8> =
            net.normals(matrices * n * k).iter().map(|v| (v * 4.0 + 8.0).clamp(0.0, 15.0) as u8).collect();
        let scales: Vec<f32> =
            net.normals(matrices * n * k / group).iter().map(|s| half::f16::from_f32(*s).to_f32()).collect();
        assert!(scales.iter().any(|s| *s < 0.0) && levels.contains(&0) && levels.contains(&15));
        let [words, packed] = pack(packing == Packing::GptqColumns, [matrices, n, k], group, &levels, &scales);
        let format = Format::Int4 { group: group as u32, packing, scales: ScaleType::F16 };
        let shape = [matrices, n, k].map(|d| d as u64);
        let stored = WeightRef::stored(format, &shape, words, packed).unwrap();
        let value = |i: usize| (f32::from(levels[i]) - 8.0) * scales[i / group];
        assert_same(stored.to_tensor().floats(), &(0..levels.len()).map(value).collect::<Vec<_>>(), "decoded");
        let rows_packed = pack(false, [matrices, n, k], group, &levels, &scales);
        let (words, packed) = stored.by_rows();
        assert_eq!([words.into_owned(), packed.into_owned()], rows_packed, "what devices hold");

        let (ids, slots) = ([0, 3, 2, -1], [1, 0, -1, 2]);
        let i = net.input("ids", &[R, F(2)], Tensor::i32(&[2, 2], ids.to_vec()));
        let s = net.input("slots", &[F(4)], Tensor::i32(&[4], slots.to_vec()));
        let xs = net.inputs["x"].floats().to_vec();
        let w = net.weight("w", stored);
        let y = net.op(Op::GroupedMatMul { order: Order::Runs }, &[x, i, s, w]);
        let mut want = Vec::new();
        for (c, id) in ids.iter().enumerate() {
            for col in 0..n {
                let slot = usize::try_from(*id).ok().and_then(|id| usize::try_from(slots[id]).ok());
                want.push(slot.map_or(0.0, |slot| {
                    let row = (slot * n + col) * k;
                    let line: Vec<f32> = levels[row..row + k].iter().map(|q| f32::from(*q) - 8.0).collect();
                    naive_runs(&xs[c / 2 * k..][..k], &line, |at| scales[(row + at) / group])
                }));
            }
        }
        assert_same(net.eval(y, &rows(m)).floats(), &want, &format!("{packing:?} {group}"));
    }
}

#[test]
fn int4_bytes_must_fit() {
    let format = Format::Int4 { group: 32, packing: Packing::Rows, scales: ScaleType::F16 };
    let stored = |shape: &[u64], words: usize, scales: usize| {
        WeightRef::stored(format, shape, vec![0; words], vec![0; scales]).map(|_| ())
    };
    stored(&[2, 64], 64, 8).unwrap();
    stored(&[2, 64], 60, 8).unwrap_err();
    stored(&[2, 64], 64, 6).unwrap_err();
    // Groups must fill a row, and sizes must not wrap.
    stored(&[2, 48], 48, 6).unwrap_err();
    stored(&[u64::MAX, 32], 0, 0).unwrap_err();
    stored(&[64], 32, 4).unwrap_err();
}

#[test]
fn stored_values_are_exact() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let got = WeightRef::new(DType::F16, &[65_536], all.as_slice()).unwrap().to_tensor();
    let want: Vec<f32> = (0..=u16::MAX).map(|b| half::f16::from_bits(b).to_f32()).collect();
    assert_same(got.floats(), &want, "f16");
    let all: Vec<u8> = (0..=u8::MAX).collect();
    let got = WeightRef::new(DType::F8E4m3, &[256], all).unwrap().to_tensor();
    let f8 = |b: u32| {
        let (e, m) = ((b >> 3 & 15) as i32, (b & 7) as f32);
        let size = if e == 0 { m * 2f32.powi(-9) } else { (8.0 + m) * 2f32.powi(e - 10) };
        let size = if b & 0x7f == 0x7f { f32::NAN } else { size };
        if b & 0x80 == 0 { size } else { -size }
    };
    assert_same(got.floats(), &(0..256).map(f8).collect::<Vec<_>>(), "f8e4m3");
}

#[test]
fn batch_matmul_both_ways() {
    let (r, h, k, cols) = (2usize, 3usize, 40usize, 6usize);
    for transposed in [false, true] {
        let order = if transposed { Order::Strided(4) } else { Order::Lanes };
        let mut n = Net::new(8);
        let x = n.normal("x", DType::Bf16, &[R, F(h as u64), F(k as u64)], r);
        let values = n.normals(h * cols * k);
        let shape = if transposed { [h, k, cols] } else { [h, cols, k] }.map(|d| d as u64);
        let w = n.weight("w", WeightRef::from_f32(DType::F32, &shape, &values).unwrap());
        let xs = n.inputs["x"].floats().to_vec();
        let y = n.op(Op::BatchMatMul { transposed, order }, &[x, w]);
        let mut want = Vec::new();
        for i in 0..r * h {
            for c in 0..cols {
                let at = |j: usize| if transposed { (i % h * k + j) * cols + c } else { (i % h * cols + c) * k + j };
                let column: Vec<f32> = (0..k).map(|j| values[at(j)]).collect();
                want.push(naive_dot(order, &xs[i * k..(i + 1) * k], &column));
            }
        }
        assert_same(n.eval(y, &rows(r)).floats(), &want, "batch_matmul");
    }
}

#[test]
fn grouped_matmul_skips_absent_experts() {
    let (k, cols) = (33usize, 4usize);
    for per_choice in [false, true] {
        let mut n = Net::new(9);
        let dims = if per_choice { vec![R, F(3), F(k as u64)] } else { vec![R, F(k as u64)] };
        let x = n.normal("x", DType::F32, &dims, 2);
        let ids = [0, 3, 1, 4, 2, -1];
        let slots = [1, -1, 0, 2, 9];
        let i = n.input("ids", &[R, F(3)], Tensor::i32(&[2, 3], ids.to_vec()));
        let s = n.input("slots", &[F(5)], Tensor::i32(&[5], slots.to_vec()));
        let values = n.normals(3 * cols * k);
        let w = n.weight("w", WeightRef::from_f32(DType::F32, &[3, cols as u64, k as u64], &values).unwrap());
        let xs = n.inputs["x"].floats().to_vec();
        let y = n.op(Op::GroupedMatMul { order: Order::Lanes }, &[x, i, s, w]);
        let mut want = Vec::new();
        for (c, &id) in ids.iter().enumerate() {
            let slot = usize::try_from(id).map_or(-1, |id| slots[id]);
            for col in 0..cols {
                let row = &xs[if per_choice { c } else { c / 3 } * k..][..k];
                want.push(match slot {
                    0..=2 => naive_dot(Order::Lanes, row, &values[(slot as usize * cols + col) * k..][..k]),
                    _ => 0.0,
                });
            }
        }
        assert_same(n.eval(y, &rows(2)).floats(), &want, "grouped_matmul");
    }
}

#[test]
fn gathers_read_zero_out_of_range() {
    let mut n = Net::new(10);
    let table = WeightRef::from_f32(DType::Bf16, &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let t = n.weight("t", table);
    let ids = n.input("ids", &[R], Tensor::i32(&[4], vec![2, -1, 0, 3]));
    let e = n.op(Op::EmbedRows, &[t, ids]);
    let pick = n.input("rows", &[Dim::Logits], Tensor::i32(&[3], vec![2, 7, 0]));
    let y = n.op(Op::GatherRows, &[e, pick]);
    let got = n.eval(y, &rows(4));
    assert_eq!((got.dtype, got.shape.clone()), (DType::Bf16, vec![3, 2]));
    assert_same(got.floats(), &[1.0, 2.0, 0.0, 0.0, 5.0, 6.0], "embed_rows, gather_rows");
    let mut n = Net::new(11);
    let x = n.input("x", &[R, F(3)], Tensor::f32(&[2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let ids = n.input("ids", &[R, F(2)], Tensor::i32(&[2, 2], vec![2, 0, -1, 1]));
    let y = n.op(Op::GatherLast, &[x, ids]);
    assert_same(n.eval(y, &rows(2)).floats(), &[3.0, 1.0, 0.0, 5.0], "gather_last");
}

#[test]
fn causal_conv_is_a_sum_over_taps() {
    let (c, t, w) = (3usize, 6usize, 4usize);
    let mut n = Net::new(12);
    let x = n.normal("x", DType::Bf16, &[R, F(c as u64)], t);
    let taps = n.normals(c * w);
    let xs = n.inputs["x"].floats().to_vec();
    let s = n.state("s", StateKind::Slot { shape: vec![w as u64 - 1, c as u64] }, DType::Bf16, 1);
    let old = n.normals(3 * c);
    n.states.get_mut("s").unwrap().slots_mut()[0].copy_from_slice(&old);
    let wv = n.weight("w", WeightRef::from_f32(DType::F32, &[c as u64, w as u64], &taps).unwrap());
    let y = n.op(Op::CausalConv, &[x, wv, s]);
    let got = n.eval(y, &rows(t));
    let history: Vec<f32> = old.iter().chain(&xs).copied().collect();
    for r in 0..t {
        for ch in 0..c {
            let want = (0..w).fold(0.0, |acc, i| history[(r + i) * c + ch].mul_add(taps[ch * w + i], acc));
            assert_eq!(got.floats()[r * c + ch].to_bits(), want.to_bits());
        }
    }
}

#[test]
fn delta_rule_is_the_recurrence() {
    let (h, kd, vd, t) = (2usize, 40usize, 5usize, 4usize);
    let mut n = Net::new(13);
    let (hk, order) = ([R, F(h as u64), F(kd as u64)], Order::of_strided(kd as u64));
    let args = [
        n.normal("q", DType::F32, &hk, t),
        n.normal("k", DType::F32, &hk, t),
        n.normal("v", DType::F32, &[R, F(h as u64), F(vd as u64)], t),
        n.normal("g", DType::F32, &hk, t),
        n.normal("b", DType::F32, &[R, F(h as u64), F(1)], t),
        n.state("s", StateKind::Slot { shape: [h, kd, vd].map(|d| d as u64).to_vec() }, DType::F32, 1),
    ];
    let inputs = n.inputs.clone();
    let [q, k, v, g, b] = ["q", "k", "v", "g", "b"].map(|i| inputs[i].floats());
    let both = n.op(Op::DeltaRule { order }, &args);
    let (o, s) = (n.op(Op::Project(0), &[both]), n.op(Op::Project(1), &[both]));
    n.output("o", o);
    n.output("s", s);
    let mut run = n.finish();
    let got = run.step(&inputs, &rows(t)).unwrap();
    for head in 0..h {
        for c in 0..vd {
            let mut state = vec![0.0f32; kd];
            for r in 0..t {
                let (at, av) = ((r * h + head) * kd, (r * h + head) * vd + c);
                state.iter_mut().zip(&g[at..]).for_each(|(s, g)| *s *= g);
                let d = (v[av] - naive_dot(order, &k[at..at + kd], &state)) * b[r * h + head];
                state.iter_mut().zip(&k[at..]).for_each(|(s, k)| *s = k.mul_add(d, *s));
                let want = naive_dot(order, &q[at..at + kd], &state);
                assert_eq!(got["o"].floats()[av].to_bits(), want.to_bits(), "head {head}, column {c}, row {r}");
            }
            let kept = &run.states["s"].slots()[0];
            state.iter().enumerate().for_each(|(i, s)| assert_eq!(*s, kept[(head * kd + i) * vd + c]));
        }
    }
}

/// Splits and their combination anew, from the documentation of the ops: values of one head, given scores and rows.
fn naive_attention(scores: &[Option<f32>], row: &dyn Fn(usize) -> Vec<f32>, width: usize) -> Vec<f32> {
    let exp = |x: f32| math::exp(&mut Scalar, x);
    let highest = |s: &mut dyn Iterator<Item = f32>| s.fold(f32::NEG_INFINITY, maximum);
    let base = |m: f32| if m == f32::NEG_INFINITY { 0.0 } else { m };
    let mut splits = vec![];
    for first in (0..scores.len()).step_by(128) {
        let n = (scores.len() - first).min(128);
        let scores = &scores[first..first + n];
        let m = highest(&mut scores.iter().flatten().copied());
        let p: Vec<f32> = scores.iter().map(|s| s.map_or(0.0, |s| exp(s - base(m)))).collect();
        let l = naive(Order::Strided(32), n, &|acc, j| acc + p[j]);
        let value = |c: usize| {
            let take = |acc: f32, j: usize| match scores[j] {
                None => acc + 0.0,
                Some(_) => p[j].mul_add(row(first + j)[c], acc),
            };
            naive(Order::Strided(8), n, &take) + 0.0
        };
        splits.push(((0..width).map(value).collect::<Vec<f32>>(), m, l));
    }
    let m = highest(&mut splits.iter().map(|s| s.1));
    let w: Vec<f32> = splits.iter().map(|s| exp(s.1 - base(m))).collect();
    let l = naive(Order::Strided(2), splits.len(), &|acc, i| w[i].mul_add(splits[i].2, acc));
    let total = |c: usize| naive(Order::Strided(2), splits.len(), &|acc, i| w[i].mul_add(splits[i].0[c], acc));
    (0..width).map(|c| if l == 0.0 { 0.0 } else { total(c) / l }).collect()
}

#[test]
fn attention_has_the_declared_bits_and_value() {
    for (count, width) in [(5usize, 16usize), (200, 300), (700, 8), (256, 24)] {
        let (heads, t) = (2usize, count);
        let mut n = Net::new(14);
        let q = n.normal("q", DType::Bf16, &[R, F(heads as u64), F(width as u64)], 1);
        let s = n.state("s", StateKind::Token { width: width as u64 }, DType::Bf16, 1);
        let cache = Tensor::float(DType::Bf16, &[t, width], n.normals(t * width));
        for (i, row) in cache.floats().chunks(width).enumerate() {
            n.states.get_mut("s").unwrap().set_row(Some(0), i, row);
        }
        // Every third place is absent, and a whole split; one id lies beyond what exists and reads 0.
        let there = |i: i32| i % 3 != 2 && !(128..256).contains(&i);
        let mut ids: Vec<i32> = (0..count as i32).map(|i| if there(i) { i } else { -1 }).collect();
        ids[1] = t as i32 + 5;
        let qs = n.inputs["q"].floats().to_vec();
        let i = n.input("ids", &[R, F(count as u64)], Tensor::i32(&[1, count], ids.clone()));
        let y = n.attend(0.25, [q, s, i]);
        let got = n.eval(y, &Batch::new(&[(0, t - 1, 1)], 0));
        let zero = vec![0.0; width];
        let row = |id: i32| if (id as usize) < t { &cache.floats()[id as usize * width..][..width] } else { &zero };
        for h in 0..heads {
            let q = &qs[h * width..(h + 1) * width];
            let score = |id: &i32| (*id >= 0).then(|| 0.25 * naive_dot(Order::Lanes, q, row(*id)));
            let scores: Vec<Option<f32>> = ids.iter().map(score).collect();
            let want = naive_attention(&scores, &|j| row(ids[j]).to_vec(), width);
            let got = &got.floats()[h * width..(h + 1) * width];
            assert_same(got, &want, &format!("{count} x {width}"));
            let m = scores.iter().flatten().fold(f32::NEG_INFINITY, |a, b| maximum(a, *b));
            let wide = |j: usize| scores[j].map_or(0.0, |s| (f64::from(s) - f64::from(m)).exp());
            let value = |c: usize| {
                let term = |j: usize| if ids[j] < 0 { 0.0 } else { wide(j) * f64::from(row(ids[j])[c]) };
                (0..count).map(term).sum::<f64>() / (0..count).map(wide).sum::<f64>()
            };
            assert_close(got, &(0..width).map(value).collect::<Vec<f64>>(), 2e-6, "attend");
        }
    }
}

#[test]
fn a_row_without_ids_gives_zero() {
    for count in [3, 300] {
        let mut n = Net::new(15);
        let q = n.normal("q", DType::F32, &[R, F(1), F(4)], 1);
        let s = n.state("s", StateKind::Token { width: 4 }, DType::F32, 1);
        let i = n.input("ids", &[R, F(count)], Tensor::i32(&[1, count as usize], vec![-1; count as usize]));
        let y = n.attend(1.0, [q, s, i]);
        assert_same(n.eval(y, &rows(1)).floats(), &[0.0; 4], "attend");
    }
}

/// Scores of one column, over two splits: -inf weighs nothing, +inf and NaN leave no number.
#[test]
fn attention_over_scores_that_are_no_numbers() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    // By split, the scores of its first places; the query is [1, 0], and the second column is what is attended to.
    let cases: [(&[f32], &[f32], f32); 6] = [
        (&[-inf, 0.0], &[], 3.0),
        (&[-inf], &[0.0, 0.0], 2.5),
        (&[-inf, -inf], &[-inf], 0.0),
        (&[0.0, nan], &[0.0], nan),
        (&[-inf], &[nan], nan),
        (&[0.0], &[inf], nan),
    ];
    for (first, second, want) in cases {
        let mut n = Net::new(16);
        let q = n.input("q", &[R, F(1), F(2)], Tensor::float(DType::F32, &[1, 1, 2], vec![1.0, 0.0]));
        let s = n.state("s", StateKind::Token { width: 2 }, DType::F32, 1);
        let mut ids = vec![-1; 130.max(128 + second.len())];
        for (at, scores) in [(0, first), (128, second)] {
            for (i, score) in scores.iter().enumerate() {
                ids[at + i] = (at + i) as i32;
                n.states.get_mut("s").unwrap().set_row(Some(0), at + i, &[*score, 2.0 + i as f32]);
            }
        }
        let i = n.input("ids", &[R, F(ids.len() as u64)], Tensor::i32(&[1, ids.len()], ids.clone()));
        let y = n.attend(1.0, [q, s, i]);
        let got = n.eval(y, &Batch::new(&[(0, 200, 1)], 0)).floats()[1];
        assert!(got == want || got.is_nan() && want.is_nan(), "{first:?} {second:?}: {got}, not {want}");
    }
}

#[test]
fn index_scores_and_selection() {
    let (heads, d, pool, t) = (3usize, 16usize, 4usize, 23usize);
    let mut n = Net::new(16);
    let q = n.normal("q", DType::Bf16, &[R, F(heads as u64), F(d as u64)], t);
    let w = n.normal("w", DType::F32, &[R, F(heads as u64)], t);
    let s = n.state("s", StateKind::Pool { width: d as u64, pool: pool as u64 }, DType::Bf16, 1);
    let keys = Tensor::float(DType::Bf16, &[5, d], n.normals(5 * d));
    for (i, row) in keys.floats().chunks(d).enumerate() {
        n.states.get_mut("s").unwrap().set_row(Some(0), i, row);
    }
    let (qs, ws) = (n.inputs["q"].floats().to_vec(), n.inputs["w"].floats().to_vec());
    let order = Order::Strided(8);
    let op = Op::IndexScores { dot_scale: 0.25f32.to_bits(), head_scale: 0.5f32.to_bits(), order };
    let scores = n.op(op, &[q, w, s]);
    let ids = n.op(Op::IndexSelect { budget: 2, pool: pool as u64, tail: true }, &[scores]);
    n.output("scores", scores);
    n.output("ids", ids);
    let mut run = n.finish();
    let inputs = run.inputs.clone();
    let out = run.step(&inputs, &rows(t)).unwrap();
    let n_ids = 2 * pool + pool - 1;
    for r in 0..t {
        let complete = (r + 1) / pool;
        let got = &out["scores"].floats()[r * 5..(r + 1) * 5];
        for (p, got) in got.iter().enumerate() {
            let head = |acc: f32, a: usize| {
                let dot = naive_dot(order, &qs[(r * heads + a) * d..][..d], &keys.floats()[p * d..][..d]);
                ws[r * heads + a].mul_add((0.25 * dot).max(0.0), acc)
            };
            let want = if p < complete { 0.5 * (0..heads).fold(0.0, head) } else { f32::NEG_INFINITY };
            assert_eq!(got.to_bits(), want.to_bits(), "row {r}, pool {p}");
        }
        let beaten_by =
            |p: &usize| (0..complete).filter(|o| got[*o] > got[*p] || (got[*o] == got[*p] && o < p)).count();
        let best: Vec<usize> = (0..complete).filter(|p| beaten_by(p) < 2).collect();
        let tokens = best.iter().flat_map(|p| p * pool..(p + 1) * pool).chain(complete * pool..r + 1);
        let mut want: Vec<i32> = tokens.map(|t| t as i32).collect();
        want.resize(n_ids, -1);
        assert_eq!(&out["ids"].ints()[r * n_ids..(r + 1) * n_ids], want, "row {r}");
    }
}

#[test]
fn pools_window_tail_and_write() {
    let (d, pool, t) = (2usize, 4usize, 11usize);
    let mut n = Net::new(17);
    let x = n.normal("x", DType::F32, &[R, F(d as u64)], t);
    let xs = n.inputs["x"].floats().to_vec();
    let tail = n.state("tail", StateKind::Tail { pool: pool as u64, width: d as u64 }, DType::F32, 1);
    let pools = n.state("pools", StateKind::Pool { pool: pool as u64, width: d as u64 }, DType::F32, 1);
    let window = n.op(Op::PoolWindow { part: 1 }, &[x, tail]);
    let next = n.op(Op::TailUpdate, &[x, x, tail]);
    let written = n.op(Op::PoolWrite, &[x, pools]);
    n.output("y", window);
    n.output("tail", next);
    n.output("pools", written);
    let mut run = n.finish();
    let inputs = run.inputs.clone();
    let y = run.step(&inputs, &rows(t)).unwrap().remove("y").unwrap();
    for r in 0..t {
        for place in 0..pool {
            let p = r / pool * pool + place;
            let want = if p <= r { &xs[p * d..(p + 1) * d] } else { &[0.0, 0.0] };
            assert_eq!(&y.floats()[(r * pool + place) * d..][..d], want);
        }
    }
    let kept = &run.states["tail"].slots()[0];
    for (place, token) in [8, 9, 10, 7].into_iter().enumerate() {
        assert_eq!(&kept[place * d..][..d], &xs[token * d..][..d]);
        assert_eq!(&kept[(pool + place) * d..][..d], &xs[token * d..][..d]);
    }
    let kept = &run.states["pools"].slots()[0];
    assert_eq!(kept[..], [&xs[3 * d..4 * d], &xs[7 * d..8 * d]].concat());
}
