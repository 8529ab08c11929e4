//! Names, waves, shared arrays and types, before any statement.

use unglue_codegen::kp::*;

use super::refused;
use super::support::*;

#[test]
fn headers() {
    refused(1, "kernel-name", "0 characters", |b| b.p.name.clear());
    refused(1, "kernel-name", "64 characters", |b| b.p.name = "x".repeat(64));
    refused(1, "kernel-name", "characters", |b| b.p.name = "a-b".into());
    refused(1, "kernel-name", "digit", |b| b.p.name = "1a".into());
    refused(0, "waves", "0 waves", |_| ());
    refused(17, "waves", "17 waves", |_| ());
    refused(1, "shared-size", "65792", |b| {
        b.shared(Mem::F32, 16384);
    });
    refused(1, "shared-size", "shared1", |b| {
        b.shared(Mem::F32, 0);
    });
    refused(1, "vec", "f32x3", |b| {
        b.fresh(Ty::Lane(Elem::F32, 3));
    });
}

/// An array in another's place: one that is there, is no guest itself, and has the bytes.
#[test]
fn places_of_arrays() {
    let over = |b: &mut B, (len, over): (u32, u32)| {
        b.p.shared.push(Shared { name: "over".into(), mem: Mem::F32, len, over: Some(over) });
    };
    refused(1, "shared-place", "shared1 over shared1", |b| over(b, (4, 1)));
    refused(1, "shared-place", "shared1 of 260 bytes over shared0 of 256", |b| over(b, (65, 0)));
    refused(1, "shared-place", "shared2 of 16 bytes over shared1 of 16", |b| {
        over(b, (4, 0));
        over(b, (4, 1));
    });
}
