//! Where values were declared: lines of the builder code or of an IR text, kept beside a graph and never in it.

use std::collections::BTreeSet;
use std::fmt;
use std::panic::Location;
use std::path::Path;

use crate::graph::{Graph, Node};
use crate::op::Op;

/// A line of a source file. The path starts at the workspace, so that it is the same in every checkout.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceLine {
    pub file: String,
    pub line: u32,
}

/// Lines of a graph, beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphLines {
    /// Per node.
    pub nodes: Vec<SourceLine>,
    /// Per body of a `repeat`.
    pub bodies: Vec<GraphLines>,
}

impl GraphLines {
    /// Per node of `graph`, whose lines these are: its own, and of a `repeat` those of all ops inside too.
    pub fn with_inner(&self, graph: &Graph) -> Vec<BTreeSet<&SourceLine>> {
        let of_node = |(line, node): (_, &Node)| {
            let mut lines = BTreeSet::from([line]);
            if let Op::Repeat { body, .. } = node.op {
                let at = body as usize;
                if let (Some(inner), Some(body)) = (self.bodies.get(at), graph.bodies.get(at)) {
                    let ops = inner.with_inner(body).into_iter().zip(&body.nodes);
                    lines.extend(ops.filter(|(_, n)| !matches!(n.op, Op::Input { .. })).flat_map(|(lines, _)| lines));
                }
            }
            lines
        };
        self.nodes.iter().zip(&graph.nodes).map(of_node).collect()
    }
}

impl From<&Location<'_>> for SourceLine {
    fn from(at: &Location<'_>) -> SourceLine {
        SourceLine { file: from_workspace(at.file()), line: at.line() }
    }
}

/// `models/src/glm5_next/kda.rs:49`.
impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Cargo hands rustc the files of workspace members from the workspace on. Of absolute paths, which other build systems
/// use, the crate's folder and what follows is kept.
fn from_workspace(file: &str) -> String {
    if !Path::new(file).is_absolute() {
        return file.replace('\\', "/");
    }
    let file = file.replace('\\', "/");
    let (before, inside) = match file.rfind("/src/") {
        Some(at) => file.split_at(at),
        None => file.split_at(file.rfind('/').unwrap_or(0)),
    };
    let folder = before.rsplit('/').next().unwrap_or_default();
    format!("{folder}{inside}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_start_at_the_workspace() {
        assert_eq!(from_workspace("models/src/maths.rs"), "models/src/maths.rs");
        assert_eq!(from_workspace("/home/someone/unglue/models/src/maths.rs"), "models/src/maths.rs");
        assert_eq!(from_workspace("/home/src/unglue/models/src/a/b.rs"), "models/src/a/b.rs");
        assert_eq!(from_workspace("/tmp/build.rs"), "tmp/build.rs");
    }
}
