//! The crate's error type.

/// Why a kernel could not be compiled. Each message names the rule or tool, the kernel, what was found, and a way out.
#[derive(Debug, thiserror::Error)]
pub enum CodegenError {
    /// The program breaks a rule of [`crate::kp`].
    #[error("kernel `{kernel}` breaks rule `{rule}`: {found}; {cure}")]
    Verify { kernel: String, rule: &'static str, found: String, cure: &'static str },
    /// The generator met an op that its schedule should have refused.
    #[error(
        "kernel `{kernel}`: cannot generate %{node} ({op}): {found}; compile with `--cover none` and report the IR text"
    )]
    Generate { kernel: String, node: u32, op: &'static str, found: String },
    /// A lowering met a program that the verifier would have refused.
    #[error("kernel `{kernel}`: {found} while lowering; run kp::verify first, this is a fault of the generator")]
    Lowering { kernel: String, found: String },
    /// LLVM reported an error.
    #[error("kernel `{kernel}`: LLVM ({stage}) for {target}: {message}; keep the program's text form for a report")]
    Llvm { kernel: String, target: &'static str, stage: &'static str, message: String },
    /// LLVM crashed or aborted; the process goes on.
    #[error("kernel `{kernel}`: LLVM aborted while compiling for {target}: {message}; try another schedule")]
    LlvmAbort { kernel: String, target: &'static str, message: String },
    /// The linker is missing or refused.
    #[error("linking {what} for {target} with `{linker}`: {message}")]
    Link { what: String, target: &'static str, linker: String, message: String },
    /// The trunk has something that a bundle cannot hold.
    #[error("bundle {what}: {found}; declare the trunk as the models of this project do")]
    Bundle { what: String, found: String },
    /// A kernel could not be compared with the interpreter.
    #[error("kernel `{kernel}` cannot be checked: {found}; compare its IR text and interface in the manifest")]
    Check { kernel: String, found: String },
    /// The folder of object files cannot be used.
    #[error("cache `{path}`: {found}; give `--cache` a folder that can be written, or leave it out")]
    Cache { path: String, found: String },
    /// Finished machine code fails a check.
    #[error("kernel `{kernel}` fails gate `{gate}`: {found}; {cure}")]
    Gate { kernel: String, gate: &'static str, found: String, cure: &'static str },
}
