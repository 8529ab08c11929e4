//! Prompts in steps of more than 16 rows: matmuls on matrix tiles, all else as in short steps.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value, json};
use unglue_runtime::Bundle;
use unglue_runtime::manifest::Products;

use super::common::{Case, MODEL, dump, floats, list, load, scratch, succeed};

/// The bf16 trunk with a launch list for 64 rows, compiled once for all tests.
fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run").join("bf16-rows64.ug");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let out = path.to_str().unwrap();
        let options = ["--cover", "greedy", "--max-rows", "64", "--target", "x86-64,gfx1201", "--json"];
        succeed(&[&["compile", MODEL, "-o", out][..], &options].concat());
        path
    })
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
#[test]
fn tiles_stay_within_the_bounds() {
    let open = Bundle::open(bundle()).unwrap();
    let kernels = open.manifest().kernels.iter().filter(|k| k.products == Products::Tiles);
    for k in kernels {
        for device in ["cpu", "gfx12-emu"] {
            let args = ["verify", bundle().to_str().unwrap(), "--device", device, "--kernel", &k.name, "--draws", "2"];
            assert!(succeed(&args).contains("1 kernels, 2 draws each, 0 wrong"), "{} on {device}", k.name);
        }
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
