//! Faults that are built into a program on purpose, to test with.
//!
//! A delay moves the arrivals of workgroups at grid finishes in time: what a missing fence or a counter that is shared by
//! mistake gives then, differs from launch to launch. Programs with delays give the bits of those without.

use super::{Bin, Elem, Expr, Program, Stmt, Ty, Val};

/// Fewest cycles of a delay.
const LEAST: i32 = 200;
/// Cycles of a delay beyond the fewest are below this power of two.
const RANGE: i32 = 2048;
/// Constants of the hash: odd, with bits that are spread evenly (those of MurmurHash3's finalizer, and of the golden ratio).
const MIX: [u32; 4] = [0x85eb_ca6b, 0xc2b2_ae35, 0x9e37_79b9, 0x27d4_eb2f];

/// A program in which each workgroup spins before it releases what it wrote, and before it arrives, for numbers of cycles
/// that follow from the seed, the kernel's name and the workgroup's number; 200 to 2,247 each.
#[must_use]
pub fn delayed(p: &Program, seed: u64) -> Program {
    let mut out = p.clone();
    let named = p.name.bytes().fold(seed, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let body = std::mem::take(&mut out.body);
    out.body = block(&mut out.types, body, (named ^ (named >> 32)) as i32);
    out
}

fn block(types: &mut Vec<Ty>, stmts: Vec<Stmt>, seed: i32) -> Vec<Stmt> {
    let mut out = Vec::with_capacity(stmts.len());
    for mut stmt in stmts {
        match &mut stmt {
            Stmt::If { then, otherwise, .. } => {
                *then = block(types, std::mem::take(then), seed);
                *otherwise = block(types, std::mem::take(otherwise), seed);
            }
            Stmt::For(f) => f.body = block(types, std::mem::take(&mut f.body), seed),
            Stmt::GridFinish { .. } => spin(types, &mut out, seed),
            _ => {}
        }
        out.push(stmt);
    }
    out
}

/// Draws both delays, and spins.
fn spin(types: &mut Vec<Ty>, out: &mut Vec<Stmt>, seed: i32) {
    let mut emit = |expr: Expr| {
        types.push(Ty::Uniform(Elem::I32));
        let val = Val(types.len() as u32 - 1);
        out.push(Stmt::Let(val, expr));
        val
    };
    let mut hash = emit(Expr::I32(seed));
    for (axis, factor) in (0u8..).zip(&MIX[1..]) {
        let (group, factor) = (emit(Expr::Group(axis)), emit(Expr::I32(*factor as i32)));
        let term = emit(Expr::Bin(Bin::Mul, group, factor));
        hash = emit(Expr::Bin(Bin::Xor, hash, term));
    }
    for (shift, factor) in [(16, MIX[0]), (13, MIX[1])] {
        let shift = emit(Expr::I32(shift));
        let high = emit(Expr::Bin(Bin::Lshr, hash, shift));
        hash = emit(Expr::Bin(Bin::Xor, hash, high));
        let factor = emit(Expr::I32(factor as i32));
        hash = emit(Expr::Bin(Bin::Mul, hash, factor));
    }
    let (mask, least) = (emit(Expr::I32(RANGE - 1)), emit(Expr::I32(LEAST)));
    let [cycles, late] = [4, 20].map(|shift| {
        let shift = emit(Expr::I32(shift));
        let drawn = emit(Expr::Bin(Bin::Lshr, hash, shift));
        let drawn = emit(Expr::Bin(Bin::And, drawn, mask));
        emit(Expr::Bin(Bin::Add, drawn, least))
    });
    out.push(Stmt::Spin { cycles, late });
}
