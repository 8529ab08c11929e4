//! Parts form: a workgroup finds the best of its part of a row; the last one of a row chooses among all of them.

use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;
use unglue_ir::types::Dim;
use unglue_passes::schedule::Parts;

use super::index::Ix;
use super::top_k::{Part, TAKEN};
use super::{Gen, Res, StepScalar};
use crate::kp::{Bin, Cmp, LANES, Mem, Place, Val};

impl Gen<'_> {
    pub fn parts_form(&mut self, f: &Parts) -> Res<()> {
        self.row = self.group(1);
        let count = self.scalar(if f.rows == Dim::Logits { StepScalar::Logits } else { StepScalar::Rows });
        let here = self.b.cmp(Cmp::Lt, self.row, count);
        self.when(here, |s| {
            let part = s.group(0);
            s.best_of_part(f, part)?;
            match &f.finish {
                Some(finish) => s.finish_stage_of_row(finish, f.parts),
                None => Ok(()),
            }
        })
    }

    fn best_of_part(&mut self, f: &Parts, part: Val) -> Res<()> {
        let Op::TopK { k, part: Some(size), .. } = self.g.node(f.node).op else {
            return self.fault(f.node, "not a top-k by parts");
        };
        let scores = self.g.node(f.node).args[0];
        let n = self.elements(scores)?;
        let ids = self.shared_array(f.node, Mem::I32, k);
        let own = self.part_scores(scores, (n, size), part)?;
        if k == 1 {
            self.best_of_keys(&own, ids);
        } else {
            let lists = self.lists(k);
            self.list_part(&lists, own)?;
            self.b.barrier();
            self.merge(&lists, ids)?;
        }
        self.b.barrier();
        let place = self.iface.output(&mut self.b, &self.g.outputs[f.output].0, Mem::I32);
        let (row, each) = (self.row_base(&[f.parts * k]), self.b.i(k as i64));
        let first = self.b.mul(part, each);
        let base = self.b.add(row, first);
        self.for_elements(k, |s, at| {
            let id = s.load(ids, None, at);
            s.store(place, Some(base), at, id);
            Ok(())
        })
    }

    /// Keys of this wave's elements of a part of `size` of `n` elements. The last part's lanes reach back into the one before
    /// it, where a row has as many elements: all parts are loaded alike, and what is not the part's own is taken already.
    fn part_scores(&mut self, scores: ValueId, (n, size): (u64, u64), part: Val) -> Res<Part> {
        let lanes = u64::from(self.b.waves() * LANES);
        let each = size.div_ceil(lanes);
        let wide = matches!(each, 2 | 4 | 8) && size == each * lanes && size <= n;
        let (size_of, last) = (self.b.i(size as i64), self.b.i(n as i64 - 1));
        let first = self.b.mul(part, size_of);
        let start = match size <= n {
            true => {
                let latest = self.b.i((n - size) as i64);
                self.b.bin(Bin::Min, first, latest)
            }
            false => first,
        };
        let (wave, lane) = (self.b.wave(), self.b.lane());
        let (per_wave, per_lane) = (self.b.i((each * u64::from(LANES)) as i64), self.b.i(each as i64));
        let of_wave = self.b.mul(wave, per_wave);
        let of_wave = self.b.add(start, of_wave);
        let of_lane = self.b.mul(lane, per_lane);
        let of_lane = self.b.add(of_wave, of_lane);
        let end = self.b.add(start, size_of);
        let outer = self.mask.take();
        let mut found = Vec::new();
        for i in 0..each {
            let by = self.b.i(i as i64);
            let at = self.b.add(of_lane, by);
            let ix = if wide {
                Ix::Wide { base: of_wave, width: each as u8, part: i as u8, aligned: false }
            } else {
                // Lanes without an element read the last one.
                Ix::Lane(self.b.bin(Bin::Min, at, last))
            };
            found.push((at, self.eval(scores, &[ix])?));
        }
        let taken = self.b.i(i64::from(TAKEN));
        let mut keys = Vec::new();
        for (at, x) in found {
            let key = self.score_key(x);
            let mut own = self.b.cmp(Cmp::Ge, at, first);
            if !wide {
                let (below, inside) = (self.b.cmp(Cmp::Lt, at, end), self.b.cmp(Cmp::Le, at, last));
                own = self.b.and(own, below);
                own = self.b.and(own, inside);
            }
            keys.push(self.b.select(own, key, taken));
        }
        self.mask = outer;
        Ok(Part { keys, first: of_wave })
    }

    /// The best of all waves' keys, into `ids[0]`.
    fn best_of_keys(&mut self, part: &Part, ids: Place) {
        let zero = self.b.i(0);
        let (mut best, mut slot) = (part.keys[0], self.b.splat(zero, 1));
        for (i, &key) in part.keys.iter().enumerate().skip(1) {
            let i = self.b.i(i as i64);
            let better = self.b.cmp(Cmp::Gt, key, best);
            (best, slot) = (self.b.select(better, key, best), self.b.select(better, i, slot));
        }
        let (lane, per_lane) = (self.b.lane(), self.b.i(part.keys.len() as i64));
        let own = self.b.mul(lane, per_lane);
        let own = self.b.add(own, slot);
        let at = self.b.add(part.first, own);
        self.best_of_workgroup((best, at), ids);
    }
}
