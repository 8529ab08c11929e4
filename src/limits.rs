//! Sizes that bundles have so far.

use unglue_ir::module::Module;
use unglue_ir::types::StateKind;

/// Rows of the launch lists.
#[cfg(feature = "compile")]
pub const ROWS: [u32; 3] = [1, 4, 16];
/// Longest context.
pub const MAX_CTX: u64 = 32768;
#[cfg(feature = "compile")]
pub const MAX_SEQS: u32 = 4;
#[cfg(feature = "compile")]
pub const KV_BLOCK: u64 = 64;

/// Tokens of one pool of the trunk's pooled keys; 0 if it has none.
pub fn pool_size(module: &Module) -> u64 {
    let pool = |ty: &unglue_ir::types::StateType| match ty.kind {
        StateKind::Pool { pool, .. } => Some(pool),
        _ => None,
    };
    module.states.iter().find_map(|s| pool(&s.ty)).unwrap_or(0)
}
