//! Top-k of a row: k rounds of an argmax over sortable keys. Total: NaN ranks last, every round takes a new index.

use unglue_ir::graph::ValueId;

use super::index::Ix;
use super::{Gen, Kept, Res};
use crate::kp::{Addr, Bin, Bound, Cmp, Conv, Mem, Place, Reduce, Val};

/// Key of an element that was taken; no score has it.
const TAKEN: i32 = i32::MIN;
/// Key of NaN: below -inf.
const NAN_KEY: i32 = i32::MIN + 1;

impl Gen<'_> {
    /// i32 key whose order is that of the scores: -0 and +0 are one, NaN is lowest.
    pub fn score_key(&mut self, x: Val) -> Val {
        let zero = self.b.f(0.0);
        let x = self.b.bin(Bin::Add, x, zero);
        let bits = self.b.conv(Conv::F32Bits, x);
        let (n31, low) = (self.b.i(31), self.b.i(i64::from(i32::MAX)));
        let sign = self.b.bin(Bin::Ashr, bits, n31);
        let flip = self.b.and(sign, low);
        let key = self.b.bin(Bin::Xor, bits, flip);
        let nan = self.b.cmp(Cmp::Ne, x, x);
        let nan_key = self.b.i(i64::from(NAN_KEY));
        self.b.select(nan, nan_key, key)
    }

    pub fn keep_top_k(&mut self, id: ValueId, k: u64) -> Res<()> {
        let scores = self.g.node(id).args[0];
        let n = self.elements(scores)?;
        let ids = self.shared_array(id, Mem::I32, k);
        let waves = u64::from(self.b.waves());
        let (best_key, best_at) = (self.b.shared("key", Mem::I32, waves), self.b.shared("at", Mem::I32, waves));
        let keys = if k > 1 { Some(self.score_keys(scores, n)?) } else { None };
        let (zero, end) = (self.b.i(0), self.b.i(k as i64));
        self.looped((zero, end, 1), &[], |s, j, _| {
            let (key, at) = s.best_of_lanes(scores, n, keys)?;
            let (key, at) = s.best_of_wave(key, at);
            let wave = s.b.wave();
            s.b.store(best_key, Addr::Uniform { base: wave }, Bound::All, key);
            s.b.store(best_at, Addr::Uniform { base: wave }, Bound::All, at);
            s.b.barrier();
            let winner = s.best_of_waves(best_key, best_at, waves);
            s.b.store(ids, Addr::Uniform { base: j }, Bound::All, winner);
            if let Some(keys) = keys {
                let taken = s.b.i(i64::from(TAKEN));
                s.b.store(keys, Addr::Uniform { base: winner }, Bound::All, taken);
            }
            s.b.barrier();
            Ok(vec![])
        })?;
        self.kept.insert(id, Kept::Shared { place: ids, elements: k, by_row: false });
        Ok(())
    }

    fn score_keys(&mut self, scores: ValueId, n: u64) -> Res<Place> {
        let keys = self.b.shared("keys", Mem::I32, n);
        self.for_elements(n, |s, at| {
            let x = s.eval(scores, &[at])?;
            let key = s.score_key(x);
            s.store(keys, None, at, key);
            Ok(())
        })?;
        self.b.barrier();
        Ok(keys)
    }

    /// Best key of each lane's elements and its index; earlier elements win ties.
    fn best_of_lanes(&mut self, scores: ValueId, n: u64, keys: Option<Place>) -> Res<(Val, Val)> {
        let (low, far) = (self.b.i(i64::from(TAKEN)), self.b.i(i64::from(i32::MAX)));
        let (low, far) = (self.b.splat(low, 1), self.b.splat(far, 1));
        let wave = self.b.wave();
        let lanes = self.b.i(32);
        let start = self.b.mul(wave, lanes);
        let end = self.b.i(n as i64);
        let step = 32 * i64::from(self.b.waves());
        let best = self.looped((start, end, step), &[low, far], |s, i, c| {
            let outer = s.mask;
            let ix = Ix::Seq { base: i, aligned: true };
            s.mask_below(ix, n);
            let key = match keys {
                Some(place) => s.load(place, None, ix),
                None => {
                    let x = s.eval(scores, &[ix])?;
                    s.score_key(x)
                }
            };
            let key = match s.mask {
                Some(m) => s.b.select(m, key, low),
                None => key,
            };
            s.mask = outer;
            let at = ix.lanes(&mut s.b);
            let better = s.b.cmp(Cmp::Gt, key, c[0]);
            Ok(vec![s.b.select(better, key, c[0]), s.b.select(better, at, c[1])])
        })?;
        Ok((best[0], best[1]))
    }

    fn best_of_wave(&mut self, key: Val, at: Val) -> (Val, Val) {
        let top = self.b.reduce(Reduce::Max, key);
        let ties = self.b.cmp(Cmp::Eq, key, top);
        let far = self.b.i(i64::from(i32::MAX));
        let first = self.b.select(ties, at, far);
        (top, self.b.reduce(Reduce::Min, first))
    }

    fn best_of_waves(&mut self, keys: Place, ats: Place, waves: u64) -> Val {
        let zero = self.b.i(0);
        let (mut key, mut at) = (self.b.load_uniform(keys, zero), self.b.load_uniform(ats, zero));
        for w in 1..waves {
            let w = self.b.i(w as i64);
            let (k, a) = (self.b.load_uniform(keys, w), self.b.load_uniform(ats, w));
            let (more, same) = (self.b.cmp(Cmp::Gt, k, key), self.b.cmp(Cmp::Eq, k, key));
            let lower = self.b.cmp(Cmp::Lt, a, at);
            let tie = self.b.and(same, lower);
            let better = self.b.bin(Bin::Or, more, tie);
            key = self.b.select(better, k, key);
            at = self.b.select(better, a, at);
        }
        at
    }
}
