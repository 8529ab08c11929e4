//! Tensors of `qwen4_exp_ops` that stand in no file: `ops.json` has the rule of each.

/// The bits of a normal number's nearest bf16, ties to even: 45 bits of an f64's fraction are too many.
fn bf16(x: f64) -> u16 {
    let bits = x.to_bits();
    let even = bits >> 45 & 1;
    let rounded = f64::from_bits((bits + ((1 << 44) - 1) + even) >> 45 << 45);
    ((rounded as f32).to_bits() >> 16) as u16
}

/// A tensor by its rule: bf16(b + a (2u - 1)) with u from splitmix64 of (seed, element).
pub fn generated(seed: u64, (a, b): (f64, f64), elements: u64) -> Vec<u8> {
    let element = |i: u64| {
        let mut v = ((seed << 32) + i).wrapping_add(0x9e37_79b9_7f4a_7c15);
        v = (v ^ (v >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        v = (v ^ (v >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let u = ((v ^ (v >> 31)) >> 40) as f64 / f64::from(1 << 24);
        bf16(b + a * (2.0 * u - 1.0)).to_le_bytes()
    };
    (0..elements).flat_map(element).collect()
}
