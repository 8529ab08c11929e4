//! Errors of configs, checkpoints and trunk building. Each says what was found and what is needed.

use std::path::PathBuf;

use thiserror::Error;
use unglue_ir::IrError;

#[derive(Debug, Error)]
pub enum ModelError {
    /// The config is not JSON, or not an object.
    #[error("config: not usable as JSON: {detail}")]
    ConfigJson { detail: String },
    /// A field that the model needs is absent.
    #[error("config: field `{field}` is missing; it has no default, add it to config.json")]
    MissingField { field: String },
    /// A field that no rule knows.
    #[error("config: field `{field}` is unknown; if it has no effect on the text trunk, pass `--allow-field {field}`")]
    UnknownField { field: String },
    /// A field of the wrong type or outside its range.
    #[error("config: field `{field}` is {found}, needed {needed}")]
    Field { field: String, found: String, needed: String },
    /// Fields that contradict each other.
    #[error("config: {rule}: {found}; {needed}")]
    Inconsistent { rule: &'static str, found: String, needed: String },
    /// Something valid that this version cannot do.
    #[error("not supported yet: {what}: {found}; supported: {supported}")]
    Unsupported { what: String, found: String, supported: String },
    /// Build options that do not fit the model.
    #[error("option {option}: {found}; needed {needed}")]
    Options { option: &'static str, found: String, needed: String },
    /// The IR refused a node.
    #[error("building `{body}`: {source}")]
    Ir { body: String, source: Box<IrError> },
    /// A linking table lacks an entry: a defect of the model's builder, not of its input.
    #[error("building `{body}`: no rule for {kind} `{role}`")]
    NoRule { body: String, kind: &'static str, role: String },
    /// A file cannot be read or written.
    #[error("{path}: {detail}")]
    File { path: PathBuf, detail: String },
    /// A checkpoint file or its index is not well formed.
    #[error("{path}: {rule}: {found}; needed {needed}")]
    Format { path: PathBuf, rule: &'static str, found: String, needed: String },
    /// One tensor of a checkpoint file is not well formed or not what the trunk needs.
    #[error("{path}: tensor `{tensor}`: {rule}: {found}; needed {needed}")]
    Tensor { path: PathBuf, tensor: String, rule: &'static str, found: String, needed: String },
}

impl ModelError {
    /// Wraps an IR error with the body in which it arose.
    pub fn ir(body: &str) -> impl Fn(IrError) -> ModelError + '_ {
        move |source| ModelError::Ir { body: body.into(), source: Box::new(source) }
    }
}
