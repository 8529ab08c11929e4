//! Errors of the passes.

use thiserror::Error;
use unglue_ir::IrError;

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PassError {
    /// The IR refused a graph that a pass made.
    #[error(transparent)]
    Ir(#[from] IrError),
    /// A rewrite joined values that cannot be equal.
    #[error("{rule}: {place}: {found}; {hint}")]
    Rewrite { rule: &'static str, place: String, found: String, hint: &'static str },
    /// A single op has no schedule, or a forced fusion is not possible.
    #[error("{rule}: {place}: {found}; {hint}")]
    Cover { rule: &'static str, place: String, found: String, hint: &'static str },
    /// Covers and module do not fit together.
    #[error("{rule}: {place}: {found}; {hint}")]
    Plan { rule: &'static str, place: String, found: String, hint: &'static str },
}

impl PassError {
    pub(crate) fn rewrite(
        rule: &'static str,
        place: impl Into<String>,
        found: impl Into<String>,
        hint: &'static str,
    ) -> Self {
        PassError::Rewrite { rule, place: place.into(), found: found.into(), hint }
    }

    pub(crate) fn cover(
        rule: &'static str,
        place: impl Into<String>,
        found: impl Into<String>,
        hint: &'static str,
    ) -> Self {
        PassError::Cover { rule, place: place.into(), found: found.into(), hint }
    }

    pub(crate) fn plan(
        rule: &'static str,
        place: impl Into<String>,
        found: impl Into<String>,
        hint: &'static str,
    ) -> Self {
        PassError::Plan { rule, place: place.into(), found: found.into(), hint }
    }
}
