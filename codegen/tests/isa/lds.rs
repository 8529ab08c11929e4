//! LDS loads, stores and atomics, lane permutations that go through LDS, and what counts as a race.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use unglue_codegen::counts::{Class, Traffic};
use unglue_codegen::emu::fault::Fault;
use unglue_codegen::emu::lds::Lds;
use unglue_codegen::emu::snippet::Surroundings;
use unglue_codegen::emu::wave::Wave;

use super::atomics::{Atomic, FLOAT, INTEGER, value};
use super::global::{masks, own_places, places};
use super::stage::{
    Access, Accesses, Part, Random, Report, after_load, after_store, exec, only, random_wave, registers,
};

/// Opcodes that are defined here.
#[rustfmt::skip]
pub const DEFINED: &[&str] = &[
    "ds_load_u8", "ds_load_i8", "ds_load_u16", "ds_load_i16", "ds_load_b32", "ds_load_b64", "ds_load_b96",
    "ds_load_b128", "ds_load_u8_d16", "ds_load_i8_d16", "ds_load_u16_d16", "ds_load_u8_d16_hi", "ds_load_i8_d16_hi",
    "ds_load_u16_d16_hi", "ds_store_b8", "ds_store_b16", "ds_store_b32", "ds_store_b64", "ds_store_b96",
    "ds_store_b128", "ds_store_b8_d16_hi", "ds_store_b16_d16_hi", "ds_load_2addr_b32", "ds_load_2addr_b64",
    "ds_load_2addr_stride64_b32", "ds_load_2addr_stride64_b64", "ds_store_2addr_b32", "ds_store_2addr_b64",
    "ds_store_2addr_stride64_b32", "ds_store_2addr_stride64_b64",
    "ds_swizzle_b32", "ds_permute_b32", "ds_bpermute_b32", "ds_bpermute_fi_b32", "ds_add_u32",
    "ds_add_rtn_u32", "ds_sub_u32", "ds_sub_rtn_u32", "ds_rsub_u32", "ds_rsub_rtn_u32", "ds_inc_u32",
    "ds_inc_rtn_u32", "ds_dec_u32", "ds_dec_rtn_u32", "ds_min_i32", "ds_min_rtn_i32", "ds_max_i32", "ds_max_rtn_i32",
    "ds_min_u32", "ds_min_rtn_u32", "ds_max_u32", "ds_max_rtn_u32", "ds_and_b32", "ds_and_rtn_b32", "ds_or_b32",
    "ds_or_rtn_b32", "ds_xor_b32", "ds_xor_rtn_b32", "ds_mskor_b32", "ds_mskor_rtn_b32", "ds_storexchg_rtn_b32",
    "ds_storexchg_2addr_rtn_b32", "ds_storexchg_2addr_stride64_rtn_b32", "ds_cmpstore_b32", "ds_cmpstore_rtn_b32",
    "ds_min_num_f32", "ds_min_num_rtn_f32", "ds_max_num_f32", "ds_max_num_rtn_f32", "ds_add_f32", "ds_add_rtn_f32",
    "ds_pk_add_f16", "ds_pk_add_rtn_f16", "ds_pk_add_bf16", "ds_pk_add_rtn_bf16", "ds_cond_sub_u32",
    "ds_cond_sub_rtn_u32", "ds_sub_clamp_u32", "ds_sub_clamp_rtn_u32", "ds_add_u64", "ds_add_rtn_u64", "ds_sub_u64",
    "ds_sub_rtn_u64", "ds_rsub_u64", "ds_rsub_rtn_u64", "ds_inc_u64", "ds_inc_rtn_u64", "ds_dec_u64",
    "ds_dec_rtn_u64", "ds_min_i64", "ds_min_rtn_i64", "ds_max_i64", "ds_max_rtn_i64", "ds_min_u64", "ds_min_rtn_u64",
    "ds_max_u64", "ds_max_rtn_u64", "ds_and_b64", "ds_and_rtn_b64", "ds_or_b64", "ds_or_rtn_b64", "ds_xor_b64",
    "ds_xor_rtn_b64", "ds_mskor_b64", "ds_mskor_rtn_b64", "ds_storexchg_rtn_b64", "ds_storexchg_2addr_rtn_b64",
    "ds_storexchg_2addr_stride64_rtn_b64", "ds_cmpstore_b64", "ds_cmpstore_rtn_b64",
    "ds_min_num_f64", "ds_min_num_rtn_f64", "ds_max_num_f64", "ds_max_num_rtn_f64",
];

/// Names differ from those of global memory.
const LOADS: [Access; 14] = [
    ("u8", 1, false, Part::Whole),
    ("i8", 1, true, Part::Whole),
    ("u16", 2, false, Part::Whole),
    ("i16", 2, true, Part::Whole),
    ("b32", 4, false, Part::Whole),
    ("b64", 8, false, Part::Whole),
    ("b96", 12, false, Part::Whole),
    ("b128", 16, false, Part::Whole),
    ("u8_d16", 1, false, Part::Low),
    ("i8_d16", 1, true, Part::Low),
    ("u16_d16", 2, false, Part::Low),
    ("u8_d16_hi", 1, false, Part::High),
    ("i8_d16_hi", 1, true, Part::High),
    ("u16_d16_hi", 2, false, Part::High),
];

const STORES: [Access; 8] = [
    ("b8", 1, false, Part::Whole),
    ("b16", 2, false, Part::Whole),
    ("b32", 4, false, Part::Whole),
    ("b64", 8, false, Part::Whole),
    ("b96", 12, false, Part::Whole),
    ("b128", 16, false, Part::Whole),
    ("b8_d16_hi", 1, false, Part::High),
    ("b16_d16_hi", 2, false, Part::High),
];

const BYTES: u32 = 4096;
const OFFSETS: [u32; 3] = [0, 16, 2048];

fn lds_with(data: &[u8]) -> Surroundings<'static> {
    let mut around = Surroundings { lds: Lds::new(data.len() as u32, 1), ..Surroundings::default() };
    let words: Vec<u32> = data.chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
    around.lds.store_words(0, 0, 4, &words).unwrap();
    around
}

fn lds_bytes(around: &mut Surroundings<'_>, bytes: u32) -> Vec<u8> {
    let mut words = vec![0; bytes as usize / 4];
    around.lds.load_words(0, 0, 4, &mut words).unwrap();
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Aligned to the whole access, and not below the immediate offset.
fn aligned(at: [u32; 32], bytes: u32, offset: u32) -> [u32; 32] {
    let align = bytes.next_power_of_two();
    at.map(|a| (a.max(offset) / align * align).min((BYTES - bytes) / align * align))
}

fn point(w: &mut Wave, at: &[u32; 32], offset: u32, r: &mut Random) {
    let exec = w.exec();
    w.vgpr[2] = std::array::from_fn(|l| if exec >> l & 1 == 1 { at[l] - offset } else { r.u32() });
}

fn suffix(offset: u32) -> String {
    if offset == 0 { String::new() } else { format!(" offset:{offset}") }
}

#[test]
fn loads() {
    let (mut r, mut report) = (Random(50), Report::default());
    let data = r.bytes(BYTES as usize);
    let mut around = lds_with(&data);
    for access in LOADS {
        let (name, bytes, ..) = access;
        for offset in OFFSETS {
            let text = format!("ds_load_{name} {}, v2{}", registers(8, bytes), suffix(offset));
            for mask in masks(&mut r) {
                let at = aligned(places(&mut r, bytes, BYTES), bytes, offset);
                let mut w = random_wave(&mut r);
                w.set_exec(mask);
                point(&mut w, &at, offset, &mut r);
                let want = after_load(&w, access, |l| &data[at[l] as usize..]);
                accesses(Traffic::LdsLoad, bytes, mask).load(&text, (&mut w, &mut around), &want, &mut report);
            }
        }
    }
}

fn accesses(traffic: Traffic, bytes: u32, mask: u32) -> Accesses {
    Accesses { class: Class::Lds, traffic, bytes, lanes: mask.count_ones() }
}

#[test]
fn stores() {
    let (mut r, mut report) = (Random(51), Report::default());
    for access in STORES {
        let (name, bytes, ..) = access;
        for offset in OFFSETS {
            let text = format!("ds_store_{name} v2, {}{}", registers(8, bytes), suffix(offset));
            for mask in masks(&mut r) {
                let mut data = r.bytes(BYTES as usize);
                let mut around = lds_with(&data);
                let at = own_places(&mut r, bytes, BYTES - 2048).map(|a| a + offset);
                let at = aligned(at, bytes, offset);
                let mut w = random_wave(&mut r);
                w.set_exec(mask);
                point(&mut w, &at, offset, &mut r);
                after_store(&w, access, |l| Some(at[l] as usize), &mut data);
                let same = |around: &mut Surroundings<'_>| lds_bytes(around, BYTES) == data;
                accesses(Traffic::LdsStore, bytes, mask).store(&text, (&mut w, &mut around), same, &mut report);
            }
        }
    }
}

/// (name part, bytes of each, bytes of an offset unit).
const TWO: [(&str, u32, u32); 4] =
    [("2addr_b32", 4, 4), ("2addr_b64", 8, 8), ("2addr_stride64_b32", 4, 256), ("2addr_stride64_b64", 8, 512)];

fn two_setup(r: &mut Random, bytes: u32, mask: u32) -> (Wave, [u32; 32]) {
    let at: [u32; 32] = std::array::from_fn(|l| l as u32 * bytes + bytes * 32 * r.below(2));
    let mut w = random_wave(r);
    w.set_exec(mask);
    point(&mut w, &at, 0, r);
    (w, at)
}

/// Two words at offsets in units of the access, or of 64 of them.
#[test]
fn two_addresses() {
    let (mut r, mut report) = (Random(52), Report::default());
    for (name, bytes, unit) in TWO {
        for (first, second) in [(0, 1), (3, 2), (2, 5)] {
            for mask in masks(&mut r) {
                let mut data = r.bytes(8192);
                let mut around = lds_with(&data);
                let offsets =
                    format!("{}offset1:{second}", if first == 0 { String::new() } else { format!("offset0:{first} ") });
                let text = format!("ds_load_{name} {}, v2 {offsets}", registers(8, 2 * bytes));
                let (mut w, at) = two_setup(&mut r, bytes, mask);
                let mut want = w.vgpr.to_vec();
                let each = bytes as usize / 4;
                for l in (0..32).filter(|l| mask >> l & 1 == 1) {
                    for (k, n) in [first, second].into_iter().enumerate() {
                        let from = (at[l] + n * unit) as usize;
                        for i in 0..each {
                            let word = &data[from + 4 * i..][..4];
                            want[8 + each * k + i][l] = u32::from_le_bytes(word.try_into().unwrap());
                        }
                    }
                }
                let bytes_of = |c: &unglue_codegen::counts::Counts, t: Traffic| c.traffic(t);
                let lanes = u64::from(mask.count_ones() * 2 * bytes);
                let got = exec(&text, &mut w, &mut around).map(|c| bytes_of(&c, Traffic::LdsLoad));
                if got != Ok(lanes) || w.vgpr.to_vec() != want {
                    report.add(&text, || format!("{got:?}: v8 {:x?}, expected {:x?}", w.vgpr[8], want[8]));
                }
                let text = format!("ds_store_{name} v2, {}, {} {offsets}", registers(8, bytes), registers(20, bytes));
                let (mut w, at) = two_setup(&mut r, bytes, mask);
                // Lanes may meet: the first value of every lane is written before any second one, or lane by lane?
                // The test keeps to lanes that do not meet.
                let alone = mask & 0x0101_0101;
                w.set_exec(alone);
                for l in (0..32).filter(|l| alone >> l & 1 == 1) {
                    for (n, v) in [(first, 8), (second, 20)] {
                        let held: Vec<u8> = (v..v + each).flat_map(|k| w.vgpr[k][l].to_le_bytes()).collect();
                        data[(at[l] + n * unit) as usize..][..bytes as usize].copy_from_slice(&held);
                    }
                }
                let got = exec(&text, &mut w, &mut around).map(|c| bytes_of(&c, Traffic::LdsStore));
                let same = lds_bytes(&mut around, 8192) == data;
                if got != Ok(u64::from(alone.count_ones() * 2 * bytes)) || !same {
                    report.add(&text, || format!("{got:?}: memory as expected: {same}"));
                }
            }
        }
    }
}

fn reversed5(v: usize) -> usize {
    (0..5).map(|b| (v >> b & 1) << (4 - b)).sum()
}

/// Lane that lane `i` reads, by the 16 bits of the offset.
fn swizzle(offset: usize, i: usize) -> usize {
    let mask = offset & 31;
    if offset >= 0xe000 {
        reversed5(i) >> mask.count_ones() | i & mask
    } else if offset >= 0x8000 {
        i / 4 * 4 + (offset >> (2 * (i % 4)) & 3)
    } else {
        (i & mask | offset >> 5 & 31) ^ offset >> 10 & 31
    }
}

#[test]
fn swizzles() {
    let (mut r, mut report) = (Random(53), Report::default());
    // The named patterns too: swaps, reversals, broadcasts.
    let mut offsets = vec![0usize, 0x1f, 0x7fff, 0x041f, 0x401f, 0x7c1f, 0x0c1f, 0x20, 0x3e0, 0x1e, 0x8000, 0x80e4];
    offsets.extend([0x801b, 0xe000, 0xe01f, 0xe005]);
    for n in 0..60 {
        offsets.push(match n % 3 {
            0 => r.below(0x8000) as usize,
            1 => 0x8000 + r.below(256) as usize,
            _ => 0xe000 + r.below(32) as usize,
        });
    }
    let mut around = Surroundings::default();
    for offset in offsets {
        let text = format!("ds_swizzle_b32 v8, v9{}", suffix(offset as u32));
        for mask in masks(&mut r) {
            let mut w = random_wave(&mut r);
            w.set_exec(mask);
            let mut want = w.vgpr[8];
            for l in (0..32).filter(|l| mask >> l & 1 == 1) {
                let from = swizzle(offset, l);
                want[l] = if mask >> from & 1 == 1 { w.vgpr[9][from] } else { 0 };
            }
            let got = exec(&text, &mut w, &mut around).map(|_| ());
            if got.is_err() || w.vgpr[8] != want {
                report.add(&text, || format!("exec {mask:x} {got:?}: {:x?}, expected {want:x?}", w.vgpr[8]));
            }
        }
    }
}

/// LLVM prints a rotation without its mask, so it is refused.
#[test]
fn rotations_are_refused() {
    let (mut w, mut around) = (random_wave(&mut Random(55)), Surroundings::default());
    let got = exec("ds_swizzle_b32 v8, v9 offset:0xc3a5", &mut w, &mut around).map(|_| ());
    assert!(matches!(got, Err(Fault::Decode(_))), "{got:?}");
}

#[test]
fn permutations() {
    let (mut r, mut report) = (Random(54), Report::default());
    let mut around = Surroundings::default();
    for offset in [0u32, 4, 0xfffc] {
        for name in ["ds_permute_b32", "ds_bpermute_b32", "ds_bpermute_fi_b32"] {
            // Only the two plain forms have an offset.
            if name == "ds_bpermute_fi_b32" && offset != 0 {
                continue;
            }
            let text = format!("{name} v8, v2, v9{}", suffix(offset));
            for mask in masks(&mut r).into_iter().chain(masks(&mut r)) {
                let mut w = random_wave(&mut r);
                w.set_exec(mask);
                let lane = |l: usize| (w.vgpr[2][l].wrapping_add(offset) / 4 % 32) as usize;
                let active = |l: &usize| mask >> l & 1 == 1;
                let mut moved = [0; 32];
                for l in 0..32 {
                    match name {
                        "ds_permute_b32" if active(&l) => moved[lane(l)] = w.vgpr[9][l],
                        "ds_bpermute_b32" if active(&lane(l)) => moved[l] = w.vgpr[9][lane(l)],
                        "ds_bpermute_fi_b32" => moved[l] = w.vgpr[9][lane(l)],
                        _ => {}
                    }
                }
                let want: [u32; 32] = std::array::from_fn(|l| if active(&l) { moved[l] } else { w.vgpr[8][l] });
                let got = exec(&text, &mut w, &mut around).map(|_| ());
                if got.is_err() || w.vgpr[8] != want {
                    report.add(&text, || format!("exec {mask:x} {got:?}: {:x?}, expected {want:x?}", w.vgpr[8]));
                }
            }
        }
    }
}

/// The number, if one is a NaN; -0 is below +0.
fn number(old: i128, data: i128, least: bool) -> i128 {
    let (o, d) = (f64::from_bits(old as u64), f64::from_bits(data as u64));
    if o.is_nan() && d.is_nan() {
        return data | 1 << 51;
    }
    let first = if o == d { (data >> 63 == 1) == least } else { (d < o) == least };
    if o.is_nan() || !d.is_nan() && first { data } else { old }
}

/// Operands of 64-bit float atomics: signs, zeros, infinities, NaN.
fn value64(r: &mut Random, name: &str) -> u64 {
    if !name.ends_with("f64") {
        return value(r, name);
    }
    let edges = [0.0, 1.0, f64::INFINITY, f64::NAN, f64::MIN_POSITIVE, 1e300, f64::from_bits(1)];
    edges[r.below(7) as usize].to_bits() | r.u64() & 1 << 63
}

const ONLY_HERE: [Atomic; 6] = [
    ("min_num_f64", 8, false, |o, d, _| number(o, d, true)),
    ("max_num_f64", 8, false, |o, d, _| number(o, d, false)),
    ("rsub_u32", 4, false, |o, d, _| d - o),
    ("rsub_u64", 8, false, |o, d, _| d - o),
    ("mskor_b32", 4, true, |o, d, c| o & !d | c),
    ("mskor_b64", 8, true, |o, d, c| o & !d | c),
];

/// Name of an atomic of LDS.
fn ds_name(name: &str, returns: bool) -> String {
    let name = name.replace("cmpswap", "cmpstore").replace("swap", "storexchg");
    let (op, ty) = name.rsplit_once('_').unwrap();
    format!("ds_{op}{}_{ty}", if returns { "_rtn" } else { "" })
}

const SLOTS: u32 = 12;

#[test]
fn atomics() {
    let (mut r, mut report) = (Random(55), Report::default());
    for (name, bytes, two, f) in INTEGER.into_iter().chain(FLOAT).chain(ONLY_HERE) {
        for returns in [false, true] {
            let full = ds_name(name, returns);
            if !returns && name.starts_with("swap") {
                continue;
            }
            assert!(DEFINED.contains(&full.as_str()), "{full}");
            let dst = if returns { format!("{}, ", registers(20, bytes)) } else { String::new() };
            let second = if two { format!(", {}", registers(12, bytes)) } else { String::new() };
            let text = format!("{full} {dst}v2, {}{second} offset:16", registers(8, bytes));
            for mask in masks(&mut r) {
                let mut slots: Vec<u64> = (0..SLOTS).map(|_| narrow(value64(&mut r, name).into(), bytes)).collect();
                let mut data = vec![0; 16];
                data.extend(slots.iter().flat_map(|s| s.to_le_bytes()[..bytes as usize].to_vec()));
                let mut around = lds_with(&data);
                let mut w = random_wave(&mut r);
                w.set_exec(mask);
                let at: [u32; 32] = std::array::from_fn(|_| r.below(SLOTS));
                point(&mut w, &at.map(|a| 16 + a * bytes), 16, &mut r);
                for l in 0..32 {
                    let equal = r.below(2) == 0;
                    let compare = if equal { slots[at[l] as usize] } else { value64(&mut r, name) };
                    for (n, v) in [(8, value64(&mut r, name)), (12, compare)] {
                        (w.vgpr[n][l], w.vgpr[n + 1][l]) = (v as u32, (v >> 32) as u32);
                    }
                }
                let mut want = w.vgpr.to_vec();
                for l in (0..32).filter(|l| mask >> l & 1 == 1) {
                    let read = |n: usize| {
                        narrow((u64::from(w.vgpr[n][l]) | u64::from(w.vgpr[n + 1][l]) << 32).into(), bytes).into()
                    };
                    let slot = &mut slots[at[l] as usize];
                    if returns {
                        want[20][l] = *slot as u32;
                        if bytes == 8 {
                            want[21][l] = (*slot >> 32) as u32;
                        }
                    }
                    *slot = narrow(f(i128::from(*slot), read(8), read(12)), bytes);
                }
                let got = exec(&text, &mut w, &mut around);
                let counted =
                    got.map(|c| (only(&c, Traffic::LdsAtomic, 8 * bytes), c.instructions[Class::Lds as usize]));
                let left = lds_bytes(&mut around, data.len() as u32)[16..].to_vec();
                let after: Vec<u8> = slots.iter().flat_map(|s| s.to_le_bytes()[..bytes as usize].to_vec()).collect();
                let (lanes, kept) = (u64::from(mask.count_ones()), w.vgpr.to_vec() == want);
                if counted != Ok((Ok(lanes * u64::from(bytes)), 1)) || !kept || left != after {
                    report.add(&full, || format!("exec {mask:x}: {counted:?}, registers as expected: {kept}, memory {left:x?}, expected {after:x?}"));
                }
            }
        }
    }
}

fn narrow(v: i128, bytes: u32) -> u64 {
    v.rem_euclid(1 << (8 * bytes)) as u64
}

#[test]
fn exchanges_of_two() {
    let mut report = Report::default();
    for (name, bytes, unit) in TWO {
        let (stem, ty) = name.rsplit_once('_').unwrap();
        let full = format!("ds_storexchg_{stem}_rtn_{ty}");
        assert!(DEFINED.contains(&full.as_str()), "{full}");
        let data: Vec<u8> = (0..2048u32).map(|n| (n * 7 + n / 256) as u8).collect();
        let mut around = lds_with(&data);
        let mut w = random_wave(&mut Random(56));
        w.set_exec(0b101);
        w.vgpr[2] = std::array::from_fn(|l| 8 * l as u32);
        let before = w.vgpr.to_vec();
        let dst = registers(20, 2 * bytes);
        let text = format!("{full} {dst}, v2, {}, {} offset0:1 offset1:2", registers(8, bytes), registers(12, bytes));
        let got = exec(&text, &mut w, &mut around).map(|_| ());
        let (mut after, each) = (data.clone(), bytes as usize / 4);
        let mut right = got.is_ok() && w.vgpr[20][1] == before[20][1];
        for l in [0usize, 2] {
            for (k, source) in [(1usize, 8), (2, 12)] {
                for i in 0..each {
                    let at = 8 * l + k * unit as usize + 4 * i;
                    let old = u32::from_le_bytes(after[at..at + 4].try_into().unwrap());
                    right &= w.vgpr[20 + each * (k - 1) + i][l] == old;
                    after[at..at + 4].copy_from_slice(&before[source + i][l].to_le_bytes());
                }
            }
        }
        if !right || lds_bytes(&mut around, 2048) != after {
            report.add(&full, || format!("{got:?}, registers as expected: {right}"));
        }
    }
}

fn race(offset: u32, first: u32, second: u32) -> Fault {
    Fault::LdsRace { offset, first, second }
}

fn read(lds: &mut Lds, wave: u32, offset: u64) -> Result<u32, Fault> {
    let mut out = [0];
    lds.load_words(wave, offset, 4, &mut out).map(|()| out[0])
}

#[test]
fn races() {
    let fresh = || Lds::new(64, 3);
    let mut lds = fresh();
    lds.store_words(0, 8, 4, &[5]).unwrap();
    assert_eq!(read(&mut lds, 0, 8), Ok(5));
    assert_eq!(read(&mut lds, 1, 4), Ok(0));
    assert_eq!(read(&mut lds, 1, 8), Err(race(8, 0, 1)));

    let mut lds = fresh();
    read(&mut lds, 2, 12).unwrap();
    assert_eq!(lds.store_words(0, 12, 4, &[1]), Err(race(12, 2, 0)));
    // A value that is there already changes nothing.
    lds.store_words(0, 12, 4, &[0]).unwrap();

    let mut lds = fresh();
    lds.store_words(0, 16, 4, &[9, 8]).unwrap();
    lds.store_words(1, 16, 4, &[9]).unwrap();
    assert_eq!(lds.store_words(1, 20, 4, &[9]), Err(race(20, 0, 1)));
}

#[test]
fn barriers_end_races() {
    let mut lds = Lds::new(64, 2);
    lds.store_words(0, 8, 4, &[5]).unwrap();
    lds.pass_barrier(0);
    lds.pass_barrier(1);
    assert_eq!(read(&mut lds, 1, 8), Ok(5));
    lds.pass_barrier(0);
    lds.pass_barrier(1);
    lds.store_words(0, 8, 4, &[6]).unwrap();
    assert_eq!(read(&mut lds, 1, 8), Err(race(8, 0, 1)));
    lds.reset(3);
    assert_eq!(read(&mut lds, 1, 8), Ok(3));
}

#[test]
fn bytes_of_a_word() {
    let mut lds = Lds::new(64, 2);
    lds.store(0, 0, 2, 0x1111).unwrap();
    lds.store(1, 2, 2, 0x2222).unwrap();
    assert_eq!(lds.store(0, 3, 1, 0x33), Err(race(0, 1, 0)));
    let mut lds = Lds::new(64, 2);
    lds.store(0, 0, 1, 0x11).unwrap();
    assert_eq!(lds.load(1, 1, 1), Ok(0));
    assert_eq!(lds.load(1, 0, 2), Err(race(0, 0, 1)));
}

/// Who writes what another wave has written too may read it again.
#[test]
fn equal_writes_and_own_reads() {
    let mut lds = Lds::new(64, 2);
    lds.store_words(0, 0, 4, &[5]).unwrap();
    lds.store_words(1, 0, 4, &[5]).unwrap();
    assert_eq!((read(&mut lds, 1, 0), read(&mut lds, 0, 0)), (Ok(5), Ok(5)));
}

/// The first of two waves that wrote different bytes of a word is not forgotten.
#[test]
fn both_writers_of_a_word() {
    let mut lds = Lds::new(64, 2);
    lds.store(0, 0, 1, 0x11).unwrap();
    lds.store(1, 1, 1, 0x22).unwrap();
    assert_eq!(lds.load(1, 0, 1), Err(race(0, 0, 1)));
}
