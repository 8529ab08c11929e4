//! Powers of two that divide integers of a program: how its accesses are aligned.

use super::order::blocks;
use super::{Bin, Conv, Expr, Program, Stmt, Un, Val};

/// The largest that is told: no access is wider.
const MOST: u64 = 1 << 16;

/// For each value a power of two that divides all its components in every workgroup, lane and round; 1 where none is known.
/// Results that wrap keep theirs.
#[must_use]
pub fn multiples(p: &Program) -> Vec<u64> {
    let mut known = Known { factors: vec![1; p.types.len()], constants: vec![None; p.types.len()] };
    known.stmts(&p.body);
    known.factors
}

struct Known {
    factors: Vec<u64>,
    /// Values of constants.
    constants: Vec<Option<i64>>,
}

/// Largest power of two that divides a constant.
fn of_constant(v: i64) -> u64 {
    if v == 0 { MOST } else { (1 << v.trailing_zeros()).min(MOST) }
}

impl Known {
    fn of(&self, v: Val) -> u64 {
        self.factors.get(v.0 as usize).copied().unwrap_or(1)
    }

    fn set(&mut self, v: Val, factor: u64) {
        if let Some(slot) = self.factors.get_mut(v.0 as usize) {
            *slot = factor;
        }
    }

    /// A constant from 0 to 63, as a number of bits.
    fn bits(&self, v: Val) -> Option<u32> {
        let constant = self.constants.get(v.0 as usize).copied().flatten()?;
        u32::try_from(constant).ok().filter(|bits| *bits < 64)
    }

    fn stmts(&mut self, stmts: &[Stmt]) {
        for stmt in stmts {
            match stmt {
                Stmt::Let(val, expr) => self.define(*val, expr),
                Stmt::For(f) => self.set(f.index, self.of(f.start).min(self.of(f.step))),
                _ => {}
            }
            blocks(stmt).into_iter().for_each(|block| self.stmts(block));
            if let Stmt::If { results, .. } = stmt {
                results.iter().for_each(|r| self.set(r.result, self.of(r.then).min(self.of(r.otherwise))));
            }
        }
    }

    fn define(&mut self, val: Val, expr: &Expr) {
        let constant = match expr {
            Expr::I32(v) => Some(i64::from(*v)),
            Expr::I64(v) => Some(*v),
            Expr::Splat(a, _) => self.constants.get(a.0 as usize).copied().flatten(),
            _ => None,
        };
        if let Some(slot) = self.constants.get_mut(val.0 as usize) {
            *slot = constant;
        }
        let factor = constant.map_or_else(|| self.factor(expr), of_constant);
        self.set(val, factor);
    }

    fn factor(&self, expr: &Expr) -> u64 {
        match expr {
            Expr::Un(Un::Neg, a)
            | Expr::Conv(Conv::I32ToI64 | Conv::I64ToI32, a)
            | Expr::Splat(a, _)
            | Expr::Component(a, _)
            | Expr::XorLane(a, _)
            | Expr::Reduce(_, a)
            | Expr::ReadLane(a, _)
            | Expr::ScanAdd(a) => self.of(*a),
            Expr::Bin(bin, a, b) => self.binary(*bin, *a, *b),
            Expr::Select(_, a, b) => self.of(*a).min(self.of(*b)),
            Expr::Pack(parts) => parts.iter().map(|v| self.of(*v)).min().unwrap_or(1),
            _ => 1,
        }
    }

    fn binary(&self, bin: Bin, a: Val, b: Val) -> u64 {
        let (x, y) = (self.of(a), self.of(b));
        match bin {
            Bin::Add | Bin::Sub | Bin::Rem | Bin::Min | Bin::Max | Bin::Or | Bin::Xor => x.min(y),
            Bin::And => x.max(y),
            Bin::Mul => (x * y).min(MOST),
            Bin::Shl => self.bits(b).map_or(x, |bits| x.checked_shl(bits).map_or(MOST, |v| v.clamp(x, MOST))),
            Bin::Lshr | Bin::Ashr => self.bits(b).map_or(1, |bits| (x >> bits).max(1)),
            Bin::Div => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kp::build::Builder;
    use crate::kp::{Addr, Bound, Mem};

    /// Factors of what `make` returns.
    fn of(make: impl FnOnce(&mut Builder) -> Vec<Val>) -> Vec<u64> {
        let mut b = Builder::new("k", 2);
        let values = make(&mut b);
        let program = b.finish();
        let all = multiples(&program);
        values.iter().map(|v| all[v.0 as usize]).collect()
    }

    #[test]
    fn constants_sums_and_products() {
        let found = of(|b| {
            let (wave, twelve, row) = (b.wave(), b.i(12), b.i(2048));
            let rows = b.mul(wave, row);
            let sum = b.add(rows, twelve);
            let masked = b.and(wave, twelve);
            vec![wave, twelve, rows, sum, masked]
        });
        assert_eq!(found, [1, 4, 2048, 4, 4]);
    }

    #[test]
    fn shifts_move_the_factor() {
        let found = of(|b| {
            let (lane, five, three) = (b.lane(), b.i(5), b.i(3));
            let up = b.bin(Bin::Shl, lane, five);
            let down = b.bin(Bin::Lshr, up, three);
            let gone = b.bin(Bin::Lshr, down, five);
            vec![up, down, gone]
        });
        assert_eq!(found, [32, 4, 1]);
    }

    #[test]
    fn loads_tell_nothing() {
        let found = of(|b| {
            let from = b.shared("a", Mem::I32, 64);
            let base = b.i(0);
            vec![b.load(from, Addr::Contig { base }, Bound::All, 1)]
        });
        assert_eq!(found, [1]);
    }

    /// The index takes start, start + step, ...: what divides both divides it; what a loop carries may be anything.
    #[test]
    fn loop_indices_are_multiples_of_start_and_step() {
        let mut index = None;
        let found = of(|b| {
            let (start, end, zero) = (b.i(64), b.i(4096), b.i(0));
            let carried = b.for_loop::<()>((start, end, 1024), &[zero], |b, i, carried| {
                index = Some(i);
                Ok(vec![b.add(carried[0], i)])
            });
            vec![index.unwrap_or(zero), carried.unwrap_or_default()[0]]
        });
        assert_eq!(found, [64, 1]);
    }
}
