//! The command line's error type, and the exit code of each kind.

use std::path::PathBuf;

use unglue_models::ModelError;

/// Everything that ends a command.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// A check found wrong results; they were printed.
    #[error("{0}")]
    Failed(String),
    #[error("{rule}: found {found}; needed {needed}")]
    Usage { rule: &'static str, found: String, needed: String },
    #[error("not yet: {what} {found}; only {only} works so far, leave the option out")]
    #[cfg_attr(not(feature = "compile"), allow(dead_code, reason = "only `compile` has such options"))]
    NotYet { what: &'static str, found: String, only: String },
    #[error("{path}: {message}", path = path.display())]
    Input { path: PathBuf, message: String },
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Ir(#[from] unglue_ir::IrError),
    #[error(transparent)]
    Pass(#[from] unglue_passes::PassError),
    #[error(transparent)]
    Codegen(#[from] unglue_codegen::CodegenError),
    #[error("{0}")]
    Bundle(unglue_runtime::RuntimeError),
    #[error("{0}")]
    Device(unglue_runtime::RuntimeError),
}

impl CliError {
    pub fn exit_code(&self) -> u8 {
        match self {
            CliError::Failed(_) => 1,
            CliError::Usage { .. } | CliError::NotYet { .. } | CliError::Model(ModelError::Options { .. }) => 2,
            CliError::Input { .. } | CliError::Model(_) | CliError::Ir(_) => 3,
            CliError::Bundle(_) => 4,
            CliError::Pass(_) | CliError::Codegen(_) => 5,
            CliError::Device(_) => 6,
        }
    }

    pub fn input(path: impl Into<PathBuf>, message: impl ToString) -> CliError {
        CliError::Input { path: path.into(), message: message.to_string() }
    }
}
