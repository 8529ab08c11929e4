//! `schema/report.schema.json` says what `report.json` holds, no more and no less.

use std::collections::BTreeMap;
use std::path::Path;

use jsonschema::Validator;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};
use unglue_passes::report::PassReport;
use unglue_runtime::Bundle;

use crate::bundles::{REAL, TINY};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/report.schema.json");
/// Fields whose objects have keys of their own: names and numbers.
const MAPS: [&str; 11] = [
    "fired",
    "paid",
    "made_from",
    "rewritten",
    "loose",
    "touched",
    "picks",
    "obstacles",
    "by_class",
    "by_body",
    "by_target",
];

/// The schema of what is written, from the types.
fn generated() -> String {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<PassReport>();
    schema.insert("title".into(), json!("report.json of an unglue bundle"));
    serde_json::to_string_pretty(&schema).unwrap() + "\n"
}

fn validator() -> Validator {
    let schema: Value = serde_json::from_slice(&std::fs::read(FILE).unwrap()).unwrap();
    assert_eq!(schema["$schema"], json!("https://json-schema.org/draft/2020-12/schema"));
    jsonschema::meta::validate(&schema).unwrap_or_else(|e| panic!("the schema itself: {e}"));
    jsonschema::validator_for(&schema).unwrap()
}

fn report(bundle: &Path) -> Value {
    serde_json::from_slice(Bundle::open(bundle).unwrap().report().unwrap()).unwrap()
}

/// After a change of the types: `UPDATE=1 cargo test --test report_forms schema`, and look at the diff.
#[test]
fn schema_is_that_of_the_types() {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(FILE, generated()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(FILE).unwrap(), generated(), "see the comment above this test");
}

#[test]
fn reports_of_the_tiny_and_the_real_model_are_valid() {
    let validator = validator();
    for bundle in [&*TINY, &*REAL] {
        let report = report(bundle);
        let wrong: Vec<String> =
            validator.iter_errors(&report).take(5).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(wrong.is_empty(), "{}: {wrong:#?}", bundle.display());
    }
}

/// One pointer to each kind of object with fixed fields, by its path without indices.
fn objects(at: &Value, pointer: &str, kind: &str, map: bool, found: &mut BTreeMap<String, String>) {
    match at {
        Value::Object(fields) => {
            if !map {
                let variant = at["kind"].as_str().unwrap_or_default();
                found.entry(format!("{kind}:{variant}")).or_insert_with(|| pointer.into());
            }
            for (name, field) in fields {
                let kind = if map { format!("{kind}/*") } else { format!("{kind}/{name}") };
                objects(field, &format!("{pointer}/{name}"), &kind, !map && MAPS.contains(&name.as_str()), found);
            }
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                objects(item, &format!("{pointer}/{i}"), kind, false, found);
            }
        }
        _ => {}
    }
}

#[test]
fn unknown_and_missing_fields_are_invalid() {
    let validator = validator();
    let good = report(&TINY);
    let mut found = BTreeMap::new();
    objects(&good, "", "", false, &mut found);
    for kind in [":", "/buckets/bodies/kernels:", "/buckets/bodies/edges:", "/buckets/by_class/*:", "/costs/dram:"] {
        assert!(found.contains_key(kind), "no {kind} in {:?}", found.keys());
    }
    for (kind, pointer) in &found {
        let mut more = good.clone();
        more.pointer_mut(pointer).unwrap()["unheard_of"] = json!(1);
        assert!(!validator.is_valid(&more), "an unknown field of {kind} is valid");
        let names: Vec<String> = good.pointer(pointer).unwrap().as_object().unwrap().keys().cloned().collect();
        for name in names {
            let mut less = good.clone();
            less.pointer_mut(pointer).unwrap().as_object_mut().unwrap().remove(&name);
            assert!(!validator.is_valid(&less), "{kind} without {name} is valid");
        }
    }
}

#[test]
fn values_of_another_type_are_invalid() {
    let validator = validator();
    let good = report(&TINY);
    let wrong = [
        ("/kernels", json!("53")),
        ("/buckets/0/total/launches", json!(-1)),
        ("/saturation/0/stop", json!("tired")),
        ("/saturation/0/rewritten", json!({ "x": ["a-rule"] })),
        ("/buckets/0/bodies/0/kernels/0/exactness", json!("nearly")),
    ];
    for (pointer, value) in wrong {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        assert!(!validator.is_valid(&bad), "{pointer}");
    }
}
