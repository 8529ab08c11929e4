//! The reference interpreter: what a graph means.
//!
//! Two modes (numerics P4). [`eval_graph`] and [`run_module`] give the bits: every op in f32 as P1 says, every sum in
//! the order of its op. [`bound`] gives f64 values with error bounds. Weights stay in their storage format and are
//! decoded in the inner loops. A step is pure: states change only when the whole evaluation has succeeded.
//!
//! Ops that mix rows work on a [`Batch`]; ids out of range read as 0 (devices must not touch memory there, and report
//! the fault in the status word). The semantics of each op stand at the function that computes it.

pub mod batch;
pub mod bound;
mod contract;
pub mod draw;
mod eval;
mod fast;
mod int4;
pub mod module;
mod moves;
pub mod pointwise;
pub mod select;
pub mod state;
pub mod value;

pub use batch::{Batch, Dims};
pub use eval::{Observe, WeightFn, eval_graph};
pub use fast::{maximum, minimum, unary};
pub use module::{ModuleWeightFn, run_module};
pub use state::{StateData, States};
pub use value::{Data, Tensor, WeightRef};

use crate::error::IrError;

pub(crate) fn refuse(rule: &'static str, place: &str, found: &str, hint: &'static str) -> IrError {
    IrError::Eval { rule, place: place.into(), found: found.into(), hint }
}
