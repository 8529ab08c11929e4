//! `unglue bisect` on the tiny golden model: right code, and code of another config or trunk in the bundle's place.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::{Value, json};
use tempfile::TempDir;
use unglue_ir::graph::{Graph, Node, ValueId};
use unglue_ir::op::{Op, Unary};
use unglue_ir::types::{DType, TensorType, Type};
use unglue_models::config::FieldPolicy;
use unglue_models::glm5_next::{BuildOptions, Config};
use unglue_models::safetensors::{SafeTensors, TensorOut, write};
use unglue_runtime::manifest::{Manifest, PartKind};
use unglue_runtime::{Bundle, PartData, write_bundle};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/glm5_next_tiny");
const IDS: &str = "5,6,7,8,9";

fn unglue(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unglue")).args(args).output().unwrap()
}

fn compile(name: &str, input: &Path, options: &[&str]) -> PathBuf {
    let bundle = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let args = ["compile", input.to_str().unwrap(), "-o", bundle.to_str().unwrap(), "--json"];
    let done = unglue(&[&args[..], options].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    bundle
}

const BOTH: [&str; 4] = ["--layers", "0", "--target", "x86-64,gfx1201"];

/// One layer.
static RIGHT: LazyLock<PathBuf> =
    LazyLock::new(|| compile("bisect-right.ug", &Path::new(MODEL).join("config.json"), &BOTH));

/// The same kernels by name, with the code of a config that clamps the gate elsewhere.
static WRONG: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let dir = TempDir::new().unwrap();
    let other = compile("bisect-other.ug", &clamped(dir.path(), 0.25), &BOTH);
    let path = with_code_of(&RIGHT, &other, dir.path());
    (dir, path)
});

/// The model's config with another limit of the gate.
fn clamped(dir: &Path, limit: f64) -> PathBuf {
    let text = std::fs::read_to_string(Path::new(MODEL).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["text_config"]["swiglu_limit"] = json!(limit);
    let file = dir.join(format!("clamp-{limit}.json"));
    std::fs::write(&file, config.to_string()).unwrap();
    file
}

/// `right` with the code of a bundle whose kernels have the same names.
fn with_code_of(right: &Path, other: &Path, dir: &Path) -> PathBuf {
    let (right, other) = (Bundle::open(right).unwrap(), Bundle::open(other).unwrap());
    let names = |b: &Bundle| b.manifest().kernels.iter().map(|k| k.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&right), names(&other));
    // Not their names: a constant more or less moves the numbers of values.
    let kinds = |k: &unglue_runtime::manifest::Kernel| k.params.iter().map(|p| p.kind).collect::<Vec<_>>();
    let params = |b: &Bundle| b.manifest().kernels.iter().map(kinds).collect::<Vec<_>>();
    assert_eq!(params(&right), params(&other), "code for other arguments");
    rewritten(&right, &other, dir, |_| {})
}

/// `right` with the code of `code` and another manifest.
fn rewritten(right: &Bundle, code: &Bundle, dir: &Path, edit: impl FnOnce(&mut Manifest)) -> PathBuf {
    let part = |part: &unglue_runtime::manifest::Part| {
        let from = if matches!(part.kind, PartKind::Code { .. }) { code } else { right };
        PartData { path: part.path.clone(), kind: part.kind.clone(), bytes: from.part(&part.path).unwrap().to_vec() }
    };
    let parts: Vec<PartData> = right.manifest().parts.iter().map(part).collect();
    let path = dir.join("rewritten.ug");
    let mut m = right.manifest().clone();
    edit(&mut m);
    write_bundle(&path, m, &parts).unwrap();
    path
}

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
        assert!(differs["value"].as_str().unwrap().starts_with("layer0.dense%"), "{step}");
        assert_ne!(differs["device"], differs["interpreter"]);
        assert_eq!((&step["found"], &step["wrong"]["seed"]), (&json!("old_code"), &Value::Null), "{step}");
        assert_eq!(step["wrong"]["device"], differs["device"], "the split is on the step's inputs: {step}");
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

/// Bisects a step that must be wrong.
fn wrong_step(bundle: &Path, weights: &Path, ids: &str) -> Value {
    let done = bisect(bundle, &["--json", "--ids", ids, "--weights", weights.to_str().unwrap()]);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    json_of(&done)
}

/// The tiny checkpoint with the gate of layer 0 so large that it is clamped far from what is drawn.
fn large_gate(dir: &Path) -> PathBuf {
    let file = SafeTensors::open(&Path::new(MODEL).join("model.safetensors")).unwrap();
    let scaled = |name: &str, bytes: &[u8]| -> Vec<u8> {
        if !name.contains("layers.0.mlp.gate_proj") && !name.contains("layers.0.mlp.up_proj") {
            return bytes.to_vec();
        }
        let large = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16) * 8192.0;
        bytes.chunks(2).flat_map(|b| ((large(b).to_bits() >> 16) as u16).to_le_bytes()).collect()
    };
    let names: Vec<String> = file.names().map(str::to_owned).collect();
    let tensors: Vec<_> = names.iter().map(|n| (n, file.tensor(n).unwrap())).collect();
    let bytes: Vec<Vec<u8>> = tensors.iter().map(|(n, t)| scaled(n, t.bytes)).collect();
    let out: Vec<TensorOut> = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, t), bytes)| TensorOut { name, dtype: t.dtype, shape: t.shape, bytes })
        .collect();
    let folder = dir.join("large");
    std::fs::create_dir(&folder).unwrap();
    write(&folder.join("model.safetensors"), &out).unwrap();
    std::fs::copy(Path::new(MODEL).join("config.json"), folder.join("config.json")).unwrap();
    folder
}

/// Two limits that no drawn gate reaches: only the step's inputs show which of them the code has.
#[test]
fn what_only_special_inputs_show_is_split_on_them() {
    let dir = TempDir::new().unwrap();
    let cpu = ["--layers", "0", "--target", "x86-64"];
    let right = compile("bisect-limit-500.ug", &clamped(dir.path(), 500.0), &cpu);
    let other = compile("bisect-limit-900.ug", &clamped(dir.path(), 900.0), &cpu);
    let wrong = with_code_of(&right, &other, dir.path());
    assert!(bisect(&wrong, &[]).status.success(), "drawn inputs must not show it");
    let weights = large_gate(dir.path());
    assert!(bisect(&right, &["--ids", IDS, "--weights", weights.to_str().unwrap()]).status.success());
    let found = wrong_step(&wrong, &weights, IDS);
    assert!(found["differs"]["kernel"].as_str().unwrap().contains("dense_"), "{found}");
    // The parts that are made anew are right on the same inputs.
    assert_eq!((&found["found"], &found["wrong"]["seed"]), (&json!("old_code"), &Value::Null), "{found}");
    assert!(found["parts"].as_u64().unwrap() > 10, "{found}");
}

/// A body that writes `what` of a row where it should write the row, and the number of that write: a cast and the op come
/// before it.
fn other_row(g: &Graph, what: Unary) -> (Graph, Option<usize>) {
    let mut out = Graph { nodes: vec![], ..g.clone() };
    let (mut now, mut write): (Vec<ValueId>, _) = (vec![], None);
    let push = |out: &mut Graph, node: Node| {
        out.nodes.push(node);
        ValueId(out.nodes.len() as u32 - 1)
    };
    for id in g.ids() {
        let mut node = g.node(id).clone();
        node.args.iter_mut().for_each(|a| *a = now[a.index()]);
        if node.op == Op::TokenWrite && write.is_none() {
            let ty = g.ty(g.node(id).args[0]).clone();
            let wide = Type::Tensor(TensorType::plain(DType::F32, ty.tensor().unwrap().shape.clone()));
            for (op, ty) in [
                (Op::Cast(DType::F32), wide.clone()),
                (Op::Unary(what), wide.clone()),
                (Op::Cast(ty.tensor().unwrap().dtype().unwrap()), ty.clone()),
            ] {
                node.args[0] = push(&mut out, Node { op, args: vec![node.args[0]], ty });
            }
            write = Some(out.nodes.len());
        }
        now.push(push(&mut out, node));
    }
    out.outputs.iter_mut().for_each(|(_, v)| *v = now[v.index()]);
    (out, write)
}

/// A layer with other latent rows, which the kernel that writes them forms.
fn with_rows(dir: &Path, what: Unary) -> PathBuf {
    let text = std::fs::read_to_string(Path::new(MODEL).join("config.json")).unwrap();
    let config = Config::from_json(&text, &FieldPolicy { allow: vec![] }).unwrap();
    let layer = BuildOptions { layers: Some(vec![3..=3]), ..BuildOptions::default() };
    let mut trunk = unglue_models::glm5_next::trunk(&config, &layer).unwrap().module;
    let mut pairs = vec![];
    for body in &mut trunk.bodies {
        let (graph, write) = other_row(body, what);
        *body = graph;
        if let Some(write) = write {
            pairs = [1, 2].map(|n| format!("{0}%{1},{0}%{2}", body.name, write - n, write + 1 - n)).to_vec();
        }
    }
    let file = dir.join(format!("{}.ir", what.name()));
    std::fs::write(&file, unglue_ir::text::print_module(&trunk)).unwrap();
    let name = format!("bisect-rows-{}.ug", what.name());
    let forced: Vec<&str> = pairs.iter().flat_map(|p| ["--force-fuse", p.as_str()]).collect();
    compile(&name, &file, &[&["--target", "x86-64", "--cover", "greedy"], &forced[..]].concat())
}

#[test]
fn a_spoiled_state_is_found_where_it_is_written() {
    let dir = TempDir::new().unwrap();
    let right = with_rows(dir.path(), Unary::Neg);
    let done = bisect(&right, &["--ids", IDS, "--weights", MODEL]);
    assert!(done.status.success(), "{done:?}");
    let wrong = with_code_of(&right, &with_rows(dir.path(), Unary::Abs), dir.path());
    for ids in ["5", IDS] {
        let found = wrong_step(&wrong, Path::new(MODEL), ids);
        let differs = &found["differs"];
        assert_eq!(differs["value"], "state layer3.latent", "{found}");
        assert_eq!((&differs["token"], &found["found"]), (&Value::Null, &json!("old_code")), "{found}");
    }
}

/// Weights that are read from each other's tensors: every launch is right on what it is given.
#[test]
fn right_launches_on_wrong_weights_are_not_the_declared_ones() {
    let dir = TempDir::new().unwrap();
    let right = Bundle::open(&*RIGHT).unwrap();
    let swapped = rewritten(&right, &right, dir.path(), |m| {
        let at = |name: &str| m.weights.iter().position(|w| w.name == name).unwrap();
        let (a, b) = (at("layer0.gate_proj"), at("layer0.up_proj"));
        let (of_a, of_b) = (m.weights[a].sources.clone(), m.weights[b].sources.clone());
        (m.weights[a].sources, m.weights[b].sources) = (of_b, of_a);
    });
    let found = wrong_step(&swapped, Path::new(MODEL), IDS);
    assert_eq!(found["found"], "not_declared", "{found}");
    assert!(found["differs"]["value"].as_str().unwrap().starts_with("layer0.dense%"), "{found}");
}

/// Tiles, and rewrites that are not exact: no launch has the declared bits, and each is right on what it is given.
#[test]
fn launches_of_inexact_bundles_are_judged_in_their_bounds() {
    let dir = TempDir::new().unwrap();
    let config = Path::new(MODEL).join("config.json");
    let options = ["--layers", "0", "--cover", "greedy", "--target", "x86-64"];
    let tiles: Vec<String> = (1..=20).map(|i| i.to_string()).collect();
    for (name, more, ids, declared) in [
        ("tiles", ["--max-rows", "64"], tiles.join(","), false),
        ("tiles", ["--max-rows", "64"], IDS.to_owned(), true),
        ("fast", ["--numerics", "fast"], IDS.to_owned(), false),
    ] {
        let all = [&options[..], &more[..]].concat();
        let right = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bisect-{name}.ug"));
        if !right.exists() {
            compile(&format!("bisect-{name}.ug"), &config, &all);
        }
        let done = bisect(&right, &["--json", "--ids", &ids, "--weights", MODEL]);
        assert!(done.status.success(), "{name}: {done:?}");
        assert_eq!(json_of(&done)["declared"], json!(declared), "{name}");
        if !declared {
            let other = compile(&format!("bisect-{name}-other.ug"), &clamped(dir.path(), 0.25), &all);
            let sub = dir.path().join(name);
            std::fs::create_dir(&sub).unwrap();
            let found = wrong_step(&with_code_of(&right, &other, &sub), Path::new(MODEL), &ids);
            assert!(found["differs"]["kernel"].as_str().unwrap().contains("dense_"), "{name}: {found}");
        }
    }
}
