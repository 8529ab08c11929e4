//! Places buffers in one arena so that no two that are live at the same launch overlap: largest first, lowest free
//! place, ties by name.

/// Alignment of every buffer.
pub const ALIGN: u64 = 256;

/// First and last launch that need a buffer; none if nothing does.
pub type Live = Option<(u32, u32)>;

/// Offsets and the arena's length. The three lists are parallel.
pub fn place(live: &[Live], sizes: &[u64], names: &[&str]) -> (Vec<Option<u64>>, u64) {
    let mut order: Vec<usize> = (0..live.len()).filter(|i| live[*i].is_some()).collect();
    order.sort_by(|a, b| sizes[*b].cmp(&sizes[*a]).then_with(|| names[*a].cmp(names[*b])));
    let mut offsets = vec![None; live.len()];
    // Placed buffers as (offset, end, first, last), ascending in offset.
    let mut placed: Vec<(u64, u64, u32, u32)> = Vec::with_capacity(order.len());
    let mut length = 0;
    for i in order {
        let Some((first, last)) = live[i] else { continue };
        let size = sizes[i].max(1).next_multiple_of(ALIGN);
        let mut at = 0;
        for (offset, end, from, to) in &placed {
            // A launch reads and writes at once: sharing a single launch is an overlap.
            let together = *from <= last && first <= *to;
            if !together || *end <= at {
                continue;
            }
            if *offset >= at + size {
                break;
            }
            at = *end;
        }
        let position = placed.partition_point(|p| p.0 <= at);
        placed.insert(position, (at, at + size, first, last));
        offsets[i] = Some(at);
        length = length.max(at + size);
    }
    (offsets, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuses_memory_only_after_the_last_use() {
        let live = [Some((0, 1)), Some((1, 2)), Some((2, 3)), None];
        let (offsets, length) = place(&live, &[100, 100, 100, 100], &["a", "b", "c", "d"]);
        assert_eq!(offsets, vec![Some(0), Some(256), Some(0), None]);
        assert_eq!(length, 512);
    }
}
