//! `unglue verify`: every kernel of a bundle alone against the reference interpreter.

use std::collections::BTreeMap;

use serde_json::json;
use unglue_codegen::check::{Mismatch, Subject, check};
use unglue_codegen::generate::{StepBuffer, StepScalar, Use};
use unglue_ir::graph::Graph;
use unglue_ir::types::Dim;
use unglue_passes::schedule::{Bucket, GridAxis};
use unglue_runtime::{Bundle, CpuDevice, CpuOptions, Device, Guard, manifest};

use crate::cli;
use crate::error::CliError;

/// One kernel and a launch that uses it.
struct Case<'a> {
    kernel: u32,
    entry: &'a manifest::Kernel,
    launch: &'a manifest::Launch,
    bucket: &'a manifest::Bucket,
}

pub fn run(args: &cli::Verify) -> Result<(), CliError> {
    if args.device != "cpu" {
        return Err(CliError::NotYet { what: "--device", found: args.device.clone(), only: "cpu".into() });
    }
    let bundle = Bundle::open(&args.bundle).map_err(CliError::Bundle)?;
    let m = bundle.manifest();
    let cases = cases(m, args.kernel.as_deref())?;
    let options = CpuOptions { threads: 0, guard: Guard::Aligned, poison_shared: true };
    let mut device = CpuDevice::new(options).map_err(CliError::Device)?;
    let code = bundle.code(device.target()).map_err(CliError::Bundle)?;
    device.load(&m.kernels, &code).map_err(CliError::Device)?;
    let mut wrong: Vec<Mismatch> = Vec::new();
    for case in &cases {
        let found = verify_case(&mut device, case, args)?;
        if !args.json {
            match &found {
                None => println!("ok    {:<63} {}", case.entry.name, case.entry.class),
                Some(e) => println!("WRONG {e}"),
            }
        }
        wrong.extend(found);
    }
    if args.json {
        let list: Vec<_> = wrong
            .iter()
            .map(|w| {
                json!({"kernel": w.kernel, "value": w.value, "index": w.index,
            "row": w.row, "device": w.device, "interpreter": w.interpreter, "seed": w.seed})
            })
            .collect();
        println!("{}", json!({"device": args.device, "kernels": cases.len(), "draws": args.draws, "wrong": list}));
    } else {
        println!("{} kernels, {} draws each, {} wrong", cases.len(), args.draws, wrong.len());
    }
    match wrong.first() {
        None => Ok(()),
        Some(first) => {
            Err(CliError::Failed(format!("{} of {} kernels differ; first: {first}", wrong.len(), cases.len())))
        }
    }
}

/// Each kernel with the first launch that uses it.
fn cases<'a>(m: &'a manifest::Manifest, only: Option<&str>) -> Result<Vec<Case<'a>>, CliError> {
    let mut first: BTreeMap<u32, Case<'a>> = BTreeMap::new();
    for bucket in &m.buckets {
        for launch in &bucket.launches {
            let entry = &m.kernels[launch.kernel as usize];
            if only.is_none_or(|n| n == entry.name) {
                first.entry(launch.kernel).or_insert(Case { kernel: launch.kernel, entry, launch, bucket });
            }
        }
    }
    match (only, first.is_empty()) {
        (Some(name), true) => Err(CliError::Usage {
            rule: "--kernel",
            found: name.into(),
            needed: "a kernel of the bundle, as `unglue report` lists them".into(),
        }),
        _ => Ok(first.into_values().collect()),
    }
}

fn verify_case(device: &mut CpuDevice, case: &Case, args: &cli::Verify) -> Result<Option<Mismatch>, CliError> {
    let graph = unglue_ir::text::parse_graph(&case.entry.ir)?;
    unglue_ir::verify::graph(&graph)?;
    let subject = Subject {
        name: &case.entry.name,
        number: case.kernel,
        graph: &graph,
        uses: &uses(case, &graph)?,
        grid: grid(&case.launch.grid),
        bucket: Bucket {
            rows_max: case.bucket.rows_max as u32,
            seqs_max: case.bucket.seqs_max as u32,
            pools: case.bucket.pools,
        },
    };
    for draw in 0..args.draws.max(1) {
        if let Some(wrong) = check(device, &subject, args.seed.wrapping_add(draw))? {
            return Ok(Some(wrong));
        }
    }
    Ok(None)
}

fn grid(dims: &[manifest::GridDim; 3]) -> [GridAxis; 3] {
    dims.map(|d| GridAxis {
        symbol: d.symbol.map(|s| match s {
            manifest::Symbol::Rows => Dim::Rows,
            manifest::Symbol::Seqs => Dim::Seqs,
            manifest::Symbol::Logits => Dim::Logits,
            manifest::Symbol::Pools => Dim::Pools,
        }),
        mul: d.mul,
        div: d.div,
    })
}

/// What each parameter stands for: values of the graph by the interface, step data by the launch.
fn uses(case: &Case, graph: &Graph) -> Result<Vec<Use>, CliError> {
    let i = &case.entry.interface;
    let mut named: BTreeMap<u32, Use> = BTreeMap::new();
    let mut add = |ports: &[manifest::Port], make: fn(String) -> Use| {
        named.extend(ports.iter().map(|p| (p.param, make(p.name.clone()))));
    };
    add(&i.inputs, Use::Input);
    add(&i.weights, Use::Weight);
    add(&i.states, Use::State);
    add(&i.outputs, Use::Output);
    let unknown = |n: usize| CliError::Input {
        path: case.entry.name.clone().into(),
        message: format!("parameter {n} stands for nothing in the kernel's graph `{}`", graph.name),
    };
    case.launch
        .args
        .iter()
        .enumerate()
        .map(|(n, arg)| {
            if let Some(of) = named.get(&(n as u32)) {
                return Ok(of.clone());
            }
            step_use(*arg).ok_or_else(|| unknown(n))
        })
        .collect()
}

fn step_use(arg: manifest::Arg) -> Option<Use> {
    use manifest::{Arg, StepInput as In, StepScalar as Sc};
    Some(match arg {
        Arg::Input(In::Positions) => Use::Step(StepBuffer::Positions),
        Arg::Input(In::RowSeq) => Use::Step(StepBuffer::RowSeq),
        Arg::Input(In::QStart) => Use::Step(StepBuffer::QStart),
        Arg::Input(In::Slot) => Use::Step(StepBuffer::Slot),
        Arg::Input(In::BlockTable) => Use::Step(StepBuffer::BlockTable),
        Arg::Input(In::Status) => Use::Step(StepBuffer::Status),
        Arg::Scalar(Sc::Rows) => Use::Scalar(StepScalar::Rows),
        Arg::Scalar(Sc::Seqs) => Use::Scalar(StepScalar::Seqs),
        Arg::Scalar(Sc::Logits) => Use::Scalar(StepScalar::Logits),
        Arg::Scalar(Sc::BlockSize) => Use::Scalar(StepScalar::BlockSize),
        Arg::Scalar(Sc::BlocksPerSeq) => Use::Scalar(StepScalar::BlocksPerSeq),
        Arg::Scalar(Sc::MaxSlots) => Use::Scalar(StepScalar::MaxSlots),
        Arg::Scalar(Sc::NumBlocks) => Use::Scalar(StepScalar::NumBlocks),
        Arg::Const(_) => Use::Scalar(StepScalar::KernelNumber),
        _ => return None,
    })
}
