//! Operands of matrix tiles: how their lines come from buffers to workgroup memory.
//!
//! A block's elements are dealt to the lanes of all waves, as vectors. What a lane loads of a round of inputs it keeps in
//! registers until the half of workgroup memory that it goes to is free.

use unglue_passes::schedule::Tiles;

use super::Gen;
use crate::kp::{Addr, Bin, Bound, Cmp, Conv, LANES, Place, Val};

/// Elements between the ends of a line of operands and the next: rows that start in different banks.
pub(super) const PAD: u32 = 8;
/// Most elements that a lane loads at once.
pub(super) const VECTOR: u64 = 8;
/// Levels of an int4 word.
const LEVELS: u64 = 8;
/// Words that a lane loads at once: two make the inputs of half a round.
const WORDS: u64 = 2;
/// Words of bf16 pairs that a word of levels becomes.
const PAIRS: u64 = LEVELS / 2;

/// Which lines of a buffer a block takes.
#[derive(Clone, Copy)]
pub(super) enum Taken {
    /// Those from `first` on, of those below `end`.
    Range { first: Val, end: Val },
    /// Line `pairs[i] / choices`, of `left` entries.
    Listed { pairs: Place, left: Val, choices: u64 },
}

/// How a line's inputs lie in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lie {
    /// Side by side.
    Along,
    /// Each a whole row of so many outputs behind the one before.
    Across(u64),
    /// Side by side as int4 words.
    Packed,
}

/// The lines of a buffer.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub from: Place,
    /// Element or word in front of line 0 (i64); `None` is 0.
    pub start: Option<Val>,
    /// Elements or words from a line to the next.
    pub pitch: u64,
    /// Inputs.
    pub k: u64,
    pub lie: Lie,
}

/// Scales of a block's lines.
pub(super) struct Scales {
    from: Place,
    pub to: Place,
    /// First scale of the block (i64).
    base: Val,
    /// For each load of a lane: its scale behind `base`, its line, and whether there is such a line.
    loads: Vec<[Val; 3]>,
    pub lines: u32,
    group: u64,
}

/// Lines of an operand.
pub(super) struct Lines {
    from: Place,
    pub to: Place,
    pub k: u64,
    /// Halves of the same size that come first in `to`.
    pub ahead: u32,
    /// bf16 or f16 elements of each half of `to`, and from a line to the next.
    pub half: u32,
    pub pitch: u32,
    /// First element of the block (i64).
    base: Val,
    /// For each load of a lane: its element behind `base`, its place in a half, and its input.
    loads: Vec<[Val; 3]>,
    vector: u64,
    lie: Lie,
    pub scales: Option<Scales>,
}

/// What lanes hold of a round until it is put.
pub(super) struct Fetched {
    values: Vec<Val>,
    scales: Vec<Val>,
}

impl Gen<'_> {
    /// Number of the lane among those of all waves.
    fn thread(&mut self) -> Val {
        let (wave, lane, width) = (self.b.wave(), self.b.lane(), self.b.i(i64::from(LANES)));
        let start = self.b.mul(wave, width);
        self.b.add(start, lane)
    }

    /// Where lines that exist start, for the lines `line` of a block: those past the end repeat the last one.
    fn line_start(&mut self, from: Taken, line: Val, pitch: Val) -> Val {
        let one = self.b.i(1);
        match from {
            Taken::Range { first, end } => {
                let last = self.b.sub(end, one);
                let last = self.b.sub(last, first);
                let known = self.b.bin(Bin::Min, line, last);
                self.b.mul(known, pitch)
            }
            Taken::Listed { pairs, left, choices } => {
                let last = self.b.sub(left, one);
                let index = self.b.bin(Bin::Min, line, last);
                let base = self.b.i(0);
                let mut row = self.b.load(pairs, Addr::Lanes { base, index }, Bound::All, 1);
                if choices > 1 {
                    let choices = self.b.i(choices as i64);
                    row = self.b.div(row, choices);
                }
                self.b.mul(row, pitch)
            }
        }
    }

    /// Deals the elements of `count` lines to the lanes of all waves; they go to the halves of `to` behind `ahead` others.
    pub(super) fn tile_lines(
        &mut self,
        t: &Tiles,
        s: &Source,
        to: Place,
        (count, from): (u32, Taken),
        ahead: u32,
    ) -> Lines {
        let base = match (from, s.lie) {
            // The outputs of a line across the buffer are its neighbours.
            (Taken::Range { first, .. }, Lie::Across(_)) => self.b.wide(first),
            (Taken::Range { first, .. }, _) => self.scaled(first, s.pitch),
            (Taken::Listed { .. }, _) => self.b.i64(0),
        };
        let base = match s.start {
            Some(start) => {
                let start = self.b.wide(start);
                self.b.bin(Bin::Add, start, base)
            }
            None => base,
        };
        let (loads, vector) = match s.lie {
            Lie::Across(n) => self.loads_across(t, n, (count, from)),
            _ => self.loads_along(t, s, (count, from)),
        };
        let pitch = t.step + PAD;
        let half = count * pitch;
        Lines { from: s.from, to, k: s.k, ahead, half, pitch, base, loads, vector, lie: s.lie, scales: None }
    }

    fn loads_along(&mut self, t: &Tiles, s: &Source, (count, from): (u32, Taken)) -> (Vec<[Val; 3]>, u64) {
        let packed = s.lie == Lie::Packed;
        let fits = |v: &u64| s.k.is_multiple_of(*v) && s.pitch.is_multiple_of(*v);
        let vector = if packed { WORDS } else { [VECTOR, 4, 2, 1].into_iter().find(fits).unwrap_or(1) };
        // Inputs of an element of the buffer.
        let each = if packed { LEVELS } else { 1 };
        let a_line = u64::from(t.step) / each / vector;
        let threads = u64::from(self.b.waves() * LANES);
        let thread = self.thread();
        let (pitch, line_to) = (self.b.i(s.pitch as i64), self.b.i(i64::from(t.step + PAD)));
        let mut loads = Vec::new();
        for i in 0..(u64::from(count) * a_line).div_ceil(threads) {
            let ahead = self.b.i((i * threads) as i64);
            let number = self.b.add(thread, ahead);
            let (shift, low) = (self.b.i(i64::from(a_line.trailing_zeros())), self.b.i(a_line as i64 - 1));
            let (line, place) = (self.b.bin(Bin::Lshr, number, shift), self.b.and(number, low));
            let vector = self.b.i(vector as i64);
            let element = self.b.mul(place, vector);
            let start = self.line_start(from, line, pitch);
            let input = if packed {
                let each = self.b.i(each as i64);
                self.b.mul(element, each)
            } else {
                element
            };
            let there = self.b.mul(line, line_to);
            loads.push([self.b.add(start, element), self.b.add(there, input), input]);
        }
        (loads, vector)
    }

    /// A lane takes neighbouring outputs of one input: a vector of a row of n. Outputs past the end repeat the last vector.
    fn loads_across(&mut self, t: &Tiles, n: u64, (count, from): (u32, Taken)) -> (Vec<[Val; 3]>, u64) {
        let vector = [VECTOR, 4, 2, 1].into_iter().find(|v| n.is_multiple_of(*v)).unwrap_or(1);
        let a_row = u64::from(count) / vector;
        let threads = u64::from(self.b.waves() * LANES);
        let thread = self.thread();
        let Taken::Range { first, end } = from else { return (Vec::new(), vector) };
        let last = self.b.i(vector as i64);
        let last = self.b.sub(end, last);
        let last = self.b.sub(last, first);
        let mut loads = Vec::new();
        for i in 0..(u64::from(t.step) * a_row).div_ceil(threads) {
            let ahead = self.b.i((i * threads) as i64);
            let number = self.b.add(thread, ahead);
            let (shift, low) = (self.b.i(i64::from(a_row.trailing_zeros())), self.b.i(a_row as i64 - 1));
            let (input, place) = (self.b.bin(Bin::Lshr, number, shift), self.b.and(number, low));
            let (vector, n) = (self.b.i(vector as i64), self.b.i(n as i64));
            let output = self.b.mul(place, vector);
            let known = self.b.bin(Bin::Min, output, last);
            let row = self.b.mul(input, n);
            let line_to = self.b.i(i64::from(t.step + PAD));
            let there = self.b.mul(output, line_to);
            loads.push([self.b.add(row, known), self.b.add(there, input), input]);
        }
        (loads, vector)
    }

    /// Deals the scales of `count` lines to lanes; `s` has the scales of a line side by side.
    pub(super) fn tile_scales(&mut self, s: &Source, group: u64, to: Place, (count, from): (u32, Taken)) -> Scales {
        let base = match from {
            Taken::Range { first, .. } => self.scaled(first, s.pitch),
            Taken::Listed { .. } => self.b.i64(0),
        };
        let base = match s.start {
            Some(start) => self.b.bin(Bin::Add, start, base),
            None => base,
        };
        let threads = self.b.waves() * LANES;
        let (thread, pitch, end) = (self.thread(), self.b.i(s.pitch as i64), self.b.i(i64::from(count)));
        let mut loads = Vec::new();
        for i in 0..count.div_ceil(threads) {
            let ahead = self.b.i(i64::from(i * threads));
            let line = self.b.add(thread, ahead);
            let start = self.line_start(from, line, pitch);
            loads.push([start, line, self.b.cmp(Cmp::Lt, line, end)]);
        }
        Scales { from: s.from, to, base, loads, lines: count, group }
    }

    /// Loads the round of inputs from `k` on, and the scales of their group.
    pub(super) fn tile_fetch(&mut self, lines: &Lines, step: u32, k: Val) -> Fetched {
        let ahead = match lines.lie {
            Lie::Along => self.b.wide(k),
            Lie::Across(n) => self.scaled(k, n),
            Lie::Packed => {
                let shift = self.b.i(i64::from(LEVELS.trailing_zeros()));
                let word = self.b.bin(Bin::Lshr, k, shift);
                self.b.wide(word)
            }
        };
        let base = self.b.bin(Bin::Add, lines.base, ahead);
        let end = self.b.i(lines.k as i64);
        let mut values = Vec::new();
        for &[element, _, input] in &lines.loads {
            let bound = if lines.k.is_multiple_of(u64::from(step)) {
                Bound::All
            } else {
                let at = self.b.add(k, input);
                Bound::Mask(self.b.cmp(Cmp::Lt, at, end))
            };
            values.push(self.b.load(lines.from, Addr::Lanes { base, index: element }, bound, lines.vector as u8));
        }
        let mut scales = Vec::new();
        if let Some(s) = &lines.scales {
            let shift = self.b.i(i64::from(s.group.trailing_zeros()));
            let number = self.b.bin(Bin::Lshr, k, shift);
            let number = self.b.wide(number);
            let base = self.b.bin(Bin::Add, s.base, number);
            for &[index, _, exists] in &s.loads {
                scales.push(self.b.load(s.from, Addr::Lanes { base, index }, Bound::Mask(exists), 1));
            }
        }
        Fetched { values, scales }
    }

    /// Where a half of the lines starts, counted in parts of `size` elements.
    pub(super) fn half_start(&mut self, lines: &Lines, half: Val, size: u32) -> Val {
        let (half, size) = (self.ahead(half, lines.ahead), self.b.i(i64::from(size)));
        self.b.mul(half, size)
    }

    /// Stores a round to a half of workgroup memory.
    pub(super) fn tile_put(&mut self, lines: &Lines, half: Val, fetched: &Fetched) {
        let base = self.half_start(lines, half, lines.half);
        for (&[_, there, _], &value) in lines.loads.iter().zip(&fetched.values) {
            match lines.lie {
                Lie::Along => self.b.store(lines.to, Addr::Lanes { base, index: there }, Bound::All, value),
                Lie::Across(_) => {
                    for c in 0..lines.vector {
                        let ahead = self.b.i(i64::from(lines.pitch) * c as i64);
                        let index = self.b.add(there, ahead);
                        let one = if lines.vector == 1 { value } else { self.b.component(value, c as u8) };
                        self.b.store(lines.to, Addr::Lanes { base, index }, Bound::All, one);
                    }
                }
                Lie::Packed => self.put_levels(lines, half, there, value),
            }
        }
        if let Some(s) = &lines.scales {
            let size = self.b.i(i64::from(s.lines));
            let base = self.b.mul(half, size);
            for (&[_, index, exists], &value) in s.loads.iter().zip(&fetched.scales) {
                self.b.store(s.to, Addr::Lanes { base, index }, Bound::Mask(exists), value);
            }
        }
    }

    /// The levels of some words as bf16, at element `there` of a half. Two share a word of `to`.
    fn put_levels(&mut self, lines: &Lines, half: Val, there: Val, words: Val) {
        let (base, one) = (self.half_start(lines, half, lines.half / 2), self.b.i(1));
        let index = self.b.bin(Bin::Lshr, there, one);
        let flipped = self.b.i(i64::from(0x8888_8888_u32 as i32));
        let words = self.b.bin(Bin::Xor, words, flipped);
        for i in 0..WORDS as u8 {
            let word = self.b.component(words, i);
            let word = self.b.splat(word, PAIRS as u8);
            // Integers of so few bits are exact in the upper half of an f32: that is their bf16.
            let (low, high) = (self.level_bits(word, 28), self.level_bits(word, 24));
            let (half_word, top) = (self.b.i(16), self.b.i(i64::from(0xffff_0000_u32 as i32)));
            let low = self.b.bin(Bin::Lshr, low, half_word);
            let high = self.b.and(high, top);
            let pairs = self.b.bin(Bin::Or, high, low);
            let ahead = self.b.i(i64::from(i) * PAIRS as i64);
            let index = self.b.add(index, ahead);
            self.b.store(lines.to, Addr::Lanes { base, index }, Bound::All, pairs);
        }
    }

    /// f32 bits of every other level of a word whose nibbles have their signs flipped; the first is shifted up by `first`.
    fn level_bits(&mut self, word: Val, first: i64) -> Val {
        let parts: Vec<Val> = (0..PAIRS as i64).map(|j| self.b.i(first - 8 * j)).collect();
        let parts = parts.into_iter().map(|v| self.b.splat(v, 1)).collect();
        let (left, right) = (self.b.pack(parts), self.b.i(28));
        let high = self.b.bin(Bin::Shl, word, left);
        let level = self.b.bin(Bin::Ashr, high, right);
        let level = self.b.conv(Conv::I32ToF32, level);
        self.b.conv(Conv::F32Bits, level)
    }
}
