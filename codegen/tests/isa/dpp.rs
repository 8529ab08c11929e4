//! Lane permutations of the first source: for each lane, which lane it reads and whether it is written.

use rustc_apfloat::Float;
use rustc_apfloat::ieee::Single;

use crate::rig::{EXECS, Random, Report, clamped, copy, gfx1201, wave};

pub const DEFINED: &[&str] = &["v_mov_b32", "v_add_f32", "v_add_nc_u32", "v_fmac_f32"];

/// Which lane a lane reads.
#[derive(Clone, Copy)]
enum Control {
    Quad([usize; 4]),
    Left(usize),
    Right(usize),
    Rotate(usize),
    Mirror,
    HalfMirror,
    Share(usize),
    Xor(usize),
    Eight([usize; 8]),
}

impl Control {
    fn all(r: &mut Random) -> Vec<Control> {
        let mut out =
            vec![Control::Mirror, Control::HalfMirror, Control::Quad([0, 1, 2, 3]), Control::Quad([3, 2, 1, 0])];
        for _ in 0..6 {
            out.push(Control::Quad(std::array::from_fn(|_| r.below(4) as usize)));
            out.push(Control::Eight(std::array::from_fn(|_| r.below(8) as usize)));
        }
        out.extend((1..16).flat_map(|n| [Control::Left(n), Control::Right(n), Control::Rotate(n)]));
        out.extend((0..16).flat_map(|n| [Control::Share(n), Control::Xor(n)]));
        out
    }

    fn text(self) -> String {
        match self {
            Control::Quad(s) => format!("quad_perm:{s:?}").replace(' ', ""),
            Control::Left(n) => format!("row_shl:{n}"),
            Control::Right(n) => format!("row_shr:{n}"),
            Control::Rotate(n) => format!("row_ror:{n}"),
            Control::Mirror => "row_mirror".into(),
            Control::HalfMirror => "row_half_mirror".into(),
            Control::Share(n) => format!("row_share:{n}"),
            Control::Xor(n) => format!("row_xmask:{n}"),
            Control::Eight(s) => format!("dpp8:{s:?}").replace(' ', ""),
        }
    }

    /// The lane that lane `l` reads, if the row has it.
    fn source(self, l: usize) -> Option<usize> {
        let (row, column) = (l / 16 * 16, (l % 16) as i32);
        let at = match self {
            Control::Quad(s) => column / 4 * 4 + s[l % 4] as i32,
            Control::Left(n) => column + n as i32,
            Control::Right(n) => column - n as i32,
            Control::Rotate(n) => (column - n as i32).rem_euclid(16),
            Control::Mirror => 15 - column,
            Control::HalfMirror => column / 8 * 8 + 7 - column % 8,
            Control::Share(n) => n as i32,
            Control::Xor(n) => column ^ n as i32,
            Control::Eight(s) => column / 8 * 8 + s[l % 8] as i32,
        };
        (0..16).contains(&at).then(|| row + at as usize)
    }
}

#[derive(Clone, Copy)]
struct Case {
    control: Control,
    row_mask: u32,
    bank_mask: u32,
    bound_ctrl: bool,
    fetch_inactive: bool,
}

impl Case {
    fn text(&self) -> String {
        let mut out = self.control.text();
        if !matches!(self.control, Control::Eight(_)) {
            out += &format!(" row_mask:{:#x} bank_mask:{:#x}", self.row_mask, self.bank_mask);
            out += if self.bound_ctrl { " bound_ctrl:1" } else { "" };
        }
        out + if self.fetch_inactive { " fi:1" } else { "" }
    }

    /// The first source as lane `l` sees it; `None` keeps the destination.
    fn operand(&self, lanes: &[u32; 32], exec: u32, l: usize) -> Option<u32> {
        let eight = matches!(self.control, Control::Eight(_));
        let masked = !eight && (self.row_mask >> (l / 16) & 1 == 0 || self.bank_mask >> (l % 16 / 4) & 1 == 0);
        if exec >> l & 1 == 0 || masked {
            return None;
        }
        let valid = self.control.source(l).filter(|from| exec >> from & 1 == 1 || self.fetch_inactive);
        match valid {
            Some(from) => Some(lanes[from]),
            // Groups of eight have no bound_ctrl: what cannot be read is 0.
            None => (self.bound_ctrl || eight).then_some(0),
        }
    }
}

fn cases(r: &mut Random, masks: &[(u32, u32)]) -> Vec<Case> {
    let mut out = Vec::new();
    for control in Control::all(r) {
        let eight = matches!(control, Control::Eight(_));
        for (row_mask, bank_mask) in masks.iter().take(if eight { 1 } else { usize::MAX }) {
            for n in 0..if eight { 2 } else { 4 } {
                let (fetch_inactive, bound_ctrl) = (n & 1 == 1, n & 2 == 2);
                out.push(Case { control, row_mask: *row_mask, bank_mask: *bank_mask, bound_ctrl, fetch_inactive });
            }
        }
    }
    out
}

const ALL_MASKS: [(u32, u32); 9] = [(15, 15), (10, 15), (5, 15), (15, 5), (15, 8), (14, 6), (1, 9), (15, 0), (12, 15)];
const FEW_MASKS: [(u32, u32); 2] = [(15, 15), (6, 11)];

/// Runs `head` with each case; `f` is the op on (source 0, source 1, old destination).
fn try_all(heads: &[&str], masks: &[(u32, u32)], seed: u64, f: impl Fn(u32, u32, u32) -> u32) {
    let (mut report, mut r) = (Report::default(), Random(seed));
    for head in heads {
        let mut cases = cases(&mut r, masks);
        // The short form has no room for signs beside eight selectors.
        if head.contains("|") && !head.contains("_e64") {
            cases.retain(|c| !matches!(c.control, Control::Eight(_)));
        }
        let lines: Vec<String> = cases.iter().map(|c| format!("{head} {}", c.text())).collect();
        for (i, line, step) in report.built(&lines, gfx1201()) {
            for exec in EXECS {
                let mut w = wave(&mut r, exec);
                for n in 0..3 {
                    // Numbers that name their lane, finite as floats.
                    w.vgpr[n] = std::array::from_fn(|l| (1.5 + l as f32 + 100.0 * n as f32).to_bits());
                }
                let mut expected = copy(&w);
                report.run(line, &step, &mut w);
                let source = expected.vgpr[1];
                for l in 0..32 {
                    if let Some(a) = cases[i].operand(&source, exec, l) {
                        expected.vgpr[2][l] = f(a, expected.vgpr[0][l], expected.vgpr[2][l]);
                    }
                }
                report.registers(line, &w, &expected, 0..4);
            }
        }
    }
    report.finish();
}

fn single(bits: u32) -> Single {
    Single::from_bits(bits.into())
}

#[test]
fn mov() {
    try_all(&["v_mov_b32_dpp v2, v1"], &ALL_MASKS, 1, |a, _, _| a);
    try_all(&["v_mov_b32_e64_dpp v2, v1"], &FEW_MASKS, 2, |a, _, _| a);
}

#[test]
fn mov_in_place() {
    let (mut report, mut r) = (Report::default(), Random(9));
    let cases = cases(&mut r, &FEW_MASKS);
    let lines: Vec<String> = cases.iter().map(|c| format!("v_mov_b32_dpp v1, v1 {}", c.text())).collect();
    for (i, line, step) in report.built(&lines, gfx1201()) {
        for exec in EXECS {
            let mut w = wave(&mut r, exec);
            let mut expected = copy(&w);
            report.run(line, &step, &mut w);
            let source = expected.vgpr[1];
            for l in 0..32 {
                expected.vgpr[1][l] = cases[i].operand(&source, exec, l).unwrap_or(source[l]);
            }
            report.registers(line, &w, &expected, 0..4);
        }
    }
    report.finish();
}

#[test]
fn add_nc_u32() {
    let heads = ["v_add_nc_u32_dpp v2, v1, v0", "v_add_nc_u32_e64_dpp v2, v1, v0"];
    try_all(&heads, &FEW_MASKS, 3, |a, b, _| a.wrapping_add(b));
}

#[test]
fn add_f32() {
    let add = |a: u32, b: u32| (single(a) + single(b)).value;
    let heads = ["v_add_f32_dpp v2, v1, v0", "v_add_f32_e64_dpp v2, v1, v0"];
    try_all(&heads, &FEW_MASKS, 4, |a, b, _| add(a, b).to_bits() as u32);
    let heads = ["v_add_f32_dpp v2, -v1, |v0|", "v_add_f32_e64_dpp v2, -v1, |v0|"];
    try_all(&heads, &FEW_MASKS[..1], 5, |a, b, _| add(a ^ 1 << 31, b & !(1 << 31)).to_bits() as u32);
    let heads = ["v_add_f32_e64_dpp v2, -|v1|, v0 clamp"];
    try_all(&heads, &FEW_MASKS[..1], 6, |a, b, _| clamped(add(a | 1 << 31, b)).to_bits() as u32);
}

#[test]
fn fmac_f32() {
    let heads = ["v_fmac_f32_dpp v2, v1, v0"];
    try_all(&heads, &FEW_MASKS, 7, |a, b, d| single(a).mul_add(single(b), single(d)).value.to_bits() as u32);
}
