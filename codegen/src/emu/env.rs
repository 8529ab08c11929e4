//! What an instruction can reach beside its wave.

use super::group::Barrier;
use super::lds::Lds;
use super::memory::Space;
use super::step::Code;
use crate::counts::Counts;

/// Everything around a wave during one instruction.
pub struct Env<'a> {
    pub code: &'a Code,
    /// Buffers of the launch and the code object's own data.
    pub space: &'a Space<'a>,
    pub lds: &'a mut Lds,
    pub barrier: &'a mut Barrier,
    pub counts: &'a mut Counts,
    /// Virtual address of the kernel's first instruction.
    pub code_address: u64,
    /// Private memory of a lane, bytes.
    pub scratch_bytes: u32,
    /// Flip the last bit of approximations, by a hash of this and the value: no result may depend on it.
    pub perturb: Option<u32>,
}
