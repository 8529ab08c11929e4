//! Bad input: the exit code, and a message that says what is needed. Nothing panics, no file is left behind.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use unglue_models::safetensors::{Stored, TensorOut, write};

use super::common::{BUILDS, MODEL, scratch, unglue};

const USAGE: i32 = 2;
const INPUT: i32 = 3;
const BUNDLE: i32 = 4;

fn bundle() -> &'static str {
    BUILDS[0].bundle().to_str().unwrap()
}

fn refused(args: &[&str], code: i32, says: &str) {
    let done = unglue(&[&["run"], args].concat());
    let text = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(code), "{args:.80?}: {text}");
    assert!(text.contains(says), "{args:.80?}: {text}");
    assert!(!text.contains("panicked") && done.stdout.is_empty(), "{text}");
}

/// The f32 bundle copied, without the file that names its checkpoint.
fn copy() -> (TempDir, PathBuf) {
    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            match entry.path().is_dir() {
                true => copy(&entry.path(), &to),
                false => assert!(std::fs::copy(entry.path(), to).is_ok()),
            }
        }
    }
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let to = folder.path().join("copy.ug");
    copy(Path::new(bundle()), &to);
    (folder, to)
}

#[test]
fn ids() {
    for (ids, says) in [
        ("", "at least one"),
        ("1,2,x", "token id 2 is \"x\""),
        ("1,,2", "between two commas"),
        ("[1, 2", "JSON"),
        ("1,256", "token id 1 is 256; needed one of the vocabulary, 0 to 255"),
        ("[-1]", "token id 0 is -1"),
        ("99999999999", "token id 0"),
        ("@/nowhere/ids.json", "/nowhere/ids.json"),
    ] {
        let equals = format!("--ids={ids}");
        refused(&[bundle(), &equals], INPUT, says);
        refused(&[MODEL, "--device", "interp", &equals], INPUT, says);
    }
    let file = scratch("ids.json");
    let argument = format!("@{}", file.display());
    for (bytes, says) in
        [(&b"\xff\xfe1"[..], "UTF-8"), (b"{\"ids\": [1]}", "token id 0"), (b"[1, 300]", "token id 1 is 300")]
    {
        std::fs::write(&file, bytes).unwrap();
        refused(&[bundle(), "--ids", &argument], INPUT, says);
    }
    refused(&[bundle(), "--ids", &format!("@{MODEL}")], INPUT, "directory");
}

#[test]
fn options() {
    let bundle = bundle();
    let cases: [(&[&str], i32, &str); 15] = [
        (&["--chunk", "17"], USAGE, "--chunk: found 17; needed at most 16"),
        (&["--chunk", "0"], USAGE, "at least 1"),
        (&["--chunk=-1"], USAGE, "--chunk"),
        (&["--decode-from", "4"], USAGE, "--decode-from: found 4"),
        (&["--steps", "40000"], INPUT, "32768"),
        (&["--steps", "18446744073709551615"], INPUT, "32768"),
        (&["--block", "3"], USAGE, "multiple of the pool size 4"),
        (&["--block", "0"], USAGE, "multiple of the pool size 4"),
        (&["--threads", "5000"], USAGE, "1024"),
        (&["--device", "abacus"], USAGE, "cpu, cuda, gfx12-emu or interp"),
        (&["--taps"], USAGE, "--dump"),
        (&["--dump", "/nowhere/x.safetensors"], INPUT, "folder does not exist"),
        (&["--dump", "/tmp"], INPUT, "is a folder"),
        (&["--aux", "1"], USAGE, "compiled with"),
        (&["--layers", "0-1"], USAGE, "compiled with"),
    ];
    for (more, code, says) in cases {
        refused(&[&[bundle, "--ids", "1,2,3"], more].concat(), code, says);
    }
    let bf16 = BUILDS[1].bundle().to_str().unwrap();
    refused(&[bf16, "--ids", "1", "--dtype", "f32"], USAGE, "compiled with");
    refused(&[MODEL, "--device", "interp", "--ids", "1", "--steps", "32769"], INPUT, "32768");
}

#[test]
fn bundles() {
    let config = format!("{MODEL}/config.json");
    refused(&["/nowhere", "--ids", "1"], BUNDLE, "manifest.json");
    refused(&[&config, "--ids", "1"], INPUT, "--device interp");
    refused(&[MODEL, "--ids", "1"], INPUT, "unglue compile");
    refused(&[bundle(), "--device", "interp", "--ids", "1"], INPUT, "a bundle");
    refused(&["/nowhere", "--device", "interp", "--ids", "1"], INPUT, "/nowhere");
    let (_folder, copied) = copy();
    let (path, manifest) = (copied.to_str().unwrap(), copied.join("manifest.json"));
    let whole = std::fs::read(&manifest).unwrap();
    for length in [0, 1, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&manifest, &whole[..length]).unwrap();
        refused(&[path, "--ids", "1", "--weights", MODEL], BUNDLE, "manifest.json");
    }
    std::fs::write(&manifest, &whole).unwrap();
    let part = copied.join("report.json");
    let text = std::fs::read(&part).unwrap();
    std::fs::write(&part, &text[..text.len() / 2]).unwrap();
    refused(&[path, "--ids", "1", "--weights", MODEL], BUNDLE, "part length");
    std::fs::remove_file(&part).unwrap();
    refused(&[path, "--ids", "1", "--weights", MODEL], BUNDLE, "missing");
}

#[test]
fn weights() {
    let (folder, copied) = copy();
    let path = copied.to_str().unwrap();
    refused(&[path, "--ids", "1"], USAGE, "--weights DIR");
    refused(&[path, "--ids", "1", "--weights", "/nowhere"], INPUT, "/nowhere");
    let config = format!("{MODEL}/config.json");
    refused(&[&config, "--device", "interp", "--ids", "1"], USAGE, "--weights DIR");
    // A checkpoint of another model.
    let name = "model.language_model.embed_tokens.weight";
    let wrong = TensorOut { name, dtype: Stored::F32, shape: &[2], bytes: &[0; 8] };
    write(&folder.path().join("model.safetensors"), &[wrong]).unwrap();
    let other = folder.path().to_str().unwrap();
    refused(&[path, "--ids", "1", "--weights", other], INPUT, "tensor");
    refused(&[&config, "--device", "interp", "--ids", "1", "--weights", other], INPUT, "tensor");
    std::fs::write(folder.path().join("model.safetensors"), [0xff; 20]).unwrap();
    refused(&[path, "--ids", "1", "--weights", other], INPUT, "model.safetensors");
    // With the right one, all is well.
    assert!(unglue(&["run", path, "--ids", "1", "--steps", "1", "--weights", MODEL]).status.success());
}
