//! Types of expressions, loads and stores.

use super::verify::{Body, Broken, Check, broken};
use super::{Access, Addr, Bin, Bound, Cmp, Conv, Elem, Expr, LANES, Mem, Param, Place, Ty, Un, Val, tile_typing};

const LANE_BOOL: Ty = Ty::Lane(Elem::Bool, 1);

impl Ty {
    /// Element of a value; f32 for tiles, whose elements are seen as such only.
    #[must_use]
    pub fn elem(self) -> Elem {
        match self {
            Self::Uniform(elem) | Self::Lane(elem, _) => elem,
            Self::Tile(_) => Elem::F32,
        }
    }

    /// The same shape with another element.
    #[must_use]
    pub fn with(self, elem: Elem) -> Self {
        match self {
            Self::Uniform(_) => Self::Uniform(elem),
            Self::Lane(_, vec) => Self::Lane(elem, vec),
            Self::Tile(_) => self,
        }
    }
}

impl Mem {
    /// Element that a load gives.
    #[must_use]
    pub fn elem(self) -> Elem {
        match self {
            Self::I32 => Elem::I32,
            Self::F32 | Self::Bf16 | Self::F16 => Elem::F32,
        }
    }
}

/// What is refused, with the types of the operands.
pub(super) fn operands(b: &Body<'_>, val: Val, expr: &Expr, cure: &'static str) -> Broken {
    let types: Vec<String> =
        expr.operands().map(|v| b.used(v).map_or_else(|_| format!("{v}"), |ty| format!("{v}: {ty}"))).collect();
    Broken { rule: "operand-type", found: format!("{val} = {expr} with {}", types.join(", ")), cure }
}

/// The type that `expr` gives.
pub(super) fn expr_type(b: &Body<'_>, val: Val, expr: &Expr) -> Check<Ty> {
    if let Expr::TileZero | Expr::TileLoad(_) | Expr::TileMma(_) | Expr::TileFma { .. } = expr {
        return tile_typing::expr_type(b, val, expr);
    }
    for operand in expr.operands() {
        if b.used(operand)?.is_tile() {
            return Err(operands(b, val, expr, "store the tile to workgroup memory, and load its elements from there"));
        }
    }
    let bad = |cure| Err(operands(b, val, expr, cure));
    match expr {
        Expr::F32(_) => Ok(Ty::Uniform(Elem::F32)),
        Expr::I32(_) | Expr::Wave => Ok(Ty::Uniform(Elem::I32)),
        Expr::I64(_) => Ok(Ty::Uniform(Elem::I64)),
        Expr::Bool(_) => Ok(Ty::Uniform(Elem::Bool)),
        Expr::Lane => Ok(Ty::Lane(Elem::I32, 1)),
        Expr::Scalar(i) => match b.p.params.get(*i as usize) {
            Some(Param::Scalar { .. }) => Ok(Ty::Uniform(Elem::I32)),
            _ => broken("scalar", format!("{val} reads param{i}, which is no scalar"), "name a scalar parameter"),
        },
        Expr::Group(axis) if *axis < 3 => Ok(Ty::Uniform(Elem::I32)),
        Expr::Group(axis) => broken("group-axis", format!("{val} reads axis {axis}"), "use axis 0, 1 or 2"),
        Expr::Un(un, a) => {
            let ty = b.used(*a)?;
            let fine = match (un, ty.elem()) {
                (Un::Not, elem) => elem == Elem::Bool,
                (Un::Neg, elem) => elem != Elem::Bool,
                (Un::Ctz, elem) => elem == Elem::I32,
                (_, elem) => elem == Elem::F32,
            };
            if fine { Ok(ty) } else { bad("use the operation of this element type") }
        }
        Expr::Bin(bin, x, y) => {
            let ty = b.used(*x)?;
            if ty != b.used(*y)? {
                return bad("give both operands one type");
            }
            if has_bin(*bin, ty.elem()) { Ok(ty) } else { bad("use an operation that this element type has") }
        }
        Expr::Fma(x, y, z) => {
            let ty = b.used(*x)?;
            let fine = ty.elem() == Elem::F32 && ty == b.used(*y)? && ty == b.used(*z)?;
            if fine { Ok(ty) } else { bad("give three f32 operands of one type") }
        }
        Expr::Cmp(cmp, x, y) => {
            let ty = b.used(*x)?;
            let has = match ty.elem() {
                Elem::Bool => false,
                Elem::F32 => *cmp != Cmp::Ult,
                Elem::I32 | Elem::I64 => true,
            };
            if has && ty == b.used(*y)? { Ok(ty.with(Elem::Bool)) } else { bad("compare numbers of one type") }
        }
        Expr::Select(cond, x, y) => {
            let (cond, ty) = (b.used(*cond)?, b.used(*x)?);
            let fine = ty == b.used(*y)? && (cond == ty.with(Elem::Bool) || cond == Ty::Uniform(Elem::Bool));
            if fine { Ok(ty) } else { bad("use a bool of the operands' shape or a uniform bool, and one type") }
        }
        Expr::Conv(conv, a) => {
            let (ty, (from, to)) = (b.used(*a)?, conv_types(*conv));
            if ty.elem() == from { Ok(ty.with(to)) } else { bad("use the conversion of this element type") }
        }
        _ => shape_type(b, val, expr),
    }
}

/// Expressions that change the shape or cross lanes.
fn shape_type(b: &Body<'_>, val: Val, expr: &Expr) -> Check<Ty> {
    let bad = |cure| Err(operands(b, val, expr, cure));
    match expr {
        Expr::Splat(a, vec) => match b.used(*a)? {
            _ if !matches!(vec, 1 | 2 | 4 | 8) => bad("use 1, 2, 4 or 8 components"),
            Ty::Uniform(elem) | Ty::Lane(elem, 1) => Ok(Ty::Lane(elem, *vec)),
            Ty::Lane(..) | Ty::Tile(_) => bad("splat a uniform or a one-component value"),
        },
        Expr::Component(a, i) => match b.used(*a)? {
            Ty::Lane(elem, vec) if *i < vec => Ok(Ty::Lane(elem, 1)),
            _ => bad("name a component that the lane value has"),
        },
        Expr::Pack(parts) => {
            let (Some(first), 2 | 4 | 8) = (parts.first(), parts.len()) else {
                return bad("pack 2, 4 or 8 values");
            };
            let ty = b.used(*first)?;
            for part in parts {
                if b.used(*part)? != ty {
                    return bad("pack values of one type");
                }
            }
            match ty {
                Ty::Lane(elem, 1) => Ok(Ty::Lane(elem, u8::try_from(parts.len()).unwrap_or(u8::MAX))),
                _ => bad("pack one-component lane values"),
            }
        }
        Expr::Load { from, addr, bound, vec } => load_type(b, val, *from, *addr, *bound, *vec),
        Expr::XorLane(a, mask) => match b.used(*a)? {
            _ if !(1..LANES).contains(&u32::from(*mask)) => bad("use a mask of 1 to 31"),
            ty @ Ty::Lane(Elem::F32 | Elem::I32, 1) => Ok(ty),
            _ => bad("use a one-component f32 or i32 lane value"),
        },
        Expr::Reduce(_, a) => match b.used(*a)? {
            Ty::Lane(elem @ (Elem::F32 | Elem::I32), 1) => Ok(Ty::Uniform(elem)),
            _ => bad("use a one-component f32 or i32 lane value"),
        },
        Expr::ReadLane(a, index) => match (b.used(*a)?, b.used(*index)?) {
            (Ty::Lane(elem, 1), Ty::Uniform(Elem::I32)) => Ok(Ty::Uniform(elem)),
            _ => bad("use a one-component lane value and a uniform i32 index"),
        },
        Expr::ScanAdd(a) => match b.used(*a)? {
            ty @ Ty::Lane(Elem::I32, 1) => Ok(ty),
            _ => bad("use a one-component i32 lane value"),
        },
        Expr::Ballot(a) if b.used(*a)? == LANE_BOOL => Ok(Ty::Uniform(Elem::I32)),
        _ => bad("use a one-component bool lane value"),
    }
}

const fn has_bin(bin: Bin, elem: Elem) -> bool {
    match elem {
        Elem::F32 => matches!(bin, Bin::Add | Bin::Sub | Bin::Mul | Bin::Div | Bin::Min | Bin::Max),
        Elem::Bool => matches!(bin, Bin::And | Bin::Or | Bin::Xor),
        Elem::I32 | Elem::I64 => true,
    }
}

const fn conv_types(conv: Conv) -> (Elem, Elem) {
    match conv {
        Conv::I32ToF32 | Conv::BitsF32 => (Elem::I32, Elem::F32),
        Conv::F32ToI32 | Conv::F32Bits => (Elem::F32, Elem::I32),
        Conv::I32ToI64 => (Elem::I32, Elem::I64),
        Conv::I64ToI32 => (Elem::I64, Elem::I32),
        Conv::BoolToI32 => (Elem::Bool, Elem::I32),
    }
}

/// Checks that a program may load from a place; gives its element type.
pub(super) fn loadable(b: &Body<'_>, val: Val, from: Place) -> Check<Mem> {
    let (mem, access) = b.place(from)?;
    let found = || format!("{val} loads from {from}, which is declared {access}");
    match access {
        Access::Write => broken("access", found(), "declare the buffer read-write"),
        Access::Counter => broken("counter-access", found(), "arrive at counters, and leave them alone else"),
        Access::Exchange if !b.finishing => broken("exchange-load", found(), "load it in the body of a grid finish"),
        Access::Exchange | Access::Constant | Access::Read | Access::ReadWrite => Ok(mem),
    }
}

fn load_type(b: &Body<'_>, val: Val, from: Place, addr: Addr, bound: Bound, vec: u8) -> Check<Ty> {
    let mem = loadable(b, val, from)?;
    check_access(b, &format!("{val} = load {from}{addr}{bound}"), addr, bound)?;
    match addr {
        Addr::Uniform { .. } => Ok(Ty::Uniform(mem.elem())),
        _ if !matches!(vec, 1 | 2 | 4 | 8) => {
            broken("vec", format!("{val} loads {vec} components"), "use 1, 2, 4 or 8 components")
        }
        _ => Ok(Ty::Lane(mem.elem(), vec)),
    }
}

/// Checks a store.
pub(super) fn store_types(b: &Body<'_>, to: Place, addr: Addr, bound: Bound, value: Val) -> Check<()> {
    let (mem, access) = b.place(to)?;
    let found = || format!("{value} is stored to {to}, which is declared {access}");
    match access {
        Access::Constant | Access::Read => return broken("access", found(), "declare the buffer write or read-write"),
        Access::Counter => return broken("counter-access", found(), "arrive at counters, and leave them alone else"),
        Access::Exchange if b.finishing => {
            return broken(
                "exchange-store",
                found(),
                "store it before the grid finish, or to a buffer that is written",
            );
        }
        Access::Exchange | Access::Write | Access::ReadWrite => {}
    }
    check_access(b, &format!("store {to}{addr}{bound}"), addr, bound)?;
    let ty = b.used(value)?;
    let uniform = matches!(addr, Addr::Uniform { .. });
    if ty.is_tile() || ty.elem() != mem.elem() || uniform != matches!(ty, Ty::Uniform(_)) {
        let shape = if uniform { "uniform" } else { "lane" };
        let found = format!("{value} ({ty}) is stored to {to}{addr} of {mem}: a {shape} {} is needed", mem.elem());
        return broken("store-type", found, "convert the value, or change the address form");
    }
    Ok(())
}

fn check_access(b: &Body<'_>, what: &str, addr: Addr, bound: Bound) -> Check<()> {
    match addr {
        Addr::Uniform { base } | Addr::Contig { base } => index_type(b, what, base, true)?,
        Addr::Lanes { base, index } => {
            index_type(b, what, base, true)?;
            index_type(b, what, index, false)?;
        }
    }
    match (addr, bound) {
        (_, Bound::All) => Ok(()),
        (Addr::Uniform { .. }, _) => {
            broken("bound-form", format!("{what}: a bound on a uniform address"), "put the access under an `if`")
        }
        (Addr::Lanes { .. }, Bound::Count(_)) => {
            broken("bound-form", format!("{what}: a count on lane addresses"), "use a mask")
        }
        (_, Bound::Count(count)) => bound_type(b, what, count, Ty::Uniform(Elem::I32)),
        (_, Bound::Mask(mask)) => bound_type(b, what, mask, LANE_BOOL),
    }
}

pub(super) fn index_type(b: &Body<'_>, what: &str, val: Val, uniform: bool) -> Check<()> {
    let ty = b.used(val)?;
    let shape = if uniform { matches!(ty, Ty::Uniform(_)) } else { matches!(ty, Ty::Lane(_, 1)) };
    if shape && matches!(ty.elem(), Elem::I32 | Elem::I64) {
        return Ok(());
    }
    let shape = if uniform { "uniform" } else { "one-component lane" };
    let found = format!("{what}: {val} has type {ty}, needed is a {shape} i32 or i64");
    broken("address-type", found, "convert the index")
}

pub(super) fn bound_type(b: &Body<'_>, what: &str, val: Val, needed: Ty) -> Check<()> {
    let ty = b.used(val)?;
    if ty == needed {
        return Ok(());
    }
    broken("bound-type", format!("{what}: {val} has type {ty}, needed is {needed}"), "convert the bound")
}
