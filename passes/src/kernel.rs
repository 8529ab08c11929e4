//! Kernels as data: a small graph of its own, its schedule, and how it stands in its body.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Op, ReduceKind};

use crate::cost::KernelCost;
use crate::exact::ExactStats;
use crate::schedule::{Products, Schedule};
use crate::wishes::Obeyed;

/// How a result may differ from the declared trunk (design, P3). Ordered from strict to loose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Exactness {
    /// Each element keeps its bits, given equal sums.
    #[default]
    Exact,
    /// A rounding is removed or moved toward higher precision.
    Rounding,
    /// Summands change.
    Reassociating,
}

impl Exactness {
    /// Name in the manifest and the report.
    pub fn name(self) -> &'static str {
        match self {
            Exactness::Exact => "exact",
            Exactness::Rounding => "rounding",
            Exactness::Reassociating => "reassociating",
        }
    }
}

/// Which classes of rewrites a build allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Numerics {
    #[default]
    Exact,
    Rounding,
    /// All classes. Hardware approximations and flushing of denormals, which the name allows too, are not made.
    Fast,
}

impl Numerics {
    /// From strict to loose.
    pub const ALL: [Numerics; 3] = [Numerics::Exact, Numerics::Rounding, Numerics::Fast];

    /// Name in options and manifests.
    pub fn name(self) -> &'static str {
        match self {
            Numerics::Exact => "exact",
            Numerics::Rounding => "rounding",
            Numerics::Fast => "fast",
        }
    }

    pub fn by_name(name: &str) -> Option<Numerics> {
        Numerics::ALL.into_iter().find(|n| n.name() == name)
    }

    pub fn allows(self, class: Exactness) -> bool {
        match self {
            Numerics::Exact => class == Exactness::Exact,
            Numerics::Rounding => class <= Exactness::Rounding,
            Numerics::Fast => true,
        }
    }
}

/// What a kernel mainly does; follows from its ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum KernelClass {
    #[serde(rename = "pointwise")]
    Pointwise,
    #[serde(rename = "reduce")]
    Reduce,
    #[serde(rename = "skinny matmul")]
    SkinnyMatmul,
    /// Matmuls of many rows, on matrix tiles.
    #[serde(rename = "tiled matmul")]
    TiledMatmul,
    #[serde(rename = "grouped matmul")]
    GroupedMatmul,
    #[serde(rename = "router")]
    Router,
    #[serde(rename = "hyper-connection")]
    HyperConnection,
    #[serde(rename = "delta rule")]
    DeltaRule,
    #[serde(rename = "attention")]
    Attention,
    #[serde(rename = "indexer")]
    Indexer,
    #[serde(rename = "other")]
    Other,
}

impl KernelClass {
    /// Name in the manifest and the report.
    pub fn name(self) -> &'static str {
        match self {
            KernelClass::Pointwise => "pointwise",
            KernelClass::Reduce => "reduce",
            KernelClass::SkinnyMatmul => "skinny matmul",
            KernelClass::TiledMatmul => "tiled matmul",
            KernelClass::GroupedMatmul => "grouped matmul",
            KernelClass::Router => "router",
            KernelClass::HyperConnection => "hyper-connection",
            KernelClass::DeltaRule => "delta rule",
            KernelClass::Attention => "attention",
            KernelClass::Indexer => "indexer",
            KernelClass::Other => "other",
        }
    }

    /// The heaviest op decides, and of contractions what they run on; state writes and gathers alone are `other`.
    pub fn of(g: &Graph, products: Products) -> KernelClass {
        if matches!(products, Products::Tiles { .. }) {
            return KernelClass::TiledMatmul;
        }
        g.nodes.iter().map(|n| class_of_op(&n.op)).max_by_key(|c| rank(*c)).unwrap_or(KernelClass::Other)
    }
}

fn rank(class: KernelClass) -> u32 {
    match class {
        KernelClass::Other => 0,
        KernelClass::Pointwise => 1,
        KernelClass::Reduce => 2,
        KernelClass::HyperConnection => 3,
        KernelClass::Router => 4,
        KernelClass::SkinnyMatmul => 5,
        KernelClass::TiledMatmul => 6,
        KernelClass::GroupedMatmul => 7,
        KernelClass::Indexer => 8,
        KernelClass::Attention => 9,
        KernelClass::DeltaRule => 10,
    }
}

fn class_of_op(op: &Op) -> KernelClass {
    match op {
        Op::Unary(_) | Op::Binary(_) | Op::Cast(_) | Op::Concat { .. } | Op::CausalConv => KernelClass::Pointwise,
        Op::Reduce { kind: ReduceKind::Sum | ReduceKind::Max, .. } => KernelClass::Reduce,
        Op::Repeat { .. } => KernelClass::HyperConnection,
        Op::TopK { .. } => KernelClass::Router,
        Op::MatMul { .. } | Op::BatchMatMul { .. } => KernelClass::SkinnyMatmul,
        Op::GroupedMatMul { .. } => KernelClass::GroupedMatmul,
        Op::IndexScores { .. } | Op::IndexSelect { .. } => KernelClass::Indexer,
        Op::AttendSplits { .. } | Op::AttendCombine => KernelClass::Attention,
        Op::DeltaRule { .. } => KernelClass::DeltaRule,
        _ => KernelClass::Other,
    }
}

/// Why two neighbouring kernels are not one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[schemars(deny_unknown_fields)]
pub enum Verdict {
    /// One op per kernel was asked for.
    NotTried,
    /// The union has no schedule.
    Obstacle { rule: String, detail: String },
    /// The union would be slower by `loss_ns`.
    Cost { loss_ns: u64 },
    /// Another kernel lies between the two.
    Cycle,
    /// The options forbid it.
    Forbidden,
}

/// A neighbour with which a kernel was not fused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Rejection {
    /// Name of the other kernel of the body.
    pub with: String,
    pub verdict: Verdict,
}

/// One fusion on the way to a kernel. Groups go by the number of the op that they started as, which
/// tells the steps that an op took part in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Step {
    /// What was joined, and what that gained by the cost model.
    pub text: String,
    /// The group that stays.
    pub into: u32,
    /// The group that it takes up.
    pub from: u32,
}

/// One kernel of a body's cover.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// At most 63 characters of `[a-z0-9_]`: body, then roles; unique in its body.
    pub name: String,
    /// The kernel as a graph of its own: leaves are inputs (`v12`: body value 12, or the body input's name), weights and
    /// states under their roles; outputs are named likewise.
    pub graph: Graph,
    pub schedule: Schedule,
    /// Leaf of `graph` by name, and the body value it stands for; every leaf but constants, in node order.
    pub reads: Vec<(String, ValueId)>,
    /// Output of `graph` by name, and the body value it stands for; parallel to `graph.outputs`.
    pub writes: Vec<(String, ValueId)>,
    pub class: KernelClass,
    /// The weakest class of a rewrite that changed how a value inside is computed.
    pub exactness: Exactness,
    pub cost: KernelCost,
    /// Ops of the extracted body that this kernel computes, ascending.
    pub ops: Vec<ValueId>,
    /// Those of `ops` that other kernels compute as well.
    pub recomputed: Vec<ValueId>,
    /// The fusions that made it, in order.
    pub steps: Vec<Step>,
    /// Neighbours that stayed apart.
    pub rejected: Vec<Rejection>,
}

/// How a cover came about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct CoverStats {
    /// `none`, `greedy` or `exact`.
    pub strategy: String,
    /// Kernels with one op each.
    pub unfused: u64,
    pub kernels: u64,
    /// Unions whose schedule was asked for.
    pub candidates: u64,
    /// Those without a schedule, by the obstacle's rule.
    pub obstacles: std::collections::BTreeMap<String, u64>,
    pub fusions: u64,
    pub recomputed: u64,
    pub predicted_ns: u64,
    pub unfused_ns: u64,
    /// What the integer program did, if it was asked.
    pub exact: Option<ExactStats>,
    /// Fusions that the options forced or forbade.
    pub wishes: Obeyed,
}

/// A body and the kernels that compute it, in launch order.
#[derive(Clone, Debug, PartialEq)]
pub struct BodyCover {
    /// The extracted body; value numbers of the kernels refer to it.
    pub body: Graph,
    pub kernels: Vec<Kernel>,
    pub stats: CoverStats,
}
