//! Whether a set of ops can be one kernel, and how that kernel runs.
//!
//! In: a kernel as a graph of its own, and a bucket. Out: a [`Schedule`], or the [`Obstacle`] that forbids it. The code
//! generator emits exactly the kernels that are accepted here. Forms are found by rule from the ops' shapes:
//!
//! - **row**: one workgroup a row; pointwise, reductions, top-k, small repeats, gathers, state writes.
//! - **skinny**: matmuls over few rows; outputs over the grid, weights streamed once, glue as prologue and epilogue; what
//!   needs whole rows of the results, in the last workgroup to arrive.
//! - **tiles**: contractions over more than 16 rows with given operands, on matrix tiles; experts by a list of the rows that
//!   chose them.
//! - **blocks**: one workgroup a block of a row's last axis; pointwise, and sums over each block; what needs all blocks of a
//!   row, in the last workgroup of the row to arrive.
//! - **parts**: one workgroup for each part of a row of which a top-k takes the best; what chooses among the parts, in the
//!   last workgroup of the row to arrive.
//! - **delta**: one workgroup a sequence and head; rows in order, state in registers. Of a step of one row several workgroups
//!   a head, the columns of its state dealt to them; what needs the head's whole result, in the last of them to arrive.
//! - **attend**: attention over selected rows; one workgroup some heads of a row and one split of the places, which the last
//!   one of these heads to arrive combines, or all splits.
//! - **scores**, **select**: pool scores, pool selection.
//! - **beside**: several of these that share no computed value, each on workgroups of its own.

mod attend;
mod beside;
mod blocks;
mod delta;
mod finish;
pub mod fit;
mod parts;
mod products;
mod row;
mod skinny;
mod split_k;
mod spread;
mod stage;
mod tiles;

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;
use unglue_ir::types::{Dim, Type};

pub use attend::{ATTEND_COUNTERS, Attend, SET_HEADS, SET_WAVES, SPLITS_AT_ONCE};
pub use beside::Section;
pub use blocks::{BLOCK, BlockSum, Blocks, FINISH_COUNTERS, block_sum};
pub use finish::{Finish, NEEDS_OUTPUT};
pub use fit::Fit;
pub use parts::Parts;
pub use products::{JOINED_TREE, LaneWork, Products, ROWS_A_PASS, lane_work};
pub use skinny::{Label, Segment, Skinny, YAxis};
pub use split_k::{SPLIT_K_MAX, Slot, Split, spread_over};
pub(crate) use spread::repeated;
pub use spread::{HEAD_COUNTERS, Spread};
pub use stage::{Place, Staged};
pub use tiles::{Over, ROWS_ON_LANES, TileBlock, Tiles};

/// What a launch list is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket {
    /// Most rows of a step: 1, 4, 16, or more for prompts.
    pub rows_max: u32,
    /// Most sequences of a step.
    pub seqs_max: u32,
    /// Value of `Dim::Pools`.
    pub pools: u64,
    /// The machine whose sizes schedules are fitted to.
    pub fit: &'static Fit,
}

/// Bytes of workgroup memory that staged values may take: at least one more workgroup fits beside it on every target.
pub const SHARED_BUDGET: u64 = 48 * 1024;
/// Waves of a row workgroup: 256 threads, one for each chain of the `lanes` order.
pub const ROW_WAVES: u32 = 8;
/// Waves of a skinny workgroup that is given its operands, at least.
pub const SKINNY_WAVES: u32 = 4;

/// The anchor of a kernel and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    Row {
        rows: Dim,
    },
    Skinny(Skinny),
    Tiles(Tiles),
    Blocks(Blocks),
    Parts(Parts),
    /// `parts`: sets of waves that share a head's keys.
    /// `one_row`: steps have one row, so that the kernel has no loop over rows; its code is for no other bucket.
    /// `spread`: how several workgroups share a head, if they do.
    Delta {
        node: ValueId,
        heads: u64,
        keys: u64,
        values: u64,
        parts: u64,
        one_row: bool,
        spread: Option<Box<Spread>>,
    },
    Attend(Attend),
    Scores {
        node: ValueId,
    },
    Select {
        node: ValueId,
    },
    Beside(Vec<Section>),
}

/// How a kernel runs: data for the generator, the cost model and the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    pub form: Form,
    /// Waves of a workgroup.
    pub waves: u32,
    /// Values kept in workgroup memory or registers, in the order in which they are formed.
    pub staged: Vec<Staged>,
    /// What contractions run on.
    pub products: Products,
}

/// Why a set of ops cannot be one kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Obstacle {
    pub rule: &'static str,
    pub detail: String,
}

impl Obstacle {
    pub(crate) fn new(rule: &'static str, detail: impl Into<String>) -> Self {
        Obstacle { rule, detail: detail.into() }
    }

    /// The same of a graph from which this one's values were taken, in order.
    fn of_whole(self, values: &[ValueId]) -> Self {
        let detail = rename_values(&self.detail, |n| values.get(n).map(|v| format!("%{}", v.0)));
        Obstacle { detail, ..self }
    }
}

/// A text with other names for values `%0`, `%1`, .. of which `name` has some.
pub(crate) fn rename_values(text: &str, name: impl Fn(usize) -> Option<String>) -> String {
    let mut parts = text.split('%');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = part.split_at(digits);
        match number.parse().ok().and_then(&name) {
            Some(name) => out.extend([&name, rest]),
            None => out.extend(["%", part]),
        }
    }
    out
}

/// True for ops that only name a value: they cost nothing inside a kernel.
pub fn is_view(op: &Op) -> bool {
    matches!(op, Op::Reshape(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Project(_))
}

/// True for leaves: values that a kernel is given.
pub fn is_leaf(op: &Op) -> bool {
    matches!(op, Op::Input { .. } | Op::Weight { .. } | Op::State { .. } | Op::ConstF32(_))
}

/// The value under a chain of reshapes that keep the order of elements.
pub fn strip_reshapes(g: &Graph, mut id: ValueId) -> ValueId {
    while let Op::Reshape(_) = g.node(id).op {
        id = g.node(id).args[0];
    }
    id
}

/// Elements of one row of a value (fixed extents only; `Pools` counts as the bucket's value).
pub fn row_elements(ty: &Type, bucket: &Bucket) -> u64 {
    match ty {
        Type::Tensor(t) => t.shape.iter().fold(1u64, |a, d| {
            a.saturating_mul(match d {
                Dim::Fixed(n) => *n,
                Dim::Pools => bucket.pools,
                _ => 1,
            })
        }),
        _ => 0,
    }
}

/// Finds the schedule of a kernel.
///
/// # Errors
/// The first obstacle, by a rule that the report can name.
pub fn schedule(kernel: &Graph, bucket: &Bucket) -> Result<Schedule, Obstacle> {
    let one = schedule_one(kernel, bucket);
    // Every workgroup would form what only the first one stores.
    let repeats = matches!(&one, Ok(Schedule { form: Form::Skinny(s), .. }) if !s.side_outputs.is_empty());
    if one.is_ok() && !repeats {
        return one;
    }
    match (one, beside::schedule(kernel, bucket)) {
        (_, Ok(several)) => Ok(several),
        (Ok(one), Err(_)) => Ok(one),
        // What keeps parts of one kernel apart says more than what keeps them from being one form.
        (Err(obstacle), Err(why))
            if ![obstacle.rule, why.rule].contains(&NEEDS_OUTPUT) && why.rule != beside::ONE_PART =>
        {
            Err(why)
        }
        (Err(obstacle), Err(_)) => Err(obstacle),
    }
}

/// Values that the finish stage of a kernel would be handed and that have no buffer yet.
///
/// # Errors
/// As [`schedule`].
pub fn exchanged_without_output(kernel: &Graph) -> Result<Vec<ValueId>, Obstacle> {
    let splits = attend::exchanged_without_output(kernel);
    if !splits.is_empty() {
        return Ok(splits);
    }
    let rule = kernel.ids().find(|id| matches!(kernel.node(*id).op, Op::DeltaRule { .. }));
    if let Some(rule) = rule {
        Ok(spread::exchanged_without_output(kernel, rule))
    } else if kernel.ids().any(|id| skinny::is_contraction(&kernel.node(id).op)) {
        skinny::exchanged_without_output(kernel)
    } else if let Some(choice) = parts::choice(kernel) {
        parts::exchanged_without_output(kernel, choice)
    } else {
        blocks::exchanged_without_output(kernel)
    }
}

/// The schedule of a kernel as one form.
fn schedule_one(kernel: &Graph, bucket: &Bucket) -> Result<Schedule, Obstacle> {
    let anchors: Vec<ValueId> = kernel.ids().filter(|id| special(&kernel.node(*id).op)).collect();
    let skinny = kernel.ids().any(|id| skinny::is_contraction(&kernel.node(id).op));
    check_common(kernel)?;
    if let (Some(choice), false) = (parts::choice(kernel), skinny || !anchors.is_empty()) {
        return parts::schedule(kernel, choice, bucket);
    }
    match anchors.as_slice() {
        [] if skinny => tiles::schedule(kernel, bucket).or_else(|_| skinny::schedule(kernel, bucket)),
        [] => match blocks::schedule(kernel, bucket) {
            Err(o) if o.rule != NEEDS_OUTPUT => row::schedule(kernel, bucket),
            found => found,
        },
        [one] if matches!(kernel.node(*one).op, Op::DeltaRule { .. }) => delta::schedule(kernel, *one, bucket),
        [one] if !skinny => match &kernel.node(*one).op {
            Op::AttendSplits { .. } => attend::schedule(kernel, Some(*one), None, bucket),
            Op::AttendCombine => attend::schedule(kernel, None, Some(*one), bucket),
            Op::IndexScores { .. } => alone(kernel, *one, Form::Scores { node: *one }, 4),
            _ => alone(kernel, *one, Form::Select { node: *one }, 8),
        },
        [splits, combine] if !skinny && attend::combines(kernel, *combine, *splits) => {
            attend::schedule(kernel, Some(*splits), Some(*combine), bucket)
        }
        _ => Err(Obstacle::new("one-anchor", "delta rule, attention and selection have a kernel of their own")),
    }
}

fn special(op: &Op) -> bool {
    let attention = matches!(op, Op::AttendSplits { .. } | Op::AttendCombine);
    attention || matches!(op, Op::DeltaRule { .. } | Op::IndexScores { .. } | Op::IndexSelect { .. })
}

/// Rules for every form.
fn check_common(g: &Graph) -> Result<(), Obstacle> {
    for id in g.ids() {
        let node = g.node(id);
        let row_mixing = matches!(node.op, Op::CausalConv | Op::ConvUpdate | Op::PoolWindow { .. } | Op::GatherRows);
        if row_mixing && !matches!(g.node(strip_reshapes(g, node.args[0])).op, Op::Input { .. }) {
            return Err(Obstacle::new("rows-mix", format!("%{} reads rows that other workgroups form", id.0)));
        }
    }
    Ok(())
}

fn alone(g: &Graph, node: ValueId, form: Form, waves: u32) -> Result<Schedule, Obstacle> {
    for id in g.ids() {
        if id != node && !is_leaf(&g.node(id).op) && !is_view(&g.node(id).op) {
            return Err(Obstacle::new("anchor-alone", format!("%{} beside an anchor that takes no glue", id.0)));
        }
    }
    Ok(Schedule { form, waves, staged: vec![], products: Products::Lanes })
}

impl Schedule {
    /// One line for the manifest and the report.
    pub fn describe(&self) -> String {
        let form = match &self.form {
            Form::Row { rows } => format!("row per workgroup over {rows}"),
            Form::Skinny(s) => s.describe(),
            Form::Tiles(t) => t.describe(),
            Form::Blocks(f) => f.describe(),
            Form::Parts(f) => f.describe(),
            Form::Delta { heads, keys, values, parts, one_row, spread, .. } => {
                let row = if *one_row { ", one row" } else { "" };
                let shares = spread.as_ref().map_or(String::new(), |s| {
                    let (shares, formed, from) = (s.shares, s.finish.nodes.len(), s.finish.exchanged.len());
                    format!(", {shares} workgroups a head, the last finishes {formed} values from {from}")
                });
                format!("delta rule, {heads} heads of {keys}x{values}, keys in {parts} parts{row}{shares}")
            }
            Form::Attend(a) => a.describe(),
            Form::Scores { .. } => "scores, one pool a lane".into(),
            Form::Select { .. } => "select, one row a workgroup".into(),
            Form::Beside(sections) => {
                let parts: Vec<String> = sections
                    .iter()
                    .map(|s| format!("{} workgroups: ({})", s.workgroups(), s.schedule.describe()))
                    .collect();
                format!("side by side, {}", parts.join(", "))
            }
        };
        format!("{form}; {} waves; {} staged values", self.waves, self.staged.len())
    }

    /// Contractions and their epilogues, if the form has them.
    pub fn skinny(&self) -> Option<&Skinny> {
        match &self.form {
            Form::Skinny(s) => Some(s),
            Form::Tiles(t) => Some(&t.skinny),
            _ => None,
        }
    }

    /// What the last workgroup to arrive does, if the form has that. Sections have their own.
    pub fn finish(&self) -> Option<&Finish> {
        match &self.form {
            Form::Skinny(s) => s.finish.as_deref(),
            Form::Blocks(f) => f.finish.as_deref(),
            Form::Parts(f) => f.finish.as_deref(),
            Form::Attend(a) => a.finish.as_deref(),
            Form::Delta { spread, .. } => spread.as_ref().map(|s| &s.finish),
            _ => None,
        }
    }

    /// Rows that one workgroup finishes, one after the other: over blocks each row has a last workgroup of its own, and so has
    /// each head of the delta rule, and each group of heads in attention.
    pub fn rows_to_finish(&self, bucket: &Bucket) -> u64 {
        let apart = matches!(self.form, Form::Blocks(_) | Form::Parts(_) | Form::Attend(_) | Form::Delta { .. });
        if apart { 1 } else { u64::from(bucket.rows_max) }
    }

    /// Last workgroups that share the finish of a row.
    pub fn finishers(&self) -> u64 {
        match &self.form {
            Form::Delta { heads, .. } => *heads,
            Form::Attend(a) => a.groups(),
            _ => 1,
        }
    }

    /// Workgroups of a head of the delta rule.
    pub fn shares(&self) -> u64 {
        match &self.form {
            Form::Delta { spread: Some(s), .. } => s.shares,
            _ => 1,
        }
    }

    /// Workgroups of a launch in this bucket.
    pub fn workgroups(&self, bucket: &Bucket) -> u64 {
        self.grid().iter().map(|g| g.value(bucket)).product()
    }

    /// Grid rule along the three axes.
    pub fn grid(&self) -> [GridAxis; 3] {
        let one = GridAxis { symbol: None, mul: 1, div: 1 };
        let over = |symbol: Dim| GridAxis { symbol: Some(symbol), mul: 1, div: 1 };
        let count = |n: u64| GridAxis { symbol: None, mul: n, div: 1 };
        match &self.form {
            Form::Row { rows } => [over(*rows), one, one],
            Form::Skinny(s) => s.grid(self.waves),
            Form::Tiles(t) => t.grid(),
            Form::Blocks(f) => [count(f.blocks), over(f.rows), one],
            Form::Parts(f) => [count(f.parts), over(f.rows), one],
            Form::Delta { heads, .. } => [count(*heads * self.shares()), over(Dim::Seqs), one],
            Form::Attend(a) if a.is_split() => [count(a.groups()), count(a.count), over(Dim::Rows)],
            Form::Attend(a) => [count(a.groups()), over(Dim::Rows), one],
            Form::Scores { .. } => {
                let per = u64::from(self.waves) * 32;
                [GridAxis { symbol: Some(Dim::Pools), mul: 1, div: per }, over(Dim::Rows), one]
            }
            Form::Select { .. } => [over(Dim::Rows), one, one],
            Form::Beside(sections) => [count(sections.iter().map(Section::workgroups).sum()), one, one],
        }
    }

    /// How often a launch reads the weights of its contractions: once for each group of rows that a wave takes at once.
    pub fn passes(&self, bucket: &Bucket) -> u64 {
        match (&self.form, self.products) {
            (Form::Skinny(s), Products::Lanes) if !s.rows_on_grid => {
                u64::from(bucket.rows_max).div_ceil(u64::from(s.row_unroll.max(1))).max(1)
            }
            (Form::Tiles(t), _) => t.passes(bucket),
            _ => 1,
        }
    }

    /// How many workgroups of a launch read one row of an activation operand.
    pub fn rereads(&self, bucket: &Bucket) -> u64 {
        match &self.form {
            // Sections are counted one by one.
            Form::Row { .. } | Form::Blocks(_) | Form::Parts(_) | Form::Select { .. } | Form::Beside(_) => 1,
            Form::Skinny(_) | Form::Scores { .. } => {
                let [x, y, _] = self.grid();
                x.value(bucket) * if matches!(self.form, Form::Skinny(_)) { y.value(bucket) } else { 1 }
            }
            Form::Tiles(_) => self.grid()[0].value(bucket),
            Form::Delta { .. } => self.shares(),
            Form::Attend(a) if a.splits.is_none() => 1,
            Form::Attend(a) => a.groups(),
        }
    }
}

/// `ceil(symbol * mul / div)` workgroups along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GridAxis {
    pub symbol: Option<Dim>,
    pub mul: u64,
    pub div: u64,
}

impl GridAxis {
    pub fn value(&self, bucket: &Bucket) -> u64 {
        let n = match self.symbol {
            None => 1,
            Some(Dim::Fixed(n)) => n,
            Some(Dim::Rows | Dim::Logits) => u64::from(bucket.rows_max),
            Some(Dim::Seqs) => u64::from(bucket.seqs_max),
            Some(Dim::Pools) => bucket.pools,
        };
        n.saturating_mul(self.mul).div_ceil(self.div.max(1)).max(1)
    }
}
