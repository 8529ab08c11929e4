//! Buffers with descriptors, raw ones: a base, a length in bytes, and an offset in each lane.

use super::reach::{Direction, Global, Reach};
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::op::accepts;
use crate::emu::step::{Operand, Step};
use crate::emu::wave::{Lanes64, Wave};

/// Stands for the address of a lane whose offset is beyond the buffer: it reads 0 and writes nothing.
const OUTSIDE: u64 = u64::MAX;

/// Where a buffer lies and how many bytes it has, by the four words of its descriptor (RDNA4 ISA, buffer resource).
fn descriptor(w: &Wave, operand: Operand) -> Result<(u64, u64), Fault> {
    let Operand::S(first) = operand else { return Err(Fault::Operand(format!("{operand:?} as descriptor"))) };
    let [low, high, records, control] = std::array::from_fn(|i| w.s(first.saturating_add(i as u8)));
    // Stride and swizzle above the 48 bits of the base; the lane's number as index; checks by offset alone; the type.
    let raw = high >> 16 == 0 && control >> 23 & 1 == 0 && control >> 28 == 3;
    match raw {
        true => Ok((u64::from(low) | u64::from(high) << 32, records.into())),
        false => Err(Fault::Operand(format!("descriptor {high:#x}, {control:#x}, which is no raw buffer's,"))),
    }
}

pub(super) struct Buffer;

impl Reach for Buffer {
    const ACCEPTS: u16 = accepts::OFFSET | accepts::OFFEN;
    const STORE: [usize; 2] = [1, 0];

    fn addresses(w: &Wave, s: &Step, address: usize, base: usize, bytes: u32) -> Result<Lanes64, Fault> {
        let offsets = match (s.args[address], s.mods.offen) {
            (Operand::V(n), true) => w.vgpr[usize::from(n)],
            (Operand::Off, false) => [0; 32],
            (other, _) => return Err(Fault::Operand(format!("{other:?} as buffer offset"))),
        };
        // Whether a scalar offset counts in the check of the length differs between generations.
        if w.scalar(s.args[base + 1]) != 0 {
            return Err(Fault::Operand("scalar offset that is not 0".into()));
        }
        let (start, len) = descriptor(w, s.args[base])?;
        let mut out = [OUTSIDE; 32];
        for (lane, (slot, offset)) in out.iter_mut().zip(offsets).enumerate() {
            let offset = u64::from(offset) + u64::from(s.mods.offset.cast_unsigned());
            if offset < len {
                *slot = start + offset;
            }
            if w.exec() >> lane & 1 == 1 && offset < len && len - offset < u64::from(bytes) {
                let place = format!("byte {offset} of a buffer of {len}");
                return Err(Fault::Memory { bytes, place, why: "lies partly outside of it" });
            }
        }
        Ok(out)
    }

    fn load_words(w: &Wave, env: &mut Env<'_>, lane: usize, at: u64, out: &mut [u32]) -> Result<(), Fault> {
        if at == OUTSIDE {
            out.fill(0);
            return Ok(());
        }
        Global::load_words(w, env, lane, at, out)
    }

    fn store_words(w: &mut Wave, env: &mut Env<'_>, lane: usize, at: u64, words: &[u32]) -> Result<(), Fault> {
        if at == OUTSIDE { Ok(()) } else { Global::store_words(w, env, lane, at, words) }
    }

    fn load(w: &Wave, env: &mut Env<'_>, lane: usize, at: u64, bytes: u32) -> Result<u32, Fault> {
        if at == OUTSIDE { Ok(0) } else { Global::load(w, env, lane, at, bytes) }
    }

    fn store(w: &mut Wave, env: &mut Env<'_>, lane: usize, at: u64, bytes: u32, value: u32) -> Result<(), Fault> {
        if at == OUTSIDE { Ok(()) } else { Global::store(w, env, lane, at, bytes, value) }
    }

    fn count(env: &mut Env<'_>, at: &Lanes64, exec: u32, bytes: u32, direction: Direction) {
        let inside = at.iter().enumerate().filter(|(lane, at)| exec >> lane & 1 == 1 && **at != OUTSIDE);
        env.counts.add(direction.global(), bytes, inside.count() as u32);
    }
}
