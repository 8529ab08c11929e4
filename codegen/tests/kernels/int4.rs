//! Kernels over int4 weights.

use unglue_codegen::counts::{Class, Traffic};
use unglue_codegen::emu::{EmuDevice, EmuOptions};
use unglue_codegen::kp::{Addr, Elem, Expr, Param, Place, Stmt, Ty, Val};
use unglue_ir::graph::Graph;
use unglue_passes::schedule::Form;
use unglue_runtime::{Code, Device};

use super::packed_bodies::{Experts, FORMATS, down, down_each, matmul, up};
use super::{Made, all_buckets, run};

/// Some experts have no slot, and N is no multiple of a wave's outputs.
#[test]
fn experts_in_int4() {
    for (i, format) in FORMATS.into_iter().enumerate() {
        let c = Experts { e: 18, ids: 18, s: 5, k: 4, d: 384, n: 128 };
        all_buckets(&format!("up{i}"), &up(format, &c), 0);
        all_buckets(&format!("down{i}"), &down(format, &Experts { d: 70, ..c }), 0);
    }
}

/// Less than a round of the wave, one, one and a part.
#[test]
fn rounds_of_runs() {
    for (i, format) in FORMATS.into_iter().enumerate() {
        for k in [128, 1024, 1152] {
            run(&format!("matmul{i}_{k}"), &matmul(format, 37, k), 4, 0);
        }
    }
}

/// Two outputs at once, the last of a wave's past the end; experts without a slot.
#[test]
fn outputs_that_share_the_operand() {
    let format = FORMATS[0];
    let two = |name: &str, g: &Graph, rows: u32| {
        let schedule = Made::new(name, g, rows, 0).schedule;
        assert!(schedule.describe().contains(", 2 a wave, 2 at once"), "{}", schedule.describe());
        run(name, g, rows, 0);
    };
    for k in [128, 1152] {
        two(&format!("two{k}"), &matmul(format, 1027, k), 1);
    }
    let c = Experts { e: 3, ids: 3, s: 2, k: 2, d: 128, n: 1027 };
    two("two_up", &up(format, &c), 4);
    two("two_down", &down_each(format, &Experts { d: 1027, n: 128, ..c }), 4);
}

/// Bases of what lanes load from buffers.
fn bases(stmts: &[Stmt], out: &mut Vec<(u32, Val)>) {
    for stmt in stmts {
        match stmt {
            Stmt::Let(_, Expr::Load { from: Place::Buffer(i), addr, .. }) => match addr {
                Addr::Contig { base } | Addr::Lanes { base, .. } => out.push((*i, *base)),
                Addr::Uniform { .. } => {}
            },
            Stmt::If { then, otherwise, .. } => [then, otherwise].iter().for_each(|b| bases(b, out)),
            Stmt::For(f) => bases(&f.body, out),
            _ => {}
        }
    }
}

/// 288 x 4096 x 4096 levels take more than 2^31 bytes: experts start at 64-bit offsets, in words and in scales.
#[test]
fn offsets_of_experts_are_wide() {
    let c = Experts { e: 288, ids: 288, s: 288, k: 8, d: 4096, n: 4096 };
    for (g, rows) in [(up(FORMATS[0], &c), 1), (up(FORMATS[0], &c), 512), (down_each(FORMATS[0], &c), 512)] {
        let made = Made::new("wide", &g, rows, 0);
        assert_eq!(matches!(made.schedule.form, Form::Tiles(_)), rows > 16, "{}", made.schedule.describe());
        let p = &made.made.program;
        let mut all = Vec::new();
        bases(&p.body, &mut all);
        for prefix in ["w_", "s_"] {
            let named =
                |i: u32| matches!(&p.params[i as usize], Param::Buffer { name, .. } if name.starts_with(prefix));
            let bases: Vec<Val> = all.iter().filter(|(i, _)| named(*i)).map(|(_, base)| *base).collect();
            let wide = bases.iter().all(|b| p.types[b.0 as usize] == Ty::Uniform(Elem::I64));
            assert!(bases.len() >= 2 && wide, "{prefix} for {rows} rows");
        }
    }
}

/// What the emulator counts for one row: issued vector instructions for 32 weights, and each byte of a weight once.
#[test]
fn instructions_and_bytes() {
    let k = 4096;
    // Outputs of the matmul, those of a wave at once, and the limit.
    for (n, at_once, limit) in [(64, 1, 4.5), (1024, 2, 3.9)] {
        for format in FORMATS {
            let g = matmul(format, n, k);
            let made = Made::new("counted", &g, 1, 0);
            let mut emulator = EmuDevice::new(EmuOptions::default()).unwrap();
            emulator.load(&[made.described()], &[Code { kernel: Some(0), bytes: &made.code("gfx1201") }]).unwrap();
            made.compare(&mut emulator, 0);
            let counts = emulator.take_counts().into_values().next().unwrap();
            let valu = [Class::Valu, Class::Transcendental, Class::CrossLane];
            let valu: u64 = valu.iter().map(|c| counts.instructions[*c as usize]).sum();
            let per_weight = valu as f64 / (n * k / 32) as f64;
            println!("{format:?}: {per_weight:.2} VALU a weight");
            assert!(per_weight <= limit, "{format:?}: {per_weight} VALU a weight");
            // Outputs at once read the row of x once, others anew, from the cache. Lanes that share a scale ask for it each.
            let weights = n * (k / 2 + k / 32 * 2);
            assert_eq!(counts.traffic(Traffic::GlobalLoad), weights + n / at_once * k * 2, "{format:?}");
        }
    }
}
