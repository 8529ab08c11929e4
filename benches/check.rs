//! `make bench-check`: the figures that must hold, measured; exit code 1 if one does not.
//!
//! - compiling the real GLM-5.3-Flash config for gfx1201, all launch lists: at most 15 s and 2 GiB;
//! - the CPU's bf16 GEMV 24,896 x 4,096: at least 60 % of the read bandwidth measured in the same process with the same
//!   threads;
//! - the emulator's bf16 GEMV 2,048 x 4,096 on one core: at least 5 million wave instructions a second.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use unglue_codegen::bundle::describe::{Facts, kernel};
use unglue_codegen::emu::{EmuDevice, EmuOptions};
use unglue_codegen::{generate, link, llvm, target};
use unglue_ir::builder::Builder;
use unglue_ir::graph::Graph;
use unglue_ir::op::Domain;
use unglue_ir::types::{DType, Dim, TensorType};
use unglue_passes::schedule::{Bucket, fit, schedule};
use unglue_runtime::{ArgValue, Code, CpuDevice, CpuOptions, Device, manifest};

type Failure = Box<dyn std::error::Error>;

/// Output rows on the CPU: KDA's projections of one layer.
const N: u64 = 24_896;
/// Output rows in the emulator.
const EMULATED_N: u64 = 2_048;
const K: u64 = 4_096;
const COMPILE_SECONDS: f64 = 15.0;
const COMPILE_MIB: u64 = 2048;
const GEMV_SHARE: f64 = 0.6;
const EMULATED_RATE: f64 = 5e6;
const ROUNDS: usize = 15;

fn main() -> ExitCode {
    let checks: [fn() -> Result<bool, Failure>; 3] = [compile, gemv, emulated];
    let mut ok = true;
    for check in checks {
        match check() {
            Ok(passed) => ok &= passed,
            Err(e) => {
                println!("FAIL {e}");
                ok = false;
            }
        }
    }
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn verdict(ok: bool) -> &'static str {
    if ok { "ok  " } else { "FAIL" }
}

fn compile() -> Result<bool, Failure> {
    let dir = tempfile::tempdir()?;
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/models/configs/glm-5.3-flash.json");
    let out = Command::new(env!("CARGO_BIN_EXE_unglue"))
        .env_remove("UNGLUE_CACHE")
        .args(["compile", config, "--target", "gfx1201", "--json", "-o"])
        .arg(dir.path().join("glm.ug"))
        .output()?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned().into());
    }
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout)?;
    let seconds = summary["seconds"].as_f64().ok_or("no seconds")?;
    let mib = summary["peak_mib"].as_u64().ok_or("no peak_mib")?;
    let ok = seconds <= COMPILE_SECONDS && mib <= COMPILE_MIB;
    println!(
        "{} compile GLM-5.3-Flash for gfx1201: {seconds:.1} s (limit {COMPILE_SECONDS} s), {mib} MiB (limit {COMPILE_MIB} MiB)",
        verdict(ok)
    );
    Ok(ok)
}

fn matmul(n: u64) -> Result<Graph, Failure> {
    let mut b = Builder::new("gemv");
    let x = b.input("x", TensorType::plain(DType::Bf16, [Dim::Rows, Dim::Fixed(K)]), Domain::Normal);
    let w = b.weight("w", TensorType::plain(DType::Bf16, [Dim::Fixed(n), Dim::Fixed(K)]));
    let y = b.matmul(x, w)?;
    b.output("y", y);
    Ok(b.finish())
}

/// Median of a few runs.
fn median(mut run: impl FnMut() -> Result<(), Failure>) -> Result<Duration, Failure> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}

/// A matmul of one row on a device, ready to launch.
struct Gemv {
    grid: [u32; 3],
    args: Vec<ArgValue>,
    weights: Vec<u8>,
}

impl Gemv {
    fn load(n: u64, target: &str, part: Option<u32>, device: &mut dyn Device) -> Result<Gemv, Failure> {
        let bucket = Bucket { rows_max: 1, seqs_max: 1, pools: 0, fit: &fit::GFX1201 };
        let g = matmul(n)?;
        let s = schedule(&g, &bucket).map_err(|o| format!("{o:?}"))?;
        let made = generate::generate("gemv", &g, &s, bucket.pools)?;
        let t = target::by_name(target).ok_or("no such target")?;
        let code = link::shared_object(&[("gemv".into(), llvm::compile_object(&made.program, t)?)], t)?;
        let facts = Facts { class: "skinny matmul".into(), exactness: manifest::Exactness::Exact, ops: vec![] };
        device.load(&[kernel(&g, &s, &made, facts)], &[Code { kernel: part, bytes: &code }])?;
        let weights: Vec<u8> = (0..n * K).flat_map(|i| (0x3c00u16 + (i * 7919 % 512) as u16).to_le_bytes()).collect();
        let x: Vec<u8> = (0..K).flat_map(|i| (0x3f00u16 + (i % 256) as u16).to_le_bytes()).collect();
        let out = device.alloc(n * 4)?;
        let mut args = Vec::new();
        for of in &made.uses {
            args.push(match of {
                generate::Use::Input(_) => upload(device, &x)?,
                generate::Use::Weight(_) => upload(device, &weights)?,
                generate::Use::Output(_) => ArgValue::Buffer { id: out, offset: 0, bytes: n * 4 },
                _ => ArgValue::Scalar(1),
            });
        }
        Ok(Gemv { grid: s.grid().map(|a| a.value(&bucket) as u32), args, weights })
    }
}

fn gemv() -> Result<bool, Failure> {
    let mut device = CpuDevice::new(CpuOptions::default())?;
    let Gemv { grid, args, weights } = Gemv::load(N, "x86-64", None, &mut device)?;
    let time = median(|| Ok(device.launch(0, grid, &args)?))?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let read = median(|| {
        std::hint::black_box(read_all(&weights, threads));
        Ok(())
    })?;
    let rate = |t: Duration| weights.len() as f64 / t.as_secs_f64() / 1e9;
    let share = rate(time) / rate(read);
    let ok = share >= GEMV_SHARE;
    println!(
        "{} bf16 GEMV {N} x {K}, {threads} threads: {:.1} GB/s, {:.0} % of {:.1} GB/s read in this process (limit {:.0} %)",
        verdict(ok),
        rate(time),
        share * 100.0,
        rate(read),
        GEMV_SHARE * 100.0
    );
    Ok(ok)
}

fn emulated() -> Result<bool, Failure> {
    let mut device = EmuDevice::new(EmuOptions { threads: 1, ..EmuOptions::default() })?;
    let Gemv { grid, args, .. } = Gemv::load(EMULATED_N, "gfx1201", Some(0), &mut device)?;
    let time = median(|| Ok(device.launch(0, grid, &args)?))?;
    let counts = device.take_counts().remove("gemv").ok_or("no counts")?;
    let instructions = counts.total() / counts.launches.max(1);
    let rate = instructions as f64 / time.as_secs_f64();
    let ok = rate >= EMULATED_RATE;
    println!(
        "{} emulated bf16 GEMV {EMULATED_N} x {K}, one core: {instructions} wave instructions in {:.0} ms, {:.1} million a \
         second (limit {:.0})",
        verdict(ok),
        time.as_secs_f64() * 1e3,
        rate / 1e6,
        EMULATED_RATE / 1e6
    );
    Ok(ok)
}

fn upload(device: &mut dyn Device, bytes: &[u8]) -> Result<ArgValue, Failure> {
    let id = device.alloc(bytes.len() as u64)?;
    device.write(id, 0, bytes)?;
    Ok(ArgValue::Buffer { id, offset: 0, bytes: bytes.len() as u64 })
}

/// Sums all words with as many threads as the device uses: the read ceiling.
fn read_all(bytes: &[u8], threads: usize) -> u64 {
    let part = bytes.len().div_ceil(threads).next_multiple_of(64);
    std::thread::scope(|s| {
        let handles: Vec<_> = bytes.chunks(part).map(|c| s.spawn(move || sum_words(c))).collect();
        handles.into_iter().map(|h| h.join().unwrap_or(0)).fold(0, u64::wrapping_add)
    })
}

/// Eight independent chains, which the compiler keeps in vector registers.
fn sum_words(bytes: &[u8]) -> u64 {
    let mut acc = [0u64; 8];
    for line in bytes.chunks_exact(64) {
        for (a, w) in acc.iter_mut().zip(line.chunks_exact(8)) {
            let mut word = [0u8; 8];
            word.copy_from_slice(w);
            *a = a.wrapping_add(u64::from_le_bytes(word));
        }
    }
    acc.iter().fold(0, |a, b| a.wrapping_add(*b))
}
