//! Checkpoint data into device buffers.

use std::borrow::Cow;

use crate::device::{BufferId, Device};
use crate::layout::{array_bytes, product};
use crate::manifest::{Source, Weight};
use crate::{Result, RuntimeError};

/// Gives the bytes of a source: the tensor, viewed and sliced or transposed, row-major. [`slice_tensor`] makes them from the whole.
pub type WeightProvider<'a> = dyn Fn(&Source) -> std::result::Result<Cow<'a, [u8]>, String> + 'a;

/// The bytes of `source`, given the whole tensor. Borrows where they are contiguous.
pub fn slice_tensor<'a>(full: &'a [u8], source: &Source) -> std::result::Result<Cow<'a, [u8]>, String> {
    let bytes = array_bytes(&source.shape, source.dtype, &source.tensor).map_err(|e| e.to_string())?;
    if full.len() as u64 != bytes {
        return Err(format!(
            "{} bytes for shape {:?} of {}, which takes {bytes}",
            full.len(),
            source.shape,
            source.dtype
        ));
    }
    if source.transposed {
        return transpose(full, source).map(Cow::Owned);
    }
    let Some(slice) = source.slice else { return Ok(Cow::Borrowed(full)) };
    let axis = slice.axis as usize;
    let (Some(&length), Some(inner)) = (source.view.get(axis), source.view.get(axis + 1..)) else {
        return Err(format!("no axis {axis} in view {:?}", source.view));
    };
    let inner = array_bytes(inner, source.dtype, &source.tensor).map_err(|e| e.to_string())?;
    let view = product(&source.view, &source.tensor).map_err(|e| e.to_string())?.checked_mul(source.dtype.bytes());
    let end = slice.start.checked_add(slice.len).filter(|&end| end <= length);
    let (true, Some(end)) = (view == Some(bytes), end) else {
        return Err(format!("{slice:?} of view {:?} of shape {:?}", source.view, source.shape));
    };
    // All of these are at most `bytes`, the length of a slice in memory.
    let (row, from, to) = ((length * inner) as usize, (slice.start * inner) as usize, (end * inner) as usize);
    if row == 0 {
        return Ok(Cow::Borrowed(&[]));
    }
    if row == full.len() {
        return Ok(Cow::Borrowed(&full[from..to]));
    }
    let mut out = Vec::with_capacity(full.len() / row * (to - from));
    full.chunks_exact(row).for_each(|chunk| out.extend_from_slice(&chunk[from..to]));
    Ok(Cow::Owned(out))
}

/// Columns that are gathered in one pass over the rows: what a pass writes stays in cache.
const COLUMNS: usize = 64;

/// `[a, b]` as `[b, a]`.
fn transpose(full: &[u8], source: &Source) -> std::result::Result<Vec<u8>, String> {
    let [rows, columns] = source.view.as_slice() else {
        return Err(format!("a transposed view {:?}, which is no matrix", source.view));
    };
    let (size, rows, columns) = (source.dtype.bytes() as usize, *rows as usize, *columns as usize);
    let same = rows.checked_mul(columns).and_then(|n| n.checked_mul(size)) == Some(full.len());
    if !same || source.slice.is_some() {
        return Err(format!("transposed view {:?} of shape {:?}", source.view, source.shape));
    }
    let mut out = vec![0; full.len()];
    for first in (0..columns).step_by(COLUMNS) {
        for (r, row) in full.chunks_exact(columns * size).enumerate() {
            for c in first..columns.min(first + COLUMNS) {
                let to = (c * rows + r) * size;
                out[to..to + size].copy_from_slice(&row[c * size..(c + 1) * size]);
            }
        }
    }
    Ok(out)
}

/// Bytes of a source after slicing.
fn source_bytes(source: &Source) -> Result<u64> {
    let mut dims = source.view.clone();
    if let Some(slice) = source.slice
        && let Some(dim) = dims.get_mut(slice.axis as usize)
    {
        *dim = slice.len;
    }
    array_bytes(&dims, source.dtype, &source.tensor)
}

/// Allocates and fills the buffer of a weight; the buffer and its bytes.
pub(crate) fn upload(
    device: &mut dyn Device,
    weight: &Weight,
    provider: &WeightProvider<'_>,
) -> Result<(BufferId, u64)> {
    let bytes = array_bytes(&weight.shape, weight.mem, &weight.name)?;
    let id = device.alloc(bytes)?;
    let mut offset = 0;
    for source in &weight.sources {
        let wrong = |found: String, needed: String| RuntimeError::Weight {
            weight: weight.name.clone(),
            tensor: source.tensor.clone(),
            found,
            needed,
        };
        let needed = source_bytes(source)?;
        let data = provider(source).map_err(|found| wrong(found, format!("{needed} bytes of {}", source.dtype)))?;
        if data.len() as u64 != needed {
            return Err(wrong(format!("{} bytes", data.len()), format!("{needed} bytes of {}", source.dtype)));
        }
        device.write(id, offset, &data)?;
        offset += needed;
    }
    Ok((id, bytes))
}
