//! Which values may differ between the waves of a workgroup.

use super::{Expr, Program, Stmt, Val};

/// For each value, whether it may differ between the waves of one workgroup: it follows from the wave number. A program
/// of one wave has no such values.
pub(super) fn differs(p: &Program) -> Vec<bool> {
    let mut analysis = Analysis { differs: vec![false; p.types.len()], changed: true };
    // Values only ever become "differs", so that this ends; loops need the rounds.
    while p.waves > 1 && analysis.changed {
        analysis.changed = false;
        analysis.block(&p.body);
    }
    analysis.differs
}

struct Analysis {
    differs: Vec<bool>,
    changed: bool,
}

impl Analysis {
    fn any(&self, vals: impl IntoIterator<Item = Val>) -> bool {
        vals.into_iter().any(|val| self.differs.get(val.0 as usize).copied().unwrap_or(false))
    }

    fn mark(&mut self, val: Val, differs: bool) {
        if let Some(slot) = self.differs.get_mut(val.0 as usize)
            && differs
            && !*slot
        {
            *slot = true;
            self.changed = true;
        }
    }

    fn block(&mut self, stmts: &[Stmt]) {
        for stmt in stmts {
            match stmt {
                Stmt::Let(val, Expr::Wave) => self.mark(*val, true),
                Stmt::Let(val, expr) => {
                    let differs = self.any(expr.operands());
                    self.mark(*val, differs);
                }
                Stmt::Store { .. }
                | Stmt::TileStore { .. }
                | Stmt::Prefetch { .. }
                | Stmt::Spin { .. }
                | Stmt::Barrier => {}
                Stmt::If { cond, then, otherwise, results } => {
                    self.block(then);
                    self.block(otherwise);
                    for r in results {
                        let differs = self.any([*cond, r.then, r.otherwise]);
                        self.mark(r.result, differs);
                    }
                }
                Stmt::Await { ahead } => self.block(ahead),
                // All waves run it or none does, and no value comes out.
                Stmt::GridFinish { body, .. } => self.block(body),
                Stmt::For(f) => {
                    let rounds_differ = self.any([f.start, f.end, f.step]);
                    self.mark(f.index, rounds_differ);
                    for c in &f.carried {
                        let differs = self.any([c.init, c.next]);
                        self.mark(c.param, differs);
                    }
                    self.block(&f.body);
                    for c in &f.carried {
                        let differs = rounds_differ || self.any([c.param, c.next]);
                        self.mark(c.result, differs);
                    }
                }
            }
        }
    }
}
