//! The page about the emulator (`codegen/ISA.md`), generated from its table.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::ops;
use crate::counts::{CLASSES, Class};

const HEAD: &str = "\
# The gfx12 emulator: what it executes

Generated from the instruction table (`codegen/src/emu/ops`); `UPDATE=1 cargo test -p unglue-codegen --test isa_page`
rewrites it. An instruction that is not listed is refused by name before anything runs, as is a modifier that the entry
does not honour. Each opcode is tested in `codegen/tests/isa` against a definition written apart from it.

## What it finds

- accesses outside of a kernel's buffers (each argument lies alone in its address space, so an overrun by one byte is
  seen), writes to what may only be read, misaligned accesses, LDS and scratch overruns;
- races in LDS: a record per word of who touched it since the last barrier;
- missing barriers and dependence on order elsewhere: waves and workgroups run first to last, last to first, in a random
  order;
- reads of registers and LDS that nothing has written: their content differs between runs;
- waits at a barrier without a signal, two signals without a wait, endless loops, branches into an instruction;
- results that depend on the unspecified last bit of an approximation: these bits can be flipped.

## What it cannot find

- **A missing wait** (`s_wait_*`), a hazard that `s_delay_alu` or `s_wait_alu` would cover: results are immediate. The gate
  `waits` follows the counters on the finished code instead.
- **Caches and the order of memory**: there are none. The gates `finish` and `exchanged-scalar` look for the sequence of
  instructions instead.
- A barrier whose removal no schedule and no LDS record shows: one that orders only global memory, with values that come
  out the same in the three orders; one that separates different bytes of one word; one that covers accesses between a
  signal and its wait, which count with the interval before it.
- The last bit of exp, log, rcp, rsq, sqrt, sin, cos, and of the sums inside WMMA and dot instructions, is the hardware's
  own; here it is that of the correctly rounded result.
- Timing.

Not modelled, and refused: output multipliers, sparse matrix forms, waves of 64, other rounding modes than to nearest even, flushed denormals, named barriers,
images, buffers with strides, swizzles or a scalar offset, exports, ray tracing, traps.

## Opcodes
";

/// The page's text.
#[must_use]
pub fn page() -> String {
    let mut text = HEAD.to_owned();
    for class in CLASSES {
        let names: BTreeSet<&str> = ops::all().filter(|op| op.class == class).map(|op| op.name).collect();
        if names.is_empty() {
            continue;
        }
        let _ = write!(text, "\n### {} ({})\n\n", title(class), names.len());
        let mut line = String::new();
        for name in names {
            if line.len() + name.len() + 3 > 118 {
                text.push_str(line.trim_end());
                text.push('\n');
                line.clear();
            }
            let _ = write!(line, "`{name}` ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

const fn title(class: Class) -> &'static str {
    match class {
        Class::Valu => "Vector arithmetic",
        Class::Transcendental => "Approximations",
        Class::CrossLane => "Lane to lane",
        Class::Wmma => "Matrix",
        Class::Salu => "Scalar arithmetic",
        Class::Branch => "Control",
        Class::ScalarLoad => "Scalar loads",
        Class::GlobalLoad => "Global, flat and buffer loads",
        Class::GlobalStore => "Global, flat and buffer stores",
        Class::GlobalAtomic => "Global atomics",
        Class::Lds => "LDS",
        Class::Scratch => "Scratch",
        Class::Barrier => "Barriers",
        Class::Wait => "Waits, hints and cache control",
    }
}
