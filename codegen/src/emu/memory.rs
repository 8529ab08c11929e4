//! Global memory: buffers of words that threads may share, and the regions of one launch.
//!
//! Each argument of a launch is a region of its own in a 64-bit address space, far from all others: an access beyond its
//! bytes hits no other region, so every overrun is found, whatever lies next to it in the device's arena.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use super::fault::Fault;

/// Distance of regions, as a power of two.
const SPACING: u32 = 40;
/// Address of the first region. A region starts in the middle of its span, so that going below it faults too, and 256
/// bytes in front of a multiple of 2^32, so that an address without its carry faults.
const FIRST: u64 = 1 << SPACING;
const MIDDLE: u64 = (1 << (SPACING - 1)) + (1 << 32) - 256;
/// Address of the code object, which is the first region of every launch.
pub const CODE_BASE: u64 = FIRST + MIDDLE;

/// Bytes that several threads read and write: relaxed word accesses, so that a race in a kernel is no race of ours.
#[derive(Debug, Default)]
pub struct Words(Vec<AtomicU32>);

impl Words {
    /// `bytes` zero bytes.
    #[must_use]
    pub fn zeroed(bytes: usize) -> Self {
        Words((0..bytes.div_ceil(4)).map(|_| AtomicU32::new(0)).collect())
    }

    #[inline]
    fn word(&self, index: usize) -> u32 {
        self.0.get(index).map_or(0, |w| w.load(Ordering::Relaxed))
    }

    /// Replaces the bits of `mask` of a word.
    #[inline]
    fn set(&self, index: usize, value: u32, mask: u32) {
        let Some(word) = self.0.get(index) else { return };
        if mask == u32::MAX {
            word.store(value, Ordering::Relaxed);
        } else {
            // The other half may belong to another thread.
            let merge = |old| Some(old & !mask | value & mask);
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, merge);
        }
    }

    /// Copies bytes from `offset` on.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        for (i, byte) in out.iter_mut().enumerate() {
            let at = offset + i;
            *byte = self.word(at / 4).to_le_bytes()[at % 4];
        }
    }

    /// Copies bytes to `offset` on.
    pub fn write(&self, offset: usize, data: &[u8]) {
        let head = (4 - offset % 4) % 4;
        let (first, rest) = data.split_at(head.min(data.len()));
        let bytewise = |offset: usize, bytes: &[u8]| {
            for (i, byte) in bytes.iter().enumerate() {
                let shift = 8 * ((offset + i) % 4) as u32;
                self.set((offset + i) / 4, u32::from(*byte) << shift, 0xff << shift);
            }
        };
        bytewise(offset, first);
        let start = offset + first.len();
        let (words, tail) = rest.as_chunks::<4>();
        for (i, word) in words.iter().enumerate() {
            self.set(start / 4 + i, u32::from_le_bytes(*word), u32::MAX);
        }
        bytewise(start + 4 * words.len(), tail);
    }
}

/// What a kernel may do to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    Read,
    ReadWrite,
}

/// A run of bytes that a kernel may access.
#[derive(Debug)]
pub struct Region<'a> {
    /// Parameter name, for messages.
    pub name: &'a str,
    pub words: &'a Words,
    /// First byte in `words`.
    pub offset: u64,
    pub bytes: u64,
    pub rights: Rights,
}

/// The regions of a launch.
#[derive(Debug, Default)]
pub struct Space<'a> {
    regions: Vec<Region<'a>>,
    /// 64-bit atomics, which words cannot do alone.
    wide: Mutex<()>,
}

impl<'a> Space<'a> {
    /// Adds a region and returns its address. `offset` keeps its place in a line of 256 bytes, as an arena would.
    pub fn add(&mut self, region: Region<'a>) -> u64 {
        let address = FIRST * (self.regions.len() as u64 + 1) + MIDDLE + region.offset % 256;
        self.regions.push(region);
        address
    }

    /// The region of an access, and its offset in the region's words.
    #[inline]
    fn locate(&self, address: u64, bytes: u32, write: bool) -> Result<(&Region<'a>, u64), Fault> {
        let fault = |why| Fault::Memory { bytes, place: self.describe(address), why };
        let index = ((address >> SPACING) as usize).wrapping_sub(1);
        let region = self.regions.get(index).ok_or_else(|| fault("lies in no buffer"))?;
        let base = FIRST * (index as u64 + 1) + MIDDLE + region.offset % 256;
        let at = address.wrapping_sub(base);
        if at > region.bytes || region.bytes - at < u64::from(bytes) {
            return Err(fault("lies outside of the buffer"));
        }
        if write && region.rights == Rights::Read {
            return Err(fault("writes to what the kernel may only read"));
        }
        if !address.is_multiple_of(u64::from(bytes.min(4))) {
            return Err(Fault::Misaligned { bytes, place: self.describe(address) });
        }
        Ok((region, region.offset + at))
    }

    /// An address for messages.
    #[must_use]
    pub fn describe(&self, address: u64) -> String {
        let index = ((address >> SPACING) as usize).wrapping_sub(1);
        match self.regions.get(index) {
            Some(region) => {
                let base = FIRST * (index as u64 + 1) + MIDDLE + region.offset % 256;
                let at = address.wrapping_sub(base).cast_signed();
                format!("byte {at} of `{}` ({} bytes)", region.name, region.bytes)
            }
            None => format!("address {address:#x}"),
        }
    }

    /// Loads 1, 2 or 4 bytes, extended with zeros.
    ///
    /// # Errors
    /// Bounds, rights, alignment.
    #[inline]
    pub fn load(&self, address: u64, bytes: u32) -> Result<u32, Fault> {
        let (region, at) = self.locate(address, bytes, false)?;
        let word = region.words.word((at / 4) as usize);
        Ok(match bytes {
            4 => word,
            2 => word >> (8 * (at % 4)) & 0xffff,
            _ => word >> (8 * (at % 4)) & 0xff,
        })
    }

    /// Loads `out.len()` words.
    ///
    /// # Errors
    /// Bounds, rights, alignment to 4 bytes.
    #[inline]
    pub fn load_words(&self, address: u64, out: &mut [u32]) -> Result<(), Fault> {
        let (region, at) = self.locate(address, 4 * out.len() as u32, false)?;
        let first = (at / 4) as usize;
        match region.words.0.get(first..first + out.len()) {
            Some(words) => {
                for (slot, word) in out.iter_mut().zip(words) {
                    *slot = word.load(Ordering::Relaxed);
                }
            }
            None => out.fill(0),
        }
        Ok(())
    }

    /// Loads N words at the address of each lane of `exec`: `out[i][l]` is word i of lane l.
    ///
    /// # Errors
    /// As [`Space::load_words`].
    #[inline]
    pub fn load_lanes<const N: usize>(&self, at: &[u64; 32], exec: u32, out: &mut [[u32; 32]; N]) -> Result<(), Fault> {
        // Lanes mostly share a region: it is looked up once, and whatever is not plainly in it takes the slow way.
        let index = ((at[exec.trailing_zeros() as usize & 31] >> SPACING) as usize).wrapping_sub(1);
        let (words, base, end) = match self.regions.get(index) {
            Some(region) => {
                let base = (FIRST * (index as u64 + 1) + MIDDLE + region.offset % 256).wrapping_sub(region.offset);
                (region.words.0.as_slice(), base, region.offset + region.bytes)
            }
            None => (&[][..], 0, 0),
        };
        let first = self.regions.get(index).map_or(0, |region| region.offset);
        for lane in (0..32).filter(|l| exec >> l & 1 == 1) {
            let offset = at[lane].wrapping_sub(base);
            let inside = offset >= first && offset < end && end - offset >= 4 * N as u64;
            let word = (offset / 4) as usize;
            let found = if inside && at[lane].is_multiple_of(4) { words.get(word..word + N) } else { None };
            if let Some(found) = found {
                for (slot, word) in out.iter_mut().zip(found) {
                    slot[lane] = word.load(Ordering::Relaxed);
                }
            } else {
                let mut loaded = [0; N];
                self.load_words(at[lane], &mut loaded)?;
                for (slot, word) in out.iter_mut().zip(loaded) {
                    slot[lane] = word;
                }
            }
        }
        Ok(())
    }

    /// Stores the low 1, 2 or 4 bytes of `value`.
    ///
    /// # Errors
    /// Bounds, rights, alignment.
    #[inline]
    pub fn store(&self, address: u64, bytes: u32, value: u32) -> Result<(), Fault> {
        let (region, at) = self.locate(address, bytes, true)?;
        let mask = if bytes == 4 { u32::MAX } else { (1 << (8 * bytes)) - 1 };
        let shift = 8 * (at % 4) as u32;
        region.words.set((at / 4) as usize, value << shift, mask << shift);
        Ok(())
    }

    /// Stores words.
    ///
    /// # Errors
    /// Bounds, rights, alignment to 4 bytes.
    #[inline]
    pub fn store_words(&self, address: u64, values: &[u32]) -> Result<(), Fault> {
        let (region, at) = self.locate(address, 4 * values.len() as u32, true)?;
        for (i, value) in values.iter().enumerate() {
            region.words.set((at / 4) as usize + i, *value, u32::MAX);
        }
        Ok(())
    }

    /// Replaces a word atomically; returns the old value.
    ///
    /// # Errors
    /// Bounds, rights, alignment.
    pub fn atomic(&self, address: u64, change: impl Fn(u32) -> u32) -> Result<u32, Fault> {
        let (region, at) = self.locate(address, 4, true)?;
        let Some(word) = region.words.0.get((at / 4) as usize) else { return Ok(0) };
        let old = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(change(old)));
        Ok(old.unwrap_or_else(|old| old))
    }

    /// Replaces 8 bytes, atomically among such calls; returns the old value.
    ///
    /// # Errors
    /// Bounds, rights, alignment to 8 bytes.
    pub fn atomic64(&self, address: u64, change: impl Fn(u64) -> u64) -> Result<u64, Fault> {
        if !address.is_multiple_of(8) {
            return Err(Fault::Misaligned { bytes: 8, place: self.describe(address) });
        }
        let (region, at) = self.locate(address, 8, true)?;
        let _lock = self.wide.lock().unwrap_or_else(PoisonError::into_inner);
        let first = (at / 4) as usize;
        let old = u64::from(region.words.word(first)) | u64::from(region.words.word(first + 1)) << 32;
        let new = change(old);
        region.words.set(first, new as u32, u32::MAX);
        region.words.set(first + 1, (new >> 32) as u32, u32::MAX);
        Ok(old)
    }
}
