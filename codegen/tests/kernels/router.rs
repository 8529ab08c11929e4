//! Routers against an oracle written apart from the interpreter: a plain sort by the contract's rule, on numbers whose sums
//! are exact in any order.
//!
//! The contract: k distinct experts by falling biased score, then rising index; NaN ranks below every number; weights are
//! the unbiased scores; a row's result depends on nothing but the row.

use std::collections::BTreeMap;

use unglue_codegen::emu::{EmuDevice, EmuOptions};
use unglue_codegen::generate::{StepBuffer, StepScalar, Use};
use unglue_ir::IrError;
use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::interp::draw::Rng;
use unglue_ir::interp::select;
use unglue_ir::op::{Binary, GroupLimit, Op, Unary};
use unglue_ir::types::{DType, Dim};
use unglue_passes::schedule::row_elements;
use unglue_runtime::{ArgValue, Code, Device};

use super::bodies::{R, bin, f, input, scaled, un, weight};
use super::finishes::{argmax, exchanging};
use super::{Made, all_buckets};

/// Words of a launch's outputs, by name.
type Outputs = BTreeMap<String, Vec<u32>>;

const COUNTS: [u64; 16] = [1, 2, 7, 8, 60, 128, 160, 255, 256, 257, 288, 384, 512, 896, 1024, 4096];

/// Ids and unbiased scores of the k best of `scores + bias`.
fn choose(b: &mut Builder, scores: ValueId, e: u64, k: u64, limit: Option<GroupLimit>) {
    let bias = weight(b, "bias", DType::F32, &[e]);
    let bias = b.reshape(bias, &[f(1), f(e)]).unwrap();
    let biased = bin(b, Binary::Add, scores, bias);
    let ids = b.add(Op::TopK { k, limit, part: None }, &[biased]).unwrap();
    let weights = b.add(Op::GatherLast, &[scores, ids]).unwrap();
    b.output("ids", ids);
    b.output("weights", weights);
}

fn chooser(e: u64, k: u64, limit: Option<GroupLimit>) -> Graph {
    let mut b = Builder::new("chooser");
    let scores = input(&mut b, "scores", DType::F32, &[R, f(e)]);
    choose(&mut b, scores, e, k, limit);
    b.finish()
}

/// The same behind a gate of `d` inputs whose weights are stored in `stored`.
fn gate(d: u64, e: u64, k: u64, stored: DType) -> Graph {
    let mut b = Builder::new("gate");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(d)]);
    let w = weight(&mut b, "gate", stored, &[e, d]);
    let logits = b.matmul(x, w).unwrap();
    choose(&mut b, logits, e, k, None);
    exchanging(b.finish())
}

/// Softmax over all logits, the k best, and their shares.
fn softmax_router(d: u64, e: u64, k: u64) -> Graph {
    let mut b = Builder::new("softmax_router");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(d)]);
    let w = weight(&mut b, "gate", DType::Bf16, &[e, d]);
    let logits = b.matmul(x, w).unwrap();
    let max = b.max_over(logits, 1).unwrap();
    let shifted = bin(&mut b, Binary::Sub, logits, max);
    let p = un(&mut b, Unary::Exp, shifted);
    let sum = b.sum(p, 1).unwrap();
    let p = bin(&mut b, Binary::Div, p, sum);
    let ids = b.add(Op::top_k(k), &[p]).unwrap();
    let chosen = b.add(Op::GatherLast, &[p, ids]).unwrap();
    let sum = b.sum(chosen, 1).unwrap();
    let weights = bin(&mut b, Binary::Div, chosen, sum);
    let weights = scaled(&mut b, Binary::Mul, weights, 1.0);
    b.output("ids", ids);
    b.output("weights", weights);
    exchanging(b.finish())
}

/// The contract's rule: numbers by falling value, then all NaNs, equals by index.
fn ranked(values: &[f32], among: impl Iterator<Item = usize>) -> Vec<usize> {
    let (mut numbers, nans): (Vec<usize>, Vec<usize>) = among.partition(|i| !values[*i].is_nan());
    // A stable sort: equals stay in index order.
    numbers.sort_by(|a, b| values[*b].partial_cmp(&values[*a]).unwrap());
    numbers.extend(nans);
    numbers
}

/// The k best of all, or of the groups with the highest sums of two.
fn oracle(scores: &[f32], bias: &[f32], k: usize, limit: Option<GroupLimit>) -> Vec<(i32, f32)> {
    let biased: Vec<f32> = scores.iter().zip(bias).map(|(s, b)| s + b).collect();
    let (groups, kept) = limit.map_or((1, 1), |l| (l.groups as usize, l.kept as usize));
    let size = scores.len() / groups;
    let sum = |g: usize| {
        let best = ranked(&biased, g * size..(g + 1) * size);
        best[1..size.min(2)].iter().fold(biased[best[0]], |sum, i| sum + biased[*i])
    };
    let sums: Vec<f32> = (0..groups).map(sum).collect();
    let open = &ranked(&sums, 0..groups)[..kept];
    let best = ranked(&biased, (0..scores.len()).filter(|i| open.contains(&(i / size))));
    best[..k].iter().map(|i| (*i as i32, scores[*i])).collect()
}

/// Launches a kernel over `rows` rows with these leaves; its outputs as words.
fn launch(made: &Made, device: &mut dyn Device, rows: usize, leaves: &[(&str, Vec<u8>)]) -> Outputs {
    let rows_max = made.bucket.rows_max as usize;
    let mut buffers = Vec::new();
    let mut args = Vec::new();
    for of in &made.made.uses {
        let bytes = match of {
            Use::Input(name) | Use::Weight(name) => leaves.iter().find(|(n, _)| n == name).unwrap().1.clone(),
            Use::Output(name) => {
                let (_, v) = made.graph.outputs.iter().find(|(n, _)| n == name).unwrap();
                vec![0xa5; row_elements(made.graph.ty(*v), &made.bucket) as usize * 4 * rows_max]
            }
            Use::Step(StepBuffer::Counter) => vec![0; 64],
            Use::Scalar(StepScalar::Rows | StepScalar::Logits) => {
                args.push(ArgValue::Scalar(rows as i32));
                continue;
            }
            other => panic!("{other:?}"),
        };
        let id = device.alloc(bytes.len().next_multiple_of(64) as u64).unwrap();
        device.write(id, 0, &bytes).unwrap();
        args.push(ArgValue::Buffer { id, offset: 0, bytes: bytes.len() as u64 });
        buffers.push((of, id, bytes.len()));
    }
    let grid = made.schedule.grid().map(|g| g.value(&made.bucket) as u32);
    device.launch(0, grid, &args).unwrap();
    let mut out = BTreeMap::new();
    for (of, id, len) in buffers {
        if let Use::Output(name) = of {
            let mut bytes = vec![0; len];
            device.read(id, 0, &mut bytes).unwrap();
            let words = bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap()));
            out.insert(name.clone(), words.take(len / 4 / rows_max * rows).collect());
        }
        device.free(id).unwrap();
    }
    out
}

fn f32s(v: &[f32]) -> Vec<u8> {
    v.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn bf16s(v: &[f32]) -> Vec<u8> {
    v.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect()
}

/// Fails at the first row whose choice is not the oracle's.
fn hold(name: &str, out: &Outputs, scores: &[Vec<f32>], bias: &[f32], k: usize) {
    hold_limited(name, out, scores, bias, (k, None));
}

fn hold_limited(name: &str, out: &Outputs, scores: &[Vec<f32>], bias: &[f32], how: (usize, Option<GroupLimit>)) {
    let (k, limit) = how;
    for (row, scores) in scores.iter().enumerate() {
        let want = oracle(scores, bias, k, limit);
        let biased: Vec<f32> = scores.iter().zip(bias).map(|(s, b)| s + b).collect();
        let interpreted = select::choose(&biased, k, limit);
        assert!(interpreted.iter().zip(&want).all(|(got, (id, _))| got == id), "{name}, row {row}: {interpreted:?}");
        for (j, (id, weight)) in want.into_iter().enumerate() {
            let at = row * k + j;
            assert_eq!(
                out["ids"][at] as i32,
                id,
                "{name}, row {row}, choice {j} of {:?}",
                &out["ids"][row * k..at + 1]
            );
            let got = f32::from_bits(out["weights"][at]);
            let same = got.to_bits() == weight.to_bits() || got.is_nan() && weight.is_nan();
            assert!(same, "{name}, row {row}, choice {j}: weight {got}, not {weight}");
        }
    }
}

/// Rows that a router must survive: ties, constants, NaNs, infinities, zeros of both signs, orders of all kinds.
fn special_rows(e: usize, k: usize) -> Vec<Vec<f32>> {
    let mut rng = Rng::new(e as u64 * 64 + k as u64);
    let mut coarse = |n: u64| -> Vec<f32> { (0..e).map(|_| rng.below(n) as f32 / 4.0 - 1.0).collect() };
    let (ties, fine) = (coarse(5), coarse(100_000));
    let of = |value: fn(usize) -> f32| -> Vec<f32> { (0..e).map(value).collect() };
    let numbers_at = |n: usize| (0..e).map(move |i| if i % e.div_ceil(n.max(1)) == e / 3 % 2 { 2.0 } else { f32::NAN });
    vec![
        ties,
        fine,
        vec![0.5; e],
        vec![f32::NAN; e],
        vec![f32::INFINITY; e],
        vec![f32::NEG_INFINITY; e],
        of(|i| if i % 3 == 1 { f32::NEG_INFINITY } else { -f32::NAN }),
        of(|i| if i % 5 == 2 { f32::NAN } else { -(i as f32) }),
        of(|i| if i % 2 == 0 { -0.0 } else { 0.0 }),
        of(|i| i as f32),
        of(|i| if i % 7 == 3 { f32::INFINITY } else { f32::MAX }),
        of(|i| if i % 2 == 0 { f32::MIN_POSITIVE / 8.0 } else { -f32::MIN_POSITIVE / 8.0 }),
        numbers_at(k / 2).collect(),
    ]
}

fn bias(e: usize) -> Vec<f32> {
    (0..e).map(|i| (i * 37 % 5) as f32 / 2.0).collect()
}

/// Both a bias of zeros and one that moves the choice.
fn special_holds(made: &Made, device: &mut dyn Device, e: usize, k: usize) {
    let rows = special_rows(e, k);
    for bias in [vec![0.0; e], bias(e)] {
        let leaves = [("scores", f32s(&rows.concat())), ("bias", f32s(&bias))];
        hold(made.name, &launch(made, device, rows.len(), &leaves), &rows, &bias, k);
    }
}

fn with_chooser(e: u64, k: u64, rows_max: usize, test: impl FnOnce(&Made)) {
    let (name, graph) = (format!("chooser_{e}_{k}"), chooser(e, k, None));
    test(&Made::new(&name, &graph, rows_max as u32, 0));
}

/// Also the maximum at each index in turn, in one launch of as many rows.
fn any_count(counts: &[u64]) {
    for &e in counts {
        let mut ks = vec![1, e.min(8), e.min(64)];
        ks.dedup();
        if e == 512 {
            ks.push(10);
        }
        for k in ks {
            let (n, at_each) = (e as usize, k == e.min(8) || k == 1 && e < 4096);
            with_chooser(e, k, n.max(16), |made| {
                let mut cpu = made.cpu(2);
                special_holds(made, &mut cpu, n, k as usize);
                if at_each {
                    let row = |top: usize| (0..n).map(|i| if i == top { 3.0 } else { (i % 11) as f32 / 8.0 }).collect();
                    let rows: Vec<Vec<f32>> = (0..n).map(row).collect();
                    let leaves = [("scores", f32s(&rows.concat())), ("bias", f32s(&vec![0.0; n]))];
                    let out = launch(made, &mut cpu, n, &leaves);
                    hold(made.name, &out, &rows, &vec![0.0; n], k as usize);
                }
            });
        }
    }
}

#[test]
fn any_small_count() {
    any_count(&COUNTS[..9]);
}

#[test]
fn any_large_count() {
    any_count(&COUNTS[9..]);
}

fn emulator(made: &Made) -> EmuDevice {
    let mut device = EmuDevice::new(EmuOptions { threads: 2, ..EmuOptions::default() }).unwrap();
    device.load(&[made.described()], &[Code { kernel: Some(0), bytes: &made.code("gfx1201") }]).unwrap();
    device
}

#[test]
fn counts_on_gfx1201() {
    for (e, k) in [(1, 1), (7, 7), (60, 33), (257, 8), (288, 8), (512, 10), (1024, 64), (4096, 64)] {
        with_chooser(e, k, 16, |made| special_holds(made, &mut emulator(made), e as usize, k as usize));
    }
}

/// Rows that wide loads stream, in whole rounds and not; one that they do not divide, and one for fewer waves.
#[test]
fn the_best_of_long_rows() {
    for n in [16384u64, 16388, 33000, 20001, 16380] {
        let (name, graph) = (format!("best_{n}"), argmax(n));
        let made = Made::new(&name, &graph, 16, 0);
        assert_eq!(made.schedule.waves, if n < 16384 { 8 } else { 16 });
        let mut rows = special_rows(n as usize, 1);
        let top = |at: &'static [usize]| {
            (0..n as usize).map(|i| if at.contains(&i) { 9.0 } else { (i % 7) as f32 }).collect()
        };
        rows.extend([top(&[16379, 16378]), top(&[11, 4096]), top(&[16001, 300])]);
        for device in [&mut made.cpu(2) as &mut dyn Device, &mut emulator(&made)] {
            let out = launch(&made, device, rows.len(), &[("logits", f32s(&rows.concat()))]);
            let want: Vec<u32> = rows.iter().map(|row| ranked(row, 0..row.len())[0] as u32).collect();
            assert_eq!(out["argmax"], want, "{name} on {}", device.name());
        }
    }
}

/// The k best of each part, and the k best of those.
fn by_parts(n: u64, part: u64, k: u64) -> Graph {
    let mut b = Builder::new("by_parts");
    let x = input(&mut b, "logits", DType::F32, &[Dim::Logits, f(n)]);
    let ids = b.add(Op::TopK { k, limit: None, part: Some(part) }, &[x]).unwrap();
    let scores = b.add(Op::GatherLast, &[x, ids]).unwrap();
    let places = b.add(Op::top_k(k), &[scores]).unwrap();
    let best = b.add(Op::GatherLast, &[ids, places]).unwrap();
    b.output("of_parts", ids);
    b.output("best", best);
    b.finish()
}

/// Parts that wide loads fill, also with a last one that reaches back, and others; rows that only one part has.
#[test]
fn the_best_of_parts_are_the_best_of_all() {
    for (n, part, k) in [
        (20480, 2048, 1),
        (19204, 2048, 1),
        (20001, 2048, 1),
        (3000, 256, 5),
        (1000, 300, 3),
        (1537, 512, 1),
        (40, 64, 4),
    ] {
        let (name, graph) = (format!("parts_{n}_{part}_{k}"), by_parts(n, part, k));
        let made = Made::new(&name, &graph, 16, 0);
        assert!(made.schedule.describe().contains("the last workgroup of a row finishes"), "{name}");
        let (n, part, k) = (n as usize, part as usize, k as usize);
        let mut rows = special_rows(n, k);
        let top = |at: &[usize]| (0..n).map(|i| if at.contains(&i) { 9.0 } else { (i % 7) as f32 }).collect();
        rows.extend([top(&[n - 1, n - 2]), top(&[part.min(n) - 1, n / 2]), top(&[n / 2 + 1, n / 3])]);
        for device in [&mut made.cpu(2) as &mut dyn Device, &mut emulator(&made)] {
            let out = launch(&made, device, rows.len(), &[("logits", f32s(&rows.concat()))]);
            let words = |at: Vec<usize>| at.into_iter().map(|i| i as u32).collect::<Vec<_>>();
            for (i, row) in rows.iter().enumerate() {
                let best = words(ranked(row, 0..n)[..k].to_vec());
                assert_eq!(out["best"][i * k..(i + 1) * k], best, "{name}, row {i} on {}", device.name());
                let firsts = (0..n).step_by(part);
                let each = firsts.flat_map(|at| ranked(row, at..n.min(at + part))[..k].to_vec()).collect();
                let own = n.div_ceil(part) * k;
                assert_eq!(
                    out["of_parts"][i * own..(i + 1) * own],
                    words(each),
                    "{name}, row {i} on {}",
                    device.name()
                );
            }
        }
    }
}

/// Rows in which groups tie, hold NaNs, have one number, or have their best in one group.
fn group_rows(e: usize, k: usize, groups: usize) -> Vec<Vec<f32>> {
    let size = e / groups;
    let mut rows = special_rows(e, k);
    let by_group = |value: &dyn Fn(usize, usize) -> f32| (0..e).map(|i| value(i / size, i % size)).collect();
    rows.extend([
        by_group(&|g, _| (g % 3) as f32),
        by_group(&|g, i| if i == g % size { 4.0 } else { -1.0 }),
        by_group(&|g, i| if g % 2 == 0 || i == 1 { f32::NAN } else { i as f32 }),
        by_group(&|g, i| if i == 0 { f32::INFINITY } else { f32::NEG_INFINITY * (g % 2) as f32 }),
        by_group(&|g, i| if g + 1 == groups && i + 1 == size { 9.0 } else { 0.25 }),
    ]);
    rows
}

#[test]
fn groups_limit_the_choice() {
    for (e, k, groups, kept) in
        [(2, 1, 2, 1), (8, 4, 8, 4), (60, 4, 6, 1), (256, 8, 8, 4), (288, 8, 12, 3), (288, 1, 4, 2), (1024, 64, 64, 40)]
    {
        let limit = Some(GroupLimit { groups, kept });
        let (name, graph) = (format!("groups_{e}_{k}_{groups}_{kept}"), chooser(e, k, limit));
        let made = Made::new(&name, &graph, 32, 0);
        let rows = group_rows(e as usize, k as usize, groups as usize);
        for device in [&mut made.cpu(2) as &mut dyn Device, &mut emulator(&made)] {
            for bias in [vec![0.0; e as usize], bias(e as usize)] {
                let leaves = [("scores", f32s(&rows.concat())), ("bias", f32s(&bias))];
                let out = launch(&made, device, rows.len(), &leaves);
                hold_limited(&name, &out, &rows, &bias, (k as usize, limit));
            }
        }
    }
}

/// A gate's row and weights in whole numbers, and their exact products.
fn whole_numbers(d: usize, e: usize, rows: usize) -> (Vec<f32>, Vec<f32>, Vec<Vec<f32>>) {
    let mut rng = Rng::new((d * 8192 + e) as u64);
    let mut draw = |n: usize| -> Vec<i64> { (0..n).map(|_| rng.below(7) as i64 - 3).collect() };
    let (x, w) = (draw(rows * d), draw(e * d));
    let dot = |x: &[i64], w: &[i64]| x.iter().zip(w).map(|(a, b)| a * b).sum::<i64>() as f32;
    let logits = x.chunks(d).map(|x| w.chunks(d).map(|w| dot(x, w)).collect()).collect();
    let floats = |v: Vec<i64>| v.into_iter().map(|x| x as f32).collect();
    (floats(x), floats(w), logits)
}

/// Gate and choice in one kernel, for a full bucket of rows and for a part of it.
fn gate_holds(d: u64, e: u64, k: u64, stored: DType, rows: u32, gfx1201: bool) {
    let (name, graph) = (format!("gate_{d}_{e}_{k}_{rows}"), gate(d, e, k, stored));
    let made = Made::new(&name, &graph, rows, 0);
    let (n, bias) = (e as usize, bias(e as usize));
    let (x, w, logits) = whole_numbers(d as usize, n, rows as usize);
    let w = if stored == DType::Bf16 { bf16s(&w) } else { f32s(&w) };
    let leaves = [("x", bf16s(&x)), ("gate", w), ("bias", f32s(&bias))];
    let mut devices: Vec<Box<dyn Device>> = vec![Box::new(made.cpu(2))];
    if gfx1201 {
        devices.push(Box::new(emulator(&made)));
    }
    for device in &mut devices {
        for rows in [rows as usize, rows.div_ceil(2) as usize] {
            hold(&name, &launch(&made, device.as_mut(), rows, &leaves), &logits[..rows], &bias, k as usize);
        }
    }
}

#[test]
fn gates_of_any_length_in_one_launch() {
    let lengths = [1, 7, 8, 31, 32, 33, 63, 255, 256, 257, 511, 512, 513, 1023, 1025, 2048, 2049];
    for (i, d) in lengths.into_iter().enumerate() {
        let stored = [DType::Bf16, DType::F32][i % 2];
        gate_holds(d, 60, 4, stored, [1, 4, 16][i % 3], d == 257);
    }
}

#[test]
fn gates_of_any_count_in_one_launch() {
    for (i, e) in [1, 2, 7, 128, 257, 288, 512, 1024, 2049, 4096].into_iter().enumerate() {
        for (stored, rows) in [(DType::Bf16, [1, 4][i % 2]), (DType::F32, [16, 1][i % 2])] {
            let k = [8, 64, 10][i % 3];
            gate_holds(70, e, k.min(e), stored, rows, e == 288 || e == 512);
        }
    }
}

#[test]
fn softmax_routers_in_one_launch() {
    for (e, k) in [(7, 7), (60, 4), (512, 10)] {
        all_buckets(&format!("softmax_{e}_{k}"), &softmax_router(70, e, k), 0);
    }
}

/// The same bits whatever the row's place, its neighbours and the rows of the step.
#[test]
fn rows_do_not_depend_on_each_other() {
    let (e, k, n) = (60usize, 4usize, 4096usize);
    with_chooser(e as u64, k as u64, n, |made| {
        let mut rng = Rng::new(7);
        let rows: Vec<Vec<f32>> = (0..n).map(|_| (0..e).map(|_| rng.below(40) as f32 / 8.0).collect()).collect();
        let bias = bias(e);
        let mut cpu = made.cpu(2);
        let mut of = |rows: &[Vec<f32>]| {
            let leaves = [("scores", f32s(&rows.concat())), ("bias", f32s(&bias))];
            launch(made, &mut cpu, rows.len(), &leaves)
        };
        let all = of(&rows);
        hold(made.name, &all, &rows, &bias, k);
        // 1,237 and 4,096 have no common divisor: a permutation.
        let places: Vec<usize> = (0..n).map(|i| i * 1237 % n).collect();
        let mixed = of(&places.iter().map(|i| rows[*i].clone()).collect::<Vec<_>>());
        let few = of(&rows[100..131]);
        for name in ["ids", "weights"] {
            let at = |out: &Outputs, row: usize| out[name][row * k..(row + 1) * k].to_vec();
            assert!((0..n).all(|i| at(&mixed, i) == at(&all, places[i])), "{name}");
            assert!((0..31).all(|i| at(&few, i) == at(&all, 100 + i)), "{name}");
        }
    });
}

#[test]
fn impossible_counts_are_refused() {
    let top_k = |e: u64, k: u64| {
        let mut b = Builder::new("refused");
        let x = input(&mut b, "x", DType::F32, &[R, f(e)]);
        b.add(Op::top_k(k), &[x]).map(|_| ())
    };
    let limited = |e: u64, k: u64, groups: u64, kept: u64| {
        let mut b = Builder::new("refused");
        let x = input(&mut b, "x", DType::F32, &[R, f(e)]);
        b.add(Op::TopK { k, limit: Some(GroupLimit { groups, kept }), part: None }, &[x]).map(|_| ())
    };
    assert_eq!(limited(12, 8, 3, 2), Ok(()));
    for (e, k, groups, kept) in [(12, 9, 3, 2), (12, 1, 5, 2), (12, 1, 0, 0), (12, 1, 3, 0), (12, 1, 3, 4)] {
        let refused = limited(e, k, groups, kept);
        assert!(matches!(refused, Err(IrError::Type { rule: "top-k-groups", .. })), "{refused:?}");
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(&format!("k {k} of {e} in {kept} of {groups} groups")), "{text}");
    }
    let parted = |e: u64, k: u64, part: u64, limit: Option<GroupLimit>| {
        let mut b = Builder::new("refused");
        let x = input(&mut b, "x", DType::F32, &[R, f(e)]);
        b.add(Op::TopK { k, limit, part: Some(part) }, &[x]).map(|_| ())
    };
    let grouped = Some(GroupLimit { groups: 2, kept: 1 });
    assert_eq!(parted(10, 2, 4, None), Ok(()));
    for (e, k, part, limit) in [(10, 3, 4, None), (8, 5, 4, None), (8, 1, 0, None), (8, 1, 4, grouped)] {
        let refused = parted(e, k, part, limit);
        assert!(matches!(refused, Err(IrError::Type { rule: "top-k-parts", .. })), "{refused:?}");
    }
    assert_eq!(top_k(4, 4), Ok(()));
    for (e, k) in [(4, 0), (4, 5), (0, 1), (0, 0)] {
        let refused = top_k(e, k);
        assert!(matches!(refused, Err(IrError::Type { rule: "top-k-range", .. })), "{refused:?}");
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(&format!("k {k} of {e}")) && text.contains("1 <= k <= the axis"), "{text}");
    }
}
