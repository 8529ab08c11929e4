//! Running a step.

use super::{MAX_LISTS, Session, StepBatch, Value, clear_counter, le_bytes};
use crate::device::{ArgValue, ListId, ListedLaunch};
use crate::layout::{Geometry, buffer_shape};
use crate::manifest::{Dim, StepInput};
use crate::{FaultKind, Result, RuntimeError};

/// What a step gives.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutput {
    /// `[L, V]`.
    pub logits: Vec<f32>,
    /// `[L]`, the lowest id of the greatest logit.
    pub argmax: Vec<i32>,
}

/// When a hook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The launch is next.
    Before,
    /// The launch has run.
    After,
}

/// A launch that is about to run, or has just run.
#[derive(Clone, Copy, Debug)]
pub struct LaunchEvent<'a> {
    /// Before or after the launch.
    pub moment: Moment,
    /// Index of the bucket.
    pub bucket: usize,
    /// Index of the launch in the bucket.
    pub launch: usize,
    /// Name of the kernel.
    pub kernel: &'a str,
    /// Checkpoint number of the layer.
    pub layer: Option<u32>,
    /// Where in the trunk.
    pub site: &'a str,
}

/// Reads device memory during a step.
pub trait BufferReader {
    /// Activation `buffer` of the manifest as it is now. A leading axis of rows, sequences or logit rows is cut to those
    /// of the step.
    fn read_buffer(&self, buffer: u32) -> Result<Value>;

    /// All bytes of the buffer that parameter `param` of the event's launch is, as the device holds them.
    fn read_argument(&self, param: usize) -> Result<Vec<u8>>;

    /// The step's rows, slots and blocks.
    fn batch(&self) -> &StepBatch;

    /// How the session lays out state.
    fn geometry(&self) -> &Geometry;
}

/// Called before and after each launch; an error stops the step.
pub type Hook<'a> = dyn FnMut(&LaunchEvent<'_>, &dyn BufferReader) -> std::result::Result<(), String> + 'a;

/// A session in the middle of a step.
struct InStep<'a> {
    session: &'a Session,
    batch: &'a StepBatch,
    bucket: usize,
    launch: usize,
}

impl BufferReader for InStep<'_> {
    fn read_buffer(&self, buffer: u32) -> Result<Value> {
        let manifest = self.session.manifest();
        let index = buffer as usize;
        let placed = self.session.plans[self.bucket].placed.get(index).copied().flatten();
        let (Some(ArgValue::Buffer { id, offset, .. }), Some(described)) = (placed, manifest.buffers.get(index)) else {
            let known = format!("0..{} that bucket {} places", manifest.buffers.len(), self.bucket);
            return Err(RuntimeError::Unknown { what: "buffer", name: buffer.to_string(), known });
        };
        let mut shape = buffer_shape(described, &manifest.buckets[self.bucket]);
        let lead = match described.shape.first() {
            Some(Dim::Rows) => Some(self.batch.ids.len()),
            Some(Dim::Seqs) => Some(self.batch.seqs()),
            Some(Dim::Logits) => Some(self.batch.logit_rows.len()),
            _ => None,
        };
        if let (Some(lead), Some(axis)) = (lead, shape.first_mut()) {
            *axis = lead as u64;
        }
        // At most the buffer's own size, which was checked.
        let mut bytes = vec![0; (shape.iter().product::<u64>() * described.mem.bytes()) as usize];
        self.session.device.read(id, offset, &mut bytes)?;
        Ok(Value { mem: described.mem, shape, bytes })
    }

    fn read_argument(&self, param: usize) -> Result<Vec<u8>> {
        let launches = &self.session.plans[self.bucket].launches;
        let args = launches.get(self.launch).map(|l| l.args.as_slice()).unwrap_or_default();
        let Some(ArgValue::Buffer { id, offset, bytes }) = args.get(param).copied() else {
            let known = format!("the buffers among parameters 0..{}", args.len());
            return Err(RuntimeError::Unknown { what: "buffer of a launch", name: param.to_string(), known });
        };
        // Allocated on the device already.
        let mut out = vec![0; bytes as usize];
        self.session.device.read(id, offset, &mut out)?;
        Ok(out)
    }

    fn batch(&self) -> &StepBatch {
        self.batch
    }

    fn geometry(&self) -> &Geometry {
        &self.session.geometry
    }
}

impl Session {
    /// Runs a step: the smallest bucket that holds it, every launch, and the status check. After an error, the state of
    /// the batch's sequences is undefined.
    pub fn step(&mut self, batch: &StepBatch) -> Result<StepOutput> {
        self.run(batch, None)
    }

    /// Like [`Session::step`]; calls `hook` before and after each launch.
    pub fn step_with(&mut self, batch: &StepBatch, hook: &mut Hook<'_>) -> Result<StepOutput> {
        self.run(batch, Some(hook))
    }

    pub(super) fn run(&mut self, batch: &StepBatch, hook: Option<&mut Hook<'_>>) -> Result<StepOutput> {
        batch.check(&self.geometry, self.options.unchecked_batch)?;
        let bucket = self.pick(batch)?;
        self.fill(batch, bucket)?;
        self.list_us = None;
        let list = if hook.is_some() || self.options.single_launches { None } else { self.list(batch, bucket)? };
        match list {
            Some(list) => self.replay(list)?,
            None => self.single_launches(batch, bucket, hook)?,
        }
        self.check_status()?;
        self.counters.steps += 1;
        self.counters.replays += u64::from(list.is_some());
        let reader = InStep { session: self, batch, bucket, launch: 0 };
        let outputs = &self.manifest().outputs;
        let logits = reader.read_buffer(outputs.logits)?.to_f32();
        let argmax = reader.read_buffer(outputs.argmax)?.to_i32();
        Ok(StepOutput { logits, argmax })
    }

    /// The smallest bucket that holds the batch.
    fn pick(&self, batch: &StepBatch) -> Result<usize> {
        let (rows, seqs, logits) = (batch.ids.len() as u64, batch.seqs() as u64, batch.logit_rows.len() as u64);
        let buckets = &self.manifest().buckets;
        let fits = buckets.iter().position(|b| b.rows_max >= rows && b.seqs_max >= seqs && b.logits_max >= logits);
        let last = buckets.last();
        let (max_rows, max_seqs) = last.map_or((0, 0), |b| (b.rows_max, b.seqs_max));
        let max_logits = last.map_or(0, |b| b.logits_max);
        fits.ok_or_else(|| RuntimeError::TooLarge {
            found: format!("{rows} rows of {seqs} sequences with {logits} logit rows"),
            needed: format!("{max_rows} rows of {max_seqs} sequences with {max_logits} logit rows"),
            chunk: max_rows,
        })
    }

    /// Writes the step's arrays, and poison where it is asked for.
    fn fill(&mut self, batch: &StepBatch, bucket: usize) -> Result<()> {
        for input in StepInput::ALL.into_iter().filter(|i| i.is_of_step()) {
            let array = batch.array(input, &self.manifest().buckets[bucket], &self.geometry);
            let id = self.input_id(input);
            self.device.write(id, 0, &le_bytes(&array))?;
        }
        if self.options.poison {
            for &(id, bytes) in &self.plans[bucket].arena {
                self.device.fill(id, 0, bytes, 0xff)?;
            }
        }
        Ok(())
    }

    fn single_launches(&mut self, batch: &StepBatch, bucket: usize, mut hook: Option<&mut Hook<'_>>) -> Result<()> {
        self.set_numbers(batch, bucket);
        for launch in 0..self.plans[bucket].launches.len() {
            if let Some(hook) = hook.as_deref_mut() {
                self.call(batch, (bucket, launch), Moment::Before, hook)?;
            }
            let planned = &self.plans[bucket].launches[launch];
            let done = self.device.launch(planned.kernel, planned.grid, &planned.args);
            self.launched(done)?;
            if let Some(hook) = hook.as_deref_mut() {
                self.call(batch, (bucket, launch), Moment::After, hook)?;
            }
        }
        Ok(())
    }

    /// The recorded list of a step's launches, recorded now if it is the first of its kind; none if the device has none.
    fn list(&mut self, batch: &StepBatch, bucket: usize) -> Result<Option<ListId>> {
        let key = (bucket, batch.ids.len(), batch.seqs(), batch.logit_rows.len(), self.options.edges);
        if let Some(list) = self.lists.get(&key) {
            return Ok(Some(*list));
        }
        self.set_numbers(batch, bucket);
        let launches = self.plans[bucket].launches.iter();
        let launches = launches.map(|l| ListedLaunch { kernel: l.kernel, grid: l.grid, args: &l.args });
        let Some(list) = self.device.record(&launches.collect::<Vec<_>>())? else { return Ok(None) };
        if self.lists.len() >= MAX_LISTS {
            for (_, old) in std::mem::take(&mut self.lists) {
                self.device.forget(old)?;
            }
        }
        self.lists.insert(key, list);
        self.counters.recorded += 1;
        Ok(Some(list))
    }

    fn replay(&mut self, list: ListId) -> Result<()> {
        let done = match self.options.timed_lists {
            true => self.device.replay_timed(list).map(|us| self.list_us = us),
            false => self.device.replay(list),
        };
        self.launched(done)
    }

    /// Sets the step's numbers in the arguments of its launches.
    fn set_numbers(&mut self, batch: &StepBatch, bucket: usize) {
        let (geometry, pool) = (&self.geometry, self.pool);
        for planned in &mut self.plans[bucket].launches {
            for &(arg, scalar) in &planned.scalars {
                planned.args[arg] = ArgValue::Scalar(batch.scalar(scalar, geometry, pool));
            }
        }
    }

    /// After a launch that failed, workgroups may have left their counter halfway; its own error counts more than another.
    fn launched(&mut self, done: Result<()>) -> Result<()> {
        if done.is_err() {
            let _ = clear_counter(&self.held, self.device.as_mut());
        }
        done
    }

    fn call(
        &self,
        batch: &StepBatch,
        (bucket, launch): (usize, usize),
        moment: Moment,
        hook: &mut Hook<'_>,
    ) -> Result<()> {
        let manifest = self.manifest();
        let described = &manifest.buckets[bucket].launches[launch];
        let kernel = manifest.kernels[described.kernel as usize].name.as_str();
        let event = LaunchEvent { moment, bucket, launch, kernel, layer: described.layer, site: &described.site };
        let failed = |found| RuntimeError::Hook { kernel: kernel.to_string(), found };
        hook(&event, &InStep { session: self, batch, bucket, launch }).map_err(failed)
    }

    /// The first fault that a kernel of the step met.
    fn check_status(&self) -> Result<()> {
        let mut bytes = [0; 16];
        self.device.read(self.input_id(StepInput::Status), 0, &mut bytes)?;
        let words = bytes.chunks_exact(4).map(|w| i32::from_le_bytes([w[0], w[1], w[2], w[3]]));
        let words: Vec<i32> = words.collect();
        let [claimed, row, value, code] = words[..] else { return Ok(()) };
        if claimed == 0 {
            return Ok(());
        }
        let index = usize::try_from(i64::from(claimed) - 1).ok();
        let kernel = index.and_then(|i| self.manifest().kernels.get(i));
        let kernel = kernel.map_or_else(|| format!("with status word {claimed}"), |k| k.name.clone());
        Err(RuntimeError::Fault { kernel, row, value, kind: FaultKind::from_code(code) })
    }
}
