//! Kernels as text: each `filetests/NAME.ir` is one kernel's graph; `NAME.kp` beside it holds its schedule and program, or
//! the obstacle that forbids it. `UPDATE=1` rewrites the expectations.
// Helpers of a test crate are tests too; clippy sees only the functions marked so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt::Write as _;
use std::path::Path;

use unglue_codegen::generate::generate;
use unglue_passes::schedule::{Bucket, fit, schedule};

/// Schedule and program of a graph for steps of up to each of these rows.
fn describe(text: &str, rows: &[u32]) -> String {
    let graph = unglue_ir::text::parse_graph(text).unwrap();
    unglue_ir::verify::graph(&graph).unwrap();
    let mut out = String::new();
    let mut last = String::new();
    for &rows_max in rows {
        let bucket = Bucket { rows_max, seqs_max: rows_max.min(4), pools: 0, fit: &fit::GFX1201 };
        let shown = match schedule(&graph, &bucket) {
            Err(o) => format!("obstacle {}: {}\n", o.rule, o.detail),
            Ok(s) => {
                let made = generate(&graph.name, &graph, &s, bucket.pools).unwrap();
                format!("{}\n{}", s.describe(), made.program.to_text())
            }
        };
        if shown == last {
            writeln!(out, "# up to {rows_max} rows: the same").unwrap();
        } else {
            write!(out, "# up to {rows_max} rows\n{shown}").unwrap();
        }
        last = shown;
    }
    out
}

#[test]
fn kernels_are_as_recorded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "ir"));
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        // Names that start with `tiles` are of kernels over many rows.
        let many = file.file_name().is_some_and(|n| n.to_string_lossy().starts_with("tiles"));
        let rows: &[u32] = if many { &[64] } else { &[1, 4] };
        let got = describe(&std::fs::read_to_string(&file).unwrap(), rows);
        let expected = file.with_extension("kp");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&expected, &got).unwrap();
        }
        let want = std::fs::read_to_string(&expected).unwrap_or_default();
        assert!(got == want, "{} differs; look, then run with UPDATE=1. Now:\n{got}", expected.display());
    }
}
