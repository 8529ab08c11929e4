//! Bad input to `compile`, and bad bundles to every command: the exit code, a message that names the rule and what was
//! found, no panic, and nothing left behind.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::{Value, json};
use tempfile::TempDir;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");
const USAGE: i32 = 2;
const INPUT: i32 = 3;
const BUNDLE: i32 = 4;

/// Runs a command that must be refused with `code` and a message with all of `says`.
fn refused(args: &[&str], code: i32, says: &[&str]) {
    let done = Command::new(env!("CARGO_BIN_EXE_unglue")).args(args).output().unwrap();
    let message = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(code), "{args:?}: {message}");
    assert!(!message.contains("panicked"), "{args:?}: {message}");
    assert!(done.stdout.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&done.stdout));
    for part in says {
        assert!(message.contains(part), "{args:?}: no `{part}` in: {message}");
    }
}

fn folder() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Every file and folder below `dir` with its content, folders with none.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(tree(&path));
            all.insert(path, None);
        } else {
            let bytes = std::fs::read(&path).unwrap();
            all.insert(path, Some(bytes));
        }
    }
    all
}

/// `compile` refuses `input`, and its output folder stays empty.
fn refused_compile(input: &Path, more: &[&str], code: i32, says: &[&str]) {
    let out = folder();
    let bundle = out.path().join("b.ug");
    let args = ["compile", input.to_str().unwrap(), "-o", bundle.to_str().unwrap(), "--json"];
    refused(&[&args[..], more].concat(), code, says);
    assert_eq!(tree(out.path()), BTreeMap::new(), "{input:?} {more:?}");
}

/// The tiny config, changed in its text part.
fn config(change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> String {
    let text = std::fs::read_to_string(Path::new(MODEL).join("config.json")).unwrap();
    let mut value: Value = serde_json::from_str(&text).unwrap();
    change(value["text_config"].as_object_mut().unwrap());
    value.to_string()
}

#[test]
fn config_with_a_wrong_size_is_named() {
    let dir = folder();
    let path = dir.path().join("config.json");
    let two_to_63 = json!(1u64 << 63);
    for (value, says) in [
        (json!(-1), "-1"),
        (json!(0), "0"),
        (two_to_63, "9223372036854775808"),
        (json!("four"), "four"),
        (json!(1.5), "1.5"),
        (json!([128]), "a list of 1"),
    ] {
        std::fs::write(&path, config(|c| drop(c.insert("hidden_size".into(), value)))).unwrap();
        refused_compile(&path, &[], INPUT, &["hidden_size", says]);
    }
    std::fs::write(&path, config(|c| drop(c.remove("hidden_size")))).unwrap();
    refused_compile(&path, &[], INPUT, &["hidden_size", "missing"]);
    std::fs::write(&path, config(|c| drop(c.insert("hidden_sice".into(), json!(1))))).unwrap();
    refused_compile(&path, &[], INPUT, &["hidden_sice", "unknown"]);
}

#[test]
fn config_that_is_no_config_is_refused() {
    let dir = folder();
    let path = dir.path().join("config.json");
    for (text, says) in [("", "JSON"), ("{", "JSON"), ("[]", "JSON"), ("hidden_size = 4", "JSON"), ("\u{0}", "JSON")] {
        std::fs::write(&path, text).unwrap();
        refused_compile(&path, &[], INPUT, &[says]);
    }
    std::fs::write(&path, [0xff, 0xfe, b'{']).unwrap();
    refused_compile(&path, &[], INPUT, &["config.json", "UTF-8"]);
    std::fs::write(&path, "{\"a\":".repeat(100_000)).unwrap();
    refused_compile(&path, &[], INPUT, &["JSON"]);
    let empty = folder();
    refused_compile(empty.path(), &[], INPUT, &["config.json"]);
    refused_compile(&empty.path().join("nowhere.json"), &[], INPUT, &["nowhere.json"]);
}

/// A checkpoint folder of the tiny model with its safetensors file changed.
fn checkpoint(change: impl FnOnce(&mut Vec<u8>)) -> TempDir {
    let dir = folder();
    std::fs::copy(Path::new(MODEL).join("config.json"), dir.path().join("config.json")).unwrap();
    let mut bytes = std::fs::read(Path::new(MODEL).join("model.safetensors")).unwrap();
    change(&mut bytes);
    std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    dir
}

/// As [`checkpoint`], with the entry of one tensor in the header changed.
fn retold(tensor: &str, change: impl FnOnce(&mut Value)) -> TempDir {
    checkpoint(|bytes| {
        let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut header: Value = serde_json::from_slice(&bytes[8..end]).unwrap();
        let name = format!("model.language_model.layers.0.{tensor}");
        change(&mut header[&name]);
        let text = header.to_string().into_bytes();
        let len = (text.len() as u64).to_le_bytes();
        *bytes = [&len[..], &text, &bytes[end..]].concat();
    })
}

#[test]
fn checkpoint_whose_header_lies_is_refused() {
    let long = checkpoint(|b| b[..8].copy_from_slice(&(1u64 << 60).to_le_bytes()));
    refused_compile(long.path(), &[], INPUT, &["model.safetensors", "1152921504606846976"]);
    let longest = checkpoint(|b| b[..8].copy_from_slice(&u64::MAX.to_le_bytes()));
    refused_compile(longest.path(), &[], INPUT, &["model.safetensors", "18446744073709551615"]);
    let zero = checkpoint(|b| b[..8].copy_from_slice(&[0; 8]));
    refused_compile(zero.path(), &[], INPUT, &["model.safetensors"]);
    let garbled = checkpoint(|b| b[8..12].fill(b'{'));
    refused_compile(garbled.path(), &[], INPUT, &["model.safetensors", "header"]);
    let stump = checkpoint(|b| b.truncate(5));
    refused_compile(stump.path(), &[], INPUT, &["model.safetensors"]);
}

#[test]
fn checkpoint_with_wrong_tensors_is_refused() {
    let cut = checkpoint(|b| b.truncate(b.len() - 1));
    refused_compile(cut.path(), &[], INPUT, &["model.safetensors"]);
    // hc_attn_base lies at 0..96, hc_attn_scale behind it.
    let overlap = retold("hc_attn_scale", |t| t["data_offsets"] = json!([84, 96]));
    refused_compile(overlap.path(), &[], INPUT, &["hc_attn_scale", "offsets: shared with", "hc_attn_base"]);
    let outside = retold("hc_attn_scale", |t| t["data_offsets"] = json!([1u64 << 40, (1u64 << 40) + 12]));
    refused_compile(outside.path(), &[], INPUT, &["hc_attn_scale", "1099511627776"]);
    let backwards = retold("hc_attn_scale", |t| t["data_offsets"] = json!([108, 96]));
    refused_compile(backwards.path(), &[], INPUT, &["hc_attn_scale", "108"]);
    let short = retold("hc_attn_scale", |t| t["data_offsets"] = json!([96, 104]));
    refused_compile(short.path(), &[], INPUT, &["hc_attn_scale"]);
    let huge = retold("hc_attn_scale", |t| t["shape"] = json!([1u64 << 62, 1u64 << 62]));
    refused_compile(huge.path(), &[], INPUT, &["hc_attn_scale", "size", "a shape that fits a file"]);
    let shape = retold("hc_attn_scale", |t| t["shape"] = json!([1, 3]));
    refused_compile(shape.path(), &[], INPUT, &["hc_attn_scale", "[1, 3]"]);
    let dtype = retold("hc_attn_scale", |t| t["dtype"] = json!("F33"));
    refused_compile(dtype.path(), &[], INPUT, &["hc_attn_scale", "F33"]);
    let gone = retold("hc_attn_scale", |t| *t = Value::Null);
    refused_compile(gone.path(), &[], INPUT, &["model.safetensors"]);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let model = Path::new(MODEL);
    refused_compile(model, &["--target", "vax"], USAGE, &["--target", "vax", "gfx1201"]);
    for layers in ["9-3", "", "a-b", "1-", "-1", "99999999999"] {
        refused_compile(model, &[&format!("--layers={layers}")], USAGE, &["--layers", layers]);
    }
    for layers in ["0-9", "2,1", "1,1"] {
        refused_compile(model, &["--layers", layers], USAGE, &["--layers", "0-4"]);
    }
    for slots in ["0", "19"] {
        refused_compile(model, &["--expert-slots", slots], USAGE, &["--expert-slots", slots, "1 to 18"]);
    }
    refused_compile(model, &["--expert-slots", "some"], USAGE, &["--expert-slots", "some"]);
    refused_compile(model, &["--aux", "7"], USAGE, &["--aux", "layer 7"]);
    for rows in ["0", "15", "2049"] {
        refused_compile(model, &["--max-rows", rows], USAGE, &["--max-rows", rows, "16 to 2048"]);
    }
    refused_compile(model, &["--fault", "delay=1"], USAGE, &["--fault", "x86-64, which has no clock", "sm_90"]);
    for fault in ["delay", "delay=x", "late=1"] {
        refused_compile(model, &["--fault", fault], USAGE, &["--fault", fault, "delay=SEED"]);
    }
    refused_compile(model, &["--dtype", "f64"], USAGE, &["--dtype", "f64"]);
    refused_compile(model, &["--no-such-option"], USAGE, &["--no-such-option"]);
}

#[test]
fn garbage_as_ir_text_is_refused() {
    let dir = folder();
    let path = dir.path().join("trunk.ir");
    for (text, says) in [
        ("", "module"),
        ("PK\u{3}\u{4}", "line 1"),
        ("module \"m\" {", "line 1"),
        ("module \"m\" {\n  input \"ids\" below(4): i32[99999999999999999999]\n}", "line 2"),
        ("module \"m\" {\n}\n", "logits"),
    ] {
        std::fs::write(&path, text).unwrap();
        refused_compile(&path, &[], INPUT, &[says]);
    }
    std::fs::write(&path, "(".repeat(1 << 20)).unwrap();
    refused_compile(&path, &[], INPUT, &[]);
}

/// A bundle of one layer, compiled once for all tests.
static SMALL: LazyLock<PathBuf> = LazyLock::new(|| {
    let bundle = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bad-input.ug");
    let out = bundle.to_str().unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_unglue"))
        .args(["compile", MODEL, "-o", out, "--layers", "0", "--target", "x86-64,gfx1201", "--json"])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    bundle
});

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// The small bundle, changed, in a folder of its own.
fn broken(change: impl FnOnce(&Path)) -> TempDir {
    let dir = folder();
    let bundle = dir.path().join("b.ug");
    copy(&SMALL, &bundle);
    change(&bundle);
    dir
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// All commands that take a bundle refuse it before anything runs, and change nothing.
fn refused_bundle(dir: &TempDir, says: &[&str]) {
    let before = tree(dir.path());
    let (bundle, dump) = (dir.path().join("b.ug"), dir.path().join("dump.safetensors"));
    let bundle = bundle.to_str().unwrap();
    let run = ["run", bundle, "--weights", MODEL, "--ids", "1", "--steps", "1", "--dump", dump.to_str().unwrap()];
    refused(&run, BUNDLE, says);
    refused(&["verify", bundle, "--draws", "1"], BUNDLE, says);
    refused(&["report", bundle], BUNDLE, says);
    assert!(tree(dir.path()) == before, "{bundle} was changed");
}

#[test]
fn bundle_with_a_damaged_manifest_is_refused() {
    let len = std::fs::metadata(SMALL.join("manifest.json")).unwrap().len() as usize;
    for keep in [0, 1, len / 2, len - 1] {
        let cut = broken(|b| {
            let path = b.join("manifest.json");
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(path, &bytes[..keep]).unwrap();
        });
        refused_bundle(&cut, &["manifest.json"]);
    }
    for at in [0, len / 3, len / 2, len - 10, len - 1] {
        refused_bundle(&broken(|b| flip(&b.join("manifest.json"), at)), &["manifest.json"]);
    }
    refused_bundle(&broken(|b| std::fs::remove_file(b.join("manifest.json")).unwrap()), &["manifest.json"]);
}

#[test]
fn bundle_with_one_flipped_byte_in_any_part_is_refused() {
    let parts: Vec<PathBuf> = tree(&SMALL).into_iter().filter_map(|(p, bytes)| bytes.map(|_| p)).collect();
    let parts: Vec<&Path> = parts.iter().map(|p| p.strip_prefix(&*SMALL).unwrap()).collect();
    assert!(parts.len() > 4, "manifest, trunk, report and code of two targets: {parts:?}");
    for part in parts.into_iter().filter(|p| *p != Path::new("manifest.json")) {
        let len = std::fs::metadata(SMALL.join(part)).unwrap().len() as usize;
        refused_bundle(&broken(|b| flip(&b.join(part), len / 2)), &["part hash", part.to_str().unwrap()]);
    }
}

#[test]
fn bundle_with_other_files_than_listed_is_refused() {
    refused_bundle(&broken(|b| std::fs::write(b.join("notes.txt"), "mine").unwrap()), &["notes.txt", "not list"]);
    refused_bundle(&broken(|b| std::fs::create_dir(b.join("code/mine")).unwrap()), &["mine", "not list"]);
    refused_bundle(&broken(|b| std::fs::remove_file(b.join("code/x86-64.so")).unwrap()), &["x86-64.so", "missing"]);
    refused_bundle(&broken(|b| std::fs::remove_file(b.join("report.json")).unwrap()), &["report.json", "missing"]);
    let longer = broken(|b| {
        let path = b.join("trunk.ir");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text + "\n").unwrap();
    });
    refused_bundle(&longer, &["part length", "trunk.ir"]);
}

#[test]
fn folder_that_is_no_bundle_is_refused() {
    let dir = folder();
    refused_bundle(&dir, &["b.ug"]);
    std::fs::create_dir(dir.path().join("b.ug")).unwrap();
    refused_bundle(&dir, &["manifest.json"]);
    std::fs::write(dir.path().join("b.ug/manifest.json"), "{\"name\": \"a web app\"}\n").unwrap();
    refused_bundle(&dir, &["manifest.json"]);
}

/// The destination is looked at before the model is.
const NO_MODEL: &str = "/no/such/model";
/// One layer is enough to get to the writing.
const ONE_LAYER: [&str; 3] = ["--layers", "0", "--json"];

#[test]
fn compile_leaves_a_foreign_destination_alone() {
    let dir = folder();
    let foreign = dir.path().join("thesis");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("chapter1.tex"), "It was a dark and stormy night.").unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "a file").unwrap();
    let extended = dir.path().join("extended.ug");
    copy(&SMALL, &extended);
    std::fs::write(extended.join("notes.txt"), "mine").unwrap();
    let before = tree(dir.path());
    for to in [&foreign, &file, &extended] {
        let to = to.to_str().unwrap();
        refused(&[&["compile", NO_MODEL, "-o", to][..], &ONE_LAYER].concat(), USAGE, &["--output", to]);
        assert!(tree(dir.path()) == before, "{to}");
    }
    let nowhere = dir.path().join("no/such/folder.ug");
    let to = nowhere.to_str().unwrap();
    refused(&[&["compile", NO_MODEL, "-o", to][..], &ONE_LAYER].concat(), USAGE, &["--output", "no/such", "no folder"]);
    assert!(tree(dir.path()) == before);
}
