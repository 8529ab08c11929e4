//! The forms of a report: its schema, the page, the trace, and a profiler's trace beside it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[cfg(feature = "long-tests")]
mod browser;
mod bundles;
#[cfg(feature = "long-tests")]
mod devtools;
mod edges;
mod measured;
mod output;
mod page;
mod schema;
mod trace;
