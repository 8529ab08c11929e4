//! State of one wave.

use crate::isa::{Special, sreg};

use super::step::Operand;

/// One value per lane.
pub type Lanes = [u32; 32];
/// One 64-bit value per lane.
pub type Lanes64 = [u64; 32];

/// Lowest address of the LDS aperture of flat accesses.
pub const SHARED_APERTURE: u64 = 0x1_0000_0000_0000;
/// Lowest address of the scratch aperture of flat accesses.
pub const PRIVATE_APERTURE: u64 = 0x2_0000_0000_0000;

/// Registers of a wave of 32 lanes.
pub struct Wave {
    /// Scalar registers by encoding: 0..106 plain, then VCC, ttmp, null, m0, exec.
    pub sgpr: [u32; sreg::COUNT],
    pub vgpr: Box<[Lanes; 256]>,
    pub scc: bool,
    /// Index of the next step.
    pub pc: usize,
    /// Private memory: `scratch_bytes` per lane, lane after lane.
    pub scratch: Vec<u8>,
    /// Number of the wave in its workgroup.
    pub number: u32,
}

impl Wave {
    /// A wave whose registers all hold `poison`.
    #[must_use]
    pub fn new(poison: u32) -> Self {
        let mut wave = Wave {
            sgpr: [poison; sreg::COUNT],
            vgpr: Box::new([[poison; 32]; 256]),
            scc: poison & 1 == 1,
            pc: 0,
            scratch: Vec::new(),
            number: 0,
        };
        wave.set_exec(u32::MAX);
        wave
    }

    /// Active lanes.
    #[inline]
    #[must_use]
    pub fn exec(&self) -> u32 {
        self.sgpr[usize::from(sreg::EXEC)]
    }

    #[inline]
    pub fn set_exec(&mut self, mask: u32) {
        self.sgpr[usize::from(sreg::EXEC)] = mask;
    }

    #[inline]
    #[must_use]
    pub fn vcc(&self) -> u32 {
        self.sgpr[usize::from(sreg::VCC)]
    }

    #[inline]
    pub fn set_vcc(&mut self, mask: u32) {
        self.sgpr[usize::from(sreg::VCC)] = mask;
    }

    /// A scalar register; null reads 0.
    #[inline]
    #[must_use]
    pub fn s(&self, n: u8) -> u32 {
        if n == sreg::NULL { 0 } else { self.sgpr[usize::from(n) % sreg::COUNT] }
    }

    /// Writes a scalar register; null takes nothing.
    #[inline]
    pub fn set_s(&mut self, n: u8, value: u32) {
        if n != sreg::NULL {
            self.sgpr[usize::from(n) % sreg::COUNT] = value;
        }
    }

    /// A pair of scalar registers; null reads 0.
    #[inline]
    #[must_use]
    pub fn s64(&self, n: u8) -> u64 {
        if n == sreg::NULL {
            return 0;
        }
        u64::from(self.s(n)) | u64::from(self.sgpr[(usize::from(n) + 1) % sreg::COUNT]) << 32
    }

    #[inline]
    pub fn set_s64(&mut self, n: u8, value: u64) {
        if n != sreg::NULL {
            self.set_s(n, value as u32);
            self.sgpr[(usize::from(n) + 1) % sreg::COUNT] = (value >> 32) as u32;
        }
    }

    /// The scalar value of an operand; of a vector register, lane 0's.
    #[inline]
    #[must_use]
    pub fn scalar(&self, operand: Operand) -> u32 {
        match operand {
            Operand::S(n) => self.s(n),
            Operand::Imm(bits) => bits as u32,
            Operand::V(n) | Operand::Half(n, _) => self.vgpr[usize::from(n)][0],
            Operand::Special(special) => self.special(special) as u32,
            Operand::None | Operand::Off => 0,
        }
    }

    /// The 64-bit scalar value of an operand.
    #[inline]
    #[must_use]
    pub fn scalar64(&self, operand: Operand) -> u64 {
        match operand {
            Operand::S(n) => self.s64(n),
            Operand::Imm(bits) => bits,
            Operand::Special(special) => self.special(special),
            other => u64::from(self.scalar(other)),
        }
    }

    fn special(&self, special: Special) -> u64 {
        match special {
            Special::Scc => u64::from(self.scc),
            Special::Vccz => u64::from(self.vcc() == 0),
            Special::Execz => u64::from(self.exec() == 0),
            Special::SharedBase => SHARED_APERTURE,
            Special::SharedLimit => SHARED_APERTURE + 0xffff_ffff,
            Special::PrivateBase => PRIVATE_APERTURE,
            Special::PrivateLimit => PRIVATE_APERTURE + 0xffff_ffff,
        }
    }

    /// An operand's value in each lane. Of a half register, the half in the low 16 bits.
    #[inline]
    #[must_use]
    pub fn lanes(&self, operand: Operand) -> Lanes {
        match operand {
            Operand::V(n) => self.vgpr[usize::from(n)],
            Operand::Half(n, high) => self.vgpr[usize::from(n)].map(|x| if high { x >> 16 } else { x & 0xffff }),
            other => [self.scalar(other); 32],
        }
    }

    /// A 64-bit operand's value in each lane.
    #[inline]
    #[must_use]
    pub fn lanes64(&self, operand: Operand) -> Lanes64 {
        match operand {
            Operand::V(n) => {
                let (low, high) = (&self.vgpr[usize::from(n)], &self.vgpr[usize::from(n.wrapping_add(1))]);
                std::array::from_fn(|l| u64::from(low[l]) | u64::from(high[l]) << 32)
            }
            other => [self.scalar64(other); 32],
        }
    }

    /// Writes the lanes of `mask` of a vector register.
    #[inline]
    pub fn set_lanes(&mut self, n: u8, values: &Lanes, mask: u32) {
        let register = &mut self.vgpr[usize::from(n)];
        if mask == u32::MAX {
            *register = *values;
            return;
        }
        for (l, (slot, value)) in register.iter_mut().zip(values).enumerate() {
            *slot = if mask >> l & 1 == 1 { *value } else { *slot };
        }
    }

    /// Writes the lanes of `mask` of a pair of vector registers.
    #[inline]
    pub fn set_lanes64(&mut self, n: u8, values: &Lanes64, mask: u32) {
        self.set_lanes(n, &values.map(|v| v as u32), mask);
        self.set_lanes(n.wrapping_add(1), &values.map(|v| (v >> 32) as u32), mask);
    }

    /// Writes 16 bits of the lanes of `mask`; the other half stays.
    #[inline]
    pub fn set_half(&mut self, n: u8, high: bool, values: &Lanes, mask: u32) {
        let old = &self.vgpr[usize::from(n)];
        let merged: Lanes = std::array::from_fn(|l| {
            let (kept, value) = (old[l], values[l] & 0xffff);
            if high { kept & 0xffff | value << 16 } else { kept & 0xffff_0000 | value }
        });
        self.set_lanes(n, &merged, mask);
    }
}
