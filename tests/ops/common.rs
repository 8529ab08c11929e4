//! Runs graphs as kernels, on the CPU and in the emulator. Takes the place of the interpreter's `Eval`, whose interface it has.

use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex, OnceLock};

use unglue_codegen::bundle::describe;
use unglue_codegen::check::{Paged, Paging, block_table, decode, encode};
use unglue_codegen::emu::{EmuDevice, EmuOptions};
use unglue_codegen::generate::{self, StepBuffer, StepScalar, Use};
use unglue_codegen::target::{Packaging, Target};
use unglue_codegen::{link, llvm, target};
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::interp::draw::Rng;
use unglue_ir::interp::{Batch, Data, StateData, Tensor, WeightRef};
use unglue_ir::op::Op;
use unglue_ir::types::{DType, Dim, StateKind};
use unglue_passes::cost::X86_64;
use unglue_passes::facts::Facts;
use unglue_passes::schedule::{Bucket, fit};
use unglue_passes::traffic::tensor_bytes;
use unglue_passes::{BodyCover, CoverOptions, Strategy, cover};
use unglue_runtime::{ArgValue, BufferId, COUNTERS, Code, CpuDevice, CpuOptions, Device, Guard, manifest};

#[path = "../../models/tests/common/mod.rs"]
mod golden;
pub use golden::*;

/// Bytes that nothing has written yet: NaN as floats, -1 as numbers.
const PATTERN: u8 = 0xff;
/// Buffers are filled up to a multiple of this: behind it accesses fault.
const SLACK: usize = 64;

/// Evaluates a graph on kernels; what they give is what the interpreter gives, bit for bit.
pub struct Eval<'a> {
    pub weights: BTreeMap<String, WeightRef<'a>>,
    pub states: BTreeMap<String, StateData>,
}

impl<'a> Eval<'a> {
    /// Zero states with one slot for a graph, and these weights.
    pub fn new(g: &Graph, weights: impl IntoIterator<Item = (&'static str, WeightRef<'a>)>) -> Eval<'a> {
        let golden::Eval { weights, states } = golden::Eval::new(g, weights);
        Eval { weights, states }
    }

    /// The fused kernels' outputs. Kernels of one op each, fused kernels and the interpreter agree, or it fails.
    pub fn run(&mut self, g: &Graph, inputs: Vec<(&str, Tensor)>, batch: &Batch) -> BTreeMap<String, Tensor> {
        let mut reference = golden::Eval { weights: self.weights.clone(), states: self.states.clone() };
        let want = reference.run(g, inputs.clone(), batch);
        let rows = batch.rows() as u32;
        let rows_max = [1, 4, 16].into_iter().find(|n| *n >= rows).unwrap_or(rows);
        let bucket =
            Bucket { rows_max, seqs_max: batch.slot.len() as u32, pools: batch.pools as u64, fit: &fit::GFX1201 };
        let mut last = None;
        let ways = [Strategy::None, Strategy::Greedy].map(|s| TARGETS.map(|t| (s, t)));
        for (strategy, target) in ways.into_iter().flatten() {
            let kernels = Kernels::of(g, bucket, strategy, target);
            let mut device = kernels.device.lock().unwrap();
            let step = Step::new(&kernels.cover, bucket, batch, &self.states, seed(rows, strategy));
            let (out, states) = step.run(device.as_mut(), &kernels.code, self, &inputs, &reference.states);
            let of = format!("{}, {} kernels for {target}", g.name, strategy.name());
            assert_eq!(out.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{of}");
            for (name, t) in &out {
                assert_eq!((t.dtype, &t.shape), (want[name].dtype, &want[name].shape), "{of}, {name}");
                same_bits(&t.data, &want[name].data, &format!("{of}, {name}"));
            }
            for (name, s) in &states {
                let flat = |s: &StateData| Data::F32(s.slots().concat());
                same_bits(&flat(s), &flat(&reference.states[name]), &format!("{of}, state {name}"));
            }
            last = Some((out, states));
        }
        let (out, states) = last.unwrap();
        self.states = states;
        out
    }

    pub fn state(&self, name: &str) -> &[f32] {
        &self.states[name].slots()[0]
    }
}

/// Pages differ between runs.
fn seed(rows: u32, strategy: Strategy) -> u64 {
    u64::from(rows) * 2 + u64::from(strategy == Strategy::Greedy)
}

/// Fails at the first element whose bits differ; NaN equals NaN.
fn same_bits(got: &Data, want: &Data, what: &str) {
    match (got, want) {
        (Data::I32(a), Data::I32(b)) => assert_eq!(a, b, "{what}"),
        (Data::F32(a), Data::F32(b)) => {
            assert_eq!(a.len(), b.len(), "{what}");
            for (i, (x, y)) in a.iter().zip(b).enumerate() {
                let same = x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
                assert!(same, "{what}[{i}]: kernels {x:e} ({:#010x}), interpreter {y:e}", x.to_bits());
            }
        }
        _ => panic!("{what}: floats and integers"),
    }
}

/// A graph's kernels, loaded.
struct Kernels {
    cover: BodyCover,
    /// What the parameters of each kernel stand for.
    code: Vec<Vec<Use>>,
    device: Mutex<Box<dyn Device>>,
}

/// Targets with a device here.
const TARGETS: [&str; 2] = ["x86-64", "gfx1201"];

type Key = (Graph, Bucket, Strategy, &'static str);

impl Kernels {
    /// Compiled once for each graph, bucket, strategy and target.
    fn of(g: &Graph, bucket: Bucket, strategy: Strategy, target: &'static str) -> &'static Kernels {
        static KNOWN: LazyLock<Mutex<HashMap<Key, &'static OnceLock<Kernels>>>> = LazyLock::new(Mutex::default);
        let cell = *KNOWN
            .lock()
            .unwrap()
            .entry((g.clone(), bucket, strategy, target))
            .or_insert_with(|| Box::leak(Box::new(OnceLock::new())));
        cell.get_or_init(|| Kernels::compile(g, bucket, strategy, target))
    }

    fn compile(g: &Graph, bucket: Bucket, strategy: Strategy, target: &str) -> Kernels {
        // The emulator runs the CPU's cover too: what is compared is code, not choice.
        let cover = cover(g, &bucket, &X86_64, strategy, &CoverOptions::default()).unwrap();
        let t = target::by_name(target).unwrap();
        let (mut objects, mut entries, mut code) = (vec![], vec![], vec![]);
        for k in &cover.kernels {
            let made =
                generate::generate(&k.name, &k.graph, &k.schedule, bucket.pools).unwrap_or_else(|e| panic!("{e}"));
            let object = llvm::compile_object(&made.program, t).unwrap_or_else(|e| panic!("{}: {e}", k.name));
            objects.push((k.name.clone(), object));
            let facts =
                describe::Facts { class: k.class.name().into(), exactness: manifest::Exactness::Exact, ops: vec![] };
            entries.push(describe::kernel(&k.graph, &k.schedule, &made, facts));
            code.push(made.uses);
        }
        let mut device = open(t);
        load(device.as_mut(), &entries, &objects, t);
        Kernels { cover, code, device: Mutex::new(device) }
    }
}

fn open(t: &Target) -> Box<dyn Device> {
    match t.packaging {
        Packaging::OneSharedObject => {
            let options = CpuOptions { threads: 2, guard: Guard::Aligned, poison_shared: true };
            Box::new(CpuDevice::new(options).unwrap())
        }
        Packaging::OnePerKernel => Box::new(EmuDevice::new(EmuOptions { threads: 2, ..Default::default() }).unwrap()),
        Packaging::OneTextPerKernel => panic!("{}: no emulator", t.name),
    }
}

/// Links and loads the kernels as the target wants them.
fn load(device: &mut dyn Device, entries: &[manifest::Kernel], objects: &[(String, Vec<u8>)], t: &Target) {
    if objects.is_empty() {
        return;
    }
    let each = match t.packaging {
        Packaging::OneSharedObject => objects.len(),
        Packaging::OnePerKernel | Packaging::OneTextPerKernel => 1,
    };
    let number = |i: u32| t.packaging.per_kernel().then_some(i);
    let linked: Vec<(Option<u32>, Vec<u8>)> =
        (0..).zip(objects.chunks(each)).map(|(i, part)| (number(i), link::shared_object(part, t).unwrap())).collect();
    let code: Vec<Code> = linked.iter().map(|(kernel, bytes)| Code { kernel: *kernel, bytes }).collect();
    device.load(entries, &code).unwrap();
}

/// One run of a cover: its batch, pages and buffers.
struct Step<'a> {
    cover: &'a BodyCover,
    facts: Facts<'a>,
    bucket: Bucket,
    batch: &'a Batch,
    paging: Paging,
    block_table: Vec<i32>,
    /// By the place of a value, with the bytes in use.
    values: BTreeMap<ValueId, (BufferId, usize)>,
    step: BTreeMap<StepBuffer, (BufferId, usize)>,
}

impl<'a> Step<'a> {
    fn new(
        cover: &'a BodyCover,
        bucket: Bucket,
        batch: &'a Batch,
        states: &BTreeMap<String, StateData>,
        seed: u64,
    ) -> Step<'a> {
        let pool = |id: ValueId| match cover.body.ty(id).state().map(|s| &s.kind) {
            Some(StateKind::Pool { pool, .. } | StateKind::Tail { pool, .. }) => *pool as usize,
            _ => 1,
        };
        let block_size = cover.body.ids().map(pool).max().unwrap_or(1) * [1, 3][seed as usize % 2];
        let longest = batch.positions.iter().max().map_or(1, |p| *p as usize + 1);
        let blocks_per_seq = longest.div_ceil(block_size);
        let seqs = batch.slot.len();
        let slots = states.values().map(|s| s.slots().len()).max().unwrap_or(seqs);
        let paging = Paging { block_size, blocks_per_seq, num_blocks: (seqs + 1) * blocks_per_seq, max_slots: slots };
        let block_table = block_table(&mut Rng::new(seed), &paging, batch);
        let facts = Facts::new(&cover.body);
        let (values, step) = Default::default();
        Step { cover, facts, bucket, batch, paging, block_table, values, step }
    }

    /// What stands for a value's storage: the leaf of a state for all its versions.
    fn place(&self, value: ValueId) -> ValueId {
        let root = self.facts.storage(value);
        match self.facts.role(root) {
            Some(role) => self.cover.body.states().find(|(name, _)| *name == role).unwrap().1,
            None => root,
        }
    }

    fn paged(&self) -> Paged<'_> {
        Paged { paging: &self.paging, batch: self.batch, block_table: &self.block_table }
    }

    fn run(
        mut self,
        device: &mut dyn Device,
        code: &[Vec<Use>],
        given: &Eval,
        inputs: &[(&str, Tensor)],
        want_states: &BTreeMap<String, StateData>,
    ) -> (BTreeMap<String, Tensor>, BTreeMap<String, StateData>) {
        self.upload(device, given, inputs);
        for (number, (kernel, uses)) in self.cover.kernels.iter().zip(code).enumerate() {
            for (_, v) in &kernel.writes {
                let place = self.place(*v);
                if !self.values.contains_key(&place) {
                    let bytes = tensor_bytes(self.cover.body.ty(*v).tensor().unwrap(), &self.bucket) as usize;
                    self.values.insert(place, alloc(device, vec![PATTERN; bytes]));
                }
            }
            let of = |list: &[(String, ValueId)], name: &str| {
                let (_, v) = list.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("{}: {name}", kernel.name));
                buffer(self.values[&self.place(*v)])
            };
            let args: Vec<ArgValue> = uses
                .iter()
                .map(|u| match u {
                    Use::Input(name) | Use::Weight(name) | Use::State(name) => of(&kernel.reads, name),
                    Use::Scales(name) => panic!("{}: {name} is int4", kernel.name),
                    Use::Output(name) => of(&kernel.writes, name),
                    Use::Step(s) => buffer(self.step[s]),
                    Use::Scalar(s) => ArgValue::Scalar(self.scalar(*s, number)),
                })
                .collect();
            let grid = kernel.schedule.grid().map(|axis| axis.value(&self.bucket) as u32);
            device.launch(number as u32, grid, &args).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
        }
        let done = (self.outputs(device), self.states(device, given, want_states));
        let status = read(device, self.step[&StepBuffer::Status]);
        assert!(status[..16].iter().all(|b| *b == 0), "status {status:?}");
        let counter = read(device, self.step[&StepBuffer::Counter]);
        assert!(counter.iter().all(|b| *b == 0), "counter {counter:?}");
        for (id, _) in self.values.into_values().chain(self.step.into_values()) {
            device.free(id).unwrap();
        }
        done
    }

    /// Leaves and the step's description.
    fn upload(&mut self, device: &mut dyn Device, given: &Eval, inputs: &[(&str, Tensor)]) {
        let g = &self.cover.body;
        for id in g.ids() {
            let bytes = match &g.node(id).op {
                Op::Input { name, .. } => {
                    let (_, t) = inputs.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no input {name}"));
                    let mut bytes = encode(t.dtype, &t.data);
                    // Rows past the end.
                    let whole = tensor_bytes(g.ty(id).tensor().unwrap(), &self.bucket) as usize;
                    bytes.resize(whole.max(bytes.len()), PATTERN);
                    bytes
                }
                Op::Weight { name } => given.weights[name].bytes.to_vec(),
                Op::State { name } => self.paged().to_device(&given.states[name], self.state_dtype(name)),
                _ => continue,
            };
            self.values.insert(id, alloc(device, bytes));
        }
        let b = self.batch;
        let parts = [
            (StepBuffer::Positions, b.positions.as_slice()),
            (StepBuffer::RowSeq, &b.row_seq),
            (StepBuffer::QStart, &b.q_start),
            (StepBuffer::Slot, &b.slot),
            (StepBuffer::BlockTable, &self.block_table),
            (StepBuffer::Status, &[0; 4]),
            (StepBuffer::Counter, &[0; COUNTERS as usize]),
        ];
        self.step = parts.map(|(s, v)| (s, alloc(device, encode(DType::I32, &Data::I32(v.to_vec()))))).into();
    }

    fn state_dtype(&self, role: &str) -> DType {
        let g = &self.cover.body;
        g.states().find(|(name, _)| *name == role).and_then(|(_, id)| g.ty(id).state()).unwrap().dtype
    }

    fn scalar(&self, s: StepScalar, number: usize) -> i32 {
        let n = match s {
            StepScalar::Rows | StepScalar::Logits => self.batch.rows(),
            StepScalar::Seqs => self.batch.slot.len(),
            StepScalar::BlockSize => self.paging.block_size,
            StepScalar::BlocksPerSeq => self.paging.blocks_per_seq,
            StepScalar::MaxSlots => self.paging.max_slots,
            StepScalar::NumBlocks => self.paging.num_blocks,
            StepScalar::KernelNumber => number + 1,
        };
        n as i32
    }

    /// The graph's tensors; nothing is written behind the step's rows.
    fn outputs(&self, device: &dyn Device) -> BTreeMap<String, Tensor> {
        let g = &self.cover.body;
        let mut out = BTreeMap::new();
        for (name, v) in &g.outputs {
            let Some(ty) = g.ty(*v).tensor() else { continue };
            let extent = |d: &Dim| match d {
                Dim::Fixed(n) => *n as usize,
                Dim::Pools => self.batch.pools,
                Dim::Seqs => self.batch.slot.len(),
                Dim::Rows | Dim::Logits => self.batch.rows(),
            };
            let (dtype, shape): (_, Vec<usize>) = (ty.dtype().unwrap(), ty.shape.iter().map(extent).collect());
            let bytes = read(device, self.values[&self.place(*v)]);
            let (live, rest) = bytes.split_at(shape.iter().product::<usize>() * dtype.bytes() as usize);
            assert!(rest.iter().all(|b| *b == PATTERN), "{}: {name} is written behind its end", g.name);
            out.insert(name.clone(), Tensor { dtype, shape, data: decode(dtype, live) });
        }
        out
    }

    /// The states after the step; the whole buffers are as they should be, with what belongs to nobody.
    fn states(
        &self,
        device: &dyn Device,
        given: &Eval,
        want: &BTreeMap<String, StateData>,
    ) -> BTreeMap<String, StateData> {
        let mut states = given.states.clone();
        for (name, id) in self.cover.body.states() {
            let (dtype, (_, len)) = (self.state_dtype(name), self.values[&id]);
            let bytes = read(device, self.values[&id]);
            let expected = self.paged().to_device(&want[name], dtype);
            let what = format!("{}, buffer of state {name}", self.cover.body.name);
            same_bits(&decode(dtype, &bytes[..len]), &decode(dtype, &expected), &what);
            assert!(bytes[len..].iter().all(|b| *b == PATTERN), "{what} is written behind its end");
            self.paged().from_device(states.get_mut(name).unwrap(), dtype, &bytes[..len]);
        }
        states
    }
}

/// A buffer with this content, and the pattern behind it.
fn alloc(device: &mut dyn Device, mut bytes: Vec<u8>) -> (BufferId, usize) {
    let len = bytes.len();
    bytes.resize(len.max(1).next_multiple_of(SLACK), PATTERN);
    let id = device.alloc(bytes.len() as u64).unwrap();
    device.write(id, 0, &bytes).unwrap();
    (id, len)
}

/// A buffer with what fills it up.
fn read(device: &dyn Device, (id, len): (BufferId, usize)) -> Vec<u8> {
    let mut bytes = vec![0; len.max(1).next_multiple_of(SLACK)];
    device.read(id, 0, &mut bytes).unwrap();
    bytes
}

fn buffer((id, len): (BufferId, usize)) -> ArgValue {
    ArgValue::Buffer { id, offset: 0, bytes: len as u64 }
}
