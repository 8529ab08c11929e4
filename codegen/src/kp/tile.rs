//! Matrix tiles: values of a whole wave whose layout is the lowering's own.
//!
//! A tile is 16 x 16. Operands are *lines* of 16 elements that lie side by side in memory: line r of A is row r of the left
//! operand, line c of B is column c of the right one, so that a weight `[N, K]` in row-major order gives both without a
//! transposition. Sums are f32. Programs form tiles by [`super::Expr::TileZero`], [`super::Expr::TileLoad`],
//! [`super::Expr::TileMma`] and [`super::Expr::TileFma`], carry them through loops and branches, and read them only through
//! memory ([`super::Stmt::TileStore`]): no lane ever sees which elements it holds.
//!
//! The sum inside a product and its roundings are the target's. A result is within `(d + 1) 2^-24 sum |x|` of the exact one,
//! with d the number of products that were added one after the other.

use std::fmt;

use super::{Mem, Place, Ty, Val};

/// Rows, columns and depth of a tile.
pub const TILE: u32 = 16;

/// Element type of an operand tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Half {
    Bf16,
    F16,
}

/// Which operand of a product a tile is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    A,
    B,
}

/// What a tile holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tile {
    Operand(Side, Half),
    /// f32 `[row, column]`.
    Sum,
}

/// Where an operand tile lies: element k of line l at `base + l * pitch + k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TileAt {
    pub side: Side,
    /// A place of bf16 or f16; or of i32, whose words hold two bf16 each, the first in the low half.
    pub from: Place,
    /// Uniform i32 or i64, in operand elements.
    pub base: Val,
    /// Elements from a line to the next.
    pub pitch: u32,
    /// Lines that exist (uniform i32, may be <= 0 or beyond 16); the others are 0 and not accessed. `None`: all.
    pub lines: Option<Val>,
    /// Elements of a line that exist, likewise.
    pub depth: Option<Val>,
}

impl TileAt {
    /// The values it reads.
    pub fn operands(&self) -> impl Iterator<Item = Val> + use<> {
        std::iter::once(self.base).chain(self.lines).chain(self.depth)
    }
}

impl Half {
    /// The format in memory.
    #[must_use]
    pub const fn mem(self) -> Mem {
        match self {
            Half::Bf16 => Mem::Bf16,
            Half::F16 => Mem::F16,
        }
    }

    /// The element type of tiles that are loaded from a place; words of i32 hold pairs of bf16.
    #[must_use]
    pub const fn of(mem: Mem) -> Option<Half> {
        match mem {
            Mem::Bf16 | Mem::I32 => Some(Half::Bf16),
            Mem::F16 => Some(Half::F16),
            Mem::F32 => None,
        }
    }
}

impl Ty {
    /// True for matrix tiles.
    #[must_use]
    pub const fn is_tile(self) -> bool {
        matches!(self, Ty::Tile(_))
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::A => "a",
            Side::B => "b",
        })
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tile::Operand(side, Half::Bf16) => write!(f, "tile {side} bf16"),
            Tile::Operand(side, Half::F16) => write!(f, "tile {side} f16"),
            Tile::Sum => f.write_str("tile sum"),
        }
    }
}

impl fmt::Display for TileAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tile-load {} {}[{} + lines x{}]", self.side, self.from, self.base, self.pitch)?;
        if let Some(lines) = self.lines {
            write!(f, " lines below {lines}")?;
        }
        match self.depth {
            Some(depth) => write!(f, " depth below {depth}"),
            None => Ok(()),
        }
    }
}
