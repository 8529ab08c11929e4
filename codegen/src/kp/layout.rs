//! Where the shared arrays of a program lie.

use super::{Mem, Program, Stmt};

/// Alignment of each shared array, in bytes.
pub const SHARED_ALIGN: u64 = 64;

impl Mem {
    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Mem::F32 | Mem::I32 => 4,
            Mem::Bf16 | Mem::F16 => 2,
        }
    }
}

/// Byte offset of each shared array, in order; each array starts on a multiple of [`SHARED_ALIGN`].
#[must_use]
pub fn shared_offsets(p: &Program) -> Vec<u64> {
    let mut end = 0;
    p.shared
        .iter()
        .map(|array| {
            let start = end;
            end += (u64::from(array.len) * array.mem.bytes()).next_multiple_of(SHARED_ALIGN);
            start
        })
        .collect()
}

/// Bytes of all shared arrays and of the slot that [`finish_slot`] tells of, a multiple of [`SHARED_ALIGN`].
#[must_use]
pub fn shared_bytes(p: &Program) -> u64 {
    let arrays: u64 =
        p.shared.iter().map(|array| (u64::from(array.len) * array.mem.bytes()).next_multiple_of(SHARED_ALIGN)).sum();
    arrays + if finish_slot(p) { SHARED_ALIGN } else { 0 }
}

/// Whether a program needs an i32 of shared memory, behind its arrays, that tells every wave of a workgroup whether it
/// arrived last ([`Stmt::GridFinish`]). Counted on every target, so that one number describes the kernel.
#[must_use]
pub fn finish_slot(p: &Program) -> bool {
    p.waves > 1 && p.body.iter().any(finishes)
}

fn finishes(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::GridFinish { .. } => true,
        Stmt::If { then, otherwise, .. } => then.iter().chain(otherwise).any(finishes),
        Stmt::For(f) => f.body.iter().any(finishes),
        Stmt::Let(..)
        | Stmt::Store { .. }
        | Stmt::TileStore { .. }
        | Stmt::Prefetch { .. }
        | Stmt::Await { .. }
        | Stmt::Spin { .. }
        | Stmt::Barrier => false,
    }
}
