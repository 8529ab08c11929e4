//! Native code: loading it without a file on disk, and calling one workgroup of a kernel.
#![allow(unsafe_code, reason = "memfd, dlopen, and calls of generated code")]

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::manifest::{Kernel, TARGET_X86_64};
use crate::{Result, RuntimeError};

/// One workgroup of a kernel: `args` has an 8-byte slot per parameter (a pointer, or an i32 extended with zeros),
/// `group` the three workgroup numbers, `shared` the workgroup's shared memory, aligned to 64 bytes.
pub(super) type Entry = unsafe extern "C" fn(args: *const u64, group: *const i32, shared: *mut u8);

/// A loaded shared object.
pub(super) struct Module {
    entries: Vec<Entry>,
    // Dropped in this order. The descriptor must stay open as long as the library: dlopen compares path names, and a
    // second module behind a reused /proc/self/fd/N would silently be the first one.
    _library: Library,
    _file: File,
}

fn refuse(found: impl std::fmt::Display, needed: impl std::fmt::Display) -> RuntimeError {
    RuntimeError::CodeLoad { target: TARGET_X86_64.into(), found: found.to_string(), needed: needed.to_string() }
}

impl Module {
    /// Loads a shared object that has an entry for each of `kernels`.
    pub(super) fn load(bytes: &[u8], kernels: &[Kernel]) -> Result<Self> {
        // 64-bit little-endian ELF, shared object, x86-64.
        let header = bytes.get(..20).filter(|h| h.starts_with(b"\x7fELF\x02\x01") && h[16..20] == [3, 0, 62, 0]);
        header.ok_or_else(|| refuse("a file of another type", "an x86-64 ELF shared object"))?;
        let file = memory_file(bytes).map_err(|e| refuse(e, "a file in memory (memfd_create)"))?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // SAFETY: code of a bundle whose hash was checked; running it is what the caller asked for.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|e| refuse(e, "a shared object without undefined symbols"))?;
        let entry = |kernel: &Kernel| {
            // SAFETY: the format says that this symbol is a function of the type `Entry`.
            let symbol = unsafe { library.get::<Entry>(kernel.name.as_bytes()) };
            symbol.map(|s| *s).map_err(|e| refuse(e, format_args!("the entry {}", kernel.name)))
        };
        let entries = kernels.iter().map(entry).collect::<Result<_>>()?;
        Ok(Module { entries, _library: library, _file: file })
    }

    pub(super) fn entry(&self, kernel: u32) -> Option<Entry> {
        self.entries.get(kernel as usize).copied()
    }
}

fn memory_file(bytes: &[u8]) -> std::io::Result<File> {
    // SAFETY: a NUL-terminated name.
    let fd = unsafe { libc::memfd_create(c"unglue-code".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(bytes)?;
    Ok(file)
}

/// What one launch runs.
pub(super) struct Work<'a> {
    pub(super) entry: Entry,
    pub(super) args: &'a [u64],
    pub(super) grid: [u32; 3],
}

impl Work<'_> {
    /// Runs workgroup `index`, x fastest.
    ///
    /// # Safety
    /// The arguments are what the entry takes: `check_launch` passed, and every buffer lives and is not otherwise in
    /// use. `shared` points to the kernel's shared memory, for this thread alone.
    pub(super) unsafe fn run(&self, index: u64, shared: *mut u8) {
        let [x, y, _] = self.grid.map(u64::from);
        let group = [index % x, index / x % y, index / x / y].map(|n| n as i32);
        // SAFETY: by the caller's promise.
        unsafe { (self.entry)(self.args.as_ptr(), group.as_ptr(), shared) }
    }
}

/// Runs `body` with the default floating-point mode (round to nearest, denormals kept, no traps), whatever the calling
/// thread has set, and puts the thread's mode back.
pub(super) fn with_default_rounding(body: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    {
        let (mut saved, default) = (0u32, 0x1f80u32);
        // SAFETY: stores and loads MXCSR; 0x1f80 is its reset value.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut saved, options(nostack));
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const default, options(nostack, readonly));
        }
        body();
        // SAFETY: puts the saved value back.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const saved, options(nostack, readonly)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    body();
}
