//! Sizes of everything in a bundle, in checked u64 arithmetic.

use crate::manifest::{Bucket, Buffer, Dim, GridDim, Manifest, Mem, Options, State, StateKind, Symbol};
use crate::{Result, RuntimeError};

/// No single buffer may be larger: 64 TiB. Keeps every sum of sizes far from overflow.
pub(crate) const MAX_BYTES: u64 = 1 << 46;

/// Sizes that a session chooses, in tokens, blocks and slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Tokens per block of paged state; a multiple of the model's pool size.
    pub block_size: u64,
    /// Blocks of paged state.
    pub num_blocks: u64,
    /// Slots of per-sequence state.
    pub max_slots: u64,
    /// Longest context of one sequence, in tokens; at most the bundle's.
    pub max_ctx: u64,
}

impl Geometry {
    /// Room for `sequences` sequences of the bundle's longest context, with its block size.
    pub fn for_sequences(options: &Options, sequences: u64) -> Self {
        let block_size = options.kv_block.max(1);
        let num_blocks = options.max_ctx.div_ceil(block_size).saturating_mul(sequences);
        Geometry { block_size, num_blocks, max_slots: sequences, max_ctx: options.max_ctx }
    }

    /// M, the blocks of the longest context.
    pub const fn blocks_per_seq(&self) -> u64 {
        self.max_ctx.div_ceil(self.block_size)
    }
}

/// A manifest error.
pub(crate) fn broken(
    rule: &'static str,
    at: &str,
    found: impl std::fmt::Display,
    needed: impl std::fmt::Display,
) -> RuntimeError {
    RuntimeError::Manifest { rule, at: at.to_string(), found: found.to_string(), needed: needed.to_string() }
}

/// Product of `dims`; an error past 2^46.
pub(crate) fn product(dims: &[u64], at: &str) -> Result<u64> {
    let too_big = || broken("size", at, format!("shape {dims:?}"), format!("at most {MAX_BYTES} elements"));
    if dims.contains(&0) {
        return Ok(0);
    }
    let mut total: u64 = 1;
    for &dim in dims {
        total = total.checked_mul(dim).filter(|&n| n <= MAX_BYTES).ok_or_else(too_big)?;
    }
    Ok(total)
}

/// Bytes of a row-major array; an error past 2^46.
pub(crate) fn array_bytes(dims: &[u64], mem: Mem, at: &str) -> Result<u64> {
    let elements = product(dims, at)?;
    let bytes = elements.checked_mul(mem.bytes()).filter(|&n| n <= MAX_BYTES);
    bytes.ok_or_else(|| broken("size", at, format!("shape {dims:?} of {mem}"), format!("at most {MAX_BYTES} bytes")))
}

/// The symbol's value in a bucket.
pub(crate) const fn symbol(bucket: &Bucket, symbol: Symbol) -> u64 {
    match symbol {
        Symbol::Rows => bucket.rows_max,
        Symbol::Seqs => bucket.seqs_max,
        Symbol::Logits => bucket.logits_max,
        Symbol::Pools => bucket.pools,
    }
}

const fn dim(bucket: &Bucket, dim: Dim) -> u64 {
    match dim {
        Dim::Fixed(n) => n,
        Dim::Rows => bucket.rows_max,
        Dim::Seqs => bucket.seqs_max,
        Dim::Logits => bucket.logits_max,
        Dim::Pools => bucket.pools,
    }
}

/// Shape of an activation in a bucket.
pub(crate) fn buffer_shape(buffer: &Buffer, bucket: &Bucket) -> Vec<u64> {
    buffer.shape.iter().map(|&d| dim(bucket, d)).collect()
}

/// Elements of an activation in a bucket.
pub fn buffer_elements(buffer: &Buffer, bucket: &Bucket) -> Result<u64> {
    product(&buffer_shape(buffer, bucket), &format!("buffer {}", buffer.name))
}

/// Bytes of an activation in a bucket.
pub fn buffer_bytes(buffer: &Buffer, bucket: &Bucket) -> Result<u64> {
    array_bytes(&buffer_shape(buffer, bucket), buffer.mem, &format!("buffer {}", buffer.name))
}

/// The grid of a launch in a bucket: each axis 1 or more, x below 2^31, y and z below 2^16, 2^31 workgroups at most.
pub fn grid(dims: &[GridDim; 3], bucket: &Bucket, at: &str) -> Result<[u32; 3]> {
    let mut out = [0u32; 3];
    let mut groups: u64 = 1;
    for (axis, d) in dims.iter().enumerate() {
        let limit: u64 = if axis == 0 { i32::MAX as u64 } else { u64::from(u16::MAX) };
        let value = d.symbol.map_or(1, |s| symbol(bucket, s));
        let count = if d.div == 0 { None } else { value.checked_mul(d.mul).map(|n| n.div_ceil(d.div)) };
        let count = count.filter(|n| (1..=limit).contains(n));
        let count =
            count.ok_or_else(|| broken("grid", at, format!("{d:?}"), format!("1 to {limit} workgroups, div >= 1")))?;
        groups = groups.saturating_mul(count);
        out[axis] = u32::try_from(count).map_err(|_| broken("grid", at, count, limit))?;
    }
    if groups > i32::MAX as u64 {
        return Err(broken("grid", at, format!("{out:?}"), format!("at most {} workgroups", i32::MAX)));
    }
    Ok(out)
}

/// The pool size of the model's states in tokens; 1 without pools.
pub(crate) fn pool_size(manifest: &Manifest) -> u64 {
    let pool = |s: &State| match s.kind {
        StateKind::Pool { pool, .. } | StateKind::Tail { pool, .. } => Some(pool),
        StateKind::Slot { .. } | StateKind::Token { .. } => None,
    };
    manifest.states.iter().find_map(pool).unwrap_or(1)
}

/// Shape of a state's whole buffer.
pub(crate) fn state_shape(state: &State, geometry: &Geometry) -> Vec<u64> {
    match &state.kind {
        StateKind::Slot { shape } => [&[geometry.max_slots], shape.as_slice()].concat(),
        StateKind::Token { width } => vec![geometry.num_blocks, geometry.block_size, *width],
        StateKind::Pool { width, pool } => vec![geometry.num_blocks, geometry.block_size / (*pool).max(1), *width],
        StateKind::Tail { pool, width } => vec![geometry.max_slots, 2, *pool, *width],
    }
}

/// Bytes of a state's whole buffer.
pub(crate) fn state_bytes(state: &State, geometry: &Geometry) -> Result<u64> {
    array_bytes(&state_shape(state, geometry), state.mem, &format!("state {}", state.name))
}
