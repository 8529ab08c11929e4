//! What a run writes with `--dump`: values of the fed rows, joined over the steps, under the names of the golden files.

use std::collections::BTreeMap;
use std::path::Path;

use unglue_ir::interp::{Data, Tensor};
use unglue_models::safetensors::{Stored, TensorOut, write};
use unglue_runtime::Value;
use unglue_runtime::manifest::Mem;

use crate::error::CliError;
use crate::tap;

/// An array in the format of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    pub dtype: Stored,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

impl From<Value> for Array {
    fn from(v: Value) -> Array {
        let dtype = match v.mem {
            Mem::F32 => Stored::F32,
            Mem::Bf16 => Stored::Bf16,
            Mem::F16 => Stored::F16,
            Mem::I32 => Stored::I32,
        };
        Array { dtype, shape: v.shape, bytes: v.bytes }
    }
}

impl From<&Tensor> for Array {
    fn from(t: &Tensor) -> Array {
        let shape = t.shape.iter().map(|&d| d as u64).collect();
        match &t.data {
            Data::F32(v) => Array::floats(Stored::of(t.dtype), shape, v),
            Data::I32(v) => {
                Array { dtype: Stored::I32, shape, bytes: v.iter().flat_map(|x| x.to_le_bytes()).collect() }
            }
        }
    }
}

impl Array {
    /// Floats that were rounded to `dtype` already: bf16 keeps the upper half of the bits, others are written as f32.
    pub fn floats(dtype: Stored, shape: Vec<u64>, values: &[f32]) -> Array {
        if dtype == Stored::Bf16 {
            let bytes = values.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect();
            return Array { dtype, shape, bytes };
        }
        Array { dtype: Stored::F32, shape, bytes: values.iter().flat_map(|x| x.to_le_bytes()).collect() }
    }

    /// Bytes of one row of the leading axis.
    fn row_bytes(&self) -> usize {
        (self.shape.iter().skip(1).product::<u64>() * self.dtype.bytes()) as usize
    }

    /// Rows of another width, filled up with -inf: scores are as wide as the pools that a step can see.
    fn widened(self, width: u64) -> Array {
        let (row, wide) = (self.row_bytes(), (width * self.dtype.bytes()) as usize);
        if row == wide {
            return self;
        }
        let fill = Array::floats(self.dtype, vec![], &[f32::NEG_INFINITY]).bytes;
        let rows = self.shape.first().copied().unwrap_or(0);
        let mut bytes = Vec::with_capacity(rows as usize * wide);
        for r in 0..rows as usize {
            bytes.extend_from_slice(self.bytes.get(r * row..(r + 1) * row).unwrap_or_default());
            bytes.extend(fill.iter().cycle().take(wide.saturating_sub(row)));
        }
        Array { shape: vec![rows, width], bytes, ..self }
    }

    /// The places of a tail `[2, pool, width]` that hold rows of the unfinished pool.
    fn unfinished(self, tokens: u64) -> Array {
        let [parts, pool, width] = self.shape[..] else { return self };
        let rows = tokens.checked_rem(pool).unwrap_or(0);
        let row = (width * self.dtype.bytes()) as usize;
        let part = pool as usize * row;
        let bytes = if part == 0 {
            vec![]
        } else {
            self.bytes.chunks(part).flat_map(|p| p.iter().take(rows as usize * row)).copied().collect()
        };
        Array { shape: vec![parts, rows, width], bytes, ..self }
    }
}

/// The values of a run.
pub struct Dump {
    taps: bool,
    /// Per name, in the order of the steps.
    rows: BTreeMap<String, Vec<Array>>,
    whole: BTreeMap<String, Array>,
}

impl Dump {
    /// With `taps`: everything; else only the logits, and what `--tap` stores.
    pub fn new(taps: bool) -> Dump {
        Dump { taps, rows: BTreeMap::new(), whole: BTreeMap::new() }
    }

    pub fn taps(&self) -> bool {
        self.taps
    }

    /// Whether a value belongs in the file.
    pub fn wants(&self, name: &str) -> bool {
        name == "logits" || tap::is_tap(name) || (self.taps && name != "argmax")
    }

    /// Adds rows of a step.
    pub fn push(&mut self, name: &str, rows: Array) {
        self.rows.entry(name.into()).or_default().push(rows);
    }

    /// Adds the state after `tokens` tokens. What a tail holds of a finished pool means nothing any more.
    pub fn state(&mut self, name: &str, value: Array, tokens: u64) {
        let value = if name.ends_with(".tail") { value.unfinished(tokens) } else { value };
        self.whole.insert(format!("state_end.{name}"), value);
    }

    /// Writes the file.
    pub fn write(self, path: &Path) -> Result<(), CliError> {
        let mut all = self.whole;
        all.extend(self.rows.into_iter().map(|(name, parts)| (name, joined(parts))));
        sort_routers(&mut all);
        let out: Vec<TensorOut<'_>> =
            all.iter().map(|(name, a)| TensorOut { name, dtype: a.dtype, shape: &a.shape, bytes: &a.bytes }).collect();
        Ok(write(path, &out)?)
    }
}

fn joined(parts: Vec<Array>) -> Array {
    let mut parts = parts.into_iter();
    let Some(mut first) = parts.next() else { return Array { dtype: Stored::F32, shape: vec![0], bytes: vec![] } };
    for part in parts {
        let mut part = part;
        if let ([_, a], [_, b]) = (first.shape.as_slice(), part.shape.as_slice()) {
            let width = *a.max(b);
            (first, part) = (first.widened(width), part.widened(width));
        }
        if let (Some(n), Some(more)) = (first.shape.first_mut(), part.shape.first()) {
            *n += more;
        }
        first.bytes.append(&mut part.bytes);
    }
    first
}

/// Puts the chosen experts of each row in ascending order, and their weights with them: kernels list them by score.
fn sort_routers(all: &mut BTreeMap<String, Array>) {
    let names: Vec<String> = all.keys().filter(|n| n.ends_with(".router_ids")).cloned().collect();
    for name in names {
        let weights_name = name.replace(".router_ids", ".router_weights");
        let (Some(mut ids), Some(mut weights)) = (all.remove(&name), all.remove(&weights_name)) else { continue };
        let (row, weights_row) = (ids.row_bytes(), weights.row_bytes());
        if row > 0 && weights_row > 0 {
            let element = weights.dtype.bytes() as usize;
            for (i, w) in ids.bytes.chunks_exact_mut(row).zip(weights.bytes.chunks_exact_mut(weights_row)) {
                sort_row(i, w, element);
            }
        }
        all.insert(name, ids);
        all.insert(weights_name, weights);
    }
}

fn sort_row(ids: &mut [u8], weights: &mut [u8], element: usize) {
    let id = |b: &[u8]| b.try_into().map_or(0, i32::from_le_bytes);
    let mut pairs: Vec<(i32, Vec<u8>)> =
        ids.chunks_exact(4).map(id).zip(weights.chunks_exact(element).map(<[u8]>::to_vec)).collect();
    pairs.sort_by_key(|p| p.0);
    for ((to_id, to_weight), (id, weight)) in ids.chunks_exact_mut(4).zip(weights.chunks_exact_mut(element)).zip(pairs)
    {
        to_id.copy_from_slice(&id.to_le_bytes());
        to_weight.copy_from_slice(&weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_joined_and_narrow_scores_filled_up() {
        let none = Array::floats(Stored::F32, vec![1, 0], &[]);
        let a = Array::floats(Stored::F32, vec![2, 1], &[1.0, 2.0]);
        let b = Array::floats(Stored::F32, vec![1, 2], &[3.0, 4.0]);
        let low = f32::NEG_INFINITY;
        let all = [low, low, 1.0, low, 2.0, low, 3.0, 4.0];
        assert_eq!(joined(vec![none, a, b]), Array::floats(Stored::F32, vec![4, 2], &all));
    }

    #[test]
    fn a_tail_is_cut_to_the_unfinished_pool() {
        let tail = Array::floats(Stored::F32, vec![2, 3, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(tail.clone().unfinished(5), Array::floats(Stored::F32, vec![2, 2, 1], &[1.0, 2.0, 4.0, 5.0]));
        assert_eq!(tail.unfinished(6), Array::floats(Stored::F32, vec![2, 0, 1], &[]));
    }

    #[test]
    fn experts_ascend_with_their_weights() {
        let ids = Tensor::i32(&[2, 2], vec![7, 3, 1, 2]);
        let weights = Array::floats(Stored::Bf16, vec![2, 2], &[0.5, 0.25, 1.0, 2.0]);
        let mut all = BTreeMap::from([
            ("layer1.router_ids".to_string(), Array::from(&ids)),
            ("layer1.router_weights".to_string(), weights),
        ]);
        sort_routers(&mut all);
        assert_eq!(all["layer1.router_ids"], Array::from(&Tensor::i32(&[2, 2], vec![3, 7, 1, 2])));
        let sorted = Array::floats(Stored::Bf16, vec![2, 2], &[0.25, 0.5, 1.0, 2.0]);
        assert_eq!(all["layer1.router_weights"], sorted);
    }
}
