//! Sessions: weights, state and inputs of one bundle on one device, and steps over them.

mod inputs;
mod sequence;
mod state;
mod step;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use inputs::{AllReduceCallback, COUNTERS, StepBatch};
pub use sequence::{Feed, LogitRows, SequenceState, Snapshot};
pub use state::Value;
pub use step::{BufferReader, Hook, LaunchEvent, Moment, StepOutput};

use crate::bundle::Bundle;
use crate::device::{ArgValue, BufferId, Device, Edges, ListId, misuse};
use crate::layout::{Geometry, broken, buffer_bytes, grid, pool_size, state_bytes};
use crate::manifest::{Arg, Bucket, Manifest, SlotTable, StateKind, StepInput, StepScalar};
use crate::weights::{WeightProvider, upload};
use crate::{Result, RuntimeError};
use inputs::InputSizes;

/// Most slots of a session.
const MAX_SLOTS: u64 = 1 << 20;
/// Most recorded launch lists; beyond them all are forgotten.
const MAX_LISTS: usize = 64;
/// Most blocks of a session.
const MAX_BLOCKS: u64 = 1 << 24;

/// How a session runs. The default is the fast way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionOptions {
    /// Gives each activation a device buffer of its own instead of a place in the arena, so that a device with guards
    /// sees an access outside it. Wrong for a bundle in which two activations are one on purpose.
    pub separate_buffers: bool,
    /// Fills activations with 0xFF (NaN, -1) before each step, to find reads of memory that was never written.
    pub poison: bool,
    /// Leaves slots and blocks out of range to the kernels, which report them through the status array.
    pub unchecked_batch: bool,
    /// The order in which sequences are given blocks.
    pub block_order: BlockOrder,
    /// Launches one kernel after the other, as a step with a hook does, where the device could run a recorded list.
    pub single_launches: bool,
    /// Times recorded lists by the device's clock, see [`Session::list_us`]. Such steps wait for the device once more.
    pub timed_lists: bool,
    /// How launches follow one another. Dependent ones need code that waits by itself, and a device that can.
    pub edges: Edges,
}

/// The order in which sequences are given blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockOrder {
    /// Lowest first.
    #[default]
    Ascending,
    /// In a pseudo-random order made from a seed.
    Shuffled(u64),
}

/// A bundle at work on a device.
pub struct Session {
    bundle: Arc<Bundle>,
    device: Box<dyn Device>,
    geometry: Geometry,
    options: SessionOptions,
    held: Held,
    plans: Vec<Plan>,
    /// Pool size in tokens.
    pool: u64,
    free_slots: BTreeSet<u32>,
    /// The last is taken first.
    free_blocks: Vec<i32>,
    /// Launch lists that the device recorded.
    lists: BTreeMap<StepKey, ListId>,
    counters: Counters,
    /// What the last replayed list took.
    list_us: Option<f32>,
}

/// What decides which launches with which arguments a step is: its bucket, and its numbers of rows, sequences and logit rows;
/// and how the launches follow one another.
type StepKey = (usize, usize, usize, usize, Edges);

/// What a session's steps were, since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps that ran to their end.
    pub steps: u64,
    /// Of those, steps that were one call of the device: a list that it had recorded.
    pub replays: u64,
    /// Launch lists recorded: one for each combination of bucket, rows, sequences and logit rows.
    pub recorded: u64,
}

/// A device buffer, with its bytes.
type Whole = (BufferId, u64);

/// Device buffers of every kind but activations, in the order of the manifest.
struct Held {
    weights: Vec<Whole>,
    states: Vec<Whole>,
    slot_tables: Vec<Whole>,
    /// In the order of [`StepInput::ALL`].
    inputs: Vec<Whole>,
}

/// What a bucket needs at each step, worked out once.
struct Plan {
    /// Per activation.
    placed: Vec<Option<ArgValue>>,
    launches: Vec<PlannedLaunch>,
    /// Device buffers that hold the activations.
    arena: Vec<Whole>,
}

/// A launch whose arguments are known but for the step's numbers.
struct PlannedLaunch {
    kernel: u32,
    grid: [u32; 3],
    args: Vec<ArgValue>,
    /// Arguments to set at each step.
    scalars: Vec<(usize, StepScalar)>,
}

impl Session {
    /// Loads the bundle's code, uploads its weights and allocates everything that steps need.
    pub fn create(
        bundle: Arc<Bundle>,
        mut device: Box<dyn Device>,
        provider: &WeightProvider<'_>,
        geometry: Geometry,
        options: SessionOptions,
    ) -> Result<Self> {
        let manifest = bundle.manifest();
        if let Some(fault) = &manifest.options.fault {
            return Err(RuntimeError::Faulty { fault: fault.clone() });
        }
        check_geometry(manifest, &geometry)?;
        device.load(&manifest.kernels, &bundle.code(device.target())?)?;
        set_edges(manifest, device.as_mut(), options.edges)?;
        let held = hold(manifest, &geometry, device.as_mut(), provider)?;
        clear_counter(&held, device.as_mut())?;
        let plans = plans(manifest, &held, device.as_mut(), options)?;
        let pool = pool_size(manifest);
        let free_slots = (0..geometry.max_slots as u32).collect();
        let free_blocks = block_order(geometry.num_blocks as i32, options.block_order);
        let lists = BTreeMap::new();
        let counters = Counters::default();
        Ok(Session {
            bundle,
            device,
            geometry,
            options,
            held,
            plans,
            pool,
            free_slots,
            free_blocks,
            lists,
            counters,
            list_us: None,
        })
    }

    /// The bundle.
    pub fn bundle(&self) -> &Arc<Bundle> {
        &self.bundle
    }

    /// The device's name.
    pub fn device_name(&self) -> String {
        self.device.name()
    }

    /// What its steps were so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Microseconds of the last step's launches by the device's clock; nothing if it has none, the step was no recorded list,
    /// or [`SessionOptions::timed_lists`] is off.
    pub fn list_us(&self) -> Option<f32> {
        self.list_us
    }

    /// Sets [`SessionOptions::single_launches`] for the next steps.
    pub fn set_single_launches(&mut self, single: bool) {
        self.options.single_launches = single;
    }

    /// How launches follow one another.
    pub fn edges(&self) -> Edges {
        self.options.edges
    }

    /// Sets how launches of the next steps follow one another.
    ///
    /// # Errors
    /// [`RuntimeError::Device`] if the device or the bundle's code for it cannot.
    pub fn set_edges(&mut self, wanted: Edges) -> Result<()> {
        set_edges(self.bundle.manifest(), self.device.as_mut(), wanted)?;
        self.options.edges = wanted;
        Ok(())
    }

    /// The sizes it was created with.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Most rows of a step.
    pub fn max_rows(&self) -> u64 {
        self.manifest().buckets.last().map_or(0, |b| b.rows_max)
    }

    /// Sets expert-to-slot map `index`: a slot below S or -1 ("skip") for each expert.
    pub fn set_slot_table(&mut self, index: usize, slots: &[i32]) -> Result<()> {
        let (Some(table), Some(&(id, _))) = (self.manifest().slot_tables.get(index), self.held.slot_tables.get(index))
        else {
            let known = format!("0..{}", self.held.slot_tables.len());
            return Err(RuntimeError::Unknown { what: "slot table", name: index.to_string(), known });
        };
        let batch = |rule, found: String, needed: String| RuntimeError::Batch { rule, found, needed };
        if slots.len() as u64 != table.experts {
            return Err(batch("slot table length", slots.len().to_string(), format!("{} experts", table.experts)));
        }
        if let Some(wrong) = slots.iter().find(|&&s| s < -1 || i64::from(s) >= table.slots as i64) {
            return Err(batch("slot table entry", wrong.to_string(), format!("-1 or a slot below {}", table.slots)));
        }
        self.device.write(id, 0, &le_bytes(slots))
    }

    fn manifest(&self) -> &Manifest {
        self.bundle.manifest()
    }

    fn input_id(&self, input: StepInput) -> BufferId {
        self.held.inputs[input as usize].0
    }
}

/// Device bytes of i32 values.
fn le_bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Sets how launches follow one another on a device that has the bundle's code.
fn set_edges(manifest: &Manifest, device: &mut dyn Device, wanted: Edges) -> Result<()> {
    let awaits = manifest.awaits.iter().any(|target| target == device.target());
    if wanted == Edges::Dependent && !awaits {
        let found = format!("dependent launches of {} code that does not wait for earlier ones", device.target());
        return Err(misuse("edges", found, "plain launches, or a bundle compiled with this version for that target"));
    }
    if device.set_edges(wanted) == wanted {
        return Ok(());
    }
    let found = format!("{} launches, which {} cannot make", wanted.name(), device.name());
    Err(misuse("edges", found, "plain launches, or a driver of CUDA 12.3 or later"))
}

fn check_geometry(manifest: &Manifest, g: &Geometry) -> Result<()> {
    let pool = pool_size(manifest);
    let need = |ok: bool, rule, found: u64, needed: String| {
        if ok { Ok(()) } else { Err(RuntimeError::Geometry { rule, found: found.to_string(), needed }) }
    };
    let max = i32::MAX as u64;
    let whole = (1..=max).contains(&g.block_size) && g.block_size.is_multiple_of(pool);
    need(whole, "block size", g.block_size, format!("a multiple of the pool size {pool}, at most {max} tokens"))?;
    let most = manifest.options.max_ctx;
    need((1..=most).contains(&g.max_ctx), "context", g.max_ctx, format!("1 to the bundle's {most} tokens"))?;
    need((1..=MAX_SLOTS).contains(&g.max_slots), "slots", g.max_slots, format!("1 to {MAX_SLOTS}"))?;
    let paged = |k: &StateKind| matches!(k, StateKind::Token { .. } | StateKind::Pool { .. });
    let least = u64::from(manifest.states.iter().any(|s| paged(&s.kind)));
    need((least..=MAX_BLOCKS).contains(&g.num_blocks), "blocks", g.num_blocks, format!("{least} to {MAX_BLOCKS}"))?;
    // Kernels have row numbers of paged state as i32.
    let rows = least.saturating_mul(g.num_blocks).saturating_mul(g.block_size);
    need(rows <= max, "rows of paged state", rows, format!("at most {max}: fewer blocks, or shorter ones"))
}

fn allocate(device: &mut dyn Device, bytes: u64) -> Result<Whole> {
    Ok((device.alloc(bytes)?, bytes))
}

fn hold(manifest: &Manifest, g: &Geometry, device: &mut dyn Device, provider: &WeightProvider<'_>) -> Result<Held> {
    let sizes = InputSizes::new(manifest, g);
    Ok(Held {
        inputs: StepInput::ALL.iter().map(|&i| allocate(device, sizes.bytes(i))).collect::<Result<_>>()?,
        states: manifest.states.iter().map(|s| allocate(device, state_bytes(s, g)?)).collect::<Result<_>>()?,
        slot_tables: manifest.slot_tables.iter().map(|t| identity_table(device, t)).collect::<Result<_>>()?,
        weights: manifest.weights.iter().map(|w| upload(device, w, provider)).collect::<Result<_>>()?,
    })
}

/// Sets the counters of grid finishes to zero; every launch that ends well leaves them so.
fn clear_counter(held: &Held, device: &mut dyn Device) -> Result<()> {
    let (id, bytes) = held.inputs[StepInput::Counter as usize];
    device.fill(id, 0, bytes, 0)
}

fn identity_table(device: &mut dyn Device, table: &SlotTable) -> Result<Whole> {
    let slot = |expert: u64| if expert < table.slots { expert as i32 } else { -1 };
    let whole = allocate(device, table.experts * 4)?;
    device.write(whole.0, 0, &le_bytes(&(0..table.experts).map(slot).collect::<Vec<_>>()))?;
    Ok(whole)
}

fn plans(manifest: &Manifest, held: &Held, device: &mut dyn Device, options: SessionOptions) -> Result<Vec<Plan>> {
    let arena_bytes = manifest.buckets.iter().map(|b| b.arena_bytes).max().unwrap_or(0);
    let arena = if options.separate_buffers { None } else { Some(device.alloc(arena_bytes)?) };
    manifest.buckets.iter().map(|bucket| plan(manifest, held, bucket, device, arena)).collect()
}

fn plan(m: &Manifest, held: &Held, bucket: &Bucket, device: &mut dyn Device, shared: Option<BufferId>) -> Result<Plan> {
    let mut arena: Vec<Whole> = shared.map(|id| (id, bucket.arena_bytes)).into_iter().collect();
    let mut placed = vec![None; m.buffers.len()];
    for (i, buffer) in m.buffers.iter().enumerate() {
        let Some(offset) = bucket.offsets[i] else { continue };
        let bytes = buffer_bytes(buffer, bucket)?;
        placed[i] = Some(match shared {
            Some(id) => ArgValue::Buffer { id, offset, bytes },
            None => {
                let whole = allocate(device, bytes)?;
                arena.push(whole);
                ArgValue::Buffer { id: whole.0, offset: 0, bytes }
            }
        });
    }
    let launches = bucket.launches.iter().map(|launch| {
        let args = launch.args.iter().map(|arg| held.argument(arg, &placed, &launch.site)).collect::<Result<_>>()?;
        let scalars = launch.args.iter().enumerate();
        let scalars =
            scalars.filter_map(|(i, arg)| if let Arg::Scalar(s) = arg { Some((i, *s)) } else { None }).collect();
        Ok(PlannedLaunch { kernel: launch.kernel, grid: grid(&launch.grid, bucket, &launch.site)?, args, scalars })
    });
    Ok(Plan { launches: launches.collect::<Result<_>>()?, placed, arena })
}

impl Held {
    /// The value of an argument; 0 for the step's numbers.
    fn argument(&self, arg: &Arg, placed: &[Option<ArgValue>], site: &str) -> Result<ArgValue> {
        let whole = |(id, bytes): Whole| ArgValue::Buffer { id, offset: 0, bytes };
        Ok(match *arg {
            Arg::Weight(i) => whole(self.weights[i as usize]),
            Arg::State(i) => whole(self.states[i as usize]),
            Arg::SlotTable(i) => whole(self.slot_tables[i as usize]),
            Arg::Input(input) => whole(self.inputs[input as usize]),
            Arg::Buffer(i) => {
                let value = placed[i as usize];
                value.ok_or_else(|| {
                    broken("buffer placed", site, format!("buffer {i} without an offset"), "an offset")
                })?
            }
            Arg::Const(value) => ArgValue::Scalar(value),
            Arg::Scalar(_) => ArgValue::Scalar(0),
        })
    }
}

/// Free blocks, the first to take last.
fn block_order(blocks: i32, order: BlockOrder) -> Vec<i32> {
    let mut free: Vec<i32> = (0..blocks).rev().collect();
    if let BlockOrder::Shuffled(mut seed) = order {
        for i in (1..free.len()).rev() {
            // splitmix64
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            free.swap(i, ((z ^ (z >> 31)) % (i as u64 + 1)) as usize);
        }
    }
    free
}
