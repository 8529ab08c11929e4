//! Orders of summation: which partial sums exist and how they combine. Equal orders give equal bits on every target.

use crate::types::TensorType;

/// Chains of [`Order::Lanes`]: 32 lanes of 8 components.
pub const LANE_CHAINS: u64 = 256;
/// Inputs of one run of [`Order::Runs`]: 16 bytes of int4, what a lane loads at once.
pub const RUN: u64 = 32;
/// Chains inside a run of [`Order::Runs`].
pub const RUN_CHAINS: u64 = 8;
/// Lanes over which runs are dealt.
pub const RUN_LANES: u64 = 32;
/// Longest sum that [`Order::Sequential`] serves (a small axis lives in registers).
pub const SEQUENTIAL_MAX: u64 = 32;
/// Selected places of one attention split: with 2,048 of them and eight heads a workgroup, 64 heads are 128 workgroups, two
/// for each of 64 compute units and one for nearly each of 132 multiprocessors.
pub const SPLIT_ROWS: u64 = 128;
/// Chains of values inside one attention split.
pub const SPLIT_CHAINS: u64 = 8;
/// Chains over attention splits.
pub const SPLITS_CHAINS: u64 = 2;
/// Order of the sum of a split's probabilities: one chain a lane.
pub const SPLIT_SUM: Order = Order::Strided(32);

/// The order in which a sum over n elements is formed. Every chain starts at +0 and takes its elements in ascending
/// order: by addition for `sum`, by fma for products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Order {
    /// One chain that starts at +0.
    Sequential,
    /// 256 chains, element i in chain i mod 256. Chains c and c^4, then c^2, c^1 (components of a lane), then c^128,
    /// c^64, c^32, c^16, c^8 (lanes) are added pairwise; absent elements count as +0.
    Lanes,
    /// Products with an int4 weight, n a multiple of 32: runs of 32 inputs, each inside one group of the weight. In a run
    /// 8 chains (input mod 8) of x * (q - 8) by fma from +0, chains c and c^4, then c^2, c^1 are added; the run's sum p
    /// goes to lane (run mod 32) by one fma, scale * p + lane, runs ascending from +0; lanes l and l + half are added,
    /// half = 16, 8, 4, 2, 1. Absent runs of the last 32 count as +0. A group of 64 or 128 is 2 or 4 runs with one scale,
    /// which lets every lane work whatever the group.
    Runs,
    /// `chains` (a power of two) chains, element i in chain i mod `chains`; chain c and c + half are added, half =
    /// chains/2, chains/4, ..., 1.
    Strided(u32),
    /// Attention over splits of 128 selected places, each with a maximum of its own: values are 8 chains (place mod 8) in
    /// a split, combined as in `Strided(8)`, and +0 last, and probabilities 32 chains as in `Strided(32)`; both combine over the splits
    /// as in `Strided(2)`. Whoever forms a split, and however many others it forms, the bits are the same. As a plain sum:
    /// splits by 8 chains, added to chain (split mod 2), which are added.
    Splits,
}

impl Order {
    /// Order of a `sum` over the last axis (or a small middle axis) of extent n.
    pub fn of_sum(n: u64) -> Order {
        if n <= SEQUENTIAL_MAX { Order::Sequential } else { Order::Lanes }
    }

    /// Order of a contraction along contiguous rows of a weight.
    pub fn of_rows(weight: &TensorType) -> Order {
        if weight.is_int4() { Order::Runs } else { Order::Lanes }
    }

    /// Order of a contraction whose terms stand in one lane: chains of at most 16 terms.
    pub fn of_strided(n: u64) -> Order {
        Order::Strided(n.div_ceil(16).max(1).next_power_of_two().min(1 << 20) as u32)
    }

    /// Longest chain of additions, d, that an element passes through in a sum over n elements.
    pub fn depth(self, n: u64) -> u64 {
        match self {
            Order::Sequential => n,
            Order::Lanes => n.div_ceil(LANE_CHAINS) + 8,
            Order::Runs => RUN / RUN_CHAINS + 3 + n.div_ceil(RUN * RUN_LANES) + 5,
            Order::Strided(c) => n.div_ceil(u64::from(c.max(1))) + u64::from(c.max(1).ilog2()),
            Order::Splits => SPLIT_ROWS / SPLIT_CHAINS + 3 + n.div_ceil(SPLIT_ROWS).div_ceil(SPLITS_CHAINS) + 1,
        }
    }

    /// The promise of numerics P2: d <= n/256 + 32.
    pub fn is_shallow(self, n: u64) -> bool {
        self.depth(n) <= n / 256 + 32
    }

    /// Name in the text form and the manifest.
    pub fn name(self) -> String {
        match self {
            Order::Sequential => "sequential".into(),
            Order::Lanes => "lanes".into(),
            Order::Runs => "runs".into(),
            Order::Strided(c) => format!("strided{c}"),
            Order::Splits => "splits".into(),
        }
    }

    /// Inverse of [`Order::name`].
    pub fn parse(s: &str) -> Option<Order> {
        match s {
            "sequential" => Some(Order::Sequential),
            "lanes" => Some(Order::Lanes),
            "runs" => Some(Order::Runs),
            "splits" => Some(Order::Splits),
            _ => {
                let c: u32 = s.strip_prefix("strided")?.parse().ok()?;
                c.is_power_of_two().then_some(Order::Strided(c))
            }
        }
    }
}
