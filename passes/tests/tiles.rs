//! Which kernels take matrix tiles, and what that costs.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{D, bucket, linear, norm, plain, rows};
use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Binary, Domain, Op};
use unglue_ir::types::{DType, StateKind, StateType, TensorType};
use unglue_passes::cost::{Bound, GFX1201, kernel_cost};
use unglue_passes::schedule::{Bucket, Form, Products, ROWS_ON_LANES, schedule};

fn given(b: &mut Builder, name: &str, dtype: DType, k: u64) -> ValueId {
    b.input(name, TensorType::plain(dtype, rows(&[k])), Domain::Normal)
}

/// Matmuls of given rows with weights of these dtypes, added up.
fn products(x: DType, weights: &[DType], n: u64, k: u64) -> Graph {
    let mut b = Builder::new("products");
    let x = given(&mut b, "x", x, k);
    let mut sum: Option<ValueId> = None;
    for (i, dtype) in weights.iter().enumerate() {
        let w = b.weight(&format!("w{i}"), plain(*dtype, &[n, k]));
        let y = b.matmul(x, w).unwrap();
        sum = Some(sum.map_or(y, |sum| b.binary(Binary::Add, sum, y).unwrap()));
    }
    b.output("y", sum.unwrap());
    b.finish()
}

fn form(g: &Graph, rows_max: u32) -> &'static str {
    match schedule(g, &bucket(rows_max)) {
        Ok(s) => match (s.form, s.products) {
            (Form::Tiles(_), Products::Tiles { .. }) => "tiles",
            (Form::Skinny(_), Products::Lanes) => "lanes",
            other => panic!("{other:?}"),
        },
        Err(o) => o.rule,
    }
}

const BF16: DType = DType::Bf16;

#[test]
fn up_to_16_rows_stay_on_lanes() {
    let g = products(BF16, &[BF16], 96, 64);
    let forms = [1, 4, ROWS_ON_LANES, ROWS_ON_LANES + 1, 256].map(|rows| form(&g, rows));
    assert_eq!(forms, ["lanes", "lanes", "lanes", "tiles", "tiles"]);
}

#[test]
fn operands_are_given_and_of_one_16_bit_dtype() {
    assert_eq!(form(&products(DType::F16, &[DType::F16], 96, 64), 64), "tiles");
    assert_eq!(form(&products(BF16, &[BF16, BF16], 96, 64), 64), "tiles");
    for (x, w) in [
        (DType::F32, vec![BF16]),
        (BF16, vec![DType::F32]),
        (BF16, vec![DType::F16]),
        (BF16, vec![BF16, DType::F32]),
        // Three contractions in one output take more workgroup memory than there is.
        (BF16, vec![BF16; 3]),
    ] {
        assert_eq!(form(&products(x, &w, 96, 64), 64), "lanes", "{x:?} times {w:?}");
    }
    // The operand of a few rows is formed in the same kernel; that of many has one of its own.
    let mut b = Builder::new("normed");
    let x = given(&mut b, "x", BF16, D);
    let h = norm(&mut b, x, "w_norm", D);
    let y = linear(&mut b, h, "w", 96, D);
    b.output("y", y);
    assert_ne!(form(&b.finish(), 64), "tiles");
}

#[test]
fn tiles_take_a_launch_of_their_own() {
    let mut b = Builder::new("beside");
    let x = given(&mut b, "x", BF16, D);
    let y = linear(&mut b, x, "w", 96, D);
    let other = given(&mut b, "other", BF16, D);
    let other = norm(&mut b, other, "w_norm", D);
    b.output("y", y);
    let state = b.state("latent", StateType { kind: StateKind::Token { width: D }, dtype: BF16 });
    let written = b.add(Op::TokenWrite, &[other, state]).unwrap();
    b.output("latent", written);
    assert_eq!(form(&b.finish(), 64), "beside-tiles");
}

#[test]
fn blocks_cover_rows_and_outputs() {
    let g = products(BF16, &[BF16], 130, 64);
    let at = |rows| {
        let s = schedule(&g, &bucket(rows)).unwrap();
        s.grid().map(|axis| axis.value(&bucket(rows)))
    };
    assert_eq!(at(64), [3, 1, 1]);
    assert_eq!(at(65), [3, 2, 1]);
}

/// Blocks of 64 x 64 of many rows read their operands through the cache as long as they multiply; a step of few rows on
/// the same tiles is bound by the weights.
#[test]
fn tiles_cost_flops() {
    let g = products(BF16, &[BF16], 4096, 4096);
    let cost = |bucket: &Bucket| kernel_cost(&g, &schedule(&g, bucket).unwrap(), bucket, &GFX1201);
    let (many, few) = (cost(&bucket(2048)), cost(&bucket(17)));
    assert_eq!(many.traffic.tile_flops, 2 * 2048 * 4096 * 4096);
    assert_eq!(few.traffic.tile_flops, 2 * 64 * 4096 * 4096, "unused rows are computed");
    assert_eq!((many.bound, few.bound), (Bound::Cache, Bound::Dram));
    assert_eq!(many.traffic.restream_bytes, 31 * 2 * 4096 * 4096, "each 64 rows read the weights");
    // On lanes the same work would take several times as long.
    let mut lanes = schedule(&g, &bucket(2048)).unwrap();
    let Form::Tiles(t) = &lanes.form else { panic!() };
    lanes.form = Form::Skinny(t.skinny.clone());
    lanes.products = Products::Lanes;
    let slow = kernel_cost(&g, &lanes, &bucket(2048), &GFX1201);
    assert!(slow.ns > 3 * many.ns, "{} and {}", slow.ns, many.ns);
}
