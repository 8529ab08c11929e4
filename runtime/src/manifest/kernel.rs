//! Kernels in the manifest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Mem;

/// One kernel. On x86-64 its entry is the symbol `name` with [`crate::cpu`]'s ABI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// Unique symbol: `[A-Za-z_][A-Za-z0-9_]*`, at most [`super::MAX_KERNEL_NAME`] bytes. Part of the interface: stable.
    pub name: String,
    /// Waves of 32 lanes per workgroup, 1 to 32.
    pub waves: u32,
    /// Shared memory of one workgroup, bytes.
    pub shared_bytes: u64,
    /// Parameters in order; each takes one 8-byte slot.
    pub params: Vec<Param>,
    /// `pointwise`, `reduce`, `skinny matmul`, `tiled matmul`, `grouped matmul`, `router`, `hyper-connection`,
    /// `delta rule`, `attention`, `indexer`, `other`.
    pub class: String,
    /// The weakest class of the rewrites inside.
    pub exactness: Exactness,
    /// The schedule as text.
    pub schedule: String,
    /// Ops of the declared trunk that the kernel holds.
    pub ops: Vec<String>,
    /// IR text of the kernel's own graph.
    pub ir: String,
    /// Orders of summation, as text.
    pub orders: Vec<String>,
    /// What contractions run on. Left out for lanes.
    #[serde(default, skip_serializing_if = "Products::is_lanes")]
    pub products: Products,
    /// Resources by target name.
    pub resources: BTreeMap<String, Resources>,
    /// Which parameter is which value of `ir`.
    pub interface: Interface,
}

/// What contractions run on: it says how results compare with the interpreter's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Products {
    /// f32 lanes, in the orders of the ops: equal bits.
    #[default]
    Lanes,
    /// Matrix tiles, whose sums have an order of their own: within the bounds of the ops.
    Tiles,
}

impl Products {
    /// True for the default.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    const fn is_lanes(&self) -> bool {
        matches!(self, Products::Lanes)
    }
}

/// A kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Param {
    /// Name, for messages.
    pub name: String,
    /// Pointer or number.
    pub kind: ParamKind,
}

/// What a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ParamKind {
    /// Pointer to elements of type `mem`.
    Buffer { mem: Mem, access: Access },
    /// An i32.
    Scalar,
}

/// What a kernel does to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    Read,
    Write,
    ReadWrite,
}

/// How a kernel may differ from the declared trunk (design.md, P3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exactness {
    Exact,
    Rounding,
    Reassociating,
    /// Hardware approximations too.
    Fast,
}

/// What one kernel takes on one target; 0 where the target has no such thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Vector registers of a lane.
    pub vgprs: u32,
    /// Scalar registers of a wave.
    pub sgprs: u32,
    /// Vector registers spilled.
    pub vgpr_spills: u32,
    /// Scalar registers spilled.
    pub sgpr_spills: u32,
    /// Shared memory of a workgroup, bytes.
    pub lds_bytes: u64,
    /// Private memory of a lane, bytes.
    pub scratch_bytes: u64,
    /// Waves that fit one SIMD unit.
    pub occupancy: u32,
    /// Length of the code, bytes.
    pub code_bytes: u64,
}

/// Which parameter holds which value of the kernel's graph, so that `verify` can run the kernel alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    pub inputs: Vec<Port>,
    pub weights: Vec<Port>,
    /// Scales of int4 weights, under the weights' names.
    pub scales: Vec<Port>,
    /// States read or written.
    pub states: Vec<Port>,
    pub outputs: Vec<Port>,
}

/// One value of a kernel's graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Name in the kernel's IR text.
    pub name: String,
    /// Index into [`Kernel::params`].
    pub param: u32,
}
