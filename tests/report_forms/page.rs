//! `--html` without a browser: the page is well-formed, asks for nothing, and its data is the report.

use std::collections::BTreeSet;
use std::path::Path;

use scraper::{Html, Selector};
use serde_json::{Value, json};
use tree_sitter::Parser;

use crate::bundles::{EMULATED, REAL, TINY, document, edited, written};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/report/html");

fn all<'a>(page: &'a Html, selector: &str) -> Vec<scraper::ElementRef<'a>> {
    page.select(&Selector::parse(selector).unwrap()).collect()
}

fn data(page: &Html) -> Value {
    let found: Vec<String> = all(page, "script#data").iter().map(|s| s.text().collect()).collect();
    assert_eq!(found.len(), 1);
    serde_json::from_str(&found[0]).unwrap()
}

fn scripts() -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = std::fs::read_dir(FOLDER)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "js"))
        .map(|p| (p.file_name().unwrap().to_str().unwrap().into(), std::fs::read_to_string(p).unwrap()))
        .collect();
    found.sort();
    found
}

/// True if `text` is JavaScript.
fn is_script(text: &str) -> bool {
    let mut parser = Parser::new();
    parser.set_language(&tree_sitter_javascript::LANGUAGE.into()).unwrap();
    !parser.parse(text, None).unwrap().root_node().has_error()
}

/// All `byId("...")` of the scripts.
fn wanted_ids() -> BTreeSet<String> {
    let texts = scripts();
    let after = texts.iter().flat_map(|(_, text)| text.split("byId(\"").skip(1));
    after.map(|t| t.split('"').next().unwrap().to_owned()).collect()
}

fn check(bundle: &Path) {
    let text = written(bundle, "--html", &[]);
    let page = Html::parse_document(&text);
    assert!(page.errors.is_empty(), "{:?}", page.errors);
    let ids: Vec<&str> = all(&page, "[id]").iter().filter_map(|e| e.value().id()).collect();
    let distinct: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), distinct.len(), "an id twice: {ids:?}");
    for id in wanted_ids() {
        assert!(distinct.contains(id.as_str()), "no element {id}");
    }
    let mut data = data(&page);
    let launches = data.as_object_mut().unwrap().remove("launches").unwrap();
    assert_eq!(data, document(bundle), "the page holds another report than --json prints");
    let buckets = data["report"]["buckets"].as_array().unwrap();
    for (list, bucket) in launches.as_array().unwrap().iter().zip(buckets) {
        assert_eq!(json!(list.as_array().unwrap().len()), bucket["total"]["launches"]);
    }
}

#[test]
fn page_of_the_tiny_model_holds_its_report() {
    check(&TINY);
    let page = Html::parse_document(&written(&TINY, "--html", &[]));
    assert!(data(&page)["emulated"]["kernels"][EMULATED]["counts"].is_object());
}

#[test]
fn page_of_the_real_model_holds_its_report() {
    check(&REAL);
}

#[test]
fn page_is_the_same_each_time() {
    assert_eq!(written(&TINY, "--html", &[]), written(&TINY, "--html", &[]));
}

#[test]
fn page_asks_for_nothing() {
    let page = Html::parse_document(&written(&TINY, "--html", &[]));
    let policy = all(&page, "meta[http-equiv=Content-Security-Policy]");
    assert!(policy[0].attr("content").unwrap().starts_with("default-src 'none'; "), "a request is allowed");
    for attribute in ["src", "href", "action", "data", "srcset", "poster"] {
        for element in all(&page, &format!("[{attribute}]")) {
            let value = element.attr(attribute).unwrap();
            assert!(value.starts_with("data:"), "{attribute}={value}");
        }
    }
    for (name, text) in scripts() {
        for word in ["fetch(", "XMLHttpRequest", "import ", "import(", "WebSocket", "innerHTML", "eval("] {
            assert!(!text.contains(word), "{name} uses {word}");
        }
    }
}

#[test]
fn data_cannot_leave_its_element() {
    let hostile = "</script><script>document.title='x'</script><!--<script>{{style}}\u{2028}";
    let (_dir, bundle) = edited(|r| r["module"] = json!(hostile));
    let page = Html::parse_document(&written(&bundle, "--html", &[]));
    assert_eq!(all(&page, "script").len(), 2);
    assert_eq!(data(&page)["report"]["module"], json!(hostile));
}

#[test]
fn trace_of_a_profiler_reaches_the_page() {
    let dir = tempfile::TempDir::new().unwrap();
    let trace = dir.path().join("t.json");
    std::fs::write(&trace, written(&TINY, "--trace", &[])).unwrap();
    let page = Html::parse_document(&written(&TINY, "--html", &["--measured", trace.to_str().unwrap()]));
    assert_eq!(data(&page)["measured"]["tag"], "measured (t.json)");
}

#[test]
fn scripts_are_scripts() {
    let texts = scripts();
    assert!(texts.len() > 5);
    for (name, text) in &texts {
        assert!(is_script(text), "{name} is not JavaScript");
        assert!(text.lines().count() < 600, "{name} is too long");
        assert!(!text.contains("</script") && !text.contains("<!--"), "{name} ends its own element");
        let cut = text.trim_end().trim_end_matches(['}', ';', ')']);
        assert!(!is_script(&format!("{cut}\n(")), "the check does not see that the end of {name} is missing");
    }
    let whole: String = texts.iter().map(|(_, text)| text.as_str()).collect();
    assert!(is_script(&whole));
}
