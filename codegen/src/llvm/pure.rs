//! Elementwise expressions: the same text on every target, for scalars and vectors.

use super::ir::{Lty, f32_bits};
use super::walk::{Emit, Result};
use crate::kp::{Bin, Cmp, Conv, Elem, Expr, Mem, Un, Val};

/// Lowers `expr` if it acts on each element by itself.
pub(crate) fn pure(e: &mut Emit<'_>, val: Val, expr: &Expr) -> Result<Option<String>> {
    Ok(Some(match expr {
        Expr::F32(bits) => f32_bits(*bits),
        Expr::I32(v) => v.to_string(),
        Expr::I64(v) => v.to_string(),
        Expr::Bool(v) => v.to_string(),
        Expr::Un(un, a) => unary(e, *un, *a)?,
        Expr::Bin(bin, a, b) => binary(e, *bin, *a, *b)?,
        Expr::Fma(a, b, c) => {
            let ty = e.ty(val)?;
            let args = [typed(e, *a)?, typed(e, *b)?, typed(e, *c)?];
            e.ir.call(ty, &format!("llvm.fma.{}", ty.suffix()), &args)
        }
        Expr::Cmp(cmp, a, b) => {
            let pred = predicate(*cmp, e.elem_of(*a)? == Elem::F32);
            let (ty, a, b) = (e.ty(*a)?, e.op(*a)?, e.op(*b)?);
            e.ir.inst(format_args!("{pred} {ty} {a}, {b}"))
        }
        Expr::Select(cond, a, b) => {
            let (cond_ty, cond) = (e.ty(*cond)?, e.op(*cond)?);
            let (ty, a, b) = (e.ty(val)?, e.op(*a)?, e.op(*b)?);
            e.ir.inst(format_args!("select {cond_ty} {cond}, {ty} {a}, {ty} {b}"))
        }
        Expr::Conv(conv, a) => convert(e, *conv, *a, val)?,
        _ => return Ok(None),
    }))
}

/// Type and operand, as a call takes them.
pub(crate) fn typed(e: &Emit<'_>, val: Val) -> Result<(String, String)> {
    Ok((e.ty(val)?.to_string(), e.op(val)?))
}

fn unary(e: &mut Emit<'_>, un: Un, a: Val) -> Result<String> {
    let (ty, x) = (e.ty(a)?, e.op(a)?);
    let intrinsic = |e: &mut Emit<'_>, name: &str| {
        e.ir.call(ty, &format!("llvm.{name}.{}", ty.suffix()), &[(ty.to_string(), x.clone())])
    };
    Ok(match un {
        Un::Neg if ty.elem == "float" => e.ir.inst(format_args!("fneg {ty} {x}")),
        Un::Neg => e.ir.inst(format_args!("sub {ty} {}, {x}", ty.splat(0))),
        Un::Not => e.ir.inst(format_args!("xor {ty} {x}, {}", ty.splat("true"))),
        Un::Ctz => {
            let args = [(ty.to_string(), x), ("i1".to_owned(), "true".to_owned())];
            e.ir.call(ty, &format!("llvm.cttz.{}", ty.suffix()), &args)
        }
        Un::Abs => intrinsic(e, "fabs"),
        Un::Sqrt => intrinsic(e, "sqrt"),
        Un::Rint => intrinsic(e, "roundeven"),
        Un::RoundBf16 => {
            let bits = bf16_bits(e, ty, &x);
            let top = e.ir.inst(format_args!("and {} {bits}, {}", ty.of("i32"), ty.of("i32").splat("-65536")));
            e.ir.inst(format_args!("bitcast {} {top} to {ty}", ty.of("i32")))
        }
        Un::RoundF16 => {
            let half = e.ir.inst(format_args!("fptrunc {ty} {x} to {}", ty.of("half")));
            e.ir.inst(format_args!("fpext {} {half} to {ty}", ty.of("half")))
        }
    })
}

fn binary(e: &mut Emit<'_>, bin: Bin, a: Val, b: Val) -> Result<String> {
    let (ty, x, y) = (e.ty(a)?, e.op(a)?, e.op(b)?);
    if let Bin::Min | Bin::Max = bin {
        return Ok(min_max(e, ty, bin == Bin::Max, &x, &y));
    }
    let op = match (bin, ty.elem == "float") {
        (Bin::Add, true) => "fadd",
        (Bin::Sub, true) => "fsub",
        (Bin::Mul, true) => "fmul",
        (Bin::Div, true) => "fdiv",
        (Bin::Add, _) => "add",
        (Bin::Sub, _) => "sub",
        (Bin::Mul, _) => "mul",
        (Bin::Div, _) => "sdiv",
        (Bin::Rem, _) => "srem",
        (Bin::And, _) => "and",
        (Bin::Or, _) => "or",
        (Bin::Xor, _) => "xor",
        (Bin::Shl, _) => "shl",
        (Bin::Lshr, _) => "lshr",
        (Bin::Ashr, _) => "ashr",
        (Bin::Min | Bin::Max, _) => return Err(e.fault("min or max of an unknown type")),
    };
    Ok(e.ir.inst(format_args!("{op} {ty} {x}, {y}")))
}

/// Minimum or maximum: IEEE 754-2019 for f32, signed for integers.
pub(crate) fn min_max(e: &mut Emit<'_>, ty: Lty, max: bool, x: &str, y: &str) -> String {
    let name = match (ty.elem == "float", max) {
        (true, false) => "minimum",
        (true, true) => "maximum",
        (false, false) => "smin",
        (false, true) => "smax",
    };
    let args = [(ty.to_string(), x.to_owned()), (ty.to_string(), y.to_owned())];
    e.ir.call(ty, &format!("llvm.{name}.{}", ty.suffix()), &args)
}

const fn predicate(cmp: Cmp, float: bool) -> &'static str {
    match (cmp, float) {
        (Cmp::Eq, true) => "fcmp oeq",
        (Cmp::Ne, true) => "fcmp une",
        (Cmp::Lt | Cmp::Ult, true) => "fcmp olt",
        (Cmp::Le, true) => "fcmp ole",
        (Cmp::Gt, true) => "fcmp ogt",
        (Cmp::Ge, true) => "fcmp oge",
        (Cmp::Eq, false) => "icmp eq",
        (Cmp::Ne, false) => "icmp ne",
        (Cmp::Lt, false) => "icmp slt",
        (Cmp::Le, false) => "icmp sle",
        (Cmp::Gt, false) => "icmp sgt",
        (Cmp::Ge, false) => "icmp sge",
        (Cmp::Ult, false) => "icmp ult",
    }
}

fn convert(e: &mut Emit<'_>, conv: Conv, a: Val, to: Val) -> Result<String> {
    let (from, x, to) = (e.ty(a)?, e.op(a)?, e.ty(to)?);
    let op = match conv {
        Conv::I32ToF32 => "sitofp",
        Conv::I32ToI64 => "sext",
        Conv::I64ToI32 => "trunc",
        Conv::BoolToI32 => "zext",
        Conv::F32Bits | Conv::BitsF32 => "bitcast",
        Conv::F32ToI32 => {
            let name = format!("llvm.fptosi.sat.{}.{}", to.suffix(), from.suffix());
            return Ok(e.ir.call(to, &name, &[(from.to_string(), x)]));
        }
    };
    Ok(e.ir.inst(format_args!("{op} {from} {x} to {to}")))
}

/// The bits of f32 `x` rounded to nearest even at bit 16; the low half is left over. A NaN gets its quiet bit and keeps
/// its upper bits. Integer arithmetic, because x86's own conversion flushes denormals.
fn bf16_bits(e: &mut Emit<'_>, ty: Lty, x: &str) -> String {
    let int = ty.of("i32");
    let bits = e.ir.inst(format_args!("bitcast {ty} {x} to {int}"));
    let high = e.ir.inst(format_args!("lshr {int} {bits}, {}", int.splat(16)));
    let odd = e.ir.inst(format_args!("and {int} {high}, {}", int.splat(1)));
    let half = e.ir.inst(format_args!("add {int} {bits}, {}", int.splat(0x7fff)));
    let rounded = e.ir.inst(format_args!("add {int} {half}, {odd}"));
    let quiet = e.ir.inst(format_args!("or {int} {bits}, {}", int.splat(0x0040_0000)));
    let nan = e.ir.inst(format_args!("fcmp uno {ty} {x}, {x}"));
    e.ir.inst(format_args!("select {} {nan}, {int} {quiet}, {int} {rounded}", ty.of("i1")))
}

/// LLVM's type of a memory element.
pub(crate) const fn mem_name(mem: Mem) -> &'static str {
    match mem {
        Mem::F32 => "float",
        Mem::Bf16 => "i16",
        Mem::F16 => "half",
        Mem::I32 => "i32",
    }
}

/// Register value of `raw`, loaded from memory as `raw_ty`.
pub(crate) fn widen(e: &mut Emit<'_>, mem: Mem, raw_ty: Lty, raw: &str) -> String {
    let (int, float) = (raw_ty.of("i32"), raw_ty.of("float"));
    match mem {
        Mem::F32 | Mem::I32 => raw.to_owned(),
        Mem::F16 => e.ir.inst(format_args!("fpext {raw_ty} {raw} to {float}")),
        Mem::Bf16 => {
            let wide = e.ir.inst(format_args!("zext {raw_ty} {raw} to {int}"));
            let bits = e.ir.inst(format_args!("shl {int} {wide}, {}", int.splat(16)));
            e.ir.inst(format_args!("bitcast {int} {bits} to {float}"))
        }
    }
}

/// Lines of text that widen a scalar `raw` of a 16-bit element to the float `to`, for functions written as text.
pub(crate) fn widen_text(mem: Mem, raw: &str, to: &str) -> String {
    match mem {
        Mem::F16 => format!("  {to} = fpext half {raw} to float"),
        _ => format!(
            "  {to}.wide = zext i16 {raw} to i32\n  {to}.bits = shl i32 {to}.wide, 16\n  {to} = bitcast i32 {to}.bits to float"
        ),
    }
}

/// What a store of register value `x` writes; `ty` is the value's type.
pub(crate) fn narrow(e: &mut Emit<'_>, mem: Mem, ty: Lty, x: &str) -> String {
    match mem {
        Mem::F32 | Mem::I32 => x.to_owned(),
        Mem::F16 => e.ir.inst(format_args!("fptrunc {ty} {x} to {}", ty.of("half"))),
        Mem::Bf16 => {
            let bits = bf16_bits(e, ty, x);
            let high = e.ir.inst(format_args!("lshr {} {bits}, {}", ty.of("i32"), ty.of("i32").splat(16)));
            e.ir.inst(format_args!("trunc {} {high} to {}", ty.of("i32"), ty.of("i16")))
        }
    }
}
