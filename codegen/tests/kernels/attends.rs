//! Attention whose heads share the loads of selected rows: every number of heads a workgroup takes, on numbers of heads that
//! leave some of them without one; workgroups of one split and of all; rows that are absent, all absent, or no numbers.

use std::collections::BTreeMap;

use unglue_codegen::check::{Given, Paging};
use unglue_codegen::emu::{self, EmuDevice, EmuOptions};
use unglue_codegen::{gates, target};
use unglue_ir::builder::Builder;
use unglue_ir::graph::Graph;
use unglue_ir::interp::draw::Rng;
use unglue_ir::interp::value::round_to;
use unglue_ir::interp::{Batch, StateData, Tensor};
use unglue_ir::op::{Binary, Domain};
use unglue_ir::types::{DType, StateKind};
use unglue_passes::cost::{GFX1201, kernel_cost};
use unglue_passes::schedule::{Bucket, Form, SET_HEADS, fit, schedule};
use unglue_runtime::{Code, Device};

use super::Made;
use super::bodies::{R, attend, attend_combine, bin, f, input, ints, state, storing_splits};

const PAGING: Paging = Paging { block_size: 16, blocks_per_seq: 6, num_blocks: 13, max_slots: 6 };

/// A kernel of which a workgroup takes `at_once` heads, whatever the bucket would have: of one split if the graph stores the
/// splits, of all if it does not.
fn sharing(graph: &Graph, at_once: u64) -> Made<'_> {
    let stores = graph.outputs.iter().any(|(name, _)| name == "splits");
    let bucket = |rows_max| Bucket { rows_max, seqs_max: 2, pools: 0, fit: &fit::GFX1201 };
    let mut schedule = schedule(graph, &bucket(if stores { 8 } else { 300 })).unwrap();
    let Form::Attend(form) = &mut schedule.form else { panic!("{:?}", schedule.form) };
    assert_eq!((stores, form.is_split()), (form.finish.is_some(), stores));
    form.at_once = at_once;
    schedule.waves = form.waves();
    Made::with(&graph.name, graph, bucket(8), schedule)
}

/// The context times an operand of its shape.
fn gated(h: u64, r: u64, n: u64) -> Graph {
    let mut b = Builder::new("gated");
    let q = input(&mut b, "q", DType::Bf16, &[R, f(h), f(r)]);
    let gate = input(&mut b, "gate", DType::F32, &[R, f(h), f(r)]);
    let ids = ints(&mut b, "ids", &[R, f(n)], Domain::Selected);
    let latent = state(&mut b, "latent", StateKind::Token { width: r }, DType::Bf16);
    let c = b.attend(0.125, [q, latent, ids]).unwrap();
    let gated = bin(&mut b, Binary::Mul, c, gate);
    b.output("context", c);
    b.output("gated", gated);
    b.finish()
}

/// Two sequences of two rows, and rows behind them. Of the first row's places some are absent, of the second row's all; the
/// third selects infinities, the fourth NaN too. What stands in for absent rows is no number either.
fn given(graph: &Graph, [heads, width, selected]: [usize; 3]) -> Given<'static> {
    let mut rng = Rng::new((heads + width + selected) as u64);
    let batch = Batch::new(&[(5, 80, 2), (4, 20, 2)], 0);
    let mut rows = |n: usize| -> Vec<f32> { (0..n * width).map(|_| round_to(DType::Bf16, rng.normal())).collect() };
    let mut slots = vec![vec![]; PAGING.max_slots];
    slots[5] = rows(82);
    slots[5][..width].fill(f32::NAN);
    slots[4] = rows(22);
    for (token, x) in [(3, f32::INFINITY), (5, f32::NAN), (7, f32::NEG_INFINITY), (9, -0.0)] {
        slots[4][token * width + token] = x;
    }
    let mut floats = |name: &str| {
        let is_query = name == "q";
        let data = rows(4 * heads).into_iter().map(|x| if is_query { x } else { x + 0.5 }).collect();
        Tensor::float(if is_query { DType::Bf16 } else { DType::F32 }, &[4, heads, width], data)
    };
    let names = graph.inputs().map(|(name, _)| name.to_owned()).filter(|name| name != "ids").collect::<Vec<_>>();
    let mut inputs: BTreeMap<String, Tensor> = names.into_iter().map(|name| (name.clone(), floats(&name))).collect();
    let first = (0..selected as i32).map(|i| if i % 3 == 1 || i > 80 { -1 } else { 81 - i });
    let third = (0..selected as i32).map(|i| if i == 5 || i > 20 { -1 } else { i });
    let fourth = (0..selected as i32).map(|i| if i > 20 { -1 } else { i });
    let ids = first.chain(vec![-1; selected]).chain(third).chain(fourth).collect();
    inputs.insert("ids".into(), Tensor::i32(&[4, selected], ids));
    Given {
        batch,
        block_table: vec![0, 3, 5, 7, 9, 11, 2, 4, 99, -1, 6, 8],
        paging: PAGING,
        logits: 1,
        inputs,
        weights: BTreeMap::new(),
        states: BTreeMap::from([("latent".into(), StateData::Token { width, slots })]),
        seed: None,
    }
}

fn agrees(graph: &Graph, sizes: [u64; 3], at_once: u64) {
    let made = sharing(graph, at_once);
    let given = given(graph, sizes.map(|n| n as usize));
    let mut cpu = made.cpu(2);
    (0..6).for_each(|seed| made.compare(&mut cpu, seed));
    made.compare_given(&mut cpu, &given);
    let mut emulator = EmuDevice::new(EmuOptions { threads: 2, ..EmuOptions::default() }).unwrap();
    emulator.load(&[made.described()], &[Code { kernel: Some(0), bytes: &made.code("gfx1201") }]).unwrap();
    emulator.set_options(EmuOptions { schedule: emu::Schedule::Random(at_once), ..emulator.options() });
    made.compare_given(&mut emulator, &given);
    made.compare(&mut emulator, 4);
    made.code("sm_90");
}

/// A workgroup has all splits, or one: the bits are the same.
fn attends([heads, width, selected]: [u64; 3], at_once: u64) {
    if at_once <= SET_HEADS {
        agrees(&attend(heads, width, selected), [heads, width, selected], at_once);
    }
    agrees(&storing_splits(attend(heads, width, selected)), [heads, width, selected], at_once);
}

#[test]
fn each_head_alone() {
    attends([1, 64, 19], 1);
    attends([3, 320, 72], 1);
}

#[test]
fn two_heads_share_rows() {
    attends([1, 40, 64], 2);
    attends([6, 520, 33], 2);
}

#[test]
fn four_heads_share_rows() {
    attends([3, 64, 19], 4);
    attends([6, 96, 300], 4);
}

#[test]
fn eight_heads_share_rows() {
    attends([8, 64, 19], 8);
    attends([11, 96, 260], 8);
    attends([3, 40, 384], 8);
}

/// More splits than a lane loads at the same time, and than a wave has lanes.
#[test]
fn many_splits() {
    attends([2, 16, 128 * 25 + 1], 2);
    attends([1, 16, 128 * 34], 1);
    let graph = attend_combine(3, 70, 41);
    let bucket = Bucket { rows_max: 4, seqs_max: 1, pools: 0, fit: &fit::GFX1201 };
    let made = Made::of("combine", &graph, bucket);
    let mut cpu = made.cpu(2);
    (0..4).for_each(|seed| made.compare(&mut cpu, seed));
}

#[test]
fn whole_pieces_and_columns() {
    attends([4, 512, 72], 4);
}

#[test]
fn many_heads_share_rows() {
    attends([64, 64, 67], 4);
}

/// 576 columns: queries of four heads are more than registers hold.
#[test]
fn queries_are_loaded_where_they_are_many() {
    attends([4, 576, 21], 4);
}

#[test]
fn an_epilogue_has_the_elements_of_its_head() {
    agrees(&gated(3, 66, 20), [3, 66, 20], 2);
    agrees(&gated(6, 128, 20), [6, 128, 20], 4);
    agrees(&storing_splits(gated(6, 66, 140)), [6, 66, 140], 4);
    agrees(&storing_splits(gated(9, 128, 140)), [9, 128, 140], 8);
}

/// 64 heads of 512 columns and 2,051 places, as GLM-5.3-Flash has them: eight waves fit a SIMD, and waves of a row end within
/// 37,000 cycles (`specs/costmodel.md` 6, rule 1).
#[test]
fn a_model_has_short_waves_and_registers_left() {
    let (whole, stored) = (attend(64, 512, 2051), storing_splits(attend(64, 512, 2051)));
    for (rows_max, graph) in [(1, &stored), (16, &stored), (512, &whole)] {
        let bucket = Bucket { rows_max, seqs_max: 1, pools: 0, fit: &fit::GFX1201 };
        let made = Made::of("attend", graph, bucket);
        let cost = kernel_cost(graph, &made.schedule, &bucket, &GFX1201);
        let target = target::by_name("gfx1201").unwrap();
        let found = gates::check(&made.code("gfx1201"), &made.made.program, target).unwrap();
        println!("{rows_max} rows, {}: {found:?} {cost:?}", made.schedule.describe());
        assert!(rows_max > 16 || found.occupancy >= 8, "{rows_max} rows: {found:?}");
        assert!(rows_max > 1 || cost.wave_cycles <= GFX1201.wave_life.value, "{cost:?}");
    }
    for rows_max in [1, 16] {
        let bucket = Bucket { rows_max, seqs_max: 1, pools: 0, fit: &fit::SM_90 };
        Made::of("attend", &stored, bucket).code("sm_90");
    }
}
