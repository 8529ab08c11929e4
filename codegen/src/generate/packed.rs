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

    /// Some outputs, each for all unrolled rows, uniform. `words`: first words of their weight rows, which are streamed at
    /// the same time: each piece of the operand is loaded and widened once for all of them.
    pub(super) fn packed_products(
        &mut self,
        lines: &Lines,
        packed: &Packed,
        outputs: &[Val],
        words: &[Val],
    ) -> Res<Vec<Vec<Val>>> {
        let rows: Vec<(Val, Val)> =
            outputs.iter().zip(words).map(|(&n, &words)| (words, self.first_scale(packed, n, lines.k))).collect();
        let zero = self.b.f(0.0);
        let sums = outputs.len() * lines.x_bases.len();
        let mut acc: Vec<Val> = (0..sums).map(|_| self.b.splat(zero, 1)).collect();
        let step = RUN * RUN_LANES;
        let full = lines.k / step * step;
        if full > 0 {
            let (start, end) = (self.b.i(0), self.b.i(full as i64));
            acc = self.looped((start, end, step as i64), &acc, |g, first, acc| {
                Ok(g.round(lines, packed, &rows, &Round { first, runs: None }, acc))
            })?;
        }
        if full < lines.k {
            let round = Round { first: self.b.i(full as i64), runs: Some((lines.k - full) / RUN) };
            acc = self.round(lines, packed, &rows, &round, &acc);
        }
        let sums: Vec<Val> = acc.into_iter().map(|v| self.b.reduce(Reduce::Add, v)).collect();
        Ok(sums.chunks(lines.x_bases.len()).map(<[Val]>::to_vec).collect())
    }

    /// Where the scales of output n start.
    fn first_scale(&mut self, packed: &Packed, n: Val, k: u64) -> Val {
        let row = match packed.rows_before {
            Some(before) => {
                let n = self.b.wide(n);
                self.b.bin(Bin::Add, before, n)
            }
            None => n,
        };
        self.scaled(row, k / packed.group)
    }

    /// Adds the sums of one round to the lanes, by output, then by row of the operand; absent runs load zeros and add +0.
    fn round(&mut self, lines: &Lines, packed: &Packed, rows: &[(Val, Val)], at: &Round, acc: &[Val]) -> Vec<Val> {
        let lane = self.b.lane();
        let here = at.runs.map(|runs| {
            let runs = self.b.i(runs as i64);
            self.b.cmp(Cmp::Lt, lane, runs)
        });
        let mask = here.map_or(Bound::All, Bound::Mask);
        let run = self.b.i(RUN as i64);
        let inputs = self.b.mul(lane, run);
        let weights: Vec<(Val, Vec<Val>)> =
            rows.iter().map(|&(words, scales)| self.run_of(lines, packed, (words, scales), (at, mask))).collect();
        let zero = self.b.f(0.0);
        let nothing = self.b.splat(zero, RUN_CHAINS as u8);
        let mut chains = vec![nothing; acc.len()];
        for i in 0..RUN_WORDS as usize {
            for (r, &x) in lines.x_bases.iter().enumerate() {
                let ahead = self.b.i((i as u64 * RUN_CHAINS) as i64);
                let base = self.b.add(x, at.first);
                let base = self.b.add(base, ahead);
                let x = self.b.load(lines.x, Addr::Lanes { base, index: inputs }, mask, RUN_CHAINS as u8);
                for (o, (_, levels)) in weights.iter().enumerate() {
                    let chain = &mut chains[o * lines.x_bases.len() + r];
                    *chain = self.b.fma(x, levels[i], *chain);
                }
            }
        }
        let scales = weights.iter().flat_map(|(scale, _)| lines.x_bases.iter().map(|_| *scale));
        let ends = chains.iter().zip(scales).zip(acc);
        ends.map(|((&chains, scale), &lane)| {
            let sum = self.components_total(chains);
            self.b.fma(scale, sum, lane)
        })
        .collect()
    }

    /// A lane's run of a weight row: its scale and its levels.
    fn run_of(
        &mut self,
        lines: &Lines,
        packed: &Packed,
        (words, scales): (Val, Val),
        (at, mask): (&Round, Bound),
    ) -> (Val, Vec<Val>) {
        let first_word = self.shifted(at.first, INT4_PER_WORD);
        let base = self.plus(words, first_word);
        let count = match at.runs {
            Some(runs) => Bound::Count(self.b.i((runs * RUN_WORDS) as i64)),
            None => Bound::All,
        };
        let word = self.b.load(lines.weight, Addr::Contig { base }, count, RUN_WORDS as u8);
        let first_scale = self.shifted(at.first, packed.group);
        let base = self.plus(scales, first_scale);
        let lane = self.b.lane();
        let index = self.shifted(lane, packed.group / RUN);
        let scale = self.b.load(packed.scales, Addr::Lanes { base, index }, mask, 1);
        (scale, self.levels(word))
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
    pub(super) fn shifted(&mut self, v: Val, by: u64) -> Val {
        if by == 1 {
            return v;
        }
        let bits = self.b.i(i64::from(by.trailing_zeros()));
        self.b.bin(Bin::Lshr, v, bits)
    }

    /// `base + offset`, in the width of the base.
    pub(super) fn plus(&mut self, base: Val, offset: Val) -> Val {
        let offset = if self.b.ty(base).elem() == crate::kp::Elem::I64 { self.b.wide(offset) } else { offset };
        self.b.bin(Bin::Add, base, offset)
    }
}
