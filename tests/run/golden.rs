//! The f32 bundle against the recorded outputs of an independent implementation, with the tolerances of
//! specification section 14.
//!
//! bf16 is judged layer by layer (2e-2), which a bundle cannot be: it has no way in between two layers. The interpreter
//! is (`models/tests/glm5_next_tiny.rs`), and `bits.rs` holds the bf16 bundle to the interpreter's bits.

use std::collections::BTreeMap;

use serde_json::Value;

use super::common::{BUILDS, Build, Case, Entry, MODEL, dump, floats, list, load, succeed};

/// Streams, final hidden state, logits; router weights.
const VALUES: f64 = 1e-5;
const STATES: f64 = 2e-5;

fn golden() -> BTreeMap<String, Entry> {
    load(&std::path::Path::new(MODEL).join("expected.safetensors"))
}

/// |a - b| / |b| over a whole tensor.
fn rel(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f64| x * x;
    let error: f64 = a.iter().zip(b).map(|(x, y)| square(f64::from(*x) - f64::from(*y))).sum();
    let norm: f64 = b.iter().map(|y| square(f64::from(*y))).sum();
    if error == 0.0 { 0.0 } else { (error / norm.max(1e-300)).sqrt() }
}

fn close(what: &str, ours: &Entry, want: &Entry, accept: f64) {
    assert_eq!(ours.1, want.1, "shape of {what}");
    let e = rel(&floats(ours), &floats(want));
    println!("{what:45} {e:.1e}");
    assert!(e <= accept, "{what}: {e:.2e}, accepted {accept:.0e}");
}

/// The rows of the unfinished pool that a tail must hold: the last of both raw inputs of the pooled keys.
fn tail(golden: &BTreeMap<String, Entry>, prefix: &str, layer: &str, pool: u64) -> Entry {
    let part = |role: &str| {
        let (dtype, shape, bytes) = &golden[&format!("{prefix}.{layer}.{role}")];
        let (rows, row) = (shape[0] % pool, (shape[1] * dtype.bytes()) as usize);
        let kept = bytes[bytes.len() - rows as usize * row..].to_vec();
        ((*dtype, vec![2, rows, shape[1]]), kept)
    };
    let ((head, k), (_, gate)) = (part("index_k"), part("index_gate"));
    (head.0, head.1, [k, gate].concat())
}

/// All states of a dump against those recorded under `prefix`.
fn check_states(ours: &BTreeMap<String, Entry>, golden: &BTreeMap<String, Entry>, prefix: &str) {
    let mut seen = 0;
    for (name, entry) in ours.iter().filter(|(n, _)| n.starts_with("state_end.")) {
        let short = name.strip_prefix("state_end.").unwrap();
        let what = format!("{prefix}.{short}");
        match short.strip_suffix(".tail") {
            Some(layer) => close(&what, entry, &tail(golden, prefix, layer, 4), STATES),
            None => close(&what, entry, &golden[&what], STATES),
        }
        seen += 1;
    }
    assert_eq!(seen, 4 * 2 + 3, "four KDA layers and one DSA layer");
}

fn check_case(build: Build, name: &str) {
    let (case, golden) = (Case::of(name), golden());
    let file = format!("golden-{}-{name}", build.cover);
    let from = case.prefill.to_string();
    let end = load(&dump(&file, build.bundle(), &case.ids, &["--decode-from", &from]));
    let prefix = format!("{name}.fp32");
    let mut kinds = BTreeMap::new();
    for (key, ours) in end.iter().filter(|(k, _)| !k.starts_with("state_end.")) {
        let want = &golden[&format!("{prefix}.{key}")];
        if key.ends_with("_ids") {
            assert_eq!(ours, want, "{key}");
        } else {
            close(key, ours, want, VALUES);
        }
        *kinds.entry(key.rsplit('.').next().unwrap().to_string()).or_insert(0) += 1;
    }
    // Whatever is not in the dump has not been compared. Captures are `aux.layer<i>`: 0, 2 and 3 were asked for.
    let expected = [
        ("final_hidden", 1),
        ("indexer_ids", 1),
        ("layer0", 1),
        ("layer2", 1),
        ("layer3", 1),
        ("logits", 1),
        ("router_ids", 2),
        ("router_weights", 2),
        ("streams", 5),
    ];
    assert_eq!(kinds, expected.map(|(k, n)| (k.to_string(), n)).into());
    check_states(&end, &golden, &format!("{prefix}.state_end"));
    let prefill = load(&dump(&format!("{file}-prefill"), build.bundle(), &case.ids[..case.prefill], &[]));
    check_states(&prefill, &golden, &format!("{prefix}.state_prefill"));
}

fn f32_builds() -> impl Iterator<Item = Build> {
    BUILDS.into_iter().filter(|b| b.dtype == "f32")
}

#[test]
fn long_case() {
    f32_builds().for_each(|b| check_case(b, "long"));
}

#[test]
fn short_case() {
    f32_builds().for_each(|b| check_case(b, "short"));
}

#[test]
fn greedy_ids_are_equal() {
    for build in f32_builds() {
        for name in ["long", "short"] {
            let case = Case::of(name);
            let prompt = list(&case.ids[..case.prefill]);
            for device in ["cpu", "gfx12-emu"] {
                let bundle = build.bundle().to_str().unwrap();
                let how = ["--json", "--threads", "2", "--device", device];
                let out = succeed(&[&["run", bundle, "--ids", &prompt][..], &how].concat());
                let out: Value = serde_json::from_str(&out).unwrap();
                assert_eq!(out["ids"], serde_json::json!(case.greedy), "{name}, {}, {device}", build.cover);
                let rest = serde_json::json!({"fed": case.prefill, "chunk": 16, "device": device, "threads": 2});
                for (key, value) in rest.as_object().unwrap() {
                    assert_eq!(&out[key], value, "{key}");
                }
                let counters = &out["counters"];
                let replays = if device == "cpu" { &counters["steps"] } else { &Value::from(0) };
                assert!(counters["steps"].as_u64() >= Some(case.greedy.len() as u64), "{counters}");
                assert_eq!(&counters["replays"], replays, "a step is one replay where the device records");
            }
        }
    }
}

/// What a person sees: how the ids were fed, and the generated ones.
#[test]
fn the_chunking_is_said() {
    let (build, case) = (BUILDS[0], Case::of("long"));
    let run = |more: &[&str]| {
        let ids = list(&case.ids[..case.prefill]);
        succeed(&[&["run", build.bundle().to_str().unwrap(), "--ids", &ids, "--steps", "2"], more].concat())
    };
    let generated = format!("generated 2 ids: {}\n", list(&case.greedy[..2]));
    assert_eq!(run(&[]), format!("fed 66 ids on cpu: 66 in chunks of up to 16 rows (--chunk)\n{generated}"));
    let mixed = run(&["--decode-from", "60", "--chunk", "5"]);
    assert_eq!(
        mixed,
        format!("fed 66 ids on cpu: 60 in chunks of up to 5 rows (--chunk), 6 one at a time\n{generated}")
    );
}

/// Ids come from a file as well: the prompts beside the golden files are JSON arrays.
#[test]
fn ids_from_a_file() {
    let bundle = BUILDS[0].bundle().to_str().unwrap();
    let case = Case::of("short");
    let prompt = format!("@{MODEL}/short.prompt.json");
    let out = succeed(&["run", bundle, "--ids", &prompt, "--json"]);
    let out: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(out["ids"], serde_json::json!(case.greedy));
}
