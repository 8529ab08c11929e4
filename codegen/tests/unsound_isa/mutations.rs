//! Changes of finished code, one instruction or one kind of instruction each, and who must find them.

use unglue_ir::graph::Graph;

use super::bodies;

/// Who finds a mutation, and by what name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finder {
    /// The gate of that name.
    Gate(&'static str),
    /// A fault of the emulator whose message holds this.
    Fault(&'static str),
    /// Wrong values, or a fault: which one depends on the draw.
    Result,
}

/// Which of the instructions that match are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    All,
    First,
}

/// A mutation of a kernel.
pub struct Mutation {
    pub name: &'static str,
    pub graph: fn() -> Graph,
    pub rows_max: u32,
    pub which: Which,
    /// The new text of an instruction, empty for none; `None` leaves it alone.
    pub change: fn(&str) -> Option<String>,
    pub finder: Finder,
}

fn remove(found: bool) -> Option<String> {
    found.then(String::new)
}

fn replace(text: &str, from: &str, to: &str) -> Option<String> {
    text.contains(from).then(|| text.replacen(from, to, 1))
}

fn norm() -> Graph {
    bodies::rms_norm(1000)
}

fn matmul() -> Graph {
    bodies::matmul(70, 96)
}

fn wide_matmul() -> Graph {
    bodies::matmul(33, 700)
}

const fn norm_mutation(
    name: &'static str,
    which: Which,
    change: fn(&str) -> Option<String>,
    finder: Finder,
) -> Mutation {
    Mutation { name, graph: norm, rows_max: 4, which, change, finder }
}

const fn matmul_mutation(
    name: &'static str,
    which: Which,
    change: fn(&str) -> Option<String>,
    finder: Finder,
) -> Mutation {
    Mutation { name, graph: wide_matmul, rows_max: 1, which, change, finder }
}

pub static MUTATIONS: &[Mutation] = &[
    norm_mutation("barriers_removed", Which::All, |t| remove(t.starts_with("s_barrier_")), Finder::Fault("LDS race")),
    norm_mutation(
        "barrier_signal_removed",
        Which::First,
        |t| remove(t.starts_with("s_barrier_signal")),
        Finder::Fault("has not signalled"),
    ),
    norm_mutation(
        "barrier_wait_removed",
        Which::All,
        |t| remove(t.starts_with("s_barrier_wait")),
        Finder::Fault("LDS race"),
    ),
    norm_mutation(
        "lds_wait_removed",
        Which::All,
        |t| remove(t.starts_with("s_wait_dscnt")),
        Finder::Gate("waits-barrier"),
    ),
    norm_mutation("load_wait_removed", Which::All, |t| remove(t.starts_with("s_wait_loadcnt")), Finder::Gate("waits")),
    norm_mutation(
        "scalar_wait_removed",
        Which::First,
        |t| remove(t.starts_with("s_wait_kmcnt")),
        Finder::Gate("waits"),
    ),
    norm_mutation(
        "lds_offset_moved",
        Which::First,
        |t| t.starts_with("ds_store_b32").then(|| format!("{} offset:4", t.split(" offset").next().unwrap_or(t))),
        Finder::Result,
    ),
    matmul_mutation(
        "store_of_another_register",
        Which::First,
        |t| {
            // The address in place of the value.
            let (head, rest) = t.split_once(", ")?;
            let (_, tail) = rest.split_once(", ")?;
            let (name, address) = head.split_once(' ')?;
            (name.starts_with("global_store_") && !address.contains('[')).then(|| format!("{head}, {address}, {tail}"))
        },
        Finder::Result,
    ),
    matmul_mutation(
        "lane_constant_changed",
        Which::First,
        |t| replace(t, "row_xmask:4", "row_xmask:8"),
        Finder::Result,
    ),
    matmul_mutation(
        "row_swap_within_the_row",
        Which::First,
        |t| replace(t, "v_permlanex16_b32", "v_permlane16_b32"),
        Finder::Result,
    ),
    matmul_mutation(
        "permutation_reads_itself",
        Which::First,
        |t| {
            let at = t.find(" row_xmask:")?;
            t.starts_with("v_add_f32_dpp")
                .then(|| format!("{} row_xmask:0{}", &t[..at], &t[at + " row_xmask:4".len()..]))
        },
        Finder::Result,
    ),
    matmul_mutation(
        "mask_never_restored",
        Which::All,
        |t| remove(t.starts_with("s_or_b32 exec_lo, exec_lo")),
        Finder::Result,
    ),
    matmul_mutation(
        "mask_never_set",
        Which::All,
        |t| {
            let rest = t.strip_prefix("s_and_saveexec_b32 ")?;
            let (saved, _) = rest.split_once(", ")?;
            Some(format!("s_mov_b32 {saved}, exec_lo"))
        },
        Finder::Result,
    ),
    matmul_mutation(
        "offset_dropped",
        Which::First,
        |t| {
            let at = t.find(" offset:")?;
            (t.starts_with("global_load_") && !t.ends_with("offset:0")).then(|| t[..at].to_owned())
        },
        Finder::Result,
    ),
    matmul_mutation(
        "argument_of_its_neighbour",
        Which::First,
        |t| {
            let (head, offset) = t.rsplit_once(", ")?;
            let offset = u32::from_str_radix(offset.strip_prefix("0x")?, 16).ok()?;
            head.starts_with("s_load_b").then(|| format!("{head}, {:#x}", offset + 8))
        },
        Finder::Result,
    ),
    matmul_mutation(
        "load_narrowed",
        Which::All,
        |t| {
            let rest = t.strip_prefix("global_load_b128 v[")?;
            let (first, rest) = rest.split_once(':')?;
            let (_, rest) = rest.split_once(']')?;
            Some(format!("global_load_b32 v{first}{rest}"))
        },
        Finder::Result,
    ),
    matmul_mutation(
        "sum_becomes_difference",
        Which::First,
        |t| replace(t, "v_add_f32_dpp", "v_sub_f32_dpp"),
        Finder::Result,
    ),
    Mutation {
        name: "address_carry_dropped",
        graph: matmul,
        rows_max: 4,
        which: Which::All,
        change: |t| {
            // The carry into the upper half of an address.
            let rest = t.strip_prefix("v_add_co_ci_u32_e64 ")?;
            let (head, _) = rest.rsplit_once(", ")?;
            Some(format!("v_add_co_ci_u32_e64 {head}, null"))
        },
        finder: Finder::Result,
    },
    Mutation {
        name: "comparison_off_by_one",
        graph: wide_matmul,
        rows_max: 1,
        which: Which::All,
        change: |t| replace(t, "_gt_u32", "_ge_u32").filter(|t| t.starts_with("v_cmp")),
        finder: Finder::Result,
    },
    Mutation {
        name: "branch_inverted",
        graph: wide_matmul,
        rows_max: 1,
        which: Which::First,
        change: |t| replace(t, "s_cbranch_scc1", "s_cbranch_scc0"),
        finder: Finder::Result,
    },
];
