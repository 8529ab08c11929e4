//! Matmuls whose operands are 16-bit floats, as matrix tiles take them.

use unglue_ir::builder::Builder;
use unglue_ir::graph::Graph;
use unglue_ir::op::Binary;
use unglue_ir::types::DType;

use super::bodies::{R, bin, f, f32_of, input, swiglu_of, weight};

pub fn matmul(n: u64, k: u64) -> Graph {
    let mut b = Builder::new("matmul");
    let (x, w) = (input(&mut b, "x", DType::Bf16, &[R, f(k)]), weight(&mut b, "w", DType::Bf16, &[n, k]));
    let y = b.matmul(x, w).unwrap();
    b.output("y", y);
    b.finish()
}

pub fn swiglu(n: u64, k: u64) -> Graph {
    let mut b = Builder::new("swiglu");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(k)]);
    let (g, u) = (weight(&mut b, "g", DType::Bf16, &[n, k]), weight(&mut b, "u", DType::Bf16, &[n, k]));
    let (g, u) = (b.matmul(x, g).unwrap(), b.matmul(x, u).unwrap());
    let y = swiglu_of(&mut b, g, u, 2.0);
    let y = b.cast(y, DType::Bf16).unwrap();
    b.output("y", y);
    b.finish()
}

/// Two matmuls of one operand, each with an output of its own.
pub fn two_outputs(n: [u64; 2], k: u64) -> Graph {
    let mut b = Builder::new("two_outputs");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(k)]);
    for (i, n) in n.into_iter().enumerate() {
        let w = weight(&mut b, &format!("w{i}"), DType::Bf16, &[n, k]);
        let y = b.matmul(x, w).unwrap();
        b.output(&format!("y{i}"), y);
    }
    b.finish()
}

/// A matmul, a bias, a residual and a cast.
pub fn biased(n: u64, k: u64, dtype: DType) -> Graph {
    let mut b = Builder::new("biased");
    let (x, r) = (input(&mut b, "x", dtype, &[R, f(k)]), input(&mut b, "r", DType::Bf16, &[R, f(n)]));
    let (w, bias) = (weight(&mut b, "w", dtype, &[n, k]), weight(&mut b, "bias", DType::F32, &[n]));
    let y = b.matmul(x, w).unwrap();
    let bias = b.reshape(bias, &[f(1), f(n)]).unwrap();
    let y = bin(&mut b, Binary::Add, y, bias);
    let r = f32_of(&mut b, r);
    let y = bin(&mut b, Binary::Add, y, r);
    let y = b.cast(y, DType::Bf16).unwrap();
    b.output("y", y);
    b.finish()
}
