//! Element indices: constants, uniform values, 32 consecutive elements over the lanes, neighbours in each lane, or one
//! number a lane.

use crate::kp::build::Builder;
use crate::kp::{Addr, Bin, Elem, LANES, Ty, Val};

/// Index along one axis, or into a row's elements in row-major order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ix {
    Const(u64),
    /// Uniform i32; `aligned`: known to be a multiple of 32.
    Uni {
        val: Val,
        aligned: bool,
    },
    /// `base + lane`.
    Seq {
        base: Val,
        aligned: bool,
    },
    /// `base + lane * width + part`: of `width` neighbours that a lane has, one. `aligned`: `base` is known to be a multiple of
    /// what all lanes have together.
    Wide {
        base: Val,
        width: u8,
        part: u8,
        aligned: bool,
    },
    Lane(Val),
}

fn wide_multiple(n: u64) -> bool {
    n.is_multiple_of(u64::from(LANES))
}

impl Ix {
    pub fn uni(val: Val) -> Ix {
        Ix::Uni { val, aligned: false }
    }

    fn aligned(self) -> bool {
        match self {
            Ix::Const(n) => wide_multiple(n),
            Ix::Uni { aligned, .. } | Ix::Seq { aligned, .. } => aligned,
            Ix::Wide { .. } | Ix::Lane(_) => false,
        }
    }

    /// Uniform value, if it is one.
    pub fn uniform(self, b: &mut Builder) -> Option<Val> {
        match self {
            Ix::Const(n) => Some(b.i(n as i64)),
            Ix::Uni { val, .. } => Some(val),
            _ => None,
        }
    }

    /// One number a lane.
    pub fn lanes(self, b: &mut Builder) -> Val {
        match self {
            Ix::Const(n) => {
                let v = b.i(n as i64);
                b.splat(v, 1)
            }
            Ix::Uni { val, .. } => b.splat(val, 1),
            Ix::Seq { base, .. } => {
                let lane = b.lane();
                b.add(base, lane)
            }
            Ix::Wide { base, width, part, .. } => {
                let (lane, width) = (b.lane(), b.i(i64::from(width)));
                let own = b.mul(lane, width);
                let first = b.add(base, own);
                let part = b.i(i64::from(part));
                b.add(first, part)
            }
            Ix::Lane(v) => v,
        }
    }

    /// True for an index that all lanes together start at a multiple of `n`.
    fn multiple_of(self, n: u64) -> bool {
        matches!(self, Ix::Const(x) if x.is_multiple_of(n))
    }

    pub fn add(self, other: Ix, b: &mut Builder) -> Ix {
        let aligned = self.aligned() && other.aligned();
        match (self, other) {
            (Ix::Const(x), Ix::Const(y)) => Ix::Const(x + y),
            (Ix::Const(0), x) | (x, Ix::Const(0)) => x,
            (Ix::Wide { base, width, part, aligned }, x @ (Ix::Const(_) | Ix::Uni { .. }))
            | (x @ (Ix::Const(_) | Ix::Uni { .. }), Ix::Wide { base, width, part, aligned }) => {
                let aligned = aligned && x.multiple_of(u64::from(LANES) * u64::from(width));
                let base = match x.uniform(b) {
                    Some(u) => b.add(base, u),
                    None => base,
                };
                Ix::Wide { base, width, part, aligned }
            }
            (Ix::Lane(_) | Ix::Wide { .. }, _)
            | (_, Ix::Lane(_) | Ix::Wide { .. })
            | (Ix::Seq { .. }, Ix::Seq { .. }) => {
                let (x, y) = (self.lanes(b), other.lanes(b));
                Ix::Lane(b.add(x, y))
            }
            (Ix::Seq { base, .. }, x) | (x, Ix::Seq { base, .. }) => {
                let base = match x.uniform(b) {
                    Some(u) => b.add(base, u),
                    None => base,
                };
                Ix::Seq { base, aligned }
            }
            (x, y) => {
                let (x, y) = (x.uniform(b), y.uniform(b));
                match (x, y) {
                    (Some(x), Some(y)) => Ix::Uni { val: b.add(x, y), aligned },
                    _ => Ix::Const(0),
                }
            }
        }
    }

    pub fn mul(self, n: u64, b: &mut Builder) -> Ix {
        match self {
            _ if n == 1 => self,
            Ix::Const(x) => Ix::Const(x * n),
            Ix::Uni { val, aligned } => {
                let k = b.i(n as i64);
                Ix::Uni { val: b.mul(val, k), aligned: aligned || wide_multiple(n) }
            }
            Ix::Seq { .. } | Ix::Wide { .. } | Ix::Lane(_) => {
                let v = self.lanes(b);
                let k = b.i(n as i64);
                Ix::Lane(b.mul(v, k))
            }
        }
    }

    /// Quotient and remainder by a constant.
    pub fn div_rem(self, n: u64, b: &mut Builder) -> (Ix, Ix) {
        match self {
            _ if n == 1 => (self, Ix::Const(0)),
            Ix::Const(x) => (Ix::Const(x / n), Ix::Const(x % n)),
            Ix::Uni { val, aligned } => {
                let k = b.i(n as i64);
                let (q, r) = (b.div(val, k), b.rem(val, k));
                (Ix::uni(q), Ix::Uni { val: r, aligned: aligned && wide_multiple(n) })
            }
            // 32 consecutive numbers from a multiple of 32 have one quotient if the divisor is a multiple of 32.
            Ix::Seq { base, aligned: true } if wide_multiple(n) => {
                let k = b.i(n as i64);
                let (q, r) = (b.div(base, k), b.rem(base, k));
                (Ix::uni(q), Ix::Seq { base: r, aligned: true })
            }
            Ix::Wide { base, width, part, aligned: true } if n.is_multiple_of(u64::from(LANES) * u64::from(width)) => {
                let k = b.i(n as i64);
                let (q, r) = (b.div(base, k), b.rem(base, k));
                (Ix::uni(q), Ix::Wide { base: r, width, part, aligned: true })
            }
            Ix::Seq { .. } | Ix::Wide { .. } | Ix::Lane(_) => {
                let v = self.lanes(b);
                let k = b.i(n as i64);
                (Ix::Lane(b.div(v, k)), Ix::Lane(b.rem(v, k)))
            }
        }
    }

    /// Address of this element behind a uniform base (i32 or i64).
    pub fn address(self, base: Option<Val>, b: &mut Builder) -> Addr {
        let plus = |b: &mut Builder, offset: Val| behind(base, offset, b);
        match self {
            Ix::Const(n) => {
                let n = b.i(n as i64);
                Addr::Uniform { base: plus(b, n) }
            }
            Ix::Uni { val, .. } => Addr::Uniform { base: plus(b, val) },
            Ix::Seq { base: offset, .. } => Addr::Contig { base: plus(b, offset) },
            Ix::Lane(_) | Ix::Wide { .. } => {
                let base = base.unwrap_or_else(|| b.i(0));
                Addr::Lanes { base, index: self.lanes(b) }
            }
        }
    }
}

/// `offset` behind a uniform base (i32 or i64).
pub fn behind(base: Option<Val>, offset: Val, b: &mut Builder) -> Val {
    match base {
        Some(base) if b.ty(base) == Ty::Uniform(Elem::I64) => {
            let wide = b.wide(offset);
            b.bin(Bin::Add, base, wide)
        }
        Some(base) => b.add(base, offset),
        None => offset,
    }
}

/// Row-major index of `idx` in an array of extents `dims`.
pub fn flatten(dims: &[u64], idx: &[Ix], b: &mut Builder) -> Ix {
    let mut flat = Ix::Const(0);
    for (&n, &i) in dims.iter().zip(idx) {
        flat = flat.mul(n, b).add(i, b);
    }
    flat
}

/// Inverse of [`flatten`].
pub fn unflatten(dims: &[u64], flat: Ix, b: &mut Builder) -> Vec<Ix> {
    let mut rest = flat;
    let mut out = vec![Ix::Const(0); dims.len()];
    for i in (0..dims.len()).rev() {
        if i == 0 {
            out[0] = rest;
            break;
        }
        if dims[i] == 1 {
            continue;
        }
        // Nothing but extents of 1 in front: the rest is this axis.
        if dims[..i].iter().all(|d| *d == 1) {
            out[i] = rest;
            break;
        }
        let (q, r) = rest.div_rem(dims[i], b);
        out[i] = r;
        rest = q;
    }
    out
}

/// The element of an array of extents `from` that is element `idx` of a view of it with extents `to`. Axes that the view
/// neither splits nor joins keep their index.
pub fn reshaped(to: &[u64], from: &[u64], idx: &[Ix], b: &mut Builder) -> Vec<Ix> {
    let wide = |dims: &[u64]| (0..dims.len()).filter(|i| dims[*i] != 1).collect::<Vec<_>>();
    let (mut ts, mut fs) = (wide(to).into_iter().peekable(), wide(from).into_iter().peekable());
    let mut out = vec![Ix::Const(0); from.len()];
    while ts.peek().is_some() && fs.peek().is_some() {
        // The next axes of both that have as many elements together.
        let (mut t, mut f): (Vec<usize>, Vec<usize>) =
            (ts.next().into_iter().collect(), fs.next().into_iter().collect());
        let count = |dims: &[u64], axes: &[usize]| axes.iter().map(|i| dims[*i]).product::<u64>();
        while count(to, &t) != count(from, &f) {
            let (behind, axes) = if count(to, &t) < count(from, &f) { (&mut ts, &mut t) } else { (&mut fs, &mut f) };
            match behind.next() {
                Some(axis) => axes.push(axis),
                None => break,
            }
        }
        let extents = |dims: &[u64], axes: &[usize]| axes.iter().map(|i| dims[*i]).collect::<Vec<u64>>();
        let own: Vec<Ix> = t.iter().map(|i| idx[*i]).collect();
        let flat = flatten(&extents(to, &t), &own, b);
        for (axis, at) in f.iter().zip(unflatten(&extents(from, &f), flat, b)) {
            out[*axis] = at;
        }
    }
    out
}
