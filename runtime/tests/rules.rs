//! One test per rule of the manifest, and that no manifest makes the runtime panic.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use common::{manifest, parts};
use proptest::prelude::*;
use serde_json::Value as Json;
use unglue_runtime::manifest::*;
use unglue_runtime::validate::validate;
use unglue_runtime::{
    ArgValue, BufferId, Bundle, Code, Device, Edges, Geometry, LogitRows, Result, RuntimeError, Session,
    SessionOptions, check_launch, slice_tensor, write_bundle,
};

#[test]
fn the_fake_manifest_is_valid() {
    validate(&manifest()).unwrap();
}

/// Each change must be refused by the rule of that name.
macro_rules! refusals {
    ($($test:ident: $rule:literal, $m:ident => $change:expr;)*) => {$(
        #[test]
        fn $test() {
            let mut $m = manifest();
            $change;
            let error = validate(&$m).unwrap_err();
            let RuntimeError::Manifest { rule, .. } = &error else { panic!("{error}") };
            assert_eq!(*rule, $rule, "{error}");
        }
    )*};
}

const HUGE: u64 = 1 << 63;

refusals! {
    format_name: "format name", m => m.format = "x".into();
    format_version: "format version", m => m.version = VERSION + 1;
    model_name: "model name", m => m.model.name.clear();
    hidden_size: "hidden size", m => m.model.hidden_size = 0;
    vocabulary: "vocabulary", m => m.model.vocab_size = HUGE;
    streams: "streams", m => m.model.streams = 0;
    layers_ascending: "layers ascending", m => m.model.layers = vec![2, 2];
    layers_equal: "layers", m => m.options.layers = vec![1];
    activation_dtype: "activation dtype", m => m.options.dtype = Mem::I32;
    tensor_parallelism: "tensor parallelism", m => m.options.tp = 2;
    all_reduce: "tensor parallelism", m => m.all_reduce.push(AllReduce { buffer: 0, after_launch: vec![] });
    context: "context", m => m.options.max_ctx = HUGE;
    block_size: "block size", m => m.options.kv_block = 6;
    weight_name_twice: "weight name", m => m.weights = vec![m.weights[0].clone(), m.weights[0].clone()];
    weight_name_empty: "weight name", m => m.weights[0].name.clear();
    weight_rank: "rank", m => m.weights[0].shape = vec![1; 9];
    weight_axis: "axis length", m => m.weights[0].shape = vec![0];
    weight_huge: "size", m => m.weights[0].shape = vec![HUGE];
    weight_overflow: "size", m => m.weights[0].shape = vec![1 << 40, 1 << 40];
    weight_sources: "weight sources", m => m.weights[0].sources.clear();
    weight_dtype: "weight dtype", m => m.weights[0].sources[0].dtype = Mem::Bf16;
    weight_size: "weight size", m => m.weights[0].shape[0] += 1;
    source_tensor: "tensor name", m => m.weights[0].sources[0].tensor.clear();
    source_huge: "size", m => m.weights[0].sources[0].shape = vec![HUGE, 2];
    source_view: "view size", m => m.weights[0].sources[0].view[0] = 3;
    source_transposed: "transposed source", m => m.weights[0].sources[0].transposed = true;
    slice_axis: "slice axis", m => m.weights[0].sources[0].slice = Some(Slice { axis: 3, start: 0, len: 1 });
    slice_range: "slice range", m => m.weights[0].sources[0].slice = Some(Slice { axis: 1, start: 7, len: 2 });
    slice_overflow: "slice range", m => m.weights[0].sources[0].slice = Some(Slice { axis: 1, start: u64::MAX, len: 2 });
    slice_empty: "slice range", m => m.weights[0].sources[0].slice = Some(Slice { axis: 1, start: 0, len: 0 });
    state_name: "state name", m => m.states[1].name = "s".into();
    state_layer: "layer", m => m.states[0].layer = 3;
    state_shape: "axis length", m => m.states[0].kind = StateKind::Slot { shape: vec![0] };
    state_huge: "size", m => m.states[0].kind = StateKind::Slot { shape: vec![HUGE] };
    token_width: "size", m => m.states[1].kind = StateKind::Token { width: HUGE };
    pool_zero: "pool size", m => m.states[2].kind = StateKind::Pool { width: 4, pool: 0 };
    pool_huge: "pool size", m => m.states[2].kind = StateKind::Pool { width: 4, pool: HUGE };
    pool_sizes_differ: "one pool size", m => m.states[3].kind = StateKind::Tail { width: 4, pool: 8 };
    buffer_name: "buffer name", m => m.buffers[1].name = "x".into();
    buffer_rank: "rank", m => m.buffers[4].shape = vec![Dim::Fixed(1); 9];
    buffer_huge: "size", m => m.buffers[0].shape = vec![Dim::Fixed(HUGE)];
    buffer_overflow: "size", m => m.buffers[0].shape = vec![Dim::Rows, Dim::Fixed(1 << 45), Dim::Fixed(1 << 45)];
    buffer_empty: "buffer size", m => m.buffers[0].shape = vec![Dim::Fixed(0)];
    kernel_name_twice: "kernel name", m => m.kernels[1].name = "embed".into();
    kernel_name_long: "kernel name", m => m.kernels[1].name = "a".repeat(64);
    kernel_name_digit: "kernel name", m => m.kernels[1].name = "1a".into();
    kernel_name_dash: "kernel name", m => m.kernels[1].name = "a-b".into();
    waves_none: "waves", m => m.kernels[0].waves = 0;
    waves_many: "waves", m => m.kernels[0].waves = 33;
    shared_memory: "shared memory", m => m.kernels[0].shared_bytes = HUGE;
    parameter_name: "parameter name", m => m.kernels[0].params[1].name = "p0".into();
    interface: "interface parameter", m => m.kernels[0].interface.outputs[0].param = 6;
    slot_table_layer: "layer", m => m.slot_tables[0].layer = 9;
    slot_table_twice: "one slot table a layer", m => m.slot_tables.push(m.slot_tables[0].clone());
    slot_table_experts: "experts", m => m.slot_tables[0].experts = HUGE;
    slot_table_slots: "slots", m => m.slot_tables[0].slots = 0;
    no_buckets: "buckets", m => m.buckets.clear();
    bucket_order: "bucket order", m => m.buckets.swap(0, 1);
    bucket_rows: "bucket rows", m => m.buckets[2].rows_max = 17;
    bucket_seqs: "bucket sequences", m => m.buckets[2].seqs_max = 5;
    bucket_logits: "bucket logits", m => m.buckets[2].logits_max = 17;
    bucket_pools: "bucket pools", m => m.buckets[2].pools = 1;
    arena_size: "arena size", m => m.buckets[0].arena_bytes = HUGE;
    buffer_offsets: "buffer offsets", m => { m.buckets[0].offsets.pop(); };
    buffer_alignment: "buffer alignment", m => m.buckets[0].offsets[0] = Some(64);
    buffer_in_arena: "buffer in arena", m => m.buckets[0].offsets[0] = Some(2048);
    buffer_offset_huge: "buffer in arena", m => m.buckets[0].offsets[0] = Some(u64::MAX - 255);
    launch_kernel: "launch kernel", m => m.buckets[0].launches[0].kernel = 3;
    launch_layer: "layer", m => m.buckets[0].launches[0].layer = Some(0);
    grid_zero: "grid", m => m.buckets[0].launches[0].grid[0].mul = 0;
    grid_div: "grid", m => m.buckets[0].launches[0].grid[0].div = 0;
    grid_huge: "grid", m => m.buckets[0].launches[0].grid[1] = GridDim::fixed(1 << 16);
    grid_overflow: "grid", m => m.buckets[1].launches[0].grid[0].mul = HUGE;
    grid_product: "grid", m => m.buckets[0].launches[0].grid = [GridDim::fixed(1 << 15); 3];
    argument_count: "argument count", m => { m.buckets[0].launches[0].args.pop(); };
    argument_weight: "argument weight", m => m.buckets[0].launches[0].args[1] = Arg::Weight(1);
    argument_state: "argument state", m => m.buckets[0].launches[1].args[5] = Arg::State(4);
    argument_buffer: "argument buffer", m => m.buckets[0].launches[0].args[2] = Arg::Buffer(5);
    argument_table: "argument slot table", m => m.buckets[0].launches[2].args[6] = Arg::SlotTable(1);
    argument_placed: "buffer placed", m => m.buckets[0].launches[0].args[2] = Arg::Buffer(4);
    argument_dtype: "argument dtype", m => m.buckets[0].launches[0].args[2] = Arg::Buffer(3);
    argument_writes_weight: "argument access", m => m.buckets[0].launches[0].args[2] = Arg::Weight(0);
    argument_writes_input: "argument access", m => m.buckets[0].launches[0].args[4] = Arg::Input(StepInput::Ids);
    argument_kind_scalar: "argument kind", m => m.buckets[0].launches[0].args[3] = Arg::Buffer(0);
    argument_kind_buffer: "argument kind", m => m.buckets[0].launches[0].args[0] = Arg::Const(0);
    logits_buffer: "logits buffer", m => m.outputs.logits = 5;
    argmax_buffer: "argmax buffer", m => m.outputs.argmax = u32::MAX;
    logits_dtype: "logits dtype", m => m.outputs.logits = 3;
    argmax_dtype: "argmax dtype", m => m.outputs.argmax = 2;
    logits_shape: "logits shape", m => m.outputs.logits = 0;
    output_size: "output size", m => m.model.vocab_size = 7;
    output_placed: "output placed", m => { m.buckets[0].launches.truncate(2); m.buckets[0].offsets[2] = None };
    tap_name: "tap name", m => m.outputs.taps[1].name = "layer2.streams".into();
    tap_buffer: "tap buffer", m => m.outputs.taps[0].buffer = 5;
    tap_launches: "tap launches", m => { m.outputs.taps[0].after_launch.pop(); };
    tap_launch: "tap launch", m => m.outputs.taps[0].after_launch[0] = 3;
    tap_placed: "tap placed", m => m.outputs.taps[0].buffer = 4;
}

#[test]
fn slices_are_cut_from_the_whole_tensor() {
    let full: Vec<u8> = (0..48).collect();
    let source = |view: &[u64], slice| Source {
        tensor: "t".into(),
        dtype: Mem::Bf16,
        shape: vec![4, 6],
        view: view.to_vec(),
        slice,
        transposed: false,
    };
    let cut = |view: &[u64], axis, start, len| {
        slice_tensor(&full, &source(view, Some(Slice { axis, start, len }))).map(Cow::into_owned)
    };
    assert!(matches!(slice_tensor(&full, &source(&[24], None)), Ok(Cow::Borrowed(b)) if b == full));
    assert_eq!(cut(&[4, 6], 0, 1, 2).unwrap(), full[12..36]);
    assert_eq!(cut(&[2, 3, 4], 1, 2, 1).unwrap(), [&full[16..24], &full[40..48]].concat());
    assert_eq!(cut(&[2, 12], 1, 11, 1).unwrap(), [22, 23, 46, 47]);
    let turned = Source { transposed: true, ..source(&[2, 12], None) };
    let columns: Vec<u8> = (0..12).flat_map(|c| [2 * c, 2 * c + 1, 24 + 2 * c, 25 + 2 * c]).collect();
    assert_eq!(slice_tensor(&full, &turned).unwrap(), columns);
    slice_tensor(&full, &Source { view: vec![2, 3, 4], ..turned.clone() }).unwrap_err();
    slice_tensor(&full, &Source { slice: Some(Slice { axis: 0, start: 0, len: 1 }), ..turned }).unwrap_err();
    cut(&[2, 12], 2, 0, 1).unwrap_err();
    cut(&[2, 12], 1, 12, 1).unwrap_err();
    cut(&[2, 13], 1, 0, 1).unwrap_err();
    cut(&[], 0, 0, 1).unwrap_err();
    slice_tensor(&full[1..], &source(&[24], None)).unwrap_err();
}

/// A device without memory: it knows lengths only, and reads zeros.
#[derive(Default)]
struct Lengths {
    buffers: BTreeMap<BufferId, u64>,
    kernels: Vec<Kernel>,
    /// Whether launches may start early.
    early: bool,
}

impl Lengths {
    fn check(&self, id: BufferId, offset: u64, bytes: usize) -> Result<()> {
        assert!(offset + bytes as u64 <= self.buffers[&id], "{bytes} bytes at {offset} of {}", self.buffers[&id]);
        Ok(())
    }
}

impl Device for Lengths {
    fn name(&self) -> String {
        "lengths".into()
    }
    fn target(&self) -> &str {
        TARGET_X86_64
    }
    fn alloc(&mut self, bytes: u64) -> Result<BufferId> {
        let id = BufferId(self.buffers.len() as u64);
        self.buffers.insert(id, bytes);
        Ok(id)
    }
    fn free(&mut self, id: BufferId) -> Result<()> {
        self.check(id, 0, 0)
    }
    fn fill(&mut self, id: BufferId, offset: u64, bytes: u64, _: u8) -> Result<()> {
        self.check(id, offset, bytes as usize)
    }
    fn write(&mut self, id: BufferId, offset: u64, data: &[u8]) -> Result<()> {
        self.check(id, offset, data.len())
    }
    fn read(&self, id: BufferId, offset: u64, data: &mut [u8]) -> Result<()> {
        self.check(id, offset, data.len())
    }
    fn load(&mut self, kernels: &[Kernel], _: &[Code<'_>]) -> Result<()> {
        self.kernels = kernels.to_vec();
        Ok(())
    }
    fn set_edges(&mut self, wanted: Edges) -> Edges {
        if self.early { wanted } else { Edges::Plain }
    }
    fn launch(&mut self, kernel: u32, grid: [u32; 3], args: &[ArgValue]) -> Result<()> {
        let len = |id| Ok(self.buffers[&id]);
        check_launch(&self.kernels[kernel as usize], grid, args, len).map_err(|e| panic!("{e}"))
    }
}

/// A session of what a valid manifest describes.
fn session_of(manifest: Manifest, device: Lengths, options: SessionOptions) -> Result<Session> {
    let dir = tempfile::tempdir().unwrap();
    write_bundle(dir.path().join("b"), manifest, &parts(vec![]))?;
    let bundle = Arc::new(Bundle::open(dir.path().join("b"))?);
    let provider = |source: &Source| {
        let full: u64 = source.shape.iter().product::<u64>() * source.dtype.bytes();
        if full > 1 << 20 {
            return Err("too long for a test".to_string());
        }
        Ok(Cow::Owned(slice_tensor(&vec![0; full as usize], source)?.into_owned()))
    };
    let geometry = Geometry { block_size: 64, num_blocks: 4, max_slots: 2, max_ctx: 128 };
    Session::create(bundle, Box::new(device), &provider, geometry, options)
}

/// Runs a step of what a valid manifest describes.
fn run(manifest: Manifest) -> Result<()> {
    let options = SessionOptions { poison: true, ..Default::default() };
    let mut session = session_of(manifest, Lengths::default(), options)?;
    let mut seq = session.open_sequence()?;
    session.feed(&mut seq, &[1, 2, 3], LogitRows::All)?;
    session.snapshot(&seq).map(|_| ())
}

/// Launches start early only where code and device both allow it; who asks for more is told what is missing.
#[test]
fn dependent_launches_need_code_that_waits_and_a_device_that_can() {
    let edges = |awaits: bool, early: bool, wanted: Edges| {
        let awaits = if awaits { vec![TARGET_X86_64.to_owned()] } else { vec![] };
        let device = Lengths { early, ..Lengths::default() };
        let options = SessionOptions { edges: wanted, ..Default::default() };
        session_of(Manifest { awaits, ..manifest() }, device, options)
            .map(|mut session| (session.edges(), session.set_edges(Edges::Dependent).is_ok()))
            .map_err(|e| e.to_string())
    };
    let (plain, dependent) = (Edges::Plain, Edges::Dependent);
    assert_eq!(SessionOptions::default().edges, plain);
    assert_eq!(edges(true, true, dependent), Ok((Edges::Dependent, true)));
    assert_eq!(edges(true, true, plain), Ok((Edges::Plain, true)));
    assert_eq!(edges(true, false, plain), Ok((Edges::Plain, false)));
    assert_eq!(edges(false, true, plain), Ok((Edges::Plain, false)));
    let old = edges(false, true, dependent).unwrap_err();
    assert!(old.contains("code that does not wait"), "{old}");
    let cannot = edges(true, false, dependent).unwrap_err();
    assert!(cannot.contains("which lengths cannot make"), "{cannot}");
    let unknown = Manifest { awaits: vec!["sm_90".into()], ..manifest() };
    let refused = run(unknown).unwrap_err().to_string();
    assert!(refused.contains("sm_90, which has no code"), "{refused}");
}

/// What was built wrong on purpose is no model to run.
#[test]
fn sessions_refuse_builds_with_a_fault() {
    let mut faulty = manifest();
    faulty.options.fault = Some("delay=7".into());
    let refused = run(faulty).unwrap_err().to_string();
    assert!(refused.contains("delay=7") && refused.contains("without --fault"), "{refused}");
}

/// JSON pointers of every value in `json`.
fn pointers(json: &Json, at: String, out: &mut Vec<String>) {
    match json {
        Json::Object(map) => map.iter().for_each(|(k, v)| pointers(v, format!("{at}/{k}"), out)),
        Json::Array(list) => list.iter().enumerate().for_each(|(i, v)| pointers(v, format!("{at}/{i}"), out)),
        _ => {}
    }
    out.push(at);
}

fn same_type(a: &Json, b: &Json) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

static GOOD: LazyLock<(Json, Vec<String>)> = LazyLock::new(|| {
    let json = serde_json::to_value(manifest()).unwrap();
    let mut all = Vec::new();
    pointers(&json, String::new(), &mut all);
    (json, all)
});

fn replacement() -> impl Strategy<Value = Json> {
    prop_oneof![
        Just(Json::Null),
        Just(Json::from(u64::MAX)),
        Just(Json::from(1u64 << 63)),
        Just(Json::from(i64::MIN)),
        Just(Json::from(u32::MAX)),
        (0u64..70).prop_map(Json::from),
        (0u64..64).prop_map(|n| Json::from(1u64 << n)),
        prop::sample::select(vec!["rows", "pools", "seqs", "f32", "bf16", "i32", "read", "write", ""])
            .prop_map(Json::from),
        prop::collection::vec(0u64..5, 0..4).prop_map(Json::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_manifests_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), replacement(), 0..4), 1..4)) {
        let (good, all) = &*GOOD;
        let numbers = [0, 1, 2, 3, 7, 64, 255, 256, 1 << 16, 1 << 31, 1 << 32, 1 << 46, 1 << 63, u64::MAX];
        let mut json = good.clone();
        for (target, source, value, how) in changes {
            let Some(place) = json.pointer_mut(&all[target.index(all.len())]) else { continue };
            // Mostly a value of the same type, from elsewhere in the manifest or made up.
            let alike: Vec<&Json> = all.iter().filter_map(|p| good.pointer(p)).filter(|v| same_type(v, place)).collect();
            let value = match how {
                0 => value,
                1 if place.is_number() => Json::from(numbers[source.index(numbers.len())]),
                _ => alike.get(source.index(alike.len().max(1))).map_or(value, |v| (*v).clone()),
            };
            *place = value;
        }
        if let Ok(manifest) = serde_json::from_value::<Manifest>(json)
            && let Err(error) = run(manifest)
        {
            let text = error.to_string();
            prop_assert!(text.contains("needed") || text.contains("cannot"), "{}", text);
        }
    }
}
