//! What typing rules ask of operands, and how they refuse.

use crate::error::IrError;
use crate::op::Op;
use crate::order::Order;
use crate::types::{DType, Dim, StateType, TensorType, Type};

/// One application of an op.
pub(super) struct Rule<'a> {
    pub op: &'a Op,
    pub args: &'a [&'a Type],
}

impl Rule<'_> {
    pub fn refuse(&self, rule: &'static str, found: impl Into<String>, hint: &'static str) -> IrError {
        let args: Vec<String> = self.args.iter().map(|t| t.to_string()).collect();
        IrError::Type { rule, op: self.op.name().into(), args: args.join(", "), found: found.into(), hint }
    }

    pub fn count(&self, n: usize) -> Result<(), IrError> {
        if self.args.len() == n {
            return Ok(());
        }
        let found = format!("{} operands", self.args.len());
        Err(self.refuse("operand-count", format!("{found}, needed {n}"), "see the op's signature in unglue_ir::op"))
    }

    pub fn tensor(&self, i: usize) -> Result<&TensorType, IrError> {
        match self.args.get(i) {
            Some(Type::Tensor(t)) => Ok(t),
            _ => Err(self.refuse("operand-kind", format!("operand {i} is not a tensor"), "pass a tensor")),
        }
    }

    pub fn typed(&self, i: usize, dtypes: &[DType]) -> Result<&[Dim], IrError> {
        let t = self.tensor(i)?;
        match t.dtype() {
            Some(d) if dtypes.contains(&d) => Ok(&t.shape),
            _ => Err(self.refuse(
                "operand-dtype",
                format!(
                    "operand {i} is {t}, needed {}",
                    dtypes.iter().map(|d| d.name()).collect::<Vec<_>>().join(" or ")
                ),
                "insert a cast",
            )),
        }
    }

    pub fn f32(&self, i: usize) -> Result<&[Dim], IrError> {
        self.typed(i, &[DType::F32])
    }

    pub fn float(&self, i: usize) -> Result<&[Dim], IrError> {
        self.typed(i, &[DType::F32, DType::Bf16, DType::F16])
    }

    pub fn i32(&self, i: usize) -> Result<&[Dim], IrError> {
        self.typed(i, &[DType::I32])
    }

    /// A weight of a contraction: packed, or of a float dtype, and of numbers only.
    pub fn weight(&self, i: usize, rank: usize) -> Result<&TensorType, IrError> {
        let w = self.tensor(i)?;
        if w.dtype().is_some_and(|d| !d.is_float()) {
            let found = format!("operand {i} is {w}");
            return Err(self.refuse("weight-dtype", found, "contract over floats or a packed format"));
        }
        self.rank(&w.shape, rank, "the weight")?;
        w.shape.iter().try_for_each(|d| self.fixed(*d, "an extent of the weight").map(|_| ()))?;
        Ok(w)
    }

    pub fn state(&self, i: usize) -> Result<&StateType, IrError> {
        match self.args.get(i) {
            Some(Type::State(s)) => Ok(s),
            _ => Err(self.refuse("operand-kind", format!("operand {i} is not a state"), "pass a state")),
        }
    }

    pub fn float_state(&self, i: usize) -> Result<(), IrError> {
        match self.state(i)?.dtype {
            DType::F32 | DType::Bf16 | DType::F16 => Ok(()),
            d => Err(self.refuse("state-dtype", d.name(), "computed on states are f32, bf16 or f16")),
        }
    }

    pub fn axis(&self, shape: &[Dim], axis: u32) -> Result<usize, IrError> {
        let a = axis as usize;
        if a < shape.len() {
            return Ok(a);
        }
        Err(self.refuse("axis-range", format!("axis {axis} of rank {}", shape.len()), "axes count from 0"))
    }

    pub fn fixed(&self, d: Dim, what: &str) -> Result<u64, IrError> {
        d.fixed().ok_or_else(|| self.refuse("fixed-extent", format!("{what} is {d}"), "this axis must be a number"))
    }

    pub fn rank(&self, shape: &[Dim], n: usize, what: &str) -> Result<(), IrError> {
        if shape.len() == n {
            return Ok(());
        }
        Err(self.refuse("rank", format!("{what} has rank {}, needed {n}", shape.len()), "reshape first"))
    }

    pub fn same(&self, a: Dim, b: Dim, what: &str) -> Result<(), IrError> {
        if a == b {
            return Ok(());
        }
        Err(self.refuse("extent", format!("{what}: {a} against {b}"), "extents must be equal"))
    }

    pub fn order(&self, order: Order, n: u64, allowed: &str, ok: bool) -> Result<(), IrError> {
        if matches!(order, Order::Strided(c) if !c.is_power_of_two()) {
            return Err(self.refuse("order-chains", order.name(), "the number of chains is a power of two"));
        }
        if !ok {
            let found = format!("{}, needed {allowed}", order.name());
            return Err(self.refuse("order-kind", found, "use an order that the op computes"));
        }
        if order.is_shallow(n) {
            return Ok(());
        }
        let found = format!("{} over {n} has depth {} > {}", order.name(), order.depth(n), n / 256 + 32);
        Err(self.refuse("order-depth", found, "choose an order with more chains"))
    }
}
