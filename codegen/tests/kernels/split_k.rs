//! Waves that share the sums of their outputs: the bits stay those of one wave.

use unglue_passes::schedule::{Bucket, Fit, Form, fit, schedule};

use super::packed_bodies::{Experts, FORMATS, down, up};
use super::{Made, besides, bodies, finishes, run_made};
use unglue_ir::graph::Graph;

/// A machine whose waves must be as short as the test kernels' rows.
static SHORT: Fit = Fit { wave_bytes: Some(256), waves_resident: 1, ..fit::GFX1201 };

/// The kernel with sets of `split_k` waves in workgroups of `waves`, each set with as many outputs.
fn run_split(name: &str, g: &Graph, rows_max: u32, (split_k, waves, outputs): (u32, u32, u32)) {
    let bucket = Bucket { rows_max, seqs_max: 4.min(rows_max), pools: 0, fit: &fit::GFX1201 };
    let mut schedule = schedule(g, &bucket).unwrap_or_else(|o| panic!("{name}: {o:?}"));
    let Form::Skinny(s) = &mut schedule.form else { panic!("{name}: {}", schedule.describe()) };
    for segment in &mut s.segments {
        (segment.split_k, segment.outputs_per_wave, segment.outputs_at_once) = (split_k, outputs, 1);
    }
    schedule.waves = waves;
    assert!(schedule.describe().contains(&format!("each over {split_k} waves")), "{}", schedule.describe());
    let name = format!("{name}_{rows_max}_{split_k}_{waves}");
    run_made(&Made::with(&name, g, bucket, schedule));
}

/// As the scheduler deals it for [`SHORT`]; each segment is over as many waves, in workgroups of `waves`.
fn run_short(name: &str, g: &Graph, rows_max: u32, (split_k, waves): (&[u32], u32)) {
    let made = Made::of(name, g, Bucket { rows_max, seqs_max: 4.min(rows_max), pools: 40, fit: &SHORT });
    let forms: Vec<&Form> = match &made.schedule.form {
        Form::Beside(sections) => sections.iter().map(|s| &s.schedule.form).collect(),
        form => vec![form],
    };
    let of = |f: &&Form| if let Form::Skinny(s) = f { s.segments.iter().map(|x| x.split_k).collect() } else { vec![] };
    let found: Vec<u32> = forms.iter().flat_map(of).collect();
    assert_eq!((found.as_slice(), made.schedule.waves), (split_k, waves), "{name}: {}", made.schedule.describe());
    run_made(&made);
}

/// Less than a vector of all lanes, whole ones, and a rest that ends inside of a wave's columns.
#[test]
fn columns_of_rows() {
    for (k, rows, dealt) in
        [(96, 1, (2, 4, 1)), (520, 1, (8, 8, 1)), (1024, 1, (4, 4, 1)), (700, 4, (2, 8, 1)), (300, 16, (4, 4, 1))]
    {
        run_split(&format!("columns_{k}"), &bodies::matmul(33, k), rows, dealt);
    }
}

/// Contractions that meet, several outputs a set, and sets past the last output.
#[test]
fn zipped_columns() {
    for (rows, dealt) in [(1, (4, 4, 2)), (4, (2, 16, 4))] {
        run_split("zipped_columns", &bodies::matmul_swiglu(37, 300), rows, dealt);
    }
    run_split("heads", &bodies::batch_matmul(4, 512, 40, false), 4, (2, 4, 1));
}

#[test]
fn chains_of_columns() {
    for (rows, k, split) in [(1, 64, 2), (4, 256, 8)] {
        run_split(&format!("chains_{k}"), &bodies::batch_matmul(3, k, 40, true), rows, (split, 8, 32));
    }
}

/// Choices and contractions are dealt whole where the order has no columns. Some experts have no slot.
#[test]
fn whole_sums() {
    let c = Experts { e: 18, ids: 18, s: 5, k: 5, d: 70, n: 384 };
    for (format, rows, dealt) in [(0, 1, (4, 16, 1)), (1, 4, (2, 4, 2)), (2, 16, (8, 8, 1))] {
        run_split("down", &down(FORMATS[format], &c), rows, dealt);
    }
    run_split("up", &up(FORMATS[0], &Experts { d: 384, ..c }), 4, (2, 4, 1));
    run_split("experts_up", &bodies::experts_up(18, 5, 4, 300, 40), 4, (4, 4, 1));
    run_split("experts_down", &bodies::experts_down(18, 5, 4, 40, 300), 1, (8, 8, 1));
}

#[test]
fn finishes_behind_sets() {
    run_split("norm", &finishes::matmul_norm(70, 300), 1, (2, 8, 1));
    run_split("gate", &finishes::gate_router(300, 60, 4), 4, (4, 8, 1));
}

/// What the scheduler does by itself: sections of one launch have as many waves.
#[test]
fn short_waves() {
    run_short("short_rows", &bodies::matmul(70, 1024), 1, (&[8, 8], 8));
    run_short(
        "short_choices",
        &down(FORMATS[0], &Experts { e: 18, ids: 18, s: 5, k: 4, d: 70, n: 128 }),
        1,
        (&[4], 16),
    );
    run_short("short_beside", &besides::absorb_scores_tail(), 1, (&[4], 4));
}
