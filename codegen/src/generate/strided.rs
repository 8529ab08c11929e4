//! Contractions along the slow axis of a weight, in the order `strided`: one output a lane.

use super::index::Ix;
use super::skinny::{Lines, Span};
use super::{Gen, Res};
use crate::kp::{Bin, Val};
use unglue_passes::schedule::Segment;

impl Gen<'_> {
    /// Contraction along the slow weight axis: one output a lane, `chains` chains in each.
    pub(super) fn strided_sums(&mut self, segment: &Segment, span: &Span, lines: &Lines, chains: u64) -> Res<Vec<Val>> {
        let zero = self.b.f(0.0);
        let rows = span.rows.len();
        let init: Vec<Val> = (0..rows * chains as usize).map(|_| self.b.splat(zero, 1)).collect();
        let outer = self.mask;
        self.mask_below(Ix::Seq { base: span.n0, aligned: true }, segment.n);
        let full = lines.k / chains * chains;
        let (start, end) = (self.b.i(0), self.b.i(full as i64));
        let mut acc = self.looped((start, end, chains as i64), &init, |g, k0, acc| {
            let mut out = acc.to_vec();
            for c in 0..chains {
                let c0 = g.b.i(c as i64);
                let k = g.b.add(k0, c0);
                g.strided_step(segment, span, lines, k, c as usize, chains as usize, &mut out);
            }
            Ok(out)
        })?;
        for k in full..lines.k {
            let c = (k % chains) as usize;
            let k = self.b.i(k as i64);
            self.strided_step(segment, span, lines, k, c, chains as usize, &mut acc);
        }
        if full < lines.k {
            // Chains without a term in the last round add +0.
            for c in (lines.k - full) as usize..chains as usize {
                for r in 0..rows {
                    let slot = &mut acc[r * chains as usize + c];
                    *slot = self.b.bin(Bin::Add, *slot, zero);
                }
            }
        }
        self.mask = outer;
        Ok((0..rows).map(|r| self.strided_total(&acc[r * chains as usize..(r + 1) * chains as usize])).collect())
    }

    #[allow(clippy::too_many_arguments, reason = "the innermost step of one template")]
    fn strided_step(
        &mut self,
        segment: &Segment,
        span: &Span,
        lines: &Lines,
        k: Val,
        c: usize,
        chains: usize,
        acc: &mut [Val],
    ) {
        let line = self.b.i(segment.n as i64);
        let offset = self.b.mul(k, line);
        let base = match lines.weight_base {
            Some(b) => self.b.add(b, offset),
            None => offset,
        };
        let w = self.load(lines.weight, Some(base), Ix::Seq { base: span.n0, aligned: true });
        for (r, &x) in lines.x_bases.iter().enumerate() {
            let at = self.b.add(x, k);
            let x = self.b.load_uniform(lines.x, at);
            let slot = &mut acc[r * chains + c];
            *slot = self.b.fma(x, w, *slot);
        }
    }

    /// Every `waves`th chain from chain `part` on, added up to the step that needs those of another part. The chains are all
    /// as long.
    pub(super) fn strided_part(
        &mut self,
        segment: &Segment,
        span: &Span,
        lines: &Lines,
        (chains, part, waves): (u64, Val, u64),
    ) -> Res<Vec<Val>> {
        let zero = self.b.f(0.0);
        let (rows, own) = (span.rows.len(), (chains / waves) as usize);
        let init: Vec<Val> = (0..rows * own).map(|_| self.b.splat(zero, 1)).collect();
        let outer = self.mask;
        self.mask_below(Ix::Seq { base: span.n0, aligned: true }, segment.n);
        let end = self.b.i(lines.k as i64);
        let acc = self.looped((part, end, chains as i64), &init, |g, first, acc| {
            let mut out = acc.to_vec();
            for i in 0..own {
                let k = g.ahead(first, i as u32 * waves as u32);
                g.strided_step(segment, span, lines, k, i, own, &mut out);
            }
            Ok(out)
        })?;
        self.mask = outer;
        Ok(acc.chunks(own).map(|chains| self.strided_total(chains)).collect())
    }
}
