//! Weights in 4 bits: words, scales and where they lie.

use crate::interp::value::{WeightRef, f32_of_f16};
use crate::order::RUN;
use crate::types::{Format, Packing, ScaleType};

/// Inputs of one word.
const WORD: usize = 8;

/// An int4 weight `[.., N, K]` with K a multiple of the group; matrices follow one another in words and scales.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int4<'a> {
    n: usize,
    k: usize,
    matrices: usize,
    group: usize,
    packing: Packing,
    scale_type: ScaleType,
    words: &'a [u8],
    scales: &'a [u8],
}

impl<'a> Int4<'a> {
    /// `None` for other formats, and for shapes that words or groups do not fill.
    pub fn of(w: &'a WeightRef<'_>) -> Option<Int4<'a>> {
        let Format::Int4 { group, packing, scales } = w.format else { return None };
        let [rest @ .., n, k] = w.shape.as_slice() else { return None };
        let all = w.shape.iter().try_fold(1u64, |a, d| a.checked_mul(*d)).filter(|n| *n <= 1 << 48)?;
        let whole = group > 0 && k.is_multiple_of(u64::from(group)) && k.is_multiple_of(WORD as u64) && all > 0;
        whole.then(|| Int4 {
            n: *n as usize,
            k: *k as usize,
            matrices: rest.iter().product::<u64>() as usize,
            group: group as usize,
            packing,
            scale_type: scales,
            words: &w.bytes,
            scales: &w.scales,
        })
    }

    fn elements(&self) -> u64 {
        (self.matrices * self.n * self.k) as u64
    }

    pub fn word_bytes(&self) -> u64 {
        self.elements() / 2
    }

    pub fn scale_bytes(&self) -> u64 {
        self.elements() / self.group as u64 * self.scale_type.dtype().bytes()
    }

    /// Place of entry i of a row of `per_row` entries, rows counted through all matrices.
    fn place(&self, row: usize, i: usize, per_row: usize) -> usize {
        let (matrix, n) = (row / self.n, row % self.n);
        match self.packing {
            Packing::Rows => row * per_row + i,
            Packing::GptqColumns => (matrix * per_row + i) * self.n + n,
        }
    }

    fn word(&self, row: usize, i: usize) -> u32 {
        let at = self.place(row, i, self.k / WORD) * 4;
        self.words.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        let at = self.place(row, group, self.k / self.group) * 2;
        let bits = self.scales.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes);
        match self.scale_type {
            ScaleType::F16 => f32_of_f16(bits),
            ScaleType::Bf16 => f32::from_bits(u32::from(bits) << 16),
        }
    }

    /// A row as q - 8 `[K]` and the scale of each run `[K / 32]`; both are exact.
    pub fn row(&self, row: usize, levels: &mut [f32], scales: &mut [f32]) {
        for (i, out) in levels.chunks_mut(WORD).enumerate() {
            let word = self.word(row, i);
            out.iter_mut().enumerate().for_each(|(j, o)| *o = level(word, j));
        }
        for (run, s) in scales.iter_mut().enumerate() {
            *s = self.scale(row, run * RUN as usize / self.group);
        }
    }

    /// Elements from `start` on as the products they stand for; exact in f32.
    pub fn decode(&self, start: usize, out: &mut [f32]) {
        for (i, o) in out.iter_mut().enumerate() {
            let (row, k) = ((start + i) / self.k, (start + i) % self.k);
            *o = level(self.word(row, k / WORD), k % WORD) * self.scale(row, k / self.group);
        }
    }

    /// Words and scales with rows together, `[.., N, K/8]` and `[.., N, K/group]`: what devices hold.
    pub fn by_rows(&self) -> (Vec<u8>, Vec<u8>) {
        let gather = |from: &[u8], per_row: usize, size: usize| {
            let mut out = Vec::with_capacity(from.len());
            for row in 0..self.matrices * self.n {
                for i in 0..per_row {
                    let at = self.place(row, i, per_row) * size;
                    out.extend_from_slice(from.get(at..at + size).unwrap_or_default());
                }
            }
            out
        };
        (gather(self.words, self.k / WORD, 4), gather(self.scales, self.k / self.group, 2))
    }

    /// Words and scales in the order of the packing, from ones with rows together. Inverse of [`Int4::by_rows`].
    pub fn of_rows(&self) -> (Vec<u8>, Vec<u8>) {
        let scatter = |from: &[u8], per_row: usize, size: usize| {
            let mut out = vec![0; from.len()];
            for (entry, bytes) in from.chunks_exact(size).enumerate() {
                let at = self.place(entry / per_row, entry % per_row, per_row) * size;
                if let Some(place) = out.get_mut(at..at + size) {
                    place.copy_from_slice(bytes);
                }
            }
            out
        };
        (scatter(self.words, self.k / WORD, 4), scatter(self.scales, self.k / self.group, 2))
    }
}

/// q - 8 of nibble j.
fn level(word: u32, j: usize) -> f32 {
    (word >> (4 * j) & 15) as f32 - 8.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_come_back_from_rows() {
        let shape = [2, 3, 64];
        let (words, scales): (Vec<u8>, Vec<u8>) = ((0..192).collect(), (0..24).collect());
        for packing in [Packing::Rows, Packing::GptqColumns] {
            let format = Format::Int4 { group: 32, packing, scales: ScaleType::Bf16 };
            let w = WeightRef::stored(format, &shape, words.clone(), scales.clone()).unwrap();
            let (by_rows, scales_by_rows) = w.by_rows();
            assert_eq!(by_rows.as_ref() == words, packing == Packing::Rows);
            assert_eq!(WeightRef::of_rows(format, &shape, &by_rows, &scales_by_rows).unwrap(), w);
        }
    }
}
