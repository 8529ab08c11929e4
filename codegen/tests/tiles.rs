//! Matrix tiles on the CPU and in the gfx1201 emulator against sums in f64, and what sm_90 makes of them.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

mod support;

use support::*;
use unglue_codegen::emu::{EmuDevice, EmuOptions, Schedule};
use unglue_codegen::kp::*;
use unglue_codegen::llvm::disasm;
use unglue_codegen::{gates, llvm, target};
use unglue_runtime::{ArgValue, Code, CpuDevice, CpuOptions, Device, Guard, manifest};

const TILE: i32 = 16;

/// Sizes of a product x [r, k] times w [n, k] transposed.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    r: i32,
    n: i32,
    k: i32,
}

/// y [r, n] of one workgroup: wave w has the columns from 16 w on. Operands come from the buffers, bounded by lines and
/// depth; or from workgroup memory, where the waves copy them with zeros behind their ends.
fn product(half: Mem, s: Sizes, staged: bool) -> Program {
    let waves = s.n.div_euclid(TILE) + i32::from(s.n % TILE != 0);
    let mut b = B::new("product", waves as u32);
    let (x, w) = (b.buffer(half, Access::Read), b.buffer(half, Access::Read));
    let y = b.buffer(Mem::F32, Access::Write);
    let depth = (s.k as u32).next_multiple_of(16);
    let (xs, ws) = (b.shared(half, depth * 16), b.shared(half, depth * 16 * waves as u32));
    let sums = b.shared(Mem::F32, 16 * 16 * waves as u32);
    let (wave, tile, rows, n, k) = (b.wave(), b.i32(TILE), b.i32(s.r), b.i32(s.n), b.i32(s.k));
    let first = b.bin(Bin::Mul, wave, tile);
    if staged {
        let zero = b.i32(0);
        copy(&mut b, (x, xs), (zero, rows), (k, depth));
        copy(&mut b, (w, ws), (first, n), (k, depth));
        b.barrier();
    }
    let (zero, end, start) = (b.i32(0), b.i32(depth as i32), b.def(Ty::Tile(Tile::Sum), Expr::TileZero));
    let pitch = if staged { depth } else { s.k as u32 };
    let pitch_v = b.i32(pitch as i32);
    let line = b.bin(Bin::Mul, first, pitch_v);
    let lines = b.bin(Bin::Sub, n, first);
    let acc = b.for_loop(zero, end, tile, &[start], |b, at, acc| {
        let left = b.bin(Bin::Sub, k, at);
        let there = b.bin(Bin::Add, line, at);
        let bound = |lines| if staged { (None, None) } else { (Some(lines), Some(left)) };
        let mut load = |side, from, base, (lines, depth)| {
            let at = TileAt { side, from, base, pitch, lines, depth };
            let half = Half::of(half).unwrap();
            b.def(Ty::Tile(Tile::Operand(side, half)), Expr::TileLoad(at))
        };
        let a = load(Side::A, if staged { xs } else { x }, at, bound(rows));
        let c = load(Side::B, if staged { ws } else { w }, there, bound(lines));
        vec![b.def(Ty::Tile(Tile::Sum), Expr::TileMma([a, c, acc[0]]))]
    });
    let per = b.i32(256);
    let base = b.bin(Bin::Mul, wave, per);
    b.push(Stmt::TileStore { to: sums, base, pitch: 16, tile: acc[0] });
    b.barrier();
    let (l, sixteen) = (b.lane_id(), b.i32(15));
    let sixteen = b.splat(sixteen, 1);
    let column = b.bin(Bin::And, l, sixteen);
    let one = b.i32(1);
    b.for_loop(zero, rows, one, &[], |b, row, _| {
        let at = b.bin(Bin::Mul, row, tile);
        let at = b.bin(Bin::Add, base, at);
        let v = b.load(sums, Addr::Lanes { base: at, index: column }, Bound::All, 1);
        let to = b.bin(Bin::Mul, row, n);
        let to = b.bin(Bin::Add, to, first);
        let (tile, lines) = (b.splat(tile, 1), b.splat(lines, 1));
        let (low, inside) = (b.cmp(Cmp::Lt, l, tile), b.cmp(Cmp::Lt, column, lines));
        let mask = b.bin(Bin::And, low, inside);
        b.store(y, Addr::Lanes { base: to, index: column }, Bound::Mask(mask), v);
        vec![]
    });
    b.finish()
}

/// Copies lines `first..first + 16` of k elements to the wave's part of workgroup memory, with zeros behind the ends.
fn copy(b: &mut B, (from, to): (Place, Place), (first, lines): (Val, Val), (k, depth): (Val, u32)) {
    let (zero, tile, one, step) = (b.i32(0), b.i32(TILE), b.i32(1), b.i32(32));
    let width = b.i32(depth as i32);
    b.for_loop(zero, tile, one, &[], |b, line, _| {
        let line = b.bin(Bin::Add, first, line);
        let there = b.cmp(Cmp::Lt, line, lines);
        b.for_loop(zero, width, step, &[], |b, at, _| {
            let (start, left) = (b.bin(Bin::Mul, line, k), b.bin(Bin::Sub, k, at));
            let base = b.bin(Bin::Add, start, at);
            let left = b.def(U(Elem::I32), Expr::Select(there, left, zero));
            let v = b.load(from, Addr::Contig { base }, Bound::Count(left), 1);
            let start = b.bin(Bin::Mul, line, width);
            let base = b.bin(Bin::Add, start, at);
            let left = b.bin(Bin::Sub, width, at);
            b.store(to, Addr::Contig { base }, Bound::Count(left), v);
            vec![]
        });
        vec![]
    });
}

/// 16-bit floats in -1..1 whose sums round.
fn drawn(half: Mem, n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    let round = |x: f32| match half {
        Mem::F16 => half::f16::from_f32(x).to_f64(),
        _ => half::bf16::from_f32(x).to_f64(),
    };
    (0..n).map(|_| round(next())).collect()
}

fn bytes(half: Mem, x: &[f64]) -> Vec<u8> {
    let word = |x: f64| match half {
        Mem::F16 => half::f16::from_f64(x).to_bits(),
        _ => half::bf16::from_f64(x).to_bits(),
    };
    x.iter().flat_map(|x| word(*x).to_le_bytes()).collect()
}

fn kernel(p: &Program) -> manifest::Kernel {
    let param = |param: &Param| {
        let Param::Buffer { name, access, .. } = param else { panic!("a scalar") };
        let access = if *access == Access::Read { manifest::Access::Read } else { manifest::Access::Write };
        let mem = if name == "b2" { manifest::Mem::F32 } else { manifest::Mem::Bf16 };
        manifest::Param { name: name.clone(), kind: manifest::ParamKind::Buffer { mem, access } }
    };
    support::described(p, param)
}

/// Runs the product; sums one after the other are at most `depth` long on this device.
fn compare(device: &mut dyn Device, half: Mem, s: Sizes, depth: f64, seed: u64) {
    let (r, n, k) = (s.r as usize, s.n as usize, s.k as usize);
    let (x, w) = (drawn(half, r * k, seed), drawn(half, n * k, seed + 7));
    let contents = [bytes(half, &x), bytes(half, &w), vec![0xff; r * n * 4]];
    let args: Vec<ArgValue> = contents
        .iter()
        .map(|content| {
            let id = device.alloc(content.len() as u64).unwrap();
            device.write(id, 0, content).unwrap();
            ArgValue::Buffer { id, offset: 0, bytes: content.len() as u64 }
        })
        .collect();
    device.launch(0, [1, 1, 1], &args).unwrap();
    let mut got = vec![0u8; r * n * 4];
    let ArgValue::Buffer { id, .. } = args[2] else { panic!("no buffer") };
    device.read(id, 0, &mut got).unwrap();
    for (i, y) in got.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).enumerate() {
        let terms: Vec<f64> = (0..k).map(|j| x[i / n * k + j] * w[i % n * k + j]).collect();
        let (exact, size) = (terms.iter().sum::<f64>(), terms.iter().map(|t| t.abs()).sum::<f64>());
        let error = (f64::from(y) - exact).abs();
        let bound = (depth + 1.0) * 2f64.powi(-24) * size;
        assert!(error <= bound, "{s:?} {half:?} element {i}: {y} for {exact}, off by {error:e}, bound {bound:e}");
    }
    for arg in args {
        let ArgValue::Buffer { id, .. } = arg else { continue };
        device.free(id).unwrap();
    }
}

const SIZES: [Sizes; 5] = [
    Sizes { r: 16, n: 16, k: 16 },
    Sizes { r: 13, n: 27, k: 40 },
    Sizes { r: 1, n: 33, k: 7 },
    Sizes { r: 16, n: 48, k: 130 },
    Sizes { r: 5, n: 1, k: 256 },
];

#[test]
fn products_are_within_the_bound_of_their_depth() {
    let cpu = CpuOptions { threads: 1, guard: Guard::Tight, poison_shared: true };
    for (half, s, staged) in SIZES
        .iter()
        .flat_map(|s| [Mem::Bf16, Mem::F16].into_iter().flat_map(move |half| [(half, *s, false), (half, *s, true)]))
    {
        let p = product(half, s, staged);
        let t = target::by_name("x86-64").unwrap();
        let object = llvm::compile_object(&p, t).unwrap_or_else(|e| panic!("{e}\n{}", p.to_text()));
        let code = unglue_codegen::link::shared_object(&[(p.name.clone(), object)], t).unwrap();
        gates::check(&code, &p, t).unwrap();
        let mut device = CpuDevice::new(cpu).unwrap();
        device.load(&[kernel(&p)], &[Code { kernel: None, bytes: &code }]).unwrap();
        // An fma a product, one after the other.
        (0..3).for_each(|seed| compare(&mut device, half, s, f64::from(s.k), seed));
        let (code, _) = gfx1201(&p);
        let mut device = EmuDevice::new(EmuOptions { threads: 1, ..EmuOptions::default() }).unwrap();
        device.load(&[kernel(&p)], &[Code { kernel: Some(0), bytes: &code }]).unwrap();
        for (seed, schedule) in (0..).zip([Schedule::Forward, Schedule::Reverse, Schedule::Random(5)]) {
            device.set_options(EmuOptions { schedule, ..device.options() });
            // One rounding a product of tiles.
            compare(&mut device, half, s, f64::from(s.k.div_euclid(16) + 1), seed);
        }
    }
}

fn sm_90(p: &Program) -> String {
    let t = target::by_name("sm_90").unwrap();
    let code = llvm::compile_object(p, t).unwrap_or_else(|e| panic!("{e}\n{}", llvm::ir_text(p, t).unwrap()));
    gates::check(&code, p, t).unwrap_or_else(|e| panic!("{e}\n{}", String::from_utf8_lossy(&code)));
    String::from_utf8(code).unwrap()
}

/// One instruction a product on gfx1201, two on sm_90, and operands of 16 bytes a lane from workgroup memory.
#[test]
fn tiles_are_matrix_instructions() {
    use object::{Object, ObjectSection, ObjectSymbol};
    for (half, wmma, mma) in [
        (Mem::Bf16, "v_wmma_f32_16x16x16_bf16", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"),
        (Mem::F16, "v_wmma_f32_16x16x16_f16", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
    ] {
        let p = product(half, Sizes { r: 16, n: 16, k: 16 }, true);
        let (code, _) = gfx1201(&p);
        let file = object::File::parse(code.as_slice()).unwrap();
        let symbol = file.symbols().find(|s| s.name() == Ok("product")).unwrap();
        let section = file.section_by_name(".text").unwrap();
        let start = (symbol.address() - section.address()) as usize;
        let mut all = vec![];
        let text = &section.data().unwrap()[start..start + symbol.size() as usize];
        disasm::each(text, target::by_name("gfx1201").unwrap(), |_, text| all.push(text.to_owned())).unwrap();
        assert_eq!(all.iter().filter(|i| i.starts_with(wmma)).count(), 1, "{all:#?}");
        assert_eq!(all.iter().filter(|i| i.starts_with("ds_load_b128")).count(), 2, "{all:#?}");
        // Copies to workgroup memory neither widen nor round.
        let rounds = |i: &String| i.contains("0x7fff") || i.contains("_cvt_");
        assert!(!all.iter().any(rounds), "{all:#?}");
        let text = sm_90(&p);
        assert_eq!(text.matches(mma).count(), 2, "{text}");
    }
}
