//! A checkpoint folder: one safetensors file, or shards with an index that says which file holds which tensor.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use unglue_ir::module::{Module, Source, WeightDecl};
use unglue_ir::types::DType;

use crate::assembly::source_names;
use crate::error::ModelError;
use crate::int4_tensors;
use crate::safetensors::{SafeTensors, Stored, TensorView};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Endings of tensors that only quantised checkpoints hold.
const QUANTISED: [&str; 10] = [
    ".qweight",
    ".qzeros",
    ".scales",
    ".g_idx",
    ".weight_scale_inv",
    ".weight_packed",
    ".weight_scale",
    ".weight_shape",
    ".weight_zero_point",
    ".weight_g_idx",
];

/// Checkpoint tensors that a module leaves out on purpose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkipRules {
    /// Parts that are not the trunk.
    pub prefixes: Vec<String>,
    /// What precedes a layer's number.
    pub layer_prefix: String,
    /// Layers of the module: all others are skipped.
    pub layers: Vec<u32>,
    /// What precedes an expert's number, below its layer.
    pub expert_prefix: String,
    /// Experts that the module stacks; those from here to `experts_of_model` are skipped.
    pub experts: u64,
    pub experts_of_model: u64,
}

impl SkipRules {
    /// Whether a tensor is left out by rule.
    pub fn skips(&self, name: &str) -> bool {
        if self.prefixes.iter().any(|p| name.starts_with(p.as_str())) {
            return true;
        }
        let Some((layer, rest)) = name.strip_prefix(self.layer_prefix.as_str()).and_then(numbered) else {
            return false;
        };
        if !self.layers.iter().any(|&l| u64::from(l) == layer) {
            return true;
        }
        let expert = rest.strip_prefix(self.expert_prefix.as_str()).and_then(numbered);
        expert.is_some_and(|(e, _)| e >= self.experts && e < self.experts_of_model)
    }
}

/// `"12.rest"` as 12 and `"rest"`.
fn numbered(text: &str) -> Option<(u64, &str)> {
    let (number, rest) = text.split_once('.')?;
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| number.parse().ok())?.map(|n| (n, rest))
}

/// An opened checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    files: Vec<SafeTensors>,
    /// Tensor -> file.
    places: BTreeMap<String, usize>,
}

impl Checkpoint {
    /// Opens a folder with `model.safetensors.index.json` and its shards, or with `model.safetensors`.
    ///
    /// # Errors
    /// Neither exists, the index is not usable, or a file is malformed or lacks a tensor that the index places in it.
    pub fn open(dir: &Path) -> Result<Checkpoint, ModelError> {
        let (index, single) = (dir.join(INDEX), dir.join(SINGLE));
        if index.is_file() {
            return open_shards(dir, &index);
        }
        if single.is_file() {
            let file = SafeTensors::open(&single)?;
            let places = file.names().map(|n| (n.to_string(), 0)).collect();
            return Ok(Checkpoint { dir: dir.into(), files: vec![file], places });
        }
        Err(ModelError::File { path: dir.into(), detail: format!("holds neither {INDEX} nor {SINGLE}") })
    }

    /// Names in byte order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.files.get(*self.places.get(name)?)?.tensor(name)
    }

    fn file_of(&self, name: &str) -> PathBuf {
        let file = self.places.get(name).and_then(|&i| self.files.get(i));
        file.map_or_else(|| self.dir.clone(), |f| f.path().to_path_buf())
    }

    pub(crate) fn refuse(&self, tensor: &str, rule: &'static str, found: String, needed: String) -> ModelError {
        ModelError::Tensor { path: self.file_of(tensor), tensor: tensor.into(), rule, found, needed }
    }

    /// Whether the checkpoint is exactly what the module needs, besides what the rules skip.
    ///
    /// # Errors
    /// The first tensor that is missing, of another dtype or shape, or unknown.
    pub fn check_against(&self, module: &Module, skip: &SkipRules) -> Result<(), ModelError> {
        let kept = || self.names().filter(|n| !skip.skips(n));
        let beside = int4_tensors::check(self, module)?;
        let mut known: BTreeSet<&str> = source_names(module);
        known.extend(beside.iter().map(String::as_str));
        let quantised = |n: &&str| !known.contains(n) && QUANTISED.iter().any(|q| n.ends_with(q));
        if let Some(name) = kept().find(quantised) {
            return Err(ModelError::Unsupported {
                what: format!("quantised checkpoint {}", self.dir.display()),
                found: format!("tensor `{name}`"),
                supported: "BF16 checkpoints, and routed experts in int4 as `quantization_config` declares them".into(),
            });
        }
        for source in module.weights.iter().flat_map(|w| &w.sources) {
            self.source(source)?;
        }
        match kept().find(|n| !known.contains(n)) {
            None => Ok(()),
            Some(name) => {
                Err(self.refuse(name, "names", "unknown to the model".into(), "a tensor of the trunk".into()))
            }
        }
    }

    /// The tensor behind a source, checked.
    ///
    /// # Errors
    /// It is missing or of another dtype or shape.
    pub fn source(&self, source: &Source) -> Result<TensorView<'_>, ModelError> {
        let needed = || format!("{} {:?}", Stored::of(source.dtype), source.shape);
        let Some(t) = self.tensor(&source.tensor) else {
            return Err(self.refuse(&source.tensor, "names", "missing".into(), needed()));
        };
        if t.dtype.ir() != Some(source.dtype) || t.shape != source.shape {
            return Err(self.refuse(&source.tensor, "type", format!("{} {:?}", t.dtype, t.shape), needed()));
        }
        Ok(t)
    }

    /// The bytes of a plain weight, or the words of an int4 one: its sources, viewed, sliced and joined. One whole source
    /// is not copied.
    ///
    /// # Errors
    /// A source is missing or of another type, or the declaration does not fit itself.
    pub fn weight(&self, decl: &WeightDecl) -> Result<Cow<'_, [u8]>, ModelError> {
        self.joined(decl.sources.iter().filter(|s| !is_scales(decl, s)))
    }

    /// The scales of an int4 weight, joined; nothing for plain ones.
    ///
    /// # Errors
    /// As [`Checkpoint::weight`].
    pub fn scales(&self, decl: &WeightDecl) -> Result<Cow<'_, [u8]>, ModelError> {
        self.joined(decl.sources.iter().filter(|s| is_scales(decl, s)))
    }

    fn joined<'s>(&self, sources: impl Iterator<Item = &'s Source>) -> Result<Cow<'_, [u8]>, ModelError> {
        let sources: Vec<&Source> = sources.collect();
        if let [source] = sources.as_slice()
            && source.slice.is_none()
        {
            return Ok(Cow::Borrowed(self.source(source)?.bytes));
        }
        let mut all = Vec::new();
        for source in sources {
            all.extend(self.parts(source)?);
        }
        Ok(Cow::Owned(all.concat()))
    }

    /// The bytes of a weight as contiguous runs of the mapped files, in order: for packers, which copy nothing twice.
    ///
    /// # Errors
    /// As [`Checkpoint::weight`].
    pub fn runs(&self, decl: &WeightDecl) -> Result<Vec<&[u8]>, ModelError> {
        let mut all = Vec::new();
        for source in &decl.sources {
            all.extend(self.parts(source)?);
        }
        Ok(all)
    }

    fn parts(&self, source: &Source) -> Result<Vec<&[u8]>, ModelError> {
        let broken =
            || self.refuse(&source.tensor, "view", format!("{:?}", source.view), "a view of the tensor".into());
        slice_bytes(source, self.source(source)?.bytes).ok_or_else(broken)
    }
}

/// Words of an int4 weight are i32, scales are not.
fn is_scales(decl: &WeightDecl, source: &Source) -> bool {
    decl.ty.is_int4() && source.dtype != DType::I32
}

/// The contiguous runs of a source's part; `None` if view or slice do not fit the bytes.
fn slice_bytes<'a>(source: &Source, bytes: &'a [u8]) -> Option<Vec<&'a [u8]>> {
    let elements = source.view.iter().try_fold(1u64, |n, d| n.checked_mul(*d))?;
    let width = Stored::of(source.dtype).bytes();
    if elements.checked_mul(width)? != bytes.len() as u64 {
        return None;
    }
    let Some(slice) = &source.slice else { return Some(vec![bytes]) };
    let axis = slice.axis as usize;
    let extent = *source.view.get(axis)?;
    let outer: u64 = source.view.get(..axis)?.iter().product();
    let inner: u64 = source.view.get(axis + 1..)?.iter().product::<u64>() * width;
    if slice.start.checked_add(slice.len)? > extent {
        return None;
    }
    let run = |o: u64| {
        let start = (o * extent + slice.start) * inner;
        bytes.get(start as usize..(start + slice.len * inner) as usize)
    };
    (0..outer).map(run).collect()
}

fn open_shards(dir: &Path, index: &Path) -> Result<Checkpoint, ModelError> {
    let format = |rule, found: String, needed: &str| ModelError::Format {
        path: index.into(),
        rule,
        found,
        needed: needed.into(),
    };
    let text =
        std::fs::read_to_string(index).map_err(|e| ModelError::File { path: index.into(), detail: e.to_string() })?;
    let json: Value = serde_json::from_str(&text).map_err(|e| format("index", e.to_string(), "JSON"))?;
    let Some(map) = json.get("weight_map").and_then(Value::as_object) else {
        return Err(format("index", "no object `weight_map`".into(), "tensor -> file"));
    };
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let mut files: Vec<SafeTensors> = Vec::new();
    let mut places = BTreeMap::new();
    for (tensor, file) in map {
        let Some(file) = file.as_str().filter(|f| is_file_name(f)) else {
            return Err(format("index", format!("`{tensor}` in {file}"), "the name of a file beside the index"));
        };
        let number = match numbers.get(file) {
            Some(&n) => n,
            None => {
                files.push(SafeTensors::open(&dir.join(file))?);
                numbers.insert(file, files.len() - 1);
                files.len() - 1
            }
        };
        if files[number].tensor(tensor).is_none() {
            return Err(ModelError::Tensor {
                path: dir.join(file),
                tensor: tensor.clone(),
                rule: "names",
                found: "missing".into(),
                needed: format!("there, by {INDEX}"),
            });
        }
        places.insert(tensor.clone(), number);
    }
    Ok(Checkpoint { dir: dir.into(), files, places })
}

/// A plain name: no folder, no parent.
fn is_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}
