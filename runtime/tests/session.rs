//! Sessions end to end, on the CPU device and a bundle made by hand.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::borrow::Cow;
use std::sync::Arc;

use common::{MAX_CTX, VOCAB, WIDTH, geometry, open_fake, session};
use unglue_runtime::manifest::{Mem, Source};
use unglue_runtime::{
    BlockOrder, BufferReader, Bundle, CpuDevice, CpuOptions, FaultKind, Feed, Geometry, Guard, LaunchEvent, LogitRows,
    Moment, RuntimeError, Session, SessionOptions, StepBatch, StepOutput,
};

fn plain() -> Session {
    session(open_fake(), CpuOptions::default(), geometry(64), SessionOptions::default())
}

fn ids(n: u64) -> Vec<i32> {
    (0..n).map(|i| (i * i % 7 + i % 2) as i32).collect()
}

/// What the fake kernels compute, straight from their definition.
fn reference(ids: &[i32]) -> Vec<f32> {
    let full: Vec<f32> = common::tensor().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let (width, quarter, half) = (WIDTH as usize, VOCAB as usize / 4, VOCAB as usize / 2);
    // Two slices of axis 1 of the view [2, V, W], each over both indices of axis 0.
    let row = |part: usize, outer: usize, i: usize| (outer * VOCAB as usize + part * half + i) * width;
    let starts = (0..2).flat_map(|part| (0..2).flat_map(move |o| (0..quarter).map(move |i| row(part, o, i))));
    let table: Vec<&[f32]> = starts.map(|s| &full[s..s + width]).collect();
    let (mut s, mut out) = ([0f32; 4], Vec::new());
    for p in 0..ids.len() {
        let mut y = [0f32; 4];
        for c in 0..width {
            s[c] = s[c] * 0.5 + table[ids[p] as usize][c];
            (0..=p).for_each(|t| y[c] += table[ids[t] as usize][c]);
            for pool in 0..(p + 1) / 4 {
                y[c] += (0..4).fold(0f32, |sum, j| sum + table[ids[pool * 4 + j] as usize][c]);
            }
            y[c] += s[c];
        }
        out.extend(table.iter().map(|t| (0..width).fold(0f32, |sum, c| sum + y[c] * t[c])));
    }
    out
}

fn run(session: &mut Session, ids: &[i32], chunk: usize) -> StepOutput {
    let mut seq = session.open_sequence().unwrap();
    let mut all = StepOutput { logits: vec![], argmax: vec![] };
    for part in ids.chunks(chunk) {
        let out = session.feed(&mut seq, part, LogitRows::All).unwrap();
        all.logits.extend(out.logits);
        all.argmax.extend(out.argmax);
    }
    session.close_sequence(seq);
    all
}

#[test]
fn results_do_not_depend_on_threads_chunks_blocks_or_guards() {
    let bundle = open_fake();
    let ids = ids(150);
    let expected = reference(&ids);
    for (block_size, chunk, threads) in [(4, 16, 1), (64, 1, 2), (2432, 3, 3), (2560, 7, 0)] {
        for guard in [Guard::Off, Guard::Aligned, Guard::Tight] {
            let cpu = CpuOptions { threads, guard, poison_shared: guard != Guard::Off };
            let strict = guard == Guard::Tight;
            let block_order = if strict { BlockOrder::Shuffled(7) } else { BlockOrder::Ascending };
            let options = SessionOptions { separate_buffers: strict, poison: true, block_order, ..Default::default() };
            let mut session = session(bundle.clone(), cpu, geometry(block_size), options);
            let out = run(&mut session, &ids, chunk);
            assert_eq!(out.logits, expected, "block {block_size}, chunk {chunk}, {guard:?}");
            for (row, best) in out.logits.chunks(VOCAB as usize).zip(&out.argmax) {
                assert!(row.iter().all(|x| *x <= row[*best as usize]));
            }
            let again = run(&mut session, &ids, chunk);
            assert_eq!(again, out, "a closed sequence leaves nothing behind");
        }
    }
}

#[test]
fn a_step_is_one_replay_of_its_list() {
    let (bundle, ids) = (open_fake(), ids(70));
    let options = SessionOptions { single_launches: true, ..Default::default() };
    let mut singly = session(bundle.clone(), CpuOptions::default(), geometry(64), options);
    let expected = run(&mut singly, &ids, 7);
    assert_eq!((singly.counters().steps, singly.counters().replays, singly.counters().recorded), (10, 0, 0));
    let mut listed = session(bundle, CpuOptions::default(), geometry(64), SessionOptions::default());
    assert_eq!(run(&mut listed, &ids, 7), expected);
    // 32 is no multiple of 7: the last step has other rows, and a list of its own.
    assert_eq!(run(&mut listed, &ids[..32], 7).logits, reference(&ids[..32]));
    let counters = listed.counters();
    assert_eq!((counters.steps, counters.replays, counters.recorded), (15, 15, 2));
    let mut seq = listed.open_sequence().unwrap();
    let mut feeds = [Feed { seq: &mut seq, ids: &ids[..7], logits: LogitRows::All }];
    listed.feed_batch(&mut feeds, Some(&mut |_, _| Ok(()))).unwrap();
    assert_eq!((listed.counters().steps, listed.counters().replays), (16, 15), "a hook comes between launches");
}

#[test]
fn lists_beyond_the_most_are_recorded_again() {
    let mut s = plain();
    let mut kinds = 0;
    for round in 1..3 {
        for logits in [LogitRows::None, LogitRows::Last, LogitRows::All] {
            for (rows, seqs) in (1..=14).flat_map(|rows| [(rows, 1), (rows, 2)]) {
                let mut sequences: Vec<_> = (0..seqs).map(|_| s.open_sequence().unwrap()).collect();
                let ids = ids(rows);
                let mut feeds: Vec<_> = sequences
                    .iter_mut()
                    .zip([&ids[..], &ids[..1]])
                    .map(|(seq, ids)| Feed { seq, ids, logits })
                    .collect();
                let out = s.feed_batch(&mut feeds, None).unwrap();
                let wanted = [&reference(&ids)[..], &reference(&ids[..1])[..]][..seqs].concat();
                assert!(!matches!(logits, LogitRows::All) || out.logits == wanted, "{rows} rows, {seqs} sequences");
                sequences.into_iter().for_each(|seq| s.close_sequence(seq));
                kinds += 1;
            }
        }
        assert_eq!(s.counters().steps, s.counters().replays, "round {round}");
    }
    let recorded = s.counters().recorded;
    assert!(recorded > 64 && recorded <= kinds, "{recorded} of {kinds}");
}

#[test]
fn neighbours_in_a_batch_change_nothing() {
    let mut session = plain();
    let (long, short) = (ids(9), [3, 1, 2]);
    let (mut a, mut b) = (session.open_sequence().unwrap(), session.open_sequence().unwrap());
    let mut feeds = [
        Feed { seq: &mut a, ids: &long, logits: LogitRows::All },
        Feed { seq: &mut b, ids: &short, logits: LogitRows::Last },
    ];
    let out = session.feed_batch(&mut feeds, None).unwrap();
    let (first, second) = out.logits.split_at(9 * VOCAB as usize);
    assert_eq!(first, reference(&long));
    assert_eq!(second, &reference(&short)[2 * VOCAB as usize..]);
    assert_eq!((a.len(), b.len()), (9, 3));
    assert_ne!(a.slot(), b.slot());
}

#[test]
fn state_is_read_in_logical_order() {
    let options = SessionOptions { block_order: BlockOrder::Shuffled(3), ..Default::default() };
    let mut session = session(open_fake(), CpuOptions::default(), geometry(4), options);
    let mut seq = session.open_sequence().unwrap();
    let ids = ids(15);
    session.feed(&mut seq, &ids, LogitRows::None).unwrap();
    assert!(!seq.blocks().is_sorted(), "{:?}", seq.blocks());
    let tokens = session.read_state(&seq, "tokens").unwrap();
    assert_eq!((tokens.shape.clone(), tokens.mem), (vec![15, WIDTH], Mem::F32));
    let (tokens, width) = (tokens.to_f32(), WIDTH as usize);
    let pools = session.read_state(&seq, "pools").unwrap();
    assert_eq!(pools.shape, [3, WIDTH]);
    for (p, pool) in pools.to_f32().chunks(width).enumerate() {
        for c in 0..width {
            assert_eq!(pool[c], (0..4).fold(0f32, |sum, j| sum + tokens[(4 * p + j) * width + c]));
        }
    }
    let tail = session.read_state(&seq, "tail").unwrap();
    assert_eq!(tail.shape, [2, 4, WIDTH]);
    assert_eq!(tail.to_f32()[2 * width..3 * width], tokens[14 * width..]);
    assert_eq!(session.read_state(&seq, "s").unwrap().shape, [WIDTH]);
    let error = session.read_state(&seq, "z").unwrap_err().to_string();
    assert!(error.contains("state z") && error.contains("tokens, pools"), "{error}");
    assert!(session.write_state(&seq, "s", &[0; 3]).is_err());
}

#[test]
fn a_snapshot_continues_in_another_slot_and_other_blocks() {
    let mut session = plain();
    let ids = ids(40);
    let expected = reference(&ids)[39 * VOCAB as usize..].to_vec();
    let mut seq = session.open_sequence().unwrap();
    for part in ids[..33].chunks(11) {
        session.feed(&mut seq, part, LogitRows::None).unwrap();
    }
    let saved = session.snapshot(&seq).unwrap();
    assert_eq!(saved.len(), 33);
    assert_eq!(session.feed(&mut seq, &ids[33..], LogitRows::Last).unwrap().logits, expected);
    let mut other = session.open_sequence().unwrap();
    session.feed(&mut other, &[1, 2, 3], LogitRows::None).unwrap();
    session.restore(&mut other, &saved).unwrap();
    assert_ne!((seq.slot(), seq.blocks()), (other.slot(), other.blocks()));
    assert_eq!(session.feed(&mut other, &ids[33..], LogitRows::Last).unwrap().logits, expected);
    session.restore(&mut seq, &saved).unwrap();
    assert_eq!(session.snapshot(&seq).unwrap(), saved);
    session.reset(&mut seq).unwrap();
    assert!(seq.is_empty() && seq.blocks().is_empty());
    assert_eq!(session.read_state(&seq, "s").unwrap().to_f32(), [0.0; 4]);
    assert_eq!(session.feed(&mut seq, &ids[..9], LogitRows::All).unwrap().logits, reference(&ids[..9]));
}

#[test]
fn the_hook_sees_every_launch_and_taps() {
    let mut session = plain();
    let bundle = session.bundle().clone();
    let tap = bundle.manifest().outputs.taps[0].clone();
    let mut seq = session.open_sequence().unwrap();
    let (mut names, mut tapped) = (vec![], None);
    let mut before = 0;
    let mut hook = |event: &LaunchEvent<'_>, reader: &dyn BufferReader| {
        assert_eq!((reader.batch().positions.as_slice(), reader.geometry().max_slots), (&[0, 1, 2][..], 3));
        assert!(reader.read_argument(99).is_err());
        if event.moment == Moment::Before {
            assert_eq!(before, names.len());
            before += 1;
            return Ok(());
        }
        names.push((event.kernel.to_string(), event.layer, event.bucket));
        if event.launch == tap.after_launch[event.bucket] as usize {
            tapped = Some(reader.read_buffer(tap.buffer).map_err(|e| e.to_string())?);
            assert!(reader.read_buffer(4).is_err() && reader.read_buffer(99).is_err());
        }
        Ok(())
    };
    let ids = [1, 2, 3];
    let mut feeds = [Feed { seq: &mut seq, ids: &ids, logits: LogitRows::Last }];
    session.feed_batch(&mut feeds, Some(&mut hook)).unwrap();
    assert_eq!(tapped.unwrap().shape, [3, WIDTH], "cut to the step's rows");
    let expected = [("embed", None, 1), ("mix", Some(2), 1), ("head", None, 1)];
    assert!(names.iter().map(|(n, l, b)| (n.as_str(), *l, *b)).eq(expected), "{names:?}");
    let mut stop = |_: &LaunchEvent<'_>, _: &dyn BufferReader| Err("enough".to_string());
    let mut feeds = [Feed { seq: &mut seq, ids: &ids, logits: LogitRows::Last }];
    let error = session.feed_batch(&mut feeds, Some(&mut stop)).unwrap_err();
    assert!(matches!(&error, RuntimeError::Hook { kernel, found } if kernel == "embed" && found == "enough"));
}

#[test]
fn a_fault_names_kernel_row_and_value_and_breaks_the_sequence() {
    let mut session = plain();
    let mut seq = session.open_sequence().unwrap();
    let error = session.feed(&mut seq, &[1, 2, 99], LogitRows::Last).unwrap_err();
    let RuntimeError::Fault { kernel, row: 2, value: 99, kind: FaultKind::TokenId } = &error else { panic!("{error}") };
    assert_eq!(kernel, "embed");
    let error = session.feed(&mut seq, &[1], LogitRows::Last).unwrap_err();
    assert!(error.to_string().contains("reset"), "{error}");
    session.reset(&mut seq).unwrap();
    assert_eq!(session.feed(&mut seq, &[1], LogitRows::Last).unwrap().logits, reference(&[1]));
}

/// Two rows of one sequence and one row of padding.
fn batch(session: &Session) -> StepBatch {
    StepBatch {
        ids: vec![1, 2, 0],
        positions: vec![0, 1, 0],
        q_start: vec![0, 2, 3],
        seq_len: vec![2, 0],
        slot: vec![1, -1],
        block_table: vec![0; 2 * session.geometry().blocks_per_seq() as usize],
        logit_rows: vec![1],
        ..Default::default()
    }
}

#[test]
fn padding_dummies_and_nan_are_legal() {
    let mut session = plain();
    let padded = batch(&session);
    assert_eq!(session.step(&padded).unwrap().logits, reference(&[1, 2])[VOCAB as usize..]);
    let zeros = StepBatch {
        ids: vec![0; 4],
        positions: vec![0; 4],
        q_start: vec![0; 3],
        seq_len: vec![0; 2],
        slot: vec![0, -1],
        logit_rows: vec![0; 4],
        ..padded.clone()
    };
    assert_eq!(session.step(&zeros).unwrap().argmax.len(), 4);
    let nan = [f32::NAN.to_le_bytes(); 4].concat();
    let mut seq = session.open_sequence().unwrap();
    session.feed(&mut seq, &[1], LogitRows::None).unwrap();
    session.write_state(&seq, "s", &nan).unwrap();
    assert!(session.feed(&mut seq, &[1], LogitRows::Last).unwrap().logits[0].is_nan());
}

#[test]
fn inconsistent_batches_are_refused() {
    let mut session = plain();
    let good = batch(&session);
    let mut refused = |needle: &str, change: fn(&mut StepBatch)| {
        let mut bad = good.clone();
        change(&mut bad);
        let error = session.step(&bad).unwrap_err().to_string();
        assert!(error.contains(needle) && error.contains("needed"), "{needle}: {error}");
    };
    refused("size", |b| b.ids.clear());
    refused("positions", |b| b.positions.truncate(1));
    refused("seq_len", |b| b.seq_len.truncate(1));
    refused("block_table", |b| b.block_table.truncate(1));
    refused("q_start", |b| b.q_start = vec![0, 2]);
    refused("q_start", |b| b.q_start = vec![0, 3, 2]);
    refused("q_start", |b| b.q_start = vec![0, 2, 4]);
    refused("q_start", |b| b.q_start = vec![-1, 2, 3]);
    refused("logit_rows", |b| b.logit_rows = vec![3]);
    refused("positions", |b| b.positions[0] = -1);
    refused("positions", |b| b.positions[0] = i32::MAX);
    refused("seq_len", |b| b.seq_len[0] = MAX_CTX as i32 + 1);
    refused("slot", |b| b.slot[0] = 3);
    refused("slot", |b| b.slot[0] = -2);
    refused("twice", |b| b.slot = vec![1, 1]);
    refused("block_table", |b| b.block_table[0] = -1);
    refused("block_table", |b| b.block_table[0] = 1000);
    refused("embeds", |b| b.embeds = Some(vec![]));
    refused("accepted", |b| b.accepted = Some(vec![]));
    refused("positions3", |b| b.positions3 = Some(vec![]));
    refused("all_reduce", |b| b.all_reduce = Some(|_, _, _| ()));
    refused("--chunk 16", |b| b.logit_rows = vec![0; 17]);
    let mut seq = session.open_sequence().unwrap();
    let error = session.feed(&mut seq, &[0; 17], LogitRows::Last).unwrap_err().to_string();
    assert!(error.contains("17 rows") && error.contains("--chunk 16"), "{error}");
    assert!(session.feed(&mut seq, &[], LogitRows::Last).is_err());
    session.feed(&mut seq, &[1], LogitRows::Last).unwrap();
}

#[test]
fn unchecked_slots_and_blocks_reach_the_status_word() {
    let options = SessionOptions { unchecked_batch: true, ..Default::default() };
    let mut session = session(open_fake(), CpuOptions::default(), geometry(64), options);
    let (mut slot, mut block) = (batch(&session), batch(&session));
    slot.slot[0] = 77;
    block.block_table[0] = -5;
    let error = session.step(&slot).unwrap_err();
    assert!(matches!(error, RuntimeError::Fault { value: 77, kind: FaultKind::Slot, .. }), "{error}");
    let error = session.step(&block).unwrap_err();
    assert!(matches!(error, RuntimeError::Fault { value: -5, kind: FaultKind::Block, .. }), "{error}");
}

#[test]
fn slots_blocks_and_context_run_out_with_an_error() {
    let small = Geometry { block_size: 4, num_blocks: 3, max_slots: 2, max_ctx: 11 };
    let mut session = session(open_fake(), CpuOptions::default(), small, SessionOptions::default());
    let (mut a, mut b) = (session.open_sequence().unwrap(), session.open_sequence().unwrap());
    assert!(session.open_sequence().unwrap_err().to_string().contains("slots"));
    session.feed(&mut a, &[1; 8], LogitRows::None).unwrap();
    let error = session.feed(&mut b, &[1; 5], LogitRows::None).unwrap_err().to_string();
    assert!(error.contains("blocks"), "{error}");
    session.feed(&mut b, &[1; 4], LogitRows::None).unwrap();
    assert!(session.feed(&mut a, &[1; 4], LogitRows::None).unwrap_err().to_string().contains("context"));
    session.close_sequence(a);
    session.feed(&mut b, &[1; 7], LogitRows::None).unwrap();
    session.open_sequence().unwrap();
}

#[test]
fn slot_tables_are_the_identity_until_set() {
    let mut session = plain();
    let mut seq = session.open_sequence().unwrap();
    assert!(session.feed(&mut seq, &[1], LogitRows::Last).unwrap().logits[0] != 0.0);
    session.set_slot_table(0, &[-1, 1]).unwrap();
    assert_eq!(session.feed(&mut seq, &[1], LogitRows::Last).unwrap().logits, [0.0; 8]);
    assert!(session.set_slot_table(0, &[0]).is_err());
    assert!(session.set_slot_table(0, &[0, 2]).is_err());
    assert!(session.set_slot_table(1, &[0, 1]).is_err());
}

fn create(bundle: Arc<Bundle>, geometry: Geometry, bytes: Result<usize, String>) -> Result<Session, RuntimeError> {
    let provider = |_: &Source| bytes.clone().map(|n| Cow::Owned(vec![0; n]));
    let device = Box::new(CpuDevice::new(CpuOptions::default())?);
    Session::create(bundle, device, &provider, geometry, SessionOptions::default())
}

#[test]
fn geometry_and_weights_are_checked() {
    let bundle = open_fake();
    let refused = |geometry, bytes, needle: &str| {
        let Err(error) = create(bundle.clone(), geometry, bytes) else { panic!("{needle}") };
        assert!(error.to_string().contains(needle), "{needle}: {error}");
    };
    let good = geometry(64);
    let bytes = Ok((VOCAB * WIDTH * 4 / 2) as usize);
    create(bundle.clone(), good, bytes.clone()).unwrap();
    refused(Geometry { block_size: 6, ..good }, bytes.clone(), "block size");
    refused(Geometry { block_size: 0, ..good }, bytes.clone(), "block size");
    refused(Geometry { max_ctx: MAX_CTX + 1, ..good }, bytes.clone(), "context");
    refused(Geometry { max_slots: 0, ..good }, bytes.clone(), "slots");
    refused(Geometry { num_blocks: 0, ..good }, bytes.clone(), "blocks");
    refused(Geometry { num_blocks: 1 << 30, ..good }, bytes.clone(), "blocks");
    refused(Geometry { num_blocks: 1 << 24, block_size: 1 << 30, ..good }, bytes.clone(), "rows of paged state");
    refused(Geometry { num_blocks: 1 << 24, block_size: 128, ..good }, bytes, "rows of paged state");
    refused(good, Ok(5), "5 bytes");
    refused(good, Err("tensor embed is missing".into()), "tensor embed is missing");
    let by_rule = Geometry::for_sequences(&bundle.manifest().options, 2);
    assert_eq!((by_rule.num_blocks, by_rule.max_slots), (2 * 94, 2));
}
