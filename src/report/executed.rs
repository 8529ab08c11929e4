//! What the emulator counted, as a table.

use unglue_codegen::counts::CountReport;
use unglue_codegen::counts::{Class, Traffic};
use unglue_runtime::manifest::Manifest;

use super::tables::{Page, bytes};
use crate::emulated::Emulated;

/// Bits of the widest vector access.
const WIDEST: u32 = 128;

pub fn executed(page: &mut Page, m: &Manifest, emulated: Option<&Emulated>) {
    let Some(emulated) = emulated else { return };
    page.title("Executed by one launch of each kernel [emulated]");
    page.note(
        "Instructions of all waves, on the drawn inputs of `unglue verify --device gfx12-emu` with the grid of the \
         smallest launch list that has the kernel. loaded, stored: bytes that active lanes asked of global memory, with \
         repetitions; b128: share of the loaded bytes that came 16 bytes a lane; scalar: bytes of scalar loads; LDS: bytes \
         read and written.",
    );
    let named = m.kernels.iter().filter_map(|k| emulated.kernels.get_key_value(&k.name));
    let rows = named.map(|(name, e)| row(name, e.rows_max, &e.counts)).collect();
    let heads = [
        "kernel", ">rows", ">wgs", ">all", ">VALU", ">trans", ">SALU", ">LDS ops", ">wait", ">loaded", ">b128",
        ">stored", ">scalar", ">LDS",
    ];
    page.table(&heads, rows);
    let missing = m.kernels.iter().filter(|k| !emulated.kernels.contains_key(&k.name)).count();
    if missing > 0 {
        page.note(&format!("{missing} kernel(s) were not executed."));
    }
}

fn row(name: &str, rows_max: u64, c: &CountReport) -> Vec<String> {
    let class = |class: Class| c.instructions.get(&class).copied().unwrap_or(0);
    let traffic = |t: Traffic| c.bytes.get(&t).map_or(0, |w| w.values().sum::<u64>());
    let loaded = traffic(Traffic::GlobalLoad);
    let wide = c.bytes.get(&Traffic::GlobalLoad).and_then(|w| w.get(&WIDEST)).copied().unwrap_or(0);
    vec![
        name.to_owned(),
        rows_max.to_string(),
        c.workgroups.to_string(),
        count(c.instructions.values().sum()),
        count(class(Class::Valu) + class(Class::CrossLane)),
        count(class(Class::Transcendental)),
        count(class(Class::Salu) + class(Class::Branch) + class(Class::ScalarLoad)),
        count(class(Class::Lds)),
        count(class(Class::Wait) + class(Class::Barrier)),
        bytes(loaded),
        wide.saturating_mul(100).checked_div(loaded).map_or_else(|| "-".into(), |p| format!("{p}%")),
        bytes(traffic(Traffic::GlobalStore) + traffic(Traffic::GlobalAtomic)),
        bytes(traffic(Traffic::ScalarLoad)),
        bytes(traffic(Traffic::LdsLoad) + traffic(Traffic::LdsStore) + traffic(Traffic::LdsAtomic)),
    ]
}

/// Three digits or so, in powers of 1000.
fn count(n: u64) -> String {
    match n {
        0..=9_999 => n.to_string(),
        10_000..=9_999_999 => format!("{:.1}k", n as f64 / 1e3),
        _ => format!("{:.1}M", n as f64 / 1e6),
    }
}
