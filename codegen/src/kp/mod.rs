//! The kernel program: what the generator emits and every target lowers.
//!
//! A program is SPMD: a grid of workgroups, each of `waves` waves of 32 lanes. A value is either *uniform* (one per
//! wave) or a *lane* value (one vector of `vec` components per lane). Control flow is structured and wave-uniform; a
//! barrier may stand only where control flow is workgroup-uniform (the verifier's rule). What differs between lanes is
//! expressed by masks: an element that is masked off is not accessed, and loads give 0 for it. Workgroups of a launch
//! depend on each other in one way only: [`Stmt::GridFinish`]; launches of a list on earlier ones by [`Stmt::Await`].
//!
//! Arithmetic is IEEE f32 round-to-nearest-even with denormals kept; nothing is contracted or reassociated. Registers
//! hold f32, i32, i64 or bool; narrower formats exist only in memory ([`Mem`]) and are converted by loads and stores.

pub mod build;
pub mod fault;
pub mod layout;
mod multiples;
mod operands;
mod order;
pub mod text;
pub mod tile;
mod tile_typing;
mod typing;
mod uniform;
pub mod verify;

pub use layout::{SHARED_ALIGN, finish_slot, shared_bytes, shared_offsets};
pub use multiples::multiples;
pub use order::awaits;
pub use tile::{Half, Side, TILE, Tile, TileAt};

/// Lanes in a wave, on every target.
pub const LANES: u32 = 32;

/// Index of an SSA value in [`Program::types`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Val(pub u32);

/// Element type of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Elem {
    F32,
    I32,
    /// Only for addresses and sizes.
    I64,
    Bool,
}

/// Type of an SSA value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ty {
    /// One value per wave.
    Uniform(Elem),
    /// `vec` components (1, 2, 4 or 8) in each of the 32 lanes.
    Lane(Elem, u8),
    /// One matrix tile per wave.
    Tile(Tile),
}

/// Element type in memory. Loads widen to f32 or i32; stores of bf16 and f16 round to nearest even.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mem {
    F32,
    Bf16,
    F16,
    I32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Never written by any launch of a list (weights): may be loaded before [`Stmt::Await`] too.
    Constant,
    /// Never written during the launch: may be loaded through read-only paths.
    Read,
    Write,
    ReadWrite,
    /// What workgroups hand to the one that finishes ([`Stmt::GridFinish`]): f32 or i32, stored only outside of finish
    /// bodies and loaded only inside. What an earlier launch left there is not read.
    Exchange,
    /// i32 counters of [`Stmt::GridFinish`], zero before and after each launch; nothing else touches them.
    Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Param {
    /// A device pointer to elements of `mem`, at least 16-byte aligned.
    Buffer { name: String, mem: Mem, access: Access },
    /// An i32 passed by value.
    Scalar { name: String },
}

/// A workgroup-shared array. Its contents are undefined at the start of a workgroup.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shared {
    pub name: String,
    pub mem: Mem,
    pub len: u32,
    /// The array before it in whose place it lies: one of them is in use at a time, with a barrier between.
    pub over: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// Entry name: stable, at most 63 characters of `[A-Za-z0-9_]`.
    pub name: String,
    /// Waves per workgroup, 1..=8.
    pub waves: u32,
    pub params: Vec<Param>,
    pub shared: Vec<Shared>,
    /// Type of each value, indexed by [`Val`].
    pub types: Vec<Ty>,
    pub body: Vec<Stmt>,
}

/// Where a load or store goes: `Param::Buffer` number or `Shared` number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    Buffer(u32),
    Shared(u32),
}

/// Element index of an access. Bases are uniform i32 or i64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addr {
    /// One element for the whole wave (result or value is uniform).
    Uniform { base: Val },
    /// Lane l, component v: `base + l * vec + v`.
    Contig { base: Val },
    /// Lane l, component v: `base + index[l] + v`; `index` is a lane i32 or i64 with one component. In lanes that are
    /// accessed, an i32 index is not negative and its byte offset is below 2^32 (the generator's duty; i64 has no limit).
    Lanes { base: Val, index: Val },
}

/// Which elements of an access exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bound {
    All,
    /// `Contig` only: those with `l * vec + v < count`; count is a uniform i32 (may be <= 0 or beyond 32 * vec).
    Count(Val),
    /// Lanes whose mask (lane bool, one component) is set, with all their components.
    Mask(Val),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Un {
    /// f32 sign flip; integer negation.
    Neg,
    /// f32 only.
    Abs,
    /// f32, correctly rounded.
    Sqrt,
    /// f32: round to integral, ties to even.
    Rint,
    /// f32 -> the nearest bf16 value, as f32; ties to even, NaN stays NaN.
    RoundBf16,
    /// f32 -> the nearest f16 value, as f32.
    RoundF16,
    /// bool.
    Not,
    /// i32, not 0 (generator's duty): the number of the lowest set bit.
    Ctz,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bin {
    Add,
    Sub,
    Mul,
    /// f32: correctly rounded. i32, i64: truncating, the divisor is never 0 (generator's duty).
    Div,
    /// Integers only; truncating remainder.
    Rem,
    /// f32: IEEE 754-2019 minimum (NaN wins, -0 < +0). Integers: signed.
    Min,
    Max,
    /// Integers and bool.
    And,
    Or,
    Xor,
    /// Integers; the amount is in range (generator's duty).
    Shl,
    /// Logical shift right.
    Lshr,
    /// Arithmetic shift right.
    Ashr,
}

/// Comparisons: f32 ordered (false for NaN) except `Ne`, which is true for NaN; integers signed except `Ult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Ult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Conv {
    /// i32 -> f32, rounded to nearest even.
    I32ToF32,
    /// f32 -> i32, truncating, saturating, NaN gives 0.
    F32ToI32,
    I32ToI64,
    I64ToI32,
    BoolToI32,
    /// f32 <-> i32 with the same bits.
    F32Bits,
    BitsF32,
}

/// Cross-lane reduction over the 32 lanes by xor steps 16, 8, 4, 2, 1: x = op(x, x from lane ^ step) at each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduce {
    Add,
    Min,
    Max,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// f32 by its bits.
    F32(u32),
    I32(i32),
    I64(i64),
    Bool(bool),
    /// Scalar parameter (uniform i32), by its index in `Program::params`.
    Scalar(u32),
    /// Workgroup number along grid axis 0, 1 or 2 (uniform i32).
    Group(u8),
    /// Number of the wave in its workgroup (uniform i32).
    Wave,
    /// Lane number 0..32 (lane i32).
    Lane,
    Un(Un, Val),
    /// Operands and result have one type.
    Bin(Bin, Val, Val),
    /// f32 a * b + c with one rounding.
    Fma(Val, Val, Val),
    /// Result: bool of the operands' shape.
    Cmp(Cmp, Val, Val),
    /// Condition: bool of the operands' shape, or a uniform bool.
    Select(Val, Val, Val),
    Conv(Conv, Val),
    /// uniform -> lane with `vec` equal components; lane with one component -> lane with `vec` equal components.
    Splat(Val, u8),
    /// Component i of each lane.
    Component(Val, u8),
    /// One-component lane values -> a lane value of as many components (2, 4 or 8).
    Pack(Vec<Val>),
    /// `vec` is the result's components; 1 and ignored for `Addr::Uniform`.
    Load {
        from: Place,
        addr: Addr,
        bound: Bound,
        vec: u8,
    },
    /// One-component lane value (f32, i32) -> the same from lane ^ mask, mask in 1..32.
    XorLane(Val, u8),
    /// One-component lane value (f32, i32) -> uniform.
    Reduce(Reduce, Val),
    /// One-component lane value -> uniform: the value in lane `index` (uniform i32 in 0..32).
    ReadLane(Val, Val),
    /// Lane i32 -> lane i32: sum over lower lanes (exclusive).
    ScanAdd(Val),
    /// Lane bool -> uniform i32: bit l is lane l's value.
    Ballot(Val),
    /// A tile of sums, all 0.
    TileZero,
    /// An operand tile from memory.
    TileLoad(TileAt),
    /// A times B plus a tile of sums, in this order; A and B have one element type.
    TileMma([Val; 3]),
    /// Sums times a scale for each column, plus `onto`, with one rounding an element: what a block-scaled weight needs.
    TileFma {
        sums: Val,
        /// A place of f32; column c's scale is at `base + c` (uniform i32 or i64).
        scales: Place,
        base: Val,
        onto: Val,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stmt {
    Let(Val, Expr),
    /// `Addr::Uniform` stores one uniform value (one lane of the wave does it; every wave that executes it stores).
    Store {
        to: Place,
        addr: Addr,
        bound: Bound,
        value: Val,
    },
    /// Sums go to shared memory of f32: row r, column c to `base + r * pitch + c`.
    TileStore {
        to: Place,
        /// Uniform i32 or i64.
        base: Val,
        pitch: u32,
        tile: Val,
    },
    /// The wave asks for bytes of a constant buffer to be near when they are loaded; a target takes as many of them as it
    /// has use for, or none. They start at a multiple of 16 bytes, and are so many (the generator's duty).
    Prefetch {
        /// `Param::Buffer` number of an [`Access::Constant`] buffer.
        from: u32,
        /// Element; uniform i32 or i64.
        base: Val,
        /// Uniform i32 > 0.
        bytes: Val,
        /// Statements of the workgroup's waves among which a target divides what it takes for a workgroup.
        share: u32,
    },
    /// What earlier launches of the list wrote may be read from here on, and what they read may be written. A target may
    /// start workgroups before those launches have ended (`Target::awaits`); it holds them up here. Once in a program, outside
    /// of all blocks; before it only [`Access::Constant`] buffers are accessed.
    Await {
        /// What can be done until then: prefetches, and what they need. A target that gains nothing by it leaves it out.
        ahead: Vec<Stmt>,
    },
    /// A fault to test with ([`fault`]): the wave goes on later, and arrives later at the next grid finish. Changes no value.
    Spin {
        /// Cycles of the clock until the wave goes on; uniform i32.
        cycles: Val,
        /// Cycles from the release of what was written to the arrival; uniform i32, the same in all waves.
        late: Val,
    },
    /// All waves of the workgroup wait; shared memory and the workgroup's own global writes become visible to it.
    Barrier,
    If {
        cond: Val,
        then: Vec<Stmt>,
        otherwise: Vec<Stmt>,
        results: Vec<IfResult>,
    },
    For(For),
    /// The last workgroup to arrive at a counter runs `body`; the others go on after it, and nobody waits. What every
    /// workgroup stored to [`Access::Exchange`] buffers before it arrived is there for the body's loads.
    ///
    /// The generator's duty: in one launch exactly `arrivals` workgroups arrive at an element, each of them once, and
    /// what a body loads is not stored again after the arrival.
    GridFinish {
        /// `Param::Buffer` number of an [`Access::Counter`] buffer.
        counter: u32,
        /// Element of `counter`; uniform i32, the same in all waves.
        index: Val,
        /// Workgroups that arrive at the element; uniform i32 > 0, the same in all waves.
        arrivals: Val,
        body: Vec<Stmt>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IfResult {
    pub result: Val,
    pub then: Val,
    pub otherwise: Val,
}

/// `for index in (start..end).step_by(step)`, all uniform i32, step > 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct For {
    pub index: Val,
    pub start: Val,
    pub end: Val,
    pub step: Val,
    pub carried: Vec<Carried>,
    pub body: Vec<Stmt>,
}

/// A value carried round a loop: `param` is defined in the body (first `init`, then the last round's `next`); `result`
/// is defined after the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Carried {
    pub init: Val,
    pub param: Val,
    pub next: Val,
    pub result: Val,
}
