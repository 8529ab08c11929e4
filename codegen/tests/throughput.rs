//! Not a test of results: how fast a bf16 matrix-vector product is on the host.
mod support;
use support::*;
use unglue_codegen::{llvm, target};

#[test]
#[ignore = "a measurement"]
fn bf16_gemv_speed() {
    for (waves, counted) in [(1, true), (4, true), (1, false), (4, false)] {
        let p = gemv(waves, counted);
        let t0 = std::time::Instant::now();
        let _ = llvm::compile_object(&p, target::by_name("x86-64").unwrap()).unwrap();
        println!("waves {waves} counted {counted}: compile {:?}", t0.elapsed());
        let host = Host::new(&p);
        let (rows, k) = (4096usize, 4096usize);
        let w: Vec<u16> = (0..rows * k).map(|i| 0x3f80 + (i % 128) as u16).collect();
        let x: Vec<u16> = (0..k).map(|i| 0x3f80 + (i % 64) as u16).collect();
        let mut y = vec![0f32; rows];
        let args = [arg(&w), arg(&x), out(&mut y), k as u64];
        for _ in 0..3 {
            let t0 = std::time::Instant::now();
            host.run(&args, rows as i32 / waves as i32);
            let s = t0.elapsed().as_secs_f64();
            println!("{:.2} ms, {:.2} GB/s, y0 {}", s * 1e3, (rows * k * 2) as f64 / s / 1e9, y[0]);
        }
    }
}
