//! Kernels whose parts share no value: each runs on workgroups of its own.

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;
use unglue_passes::schedule::{Bucket, Form, Section, fit, schedule};

use super::{bodies, finishes};

/// All graphs in one; names of the second and later ones get its number, which keeps them apart.
fn side_by_side(parts: Vec<Graph>) -> Graph {
    let mut all = Graph { name: "beside".into(), ..Graph::default() };
    for (n, part) in parts.into_iter().enumerate() {
        let named = |name: &str| if n == 0 { name.to_owned() } else { format!("{name}_{n}") };
        let (first, bodies) = (all.nodes.len() as u32, all.bodies.len() as u32);
        for mut node in part.nodes {
            node.args.iter_mut().for_each(|a| a.0 += first);
            match &mut node.op {
                Op::Input { name, .. } | Op::Weight { name } | Op::State { name } => *name = named(name),
                Op::Repeat { body, .. } => *body += bodies,
                _ => {}
            }
            all.nodes.push(node);
        }
        all.bodies.extend(part.bodies);
        all.outputs.extend(part.outputs.iter().map(|(name, v)| (named(name), ValueId(v.0 + first))));
    }
    all
}

/// A batched matmul, pool scores and a state write.
pub fn absorb_scores_tail() -> Graph {
    side_by_side(vec![bodies::batch_matmul(6, 40, 70, true), bodies::scores(3, 32, 4), bodies::tail_update(32, 4)])
}

/// A matmul with a norm in front, and two parts of one row form.
pub fn matmul_and_states() -> Graph {
    side_by_side(vec![bodies::token_write(40), bodies::norm_matmul(96, 130), bodies::pool_keys(32, 4)])
}

/// Parts over rows and over rows with logits.
pub fn two_row_axes() -> Graph {
    side_by_side(vec![bodies::swiglu(200), bodies::final_mean(4, 96)])
}

/// A finish stage, whose last workgroup is one of its section.
pub fn finish_beside_states() -> Graph {
    side_by_side(vec![finishes::gate_router(70, 60, 4), bodies::token_write(40)])
}

/// Row forms that keep values and hold barriers, with half their waves.
pub fn collectives_beside_heads() -> Graph {
    side_by_side(vec![
        bodies::batch_matmul(5, 48, 33, false),
        bodies::sinkhorn(4, 19),
        bodies::layer_norm(96),
        bodies::router(60, 4),
    ])
}

/// The sections of a graph at up to `rows` rows.
pub fn sections(g: &Graph, rows_max: u32) -> Vec<Section> {
    let bucket = Bucket { rows_max, seqs_max: 4.min(rows_max), pools: 40, fit: &fit::GFX1201 };
    match schedule(g, &bucket).map(|s| s.form) {
        Ok(Form::Beside(sections)) => sections,
        other => panic!("{other:?}"),
    }
}
