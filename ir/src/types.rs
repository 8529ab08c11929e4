//! Types of values: dtypes, weight storage formats, shapes with run-time symbols, and state.

use std::fmt;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    F32,
    Bf16,
    F16,
    F8E4m3,
    I32,
    Bool,
}

impl DType {
    /// Name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::F8E4m3 => "f8e4m3",
            DType::I32 => "i32",
            DType::Bool => "bool",
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::Bf16 | DType::F16 => 2,
            DType::F8E4m3 | DType::Bool => 1,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::Bf16 | DType::F16 | DType::F8E4m3)
    }
}

/// Order of the eight 4-bit values in a 32-bit word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Packing {
    /// GPTQ: words run along the input axis, `[K/8, N]`; input 8i+j in bits 4j..4j+3.
    GptqColumns,
    /// compressed-tensors: words run along the input axis, `[N, K/8]`; input 8i+j in bits 4j..4j+3.
    Rows,
}

/// Dtype of the scales of an int4 weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScaleType {
    #[default]
    F16,
    Bf16,
}

impl ScaleType {
    pub fn dtype(self) -> DType {
        match self {
            ScaleType::F16 => DType::F16,
            ScaleType::Bf16 => DType::Bf16,
        }
    }

    /// What the text form adds to the format: f16 is not named.
    pub fn suffix(self) -> &'static str {
        match self {
            ScaleType::F16 => "",
            ScaleType::Bf16 => ".bf16",
        }
    }
}

/// How elements are stored. Activations are `Plain`; weights may be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    Plain(DType),
    /// Symmetric int4: element k of a row is (q - 8) times the scale of k / `group`, q the stored 4 bits. Words and
    /// scales are two arrays; scales run as the words do, `[K/group, N]` or `[N, K/group]`.
    Int4 {
        group: u32,
        packing: Packing,
        scales: ScaleType,
    },
    /// f8e4m3 with one f32 scale per block of `rows` x `cols`.
    F8Block {
        rows: u32,
        cols: u32,
    },
}

/// Extent of an axis: a number, or a symbol whose value a step brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dim {
    Fixed(u64),
    /// Rows of the step (tokens of all its sequences).
    Rows,
    /// Sequences of the step.
    Seqs,
    /// Rows for which logits are wanted.
    Logits,
    /// Pooled keys that the step's longest context can have.
    Pools,
}

impl Dim {
    pub fn fixed(self) -> Option<u64> {
        match self {
            Dim::Fixed(n) => Some(n),
            _ => None,
        }
    }

    pub fn is_one(self) -> bool {
        self == Dim::Fixed(1)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(n) => write!(f, "{n}"),
            Dim::Rows => f.write_str("R"),
            Dim::Seqs => f.write_str("B"),
            Dim::Logits => f.write_str("L"),
            Dim::Pools => f.write_str("P"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorType {
    pub format: Format,
    pub shape: Vec<Dim>,
}

impl TensorType {
    pub fn plain(dtype: DType, shape: impl Into<Vec<Dim>>) -> Self {
        TensorType { format: Format::Plain(dtype), shape: shape.into() }
    }

    /// The dtype of a plain tensor.
    pub fn dtype(&self) -> Option<DType> {
        match self.format {
            Format::Plain(d) => Some(d),
            _ => None,
        }
    }

    /// True for weights in 4 bits.
    pub fn is_int4(&self) -> bool {
        matches!(self.format, Format::Int4 { .. })
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }
}

/// What one unit of state is, and how a step addresses it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateKind {
    /// One block of this shape per sequence slot.
    Slot { shape: Vec<u64> },
    /// One row of `width` elements per token, through the block table.
    Token { width: u64 },
    /// One row of `width` elements per `pool` tokens, through the block table.
    Pool { width: u64, pool: u64 },
    /// `[2, pool, width]` per slot: the rows of the unfinished pool; token t is at place t mod `pool`.
    Tail { pool: u64, width: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateType {
    pub kind: StateKind,
    pub dtype: DType,
}

/// Type of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    Tensor(TensorType),
    State(StateType),
    /// Result of an op with several outputs; taken apart by `project`.
    Tuple(Vec<Type>),
}

impl Type {
    pub fn tensor(&self) -> Option<&TensorType> {
        match self {
            Type::Tensor(t) => Some(t),
            _ => None,
        }
    }

    pub fn state(&self) -> Option<&StateType> {
        match self {
            Type::State(s) => Some(s),
            _ => None,
        }
    }
}

fn write_list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
    f.write_str("[")?;
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        write!(f, "{item}")?;
    }
    f.write_str("]")
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.format {
            Format::Plain(d) => f.write_str(d.name())?,
            Format::Int4 { group, packing, scales } => {
                let order = match packing {
                    Packing::GptqColumns => "gptq",
                    Packing::Rows => "rows",
                };
                write!(f, "int4.{order}.g{group}{}", scales.suffix())?;
            }
            Format::F8Block { rows, cols } => write!(f, "f8e4m3.block{rows}x{cols}")?,
        }
        write_list(f, &self.shape)
    }
}

impl fmt::Display for StateType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = self.dtype.name();
        match &self.kind {
            StateKind::Slot { shape } => {
                write!(f, "slot.{d}")?;
                write_list(f, shape)
            }
            StateKind::Token { width } => write!(f, "token.{d}[{width}]"),
            StateKind::Pool { width, pool } => write!(f, "pool{pool}.{d}[{width}]"),
            StateKind::Tail { pool, width } => write!(f, "tail{pool}.{d}[{width}]"),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Tensor(t) => write!(f, "{t}"),
            Type::State(s) => write!(f, "{s}"),
            Type::Tuple(ts) => {
                f.write_str("(")?;
                for (i, t) in ts.iter().enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                    }
                    write!(f, "{t}")?;
                }
                f.write_str(")")
            }
        }
    }
}
