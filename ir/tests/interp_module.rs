//! Modules: calls in order, state by call, purity; and the inputs that domains draw.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers outside of #[test] functions are tests too.

use std::cell::Cell;
use std::collections::BTreeMap;

use unglue_ir::IrError;
use unglue_ir::builder::Builder;
use unglue_ir::interp::draw::{Rng, draw, draw_weight};
use unglue_ir::interp::{Batch, Data, Dims, States, Tensor, WeightRef, run_module};
use unglue_ir::module::{Arg, Call, InputDecl, Module, ModuleOutput, StateDecl, WeightDecl};
use unglue_ir::op::{Binary, Domain, Op};
use unglue_ir::types::{DType, Dim, Format, StateKind, StateType, TensorType};

fn rows(n: u64) -> TensorType {
    TensorType::plain(DType::F32, vec![Dim::Rows, Dim::Fixed(n)])
}

/// Two calls of one body y = conv(x) * w with a window of one row.
fn two_layers() -> Module {
    let window = StateType { kind: StateKind::Slot { shape: vec![1, 2] }, dtype: DType::F32 };
    let mut b = Builder::new("layer");
    let x = b.input("x", rows(2), Domain::Normal);
    let w = b.weight("w", TensorType::plain(DType::F32, vec![Dim::Fixed(1), Dim::Fixed(2)]));
    let taps = b.weight("taps", TensorType::plain(DType::F32, vec![Dim::Fixed(2), Dim::Fixed(2)]));
    let s = b.state("window", window.clone());
    let y = b.add(Op::CausalConv, &[x, taps, s]).unwrap();
    let next = b.add(Op::ConvUpdate, &[x, s]).unwrap();
    let y = b.binary(Binary::Mul, y, w).unwrap();
    b.output("y", y);
    b.output("window", next);
    let weight = |name: &str, shape: &[u64]| WeightDecl {
        name: name.into(),
        ty: TensorType::plain(DType::F32, shape.iter().map(|d| Dim::Fixed(*d)).collect::<Vec<_>>()),
        sources: Vec::new(),
    };
    let call = |i: u32, arg| Call { body: 0, layer: Some(i), args: vec![arg], weights: vec![i, 2], states: vec![i] };
    let output = |name: &str, call| ModuleOutput { name: name.into(), call, output: 0 };
    Module {
        name: "two".into(),
        inputs: vec![InputDecl { name: "x".into(), ty: rows(2), domain: Domain::Normal }],
        weights: vec![weight("w0", &[1, 2]), weight("w1", &[1, 2]), weight("taps", &[2, 2])],
        states: (0..2).map(|i| StateDecl { name: format!("layer{i}.window"), ty: window.clone() }).collect(),
        bodies: vec![b.finish()],
        calls: vec![call(0, Arg::Input(0)), call(1, Arg::Result { call: 0, output: 0 })],
        outputs: vec![output("first", 0), output("second", 1)],
    }
}

fn weights(decl: &WeightDecl) -> Result<WeightRef<'static>, IrError> {
    let values: &[f32] = match decl.name.as_str() {
        "w0" => &[2.0, 3.0],
        "w1" => &[10.0, 1.0],
        // Each channel: old + 2 * new.
        _ => &[1.0, 2.0, 1.0, 2.0],
    };
    let shape: Vec<u64> = decl.ty.shape.iter().filter_map(|d| d.fixed()).collect();
    WeightRef::from_f32(DType::F32, &shape, values)
}

#[test]
fn calls_run_in_order_with_their_own_weights_and_states() {
    let m = two_layers();
    let mut states = States::new(&m.states, 2);
    let mut step = |x: [f32; 2], position: usize| {
        let inputs = BTreeMap::from([("x".to_string(), Tensor::f32(&[1, 2], x.to_vec()))]);
        let seen = Cell::new(0);
        let batch = Batch::new(&[(1, position, 1)], 0);
        let out = run_module(&m, &inputs, &weights, &mut states, &batch, &mut |call, _, _| seen.set(seen.get() + call));
        assert_eq!(seen.get(), 3, "input, conv and product of call 1");
        let out = out.unwrap();
        (out["first"].floats().to_vec(), out["second"].floats().to_vec())
    };
    assert_eq!(step([1.0, 1.0], 0), (vec![4.0, 6.0], vec![80.0, 12.0]));
    assert_eq!(step([0.0, 1.0], 1), (vec![2.0, 9.0], vec![80.0, 24.0]));
    assert_eq!(states.get("layer1.window").unwrap().slots()[1], [2.0, 9.0]);
    assert_eq!(states.get("layer0.window").unwrap().slots()[0], [0.0, 0.0]);
    states.reset(1);
    assert_eq!(states.get("layer1.window").unwrap().slots()[1], [0.0, 0.0]);
}

#[test]
fn a_failed_step_changes_no_state() {
    let m = two_layers();
    let mut states = States::new(&m.states, 1);
    let inputs = BTreeMap::from([("x".to_string(), Tensor::f32(&[1, 2], vec![1.0, 1.0]))]);
    let no_second = |d: &WeightDecl| match d.name.as_str() {
        "w1" => Err(IrError::Eval { rule: "gone", place: "w1".into(), found: "nothing".into(), hint: "none" }),
        _ => weights(d),
    };
    let batch = Batch::new(&[(0, 0, 1)], 0);
    let got = run_module(&m, &inputs, &no_second, &mut states, &batch, &mut |_, _, _| {});
    assert!(got.unwrap_err().to_string().starts_with("gone"));
    assert!(states.iter().all(|(_, s)| s.slots()[0] == [0.0, 0.0]));
}

#[test]
fn draws_keep_to_their_domains() {
    let mut rng = Rng::new(1);
    let batch = Batch::new(&[(0, 5, 3), (1, 0, 2)], 4);
    let dims = Dims::of(&batch, 2);
    let ints = TensorType::plain(DType::I32, vec![Dim::Rows, Dim::Fixed(6)]);
    let mut rows = |domain| {
        let t = draw(&mut rng, &ints, domain, &dims, &batch);
        assert_eq!(t.shape, [5, 6]);
        t.ints().chunks(6).map(<[i32]>::to_vec).collect::<Vec<_>>()
    };
    let ascending = |row: &[i32]| {
        let n = row.iter().take_while(|x| **x >= 0).count();
        row[..n].windows(2).all(|p| p[0] < p[1]) && row[n..].iter().all(|x| *x == -1)
    };
    for _ in 0..50 {
        assert!(rows(Domain::Below(3)).iter().flatten().all(|x| (0..3).contains(x)));
        assert!(rows(Domain::RowIndex).iter().flatten().all(|x| (0..5).contains(x)));
        for row in rows(Domain::Distinct(8)) {
            assert!(row.iter().all(|x| (0..8).contains(x)));
            assert_eq!(row.iter().collect::<std::collections::BTreeSet<_>>().len(), 6);
        }
        assert!(rows(Domain::Ascending(9)).iter().all(|r| ascending(r) && r.iter().all(|x| *x < 9)));
        for (row, position) in rows(Domain::Selected).iter().zip(&batch.positions) {
            assert!(ascending(row) && row.iter().all(|x| x <= position));
        }
        for row in rows(Domain::Slots(4)) {
            let used: Vec<_> = row.iter().filter(|x| **x >= 0).collect();
            assert_eq!(used.iter().collect::<std::collections::BTreeSet<_>>().len(), used.len());
        }
    }
    let mut rng = Rng::new(2);
    let x = draw(&mut rng, &TensorType::plain(DType::F32, vec![Dim::Fixed(40_000)]), Domain::Normal, &dims, &batch);
    let mean = x.floats().iter().sum::<f32>() / 4e4;
    let square = x.floats().iter().map(|x| x * x).sum::<f32>() / 4e4;
    assert!(mean.abs() < 0.03 && (square - 1.0).abs() < 0.03, "{mean} {square}");
    let x = draw(&mut rng, &TensorType::plain(DType::Bf16, vec![Dim::Rows]), Domain::Unit, &dims, &batch);
    assert!(matches!(&x.data, Data::F32(v) if v.iter().all(|x| (0.0..=1.0).contains(x))));
    let w = draw_weight(&mut rng, Format::Plain(DType::F16), &[3, 100]).unwrap();
    assert_eq!(w.bytes.len(), 600);
    assert_eq!(
        draw_weight(&mut Rng::new(7), Format::Plain(DType::F32), &[9]),
        draw_weight(&mut Rng::new(7), Format::Plain(DType::F32), &[9])
    );
}
