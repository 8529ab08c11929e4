//! Rules of the workspace: which crate may depend on which, and what every crate has.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// Each crate, and the crates of ours that it may depend on ("Workspace" in the design). The root package may use all.
const ARROWS: &[(&str, &[&str])] = &[
    ("unglue-ir", &[]),
    ("unglue-models", &["unglue-ir"]),
    ("unglue-passes", &["unglue-ir"]),
    ("unglue-codegen", &["unglue-ir", "unglue-passes", "unglue-runtime"]),
    ("unglue-runtime", &[]),
];
const ROOT: &str = "unglue";
/// An engine links the runtime alone: none of these, not even to test it. (`scripts/check-deps`: nor through others.)
const NEVER_IN_RUNTIME: &[&str] = &["inkwell", "llvm-sys", "egg", "good_lp", "coin_cbc"];
const MAX_LINES: usize = 600;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn manifest(dir: &Path) -> Table {
    let file = dir.join("Cargo.toml");
    let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    text.parse().unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// The folder of every package of the workspace, the root package first.
fn packages() -> Vec<PathBuf> {
    let members = manifest(root())["workspace"]["members"].as_array().unwrap().clone();
    let members = members.iter().map(|m| root().join(m.as_str().unwrap()));
    std::iter::once(root().to_owned()).chain(members).collect()
}

fn name(manifest: &Table) -> &str {
    manifest["package"]["name"].as_str().unwrap()
}

/// Every direct dependency of a manifest, as (table, package): normal, dev and build ones, also those of one target.
fn dependencies<'a>(manifest: &'a Table, workspace: &'a Table) -> Vec<(String, &'a str)> {
    const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flatten();
    let tables = targets.filter_map(|(cfg, t)| Some((format!("target.{cfg}."), t.as_table()?)));
    let mut found = Vec::new();
    for (prefix, table) in std::iter::once((String::new(), manifest)).chain(tables) {
        for kind in KINDS {
            for (key, spec) in table.get(kind).and_then(Value::as_table).into_iter().flatten() {
                found.push((format!("{prefix}{kind}"), package(key, spec, workspace)));
            }
        }
    }
    found
}

/// The package that a dependency names: by `package`, here or in the workspace's table, else by its key.
fn package<'a>(key: &'a str, spec: &'a Value, workspace: &'a Table) -> &'a str {
    let renamed = |spec: &'a Value| spec.get("package").and_then(Value::as_str);
    let inherited = || workspace.get(key).filter(|_| spec.get("workspace").is_some()).and_then(renamed);
    renamed(spec).or_else(inherited).unwrap_or(key)
}

/// What is wrong with the arrows of one package.
fn faults(manifest: &Table, workspace: &Table) -> Vec<String> {
    let from = name(manifest);
    let arrows: BTreeMap<_, _> = ARROWS.iter().copied().collect();
    let Some(allowed) = arrows.get(from) else {
        return vec![format!("{from}: a crate without a line in ARROWS of tests/arrows.rs")];
    };
    let mut faults = Vec::new();
    for (table, to) in dependencies(manifest, workspace) {
        let ours = to == ROOT || arrows.contains_key(to);
        if ours && !allowed.contains(&to) {
            faults.push(format!("{from} -> {to} in [{table}]: allowed are {allowed:?}"));
        }
        if from == "unglue-runtime" && NEVER_IN_RUNTIME.contains(&to) {
            faults
                .push(format!("{from} -> {to} in [{table}]: the runtime links no compiler, no e-graph and no solver"));
        }
    }
    faults
}

fn workspace_dependencies() -> Table {
    manifest(root())["workspace"]["dependencies"].as_table().unwrap().clone()
}

/// All `.rs` files below a folder, in order.
fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_crate_depends_on_one_that_it_must_not_know() {
    let shared = workspace_dependencies();
    let faults: Vec<_> = packages()[1..].iter().flat_map(|dir| faults(&manifest(dir), &shared)).collect();
    assert_none(&faults);
}

#[test]
fn every_crate_of_the_table_is_a_member() {
    let members: Vec<_> = packages()[1..].iter().map(|dir| name(&manifest(dir)).to_owned()).collect();
    let missing = ARROWS.iter().map(|a| a.0).filter(|n| !members.iter().any(|m| m == n));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn forbidden_arrows_are_found_in_whatever_table_they_stand() {
    let shared: Table = "hidden = { package = 'unglue-runtime', path = 'runtime' }".parse().unwrap();
    for (from, dependency, fault) in [
        ("unglue-ir", "[dependencies]\nunglue-passes.workspace = true", "unglue-ir -> unglue-passes in [dependencies]"),
        ("unglue-models", "[dev-dependencies]\nunglue-passes = '1'", "unglue-passes in [dev-dependencies]"),
        ("unglue-passes", "[build-dependencies]\nunglue-codegen = '1'", "unglue-codegen in [build-dependencies]"),
        ("unglue-codegen", "[dependencies]\nunglue = { path = '..' }", "unglue-codegen -> unglue in"),
        ("unglue-models", "[dependencies]\nhidden.workspace = true", "unglue-models -> unglue-runtime in"),
        ("unglue-runtime", "[dev-dependencies]\ng = { package = 'egg', version = '0.11' }", "no compiler"),
        ("unglue-runtime", "[dependencies]\ngood_lp = '1'", "no solver"),
        ("unglue-runtime", "[target.'cfg(unix)'.dependencies]\nllvm-sys = '221'", "target.cfg(unix).dependencies"),
        ("unglue-new", "", "without a line in ARROWS"),
    ] {
        let manifest = format!("[package]\nname = '{from}'\n{dependency}").parse().unwrap();
        let found = faults(&manifest, &shared);
        assert!(found.len() == 1 && found[0].contains(fault), "{fault}: {found:?}");
    }
    let allowed = "[package]\nname = 'unglue-codegen'\n[dependencies]\nhidden.workspace = true\nunglue-ir = '1'";
    assert_none(&faults(&allowed.parse().unwrap(), &shared));
}

#[test]
fn every_crate_opens_with_docs() {
    let mut faults = Vec::new();
    for dir in packages() {
        let tops: Vec<_> = ["src/lib.rs", "src/main.rs"].iter().map(|f| dir.join(f)).filter(|f| f.is_file()).collect();
        assert!(!tops.is_empty(), "{}: neither src/lib.rs nor src/main.rs", dir.display());
        let silent = tops.iter().filter(|f| !std::fs::read_to_string(f).unwrap().starts_with("//! "));
        faults.extend(silent.map(|f| format!("{}: opens without a line of `//! ` docs", f.display())));
    }
    assert_none(&faults);
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    let without = packages().into_iter().filter(|dir| {
        let manifest = manifest(dir);
        manifest.get("lints").and_then(|l| l.get("workspace")).and_then(Value::as_bool) != Some(true)
    });
    let faults: Vec<_> = without.map(|d| format!("{}/Cargo.toml: no [lints] workspace = true", d.display())).collect();
    assert_none(&faults);
}

#[test]
fn no_source_file_is_too_long_to_read() {
    let mut files = Vec::new();
    packages().iter().for_each(|dir| sources(&dir.join("src"), &mut files));
    assert!(files.len() > packages().len());
    let lines = |f: &Path| std::fs::read_to_string(f).unwrap().lines().count();
    let long = files.iter().map(|f| (f, lines(f))).filter(|(_, n)| *n > MAX_LINES);
    let faults: Vec<_> = long.map(|(f, n)| format!("{}: {n} lines, at most {MAX_LINES}", f.display())).collect();
    assert_none(&faults);
}

/// Rules, schedules and generators know ops and shapes, no models: code of these crates names none. Comments may, where a
/// number comes from one.
#[test]
fn no_model_is_named_below_the_models() {
    let mut files = Vec::new();
    ["ir", "passes", "codegen", "runtime"].iter().for_each(|dir| sources(&root().join(dir).join("src"), &mut files));
    assert!(files.len() > 100, "{} files", files.len());
    let mut faults = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        for (i, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default().to_lowercase();
            if ["glm", "qwen"].iter().any(|model| code.contains(model)) {
                faults.push(format!("{}:{}: {line}", file.display(), i + 1));
            }
        }
    }
    assert_none(&faults);
}
