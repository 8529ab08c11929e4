//! What each class of rewrites would save.

use super::tables::{Page, us};
use super::view::{Class, Report};

/// One row a level of `--numerics`; bodies that a level does not change say nothing there.
pub(super) fn section(page: &mut Page, report: &Report, built: &str) {
    let Some(exact) = report.classes.first() else { return };
    page.title(format!("What each class of rewrites would save, steps of 1 row [{}]", report.tag));
    let row = |c: &Class| {
        let name = if c.numerics == built { format!("{} (this build)", c.numerics) } else { c.numerics.clone() };
        let loose: u64 = c.bodies.iter().map(|b| b.loose).sum();
        let saved = signed_us(exact.predicted_ns, c.predicted_ns);
        vec![name, c.launches.to_string(), us(c.predicted_ns), saved, loose.to_string(), changes(exact, c)]
    };
    let heads = ["numerics", ">launches", ">us", ">saved us", ">loose", "saved in a call, us"];
    page.table(&heads, report.classes.iter().map(row).collect());
    page.note(
        "Each level allows the rewrites of those above it. With --cover exact, levels up to this build's are as it chose them, \
         and looser ones take the kernels that the program finds for this step alone, without --force-fuse and --forbid-fuse: \
         none is slower than a stricter one. With other covers rewrites are chosen by the extractor's costs, which count \
         arithmetic and no bytes, so that a level may save less than nothing. loose: declared values whose form is not exact, \
         in distinct bodies.",
    );
}

/// The difference in us, with a sign.
fn signed_us(before: u64, after: u64) -> String {
    let difference = before.abs_diff(after);
    let sign = if difference == 0 || after <= before { "" } else { "-" };
    format!("{sign}{:.2}", difference as f64 / 1000.0)
}

fn changes(exact: &Class, c: &Class) -> String {
    let pairs = exact.bodies.iter().zip(&c.bodies).filter(|(a, b)| a.predicted_ns != b.predicted_ns);
    let text = pairs.map(|(a, b)| {
        let launches = match b.launches as i64 - a.launches as i64 {
            0 => String::new(),
            more => format!(" ({more:+} launches)"),
        };
        format!("{} {}{launches}", b.body, signed_us(a.predicted_ns, b.predicted_ns))
    });
    text.collect::<Vec<_>>().join(", ")
}
