//! A few instructions on one wave, without a code object: what conformance tests run.

use super::env::Env;
use super::fault::Fault;
use super::group::Barrier;
use super::lanes::execute;
use super::lds::Lds;
use super::memory::{CODE_BASE, Space};
use super::op::Flow;
use super::step::decode;
use super::wave::Wave;
use crate::counts::Counts;
use crate::target::Target;

/// What surrounds a snippet.
pub struct Surroundings<'a> {
    pub lds: Lds,
    pub space: Space<'a>,
    pub scratch_bytes: u32,
    pub perturb: Option<u32>,
}

impl Default for Surroundings<'_> {
    fn default() -> Self {
        Surroundings { lds: Lds::new(65536, 1), space: Space::default(), scratch_bytes: 0, perturb: None }
    }
}

/// Runs `code` on a wave until it ends or runs out.
///
/// # Errors
/// The first fault.
pub fn run(code: &[u8], target: &Target, w: &mut Wave, around: &mut Surroundings<'_>) -> Result<Counts, Fault> {
    let code = decode(code, target, 256, 106).map_err(|trap| trap.fault)?;
    let (mut barrier, mut counts) = (Barrier::new(1), Counts::default());
    let mut env = Env {
        code: &code,
        space: &around.space,
        lds: &mut around.lds,
        barrier: &mut barrier,
        counts: &mut counts,
        code_address: CODE_BASE,
        scratch_bytes: around.scratch_bytes,
        perturb: around.perturb,
    };
    w.pc = 0;
    while let Some(step) = code.steps.get(w.pc) {
        env.counts.instructions[step.op.class as usize] += 1;
        match execute(w, &mut env, step)? {
            Flow::Next => w.pc += 1,
            Flow::Jump(to) => w.pc = to,
            Flow::Blocked => return Err(Fault::Deadlock("a wave alone waits".into())),
            Flow::End => break,
        }
    }
    Ok(counts)
}
