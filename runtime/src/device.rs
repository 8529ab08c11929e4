//! What a session needs from a machine.

use std::collections::BTreeMap;

use crate::layout::MAX_BYTES;
use crate::manifest::{Access, Kernel, ParamKind};
use crate::{Result, RuntimeError};

/// A device buffer, by number. Only the device that made it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u64);

/// Code for a device.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// The one kernel inside (an index into the kernels), or all.
    pub kernel: Option<u32>,
    /// The file's content.
    pub bytes: &'a [u8],
}

/// The value of one kernel parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgValue {
    /// `bytes` bytes at `offset` of a buffer.
    Buffer { id: BufferId, offset: u64, bytes: u64 },
    /// A number.
    Scalar(i32),
}

/// A launch in a list.
#[derive(Clone, Copy, Debug)]
pub struct ListedLaunch<'a> {
    /// Of the loaded kernels.
    pub kernel: u32,
    pub grid: [u32; 3],
    pub args: &'a [ArgValue],
}

/// How a launch follows the one in front of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Edges {
    /// It starts when that one has ended.
    #[default]
    Plain,
    /// It starts when all workgroups of that one have, and its kernel waits by itself for the end of all before it.
    Dependent,
}

impl Edges {
    /// The name in options and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Edges::Plain => "plain",
            Edges::Dependent => "dependent",
        }
    }
}

/// A recorded list of launches, by number. Only the device that recorded it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListId(pub u64);

/// A machine that holds buffers and runs kernels. Launches run in order, each after everything before it, or as
/// [`Device::set_edges`] says.
pub trait Device: Send {
    /// Name for messages and reports.
    fn name(&self) -> String;

    /// The target whose code it runs, as in the manifest.
    fn target(&self) -> &str;

    /// A new buffer of `bytes` bytes, all zero, aligned to 64 bytes or more.
    fn alloc(&mut self, bytes: u64) -> Result<BufferId>;

    /// Gives a buffer back.
    fn free(&mut self, id: BufferId) -> Result<()>;

    /// Sets bytes `offset .. offset + bytes` to `byte`.
    fn fill(&mut self, id: BufferId, offset: u64, bytes: u64, byte: u8) -> Result<()>;

    /// Copies `data` to `offset`.
    fn write(&mut self, id: BufferId, offset: u64, data: &[u8]) -> Result<()>;

    /// Copies from `offset` into `data`, after every launch so far.
    fn read(&self, id: BufferId, offset: u64, data: &mut [u8]) -> Result<()>;

    /// Loads code for `kernels`, in place of what was loaded before.
    fn load(&mut self, kernels: &[Kernel], code: &[Code<'_>]) -> Result<()>;

    /// Runs kernel `kernel` of the loaded ones over a grid of workgroups.
    fn launch(&mut self, kernel: u32, grid: [u32; 3], args: &[ArgValue]) -> Result<()>;

    /// Sets how later launches, and those of lists that are recorded later, follow one another; gives how they do, plain
    /// where the device knows nothing else. Loading code sets it back to plain: [`Edges::Dependent`] is for kernels that
    /// wait themselves.
    fn set_edges(&mut self, _wanted: Edges) -> Edges {
        Edges::Plain
    }

    /// Records launches that [`Self::replay`] runs in one call; nothing if the device gains nothing by it. What was
    /// recorded is forgotten when code is loaded or a buffer is freed.
    fn record(&mut self, _launches: &[ListedLaunch<'_>]) -> Result<Option<ListId>> {
        Ok(None)
    }

    /// Runs a recorded list, each launch after everything before it.
    fn replay(&mut self, list: ListId) -> Result<()> {
        Err(unknown_list(list))
    }

    /// As [`Self::replay`]: the microseconds between the list's first and last launch by the device's clock, or nothing if it
    /// has none.
    fn replay_timed(&mut self, list: ListId) -> Result<Option<f32>> {
        self.replay(list)?;
        Ok(None)
    }

    /// Forgets a recorded list.
    fn forget(&mut self, list: ListId) -> Result<()> {
        Err(unknown_list(list))
    }

    /// Microseconds of each of `rounds` launches, one after the other, each with caches that hold nothing of its buffers;
    /// nothing if the device has no clock of its own.
    fn time(&mut self, _kernel: u32, _grid: [u32; 3], _args: &[ArgValue], _rounds: u32) -> Result<Option<Vec<f32>>> {
        Ok(None)
    }

    /// Bytes read a second by a copy of `bytes` bytes to another place, counted once; nothing if the device has no clock.
    fn copy_rate(&mut self, _bytes: u64) -> Result<Option<f64>> {
        Ok(None)
    }
}

/// A device error.
pub(crate) fn misuse(
    rule: &'static str,
    found: impl std::fmt::Display,
    needed: impl std::fmt::Display,
) -> RuntimeError {
    RuntimeError::Device { rule, found: found.to_string(), needed: needed.to_string() }
}

/// What a device says of a list that it has not recorded, or has forgotten.
fn unknown_list(list: ListId) -> RuntimeError {
    misuse("recorded list", format!("{list:?}"), "a list recorded since code was loaded and a buffer was freed")
}

/// The lists that a device recorded, in its own form. Numbers are never used again.
pub(crate) struct Lists<T> {
    recorded: BTreeMap<ListId, T>,
    next: u64,
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Lists { recorded: BTreeMap::new(), next: 0 }
    }
}

impl<T> Lists<T> {
    pub fn add(&mut self, list: T) -> ListId {
        let id = ListId(self.next);
        self.next += 1;
        self.recorded.insert(id, list);
        id
    }

    pub fn get(&self, id: ListId) -> Result<&T> {
        self.recorded.get(&id).ok_or_else(|| unknown_list(id))
    }

    pub fn forget(&mut self, id: ListId) -> Result<()> {
        self.recorded.remove(&id).map(drop).ok_or_else(|| unknown_list(id))
    }

    pub fn clear(&mut self) {
        self.recorded.clear();
    }
}

/// Checks that `offset .. offset + bytes` lies in a buffer of `len` bytes.
pub(crate) fn check_range(offset: u64, bytes: u64, len: u64) -> Result<()> {
    match offset.checked_add(bytes) {
        Some(end) if end <= len => Ok(()),
        _ => {
            Err(misuse("range in buffer", format!("{bytes} bytes at {offset}"), format!("at most {len} bytes in all")))
        }
    }
}

/// Checks a launch against the kernel's parameters; `len` gives the length of a buffer. For implementors of [`Device`].
pub fn check_launch(
    kernel: &Kernel,
    grid: [u32; 3],
    args: &[ArgValue],
    len: impl Fn(BufferId) -> Result<u64>,
) -> Result<()> {
    if args.len() != kernel.params.len() {
        let needed = format!("{} for kernel {}", kernel.params.len(), kernel.name);
        return Err(misuse("argument count", args.len(), needed));
    }
    if grid.iter().map(|&n| u64::from(n)).try_fold(1u64, u64::checked_mul).is_none_or(|n| n == 0 || n > i32::MAX as u64)
    {
        return Err(misuse("grid", format!("{grid:?}"), format!("1 to {} workgroups", i32::MAX)));
    }
    for (param, arg) in kernel.params.iter().zip(args) {
        match (param.kind, arg) {
            (ParamKind::Scalar, ArgValue::Scalar(_)) => {}
            (ParamKind::Buffer { mem, .. }, ArgValue::Buffer { id, offset, bytes }) => {
                check_range(*offset, *bytes, len(*id)?)?;
                if offset % mem.bytes() != 0 {
                    return Err(misuse("argument alignment", offset, format!("a multiple of {}", mem.bytes())));
                }
            }
            (kind, arg) => {
                let needed = format!("{kind:?} for {} of kernel {}", param.name, kernel.name);
                return Err(misuse("argument kind", format!("{arg:?}"), needed));
            }
        }
    }
    Ok(())
}

/// Checks the length of a new buffer.
pub(crate) fn check_alloc(bytes: u64) -> Result<()> {
    if bytes > MAX_BYTES {
        return Err(RuntimeError::OutOfMemory { bytes, detail: format!("no buffer may pass {MAX_BYTES}") });
    }
    Ok(())
}

/// True if a kernel may write through a parameter of this access.
pub(crate) const fn writes(access: Access) -> bool {
    matches!(access, Access::Write | Access::ReadWrite)
}
