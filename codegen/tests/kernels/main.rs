//! Generated kernels on the CPU and in the emulator against the interpreter, bit for bit.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod attends;
mod besides;
mod blocks;
mod bodies;
mod finishes;
mod int4;
mod packed_bodies;
mod repeats;
mod router;
mod sites;
mod split_k;
mod spreads;
mod tile_bodies;
mod tiles;

use unglue_codegen::CodegenError;
use unglue_codegen::bundle::describe::{Facts, kernel};
use unglue_codegen::check::{Given, Mismatch, Subject, check, check_given};
use unglue_codegen::emu::{self, EmuDevice, EmuOptions};
use unglue_codegen::generate::{self, Generated};
use unglue_codegen::{gates, link, llvm, target};
use unglue_ir::graph::Graph;
use unglue_passes::schedule::{Bucket, Form, Products, Schedule, fit, schedule};
use unglue_runtime::{Code, CpuDevice, CpuOptions, Device, Guard, manifest};

/// One graph as one kernel.
struct Made<'a> {
    name: &'a str,
    graph: &'a Graph,
    bucket: Bucket,
    schedule: Schedule,
    made: Generated,
}

impl<'a> Made<'a> {
    fn new(name: &'a str, graph: &'a Graph, rows_max: u32, pools: u64) -> Self {
        let bucket = Bucket { rows_max, seqs_max: 4.min(rows_max), pools, fit: &fit::GFX1201 };
        Self::of(name, graph, bucket)
    }

    fn of(name: &'a str, graph: &'a Graph, bucket: Bucket) -> Self {
        let text = || unglue_ir::text::print_graph(graph);
        let schedule = schedule(graph, &bucket).unwrap_or_else(|o| panic!("{name}: {o:?}\n{}", text()));
        Self::with(name, graph, bucket, schedule)
    }

    fn with(name: &'a str, graph: &'a Graph, bucket: Bucket, schedule: Schedule) -> Self {
        let made = generate::generate(name, graph, &schedule, bucket.pools).unwrap_or_else(|e| panic!("{name}: {e}"));
        Made { name, graph, bucket, schedule, made }
    }

    fn described(&self) -> manifest::Kernel {
        let facts = Facts { class: "other".into(), exactness: manifest::Exactness::Exact, ops: vec![] };
        kernel(self.graph, &self.schedule, &self.made, facts)
    }

    /// Code that passes the target's gates.
    fn code(&self, target: &str) -> Vec<u8> {
        let (t, p) = (target::by_name(target).unwrap(), &self.made.program);
        let object = llvm::compile_object(p, t).unwrap_or_else(|e| panic!("{e}\n{}", p.to_text()));
        let code = link::kernel(self.name, object, t).unwrap();
        gates::check(&code, p, t).unwrap_or_else(|e| panic!("{e}"));
        code
    }

    fn cpu(&self, threads: usize) -> CpuDevice {
        let options = CpuOptions { threads, guard: Guard::Aligned, poison_shared: true };
        let mut cpu = CpuDevice::new(options).unwrap();
        cpu.load(&[self.described()], &[Code { kernel: None, bytes: &self.code("x86-64") }]).unwrap();
        cpu
    }

    fn compare(&self, device: &mut dyn Device, seed: u64) {
        let found = check(device, &self.subject(), seed);
        self.agreed(device, found);
    }

    fn compare_given(&self, device: &mut dyn Device, given: &Given) {
        let found = check_given(device, &self.subject(), given);
        self.agreed(device, found);
    }

    fn subject(&self) -> Subject<'_> {
        let Made { name, graph, bucket, schedule, made } = self;
        let (uses, grid) = (&made.uses, schedule.grid());
        let bounded = matches!(schedule.products, Products::Tiles { .. });
        Subject { name, number: 0, graph, uses, grid, bucket: *bucket, bounded }
    }

    fn agreed(&self, device: &dyn Device, found: Result<Option<Mismatch>, CodegenError>) {
        if let Some(wrong) = found.unwrap_or_else(|e| panic!("{e}")) {
            let text = unglue_ir::text::print_graph(self.graph);
            panic!("{}: {wrong}\n{text}\n{}", device.name(), self.schedule.describe());
        }
    }
}

/// Compiles one graph as one kernel, fitted to each machine, and compares several draws.
fn run(name: &str, g: &Graph, rows_max: u32, pools: u64) {
    let first = Made::new(name, g, rows_max, pools);
    let others = fit::FITS.map(|fit| Made::of(name, g, Bucket { fit, ..first.bucket }));
    let different = others.into_iter().filter(|made| made.schedule != first.schedule);
    different.for_each(|made| run_made(&made));
    run_made(&first);
}

fn run_made(made: &Made) {
    let name = made.name;
    let mut cpu = made.cpu(2);
    (0..6).for_each(|seed| made.compare(&mut cpu, seed));
    let mut emulator = EmuDevice::new(EmuOptions { threads: 2, ..EmuOptions::default() }).unwrap();
    emulator.load(&[made.described()], &[Code { kernel: Some(0), bytes: &made.code("gfx1201") }]).unwrap();
    // No NVIDIA GPU is here: its gates are.
    made.code("sm_90");
    let orders = [emu::Schedule::Forward, emu::Schedule::Reverse, emu::Schedule::Random(name.len() as u64)];
    for (seed, schedule) in (0..).zip(orders) {
        emulator.set_options(EmuOptions { schedule, ..emulator.options() });
        made.compare(&mut emulator, seed);
    }
}

fn all_buckets(name: &str, g: &Graph, pools: u64) {
    for rows in [1, 4, 16] {
        run(&format!("{name}_r{rows}"), g, rows, pools);
    }
}

#[test]
fn pointwise_rows() {
    all_buckets("swiglu", &bodies::swiglu(200), 0);
}

#[test]
fn norms() {
    all_buckets("rms", &bodies::rms_norm(200), 0);
    all_buckets("rms_wide", &bodies::rms_norm(1000), 0);
    all_buckets("layer_norm", &bodies::layer_norm(96), 0);
    all_buckets("head_norm", &bodies::head_norm(6, 40), 0);
}

#[test]
fn sinkhorn() {
    for n in [2, 4, 6] {
        all_buckets(&format!("sinkhorn{n}"), &bodies::sinkhorn(n, 19), 0);
    }
}

#[test]
fn hyper_connection_finish() {
    all_buckets("finish", &sites::hyper_finish(4, 96), 0);
}

#[test]
fn top_k() {
    for (e, k) in [(1, 1), (7, 7), (18, 4), (288, 8), (257, 3)] {
        all_buckets(&format!("top_k_{e}_{k}"), &bodies::router(e, k), 0);
    }
}

#[test]
fn skinny_matmul() {
    all_buckets("matmul", &bodies::matmul(70, 96), 0);
    all_buckets("matmul_wide", &bodies::matmul(33, 700), 0);
    all_buckets("matmul_post", &bodies::matmul_post(4, 96, 64), 0);
    all_buckets("matmul_swiglu", &bodies::matmul_swiglu(80, 96), 0);
    all_buckets("sums", &bodies::site_sums(4, 96), 0);
}

#[test]
fn skinny_prologue() {
    run("norm_matmul_r1", &bodies::norm_matmul(96, 130), 1, 0);
    run("norm_matmul_r4", &bodies::norm_matmul(96, 130), 4, 0);
    run("norm_matmul_r16", &bodies::norm_matmul(96, 130), 16, 0);
    run("finish_matmul_r1", &sites::finish_matmul(4, 96, 50), 1, 0);
}

/// A normalised row takes the place of the row that it was formed from, unless that one is needed again.
#[test]
fn rows_are_normalised_in_place() {
    let texts = [include_str!("../filetests/in_place.ir"), include_str!("../filetests/in_place_not.ir")];
    for (text, places) in texts.into_iter().zip([1, 2]) {
        let graph = unglue_ir::text::parse_graph(text).unwrap();
        let rows: Vec<_> = Made::new(&graph.name, &graph, 1, 0).made.program.shared;
        assert_eq!(rows.iter().filter(|s| s.len == 96).count(), places, "{rows:?}");
        all_buckets(&graph.name, &graph, 0);
    }
}

#[test]
fn sections_run_as_they_would_alone() {
    for (name, g, parts) in [
        ("absorb_scores_tail", besides::absorb_scores_tail(), 3),
        ("matmul_and_states", besides::matmul_and_states(), 2),
        ("two_row_axes", besides::two_row_axes(), 2),
        ("collectives_beside_heads", besides::collectives_beside_heads(), 2),
        ("finish_beside_states", besides::finish_beside_states(), 2),
    ] {
        assert_eq!(besides::sections(&g, 4).len(), parts, "{name}");
        all_buckets(name, &g, 40);
    }
}

#[test]
fn finish_stages() {
    for (e, k) in [(1, 1), (7, 7), (60, 4), (257, 3), (288, 8), (1024, 2)] {
        all_buckets(&format!("gate_{e}_{k}"), &finishes::gate_router(70, e, k), 0);
    }
    all_buckets("router_beside_experts", &finishes::router_beside_experts(96, 288, 8), 0);
    all_buckets("head_best", &finishes::head_best(96, 50), 0);
    all_buckets("head_best_wide", &finishes::head_best(40, 5000), 0);
    all_buckets("matmul_norm", &finishes::matmul_norm(70, 300), 0);
    all_buckets("matmul_norm_wide", &finishes::matmul_norm(40, 2100), 0);
    all_buckets("rotated", &finishes::rotated(70, 2050), 0);
}

/// 3 blocks, sums that waves share evenly and not, and a matmul of which only the sums are stored.
#[test]
fn sums_over_blocks_behind_a_matmul() {
    all_buckets("post_sums", &blocks::matmul_post_sums(4, 70, 96, 24), 0);
    all_buckets("post_sums_5", &blocks::matmul_post_sums(2, 300, 64, 5), 0);
    all_buckets("matmul_sums", &blocks::matmul_sums(70, 160, 7), 0);
    all_buckets("finished_sums", &blocks::finished_sums(4, 70, 96, 24), 0);
}

/// Workgroups with two and four blocks.
#[test]
fn several_blocks_a_workgroup() {
    for (name, d, per_wave) in [("two", 8192, 16), ("four", 16384, 32)] {
        let g = blocks::matmul_sums(20, d, 3);
        let Form::Skinny(s) = Made::new(name, &g, 1, 0).schedule.form else { panic!("{name}") };
        assert_eq!(s.segments[0].outputs_per_wave, per_wave);
        run(name, &g, 1, 0);
    }
}

#[test]
fn sums_over_blocks_alone() {
    for (name, g) in [("embed", blocks::embed_sums(9, 4, 96, 24)), ("embed_5", blocks::embed_sums(9, 3, 64, 5))] {
        assert!(matches!(Made::new(name, &g, 4, 0).schedule.form, Form::Blocks(_)), "{name}");
        all_buckets(name, &g, 0);
    }
}

/// 3 and 35 blocks, an even number of streams and an odd one.
#[test]
fn sites_are_finished_row_by_row() {
    for (name, g) in [("site", sites::site(4, 96)), ("site_wide", sites::site(3, 1120))] {
        let schedule = Made::new(name, &g, 4, 0).schedule;
        assert!(matches!(schedule.form, Form::Blocks(_)) && schedule.finish().is_some(), "{}", schedule.describe());
        all_buckets(name, &g, 0);
    }
}

/// Two, four and eight neighbours a lane, several rounds of them, and more than are formed without a loop.
#[test]
fn rows_by_neighbours() {
    for (name, g) in [
        ("norm_2", bodies::rms_norm(512)),
        ("norm_4", bodies::rms_norm(3072)),
        ("norm_8", bodies::rms_norm(4096)),
        ("norm_loop", bodies::rms_norm(10240)),
        ("final_8", bodies::final_mean(4, 4096)),
        ("embed_loop", bodies::embed(50, 4096, 4)),
        ("site_2", sites::site(3, 1536)),
        ("site_8", sites::site(4, 4096)),
    ] {
        all_buckets(name, &g, 0);
    }
}

/// Which workgroup comes last differs from launch to launch; the bits do not.
#[test]
fn finishes_on_many_threads() {
    for (name, g) in [
        ("gate", finishes::gate_router(70, 288, 8)),
        ("beside", finishes::router_beside_experts(96, 288, 8)),
        ("best", finishes::head_best(40, 5000)),
        ("site", sites::site(4, 96)),
        ("head", spreads::kda(2, 128, Some(128))),
    ] {
        let made = Made::new(name, &g, if name == "head" { 1 } else { 4 }, 0);
        let mut cpu = made.cpu(8);
        (0..200).for_each(|round| made.compare(&mut cpu, round % 6));
    }
}

#[test]
fn batch_matmul() {
    all_buckets("absorb", &bodies::batch_matmul(4, 48, 64, true), 0);
    all_buckets("values", &bodies::batch_matmul(4, 64, 32, false), 0);
}

#[test]
fn grouped_matmul() {
    all_buckets("gate_up", &bodies::experts_up(18, 5, 4, 96, 40), 0);
    all_buckets("down", &bodies::experts_down(18, 5, 4, 40, 96), 0);
}

#[test]
fn convolution_and_delta_rule() {
    all_buckets("conv", &bodies::conv(3 * 64, 4), 0);
    all_buckets("conv_update", &bodies::conv_update(3 * 64, 4), 0);
    all_buckets("delta", &bodies::delta(2, 32, 32), 0);
    run("delta_parts", &bodies::delta(1, 128, 64), 16, 0);
    run("delta_real", &bodies::delta(1, 128, 128), 4, 0);
    all_buckets("delta_uneven", &bodies::delta(3, 20, 40), 0);
    run("kda_real", &bodies::conv_delta_norm(2, 128, None), 4, 0);
    all_buckets("kda", &bodies::conv_delta_norm(2, 32, None), 0);
    run("kda_low_rank_real", &bodies::conv_delta_norm(2, 128, Some(128)), 4, 0);
    all_buckets("kda_low_rank", &bodies::conv_delta_norm(3, 40, Some(20)), 0);
}

/// Columns of a head over several workgroups: as many as keys and not, gates of which each has its own columns, shares of one
/// wave of columns and of two, chains whole and in stages.
#[test]
fn heads_over_several_workgroups() {
    for (name, graph, shares) in [
        ("real", spreads::kda(2, 128, Some(128)), 4),
        ("given", spreads::kda(3, 128, None), 4),
        ("rank_16", spreads::kda(1, 64, Some(16)), 2),
        ("rank_20", spreads::kda(2, 64, Some(20)), 2),
        ("keys_20", spreads::normed(2, 20, 64), 2),
        ("values_256", spreads::normed(40, 64, 256), 8),
        ("many_heads", spreads::normed(64, 32, 256), 4),
    ] {
        let name = format!("spread_{name}");
        let made = Made::new(&name, &graph, 1, 0);
        assert_eq!(made.schedule.shares(), shares, "{}", made.schedule.describe());
        run_made(&made);
    }
}

/// One workgroup has a head whose columns are no whole waves, and every head of a step of several rows.
#[test]
fn heads_of_one_workgroup() {
    for (graph, rows) in [(bodies::conv_delta_norm(2, 96, None), 1), (bodies::conv_delta_norm(2, 128, None), 4)] {
        assert_eq!(Made::new("whole", &graph, rows, 0).schedule.shares(), 1);
    }
}

/// Launches of several lists share a kernel if graph and schedule are equal: code without a loop over rows must be told apart.
#[test]
fn one_row_and_several_are_two_schedules_of_the_delta_rule() {
    let g = bodies::delta(2, 32, 32);
    let [one, four, more] = [1, 4, 16].map(|rows| Made::new("delta", &g, rows, 0).schedule);
    assert_ne!(one, four);
    assert_eq!(four, more);
}

/// Weight rows of which a load has many and one, in one round and in two.
#[test]
fn factors_of_a_heads_gates() {
    run("kda_rank_16", &bodies::conv_delta_norm(2, 16, Some(16)), 4, 0);
    run("kda_rank_256", &bodies::conv_delta_norm(2, 16, Some(256)), 1, 0);
    run_made(&Made::new("kda_rank_256_spread", &spreads::kda(1, 64, Some(256)), 1, 0));
}

/// Behind the first barrier of a row that is alone only the lines of the convolution window are loaded.
#[test]
fn a_head_loads_what_is_given_first() {
    let [spread, whole] = [spreads::kda, bodies::conv_delta_norm].map(|graph| graph(2, 128, Some(128)));
    for (fit, graph) in [(&fit::GFX1201, spread), (&fit::SM_90, whole)] {
        let made = Made::of("kda_loads", &graph, Bucket { rows_max: 1, seqs_max: 1, pools: 0, fit });
        let code = String::from_utf8(made.code("sm_90")).unwrap();
        let (first, rest) = code.split_once("bar.sync").unwrap();
        assert!(first.contains("ld.global.nc.v4.b32"), "{}", fit.target);
        assert!(!rest.contains("ld.global.nc"), "{}", fit.target);
    }
}

#[test]
fn paged_state() {
    all_buckets("token_write", &bodies::token_write(64), 0);
    all_buckets("pool_keys", &bodies::pool_keys(32, 4), 16);
    all_buckets("tail_update", &bodies::tail_update(32, 4), 16);
}

#[test]
fn indexer() {
    all_buckets("scores", &bodies::scores(8, 32, 4), 70);
    all_buckets("select", &bodies::select(4, 4), 70);
    all_buckets("select_all", &bodies::select(64, 4), 70);
}

#[test]
fn attention() {
    all_buckets("attend", &bodies::attend(4, 64, 19), 0);
    all_buckets("attend_split", &bodies::storing_splits(bodies::attend(4, 64, 150)), 0);
    all_buckets("attend_splits", &bodies::attend_splits(4, 64, 150), 0);
    all_buckets("attend_combine", &bodies::attend_combine(3, 66, 5), 0);
}

#[test]
fn ends() {
    all_buckets("embed", &bodies::embed(50, 96, 4), 0);
    all_buckets("final", &bodies::final_mean(4, 96), 0);
    all_buckets("head", &bodies::head(96, 50), 0);
    all_buckets("argmax", &finishes::argmax(1000), 0);
}
