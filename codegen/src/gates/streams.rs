//! Gate `b128`: weight rows are streamed by loads of 128 bits, or of as many as waves that share a row leave each lane.

use crate::isa::Inst;

use super::isa::{Access, Code, Effect, Memory, Space, destinations, registers};
use super::pointers::{self, MARKS, Source};
use super::{Gate, failed};
use crate::generate::Stream;

/// Rows from here on hold 16 bytes for each lane.
const WIDE_ROW: u64 = 512;
/// Vector loads have whole words.
const WORD: u32 = 4;

/// Checks the streams of a kernel; `offsets` are those of its parameters in the kernel's arguments.
///
/// What a row has beyond its last whole vector of all lanes may be loaded narrowly. That happens once a row, in the loop
/// that goes from row to row and thus around (or, unrolled, beside) the wide loads of the row. So: the innermost loop that
/// moves the address of a narrow load has a wide load too. A loop that leaves the address alone does not stream through it:
/// LLVM moves wide loads of one row out of the loop over the operand's rows, and leaves the rest of the row, which is
/// masked, inside.
///
/// # Errors
/// The first load that streams narrowly.
pub fn check(code: &Code, streams: &[Stream], offsets: &[u32]) -> Gate<()> {
    let aligned = |s: &Stream| s.row_bytes >= WIDE_ROW && s.row_bytes.is_multiple_of(16) && s.lane_bytes >= WORD;
    let wide: Vec<Stream> = streams.iter().copied().filter(aligned).collect();
    if wide.is_empty() {
        return Ok(());
    }
    let loops = loops(code);
    for some in wide.chunks(MARKS) {
        let source =
            |(n, s): (usize, &Stream)| offsets.get(s.param as usize).map(|&offset| Source { offset, mark: 1 << n });
        let sources: Vec<Source> = some.iter().enumerate().filter_map(source).collect();
        let addresses = pointers::addresses(code, &sources)?;
        for (n, stream) in some.iter().enumerate() {
            let loads: Vec<usize> =
                (0..code.all.len()).filter(|&i| addresses[i] >> n & 1 == 1 && loads(code, i)).collect();
            stream_of(code, &loops, stream, &loads)?;
        }
    }
    Ok(())
}

fn loads(code: &Code, i: usize) -> bool {
    let effect = code.all[i].effect;
    matches!(effect, Effect::Memory(Memory { space: Space::Global | Space::Flat, access: Access::Load, .. }))
}

fn stream_of(code: &Code, loops: &[Vec<bool>], stream: &Stream, loads: &[usize]) -> Gate<()> {
    let block_of = |i: usize| code.blocks.partition_point(|b| b.first <= i).saturating_sub(1);
    let (wide, narrow): (Vec<usize>, Vec<usize>) =
        loads.iter().copied().partition(|&i| bits(&code.all[i].inst.name) >= 8 * stream.lane_bytes);
    let width = format!("b{}", 8 * stream.lane_bytes);
    let cure = "load it by vectors of 16 bytes a lane, or of a wave's part of them, with one test for the whole vector";
    let what = format!("parameter {} in rows of {} bytes", stream.param, stream.row_bytes);
    if wide.is_empty() {
        let some = narrow.first().map_or_else(String::new, |&i| format!("; {} does", code.named(i)));
        return failed("b128", format!("no {width} load streams {what}{some}"), cure);
    }
    for &i in &narrow {
        let block = block_of(i);
        let moving = loops.iter().filter(|l| l[block] && moves(code, l, i));
        let innermost = moving.min_by_key(|l| l.iter().filter(|inside| **inside).count());
        if innermost.is_some_and(|l| !wide.iter().any(|&w| l[block_of(w)])) {
            let found = format!("{} streams {what} in a loop without a {width} load", code.named(i));
            return failed("b128", found, cure);
        }
    }
    Ok(())
}

/// Bits that a load of whole words brings each lane; 0 for narrower ones.
fn bits(name: &str) -> u32 {
    let bits = name.rsplit_once("_b").and_then(|(_, bits)| bits.parse().ok()).unwrap_or(0);
    if bits >= 8 * WORD { bits } else { 0 }
}

/// True if the loop writes registers of the load's address.
fn moves(code: &Code, inside: &[bool], load: usize) -> bool {
    let address: Vec<_> = code.all[load].inst.args.iter().skip(1).map(registers).collect();
    let hits = |inst: &Inst| {
        let mut to = inst.args.iter().take(destinations(inst)).flat_map(registers);
        to.any(|r| address.iter().any(|a| a.contains(&r)))
    };
    let blocks = code.blocks.iter().zip(inside).filter(|(_, inside)| **inside);
    blocks
        .flat_map(|(b, _)| &code.all[b.first..b.end])
        .any(|ins| hits(&ins.inst) || ins.inst.pair.as_deref().is_some_and(hits))
}

/// Blocks of each natural loop, by the edges that go back in a search from the start (control flow is structured).
fn loops(code: &Code) -> Vec<Vec<bool>> {
    let n = code.blocks.len();
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); n];
    for (i, block) in code.blocks.iter().enumerate() {
        for edge in block.next.iter().filter(|e| e.to < n) {
            before[edge.to].push(i);
        }
    }
    let mut out: Vec<(usize, Vec<bool>)> = Vec::new();
    for (from, header) in back_edges(code) {
        let at = out.iter().position(|(h, _)| *h == header).unwrap_or_else(|| {
            let mut inside = vec![false; n];
            inside[header] = true;
            out.push((header, inside));
            out.len() - 1
        });
        let inside = &mut out[at].1;
        let mut open = vec![from];
        while let Some(block) = open.pop() {
            if !std::mem::replace(&mut inside[block], true) {
                open.extend(&before[block]);
            }
        }
    }
    out.into_iter().map(|(_, inside)| inside).collect()
}

/// Edges to a block that the search is still inside of.
fn back_edges(code: &Code) -> Vec<(usize, usize)> {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        No,
        Inside,
        Left,
    }
    let mut seen = vec![Seen::No; code.blocks.len()];
    let (mut path, mut out) = (vec![(0usize, 0usize)], Vec::new());
    if let Some(first) = seen.first_mut() {
        *first = Seen::Inside;
    }
    while let Some((block, edge)) = path.last_mut() {
        let from = *block;
        let Some(next) = code.blocks.get(from).and_then(|b| b.next.get(*edge)) else {
            seen[from] = Seen::Left;
            path.pop();
            continue;
        };
        *edge += 1;
        match seen.get(next.to) {
            Some(Seen::No) => {
                seen[next.to] = Seen::Inside;
                path.push((next.to, 0));
            }
            Some(Seen::Inside) => out.push((from, next.to)),
            _ => {}
        }
    }
    out
}
