//! Trunks of language models declared in the tensor IR from a `config.json`, and readers of their checkpoints.
//!
//! In: a Hugging Face `config.json` ([`glm5_next::Config`]) and, to run, a checkpoint folder ([`checkpoint`]). Out: a
//! [`Trunk`]: a module of bodies whose weights name checkpoint tensors. Each model is a page or two of builder code
//! over [`maths`] that reads like the formulas of its specification; nothing here knows kernels or devices.

pub mod assembly;
pub mod checkpoint;
pub mod config;
pub mod error;
pub mod glm5_next;
mod int4_tensors;
pub mod maths;
mod quantisation;
pub mod safetensors;

pub use assembly::{Activation, Built, Tap, Trunk};
pub use error::ModelError;
