//! Sums in the `lanes` order: 256 chains, over a workgroup or within one wave.

use unglue_ir::graph::ValueId;

use super::index::Ix;
use super::{Gen, Res};
use crate::kp::{Addr, Bin, Bound, Cmp, LANES, Mem, Place, Reduce, Val};

/// Chains of the `lanes` order.
pub(super) const CHAINS: u64 = 256;
/// The chains in groups of 32.
const GROUPS: u64 = CHAINS / 32;
/// Terms of a lane that are formed without a loop, where nothing but their latency counts.
const WITHOUT_LOOP: u64 = 32;

impl Gen<'_> {
    /// x of the elements of chain group `group` (uniform), chunk by chunk, added to one chain a lane.
    fn chain_group(&mut self, n: u64, group: Val, term: &mut dyn FnMut(&mut Self, Ix) -> Res<Val>) -> Res<Val> {
        let zero = self.b.f(0.0);
        let init = self.b.splat(zero, 1);
        let lanes = self.b.i(32);
        let start = self.b.mul(group, lanes);
        // Every chain takes part in each round: absent elements are added as +0.
        let rounds = if n > CHAINS { n.next_multiple_of(CHAINS) } else { n };
        let partial = rounds != n || !n.is_multiple_of(32);
        if self.by_neighbours && n.is_multiple_of(CHAINS) && n / CHAINS <= WITHOUT_LOOP {
            let mut terms = Vec::new();
            for first in (0..n).step_by(CHAINS as usize) {
                let first = self.b.i(first as i64);
                let base = self.b.add(start, first);
                terms.push(term(self, Ix::Seq { base, aligned: true })?);
            }
            return Ok(terms.into_iter().fold(init, |sum, x| self.b.bin(Bin::Add, sum, x)));
        }
        let end = self.b.i(rounds as i64);
        let sums = self.looped((start, end, CHAINS as i64), &[init], |s, i, carried| {
            let outer = s.mask;
            let ix = Ix::Seq { base: i, aligned: true };
            if partial {
                s.mask_below(ix, n);
            }
            let mut x = term(s, ix)?;
            if let (Some(m), true) = (s.mask, partial) {
                let nothing = s.b.f(0.0);
                x = s.b.splat(x, 1);
                x = s.b.select(m, x, nothing);
            }
            s.mask = outer;
            Ok(vec![s.b.bin(Bin::Add, carried[0], x)])
        })?;
        Ok(sums[0])
    }

    /// First three steps of the tree: chains c^4, c^2, c^1 stand in neighbouring lanes.
    fn lane_tree(&mut self, mut v: Val) -> Val {
        for mask in [4, 2, 1] {
            let other = self.b.xor_lane(v, mask);
            v = self.b.bin(Bin::Add, v, other);
        }
        v
    }

    /// Sum over n terms by the whole workgroup; the result is uniform and the same in every wave. Holds a barrier.
    pub fn workgroup_sum(&mut self, n: u64, term: impl FnMut(&mut Self, Ix) -> Res<Val>) -> Res<Val> {
        let scratch = self.sum_scratch();
        self.workgroup_sum_in(scratch, n, term)
    }

    /// Workgroup memory for the chains of a sum over a workgroup.
    pub fn sum_scratch(&mut self) -> Place {
        self.b.shared("sum", Mem::F32, 32 * GROUPS)
    }

    /// As [`Gen::workgroup_sum`], in memory of [`Gen::sum_scratch`] that no wave still reads.
    pub fn workgroup_sum_in(
        &mut self,
        scratch: Place,
        n: u64,
        mut term: impl FnMut(&mut Self, Ix) -> Res<Val>,
    ) -> Res<Val> {
        let waves = u64::from(self.b.waves());
        let wave = self.b.wave();
        for a in 0..GROUPS / waves.min(GROUPS) {
            let offset = self.b.i((a * waves) as i64);
            let group = self.b.add(wave, offset);
            // More waves than chain groups: some form the same chains.
            let group = match waves > GROUPS {
                true => {
                    let last = self.b.i(GROUPS as i64 - 1);
                    self.b.bin(Bin::And, group, last)
                }
                false => group,
            };
            let chain = self.chain_group(n, group, &mut term)?;
            let v = self.lane_tree(chain);
            let lanes = self.b.i(32);
            let base = self.b.mul(group, lanes);
            self.b.store(scratch, Addr::Contig { base }, Bound::All, v);
        }
        self.b.barrier();
        let lane = self.b.lane();
        let eight = self.b.i(8);
        let index = self.b.mul(lane, eight);
        let base = self.b.i(0);
        let v = self.b.load(scratch, Addr::Lanes { base, index }, Bound::All, 1);
        Ok(self.b.reduce(Reduce::Add, v))
    }

    /// Sum over n terms by one wave; the result is uniform.
    pub fn wave_sum(&mut self, n: u64, mut term: impl FnMut(&mut Self, Ix) -> Res<Val>) -> Res<Val> {
        let mut groups = Vec::new();
        // Chain groups beyond n hold +0. A chain of one term is +0 + x, never -0: leaving them out keeps the bits.
        for gr in 0..GROUPS.min(n.div_ceil(32)) {
            let group = self.b.i(gr as i64);
            let chain = self.chain_group(n, group, &mut term)?;
            groups.push(self.lane_tree(chain));
        }
        let mut half = GROUPS as usize / 2;
        while half > 0 {
            for i in 0..half {
                if i + half < groups.len() {
                    groups[i] = self.b.bin(Bin::Add, groups[i], groups[i + half]);
                }
            }
            groups.truncate(half.min(groups.len()));
            half /= 2;
        }
        let mut v = groups[0];
        for mask in [16, 8] {
            let other = self.b.xor_lane(v, mask);
            v = self.b.bin(Bin::Add, v, other);
        }
        let first = self.b.i(0);
        Ok(self.b.read_lane(v, first))
    }

    /// Sum of 32 terms, one a lane, as `lanes` has it: each chain takes one term, and the chains without add +0.
    pub fn block_total(&mut self, x: Val) -> Val {
        let zero = self.b.f(0.0);
        let zero = self.b.splat(zero, 1);
        let chains = self.b.bin(Bin::Add, zero, x);
        let mut v = self.lane_tree(chains);
        for mask in [16, 8] {
            let other = self.b.xor_lane(v, mask);
            v = self.b.bin(Bin::Add, v, other);
        }
        let first = self.b.i(0);
        self.b.read_lane(v, first)
    }

    /// Maximum over n terms by the whole workgroup, uniform. Holds a barrier.
    pub fn workgroup_max(&mut self, n: u64, term: impl FnOnce(&mut Self, Ix) -> Res<Val>) -> Res<Val> {
        Ok(self.workgroup_maxima(n, 1, |s, at| Ok(vec![term(s, at)?]))?[0])
    }

    /// `count` maxima over n terms each, as [`Gen::workgroup_max`] has them, with one barrier.
    pub fn workgroup_maxima(
        &mut self,
        n: u64,
        count: u64,
        terms: impl FnOnce(&mut Self, Ix) -> Res<Vec<Val>>,
    ) -> Res<Vec<Val>> {
        let waves = u64::from(self.b.waves());
        let scratch = self.b.shared("max", Mem::F32, count * waves);
        let low = self.b.f(f32::NEG_INFINITY);
        let init = self.b.splat(low, 1);
        let wave = self.b.wave();
        let lanes = self.b.i(32);
        let start = self.b.mul(wave, lanes);
        let end = self.b.i(n as i64);
        let init: Vec<Val> = (0..count).map(|_| init).collect();
        let best = self.looped((start, end, 32 * waves as i64), &init, |s, i, carried| {
            let outer = s.mask;
            let ix = Ix::Seq { base: i, aligned: true };
            s.mask_below(ix, n);
            let found = terms(s, ix)?;
            let better = |(&so_far, x): (&Val, Val)| {
                let x = s.b.splat(x, 1);
                let x = match s.mask {
                    Some(m) => s.b.select(m, x, low),
                    None => x,
                };
                s.b.bin(Bin::Max, so_far, x)
            };
            let better = carried.iter().zip(found).map(better).collect();
            s.mask = outer;
            Ok(better)
        })?;
        for (i, &best) in (0..).zip(&best) {
            let mine = self.wave_max(best);
            let base = self.ahead(wave, i * waves as u32);
            self.b.store(scratch, Addr::Uniform { base }, Bound::All, mine);
        }
        self.b.barrier();
        let mut maxima = Vec::new();
        for i in 0..count {
            let mut out = low;
            for w in 0..waves {
                let at = self.b.i((i * waves + w) as i64);
                let x = self.b.load_uniform(scratch, at);
                out = self.b.bin(Bin::Max, out, x);
            }
            maxima.push(out);
        }
        Ok(maxima)
    }

    /// Sums over the lanes, each as [`Reduce::Add`] forms it: of m values, m a power of two up to 32, lane l gets the sum
    /// of value l / (32 / m). A step that halves the lanes of a sum halves the values of a lane, so that eight sums take
    /// little more than two would by themselves.
    pub fn sums_over_lanes(&mut self, values: Vec<Val>) -> Val {
        self.sums_in_groups(values, LANES)
    }

    /// As [`Gen::sums_over_lanes`], over each group of `lanes` lanes, a power of two: of m values, m up to `lanes`, lane l of
    /// a group gets the sum of value l / (lanes / m).
    pub fn sums_in_groups(&mut self, mut values: Vec<Val>, lanes: u32) -> Val {
        let lane = self.b.lane();
        for step in [16u8, 8, 4, 2, 1].into_iter().filter(|step| u32::from(*step) < lanes) {
            if values.len() == 1 {
                let other = self.b.xor_lane(values[0], step);
                values[0] = self.b.bin(Bin::Add, values[0], other);
                continue;
            }
            let bit = self.b.i(i64::from(step));
            let bit = self.b.bin(Bin::And, lane, bit);
            let upper = self.is(Cmp::Ne, bit, 0);
            let high = values.split_off(values.len() / 2);
            for (low, high) in values.iter_mut().zip(high) {
                let (own, given) = (self.b.select(upper, high, *low), self.b.select(upper, *low, high));
                let other = self.b.xor_lane(given, step);
                *low = self.b.bin(Bin::Add, own, other);
            }
        }
        values[0]
    }

    /// The terms of a wide reduction `id` for the result at `idx`.
    pub fn reduce_term(&mut self, id: ValueId, axis: usize, idx: &[Ix], at: Ix) -> Res<Val> {
        let arg = self.g.node(id).args[0];
        let mut full = idx.to_vec();
        full[axis] = at;
        self.eval(arg, &full)
    }

    /// Uniform comparison with a constant.
    pub fn is(&mut self, cmp: Cmp, v: Val, n: i64) -> Val {
        let n = self.b.i(n);
        self.b.cmp(cmp, v, n)
    }

    /// Tree of the `lanes` order over 8 components in 32 lanes: c^4, c^2, c^1 inside a lane, then the lanes.
    pub fn lanes_total(&mut self, v: Val) -> Val {
        let total = self.components_total(v);
        self.b.reduce(Reduce::Add, total)
    }

    /// c^4, c^2, c^1 inside each lane.
    pub(super) fn components_total(&mut self, v: Val) -> Val {
        let mut parts: Vec<Val> = (0..8).map(|i| self.b.component(v, i)).collect();
        for half in [4, 2, 1] {
            for i in 0..half {
                parts[i] = self.b.bin(Bin::Add, parts[i], parts[i + half]);
            }
        }
        parts[0]
    }

    /// `first + i`, uniform.
    pub fn ahead(&mut self, first: Val, i: u32) -> Val {
        if i == 0 {
            return first;
        }
        let i = self.b.i(i64::from(i));
        self.b.add(first, i)
    }

    /// Tree of the `strided` order.
    pub fn strided_total(&mut self, chains: &[Val]) -> Val {
        let mut parts = chains.to_vec();
        let mut half = parts.len() / 2;
        while half > 0 {
            for i in 0..half {
                parts[i] = self.b.bin(Bin::Add, parts[i], parts[i + half]);
            }
            half /= 2;
        }
        parts[0]
    }
}
