//! Memory of one workgroup, with a record of who touched what since the last barrier.
//!
//! The record is per word of 4 bytes. Two waves that touch a word in one barrier interval, one of them writing, race,
//! unless they write what is there already (each wave stores a uniform value) or different bytes of the word.

use super::fault::Fault;

/// Accesses of a word in one barrier interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Touch {
    /// Interval of the last write, plus 1; 0 is none.
    write_epoch: u32,
    /// Interval of the last reads, plus 1.
    read_epoch: u32,
    /// Waves that read in it.
    readers: u32,
    /// Waves that wrote each byte, with what it holds now.
    writers: [u32; 4],
}

/// Numbers of the bytes of a mask.
fn bytes_of(mask: u8) -> impl Iterator<Item = usize> {
    (0..4).filter(move |b| mask >> b & 1 == 1)
}

/// LDS of a workgroup.
#[derive(Debug)]
pub struct Lds {
    words: Vec<u32>,
    touched: Vec<Touch>,
    len: u32,
    /// Barriers that each wave has passed.
    epochs: Vec<u32>,
}

impl Lds {
    /// `len` bytes for so many waves.
    #[must_use]
    pub fn new(len: u32, waves: u32) -> Self {
        let words = len.div_ceil(4) as usize;
        Lds { words: vec![0; words], touched: vec![Touch::default(); words], len, epochs: vec![0; waves as usize] }
    }

    /// A new workgroup begins: contents are `poison`.
    pub fn reset(&mut self, poison: u32) {
        self.words.fill(poison);
        self.touched.fill(Touch::default());
        self.epochs.fill(0);
    }

    /// A wave has passed a barrier.
    pub fn pass_barrier(&mut self, wave: u32) {
        if let Some(epoch) = self.epochs.get_mut(wave as usize) {
            *epoch += 1;
        }
    }

    /// First word and interval of an access.
    #[inline]
    fn range(&self, wave: u32, offset: u64, bytes: u32, align: u32) -> Result<(usize, u32), Fault> {
        match offset.checked_add(u64::from(bytes)) {
            Some(end) if end <= u64::from(self.len) => {}
            _ => return Err(Fault::LdsBounds { bytes, offset, len: self.len }),
        }
        if !offset.is_multiple_of(u64::from(align)) {
            return Err(Fault::Misaligned { bytes, place: format!("LDS byte {offset}") });
        }
        Ok(((offset / 4) as usize, self.epochs.get(wave as usize).copied().unwrap_or(0) + 1))
    }

    #[inline]
    fn read(&mut self, wave: u32, word: usize, epoch: u32, mask: u8) -> Result<u32, Fault> {
        let (touch, me) = (&mut self.touched[word], 1 << (wave & 31));
        if touch.write_epoch == epoch {
            // A wave may read what it has written, whoever wrote the same.
            let foreign = bytes_of(mask).map(|b| touch.writers[b]).find(|w| *w != 0 && w & me == 0);
            if let Some(writers) = foreign {
                return Err(Fault::LdsRace { offset: 4 * word as u32, first: writers.trailing_zeros(), second: wave });
            }
        }
        if touch.read_epoch != epoch {
            (touch.read_epoch, touch.readers) = (epoch, 0);
        }
        touch.readers |= me;
        Ok(self.words[word])
    }

    /// Replaces the bytes of `mask` of a word.
    #[inline]
    fn write(&mut self, wave: u32, word: usize, epoch: u32, mask: u8, value: u32) -> Result<(), Fault> {
        let (touch, old, me) = (&mut self.touched[word], self.words[word], 1 << (wave & 31));
        let bits = bytes_of(mask).fold(0u32, |m, b| m | 0xff << (8 * b));
        let new = old & !bits | value & bits;
        if touch.write_epoch != epoch {
            (touch.write_epoch, touch.writers) = (epoch, [0; 4]);
        }
        let readers = if touch.read_epoch == epoch { touch.readers & !me } else { 0 };
        let writers = bytes_of(mask).fold(0, |all, b| all | touch.writers[b]) & !me;
        // Who reads a word may mean its other bytes: only whole words are sure.
        if new != old && (readers != 0 && mask == 0xf || writers != 0) {
            let first = if writers != 0 { writers } else { readers }.trailing_zeros();
            return Err(Fault::LdsRace { offset: 4 * word as u32, first, second: wave });
        }
        for b in bytes_of(mask) {
            touch.writers[b] |= me;
        }
        self.words[word] = new;
        Ok(())
    }

    /// Loads `out.len()` words at a byte offset with the alignment that the instruction needs.
    ///
    /// # Errors
    /// Bounds, alignment, a race with another wave.
    #[inline]
    pub fn load_words(&mut self, wave: u32, offset: u64, align: u32, out: &mut [u32]) -> Result<(), Fault> {
        let (first, epoch) = self.range(wave, offset, 4 * out.len() as u32, align.max(4))?;
        for (i, slot) in out.iter_mut().enumerate() {
            *slot = self.read(wave, first + i, epoch, 0xf)?;
        }
        Ok(())
    }

    /// Stores words.
    ///
    /// # Errors
    /// Bounds, alignment, a race with another wave.
    #[inline]
    pub fn store_words(&mut self, wave: u32, offset: u64, align: u32, values: &[u32]) -> Result<(), Fault> {
        let (first, epoch) = self.range(wave, offset, 4 * values.len() as u32, align.max(4))?;
        for (i, value) in values.iter().enumerate() {
            self.write(wave, first + i, epoch, 0xf, *value)?;
        }
        Ok(())
    }

    /// Loads 1 or 2 bytes, extended with zeros.
    ///
    /// # Errors
    /// Bounds, alignment, a race with another wave.
    pub fn load(&mut self, wave: u32, offset: u64, bytes: u32) -> Result<u32, Fault> {
        let (word, epoch) = self.range(wave, offset, bytes, bytes)?;
        let (shift, mask) = (offset % 4, (1u8 << bytes) - 1);
        let value = self.read(wave, word, epoch, mask << shift)?;
        Ok(value >> (8 * shift) & ((1 << (8 * bytes)) - 1))
    }

    /// Stores the low 1 or 2 bytes of a value.
    ///
    /// # Errors
    /// Bounds, alignment, a race with another wave.
    pub fn store(&mut self, wave: u32, offset: u64, bytes: u32, value: u32) -> Result<(), Fault> {
        let (word, epoch) = self.range(wave, offset, bytes, bytes)?;
        let (shift, mask) = (offset % 4, (1u8 << bytes) - 1);
        self.write(wave, word, epoch, mask << shift, value << (8 * shift))
    }

    /// Reads, changes and writes a word at once: no race with other atomics. Returns the old value.
    ///
    /// # Errors
    /// Bounds, alignment.
    pub fn atomic(&mut self, offset: u64, change: impl Fn(u32) -> u32) -> Result<u32, Fault> {
        let (word, _) = self.range(0, offset, 4, 4)?;
        let old = self.words[word];
        self.words[word] = change(old);
        Ok(old)
    }

    /// As [`Lds::atomic`], for 8 bytes.
    ///
    /// # Errors
    /// Bounds, alignment.
    pub fn atomic64(&mut self, offset: u64, change: impl Fn(u64) -> u64) -> Result<u64, Fault> {
        let (word, _) = self.range(0, offset, 8, 8)?;
        let old = u64::from(self.words[word]) | u64::from(self.words[word + 1]) << 32;
        let new = change(old);
        (self.words[word], self.words[word + 1]) = (new as u32, (new >> 32) as u32);
        Ok(old)
    }
}
