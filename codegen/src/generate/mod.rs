//! Kernel bodies, generated from the ops of a kernel's graph.
//!
//! In: a kernel's graph and its schedule. Out: a kernel program and what each of its parameters stands for. Only the
//! cores of matmul, delta rule, top-k, attention and pool selection are templates; everything else is the graph's ops,
//! evaluated element by element by one function ([`eval`]) over whatever index the form gives it.

mod attend;
mod attend_combine;
mod beside;
mod blocks;
mod delta;
mod eval;
mod experts;
mod finish;
mod groups;
mod heads;
mod in_place;
mod index;
mod interface;
mod levels;
mod packed;
mod parts;
mod prefetch;
mod row;
mod scope;
mod scores;
mod select;
mod skinny;
mod split_k;
mod spread;
mod state;
mod strided;
mod sums;
mod tile_lines;
mod tiles;
mod top_k;
mod wide;

use std::collections::{BTreeSet, HashMap};

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::infer::op_name;
use unglue_ir::types::{Dim, TensorType};
use unglue_passes::schedule::{Form, Schedule, Section};

use crate::error::CodegenError;
use crate::kp::build::Builder;
use crate::kp::{Bound, Mem, Place, Program, Val, verify};

pub use interface::{StepBuffer, StepScalar, Stream, Use};
pub(crate) use row::FAULT_TOKEN;

use blocks::Columns;
use index::Ix;
use interface::Interface;
use state::Sequence;

/// A kernel's program and interface.
#[derive(Clone, Debug)]
pub struct Generated {
    pub program: Program,
    /// Parallel to `program.params`.
    pub uses: Vec<Use>,
    /// Weights that lanes stream together.
    pub streams: BTreeSet<Stream>,
}

type Res<T> = Result<T, CodegenError>;

/// Where a value that is not formed inline stands.
#[derive(Clone, Debug)]
enum Kept {
    /// One uniform value an element.
    Regs(Vec<Val>),
    /// Workgroup memory; with `by_row`, row r of the step at r * `elements`.
    Shared { place: Place, elements: u64, by_row: bool },
    /// Workgroup memory: the `elements` values of this head, of a value that has as many for each; or those of one of the
    /// `shares` workgroups that share the head.
    OfHead { place: Place, elements: u64, shares: u64 },
    /// The buffer through which workgroups hand the value over, row after row.
    Exchanged { place: Place },
    /// Workgroup memory: this head's channels of a row of whole segments, `width` of each segment, one after the other.
    Channels { place: Place, segment: u64, width: u64 },
    /// Workgroup memory: the workgroup's columns of some rows.
    Tile { place: Place, columns: Columns },
    /// The element that the anchor's lanes hold now; one value for each inner choice.
    Lane(Vec<Val>),
}

/// A section of a launch and its own graph.
struct Part<'a> {
    section: &'a Section,
    graph: Graph,
}

/// State of one kernel's generation.
struct Gen<'a> {
    name: &'a str,
    g: &'a Graph,
    schedule: &'a Schedule,
    /// Pools of a launch's scores, the same in all buckets: nothing else of a bucket may reach the code, which launches of
    /// several buckets share.
    pools: u64,
    b: Builder,
    iface: Interface,
    kept: HashMap<ValueId, Kept>,
    /// Values already formed at an index, one map for each open block.
    memo: Vec<HashMap<(ValueId, Vec<Ix>), Val>>,
    /// Neighbours that were loaded at once, by place and first element; one map for each open block.
    loaded: Vec<HashMap<(Place, Val), Val>>,
    /// Lanes take up whole rows by neighbours, and sums have all their terms before they add one: what one workgroup alone
    /// forms waits for memory, not for arithmetic.
    by_neighbours: bool,
    /// Taps and values of convolutions that were loaded ahead, oldest first.
    taps: HashMap<(ValueId, Vec<Ix>), Vec<[Val; 2]>>,
    /// The sequence of all rows that are formed, where a workgroup has one.
    sequence: Option<Sequence>,
    /// Row of the step that is being formed (uniform).
    row: Val,
    /// The workgroup's place in the grid of the section that is being formed; `None` if the launch has one section.
    place: Option<[Val; 3]>,
    /// Head or choice whose outputs are formed, where it is not the workgroup's number along grid axis 1.
    across: Option<Val>,
    /// Head axis that the scope fixes: its extent and number.
    head: Option<(u64, Val)>,
    /// Lanes that have an element.
    mask: Option<Val>,
    /// Where waves that share sums leave them.
    exchange: Option<Place>,
    streams: BTreeSet<Stream>,
}

/// Generates the program of a kernel; `pools` as in [`unglue_passes::schedule::Bucket`].
///
/// # Errors
/// [`CodegenError::Generate`] for an op that the schedule should have refused, [`CodegenError::Verify`] if the program
/// breaks a rule.
pub fn generate(name: &str, g: &Graph, schedule: &Schedule, pools: u64) -> Result<Generated, CodegenError> {
    let sections = if let Form::Beside(sections) = &schedule.form { sections.as_slice() } else { &[] };
    let parts: Vec<Part> = sections.iter().map(|section| Part { section, graph: section.graph(g) }).collect();
    let mut b = Builder::new(name, schedule.waves);
    let row = b.i(0);
    let mut generator = Gen {
        name,
        g,
        schedule,
        pools,
        b,
        iface: Interface::default(),
        kept: HashMap::new(),
        memo: vec![HashMap::new()],
        loaded: vec![HashMap::new()],
        by_neighbours: false,
        taps: HashMap::new(),
        sequence: None,
        row,
        place: None,
        across: None,
        head: None,
        mask: None,
        exchange: None,
        streams: BTreeSet::new(),
    };
    generator.b.await_earlier();
    generator.iface.exchanged = finish::exchanged_outputs(g, schedule);
    for part in &parts {
        generator.iface.exchanged.extend(finish::exchanged_outputs(&part.graph, &part.section.schedule));
    }
    if parts.is_empty() {
        generator.one_form()?;
    } else {
        generator.beside_form(&parts)?;
    }
    generator.prefetches(&parts)?;
    let uses = generator.iface.uses;
    let program = generator.b.finish();
    verify::verify(&program)?;
    Ok(Generated { program, uses, streams: generator.streams })
}

impl<'a> Gen<'a> {
    fn one_form(&mut self) -> Res<()> {
        match &self.schedule.form {
            Form::Row { rows } => self.row_form(*rows),
            Form::Skinny(s) => self.skinny_form(s),
            Form::Tiles(t) => self.tiles_form(t),
            Form::Blocks(f) => self.blocks_form(f),
            Form::Parts(f) => self.parts_form(f),
            Form::Delta { node, heads, .. } => self.delta_form(*node, *heads),
            Form::Attend(a) => self.attend_form(a),
            Form::Scores { node } => self.scores_form(*node),
            Form::Select { node } => self.select_form(*node),
            Form::Beside(_) => self.fault(ValueId(0), "sections in a section"),
        }
    }

    fn fault<T>(&self, id: ValueId, found: impl Into<String>) -> Res<T> {
        Err(CodegenError::Generate {
            kernel: self.name.into(),
            node: id.0,
            op: op_name(&self.g.node(id).op),
            found: found.into(),
        })
    }

    fn tensor(&self, id: ValueId) -> Res<&'a TensorType> {
        match self.g.ty(id).tensor() {
            Some(t) => Ok(t),
            None => self.fault(id, "not a tensor"),
        }
    }

    /// Extents of one row: all axes but a leading symbol.
    fn dims(&self, id: ValueId) -> Res<Vec<u64>> {
        let t = self.tensor(id)?;
        Ok(t.shape.iter().skip(usize::from(has_rows(t))).map(|d| self.extent(*d)).collect())
    }

    fn extent(&self, d: Dim) -> u64 {
        match d {
            Dim::Fixed(n) => n,
            Dim::Pools => self.pools,
            Dim::Rows | Dim::Logits | Dim::Seqs => 1,
        }
    }

    fn elements(&self, id: ValueId) -> Res<u64> {
        Ok(self.dims(id)?.iter().product())
    }

    fn mem(&self, id: ValueId) -> Res<Mem> {
        match self.tensor(id)?.dtype().and_then(interface::mem_of) {
            Some(m) => Ok(m),
            None => self.fault(id, "a storage format that kernels do not load yet"),
        }
    }

    fn leaf(&mut self, id: ValueId) -> Res<(Place, Mem)> {
        match self.iface.leaf(&mut self.b, self.g, id) {
            Some(p) => Ok(p),
            None => self.fault(id, "not a leaf that kernels can load"),
        }
    }

    fn step_value(&mut self, s: StepBuffer, at: Val) -> Val {
        let place = self.iface.step(&mut self.b, s);
        self.b.load_uniform(place, at)
    }

    fn scalar(&mut self, s: StepScalar) -> Val {
        self.iface.scalar(&mut self.b, s)
    }

    fn bound(&self) -> Bound {
        self.mask.map_or(Bound::All, Bound::Mask)
    }

    /// Runs `f` with a memo of its own: values formed inside a block end with it.
    fn scoped<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        self.memo.push(HashMap::new());
        self.loaded.push(HashMap::new());
        let kept: Vec<ValueId> = self.kept.keys().copied().collect();
        let out = f(self);
        self.memo.pop();
        self.loaded.pop();
        // Registers defined inside the block are out of scope; workgroup memory stays.
        self.kept.retain(|id, k| {
            kept.contains(id) || matches!(k, Kept::Shared { .. } | Kept::OfHead { .. } | Kept::Channels { .. })
        });
        out
    }

    /// `for i in (start..end).step_by(step)`.
    fn looped(
        &mut self,
        range: (Val, Val, i64),
        init: &[Val],
        body: impl FnOnce(&mut Self, Val, &[Val]) -> Res<Vec<Val>>,
    ) -> Res<Vec<Val>> {
        // The builder lends itself to the body through a swap: the body needs the whole generator.
        let mut b = std::mem::replace(&mut self.b, Builder::new("", 1));
        let out = b.for_loop(range, init, |b, i, params| {
            std::mem::swap(&mut self.b, b);
            let out = self.scoped(|s| body(s, i, params));
            std::mem::swap(&mut self.b, b);
            out
        });
        self.b = b;
        out
    }

    fn when(&mut self, cond: Val, then: impl FnOnce(&mut Self) -> Res<()>) -> Res<()> {
        let mut b = std::mem::replace(&mut self.b, Builder::new("", 1));
        let out = b.when(cond, |b| {
            std::mem::swap(&mut self.b, b);
            let out = self.scoped(then);
            std::mem::swap(&mut self.b, b);
            out
        });
        self.b = b;
        out
    }

    /// Runs `body` in the last of `arrivals` workgroups to arrive at counter `index`.
    fn last_to_arrive(&mut self, (index, arrivals): (Val, u64), body: impl FnOnce(&mut Self) -> Res<()>) -> Res<()> {
        let Place::Buffer(counter) = self.iface.step(&mut self.b, StepBuffer::Counter) else {
            return self.fault(ValueId(0), "counters outside of a buffer");
        };
        let arrivals = self.b.i(arrivals as i64);
        let mut b = std::mem::replace(&mut self.b, Builder::new("", 1));
        let out = b.grid_finish((counter, index, arrivals), |b| {
            std::mem::swap(&mut self.b, b);
            let out = self.scoped(body);
            std::mem::swap(&mut self.b, b);
            out
        });
        self.b = b;
        out
    }

    fn choose(
        &mut self,
        cond: Val,
        yes: impl FnOnce(&mut Self) -> Res<Val>,
        no: impl FnOnce(&mut Self) -> Res<Val>,
    ) -> Res<Val> {
        let one = self.choose_all(cond, |g| Ok(vec![yes(g)?]), |g| Ok(vec![no(g)?]))?;
        match one.first() {
            Some(v) => Ok(*v),
            None => self.fault(ValueId(0), "a choice without a value"),
        }
    }

    /// `if cond { yes } else { no }`: as many values of the same types from both.
    fn choose_all(
        &mut self,
        cond: Val,
        yes: impl FnOnce(&mut Self) -> Res<Vec<Val>>,
        no: impl FnOnce(&mut Self) -> Res<Vec<Val>>,
    ) -> Res<Vec<Val>> {
        let mut b = std::mem::replace(&mut self.b, Builder::new("", 1));
        let cell = std::cell::RefCell::new(self);
        let run = |b: &mut Builder, f: &mut dyn FnMut(&mut Gen<'a>) -> Res<Vec<Val>>| {
            let mut this = cell.borrow_mut();
            std::mem::swap(&mut this.b, b);
            let out = this.scoped(f);
            std::mem::swap(&mut this.b, b);
            out
        };
        let (mut yes, mut no) = (Some(yes), Some(no));
        let twice = "a branch was generated twice";
        let out = b.choose(
            cond,
            |b| {
                run(b, &mut |s| match yes.take() {
                    Some(f) => f(s),
                    None => s.fault(ValueId(0), twice),
                })
            },
            |b| {
                run(b, &mut |s| match no.take() {
                    Some(f) => f(s),
                    None => s.fault(ValueId(0), twice),
                })
            },
        );
        cell.into_inner().b = b;
        out
    }

    /// Elements 0..n over all lanes of all waves.
    fn for_elements(&mut self, n: u64, body: impl FnOnce(&mut Self, Ix) -> Res<()>) -> Res<()> {
        let wave = self.b.wave();
        let lanes = self.b.i(32);
        let start = self.b.mul(wave, lanes);
        let end = self.b.i(n as i64);
        let step = 32 * i64::from(self.b.waves());
        self.looped((start, end, step), &[], |s, i, _| {
            let outer = s.mask;
            if !n.is_multiple_of(32) {
                let ix = Ix::Seq { base: i, aligned: true };
                s.mask_below(ix, n);
            }
            body(s, Ix::Seq { base: i, aligned: true })?;
            s.mask = outer;
            Ok(vec![])
        })?;
        Ok(())
    }

    /// Restricts the mask to indices below n.
    fn mask_below(&mut self, ix: Ix, n: u64) {
        let at = ix.lanes(&mut self.b);
        let end = self.b.i(n as i64);
        let below = self.b.cmp(crate::kp::Cmp::Lt, at, end);
        self.mask = Some(match self.mask {
            Some(m) => self.b.and(m, below),
            None => below,
        });
    }
}

/// True if the first axis counts rows of the step.
fn has_rows(t: &TensorType) -> bool {
    t.shape.first().is_some_and(|d| matches!(d, Dim::Rows | Dim::Logits | Dim::Seqs))
}
