//! Beside form: several kernels that share no computed value but single elements, in one launch. Each takes a range of
//! the launch's workgroups and runs as it would alone; only their starts and ends are shared.

use std::collections::{BTreeMap, BTreeSet};

use unglue_ir::graph::{Graph, Node, ValueId};
use unglue_ir::op::Op;

use super::stage::{Place, Staged};
use super::{
    Bucket, Form, Obstacle, Products, ROW_WAVES, SKINNY_WAVES, Schedule, is_leaf, is_view, row_elements, schedule_one,
    skinny, special,
};

/// Bytes of workgroup memory that all sections' staged values may take together: eight workgroups of four waves fit a
/// compute unit pair's 128 KiB, which is eight waves a SIMD, what streaming needs (`specs/costmodel.md` 6).
const SHARED_BESIDE: u64 = 16 * 1024;
/// Bytes that the others may add to a section that takes more by itself: less than what workgroup memory is handed out by.
const SHARED_ADDED: u64 = 1024;

/// Elements a row up to which a sum is formed by each part that needs it: one load a lane of a workgroup of eight waves,
/// four times.
const REFORMED_ELEMENTS: u64 = 1024;

/// The obstacle of a graph that cannot be taken apart.
pub(super) const ONE_PART: &str = "one-part";

/// One of the kernels of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Section {
    /// Values of the kernel's graph that it forms, ascending.
    pub values: Vec<ValueId>,
    /// How [`Section::graph`] runs.
    pub schedule: Schedule,
    /// Extents of its own grid, for the bucket that it was scheduled for.
    pub grid: [u64; 3],
    /// Its first workgroup along axis 0 of the launch.
    pub first: u64,
}

impl Section {
    /// Its part of the kernel's graph as a graph of its own; leaves and outputs keep their names.
    pub fn graph(&self, kernel: &Graph) -> Graph {
        cut(kernel, &self.values).0
    }

    pub fn workgroups(&self) -> u64 {
        self.grid.iter().product()
    }
}

/// Splits a graph into parts that share nothing computed, and schedules each.
///
/// # Errors
/// An obstacle if there is one part only, or if a part has no schedule, or if they do not go together.
pub fn schedule(g: &Graph, bucket: &Bucket) -> Result<Schedule, Obstacle> {
    let parts = parts(g, bucket);
    if parts.len() < 2 {
        return Err(Obstacle::new(ONE_PART, "all ops depend on one another"));
    }
    let mut sections = Vec::new();
    for (kind, group) in by_kind(g, parts) {
        sections.extend(sections_of(g, kind, group, bucket)?);
    }
    check_states(g, &sections)?;
    let waves = common_waves(&mut sections, bucket)?;
    check_memory(g, &sections)?;
    // The fewest workgroups first: they have the most to do each.
    sections.sort_by_key(|s| (s.workgroups(), s.values.first().copied()));
    let mut first = 0;
    for s in &mut sections {
        s.first = first;
        first += s.workgroups();
    }
    Ok(Schedule { form: Form::Beside(sections), waves, staged: vec![], products: Products::Lanes })
}

/// True for values that any part can have for itself: leaves, views of them, and single elements a row that follow from
/// few others and that nobody else reads.
fn given(g: &Graph, bucket: &Bucket) -> Vec<bool> {
    let mut stored: BTreeSet<ValueId> = BTreeSet::new();
    for (_, v) in &g.outputs {
        let mut at = *v;
        while stored.insert(at) && is_view(&g.node(at).op) {
            at = g.node(at).args[0];
        }
    }
    let few = |v: &ValueId| row_elements(g.ty(*v), bucket) <= REFORMED_ELEMENTS;
    let mut given: Vec<bool> = Vec::with_capacity(g.nodes.len());
    for id in g.ids() {
        let node = g.node(id);
        let follows = node.args.iter().all(|a| given[a.index()]);
        let glue = matches!(node.op, Op::Unary(_) | Op::Binary(_) | Op::Cast(_) | Op::Reduce { .. });
        let one = glue && row_elements(g.ty(id), bucket) == 1 && node.args.iter().all(few) && !stored.contains(&id);
        given.push(is_leaf(&node.op) || follows && (is_view(&node.op) || one));
    }
    given
}

/// Computed values by the part that they belong to, parts in the order of their first value.
fn parts(g: &Graph, bucket: &Bucket) -> Vec<Vec<ValueId>> {
    let given = given(g, bucket);
    let mut root: Vec<usize> = (0..g.nodes.len()).collect();
    let find = |root: &[usize], mut at: usize| {
        while root[at] != at {
            at = root[at];
        }
        at
    };
    for id in g.ids().filter(|id| !given[id.index()]) {
        for arg in g.node(id).args.iter().filter(|a| !given[a.index()]) {
            let (a, b) = (find(&root, id.index()), find(&root, arg.index()));
            root[a.max(b)] = a.min(b);
        }
    }
    let mut parts: BTreeMap<usize, Vec<ValueId>> = BTreeMap::new();
    for id in g.ids().filter(|id| !given[id.index()]) {
        parts.entry(find(&root, id.index())).or_default().push(id);
    }
    parts.into_values().collect()
}

/// What decides a part's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Special,
    Skinny,
    Row,
}

fn by_kind(g: &Graph, parts: Vec<Vec<ValueId>>) -> BTreeMap<Kind, Vec<Vec<ValueId>>> {
    let mut kinds: BTreeMap<Kind, Vec<Vec<ValueId>>> = BTreeMap::new();
    for part in parts {
        let has = |of: fn(&Op) -> bool| part.iter().any(|id| of(&g.node(*id).op));
        let kind = match () {
            () if has(special) => Kind::Special,
            () if has(skinny::is_contraction) => Kind::Skinny,
            () => Kind::Row,
        };
        kinds.entry(kind).or_default().push(part);
    }
    kinds
}

/// Parts of one kind are one section where they have a common schedule, else one each.
fn sections_of(g: &Graph, kind: Kind, parts: Vec<Vec<ValueId>>, bucket: &Bucket) -> Result<Vec<Section>, Obstacle> {
    let section = |mut values: Vec<ValueId>| {
        values.sort();
        let (alone, of_whole) = cut(g, &values);
        let schedule = schedule_one(&alone, bucket).map_err(|o| o.of_whole(&of_whole))?;
        if let Form::Tiles(_) = schedule.form {
            return Err(Obstacle::new("beside-tiles", "matrix tiles take a launch's workgroup memory"));
        }
        let grid = schedule.grid().map(|axis| axis.value(bucket));
        Ok(Section { values, schedule, grid, first: 0 })
    };
    if kind != Kind::Special
        && let Ok(all) = section(parts.concat())
    {
        return Ok(vec![all]);
    }
    parts.into_iter().map(section).collect()
}

/// The graph of some parts alone, with the leaves and views that they use, and the values of `g` that its own stand for.
fn cut(g: &Graph, part: &[ValueId]) -> (Graph, Vec<ValueId>) {
    let needed = skinny::ancestors(g, part.iter().copied());
    let mut new = Graph { name: g.name.clone(), bodies: g.bodies.clone(), ..Graph::default() };
    let mut renumbered: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    // Some views of results are not ancestors of anything, but outputs.
    let is_output = |id: &ValueId| g.outputs.iter().any(|(_, v)| v == id);
    for id in g.ids().filter(|id| needed.contains(id) || part.contains(id) && is_output(id)) {
        let node = g.node(id);
        let args = node.args.iter().map(|a| renumbered[a]).collect();
        renumbered.insert(id, ValueId(new.nodes.len() as u32));
        new.nodes.push(Node { op: node.op.clone(), args, ty: node.ty.clone() });
    }
    let outputs = g.outputs.iter().filter(|(_, v)| part.contains(v));
    new.outputs = outputs.map(|(name, v)| (name.clone(), renumbered[v])).collect();
    (new, renumbered.into_keys().collect())
}

/// A state that one section writes is touched by no other.
fn check_states(g: &Graph, sections: &[Section]) -> Result<(), Obstacle> {
    let graphs: Vec<Graph> = sections.iter().map(|s| s.graph(g)).collect();
    for (i, graph) in graphs.iter().enumerate() {
        for (name, v) in &graph.outputs {
            let touches = |(j, other): (usize, &Graph)| j != i && other.states().any(|(n, _)| n == name);
            if graph.ty(*v).state().is_some() && graphs.iter().enumerate().any(touches) {
                let found = format!("`{name}` is read and replaced by different workgroups");
                return Err(Obstacle::new("state-race", found));
            }
        }
    }
    Ok(())
}

/// The fewest and the most waves of a workgroup that a section may have beside others; none for rows, which take any.
fn waves_of(s: &Section) -> Option<(u32, u32)> {
    let waves = s.schedule.waves;
    match &s.schedule.form {
        Form::Row { .. } => None,
        Form::Skinny(form) if form.shares_only_operands(&s.schedule) => {
            let least = form.segments.iter().map(|x| x.split_k).max().unwrap_or(1).max(SKINNY_WAVES);
            Some((least, waves.min(ROW_WAVES).max(least)))
        }
        _ => Some((waves, waves)),
    }
}

/// Rows take as many waves as the others have, which must agree; matmuls dealt to short waves take what the others leave
/// them. No section has a grid rule of its own.
fn common_waves(sections: &mut [Section], bucket: &Bucket) -> Result<u32, Obstacle> {
    let known: Vec<(u32, u32)> = sections.iter().filter_map(waves_of).collect();
    let fixed = known.iter().find(|(least, most)| least == most).or(known.iter().max_by_key(|(_, most)| *most));
    let waves = fixed.map_or(ROW_WAVES, |(_, most)| *most);
    let fits = |least: u32, most: u32| if least == most { most == waves } else { least <= waves };
    if let Some((_, other)) = known.iter().find(|(least, most)| !fits(*least, *most)) {
        return Err(Obstacle::new("beside-waves", format!("workgroups of {waves} and of {other} waves")));
    }
    if sections.iter().filter(|s| s.schedule.finish().is_some()).count() > 1 {
        return Err(Obstacle::new("beside-finish", "two finish stages would count arrivals at one counter"));
    }
    for s in sections.iter_mut() {
        s.schedule.waves = waves;
        s.grid = s.schedule.grid().map(|axis| axis.value(bucket));
    }
    Ok(waves)
}

/// Bytes of workgroup memory where waves that share sums leave them.
fn exchanged(g: &Graph, s: &Section) -> u64 {
    let Form::Skinny(form) = &s.schedule.form else { return 0 };
    if form.segments.iter().all(|x| x.split_k == 1) {
        return 0;
    }
    let graph = s.graph(g);
    let bytes = form.segments.iter().map(|x| x.exchange_bytes(&graph, u64::from(form.row_unroll), s.schedule.waves));
    bytes.max().unwrap_or(0)
}

fn check_memory(g: &Graph, sections: &[Section]) -> Result<(), Obstacle> {
    let rows = |s: &Section| match &s.schedule.form {
        Form::Skinny(form) => form.rows_kept.max(1),
        _ => 1,
    };
    let of = |s: &Staged| match s.place {
        Place::Shared { bytes } => s.elements.saturating_mul(u64::from(bytes)),
        Place::Registers => 0,
    };
    let own = |s: &Section| {
        let one = s.schedule.staged.iter().fold(0u64, |sum, v| sum.saturating_add(of(v)));
        one.saturating_mul(rows(s)).saturating_add(exchanged(g, s))
    };
    let bytes = sections.iter().fold(0u64, |sum, s| sum.saturating_add(own(s)));
    let most = sections.iter().map(own).max().unwrap_or(0);
    if bytes > SHARED_BESIDE && bytes - most > SHARED_ADDED {
        return Err(Obstacle::new("beside-memory", format!("staged values take {bytes} bytes of {SHARED_BESIDE}")));
    }
    Ok(())
}
