//! Sizes that bundles have so far.

use unglue_ir::module::Module;
use unglue_ir::types::StateKind;

/// Rows of the launch lists that every bundle has.
#[cfg(feature = "compile")]
pub const ROWS: [u32; 3] = [1, 4, 16];
/// Most rows of a step of any bundle: what was tried so far.
#[cfg(feature = "compile")]
pub const MAX_ROWS: u32 = 2048;

/// Rows of the launch lists of a bundle whose steps have up to `max_rows` rows.
#[cfg(feature = "compile")]
pub fn launch_rows(max_rows: u32) -> Vec<u32> {
    let more = Some(max_rows).filter(|rows| ROWS.iter().all(|r| r < rows));
    ROWS.into_iter().chain(more).collect()
}

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
