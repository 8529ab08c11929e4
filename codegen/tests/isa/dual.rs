//! VOPD: two opcodes in one instruction. Both read before either writes; they share one literal.

use unglue_codegen::emu::wave::Wave;

use crate::definitions;
use crate::harness::{Def, Dst, POISON, Report, Rule, accepted, decode, execute_one};
use crate::values::Kind::{F32, I32, Lit, Mask, OldF32};
use crate::values::sets;

const FIRST: &[&str] = &[
    "v_fmac_f32",
    "v_fmaak_f32",
    "v_fmamk_f32",
    "v_mul_f32",
    "v_add_f32",
    "v_sub_f32",
    "v_subrev_f32",
    "v_mul_dx9_zero_f32",
    "v_mov_b32",
    "v_cndmask_b32",
    "v_max_num_f32",
    "v_min_num_f32",
];
/// Only as second half.
const SECOND: &[&str] = &["v_add_nc_u32", "v_lshlrev_b32", "v_and_b32"];
const LITERAL: u32 = 0x3fc1_2345;
/// Scalar source.
const SCALAR: usize = 20;

/// Where a half's first source comes from.
#[derive(Clone, Copy, PartialEq)]
enum From {
    Register,
    Literal,
    Scalar,
    Inline,
}

/// One half: its definition, destination, and registers of its two sources.
struct Half {
    def: &'static Def,
    dst: usize,
    srcs: [usize; 2],
    from: From,
}

impl Half {
    fn text(&self) -> String {
        let name = self.def.name.replacen("v_", "v_dual_", 1);
        let mut operands = vec![format!("v{}", self.dst)];
        let mut registers = self.srcs.iter();
        for (k, kind) in self.def.srcs.iter().enumerate() {
            match kind {
                OldF32 | Mask => {}
                Lit => operands.push(format!("{LITERAL:#x}")),
                _ => {
                    let register = registers.next().map_or(String::new(), |n| format!("v{n}"));
                    operands.push(match self.from {
                        From::Literal if k == 0 => format!("{LITERAL:#x}"),
                        From::Scalar if k == 0 => format!("s{SCALAR}"),
                        From::Inline if k == 0 => "-4.0".into(),
                        _ => register,
                    });
                }
            }
        }
        format!("{name} {}", operands.join(", "))
    }

    fn inputs(&self, before: &Wave, l: usize) -> Vec<u64> {
        let mut registers = self.srcs.iter();
        let mut out = Vec::new();
        for (k, kind) in self.def.srcs.iter().enumerate() {
            let register = match kind {
                OldF32 | Mask | Lit => 0,
                _ => registers.next().map_or(0, |n| before.vgpr[*n][l]),
            };
            out.push(u64::from(match (kind, self.from) {
                (OldF32, _) => before.vgpr[self.dst][l],
                (Mask, _) => before.vcc() >> l & 1,
                (Lit, _) => LITERAL,
                (_, From::Literal) if k == 0 => LITERAL,
                (_, From::Scalar) if k == 0 => before.s(SCALAR as u8),
                (_, From::Inline) if k == 0 => (-4.0f32).to_bits(),
                _ => register,
            }));
        }
        out
    }

    fn wrong(&self, before: &Wave, after: &Wave, l: usize) -> Option<String> {
        let x = self.inputs(before, l);
        let Rule::Lane(f) = self.def.rule else { return Some("no such half".into()) };
        let (want, got) = (f(&x), u64::from(after.vgpr[self.dst][l]));
        (!accepted(want, (got, 0), Dst::B32))
            .then(|| format!("{} of {x:x?} gives {got:#x}, want {want:x?}", self.def.name))
    }
}

fn find(name: &str) -> &'static Def {
    definitions().into_iter().find(|def| def.name == name).unwrap()
}

/// Every pair, with destinations apart and with each destination a source of the other half.
fn pairs() -> Vec<(Half, Half)> {
    let half = |name: &str, dst, srcs, from| Half { def: find(name), dst, srcs, from };
    let mut out = Vec::new();
    for first in FIRST {
        for second in FIRST.iter().chain(SECOND) {
            for (a, b) in [(60, 61), (8, 9)] {
                let register = From::Register;
                out.push((half(first, a, [9, 14], register), half(second, b, [8, 13], register)));
            }
        }
    }
    for from in [From::Literal, From::Scalar, From::Inline] {
        for (first, second) in
            [("v_mul_f32", "v_add_f32"), ("v_mov_b32", "v_lshlrev_b32"), ("v_cndmask_b32", "v_sub_f32")]
        {
            out.push((half(first, 60, [9, 14], from), half(second, 61, [8, 13], from)));
        }
    }
    out.push((half("v_fmamk_f32", 60, [9, 14], From::Register), half("v_mul_f32", 61, [8, 13], From::Literal)));
    out
}

#[test]
fn pairs_read_before_they_write() {
    let (mut report, pairs) = (Report::default(), pairs());
    let lines: Vec<String> = pairs.iter().map(|(a, b)| format!("{} :: {}", a.text(), b.text())).collect();
    let sets = sets(&[F32, F32, I32, F32], "pairs");
    for (((a, b), text), step) in pairs.iter().zip(&lines).zip(decode(&lines)) {
        let step = match step {
            Ok(step) => step,
            Err(fault) => {
                report.add(&format!("{text}: {fault}"));
                continue;
            }
        };
        for (n, set) in sets.iter().enumerate().step_by(9) {
            let fill = || {
                let mut w = Wave::new(POISON);
                for (l, row) in set.iter().enumerate() {
                    for (register, value) in [8, 13, 9, 14].into_iter().zip(row) {
                        w.vgpr[register][l] = *value as u32;
                    }
                    w.vgpr[60][l] = row[1] as u32;
                    w.vgpr[61][l] = row[3] as u32;
                }
                w.sgpr[SCALAR] = set[3][0] as u32;
                w.set_vcc(set[0][2] as u32 ^ 0x5a5a_1234);
                w.set_exec(if n % 2 == 0 { u32::MAX } else { 0x0ff0_a5a5 });
                w
            };
            let (before, mut w) = (fill(), fill());
            if let Err(fault) = execute_one(&mut w, &step) {
                report.add(&format!("{text}: {fault}"));
                break;
            }
            let active = |l: &usize| before.exec() >> l & 1 == 1;
            let wrong = (0..32).filter(active).find_map(|l| {
                a.wrong(&before, &w, l).or_else(|| b.wrong(&before, &w, l)).map(|m| format!("lane {l}: {m}"))
            });
            let changed = (0..256).find(|r| {
                (0..32).any(|l| {
                    let written = active(&l) && (*r == a.dst || *r == b.dst);
                    !written && w.vgpr[*r][l] != before.vgpr[*r][l]
                })
            });
            let changed = changed.map(|r| format!("v{r} changed in a lane that is not written"));
            if let Some(message) = wrong.or(changed) {
                report.add(&format!("{text}: {message}"));
                break;
            }
        }
    }
    report.end();
}
