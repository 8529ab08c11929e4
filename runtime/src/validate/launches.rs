//! Rules of buckets, launches and outputs.

use super::{index, layer, require, within};
use crate::Result;
use crate::device::writes;
use crate::layout::{broken, buffer_bytes, buffer_elements, grid, pool_size};
use crate::manifest::{ARENA_ALIGN, Access, Arg, Bucket, Dim, Launch, Manifest, Mem, Param, ParamKind, Tap};

pub(super) fn buckets(m: &Manifest) -> Result<()> {
    require(!m.buckets.is_empty(), "buckets", "buckets", "none", "at least one")?;
    let ascending = m.buckets.is_sorted_by(|a, b| a.rows_max < b.rows_max && a.seqs_max <= b.seqs_max);
    require(ascending, "bucket order", "buckets", "another order", "ascending rows_max and seqs_max")?;
    for bucket in &m.buckets {
        limits(m, bucket)?;
        arena(m, bucket)?;
        for (i, launch) in bucket.launches.iter().enumerate() {
            let at = format!("bucket {}, launch {i} ({})", bucket.rows_max, launch.site);
            self::launch(m, bucket, launch, &at)?;
        }
    }
    Ok(())
}

fn limits(m: &Manifest, bucket: &Bucket) -> Result<()> {
    let at = format!("bucket {}", bucket.rows_max);
    within(bucket.rows_max, 1, m.options.max_rows, "bucket rows", &at)?;
    within(bucket.seqs_max, 1, m.options.max_seqs, "bucket sequences", &at)?;
    within(bucket.logits_max, 1, bucket.rows_max, "bucket logits", &at)?;
    let pool = pool_size(m);
    let pools = if pooled(m) { m.options.max_ctx.div_ceil(pool) } else { 0 };
    require(bucket.pools == pools, "bucket pools", &at, bucket.pools, pools)
}

/// True if the model has pools.
fn pooled(m: &Manifest) -> bool {
    use crate::manifest::StateKind::{Pool, Tail};
    m.states.iter().any(|s| matches!(s.kind, Pool { .. } | Tail { .. }))
}

fn arena(m: &Manifest, bucket: &Bucket) -> Result<()> {
    let at = format!("bucket {}", bucket.rows_max);
    within(bucket.arena_bytes, 0, crate::layout::MAX_BYTES, "arena size", &at)?;
    let (found, needed) = (bucket.offsets.len(), m.buffers.len());
    require(found == needed, "buffer offsets", &at, found, format_args!("{needed}, one a buffer"))?;
    for (buffer, offset) in m.buffers.iter().zip(&bucket.offsets) {
        let Some(offset) = *offset else { continue };
        let at = format!("{at}, buffer {}", buffer.name);
        let aligned = offset % ARENA_ALIGN == 0;
        require(aligned, "buffer alignment", &at, offset, format_args!("a multiple of {ARENA_ALIGN}"))?;
        let bytes = buffer_bytes(buffer, bucket)?;
        require(bytes > 0, "buffer size", &at, format_args!("{:?}", buffer.shape), "at least one element")?;
        let end = offset.checked_add(bytes).filter(|&end| end <= bucket.arena_bytes);
        let found = format!("{bytes} bytes at {offset}");
        require(end.is_some(), "buffer in arena", &at, found, format_args!("an end within {}", bucket.arena_bytes))?;
    }
    Ok(())
}

fn launch(m: &Manifest, bucket: &Bucket, launch: &Launch, at: &str) -> Result<()> {
    let kernel = &m.kernels[index(launch.kernel, m.kernels.len(), "launch kernel", at)?];
    if let Some(number) = launch.layer {
        layer(m, number, at)?;
    }
    grid(&launch.grid, bucket, at)?;
    let (found, needed) = (launch.args.len(), kernel.params.len());
    require(found == needed, "argument count", at, found, format_args!("{needed} for kernel {}", kernel.name))?;
    for (param, arg) in kernel.params.iter().zip(&launch.args) {
        argument(m, bucket, param, arg, &format!("{at}, {} of kernel {}", param.name, kernel.name))?;
    }
    Ok(())
}

/// What an argument is: the element type and whether a kernel may write it; none for numbers.
fn target(m: &Manifest, bucket: &Bucket, arg: &Arg, at: &str) -> Result<Option<(Mem, bool)>> {
    Ok(match *arg {
        Arg::Weight(i) => Some((m.weights[index(i, m.weights.len(), "argument weight", at)?].mem, false)),
        Arg::State(i) => Some((m.states[index(i, m.states.len(), "argument state", at)?].mem, true)),
        Arg::Buffer(i) => {
            let i = index(i, m.buffers.len(), "argument buffer", at)?;
            let placed = bucket.offsets[i].is_some();
            require(placed, "buffer placed", at, format_args!("{} without an offset", m.buffers[i].name), "an offset")?;
            Some((m.buffers[i].mem, true))
        }
        Arg::SlotTable(i) => {
            index(i, m.slot_tables.len(), "argument slot table", at)?;
            Some((Mem::I32, false))
        }
        Arg::Input(input) => Some((Mem::I32, input.is_written())),
        Arg::Scalar(_) | Arg::Const(_) => None,
    })
}

fn argument(m: &Manifest, bucket: &Bucket, param: &Param, arg: &Arg, at: &str) -> Result<()> {
    let target = target(m, bucket, arg, at)?;
    match (param.kind, target) {
        (ParamKind::Scalar, None) => Ok(()),
        (ParamKind::Buffer { mem, access }, Some((has, writable))) => {
            require(mem == has, "argument dtype", at, has, mem)?;
            let allowed = writable || !writes(access);
            require(allowed, "argument access", at, format_args!("{access:?}"), format_args!("{:?}", Access::Read))
        }
        (kind, _) => Err(broken("argument kind", at, format!("{arg:?}"), format!("{kind:?}"))),
    }
}

pub(super) fn outputs(m: &Manifest) -> Result<()> {
    let outputs = &m.outputs;
    let logits = &m.buffers[index(outputs.logits, m.buffers.len(), "logits buffer", "outputs")?];
    let argmax = &m.buffers[index(outputs.argmax, m.buffers.len(), "argmax buffer", "outputs")?];
    require(logits.mem != Mem::I32, "logits dtype", "outputs", logits.mem, "a float")?;
    require(argmax.mem == Mem::I32, "argmax dtype", "outputs", argmax.mem, Mem::I32)?;
    let by_row = |shape: &[Dim]| shape.first() == Some(&Dim::Logits);
    require(by_row(&logits.shape), "logits shape", "outputs", format_args!("{:?}", logits.shape), "[logits, vocab]")?;
    require(by_row(&argmax.shape), "argmax shape", "outputs", format_args!("{:?}", argmax.shape), "[logits]")?;
    for bucket in &m.buckets {
        let at = format!("outputs, bucket {}", bucket.rows_max);
        for (i, width) in [(outputs.logits, m.model.vocab_size), (outputs.argmax, 1)] {
            let (found, needed) = (buffer_elements(&m.buffers[i as usize], bucket)?, bucket.logits_max * width);
            require(found == needed, "output size", &at, found, format_args!("{needed} elements"))?;
            require(bucket.offsets[i as usize].is_some(), "output placed", &at, "no offset", "an offset")?;
        }
    }
    let names = outputs.taps.iter().map(|t| t.name.as_str());
    super::unique(names, "tap name", "outputs.taps")?;
    outputs.taps.iter().try_for_each(|tap| self::tap(m, tap))
}

fn tap(m: &Manifest, tap: &Tap) -> Result<()> {
    let at = format!("tap {}", tap.name);
    let buffer = index(tap.buffer, m.buffers.len(), "tap buffer", &at)?;
    let (found, needed) = (tap.after_launch.len(), m.buckets.len());
    require(found == needed, "tap launches", &at, found, format_args!("{needed}, one a bucket"))?;
    for (bucket, &after) in m.buckets.iter().zip(&tap.after_launch) {
        index(after, bucket.launches.len(), "tap launch", &at)?;
        require(bucket.offsets[buffer].is_some(), "tap placed", &at, "no offset", "an offset in every bucket")?;
    }
    Ok(())
}
