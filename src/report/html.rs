//! `unglue report --html`: the report as one page that needs nothing else: style, scripts and data are inside, and its
//! content security policy forbids every request.

use serde_json::{Value, json};
use unglue_runtime::Bundle;

use super::timeline;
use super::view::{Report, Wrong};

const PAGE: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/style.css");
/// In the order in which they need each other.
const SCRIPTS: [&str; 7] = [
    include_str!("html/format.js"),
    include_str!("html/model.js"),
    include_str!("html/picture.js"),
    include_str!("html/table.js"),
    include_str!("html/timeline.js"),
    include_str!("html/totals.js"),
    include_str!("html/main.js"),
];

/// The page. `document` is what `--json` prints.
///
/// # Errors
/// If report and launches do not fit together.
pub fn page(bundle: &Bundle, report: &Report, mut document: Value) -> Result<String, Wrong> {
    let m = bundle.manifest();
    let mut lists = Vec::new();
    for (list, reported) in m.buckets.iter().zip(&report.buckets) {
        let timed = timeline::of(m, list, reported)?;
        let launches: Vec<Value> = timed.iter().map(|t| json!([t.launch.kernel, t.launch.site, t.start_ns])).collect();
        lists.push(Value::from(launches));
    }
    document["launches"] = Value::from(lists);
    Ok(fill(&embedded(&document)))
}

/// JSON that cannot end the element it stands in: `<` occurs in strings alone, and is written as an escape there.
fn embedded(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c")
}

/// The template with its `{{places}}` filled; what is put in is not looked at again.
fn fill(data: &str) -> String {
    let mut out = String::with_capacity(PAGE.len() + STYLE.len() + data.len());
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        let (place, after) = after.split_once("}}").unwrap_or((after, ""));
        match place {
            "style" => out.push_str(STYLE),
            "script" => SCRIPTS.iter().for_each(|s| out.push_str(s)),
            _ => out.push_str(data),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
