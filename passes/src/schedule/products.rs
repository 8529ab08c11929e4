//! What the products of contractions run on, and what the generated lane code executes for them.

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Format};

/// What a kernel's contractions run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Products {
    /// f32 multiply-adds, for every format.
    #[default]
    Lanes,
    /// Matrix tiles: one pass over the weights for each `rows` rows, unused ones computed all the same.
    Tiles { rows: u32 },
}

/// Lane operations of a contraction on lanes, as the generator writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneWork {
    /// For each weight element and row: the multiply-add, and widening the operand.
    pub per_row: u64,
    /// For each weight element and pass over the rows: widening the weight.
    pub per_pass: u64,
    /// For each output and row: the tree of its partial sums.
    pub per_output: u64,
}

/// Rows whose sums a wave forms in one pass over its weights, if the bucket has several: the least, and the most.
pub const ROWS_A_PASS: [u32; 2] = [4, 8];
/// The `lanes` tree of one output: 7 adds of components, 5 steps across lanes and a select, in all 32 lanes.
const LANES_TREE: u64 = 13 * 32;
/// Joining what several waves summed of an output: 32 loads, 31 adds, in all 32 lanes.
pub const JOINED_TREE: u64 = 63 * 32;
/// The `strided` tree: one add for each chain, one output a lane.
const STRIDED_TREE: u64 = 8;

/// Operations that bring an element to f32. Packed formats are not generated yet: a mask, a shift, a conversion and a
/// scale an element are assumed for int4, a conversion and a scale for fp8.
fn widen(format: Format) -> u64 {
    match format {
        Format::Plain(DType::F32) => 0,
        Format::Plain(_) => 1,
        Format::Int4 { .. } => 4,
        Format::F8Block { .. } => 2,
    }
}

/// Lane operations of a contraction; `None` for other ops.
pub fn lane_work(g: &Graph, contraction: ValueId) -> Option<LaneWork> {
    let node = g.node(contraction);
    let order = match node.op {
        Op::MatMul { order } | Op::BatchMatMul { order, .. } | Op::GroupedMatMul { order } => order,
        _ => return None,
    };
    let format =
        |id: Option<&ValueId>| id.and_then(|a| g.ty(*a).tensor()).map_or(Format::Plain(DType::F32), |t| t.format);
    let per_output = if order == Order::Lanes { LANES_TREE } else { STRIDED_TREE };
    let (x, w) = (format(node.args.first()), format(node.args.last()));
    Some(LaneWork { per_row: 1 + widen(x), per_pass: widen(w), per_output })
}
