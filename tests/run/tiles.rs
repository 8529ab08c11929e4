//! Prompts in steps of more than 16 rows: matmuls on matrix tiles, all else as in short steps.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value, json};
use unglue_runtime::Bundle;
use unglue_runtime::manifest::Products;

use super::common::{Case, MODEL, dump, floats, list, load, scratch, succeed};

/// Routed experts in int4.
const INT4: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny_w4a16");

fn compiled(model: &str, name: &str, cover: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run").join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let out = path.to_str().unwrap();
    let options = ["--cover", cover, "--max-rows", "64", "--target", "x86-64,gfx1201", "--json"];
    succeed(&[&["compile", model, "-o", out][..], &options].concat());
    path
}

/// The bf16 trunk with a launch list for 64 rows, compiled once for all tests.
fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| compiled(MODEL, "bf16-rows64.ug", "greedy"))
}

/// The trunk with experts in int4, one op a kernel: all that tiles can take is on them, whatever fusion would save here.
fn int4() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| compiled(INT4, "int4-rows64.ug", "none"))
}

#[test]
fn only_long_steps_have_tiles() {
    let bundle = Bundle::open(bundle()).unwrap();
    let m = bundle.manifest();
    assert_eq!(m.options.max_rows, 64);
    let tiles =
        |launch: &unglue_runtime::manifest::Launch| m.kernels[launch.kernel as usize].products == Products::Tiles;
    let of =
        |rows: u64| m.buckets.iter().find(|b| b.rows_max == rows).unwrap().launches.iter().filter(|l| tiles(l)).count();
    assert_eq!([1, 4, 16].map(of), [0; 3]);
    for k in &m.kernels {
        assert_eq!(k.products == Products::Tiles, k.class == "tiled matmul", "{} {}", k.name, k.class);
    }
    assert!(of(64) >= 5, "{}", of(64));
}

#[test]
fn golden_ids_come_out_of_long_chunks() {
    let case = Case::of("long");
    let prompt = list(&case.ids[..case.prefill]);
    for device in ["cpu", "gfx12-emu"] {
        let how = ["--chunk", "64", "--json", "--threads", "2", "--device", device];
        let out = succeed(&[&["run", bundle().to_str().unwrap(), "--ids", &prompt][..], &how].concat());
        let out: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(out["ids"], json!(case.greedy), "{device}");
        assert_eq!((&out["fed"], &out["chunk"]), (&json!(66), &json!(64)));
    }
}

/// A kernel on tiles gives what the ops' bounds allow, on both devices.
fn within_bounds(bundle: &Path) {
    let open = Bundle::open(bundle).unwrap();
    let kernels = open.manifest().kernels.iter().filter(|k| k.products == Products::Tiles);
    for k in kernels {
        for device in ["cpu", "gfx12-emu"] {
            let args = ["verify", bundle.to_str().unwrap(), "--device", device, "--kernel", &k.name, "--draws", "2"];
            assert!(succeed(&args).contains("1 kernels, 2 draws each, 0 wrong"), "{} on {device}", k.name);
        }
    }
}

#[test]
fn tiles_stay_within_the_bounds() {
    within_bounds(bundle());
}

#[test]
fn tiles_over_int4_stay_within_the_bounds() {
    within_bounds(int4());
}

#[test]
fn experts_and_heads_of_long_steps_are_on_tiles() {
    let bundle = Bundle::open(int4()).unwrap();
    let m = bundle.manifest();
    let long = m.buckets.iter().find(|b| b.rows_max == 64).unwrap();
    let kernels = long.launches.iter().map(|l| &m.kernels[l.kernel as usize]);
    let of = |op: &str| kernels.clone().filter(|k| k.ops.iter().any(|o| o.ends_with(op))).collect::<Vec<_>>();
    let (experts, heads) = (of("grouped_matmul"), of("batch_matmul"));
    assert!(experts.len() >= 3 && heads.len() >= 2, "{} and {}", experts.len(), heads.len());
    for k in experts.into_iter().chain(heads) {
        assert_eq!(k.products, Products::Tiles, "{}: {}", k.name, k.schedule);
    }
}

#[test]
fn golden_ids_come_out_of_int4_experts_on_tiles() {
    let case = Case::in_folder(INT4, "long");
    let prompt = list(&case.ids[..case.prefill]);
    for (device, steps) in [("cpu", 16), ("gfx12-emu", 2)] {
        let count = steps.to_string();
        let how = ["--steps", &count, "--chunk", "64", "--json", "--threads", "2", "--device", device];
        let out = succeed(&[&["run", int4().to_str().unwrap(), "--ids", &prompt][..], &how].concat());
        let out: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&out["ids"], &out["chunk"]), (&json!(case.greedy[..steps]), &json!(64)), "{device}");
    }
}

/// Roundings of activations to bf16 fall otherwise after other sums. The logits of a prompt fed on tiles, and those
/// decoded behind it, are as far from the recorded f32 values as logits of single rows are. One op a kernel: every matmul
/// that tiles can take is on them.
#[test]
fn prefill_on_tiles_is_as_exact_as_rows_alone() {
    let case = Case::of("long");
    let bundle = scratch("unfused-rows64.ug");
    let out = bundle.to_str().unwrap();
    succeed(&["compile", MODEL, "-o", out, "--cover", "none", "--max-rows", "64", "--target", "x86-64", "--json"]);
    let golden = load(&Path::new(MODEL).join("expected.safetensors"));
    let want = floats(&golden["long.fp32.logits"]);
    let distance = |name: &str, more: &[&str]| {
        let from = case.prefill.to_string();
        let more = [&["--decode-from", &from][..], more].concat();
        let got = floats(&load(&dump(name, &bundle, &case.ids, &more))["logits"]);
        let square = |x: f32, y: f32| (f64::from(x) - f64::from(y)).powi(2);
        let error: f64 = got.iter().zip(&want).map(|(x, y)| square(*x, *y)).sum();
        (error / want.iter().map(|y| square(*y, 0.0)).sum::<f64>()).sqrt()
    };
    let (tiles, alone) = (distance("tiles-64", &["--chunk", "64"]), distance("tiles-1", &["--chunk", "1"]));
    println!("from the f32 logits: on tiles {tiles:.2e}, alone {alone:.2e}");
    assert!(tiles != alone && tiles < 1.25 * alone, "{tiles} and {alone}");
}
