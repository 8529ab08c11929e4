//! Text in, text out: every file in `tests/filetests/`.
//!
//! - `valid/`: canonical text (after comment lines at its head) that verifies and is printed as it stands.
//! - `accept/`: text that verifies but is not canonical.
//! - `refuse/`: text that is refused with the error in its `#~ error:` block at the end; `UPDATE=1` rewrites the block.

// Helpers outside `#[test]` functions fail the test as well.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use unglue_ir::text::{Unit, parse, print_graph, print_module};
use unglue_ir::{IrError, verify};

const MARK: &str = "#~ error: ";

fn files(dir: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests").join(dir);
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "ir"));
    files.sort();
    assert!(!files.is_empty());
    files
}

fn check(unit: &Unit) -> Result<(), IrError> {
    match unit {
        Unit::Module(m) => verify::module(m),
        Unit::Graph(g) => verify::graph(g),
    }
}

fn print(unit: &Unit) -> String {
    match unit {
        Unit::Module(m) => print_module(m),
        Unit::Graph(g) => print_graph(g),
    }
}

#[test]
fn valid() {
    for path in files("valid") {
        let text = fs::read_to_string(&path).unwrap();
        let start = text.find("graph @").into_iter().chain(text.find("module \"")).min().unwrap();
        let unit = parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        check(&unit).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(print(&unit), text[start..], "{}", path.display());
    }
}

#[test]
fn accept() {
    for path in files("accept") {
        let text = fs::read_to_string(&path).unwrap();
        let unit = parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        check(&unit).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let canonical = print(&unit);
        assert_ne!(canonical, text, "{} is canonical", path.display());
        assert_eq!(parse(&canonical).unwrap(), unit, "{}", path.display());
    }
}

/// The text before the error block, and the block.
fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(MARK).unwrap_or(text.len()))
}

#[test]
fn refuse() {
    let update = std::env::var_os("UPDATE").is_some();
    let mut wrong = Vec::new();
    for path in files("refuse") {
        let text = fs::read_to_string(&path).unwrap();
        let (body, want) = split(&text);
        let Err(error) = parse(body).and_then(|unit| check(&unit)) else {
            wrong.push(format!("{} is accepted", path.display()));
            continue;
        };
        let got = format!("{MARK}{error}\n");
        if update {
            fs::write(&path, format!("{body}{got}")).unwrap();
        } else if got != want {
            wrong.push(format!("{}\n  want {want}  got  {got}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Rules that no text can break: the parser is in the way. Unit tests break them on built graphs.
const NOT_IN_TEXT: [&str; 9] = [
    "operand-order", // values are named after they exist
    "node-type",     // printed types are compared with inferred ones
    "output-range",
    "nesting",
    "graph-size",
    "repeat-body",
    "call-body",
    "call-range",
    "order-chains",
];

/// Names of rules as the source spells them: the string after `refuse(` or `fault(`.
fn rules() -> BTreeSet<String> {
    let mut rules = BTreeSet::new();
    for file in ["infer.rs", "infer/rule.rs", "verify.rs", "verify/state.rs", "verify/module.rs"] {
        let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file)).unwrap();
        for call in source.split("refuse(").skip(1).chain(source.split("fault(").skip(1)) {
            let Some(name) = call.trim_start().strip_prefix('"') else { continue };
            // "internal" marks the arms that dispatch excludes.
            if !call[..call.find(';').unwrap_or(call.len())].contains("\"internal\"") {
                rules.insert(name[..name.find('"').unwrap()].to_string());
            }
        }
    }
    rules
}

/// Each rule of inference and verifier refuses some file.
#[test]
fn every_rule_has_a_file() {
    let mut seen = BTreeSet::new();
    for path in files("refuse") {
        let text = fs::read_to_string(&path).unwrap();
        if let Some((rule, _)) = split(&text).1.trim_start_matches(MARK).split_once(": ") {
            seen.insert(rule.to_string());
        }
    }
    let rules = rules();
    assert!(rules.len() > 60, "the scan of the sources finds {} rules", rules.len());
    let missing: Vec<&String> =
        rules.iter().filter(|r| !seen.contains(*r) && !NOT_IN_TEXT.contains(&r.as_str())).collect();
    assert!(missing.is_empty(), "no file in refuse/ for {missing:?}");
    let stale: Vec<&&str> = NOT_IN_TEXT.iter().filter(|r| seen.contains(**r) || !rules.contains(**r)).collect();
    assert!(stale.is_empty(), "{stale:?} can be broken by text, or are no rules");
}
