//! `compile --tap`: stored inner values have the bits of the interpreter's.

use std::collections::BTreeMap;
use std::path::Path;

use unglue_ir::graph::ValueId;
use unglue_ir::module::Module;
use unglue_ir::op::Op;
use unglue_ir::types::Type;
use unglue_models::Activation;
use unglue_models::config::FieldPolicy;
use unglue_models::glm5_next::{self, BuildOptions, Config};
use unglue_passes::schedule::is_view;
use unglue_runtime::Bundle;

use super::common::{AUX, BUILDS, Case, Entry, MODEL, dump, list, load, scratch, succeed, unglue};

/// The tiny trunk.
fn trunk(dtype: Activation) -> Module {
    let text = std::fs::read_to_string(Path::new(MODEL).join("config.json")).unwrap();
    let config = Config::from_json(&text, &FieldPolicy::default()).unwrap();
    glm5_next::trunk(&config, &BuildOptions { dtype, ..BuildOptions::default() }).unwrap().module
}

fn compile(name: &str, taps: &str, more: &[&str]) -> std::path::PathBuf {
    let bundle = scratch(name);
    let args = ["compile", MODEL, "-o", bundle.to_str().unwrap(), "--tap", taps, "--json"];
    succeed(&[&args[..], more].concat());
    bundle
}

/// What `--dump` writes without `--taps`, but for the logits.
fn tapped(input: &Path, name: &str, more: &[&str]) -> BTreeMap<String, Entry> {
    let file = scratch(&format!("{name}.safetensors"));
    let ids = list(&Case::of("short").ids);
    let args = ["run", input.to_str().unwrap(), "--ids", &ids, "--steps", "0", "--dump", file.to_str().unwrap()];
    succeed(&[&args[..], more].concat());
    let mut all = load(&file);
    all.remove("logits").unwrap();
    all
}

/// Numbers of a body's values that its kernels can store.
fn computed(module: &Module, body: &str) -> Vec<u32> {
    let g = module.bodies.iter().find(|b| b.name == body).unwrap();
    let fits = |id: &ValueId| {
        // What a value is a view of may be stored by an earlier call, or be no activation.
        let mut under = *id;
        while is_view(&g.node(under).op) {
            under = g.node(under).args[0];
        }
        let leaf = matches!(g.node(under).op, Op::Input { .. } | Op::Weight { .. } | Op::ConstF32(_));
        // Values of weights alone have no rows to launch over.
        !leaf && matches!(g.ty(*id), Type::Tensor(t) if t.shape.first().is_some_and(|d| d.fixed().is_none()))
    };
    g.ids().filter(fits).map(|id| id.0).collect()
}

/// Each computed value of a body: stored by its kernel, at the bits of the interpreter.
#[test]
fn every_value_of_a_body_can_be_tapped() {
    for (body, name, dtype) in [("kda", "bf16", Activation::Bf16), ("moe", "f32", Activation::F32)] {
        let values = computed(&trunk(dtype), body);
        assert!(values.len() > 60, "{values:?}");
        let taps = values.iter().map(|v| format!("{body}%{v}")).collect::<Vec<_>>().join(",");
        let bundle = compile(&format!("tap-{body}.ug"), &taps, &["--dtype", name]);
        let ours = tapped(&bundle, &format!("tap-{body}"), &[]);
        let interp = ["--device", "interp", "--dtype", name, "--tap", &taps];
        let want = tapped(Path::new(MODEL), &format!("tap-{body}-interp"), &interp);
        assert!(ours.keys().eq(want.keys()) && ours.len() >= values.len(), "{:?}", ours.keys());
        let manifest = Bundle::open(&bundle).unwrap().manifest().clone();
        for (tapped, value) in &ours {
            // A view may keep the shape of what it looks at.
            assert!((value.0, &value.2) == (want[tapped].0, &want[tapped].2), "{tapped} has other bits");
            let (site, _) = tapped.split_once('%').unwrap();
            let tap = manifest.outputs.taps.iter().find(|t| t.name == *tapped).unwrap();
            for (bucket, after) in manifest.buckets.iter().zip(&tap.after_launch) {
                assert_eq!(bucket.launches[*after as usize].site, site, "{tapped} is stored elsewhere");
            }
        }
    }
}

/// By name all ops of it; what else is dumped does not change.
#[test]
fn names_stand_for_all_ops_of_a_name() {
    let module = trunk(Activation::Bf16);
    let ops = |b: u32| module.bodies[b as usize].nodes.iter().filter(|n| n.op.name() == "top_k").count();
    let wanted: usize = module.calls.iter().map(|c| ops(c.body)).sum();
    let case = Case::of("short");
    let bundle = compile("tap-names.ug", "top_k", &["--dtype", "bf16", "--aux", AUX]);
    let with = load(&dump("tap-names", &bundle, &case.ids, &[]));
    assert_eq!(with.keys().filter(|n| n.contains('%')).count(), wanted);
    let without = load(&dump("tap-none", BUILDS[1].bundle(), &case.ids, &[]));
    let rest: BTreeMap<_, _> = with.into_iter().filter(|(n, _)| !n.contains('%')).collect();
    assert!(rest == without, "{:?} {:?}", rest.keys(), without.keys());
}

#[test]
fn values_that_cannot_be_stored_are_refused() {
    let out = scratch("tap-refused.ug");
    for (tap, says) in [
        ("kda%0", "which no kernel computes"),
        ("kda%99999", "a number below"),
        ("kad%1", "nearest: kda"),
        ("kda%x", "an op by number"),
        ("delta_rule", "one of them"),
        ("top_kk", "nearest: top_k"),
    ] {
        let done = unglue(&["compile", MODEL, "-o", out.to_str().unwrap(), "--tap", tap]);
        let message = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2), "{tap}: {message}");
        assert!(message.contains("--tap") && message.contains(says), "{tap}: {message}");
        assert!(!out.exists());
    }
    let bundle = BUILDS[1].bundle().to_str().unwrap();
    let done = unglue(&["run", bundle, "--ids", "1", "--tap", "kda%30"]);
    assert_eq!(done.status.code(), Some(2), "a bundle has the taps that it was compiled with");
}
