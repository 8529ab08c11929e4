//! GLM-5.3-Flash at its real sizes, compiled whole: resources of every kernel, launches, and nothing left out.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod w4a16;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use unglue_ir::op::Op;
use unglue_runtime::Bundle;
use unglue_runtime::manifest::{Arg, Kernel, MAX_KERNEL_NAME, Manifest, Mem, StateRole};

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/configs/glm-5.3-flash.json");
const BUDGET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/configs/glm-5.3-flash.budget.json");
/// How far a build may be above the budget. Launches, bytes, memory and spills follow from the cover alone: nothing. Times
/// are modelled and round per kernel: 1 %. Register allocation moves with any edit of the generator: 8 VGPRs are a third of
/// the 24 that gfx1201 hands out at a time, and SGPRs cost no occupancy; where VGPRs do cost some, the occupancy's own
/// limit of none catches it. Code moves with it: 10 % of a kernel, the smallest of which has about 1 KiB.
const LIMITS: [&str; 18] = [
    "--max-launches",
    "0",
    "--max-bytes",
    "0",
    "--max-time",
    "1%",
    "--max-vgprs",
    "8",
    "--max-sgprs",
    "16",
    "--max-lds",
    "0",
    "--max-spills",
    "0",
    "--max-code",
    "10%",
    "--max-occupancy-drop",
    "0",
];
const GPU: &str = "gfx1201";
const LAYERS: usize = 45;
const DSA_LAYERS: usize = 11;
const KDA_LAYERS: usize = LAYERS - DSA_LAYERS;
const MOE_LAYERS: usize = 42;
const EXPERTS: usize = 288;
/// Launches of a token: 7 or fewer for KDA and a dense MLP, 8 for KDA and experts, 13 for attention and experts, 4 ends.
const LAUNCHES: usize = 416;
/// Launches of a layer with a kernel of that name's beginning, the first that it has; and before and behind all layers.
const LAYER_LAUNCHES: [(&str, usize); 3] = [("dsa_", 13), ("dense_", 7), ("moe_", 8)];
const END_LAUNCHES: usize = 4;
const MAX_LDS: u64 = 65536;
/// 16 shared arrays of a kernel at most, each with less than 64 bytes of padding in the manifest.
const SHARED_SLACK: u64 = 16 * 64;
const MAX_VGPRS: u32 = 256;
/// Waves a SIMD that a kernel limited by DRAM should have (`specs/costmodel.md` 6, rule 1).
const STREAMING_OCCUPANCY: u64 = 8;
/// Ops that view, convert or copy values: a launch for these alone is a fusion that was missed.
const GLUE: [&str; 7] = ["cast", "reshape", "broadcast", "slice", "project", "concat", "gather_rows"];

/// The bundle, compiled once for all tests.
fn bundle() -> &'static Bundle {
    static BUNDLE: OnceLock<Bundle> = OnceLock::new();
    BUNDLE.get_or_init(|| compiled(CONFIG, "real-config.ug", "gfx1201,x86-64"))
}

fn compiled(config: &str, name: &str, targets: &str) -> Bundle {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    unglue(&["compile", config, "-o", path.to_str().unwrap(), "--target", targets, "--json"]);
    Bundle::open(path).unwrap()
}

/// Runs a command that must succeed; its standard output.
fn unglue(args: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_unglue")).args(args).output().unwrap();
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

fn manifest() -> &'static Manifest {
    bundle().manifest()
}

fn report() -> Value {
    serde_json::from_slice(bundle().report().unwrap()).unwrap()
}

/// The ops of a kernel, without their numbers.
fn ops(kernel: &Kernel) -> Vec<&str> {
    kernel.ops.iter().map(|o| o.split_once(' ').unwrap().1).collect()
}

#[test]
fn every_kernel_fits_the_gpu() {
    assert_fits(manifest());
}

fn assert_fits(m: &Manifest) {
    for k in &m.kernels {
        let r = k.resources.get(GPU).unwrap_or_else(|| panic!("{}: no resources for {GPU}", k.name));
        assert_eq!((r.vgpr_spills, r.sgpr_spills, r.scratch_bytes), (0, 0, 0), "{}: {r:?}", k.name);
        assert!(r.lds_bytes <= MAX_LDS && (1..=MAX_VGPRS).contains(&r.vgprs), "{}: {r:?}", k.name);
        // The manifest rounds each of a kernel's shared arrays up to 64 bytes; the linker packs them.
        let declared = (k.shared_bytes.saturating_sub(SHARED_SLACK), k.shared_bytes);
        let fits = if k.shared_bytes == 0 { r.lds_bytes == 0 } else { r.lds_bytes > declared.0 };
        assert!(fits && r.lds_bytes <= declared.1, "{}: {r:?}, {declared:?}", k.name);
        assert!(r.occupancy >= 1 && r.code_bytes > 0, "{}: {r:?}", k.name);
    }
}

/// Occupancy is known only once the code is there: a kernel with fewer is a warning of the report.
#[test]
fn streaming_kernels_have_waves_enough() {
    let all = assert_waves(bundle());
    let long = all["warnings"]["long_waves"].as_array().unwrap();
    assert!(long.iter().any(|w| w["kernel"] == "end_lm_head_r16"), "{long:?}");
    assert!(long.iter().all(|w| w["cycles"].as_u64().unwrap() > 37_000 && w["penalty_ns"] == 22_142), "{long:?}");
}

/// The report of a bundle whose streaming kernels all have waves enough, and short ones for a single row.
fn assert_waves(bundle: &Bundle) -> Value {
    let report = unglue(&["report", bundle.path().to_str().unwrap(), "--json"]);
    let all: Value = serde_json::from_str(&report).unwrap();
    let few = &all["warnings"]["low_occupancy"];
    assert_eq!(few, &serde_json::json!([]), "fewer than {STREAMING_OCCUPANCY} waves a SIMD");
    let long = all["warnings"]["long_waves"].as_array().unwrap().iter();
    let of_a_token: Vec<&Value> = long.filter(|w| w["rows"] == 1).map(|w| &w["kernel"]).collect();
    assert!(of_a_token.is_empty(), "waves of one row that live longer than 37,000 cycles: {of_a_token:?}");
    all
}

/// The budget is what the last build that someone looked at took. `UPDATE=1` makes it this build's.
#[test]
fn build_stays_within_the_budget() {
    assert_budget(bundle(), BUDGET);
}

fn assert_budget(bundle: &Bundle, budget: &str) {
    let bundle = bundle.path().to_str().unwrap();
    if std::env::var_os("UPDATE").is_some_and(|v| v == "1") {
        unglue(&["diff", bundle, "--write-budget", budget]);
    }
    let args = [&["diff", budget, bundle], &LIMITS[..]].concat();
    let done = Command::new(env!("CARGO_BIN_EXE_unglue")).args(args).output().unwrap();
    assert!(
        done.status.success(),
        "{}{}\nA is {budget}. If this build is meant to take more: \
         UPDATE=1 cargo test --test real_config budget, look at the diff of the file, and say in the commit why.",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
}

/// What the search took for all bodies, and for all launch lists of each.
const SEARCH: [&str; 5] = ["e-nodes", "op sets priced", "candidates of the program", "variables", "rows"];

fn search_size(report: &Value) -> [u64; 5] {
    let list = |of: &Value| of.as_array().unwrap().clone();
    let sum = |from: &[Value], at: &str| from.iter().map(|x| x.pointer(at).unwrap().as_u64().unwrap()).sum::<u64>();
    let bodies: Vec<Value> = list(&report["buckets"]).iter().flat_map(|b| list(&b["bodies"])).collect();
    let program = |what: &str| sum(&bodies, &format!("/cover/exact/{what}"));
    [
        sum(&list(&report["saturation"]), "/e_nodes"),
        sum(&bodies, "/cover/candidates"),
        program("candidates"),
        program("variables"),
        program("rows"),
    ]
}

/// Layers of one kind share a search: 45 layers may take little more than 8.
#[test]
fn the_search_does_not_grow_with_the_layers() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("real-config-8.ug");
    let done = Command::new(env!("CARGO_BIN_EXE_unglue"))
        .args(["compile", CONFIG, "-o", path.to_str().unwrap(), "--layers", "0-7", "--target", "gfx1201", "--json"])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let few: Value = serde_json::from_slice(Bundle::open(path).unwrap().report().unwrap()).unwrap();
    for (what, (all, few)) in SEARCH.iter().zip(search_size(&report()).iter().zip(search_size(&few))) {
        assert!(few > 0 && *all as f64 <= 6.2 * few as f64, "{what}: {all} for {LAYERS} layers, {few} for 8");
    }
}

#[test]
fn activations_move_little_more_than_they_must() {
    for bucket in report()["buckets"].as_array().unwrap() {
        let bodies = bucket["bodies"].as_array().unwrap().iter().map(|b| (&b["body"], &b["activations"]));
        for (what, a) in bodies.chain([(&bucket["rows_max"], &bucket["activations"])]) {
            let of = |name: &str| a[name].as_u64().unwrap();
            let (moved, least) = (of("moved_bytes"), of("least_bytes"));
            assert!(0 < least && least <= moved && moved <= 2 * least, "{what}: {moved} of at least {least}");
            assert!(moved <= of("issued_bytes"), "{what}: {a}");
        }
    }
}

/// The budget holds the other launch lists to what they have.
#[test]
fn no_launch_of_a_token_only_computes_element_by_element() {
    let report = report();
    let first = &report["buckets"][0];
    let pointwise = |b: &Value| b["pointwise"].as_u64().unwrap() > 0;
    let found: Vec<_> =
        first["bodies"].as_array().unwrap().iter().filter(|b| pointwise(b)).map(|b| &b["body"]).collect();
    assert_eq!(first["pointwise_launches"], 0, "in {found:?}");
}

/// Every op comes from lines of the model, which are there; so does what rules brought in.
#[test]
fn every_op_has_lines_of_the_model() {
    let code_at = |at: &str| -> String {
        let (file, line) = at.split_once(':').unwrap();
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        text.lines().nth(line.parse::<usize>().unwrap() - 1).unwrap().to_owned()
    };
    let mut repeats = 0;
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for bucket in report()["buckets"].as_array().unwrap() {
        for body in bucket["bodies"].as_array().unwrap() {
            let lines = |x: &Value| -> Vec<String> {
                x["lines"].as_array().unwrap().iter().map(|l| l.as_str().unwrap().to_owned()).collect()
            };
            for op in body["ops"].as_array().unwrap() {
                assert!(!lines(op).is_empty(), "{} {op}", body["body"]);
                if op["op"] == "repeat" {
                    repeats += 1;
                    // Each op of a Sinkhorn round: the sum, the constant's add, the division.
                    for part in ["b.sum(x, axis)", "Binary::Add, sum, eps", "Binary::Div, x, sum"] {
                        assert!(lines(op).iter().any(|l| code_at(l).contains(part)), "{part}: {op}");
                    }
                }
                for at in lines(op) {
                    let (file, line) = at.split_once(':').unwrap();
                    assert!(file.starts_with("models/src/glm5_next/"), "{at}");
                    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
                    let text = files
                        .entry(file.into())
                        .or_insert_with(|| std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect());
                    let code = &text[line.parse::<usize>().unwrap() - 1];
                    assert!(code.contains('(') && !code.trim_start().starts_with("//"), "{at}: {code}");
                }
            }
            for kernel in body["kernels"].as_array().unwrap() {
                let of_ops = body["ops"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|o| o["kernels"].as_array().unwrap().contains(&kernel["in_body"]));
                let all: BTreeSet<String> = of_ops.flat_map(lines).collect();
                assert_eq!(lines(kernel).into_iter().collect::<BTreeSet<_>>(), all, "{}", kernel["name"]);
            }
        }
    }
    assert!(repeats > 0);
}

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
const TABLES: [&str; 2] = ["<!-- from `unglue report --markdown` -->\n", "<!-- end -->"];

/// `UPDATE=1` puts this build's tables into the README.
#[test]
fn readme_has_every_launch() {
    let tables = Path::new(env!("CARGO_TARGET_TMPDIR")).join("real-config.md");
    let done = Command::new(env!("CARGO_BIN_EXE_unglue"))
        .args(["report", bundle().path().to_str().unwrap(), "--markdown", tables.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let tables = std::fs::read_to_string(tables).unwrap();
    let launches = manifest().buckets[0].launches.iter().map(|l| &manifest().kernels[l.kernel as usize].name);
    launches.for_each(|name| assert!(tables.contains(&format!("| `{name}` |")), "{name}"));
    let readme = std::fs::read_to_string(README).unwrap();
    let (before, rest) = readme.split_once(TABLES[0]).unwrap();
    let (now, after) = rest.split_once(TABLES[1]).unwrap();
    if std::env::var_os("UPDATE").is_some_and(|v| v == "1") {
        std::fs::write(README, [before, TABLES[0], &tables, TABLES[1], after].concat()).unwrap();
        return;
    }
    assert!(now == tables, "other launches than the README says: UPDATE=1 cargo test --test real_config readme");
}

/// What the picture shows stands beside it: whoever changes these figures takes the picture anew
/// (`UPDATE=1 cargo test --features long-tests --test report_forms screenshot`).
#[test]
fn the_picture_is_of_this_build() {
    let total = &report()["buckets"][0]["total"];
    let us = total["predicted_ns"].as_f64().unwrap() / 1000.0;
    let figures = format!("({} launches, {us:.1} us)", total["launches"]);
    assert!(
        std::fs::read_to_string(README).unwrap().contains(&figures),
        "the README's picture does not show {figures}"
    );
}

#[test]
fn every_kernel_has_code_a_name_and_parameters() {
    let m = manifest();
    let code: BTreeSet<u32> = bundle().code(GPU).unwrap().iter().filter_map(|c| c.kernel).collect();
    assert_eq!(code, (0..m.kernels.len() as u32).collect());
    assert_eq!(bundle().code("x86-64").unwrap().len(), 1);
    for k in &m.kernels {
        assert!((1..=MAX_KERNEL_NAME).contains(&k.name.len()), "{}", k.name);
        assert!(!k.params.is_empty() && !k.ops.is_empty() && !k.ir.is_empty(), "{}", k.name);
    }
    for (b, launch) in m.buckets.iter().flat_map(|b| b.launches.iter().map(move |l| (b, l))) {
        let k = &m.kernels[launch.kernel as usize];
        assert_eq!(launch.args.len(), k.params.len(), "{} for {} rows", k.name, b.rows_max);
    }
}

#[test]
fn launches_of_a_token_are_few() {
    let first = &manifest().buckets[0];
    assert_eq!(first.rows_max, 1);
    let launches = first.launches.len();
    assert!(launches <= LAUNCHES, "{launches} launches in {LAYERS} layers");
    let layers: BTreeSet<u32> = first.launches.iter().filter_map(|l| l.layer).collect();
    assert_eq!(layers.len(), LAYERS);
}

#[test]
fn launches_of_each_layer_are_few() {
    let first = &manifest().buckets[0];
    let mut by_layer: BTreeMap<Option<u32>, Vec<&str>> = BTreeMap::new();
    for l in &first.launches {
        by_layer.entry(l.layer).or_default().push(&manifest().kernels[l.kernel as usize].name);
    }
    for (layer, kernels) in by_layer {
        let has = |(body, _): &&(&str, usize)| kernels.iter().any(|k| k.starts_with(body));
        let most = layer.map_or(END_LAUNCHES, |_| LAYER_LAUNCHES.iter().find(has).unwrap().1);
        assert!(kernels.len() <= most, "layer {layer:?}, of at most {most}: {kernels:?}");
    }
}

#[test]
fn no_launch_only_moves_or_converts() {
    for b in &manifest().buckets {
        for launch in &b.launches {
            let k = &manifest().kernels[launch.kernel as usize];
            let works = ops(k).iter().any(|op| !GLUE.contains(op));
            assert!(works, "{} for {} rows only has {:?}", k.name, b.rows_max, k.ops);
        }
    }
}

/// Saturation may rewrite arithmetic; it never drops what reads a weight or changes a state.
#[test]
fn every_op_is_in_a_kernel() {
    let text = std::str::from_utf8(bundle().trunk_ir().unwrap()).unwrap();
    let trunk = unglue_ir::text::parse_module(text).unwrap();
    let report = report();
    let names: BTreeSet<&str> = manifest().kernels.iter().map(|k| k.name.as_str()).collect();
    for bucket in report["buckets"].as_array().unwrap() {
        let bodies = bucket["bodies"].as_array().unwrap();
        assert_eq!(bodies.len(), trunk.bodies.len());
        for (reported, declared) in bodies.iter().zip(&trunk.bodies) {
            let at = format!("{} for {} rows", declared.name, bucket["rows_max"]);
            assert_eq!(reported["body"], declared.name, "{at}");
            let ops = reported["ops"].as_array().unwrap();
            let homeless: Vec<_> = ops.iter().filter(|o| o["kernels"].as_array().unwrap().is_empty()).collect();
            assert!(homeless.is_empty(), "{at}: {homeless:?}");
            let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
            ops.iter().for_each(|o| *kept.entry(o["op"].as_str().unwrap()).or_default() += 1);
            for (op, n) in heavy_ops(declared) {
                assert_eq!(kept.get(op).copied().unwrap_or(0), n, "{at}: {op}");
            }
            for kernel in reported["kernels"].as_array().unwrap() {
                assert!(names.contains(kernel["name"].as_str().unwrap()), "{at}: {}", kernel["name"]);
            }
        }
    }
}

/// How often a body has each op that is more than elementwise.
fn heavy_ops(body: &unglue_ir::graph::Graph) -> BTreeMap<&'static str, usize> {
    let mut count = BTreeMap::new();
    for op in body.nodes.iter().map(|n| &n.op) {
        let light = matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Cast(_) | Op::ConstF32(_) | Op::Reduce { .. });
        let leaf = matches!(op, Op::Input { .. } | Op::Weight { .. } | Op::State { .. });
        if !light && !leaf && !GLUE.contains(&op.name()) {
            *count.entry(op.name()).or_default() += 1;
        }
    }
    count
}

#[test]
fn states_are_those_of_the_layer_kinds() {
    let count = |role| manifest().states.iter().filter(|s| s.role == role).count();
    for role in [StateRole::Recurrent, StateRole::Conv] {
        assert_eq!(count(role), KDA_LAYERS, "{role:?}");
    }
    for role in [StateRole::Latent, StateRole::PoolKeys, StateRole::Tail] {
        assert_eq!(count(role), DSA_LAYERS, "{role:?}");
    }
    assert_eq!(manifest().states.len(), 2 * KDA_LAYERS + 3 * DSA_LAYERS);
    assert_eq!(manifest().slot_tables.len(), MOE_LAYERS);
    assert!(manifest().slot_tables.iter().all(|t| (t.experts, t.slots) == (EXPERTS as u64, EXPERTS as u64)));
}

#[test]
fn weights_are_those_of_the_layer_kinds() {
    let m = manifest();
    let stacks: Vec<_> = m.weights.iter().filter(|w| w.sources.len() == EXPERTS).collect();
    assert_eq!(stacks.len(), 3 * MOE_LAYERS, "gate, up and down of every expert");
    // Sites 9 a layer, KDA 10, DSA 14, dense 3, MoE 8, and embedding, final norm and head.
    let expected = 9 * LAYERS + 10 * KDA_LAYERS + 14 * DSA_LAYERS + 3 * (LAYERS - MOE_LAYERS) + 8 * MOE_LAYERS + 3;
    assert_eq!(m.weights.len(), expected);
    let elements: u64 = m.weights.iter().map(|w| w.shape.iter().product::<u64>()).sum();
    // 42 layers x 288 experts x 3 x 4096 x 2048 are 304.4e9 of them.
    assert!((310..320).contains(&(elements / 1_000_000_000)), "{elements} elements");
    let read: BTreeSet<u32> = m.buckets[0].launches.iter().flat_map(|l| &l.args).filter_map(weight).collect();
    assert_eq!(read.len(), m.weights.len(), "a weight that no launch of the one-row bucket reads");
    assert!(m.weights.iter().all(|w| matches!(w.mem, Mem::Bf16 | Mem::F32)));
}

fn weight(arg: &Arg) -> Option<u32> {
    if let Arg::Weight(i) = arg { Some(*i) } else { None }
}
