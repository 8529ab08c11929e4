//! Matmuls over more than 16 rows: on matrix tiles, within the bounds of their ops.

use unglue_ir::graph::Graph;
use unglue_ir::types::{DType, Format};
use unglue_passes::schedule::{Bucket, Fit, Form, TileBlock, fit};

use super::packed_bodies::{self, Experts, FORMATS};
use super::tile_bodies::{biased, matmul, swiglu, two_outputs};
use super::{Made, bodies, run, run_made};

/// A machine that any launch fills: its blocks are wide.
static FILLED: Fit = Fit { tile_workgroups: 1, ..fit::GFX1201 };

fn on_tiles(name: &str, g: &Graph, rows: u32) {
    let made = Made::new(name, g, rows, 0);
    assert!(matches!(made.schedule.form, Form::Tiles(_)), "{name}: {}", made.schedule.describe());
    run(name, g, rows, 0);
}

#[test]
fn matmuls_of_any_size() {
    for (name, n, k, rows) in [
        ("tiles_64", 64, 32, 64),
        ("tiles_ragged", 70, 96, 64),
        ("tiles_uneven", 33, 700, 40),
        ("tiles_odd", 5, 37, 17),
        ("tiles_wide", 200, 1024, 256),
    ] {
        on_tiles(name, &matmul(n, k), rows);
    }
}

#[test]
fn epilogues_on_tiles() {
    on_tiles("tiles_biased", &biased(70, 72, DType::Bf16), 64);
    on_tiles("tiles_f16", &biased(70, 72, DType::F16), 64);
    on_tiles("tiles_swiglu", &swiglu(80, 96), 64);
    on_tiles("tiles_two_outputs", &two_outputs([70, 130], 96), 64);
    on_tiles("tiles_post", &bodies::matmul_post(4, 96, 64), 64);
}

/// Blocks whose waves lie beside one another too: rows and outputs that fill none, one, and several; parts of waves that do
/// not exist; two contractions in an output; outputs across the buffer.
#[test]
fn wide_blocks() {
    let wide = |name: &str, g: &Graph, rows: u32, outputs: u32| {
        let bucket = Bucket { rows_max: rows, seqs_max: 4, pools: 0, fit: &FILLED };
        let made = Made::of(name, g, bucket);
        let Form::Tiles(tiles) = &made.schedule.form else { panic!("{name}: {}", made.schedule.describe()) };
        let TileBlock { rows, outputs: of, .. } = tiles.block;
        assert_eq!((rows, of, made.schedule.waves), (128, outputs, 8), "{name}");
        run_made(&made);
    };
    for (name, n, k, rows) in [
        ("wide_one", 128, 64, 128),
        ("wide_ragged", 70, 96, 40),
        ("wide_several", 300, 72, 150),
        ("wide_odd", 5, 37, 17),
    ] {
        wide(name, &matmul(n, k), rows, 128);
    }
    wide("wide_biased", &biased(140, 72, DType::Bf16), 130, 128);
    wide("wide_swiglu", &swiglu(100, 96), 130, 64);
    wide("wide_two_outputs", &two_outputs([70, 130], 96), 64, 128);
    wide("wide_absorb", &bodies::batch_matmul(3, 37, 70, true), 70, 128);
    wide("wide_values", &bodies::batch_matmul(3, 64, 33, false), 140, 128);
}

/// Groups of one round and of several, one group and many, outputs that fill no block.
#[test]
fn int4_weights_on_tiles() {
    for (i, format) in FORMATS.into_iter().enumerate() {
        for (n, k, rows) in [(37, 128, 17), (70, 384, 64), (130, 1152, 40)] {
            on_tiles(&format!("tiles_int4_{i}_{k}"), &packed_bodies::matmul(format, n, k), rows);
        }
    }
}

const BF16: Format = Format::Plain(DType::Bf16);

/// Some experts have no slot, some ids no expert; of 60 experts most are chosen by no row.
#[test]
fn experts_on_tiles() {
    let few = Experts { e: 18, ids: 18, s: 5, k: 4, d: 128, n: 70 };
    let unknown = Experts { ids: 23, ..few };
    let many = Experts { e: 60, ids: 60, s: 60, k: 3, ..few };
    for (i, format) in [BF16, FORMATS[0], FORMATS[3]].into_iter().enumerate() {
        for (name, c, rows) in [("few", few, 64), ("unknown", unknown, 40), ("many", many, 17)] {
            on_tiles(&format!("tiles_up_{name}_{i}"), &packed_bodies::up(format, &c), rows);
            let c = Experts { d: c.n, n: c.d, ..c };
            on_tiles(&format!("tiles_down_{name}_{i}"), &packed_bodies::down_each(format, &c), rows);
        }
    }
}

/// All rows choose the one expert: more than a block of them, and ids of more than one load of all waves.
#[test]
fn one_expert_for_all_rows() {
    for (name, k, rows) in [("one", 1, 200), ("two", 2, 700)] {
        let c = Experts { e: k, ids: k, s: 1, k, d: 128, n: 40 };
        on_tiles(&format!("tiles_all_{name}"), &packed_bodies::up(FORMATS[0], &c), rows);
    }
}

/// A matrix a head, along the inputs and across them.
#[test]
fn heads_on_tiles() {
    for (name, k, n, across) in
        [("absorb", 48, 64, true), ("absorb_uneven", 37, 70, true), ("values", 64, 33, false), ("odd", 5, 7, true)]
    {
        on_tiles(&format!("tiles_{name}"), &bodies::batch_matmul(3, k, n, across), 70);
    }
}
