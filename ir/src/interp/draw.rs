//! Deterministic random inputs from the domain of an input: what `verify` and property tests draw.

use crate::interp::batch::{Batch, Dims};
use crate::interp::refuse;
use crate::interp::value::{Tensor, WeightRef};
use crate::op::Domain;
use crate::types::{DType, Format, TensorType};

/// SplitMix64: the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// An integer in 0..n; 0 if n is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The high half of the product: the bias is below n / 2^64.
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in (0, 1), on a grid of 2^-24.
    pub fn unit(&mut self) -> f32 {
        ((self.next_u64() >> 41) as f32 + 0.5) * (1.0 / 8_388_608.0)
    }

    /// Nearly N(0, 1): the sum of twelve uniform numbers, without any library function.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }

    /// `count` distinct integers below n (all, if there are fewer), in random order.
    fn distinct(&mut self, n: u64, count: usize) -> Vec<i32> {
        // A sparse Fisher-Yates shuffle: only the places that moved are kept.
        let mut moved = std::collections::BTreeMap::new();
        (0..n.min(count as u64))
            .map(|i| {
                let j = i + self.below(n - i);
                let at_i = *moved.get(&i).unwrap_or(&i);
                let picked = *moved.get(&j).unwrap_or(&j);
                moved.insert(j, at_i);
                picked as i32
            })
            .collect()
    }
}

/// A tensor of `ty` drawn from `domain`. Floats are rounded to the dtype.
pub fn draw(rng: &mut Rng, ty: &TensorType, domain: Domain, dims: &Dims, batch: &Batch) -> Tensor {
    let shape = dims.shape(&ty.shape);
    let total: usize = shape.iter().product();
    let dtype = ty.dtype().unwrap_or(DType::F32);
    if dtype.is_float() {
        let float = |rng: &mut Rng| match domain {
            Domain::Unit => rng.unit(),
            Domain::Normal => rng.normal(),
            Domain::RowIndex => rng.below(dims.rows as u64) as f32,
            Domain::Below(n) | Domain::Distinct(n) | Domain::Ascending(n) | Domain::Slots(n) => rng.below(n) as f32,
            Domain::Selected => rng.normal(),
        };
        return Tensor::float(dtype, &shape, (0..total).map(|_| float(rng)).collect());
    }
    let width = shape.last().copied().unwrap_or(1).max(1);
    let mut data = Vec::with_capacity(total);
    for r in 0..total / width {
        data.extend(int_row(rng, domain, width, dims, (batch, r)));
    }
    let mut t = Tensor::i32(&shape, data);
    t.dtype = dtype;
    t
}

fn int_row(rng: &mut Rng, domain: Domain, width: usize, dims: &Dims, (batch, r): (&Batch, usize)) -> Vec<i32> {
    let below = |rng: &mut Rng, n: u64| (0..width).map(|_| rng.below(n) as i32).collect::<Vec<i32>>();
    let ascending = |rng: &mut Rng, n: u64| {
        let most = n.min(width as u64);
        let count = rng.below(most + 1) as usize;
        let mut row = rng.distinct(n, count);
        row.sort_unstable();
        row.resize(width, -1);
        row
    };
    match domain {
        Domain::Below(n) => below(rng, n),
        Domain::RowIndex => below(rng, dims.rows as u64),
        Domain::Distinct(n) => {
            let mut row = rng.distinct(n, width);
            row.resize(width, -1);
            row
        }
        Domain::Ascending(n) => ascending(rng, n),
        Domain::Selected => match (r < batch.rows()).then(|| batch.row(r)).flatten() {
            Some((position, _)) => ascending(rng, position as u64 + 1),
            None => vec![-1; width],
        },
        Domain::Slots(n) => {
            // Slots are handed out once; some experts are absent.
            let mut row = rng.distinct(n, width);
            row.resize(width, -1);
            row.iter().map(|&s| if rng.below(8) == 0 { -1 } else { s }).collect()
        }
        Domain::Normal | Domain::Unit => below(rng, 2),
    }
}

/// A weight ~ N(0, 1/K), K the extent of its last axis. Levels of int4 are uniform, and half of their scales negative.
///
/// # Errors
/// [`crate::IrError::Eval`] for formats that cannot be drawn: f8e4m3 and integers.
pub fn draw_weight(rng: &mut Rng, format: Format, shape: &[u64]) -> Result<WeightRef<'static>, crate::IrError> {
    let width = shape.last().copied().unwrap_or(1).max(1);
    let scale = 1.0 / (width as f32).sqrt();
    let elements = shape.iter().product::<u64>();
    match format {
        Format::Int4 { group, scales, .. } => {
            let words: Vec<u8> = (0..elements / 8).flat_map(|_| (rng.next_u64() as u32).to_le_bytes()).collect();
            // Levels have a variance of 21.5.
            let groups = [elements / u64::from(group.max(1))];
            let values: Vec<f32> = (0..groups[0]).map(|_| rng.normal() * scale / 4.6).collect();
            let scales = WeightRef::from_f32(scales.dtype(), &groups, &values)?.bytes;
            WeightRef::stored(format, shape, words, scales)
        }
        Format::Plain(dtype) => {
            let values: Vec<f32> = (0..elements).map(|_| rng.normal() * scale).collect();
            WeightRef::from_f32(dtype, shape, &values)
        }
        Format::F8Block { .. } => {
            Err(refuse("weight-dtype", "weight", "f8e4m3 in blocks", "draw plain or int4 weights"))
        }
    }
}
