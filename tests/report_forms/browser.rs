//! `--html` in headless Chromium. `scripts/setup --browser` installs it; without it the tests fail.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bundles::{REAL, TINY, written};
use crate::devtools::Tab;

const SCREENSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/report.png");
/// For what follows from an input; far more than any takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A page that is open in a browser of its own.
struct Opened {
    tab: Tab,
    _dir: TempDir,
}

fn open(bundle: &Path, more: &[&str]) -> Opened {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("report.html");
    std::fs::write(&file, written(bundle, "--html", more)).unwrap();
    let mut page = Opened { tab: Tab::open(&format!("file://{}", file.display())), _dir: dir };
    page.becomes("document.readyState", &json!("complete"));
    page
}

impl Opened {
    fn js(&mut self, expression: &str) -> Value {
        self.tab.evaluate(expression)
    }

    /// Waits until an expression has a value.
    fn becomes(&mut self, expression: &str, wanted: &Value) {
        let start = Instant::now();
        while self.js(expression) != *wanted {
            assert!(start.elapsed() < PATIENCE, "{expression} is {}, not {wanted}", self.js(expression));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Middle of an element in the window.
    fn middle(&mut self, selector: &str) -> (f64, f64) {
        let place = self.js(&format!(
            "(() => {{ const e = document.querySelector('{selector}'); e.scrollIntoView({{ block: 'center' }}); \
             const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        ));
        (place[0].as_f64().unwrap(), place[1].as_f64().unwrap())
    }

    fn click(&mut self, selector: &str) {
        let at = self.middle(selector);
        self.tab.mouse("mousePressed", at, 0.0);
        self.tab.mouse("mouseReleased", at, 0.0);
    }

    fn type_into(&mut self, selector: &str, text: &str) {
        self.click(selector);
        self.tab.call("Input.insertText", json!({ "text": text }));
    }

    fn transform(&mut self) -> String {
        self.js("document.getElementById('viewport').getAttribute('transform')").as_str().unwrap().to_owned()
    }

    /// Nothing went wrong, and nothing was asked for.
    fn finish(mut self) {
        assert_eq!(self.js("performance.getEntriesByType('resource').length"), json!(0));
        assert!(self.tab.errors().is_empty(), "{:?}", self.tab.errors());
    }
}

const SHOWN: &str =
    "[...document.querySelectorAll('#kernels tbody tr')].filter(r => !r.hidden).map(r => r.dataset.kernel)";

fn names(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect()
}

#[test]
fn filter_narrows_the_table() {
    let mut page = open(&TINY, &[]);
    let all = names(&page.js(SHOWN));
    page.type_into("#filter", "kda_");
    let wanted: Vec<&String> = all.iter().filter(|n| n.contains("kda_")).collect();
    assert!(!wanted.is_empty() && wanted.len() < all.len());
    page.becomes(SHOWN, &json!(wanted));
    let counted = format!("{} of {} kernels", wanted.len(), all.len());
    page.becomes("document.getElementById('shown').textContent", &json!(counted));
    page.finish();
}

#[test]
fn sort_reorders_the_table() {
    let mut page = open(&TINY, &[]);
    let before = names(&page.js(SHOWN));
    let mut sorted = before.clone();
    sorted.sort();
    assert_ne!(before, sorted);
    page.click("#kernels th[data-key=name] button");
    page.becomes(SHOWN, &json!(sorted));
    sorted.reverse();
    page.click("#kernels th[data-key=name] button");
    page.becomes(SHOWN, &json!(sorted));
    // Numbers sort as numbers, the largest first.
    page.click("#kernels th[data-key=ns] button");
    let column = "[...document.querySelectorAll('#kernels th')].findIndex(h => h.dataset.key === 'ns')";
    let cells =
        format!("[...document.querySelectorAll('#kernels tbody tr')].map(r => Number(r.cells[{column}].textContent))");
    page.becomes(&format!("{cells}.every((t, i, all) => i === 0 || all[i - 1] >= t)"), &json!(true));
    let last = "document.querySelector('#kernels tbody').lastElementChild.cells.length";
    assert!(page.js(last).as_u64().unwrap() >= 17, "no emulated columns");
    page.finish();
}

#[test]
fn zoom_and_drag_change_the_transform() {
    let mut page = open(&TINY, &[]);
    let scale = |t: &str| t.split("scale(").nth(1).unwrap().trim_end_matches(')').parse::<f64>().unwrap();
    let fitted = page.transform();
    page.click("#zoom-in");
    let nearer = page.transform();
    assert!((scale(&nearer) / scale(&fitted) - 1.25).abs() < 1e-9, "{fitted} {nearer}");
    page.click("#zoom-fit");
    assert_eq!(page.transform(), fitted);
    let smaller =
        "Number(document.getElementById('viewport').getAttribute('transform').split('scale(')[1].slice(0, -1))";
    let at = page.middle("#picture");
    page.tab.mouse("mouseWheel", at, 100.0);
    page.becomes(&format!("{smaller} < {}", scale(&fitted)), &json!(true));
    page.click("#zoom-fit");
    let at = page.middle("#picture");
    let to = (at.0 + 60.0, at.1 + 30.0);
    page.tab.mouse("mousePressed", at, 0.0);
    page.tab.mouse("mouseMoved", to, 0.0);
    page.tab.mouse("mouseReleased", to, 0.0);
    let dragged = page.transform();
    assert!(dragged != fitted && scale(&dragged) == scale(&fitted), "{fitted} {dragged}");
    page.finish();
}

#[test]
fn search_highlights_kernels_and_ops() {
    let mut page = open(&TINY, &[]);
    page.click("#bodies button[data-body=kda]");
    page.type_into("#search", "delta_rule");
    page.becomes("document.querySelectorAll('#picture .op.hit').length", &json!(1));
    assert!(
        page.js("document.querySelector('#picture .op.hit text').textContent")
            .as_str()
            .unwrap()
            .ends_with(" delta_rule")
    );
    let kernels = "[...document.querySelectorAll('#kernels tbody tr.hit')].map(r => r.dataset.kernel)";
    let found = names(&page.js(kernels));
    let all = names(&page.js("[...document.querySelectorAll('#kernels tbody tr')].map(r => r.dataset.kernel)"));
    let wanted: Vec<String> = all.into_iter().filter(|n| n.contains("delta_rule")).collect();
    assert!(wanted.len() == 1 && found == wanted, "{found:?} {wanted:?}");
    assert_eq!(
        page.js("[...document.querySelectorAll('#picture .kernel.hit')].map(k => k.dataset.kernel)"),
        json!(found)
    );
    assert!(page.js("document.querySelectorAll('#timeline .launch.hit').length").as_u64().unwrap() > 0);
    page.finish();
}

#[test]
fn click_on_a_kernel_shows_its_details() {
    let mut page = open(&TINY, &[]);
    page.click("#kernels tbody tr[data-kernel=kda_o_proj]");
    page.becomes("document.querySelector('#details h3').textContent", &json!("kda_o_proj"));
    page.becomes("document.querySelector('#bodies [aria-pressed=true]').dataset.body", &json!("kda"));
    assert_eq!(page.js("document.querySelector('#picture .kernel.selected').dataset.kernel"), json!("kda_o_proj"));
    page.finish();
}

#[test]
fn details_name_source_lines_and_what_a_kernel_costs() {
    let mut page = open(&TINY, &[]);
    page.click("#kernels tbody tr[data-kernel=kda_o_proj]");
    page.becomes("document.querySelector('#details h3').textContent", &json!("kda_o_proj"));
    let details = page.js("document.getElementById('details').textContent").as_str().unwrap().to_owned();
    for part in ["models/src/glm5_next/kda.rs:", "Saves at most", "FLOPs a byte", "serial chain", "us, sm_90", "spills"]
    {
        assert!(details.contains(part), "{part}: {details}");
    }
    page.finish();
}

#[test]
fn steps_of_few_rows_are_in_a_table() {
    let mut page = open(&TINY, &[]);
    let report = "JSON.parse(document.getElementById('data').textContent).report";
    let rows = page.js("document.querySelectorAll('#totals-steps tbody tr').length");
    let wanted = format!("{report}.steps.reduce((n, s) => n + Object.keys(s.by_class).length + 1, 0)");
    assert_eq!(rows, page.js(&wanted));
    let kinds = page.js("document.querySelectorAll('#bodies button').length");
    assert_eq!(page.js("document.querySelectorAll('#totals-activations tbody tr').length"), kinds);
    page.finish();
}

#[test]
fn timeline_has_a_track_for_each_class() {
    let mut page = open(&TINY, &[]);
    let tops = "new Set([...document.querySelectorAll('#timeline .launch rect')].map(r => r.getAttribute('y'))).size";
    assert_eq!(page.js(tops), json!(1));
    page.click("#timeline-lanes");
    let report = "JSON.parse(document.getElementById('data').textContent).report";
    let classes = page.js(&format!("Object.keys({report}.buckets[0].by_class).length"));
    page.becomes(tops, &classes);
    page.becomes("document.querySelectorAll('#timeline .lane').length", &classes);
    let launches = page.js(&format!("{report}.buckets[0].total.launches"));
    assert_eq!(page.js("document.querySelectorAll('#timeline .launch').length"), launches);
    page.click("#timeline-lanes");
    page.becomes(tops, &json!(1));
    page.finish();
}

#[test]
fn every_list_and_layer_kind_of_the_real_model_is_drawn() {
    let mut page = open(&REAL, &[]);
    let report = "JSON.parse(document.getElementById('data').textContent).report";
    for list in 0..3 {
        let choose = format!(
            "(() => {{ const s = document.getElementById('list'); s.value = '{list}'; \
             s.dispatchEvent(new Event('change')); return s.value; }})()"
        );
        assert_eq!(page.js(&choose), json!(list.to_string()));
        let launches = page.js(&format!("{report}.buckets[{list}].total.launches"));
        assert_eq!(page.js("document.querySelectorAll('#timeline .launch').length"), launches);
        for body in names(&page.js("[...document.querySelectorAll('#bodies button')].map(b => b.dataset.body)")) {
            page.click(&format!("#bodies button[data-body={body}]"));
            let kernels = format!("{report}.buckets[{list}].bodies.find(b => b.body === '{body}').kernels.length");
            let drawn = page.js("document.querySelectorAll('#picture .kernel').length");
            assert_eq!(drawn, page.js(&kernels), "{body} of list {list}");
        }
    }
    page.finish();
}

#[test]
fn measured_columns_are_there_with_a_trace() {
    let dir = TempDir::new().unwrap();
    let trace = dir.path().join("t.json");
    std::fs::write(&trace, written(&TINY, "--trace", &[])).unwrap();
    let mut page = open(&TINY, &["--measured", trace.to_str().unwrap()]);
    let ratios = "[...document.querySelectorAll('#kernels tbody tr')].map(r => r.lastElementChild.textContent)";
    assert!(names(&page.js(ratios)).iter().all(|r| r == "1.00"));
    page.finish();
}

/// The README's picture: `UPDATE=1 cargo test --features long-tests --test report_forms screenshot`.
#[test]
fn screenshot_of_the_real_model() {
    let mut page = open(&REAL, &[]);
    page.click("#bodies button[data-body=kda]");
    page.click("#kernels tbody tr[data-kernel$=delta_rule]");
    page.js("[scrollTo(0, 0)].length");
    let png = page.tab.screenshot();
    assert!(png.starts_with(b"\x89PNG") && png.len() < 300_000, "{} bytes", png.len());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(SCREENSHOT, png).unwrap();
    }
    assert!(Path::new(SCREENSHOT).is_file());
    page.finish();
}
