//! The error type. Each message names the rule, what was found, what is needed, and a way out.

use std::path::PathBuf;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// A file operation failed.
    #[error("bundle file: cannot {action} {path}: {source}; check that the path exists and its permissions")]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    /// The folder is no bundle, or one of another version.
    #[error(
        "bundle format: found {found} in {path}; needed {needed}; build the bundle with this version's `unglue compile`"
    )]
    Format { path: PathBuf, found: String, needed: String },
    /// A file is not what its hash or length says.
    #[error("bundle integrity ({what}): {path}: found {found}; needed {needed}; copy the bundle again or rebuild it")]
    Corrupt { what: &'static str, path: PathBuf, found: String, needed: String },
    /// A file that the manifest does not list.
    #[error(
        "bundle folder: found {path}, which manifest.json does not list; needed only listed files; remove it or rebuild the bundle"
    )]
    Unlisted { path: PathBuf },
    /// A listed file is not there.
    #[error(
        "bundle folder: part {path} is missing; needed every part that manifest.json lists; copy the bundle again or rebuild it"
    )]
    MissingPart { path: PathBuf },
    /// The manifest breaks a rule of the format.
    #[error("manifest rule `{rule}` at {at}: found {found}; needed {needed}; rebuild the bundle with `unglue compile`")]
    Manifest { rule: &'static str, at: String, found: String, needed: String },
    /// The destination of a new bundle holds something else.
    #[error(
        "bundle destination: {path} {found}; needed a free path in a folder that exists, or an unglue bundle; choose another --output or remove it yourself"
    )]
    Destination { path: PathBuf, found: String },
    /// The bundle was built wrong on purpose.
    #[error(
        "bundle fault: found a build with {fault}, which is to test with; needed one without; compile it without --fault, or verify it"
    )]
    Faulty { fault: String },
    /// The bundle has no code for the device.
    #[error("bundle target: found code for {found}; needed {needed}; rebuild with `unglue compile --target {needed}`")]
    WrongTarget { found: String, needed: String },
    /// The CPU lacks instructions that the code uses.
    #[error(
        "cpu: this machine lacks {missing}; needed x86-64 Linux with avx2, fma and f16c; run on a newer machine or another --device"
    )]
    CpuFeatures { missing: String },
    /// There is no GPU to run on.
    #[error("gpu driver: found {found}; needed {needed}; run where they are, or on another --device")]
    Driver { found: String, needed: String },
    /// Code cannot be loaded.
    #[error("code loading ({target}): {found}; needed {needed}; rebuild the bundle with `unglue compile`")]
    CodeLoad { target: String, found: String, needed: String },
    /// A device call was used wrongly, or the device failed.
    #[error(
        "device rule `{rule}`: found {found}; needed {needed}; this is an error of the caller of the device: report it"
    )]
    Device { rule: &'static str, found: String, needed: String },
    /// A kernel did what no kernel may do, and the device noticed.
    #[error(
        "kernel fault on {device}: kernel {kernel}: {found}; needed code that stays in its buffers and registers; this is an error of the compiler: report the kernel's IR text"
    )]
    KernelTrap { kernel: String, device: String, found: String },
    /// The device has no memory left.
    #[error(
        "device memory: found no room for {bytes} bytes ({detail}); needed them for a buffer; lower the context, blocks or slots"
    )]
    OutOfMemory { bytes: u64, detail: String },
    /// A session's sizes do not fit the bundle.
    #[error(
        "session geometry `{rule}`: found {found}; needed {needed}; change the geometry, or rebuild with other limits"
    )]
    Geometry { rule: &'static str, found: String, needed: String },
    /// A weight cannot be had.
    #[error(
        "weight {weight}, tensor {tensor}: found {found}; needed {needed}; give the checkpoint that the bundle was compiled for"
    )]
    Weight { weight: String, tensor: String, found: String, needed: String },
    /// A step's arguments are inconsistent.
    #[error("step argument `{rule}`: found {found}; needed {needed}; correct the batch")]
    Batch { rule: &'static str, found: String, needed: String },
    /// No bucket is large enough.
    #[error("step size: found {found}; needed at most {needed}; pass fewer rows a step (--chunk {chunk})")]
    TooLarge { found: String, needed: String, chunk: u64 },
    /// A part of the contract that this version does not have.
    #[error("step argument `{what}`: found a value; needed none, this version does not implement it; leave it out")]
    NotYet { what: &'static str },
    /// A kernel met a value that it refused.
    #[error(
        "step fault ({kind}): kernel {kernel}, row {row}, found value {value}; needed one in range; correct the input and reset the sequence"
    )]
    Fault { kernel: String, row: i32, value: i32, kind: FaultKind },
    /// A sequence cannot take what was asked.
    #[error("sequence rule `{rule}`: found {found}; needed {needed}; {help}")]
    Sequence { rule: &'static str, found: String, needed: String, help: &'static str },
    /// A name or an index is not in the bundle.
    #[error("{what} {name}: not in this bundle; needed one of {known}; see `unglue inspect`")]
    Unknown { what: &'static str, name: String, known: String },
    /// A launch hook stopped the step.
    #[error("launch hook after {kernel}: {found}; needed success; correct the hook and reset the sequence")]
    Hook { kernel: String, found: String },
}

/// What a kernel found out of range; word 3 of the status array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Any other code.
    Other,
    /// 1: a token id.
    TokenId,
    /// 2: a state slot.
    Slot,
    /// 3: a block of the block table.
    Block,
    /// 4: a position.
    Position,
    /// 5: a row of `logit_rows`.
    LogitRow,
}

impl FaultKind {
    /// From word 3 of the status array.
    pub const fn from_code(code: i32) -> Self {
        match code {
            1 => FaultKind::TokenId,
            2 => FaultKind::Slot,
            3 => FaultKind::Block,
            4 => FaultKind::Position,
            5 => FaultKind::LogitRow,
            _ => FaultKind::Other,
        }
    }
}

impl std::fmt::Display for FaultKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            FaultKind::Other => "out of range",
            FaultKind::TokenId => "token id out of range",
            FaultKind::Slot => "state slot out of range",
            FaultKind::Block => "block out of range",
            FaultKind::Position => "position out of range",
            FaultKind::LogitRow => "logit row out of range",
        })
    }
}
