//! Saturates and covers each body once per bucket, and plans the launches.

use indicatif::ProgressBar;
use rayon::prelude::*;
use unglue_ir::graph::Graph;
use unglue_ir::module::Module;
use unglue_passes::choice::{Choice, Effort, Lists, choose};
use unglue_passes::classes::classes;
use unglue_passes::cost::{self, CostTable};
use unglue_passes::report::{PassReport, report};
use unglue_passes::schedule::{Bucket, Fit, fit};
use unglue_passes::step_report::{self, steps};
use unglue_passes::wishes::{How, Obeyed};
use unglue_passes::{BodyCover, CoverOptions, Limits, Numerics, Plan, Strategy, cover, lines, optimise, plan};

use crate::cli;
use crate::error::CliError;
use crate::limits::{MAX_CTX, MAX_SEQS, launch_rows, pool_size};
use crate::source::Source;
use crate::wish;

/// What the passes made of a module.
pub struct Fused {
    pub module: Module,
    pub plan: Plan,
    pub report: PassReport,
    /// By body and rows: the wishes that were obeyed there.
    pub wishes: Vec<(String, u32, Obeyed)>,
}

/// What kernels and schedules are chosen for.
#[derive(Clone, Copy)]
pub struct Machine {
    pub costs: &'static CostTable,
    pub fit: &'static Fit,
}

/// The machine of the first target that has one: x86-64 takes the cover and the schedules of the GPU it is built beside,
/// or gfx1201's.
pub fn machine(targets: &[String]) -> Machine {
    let of = |name: &String| Some(Machine { costs: CostTable::of(name)?, fit: Fit::of(name)? });
    targets.iter().find_map(of).unwrap_or(Machine { costs: &cost::GFX1201, fit: &fit::GFX1201 })
}

pub fn strategy(cover: cli::Cover) -> Strategy {
    match cover {
        cli::Cover::Exact => Strategy::Exact,
        cli::Cover::Greedy => Strategy::Greedy,
        cli::Cover::None => Strategy::None,
    }
}

pub fn numerics(numerics: cli::Numerics) -> Numerics {
    match numerics {
        cli::Numerics::Exact => Numerics::Exact,
        cli::Numerics::Rounding => Numerics::Rounding,
        cli::Numerics::Fast => Numerics::Fast,
    }
}

pub fn fuse(source: &Source, args: &cli::Compile, bar: &ProgressBar) -> Result<Fused, CliError> {
    let pool = pool_size(&source.module);
    let pools = if pool == 0 { 0 } else { MAX_CTX.div_ceil(pool) };
    let Machine { costs, fit } = machine(&args.target);
    let bucket = |rows_max: u32| Bucket { rows_max, seqs_max: rows_max.min(MAX_SEQS), pools, fit };
    let buckets: Vec<Bucket> = launch_rows(args.max_rows).into_iter().map(bucket).collect();
    let mut module = source.module.clone();
    let mut stats = Vec::new();
    bar.set_message("choosing forms and kernels of the bodies");
    let chosen = match strategy(args.cover) {
        Strategy::Exact => choices(&module, numerics(args.numerics), Lists { buckets: &buckets, costs }, args.jobs)?,
        Strategy::None | Strategy::Greedy => vec![],
    };
    for (i, body) in module.bodies.iter_mut().enumerate() {
        let (better, s) = match chosen.get(i) {
            Some(Levels { built, .. }) => (built.body.clone(), built.stats.clone()),
            None => optimise(body, numerics(args.numerics), &Limits::default())?,
        };
        stats.push(s);
        *body = better;
    }
    let wishes = wish::resolve(args, &source.module, &stats)?;
    let mut covers: Vec<Vec<BodyCover>> = Vec::new();
    for (b, bucket) in buckets.iter().enumerate() {
        let mut list = Vec::new();
        for (i, body) in module.bodies.iter().enumerate() {
            bar.set_message(format!("forming kernels of {} for {} rows", body.name, bucket.rows_max));
            let (force, forbid) = wishes.of(i, bucket.rows_max);
            let choice = chosen.get(i).map(|levels| &levels.built);
            if let Some(known) = choice.and_then(|c| c.covers.get(b)).filter(|_| force.is_empty() && forbid.is_empty())
            {
                list.push(known.clone());
                continue;
            }
            let seed = choice.and_then(|c| c.seeds.get(b)).cloned().unwrap_or_default();
            let options = CoverOptions { force, forbid, touched: stats[i].touched.clone(), seed };
            list.push(cover(body, bucket, costs, strategy(args.cover), &options)?);
        }
        covers.push(list);
    }
    let obeyed = obeyed(&covers, &buckets);
    wishes.check(&obeyed, &covers)?;
    let plan = plan(&module, &covers, &buckets)?;
    let mut report = report(&module, stats, &covers, &plan, costs);
    let singles = unfused(&module, &buckets, costs)?;
    report.steps = steps(&module, &buckets, &covers, &singles, costs);
    lines::attach(&mut report, &source.module.bodies, &source.lines);
    bar.set_message("comparing the classes of rewrites");
    let strategy = strategy(args.cover);
    let comparable = strategy != Strategy::Exact && obeyed.is_empty();
    let built = covers.first().filter(|_| comparable).map(Vec::as_slice).unwrap_or_default();
    let levels: Vec<_> = chosen.into_iter().map(|levels| levels.all).collect();
    report.classes = classes(&source.module, &buckets[0], costs, strategy, built, &levels)?;
    Ok(Fused { module, plan, report, wishes: obeyed })
}

/// What is built of a body, and what each level takes in the first launch list.
struct Levels {
    built: Choice,
    all: Vec<Choice>,
}

fn levels(body: &Graph, numerics: Numerics, lists: Lists) -> Result<Levels, CliError> {
    let limits = Limits::default();
    let built = choose(body, numerics, &limits, lists, vec![], Effort::Covered)?;
    let first = Lists { buckets: lists.buckets.get(..1).unwrap_or_default(), ..lists };
    let known = built.iter().map(Choice::first).collect();
    let all = choose(body, Numerics::Fast, &limits, first, known, Effort::Priced)?;
    let none = || CliError::Failed(format!("{}: no level was chosen", body.name));
    Ok(Levels { built: built.into_iter().next_back().ok_or_else(none)?, all })
}

/// The levels of each body; bodies are independent, and chosen in parallel.
fn choices(module: &Module, numerics: Numerics, lists: Lists, jobs: usize) -> Result<Vec<Levels>, CliError> {
    let failed = |e: rayon::ThreadPoolBuildError| CliError::Failed(format!("threads for the search: {e}"));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs).build().map_err(failed)?;
    let one = |body| levels(body, numerics, lists);
    pool.install(|| module.bodies.par_iter().map(one).collect())
}

/// One op per kernel, in the launch lists that the reported steps run.
fn unfused(module: &Module, buckets: &[Bucket], costs: &CostTable) -> Result<Vec<Vec<BodyCover>>, CliError> {
    let run: Vec<usize> = step_report::ROWS.iter().filter_map(|r| Some(step_report::list_of(buckets, *r)?.0)).collect();
    let mut all = Vec::new();
    for (i, bucket) in buckets.iter().enumerate() {
        let bodies = module.bodies.iter().filter(|_| run.contains(&i));
        let one = |body| cover(body, bucket, costs, Strategy::None, &CoverOptions::default());
        all.push(bodies.map(one).collect::<Result<_, _>>()?);
    }
    Ok(all)
}

fn obeyed(covers: &[Vec<BodyCover>], buckets: &[Bucket]) -> Vec<(String, u32, Obeyed)> {
    let of = |(covers, bucket): (&Vec<BodyCover>, &Bucket)| {
        let rows = bucket.rows_max;
        let asked = covers.iter().filter(|c| c.stats.wishes != Obeyed::default());
        asked.map(|c| (c.body.name.clone(), rows, c.stats.wishes.clone())).collect::<Vec<_>>()
    };
    covers.iter().zip(buckets).flat_map(of).collect()
}

/// What the wishes of a body cost.
pub fn wish_lines((body, rows, obeyed): &(String, u32, Obeyed)) -> Vec<String> {
    let place = format!("in {body}, up to {rows} rows");
    let forced = obeyed.forced.iter().map(|f| {
        let how = match f.how {
            How::Together => "they share a kernel without it",
            How::Kernels => "their kernels were joined",
            How::Ops => "the two ops were joined before the search",
        };
        format!("forced {} with {} {place}: {:+} ns (modelled; {how})", f.a, f.b, f.delta_ns)
    });
    let forbidden = obeyed.forbidden.iter().map(|[a, b]| format!("forbade {a} with {b} {place}"));
    forced.chain(forbidden).collect()
}
