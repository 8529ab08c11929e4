//! The CUDA device: sm_90 code of a bundle on an NVIDIA GPU.
//!
//! A kernel is one PTX text, which the driver compiles when it is loaded, or a cubin of the caller's; its parameters are
//! those of the manifest in order, and a workgroup has `waves * 32` threads. Launches go to the default stream. The
//! driver's library is looked for at run time: without it, everything else of this crate works.

mod driver;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::device::{
    ArgValue, BufferId, Code, Device, Edges, ListId, ListedLaunch, Lists, check_alloc, check_launch, check_range,
    misuse,
};
use crate::manifest::{Kernel, TARGET_SM_90};
use crate::{Result, RuntimeError};
use driver::{Context, Function, Graph, Node, text};

/// Compute capability that the code is for.
const CAPABILITY: (i32, i32) = (9, 0);

/// First CUDA version whose drivers take edges of graphs on which the later launch starts early.
const DEPENDENT_VERSION: i32 = 12030;

/// Bytes that are written to drive everything else out of the caches: four times the L2 of an H200.
const FLUSH_BYTES: u64 = 240 << 20;

/// Which GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaOptions {
    /// The driver's number for it.
    pub ordinal: u32,
}

struct Buffer {
    at: u64,
    bytes: u64,
}

/// An NVIDIA GPU as a device.
pub struct CudaDevice {
    // Before the functions that they launch, and those before the context: modules are unloaded first.
    lists: Lists<Graph>,
    functions: Vec<Option<Function>>,
    kernels: Vec<Kernel>,
    buffers: BTreeMap<BufferId, Buffer>,
    next: u64,
    name: String,
    most_shared: u64,
    edges: Edges,
    /// Whether the driver takes [`Edges::Dependent`].
    dependent: bool,
    /// The last kernel that was launched: where a fault is looked for first.
    last: String,
    context: Arc<Context>,
}

impl CudaDevice {
    /// The GPU as a device.
    ///
    /// # Errors
    /// [`RuntimeError::Driver`] without a driver or GPU, or on one that this code is not for.
    pub fn new(options: CudaOptions) -> Result<Self> {
        let missing = |found: String| RuntimeError::Driver {
            found,
            needed: "an NVIDIA driver and a GPU of compute capability 9.0 (H100, H200)".into(),
        };
        if !driver::present() {
            return Err(missing("no libcuda.so".into()));
        }
        let ordinal = i32::try_from(options.ordinal).unwrap_or(i32::MAX);
        let context = Context::open(ordinal).map_err(|e| missing(format!("GPU {ordinal}: {}", text(e))))?;
        let facts = || Ok((context.name()?, context.capability()?, context.most_shared()?, Context::version()?));
        let (gpu, capability, most_shared, version) = facts().map_err(|e| missing(text(e)))?;
        if capability != CAPABILITY {
            return Err(missing(format!("{gpu} of compute capability {}.{}", capability.0, capability.1)));
        }
        Ok(CudaDevice {
            lists: Lists::default(),
            functions: Vec::new(),
            kernels: Vec::new(),
            buffers: BTreeMap::new(),
            next: 0,
            name: format!("cuda ({gpu})"),
            most_shared: u64::try_from(most_shared).unwrap_or(0),
            edges: Edges::Plain,
            dependent: version >= DEPENDENT_VERSION,
            last: "none".into(),
            context: Arc::new(context),
        })
    }

    fn buffer(&self, id: BufferId) -> Result<&Buffer> {
        self.buffers.get(&id).ok_or_else(|| misuse("buffer handle", format!("{id:?}"), "a buffer of this device"))
    }

    /// Address of `bytes` bytes at `offset` of a buffer.
    fn range(&self, id: BufferId, offset: u64, bytes: u64) -> Result<u64> {
        let buffer = self.buffer(id)?;
        check_range(offset, bytes, buffer.bytes)?;
        Ok(buffer.at + offset)
    }

    /// Errors of kernels come up at the next call that waits for them.
    fn trapped(&self, e: cudarc::driver::DriverError) -> RuntimeError {
        let (kernel, device) = (self.last.clone(), self.name.clone());
        RuntimeError::KernelTrap { kernel, device, found: text(e) }
    }

    fn load_one(&self, kernel: &Kernel, image: &[u8]) -> Result<Function> {
        let refused =
            |found: String, needed: String| RuntimeError::CodeLoad { target: TARGET_SM_90.into(), found, needed };
        if kernel.shared_bytes > self.most_shared {
            let found = format!("{} bytes of shared memory in {}", kernel.shared_bytes, kernel.name);
            return Err(refused(found, format!("at most {}", self.most_shared)));
        }
        let shared = i32::try_from(kernel.shared_bytes).unwrap_or(i32::MAX);
        let needed = || "PTX that this driver takes".to_owned();
        self.context
            .function(image, &kernel.name, shared)
            .map_err(|found| refused(format!("kernel {}: {found}", kernel.name), needed()))
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        self.lists.clear();
        self.functions.clear();
        for buffer in self.buffers.values() {
            // The context goes next, and what was not freed with it.
            let _ = self.context.free(buffer.at);
        }
    }
}

impl Device for CudaDevice {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn target(&self) -> &str {
        TARGET_SM_90
    }

    fn alloc(&mut self, bytes: u64) -> Result<BufferId> {
        check_alloc(bytes)?;
        let full = |detail: String| RuntimeError::OutOfMemory { bytes, detail };
        let size = usize::try_from(bytes).map_err(|e| full(e.to_string()))?;
        let at = self.context.alloc(size).map_err(|e| full(text(e)))?;
        let id = BufferId(self.next);
        self.next += 1;
        self.buffers.insert(id, Buffer { at, bytes });
        self.fill(id, 0, bytes, 0)?;
        Ok(id)
    }

    fn free(&mut self, id: BufferId) -> Result<()> {
        let at = self.buffer(id)?.at;
        self.lists.clear();
        self.buffers.remove(&id);
        self.context.free(at).map_err(|e| self.trapped(e))
    }

    fn fill(&mut self, id: BufferId, offset: u64, bytes: u64, byte: u8) -> Result<()> {
        let at = self.range(id, offset, bytes)?;
        self.context.fill(at, byte, bytes as usize).map_err(|e| self.trapped(e))
    }

    fn write(&mut self, id: BufferId, offset: u64, data: &[u8]) -> Result<()> {
        let at = self.range(id, offset, data.len() as u64)?;
        self.context.write(at, data).map_err(|e| self.trapped(e))
    }

    fn read(&self, id: BufferId, offset: u64, data: &mut [u8]) -> Result<()> {
        let at = self.range(id, offset, data.len() as u64)?;
        self.context.read(at, data).map_err(|e| self.trapped(e))
    }

    fn load(&mut self, kernels: &[Kernel], code: &[Code<'_>]) -> Result<()> {
        let mut functions: Vec<Option<Function>> = kernels.iter().map(|_| None).collect();
        for part in code {
            let number = part.kernel.map(|n| n as usize);
            let Some((kernel, slot)) = number.and_then(|n| Some((kernels.get(n)?, functions.get_mut(n)?))) else {
                let found = format!("a part of kernel {:?}", part.kernel);
                let needed = format!("one part for each of {} kernels", kernels.len());
                return Err(RuntimeError::CodeLoad { target: TARGET_SM_90.into(), found, needed });
            };
            *slot = Some(self.load_one(kernel, part.bytes)?);
        }
        self.lists.clear();
        self.edges = Edges::Plain;
        self.functions = functions;
        self.kernels = kernels.to_vec();
        Ok(())
    }

    fn launch(&mut self, kernel: u32, grid: [u32; 3], args: &[ArgValue]) -> Result<()> {
        self.prepared(kernel, grid, args)?.run(self.edges).map_err(|e| self.trapped(e))?;
        self.last.clone_from(&self.kernels[kernel as usize].name);
        Ok(())
    }

    fn set_edges(&mut self, wanted: Edges) -> Edges {
        self.edges = if self.dependent { wanted } else { Edges::Plain };
        self.edges
    }

    /// One graph, in which each launch is joined to the one before it.
    fn record(&mut self, launches: &[ListedLaunch<'_>]) -> Result<Option<ListId>> {
        let mut prepared =
            launches.iter().map(|l| self.prepared(l.kernel, l.grid, l.args)).collect::<Result<Vec<_>>>()?;
        let nodes: Vec<Node<'_>> = prepared.iter_mut().map(Prepared::node).collect();
        let graph = self.context.graph(nodes, self.edges).map_err(|e| self.trapped(e))?;
        Ok(Some(self.lists.add(graph)))
    }

    fn forget(&mut self, list: ListId) -> Result<()> {
        self.lists.forget(list)
    }

    fn replay(&mut self, list: ListId) -> Result<()> {
        self.lists.get(list)?.launch().map_err(|e| self.trapped(e))?;
        self.last = "one of a recorded list".into();
        Ok(())
    }

    fn replay_timed(&mut self, list: ListId) -> Result<Option<f32>> {
        let graph = self.lists.get(list)?;
        let us = self.context.timed(&mut || graph.launch()).map_err(|e| self.trapped(e))?;
        self.last = "one of a recorded list".into();
        Ok(Some(us))
    }

    fn time(&mut self, kernel: u32, grid: [u32; 3], args: &[ArgValue], rounds: u32) -> Result<Option<Vec<f32>>> {
        let flush = self.alloc(FLUSH_BYTES)?;
        let mut times = Vec::new();
        for round in 0..rounds {
            self.fill(flush, 0, FLUSH_BYTES, round as u8)?;
            let mut launch = self.prepared(kernel, grid, args)?;
            times.push(self.context.timed(&mut || launch.run(Edges::Plain)).map_err(|e| self.trapped(e))?);
        }
        self.free(flush)?;
        Ok(Some(times))
    }

    fn copy_rate(&mut self, bytes: u64) -> Result<Option<f64>> {
        let (from, to) = (self.alloc(bytes)?, self.alloc(bytes)?);
        let (a, b) = (self.range(from, 0, bytes)?, self.range(to, 0, bytes)?);
        let mut best = f32::INFINITY;
        for _ in 0..5 {
            let us =
                self.context.timed(&mut || self.context.copy(b, a, bytes as usize)).map_err(|e| self.trapped(e))?;
            best = best.min(us);
        }
        self.free(from)?;
        self.free(to)?;
        Ok(Some(bytes as f64 / f64::from(best) * 1e6))
    }
}

/// A launch with its arguments.
struct Prepared<'a> {
    function: &'a Function,
    grid: [u32; 3],
    threads: u32,
    shared: u32,
    slots: Vec<u64>,
}

impl Prepared<'_> {
    fn node(&mut self) -> Node<'_> {
        Node {
            function: self.function,
            grid: self.grid,
            threads: self.threads,
            shared: self.shared,
            slots: &mut self.slots,
        }
    }

    fn run(&mut self, edges: Edges) -> std::result::Result<(), cudarc::driver::DriverError> {
        self.node().launch(edges)
    }
}

impl CudaDevice {
    /// Checks a launch.
    fn prepared(&self, kernel: u32, grid: [u32; 3], args: &[ArgValue]) -> Result<Prepared<'_>> {
        let unknown = || misuse("kernel index", kernel, format!("below {}, with code", self.kernels.len()));
        let described = self.kernels.get(kernel as usize).ok_or_else(unknown)?;
        let function = self.functions.get(kernel as usize).and_then(Option::as_ref).ok_or_else(unknown)?;
        check_launch(described, grid, args, |id| Ok(self.buffer(id)?.bytes))?;
        let slot = |arg: &ArgValue| match *arg {
            ArgValue::Buffer { id, offset, bytes } => self.range(id, offset, bytes),
            ArgValue::Scalar(value) => Ok(u64::from(value as u32)),
        };
        let slots = args.iter().map(slot).collect::<Result<Vec<u64>>>()?;
        let shared = u32::try_from(described.shared_bytes).unwrap_or(u32::MAX);
        Ok(Prepared { function, grid, threads: described.waves * 32, shared, slots })
    }
}
