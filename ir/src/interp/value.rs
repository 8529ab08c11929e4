//! Values of the interpreter: tensors, weights in their storage format, and the roundings between dtypes.

use std::borrow::Cow;

use crate::error::IrError;
use crate::interp::int4::Int4;
use crate::interp::refuse;
use crate::types::{DType, Dim, Format, TensorType};

/// Elements of a tensor. A float of any dtype is held as an f32 that was already rounded to it.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    F32(Vec<f32>),
    I32(Vec<i32>),
}

/// A dense row-major tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub data: Data,
}

impl Tensor {
    /// An f32 tensor.
    pub fn f32(shape: &[usize], data: Vec<f32>) -> Tensor {
        Tensor { dtype: DType::F32, shape: shape.to_vec(), data: Data::F32(data) }
    }

    /// A tensor of a float dtype; the values are rounded to it.
    pub fn float(dtype: DType, shape: &[usize], mut data: Vec<f32>) -> Tensor {
        round_all(dtype, &mut data);
        Tensor { dtype, shape: shape.to_vec(), data: Data::F32(data) }
    }

    pub fn i32(shape: &[usize], data: Vec<i32>) -> Tensor {
        Tensor { dtype: DType::I32, shape: shape.to_vec(), data: Data::I32(data) }
    }

    /// Float elements; empty for integers.
    pub fn floats(&self) -> &[f32] {
        match &self.data {
            Data::F32(v) => v,
            Data::I32(_) => &[],
        }
    }

    /// Integer elements; empty for floats.
    pub fn ints(&self) -> &[i32] {
        match &self.data {
            Data::I32(v) => v,
            Data::F32(_) => &[],
        }
    }

    /// Number of elements that the shape asks for.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    pub(crate) fn data_len(&self) -> usize {
        match &self.data {
            Data::F32(v) => v.len(),
            Data::I32(v) => v.len(),
        }
    }
}

/// A weight as it is stored: little-endian elements, row-major. Matmuls decode it row by row in their loops.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightRef<'a> {
    pub format: Format,
    pub shape: Vec<u64>,
    /// Elements, or the words of an int4 weight.
    pub bytes: Cow<'a, [u8]>,
    /// Scales of an int4 weight; empty for plain ones.
    pub scales: Cow<'a, [u8]>,
}

impl<'a> WeightRef<'a> {
    /// A weight over stored bytes.
    ///
    /// # Errors
    /// [`IrError::Eval`] if the bytes are not as many as shape and dtype ask for.
    pub fn new(dtype: DType, shape: &[u64], bytes: impl Into<Cow<'a, [u8]>>) -> Result<Self, IrError> {
        Self::stored(Format::Plain(dtype), shape, bytes, &[][..])
    }

    /// A weight of any format that is read: its elements and no scales, or words and scales of int4 `[.., N, K]`.
    ///
    /// # Errors
    /// [`IrError::Eval`] if the bytes are not as many as format and shape ask for.
    pub fn stored(
        format: Format,
        shape: &[u64],
        bytes: impl Into<Cow<'a, [u8]>>,
        scales: impl Into<Cow<'a, [u8]>>,
    ) -> Result<Self, IrError> {
        let w = WeightRef { format, shape: shape.to_vec(), bytes: bytes.into(), scales: scales.into() };
        w.check()?;
        Ok(w)
    }

    /// What a device holds: bytes and scales, with the rows of an int4 weight together (`[.., N, K/8]`, `[.., N, K/group]`).
    pub fn by_rows(&self) -> (Cow<'_, [u8]>, Cow<'_, [u8]>) {
        match Int4::of(self) {
            Some(packed) => {
                let (words, scales) = packed.by_rows();
                (words.into(), scales.into())
            }
            None => (Cow::Borrowed(&self.bytes), Cow::Borrowed(&self.scales)),
        }
    }

    /// Inverse of [`WeightRef::by_rows`]: a weight of the given format from what a device holds.
    ///
    /// # Errors
    /// [`IrError::Eval`] if the bytes are not as many as format and shape ask for.
    pub fn of_rows(format: Format, shape: &[u64], bytes: &[u8], scales: &[u8]) -> Result<WeightRef<'static>, IrError> {
        let rows = WeightRef::stored(format, shape, bytes, scales)?;
        match Int4::of(&rows) {
            Some(packed) => {
                let (words, scales) = packed.of_rows();
                WeightRef::stored(format, shape, words, scales)
            }
            None => WeightRef::stored(format, shape, bytes.to_vec(), scales.to_vec()),
        }
    }

    /// Dtype of a plain weight.
    pub fn dtype(&self) -> Option<DType> {
        match self.format {
            Format::Plain(d) => Some(d),
            _ => None,
        }
    }

    /// A weight that holds `values` rounded to `dtype`.
    ///
    /// # Errors
    /// [`IrError::Eval`] if the values are not as many as the shape asks for, or for a dtype that is not a float.
    pub fn from_f32(dtype: DType, shape: &[u64], values: &[f32]) -> Result<WeightRef<'static>, IrError> {
        let mut bytes = Vec::with_capacity(values.len() * dtype.bytes() as usize);
        for &x in values {
            match dtype {
                DType::F32 => bytes.extend(x.to_le_bytes()),
                DType::Bf16 => bytes.extend(((round_bf16(x).to_bits() >> 16) as u16).to_le_bytes()),
                DType::F16 => bytes.extend(half::f16::from_f32(x).to_le_bytes()),
                _ => return Err(refuse("weight-dtype", "weight", dtype.name(), "encode f32, bf16 or f16")),
            }
        }
        WeightRef::new(dtype, shape, bytes)
    }

    pub(crate) fn check(&self) -> Result<(), IrError> {
        let needed = match self.format {
            Format::Plain(d) => self.shape.iter().try_fold(d.bytes(), |a, n| a.checked_mul(*n)).map(|n| (n, 0)),
            Format::Int4 { .. } => Int4::of(self).map(|p| (p.word_bytes(), p.scale_bytes())),
            Format::F8Block { .. } => None,
        };
        if needed == Some((self.bytes.len() as u64, self.scales.len() as u64)) {
            return Ok(());
        }
        let ty = TensorType { format: self.format, shape: self.shape.iter().map(|n| Dim::Fixed(*n)).collect() };
        let found = format!("{} bytes, and {} of scales, for {ty}", self.bytes.len(), self.scales.len());
        Err(refuse("weight-bytes", "weight", &found, "bytes are those of shape and format; blocks are not read yet"))
    }

    /// The whole weight as a tensor: for ops that are not contractions.
    pub fn to_tensor(&self) -> Tensor {
        let shape: Vec<usize> = self.shape.iter().map(|&d| d as usize).collect();
        let dtype = self.dtype().unwrap_or(DType::F32);
        if !dtype.is_float() {
            let ints = match dtype {
                DType::I32 => self.bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect(),
                _ => self.bytes.iter().map(|&b| i32::from(b)).collect(),
            };
            return Tensor { dtype, shape, data: Data::I32(ints) };
        }
        let mut data = vec![0.0; shape.iter().product()];
        self.decode(0, &mut data);
        Tensor { dtype, shape, data: Data::F32(data) }
    }
}

/// Something whose float elements can be read run by run.
pub(crate) trait Rows: Sync {
    /// Elements `start..start + out.len()` in row-major order, as f32. The caller stays inside the value.
    fn decode(&self, start: usize, out: &mut [f32]);

    /// The int4 weight behind the rows, if it is one.
    fn int4(&self) -> Option<Int4<'_>> {
        None
    }
}

impl Rows for Tensor {
    fn decode(&self, start: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.floats()[start..start + out.len()]);
    }
}

impl Rows for WeightRef<'_> {
    fn int4(&self) -> Option<Int4<'_>> {
        Int4::of(self)
    }

    fn decode(&self, start: usize, out: &mut [f32]) {
        if let Some(packed) = Int4::of(self) {
            return packed.decode(start, out);
        }
        let dtype = self.dtype().unwrap_or(DType::Bool);
        let size = dtype.bytes() as usize;
        let bytes = &self.bytes[start * size..(start + out.len()) * size];
        match dtype {
            DType::F32 => {
                for (o, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *o = f32::from_le_bytes(*b);
                }
            }
            DType::Bf16 => {
                for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *o = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
                }
            }
            DType::F16 => {
                for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *o = f32_of_f16(u16::from_le_bytes(*b));
                }
            }
            DType::F8E4m3 => out.iter_mut().zip(bytes).for_each(|(o, b)| *o = f32_of_f8e4m3(*b)),
            DType::I32 | DType::Bool => out.fill(0.0),
        }
    }
}

/// Exact value of an f16 (scaling by 2^112 moves the exponent bias; denormals come out right).
pub(crate) fn f32_of_f16(h: u16) -> f32 {
    let magnitude = u32::from(h & 0x7fff) << 13;
    let sign = u32::from(h & 0x8000) << 16;
    let scaled = (f32::from_bits(magnitude) * f32::from_bits((112 + 127) << 23)).to_bits();
    let special = magnitude | 0x7f80_0000;
    f32::from_bits(sign | if h & 0x7c00 == 0x7c00 { special } else { scaled })
}

/// Exact value of an f8e4m3 (no infinities; 0x7f and 0xff are NaN).
fn f32_of_f8e4m3(b: u8) -> f32 {
    let sign = u32::from(b & 0x80) << 24;
    if b & 0x7f == 0x7f {
        return f32::from_bits(sign | 0x7fc0_0000);
    }
    let scaled = f32::from_bits(u32::from(b & 0x7f) << 20) * f32::from_bits((120 + 127) << 23);
    f32::from_bits(sign | scaled.to_bits())
}

/// Integer round-to-nearest-even to bf16: denormals are kept, overflow gives infinity, NaN stays a (quiet) NaN.
pub fn round_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    if x.is_nan() {
        return f32::from_bits((bits & 0xffff_0000) | 0x0040_0000);
    }
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    f32::from_bits(rounded & 0xffff_0000)
}

/// Round-to-nearest-even to `dtype`, as an f32. Other than f32, bf16 and f16, values pass unchanged.
pub fn round_to(dtype: DType, x: f32) -> f32 {
    match dtype {
        DType::Bf16 => round_bf16(x),
        DType::F16 => half::f16::from_f32(x).to_f32(),
        _ => x,
    }
}

pub(crate) fn round_all(dtype: DType, data: &mut [f32]) {
    if matches!(dtype, DType::Bf16 | DType::F16) {
        data.iter_mut().for_each(|x| *x = round_to(dtype, *x));
    }
}
