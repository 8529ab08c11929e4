//! Matmuls over more than 16 rows: on matrix tiles, within the bounds of their ops.

use unglue_ir::graph::Graph;
use unglue_ir::types::DType;
use unglue_passes::schedule::Form;

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
