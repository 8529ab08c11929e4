//! A head of the delta rule that several workgroups share: what they hand to the last of them to arrive, and what that one
//! does.

use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;
use unglue_passes::schedule::{Finish, HEAD_COUNTERS};

use super::delta::{Head, NextWindow};
use super::index::{Ix, flatten};
use super::{Gen, Kept, Res};
use crate::kp::{Cmp, Val};

const _: () = assert!(HEAD_COUNTERS <= unglue_runtime::COUNTERS, "each head that workgroups share has a counter");

impl Gen<'_> {
    /// Stores the workgroup's columns of what the last one of the head is handed: the rule's result `o`, and what other waves
    /// form beside it.
    pub(super) fn hand_over(&mut self, h: &Head, finish: &Finish, o: Val) -> Res<&mut Self> {
        let part = self.part(h);
        for (number, &v) in (0..).zip(&finish.exchanged) {
            let result = matches!(self.g.node(v).op, Op::Project(_));
            let by = if result { 0 } else { h.parts - 1 - number % h.parts };
            let mine = self.is(Cmp::Eq, part, by as i64);
            self.when(mine, |s| {
                let at = s.handed_index(h, v)?;
                let (dims, place) = (s.dims(v)?, s.exchange_place(v)?);
                let x = if result { o } else { s.eval(v, &at)? };
                let (base, flat) = (s.row_base(&dims), flatten(&dims, &at, &mut s.b));
                s.store(place, Some(base), flat, x);
                Ok(())
            })?;
        }
        Ok(self)
    }

    /// Index of this lane's column in a value that is handed over.
    pub(super) fn handed_index(&mut self, h: &Head, v: ValueId) -> Res<Vec<Ix>> {
        let column = self.column(h);
        self.scope_index(v, column)
    }

    /// The last workgroup of the head to arrive forms what needs its whole result. Now that all have read the head's window
    /// it is replaced.
    pub(super) fn finish_head(&mut self, h: &Head, finish: &Finish, windows: Vec<NextWindow>) -> Res<()> {
        let Some((_, head)) = self.head else { return self.fault(ValueId(0), "no head to finish") };
        self.last_to_arrive((head, self.schedule.shares()), |s| {
            for &v in &finish.exchanged {
                let place = s.exchange_place(v)?;
                s.kept.insert(v, Kept::Exchanged { place });
            }
            s.keep_levels(&finish.staged)?;
            finish.outputs.iter().try_for_each(|o| s.write_head_output(*o))?;
            s.when(h.seq.live, |s| s.replace_windows(h, windows))
        })
    }
}
