//! Where the shared arrays of a program lie.

use super::{Mem, Program, Shared, Stmt};

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

impl Shared {
    /// Bytes that it takes of its own, a multiple of [`SHARED_ALIGN`]: none in another's place.
    fn own_bytes(&self) -> u64 {
        if self.over.is_some() { 0 } else { self.bytes().next_multiple_of(SHARED_ALIGN) }
    }

    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.len) * self.mem.bytes()
    }
}

/// Byte offset of each shared array, in order; each array starts on a multiple of [`SHARED_ALIGN`].
#[must_use]
pub fn shared_offsets(p: &Program) -> Vec<u64> {
    let (mut end, mut starts) = (0, Vec::with_capacity(p.shared.len()));
    for array in &p.shared {
        let place = array.over.and_then(|i| starts.get(i as usize).copied());
        starts.push(place.unwrap_or(end));
        end += array.own_bytes();
    }
    starts
}

/// Bytes of all shared arrays and of the slot that [`finish_slot`] tells of, a multiple of [`SHARED_ALIGN`].
#[must_use]
pub fn shared_bytes(p: &Program) -> u64 {
    let arrays: u64 = p.shared.iter().map(Shared::own_bytes).sum();
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
