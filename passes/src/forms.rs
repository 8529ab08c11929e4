//! Forms of a body, among which the integer program mixes: some whole ones, and such with one class formed otherwise.

use std::collections::{BTreeMap, BTreeSet};

use egg::Id;
use unglue_ir::graph::Graph;
use unglue_ir::op::Op;
use unglue_ir::types::Type;

use crate::error::PassError;
use crate::extract::{self, Extracted, Options, Pick, Picks};
use crate::language::ENode;
use crate::saturate::{Saturated, uses_all_leaves};
use crate::schedule::Bucket;
use crate::traffic::tensor_bytes;

/// Forms of one body at most; those that are left out are counted.
pub const MAX_FORMS: usize = 40;

/// A form, and the one that it differs from in few classes.
#[derive(Clone, Debug)]
pub struct Form {
    pub picks: Picks,
    pub extracted: Extracted,
    /// Number of a form before it; its own for the first.
    pub parent: usize,
}

/// All forms; the first is `base`.
#[derive(Clone, Debug)]
pub struct Forms {
    pub list: Vec<Form>,
    pub cut: u64,
    known: BTreeSet<BTreeMap<Id, Pick>>,
}

/// The base; the cheapest by arithmetic, and the one with the fewest bytes; then each of the first two with one class in
/// which something else stands in, or nothing where something did.
pub fn forms(s: &Saturated, base: &Picks) -> Result<Forms, PassError> {
    let mut forms = Forms { list: vec![], cut: 0, known: BTreeSet::new() };
    forms.add(s, base.clone(), 0);
    if forms.list.is_empty() {
        let found = "the base leaves out a leaf, or waits for itself";
        return Err(PassError::rewrite("extract-cycle", &s.declared.name, found, "internal"));
    }
    forms.add(s, s.greedy(), 0);
    let whole = forms.list.len();
    forms.add(s, extract::choose(&s.classes, &s.options, &row_bytes), 0);
    for parent in 0..whole {
        forms.flips(s, parent, base);
    }
    Ok(forms)
}

impl Forms {
    /// Adds a form that is new, ends, and reads every leaf.
    fn add(&mut self, s: &Saturated, picks: Picks, parent: usize) -> bool {
        let Ok(extracted) = s.extract(&picks) else { return false };
        if !uses_all_leaves(&extracted.graph) {
            return true;
        }
        let taken = taken(&picks, &extracted);
        if self.known.contains(&taken) {
            return true;
        }
        if self.list.len() >= MAX_FORMS {
            self.cut += 1;
            return true;
        }
        self.known.insert(taken);
        self.list.push(Form { picks, extracted, parent });
        true
    }

    /// Each class of a form with another that stands in, or as the base has it. Where that waits for itself, what lies below
    /// it is chosen anew.
    fn flips(&mut self, s: &Saturated, parent: usize, base: &Picks) {
        let from = self.list[parent].clone();
        for id in from.extracted.chosen.keys() {
            let now = from.picks.get(id);
            let options = s.options.get(id).map(Vec::as_slice).unwrap_or_default();
            let back = |p: &Pick| matches!(now, Some(Pick::Other(_))) && base.get(id) == Some(p);
            for pick in options.iter().filter(|p| now != Some(*p) && (matches!(p, Pick::Other(_)) || back(p))) {
                let mut picks = from.picks.clone();
                picks.insert(*id, pick.clone());
                if !self.add(s, picks, parent) {
                    let mut options: Options = s.options.clone();
                    options.insert(*id, vec![pick.clone()]);
                    let anew = extract::choose(&s.classes, &options, &extract::node_cost);
                    self.add(s, anew, parent);
                }
            }
        }
    }
}

/// Picks of the classes that a form has.
pub fn taken(picks: &Picks, form: &Extracted) -> BTreeMap<Id, Pick> {
    form.chosen.keys().filter_map(|id| Some((*id, picks.get(id)?.clone()))).collect()
}

/// The cheapest form whose values have the declared bits.
pub fn exact(s: &Saturated) -> Picks {
    let nodes = |picks: &Vec<Pick>| picks.iter().filter(|p| matches!(p, Pick::Node(_))).cloned().collect();
    let options: Options = s.options.iter().map(|(id, picks)| (*id, nodes(picks))).collect();
    extract::choose(&s.classes, &options, &extract::node_cost)
}

/// The picks of a form of another e-graph of the same body, and the classes of its values, if this one has all its nodes.
pub fn imported(s: &Saturated, form: &Extracted) -> Option<(Picks, Vec<Id>)> {
    let mut picks = exact(s);
    let mut ids: Vec<Id> = Vec::with_capacity(form.graph.nodes.len());
    for (value, node) in form.graph.nodes.iter().enumerate() {
        let (of, _) = form.chosen.get(&form.class_of[value])?;
        let args = node.args.iter().map(|a| ids[a.index()]).collect();
        let mut here = ENode { op: of.op.clone(), leaf: of.leaf.clone(), args };
        let id = s.classes.lookup(&mut here)?;
        picks.insert(id, Pick::Node(here));
        ids.push(id);
    }
    let same = |((_, v), (_, d)): (&(String, unglue_ir::graph::ValueId), &(String, unglue_ir::graph::ValueId))| {
        ids[v.index()] == s.classes.find(s.ids[d.index()])
    };
    form.graph.outputs.iter().zip(&s.declared.outputs).all(same).then(|| (picks, ids.clone()))
}

/// Bytes of a result's row, and a little for being there.
fn row_bytes(op: &Op, _: &[&Type], ty: &Type, _: &[Graph]) -> u64 {
    let row = Bucket { rows_max: 1, seqs_max: 1, pools: 1, fit: &crate::schedule::fit::GFX1201 };
    match op {
        Op::Input { .. } | Op::Weight { .. } | Op::State { .. } | Op::ConstF32(_) => 0,
        Op::Reshape(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Project(_) => 1,
        _ => match ty {
            Type::Tensor(t) => tensor_bytes(t, &row).saturating_add(1),
            _ => 1,
        },
    }
}
