//! GLM-5.3-Flash (`glm5_next`): four hyper-connected residual streams over KDA and DSA attention, dense and sparse
//! feed-forward blocks. `specs/glm5_next.md` is the authority; section numbers in this folder are its sections.

pub mod blocks;
pub mod config;
pub mod dsa;
pub mod feed_forward;
pub mod hyper_connection;
pub mod kda;
pub mod names;
pub mod trunk;

pub use config::{Attention, Config, FeedForward, Layer};
pub use trunk::{BuildOptions, trunk};
