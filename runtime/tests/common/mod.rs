//! A fake bundle made by hand: a small trunk with every kind of state, in C.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::borrow::Cow;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use unglue_runtime::manifest::*;
use unglue_runtime::{
    Bundle, CpuDevice, CpuOptions, Geometry, PartData, Session, SessionOptions, slice_tensor, write_bundle,
};

pub const VOCAB: u64 = 8;
pub const WIDTH: u64 = 4;
pub const MAX_CTX: u64 = 6000;

/// Compiles C to a shared object.
pub fn compile(source: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (c, so) = (dir.path().join("k.c"), dir.path().join("k.so"));
    std::fs::write(&c, source).unwrap();
    let flags = ["-shared", "-fPIC", "-nostdlib", "-O1", "-ffp-contract=off", "-o"];
    let status = Command::new("gcc").args(flags).arg(&so).arg(&c).status().unwrap();
    assert!(status.success());
    std::fs::read(&so).unwrap()
}

/// A kernel with the given parameters: `r`, `w`, `x` (read, write, both) and a type letter `f` or `i`; `n` is a number.
pub fn kernel(name: &str, params: &str) -> Kernel {
    let param = |(i, text): (usize, &str)| {
        let access = match &text[..1] {
            "r" => Access::Read,
            "w" => Access::Write,
            _ => Access::ReadWrite,
        };
        let mem = if text.ends_with('f') { Mem::F32 } else { Mem::I32 };
        let kind = if text == "n" { ParamKind::Scalar } else { ParamKind::Buffer { mem, access } };
        Param { name: format!("p{i}"), kind }
    };
    Kernel {
        name: name.into(),
        waves: 1,
        shared_bytes: 64,
        params: params.split(' ').enumerate().map(param).collect(),
        class: "other".into(),
        exactness: Exactness::Exact,
        schedule: "by hand".into(),
        ops: vec![name.into()],
        ir: String::new(),
        orders: vec![],
        products: Products::Lanes,
        resources: [("x86-64".to_string(), Resources::default())].into(),
        interface: Interface { outputs: vec![Port { name: "out".into(), param: 0 }], ..Interface::default() },
    }
}

fn state(name: &str, role: StateRole, kind: StateKind) -> State {
    State { name: name.into(), layer: 2, role, kind, mem: Mem::F32 }
}

fn buffer(name: &str, mem: Mem, shape: &[Dim]) -> Buffer {
    Buffer { name: name.into(), mem, shape: shape.to_vec() }
}

fn weight(name: &str) -> Weight {
    // The table is every second row of the checkpoint tensor [2 V, W], as two sources.
    let source = |start| Source {
        tensor: "embed".into(),
        dtype: Mem::F32,
        shape: vec![2 * VOCAB, WIDTH],
        view: vec![2, VOCAB, WIDTH],
        slice: Some(Slice { axis: 1, start, len: VOCAB / 4 }),
        transposed: false,
    };
    Weight { name: name.into(), mem: Mem::F32, shape: vec![VOCAB, WIDTH], sources: vec![source(0), source(VOCAB / 2)] }
}

fn launches() -> Vec<Launch> {
    use StepInput::*;
    let by = |symbol| [GridDim { symbol: Some(symbol), mul: 2, div: 2 }, GridDim::fixed(1), GridDim::fixed(1)];
    let scalar = Arg::Scalar;
    let launch = |kernel, symbol, args, layer| Launch { kernel, grid: by(symbol), args, layer, site: "site".into() };
    let embed =
        [Arg::Input(Ids), Arg::Weight(0), Arg::Buffer(0), scalar(StepScalar::Rows), Arg::Input(Status), Arg::Const(0)];
    let mut mix =
        vec![Arg::Buffer(0), Arg::Input(Positions), Arg::Input(QStart), Arg::Input(Slot), Arg::Input(BlockTable)];
    mix.extend([Arg::State(0), Arg::State(1), Arg::State(2), Arg::State(3), Arg::Buffer(1), scalar(StepScalar::Seqs)]);
    mix.extend([scalar(StepScalar::BlockSize), scalar(StepScalar::BlocksPerSeq), scalar(StepScalar::PoolsPerBlock)]);
    mix.extend([scalar(StepScalar::MaxSlots), scalar(StepScalar::NumBlocks), Arg::Input(Status)]);
    mix.extend([Arg::Input(SeqLen), Arg::Input(RowSeq)]);
    let mut head = vec![Arg::Buffer(1), Arg::Weight(0), Arg::Input(LogitRows), Arg::Buffer(2), Arg::Buffer(3)];
    head.extend([scalar(StepScalar::Logits), Arg::SlotTable(0)]);
    vec![
        launch(0, Symbol::Rows, embed.to_vec(), None),
        launch(1, Symbol::Seqs, mix, Some(2)),
        launch(2, Symbol::Logits, head, None),
    ]
}

fn bucket(rows: u64, seqs: u64) -> Bucket {
    let offsets = vec![Some(0), Some(256), Some(512), Some(1024), None];
    let pools = MAX_CTX.div_ceil(4);
    let launches = launches();
    Bucket { rows_max: rows, seqs_max: seqs, logits_max: rows, pools, arena_bytes: 2048, offsets, launches }
}

/// The fake bundle's manifest, without parts.
pub fn manifest() -> Manifest {
    let tap = |name: &str, buffer| Tap { name: name.into(), buffer, after_launch: vec![1, 1, 1] };
    Manifest {
        format: FORMAT.into(),
        version: VERSION,
        model: Model { name: "fake".into(), hidden_size: WIDTH, vocab_size: VOCAB, streams: 1, layers: vec![2] },
        options: Options {
            schedules: "gfx1201".into(),
            dtype: Mem::F32,
            layers: vec![2],
            aux: vec![],
            cover: "eager".into(),
            numerics: "exact".into(),
            tp: 1,
            max_rows: 16,
            max_seqs: 4,
            max_ctx: MAX_CTX,
            kv_block: 64,
            kv_dtype: Mem::F32,
            fault: None,
        },
        parts: vec![],
        awaits: vec![],
        weights: vec![weight("table")],
        states: vec![
            state("s", StateRole::Recurrent, StateKind::Slot { shape: vec![WIDTH] }),
            state("tokens", StateRole::Latent, StateKind::Token { width: WIDTH }),
            state("pools", StateRole::PoolKeys, StateKind::Pool { width: WIDTH, pool: 4 }),
            state("tail", StateRole::Tail, StateKind::Tail { pool: 4, width: WIDTH }),
        ],
        buffers: vec![
            buffer("x", Mem::F32, &[Dim::Rows, Dim::Fixed(WIDTH)]),
            buffer("y", Mem::F32, &[Dim::Rows, Dim::Fixed(WIDTH)]),
            buffer("logits", Mem::F32, &[Dim::Logits, Dim::Fixed(VOCAB)]),
            buffer("argmax", Mem::I32, &[Dim::Logits]),
            buffer("unused", Mem::Bf16, &[Dim::Pools, Dim::Seqs]),
        ],
        kernels: vec![
            kernel("embed", "ri rf wf n xi n"),
            kernel("mix", "rf ri ri ri ri xf xf xf xf wf n n n n n n xi ri ri"),
            kernel("head", "rf rf ri wf wi n ri"),
        ],
        buckets: vec![bucket(1, 1), bucket(4, 4), bucket(16, 4)],
        slot_tables: vec![SlotTable { layer: 2, experts: 2, slots: 2 }],
        outputs: Outputs { logits: 2, argmax: 3, taps: vec![tap("layer2.streams", 1), tap("embed", 0)] },
        all_reduce: vec![],
    }
}

/// Parts of the fake bundle with the given code.
pub fn parts(code: Vec<u8>) -> Vec<PartData> {
    let part = |path: &str, kind, bytes| PartData { path: path.into(), kind, bytes };
    vec![
        part("trunk.ir", PartKind::TrunkIr, b"trunk".to_vec()),
        part("report.json", PartKind::Report, b"{}".to_vec()),
        part("code/x86-64.so", PartKind::Code { target: TARGET_X86_64.into(), kernel: None }, code),
    ]
}

/// The fake bundle's own code.
pub fn code() -> Vec<u8> {
    compile(include_str!("kernels.c"))
}

pub fn write_to(path: &Path) {
    write_bundle(path, manifest(), &parts(code())).unwrap();
}

pub fn open_fake() -> Arc<Bundle> {
    let dir = tempfile::tempdir().unwrap();
    write_to(&dir.path().join("b"));
    Arc::new(Bundle::open(dir.path().join("b")).unwrap())
}

/// The checkpoint tensor `embed`.
pub fn tensor() -> Vec<u8> {
    let value = |i: u64| ((i * 37 % 64) as f32 - 30.0) / 16.0;
    (0..2 * VOCAB * WIDTH).flat_map(|i| value(i).to_le_bytes()).collect()
}

pub fn session(bundle: Arc<Bundle>, cpu: CpuOptions, geometry: Geometry, options: SessionOptions) -> Session {
    let full = tensor();
    let provider = |s: &Source| -> Result<Cow<'_, [u8]>, String> { slice_tensor(&full, s) };
    let device = Box::new(CpuDevice::new(cpu).unwrap());
    Session::create(bundle, device, &provider, geometry, options).unwrap()
}

pub fn geometry(block_size: u64) -> Geometry {
    let num_blocks = (3 * 64u64).div_ceil(block_size) + 4;
    Geometry { block_size, num_blocks, max_slots: 3, max_ctx: MAX_CTX }
}
