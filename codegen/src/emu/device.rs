//! The emulator as a device of the runtime.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use unglue_runtime::manifest::{Access, Kernel as Described, ParamKind};
use unglue_runtime::{ArgValue, BufferId, Code, Device, RuntimeError, check_launch};

use super::fault::Trap;
use super::group::{GroupOptions, Runner, Schedule, coordinates, group_order};
use super::load::{Kernel, LaunchState, load};
use super::memory::{CODE_BASE, Region, Rights, Space, Words};
use crate::counts::Counts;
use crate::isa::sreg;
use crate::target::{self, Target};

/// The target whose code it executes.
const TARGET: &str = "gfx1201";
/// Most threads.
const MAX_THREADS: usize = 1024;
/// Largest buffer.
const MAX_BUFFER: u64 = 1 << 38;

/// How the emulator runs.
#[derive(Clone, Copy, Debug)]
pub struct EmuOptions {
    /// Threads for workgroups; 0 takes all that the system offers. Results do not depend on it.
    pub threads: usize,
    /// Order of waves and workgroups.
    pub schedule: Schedule,
    /// Initial content of registers and LDS: a NaN as f32, far outside of everything as an index.
    pub poison: u32,
    /// Most instructions of one workgroup.
    pub step_limit: u64,
    /// Flip last bits of approximations, by a hash of this.
    pub perturb: Option<u32>,
}

impl Default for EmuOptions {
    fn default() -> Self {
        EmuOptions { threads: 0, schedule: Schedule::Forward, poison: 0x7fe1_dead, step_limit: 1 << 34, perturb: None }
    }
}

struct Buffer {
    words: Words,
    bytes: u64,
}

/// A gfx1201 in software.
pub struct EmuDevice {
    options: EmuOptions,
    target: &'static Target,
    pool: ThreadPool,
    buffers: BTreeMap<BufferId, Buffer>,
    next: u64,
    described: Vec<Described>,
    kernels: Vec<Kernel>,
    /// By kernel name.
    counts: Mutex<BTreeMap<String, Counts>>,
}

fn misuse(rule: &'static str, found: impl ToString, needed: impl ToString) -> RuntimeError {
    RuntimeError::Device { rule, found: found.to_string(), needed: needed.to_string() }
}

impl EmuDevice {
    /// A device with its own threads.
    ///
    /// # Errors
    /// Too many threads, or none to be had.
    pub fn new(options: EmuOptions) -> Result<Self, RuntimeError> {
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS),
            n if n <= MAX_THREADS => n,
            n => return Err(misuse("threads", n, format!("0 to {MAX_THREADS}"))),
        };
        let builder = ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("unglue-emu-{i}"));
        let pool = builder.build().map_err(|e| misuse("threads", e, format!("{threads} threads")))?;
        let target = target::by_name(TARGET).ok_or_else(|| misuse("target", "no such target", TARGET))?;
        Ok(EmuDevice {
            options: EmuOptions { threads, ..options },
            target,
            pool,
            buffers: BTreeMap::new(),
            next: 0,
            described: Vec::new(),
            kernels: Vec::new(),
            counts: Mutex::default(),
        })
    }

    /// Changes the order of waves and workgroups, the poison or the perturbation; threads stay.
    pub fn set_options(&mut self, options: EmuOptions) {
        self.options = EmuOptions { threads: self.options.threads, ..options };
    }

    /// The options.
    #[must_use]
    pub const fn options(&self) -> EmuOptions {
        self.options
    }

    /// What was executed since the last call, by kernel name.
    pub fn take_counts(&self) -> BTreeMap<String, Counts> {
        std::mem::take(&mut *self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn buffer(&self, id: BufferId) -> Result<&Buffer, RuntimeError> {
        self.buffers.get(&id).ok_or_else(|| misuse("buffer handle", format!("{id:?}"), "a buffer of this device"))
    }

    /// A buffer, after a check that the range lies in it.
    fn range(&self, id: BufferId, offset: u64, bytes: u64) -> Result<&Buffer, RuntimeError> {
        let buffer = self.buffer(id)?;
        match offset.checked_add(bytes) {
            Some(end) if end <= buffer.bytes => Ok(buffer),
            _ => {
                let needed = format!("at most {} bytes in all", buffer.bytes);
                Err(misuse("range in buffer", format!("{bytes} bytes at {offset}"), needed))
            }
        }
    }

    /// Regions of the arguments and the kernel argument segment.
    fn space<'a>(
        &'a self,
        described: &'a Described,
        kernel: &'a Kernel,
        args: &[ArgValue],
    ) -> Result<(Space<'a>, Vec<u8>), RuntimeError> {
        let mut space = Space::default();
        space.add(kernel.region());
        let mut kernarg = Vec::new();
        for (param, arg) in described.params.iter().zip(args) {
            match (param.kind, arg) {
                (ParamKind::Buffer { access, .. }, ArgValue::Buffer { id, offset, bytes }) => {
                    let rights = if access == Access::Read { Rights::Read } else { Rights::ReadWrite };
                    let words = &self.buffer(*id)?.words;
                    let address =
                        space.add(Region { name: &param.name, words, offset: *offset, bytes: *bytes, rights });
                    kernarg.resize(kernarg.len().next_multiple_of(8), 0);
                    kernarg.extend(address.to_le_bytes());
                }
                (_, ArgValue::Scalar(value)) => kernarg.extend(value.to_le_bytes()),
                (kind, arg) => return Err(misuse("argument kind", format!("{arg:?}"), format!("{kind:?}"))),
            }
        }
        if kernarg.len() > kernel.kernarg_bytes as usize {
            let found = format!("{} bytes of arguments", kernarg.len());
            return Err(misuse("argument segment", found, format!("{} bytes", kernel.kernarg_bytes)));
        }
        kernarg.resize(kernel.kernarg_bytes as usize, 0xa5);
        Ok((space, kernarg))
    }

    /// Runs every workgroup; the fault of the first in order wins, whatever the threads do.
    fn run(&self, kernel: &Kernel, space: &Space<'_>, state: &LaunchState, grid: [u32; 3]) -> Result<Counts, Trap> {
        let o = self.options;
        let options =
            GroupOptions { schedule: o.schedule, poison: o.poison, step_limit: o.step_limit, perturb: o.perturb };
        let total: u64 = grid.iter().map(|n| u64::from(*n)).product();
        let (next, stop) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        let first: Mutex<Option<(u64, Trap)>> = Mutex::new(None);
        let counts = Mutex::new(Counts { launches: 1, ..Counts::default() });
        let chunk = (total / (o.threads as u64 * 8)).clamp(1, 64);
        let work = || {
            let mut runner = Runner::new(kernel, space, state, options);
            loop {
                let start = next.fetch_add(chunk, Ordering::Relaxed);
                if start >= total {
                    break;
                }
                for place in start..(start + chunk).min(total) {
                    if place > stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let index = group_order(o.schedule, total, place);
                    if let Err(trap) = runner.run(coordinates(index, grid)) {
                        stop.fetch_min(place, Ordering::Relaxed);
                        let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                        if first.as_ref().is_none_or(|(at, _)| place < *at) {
                            *first = Some((place, trap));
                        }
                        break;
                    }
                }
            }
            counts.lock().unwrap_or_else(PoisonError::into_inner).merge(&runner.counts);
        };
        if total == 1 || o.threads == 1 {
            work();
        } else {
            self.pool.broadcast(|_| work());
        }
        match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, trap)) => Err(trap),
            None => Ok(counts.into_inner().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

impl Device for EmuDevice {
    fn name(&self) -> String {
        format!("gfx12-emu ({} threads)", self.options.threads)
    }

    fn target(&self) -> &str {
        TARGET
    }

    fn alloc(&mut self, bytes: u64) -> Result<BufferId, RuntimeError> {
        if bytes > MAX_BUFFER {
            let detail = format!("no buffer may pass {MAX_BUFFER}");
            return Err(RuntimeError::OutOfMemory { bytes, detail });
        }
        let id = BufferId(self.next);
        self.next += 1;
        self.buffers.insert(id, Buffer { words: Words::zeroed(bytes as usize), bytes });
        Ok(id)
    }

    fn free(&mut self, id: BufferId) -> Result<(), RuntimeError> {
        self.buffer(id)?;
        self.buffers.remove(&id);
        Ok(())
    }

    fn fill(&mut self, id: BufferId, offset: u64, bytes: u64, byte: u8) -> Result<(), RuntimeError> {
        let buffer = self.range(id, offset, bytes)?;
        let chunk = vec![byte; bytes.min(1 << 16) as usize];
        let mut at = 0;
        while at < bytes {
            let n = (bytes - at).min(1 << 16) as usize;
            buffer.words.write((offset + at) as usize, &chunk[..n]);
            at += n as u64;
        }
        Ok(())
    }

    fn write(&mut self, id: BufferId, offset: u64, data: &[u8]) -> Result<(), RuntimeError> {
        self.range(id, offset, data.len() as u64)?.words.write(offset as usize, data);
        Ok(())
    }

    fn read(&self, id: BufferId, offset: u64, data: &mut [u8]) -> Result<(), RuntimeError> {
        self.range(id, offset, data.len() as u64)?.words.read(offset as usize, data);
        Ok(())
    }

    fn load(&mut self, kernels: &[Described], code: &[Code<'_>]) -> Result<(), RuntimeError> {
        let failed = |found: String, needed: &str| RuntimeError::CodeLoad {
            target: TARGET.into(),
            found,
            needed: needed.to_owned(),
        };
        let mut objects = BTreeMap::new();
        for part in code {
            let number = part.kernel.ok_or_else(|| failed("one part for all kernels".into(), "a code object each"))?;
            objects.insert(number, part.bytes);
        }
        let numbered: Vec<(u32, &Described)> = (0..).zip(kernels).collect();
        let load_one = |&(number, kernel): &(u32, &Described)| {
            let bytes = objects
                .get(&number)
                .ok_or_else(|| failed(format!("none for {}", kernel.name), "a code object each"))?;
            let loaded = load(bytes, &kernel.name, self.target)
                .map_err(|e| failed(format!("kernel {}: {e}", kernel.name), "a code object that the emulator knows"))?;
            let items = kernel.waves * sreg::LANES;
            if loaded.items != Some(items) {
                let found = format!("kernel {} for workgroups of {:?} work items", kernel.name, loaded.items);
                return Err(failed(found, "metadata that agrees with the manifest's waves"));
            }
            // LLVM leaves out LDS that nothing uses; other compilers leave it to the launch.
            let shared = u32::try_from(kernel.shared_bytes)
                .map_err(|_| failed(format!("{} bytes of LDS", kernel.shared_bytes), "what fits 32 bits"))?;
            Ok(loaded.with_dynamic_lds(shared))
        };
        let loaded = self.pool.install(|| numbered.par_iter().map(load_one).collect::<Result<Vec<_>, _>>())?;
        (self.described, self.kernels) = (kernels.to_vec(), loaded);
        Ok(())
    }

    fn launch(&mut self, kernel: u32, grid: [u32; 3], args: &[ArgValue]) -> Result<(), RuntimeError> {
        let unknown = || misuse("kernel index", kernel, format!("below {}", self.kernels.len()));
        let described = self.described.get(kernel as usize).ok_or_else(unknown)?;
        let code = self.kernels.get(kernel as usize).ok_or_else(unknown)?;
        check_launch(described, grid, args, |id| Ok(self.buffer(id)?.bytes))?;
        let (mut space, kernarg) = self.space(described, code, args)?;
        let segment = Words::zeroed(kernarg.len());
        segment.write(0, &kernarg);
        let bytes = kernarg.len() as u64;
        let kernarg =
            space.add(Region { name: "kernel arguments", words: &segment, offset: 0, bytes, rights: Rights::Read });
        let items = [described.waves * sreg::LANES, 1, 1];
        let state = LaunchState { kernarg, code_address: CODE_BASE + code.entry, items };
        let counts = self.run(code, &space, &state, grid).map_err(|trap| RuntimeError::KernelTrap {
            kernel: described.name.clone(),
            device: self.name(),
            found: trap.to_string(),
        })?;
        let mut all = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(described.name.clone()).or_default().merge(&counts);
        Ok(())
    }
}
