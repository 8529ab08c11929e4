//! Runs workgroups: launch state, the order of waves, barriers.

use super::env::Env;
use super::fault::{Fault, Trap};
use super::lds::Lds;
use super::load::{Kernel, LaunchState};
use super::memory::Space;
use super::op::Flow;
use super::wave::Wave;
use crate::counts::Counts;
use crate::isa::sreg;

/// In which order waves of a workgroup, and workgroups of a launch, run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// First to last, each as far as it gets.
    #[default]
    Forward,
    /// Last to first.
    Reverse,
    /// Waves in turns of random length; workgroups in a random order.
    Random(u64),
}

/// Signals and waits of each wave, counted.
#[derive(Debug, Default)]
pub struct Barrier {
    signals: Vec<u32>,
    waits: Vec<u32>,
    ended: Vec<bool>,
}

impl Barrier {
    /// A barrier for so many waves.
    #[must_use]
    pub fn new(waves: u32) -> Self {
        let n = waves as usize;
        Barrier { signals: vec![0; n], waits: vec![0; n], ended: vec![false; n] }
    }

    fn reset(&mut self) {
        self.signals.fill(0);
        self.waits.fill(0);
        self.ended.fill(false);
    }

    /// The wave arrives; it need not wait yet.
    ///
    /// # Errors
    /// [`Fault::SignalTwice`]: the hardware counts arrivals, not waves, and would let the others go on.
    pub fn signal(&mut self, wave: u32) -> Result<(), Fault> {
        let (Some(signals), Some(waits)) = (self.signals.get_mut(wave as usize), self.waits.get(wave as usize)) else {
            return Ok(());
        };
        if *signals > *waits {
            return Err(Fault::SignalTwice);
        }
        *signals += 1;
        Ok(())
    }

    /// True if the wave may go on: every wave that still runs has signalled as often. Then the wait is over.
    ///
    /// # Errors
    /// [`Fault::WaitWithoutSignal`].
    pub fn wait(&mut self, wave: u32) -> Result<bool, Fault> {
        let w = wave as usize;
        let (Some(signals), Some(waits)) = (self.signals.get(w), self.waits.get(w)) else { return Ok(true) };
        let round = waits + 1;
        if *signals < round {
            return Err(Fault::WaitWithoutSignal);
        }
        let all = self.signals.iter().zip(&self.ended).all(|(n, ended)| *ended || *n >= round);
        if all {
            self.waits[w] = round;
        }
        Ok(all)
    }
}

/// How workgroups run.
#[derive(Clone, Copy, Debug)]
pub struct GroupOptions {
    pub schedule: Schedule,
    /// Initial content of registers and LDS.
    pub poison: u32,
    /// Most instructions of one workgroup.
    pub step_limit: u64,
    pub perturb: Option<u32>,
}

/// Room for one workgroup, used again and again.
pub struct Runner<'a> {
    kernel: &'a Kernel,
    space: &'a Space<'a>,
    state: &'a LaunchState,
    options: GroupOptions,
    waves: Vec<Wave>,
    lds: Lds,
    barrier: Barrier,
    pub counts: Counts,
}

/// Why a turn of a wave ended.
enum Turn {
    /// Its turn is over.
    Pause,
    Blocked,
    End,
}

impl<'a> Runner<'a> {
    /// A runner for workgroups of one launch.
    #[must_use]
    pub fn new(kernel: &'a Kernel, space: &'a Space<'a>, state: &'a LaunchState, options: GroupOptions) -> Self {
        let waves = state.waves();
        Runner {
            kernel,
            space,
            state,
            options,
            waves: (0..waves).map(|_| Wave::new(options.poison)).collect(),
            lds: Lds::new(kernel.lds_bytes, waves),
            barrier: Barrier::new(waves),
            counts: Counts::default(),
        }
    }

    /// Runs one workgroup.
    ///
    /// # Errors
    /// The first fault with its place.
    pub fn run(&mut self, group: [u32; 3]) -> Result<(), Trap> {
        self.lds.reset(self.options.poison);
        self.barrier.reset();
        for (n, wave) in self.waves.iter_mut().enumerate() {
            self.state.set(wave, n as u32, group, self.kernel, self.options.poison);
        }
        self.counts.workgroups += 1;
        let mut turns = Turns::new(self.options.schedule, self.waves.len(), group);
        let mut left = self.options.step_limit;
        // Waves that were found blocked since any last went on.
        let mut blocked = 0u64;
        while let Some((wave, most)) = turns.next() {
            let before = left;
            match self.turn(wave, most, &mut left).map_err(|fault| self.trap(fault, group, wave))? {
                Turn::Pause => blocked = 0,
                Turn::End => {
                    self.barrier.ended[wave] = true;
                    turns.end(wave);
                    blocked = 0;
                }
                Turn::Blocked => blocked = if before - left > 1 { 0 } else { blocked } | 1 << wave,
            }
            if !turns.alive.is_empty() && turns.alive.iter().all(|w| blocked >> w & 1 == 1) {
                let found = format!("{} of {} waves wait for ever", turns.alive.len(), self.waves.len());
                return Err(self.trap(Fault::Deadlock(found), group, wave));
            }
        }
        Ok(())
    }

    /// Runs one wave for at most `most` instructions.
    fn turn(&mut self, wave: usize, most: u64, left: &mut u64) -> Result<Turn, Fault> {
        let (kernel, w) = (self.kernel, &mut self.waves[wave]);
        let mut env = Env {
            code: &kernel.code,
            space: self.space,
            lds: &mut self.lds,
            barrier: &mut self.barrier,
            counts: &mut self.counts,
            code_address: self.state.code_address,
            scratch_bytes: kernel.scratch_bytes,
            perturb: self.options.perturb,
        };
        for _ in 0..most {
            *left = left.checked_sub(1).ok_or(Fault::StepLimit(self.options.step_limit))?;
            let Some(step) = kernel.code.steps.get(w.pc) else {
                return Err(Fault::BranchTarget(-1));
            };
            env.counts.instructions[step.op.class as usize] += 1;
            match super::lanes::execute(w, &mut env, step)? {
                Flow::Next => w.pc += 1,
                Flow::Jump(to) => w.pc = to,
                Flow::Blocked => {
                    env.counts.instructions[step.op.class as usize] -= 1;
                    return Ok(Turn::Blocked);
                }
                Flow::End => return Ok(Turn::End),
            }
        }
        Ok(Turn::Pause)
    }

    fn trap(&self, fault: Fault, group: [u32; 3], wave: usize) -> Trap {
        let step = self.waves.get(wave).and_then(|w| self.kernel.code.steps.get(w.pc));
        let (text, pc) = step.map_or((String::new(), 0), |s| (s.text.clone(), s.pc));
        Trap { fault, text, pc, group, wave: wave as u32 }
    }
}

/// Which wave runs next, and for how long.
struct Turns {
    schedule: Schedule,
    alive: Vec<usize>,
    at: usize,
    random: u64,
}

impl Turns {
    fn new(schedule: Schedule, waves: usize, group: [u32; 3]) -> Self {
        let mut alive: Vec<usize> = (0..waves).collect();
        let mut random = 0;
        match schedule {
            Schedule::Forward => {}
            Schedule::Reverse => alive.reverse(),
            Schedule::Random(seed) => {
                let place = group.iter().fold(seed, |h, g| mix(h ^ u64::from(*g)));
                random = mix(place);
            }
        }
        Turns { schedule, alive, at: 0, random }
    }

    fn next(&mut self) -> Option<(usize, u64)> {
        if self.alive.is_empty() {
            return None;
        }
        if let Schedule::Random(_) = self.schedule {
            self.random = mix(self.random);
            self.at = self.random as usize % self.alive.len();
            return Some((self.alive[self.at], 1 + (self.random >> 32) % 61));
        }
        self.at %= self.alive.len();
        let wave = self.alive[self.at];
        self.at += 1;
        Some((wave, u64::MAX))
    }

    fn end(&mut self, wave: usize) {
        self.alive.retain(|w| *w != wave);
        if !matches!(self.schedule, Schedule::Random(_)) {
            self.at = self.at.saturating_sub(1);
        }
    }
}

/// A hash step (splitmix64).
#[must_use]
pub fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Order of `total` workgroups: the place-th to run.
#[must_use]
pub fn group_order(schedule: Schedule, total: u64, place: u64) -> u64 {
    match schedule {
        Schedule::Forward => place,
        Schedule::Reverse => total - 1 - place,
        // An affine map with an odd factor that shares no divisor with the total is a permutation.
        Schedule::Random(seed) => {
            let mut factor = (mix(seed) % total.max(1)) | 1;
            while gcd(factor, total) != 1 {
                factor += 2;
            }
            ((u128::from(place) * u128::from(factor) + u128::from(mix(seed ^ 1) % total.max(1))) % u128::from(total))
                as u64
        }
    }
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Grid coordinates of workgroup `index`, x fastest.
#[must_use]
pub fn coordinates(index: u64, grid: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(grid[0]), u64::from(grid[1]));
    [(index % x) as u32, (index / x % y) as u32, (index / (x * y)) as u32]
}

/// Number of a wave in its workgroup: bits 25 to 29 of a trap register. The others hold `poison`.
pub fn set_wave_id(wave: &mut Wave, number: u32, poison: u32) {
    const PLACE: u32 = 0x1f << 25;
    wave.sgpr[usize::from(sreg::TTMP0) + 8] = poison & !PLACE | number << 25 & PLACE;
}

/// Registers of the launch that no user SGPR holds: workgroup ids.
pub fn set_group_ids(wave: &mut Wave, group: [u32; 3]) {
    wave.sgpr[usize::from(sreg::TTMP0) + 9] = group[0];
    wave.sgpr[usize::from(sreg::TTMP0) + 7] = group[1] & 0xffff | group[2] << 16;
}
