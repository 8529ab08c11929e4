//! Contractions over int4 weights, in the order `runs`.
//!
//! A lane loads 16 bytes, the 32 levels of a run, beside the run's scale and the 32 inputs that they meet.

use unglue_ir::graph::ValueId;
use unglue_ir::order::{RUN, RUN_CHAINS, RUN_LANES};

use super::skinny::Lines;
use super::{Gen, Res};
use crate::kp::{Addr, Bin, Bound, Cmp, Conv, Place, Reduce, Val};

/// Levels in a word.
pub(super) const INT4_PER_WORD: u64 = 8;
/// Words of a run.
const RUN_WORDS: u64 = RUN / INT4_PER_WORD;
/// Words that a wave loads at once.
pub(super) const WORDS: u64 = RUN_WORDS * RUN_LANES;

/// Scales of an int4 weight.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    scales: Place,
    group: u64,
    /// Weight rows in front of the matrix, i64.
    rows_before: Option<Val>,
}

impl Packed {
    /// The scales behind `rows` rows of other matrices.
    pub fn behind(self, rows: Option<Val>) -> Packed {
        Packed { rows_before: rows, ..self }
    }
}

/// One round of a wave: 32 runs.
struct Round {
    /// Its first input.
    first: Val,
    /// Runs that exist, if not all do.
    runs: Option<u64>,
}

impl Gen<'_> {
    /// The scales of a weight, if it is int4.
    pub(super) fn packed(&mut self, weight: ValueId) -> Option<Packed> {
        let (scales, group) = self.iface.scales(&mut self.b, self.g, weight)?;
        Some(Packed { scales, group: u64::from(group), rows_before: None })
    }

    /// Output n for all unrolled rows, uniform. `words`: first word of its weight row.
    pub(super) fn packed_products(&mut self, lines: &Lines, packed: &Packed, n: Val, words: Val) -> Res<Vec<Val>> {
        let row = match packed.rows_before {
            Some(before) => {
                let n = self.b.wide(n);
                self.b.bin(Bin::Add, before, n)
            }
            None => n,
        };
        let scales = self.scaled(row, lines.k / packed.group);
        let zero = self.b.f(0.0);
        let mut acc: Vec<Val> = lines.x_bases.iter().map(|_| self.b.splat(zero, 1)).collect();
        let step = RUN * RUN_LANES;
        let full = lines.k / step * step;
        if full > 0 {
            let (start, end) = (self.b.i(0), self.b.i(full as i64));
            acc = self.looped((start, end, step as i64), &acc, |g, first, acc| {
                Ok(g.round(lines, packed, (words, scales), &Round { first, runs: None }, acc))
            })?;
        }
        if full < lines.k {
            let round = Round { first: self.b.i(full as i64), runs: Some((lines.k - full) / RUN) };
            acc = self.round(lines, packed, (words, scales), &round, &acc);
        }
        Ok(acc.into_iter().map(|v| self.b.reduce(Reduce::Add, v)).collect())
    }

    /// Adds the sums of one round to the lanes; absent runs load zeros and add +0.
    fn round(
        &mut self,
        lines: &Lines,
        packed: &Packed,
        (words, scales): (Val, Val),
        at: &Round,
        acc: &[Val],
    ) -> Vec<Val> {
        let lane = self.b.lane();
        let here = at.runs.map(|runs| {
            let runs = self.b.i(runs as i64);
            self.b.cmp(Cmp::Lt, lane, runs)
        });
        let mask = here.map_or(Bound::All, Bound::Mask);
        let first_word = self.shifted(at.first, INT4_PER_WORD);
        let base = self.plus(words, first_word);
        let count = match at.runs {
            Some(runs) => Bound::Count(self.b.i((runs * RUN_WORDS) as i64)),
            None => Bound::All,
        };
        let word = self.b.load(lines.weight, Addr::Contig { base }, count, RUN_WORDS as u8);
        let first_scale = self.shifted(at.first, packed.group);
        let base = self.plus(scales, first_scale);
        let index = self.shifted(lane, packed.group / RUN);
        let scale = self.b.load(packed.scales, Addr::Lanes { base, index }, mask, 1);
        let levels = self.levels(word);
        let run = self.b.i(RUN as i64);
        let index = self.b.mul(lane, run);
        let sum = |g: &mut Self, x: Val| {
            let zero = g.b.f(0.0);
            let mut chains = g.b.splat(zero, RUN_CHAINS as u8);
            for (i, &level) in levels.iter().enumerate() {
                let ahead = g.b.i((i as u64 * RUN_CHAINS) as i64);
                let base = g.b.add(x, at.first);
                let base = g.b.add(base, ahead);
                let x = g.b.load(lines.x, Addr::Lanes { base, index }, mask, RUN_CHAINS as u8);
                chains = g.b.fma(x, level, chains);
            }
            g.components_total(chains)
        };
        let sums: Vec<Val> = lines.x_bases.iter().map(|&x| sum(self, x)).collect();
        sums.iter().zip(acc).map(|(&sum, &lane)| self.b.fma(scale, sum, lane)).collect()
    }

    /// q - 8 of the words of a run, 8 components each: the sign of a nibble is flipped and spread, which needs two
    /// instructions a level on both targets.
    fn levels(&mut self, words: Val) -> Vec<Val> {
        let signs = self.b.i(i64::from(0x8888_8888_u32 as i32));
        let words = self.b.bin(Bin::Xor, words, signs);
        let parts: Vec<Val> = (0..INT4_PER_WORD).map(|j| self.b.i(28 - 4 * j as i64)).collect();
        let parts = parts.into_iter().map(|v| self.b.splat(v, 1)).collect();
        let (left, right) = (self.b.pack(parts), self.b.i(28));
        (0..RUN_WORDS as u8)
            .map(|i| {
                let word = self.b.component(words, i);
                let word = self.b.splat(word, INT4_PER_WORD as u8);
                let high = self.b.bin(Bin::Shl, word, left);
                let level = self.b.bin(Bin::Ashr, high, right);
                self.b.conv(Conv::I32ToF32, level)
            })
            .collect()
    }

    /// `v / by`, by a power of two.
    fn shifted(&mut self, v: Val, by: u64) -> Val {
        if by == 1 {
            return v;
        }
        let bits = self.b.i(i64::from(by.trailing_zeros()));
        self.b.bin(Bin::Lshr, v, bits)
    }

    /// `base + offset`, in the width of the base.
    fn plus(&mut self, base: Val, offset: Val) -> Val {
        let offset = if self.b.ty(base).elem() == crate::kp::Elem::I64 { self.b.wide(offset) } else { offset };
        self.b.bin(Bin::Add, base, offset)
    }
}
