//! The tensor IR of unglue: what a trunk is declared in.
//!
//! In: graphs made by [`builder::Builder`], or text ([`text`]). Out: verified [`module::Module`]s, and their meaning by
//! the reference interpreter ([`interp`]). A body ([`graph::Graph`]) is a DAG of typed ops over rows of ragged
//! sequences; a module calls bodies in order and says which checkpoint tensors feed which weight. Depends on no other
//! crate of the workspace.

pub mod builder;
pub mod error;
pub mod graph;
pub mod infer;
pub mod interp;
pub mod lines;
pub mod math;
pub mod module;
pub mod op;
pub mod order;
pub mod text;
pub mod types;
pub mod verify;

pub use error::IrError;
