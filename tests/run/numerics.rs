//! The tiny model compiled with `--numerics rounding` and `fast`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value, json};
use unglue_runtime::Bundle;
use unglue_runtime::manifest::Exactness;

use super::common::{AUX, BUILDS, Case, Entry, MODEL, dump, floats, list, load, succeed};

/// A bundle of the tiny model, compiled once for all tests.
fn bundle(dtype: &str, numerics: &str, targets: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run").join(format!("{dtype}-{numerics}.ug"));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let out = path.to_str().unwrap();
    let options = ["--dtype", dtype, "--numerics", numerics, "--aux", AUX, "--target", targets, "--json"];
    succeed(&[&["compile", MODEL, "-o", out][..], &options].concat());
    path
}

fn rounding() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| bundle("bf16", "rounding", "x86-64,gfx1201"))
}

/// The fused build of a dtype.
fn fused(dtype: &str) -> &'static Path {
    BUILDS.into_iter().find(|b| b.dtype == dtype && b.cover != "none").unwrap().bundle()
}

/// P6: which roundings a build leaves out is decided once, for all targets.
#[test]
fn rounding_gives_equal_bits_on_both_devices() {
    let case = Case::of("short");
    let of = |device: &str| load(&dump(&format!("rounding-{device}"), rounding(), &case.ids, &["--device", device]));
    let (cpu, emulated) = (of("cpu"), of("gfx12-emu"));
    assert_eq!(cpu.len(), 26, "{:?}", cpu.keys());
    for (key, value) in &cpu {
        assert!(emulated[key] == *value, "{key} has other bits");
    }
    let exact = load(&dump("rounding-exact", fused("bf16"), &case.ids, &[]));
    assert!(exact["logits"] != cpu["logits"], "roundings were left out");
}

#[test]
fn each_kernel_says_its_class() {
    let classes = |path: &Path| {
        let bundle = Bundle::open(path).unwrap();
        let mut count: BTreeMap<Exactness, usize> = BTreeMap::new();
        bundle.manifest().kernels.iter().for_each(|k| *count.entry(k.exactness).or_default() += 1);
        let report: Value = serde_json::from_slice(bundle.report().unwrap()).unwrap();
        (bundle.manifest().options.numerics.clone(), count, report["classes"].clone())
    };
    let (numerics, count, levels) = classes(rounding());
    assert_eq!(numerics, "rounding");
    // Kernels that no rewrite of the class has touched keep theirs.
    assert_eq!(count.keys().collect::<Vec<_>>(), [&Exactness::Exact, &Exactness::Rounding], "{count:?}");
    let (numerics, count, of_exact) = classes(fused("bf16"));
    assert_eq!((numerics.as_str(), count.keys().collect::<Vec<_>>()), ("exact", vec![&Exactness::Exact]));
    // Levels up to the build's are as it has them; looser ones are priced for steps of one row.
    assert_eq!(levels[0], of_exact[0]);
    for of in [&levels, &of_exact] {
        let ns: Vec<u64> = of.as_array().unwrap().iter().map(|l| l["predicted_ns"].as_u64().unwrap()).collect();
        assert!(
            ns[0] > ns[1] && ns[1] >= ns[2],
            "a looser level is slower, or leaving roundings out gains nothing: {ns:?}"
        );
    }
    let names: Vec<&Value> = levels.as_array().unwrap().iter().map(|l| &l["numerics"]).collect();
    assert_eq!(names, ["exact", "rounding", "fast"]);
    let loose = |level: usize| -> u64 {
        levels[level]["bodies"].as_array().unwrap().iter().map(|b| b["loose"].as_u64().unwrap()).sum()
    };
    assert!(loose(0) == 0 && loose(1) > 0 && loose(2) >= loose(1));
}

/// There is no rounding to leave out, and no rule of the looser classes finds anything.
#[test]
fn an_f32_trunk_is_the_same_in_every_class() {
    for numerics in ["rounding", "fast"] {
        let bundle = bundle("f32", numerics, "x86-64");
        for name in ["long", "short"] {
            let case = Case::of(name);
            let of = |what: &str, path: &Path| load(&dump(&format!("{numerics}-{name}-{what}"), path, &case.ids, &[]));
            assert!(of("exact", fused("f32")) == of("loose", &bundle), "{numerics}, {name}");
            let prompt = list(&case.ids[..case.prefill]);
            let out = succeed(&["run", bundle.to_str().unwrap(), "--ids", &prompt, "--json"]);
            let out: Value = serde_json::from_str(&out).unwrap();
            assert_eq!(out["ids"], json!(case.greedy), "{numerics}, {name}");
        }
    }
}

/// Row `i` of a tensor.
fn row(t: &Entry, i: usize) -> Vec<f32> {
    let width = t.1[1..].iter().product::<u64>() as usize;
    floats(t)[i * width..(i + 1) * width].to_vec()
}

/// |a - b| / |b|.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(x, y)| x - y)) / norm(&mut b.iter().copied())
}

/// Experts and pools that a row chose, in any order.
fn choices(all: &BTreeMap<String, Entry>, i: usize) -> Vec<Vec<[u8; 4]>> {
    let chosen = all.iter().filter(|(name, _)| name.ends_with("_ids"));
    let of = |(_, (_, shape, bytes)): (&String, &Entry)| {
        let width = bytes.len() / shape[0] as usize;
        let mut ids: Vec<[u8; 4]> =
            bytes[i * width..(i + 1) * width].chunks_exact(4).map(|b| b.try_into().unwrap()).collect();
        ids.sort_unstable();
        ids
    };
    chosen.map(of).collect()
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// A build that leaves roundings out stands to the trunk without any, which is the f32 one, as the declared trunk does or
/// nearer. A choice between near equals is discrete: rows that chose otherwise somewhere are not compared, and what they
/// leave in the states for later rows is why the rows of both cases are judged by their median.
#[test]
#[cfg_attr(not(feature = "long-tests"), ignore = "compiles more bundles; needs --features long-tests")]
fn leaving_roundings_out_comes_nearer_to_the_trunk_without_them() {
    let fast = bundle("bf16", "fast", "x86-64");
    for (numerics, path) in [("rounding", rounding()), ("fast", &fast)] {
        let (mut before, mut after, mut apart) = (vec![], vec![], vec![]);
        for name in ["long", "short"] {
            let case = Case::of(name);
            let of = |what: &str, path: &Path| load(&dump(&format!("nearer-{name}-{what}"), path, &case.ids, &[]));
            let (ideal, declared, ours) =
                (of("ideal", fused("f32")), of("declared", fused("bf16")), of(numerics, path));
            let agree = |i: usize| [&declared, &ours].iter().all(|x| choices(x, i) == choices(&ideal, i));
            for i in (0..case.ids.len()).filter(|i| agree(*i)) {
                let [ideal, declared, ours] = [&ideal, &declared, &ours].map(|x| row(&x["logits"], i));
                before.push(distance(&declared, &ideal));
                after.push(distance(&ours, &ideal));
                apart.push(distance(&ours, &declared));
            }
        }
        let rows = before.len();
        let (before, after, apart) = (median(before), median(after), median(apart));
        println!("{numerics}: {before:.4} declared, {after:.4} built, {apart:.4} apart, {rows} rows");
        assert!(rows > 60 && after <= before && apart <= 2.0 * before, "{numerics}: {before} {after} {apart} {rows}");
    }
}
