//! Which kernels take matrix tiles, and what that costs.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{D, bucket, linear, norm, plain, rows};
use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Binary, Domain, Op};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Dim, Format, Packing, ScaleType, StateKind, StateType, TensorType};
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

/// Blocks are wide where the machine has workgroups enough with them, of plain weights.
#[test]
fn many_blocks_are_wide() {
    let block = |g: &Graph, rows: u32| {
        let s = schedule(g, &bucket(rows)).unwrap();
        let Form::Tiles(t) = &s.form else { panic!() };
        assert_eq!(s.waves, t.block.waves());
        (t.block.rows, t.block.outputs, s.waves)
    };
    // 32 x 2 blocks of 128 x 128 are 64, and of 31 x 2 are fewer.
    let (many, fewer) = (products(BF16, &[BF16], 4096, 64), products(BF16, &[BF16], 31 * 128, 64));
    assert_eq!((block(&many, 256), block(&many, 128)), ((128, 128, 8), (64, 64, 4)));
    assert_eq!(block(&fewer, 256), (64, 64, 4));
    // Two contractions in an output share the registers.
    assert_eq!(block(&products(BF16, &[BF16, BF16], 2048, 64), 256), (128, 64, 8));
    let mut b = Builder::new("packed");
    let x = given(&mut b, "x", BF16, 384);
    let w = stored(&mut b, "w", int4(128), &[4096, 384]);
    let y = b.matmul(x, w).unwrap();
    b.output("y", y);
    assert_eq!(block(&b.finish(), 2048), (64, 64, 4));
}

/// A step of few rows on the same tiles is bound by the weights.
#[test]
fn tiles_cost_flops() {
    let g = products(BF16, &[BF16], 4096, 4096);
    let cost = |bucket: &Bucket| kernel_cost(&g, &schedule(&g, bucket).unwrap(), bucket, &GFX1201);
    let (many, few) = (cost(&bucket(2048)), cost(&bucket(17)));
    assert_eq!(many.traffic.tile_flops, 2 * 2048 * 4096 * 4096);
    assert_eq!(few.traffic.tile_flops, 2 * 64 * 4096 * 4096, "unused rows are computed");
    assert_eq!((many.bound, few.bound), (Bound::Cache, Bound::Dram));
    assert_eq!(many.traffic.restream_bytes, 15 * 2 * 4096 * 4096, "each 128 rows read the weights");
    // On lanes the same work would take several times as long.
    let mut lanes = schedule(&g, &bucket(2048)).unwrap();
    let Form::Tiles(t) = &lanes.form else { panic!() };
    lanes.form = Form::Skinny(t.skinny.clone());
    lanes.products = Products::Lanes;
    let slow = kernel_cost(&g, &lanes, &bucket(2048), &GFX1201);
    assert!(slow.ns > 3 * many.ns, "{} and {}", slow.ns, many.ns);
}

const PLAIN: Format = Format::Plain(BF16);

const fn int4(group: u32) -> Format {
    Format::Int4 { group, packing: Packing::Rows, scales: ScaleType::F16 }
}

fn stored(b: &mut Builder, name: &str, format: Format, shape: &[u64]) -> ValueId {
    b.weight(name, TensorType { format, shape: shape.iter().map(|n| Dim::Fixed(*n)).collect() })
}

/// One expert kernel: E experts, as many slots, k choices; `sum`: over the choices.
fn experts(format: Format, [e, k, n, d]: [u64; 4], sum: bool) -> Graph {
    let mut b = Builder::new("experts");
    let x = given(&mut b, "x", BF16, d);
    let ids = b.input("ids", TensorType::plain(DType::I32, rows(&[k])), Domain::Distinct(e));
    let slots = b.input("slots", plain(DType::I32, &[e]), Domain::Slots(e));
    let w = stored(&mut b, "w", format, &[e, n, d]);
    let order = if format == PLAIN { Order::Lanes } else { Order::Runs };
    let mut y = b.add(Op::GroupedMatMul { order }, &[x, ids, slots, w]).unwrap();
    if sum {
        y = b.sum(y, 1).unwrap();
    }
    b.output("y", y);
    b.finish()
}

#[test]
fn int4_weights_are_unpacked_for_tiles() {
    let matmul = |x: DType, format: Format| {
        let mut b = Builder::new("matmul");
        let x = given(&mut b, "x", x, 384);
        let w = stored(&mut b, "w", format, &[96, 384]);
        let y = b.matmul(x, w).unwrap();
        b.output("y", y);
        b.finish()
    };
    for group in [32, 64, 128] {
        let s = schedule(&matmul(BF16, int4(group)), &bucket(64)).unwrap();
        assert!(s.describe().contains(&format!("int4 in groups of {group}")), "{}", s.describe());
    }
    assert_eq!(form(&matmul(BF16, int4(128)), 16), "lanes");
    // Levels are multiplied as bf16.
    assert_eq!(form(&matmul(DType::F16, int4(128)), 64), "lanes");
}

#[test]
fn experts_take_rows_by_expert() {
    for format in [PLAIN, int4(128)] {
        let g = experts(format, [18, 4, 130, 128], false);
        assert_eq!([16, 64].map(|rows| form(&g, rows)), ["lanes", "tiles"]);
        let s = schedule(&g, &bucket(64)).unwrap();
        // One more than experts: ids that name none.
        assert_eq!(s.grid().map(|axis| axis.value(&bucket(64))), [3, 19, 1]);
        // A row's choices are in different workgroups.
        assert_eq!(form(&experts(format, [18, 4, 130, 128], true), 64), "lanes");
    }
}

#[test]
fn heads_have_a_grid_axis() {
    for transposed in [true, false] {
        let mut b = Builder::new("heads");
        let x = b.input("x", TensorType::plain(BF16, rows(&[3, 64])), Domain::Normal);
        let w = b.weight("w", plain(BF16, if transposed { &[3, 64, 130] } else { &[3, 130, 64] }));
        let order = if transposed { Order::of_strided(64) } else { Order::Lanes };
        let y = b.add(Op::BatchMatMul { transposed, order }, &[x, w]).unwrap();
        b.output("y", y);
        let g = b.finish();
        assert_eq!([16, 65].map(|rows| form(&g, rows)), ["lanes", "tiles"]);
        let s = schedule(&g, &bucket(65)).unwrap();
        assert_eq!(s.grid().map(|axis| axis.value(&bucket(65))), [3, 2, 3]);
    }
}

/// 4096 pairs of 288 experts: each expert's weight is read once and met by 15 rows, a tile of them.
#[test]
fn experts_cost_the_tiles_of_their_rows() {
    let (e, k, n, d) = (288, 8, 2048, 4096);
    let g = experts(int4(128), [e, k, n, d], false);
    let cost = |rows: u32| {
        let bucket = bucket(rows);
        kernel_cost(&g, &schedule(&g, &bucket).unwrap(), &bucket, &GFX1201)
    };
    let some = cost(512);
    assert_eq!(some.traffic.tile_flops, 2 * e * 16 * n * d);
    assert_eq!((some.traffic.weight_bytes, some.traffic.restream_bytes), (e * n * d / 2 + e * n * d / 128 * 2, 0));
    assert_eq!(some.bound, Bound::Dram);
    // Rows are gathered once for each choice and block of outputs, ids read by every workgroup.
    let blocks = n / 64;
    let ids = 512 * k * 4 * blocks * (e + 1);
    let slots = e * 4 * blocks;
    assert_eq!(some.traffic.reread_bytes, 512 * d * 2 * blocks * k + ids + slots);
    // More rows than a block holds read the weights again.
    let many = cost(4096);
    assert_eq!(many.traffic.restream_bytes, many.traffic.weight_bytes);
    // On lanes every pair streams its expert.
    let mut lanes = schedule(&g, &bucket(512)).unwrap();
    let Form::Tiles(t) = &lanes.form else { panic!() };
    lanes.form = Form::Skinny(t.skinny.clone());
    lanes.products = Products::Lanes;
    let slow = kernel_cost(&g, &lanes, &bucket(512), &GFX1201);
    assert!(slow.ns > 3 * some.ns, "{} and {}", slow.ns, some.ns);
}
