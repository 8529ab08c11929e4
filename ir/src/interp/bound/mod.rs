//! `bound` mode (numerics P4): every element is an f64 value with a bound on how far a right result may be from it.
//!
//! The value is computed without f32 roundings, except that casts to bf16 and f16 round it; each rounding that the
//! graph declares adds half an ulp, each fixed function its promised ulps, and a sum over summands x adds
//! (d + 1) * 2^-24 * sum |x| with d from its order. A result passes if some value within the bound gives it.
//!
//! A form with a rounding less than the declared one is not within that bound: a cast of an exact number gives one number.
//! With [`BoundInputs::casts`] at [`Casts::Optional`] a bound holds what the declared form gives with each of its casts,
//! and what it gives without: half an ulp of the narrow dtype and no more.

mod eval;
mod groups;
mod mix;

pub use eval::{BoundInputs, BoundOutputs, BoundedData, BoundedTensor, Casts, eval_bounds};

use crate::interp::value::round_to;
use crate::op::{Binary, Unary};
use crate::types::DType;

/// Half an ulp of an f32, relative; a little more covers the f64 arithmetic here.
const UNIT: f64 = 5.960_464_477_539_063e-8 * (1.0 + 1e-6);
/// Half a denormal step.
const HALF_STEP: f64 = 7.006_492_321_624_085e-46;
/// Numbers from here on round to infinity.
const OVERFLOW: f64 = 3.402_823_567_797_336_6e38;

/// One element: a right result lies in `value - error ..= value + error`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounded {
    pub value: f64,
    /// Infinite: nothing is known.
    pub error: f64,
}

impl Bounded {
    /// A number without error.
    pub fn exact(x: f32) -> Bounded {
        Bounded { value: f64::from(x), error: 0.0 }
    }

    /// Value and error; overflow of f32 gives infinity, and NaN and infinity are exact unless the error says otherwise.
    pub fn of(value: f64, error: f64) -> Bounded {
        let finite = value.abs() < OVERFLOW;
        let value = if value.is_nan() || finite { value } else { f64::INFINITY.copysign(value) };
        let error = match (value.is_nan(), error.is_nan()) {
            (true, _) if error.is_nan() || error.is_finite() => 0.0,
            (false, true) => {
                if finite {
                    f64::INFINITY
                } else {
                    0.0
                }
            }
            _ if !finite && error.is_finite() => 0.0,
            _ => error,
        };
        Bounded { value, error }
    }

    /// From a value inside `lo..=hi`.
    fn within(value: f64, lo: f64, hi: f64) -> Bounded {
        if lo == hi {
            return Bounded::of(value, 0.0);
        }
        Bounded::of(value, (value - lo).max(hi - value))
    }

    pub fn lo(self) -> f64 {
        self.value - self.error
    }

    pub fn hi(self) -> f64 {
        self.value + self.error
    }

    /// Largest magnitude inside the bound.
    fn size(self) -> f64 {
        self.value.abs() + self.error
    }

    /// After a result that is right to `halves` half ulps of f32.
    fn after(self, halves: f64) -> Bounded {
        // A real result of exactly 0 is not rounded.
        if self.value.is_infinite() || self.value.is_nan() || self.size() == 0.0 {
            return self;
        }
        // A result that may reach the overflow limit may be infinite.
        let size = self.size();
        let step = if size >= OVERFLOW { f64::INFINITY } else { halves * (UNIT * size + HALF_STEP) };
        Bounded::of(self.value, self.error + step)
    }

    /// After one rounding to f32.
    fn rounded(self) -> Bounded {
        self.after(1.0)
    }

    fn product(self, o: Bounded) -> Bounded {
        let e = |a: f64, b: f64| if a == 0.0 || b == 0.0 { 0.0 } else { a * b };
        let error = e(self.value.abs(), o.error) + e(o.value.abs(), self.error) + e(self.error, o.error);
        Bounded { value: self.value * o.value, error }
    }

    fn fma(self, b: Bounded, c: Bounded) -> Bounded {
        let p = self.product(b);
        Bounded::of(p.value + c.value, p.error + c.error).rounded()
    }

    fn quotient(self, o: Bounded) -> Bounded {
        let value = self.value / o.value;
        let reach = o.value.abs() - o.error;
        let error = match (self.error == 0.0 && o.error == 0.0, reach > 0.0) {
            (true, _) => 0.0,
            (_, true) => (self.error + if o.error == 0.0 { 0.0 } else { value.abs() * o.error }) / reach,
            _ => f64::INFINITY,
        };
        Bounded::of(value, error)
    }

    /// A function that does not fall, at the ends of the interval.
    fn rising(self, f: impl Fn(f64) -> f64) -> Bounded {
        if self.error == 0.0 {
            return Bounded::of(f(self.value), 0.0);
        }
        let (lo, hi) = (f(self.lo()), f(self.hi()));
        if lo.is_nan() && hi.is_nan() {
            return Bounded::of(f64::NAN, 0.0);
        }
        if lo.is_nan() || hi.is_nan() {
            // The interval leaves the domain: NaN is possible as well.
            return Bounded { value: f(self.value), error: f64::INFINITY };
        }
        Bounded::within(f(self.value), lo, hi)
    }

    /// Cast: the ends of the interval round as the value does.
    fn cast(self, to: DType) -> Bounded {
        if to == DType::F32 || self.value.is_nan() {
            return self;
        }
        let r = |x: f64| f64::from(round_to(to, x as f32));
        Bounded::within(r(self.value), r(self.lo()), r(self.hi()))
    }

    /// A cast that may have been left out: the value before it and the ends of both.
    fn cast_or_not(self, to: DType) -> Bounded {
        let cast = self.cast(to);
        if to == DType::F32 || self.value.is_nan() {
            return cast;
        }
        Bounded::within(self.value, self.lo().min(cast.lo()), self.hi().max(cast.hi()))
    }

    pub(crate) fn unary(self, u: Unary) -> Bounded {
        let sigmoid = |x: f64| {
            let t = (-x.abs()).exp();
            (if x >= 0.0 { 1.0 } else { t }) / (1.0 + t)
        };
        match u {
            Unary::Neg => Bounded { value: -self.value, error: self.error },
            Unary::Abs => Bounded { value: self.value.abs(), error: self.error },
            Unary::Exp => self.rising(f64::exp).after(2.0),
            Unary::Log => self.rising(f64::ln).after(2.0),
            Unary::Log1p => self.rising(f64::ln_1p).after(2.0),
            Unary::Sqrt => self.rising(f64::sqrt).rounded(),
            Unary::Rsqrt => Bounded::exact(1.0).quotient(self.unary(Unary::Sqrt)).rounded(),
            Unary::Sigmoid => self.rising(sigmoid).after(6.0),
        }
    }

    pub(crate) fn binary(self, b: Binary, o: Bounded) -> Bounded {
        let nan = self.value.is_nan() || o.value.is_nan();
        match b {
            Binary::Add => Bounded::of(self.value + o.value, self.error + o.error).rounded(),
            Binary::Sub => Bounded::of(self.value - o.value, self.error + o.error).rounded(),
            Binary::Mul => {
                let p = self.product(o);
                Bounded::of(p.value, p.error).rounded()
            }
            Binary::Div => self.quotient(o).rounded(),
            Binary::Min | Binary::Max if nan => Bounded::of(f64::NAN, 0.0),
            Binary::Min => Bounded::within(self.value.min(o.value), self.lo().min(o.lo()), self.hi().min(o.hi())),
            Binary::Max => Bounded::within(self.value.max(o.value), self.lo().max(o.lo()), self.hi().max(o.hi())),
        }
    }
}

/// Sum of summands with a chain of at most `depth` additions; `unit` is the relative error of one of them.
fn sum(terms: impl Iterator<Item = Bounded>, depth: u64, unit: f64) -> Bounded {
    let (mut value, mut error, mut size, mut count) = (0.0, 0.0, 0.0, 0.0);
    for t in terms {
        value += t.value;
        error += t.error;
        // An infinite or NaN summand decides the result as IEEE says; it has no size of its own.
        size += if t.value.is_finite() { t.size() } else { 0.0 };
        count += 1.0;
    }
    let own = (depth as f64 + 1.0) * unit * size + count * HALF_STEP;
    Bounded::of(value, error + if size < OVERFLOW { own } else { f64::INFINITY })
}

/// Whether a kernel's result is right: some value within the bound gives it after rounding to `dtype`. NaN equals NaN.
pub fn accepts(reference: &Bounded, dtype: DType, got: f32) -> bool {
    if reference.error == f64::INFINITY {
        return true;
    }
    if reference.value.is_nan() || got.is_nan() {
        return reference.value.is_nan() && got.is_nan();
    }
    let end = |x: f64| round_to(dtype, x as f32);
    end(reference.lo()) <= got && got <= end(reference.hi())
}
