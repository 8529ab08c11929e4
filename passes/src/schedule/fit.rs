//! Sizes that schedules are fitted to, by the target whose machine they fill. They decide how work is spread, never which
//! sums are formed: bits do not depend on them.

/// How a target's machine wants its launches spread.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fit {
    /// The target, as in command lines and manifests.
    pub target: &'static str,
    /// Waves of a skinny launch that fill the machine: a wave takes more than one output only where more are left.
    pub waves_wanted: u64,
    /// Most bytes of weights that a wave should stream, in launches that have more than `waves_resident` such waves.
    pub wave_bytes: Option<u64>,
    /// Waves of a streaming launch that are at work at the same time.
    pub waves_resident: u64,
    /// Waves of a skinny workgroup that share something: operands formed first, or blocks of results that are summed.
    /// Others have [`super::SKINNY_WAVES`].
    pub sharing_waves: u32,
    /// Most weight rows that a wave streams at the same time when it takes one row of the operand.
    pub outputs_at_once: u32,
    /// The same of int4 rows, beside which the operand is most of what a wave loads.
    pub packed_at_once: u32,
    /// Keys of the delta rule's state that a lane should hold, where its workgroup may have the waves for it.
    pub keys_a_lane: u64,
    /// Workgroups of matrix tiles that a launch keeps: blocks are wide where more are left.
    pub tile_workgroups: u64,
    /// Workgroups that a launch of the delta rule over one row should have: several share a head where it has fewer.
    pub delta_workgroups: u64,
    /// Keys of the state that a lane should hold where workgroups share heads.
    pub spread_keys_a_lane: u64,
    /// Workgroups that a launch of attention keeps: its heads share workgroups where more are left.
    pub attend_workgroups: u64,
    /// Most heads of an attention workgroup: beyond four its waves are two sets, which share what the first-level cache holds.
    pub attend_heads: u64,
}

/// R9700: 64 compute units with eight waves each. Four weight rows at once would cost the eighth: 6 to 7 waves a SIMD in the
/// matmuls of GLM-5.3-Flash, compiled with LLVM 22; two int4 rows leave twelve. 64 keys a lane leave room for six waves, 32
/// for nine. 43 workgroups pull what the Infinity Cache gives (`cost.rs`: 1,383 of 32 B/ns): with half of 64 they take half
/// of the bytes at three quarters of the rate; with fewer, bytes and rate fall alike, and compute units stand idle. Rows of
/// eight heads come in 12 us at that rate, those of four in 24. A delta rule of 64 heads of 128 x 128 in 256 workgroups of sixteen
/// waves has waves short enough for the rule below; 64 workgroups have not.
///
/// A wave that lives longer than 37,000 cycles costs its launch 62,000 (specs/costmodel.md 2). 6 KiB take 28,900 at a
/// 1024th of 610 B/ns and 2.8 GHz; the chain of a plain matmul, 6,000, comes on top.
pub static GFX1201: Fit = Fit {
    target: "gfx1201",
    waves_wanted: 512,
    wave_bytes: Some(6 * 1024),
    waves_resident: 1024,
    sharing_waves: 4,
    outputs_at_once: 1,
    packed_at_once: 2,
    keys_a_lane: 32,
    tile_workgroups: 64,
    delta_workgroups: 256,
    spread_keys_a_lane: 8,
    attend_workgroups: 32,
    attend_heads: 8,
};

/// H200: 132 multiprocessors with sixteen waves each, which keep 32 KiB and more of a multiprocessor's loads in flight
/// (benches/RESULTS.md). A matmul of 24,896 outputs takes 60.0 us in waves of two outputs, more than the machine holds at
/// once, and 65.2 in waves of sixteen. The delta rule of 64 heads takes 11 us with 64 keys a lane, about 4 of them the
/// events'; 32 keys, and two int4 rows, are not timed; four workgroups a head with 16 keys a lane take 14.8 us. 203
/// workgroups pull what the L2 gives (`cost.rs`: 6,500 of 32 B/ns): half of 256 take half of the bytes at 0.63 of the
/// rate, and nearly every multiprocessor has one. Long waves cost nothing that is known. Two sets of attention waves would
/// leave a lane 128 registers, where one uses about 160.
pub static SM_90: Fit = Fit {
    target: "sm_90",
    waves_wanted: 8448,
    wave_bytes: None,
    waves_resident: 4224,
    sharing_waves: 8,
    outputs_at_once: 4,
    packed_at_once: 1,
    keys_a_lane: 64,
    tile_workgroups: 132,
    delta_workgroups: 1,
    spread_keys_a_lane: 64,
    attend_workgroups: 128,
    attend_heads: 4,
};

/// Every fit. x86-64 has none: it takes that of the GPU it is built beside.
pub static FITS: [&Fit; 2] = [&GFX1201, &SM_90];

impl Fit {
    /// The fit of a target by name.
    #[must_use]
    pub fn of(target: &str) -> Option<&'static Fit> {
        FITS.into_iter().find(|f| f.target == target)
    }
}
