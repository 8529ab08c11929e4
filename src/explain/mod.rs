//! `unglue explain`: how a kernel grew and what it costs, or where an op of the trunk went and why.
//!
//! In: a bundle, and the name of a kernel or an op. Out: the fusions that made a kernel, those that were refused and what
//! they would have cost; the rules that changed an op, and the kernels that hold it.

mod kernel;
pub(crate) mod nearest;
mod op;

use std::collections::BTreeSet;

use unglue_ir::module::Module;
use unglue_runtime::{Bundle, RuntimeError};

use crate::cli;
use crate::error::CliError;
use crate::report;
use crate::report::view::{Bucket, Report};

/// A bundle and what it says of itself.
pub(crate) struct Build {
    bundle: Bundle,
    report: Report,
    /// As declared; its bodies are those of the report, in the same order.
    trunk: Module,
}

/// What is asked for.
enum Subject {
    /// Number, and the body if it is named.
    Number(u64, Option<String>),
    Kernel(String),
    /// All ops of a name.
    Ops(String),
}

pub fn run(args: &cli::Explain) -> Result<(), CliError> {
    let build = open(args)?;
    let bold = report::bold();
    let (json, text) = match subject(args, &build)? {
        Subject::Kernel(name) => {
            let story = kernel::story(&build, args, &name)?;
            (serde_json::to_value(&story), kernel::text(&story, bold))
        }
        Subject::Number(number, body) => {
            let stories = op::numbered(&build, args, number, body.as_deref())?;
            (serde_json::to_value(&stories), op::text(&stories, bold))
        }
        Subject::Ops(name) => {
            let stories = op::named(&build, args, &name)?;
            (serde_json::to_value(&stories), op::table(&name, &stories, bold))
        }
    };
    let json = json.map_err(|e| CliError::input("standard output", e))?;
    report::print(&if args.json { format!("{json}\n") } else { text })
}

fn open(args: &cli::Explain) -> Result<Build, CliError> {
    let (bundle, report) = report::open(&args.bundle)?;
    let corrupt = |what, found: String, needed: &str| {
        let path = bundle.path().to_path_buf();
        CliError::Bundle(RuntimeError::Corrupt { what, path, found, needed: needed.into() })
    };
    let text = bundle.trunk_ir().and_then(|bytes| std::str::from_utf8(bytes).ok());
    let text =
        text.ok_or_else(|| corrupt("trunk", "no text".into(), "the declared trunk, as `unglue compile` writes it"))?;
    let trunk = unglue_ir::text::parse_module(text).map_err(|e| corrupt("trunk", e.to_string(), "IR text"))?;
    let declared: Vec<&str> = trunk.bodies.iter().map(|b| b.name.as_str()).collect();
    let agree = |names: Vec<&str>| names == declared;
    let all = agree(report.saturation.iter().map(|s| s.body.as_str()).collect())
        && report.buckets.iter().all(|b| agree(b.bodies.iter().map(|x| x.body.as_str()).collect()));
    if !all {
        return Err(corrupt("report", "other bodies than the trunk's".into(), "the bodies of the declared trunk"));
    }
    let known: Vec<String> = declared.iter().map(|n| (*n).to_owned()).collect();
    if let Some(body) = args.body.as_ref().filter(|b| !known.contains(b)) {
        return Err(nearest::unknown("--body", body, "a body of the trunk", known));
    }
    let rows: Vec<u64> = report.buckets.iter().map(|b| b.rows_max).collect();
    if let Some(wanted) = args.rows.filter(|r| !rows.contains(r)) {
        let rows: Vec<String> = rows.iter().map(u64::to_string).collect();
        let needed = format!("the rows of a launch list: {}", rows.join(", "));
        return Err(CliError::Usage { rule: "--rows", found: wanted.to_string(), needed });
    }
    Ok(Build { bundle, report, trunk })
}

fn subject(args: &cli::Explain, build: &Build) -> Result<Subject, CliError> {
    if let Some((body, number)) = args.what.split_once('%') {
        let needed = "an op by number: %12, or kda%12 with its body";
        let found = args.what.clone();
        let number = number.parse().map_err(|_| CliError::Usage { rule: "op", found, needed: needed.into() })?;
        let bodies: Vec<String> = build.trunk.bodies.iter().map(|b| b.name.clone()).collect();
        if !body.is_empty() && !bodies.iter().any(|b| b == body) {
            return Err(nearest::unknown("body", body, "a body of the trunk", bodies));
        }
        let body = Some(body.to_owned()).filter(|b| !b.is_empty()).or_else(|| args.body.clone());
        return Ok(Subject::Number(number, body));
    }
    let what = args.what.as_str();
    let kernels = build.report.buckets.iter().flat_map(|b| &b.bodies).flat_map(|b| &b.kernels);
    let mut names: BTreeSet<&str> = kernels.flat_map(|k| [k.name.as_str(), k.in_body.as_str()]).collect();
    if names.contains(what) {
        return Ok(Subject::Kernel(what.into()));
    }
    let ops: BTreeSet<&str> = build.trunk.bodies.iter().flat_map(|b| &b.nodes).map(|n| n.op.name()).collect();
    if ops.contains(what) {
        return Ok(Subject::Ops(what.into()));
    }
    names.extend(ops);
    let names = names.into_iter().map(str::to_owned).collect();
    Err(nearest::unknown("name", what, "a kernel of the bundle or an op of the trunk", names))
}

impl Build {
    /// The launch lists that are asked for.
    fn lists(&self, args: &cli::Explain) -> impl Iterator<Item = &Bucket> {
        let rows = args.rows;
        self.report.buckets.iter().filter(move |b| rows.is_none_or(|r| r == b.rows_max))
    }
}

/// `1,4,16 rows`.
fn rows_text(rows: &[u64]) -> String {
    let text: Vec<String> = rows.iter().map(u64::to_string).collect();
    format!("{} row{}", text.join(","), if rows == [1] { "" } else { "s" })
}
