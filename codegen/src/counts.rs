//! What a launch executed: instructions by class, bytes by memory class and width.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Instruction classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Vector arithmetic, VOPD pairs once.
    Valu,
    /// exp, log, rcp, rsq, sqrt, sin, cos: a quarter of the rate.
    Transcendental,
    /// Lane to lane or lane to scalar.
    CrossLane,
    /// Matrix multiply-accumulate.
    Wmma,
    /// Scalar arithmetic.
    Salu,
    Branch,
    ScalarLoad,
    GlobalLoad,
    GlobalStore,
    GlobalAtomic,
    Lds,
    Scratch,
    Barrier,
    /// Waits, hints, cache control: nothing in a model with immediate results.
    Wait,
}

/// All classes, in order.
pub const CLASSES: [Class; 14] = [
    Class::Valu,
    Class::Transcendental,
    Class::CrossLane,
    Class::Wmma,
    Class::Salu,
    Class::Branch,
    Class::ScalarLoad,
    Class::GlobalLoad,
    Class::GlobalStore,
    Class::GlobalAtomic,
    Class::Lds,
    Class::Scratch,
    Class::Barrier,
    Class::Wait,
];

/// Memory classes of byte counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Traffic {
    GlobalLoad,
    GlobalStore,
    GlobalAtomic,
    ScalarLoad,
    LdsLoad,
    LdsStore,
    LdsAtomic,
    ScratchLoad,
    ScratchStore,
}

/// All memory classes, in order.
pub const TRAFFIC: [Traffic; 9] = [
    Traffic::GlobalLoad,
    Traffic::GlobalStore,
    Traffic::GlobalAtomic,
    Traffic::ScalarLoad,
    Traffic::LdsLoad,
    Traffic::LdsStore,
    Traffic::LdsAtomic,
    Traffic::ScratchLoad,
    Traffic::ScratchStore,
];

/// Widths of accesses in bits, per lane (scalar loads: per wave).
pub const WIDTHS: [u32; 8] = [8, 16, 32, 64, 96, 128, 256, 512];

/// Counts of one or more launches of one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    pub launches: u64,
    pub workgroups: u64,
    /// Instructions that a wave executed, by [`CLASSES`].
    pub instructions: [u64; CLASSES.len()],
    /// Bytes that active lanes asked for, by [`TRAFFIC`] and [`WIDTHS`].
    pub bytes: [[u64; WIDTHS.len()]; TRAFFIC.len()],
}

impl Default for Counts {
    fn default() -> Self {
        Counts {
            launches: 0,
            workgroups: 0,
            instructions: [0; CLASSES.len()],
            bytes: [[0; WIDTHS.len()]; TRAFFIC.len()],
        }
    }
}

impl Counts {
    /// Adds `lanes` accesses of `bytes` bytes.
    #[inline]
    pub fn add(&mut self, traffic: Traffic, bytes: u32, lanes: u32) {
        let width = WIDTHS.iter().position(|w| *w >= bytes * 8).unwrap_or(WIDTHS.len() - 1);
        self.bytes[traffic as usize][width] += u64::from(bytes) * u64::from(lanes);
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Counts) {
        self.launches += other.launches;
        self.workgroups += other.workgroups;
        for (a, b) in self.instructions.iter_mut().zip(other.instructions) {
            *a += b;
        }
        for (a, b) in self.bytes.iter_mut().flatten().zip(other.bytes.iter().flatten()) {
            *a += b;
        }
    }

    /// Instructions of all classes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.instructions.iter().sum()
    }

    /// Bytes of a memory class, all widths.
    #[must_use]
    pub fn traffic(&self, traffic: Traffic) -> u64 {
        self.bytes[traffic as usize].iter().sum()
    }

    /// What is not zero, for reports.
    #[must_use]
    pub fn report(&self) -> CountReport {
        let instructions = CLASSES.iter().map(|c| (*c, self.instructions[*c as usize])).filter(|(_, n)| *n > 0);
        let bytes = TRAFFIC.iter().map(|t| {
            let row = &self.bytes[*t as usize];
            let widths = WIDTHS.iter().zip(row).filter(|(_, n)| **n > 0);
            (*t, widths.map(|(w, n)| (*w, *n)).collect::<BTreeMap<u32, u64>>())
        });
        CountReport {
            launches: self.launches,
            workgroups: self.workgroups,
            instructions: instructions.collect(),
            bytes: bytes.filter(|(_, widths)| !widths.is_empty()).collect(),
        }
    }
}

/// [`Counts`] by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountReport {
    pub launches: u64,
    pub workgroups: u64,
    /// Wave instructions by class.
    pub instructions: BTreeMap<Class, u64>,
    /// Bytes by memory class and access width in bits.
    pub bytes: BTreeMap<Traffic, BTreeMap<u32, u64>>,
}
