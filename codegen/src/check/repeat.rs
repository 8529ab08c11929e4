//! One launch over and over: results that differ from launch to launch are found by numbers of them.

use std::collections::BTreeMap;

use unglue_runtime::Device;

use super::{Launch, Mismatch, Run, Subject, UNWRITTEN, cannot, draw};
use crate::error::CodegenError;
use crate::generate::{StepBuffer, Use};

/// Whether workgroups of a kernel meet: one goes on when all have arrived.
#[must_use]
pub fn meets(uses: &[Use]) -> bool {
    uses.contains(&Use::Step(StepBuffer::Counter))
}

/// As [`super::check`]; then launches the subject `times` times more on the same inputs, and compares all bits that it writes
/// with those of the first launch.
///
/// # Errors
/// As [`super::check`].
pub fn check_repeated(
    device: &mut dyn Device,
    subject: &Subject,
    seed: u64,
    times: u32,
) -> Result<Option<Mismatch>, CodegenError> {
    let drawn = draw::draw_all(subject.graph, &subject.bucket, seed).map_err(|e| cannot(subject, &e))?;
    super::with_run(device, subject, &drawn, |run| {
        let launch = run.prepare()?;
        match run.launch_and_compare(&launch)? {
            None => run.repeat(&launch, times),
            wrong => Ok(wrong),
        }
    })
}

impl Run<'_, '_> {
    /// Compares launches with what lies in the buffers now.
    fn repeat(&mut self, launch: &Launch, times: u32) -> Result<Option<Mismatch>, CodegenError> {
        let mut first: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        let mut states: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        for (i, of) in self.subject.uses.iter().enumerate() {
            match of {
                Use::Output(_) | Use::Step(StepBuffer::Status | StepBuffer::Counter) => {}
                Use::State(_) => {
                    states.insert(i, self.content(of)?);
                }
                _ => continue,
            }
            first.insert(i, self.read(i)?);
        }
        for time in 1..=times {
            self.restore(&states)?;
            self.device.launch(self.subject.number, launch.grid, &launch.args).map_err(|e| cannot(self.subject, &e))?;
            for (i, want) in &first {
                let got = self.read(*i)?;
                if let Some(at) = (0..want.len()).find(|at| got[*at] != want[*at]) {
                    return Ok(Some(self.differs(*i, at / 4, (&got, want), time)));
                }
            }
        }
        Ok(None)
    }

    /// Puts states back, and outputs to what nothing wrote: what a launch leaves out is seen.
    fn restore(&mut self, states: &BTreeMap<usize, Vec<u8>>) -> Result<(), CodegenError> {
        for (i, of) in self.subject.uses.iter().enumerate() {
            let Some((id, len)) = self.buffers.get(&i).copied() else { continue };
            let done = match (of, states.get(&i)) {
                (Use::Output(_), _) => self.device.fill(id, 0, len as u64, UNWRITTEN),
                (_, Some(state)) => self.device.write(id, 0, state),
                _ => Ok(()),
            };
            done.map_err(|e| cannot(self.subject, &e))?;
        }
        Ok(())
    }

    /// A 32-bit word that is not the first launch's.
    fn differs(&self, param: usize, word: usize, (got, want): (&[u8], &[u8]), time: u32) -> Mismatch {
        let bits = |bytes: &[u8]| {
            let word: Vec<u8> = bytes.iter().skip(4 * word).take(4).rev().copied().collect();
            word.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}"))
        };
        Mismatch {
            kernel: self.subject.name.into(),
            value: format!("word of {:?}", self.subject.uses[param]),
            index: word,
            row: 0,
            device: format!("{} in launch {}", bits(got), time + 1),
            interpreter: format!("{}, as the first launch", bits(want)),
            seed: self.given.seed,
        }
    }
}
