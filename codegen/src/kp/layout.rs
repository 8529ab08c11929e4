//! Where the shared arrays of a program lie.

use super::{Mem, Program};

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

/// Bytes of all shared arrays, a multiple of [`SHARED_ALIGN`].
#[must_use]
pub fn shared_bytes(p: &Program) -> u64 {
    p.shared.iter().map(|array| (u64::from(array.len) * array.mem.bytes()).next_multiple_of(SHARED_ALIGN)).sum()
}
