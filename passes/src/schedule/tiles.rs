//! Tiles form: matmuls over many rows, on matrix tiles. A workgroup forms a block of rows and outputs; its waves share the
//! operands through workgroup memory and each multiply a part of the block. Segments, labels and epilogue are those of the
//! skinny form, of which this one takes the kernels whose operands are given.
//!
//! Experts: a workgroup has one expert and a block of its outputs. It lists the choices of its expert in ascending order
//! and takes 64 of them at a time, so that rows are gathered and results scattered without a launch that sorts.

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;
use unglue_ir::types::{DType, Dim, Format};

use super::skinny::{self, Segment, Skinny, YAxis};
use super::{Bucket, Form, GridAxis, Obstacle, Products, Schedule, row, row_elements, strip_reshapes};

/// Steps of more rows take matrix tiles; up to here sums have the `lanes` order, on every device.
pub const ROWS_ON_LANES: u32 = 16;
/// Rows of a tile.
const TILE: u64 = 16;
/// Inputs that are in workgroup memory at a time.
const STEP: u32 = 32;
/// Contractions that may meet in one output: each takes as much workgroup memory as the other.
const ZIPPED_MAX: usize = 2;
/// Bytes that lanes reach behind a uniform base.
const REACH: u64 = 1 << 31;

/// A workgroup's block, and how its waves share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TileBlock {
    pub rows: u32,
    /// Outputs, in each contraction that meets there.
    pub outputs: u32,
    /// Rows and outputs that a wave multiplies; parts of a block are dealt to waves outputs first.
    pub wave_rows: u32,
    pub wave_outputs: u32,
}

/// Any kernel's block.
const SMALL: TileBlock = TileBlock { rows: 64, outputs: 64, wave_rows: 16, wave_outputs: 64 };
/// Blocks of plain weights, by how many contractions meet in an output: they read each operand from the cache half as often,
/// and a wave takes four tiles of operands from workgroup memory for three products, not five for four. Sums are 64 registers.
const WIDE: [TileBlock; ZIPPED_MAX] = [
    TileBlock { rows: 128, outputs: 128, wave_rows: 32, wave_outputs: 64 },
    TileBlock { rows: 128, outputs: 64, wave_rows: 32, wave_outputs: 32 },
];

impl TileBlock {
    /// Waves of a workgroup.
    pub const fn waves(&self) -> u32 {
        self.rows / self.wave_rows * self.waves_across()
    }

    /// Waves beside one another along the outputs.
    pub const fn waves_across(&self) -> u32 {
        self.outputs / self.wave_outputs
    }
}

/// What the rows of a workgroup have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Over {
    /// Nothing: blocks of the step's rows, which grid axis 1 counts.
    Rows,
    /// One of so many experts, which grid axis 1 counts; one more takes the ids that name none. `choices`: of a row.
    Experts { experts: u64, choices: u64 },
    /// One of so many heads, which grid axis 2 counts.
    Heads(u64),
}

/// A kernel on matrix tiles.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tiles {
    /// Segments, labels and outputs; nothing is staged and nothing finished.
    pub skinny: Skinny,
    /// What the rows count.
    pub leading: Dim,
    pub over: Over,
    /// Inputs that share a scale of int4 weights; `None` for weights of the operand's own dtype.
    pub group: Option<u32>,
    pub block: TileBlock,
    /// Inputs a round.
    pub step: u32,
}

/// What the weights of a contraction are, beside the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operands {
    x: DType,
    group: Option<u32>,
}

/// The form of a kernel whose contractions all have given operands: of one 16-bit dtype, or bf16 and int4.
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
    if skinny.finish.is_some() || skinny.segments.iter().any(|s| s.inner_choices.is_some()) {
        return Err(Obstacle::new("tile-form", "a finish stage, or a sum over choices"));
    }
    if skinny.segments.iter().any(|s| !s.block_sums.is_empty()) {
        return Err(Obstacle::new("tile-form", "sums over blocks behind the contractions"));
    }
    let mut operands = Vec::new();
    for segment in &skinny.segments {
        check_zipped(g, segment)?;
        for anchor in &segment.anchors {
            operands.push(self::operands(g, *anchor, bucket)?);
        }
    }
    let (Some(first), Some(anchor)) = (operands.first(), skinny.segments.first().and_then(|s| s.anchors.first()))
    else {
        return Err(Obstacle::new("tile-form", "no contraction"));
    };
    if operands.iter().any(|other| other != first) {
        return Err(Obstacle::new("tile-dtype", "contractions of operands or weights in different formats"));
    }
    let over = match skinny.y {
        YAxis::None => Over::Rows,
        YAxis::Heads(n) => Over::Heads(n),
        YAxis::Choices(choices) => Over::Experts { experts: experts(g, *anchor), choices },
    };
    let group = first.group;
    let mut tiles = Tiles { skinny, leading, over, group, block: SMALL, step: STEP };
    if let Some(wide) = tiles.wide(bucket) {
        tiles.block = wide;
    }
    let (waves, rows) = (tiles.block.waves(), tiles.block.rows);
    Ok(Schedule { form: Form::Tiles(tiles), waves, staged: vec![], products: Products::Tiles { rows } })
}

/// Contractions that meet in one output share rows, and what chooses them.
fn check_zipped(g: &Graph, segment: &Segment) -> Result<(), Obstacle> {
    if segment.anchors.len() > ZIPPED_MAX {
        let found = format!("{} contractions meet in one output", segment.anchors.len());
        return Err(Obstacle::new("tile-zipped", found));
    }
    let shared = |a: &ValueId| {
        let args = &g.node(*a).args;
        args.iter().take(args.len().saturating_sub(1)).map(|v| strip_reshapes(g, *v)).collect::<Vec<_>>()
    };
    if segment.anchors.windows(2).any(|pair| shared(&pair[0]) != shared(&pair[1])) {
        return Err(Obstacle::new("tile-zipped", "contractions of different rows meet in one output"));
    }
    Ok(())
}

/// Formats of a contraction over given rows.
fn operands(g: &Graph, anchor: ValueId, bucket: &Bucket) -> Result<Operands, Obstacle> {
    let node = g.node(anchor);
    let (Some(x), Some(w)) = (node.args.first(), node.args.last()) else {
        return Err(Obstacle::new("tile-op", format!("%{} has no operands", anchor.0)));
    };
    if !skinny::is_contraction(&node.op) {
        return Err(Obstacle::new("tile-op", format!("%{} is no contraction", anchor.0)));
    }
    let format = |v: ValueId| g.ty(strip_reshapes(g, v)).tensor().map(|t| t.format);
    let bytes = row_elements(g.ty(*x), bucket).saturating_mul(2).saturating_mul(u64::from(bucket.rows_max));
    if matches!(node.op, Op::GroupedMatMul { .. }) && bytes > REACH {
        let found = format!("%{}: lanes gather rows from {bytes} bytes, at most {REACH}", anchor.0);
        return Err(Obstacle::new("tile-gather", found));
    }
    match (format(*x), format(*w)) {
        (Some(Format::Plain(x @ (DType::Bf16 | DType::F16))), Some(Format::Plain(w))) if x == w => {
            Ok(Operands { x, group: None })
        }
        (Some(Format::Plain(x @ DType::Bf16)), Some(Format::Int4 { group, .. }))
            if group.is_power_of_two()
                && group >= STEP
                && matches!(node.op, Op::MatMul { .. } | Op::GroupedMatMul { .. }) =>
        {
            Ok(Operands { x, group: Some(group) })
        }
        _ => Err(Obstacle::new(
            "tile-dtype",
            format!("%{}: operands are not both bf16 or both f16, nor bf16 and int4", anchor.0),
        )),
    }
}

/// Experts that the table of slots knows.
fn experts(g: &Graph, grouped: ValueId) -> u64 {
    let slots = g.node(grouped).args.get(2).and_then(|s| g.ty(*s).tensor());
    slots.and_then(|t| t.shape.first()).and_then(|d| d.fixed()).unwrap_or(0)
}

impl Tiles {
    pub fn describe(&self) -> String {
        let parts: Vec<String> =
            self.skinny.segments.iter().map(|s| format!("{} zipped, {} outputs", s.anchors.len(), s.n)).collect();
        let (TileBlock { rows, outputs, .. }, step) = (self.block, self.step);
        let over = match self.over {
            Over::Rows => String::new(),
            Over::Experts { experts, choices } => format!(", rows by expert: {choices} choices of {experts}"),
            Over::Heads(n) => format!(", {n} heads"),
        };
        let packed = self.group.map_or(String::new(), |group| format!(", int4 in groups of {group}"));
        format!("matrix tiles [{}]{over}{packed}, {rows} x {outputs} a workgroup, {step} deep", parts.join("; "))
    }

    /// The wide block, where the machine has its workgroups with it. Experts have few rows each; the sums of a round of int4
    /// levels stand beside those of all rounds.
    fn wide(&self, bucket: &Bucket) -> Option<TileBlock> {
        let zipped = self.skinny.segments.iter().map(|s| s.anchors.len()).max().unwrap_or(1);
        let wide = Self { block: *WIDE.get(zipped.checked_sub(1)?)?, ..self.clone() };
        let plain = self.group.is_none() && !matches!(self.over, Over::Experts { .. });
        let workgroups = wide.grid().iter().map(|axis| axis.value(bucket)).fold(1, u64::saturating_mul);
        (plain && workgroups >= bucket.fit.tile_workgroups).then_some(wide.block)
    }

    /// Workgroups that a segment takes along grid axis 0.
    pub fn blocks(&self, segment: &Segment) -> u64 {
        segment.n.div_ceil(u64::from(self.block.outputs))
    }

    pub fn grid(&self) -> [GridAxis; 3] {
        let count = |n: u64| GridAxis { symbol: None, mul: n, div: 1 };
        let x = self.skinny.segments.iter().map(|s| self.blocks(s)).sum();
        let rows = GridAxis { symbol: Some(self.leading), mul: 1, div: u64::from(self.block.rows) };
        match self.over {
            Over::Rows => [count(x), rows, count(1)],
            Over::Experts { experts, .. } => [count(x), count(experts + 1), count(1)],
            Over::Heads(n) => [count(x), rows, count(n)],
        }
    }

    /// Matrices that a step's rows meet, and the most rows that meet one of them if they are spread evenly.
    fn met(&self, bucket: &Bucket) -> [u64; 2] {
        let rows = u64::from(bucket.rows_max);
        match self.over {
            Over::Rows | Over::Heads(_) => [1, rows],
            Over::Experts { experts, choices } => {
                let all = rows.saturating_mul(choices);
                let met = all.min(experts).max(1);
                [met, all.div_ceil(met)]
            }
        }
    }

    /// How often a launch reads the weights that it needs: once for each block of rows.
    pub fn passes(&self, bucket: &Bucket) -> u64 {
        let [_, rows] = self.met(bucket);
        rows.div_ceil(u64::from(self.block.rows.max(1))).max(1)
    }

    /// Rows whose products are wanted, and rows that are multiplied: whole blocks, and of experts whole tiles, since their
    /// waves without rows leave the products out.
    pub fn multiplied(&self, bucket: &Bucket) -> [u64; 2] {
        let [met, rows] = self.met(bucket);
        match self.over {
            Over::Experts { choices, .. } => {
                [u64::from(bucket.rows_max).saturating_mul(choices), met.saturating_mul(rows.next_multiple_of(TILE))]
            }
            _ => [rows, rows.next_multiple_of(u64::from(self.block.rows.max(1)))],
        }
    }

    /// Workgroups that read each element of a given value.
    pub fn readers(&self, g: &Graph, input: ValueId) -> u64 {
        let blocks: u64 = self.skinny.segments.iter().map(|s| self.blocks(s)).sum();
        let Over::Experts { experts, choices } = self.over else { return blocks };
        let of = |number: usize, v: ValueId| {
            g.node(v).args.get(number).is_some_and(|a| strip_reshapes(g, *a) == strip_reshapes(g, input))
        };
        let mut anchors = self.skinny.segments.iter().flat_map(|s| &s.anchors);
        let one_row =
            |v: ValueId| g.node(v).args.first().and_then(|x| g.ty(*x).tensor()).is_some_and(|t| t.rank() == 2);
        if anchors.clone().any(|a| of(1, *a)) {
            return blocks.saturating_mul(experts + 1);
        }
        if anchors.any(|a| of(0, *a) && one_row(*a)) { blocks.saturating_mul(choices) } else { blocks }
    }
}
