//! One refusal per test case: the rule is named, and so are the value and the types.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

mod headers;
#[path = "../support/mod.rs"]
mod support;

use support::*;
use unglue_codegen::error::CodegenError;
use unglue_codegen::kp::verify::verify;
use unglue_codegen::kp::*;

/// Builds a program of `waves` waves with an f32 input, an i32 output and shared memory, and lets `f` break it.
fn refused(waves: u32, rule: &str, mentions: &str, f: impl FnOnce(&mut B)) {
    let mut b = B::new("subject", waves);
    b.buffer(Mem::F32, Access::Read);
    b.buffer(Mem::I32, Access::Write);
    b.shared(Mem::F32, 64);
    f(&mut b);
    let p = b.finish();
    match verify(&p) {
        Err(error @ CodegenError::Verify { rule: found, .. }) => {
            assert_eq!(found, rule, "{error}");
            let text = error.to_string();
            assert!(text.contains("`subject`") || rule == "kernel-name", "{text}");
            assert!(text.contains(mentions), "{text} should mention {mentions}");
        }
        other => panic!("{other:?}\n{}", p.to_text()),
    }
}

const X: Place = Place::Buffer(0);
const Y: Place = Place::Buffer(1);

#[test]
fn definitions_and_scopes() {
    refused(1, "definition-before-use", "v0 (uniform i32)", |b| {
        let v = b.fresh(U(Elem::I32));
        b.un(Un::Neg, v);
    });
    refused(1, "single-definition", "v0 (uniform i32)", |b| {
        let v = b.i32(1);
        b.push(Stmt::Let(v, Expr::I32(2)));
    });
    refused(1, "type-table", "v9", |b| b.push(Stmt::Let(Val(9), Expr::I32(2))));
    refused(1, "type-table", "v9", |b| {
        b.def(U(Elem::I32), Expr::Un(Un::Neg, Val(9)));
    });
    refused(1, "scope", "outside", |b| {
        let c = b.def(U(Elem::Bool), Expr::Bool(true));
        let mut inner = None;
        b.branch(
            c,
            |b| {
                inner = Some(b.i32(1));
                vec![]
            },
            |_| vec![],
        );
        b.un(Un::Neg, inner.unwrap());
    });
    refused(1, "scope", "outside", |b| {
        let (zero, one) = (b.i32(0), b.i32(1));
        let mut index = None;
        b.for_loop(zero, one, one, &[], |_, i, _| {
            index = Some(i);
            vec![]
        });
        b.un(Un::Neg, index.unwrap());
    });
    refused(1, "scope", "outside", |b| {
        let c = b.def(U(Elem::Bool), Expr::Bool(true));
        let inner = std::cell::Cell::new(Val(0));
        b.branch(
            c,
            |b| {
                inner.set(b.i32(1));
                vec![]
            },
            |b| {
                b.un(Un::Neg, inner.get());
                vec![]
            },
        );
    });
}

#[test]
fn operand_types() {
    refused(1, "operand-type", "v0: uniform i32, v1: uniform f32", |b| {
        let (i, f) = (b.i32(1), b.f32(1.0));
        b.bin(Bin::Add, i, f);
    });
    refused(1, "operand-type", "rem v0 v0", |b| {
        let f = b.f32(1.0);
        b.bin(Bin::Rem, f, f);
    });
    refused(1, "operand-type", "sqrt v0", |b| {
        let i = b.i32(1);
        b.un(Un::Sqrt, i);
    });
    refused(1, "operand-type", "not v0", |b| {
        let i = b.i32(1);
        b.un(Un::Not, i);
    });
    refused(1, "operand-type", "fma", |b| {
        let i = b.i32(1);
        b.fma(i, i, i);
    });
    refused(1, "operand-type", "cmp-ult", |b| {
        let f = b.f32(1.0);
        b.cmp(Cmp::Ult, f, f);
    });
    refused(1, "operand-type", "cmp-eq", |b| {
        let t = b.def(U(Elem::Bool), Expr::Bool(true));
        b.cmp(Cmp::Eq, t, t);
    });
    refused(1, "operand-type", "select", |b| {
        let i = b.i32(1);
        b.def(U(Elem::I32), Expr::Select(i, i, i));
    });
    refused(1, "operand-type", "i32tof32", |b| {
        let f = b.f32(1.0);
        b.conv(Conv::I32ToF32, f);
    });
    refused(1, "operand-type", "splat v0 x3", |b| {
        let f = b.f32(1.0);
        b.def(lane(Elem::F32), Expr::Splat(f, 3));
    });
    refused(1, "operand-type", "component v1 2", |b| {
        let f = b.f32(1.0);
        let f = b.splat(f, 2);
        b.component(f, 2);
    });
    refused(1, "operand-type", "pack v0 v0 v0", |b| {
        let l = b.lane_id();
        b.def(Ty::Lane(Elem::I32, 2), Expr::Pack(vec![l, l, l]));
    });
    refused(1, "operand-type", "xor-lane v0 32", |b| {
        let l = b.lane_id();
        b.def(lane(Elem::I32), Expr::XorLane(l, 32));
    });
    refused(1, "operand-type", "xor-lane v0 0", |b| {
        let l = b.lane_id();
        b.def(lane(Elem::I32), Expr::XorLane(l, 0));
    });
    refused(1, "operand-type", "reduce-add v0", |b| {
        let i = b.i32(1);
        b.reduce(Reduce::Add, i);
    });
    refused(1, "operand-type", "read-lane", |b| {
        let l = b.lane_id();
        b.def(U(Elem::I32), Expr::ReadLane(l, l));
    });
    refused(1, "operand-type", "scan-add", |b| {
        let i = b.i32(1);
        b.def(lane(Elem::I32), Expr::ScanAdd(i));
    });
    refused(1, "operand-type", "ballot", |b| {
        let l = b.lane_id();
        b.def(U(Elem::I32), Expr::Ballot(l));
    });
    refused(1, "result-type", "v0 has type uniform f32", |b| {
        b.def(U(Elem::F32), Expr::I32(1));
    });
    refused(1, "group-axis", "axis 3", |b| {
        b.def(U(Elem::I32), Expr::Group(3));
    });
    refused(1, "scalar", "param0", |b| {
        b.def(U(Elem::I32), Expr::Scalar(0));
    });
}

#[test]
fn accesses() {
    let all = Bound::All;
    refused(1, "access", "declared write", |b| {
        let base = b.i32(0);
        b.load(Y, Addr::Uniform { base }, all, 1);
    });
    refused(1, "access", "declared read", |b| {
        let (base, v) = (b.i32(0), b.f32(1.0));
        b.store(X, Addr::Uniform { base }, all, v);
    });
    refused(1, "place", "param7", |b| {
        let (base, v) = (b.i32(0), b.f32(1.0));
        b.store(Place::Buffer(7), Addr::Uniform { base }, all, v);
    });
    refused(1, "place", "shared4", |b| {
        let (base, v) = (b.i32(0), b.f32(1.0));
        b.store(Place::Shared(4), Addr::Uniform { base }, all, v);
    });
    refused(1, "place", "scalar", |b| {
        b.scalar();
        let (base, v) = (b.i32(0), b.f32(1.0));
        b.store(Place::Buffer(2), Addr::Uniform { base }, all, v);
    });
    refused(1, "store-type", "uniform f32", |b| {
        let (base, v) = (b.i32(0), b.f32(1.0));
        b.store(Y, Addr::Uniform { base }, all, v);
    });
    refused(1, "store-type", "a lane i32 is needed", |b| {
        let base = b.i32(0);
        b.store(Y, Addr::Contig { base }, all, base);
    });
    refused(1, "address-type", "v0 has type uniform f32", |b| {
        let base = b.f32(0.0);
        b.load(X, Addr::Contig { base }, all, 1);
    });
    refused(1, "address-type", "one-component lane", |b| {
        let base = b.i32(0);
        b.load(X, Addr::Lanes { base, index: base }, all, 1);
    });
    refused(1, "vec", "3 components", |b| {
        let base = b.i32(0);
        let load = Expr::Load { from: X, addr: Addr::Contig { base }, bound: all, vec: 3 };
        b.def(Ty::Lane(Elem::F32, 4), load);
    });
    refused(1, "bound-form", "count on lane addresses", |b| {
        let (base, index) = (b.i32(0), b.lane_id());
        b.load(X, Addr::Lanes { base, index }, Bound::Count(base), 1);
    });
    refused(1, "bound-form", "uniform address", |b| {
        let base = b.i32(0);
        b.load(X, Addr::Uniform { base }, Bound::Count(base), 1);
    });
    refused(1, "bound-type", "needed is uniform i32", |b| {
        let (base, count) = (b.i32(0), b.f32(1.0));
        b.load(X, Addr::Contig { base }, Bound::Count(count), 1);
    });
    refused(1, "bound-type", "needed is lane boolx1", |b| {
        let base = b.i32(0);
        b.load(X, Addr::Contig { base }, Bound::Mask(base), 1);
    });
}

#[test]
fn control_flow() {
    refused(1, "uniform-control", "condition v1 has type lane boolx1", |b| {
        let l = b.lane_id();
        let c = b.cmp(Cmp::Eq, l, l);
        b.branch(c, |_| vec![], |_| vec![]);
    });
    refused(1, "uniform-control", "loop end v1 has type lane i32x1", |b| {
        let (i, l) = (b.i32(0), b.lane_id());
        b.for_loop(i, l, i, &[], |_, _, _| vec![]);
    });
    refused(1, "carried-type", "next carried value", |b| {
        let i = b.i32(1);
        b.for_loop(i, i, i, &[i], |b, _, _| vec![b.f32(1.0)]);
    });
    refused(1, "if-result-type", "uniform f32", |b| {
        let c = b.def(U(Elem::Bool), Expr::Bool(true));
        b.branch(c, |b| vec![b.i32(1)], |b| vec![b.f32(1.0)]);
    });
}

/// A barrier under a branch on what `value` makes of the wave number.
fn barrier_under(waves: u32, value: impl FnOnce(&mut B, Val) -> Val) -> impl FnOnce(&mut B) {
    move |b| {
        let _ = waves;
        let (w, zero) = (b.wave(), b.i32(0));
        let v = value(b, w);
        let c = b.cmp(Cmp::Eq, v, zero);
        b.branch(
            c,
            |b| {
                b.barrier();
                vec![]
            },
            |_| vec![],
        );
    }
}

#[test]
fn barriers() {
    refused(2, "barrier-uniform", "may differ between waves", barrier_under(2, |_, w| w));
    refused(
        2,
        "barrier-uniform",
        "differ",
        barrier_under(2, |b, w| {
            let v = b.splat(w, 1);
            b.reduce(Reduce::Max, v)
        }),
    );
    refused(
        2,
        "barrier-uniform",
        "differ",
        barrier_under(2, |b, w| {
            let v = b.load(Place::Shared(0), Addr::Uniform { base: w }, Bound::All, 1);
            b.conv(Conv::F32ToI32, v)
        }),
    );
    refused(
        2,
        "barrier-uniform",
        "differ",
        barrier_under(2, |b, w| {
            // The first round's value is uniform, later ones are not.
            let (zero, one) = (b.i32(0), b.i32(1));
            b.for_loop(zero, one, one, &[zero, zero], |_, _, c| vec![c[1], w])[0]
        }),
    );
    refused(2, "barrier-uniform", "differ", |b| {
        let (w, zero, one) = (b.wave(), b.i32(0), b.i32(1));
        b.for_loop(zero, w, one, &[], |b, _, _| {
            b.barrier();
            vec![]
        });
    });
    // Fine: the wave number of a single wave, and uniform loops.
    let mut b = B::new("fine", 1);
    barrier_under(1, |_, w| w)(&mut b);
    verify(&b.finish()).unwrap();
    let mut b = B::new("fine", 4);
    let (zero, n) = (b.i32(0), b.i32(3));
    b.for_loop(zero, n, n, &[], |b, _, _| {
        b.barrier();
        vec![]
    });
    verify(&b.finish()).unwrap();
}

/// Adds an exchange buffer (parameter 2) and counters (parameter 3); gives a 0 and a 1.
fn with_exchange(b: &mut B) -> (Place, Val, Val) {
    let exchange = b.buffer(Mem::F32, Access::Exchange);
    b.buffer(Mem::I32, Access::Counter);
    (exchange, b.i32(0), b.i32(1))
}

/// A finish on parameter `counter` with this body.
fn finish(b: &mut B, counter: u32, (index, arrivals): (Val, Val), body: impl FnOnce(&mut B)) {
    let (body, ()) = b.nest(body);
    b.push(Stmt::GridFinish { counter, index, arrivals, body });
}

#[test]
fn grid_finish() {
    let all = Bound::All;
    refused(1, "counter-type", "param2 of f32", |b| {
        b.buffer(Mem::F32, Access::Counter);
    });
    for mem in [Mem::Bf16, Mem::F16] {
        refused(1, "exchange-type", &format!("param2 of {mem}"), |b| {
            b.buffer(mem, Access::Exchange);
        });
    }
    refused(1, "finish-counter", "param2, which is declared exchange", |b| {
        let (_, zero, one) = with_exchange(b);
        finish(b, 2, (zero, one), |_| ());
    });
    refused(1, "place", "param9", |b| {
        let (_, zero, one) = with_exchange(b);
        finish(b, 9, (zero, one), |_| ());
    });
    refused(1, "finish-type", "counter index v2 has type lane i32x1", |b| {
        let (_, _, one) = with_exchange(b);
        let l = b.lane_id();
        finish(b, 3, (l, one), |_| ());
    });
    refused(1, "finish-type", "number of arrivals v2 has type uniform f32", |b| {
        let (_, zero, _) = with_exchange(b);
        let f = b.f32(1.0);
        finish(b, 3, (zero, f), |_| ());
    });
    refused(1, "finish-nested", "param3 in the body", |b| {
        let (_, zero, one) = with_exchange(b);
        finish(b, 3, (zero, one), |b| finish(b, 3, (one, one), |_| ()));
    });
    refused(1, "exchange-load", "param2, which is declared exchange", |b| {
        let (exchange, base, one) = with_exchange(b);
        finish(b, 3, (base, one), |_| ());
        b.load(exchange, Addr::Uniform { base }, all, 1);
    });
    refused(1, "exchange-store", "param2, which is declared exchange", |b| {
        let (exchange, base, one) = with_exchange(b);
        let f = b.f32(1.0);
        finish(b, 3, (base, one), |b| b.store(exchange, Addr::Uniform { base }, all, f));
    });
    refused(1, "counter-access", "v2 loads from param3", |b| {
        let (_, base, one) = with_exchange(b);
        finish(b, 3, (base, one), |b| {
            b.load(Place::Buffer(3), Addr::Uniform { base }, all, 1);
        });
    });
    refused(1, "counter-access", "v1 is stored to param3", |b| {
        let (_, base, one) = with_exchange(b);
        b.store(Place::Buffer(3), Addr::Uniform { base }, all, one);
    });
    refused(1, "scope", "outside", |b| {
        let (exchange, base, one) = with_exchange(b);
        let mut inner = Val(0);
        finish(b, 3, (base, one), |b| inner = b.load(exchange, Addr::Uniform { base }, all, 1));
        b.un(Un::Neg, inner);
    });
}

/// A finish under a branch on the wave number, or on what `value` picks of (wave, 0, 1).
fn finish_of(value: fn(Val, Val, Val) -> [Val; 3]) -> impl FnOnce(&mut B) {
    move |b| {
        let ((_, zero, one), w) = (with_exchange(b), b.wave());
        let [under, index, arrivals] = value(w, zero, one);
        let c = b.cmp(Cmp::Eq, under, zero);
        b.branch(
            c,
            |b| {
                finish(b, 3, (index, arrivals), |b| b.barrier());
                vec![]
            },
            |_| vec![],
        );
    }
}

#[test]
fn grid_finishes_are_uniform() {
    refused(2, "finish-uniform", "may differ between waves", finish_of(|w, zero, one| [w, zero, one]));
    refused(2, "finish-uniform", "depends on v2", finish_of(|w, zero, one| [zero, w, one]));
    refused(2, "finish-uniform", "depends on v2", finish_of(|w, zero, _| [zero, zero, w]));
    // Fine: the wave number of a single wave, uniform branches, and barriers in bodies; but no barrier of some waves.
    for (waves, value) in [(1, finish_of(|w, _, _| [w, w, w])), (4, finish_of(|_, zero, one| [zero, zero, one]))] {
        let mut b = B::new("fine", waves);
        b.buffer(Mem::F32, Access::Read);
        b.buffer(Mem::I32, Access::Write);
        value(&mut b);
        verify(&b.finish()).unwrap();
    }
    refused(2, "barrier-uniform", "may differ between waves", |b| {
        let ((_, zero, one), w) = (with_exchange(b), b.wave());
        finish(b, 3, (zero, one), |b| {
            let c = b.cmp(Cmp::Eq, w, zero);
            b.branch(
                c,
                |b| {
                    b.barrier();
                    vec![]
                },
                |_| vec![],
            );
        });
    });
}

#[test]
fn text_is_stable_and_complete() {
    let text = gemv(4, true).to_text();
    assert_eq!(text, gemv(4, true).to_text());
    for part in ["kernel gemv waves 4", "param0 b0: buffer bf16 read", "fma", "below", "store param2", "=> v"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn tiles() {
    let sum = Ty::Tile(Tile::Sum);
    let operand = |side, half| Ty::Tile(Tile::Operand(side, half));
    let load = |b: &mut B, side, from, pitch| {
        let base = b.i32(0);
        let at = TileAt { side, from, base, pitch, lines: None, depth: None };
        b.def(operand(side, Half::Bf16), Expr::TileLoad(at))
    };
    let half = |b: &mut B| b.shared(Mem::Bf16, 512);
    refused(1, "tile-place", "f32", |b| {
        load(b, Side::A, X, 16);
    });
    refused(1, "tile-pitch", "one place", |b| {
        let from = half(b);
        load(b, Side::A, from, 0);
    });
    refused(1, "bound-type", "uniform i32", |b| {
        let (from, base, lines) = (half(b), b.i32(0), b.lane_id());
        let at = TileAt { side: Side::A, from, base, pitch: 16, lines: Some(lines), depth: None };
        b.def(operand(Side::A, Half::Bf16), Expr::TileLoad(at));
    });
    refused(1, "address-type", "i32 or i64", |b| {
        let (from, base) = (half(b), b.f32(0.0));
        let at = TileAt { side: Side::A, from, base, pitch: 16, lines: None, depth: None };
        b.def(operand(Side::A, Half::Bf16), Expr::TileLoad(at));
    });
    refused(1, "operand-type", "tile a bf16", |b| {
        let from = half(b);
        let (a, c) = (load(b, Side::A, from, 16), b.def(sum, Expr::TileZero));
        b.def(sum, Expr::TileMma([a, a, c]));
    });
    refused(1, "operand-type", "tile sum", |b| {
        let c = b.def(sum, Expr::TileZero);
        b.def(sum, Expr::Un(Un::Neg, c));
    });
    refused(1, "store-type", "tile sum", |b| {
        let (c, base) = (b.def(sum, Expr::TileZero), b.i32(0));
        b.store(Place::Shared(0), Addr::Contig { base }, Bound::All, c);
    });
    let scaled = |from: Mem, onto: Option<()>| {
        move |b: &mut B| {
            let (c, scales, base) = (b.def(sum, Expr::TileZero), b.shared(from, 16), b.i32(0));
            let other = b.shared(Mem::Bf16, 512);
            let onto = onto.map_or_else(|| load(b, Side::A, other, 16), |()| c);
            b.def(sum, Expr::TileFma { sums: c, scales, base, onto });
        }
    };
    refused(1, "tile-place", "f16", scaled(Mem::F16, Some(())));
    refused(1, "operand-type", "tile a bf16", scaled(Mem::F32, None));
    let stored = |to: Place, pitch: u32| {
        move |b: &mut B| {
            let (tile, base) = (b.def(sum, Expr::TileZero), b.i32(0));
            b.push(Stmt::TileStore { to, base, pitch, tile });
        }
    };
    refused(1, "tile-place", "i32", stored(Y, 16));
    refused(1, "tile-pitch", "15", stored(Place::Shared(0), 15));
    refused(1, "tile-store", "tile b bf16", |b| {
        let from = half(b);
        let (tile, base) = (load(b, Side::B, from, 16), b.i32(0));
        b.push(Stmt::TileStore { to: Place::Shared(0), base, pitch: 16, tile });
    });
}

/// Before the await only constants are accessed, and all workgroups come by it, once.
#[test]
fn await_comes_first() {
    let all = Bound::All;
    refused(1, "await-once", "2 await(s), 2 of them", |b| {
        b.push(Stmt::Await { ahead: vec![] });
        b.push(Stmt::Await { ahead: vec![] });
    });
    refused(1, "await-once", "1 await(s), 0 of them", |b| {
        let cond = b.def(U(Elem::Bool), Expr::Bool(true));
        let (then, ()) = b.nest(|b| b.push(Stmt::Await { ahead: vec![] }));
        b.push(Stmt::If { cond, then, otherwise: vec![], results: vec![] });
    });
    refused(1, "await-load", "param0", |b| {
        let base = b.i32(0);
        b.load(X, Addr::Contig { base }, all, 1);
        b.push(Stmt::Await { ahead: vec![] });
    });
    refused(1, "await-store", "param1", |b| {
        let base = b.i32(0);
        b.store(Y, Addr::Uniform { base }, all, base);
        b.push(Stmt::Await { ahead: vec![] });
    });
    refused(1, "await-store", "param3", |b| {
        let (_, zero, one) = with_exchange(b);
        finish(b, 3, (zero, one), |_| ());
        b.push(Stmt::Await { ahead: vec![] });
    });
    refused(1, "await-once", "2 await(s), 1 of them", |b| {
        b.push(Stmt::Await { ahead: vec![Stmt::Await { ahead: vec![] }] });
    });
    refused(1, "await-ahead", "more than prefetches", |b| b.push(Stmt::Await { ahead: vec![Stmt::Barrier] }));
    refused(1, "scope", "outside", |b| {
        let (ahead, v) = b.nest(|b| b.i32(1));
        b.push(Stmt::Await { ahead });
        b.un(Un::Neg, v);
    });
    refused(1, "prefetch", "param0, declared read", |b| {
        let zero = b.i32(0);
        b.push(Stmt::Prefetch { from: 0, base: zero, bytes: zero, share: 1 });
    });
    refused(1, "prefetch-type", "number of bytes", |b| {
        b.buffer(Mem::F32, Access::Constant);
        let (base, bytes) = (b.i32(0), b.f32(0.0));
        b.push(Stmt::Prefetch { from: 2, base, bytes, share: 1 });
    });
    refused(1, "spin-type", "number of cycles", |b| {
        let (cycles, late) = (b.i32(0), b.f32(0.0));
        b.push(Stmt::Spin { cycles, late });
    });
    let mut b = B::new("early", 1);
    let (w, y, zero) = (b.buffer(Mem::F32, Access::Constant), b.buffer(Mem::F32, Access::Write), b.i32(0));
    let v = b.load(w, Addr::Contig { base: zero }, all, 1);
    b.push(Stmt::Await { ahead: vec![] });
    b.store(y, Addr::Contig { base: zero }, all, v);
    verify(&b.finish()).unwrap();
}
