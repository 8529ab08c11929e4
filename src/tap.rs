//! `--tap`: inner values of bodies as results of the step.
//!
//! A tapped value becomes one more output of its body, and of the module for every call of that body. Rewriting keeps it,
//! the kernel that computes it stores it, and its buffer lasts to the end of the step.

use std::collections::{BTreeMap, BTreeSet};

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::module::{Module, ModuleOutput};
use unglue_ir::op::Op;
use unglue_ir::types::Type;

use crate::error::CliError;
use crate::explain::nearest;

const RULE: &str = "--tap";

/// True for the name of a tapped value: those of a trunk's own results have no `%`.
pub fn is_tap(name: &str) -> bool {
    name.contains('%')
}

/// Adds outputs for the values that `names` stand for: `kda%12` in the body kda, `%12` in every body that has it, and
/// `top_k` for all ops of that name. The results are `layer3.kda%12`, or `end%4` outside of layers.
///
/// # Errors
/// [`CliError::Usage`] if a name stands for no value, or for one that cannot be stored.
pub fn add(module: &mut Module, names: &[String]) -> Result<(), CliError> {
    let mut all: BTreeSet<(usize, u32)> = BTreeSet::new();
    for name in names {
        let found = values(module, name)?;
        for &(body, number) in &found {
            storable(&module.bodies[body], number)?;
        }
        all.extend(found);
    }
    for (body, number) in all {
        module.bodies[body].outputs.push((format!("tap{number}"), ValueId(number)));
        let output = (module.bodies[body].outputs.len() - 1) as u32;
        let mut sites: BTreeMap<String, u32> = BTreeMap::new();
        for (call, of) in (0u32..).zip(&module.calls).filter(|(_, c)| c.body as usize == body) {
            let kind = &module.bodies[body].name;
            let site = of.layer.map_or_else(|| kind.clone(), |l| format!("layer{l}.{kind}"));
            let n = sites.entry(site.clone()).or_default();
            *n += 1;
            let again = if *n == 1 { String::new() } else { format!(".{n}") };
            module.outputs.push(ModuleOutput { name: format!("{site}{again}%{number}"), call, output });
        }
    }
    Ok(())
}

/// Bodies and numbers that a name stands for.
fn values(module: &Module, name: &str) -> Result<Vec<(usize, u32)>, CliError> {
    let usage = |needed: String| CliError::Usage { rule: RULE, found: name.into(), needed };
    let bodies = || module.bodies.iter().enumerate();
    let Some((body, number)) = name.split_once('%') else {
        let of_body = |(b, g): (usize, &Graph)| {
            let ops = g.ids().filter(|id| g.node(*id).op.name() == name);
            ops.map(|id| (b, id.0)).collect::<Vec<_>>()
        };
        let found: Vec<(usize, u32)> = bodies().flat_map(of_body).collect();
        if found.is_empty() {
            let ops = module.bodies.iter().flat_map(|b| &b.nodes).map(|n| n.op.name().to_owned()).collect();
            return Err(nearest::unknown(RULE, name, "an op by number (%12, kda%12) or by name", ops));
        }
        return Ok(found);
    };
    let number: u32 = number.parse().map_err(|_| usage("an op by number: %12, or kda%12 with its body".into()))?;
    if !body.is_empty() && !module.bodies.iter().any(|b| b.name == body) {
        let known = module.bodies.iter().map(|b| b.name.clone()).collect();
        return Err(nearest::unknown(RULE, body, "a body of the trunk", known));
    }
    let wanted = bodies().filter(|(_, g)| body.is_empty() || g.name == body);
    let most = wanted.clone().map(|(_, g)| g.nodes.len()).max().unwrap_or(0);
    let found: Vec<(usize, u32)> =
        wanted.filter(|(_, g)| (number as usize) < g.nodes.len()).map(|(b, _)| (b, number)).collect();
    if found.is_empty() { Err(usage(format!("a number below {most}"))) } else { Ok(found) }
}

fn storable(body: &Graph, number: u32) -> Result<(), CliError> {
    let node = body.node(ValueId(number));
    let refused = |what: &str, needed: &str| CliError::Usage {
        rule: RULE,
        found: format!("{}%{number}, {what}", body.name),
        needed: needed.into(),
    };
    match (&node.op, &node.ty) {
        (Op::Input { .. } | Op::Weight { .. } | Op::ConstF32(_), _) => {
            Err(refused("which no kernel computes", "a value that some op computes"))
        }
        (_, Type::Tuple(_)) => Err(refused("several results at once", "one of them: the op's `project`")),
        (_, Type::State(_)) => Err(refused("a state", "a tensor; `run --dump FILE --taps` writes states")),
        (_, Type::Tensor(_)) => Ok(()),
    }
}
