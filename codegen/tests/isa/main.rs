//! Conformance of the gfx12 emulator: each opcode against a definition written from the ISA's text.

use unglue_codegen::emu::snippet::{Surroundings, run};
use unglue_codegen::emu::wave::Wave;
use unglue_codegen::llvm::assemble::assemble;
use unglue_codegen::target::by_name;

#[test]
fn smoke() {
    let t = by_name("gfx1201").unwrap();
    let code = assemble("v_add_f32_e32 v2, v0, v1\nv_dual_add_f32 v0, v1, v2 :: v_dual_add_f32 v1, v0, v3", t).unwrap();
    let mut w = Wave::new(0x7fe1_dead);
    w.vgpr[0] = [1.0f32.to_bits(); 32];
    w.vgpr[1] = [2.0f32.to_bits(); 32];
    w.vgpr[3] = [10.0f32.to_bits(); 32];
    run(&code, t, &mut w, &mut Surroundings::default()).unwrap();
    assert_eq!(w.vgpr[2][5], 3.0f32.to_bits());
    assert_eq!(w.vgpr[0][5], 5.0f32.to_bits());
    assert_eq!(w.vgpr[1][5], 11.0f32.to_bits());
}
