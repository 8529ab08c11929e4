//! Lane to lane and lane to scalar, by definitions on lane numbers.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use crate::rig::{EXECS, Random, Report, copy, gfx1201, wave};

pub const DEFINED: &[&str] = &[
    "v_readfirstlane_b32",
    "v_readlane_b32",
    "v_writelane_b32",
    "v_permlane16_b32",
    "v_permlanex16_b32",
    "v_permlane16_var_b32",
    "v_permlanex16_var_b32",
    "v_permlane64_b32",
    "v_swap_b32",
];

/// Index operands: text and what its value is in a wave.
const INDICES: [&str; 6] = ["s7", "0", "31", "37", "63", "m0"];

fn index(text: &str, sgpr: &[u32]) -> usize {
    let value = match text {
        "s7" => sgpr[7],
        "m0" => sgpr[125],
        number => number.parse().unwrap(),
    };
    (value % 32) as usize
}

#[test]
fn readfirstlane() {
    let (mut report, mut r) = (Report::default(), Random(1));
    let lines = ["v_readfirstlane_b32 s5, v1", "v_readfirstlane_b32 vcc_lo, v9", "v_readfirstlane_b32 s104, v63"];
    let places = [(5, 1), (106, 9), (104, 63)];
    for (i, line, step) in report.built(&lines, gfx1201()) {
        for exec in EXECS.into_iter().chain([1 << 31, 1 << 13, 0xffff_fff0]) {
            let mut w = wave(&mut r, exec);
            let before = copy(&w);
            report.run(line, &step, &mut w);
            let (to, from) = places[i];
            // With no lane active lane 0 is taken.
            let lane = (0..32).find(|l| exec >> l & 1 == 1).unwrap_or(0);
            let mut expected = before.sgpr;
            expected[to] = before.vgpr[from][lane];
            report.check(w.sgpr == expected, line, || format!("exec {exec:#x}: {:#x}", w.sgpr[to]));
            report.registers(line, &w, &before, 0..64);
        }
    }
    report.finish();
}

#[test]
fn readlane_and_writelane() {
    let (mut report, mut r) = (Report::default(), Random(2));
    let mut lines = Vec::new();
    for i in INDICES {
        lines.push(format!("v_readlane_b32 s5, v1, {i}"));
        lines.push(format!("v_writelane_b32 v1, s6, {i}"));
        lines.push(format!("v_writelane_b32 v1, 0x12345, {i}"));
        lines.push(format!("v_writelane_b32 v1, -7, {i}"));
    }
    for (i, line, step) in report.built(&lines, gfx1201()) {
        for exec in EXECS {
            for at in [0, 5, 31, 32, 45, 0xffff_fff3] {
                let mut w = wave(&mut r, exec);
                (w.sgpr[7], w.sgpr[125]) = (at, at ^ 3);
                let mut expected = copy(&w);
                report.run(line, &step, &mut w);
                // Both work on any lane, active or not; the index wraps.
                let lane = index(INDICES[i / 4], &expected.sgpr);
                match i % 4 {
                    0 => expected.sgpr[5] = expected.vgpr[1][lane],
                    1 => expected.vgpr[1][lane] = expected.sgpr[6],
                    2 => expected.vgpr[1][lane] = 0x12345,
                    _ => expected.vgpr[1][lane] = (-7i32).cast_unsigned(),
                }
                report.check(w.sgpr == expected.sgpr, line, || format!("exec {exec:#x}: {:#x}", w.sgpr[5]));
                report.registers(line, &w, &expected, 0..64);
            }
        }
    }
    report.finish();
}

/// Rows of the source that a form reads.
#[derive(Clone, Copy)]
struct Form {
    crossed: bool,
    fetch_inactive: bool,
    bound_ctrl: bool,
}

impl Form {
    fn all() -> impl Iterator<Item = Form> {
        (0..8).map(|n| Form { crossed: n & 1 == 1, fetch_inactive: n & 2 == 2, bound_ctrl: n & 4 == 4 })
    }

    fn name(self, var: &str) -> String {
        format!("v_permlane{}16{var}_b32", if self.crossed { "x" } else { "" })
    }

    fn op_sel(self) -> String {
        match (self.fetch_inactive, self.bound_ctrl) {
            (false, false) => String::new(),
            (fi, bc) => format!(" op_sel:[{},{}]", u8::from(fi), u8::from(bc)),
        }
    }

    /// What lane `l` gets of `source`, whose own row lane is `select`; `None` keeps the destination.
    fn value(self, source: &[u32; 32], exec: u32, l: usize, select: usize) -> Option<u32> {
        if exec >> l & 1 == 0 {
            return None;
        }
        let row = if self.crossed { 1 - l / 16 } else { l / 16 };
        let from = row * 16 + select;
        if exec >> from & 1 == 1 || self.fetch_inactive {
            Some(source[from])
        } else if self.bound_ctrl {
            Some(0)
        } else {
            None
        }
    }
}

#[test]
fn permlane16_by_scalars() {
    let (mut report, mut r) = (Report::default(), Random(3));
    let selectors = [("s2", "s3"), ("s2", "0xfedcba98"), ("0x76543210", "s3"), ("-1", "3"), ("s9", "s9")];
    let (mut lines, mut forms) = (Vec::new(), Vec::new());
    for form in Form::all() {
        for (low, high) in selectors {
            for from in [1, 2] {
                lines.push(format!("{} v2, v{from}, {low}, {high}{}", form.name(""), form.op_sel()));
                forms.push((form, low, high, from));
            }
        }
    }
    for (i, line, step) in report.built(&lines, gfx1201()) {
        for exec in EXECS {
            let mut w = wave(&mut r, exec);
            let mut expected = copy(&w);
            report.run(line, &step, &mut w);
            let (form, low, high, from) = forms[i];
            let bits = |text: &str| match text.strip_prefix('s') {
                Some(n) => expected.sgpr[n.parse::<usize>().unwrap()],
                None => match text.strip_prefix("0x") {
                    Some(hex) => u32::from_str_radix(hex, 16).unwrap(),
                    None => text.parse::<i32>().unwrap().cast_unsigned(),
                },
            };
            let selects = u64::from(bits(low)) | u64::from(bits(high)) << 32;
            let source = expected.vgpr[from];
            for l in 0..32 {
                let select = (selects >> (4 * (l % 16)) & 15) as usize;
                if let Some(value) = form.value(&source, exec, l, select) {
                    expected.vgpr[2][l] = value;
                }
            }
            report.registers(line, &w, &expected, 0..8);
            report.check(w.sgpr == expected.sgpr, line, || "scalar registers changed".into());
        }
    }
    report.finish();
}

#[test]
fn permlane16_by_lanes() {
    let (mut report, mut r) = (Report::default(), Random(4));
    let (mut lines, mut forms) = (Vec::new(), Vec::new());
    for form in Form::all() {
        for (to, from, select) in [(2, 1, 3), (1, 1, 3), (3, 1, 3)] {
            lines.push(format!("{} v{to}, v{from}, v{select}{}", form.name("_var"), form.op_sel()));
            forms.push((form, to, from, select));
        }
    }
    for (i, line, step) in report.built(&lines, gfx1201()) {
        for exec in EXECS {
            let mut w = wave(&mut r, exec);
            let mut expected = copy(&w);
            report.run(line, &step, &mut w);
            let (form, to, from, select) = forms[i];
            let (source, selects) = (expected.vgpr[from], expected.vgpr[select]);
            for (l, select) in selects.iter().enumerate() {
                if let Some(value) = form.value(&source, exec, l, (select & 15) as usize) {
                    expected.vgpr[to][l] = value;
                }
            }
            report.registers(line, &w, &expected, 0..8);
        }
    }
    report.finish();
}

/// A wave of 32 lanes has no other half: nothing happens.
#[test]
fn permlane64() {
    let (mut report, mut r) = (Report::default(), Random(5));
    for (_, line, step) in report.built(&["v_permlane64_b32 v2, v1"], gfx1201()) {
        let mut w = wave(&mut r, u32::MAX);
        let before = copy(&w);
        report.run(line, &step, &mut w);
        report.registers(line, &w, &before, 0..64);
    }
    report.finish();
}

#[test]
fn swap() {
    let (mut report, mut r) = (Report::default(), Random(6));
    for (_, line, step) in report.built(&["v_swap_b32 v2, v1"], gfx1201()) {
        for exec in EXECS {
            let mut w = wave(&mut r, exec);
            let mut expected = copy(&w);
            report.run(line, &step, &mut w);
            for l in (0..32).filter(|l| exec >> l & 1 == 1) {
                let (a, b) = (expected.vgpr[1][l], expected.vgpr[2][l]);
                (expected.vgpr[1][l], expected.vgpr[2][l]) = (b, a);
            }
            report.registers(line, &w, &expected, 0..64);
        }
    }
    report.finish();
}
