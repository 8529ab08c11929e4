//! P5 in the interpreter: chunking, batch neighbours, batch position and padding change no bit. Also: steps are pure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers outside of #[test] functions are tests too.

mod interp_support;

use std::collections::BTreeMap;

use interp_support::{POOL, Run, everything, rows_of};
use proptest::prelude::*;
use unglue_ir::interp::{Batch, Tensor, WeightRef};
use unglue_ir::types::DType;

/// Rows of each output, bits only.
fn bits(out: &BTreeMap<String, Tensor>, rows: usize) -> Vec<Vec<u32>> {
    let row = |r: usize| {
        out.values()
            .flat_map(|t| {
                let w = t.elements() / t.shape[0];
                let floats = t.floats().iter().skip(r * w).take(w).map(|x| x.to_bits());
                floats.chain(t.ints().iter().skip(r * w).take(w).map(|x| *x as u32)).collect::<Vec<_>>()
            })
            .collect()
    };
    (0..rows).map(row).collect()
}

/// Runs token ranges of sequences; each step is a list of (sequence, slot, first token, tokens), and sequence i's
/// token t is row i * len + t of the inputs.
fn run(
    run: &mut Run,
    len: usize,
    steps: &[Vec<(usize, i32, usize, usize)>],
    padding: usize,
) -> Vec<(usize, usize, Vec<u32>)> {
    let all = run.inputs.clone();
    let total = all["x"].shape[0];
    let mut out = Vec::new();
    for step in steps {
        let seqs: Vec<(i32, usize, usize)> = step.iter().map(|s| (s.1, s.2, s.3)).collect();
        let mut batch = Batch::new(&seqs, POOL);
        let mut rows: Vec<usize> = step.iter().flat_map(|s| (s.0 * len + s.2)..(s.0 * len + s.2 + s.3)).collect();
        let real = rows.len();
        rows.extend(std::iter::repeat_n(0, padding));
        batch.positions.extend(std::iter::repeat_n(0, padding));
        batch.row_seq.extend(std::iter::repeat_n(-1, padding));
        let got = bits(&run.step(&rows_of(&all, &rows, total), &batch).unwrap(), real);
        let names = step.iter().flat_map(|s| (s.2..s.2 + s.3).map(move |t| (s.0, t)));
        out.extend(names.zip(got).map(|((seq, t), b)| (seq, t, b)));
    }
    out.sort_by_key(|o| (o.0, o.1));
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn chunks_equal_one_step(seed in any::<u64>(), cuts in proptest::collection::vec(1usize..6, 1..30), padding in 0usize..3) {
        let len: usize = cuts.iter().sum();
        let mut whole = everything(seed, len);
        let mut chunked = whole.clone();
        let want = run(&mut whole, len, &[vec![(0, 1, 0, len)]], 0);
        let mut at = 0;
        let steps: Vec<_> = cuts.iter().map(|c| { at += c; vec![(0, 1, at - c, *c)] }).collect();
        prop_assert_eq!(run(&mut chunked, len, &steps, padding), want);
        prop_assert_eq!(chunked.states, whole.states);
    }

    #[test]
    fn interleaved_sequences_equal_each_alone(seed in any::<u64>(), parts in proptest::collection::vec((0usize..5, 0usize..5, any::<bool>()), 1..12)) {
        let len: usize = parts.iter().map(|p| p.0.max(p.1)).sum::<usize>().max(1);
        let mut both = everything(seed, 2 * len);
        let (mut first, mut second) = (both.clone(), both.clone());
        let (mut at, mut steps, mut alone) = ([0, 0], Vec::new(), [Vec::new(), Vec::new()]);
        for (a, b, swap) in parts {
            let mut step = vec![(0, 2, at[0], a), (1, 0, at[1], b)];
            at[0] += a;
            at[1] += b;
            alone[0].push(vec![step[0]]);
            alone[1].push(vec![step[1]]);
            if swap {
                step.swap(0, 1);
            }
            steps.push(step);
        }
        let got = run(&mut both, len, &steps, 1);
        let mut want = run(&mut first, len, &alone[0], 0);
        want.extend(run(&mut second, len, &alone[1], 0));
        prop_assert_eq!(got, want);
        for (name, s) in &both.states {
            prop_assert_eq!(&s.slots()[2], &first.states[name].slots()[2]);
            prop_assert_eq!(&s.slots()[0], &second.states[name].slots()[0]);
        }
    }
}

#[test]
fn single_rows_equal_one_step() {
    let len = 30;
    let mut whole = everything(5, len);
    let mut single = whole.clone();
    let want = run(&mut whole, len, &[vec![(0, 0, 0, len)]], 0);
    let steps: Vec<_> = (0..len).map(|t| vec![(0, 0, t, 1)]).collect();
    assert_eq!(run(&mut single, len, &steps, 0), want);
    assert_eq!(single.states, whole.states);
}

#[test]
fn a_sequence_without_slot_writes_nothing() {
    let mut r = everything(6, 5);
    let before = r.states.clone();
    run(&mut r, 5, &[vec![(0, -1, 0, 5)]], 0);
    assert_eq!(r.states, before);
}

#[test]
fn bad_batches_and_inputs_are_errors() {
    let good = everything(7, 4);
    let batch = Batch::new(&[(0, 0, 4)], POOL);
    let refused = |change: &dyn Fn(&mut Run, &mut Batch), rule: &str| {
        let (mut r, mut b) = (good.clone(), batch.clone());
        change(&mut r, &mut b);
        let states = r.states.clone();
        let inputs = r.inputs.clone();
        let e = r.step(&inputs, &b).unwrap_err().to_string();
        assert!(e.starts_with(rule), "{e}");
        assert_eq!(r.states, states, "a refused step changes nothing");
    };
    refused(&|_, b| b.positions[2] = 7, "batch");
    refused(&|_, b| b.q_start[1] = 9, "batch");
    refused(&|_, b| b.row_seq[3] = -1, "batch");
    refused(&|_, b| b.slot[0] = 3, "state-slot");
    refused(&|r, _| drop(r.inputs.remove("x")), "input-missing");
    refused(&|r, _| drop(r.states.remove("tail")), "state-missing");
    refused(&|r, _| r.inputs.get_mut("x").unwrap().shape[1] = 5, "input-type");
    refused(
        &|r, _| drop(r.weights.insert("taps".into(), WeightRef::from_f32(DType::F32, &[1], &[0.0]).unwrap())),
        "weight-type",
    );
}

#[test]
fn a_step_without_rows_is_a_step() {
    let mut r = everything(8, 3);
    let (before, inputs) = (r.states.clone(), rows_of(&r.inputs, &[], 3));
    let out = r.step(&inputs, &Batch::new(&[(0, 0, 0), (2, 5, 0)], POOL)).unwrap();
    assert!(out.values().all(|t| t.shape[0] == 0));
    assert_eq!(r.states, before);
}
