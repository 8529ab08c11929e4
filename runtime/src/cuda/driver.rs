//! Calls of the CUDA driver, found at run time. Every call is checked; errors carry the driver's own name for them.
#![allow(unsafe_code, reason = "calls of the driver's C interface")]

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute, CUfunction_attribute_enum as FunctionAttribute};
use cudarc::driver::{DriverError, result};

use crate::device::Edges;

/// Bytes of the driver's log that an error shows.
const LOG_BYTES: usize = 8192;
/// An edge that lets a launch start once all workgroups of the one before it let it, or have ended.
const EARLY: sys::CUgraphEdgeData = sys::CUgraphEdgeData {
    from_port: sys::CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
    to_port: 0,
    type_: sys::CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
    reserved: [0; 5],
};

/// A GPU's primary context.
pub(super) struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
}

// SAFETY: a context may be used from any thread once it is current there, which every call sees to.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks its own state.
unsafe impl Sync for Context {}

/// A loaded kernel; its module lives as long as it does.
pub(super) struct Function {
    raw: sys::CUfunction,
    module: sys::CUmodule,
    context: Arc<Context>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Function {}

/// What the driver said.
pub(super) fn text(e: DriverError) -> String {
    let name = |s: Result<&std::ffi::CStr, DriverError>| s.map(|s| s.to_string_lossy().into_owned());
    match (name(e.error_name()), name(e.error_string())) {
        (Ok(name), Ok(string)) => format!("{name}: {string}"),
        _ => format!("{e:?}"),
    }
}

/// Whether the driver's library can be loaded.
pub(super) fn present() -> bool {
    // SAFETY: it looks for the library and calls nothing in it.
    unsafe { sys::is_culib_present() }
}

impl Context {
    /// The context of GPU `ordinal`. The driver must be [`present`].
    pub fn open(ordinal: i32) -> Result<Context, DriverError> {
        result::init()?;
        let device = result::device::get(ordinal)?;
        // SAFETY: the device was returned by the driver.
        let raw = unsafe { result::primary_ctx::retain(device)? };
        Ok(Context { device, raw })
    }

    fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained until `drop`.
        unsafe { result::ctx::set_current(self.raw) }
    }

    pub fn name(&self) -> Result<String, DriverError> {
        result::device::get_name(self.device)
    }

    fn attribute(&self, which: Attribute) -> Result<i32, DriverError> {
        // SAFETY: the device was returned by the driver.
        unsafe { result::device::get_attribute(self.device, which) }
    }

    /// The newest CUDA version that the driver knows: 1000 * major + 10 * minor.
    pub fn version() -> Result<i32, DriverError> {
        let mut version = 0;
        // SAFETY: it only writes the number.
        unsafe { sys::cuDriverGetVersion(&mut version).result()? };
        Ok(version)
    }

    /// Compute capability: major, minor.
    pub fn capability(&self) -> Result<(i32, i32), DriverError> {
        let (major, minor) = (
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        );
        Ok((self.attribute(major)?, self.attribute(minor)?))
    }

    /// Bytes of shared memory that a workgroup may ask for.
    pub fn most_shared(&self) -> Result<i32, DriverError> {
        self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
    }

    pub fn alloc(&self, bytes: usize) -> Result<u64, DriverError> {
        self.enter()?;
        // SAFETY: the memory is only used through `write`, `read`, `fill` and launches with checked ranges.
        unsafe { result::malloc_sync(bytes.max(1)) }
    }

    /// Frees what [`Self::alloc`] gave; it may not be used again.
    pub fn free(&self, at: u64) -> Result<(), DriverError> {
        self.enter()?;
        // SAFETY: the device's map of buffers gives each address away once.
        unsafe { result::free_sync(at) }
    }

    /// Sets bytes that lie in one allocation.
    pub fn fill(&self, at: u64, byte: u8, bytes: usize) -> Result<(), DriverError> {
        self.enter()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller checked the range.
        unsafe { result::memset_d8_sync(at, byte, bytes) }
    }

    /// Copies to bytes that lie in one allocation.
    pub fn write(&self, at: u64, data: &[u8]) -> Result<(), DriverError> {
        self.enter()?;
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller checked the range.
        unsafe { result::memcpy_htod_sync(at, data) }
    }

    /// Copies from bytes that lie in one allocation, after every launch so far.
    pub fn read(&self, at: u64, data: &mut [u8]) -> Result<(), DriverError> {
        self.enter()?;
        result::ctx::synchronize()?;
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller checked the range.
        unsafe { result::memcpy_dtoh_sync(data, at) }
    }

    /// Copies bytes from one allocation to another.
    pub fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), DriverError> {
        self.enter()?;
        // SAFETY: the caller owns both allocations; the copy is in order with what else is on the default stream.
        unsafe { result::memcpy_dtod_async(to, from, bytes, std::ptr::null_mut()) }
    }

    /// Microseconds that `work` takes on the default stream.
    pub fn timed(&self, work: &mut dyn FnMut() -> Result<(), DriverError>) -> Result<f32, DriverError> {
        self.enter()?;
        let flags = sys::CUevent_flags_enum::CU_EVENT_DEFAULT;
        let (start, end) = (result::event::create(flags)?, result::event::create(flags)?);
        let mut run = || {
            // SAFETY: the events were just made, and live until they are destroyed below.
            unsafe { result::event::record(start, std::ptr::null_mut())? };
            work()?;
            // SAFETY: as above; `elapsed` comes after the driver waited for both.
            unsafe {
                result::event::record(end, std::ptr::null_mut())?;
                result::event::synchronize(end)?;
                Ok(result::event::elapsed(start, end)? * 1000.0)
            }
        };
        let done = run();
        // SAFETY: nothing uses the events any more. A failure to destroy one has nobody to tell.
        let _ = unsafe { (result::event::destroy(start), result::event::destroy(end)) };
        done
    }

    /// Loads the kernel `name` of PTX text or a cubin, for launches with `shared` bytes of shared memory.
    ///
    /// # Errors
    /// The driver's name for the error, with its log.
    pub fn function(self: &Arc<Self>, image: &[u8], name: &str, shared: i32) -> Result<Function, String> {
        self.enter().map_err(text)?;
        let mut image = image.to_vec();
        image.push(0);
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [
            sys::CUjit_option_enum::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option_enum::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
        let mut module = std::ptr::null_mut();
        // SAFETY: the image ends with a zero, and the log is as long as the option says.
        let done = unsafe {
            sys::cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
        };
        if let Err(e) = done.result() {
            let log = String::from_utf8_lossy(&log);
            return Err(format!("{}; {}", text(e), log.trim_matches(char::from(0)).trim()));
        }
        let symbol = CString::new(name).map_err(|e| e.to_string())?;
        // SAFETY: the module was just loaded, and lives in the `Function`.
        let raw = unsafe { result::module::get_function(module, symbol) }.map_err(text)?;
        let function = Function { raw, module, context: Arc::clone(self) };
        let most = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function exists.
        unsafe { result::function::set_function_attribute(function.raw, most, shared) }.map_err(text)?;
        Ok(function)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained in `open`; nothing of the context is left. A failure here has nobody to tell.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// A launch whose arguments the caller checked, in number, kind and range, against the kernel's parameters.
pub(super) struct Node<'a> {
    pub function: &'a Function,
    pub grid: [u32; 3],
    /// Of a workgroup.
    pub threads: u32,
    /// Bytes of shared memory.
    pub shared: u32,
    /// The arguments: an address, or an i32 in the low half.
    pub slots: &'a mut [u64],
}

impl Node<'_> {
    fn pointers(&mut self) -> Vec<*mut c_void> {
        self.slots.iter_mut().map(|slot| std::ptr::from_mut(slot).cast()).collect()
    }

    /// Launches on the context's default stream.
    pub fn launch(mut self, edges: Edges) -> Result<(), DriverError> {
        self.function.context.enter()?;
        let mut pointers = self.pointers();
        let [x, y, z] = self.grid;
        let mut early = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            hStream: std::ptr::null_mut(),
            attrs: &mut early,
            numAttrs: u32::from(edges == Edges::Dependent),
        };
        // SAFETY: the arguments were checked; the driver copies them before it returns.
        unsafe {
            sys::cuLaunchKernelEx(&config, self.function.raw, pointers.as_mut_ptr(), std::ptr::null_mut()).result()
        }
    }

    /// Adds the launch to a graph, behind another.
    fn add(
        mut self,
        graph: sys::CUgraph,
        before: Option<sys::CUgraphNode>,
        edges: Edges,
    ) -> Result<sys::CUgraphNode, DriverError> {
        let mut pointers = self.pointers();
        let [x, y, z] = self.grid;
        let params = sys::CUDA_KERNEL_NODE_PARAMS {
            func: self.function.raw,
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            kernelParams: pointers.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        let mut node = std::ptr::null_mut();
        let (plain, early) = if edges == Edges::Dependent { (None, before) } else { (before, None) };
        let plain = plain.as_slice();
        // SAFETY: the graph was just made; the arguments were checked, and the driver copies them before it returns.
        unsafe { sys::cuGraphAddKernelNode_v2(&mut node, graph, plain.as_ptr(), plain.len(), &params).result()? };
        if let Some(early) = early {
            // SAFETY: both nodes were made in this graph.
            unsafe { sys::cuGraphAddDependencies_v2(graph, &early, &node, &EARLY, 1).result()? };
        }
        Ok(node)
    }
}

/// Launches that run in one call, one after the other. The functions and buffers in it live as long as it does: the device
/// drops its graphs before it drops any of them.
pub(super) struct Graph {
    raw: sys::CUgraphExec,
    context: Arc<Context>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Graph {}

impl Context {
    /// A graph of launches, each behind the one before it.
    pub fn graph(self: &Arc<Self>, nodes: Vec<Node<'_>>, edges: Edges) -> Result<Graph, DriverError> {
        self.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: it only writes the new graph.
        unsafe { sys::cuGraphCreate(&mut raw, 0).result()? };
        let instance = nodes
            .into_iter()
            .try_fold(None, |before, node| node.add(raw, before, edges).map(Some))
            // SAFETY: the graph is whole.
            .and_then(|_| unsafe { result::graph::instantiate(raw, sys::CUgraphInstantiate_flags(0)) });
        // SAFETY: the instance does not need the graph it was made from. A failure has nobody to tell.
        let _ = unsafe { result::graph::destroy(raw) };
        Ok(Graph { raw: instance?, context: Arc::clone(self) })
    }
}

impl Graph {
    /// Launches on the context's default stream.
    pub fn launch(&self) -> Result<(), DriverError> {
        self.context.enter()?;
        // SAFETY: the instance lives, and what it launches was checked when it was made.
        unsafe { result::graph::launch(self.raw, std::ptr::null_mut()) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made in `graph`; no launch of it is left once the context is idle. A failure has nobody to tell.
        unsafe {
            let _ = self.context.enter().and_then(|()| result::ctx::synchronize());
            let _ = result::graph::exec_destroy(self.raw);
        }
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        // SAFETY: loaded in `function`; no launch of it is left once the context is idle. A failure has nobody to tell.
        unsafe {
            let _ = self.context.enter().and_then(|()| result::ctx::synchronize());
            let _ = result::module::unload(self.module);
        }
    }
}
