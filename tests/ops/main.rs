//! Single operations through compiled x86-64 kernels against `glm5_next_ops` and `qwen4_exp_ops`, and bit for bit
//! against the interpreter.
//! The cases are those of the interpreter's own test in `models`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../../models/tests/ops/cases.rs"]
mod cases;
mod common;
#[path = "../../models/tests/ops/gdn.rs"]
mod gdn;
#[path = "../../models/tests/ops/rules.rs"]
mod rules;
#[path = "../../models/tests/ops/softmax_router.rs"]
mod softmax_router;
