//! From a plan to a bundle: kernels generated, compiled for every target, described, and laid out for the writer.

pub mod build;
pub mod describe;
pub mod manifest;

pub use build::{Compiled, How, compile, parts};
pub use manifest::manifest;
