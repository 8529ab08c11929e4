//! What the command line has no way to ask: several sequences, block tables, padding, poisoned memory, snapshots.

use std::borrow::Cow;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use unglue_models::checkpoint::Checkpoint;
use unglue_runtime::manifest::{Kernel, Source, StateKind};
use unglue_runtime::{
    BlockOrder, Bundle, CpuDevice, CpuOptions, Feed, Geometry, Guard, LogitRows, SequenceState, Session,
    SessionOptions, Snapshot, StepBatch, slice_tensor,
};

use super::common::{BUILDS, Build, Case, MODEL, succeed, unglue};

static CHECKPOINT: LazyLock<Checkpoint> = LazyLock::new(|| Checkpoint::open(Path::new(MODEL)).unwrap());

fn weights(source: &Source) -> Result<Cow<'static, [u8]>, String> {
    let tensor = CHECKPOINT.tensor(&source.tensor).ok_or("no such tensor")?;
    slice_tensor(tensor.bytes, source)
}

fn session_with(build: Build, block_size: u64, options: SessionOptions, cpu: CpuOptions) -> Session {
    let bundle = Arc::new(Bundle::open(build.bundle()).unwrap());
    let max_ctx = bundle.manifest().options.max_ctx;
    let geometry = Geometry { block_size, num_blocks: 4 * 160u64.div_ceil(block_size) + 9, max_slots: 4, max_ctx };
    let device = Box::new(CpuDevice::new(cpu).unwrap());
    Session::create(bundle, device, &weights, geometry, options).unwrap()
}

fn session(build: Build) -> Session {
    session_with(build, 64, SessionOptions::default(), CpuOptions { threads: 2, ..CpuOptions::default() })
}

/// Bit patterns: NaN is equal to itself.
fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// Logits of all ids in steps of at most `chunk` rows, and the state after them.
fn alone(session: &mut Session, ids: &[i32], chunk: usize) -> (Vec<u32>, Snapshot) {
    let mut seq = session.open_sequence().unwrap();
    let feed = |part: &[i32]| bits(&session.feed(&mut seq, part, LogitRows::All).unwrap().logits);
    let logits = ids.chunks(chunk).flat_map(feed).collect();
    let state = session.snapshot(&seq).unwrap();
    session.close_sequence(seq);
    (logits, state)
}

/// Tokens of two sequences, never in the same places: the long case and the short one behind part of it.
fn two() -> (Vec<i32>, Vec<i32>) {
    let (long, short) = (Case::of("long").ids, Case::of("short").ids);
    let second = [&long[30..60], &short[..]].concat();
    (long, second)
}

/// Feeds two sequences in common steps of uneven shares; logits and state of each.
fn interleaved(session: &mut Session, a: &[i32], b: &[i32]) -> [(Vec<u32>, Snapshot); 2] {
    let vocab = session.bundle().manifest().model.vocab_size as usize;
    let (mut first, mut second) = (session.open_sequence().unwrap(), session.open_sequence().unwrap());
    let (mut at, mut logits) = ([0, 0], [Vec::new(), Vec::new()]);
    // Shares of a step, in turn: full steps, one row each, and steps in which one of them rests.
    let shares = [(5, 3), (1, 1), (9, 7), (0, 4), (2, 1), (3, 0), (12, 4)];
    for (x, y) in shares.into_iter().cycle() {
        let (x, y) = (x.min(a.len() - at[0]), y.min(b.len() - at[1]));
        if at == [a.len(), b.len()] {
            break;
        }
        if x + y == 0 {
            continue;
        }
        let (ids_a, ids_b) = (&a[at[0]..at[0] + x], &b[at[1]..at[1] + y]);
        let mut feeds = [
            Feed { seq: &mut second, ids: ids_b, logits: LogitRows::All },
            Feed { seq: &mut first, ids: ids_a, logits: LogitRows::All },
        ];
        let out = bits(&session.feed_batch(&mut feeds, None).unwrap().logits);
        let (of_b, of_a) = out.split_at(y * vocab);
        logits[0].extend_from_slice(of_a);
        logits[1].extend_from_slice(of_b);
        at = [at[0] + x, at[1] + y];
    }
    let [la, lb] = logits;
    let out = [(la, session.snapshot(&first).unwrap()), (lb, session.snapshot(&second).unwrap())];
    session.close_sequence(first);
    session.close_sequence(second);
    out
}

#[test]
fn two_sequences_in_a_step_equal_each_alone() {
    let (a, b) = two();
    for build in BUILDS {
        let mut s = session(build);
        let want = [alone(&mut s, &a, 16), alone(&mut s, &b, 16)];
        assert!(interleaved(&mut s, &a, &b) == want, "{build:?}");
    }
}

#[test]
fn block_size_and_order_change_no_bit() {
    let (a, b) = two();
    for build in BUILDS {
        let want = interleaved(&mut session(build), &a, &b);
        for block in [4, 64, 2432, 2560] {
            let options = SessionOptions { block_order: BlockOrder::Shuffled(block), ..SessionOptions::default() };
            let mut s = session_with(build, block, options, CpuOptions { threads: 2, ..CpuOptions::default() });
            assert!(interleaved(&mut s, &a, &b) == want, "{build:?}: blocks of {block} tokens");
        }
    }
}

/// Activations and shared memory start as NaN, and buffers end at pages that fault: nothing is read before it is
/// written, and nothing outside.
#[test]
fn poisoned_memory_changes_no_bit() {
    let (a, b) = two();
    for build in BUILDS {
        let want = interleaved(&mut session(build), &a, &b);
        let options = SessionOptions { separate_buffers: true, poison: true, ..SessionOptions::default() };
        let cpu = CpuOptions { threads: 2, guard: Guard::Tight, poison_shared: true };
        assert!(interleaved(&mut session_with(build, 64, options, cpu), &a, &b) == want, "{build:?}");
    }
}

/// A sequence whose state is NaN makes NaN, and its neighbour in the same steps does not notice.
#[test]
fn nan_stays_in_its_sequence() {
    let (a, b) = two();
    for build in BUILDS {
        let mut s = session(build);
        let want = alone(&mut s, &a[..24], 8);
        let (mut good, mut bad) = (s.open_sequence().unwrap(), s.open_sequence().unwrap());
        s.feed(&mut bad, &b[..13], LogitRows::None).unwrap();
        for state in s.bundle().clone().manifest().states.iter() {
            let bytes = s.read_state(&bad, &state.name).unwrap().bytes.len();
            s.write_state(&bad, &state.name, &vec![0xff; bytes]).unwrap();
        }
        let mut logits = Vec::new();
        for step in 0..3 {
            let mut feeds = [
                Feed { seq: &mut bad, ids: &b[13 + step * 8..21 + step * 8], logits: LogitRows::Last },
                Feed { seq: &mut good, ids: &a[step * 8..step * 8 + 8], logits: LogitRows::All },
            ];
            let out = s.feed_batch(&mut feeds, None).unwrap();
            let vocab = out.logits.len() / 9;
            assert!(out.logits[..vocab].iter().all(|x| x.is_nan()), "{build:?}");
            logits.extend(bits(&out.logits[vocab..]));
        }
        assert!((logits, s.snapshot(&good).unwrap()) == want, "{build:?}");
    }
}

/// A raw step: each sequence as (slot, first position, ids, blocks), then padding rows of no sequence.
fn raw(session: &Session, seqs: &[(i32, usize, &[i32], &[i32])], padding: usize) -> StepBatch {
    let mut batch = StepBatch { q_start: vec![0], ..StepBatch::default() };
    let width = session.geometry().blocks_per_seq() as usize;
    for (slot, first, ids, blocks) in seqs {
        batch.ids.extend_from_slice(ids);
        batch.positions.extend((*first..first + ids.len()).map(|p| p as i32));
        batch.q_start.push(batch.ids.len() as i32);
        batch.seq_len.push((first + ids.len()) as i32);
        batch.slot.push(*slot);
        batch.block_table.extend_from_slice(blocks);
        batch.block_table.resize(batch.slot.len() * width, -1);
    }
    batch.ids.resize(batch.ids.len() + padding, 0);
    batch.positions.resize(batch.ids.len(), 0);
    batch
}

/// States that belong to a slot, which `read_state` gives whatever the sequence's length.
fn slot_states(session: &Session, seq: &SequenceState) -> Vec<Vec<u8>> {
    let states = session.bundle().manifest().states.iter();
    let states = states.filter(|s| matches!(s.kind, StateKind::Slot { .. } | StateKind::Tail { .. }));
    states.map(|s| session.read_state(seq, &s.name).unwrap().bytes).collect()
}

/// A sequence with slot -1 and rows of no sequence: they change nothing for others and write nothing.
#[test]
fn padding_writes_nothing() {
    let (a, b) = two();
    for build in BUILDS {
        let mut s = session(build);
        let want = alone(&mut s, &a[..20], 5);
        let vocab = s.bundle().manifest().model.vocab_size as usize;
        let (mut seq, mut other) = (s.open_sequence().unwrap(), s.open_sequence().unwrap());
        s.feed(&mut other, &b[..11], LogitRows::None).unwrap();
        let before = s.snapshot(&other).unwrap();
        s.feed(&mut seq, &a[..13], LogitRows::None).unwrap();
        // A batch of padding alone, whose blocks and positions are those of real sequences.
        let blocks = seq.blocks().to_vec();
        let states = s.snapshot(&seq).unwrap();
        let batch = raw(&s, &[(-1, 3, &a[..5], &blocks), (-1, 0, &b[..2], other.blocks())], 3);
        s.step(&batch).unwrap();
        assert!(s.snapshot(&seq).unwrap() == states && s.snapshot(&other).unwrap() == before, "{build:?}");
        // Padding before and behind a real sequence.
        let mut batch = raw(
            &s,
            &[(-1, 0, &b[..4], &blocks), (seq.slot() as i32, 13, &a[13..18], &blocks), (-1, 7, &b[..1], &[])],
            2,
        );
        batch.logit_rows = (4..9).collect();
        let with = bits(&s.step(&batch).unwrap().logits);
        assert!(with == want.0[13 * vocab..18 * vocab], "{build:?}");
        // What follows depends on all of its state; rows were written to its blocks.
        let mut batch = raw(&s, &[(seq.slot() as i32, 18, &a[18..20], &blocks)], 0);
        batch.logit_rows = vec![0, 1];
        assert!(bits(&s.step(&batch).unwrap().logits) == want.0[18 * vocab..], "{build:?}");
        assert!(s.snapshot(&other).unwrap() == before, "{build:?}: a sequence that was not in the steps");
        let mut whole = s.open_sequence().unwrap();
        s.restore(&mut whole, &want.1).unwrap();
        assert!(slot_states(&s, &seq) == slot_states(&s, &whole), "{build:?}");
    }
}

#[test]
fn snapshot_restore_and_reset_equal_a_fresh_run() {
    let (a, b) = two();
    for build in BUILDS {
        let options = SessionOptions { block_order: BlockOrder::Shuffled(3), ..SessionOptions::default() };
        let mut s = session_with(build, 4, options, CpuOptions { threads: 2, ..CpuOptions::default() });
        let want = alone(&mut s, &a[..30], 10);
        let rows = s.bundle().manifest().model.vocab_size as usize * 10;
        let mut seq = s.open_sequence().unwrap();
        a[..20].chunks(10).for_each(|part| drop(s.feed(&mut seq, part, LogitRows::None).unwrap()));
        let taken = s.snapshot(&seq).unwrap();
        assert_eq!(taken.len(), 20);
        // Another sequence, with other blocks and another slot, and then the same one after other tokens.
        let mut other = s.open_sequence().unwrap();
        s.feed(&mut other, &b[..7], LogitRows::None).unwrap();
        s.feed(&mut seq, &b[..9], LogitRows::None).unwrap();
        for seq in [&mut other, &mut seq] {
            s.restore(seq, &taken).unwrap();
            let logits = bits(&s.feed(seq, &a[20..30], LogitRows::All).unwrap().logits);
            assert!(logits == want.0[2 * rows..] && s.snapshot(seq).unwrap() == want.1, "{build:?}");
        }
        s.reset(&mut seq).unwrap();
        let again: Vec<u32> =
            a[..30].chunks(10).flat_map(|p| bits(&s.feed(&mut seq, p, LogitRows::All).unwrap().logits)).collect();
        assert!((again, s.snapshot(&seq).unwrap()) == want, "{build:?}");
    }
}

/// Timings are nobody's promise; that both ways run, and which of them was a replay, is.
#[test]
fn whole_steps_are_timed_both_ways() {
    let bundle = BUILDS[0].bundle().to_str().unwrap();
    let options = ["--device", "cpu", "--steps", "3", "--rows", "2", "--context", "37", "--json"];
    let said = succeed(&[&["bench", bundle], &options[..]].concat());
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(said["launches"].as_u64() > Some(10), "{said}");
    assert_eq!((&said["replays"], &said["list_steps"]), (&6.into(), &6.into()), "three timed, three before: {said}");
    assert_eq!(said["context"], 37, "{said}");
    assert!(said["single_us"].as_f64() > Some(0.0) && said["list_us"].as_f64() > Some(0.0), "{said}");
}

/// Kernels whose workgroups meet are launched again; the count says how many there were.
#[test]
fn kernels_that_meet_are_repeated() {
    let bundle = BUILDS[1].bundle();
    let kernels = Bundle::open(bundle).unwrap().manifest().kernels.clone();
    let meets = |k: &Kernel| k.params.iter().any(|p| p.name == "step_counter");
    for (wanted, repeated) in [(true, 1), (false, 0)] {
        let name = &kernels.iter().find(|k| meets(k) == wanted).unwrap().name;
        let options = ["--kernel", name, "--draws", "1", "--repeat", "3", "--json"];
        let said = succeed(&[&["verify", bundle.to_str().unwrap()], &options[..]].concat());
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&said["repeated"], &said["wrong"]), (&repeated.into(), &serde_json::json!([])), "{said}");
    }
}

/// sm_90 code waits for earlier launches by itself, and a build with a fault says so and is not run.
#[test]
fn manifests_tell_what_kernels_wait_for_and_what_is_wrong_with_them() {
    let folder = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let compiled = |name: &str, options: &[&str]| {
        let bundle = folder.path().join(name).to_str().unwrap().to_owned();
        let all = ["compile", MODEL, "-o", &bundle, "--layers", "0", "--cover", "greedy", "--json"];
        succeed(&[&all[..], options].concat());
        let manifest = Bundle::open(&bundle).unwrap().manifest().clone();
        (bundle, manifest.awaits, manifest.options.fault)
    };
    let (_, awaits, fault) = compiled("both.ug", &["--target", "x86-64,sm_90"]);
    assert_eq!((awaits, fault), (vec!["sm_90".to_owned()], None));
    let (bundle, _, fault) = compiled("late.ug", &["--target", "sm_90", "--fault", "delay=3"]);
    assert_eq!(fault.as_deref(), Some("delay=3"));
    let done = unglue(&["bench", &bundle, "--device", "cpu", "--steps", "1"]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("delay=3"), "{said}");
}
