//! Memory of the CPU device: anonymous mappings, so that an access outside a buffer can be made to fault.
#![allow(unsafe_code, reason = "mmap, mprotect and slices over the mapping")]

use std::ptr::NonNull;

use super::Guard;
use crate::device::check_alloc;
use crate::{Result, RuntimeError};

/// Alignment of every buffer in bytes (but see [`Guard::Tight`]).
pub(super) const ALIGN: usize = 64;

/// A zeroed mapping, with `len` bytes of use somewhere inside.
pub(super) struct Region {
    map: NonNull<u8>,
    map_len: usize,
    data: NonNull<u8>,
    len: usize,
}

// SAFETY: a region owns its mapping alone; Rust code reaches it through `&self` and `&mut self` only, and kernels run
// only while the device that owns it is borrowed mutably.
unsafe impl Send for Region {}
// SAFETY: as above; `&self` only reads.
unsafe impl Sync for Region {}

impl Region {
    pub(super) fn new(bytes: u64, guard: Guard) -> Result<Self> {
        check_alloc(bytes)?;
        let no_room = |detail: String| RuntimeError::OutOfMemory { bytes, detail };
        // SAFETY: no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page =
            usize::try_from(page).ok().filter(|p| p.is_power_of_two()).ok_or_else(|| no_room("page size".into()))?;
        let len = usize::try_from(bytes).map_err(|e| no_room(e.to_string()))?;
        let fence = if guard == Guard::Off { 0 } else { page };
        let body = len.max(1).next_multiple_of(page);
        let map_len = body + 2 * fence;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping at an address of the system's choice.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), map_len, protection, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return Err(no_room(std::io::Error::last_os_error().to_string()));
        }
        let map = NonNull::new(map.cast::<u8>()).ok_or_else(|| no_room("a mapping at address 0".into()))?;
        let start = match guard {
            Guard::Off => 0,
            Guard::Aligned => fence + body - len.next_multiple_of(ALIGN).min(body),
            Guard::Tight => fence + body - len,
        };
        // SAFETY: `start <= map_len`, so the result is in the mapping or at its end.
        let region = Region { map, map_len, data: unsafe { map.add(start) }, len };
        if fence > 0 {
            region.protect(0, fence)?;
            region.protect(fence + body, fence)?;
        }
        Ok(region)
    }

    /// Makes every access to some pages of the mapping fault.
    fn protect(&self, offset: usize, len: usize) -> Result<()> {
        // SAFETY: whole pages inside the mapping that hold no data.
        let code = unsafe { libc::mprotect(self.map.as_ptr().add(offset).cast(), len, libc::PROT_NONE) };
        if code == 0 {
            return Ok(());
        }
        let detail = format!("guard page: {}", std::io::Error::last_os_error());
        Err(RuntimeError::OutOfMemory { bytes: self.len as u64, detail })
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn as_ptr(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes from `data` lie in the mapping; `&self` keeps writers away.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` keeps everyone else away.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`, unmapped once; no slice of it outlives `self`.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}
