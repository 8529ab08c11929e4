//! The runtime of unglue: the bundle format, its writer and loader, devices, and sessions.
//!
//! This crate depends on no other crate of the workspace and on no compiler, so that an engine can link it alone.
//!
//! - [`manifest`] holds the types of the format; [`write_bundle`] writes a bundle and [`Bundle::open`] reads one. Both
//!   apply every rule of [`validate`]; what holds a [`Bundle`] trusts it.
//! - [`Device`] is what a session runs on; [`CpuDevice`] and [`CudaDevice`] are in this crate.
//! - [`Session`] owns weights, state and inputs on one device and runs steps.

mod bundle;
pub mod cpu;
pub mod cuda;
mod device;
mod error;
mod layout;
pub mod manifest;
mod session;
pub mod validate;
mod weights;
mod writer;

pub use bundle::Bundle;
pub use cpu::{CpuDevice, CpuOptions, Guard};
pub use cuda::{CudaDevice, CudaOptions};
pub use device::{ArgValue, BufferId, Code, Device, Edges, ListId, ListedLaunch, check_launch};
pub use error::{FaultKind, RuntimeError};
pub use layout::{Geometry, buffer_bytes, buffer_elements, grid};
pub use session::{
    AllReduceCallback, BlockOrder, BufferReader, COUNTERS, Counters, Feed, Hook, LaunchEvent, LogitRows, Moment,
    SequenceState, Session, SessionOptions, Snapshot, StepBatch, StepOutput, Value,
};
pub use weights::{WeightProvider, slice_tensor};
pub use writer::{PartData, check_destination, write_bundle};

/// The result of this crate's calls.
pub type Result<T> = std::result::Result<T, RuntimeError>;
