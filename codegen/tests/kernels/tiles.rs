//! Matmuls over more than 16 rows: on matrix tiles, within the bounds of their ops.

use unglue_ir::graph::Graph;
use unglue_ir::types::{DType, Format};
use unglue_passes::schedule::Form;

use super::packed_bodies::{self, Experts, FORMATS};
use super::tile_bodies::{biased, matmul, swiglu, two_outputs};
use super::{Made, bodies, run};

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
