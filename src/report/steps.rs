//! What steps of a few rows take by class of kernel, and what their activations move, as tables.

use super::tables::{Page, bytes, us};
use super::view::{Activations, ClassLoad, Report};

/// Launches and time by class: fused, unfused, and at the very least.
pub fn by_class(page: &mut Page, report: &Report) {
    let tag = &report.tag;
    page.title(format!("Steps of a few rows, by class of kernel [counted launches; {tag} times]"));
    let mut rows = Vec::new();
    for step in &report.steps {
        let number = step.rows.to_string();
        let classes = step.by_class.iter().map(|(class, c)| row(&number, class, c, &step.all));
        rows.extend(classes);
        rows.push(row(&number, "all", &step.all, &step.all));
    }
    let heads = [">rows", "class", ">launches", ">unfused", ">us", ">%", ">unfused us", ">floor us", ">floor bytes"];
    page.table(&heads, rows);
    let lists: Vec<String> =
        report.steps.iter().map(|s| format!("{} rows of {} in {}", s.rows, s.seqs, s.list_rows)).collect();
    page.note(&format!(
        "A step runs the smallest launch list that holds it ({}: rows, sequences, rows of the list), with its kernels \
         priced at the rows of the step. A kernel's class is that of its heaviest op. unfused: one op per kernel. floor: the \
         weights that the step reads and the state that it reads and writes, each byte once, at the achieved DRAM rate; no \
         activations, arithmetic, latencies or launches.",
        lists.join(", ")
    ));
}

fn row(rows: &str, class: &str, c: &ClassLoad, all: &ClassLoad) -> Vec<String> {
    let share = c.fused.predicted_ns as f64 * 100.0 / all.fused.predicted_ns.max(1) as f64;
    vec![
        rows.to_owned(),
        class.to_owned(),
        c.fused.launches.to_string(),
        c.unfused.launches.to_string(),
        us(c.fused.predicted_ns),
        format!("{share:.0}"),
        us(c.unfused.predicted_ns),
        us(c.floor.ns),
        bytes(c.floor.bytes),
    ]
}

/// Bytes of activations, of one call by layer kind and of the whole step.
pub fn activations(page: &mut Page, report: &Report) {
    page.title(format!(
        "Activations, and launches that only compute element by element [counted; {} sizes]",
        report.tag
    ));
    let mut rows = Vec::new();
    for b in &report.buckets {
        let mut push = |what: &str, a: &Activations, pointwise: u64| {
            rows.push(vec![
                b.rows_max.to_string(),
                what.to_owned(),
                bytes(a.moved_bytes),
                bytes(a.least_bytes),
                ratio(a),
                bytes(a.issued_bytes),
                pointwise.to_string(),
            ]);
        };
        for body in b.bodies.iter().filter(|x| b.by_body.contains_key(&x.body)) {
            push(&body.body, &body.activations, body.pointwise);
        }
        push("whole step", &b.activations, b.pointwise_launches);
    }
    page.table(&[">rows", "one call of", ">moved", ">least", ">ratio", ">issued", ">pointwise"], rows);
    page.note(
        "moved: each tensor written once, and read once by each launch that reads it. least: written once and read once. \
         issued: read by every workgroup that needs it. pointwise: launches without a heavy op, reduction, gather or \
         scatter.",
    );
}

fn ratio(a: &Activations) -> String {
    if a.least_bytes == 0 { "-".into() } else { format!("{:.2}", a.moved_bytes as f64 / a.least_bytes as f64) }
}
