//! From a plan to a bundle: kernels generated, compiled for every target, described, and written.

pub mod describe;
