//! Dump files that must be equal to the last bit: bundle and interpreter, and one bundle run in different ways.

use std::path::Path;

use super::common::{AUX, BUILDS, Case, MODEL, dump, list, load, succeed};

/// A bundle, on the cpu and in the emulator, gives the bits of the interpreter, which runs the trunk as it is declared: nothing that fusion,
/// scheduling or code generation did changes a bit (P4, P6).
#[test]
fn bundles_equal_the_interpreter() {
    for name in ["long", "short"] {
        let case = Case::of(name);
        let from = case.prefill.to_string();
        for dtype in ["f32", "bf16"] {
            let more = ["--device", "interp", "--dtype", dtype, "--aux", AUX, "--decode-from", &from];
            let want = load(&dump(&format!("interp-{name}-{dtype}"), Path::new(MODEL), &case.ids, &more));
            for build in BUILDS.into_iter().filter(|b| b.dtype == dtype) {
                for device in ["cpu", "gfx12-emu"] {
                    // One op a kernel, emulated over the long case, takes minutes.
                    if (build.cover, device, name) == ("none", "gfx12-emu", "long") && !cfg!(feature = "long-tests") {
                        continue;
                    }
                    let file = format!("bits-{name}-{dtype}-{}-{device}", build.cover);
                    let how = ["--device", device, "--decode-from", &from];
                    let ours = load(&dump(&file, build.bundle(), &case.ids, &how));
                    assert_eq!(ours.len(), 26, "{:?}", ours.keys());
                    for (key, value) in &ours {
                        let want = want.get(key).unwrap_or_else(|| panic!("the interpreter has no {key}"));
                        assert!(value == want, "{name} {build:?} on {device}: {key} has other bits");
                    }
                }
            }
        }
    }
}

/// The interpreter shows more than a bundle can.
#[test]
fn the_interpreter_dumps_inner_values() {
    let case = Case::of("short");
    let all = load(&dump("inner", Path::new(MODEL), &case.ids, &["--device", "interp", "--dtype", "f32"]));
    let golden = load(&Path::new(MODEL).join("expected.safetensors"));
    for name in ["layer0.attn_in", "layer2.mlp_comb", "layer3.router_logits", "layer3.indexer_scores", "layer4.mlp_out"]
    {
        let want = &golden[&format!("short.fp32.{name}")];
        assert_eq!((all[name].0, &all[name].1), (want.0, &want.1), "{name}");
    }
    assert!(!all.keys().any(|k| k.starts_with("aux.")), "no capture was asked for");
}

/// Without --taps the file has the logits alone; they do not depend on what else is read.
#[test]
fn a_dump_without_taps_holds_the_logits() {
    let (bundle, case) = (BUILDS[1].bundle(), Case::of("short"));
    let file = super::common::scratch("logits.safetensors");
    let ids = list(&case.ids);
    succeed(&["run", bundle.to_str().unwrap(), "--ids", &ids, "--dump", file.to_str().unwrap()]);
    let all = load(&dump("taps", bundle, &case.ids, &[]));
    assert_eq!(load(&file), [("logits".to_string(), all["logits"].clone())].into());
}

/// Any chunking, any number of threads, block size and number of generated tokens: the same file.
#[test]
fn chunks_threads_and_blocks_change_no_bit() {
    let case = Case::of("long");
    for build in BUILDS {
        let of = |name: &str, more: &[&str]| {
            let name = format!("same-{}-{}-{name}", build.dtype, build.cover);
            std::fs::read(dump(&name, build.bundle(), &case.ids, more)).unwrap()
        };
        let want = of("first", &["--chunk", "16", "--threads", "1"]);
        for (chunk, threads) in [("1", "1"), ("1", "7"), ("5", "2"), ("16", "7")] {
            let name = format!("{chunk}-{threads}");
            let same = of(&name, &["--chunk", chunk, "--threads", threads]) == want;
            assert!(same, "{build:?}: chunks of {chunk} on {threads} threads");
        }
        assert!(of("singly", &["--decode-from", "3"]) == want, "{build:?}: single steps after a chunk of 3");
        assert!(of("block", &["--block", "4"]) == want, "{build:?}: blocks of one pool");
        assert!(of("steps", &["--steps", "3"]) == want, "{build:?}: generating after it");
    }
}
