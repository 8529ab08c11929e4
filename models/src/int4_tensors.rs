//! Tensors beside the words and scales of int4 linears: they must say what the format says, symmetric and in order.

use unglue_ir::module::{Module, Source, WeightDecl};
use unglue_ir::types::{Format, Packing};

use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::safetensors::{Stored, TensorView};

/// Eight zero points of 8, stored less 1 as GPTQ's first format does.
const ZEROS: u32 = 0x7777_7777;

/// Checks what stands beside the int4 weights of a module; the names of those tensors.
///
/// # Errors
/// The first tensor that is missing, or says something that symmetric int4 in input order does not.
pub(crate) fn check(checkpoint: &Checkpoint, module: &Module) -> Result<Vec<String>, ModelError> {
    let mut names = Vec::new();
    for decl in &module.weights {
        let Format::Int4 { group, packing, .. } = decl.ty.format else { continue };
        for words in words(decl) {
            let one = Linear { checkpoint, words, group: u64::from(group) };
            match packing {
                Packing::GptqColumns => one.gptq(&mut names)?,
                Packing::Rows => one.compressed(&mut names)?,
            }
        }
    }
    Ok(names)
}

fn words(decl: &WeightDecl) -> impl Iterator<Item = &Source> {
    decl.sources.iter().filter(|s| Stored::of(s.dtype) == Stored::I32)
}

struct Linear<'a> {
    checkpoint: &'a Checkpoint,
    words: &'a Source,
    /// Inputs of one scale.
    group: u64,
}

impl Linear<'_> {
    /// A tensor of the same linear.
    fn beside(&self, ending: &str) -> String {
        let base = self.words.tensor.rsplit_once('.').map_or("", |(base, _)| base);
        format!("{base}.{ending}")
    }

    fn refuse(&self, name: &str, rule: &'static str, found: String, needed: &str) -> ModelError {
        self.checkpoint.refuse(name, rule, found, needed.into())
    }

    fn typed(&self, name: &str, t: &TensorView<'_>, shape: &[u64]) -> Result<(), ModelError> {
        if t.dtype == Stored::I32 && t.shape == shape {
            return Ok(());
        }
        let needed = format!("{} {shape:?}", Stored::I32);
        Err(self.refuse(name, "type", format!("{} {:?}", t.dtype, t.shape), &needed))
    }

    /// `qzeros` [K/group, N/8] and, if it is there, `g_idx` [K], beside `qweight` [K/8, N].
    fn gptq(&self, names: &mut Vec<String>) -> Result<(), ModelError> {
        let [words, n] = self.words.shape.as_slice() else { return Ok(()) };
        let k = words * 8;
        let name = self.beside("qzeros");
        let Some(zeros) = self.checkpoint.tensor(&name) else {
            return Err(self.refuse(&name, "names", "missing".into(), "zero points beside every qweight"));
        };
        self.typed(&name, &zeros, &[k / self.group, n.div_ceil(8)])?;
        // The last word may hold fewer outputs than it has room for.
        let row = n.div_ceil(8) as usize;
        let last = if n.is_multiple_of(8) { u32::MAX } else { (1 << (4 * (n % 8))) - 1 };
        let mask = |i: usize| if (i + 1).is_multiple_of(row) { last } else { u32::MAX };
        let wrong = |(i, w): &(usize, u32)| (w ^ ZEROS) & mask(*i) != 0;
        if let Some((i, word)) = integers(&zeros).enumerate().find(wrong) {
            let needed =
                "0x77777777, zero points of 8 stored less 1: quantise symmetrically, and save in the format `gptq`";
            return Err(self.refuse(&name, "asymmetric", format!("word {i} is {word:#010x}"), needed));
        }
        names.push(name);
        let name = self.beside("g_idx");
        let Some(order) = self.checkpoint.tensor(&name) else { return Ok(()) };
        self.typed(&name, &order, &[k])?;
        let moved = integers(&order).enumerate().find(|(k, g)| u64::from(*g) != *k as u64 / self.group);
        if let Some((k, g)) = moved {
            let needed = "k // group: quantise without activation order (desc_act false)";
            return Err(self.refuse(&name, "activation order", format!("input {k} in group {g}"), needed));
        }
        names.push(name);
        Ok(())
    }

    /// `weight_shape` [2] beside `weight_packed` [N, K/8]; neither zero points nor an order of inputs.
    fn compressed(&self, names: &mut Vec<String>) -> Result<(), ModelError> {
        let [n, words] = self.words.shape.as_slice() else { return Ok(()) };
        for (ending, rule, needed) in [
            ("weight_zero_point", "asymmetric", "no zero points: quantise symmetrically"),
            ("weight_g_idx", "activation order", "groups in the order of the inputs: quantise without actorder"),
        ] {
            let name = self.beside(ending);
            if self.checkpoint.tensor(&name).is_some() {
                return Err(self.refuse(&name, rule, "there".into(), needed));
            }
        }
        let name = self.beside("weight_shape");
        let Some(shape) = self.checkpoint.tensor(&name) else {
            return Err(self.refuse(&name, "names", "missing".into(), "the shape beside every weight_packed"));
        };
        let given: Vec<u64> = match shape.dtype {
            Stored::I64 => shape.bytes.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect(),
            Stored::I32 => integers(&shape).map(u64::from).collect(),
            other => return Err(self.refuse(&name, "type", other.to_string(), "I64 or I32")),
        };
        if given != [*n, words * 8] {
            return Err(self.refuse(&name, "shape", format!("{given:?}"), &format!("[{n}, {}]", words * 8)));
        }
        names.push(name);
        Ok(())
    }
}

fn integers<'a>(t: &TensorView<'a>) -> impl Iterator<Item = u32> + use<'a> {
    t.bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b))
}
