//! `unglue bisect` on the tiny golden model: right code, and code of another config in the bundle's place.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::{Value, json};
use tempfile::TempDir;
use unglue_runtime::manifest::PartKind;
use unglue_runtime::{Bundle, PartData, write_bundle};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");
const IDS: &str = "5,6,7,8,9";

fn unglue(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unglue")).args(args).output().unwrap()
}

fn compile(name: &str, config: &Path) -> PathBuf {
    let bundle = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let args = ["compile", config.to_str().unwrap(), "-o", bundle.to_str().unwrap(), "--layers", "0", "--json"];
    let done = unglue(&[&args[..], &["--target", "x86-64,gfx1201"]].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    bundle
}

/// One layer.
static RIGHT: LazyLock<PathBuf> = LazyLock::new(|| compile("bisect-right.ug", &Path::new(MODEL).join("config.json")));

/// The same kernels by name, with the code of a config that clamps the gate elsewhere.
static WRONG: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let dir = TempDir::new().unwrap();
    let text = std::fs::read_to_string(Path::new(MODEL).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["text_config"]["swiglu_limit"] = json!(0.25);
    let file = dir.path().join("config.json");
    std::fs::write(&file, config.to_string()).unwrap();
    let other = Bundle::open(compile("bisect-other.ug", &file)).unwrap();
    let right = Bundle::open(&*RIGHT).unwrap();
    let names = |b: &Bundle| b.manifest().kernels.iter().map(|k| k.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&right), names(&other));
    let part = |part: &unglue_runtime::manifest::Part| {
        let from = if matches!(part.kind, PartKind::Code { .. }) { &other } else { &right };
        PartData { path: part.path.clone(), kind: part.kind.clone(), bytes: from.part(&part.path).unwrap().to_vec() }
    };
    let parts: Vec<PartData> = right.manifest().parts.iter().map(part).collect();
    let path = dir.path().join("wrong.ug");
    write_bundle(&path, right.manifest().clone(), &parts).unwrap();
    (dir, path)
});

fn bisect(bundle: &Path, more: &[&str]) -> Output {
    unglue(&[&["bisect", bundle.to_str().unwrap()], more].concat())
}

fn json_of(done: &Output) -> Value {
    serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done:?}"))
}

#[test]
fn right_bundles_have_no_wrong_op() {
    for device in ["cpu", "gfx12-emu"] {
        for more in [&["--draws", "2"][..], &["--ids", IDS, "--weights", MODEL]] {
            let done = bisect(&RIGHT, &[&["--device", device][..], more].concat());
            assert!(done.status.success(), "{done:?}");
            assert_eq!(json_of(&bisect(&RIGHT, &[&["--json"][..], more].concat()))["wrong"], Value::Null);
        }
    }
}

/// The clamp is in the kernel that gates: the first wrong one, whether on drawn inputs or in a step.
#[test]
fn code_of_another_config_is_found_in_launch_order() {
    let m = Bundle::open(&WRONG.1).unwrap().manifest().clone();
    for device in ["cpu", "gfx12-emu"] {
        let done = bisect(&WRONG.1, &["--device", device, "--json"]);
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        let found = json_of(&done);
        let before = found["right_before"].as_u64().unwrap() as usize;
        let kernel = found["wrong"]["kernel"].as_str().unwrap();
        assert!(before > 0 && m.kernels[before].name == kernel && kernel.contains("dense_"), "{found}");
        assert_eq!((&found["found"], &found["differs"]), (&json!("old_code"), &Value::Null), "{found}");
        assert!(found["parts"].as_u64().unwrap() > 10, "{found}");

        let done = bisect(&WRONG.1, &["--device", device, "--json", "--ids", IDS, "--weights", MODEL, "--draws", "1"]);
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        let step = json_of(&done);
        let differs = &step["differs"];
        assert!(differs["kernel"].as_str().unwrap().contains("dense_"), "{step}");
        assert!(differs["value"].as_str().unwrap().starts_with("layer0.dense_last%"), "{step}");
        assert_ne!(differs["device"], differs["interpreter"]);
        assert!(differs["compared"].as_u64().unwrap() > 5, "{step}");
    }
}

#[test]
fn wrong_kernels_are_told_in_words() {
    let done = bisect(&WRONG.1, &[]);
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(text.contains("kernels are right; then ") && text.contains("parts were made anew; "), "{text}");
    assert!(String::from_utf8_lossy(&done.stderr).contains("the bundle holds other code"));
}
