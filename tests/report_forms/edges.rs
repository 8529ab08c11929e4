//! Values between the kernels of a body: what one writes and a later one reads, and their sizes.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::bundles::{REAL, document};

/// Number of the value at a port; none for a leaf of the body.
fn number(port: &Value) -> Option<u64> {
    port["value"].as_u64()
}

/// Bytes of a tensor by its text; none for a state.
fn bytes(ty: &str, bucket: &Value) -> Option<u64> {
    let (dtype, shape) = ty.strip_suffix(']')?.split_once('[')?;
    let size = match dtype {
        "f32" | "i32" => 4,
        "bf16" => 2,
        _ => return None,
    };
    let extent = |dim: &str| match dim {
        "R" | "L" => bucket["rows_max"].as_u64().unwrap(),
        "B" => bucket["seqs_max"].as_u64().unwrap(),
        "P" => bucket["pools"].as_u64().unwrap(),
        n => n.parse().unwrap(),
    };
    Some(shape.split(", ").map(extent).product::<u64>() * size)
}

#[test]
fn edges_are_what_kernels_write_and_later_ones_read() {
    let all = document(&REAL);
    for bucket in all["report"]["buckets"].as_array().unwrap() {
        for body in bucket["bodies"].as_array().unwrap() {
            let kernels = body["kernels"].as_array().unwrap();
            let numbers = |k: &Value, side: &str| -> BTreeSet<u64> {
                k[side].as_array().unwrap().iter().filter_map(number).collect()
            };
            let mut wanted = BTreeSet::new();
            for (to, reader) in kernels.iter().enumerate() {
                for (from, writer) in kernels[..to].iter().enumerate() {
                    let shared = &numbers(writer, "writes") & &numbers(reader, "reads");
                    wanted.extend(shared.into_iter().map(|v| (from as u64, to as u64, v)));
                }
            }
            let edges = body["edges"].as_array().unwrap();
            let field = |e: &Value, name: &str| e[name].as_u64().unwrap();
            let found: BTreeSet<_> =
                edges.iter().map(|e| (field(e, "from"), field(e, "to"), field(e, "value"))).collect();
            assert!(found.is_superset(&wanted), "{} lacks {:?}", body["body"], &wanted - &found);
            for e in edges {
                assert!(field(e, "from") < field(e, "to"), "{e}");
                assert_eq!(e["bytes"].as_u64(), bytes(e["ty"].as_str().unwrap(), bucket), "{e}");
            }
            // Every kernel but the first needs another, or reads what the body is given.
            let reads_leaf = |k: &Value| k["reads"].as_array().unwrap().iter().any(|r| number(r).is_none());
            for (i, k) in kernels.iter().enumerate() {
                assert!(reads_leaf(k) || edges.iter().any(|e| field(e, "to") == i as u64), "{}", k["name"]);
            }
        }
    }
}

/// What is written has the size of its type, and nothing read is larger; states have none.
#[test]
fn ports_have_sizes() {
    let all = document(&REAL);
    for bucket in all["report"]["buckets"].as_array().unwrap() {
        for k in bucket["bodies"].as_array().unwrap().iter().flat_map(|b| b["kernels"].as_array().unwrap()) {
            let ports = |side: &str| k[side].as_array().unwrap().clone();
            let size = |p: &Value| bytes(p["ty"].as_str().unwrap(), bucket);
            for port in ports("writes") {
                assert_eq!(port["bytes"].as_u64(), size(&port), "{port}");
            }
            for port in ports("reads") {
                assert!(port["bytes"].as_u64() <= size(&port), "{port}");
                assert_eq!(port["bytes"].is_null(), size(&port).is_none(), "{port}");
            }
            let of = |side: &str| ports(side).iter().filter_map(|p| p["bytes"].as_u64()).sum::<u64>();
            let t = |name: &str| k["traffic"][name].as_u64().unwrap();
            assert_eq!(of("reads"), t("weight_bytes") + t("read_bytes"), "{}", k["name"]);
            assert_eq!(of("writes"), t("written_bytes"), "{}", k["name"]);
        }
    }
}
