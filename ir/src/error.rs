//! Errors of the tensor IR.

use thiserror::Error;

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum IrError {
    /// A typing rule does not hold.
    #[error("{rule}: `{op}` got ({args}): {found}; {hint}")]
    Type { rule: &'static str, op: String, args: String, found: String, hint: &'static str },
    /// A structural rule does not hold.
    #[error("{rule}: {place}: {found}; {hint}")]
    Structure { rule: &'static str, place: String, found: String, hint: &'static str },
    /// The text form does not parse.
    #[error("line {line}, column {column}: expected {expected}, found {found}")]
    Parse { line: u32, column: u32, expected: String, found: String },
    /// The interpreter was given something that does not fit the graph.
    #[error("{rule}: {place}: {found}; {hint}")]
    Eval { rule: &'static str, place: String, found: String, hint: &'static str },
}
