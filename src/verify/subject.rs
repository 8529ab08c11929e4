//! The device under test, and how each draw runs on it.

use unglue_codegen::counts::CountReport;
#[cfg(feature = "compile")]
use unglue_codegen::emu::{EmuDevice, EmuOptions, Schedule};
use unglue_runtime::{Bundle, CpuDevice, CpuOptions, Device, Guard};

use crate::device::DeviceKind;
use crate::error::CliError;

pub enum UnderTest {
    Plain(Box<dyn Device>),
    #[cfg(feature = "compile")]
    Emu(EmuDevice),
}

/// Contents of registers and LDS that nothing has written: a NaN, zero, and -1.
#[cfg(feature = "compile")]
const POISONS: [u32; 3] = [0x7fe1_dead, 0, u32::MAX];

impl UnderTest {
    /// The device with the bundle's code.
    pub fn open(kind: DeviceKind, bundle: &Bundle) -> Result<UnderTest, CliError> {
        let mut under = UnderTest::empty(kind)?;
        let device = under.device();
        let code = bundle.code(device.target()).map_err(CliError::Bundle)?;
        device.load(&bundle.manifest().kernels, &code).map_err(CliError::Bundle)?;
        Ok(under)
    }

    /// The device without code.
    pub fn empty(kind: DeviceKind) -> Result<UnderTest, CliError> {
        let under = match kind {
            DeviceKind::Cpu => {
                let options = CpuOptions { threads: 0, guard: Guard::Aligned, poison_shared: true };
                UnderTest::Plain(Box::new(CpuDevice::new(options).map_err(CliError::Device)?))
            }
            #[cfg(feature = "compile")]
            DeviceKind::Gfx12Emu => UnderTest::Emu(EmuDevice::new(EmuOptions::default()).map_err(CliError::Device)?),
            other => UnderTest::Plain(other.open(0).map_err(CliError::Device)?),
        };
        Ok(under)
    }

    pub fn device(&mut self) -> &mut dyn Device {
        match self {
            UnderTest::Plain(device) => device.as_mut(),
            #[cfg(feature = "compile")]
            UnderTest::Emu(device) => device,
        }
    }

    /// Emulator: waves and workgroups run first to last, last to first, and in a random order; what nothing has written
    /// differs; last bits of approximations flip from the second draw on.
    #[cfg(feature = "compile")]
    pub fn prepare(&mut self, draw: u64, seed: u64) {
        let UnderTest::Emu(device) = self else { return };
        let schedule = match draw % 3 {
            0 => Schedule::Forward,
            1 => Schedule::Reverse,
            _ => Schedule::Random(seed),
        };
        let poison = POISONS[(draw % 3) as usize];
        let perturb = (draw > 0).then_some(seed as u32);
        device.set_options(EmuOptions { schedule, poison, perturb, ..device.options() });
        device.take_counts();
    }

    /// Nothing to prepare: there is no emulator in this build.
    #[cfg(not(feature = "compile"))]
    pub fn prepare(&mut self, _draw: u64, _seed: u64) {}

    /// What the kernel executed since [`UnderTest::prepare`], if the device counts.
    #[cfg(feature = "compile")]
    pub fn counted(&self) -> Option<CountReport> {
        let UnderTest::Emu(device) = self else { return None };
        device.take_counts().into_values().next().map(|counts| counts.report())
    }

    /// Nothing counts without the emulator.
    #[cfg(not(feature = "compile"))]
    pub fn counted(&self) -> Option<CountReport> {
        None
    }
}
