//! How a skinny segment's outputs are dealt to waves: several outputs to a wave, or several waves to an output (split-K).
//!
//! Splitting K changes no sum. Orders of summation are chains and a tree over them: each wave takes whole chains, brings
//! its part of the tree to an end, and the last steps join what the waves left in workgroup memory. What the tree cannot
//! divide, a sum in the order `runs` or one of several choices, goes to one wave as a whole.

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;
use unglue_ir::order::Order;
use unglue_ir::types::{Dim, TensorType};

use super::skinny::{Segment, YAxis, is_contraction};
use super::stage::is_wide_sum;
use super::{Bucket, SKINNY_WAVES, is_leaf, row_elements, strip_reshapes};
use crate::traffic::{elements, tensor_bytes};

/// Most waves that share the sums of an output: each has a chain in every lane.
pub const SPLIT_K_MAX: u32 = 8;
/// Sums of 8 chains that the tree of the order `lanes` has behind its steps c^4, c^2 and c^1.
const COLUMN_SUMS: u64 = 32;
/// Bytes of workgroup memory for what a workgroup's waves leave: eight workgroups of four waves fit a compute unit pair.
const EXCHANGE_BUDGET: u64 = 8 * 1024;
/// Elements that each part of that memory starts on a multiple of: lanes load vectors of it.
const ALIGN: u64 = 32;
/// Waves of a workgroup: more of them share what they read of the operand.
const WAVES: [u32; 3] = [SKINNY_WAVES, 8, 16];
/// Waves of a workgroup with a finish stage, which is written for rows of as many waves, or whose waves take several rows
/// at once: sixteen would leave each 192 VGPRs.
const WAVES_OF_ROWS: u32 = 8;

/// What a wave of several forms of a contraction's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// Whole sums, of some choices or of some of the contractions that meet.
    Sums,
    /// Of each 256 inputs some neighbours: chains of the order `lanes`.
    Columns,
    /// Every so manyth of these chains of the order `strided`.
    Chains(u64),
}

impl Split {
    pub fn of(g: &Graph, s: &Segment, anchor: ValueId) -> Split {
        match g.node(anchor).op {
            Op::BatchMatMul { transposed: true, order: Order::Strided(chains) } => Split::Chains(u64::from(chains)),
            _ if weight_is_int4(g, anchor) || own_choices(g, s, anchor).is_some() => Split::Sums,
            _ => Split::Columns,
        }
    }

    /// Partial sums of an output that `waves` waves leave: the tree's last steps add place i and i + half, half falling.
    pub fn places(self, waves: u32) -> u64 {
        match self {
            Split::Sums => 1,
            Split::Columns => COLUMN_SUMS,
            Split::Chains(_) => u64::from(waves),
        }
    }
}

/// Where a set of waves leaves the partial sums of one contraction: element `((choice * rows + row) * outputs + output) *
/// places` behind `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub anchor: ValueId,
    pub split: Split,
    /// Choices that one set forms.
    pub choices: u64,
    pub places: u64,
    pub first: u64,
    /// Whole sums of the segment's contractions before this one: they are dealt to the waves in order.
    pub sums_before: u64,
}

impl Segment {
    /// Where its waves leave their sums of `rows` rows at once, and the f32 elements that a set of them needs.
    pub fn slots(&self, g: &Graph, rows: u64) -> (Vec<Slot>, u64) {
        let (mut first, mut sums_before) = (0, 0);
        let slot = |anchor: &ValueId| {
            let split = Split::of(g, self, *anchor);
            let (choices, places) = (own_choices(g, self, *anchor).unwrap_or(1), split.places(self.split_k));
            let slot = Slot { anchor: *anchor, split, choices, places, first, sums_before };
            first += (choices * rows * u64::from(self.outputs_per_wave) * places).next_multiple_of(ALIGN);
            sums_before += if split == Split::Sums { choices } else { 0 };
            slot
        };
        let slots = self.anchors.iter().map(slot).collect();
        (slots, first)
    }

    /// Bytes of workgroup memory that `waves` waves need for the sums of `rows` rows at once.
    pub fn exchange_bytes(&self, g: &Graph, rows: u64, waves: u32) -> u64 {
        if self.split_k == 1 {
            return 0;
        }
        self.slots(g, rows).1.saturating_mul(4 * u64::from(waves / self.split_k))
    }

    /// Bytes of weights that the busiest wave streams for one output of each lane or wave.
    fn bytes_an_output(&self, g: &Graph, bucket: &Bucket) -> u64 {
        let mut shared = 0u64;
        let mut whole = vec![0u64; self.split_k as usize];
        for slot in self.slots(g, 1).0 {
            let row = row_bytes(g, slot.anchor, bucket);
            for choice in 0..slot.choices {
                match slot.split {
                    Split::Sums => whole[((slot.sums_before + choice) % u64::from(self.split_k)) as usize] += row,
                    Split::Columns | Split::Chains(_) => shared += row,
                }
            }
        }
        shared.div_ceil(u64::from(self.split_k)) + whole.into_iter().max().unwrap_or(0)
    }

    fn wave_bytes(&self, g: &Graph, bucket: &Bucket) -> u64 {
        self.bytes_an_output(g, bucket).saturating_mul(u64::from(self.outputs_per_wave))
    }

    /// Bytes of weights that all waves stream.
    fn all_bytes(&self, g: &Graph, y: YAxis, bucket: &Bucket) -> u64 {
        let across = if let YAxis::Heads(n) | YAxis::Choices(n) = y { n } else { 1 };
        let one = Segment { split_k: 1, ..self.clone() }.bytes_an_output(g, bucket);
        one.saturating_mul(self.n).saturating_mul(across)
    }
}

/// Deals a kernel's outputs to shorter waves, if its weights keep the machine's waves busy for longer than a wave should
/// live; true if it did. Operands that every workgroup forms first stay with few workgroups, and sums over blocks with
/// whole ones.
pub fn shorten(g: &Graph, segments: &mut [Segment], y: YAxis, (row_unroll, bucket): (u32, &Bucket)) -> bool {
    let Some(limit) = bucket.fit.wave_bytes else { return false };
    // Without a loop over outputs LLVM unrolls that over the inputs: eight rows of 1,536 spill 11 VGPRs (LLVM 22).
    if row_unroll > 1 {
        return false;
    }
    let all: u64 = segments.iter().map(|s| s.all_bytes(g, y, bucket)).sum();
    if all <= limit.saturating_mul(bucket.fit.waves_resident) {
        return false;
    }
    for s in segments.iter_mut() {
        if s.block_sums.is_empty() && !s.anchors.iter().any(|a| is_wide_sum(&g.node(*a).op)) {
            shorten_segment(g, s, limit, (row_unroll, bucket));
        }
    }
    true
}

fn shorten_segment(g: &Graph, s: &mut Segment, limit: u64, (row_unroll, bucket): (u32, &Bucket)) {
    let lanes = is_transposed(g, s);
    while s.wave_bytes(g, bucket) > limit {
        let next = if s.outputs_per_wave > 1 && !lanes {
            Segment { outputs_per_wave: s.outputs_per_wave / 2, ..s.clone() }
        } else {
            Segment { split_k: s.split_k * 2, ..s.clone() }
        };
        let waves = next.split_k.max(SKINNY_WAVES);
        let fits = next.exchange_bytes(g, u64::from(row_unroll), waves) <= EXCHANGE_BUDGET;
        let shorter = next.wave_bytes(g, bucket) < s.wave_bytes(g, bucket);
        if next.split_k > SPLIT_K_MAX || !fits || !shorter || !splits(g, &next) {
            break;
        }
        *s = next;
    }
    s.outputs_at_once = s.outputs_at_once.min(s.outputs_per_wave);
}

/// Whether the sums have parts for all waves: chains of the order `strided` that are all as long, of all contractions.
fn splits(g: &Graph, s: &Segment) -> bool {
    let chains = |a: &ValueId| match Split::of(g, s, *a) {
        Split::Chains(chains) => chains.is_multiple_of(u64::from(s.split_k)) && inputs(g, *a).is_multiple_of(chains),
        Split::Sums | Split::Columns => !is_transposed(g, s),
    };
    s.split_k == 1 || s.anchors.iter().all(chains)
}

/// Waves of a workgroup that shares nothing but the operand: as many as it takes for the operand, which each workgroup
/// reads, to have no more bytes than the weights that it meets there.
pub fn waves(g: &Graph, segments: &[Segment], finishes: bool, row_unroll: u32, bucket: &Bucket) -> u32 {
    let least = segments.iter().map(|s| s.split_k).max().unwrap_or(1).max(SKINNY_WAVES);
    let most = if finishes || row_unroll > 1 { WAVES_OF_ROWS } else { 16 };
    let enough = |waves: u32| {
        segments.iter().all(|s| {
            let sets = u64::from(waves / s.split_k);
            let one = Segment { split_k: 1, ..s.clone() }.bytes_an_output(g, bucket);
            let weights = one.saturating_mul(sets * u64::from(s.outputs_per_wave));
            operand_bytes(g, s, row_unroll) <= weights
        })
    };
    let fits = |waves: u32| {
        let bytes = |s: &Segment| s.exchange_bytes(g, u64::from(row_unroll), waves);
        segments.iter().map(bytes).max().unwrap_or(0) <= EXCHANGE_BUDGET
    };
    let mut waves = least;
    for more in WAVES.into_iter().filter(|w| (least..=most).contains(w) && fits(*w)) {
        waves = more;
        if enough(more) {
            break;
        }
    }
    waves
}

/// Bytes of the given operands that a segment's sums meet in one pass over the rows.
fn operand_bytes(g: &Graph, s: &Segment, row_unroll: u32) -> u64 {
    let mut seen: Vec<ValueId> = Vec::new();
    let mut bytes = 0u64;
    for a in &s.anchors {
        let x = strip_reshapes(g, g.node(*a).args[0]);
        if is_leaf(&g.node(x).op) && !seen.contains(&x) {
            seen.push(x);
            let each = g.ty(x).tensor().and_then(|t| t.dtype()).map_or(4, |d| d.bytes());
            let choices = own_choices(g, s, *a).unwrap_or(1);
            bytes = bytes.saturating_add(inputs(g, *a).saturating_mul(each * choices));
        }
    }
    bytes.saturating_mul(u64::from(row_unroll))
}

/// Inputs of one sum.
fn inputs(g: &Graph, anchor: ValueId) -> u64 {
    let x = g.node(anchor).args.first().and_then(|x| g.ty(*x).tensor());
    x.and_then(|t| t.shape.last().copied()).and_then(Dim::fixed).unwrap_or(1)
}

/// Bytes of weights, with their scales, that one output reads.
fn row_bytes(g: &Graph, anchor: ValueId, bucket: &Bucket) -> u64 {
    let weight = g.node(anchor).args.last().and_then(|w| g.ty(*w).tensor());
    let rows = |t: &TensorType| (elements(&t.shape, bucket) / inputs(g, anchor).max(1)).max(1);
    weight.filter(|_| is_contraction(&g.node(anchor).op)).map_or(0, |t| tensor_bytes(t, bucket) / rows(t))
}

/// Choices whose sums one wave, or one set of them, forms for an output.
fn own_choices(g: &Graph, s: &Segment, anchor: ValueId) -> Option<u64> {
    let grouped = matches!(g.node(anchor).op, Op::GroupedMatMul { .. });
    s.inner_choices.filter(|_| grouped)
}

pub fn is_transposed(g: &Graph, s: &Segment) -> bool {
    s.anchors.iter().any(|a| matches!(g.node(*a).op, Op::BatchMatMul { transposed: true, .. }))
}

pub fn weight_is_int4(g: &Graph, a: ValueId) -> bool {
    g.node(a).args.last().is_some_and(|w| g.ty(*w).tensor().is_some_and(|t| t.is_int4()))
}

/// Heads or choices of a launch that are an axis of this operand: a workgroup reads one of its parts.
pub fn spread_over(g: &Graph, y: YAxis, operand: ValueId, bucket: &Bucket) -> Option<u64> {
    let (YAxis::Heads(n) | YAxis::Choices(n)) = y else { return None };
    let t = g.ty(operand).tensor()?;
    let inner = t.shape.last().copied().and_then(Dim::fixed)?;
    (t.rank() == 3 && row_elements(g.ty(operand), bucket) == n.saturating_mul(inner)).then_some(n)
}
