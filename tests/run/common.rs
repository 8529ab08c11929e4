//! The tiny model compiled, its golden values, and dump files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{LazyLock, OnceLock};

use serde_json::Value;
use tempfile::TempDir;
use unglue_models::safetensors::{SafeTensors, Stored};

pub const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");
/// The captures that the golden files have.
pub const AUX: &str = "0,2,3";

pub fn unglue(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unglue")).args(args).output().unwrap()
}

/// Runs a command that must succeed; its standard output.
pub fn succeed(args: &[&str]) -> String {
    let done = unglue(args);
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// How the tiny model is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    pub dtype: &'static str,
    pub cover: &'static str,
}

/// Every configuration that is tested.
pub const BUILDS: [Build; 4] = [
    Build { dtype: "f32", cover: "greedy" },
    Build { dtype: "bf16", cover: "exact" },
    Build { dtype: "f32", cover: "none" },
    Build { dtype: "bf16", cover: "none" },
];

impl Build {
    /// The bundle, compiled once for all tests.
    pub fn bundle(self) -> &'static Path {
        static BUNDLES: [OnceLock<PathBuf>; 4] = [const { OnceLock::new() }; 4];
        let i = BUILDS.iter().position(|b| *b == self).unwrap();
        BUNDLES[i].get_or_init(|| {
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run");
            std::fs::create_dir_all(&folder).unwrap();
            let bundle = folder.join(format!("{}-{}.ug", self.dtype, self.cover));
            let options = ["--dtype", self.dtype, "--cover", self.cover, "--aux", AUX, "--target", "x86-64,gfx1201"];
            succeed(&[&["compile", MODEL, "-o", bundle.to_str().unwrap(), "--json"][..], &options].concat());
            bundle
        })
    }
}

/// A golden case.
pub struct Case {
    pub ids: Vec<i32>,
    pub prefill: usize,
    /// What follows the prefill, greedily, in fp32.
    pub greedy: Vec<i32>,
}

impl Case {
    pub fn of(name: &str) -> Case {
        Case::in_folder(MODEL, name)
    }

    pub fn in_folder(model: &str, name: &str) -> Case {
        let text = std::fs::read_to_string(Path::new(model).join("expected.json")).unwrap();
        let info: Value = serde_json::from_str(&text).unwrap();
        let c = &info["cases"][name];
        let ids = |v: &Value| v.as_array().unwrap().iter().map(|i| i.as_i64().unwrap() as i32).collect();
        let prefill = c["prefill"].as_u64().unwrap() as usize;
        Case { ids: ids(&c["ids"]), prefill, greedy: ids(&c["greedy"]["fp32"]["ids"]) }
    }
}

pub fn list(ids: &[i32]) -> String {
    ids.iter().map(i32::to_string).collect::<Vec<_>>().join(",")
}

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap());

/// A path for a file of this test run.
pub fn scratch(name: &str) -> PathBuf {
    FOLDER.path().join(name)
}

/// Runs `input` over `ids` and gives the path of everything it dumps.
pub fn dump(name: &str, input: &Path, ids: &[i32], more: &[&str]) -> PathBuf {
    let file = scratch(&format!("{name}.safetensors"));
    let ids = list(ids);
    let args = ["run", input.to_str().unwrap(), "--ids", &ids, "--dump", file.to_str().unwrap(), "--taps"];
    let steps: &[&str] = if more.contains(&"--steps") { &[] } else { &["--steps", "0"] };
    succeed(&[&args[..], steps, more].concat());
    file
}

/// A tensor of a file: dtype, shape, bytes.
pub type Entry = (Stored, Vec<u64>, Vec<u8>);

/// All tensors of a file.
pub fn load(path: &Path) -> BTreeMap<String, Entry> {
    let file = SafeTensors::open(path).unwrap();
    let entry = |name: &str| {
        let t = file.tensor(name).unwrap();
        (name.to_string(), (t.dtype, t.shape.to_vec(), t.bytes.to_vec()))
    };
    file.names().map(entry).collect()
}

pub fn floats(entry: &Entry) -> Vec<f32> {
    match entry.0 {
        Stored::F32 => entry.2.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        Stored::Bf16 => {
            let wide = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
            entry.2.chunks_exact(2).map(wide).collect()
        }
        other => panic!("{other} is no float"),
    }
}
