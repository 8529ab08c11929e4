//! Single operations through the interpreter against `glm5_next_ops` (specification section 14: 2e-6 rel; 5e-6 for o
//! and S after many tokens).
// Helpers of a test crate are tests too; clippy sees only the functions marked so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod gdn;
mod rules;
mod softmax_router;
