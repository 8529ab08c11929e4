//! What lies before and behind each op of a body.

use fixedbitset::FixedBitSet;
use unglue_ir::graph::ValueId;

use crate::facts::Facts;

/// Ops by number, as bits.
pub type Bits = FixedBitSet;

/// Dependences between ops: values, and states whose old version is read before it is replaced.
#[derive(Debug)]
pub struct Reach {
    /// Per op: the ops that come directly before it.
    pub before: Vec<Bits>,
    /// Per op: the ops whose values it reads.
    reads: Vec<Bits>,
    /// Per op: all ops before it.
    above: Vec<Bits>,
    /// Per op: all ops behind it.
    below: Vec<Bits>,
}

impl Reach {
    pub fn new(facts: &Facts) -> Reach {
        let n = facts.body.nodes.len();
        let mut before = vec![Bits::with_capacity(n); n];
        for op in facts.ops() {
            for maker in facts.reads(op).iter().filter_map(|b| facts.maker(*b)) {
                before[op.index()].insert(maker.index());
            }
        }
        let reads = before.clone();
        for (reader, writer) in facts.order() {
            before[writer.index()].insert(reader.index());
        }
        let mut reach = Reach { above: before.clone(), below: vec![Bits::with_capacity(n); n], before, reads };
        reach.close();
        reach
    }

    /// An ordering edge may run against the numbers, so that one pass need not be enough.
    fn close(&mut self) {
        loop {
            let mut changed = false;
            for op in 0..self.before.len() {
                let mut all = self.above[op].clone();
                for b in self.before[op].ones() {
                    all.union_with(&self.above[b]);
                }
                changed |= all != self.above[op];
                self.above[op] = all;
            }
            if !changed {
                break;
            }
        }
        for op in 0..self.above.len() {
            for b in self.above[op].ones().collect::<Vec<_>>() {
                self.below[b].insert(op);
            }
        }
    }

    /// All ops before one.
    pub fn above(&self, op: ValueId) -> &Bits {
        &self.above[op.index()]
    }

    /// All ops behind one.
    pub fn below(&self, op: ValueId) -> &Bits {
        &self.below[op.index()]
    }

    pub fn bits<'a>(&self, ops: impl IntoIterator<Item = &'a ValueId>) -> Bits {
        let mut bits = Bits::with_capacity(self.before.len());
        bits.extend(ops.into_iter().map(|op| op.index()));
        bits
    }

    /// Ops outside that lie between two ops inside. What stands behind a `soft` op takes another kernel's copy of it.
    pub fn between(&self, ops: &Bits, soft: &Bits) -> Bits {
        let (mut above, mut below) = (Bits::with_capacity(ops.len()), Bits::with_capacity(ops.len()));
        for op in ops.ones() {
            above.union_with(&self.above[op]);
            if !soft.contains(op) {
                below.union_with(&self.below[op]);
            }
        }
        above.intersect_with(&below);
        above.difference_with(ops);
        above
    }

    /// Ops outside that come directly before one inside.
    pub fn needs(&self, ops: &Bits) -> Bits {
        outside(&self.before, ops)
    }

    /// Ops outside whose values one inside reads.
    pub fn reads(&self, ops: &Bits) -> Bits {
        outside(&self.reads, ops)
    }
}

fn outside(of: &[Bits], ops: &Bits) -> Bits {
    let mut found = Bits::with_capacity(ops.len());
    for op in ops.ones() {
        found.union_with(&of[op]);
    }
    found.difference_with(ops);
    found
}
