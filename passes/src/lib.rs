//! Passes of unglue: from a declared trunk to kernels, launches and memory.
//!
//! In: a verified [`unglue_ir::module::Module`]. [`saturate`] rewrites each distinct body in an e-graph by the rules of
//! [`rules`] and [`extract`]s the cheapest form; [`cover`] deals its ops to kernels that [`schedule`] accepts, by the
//! time model of [`cost`]; [`plan`] orders launches and places buffers; [`report`] is all of that as data. Results do
//! not depend on the host, the time or a hash order.

pub mod analysis;
pub mod arena;
pub mod candidates;
pub mod carve;
pub mod choice;
pub mod classes;
pub mod cost;
pub mod cover;
pub mod error;
pub mod exact;
pub mod extract;
pub mod facts;
pub mod figures;
pub mod forms;
pub mod kernel;
pub mod language;
pub mod launch_order;
pub mod lines;
pub mod names;
pub mod plan;
pub mod provenance;
pub mod report;
pub mod rules;
pub mod saturate;
pub mod schedule;
mod search;
pub mod step_report;
pub mod traffic;
pub mod wishes;

pub use cover::{CoverOptions, Strategy, cover};
pub use error::PassError;
pub use kernel::{BodyCover, Exactness, Kernel, KernelClass, Numerics};
pub use plan::{Plan, plan};
pub use saturate::{Limits, optimise};
pub use search::{TIE_PPM, tie_ns};
pub use wishes::{Subject, Wish};
