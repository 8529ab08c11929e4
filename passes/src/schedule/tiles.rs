//! Tiles form: matmuls over many rows, on matrix tiles. A workgroup forms a block of rows and outputs; its waves share the
//! operands through workgroup memory and each multiply a stripe of 16 rows. Segments, labels and epilogue are those of the
//! skinny form, of which this one takes the kernels whose operands are given.

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;
use unglue_ir::types::{DType, Dim};

use super::skinny::{self, Segment, Skinny, YAxis};
use super::{Bucket, Form, GridAxis, Obstacle, Products, Schedule, row, strip_reshapes};

/// Steps of more rows take matrix tiles; up to here sums have the `lanes` order, on every device.
pub const ROWS_ON_LANES: u32 = 16;
/// Rows of a workgroup: one tile of 16 for each wave.
const ROWS: u32 = 64;
/// Outputs of a workgroup, in each contraction that meets there.
const OUTPUTS: u32 = 64;
/// Inputs that are in workgroup memory at a time.
const STEP: u32 = 32;
/// Waves of a workgroup.
const WAVES: u32 = ROWS / 16;
/// Contractions that may meet in one output: each takes as much workgroup memory as the other.
const ZIPPED_MAX: usize = 2;

/// A kernel on matrix tiles.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tiles {
    /// Segments, labels and outputs; nothing is staged and nothing finished.
    pub skinny: Skinny,
    /// What the rows count.
    pub leading: Dim,
    /// Rows of a workgroup.
    pub rows: u32,
    /// Outputs of a workgroup.
    pub outputs: u32,
    /// Inputs a round.
    pub step: u32,
}

/// The form of a kernel whose contractions all have given operands of one 16-bit dtype.
///
/// # Errors
/// What keeps it from tiles.
pub fn schedule(g: &Graph, bucket: &Bucket) -> Result<Schedule, Obstacle> {
    if bucket.rows_max <= ROWS_ON_LANES {
        return Err(Obstacle::new("tile-rows", format!("{} rows stay on lanes", bucket.rows_max)));
    }
    let leading = row::row_symbol(g)?;
    let Schedule { form: Form::Skinny(skinny), staged, .. } = skinny::schedule(g, bucket)? else {
        return Err(Obstacle::new("tile-form", "no skinny form"));
    };
    if !staged.is_empty() || !skinny.prologue.is_empty() || !skinny.side_outputs.is_empty() {
        return Err(Obstacle::new("tile-prologue", "operands are formed in the same kernel"));
    }
    if skinny.finish.is_some() || skinny.y != YAxis::None {
        return Err(Obstacle::new("tile-form", "a finish stage, heads or choices"));
    }
    if skinny.segments.iter().any(|s| !s.block_sums.is_empty()) {
        return Err(Obstacle::new("tile-form", "sums over blocks behind the contractions"));
    }
    let mut dtypes = Vec::new();
    for segment in &skinny.segments {
        if segment.anchors.len() > ZIPPED_MAX {
            let found = format!("{} contractions meet in one output", segment.anchors.len());
            return Err(Obstacle::new("tile-zipped", found));
        }
        let operand = |a: &ValueId| strip_reshapes(g, g.node(*a).args[0]);
        if segment.anchors.windows(2).any(|pair| operand(&pair[0]) != operand(&pair[1])) {
            return Err(Obstacle::new("tile-zipped", "contractions of different rows meet in one output"));
        }
        for anchor in &segment.anchors {
            dtypes.push(operand_dtype(g, *anchor)?);
        }
    }
    if dtypes.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(Obstacle::new("tile-dtype", "contractions of bf16 and of f16"));
    }
    let form = Form::Tiles(Tiles { skinny, leading, rows: ROWS, outputs: OUTPUTS, step: STEP });
    Ok(Schedule { form, waves: WAVES, staged: vec![], products: Products::Tiles { rows: ROWS } })
}

/// The 16-bit dtype of both operands of a matmul over given rows.
fn operand_dtype(g: &Graph, anchor: ValueId) -> Result<DType, Obstacle> {
    let node = g.node(anchor);
    if !matches!(node.op, Op::MatMul { .. }) {
        return Err(Obstacle::new("tile-op", format!("%{} is no plain matmul", anchor.0)));
    }
    let dtype = |v: ValueId| g.ty(v).tensor().and_then(|t| t.dtype());
    let (x, w) = (strip_reshapes(g, node.args[0]), strip_reshapes(g, node.args[1]));
    match (dtype(x), dtype(w)) {
        (Some(x), Some(w)) if x == w && matches!(x, DType::Bf16 | DType::F16) => Ok(x),
        _ => Err(Obstacle::new("tile-dtype", format!("%{}: operands are not both bf16 or both f16", anchor.0))),
    }
}

impl Tiles {
    pub fn describe(&self) -> String {
        let parts: Vec<String> =
            self.skinny.segments.iter().map(|s| format!("{} zipped, {} outputs", s.anchors.len(), s.n)).collect();
        let Tiles { rows, outputs, step, .. } = self;
        format!("matrix tiles [{}], {rows} x {outputs} a workgroup, {step} deep", parts.join("; "))
    }

    /// Workgroups that a segment takes along grid axis 0.
    pub fn blocks(&self, segment: &Segment) -> u64 {
        segment.n.div_ceil(u64::from(self.outputs))
    }

    pub fn grid(&self) -> [GridAxis; 3] {
        let count = |n: u64| GridAxis { symbol: None, mul: n, div: 1 };
        let x = self.skinny.segments.iter().map(|s| self.blocks(s)).sum();
        [count(x), GridAxis { symbol: Some(self.leading), mul: 1, div: u64::from(self.rows) }, count(1)]
    }
}
