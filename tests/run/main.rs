//! `unglue run` on the tiny golden model: against the independent implementation, against the reference interpreter,
//! against itself under other chunkings, threads, blocks and neighbours, and with bad input.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod bits;
mod common;
mod errors;
mod golden;
mod int4;
mod numerics;
mod session;
mod tap;
mod tiles;
