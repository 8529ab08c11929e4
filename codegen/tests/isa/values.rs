//! Source values: edges of each kind, in all pairs, and seeded random bits.

/// What a source holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F16,
    F32,
    F64,
    I16,
    I32,
    /// 64 bits; a literal is zero-extended.
    B64,
    /// 64 bits; a literal is sign-extended.
    I64,
    /// Two entries of a set.
    B128,
    /// Four small bytes.
    Selector,
    /// One bit per lane, in a scalar register.
    Mask,
    /// One bit per lane, in VCC, which is not printed.
    Vcc,
    /// A 32-bit literal that is part of the instruction.
    Lit,
    /// The destination's old f32, which is not printed as a source.
    OldF32,
}

impl Kind {
    pub fn words(self) -> usize {
        match self {
            Kind::F64 | Kind::B64 | Kind::I64 => 2,
            Kind::B128 => 4,
            _ => 1,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, Kind::F16 | Kind::F32 | Kind::F64)
    }

    /// The part of a register's bits that the op reads.
    pub fn bits(self, raw: u64) -> u64 {
        match self {
            Kind::F16 | Kind::I16 => raw & 0xffff,
            Kind::F64 | Kind::B64 | Kind::I64 | Kind::B128 => raw,
            Kind::Mask | Kind::Vcc => raw & 1,
            _ => raw & 0xffff_ffff,
        }
    }

    pub fn sign(self) -> u64 {
        match self {
            Kind::F16 => 1 << 15,
            Kind::F64 => 1 << 63,
            _ => 1 << 31,
        }
    }
}

/// A reproducible sequence (splitmix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: &str) -> Self {
        Random(seed.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Magnitudes of f32; each occurs with both signs.
const F32: &[u32] = &[
    0,
    1,
    2,
    0x003f_ffff,
    0x007f_ffff,
    0x0080_0000,
    0x0080_0001,
    0x00ff_ffff, // denormals, smallest normals
    0x0b00_0000,
    0x2000_0000,
    0x3380_0000,
    0x3727_c5ac,
    0x3e80_0000,
    0x3eff_ffff,
    0x3f00_0000,
    0x3f00_0001,
    0x3f7f_ffff,
    0x3f80_0000,
    0x3f80_0001,
    0x3fc0_0000,
    0x4000_0000,
    0x4020_0000,
    0x4049_0fdb,
    0x42ff_0000,
    0x437f_0000,
    0x437f_8000,
    0x4380_0000,
    0x46ff_fe00,
    0x4700_0000,
    0x477f_ff00,
    0x477f_f000,
    0x4780_0000,
    0x4aff_ffff,
    0x4b00_0000,
    0x4b00_0001,
    0x4b80_0000,
    0x4b80_0001,
    0x4eff_ffff,
    0x4f00_0000,
    0x4f7f_ffff,
    0x4f80_0000,
    0x5f00_0000,
    0x7149_f2ca,
    0x7e80_0000,
    0x7e80_0001,
    0x7f00_0000,
    0x7f7f_ffff,
    0x7f80_0000,
    0x7f80_0001,
    0x7fa1_2345,
    0x7fc0_0000,
    0x7fd5_5555,
];

const F16: &[u16] = &[
    0, 1, 2, 0x01ff, 0x03ff, 0x0400, 0x0401, 0x1400, 0x2e66, 0x37ff, 0x3800, 0x3801, 0x3bff, 0x3c00, 0x3c01, 0x3e00,
    0x4000, 0x4248, 0x5bf8, 0x5bfc, 0x63ff, 0x6400, 0x6401, 0x77ff, 0x7800, 0x7bff, 0x7c00, 0x7c01, 0x7d23, 0x7e00,
    0x7f55,
];

const F64: &[u64] = &[
    0,
    1,
    0x000f_ffff_ffff_ffff,
    0x0010_0000_0000_0000,
    0x3690_0000_0000_0000,
    0x36a0_0000_0000_0001,
    0x3800_0000_0000_0000,
    0x380f_ffff_ffff_ffff,
    0x3810_0000_0000_0000,
    0x3fdf_ffff_ffff_ffff,
    0x3fe0_0000_0000_0000,
    0x3fe0_0000_0000_0001,
    0x3ff0_0000_0000_0000,
    0x3ff0_0000_1000_0000,
    0x3ff0_0000_3000_0000,
    0x3ff0_0000_1000_0001,
    0x4009_21fb_5444_2d18,
    0x41df_ffff_ffc0_0000,
    0x41df_ffff_ffff_ffff,
    0x41e0_0000_0000_0000,
    0x41e0_0000_0020_0000,
    0x41ef_ffff_ffe0_0000,
    0x41ef_ffff_ffff_ffff,
    0x41f0_0000_0000_0000,
    0x47ef_ffff_e000_0000,
    0x47ef_ffff_efff_ffff,
    0x47ef_ffff_f000_0000,
    0x4340_0000_0000_0000,
    0x7fef_ffff_ffff_ffff,
    0x7ff0_0000_0000_0000,
    0x7ff0_0000_0000_0001,
    0x7ff8_0000_0000_0000,
    0x7ff4_5678_9abc_def0,
];

const I32: &[u32] = &[
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    15,
    16,
    23,
    24,
    31,
    32,
    33,
    63,
    64,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0x8001,
    0xffff,
    0x1_0000,
    0x7f_ffff,
    0x80_0000,
    0xff_ffff,
    0x100_0000,
    0x100_0001,
    0x7fff_fffe,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xff7f_ffff,
    0xff80_0000,
    0xffff_7fff,
    0xffff_8000,
    0xffff_ff80,
    0xffff_fffe,
    0xffff_ffff,
    0x0123_4567,
    0x89ab_cdef,
    0xaaaa_aaaa,
    0x5555_5555,
    0x00ff_00ff,
    0xff00_ff00,
];

const I64: &[u64] = &[
    0,
    1,
    2,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x1_0000_0001,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0x8000_0000_0000_0001,
    0xffff_ffff_0000_0000,
    0xffff_ffff_8000_0000,
    u64::MAX - 1,
    u64::MAX,
    0x0123_4567_89ab_cdef,
    0xfedc_ba98_7654_3210,
];

/// Edge values of a kind.
pub fn edges(kind: Kind) -> Vec<u64> {
    match kind {
        Kind::F16 => F16.iter().flat_map(|x| [u64::from(*x), u64::from(*x | 0x8000)]).collect(),
        Kind::F32 | Kind::OldF32 | Kind::Lit => {
            F32.iter().flat_map(|x| [u64::from(*x), u64::from(*x | 1 << 31)]).collect()
        }
        Kind::F64 => F64.iter().flat_map(|x| [*x, *x | 1 << 63]).collect(),
        Kind::I16 | Kind::I32 => I32.iter().map(|x| u64::from(*x)).collect(),
        Kind::B64 | Kind::I64 | Kind::B128 => I64.to_vec(),
        Kind::Selector => vec![0x0001_0203, 0x0706_0504, 0x0b0a_0908, 0x0f0e_0d0c, 0xff80_100d, 0x0c00_0c07],
        Kind::Mask | Kind::Vcc => vec![0, 1],
    }
}

/// Random bits of a kind; floats are often of moderate size, so that results cancel and round.
pub fn random(kind: Kind, r: &mut Random) -> u64 {
    let (bits, moderate) = (r.next(), r.below(2) == 0);
    match kind {
        Kind::F32 | Kind::OldF32 if moderate => bits & 0x807f_ffff | (117 + r.below(24) as u64) << 23,
        Kind::F16 if moderate => bits & 0x83ff | (10 + r.below(10) as u64) << 10,
        Kind::F64 if moderate => bits & 0x800f_ffff_ffff_ffff | (1000 + r.below(60) as u64) << 52,
        Kind::I16 | Kind::I32 | Kind::B64 | Kind::I64 if moderate => bits >> r.below(64),
        Kind::Selector => bits & 0x0f0f_0f0f,
        _ => bits,
    }
}

/// A register's content: what an op does not read of it is junk.
fn lay(kind: Kind, value: u64, r: &mut Random) -> u64 {
    match kind {
        Kind::F16 | Kind::I16 => value & 0xffff | r.next() << 16 & 0xffff_0000,
        Kind::F64 | Kind::B64 | Kind::I64 | Kind::B128 => value,
        _ => value & 0xffff_ffff,
    }
}

/// Sets of 32 lanes; each lane has a value per source (of `B128`, two).
pub fn sets(kinds: &[Kind], seed: &str) -> Vec<Vec<Vec<u64>>> {
    let r = &mut Random::new(seed);
    let all: Vec<Vec<u64>> = kinds.iter().map(|k| edges(*k)).collect();
    let mut rows: Vec<Vec<u64>> = Vec::new();
    match all.as_slice() {
        [] => rows.push(Vec::new()),
        [a] => rows.extend(a.iter().map(|x| vec![*x])),
        [a, b] => rows.extend(a.iter().flat_map(|x| b.iter().map(|y| vec![*x, *y]))),
        more => rows.extend((0..5000).map(|_| triple(more, r))),
    }
    rows.extend((0..1500).map(|_| kinds.iter().map(|k| random(*k, r)).collect::<Vec<u64>>()));
    while !rows.len().is_multiple_of(32) {
        rows.push(kinds.iter().map(|k| random(*k, r)).collect());
    }
    for row in &mut rows {
        for (value, kind) in row.iter_mut().zip(kinds) {
            *value = lay(*kind, *value, r);
        }
        if kinds.last() == Some(&Kind::B128) {
            row.push(r.next());
        }
    }
    rows.chunks(32).map(<[Vec<u64>]>::to_vec).collect()
}

/// Edges, sometimes the same one twice.
fn triple(edges: &[Vec<u64>], r: &mut Random) -> Vec<u64> {
    let mut row: Vec<u64> = edges.iter().map(|e| e[r.below(e.len())]).collect();
    if r.below(4) == 0 {
        let (to, from) = (r.below(row.len()), r.below(row.len()));
        if edges[to].len() == edges[from].len() {
            row[to] = row[from];
        }
    }
    row
}

/// Constants as printed and their bits in a source of that kind.
pub fn constants(kind: Kind) -> Vec<(String, u64)> {
    let integers = [0i64, 1, 64, -1, -16];
    let floats = [0.5f64, -1.0, 4.0];
    let text = |v: f64| format!("{v:?}");
    let ints = |mask: u64| integers.map(|v| (v.to_string(), v.cast_unsigned() & mask));
    let mut out = Vec::new();
    match kind {
        Kind::F16 => {
            out.extend(ints(0xffff));
            out.extend(floats.map(|v| (text(v), u64::from(half::f16::from_f64(v).to_bits()))));
            out.push(("0.15915494".into(), 0x3118));
            out.push(("0x3456".into(), 0x3456));
        }
        // Inline floats in 16-bit integer sources are left out: the text does not say which bits they are.
        Kind::I16 => {
            out.extend(ints(0xffff));
            out.push(("0xb456".into(), 0xb456));
        }
        Kind::F64 => {
            out.extend(integers.map(|v| (v.to_string(), v.cast_unsigned())));
            out.extend(floats.map(|v| (text(v), v.to_bits())));
            out.push(("0.15915494309189532".into(), 0x3fc4_5f30_6dc9_c882));
            out.push(("0x40091234".into(), 0x4009_1234_0000_0000));
        }
        Kind::B64 | Kind::I64 => {
            out.extend(integers.map(|v| (v.to_string(), v.cast_unsigned())));
            out.extend(floats.map(|v| (text(v), v.to_bits())));
            out.push(("0x12345678".into(), 0x1234_5678));
        }
        _ => {
            out.extend(ints(0xffff_ffff));
            out.extend(floats.map(|v| (text(v), u64::from((v as f32).to_bits()))));
            out.push(("0.15915494".into(), 0x3e22_f983));
            out.push(("0x3fc12345".into(), 0x3fc1_2345));
        }
    }
    out
}
