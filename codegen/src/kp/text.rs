//! Readable text of a program: deterministic, one statement a line.

use std::fmt::{self, Display, Write};

use super::{Access, Addr, Bound, Elem, Expr, Mem, Param, Place, Program, Stmt, Ty, Val};

impl Display for Val {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::Bool => "bool",
        })
    }
}

impl Display for Ty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform(elem) => write!(f, "uniform {elem}"),
            Self::Lane(elem, vec) => write!(f, "lane {elem}x{vec}"),
            Self::Tile(tile) => write!(f, "{tile}"),
        }
    }
}

impl Display for Mem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::I32 => "i32",
        })
    }
}

impl Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Constant => "constant",
            Self::Read => "read",
            Self::Write => "write",
            Self::ReadWrite => "read-write",
            Self::Exchange => "exchange",
            Self::Counter => "counter",
        })
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer(i) => write!(f, "param{i}"),
            Self::Shared(i) => write!(f, "shared{i}"),
        }
    }
}

impl Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform { base } => write!(f, "[{base}]"),
            Self::Contig { base } => write!(f, "[{base} + lanes]"),
            Self::Lanes { base, index } => write!(f, "[{base} + each {index}]"),
        }
    }
}

impl Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => Ok(()),
            Self::Count(count) => write!(f, " below {count}"),
            Self::Mask(mask) => write!(f, " where {mask}"),
        }
    }
}

impl Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32(bits) => write!(f, "{:?} (0x{bits:08x})", f32::from_bits(*bits)),
            Self::I32(v) => write!(f, "{v}"),
            Self::I64(v) => write!(f, "{v}"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::Scalar(i) => write!(f, "param{i}"),
            Self::Group(axis) => write!(f, "group {axis}"),
            Self::Wave => f.write_str("wave"),
            Self::Lane => f.write_str("lane"),
            Self::Un(un, a) => write!(f, "{} {a}", word(un)),
            Self::Bin(bin, a, b) => write!(f, "{} {a} {b}", word(bin)),
            Self::Fma(a, b, c) => write!(f, "fma {a} {b} {c}"),
            Self::Cmp(cmp, a, b) => write!(f, "cmp-{} {a} {b}", word(cmp)),
            Self::Select(cond, a, b) => write!(f, "select {cond} {a} {b}"),
            Self::Conv(conv, a) => write!(f, "{} {a}", word(conv)),
            Self::Splat(a, vec) => write!(f, "splat {a} x{vec}"),
            Self::Component(a, i) => write!(f, "component {a} {i}"),
            Self::Pack(parts) => {
                f.write_str("pack")?;
                parts.iter().try_for_each(|part| write!(f, " {part}"))
            }
            Self::Load { from, addr, bound, vec } => write!(f, "load {from}{addr}{bound} x{vec}"),
            Self::XorLane(a, mask) => write!(f, "xor-lane {a} {mask}"),
            Self::Reduce(reduce, a) => write!(f, "reduce-{} {a}", word(reduce)),
            Self::ReadLane(a, index) => write!(f, "read-lane {a} {index}"),
            Self::ScanAdd(a) => write!(f, "scan-add {a}"),
            Self::Ballot(a) => write!(f, "ballot {a}"),
            Self::TileZero => f.write_str("tile-zero"),
            Self::TileLoad(at) => write!(f, "{at}"),
            Self::TileMma([a, b, c]) => write!(f, "tile-mma {a} {b} {c}"),
            Self::TileFma { sums, scales, base, onto } => {
                write!(f, "tile-fma {sums} {scales}[{base} + columns] {onto}")
            }
        }
    }
}

/// A variant's name in small letters.
fn word(variant: impl fmt::Debug) -> String {
    format!("{variant:?}").to_lowercase()
}

impl Program {
    /// The program as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = format!("kernel {} waves {}\n", self.name, self.waves);
        for (i, param) in self.params.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = match param {
                Param::Buffer { name, mem, access } => writeln!(out, "  param{i} {name}: buffer {mem} {access}"),
                Param::Scalar { name } => writeln!(out, "  param{i} {name}: i32"),
            };
        }
        for (i, shared) in self.shared.iter().enumerate() {
            let over = shared.over.map_or(String::new(), |over| format!(" over shared{over}"));
            let _ = writeln!(out, "  shared{i} {}: {}[{}]{over}", shared.name, shared.mem, shared.len);
        }
        self.block(&mut out, &self.body, 1);
        out
    }

    fn typed(&self, val: Val) -> String {
        match self.types.get(val.0 as usize) {
            Some(ty) => format!("{val}: {ty}"),
            None => format!("{val}: no type"),
        }
    }

    fn block(&self, out: &mut String, stmts: &[Stmt], depth: usize) {
        let pad = "  ".repeat(depth);
        for stmt in stmts {
            match stmt {
                Stmt::Let(val, expr) => {
                    let _ = writeln!(out, "{pad}{} = {expr}", self.typed(*val));
                }
                Stmt::Store { to, addr, bound, value } => {
                    let _ = writeln!(out, "{pad}store {to}{addr}{bound} = {value}");
                }
                Stmt::TileStore { to, base, pitch, tile } => {
                    let _ = writeln!(out, "{pad}tile-store {to}[{base} + rows x{pitch}] = {tile}");
                }
                Stmt::Prefetch { from, base, bytes, share } => {
                    let _ = writeln!(out, "{pad}prefetch param{from}[{base}] of {bytes} bytes, one of {share}");
                }
                Stmt::Spin { cycles, late } => {
                    let _ = writeln!(out, "{pad}spin {cycles} cycles, arrive {late} late");
                }
                Stmt::Await { ahead } => {
                    let _ = writeln!(out, "{pad}await");
                    self.block(out, ahead, depth + 1);
                }
                Stmt::Barrier => {
                    let _ = writeln!(out, "{pad}barrier");
                }
                Stmt::If { cond, then, otherwise, results } => {
                    let _ = writeln!(out, "{pad}if {cond}");
                    self.block(out, then, depth + 1);
                    let _ = writeln!(out, "{pad}else");
                    self.block(out, otherwise, depth + 1);
                    for r in results {
                        let _ = writeln!(out, "{pad}=> {} = {} else {}", self.typed(r.result), r.then, r.otherwise);
                    }
                }
                Stmt::For(l) => {
                    let _ = writeln!(out, "{pad}for {} in {}..{} step {}", l.index, l.start, l.end, l.step);
                    for c in &l.carried {
                        let _ = writeln!(out, "{pad}carry {} = {}, next {}", self.typed(c.param), c.init, c.next);
                    }
                    self.block(out, &l.body, depth + 1);
                    for c in &l.carried {
                        let _ = writeln!(out, "{pad}=> {} = {}", self.typed(c.result), c.param);
                    }
                }
                Stmt::GridFinish { counter, index, arrivals, body } => {
                    let _ = writeln!(out, "{pad}grid-finish param{counter}[{index}] of {arrivals}");
                    self.block(out, body, depth + 1);
                }
            }
        }
    }
}
