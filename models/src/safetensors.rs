//! The safetensors format: a length, a JSON header, and the bytes of the tensors. The file is mapped, every claim of
//! its header is checked against its size, and nothing is read before it is needed.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use unglue_ir::types::DType;

use crate::error::ModelError;

/// Largest header that is read: 37,534 tensors take 5 MB.
const MAX_HEADER: u64 = 100 << 20;
/// Most axes of a tensor.
const MAX_RANK: usize = 16;

/// Element types that files may hold; the IR knows some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stored {
    F64,
    F32,
    F16,
    Bf16,
    F8E4m3,
    F8E5m2,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
}

const STORED: [(Stored, &str, u64, Option<DType>); 15] = [
    (Stored::F64, "F64", 8, None),
    (Stored::F32, "F32", 4, Some(DType::F32)),
    (Stored::F16, "F16", 2, Some(DType::F16)),
    (Stored::Bf16, "BF16", 2, Some(DType::Bf16)),
    (Stored::F8E4m3, "F8_E4M3", 1, Some(DType::F8E4m3)),
    (Stored::F8E5m2, "F8_E5M2", 1, None),
    (Stored::I64, "I64", 8, None),
    (Stored::I32, "I32", 4, Some(DType::I32)),
    (Stored::I16, "I16", 2, None),
    (Stored::I8, "I8", 1, None),
    (Stored::U64, "U64", 8, None),
    (Stored::U32, "U32", 4, None),
    (Stored::U16, "U16", 2, None),
    (Stored::U8, "U8", 1, None),
    (Stored::Bool, "BOOL", 1, Some(DType::Bool)),
];

impl Stored {
    fn row(self) -> &'static (Stored, &'static str, u64, Option<DType>) {
        STORED.iter().find(|r| r.0 == self).unwrap_or(&STORED[0])
    }

    pub fn parse(name: &str) -> Option<Stored> {
        STORED.iter().find(|r| r.1 == name).map(|r| r.0)
    }

    /// Name in the file format.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        self.row().2
    }

    /// The IR's dtype, if it has one.
    pub fn ir(self) -> Option<DType> {
        self.row().3
    }

    /// How an IR dtype is stored.
    pub fn of(dtype: DType) -> Stored {
        STORED.iter().find(|r| r.3 == Some(dtype)).map_or(Stored::F32, |r| r.0)
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tensor of a mapped file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorView<'a> {
    pub dtype: Stored,
    pub shape: &'a [u64],
    pub bytes: &'a [u8],
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    dtype: Stored,
    shape: Vec<u64>,
    /// Of the whole file.
    start: usize,
    end: usize,
}

/// A mapped safetensors file with a checked header.
#[derive(Debug)]
pub struct SafeTensors {
    path: PathBuf,
    map: Option<Mmap>,
    entries: BTreeMap<String, Entry>,
}

impl SafeTensors {
    /// Maps a file and checks its header.
    ///
    /// # Errors
    /// The file cannot be read, or its header claims something that its size does not hold.
    pub fn open(path: &Path) -> Result<SafeTensors, ModelError> {
        let failed = |e: std::io::Error| ModelError::File { path: path.into(), detail: e.to_string() };
        let file = File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let map = if size == 0 { None } else { Some(map_file(&file).map_err(failed)?) };
        let entries = parse(path, map.as_deref().unwrap_or_default())?;
        Ok(SafeTensors { path: path.into(), map, entries })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names in byte order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let e = self.entries.get(name)?;
        let bytes = self.map.as_deref().unwrap_or_default().get(e.start..e.end)?;
        Some(TensorView { dtype: e.dtype, shape: &e.shape, bytes })
    }
}

#[allow(unsafe_code)]
fn map_file(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is read only and private; like every reader of mapped checkpoints, it relies on nobody
    // truncating the file while it is in use.
    unsafe { Mmap::map(file) }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The header in file order, so that a name given twice is seen.
struct Header(Vec<(String, serde_json::Value)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Header, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Header;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Header(pairs))
            }
        }
        d.deserialize_map(Pairs)
    }
}

fn parse(path: &Path, file: &[u8]) -> Result<BTreeMap<String, Entry>, ModelError> {
    let format = |rule, found: String, needed: &str| ModelError::Format {
        path: path.into(),
        rule,
        found,
        needed: needed.into(),
    };
    let length: Option<[u8; 8]> = file.get(..8).and_then(|b| b.try_into().ok());
    let Some(length) = length.map(u64::from_le_bytes) else {
        return Err(format("header length", format!("a file of {} bytes", file.len()), "at least 8 bytes"));
    };
    let room = file.len() as u64 - 8;
    if length > room || length > MAX_HEADER {
        let needed = format!("at most {}", room.min(MAX_HEADER));
        return Err(format("header length", format!("{length} in a file of {} bytes", file.len()), &needed));
    }
    let data = 8 + length as usize;
    let header: Header = serde_json::from_slice(&file[8..data])
        .map_err(|e| format("header", e.to_string(), "a JSON object of tensors"))?;
    let mut entries = BTreeMap::new();
    for (name, value) in header.0 {
        if name == "__metadata__" {
            continue;
        }
        let raw: RawEntry = serde_json::from_value(value)
            .map_err(|e| tensor_error(path, &name, "entry", e.to_string(), "dtype, shape, data_offsets"))?;
        let entry = check_entry(path, &name, raw, data, file.len())?;
        if entries.insert(name.clone(), entry).is_some() {
            return Err(tensor_error(path, &name, "names", "given twice".into(), "once"));
        }
    }
    check_overlap(path, &entries)?;
    Ok(entries)
}

fn tensor_error(path: &Path, tensor: &str, rule: &'static str, found: String, needed: &str) -> ModelError {
    ModelError::Tensor { path: path.into(), tensor: shorten(tensor), rule, found, needed: needed.into() }
}

fn shorten(name: &str) -> String {
    if name.chars().count() <= 200 { name.into() } else { name.chars().take(200).chain("...".chars()).collect() }
}

fn check_entry(path: &Path, name: &str, raw: RawEntry, data: usize, size: usize) -> Result<Entry, ModelError> {
    let fail = |rule, found: String, needed: &str| tensor_error(path, name, rule, found, needed);
    let dtype = Stored::parse(&raw.dtype)
        .ok_or_else(|| fail("dtype", format!("\"{}\"", shorten(&raw.dtype)), "a dtype of the safetensors format"))?;
    if raw.shape.len() > MAX_RANK {
        return Err(fail("shape", format!("{} axes", raw.shape.len()), "at most 16 axes"));
    }
    let bytes = raw.shape.iter().try_fold(dtype.bytes(), |n, d| n.checked_mul(*d));
    let [start, end] = raw.data_offsets;
    let room = (size - data) as u64;
    if start > end || end > room {
        return Err(fail("offsets", format!("{start}..{end}"), &format!("a range inside 0..{room}")));
    }
    if bytes != Some(end - start) {
        let needed = bytes.map_or("a shape that fits a file".into(), |b| format!("{b} for {dtype} {:?}", raw.shape));
        return Err(fail("size", format!("{} bytes", end - start), &needed));
    }
    Ok(Entry { dtype, shape: raw.shape, start: data + start as usize, end: data + end as usize })
}

fn check_overlap(path: &Path, entries: &BTreeMap<String, Entry>) -> Result<(), ModelError> {
    let mut order: Vec<(&String, &Entry)> = entries.iter().filter(|(_, e)| e.end > e.start).collect();
    order.sort_by_key(|(_, e)| (e.start, e.end));
    for pair in order.windows(2) {
        if let [(first, a), (second, b)] = pair
            && b.start < a.end
        {
            return Err(tensor_error(
                path,
                second,
                "offsets",
                format!("shared with `{}`", shorten(first)),
                "bytes of its own",
            ));
        }
    }
    Ok(())
}

/// A tensor to write.
#[derive(Clone, Copy, Debug)]
pub struct TensorOut<'a> {
    pub name: &'a str,
    pub dtype: Stored,
    pub shape: &'a [u64],
    pub bytes: &'a [u8],
}

/// Writes a file: the same tensors give the same bytes. It appears under its name only when it is complete.
///
/// # Errors
/// A tensor whose bytes do not fit its shape, a repeated name, or a file that cannot be written.
pub fn write(path: &Path, tensors: &[TensorOut]) -> Result<(), ModelError> {
    let mut header = serde_json::Map::new();
    let mut at = 0u64;
    for t in tensors {
        let bytes = t.shape.iter().try_fold(t.dtype.bytes(), |n, d| n.checked_mul(*d));
        if bytes != Some(t.bytes.len() as u64) {
            let needed = format!("the bytes of {} {:?}", t.dtype, t.shape);
            return Err(tensor_error(path, t.name, "size", format!("{} bytes", t.bytes.len()), &needed));
        }
        let end = at + t.bytes.len() as u64;
        let entry = serde_json::json!({"dtype": t.dtype.name(), "shape": t.shape, "data_offsets": [at, end]});
        if t.name == "__metadata__" || header.insert(t.name.into(), entry).is_some() {
            return Err(tensor_error(path, t.name, "names", "given twice or reserved".into(), "a name of its own"));
        }
        at = end;
    }
    let mut text = serde_json::Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = write_parts(&temporary, &text, tensors).and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|e| {
        let _ = std::fs::remove_file(&temporary);
        ModelError::File { path: path.into(), detail: e.to_string() }
    })
}

fn write_parts(path: &Path, header: &[u8], tensors: &[TensorOut]) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header)?;
    for t in tensors {
        file.write_all(t.bytes)?;
    }
    file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
}
