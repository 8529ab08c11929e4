//! Every rule of the manifest. Applied when a bundle is written and when it is opened, and never after that.

mod launches;

use std::collections::BTreeSet;
use std::fmt::Display;

use crate::layout::{array_bytes, broken, pool_size, product};
use crate::manifest::{
    FORMAT, Kernel, MANIFEST_FILE, MAX_KERNEL_NAME, Manifest, Mem, Part, PartKind, Source, State, StateKind, VERSION,
    Weight,
};
use crate::{Result, RuntimeError};

/// Most axes of a shape.
const MAX_RANK: usize = 8;
/// Most bytes of a part's path.
const MAX_PATH: usize = 200;
/// Most bytes of shared memory of a workgroup, over all targets.
const MAX_SHARED: u64 = 256 << 10;

/// Checks `manifest` against every rule of the format but the hashes.
pub fn validate(manifest: &Manifest) -> Result<()> {
    header(manifest)?;
    model(manifest)?;
    parts(manifest)?;
    weights(&manifest.weights)?;
    states(manifest)?;
    buffers(manifest)?;
    kernels(&manifest.kernels)?;
    slot_tables(manifest)?;
    launches::buckets(manifest)?;
    launches::outputs(manifest)
}

/// Fails with a manifest error unless `ok`.
pub(crate) fn require(ok: bool, rule: &'static str, at: &str, found: impl Display, needed: impl Display) -> Result<()> {
    if ok { Ok(()) } else { Err(broken(rule, at, found, needed)) }
}

/// Fails unless `value` is in `min..=max`.
pub(crate) fn within(value: u64, min: u64, max: u64, rule: &'static str, at: &str) -> Result<()> {
    require((min..=max).contains(&value), rule, at, value, format_args!("{min} to {max}"))
}

/// Fails unless `index` counts into a list of `len`.
pub(crate) fn index(index: u32, len: usize, rule: &'static str, at: &str) -> Result<usize> {
    let i = index as usize;
    require(i < len, rule, at, format_args!("index {i}"), format_args!("an index below {len}"))?;
    Ok(i)
}

fn unique<'a>(names: impl Iterator<Item = &'a str>, rule: &'static str, at: &str) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        require(!name.is_empty(), rule, at, "an empty name", "a name")?;
        require(seen.insert(name), rule, at, format_args!("{name} twice"), "each name once")?;
    }
    Ok(())
}

fn header(m: &Manifest) -> Result<()> {
    require(m.format == FORMAT, "format name", "format", &m.format, FORMAT)?;
    require(m.version == VERSION, "format version", "version", m.version, VERSION)
}

fn model(m: &Manifest) -> Result<()> {
    let (model, options) = (&m.model, &m.options);
    let i32_max = i32::MAX as u64;
    require(!model.name.is_empty(), "model name", "model.name", "an empty name", "a name")?;
    within(model.hidden_size, 1, i32_max, "hidden size", "model.hidden_size")?;
    within(model.vocab_size, 1, i32_max, "vocabulary", "model.vocab_size")?;
    within(model.streams, 1, 64, "streams", "model.streams")?;
    require(model.layers.is_sorted_by(|a, b| a < b), "layers ascending", "model.layers", "another order", "ascending")?;
    let differs = "lists that differ";
    require(options.layers == model.layers, "layers", "options.layers", differs, "model.layers")?;
    let float = |mem: Mem| matches!(mem, Mem::F32 | Mem::Bf16);
    require(float(options.dtype), "activation dtype", "options.dtype", options.dtype, "bf16 or f32")?;
    require(options.tp == 1, "tensor parallelism", "options.tp", options.tp, 1)?;
    require(m.all_reduce.is_empty(), "tensor parallelism", "all_reduce", m.all_reduce.len(), "no points")?;
    within(options.max_rows, 1, 1 << 20, "rows", "options.max_rows")?;
    within(options.max_seqs, 1, 1 << 20, "sequences", "options.max_seqs")?;
    within(options.max_ctx, 1, i32_max, "context", "options.max_ctx")?;
    within(options.kv_block, 1, i32_max, "block size", "options.kv_block")
}

fn parts(m: &Manifest) -> Result<()> {
    let mut folded = BTreeSet::new();
    for part in &m.parts {
        part_path(&part.path)?;
        let at = part.path.as_str();
        require(folded.insert(at.to_ascii_lowercase()), "part path unique", at, "the path twice", "each path once")?;
        let hex = part.sha256.len() == 64 && part.sha256.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        require(hex, "part hash", at, &part.sha256, "64 lower-case hex digits")?;
        array_bytes(&[part.bytes.div_ceil(2)], Mem::Bf16, at)?;
    }
    for path in &folded {
        let parents = path.match_indices('/').map(|(i, _)| &path[..i]);
        let clash = parents.into_iter().find(|p| folded.contains(*p));
        require(clash.is_none(), "part path is a file", path, "a parent that is a part", "a folder")?;
    }
    let singles = |kind: PartKind| m.parts.iter().filter(|p| p.kind == kind).count();
    require(singles(PartKind::TrunkIr) <= 1, "one trunk IR", "parts", "several", "at most one")?;
    require(singles(PartKind::Report) <= 1, "one report", "parts", "several", "at most one")?;
    let ascending = m.awaits.is_sorted_by(|a, b| a < b);
    require(ascending, "awaiting targets ascending", "awaits", "another order", "each target once, ascending")?;
    code_parts(m)
}

fn code_parts(m: &Manifest) -> Result<()> {
    let mut seen = BTreeSet::new();
    for Part { path, kind, .. } in &m.parts {
        let PartKind::Code { target, kernel } = kind else { continue };
        require(!target.is_empty(), "code target", path, "an empty name", "a target name")?;
        if let Some(k) = kernel {
            index(*k, m.kernels.len(), "code kernel", path)?;
        }
        require(seen.insert((target, *kernel)), "code once", path, "code that another part has", "one part a kernel")?;
    }
    let without = m.awaits.iter().find(|awaiting| !seen.iter().any(|(target, _)| target == awaiting));
    let found = format_args!("{}, which has no code", without.map_or("", String::as_str)).to_string();
    require(without.is_none() || m.parts.is_empty(), "awaiting targets", "awaits", found, "targets of the code")?;
    let targets: BTreeSet<&String> = seen.iter().map(|(target, _)| *target).collect();
    for target in targets {
        let of = seen.iter().filter(|(t, _)| *t == target).count();
        let complete = if seen.contains(&(target, None)) { of == 1 } else { of == m.kernels.len() };
        let needed = format!("one part with all kernels, or one for each of {}", m.kernels.len());
        require(complete, "code complete", &format!("target {target}"), format_args!("{of} parts"), needed)?;
    }
    Ok(())
}

/// Refuses every path that is not plainly inside the bundle folder.
pub(crate) fn part_path(path: &str) -> Result<()> {
    let plain = |c: &str| {
        !c.is_empty()
            && !c.starts_with('.')
            && c.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
    };
    let ok = path.len() <= MAX_PATH && path.split('/').all(plain) && !path.eq_ignore_ascii_case(MANIFEST_FILE);
    let needed = "a relative path of [A-Za-z0-9._-] components that do not start with a dot";
    require(ok, "part path", "parts", format_args!("{path:?}"), needed)
}

fn shape(dims: &[u64], at: &str) -> Result<()> {
    require(dims.len() <= MAX_RANK, "rank", at, dims.len(), format_args!("at most {MAX_RANK} axes"))?;
    require(!dims.contains(&0), "axis length", at, format_args!("{dims:?}"), "axes of at least 1")
}

fn weights(weights: &[Weight]) -> Result<()> {
    unique(weights.iter().map(|w| w.name.as_str()), "weight name", "weights")?;
    for weight in weights {
        let at = format!("weight {}", weight.name);
        shape(&weight.shape, &at)?;
        array_bytes(&weight.shape, weight.mem, &at)?;
        require(!weight.sources.is_empty(), "weight sources", &at, "none", "at least one")?;
        let mut total: u64 = 0;
        for s in &weight.sources {
            let is = s.dtype == weight.mem;
            require(is, "weight dtype", &at, format_args!("{} in {}", s.dtype, s.tensor), weight.mem)?;
            total = total.saturating_add(source(s, &at)?);
        }
        let needed = product(&weight.shape, &at)?;
        require(total == needed, "weight size", &at, format_args!("{total} elements of sources"), needed)?;
    }
    Ok(())
}

/// Checks a source; its elements after slicing.
fn source(s: &Source, weight: &str) -> Result<u64> {
    let at = format!("{weight}, tensor {}", s.tensor);
    require(!s.tensor.is_empty(), "tensor name", &at, "an empty name", "a name")?;
    shape(&s.shape, &at)?;
    shape(&s.view, &at)?;
    array_bytes(&s.shape, s.dtype, &at)?;
    let same = product(&s.shape, &at)? == product(&s.view, &at)?;
    require(
        same,
        "view size",
        &at,
        format_args!("view {:?}", s.view),
        format_args!("as many elements as {:?}", s.shape),
    )?;
    let mut taken = s.view.clone();
    if let Some(slice) = &s.slice {
        let axis = index(slice.axis, s.view.len(), "slice axis", &at)?;
        let end = slice.start.checked_add(slice.len).filter(|&end| slice.len > 0 && end <= s.view[axis]);
        require(
            end.is_some(),
            "slice range",
            &at,
            format_args!("{slice:?}"),
            format_args!("a part of {}", s.view[axis]),
        )?;
        taken[axis] = slice.len;
    }
    if s.transposed {
        let plain = s.view.len() == 2 && s.slice.is_none();
        let found = format_args!("view {:?}, slice {:?}", s.view, s.slice);
        require(plain, "transposed source", &at, found, "a whole matrix, two axes and no slice")?;
    }
    product(&taken, &at)
}

fn states(m: &Manifest) -> Result<()> {
    unique(m.states.iter().map(|s| s.name.as_str()), "state name", "states")?;
    let pool = pool_size(m);
    within(pool, 1, 1 << 16, "pool size", "states")?;
    let block = m.options.kv_block;
    let needed = format!("a multiple of the pool size {pool}");
    require(block.is_multiple_of(pool), "block size", "options.kv_block", block, needed)?;
    m.states.iter().try_for_each(|state| self::state(m, state, pool))
}

fn state(m: &Manifest, s: &State, pool: u64) -> Result<()> {
    let at = format!("state {}", s.name);
    layer(m, s.layer, &at)?;
    let of_pool = |p: u64| require(p == pool, "one pool size", &at, p, pool);
    match &s.kind {
        StateKind::Slot { shape: dims } => {
            shape(dims, &at)?;
            array_bytes(dims, s.mem, &at)?;
        }
        StateKind::Token { width } => {
            shape(&[*width], &at)?;
            array_bytes(&[*width], s.mem, &at)?;
        }
        StateKind::Pool { width, pool } | StateKind::Tail { pool, width } => {
            of_pool(*pool)?;
            shape(&[*width], &at)?;
            array_bytes(&[2, *pool, *width], s.mem, &at)?;
        }
    }
    Ok(())
}

/// Fails unless the trunk keeps layer `number`.
pub(crate) fn layer(m: &Manifest, number: u32, at: &str) -> Result<()> {
    let kept = m.model.layers.binary_search(&number).is_ok();
    require(kept, "layer", at, format_args!("layer {number}"), format_args!("one of {:?}", m.model.layers))
}

fn buffers(m: &Manifest) -> Result<()> {
    unique(m.buffers.iter().map(|b| b.name.as_str()), "buffer name", "buffers")?;
    for buffer in &m.buffers {
        let at = format!("buffer {}", buffer.name);
        let rank = buffer.shape.len();
        require(rank <= MAX_RANK, "rank", &at, rank, format_args!("at most {MAX_RANK} axes"))?;
    }
    Ok(())
}

fn kernels(kernels: &[Kernel]) -> Result<()> {
    unique(kernels.iter().map(|k| k.name.as_str()), "kernel name", "kernels")?;
    for kernel in kernels {
        kernel_name(&kernel.name)?;
        let at = format!("kernel {}", kernel.name);
        within(u64::from(kernel.waves), 1, 32, "waves", &at)?;
        within(kernel.shared_bytes, 0, MAX_SHARED, "shared memory", &at)?;
        unique(kernel.params.iter().map(|p| p.name.as_str()), "parameter name", &at)?;
        let i = &kernel.interface;
        for port in [&i.inputs, &i.weights, &i.states, &i.outputs].into_iter().flatten() {
            index(port.param, kernel.params.len(), "interface parameter", &format!("{at}, value {}", port.name))?;
        }
    }
    Ok(())
}

fn kernel_name(name: &str) -> Result<()> {
    let word = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let ok = word && name.len() <= MAX_KERNEL_NAME && !name.starts_with(|c: char| c.is_ascii_digit());
    let needed = format!("[A-Za-z_][A-Za-z0-9_]*, at most {MAX_KERNEL_NAME} bytes");
    require(ok, "kernel name", "kernels", format_args!("{name:?}"), needed)
}

fn slot_tables(m: &Manifest) -> Result<()> {
    let mut seen = BTreeSet::new();
    for table in &m.slot_tables {
        let at = format!("slot table of layer {}", table.layer);
        layer(m, table.layer, &at)?;
        require(seen.insert(table.layer), "one slot table a layer", &at, "a second one", "one")?;
        within(table.experts, 1, 1 << 20, "experts", &at)?;
        within(table.slots, 1, 1 << 20, "slots", &at)?;
    }
    Ok(())
}

/// The format's name and version, before anything else of the manifest is looked at.
pub(crate) fn known_format(path: &std::path::Path, value: &serde_json::Value) -> Result<()> {
    let format = value.get("format").and_then(serde_json::Value::as_str);
    let version = value.get("version").and_then(serde_json::Value::as_u64);
    if format == Some(FORMAT) && version == Some(u64::from(VERSION)) {
        return Ok(());
    }
    let found = match (format, version) {
        (Some(f), Some(v)) => format!("{f} version {v}"),
        (Some(f), None) => format!("{f} without a version"),
        (None, _) => "no format name".to_string(),
    };
    Err(RuntimeError::Format { path: path.to_path_buf(), found, needed: format!("{FORMAT} version {VERSION}") })
}
