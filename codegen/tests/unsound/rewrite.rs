//! Rewriting of kernel programs: statements are found by what they are, and replaced in place.

use unglue_codegen::kp::*;

/// A program under change.
pub struct Edit<'a> {
    p: &'a mut Program,
}

/// What becomes of a statement.
pub enum Change {
    Keep,
    Drop,
    /// These in its place.
    With(Vec<Stmt>),
}

impl Edit<'_> {
    pub fn of(p: &mut Program) -> Edit<'_> {
        Edit { p }
    }

    pub fn fresh(&mut self, ty: Ty) -> Val {
        self.p.types.push(ty);
        Val(self.p.types.len() as u32 - 1)
    }

    pub fn ty(&self, v: Val) -> Ty {
        self.p.types[v.0 as usize]
    }

    /// The parameter or shared array of this name.
    pub fn place(&self, name: &str) -> Place {
        let buffer = |p: &Param| matches!(p, Param::Buffer { name: n, .. } if n == name);
        if let Some(i) = self.p.params.iter().position(buffer) {
            return Place::Buffer(i as u32);
        }
        let shared = self.p.shared.iter().position(|s| s.name == name);
        Place::Shared(shared.unwrap_or_else(|| panic!("no `{name}` in {}", self.p.to_text())) as u32)
    }

    /// The expression that defines a value.
    pub fn def(&self, v: Val) -> Option<Expr> {
        fn find(stmts: &[Stmt], v: Val) -> Option<Expr> {
            stmts.iter().find_map(|s| match s {
                Stmt::Let(w, e) if *w == v => Some(e.clone()),
                Stmt::If { then, otherwise, .. } => find(then, v).or_else(|| find(otherwise, v)),
                Stmt::For(f) => find(&f.body, v),
                Stmt::GridFinish { body, .. } => find(body, v),
                _ => None,
            })
        }
        find(&self.p.body, v)
    }

    pub fn is_int(&self, v: Val, n: i32) -> bool {
        match self.def(v) {
            Some(Expr::I32(m)) => m == n,
            Some(Expr::Splat(inner, _)) => self.is_int(inner, n),
            _ => false,
        }
    }

    /// Changes the first statement (outer before inner, in order) that `f` does not keep.
    pub fn first(&mut self, mut f: impl FnMut(&mut Self, &Stmt) -> Change) {
        let mut body = std::mem::take(&mut self.p.body);
        // `def` looks into the program: leave a copy.
        self.p.body = body.clone();
        self.walk(&mut body, &mut f);
        self.p.body = body;
    }

    fn walk(&mut self, stmts: &mut Vec<Stmt>, f: &mut dyn FnMut(&mut Self, &Stmt) -> Change) -> bool {
        for i in 0..stmts.len() {
            match f(self, &stmts[i]) {
                Change::Drop => {
                    stmts.remove(i);
                    return true;
                }
                Change::With(new) => {
                    stmts.splice(i..=i, new);
                    return true;
                }
                Change::Keep => {}
            }
            let done = match &mut stmts[i] {
                Stmt::If { then, otherwise, .. } => self.walk(then, f) || self.walk(otherwise, f),
                Stmt::For(inner) => self.walk(&mut inner.body, f),
                Stmt::GridFinish { body, .. } => self.walk(body, f),
                _ => false,
            };
            if done {
                return true;
            }
        }
        false
    }

    /// Replaces the first defining expression for which `f` has another.
    pub fn expr(&mut self, mut f: impl FnMut(&Self, &Expr) -> Option<Expr>) {
        self.first(|e, s| match s {
            Stmt::Let(v, x) => f(e, x).map_or(Change::Keep, |new| Change::With(vec![Stmt::Let(*v, new)])),
            _ => Change::Keep,
        });
    }

    /// Adds a definition to `out`.
    pub fn add(&mut self, out: &mut Vec<Stmt>, ty: Ty, x: Expr) -> Val {
        let v = self.fresh(ty);
        out.push(Stmt::Let(v, x));
        v
    }

    pub fn int(&mut self, out: &mut Vec<Stmt>, n: i32) -> Val {
        self.add(out, Ty::Uniform(Elem::I32), Expr::I32(n))
    }
}
