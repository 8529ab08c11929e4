//! One launch of a step: what it is given, and whether what it leaves follows from that.

use unglue_codegen::check::{Buffers, Given, Mismatch, Paged, Paging, StepRows, Subject, judge, trapped};
use unglue_codegen::generate::Use;
use unglue_ir::interp::{Batch, StateData};
use unglue_ir::op::Op;
use unglue_passes::schedule::row_elements;
use unglue_runtime::manifest::Arg;
use unglue_runtime::{BufferReader, Geometry, StepBatch};

use crate::error::CliError;
use crate::verify::{Case, with_subject};

/// A launch that is about to run.
pub struct Watched {
    /// Bucket, and number in its launch list.
    pub place: (usize, usize),
    pub given: Given<'static>,
    /// States by parameter.
    states: Buffers,
}

/// Why a launch is wrong, with the place in the value: row of the step (of outputs), and element.
pub struct Wrong {
    pub mismatch: Mismatch,
    pub row: Option<usize>,
    pub element: usize,
    /// Parameter of the value, if it is one.
    pub param: Option<usize>,
}

/// Reads what the launch is given.
///
/// # Errors
/// [`CliError`] if a buffer cannot be read, or is not what the kernel's graph says.
pub fn before(case: &Case, place: (usize, usize), reader: &dyn BufferReader) -> Result<Watched, CliError> {
    with_subject(case, |subject| {
        let read = |of: &Use| matches!(of, Use::Input(_) | Use::Weight(_) | Use::Scales(_) | Use::State(_));
        let mut bytes = buffers(subject, reader, read)?;
        let given = Given::of_step(subject, &rows(reader.batch(), reader.geometry()), &bytes)?;
        bytes.retain(|param, _| matches!(subject.uses.get(*param), Some(Use::State(_))));
        Ok(Watched { place, given, states: bytes })
    })
}

/// Compares outputs and states with the interpreter's on what the launch was given; also how many there are.
///
/// # Errors
/// [`CliError`] if a buffer cannot be read, or the kernel not be interpreted.
pub fn after(case: &Case, w: &Watched, reader: &dyn BufferReader) -> Result<(usize, Option<Wrong>), CliError> {
    with_subject(case, |subject| {
        let left = buffers(subject, reader, |of| matches!(of, Use::Output(_) | Use::State(_)))?;
        let wrong = judge(subject, &w.given, &w.states, &left)?;
        Ok((left.len(), wrong.map(|mismatch| located(subject, mismatch))))
    })
}

/// The launch did what the device forbids.
///
/// # Errors
/// [`CliError`] if the manifest does not describe the kernel.
pub fn forbidden(case: &Case, w: &Watched, found: String) -> Result<Wrong, CliError> {
    with_subject(case, |subject| Ok(located(subject, trapped(subject, &w.given, found))))
}

/// States that the launch writes for the last time in its list: index in the manifest, and content of slot 0 in logical
/// order.
///
/// # Errors
/// [`CliError`] if a buffer cannot be read.
pub fn written(case: &Case, w: &Watched, reader: &dyn BufferReader) -> Result<Vec<(u32, Vec<f32>)>, CliError> {
    let later = case.bucket.launches.get(w.place.1 + 1..).unwrap_or_default();
    with_subject(case, |subject| {
        let mut found = vec![];
        for (param, of) in subject.uses.iter().enumerate() {
            let (Use::State(name), Some(Arg::State(state))) = (of, case.launch.args.get(param)) else { continue };
            let ty = subject.graph.states().find(|(n, _)| n == name).and_then(|(_, v)| subject.graph.ty(v).state());
            let again = later.iter().any(|l| l.args.contains(&Arg::State(*state)));
            let (Some(ty), false) = (ty, again || !writes(subject, name)) else { continue };
            let bytes = reader.read_argument(param).map_err(CliError::Device)?;
            let mut content = StateData::new(ty, w.given.paging.max_slots);
            let g = &w.given;
            let paged = Paged { paging: &g.paging, batch: &g.batch, block_table: &g.block_table };
            paged.from_device(&mut content, ty.dtype, &bytes);
            found.push((*state, content.slots().first().cloned().unwrap_or_default()));
        }
        Ok(found)
    })
}

/// Whether the kernel's graph returns a new version of a state.
fn writes(subject: &Subject, name: &str) -> bool {
    let last = subject.graph.outputs.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
    last.is_some_and(|v| !matches!(subject.graph.node(v).op, Op::State { .. }))
}

fn buffers(subject: &Subject, reader: &dyn BufferReader, of: impl Fn(&Use) -> bool) -> Result<Buffers, CliError> {
    let wanted = subject.uses.iter().enumerate().filter(|(_, u)| of(u));
    wanted.map(|(param, _)| Ok((param, reader.read_argument(param).map_err(CliError::Device)?))).collect()
}

fn rows(b: &StepBatch, g: &Geometry) -> StepRows {
    let seqs: Vec<(i32, usize, usize)> = b
        .q_start
        .windows(2)
        .zip(&b.slot)
        .map(|(ends, slot)| {
            let first = b.positions.get(ends[0] as usize).copied().unwrap_or(0);
            (*slot, first as usize, (ends[1] - ends[0]) as usize)
        })
        .collect();
    StepRows {
        batch: Batch::new(&seqs, 0),
        block_table: b.block_table.clone(),
        paging: Paging {
            block_size: g.block_size as usize,
            blocks_per_seq: g.blocks_per_seq() as usize,
            num_blocks: g.num_blocks as usize,
            max_slots: g.max_slots as usize,
        },
        logits: b.logit_rows.len(),
    }
}

fn located(subject: &Subject, mismatch: Mismatch) -> Wrong {
    let named = |u: &Use| matches!(u, Use::Output(n) | Use::State(n) if *n == mismatch.value);
    let param = subject.uses.iter().position(named);
    let output = subject.graph.outputs.iter().find(|(n, _)| *n == mismatch.value);
    let output = output.filter(|_| matches!(param.and_then(|p| subject.uses.get(p)), Some(Use::Output(_))));
    let per_row = output.map(|(_, v)| (row_elements(subject.graph.ty(*v), &subject.bucket) as usize).max(1));
    let element = per_row.map_or(mismatch.index, |n| mismatch.index % n);
    Wrong { row: per_row.map(|_| mismatch.row), element, param, mismatch }
}
