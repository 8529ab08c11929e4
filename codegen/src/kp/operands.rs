//! Which values an expression, an address or a bound reads.

use super::{Addr, Bound, Expr, Val};

impl Expr {
    /// The values it reads, in order.
    pub fn operands(&self) -> impl Iterator<Item = Val> + '_ {
        let mut list: Vec<Val> = Vec::new();
        match self {
            Self::F32(_)
            | Self::I32(_)
            | Self::I64(_)
            | Self::Bool(_)
            | Self::Scalar(_)
            | Self::Group(_)
            | Self::Wave
            | Self::Lane
            | Self::TileZero => {}
            Self::Un(_, a)
            | Self::Conv(_, a)
            | Self::Splat(a, _)
            | Self::Component(a, _)
            | Self::XorLane(a, _)
            | Self::Reduce(_, a)
            | Self::ScanAdd(a)
            | Self::Ballot(a) => list.push(*a),
            Self::Bin(_, a, b) | Self::Cmp(_, a, b) | Self::ReadLane(a, b) => list.extend([*a, *b]),
            Self::Fma(a, b, c) | Self::Select(a, b, c) => list.extend([*a, *b, *c]),
            Self::TileLoad(at) => list.extend(at.operands()),
            Self::TileMma(parts) => list.extend(parts),
            Self::TileFma { sums, base, onto, .. } => list.extend([*sums, *base, *onto]),
            Self::Pack(parts) => list.extend(parts),
            Self::Load { addr, bound, .. } => list.extend(addr.operands().chain(bound.operands())),
        }
        list.into_iter()
    }
}

impl Addr {
    /// The values it reads.
    pub fn operands(&self) -> impl Iterator<Item = Val> + use<> {
        let (base, index) = match *self {
            Self::Uniform { base } | Self::Contig { base } => (base, None),
            Self::Lanes { base, index } => (base, Some(index)),
        };
        std::iter::once(base).chain(index)
    }
}

impl Bound {
    /// The value it reads, if any.
    pub fn operands(&self) -> impl Iterator<Item = Val> + use<> {
        match *self {
            Self::All => None,
            Self::Count(val) | Self::Mask(val) => Some(val),
        }
        .into_iter()
    }
}
