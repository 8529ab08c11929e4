//! The three ways to reach memory by address: global, scratch, and flat, where the address says which.

use crate::counts::Traffic;
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::op::accepts;
use crate::emu::step::{Operand, Step};
use crate::emu::wave::{Lanes, Lanes64, PRIVATE_APERTURE, SHARED_APERTURE, Wave};

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Load,
    Store,
    Atomic,
}

impl Direction {
    pub(super) const fn global(self) -> Traffic {
        match self {
            Direction::Load => Traffic::GlobalLoad,
            Direction::Store => Traffic::GlobalStore,
            Direction::Atomic => Traffic::GlobalAtomic,
        }
    }

    const fn lds(self) -> Traffic {
        match self {
            Direction::Load => Traffic::LdsLoad,
            Direction::Store => Traffic::LdsStore,
            Direction::Atomic => Traffic::LdsAtomic,
        }
    }

    const fn scratch(self) -> Traffic {
        match self {
            Direction::Load => Traffic::ScratchLoad,
            Direction::Store | Direction::Atomic => Traffic::ScratchStore,
        }
    }
}

/// A kind of memory that a lane reaches by address.
pub(super) trait Reach {
    /// Modifiers that loads and stores honour.
    const ACCEPTS: u16 = accepts::OFFSET;
    /// Operands of a store: the address, and the data.
    const STORE: [usize; 2] = [0, 1];

    /// Addresses of all lanes for accesses of `bytes` bytes; the registers are operands `address` and `base`.
    fn addresses(w: &Wave, s: &Step, address: usize, base: usize, bytes: u32) -> Result<Lanes64, Fault>;

    /// Loads words.
    fn load_words(w: &Wave, env: &mut Env<'_>, lane: usize, at: u64, out: &mut [u32]) -> Result<(), Fault>;

    /// Stores words.
    fn store_words(w: &mut Wave, env: &mut Env<'_>, lane: usize, at: u64, words: &[u32]) -> Result<(), Fault>;

    /// Loads 1 or 2 bytes.
    fn load(w: &Wave, env: &mut Env<'_>, lane: usize, at: u64, bytes: u32) -> Result<u32, Fault>;

    /// Stores 1 or 2 bytes.
    fn store(w: &mut Wave, env: &mut Env<'_>, lane: usize, at: u64, bytes: u32, value: u32) -> Result<(), Fault>;

    /// Counts the bytes of the active lanes.
    fn count(env: &mut Env<'_>, at: &Lanes64, exec: u32, bytes: u32, direction: Direction);

    /// Loads N words in each active lane.
    fn load_lanes<const N: usize>(
        w: &Wave,
        env: &mut Env<'_>,
        at: &Lanes64,
        out: &mut [Lanes; N],
    ) -> Result<(), Fault> {
        for lane in (0..32).filter(|l| w.exec() >> l & 1 == 1) {
            let mut words = [0; N];
            Self::load_words(w, env, lane, at[lane], &mut words)?;
            for (slot, word) in out.iter_mut().zip(words) {
                slot[lane] = word;
            }
        }
        Ok(())
    }
}

/// Memory where atomics work.
pub(super) trait Atomic: Reach {
    fn atomic(w: &Wave, env: &mut Env<'_>, at: u64, change: impl Fn(u32) -> u32) -> Result<u32, Fault>;
    fn atomic64(w: &Wave, env: &mut Env<'_>, at: u64, change: impl Fn(u64) -> u64) -> Result<u64, Fault>;
}

pub(super) struct Global;

impl Reach for Global {
    #[inline]
    fn addresses(w: &Wave, s: &Step, address: usize, base: usize, _: u32) -> Result<Lanes64, Fault> {
        let offset = i64::from(s.mods.offset);
        match (s.args[address], s.args[base]) {
            (Operand::V(_), Operand::Off) => Ok(w.lanes64(s.args[address]).map(|a| a.wrapping_add_signed(offset))),
            (Operand::V(n), Operand::S(_)) => {
                let base = w.scalar64(s.args[base]).wrapping_add_signed(offset);
                Ok(w.vgpr[usize::from(n)].map(|a| base.wrapping_add(a.into())))
            }
            (a, b) => Err(Fault::Operand(format!("{a:?}, {b:?} as address"))),
        }
    }

    #[inline]
    fn load_words(_: &Wave, env: &mut Env<'_>, _: usize, at: u64, out: &mut [u32]) -> Result<(), Fault> {
        env.space.load_words(at, out)
    }

    #[inline]
    fn store_words(_: &mut Wave, env: &mut Env<'_>, _: usize, at: u64, words: &[u32]) -> Result<(), Fault> {
        env.space.store_words(at, words)
    }

    #[inline]
    fn load(_: &Wave, env: &mut Env<'_>, _: usize, at: u64, bytes: u32) -> Result<u32, Fault> {
        env.space.load(at, bytes)
    }

    #[inline]
    fn store(_: &mut Wave, env: &mut Env<'_>, _: usize, at: u64, bytes: u32, value: u32) -> Result<(), Fault> {
        env.space.store(at, bytes, value)
    }

    #[inline]
    fn count(env: &mut Env<'_>, _: &Lanes64, exec: u32, bytes: u32, direction: Direction) {
        env.counts.add(direction.global(), bytes, exec.count_ones());
    }

    #[inline]
    fn load_lanes<const N: usize>(
        w: &Wave,
        env: &mut Env<'_>,
        at: &Lanes64,
        out: &mut [Lanes; N],
    ) -> Result<(), Fault> {
        env.space.load_lanes(at, w.exec(), out)
    }
}

impl Atomic for Global {
    fn atomic(_: &Wave, env: &mut Env<'_>, at: u64, change: impl Fn(u32) -> u32) -> Result<u32, Fault> {
        env.space.atomic(at, change)
    }

    fn atomic64(_: &Wave, env: &mut Env<'_>, at: u64, change: impl Fn(u64) -> u64) -> Result<u64, Fault> {
        env.space.atomic64(at, change)
    }
}

pub(super) struct Scratch;

impl Scratch {
    /// Bytes of a lane's private memory in the wave's.
    fn range(w: &Wave, env: &Env<'_>, lane: usize, at: u64, bytes: u32) -> Result<std::ops::Range<usize>, Fault> {
        let len = env.scratch_bytes;
        let fault = Fault::ScratchBounds { bytes, offset: at, len };
        if at > u64::from(len) || u64::from(len) - at < u64::from(bytes) {
            return Err(fault);
        }
        if !at.is_multiple_of(u64::from(bytes.min(4))) {
            return Err(Fault::Misaligned { bytes, place: format!("scratch byte {at}") });
        }
        let first = lane * len as usize + at as usize;
        let range = first..first + bytes as usize;
        if w.scratch.len() < range.end { Err(fault) } else { Ok(range) }
    }
}

impl Reach for Scratch {
    fn addresses(w: &Wave, s: &Step, address: usize, base: usize, _: u32) -> Result<Lanes64, Fault> {
        let base = match s.args[base] {
            Operand::Off => 0,
            Operand::S(n) => w.s(n),
            other => return Err(Fault::Operand(format!("{other:?} as scratch base"))),
        };
        let base = base.wrapping_add_signed(s.mods.offset);
        match s.args[address] {
            Operand::Off => Ok([base.into(); 32]),
            Operand::V(n) => Ok(w.vgpr[usize::from(n)].map(|a| base.wrapping_add(a).into())),
            other => Err(Fault::Operand(format!("{other:?} as scratch address"))),
        }
    }

    fn load_words(w: &Wave, env: &mut Env<'_>, lane: usize, at: u64, out: &mut [u32]) -> Result<(), Fault> {
        let range = Self::range(w, env, lane, at, 4 * out.len() as u32)?;
        for (slot, bytes) in out.iter_mut().zip(w.scratch[range].as_chunks::<4>().0) {
            *slot = u32::from_le_bytes(*bytes);
        }
        Ok(())
    }

    fn store_words(w: &mut Wave, env: &mut Env<'_>, lane: usize, at: u64, words: &[u32]) -> Result<(), Fault> {
        let range = Self::range(w, env, lane, at, 4 * words.len() as u32)?;
        for (bytes, word) in w.scratch[range].as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        Ok(())
    }

    fn load(w: &Wave, env: &mut Env<'_>, lane: usize, at: u64, bytes: u32) -> Result<u32, Fault> {
        let range = Self::range(w, env, lane, at, bytes)?;
        Ok(w.scratch[range].iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte)))
    }

    fn store(w: &mut Wave, env: &mut Env<'_>, lane: usize, at: u64, bytes: u32, value: u32) -> Result<(), Fault> {
        let range = Self::range(w, env, lane, at, bytes)?;
        for (slot, byte) in w.scratch[range].iter_mut().zip(value.to_le_bytes()) {
            *slot = byte;
        }
        Ok(())
    }

    fn count(env: &mut Env<'_>, _: &Lanes64, exec: u32, bytes: u32, direction: Direction) {
        env.counts.add(direction.scratch(), bytes, exec.count_ones());
    }
}

/// Memory that a flat address lies in, with the address there.
enum Aperture {
    Lds(u64),
    Scratch(u64),
    Global,
}

fn aperture(at: u64) -> Aperture {
    let within = |at: u64, base: u64| at >= base && at - base <= 0xffff_ffff;
    if within(at, SHARED_APERTURE) {
        Aperture::Lds(at - SHARED_APERTURE)
    } else if within(at, PRIVATE_APERTURE) {
        Aperture::Scratch(at - PRIVATE_APERTURE)
    } else {
        Aperture::Global
    }
}

pub(super) struct Flat;

impl Reach for Flat {
    fn addresses(w: &Wave, s: &Step, address: usize, base: usize, _: u32) -> Result<Lanes64, Fault> {
        match (s.args[address], s.args[base]) {
            (Operand::V(_), Operand::None) => {
                Ok(w.lanes64(s.args[address]).map(|a| a.wrapping_add_signed(s.mods.offset.into())))
            }
            (a, b) => Err(Fault::Operand(format!("{a:?}, {b:?} as flat address"))),
        }
    }

    fn load_words(w: &Wave, env: &mut Env<'_>, lane: usize, at: u64, out: &mut [u32]) -> Result<(), Fault> {
        match aperture(at) {
            Aperture::Lds(offset) => env.lds.load_words(w.number, offset, 4, out),
            Aperture::Scratch(offset) => Scratch::load_words(w, env, lane, offset, out),
            Aperture::Global => env.space.load_words(at, out),
        }
    }

    fn store_words(w: &mut Wave, env: &mut Env<'_>, lane: usize, at: u64, words: &[u32]) -> Result<(), Fault> {
        match aperture(at) {
            Aperture::Lds(offset) => env.lds.store_words(w.number, offset, 4, words),
            Aperture::Scratch(offset) => Scratch::store_words(w, env, lane, offset, words),
            Aperture::Global => env.space.store_words(at, words),
        }
    }

    fn load(w: &Wave, env: &mut Env<'_>, lane: usize, at: u64, bytes: u32) -> Result<u32, Fault> {
        match aperture(at) {
            Aperture::Lds(offset) => env.lds.load(w.number, offset, bytes),
            Aperture::Scratch(offset) => Scratch::load(w, env, lane, offset, bytes),
            Aperture::Global => env.space.load(at, bytes),
        }
    }

    fn store(w: &mut Wave, env: &mut Env<'_>, lane: usize, at: u64, bytes: u32, value: u32) -> Result<(), Fault> {
        match aperture(at) {
            Aperture::Lds(offset) => env.lds.store(w.number, offset, bytes, value),
            Aperture::Scratch(offset) => Scratch::store(w, env, lane, offset, bytes, value),
            Aperture::Global => env.space.store(at, bytes, value),
        }
    }

    fn count(env: &mut Env<'_>, at: &Lanes64, exec: u32, bytes: u32, direction: Direction) {
        for (_, at) in at.iter().enumerate().filter(|(lane, _)| exec >> lane & 1 == 1) {
            let traffic = match aperture(*at) {
                Aperture::Lds(_) => direction.lds(),
                Aperture::Scratch(_) => direction.scratch(),
                Aperture::Global => direction.global(),
            };
            env.counts.add(traffic, bytes, 1);
        }
    }
}

impl Atomic for Flat {
    fn atomic(_: &Wave, env: &mut Env<'_>, at: u64, change: impl Fn(u32) -> u32) -> Result<u32, Fault> {
        match aperture(at) {
            Aperture::Lds(offset) => env.lds.atomic(offset, change),
            Aperture::Scratch(_) => Err(Fault::Operand("address of an atomic: private memory".into())),
            Aperture::Global => env.space.atomic(at, change),
        }
    }

    fn atomic64(_: &Wave, env: &mut Env<'_>, at: u64, change: impl Fn(u64) -> u64) -> Result<u64, Fault> {
        match aperture(at) {
            Aperture::Lds(offset) => env.lds.atomic64(offset, change),
            Aperture::Scratch(_) => Err(Fault::Operand("address of an atomic: private memory".into())),
            Aperture::Global => env.space.atomic64(at, change),
        }
    }
}
