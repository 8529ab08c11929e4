//! The devices that run bundles.

#[cfg(feature = "compile")]
use unglue_codegen::emu::{EmuDevice, EmuOptions};
use unglue_runtime::{CpuDevice, CpuOptions, CudaDevice, CudaOptions, Device, RuntimeError};

use crate::error::CliError;

/// A device by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// x86-64 code on this machine.
    Cpu,
    /// sm_90 code on an NVIDIA GPU.
    Cuda,
    /// gfx1201 code in the emulator.
    #[cfg(feature = "compile")]
    Gfx12Emu,
}

/// Every device with its name.
const DEVICES: &[(&str, DeviceKind)] = &[
    ("cpu", DeviceKind::Cpu),
    ("cuda", DeviceKind::Cuda),
    #[cfg(feature = "compile")]
    ("gfx12-emu", DeviceKind::Gfx12Emu),
];

impl DeviceKind {
    /// The device of that name. `others` names what else the option takes, for the message.
    pub fn of(name: &str, others: &str) -> Result<DeviceKind, CliError> {
        let found = DEVICES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
        found.ok_or_else(|| {
            let known: Vec<&str> = DEVICES.iter().map(|(known, _)| *known).collect();
            let needed = format!("{}{others}", known.join(", "));
            CliError::Usage { rule: "--device", found: name.into(), needed }
        })
    }

    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
            #[cfg(feature = "compile")]
            DeviceKind::Gfx12Emu => "gfx12-emu",
        }
    }

    /// The device for running a model, with so many threads (0: all).
    pub fn open(self, threads: usize) -> Result<Box<dyn Device>, RuntimeError> {
        Ok(match self {
            DeviceKind::Cpu => Box::new(CpuDevice::new(CpuOptions { threads, ..CpuOptions::default() })?),
            DeviceKind::Cuda => Box::new(CudaDevice::new(CudaOptions::default())?),
            #[cfg(feature = "compile")]
            DeviceKind::Gfx12Emu => Box::new(EmuDevice::new(EmuOptions { threads, ..EmuOptions::default() })?),
        })
    }
}
