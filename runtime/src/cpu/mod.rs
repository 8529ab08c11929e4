//! The CPU device: x86-64 code of a bundle on this machine's threads.
//!
//! A kernel `NAME` is the symbol `NAME` of the shared object, of the C type
//! `void NAME(const uint64_t *args, const int32_t group[3], uint8_t *shared)`, and runs one workgroup. `args` has an
//! 8-byte slot per parameter: a pointer, or an i32 extended with zeros. `shared` is `shared_bytes` of memory of
//! undefined content for this call alone, aligned to 64 bytes. Workgroups of a launch run in any order and in parallel;
//! launches run one after the other.

mod code;
mod memory;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::device::{
    ArgValue, BufferId, Code, Device, ListId, ListedLaunch, Lists, check_alloc, check_launch, check_range, misuse,
};
use crate::manifest::{Kernel, TARGET_X86_64};
use crate::{Result, RuntimeError};
use code::{Entry, Module, Work, with_default_rounding};
use memory::{ALIGN, Region};

/// Most threads of a device.
const MAX_THREADS: usize = 1024;
/// Stack of a worker thread in bytes; kernels keep a workgroup's values on it.
const STACK: usize = 16 << 20;

/// How the CPU device runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads; 0 takes all that the system offers, 1 runs on the calling thread. Results do not depend on it.
    pub threads: usize,
    /// Whether accesses outside a buffer fault.
    pub guard: Guard,
    /// Fill shared memory with 0xFF before each workgroup, to find reads of memory that was never written.
    pub poison_shared: bool,
}

/// Where buffers lie relative to pages that fault on any access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guard {
    /// No such pages.
    #[default]
    Off,
    /// The buffer's end, rounded up to 64 bytes, touches one. Buffers stay aligned to 64 bytes.
    Aligned,
    /// The buffer's last byte touches one. Buffers are only as aligned as their length.
    Tight,
}

/// The CPU as a device.
pub struct CpuDevice {
    options: CpuOptions,
    pool: Option<ThreadPool>,
    /// Shared memory, one a thread.
    shared: Vec<Mutex<Region>>,
    buffers: BTreeMap<BufferId, Region>,
    next: u64,
    kernels: Vec<Kernel>,
    module: Option<Module>,
    lists: Lists<Vec<Prepared>>,
}

/// A checked launch, with the 8-byte slots of its arguments. Those of buffers are addresses: it lives no longer than they.
struct Prepared {
    kernel: u32,
    grid: [u32; 3],
    slots: Vec<u64>,
}

impl CpuDevice {
    /// A device with its own threads. Fails on a CPU without AVX2, FMA and F16C.
    pub fn new(options: CpuOptions) -> Result<Self> {
        check_features()?;
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS),
            n if n <= MAX_THREADS => n,
            n => return Err(misuse("threads", n, format!("0 to {MAX_THREADS}"))),
        };
        let pool = if threads == 1 {
            None
        } else {
            let builder = ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK);
            let builder = builder.thread_name(|i| format!("unglue-cpu-{i}"));
            Some(builder.build().map_err(|e| misuse("threads", e, format!("{threads} threads")))?)
        };
        let shared = shared_memory(threads, 0, options.guard)?;
        let options = CpuOptions { threads, ..options };
        Ok(CpuDevice {
            options,
            pool,
            shared,
            buffers: BTreeMap::new(),
            next: 0,
            kernels: Vec::new(),
            module: None,
            lists: Lists::default(),
        })
    }

    fn region(&self, id: BufferId) -> Result<&Region> {
        self.buffers.get(&id).ok_or_else(|| misuse("buffer handle", format!("{id:?}"), "a buffer of this device"))
    }

    fn region_mut(&mut self, id: BufferId) -> Result<&mut Region> {
        let unknown = || misuse("buffer handle", format!("{id:?}"), "a buffer of this device");
        self.buffers.get_mut(&id).ok_or_else(unknown)
    }

    /// The bytes `offset .. offset + bytes` of a buffer.
    fn range_mut(&mut self, id: BufferId, offset: u64, bytes: u64) -> Result<&mut [u8]> {
        let region = self.region_mut(id)?;
        check_range(offset, bytes, region.len() as u64)?;
        Ok(&mut region.bytes_mut()[offset as usize..(offset + bytes) as usize])
    }

    /// The 8-byte slot of an argument that [`check_launch`] passed.
    fn slot(&self, arg: &ArgValue) -> Result<u64> {
        match *arg {
            ArgValue::Buffer { id, offset, .. } => Ok(self.region(id)?.as_ptr().wrapping_add(offset as usize) as u64),
            ArgValue::Scalar(value) => Ok(u64::from(value as u32)),
        }
    }

    fn described(&self, kernel: u32) -> Result<(&Kernel, Entry)> {
        let unknown = || misuse("kernel index", kernel, format!("below {}", self.kernels.len()));
        let described = self.kernels.get(kernel as usize).ok_or_else(unknown)?;
        let entry = self.module.as_ref().and_then(|m| m.entry(kernel)).ok_or_else(unknown)?;
        Ok((described, entry))
    }

    /// Checks a launch.
    fn prepared(&self, kernel: u32, grid: [u32; 3], args: &[ArgValue]) -> Result<Prepared> {
        let (described, _) = self.described(kernel)?;
        check_launch(described, grid, args, |id| Ok(self.region(id)?.len() as u64))?;
        let slots = args.iter().map(|arg| self.slot(arg)).collect::<Result<Vec<u64>>>()?;
        Ok(Prepared { kernel, grid, slots })
    }

    /// Runs a launch that was prepared since code was loaded and a buffer was freed.
    fn run(&self, launch: &Prepared) -> Result<()> {
        let (described, entry) = self.described(launch.kernel)?;
        let work = Work { entry, args: &launch.slots, grid: launch.grid };
        let (shared_bytes, next) = (described.shared_bytes, AtomicU64::new(0));
        match &self.pool {
            Some(pool) if launch.grid != [1, 1, 1] => {
                pool.broadcast(|context| self.worker(context.index(), &work, shared_bytes, &next));
            }
            _ => self.worker(0, &work, shared_bytes, &next),
        }
        Ok(())
    }

    /// Takes workgroups off `next` in chunks until none is left.
    fn worker(&self, thread: usize, work: &Work<'_>, shared_bytes: u64, next: &AtomicU64) {
        let total: u64 = work.grid.iter().map(|&n| u64::from(n)).product();
        let chunk = (total / (self.options.threads as u64 * 8)).max(1);
        let mut region = self.shared[thread].lock().unwrap_or_else(PoisonError::into_inner);
        // At the end of the region, so that in guard mode an access past it faults.
        let start = region.len() - (shared_bytes as usize).next_multiple_of(ALIGN);
        let shared = &mut region.bytes_mut()[start..];
        with_default_rounding(|| {
            loop {
                let first = next.fetch_add(chunk, Ordering::Relaxed);
                if first >= total {
                    break;
                }
                for index in first..(first + chunk).min(total) {
                    if self.options.poison_shared {
                        shared.fill(0xff);
                    }
                    run_group(work, index, shared);
                }
            }
        });
    }
}

/// Runs one workgroup of a checked launch.
#[allow(unsafe_code, reason = "calls generated code")]
fn run_group(work: &Work<'_>, index: u64, shared: &mut [u8]) {
    // SAFETY: only `CpuDevice::run` makes a `Work`, from arguments that were checked while the same buffers lived, and only
    // `launch` and `replay` call it, which borrow the device and so its buffers mutably; `shared` is as long as the kernel says and borrowed mutably.
    unsafe { work.run(index, shared.as_mut_ptr()) }
}

fn shared_memory(threads: usize, bytes: u64, guard: Guard) -> Result<Vec<Mutex<Region>>> {
    let guard = if guard == Guard::Off { Guard::Off } else { Guard::Aligned };
    check_alloc(bytes)?;
    let bytes = bytes.next_multiple_of(ALIGN as u64);
    (0..threads).map(|_| Ok(Mutex::new(Region::new(bytes, guard)?))).collect()
}

#[cfg(target_arch = "x86_64")]
fn check_features() -> Result<()> {
    let has = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
    ];
    let missing: Vec<&str> = has.iter().filter(|(_, has)| !has).map(|(name, _)| *name).collect();
    if missing.is_empty() { Ok(()) } else { Err(RuntimeError::CpuFeatures { missing: missing.join(", ") }) }
}

#[cfg(not(target_arch = "x86_64"))]
fn check_features() -> Result<()> {
    Err(RuntimeError::CpuFeatures { missing: "the x86-64 instruction set".into() })
}

impl Device for CpuDevice {
    fn name(&self) -> String {
        format!("cpu ({} threads)", self.options.threads)
    }

    fn target(&self) -> &str {
        TARGET_X86_64
    }

    fn alloc(&mut self, bytes: u64) -> Result<BufferId> {
        let region = Region::new(bytes, self.options.guard)?;
        let id = BufferId(self.next);
        self.next += 1;
        self.buffers.insert(id, region);
        Ok(id)
    }

    fn free(&mut self, id: BufferId) -> Result<()> {
        self.region(id)?;
        self.lists.clear();
        self.buffers.remove(&id);
        Ok(())
    }

    fn fill(&mut self, id: BufferId, offset: u64, bytes: u64, byte: u8) -> Result<()> {
        self.range_mut(id, offset, bytes)?.fill(byte);
        Ok(())
    }

    fn write(&mut self, id: BufferId, offset: u64, data: &[u8]) -> Result<()> {
        self.range_mut(id, offset, data.len() as u64)?.copy_from_slice(data);
        Ok(())
    }

    fn read(&self, id: BufferId, offset: u64, data: &mut [u8]) -> Result<()> {
        let region = self.region(id)?;
        check_range(offset, data.len() as u64, region.len() as u64)?;
        data.copy_from_slice(&region.bytes()[offset as usize..][..data.len()]);
        Ok(())
    }

    fn load(&mut self, kernels: &[Kernel], code: &[Code<'_>]) -> Result<()> {
        let [Code { kernel: None, bytes }] = code else {
            let (found, needed) = (format!("{} parts", code.len()), "one shared object with all kernels".into());
            return Err(RuntimeError::CodeLoad { target: TARGET_X86_64.into(), found, needed });
        };
        self.lists.clear();
        let module = Module::load(bytes, kernels)?;
        let most = kernels.iter().map(|k| k.shared_bytes).max().unwrap_or(0);
        self.shared = shared_memory(self.options.threads, most, self.options.guard)?;
        self.kernels = kernels.to_vec();
        self.module = Some(module);
        Ok(())
    }

    fn launch(&mut self, kernel: u32, grid: [u32; 3], args: &[ArgValue]) -> Result<()> {
        let launch = self.prepared(kernel, grid, args)?;
        self.run(&launch)
    }

    fn record(&mut self, launches: &[ListedLaunch<'_>]) -> Result<Option<ListId>> {
        let list = launches.iter().map(|l| self.prepared(l.kernel, l.grid, l.args)).collect::<Result<_>>()?;
        Ok(Some(self.lists.add(list)))
    }

    fn forget(&mut self, list: ListId) -> Result<()> {
        self.lists.forget(list)
    }

    fn replay(&mut self, list: ListId) -> Result<()> {
        self.lists.get(list)?.iter().try_for_each(|launch| self.run(launch))
    }
}
