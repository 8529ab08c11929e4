//! Row form: a workgroup forms everything of one row.

use unglue_ir::op::Op;
use unglue_ir::types::Dim;

use super::{Gen, Res, StepBuffer, StepScalar};
use crate::kp::{Addr, Bin, Bound, Cmp, Val};

/// Fault code of a token id outside of the embedding table.
pub const FAULT_TOKEN: i64 = 1;

impl Gen<'_> {
    pub fn row_form(&mut self, rows: Dim) -> Res<()> {
        self.row = self.group(0);
        let count = self.scalar(if rows == Dim::Logits { StepScalar::Logits } else { StepScalar::Rows });
        let here = self.b.cmp(Cmp::Lt, self.row, count);
        self.when(here, |s| {
            let first = s.is(Cmp::Eq, s.row, 0);
            s.report_tokens(first)?;
            let staged = s.schedule.staged.clone();
            let outputs: Vec<usize> =
                (0..s.g.outputs.len()).filter(|o| s.g.ty(s.g.outputs[*o].1).tensor().is_some()).collect();
            // Taps of a convolution and rows of a pool stand behind branches.
            let branches = |id| matches!(s.g.node(id).op, Op::CausalConv | Op::PoolWindow { .. });
            s.by_neighbours = !s.g.ids().any(branches);
            s.row_ahead(&staged, &outputs)?;
            s.keep_all(&staged, 1)?;
            outputs.iter().try_for_each(|o| s.write_output(*o))?;
            s.by_neighbours = false;
            for id in s.g.ids() {
                if matches!(s.g.node(id).op, Op::TokenWrite | Op::PoolWrite | Op::TailUpdate | Op::ConvUpdate) {
                    s.write_state(id)?;
                }
            }
            Ok(())
        })
    }

    /// One workgroup (where `first` holds) keeps the first bad token id of the step in the status word.
    pub fn report_tokens(&mut self, first: Val) -> Res<()> {
        let embed = self.g.ids().find(|id| self.g.node(*id).op == Op::EmbedRows);
        let Some(embed) = embed else { return Ok(()) };
        let (table, ids) = (self.g.node(embed).args[0], self.g.node(embed).args[1]);
        let end = self.dims(table)?[0];
        let own = self.row;
        self.when(first, |s| {
            let (zero, none, rows) = (s.b.i(0), s.b.i(-1), s.scalar(StepScalar::Rows));
            let found = s.looped((zero, rows, 1), &[none, none], |s, row, c| {
                s.row = row;
                let token = s.eval(ids, &[])?;
                let (low, high) = (s.is(Cmp::Lt, token, 0), s.is(Cmp::Ge, token, end as i64));
                let bad = s.b.bin(Bin::Or, low, high);
                let new = s.is(Cmp::Lt, c[0], 0);
                let take = s.b.and(bad, new);
                Ok(vec![s.b.select(take, row, c[0]), s.b.select(take, token, c[1])])
            })?;
            s.row = own;
            s.report(found[0], found[1])
        })
    }

    /// Status: kernel, row, value, kind; an earlier fault stays.
    fn report(&mut self, row: Val, token: Val) -> Res<()> {
        let status = self.iface.step(&mut self.b, StepBuffer::Status);
        let zero = self.b.i(0);
        let old = self.b.load_uniform(status, zero);
        let (fresh, bad) = (self.is(Cmp::Eq, old, 0), self.is(Cmp::Ge, row, 0));
        let doit = self.b.and(fresh, bad);
        let number = self.scalar(StepScalar::KernelNumber);
        self.when(doit, |s| {
            let kind = s.b.i(FAULT_TOKEN);
            for (i, v) in [number, row, token, kind].into_iter().enumerate() {
                let base = s.b.i(i as i64);
                s.b.store(status, Addr::Uniform { base }, Bound::All, v);
            }
            Ok(())
        })
    }
}
