//! `unglue run`: feeds token ids through a bundle or the reference interpreter, and generates greedily.

pub(crate) mod device;
pub(crate) mod dump;
mod ids;
pub(crate) mod interp;

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use unglue_runtime::Counters;

use crate::cli;
use crate::device::DeviceKind;
use crate::error::CliError;
use dump::{Array, Dump};

/// Runs shorter than this show no progress.
const LONG: Duration = Duration::from_secs(2);

/// What is fed and generated.
pub struct Work {
    ids: Vec<i32>,
    /// `--ids` as given, for messages.
    argument: String,
    chunk: usize,
    /// Ids from here on are fed one at a time.
    decode_from: usize,
    generate: usize,
}

/// What a model and a device can take.
pub struct Limits {
    pub vocab: u64,
    /// Most rows of a step.
    pub rows: Option<u64>,
    /// Longest context in tokens.
    pub context: u64,
}

/// A model on a device, in the middle of one sequence.
pub trait Engine {
    /// Feeds the next ids; the best next token, if the last row's logits are `wanted`. Rows go to `dump`, which asks for
    /// the logits of all of them.
    fn step(&mut self, ids: &[i32], wanted: bool, dump: Option<&mut Dump>) -> Result<Option<i32>, CliError>;
    /// The sequence's states by name, in logical order.
    fn states(&self) -> Result<Vec<(String, Array)>, CliError>;
    /// Name of the device.
    fn device(&self) -> &'static str;
    fn threads(&self) -> usize;
    /// What its steps were, if it is a device.
    fn counters(&self) -> Option<Counters>;
}

impl Work {
    /// What a command line asks for.
    pub fn of(args: &cli::Run) -> Result<Work, CliError> {
        let ids = ids::read(&args.ids)?;
        let usage = |rule, found: usize, needed| Err(CliError::Usage { rule, found: found.to_string(), needed });
        if args.chunk == 0 {
            return usage("--chunk", 0, "at least 1 row".into());
        }
        if let Some(k) = args.decode_from.filter(|&k| k > ids.len()) {
            return usage("--decode-from", k, format!("an index into the {} ids", ids.len()));
        }
        let decode_from = args.decode_from.unwrap_or(ids.len());
        Ok(Work { argument: args.ids.clone(), chunk: args.chunk, decode_from, generate: args.steps, ids })
    }

    /// Tokens of the sequence at the end: the last generated one is not fed back.
    pub fn tokens(&self) -> u64 {
        (self.ids.len() as u64).saturating_add(self.generate.saturating_sub(1) as u64)
    }

    /// Refuses what a model cannot take, before anything runs.
    pub fn check(&self, limits: &Limits) -> Result<(), CliError> {
        ids::check(&self.ids, &self.argument, limits.vocab)?;
        if let Some(rows) = limits.rows.filter(|&rows| self.chunk as u64 > rows) {
            let needed = format!("at most {rows}, the rows that a step of this bundle takes");
            return Err(CliError::Usage { rule: "--chunk", found: self.chunk.to_string(), needed });
        }
        if self.tokens() > limits.context {
            let found = format!("{} tokens ({} ids and {} steps)", self.tokens(), self.ids.len(), self.generate);
            let message = format!("{found}; needed at most {}, the longest context", limits.context);
            return Err(CliError::input("--ids", message));
        }
        Ok(())
    }

    #[cfg(feature = "compile")]
    pub fn ids(&self) -> &[i32] {
        &self.ids
    }

    /// The ids of each step.
    pub fn steps(&self) -> Vec<Range<usize>> {
        let mut steps: Vec<Range<usize>> = Vec::new();
        while let at = steps.last().map_or(0, |s| s.end)
            && at < self.ids.len()
        {
            let end = if at < self.decode_from { self.decode_from.min(at.saturating_add(self.chunk)) } else { at + 1 };
            steps.push(at..end);
        }
        steps
    }
}

pub fn run(args: &cli::Run) -> Result<(), CliError> {
    let work = Work::of(args)?;
    if let Some(path) = &args.dump {
        writable(path)?;
    }
    let mut engine: Box<dyn Engine> = match args.device.as_str() {
        "interp" => Box::new(interp::Interpreter::open(args, &work)?),
        other => Box::new(device::OnDevice::open(args, DeviceKind::of(other, " or interp")?, &work)?),
    };
    let mut progress = Progress::new(args.json, work.tokens());
    let mut dump = args.dump.as_ref().map(|_| Dump::new(args.taps));
    let mut next = feed(&work, engine.as_mut(), dump.as_mut(), &mut progress)?;
    if let (Some(mut dump), Some(path)) = (dump, &args.dump) {
        if dump.taps() {
            let fed = work.ids.len() as u64;
            engine.states()?.into_iter().for_each(|(name, value)| dump.state(&name, value, fed));
        }
        dump.write(path)?;
    }
    let mut generated = Vec::new();
    while let Some(id) = next.filter(|_| generated.len() < work.generate) {
        generated.push(id);
        let more = generated.len() < work.generate;
        next = if more { engine.step(&[id], true, None)? } else { None };
        progress.fed(u64::from(more));
    }
    progress.bar.finish_and_clear();
    print(args, &work, engine.as_ref(), &generated);
    Ok(())
}

/// Feeds the ids; the best token after them.
fn feed(
    work: &Work,
    engine: &mut dyn Engine,
    mut dump: Option<&mut Dump>,
    progress: &mut Progress,
) -> Result<Option<i32>, CliError> {
    let mut next = None;
    for step in work.steps() {
        let wanted = step.end == work.ids.len() && work.generate > 0;
        let rows = step.len() as u64;
        next = engine.step(work.ids.get(step).unwrap_or_default(), wanted, dump.as_deref_mut())?;
        progress.fed(rows);
    }
    Ok(next)
}

/// A dump that cannot be written is better known before the run.
fn writable(path: &Path) -> Result<(), CliError> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(CliError::input(path, "its folder does not exist; create it first"));
    }
    if path.is_dir() {
        return Err(CliError::input(path, "is a folder; needed a file name"));
    }
    Ok(())
}

/// A bar that appears, on a terminal, when the work turns out to be long.
struct Progress {
    bar: ProgressBar,
    quiet: bool,
    start: Instant,
}

impl Progress {
    fn new(quiet: bool, tokens: u64) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(tokens), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} tokens {wide_bar} {pos}/{len}") {
            bar.set_style(style);
        }
        Progress { bar, quiet, start: Instant::now() }
    }

    fn fed(&mut self, rows: u64) {
        if !self.quiet && self.start.elapsed() > LONG {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.quiet = true;
        }
        self.bar.inc(rows);
    }
}

fn print(args: &cli::Run, work: &Work, engine: &dyn Engine, generated: &[i32]) {
    if args.json {
        let value = json!({
            "fed": work.ids.len(),
            "chunk": work.chunk,
            "ids": generated,
            "device": engine.device(),
            "threads": engine.threads(),
            "counters": engine.counters().map(|c| json!({"steps": c.steps, "replays": c.replays, "recorded": c.recorded})),
        });
        println!("{value}");
        return;
    }
    let (chunked, single) = (work.decode_from, work.ids.len() - work.decode_from);
    let chunks = format!("{chunked} in chunks of up to {} rows (--chunk)", work.chunk);
    let how = match (chunked, single) {
        (_, 0) => chunks,
        (0, _) => "one at a time".into(),
        _ => format!("{chunks}, {single} one at a time"),
    };
    let plural = |n: usize| if n == 1 { "id" } else { "ids" };
    println!("fed {} {} on {}: {how}", work.ids.len(), plural(work.ids.len()), engine.device());
    if let Some(path) = &args.dump {
        println!("dumped to {}", path.display());
    }
    let list = generated.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
    if !generated.is_empty() {
        println!("generated {} {}: {list}", generated.len(), plural(generated.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(ids: usize, chunk: usize, decode_from: usize) -> Vec<Range<usize>> {
        let ids = vec![0; ids];
        Work { ids, argument: String::new(), chunk, decode_from, generate: 1 }.steps()
    }

    #[test]
    fn ids_are_fed_in_chunks_and_then_singly() {
        assert_eq!(steps(7, 3, 7), [0..3, 3..6, 6..7]);
        assert_eq!(steps(7, 3, 5), [0..3, 3..5, 5..6, 6..7]);
        assert_eq!(steps(2, 16, 0), [0..1, 1..2]);
        assert_eq!(steps(2, usize::MAX, 2).len(), 1);
    }
}
