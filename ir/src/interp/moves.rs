//! Ops that only move elements: shapes, slices, gathers. Generic, since both modes use them.

/// Row-major strides of a shape.
pub(crate) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut out = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        out[i - 1] = out[i] * shape[i];
    }
    out
}

/// Products of the extents before and after `axis`.
pub(crate) fn around(shape: &[usize], axis: usize) -> (usize, usize) {
    (shape[..axis].iter().product(), shape[axis + 1..].iter().product())
}

/// For every element of `to`, the index of its element in `from`, whose axes are equal or 1 (or whose rank is 0).
pub(crate) fn broadcast_index(from: &[usize], to: &[usize]) -> Vec<usize> {
    let total: usize = to.iter().product();
    if from.is_empty() {
        return vec![0; total];
    }
    let source = strides(from);
    let steps: Vec<usize> = (0..to.len()).map(|i| if from[i] == 1 { 0 } else { source[i] }).collect();
    let mut out = Vec::with_capacity(total);
    let mut at = vec![0usize; to.len()];
    let mut index = 0;
    for _ in 0..total {
        out.push(index);
        for axis in (0..to.len()).rev() {
            at[axis] += 1;
            index += steps[axis];
            if at[axis] < to[axis] {
                break;
            }
            index -= steps[axis] * to[axis];
            at[axis] = 0;
        }
    }
    out
}

pub(crate) fn broadcast<T: Copy>(x: &[T], from: &[usize], to: &[usize]) -> Vec<T> {
    broadcast_index(from, to).into_iter().map(|i| x[i]).collect()
}

pub(crate) fn slice<T: Copy>(x: &[T], shape: &[usize], axis: usize, start: usize, len: usize) -> Vec<T> {
    let (outer, inner) = around(shape, axis);
    let mut out = Vec::with_capacity(outer * len * inner);
    for o in 0..outer {
        let base = (o * shape[axis] + start) * inner;
        out.extend_from_slice(&x[base..base + len * inner]);
    }
    out
}

/// Joins parts, each with its shape, along `axis`.
pub(crate) fn concat<T: Copy>(parts: &[(&[T], &[usize])], axis: usize) -> Vec<T> {
    let Some((_, shape)) = parts.first() else { return Vec::new() };
    let (outer, inner) = around(shape, axis);
    let mut out = Vec::with_capacity(parts.iter().map(|p| p.0.len()).sum());
    for o in 0..outer {
        for (data, shape) in parts {
            let run = shape[axis] * inner;
            out.extend_from_slice(&data[o * run..(o + 1) * run]);
        }
    }
    out
}

/// `out[r, j] = x[r, ids[r, j]]`; an id outside the row gives 0.
pub(crate) fn gather_last<T: Copy + Default>(x: &[T], width: usize, ids: &[i32], k: usize) -> Vec<T> {
    let pick = |(i, &id): (usize, &i32)| match usize::try_from(id) {
        Ok(id) if id < width => x[i / k.max(1) * width + id],
        _ => T::default(),
    };
    ids.iter().enumerate().map(pick).collect()
}

/// `out[l] = x[rows[l]]`, rows of `width` elements; a row number out of range gives zeros.
pub(crate) fn gather_rows<T: Copy + Default>(x: &[T], width: usize, rows: &[i32]) -> Vec<T> {
    let count = x.len() / width.max(1);
    let mut out = Vec::with_capacity(rows.len() * width);
    for &r in rows {
        match usize::try_from(r) {
            Ok(r) if r < count => out.extend_from_slice(&x[r * width..(r + 1) * width]),
            _ => out.extend(std::iter::repeat_n(T::default(), width)),
        }
    }
    out
}
