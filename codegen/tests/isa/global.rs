//! Global and flat loads and stores: widths, extension, halves, address forms, inactive lanes, counts.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use unglue_codegen::counts::{Class, Traffic};
use unglue_codegen::emu::lds::Lds;
use unglue_codegen::emu::snippet::Surroundings;
use unglue_codegen::emu::wave::{PRIVATE_APERTURE, SHARED_APERTURE, Wave};

use super::stage::{
    Accesses, LOADS, Random, Report, STORES, after_load, after_store, contents, exec, random_wave, region, registers,
    words,
};

/// Opcodes that are defined here.
#[rustfmt::skip]
pub const DEFINED: &[&str] = &[
    "global_load_u8", "global_load_i8", "global_load_u16", "global_load_i16", "global_load_b32", "global_load_b64",
    "global_load_b96", "global_load_b128", "global_load_d16_u8", "global_load_d16_i8", "global_load_d16_b16",
    "global_load_d16_hi_u8", "global_load_d16_hi_i8", "global_load_d16_hi_b16", "global_store_b8", "global_store_b16",
    "global_store_b32", "global_store_b64", "global_store_b96", "global_store_b128", "global_store_d16_hi_b8",
    "global_store_d16_hi_b16", "flat_load_u8", "flat_load_i8", "flat_load_u16", "flat_load_i16", "flat_load_b32",
    "flat_load_b64", "flat_load_b96", "flat_load_b128", "flat_load_d16_u8", "flat_load_d16_i8", "flat_load_d16_b16",
    "flat_load_d16_hi_u8", "flat_load_d16_hi_i8", "flat_load_d16_hi_b16", "flat_store_b8", "flat_store_b16",
    "flat_store_b32", "flat_store_b64", "flat_store_b96", "flat_store_b128", "flat_store_d16_hi_b8",
    "flat_store_d16_hi_b16",
];

const BYTES: u32 = 2048;

/// How lane addresses are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// 64-bit address in v[2:3], immediate offset.
    Vector(i64),
    /// Base in s[4:5], unsigned 32-bit offset in v2, immediate offset.
    Scalar(i64),
    /// 64-bit address in v[2:3], flat instruction.
    Flat(i64),
}

pub const FORMS: [Form; 9] = [
    Form::Vector(0),
    Form::Vector(8_388_604),
    Form::Vector(-8_388_608),
    Form::Vector(-4),
    Form::Scalar(0),
    Form::Scalar(4096),
    Form::Scalar(-16),
    Form::Flat(0),
    Form::Flat(-64),
];

impl Form {
    pub const fn prefix(self) -> &'static str {
        if let Form::Flat(_) = self { "flat" } else { "global" }
    }

    const fn immediate(self) -> i64 {
        let (Form::Vector(n) | Form::Scalar(n) | Form::Flat(n)) = self;
        n
    }

    /// Address operands, and what follows the data operand.
    pub fn operands(self) -> (&'static str, String) {
        let offset = if self.immediate() == 0 { String::new() } else { format!(" offset:{}", self.immediate()) };
        match self {
            Form::Vector(_) => ("v[2:3]", format!(", off{offset}")),
            Form::Scalar(_) => ("v2", format!(", s[4:5]{offset}")),
            Form::Flat(_) => ("v[2:3]", offset),
        }
    }

    /// Sets the address registers; `base` is what `at` counts from. Inactive lanes point nowhere.
    pub fn point(self, w: &mut Wave, base: u64, at: &[u32; 32], r: &mut Random) {
        let start = base.wrapping_sub(self.immediate().cast_unsigned());
        // So far below that most offsets have bit 31 set.
        let below = if let Form::Scalar(_) = self { 0xf000_0000u64 } else { 0 };
        w.set_s64(4, start.wrapping_sub(below));
        for (l, at) in at.iter().enumerate() {
            let mut value = start + u64::from(*at);
            if let Form::Scalar(_) = self {
                value = (below + u64::from(*at)) | u64::from(r.u32()) << 32;
            }
            if w.exec() >> l & 1 == 0 {
                value = u64::from(r.u32());
            }
            (w.vgpr[2][l], w.vgpr[3][l]) = (value as u32, (value >> 32) as u32);
        }
    }
}

/// Lanes of a test: all, none, one, some.
pub fn masks(r: &mut Random) -> [u32; 5] {
    [u32::MAX, 0, 1 << r.below(32), r.u32(), 0x0000_fff0]
}

/// A random aligned place for each lane, first and last place included.
pub fn places(r: &mut Random, bytes: u32, within: u32) -> [u32; 32] {
    let align = bytes.min(4);
    let mut at = std::array::from_fn(|_| r.below((within - bytes) / align + 1) * align);
    (at[0], at[7]) = (0, within - bytes);
    at
}

/// A place of its own for each lane.
pub fn own_places(r: &mut Random, bytes: u32, within: u32) -> [u32; 32] {
    let slot = within / 32;
    std::array::from_fn(|l| {
        let align = bytes.min(4);
        slot * ((l as u32 * 5 + 3) % 32) + r.below((slot - bytes) / align + 1) * align
    })
}

#[test]
fn loads() {
    let (mut r, mut report) = (Random(20), Report::default());
    let data = r.bytes(BYTES as usize);
    let memory = words(&data);
    let mut around = Surroundings::default();
    let base = around.space.add(region("data", &memory, BYTES.into()));
    for access in LOADS {
        let (name, bytes, ..) = access;
        for form in FORMS {
            let (address, rest) = form.operands();
            let text = format!("{}_load_{name} {}, {address}{rest}", form.prefix(), registers(8, bytes));
            for mask in masks(&mut r) {
                let (mut w, at) = (random_wave(&mut r), places(&mut r, bytes, BYTES));
                w.set_exec(mask);
                form.point(&mut w, base, &at, &mut r);
                let want = after_load(&w, access, |l| &data[at[l] as usize..]);
                accesses(LOAD, bytes, mask).load(&text, (&mut w, &mut around), &want, &mut report);
            }
        }
    }
}

const LOAD: (Class, Traffic) = (Class::GlobalLoad, Traffic::GlobalLoad);
const STORE: (Class, Traffic) = (Class::GlobalStore, Traffic::GlobalStore);

fn accesses((class, traffic): (Class, Traffic), bytes: u32, mask: u32) -> Accesses {
    Accesses { class, traffic, bytes, lanes: mask.count_ones() }
}

#[test]
fn stores() {
    let (mut r, mut report) = (Random(21), Report::default());
    for access in STORES {
        let (name, bytes, ..) = access;
        for form in FORMS {
            let (address, rest) = form.operands();
            let text = format!("{}_store_{name} {address}, {}{rest}", form.prefix(), registers(8, bytes));
            for mask in masks(&mut r) {
                let mut data = r.bytes(BYTES as usize);
                let memory = words(&data);
                let mut around = Surroundings::default();
                let base = around.space.add(region("data", &memory, BYTES.into()));
                let (mut w, at) = (random_wave(&mut r), own_places(&mut r, bytes, BYTES));
                w.set_exec(mask);
                form.point(&mut w, base, &at, &mut r);
                after_store(&w, access, |l| Some(at[l] as usize), &mut data);
                let same = |_: &mut Surroundings<'_>| contents(&memory, BYTES as usize) == data;
                accesses(STORE, bytes, mask).store(&text, (&mut w, &mut around), same, &mut report);
            }
        }
    }
}

/// Several lanes store to one place: the last lane's value stays.
#[test]
fn the_last_lane_wins() {
    let memory = words(&[0; 64]);
    let mut around = Surroundings::default();
    let base = around.space.add(region("data", &memory, 64));
    let mut w = Wave::new(0);
    w.set_s64(4, base);
    w.vgpr[8] = std::array::from_fn(|l| l as u32);
    w.set_exec(0x0ff0_0000);
    exec("global_store_b32 v2, v8, s[4:5]", &mut w, &mut around).unwrap();
    assert_eq!(contents(&memory, 4), [27, 0, 0, 0]);
}

/// Address and destination share registers.
#[test]
fn destination_over_address() {
    let data: Vec<u8> = (0..=255).collect();
    let memory = words(&data);
    let mut around = Surroundings::default();
    let base = around.space.add(region("data", &memory, 256));
    let mut w = Wave::new(0);
    w.vgpr[2] = std::array::from_fn(|l| (base + 4 * l as u64) as u32);
    w.vgpr[3] = [(base >> 32) as u32; 32];
    exec("global_load_b128 v[0:3], v[2:3], off", &mut w, &mut around).unwrap();
    for l in 0..32 {
        for k in 0..4 {
            let first = 4 * l + 4 * k;
            assert_eq!(w.vgpr[k][l], u32::from_le_bytes(std::array::from_fn(|b| (first + b) as u8)));
        }
    }
}

/// Flat addresses in the LDS and scratch apertures reach these.
#[test]
fn apertures() {
    let mut around = Surroundings { lds: Lds::new(1024, 1), scratch_bytes: 64, ..Surroundings::default() };
    let mut w = Wave::new(0);
    w.scratch = (0..32 * 64).map(|n| (n / 64 + n % 64) as u8).collect();
    around.lds.store_words(0, 16, 4, &[0x0403_0201, 0x0807_0605]).unwrap();
    let point = |w: &mut Wave, aperture: u64, at: u64| {
        w.vgpr[2] = [(aperture + at) as u32; 32];
        w.vgpr[3] = [(aperture >> 32) as u32; 32];
    };
    point(&mut w, SHARED_APERTURE, 20);
    exec("flat_load_b64 v[8:9], v[2:3] offset:-4", &mut w, &mut around).unwrap();
    assert_eq!((w.vgpr[8][9], w.vgpr[9][31]), (0x0403_0201, 0x0807_0605));
    point(&mut w, PRIVATE_APERTURE, 4);
    exec("flat_load_b32 v8, v[2:3] offset:4", &mut w, &mut around).unwrap();
    assert_eq!((w.vgpr[8][0], w.vgpr[8][2]), (0x0b0a_0908, 0x0d0c_0b0a));
    w.vgpr[8] = std::array::from_fn(|l| l as u32);
    exec("flat_store_b8 v[2:3], v8", &mut w, &mut around).unwrap();
    assert_eq!((w.scratch[64 * 7 + 4], w.scratch[64 * 7 + 5]), (7, 12));
    point(&mut w, SHARED_APERTURE, 1020);
    exec("flat_store_b32 v[2:3], v8", &mut w, &mut around).unwrap();
    let mut got = [0];
    around.lds.load_words(0, 1020, 4, &mut got).unwrap();
    assert_eq!(got, [31]);
}
