//! The text form of modules and graphs: one canonical form, for bundles, reports and tests.
//!
//! `parse(print(x)) == x` for every verified `x`, and `print(parse(t)) == t` for canonical text. On input, white space
//! is free and `#` starts a comment that ends with its line. Canonical text is ASCII. Types are always printed, and the
//! parser compares them with the inferred ones, so that a text cannot silently mean something else than it says.
//!
//! ```text
//! module "tiny" {
//!   input "ids" below(64): i32[R]
//!   weight "embed": bf16[64, 8]
//!     from "model.embed_tokens.weight": bf16[64, 8]
//!   body @embed {
//!     %0 = input "ids" below(64): i32[R]
//!     %1 = weight "table": bf16[64, 8]
//!     %2 = embed_rows %1, %0: bf16[R, 8]
//!     return "x" %2
//!   }
//!   call 0 @embed (input "ids") weights ("embed") states ()
//!   output "x" = result 0.0
//! }
//! ```

mod lex;
mod parse;
mod parse_op;
mod print;

use crate::error::IrError;
use crate::graph::Graph;
use crate::lines::GraphLines;
use crate::module::Module;

/// Longest accepted text, in bytes.
pub const MAX_TEXT: usize = 64 << 20;
/// What one text holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unit {
    Module(Module),
    Graph(Graph),
}

/// The canonical text of a module, with a final newline.
pub fn print_module(module: &Module) -> String {
    module.to_string()
}

/// The canonical text of a graph, with a final newline.
pub fn print_graph(graph: &Graph) -> String {
    graph.to_string()
}

/// Parses a text that holds one module and nothing else. The result is typed but not verified.
///
/// # Errors
/// [`IrError::Parse`] with the place of the first fault; [`IrError::Type`] for an op whose operands do not fit.
pub fn parse_module(text: &str) -> Result<Module, IrError> {
    parse::Parser::new(text)?.whole(|p| p.module())
}

/// As [`parse_module`], and the lines of `text`, which is the file `file`, that declare each body.
///
/// # Errors
/// As [`parse_module`].
pub fn parse_module_with_lines(text: &str, file: &str) -> Result<(Module, Vec<GraphLines>), IrError> {
    let (module, spots) = parse::Parser::new(text)?.whole(|p| p.module_with_spots())?;
    let ends: Vec<usize> = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at).collect();
    Ok((module, spots.iter().map(|s| s.lines(&ends, file)).collect()))
}

/// Parses a text that holds one graph and nothing else. The result is typed but not verified.
///
/// # Errors
/// As [`parse_module`].
pub fn parse_graph(text: &str) -> Result<Graph, IrError> {
    parse::Parser::new(text)?.whole(|p| p.graph())
}

/// Parses a text that holds one module or one graph.
///
/// # Errors
/// As [`parse_module`].
pub fn parse(text: &str) -> Result<Unit, IrError> {
    parse::Parser::new(text)?.whole(|p| p.unit())
}
