//! The reference interpreter as a device: no compilation, every inner value visible.

use std::collections::BTreeMap;

use unglue_ir::IrError;
use unglue_ir::graph::ValueId;
use unglue_ir::interp::{Batch, StateData, States, Tensor, WeightRef, run_module};
use unglue_ir::module::{Module, WeightDecl};
use unglue_ir::op::Domain;
use unglue_models::checkpoint::Checkpoint;
use unglue_models::safetensors::Stored;
use unglue_runtime::Counters;
use unglue_runtime::manifest::MANIFEST_FILE;

use super::dump::{Array, Dump};
use super::{Engine, Limits, Work};
use crate::cli;
use crate::error::CliError;
use crate::limits::{MAX_CTX, pool_size};
use crate::source::{self, Source};

/// A module with its weights and one sequence in slot 0.
pub struct Interpreter {
    module: Module,
    checkpoint: Checkpoint,
    states: States,
    /// Tokens so far.
    len: usize,
    pool: usize,
    /// Inner values by call and node.
    taps: BTreeMap<(usize, ValueId), String>,
}

impl Interpreter {
    /// Builds the module and opens its checkpoint.
    pub fn open(args: &cli::Run, work: &Work) -> Result<Interpreter, CliError> {
        if args.input.join(MANIFEST_FILE).is_file() {
            let message = "a bundle; the interpreter takes the config.json or checkpoint folder it was compiled from";
            return Err(CliError::input(&args.input, message));
        }
        let Source { module, trunk, model, checkpoint, .. } = source::load(&args.input, &args.trunk)?;
        unglue_ir::verify::module(&module)?;
        if let Some(missing) = ["logits", "argmax"].iter().find(|n| !module.outputs.iter().any(|o| o.name == **n)) {
            return Err(CliError::input(
                &args.input,
                format!("the module has no output `{missing}`; needed to generate"),
            ));
        }
        work.check(&Limits { vocab: model.vocab_size, rows: None, context: MAX_CTX })?;
        let Some(folder) = args.weights.clone().or(checkpoint) else {
            return Err(CliError::Usage {
                rule: "--weights",
                found: "none, and the input is no checkpoint folder".into(),
                needed: "the checkpoint folder: --weights DIR".into(),
            });
        };
        let checkpoint = Checkpoint::open(&folder)?;
        if let Some(trunk) = &trunk {
            checkpoint.check_against(&module, &trunk.skip)?;
        }
        let taps: BTreeMap<_, _> =
            trunk.iter().flat_map(|t| t.taps()).map(|t| ((t.call as usize, t.value), t.name)).collect();
        Ok(Interpreter { taps, ..Interpreter::of(module, checkpoint) })
    }

    /// A module with its weights, at the start of a sequence.
    pub fn of(module: Module, checkpoint: Checkpoint) -> Interpreter {
        let states = States::new(&module.states, 1);
        let pool = pool_size(&module) as usize;
        Interpreter { module, checkpoint, states, len: 0, pool, taps: BTreeMap::new() }
    }

    /// Feeds the next ids with a look at every value; the module's results, with logits of all rows.
    #[cfg(feature = "compile")]
    pub fn observed(
        &mut self,
        ids: &[i32],
        observe: &mut dyn FnMut(usize, ValueId, &Tensor),
    ) -> Result<BTreeMap<String, Tensor>, CliError> {
        self.run(ids, (0..ids.len() as i32).collect(), observe)
    }

    fn run(
        &mut self,
        ids: &[i32],
        wanted: Vec<i32>,
        observe: &mut dyn FnMut(usize, ValueId, &Tensor),
    ) -> Result<BTreeMap<String, Tensor>, CliError> {
        let batch = Batch::new(&[(0, self.len, ids.len())], self.pool);
        let inputs = self.inputs(ids, wanted);
        let weights = |decl: &WeightDecl| weight(&self.checkpoint, decl);
        let out = run_module(&self.module, &inputs, &weights, &mut self.states, &batch, observe)?;
        self.len += ids.len();
        Ok(out)
    }

    fn inputs(&self, ids: &[i32], wanted: Vec<i32>) -> BTreeMap<String, Tensor> {
        let mut inputs = BTreeMap::from([
            ("ids".to_string(), Tensor::i32(&[ids.len()], ids.to_vec())),
            ("logit_rows".to_string(), Tensor::i32(&[wanted.len()], wanted)),
        ]);
        for decl in &self.module.inputs {
            // Expert e in slot e; experts without a slot are skipped.
            if let (Domain::Slots(slots), Some(experts)) = (decl.domain, decl.ty.shape.first().and_then(|d| d.fixed()))
            {
                let table = (0..experts).map(|e| if e < slots { e as i32 } else { -1 }).collect();
                inputs.insert(decl.name.clone(), Tensor::i32(&[experts as usize], table));
            }
        }
        inputs
    }
}

fn weight<'a>(checkpoint: &'a Checkpoint, decl: &WeightDecl) -> Result<WeightRef<'a>, IrError> {
    let refuse = |found: String| IrError::Eval {
        rule: "weight",
        place: decl.name.clone(),
        found,
        hint: "give the checkpoint of this config",
    };
    let shape: Option<Vec<u64>> = decl.ty.shape.iter().map(|d| d.fixed()).collect();
    let Some(shape) = shape else { return Err(refuse("a weight without a fixed shape".into())) };
    let (bytes, scales) = (checkpoint.weight(decl), checkpoint.scales(decl));
    let told = |e: unglue_models::ModelError| refuse(e.to_string());
    WeightRef::stored(decl.ty.format, &shape, bytes.map_err(told)?, scales.map_err(told)?)
}

impl Engine for Interpreter {
    fn step(&mut self, ids: &[i32], wanted: bool, dump: Option<&mut Dump>) -> Result<Option<i32>, CliError> {
        let rows = 0..ids.len() as i32;
        let wanted: Vec<i32> = match (&dump, wanted) {
            (Some(_), _) => rows.collect(),
            (None, true) => rows.last().into_iter().collect(),
            (None, false) => vec![],
        };
        let mut seen = Vec::new();
        let inner = dump.as_ref().is_some_and(|d| d.taps());
        let taps = std::mem::take(&mut self.taps);
        let mut observe = |call: usize, id: ValueId, t: &Tensor| {
            if let Some(name) = taps.get(&(call, id)).filter(|_| inner) {
                seen.push((name.clone(), Array::from(t)));
            }
        };
        let out = self.run(ids, wanted, &mut observe);
        self.taps = taps;
        let out = out?;
        if let Some(dump) = dump {
            for (name, t) in &out {
                if dump.wants(name) {
                    dump.push(name, t.into());
                }
            }
            seen.into_iter().for_each(|(name, rows)| dump.push(&name, rows));
        }
        Ok(out.get("argmax").and_then(|t| t.ints().last().copied()))
    }

    fn states(&self) -> Result<Vec<(String, Array)>, CliError> {
        let value = |decl: &unglue_ir::module::StateDecl| {
            let data = self.states.get(&decl.name)?;
            let flat = data.slots().first()?;
            let rows = flat.len().checked_div(data.width()).unwrap_or(0) as u64;
            let shape = match data {
                StateData::Slot { shape, .. } => shape.iter().map(|&d| d as u64).collect(),
                StateData::Token { width, .. } | StateData::Pool { width, .. } => vec![rows, *width as u64],
                StateData::Tail { pool, width, .. } => vec![2, *pool as u64, *width as u64],
            };
            Some((decl.name.clone(), Array::floats(Stored::of(decl.ty.dtype), shape, flat)))
        };
        Ok(self.module.states.iter().filter_map(value).collect())
    }

    fn device(&self) -> &'static str {
        "interp"
    }

    fn threads(&self) -> usize {
        1
    }

    fn counters(&self) -> Option<Counters> {
        None
    }
}
