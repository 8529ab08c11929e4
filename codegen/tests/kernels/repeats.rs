//! Launches of one kernel over and over, and delays built into it.

use unglue_codegen::CodegenError;
use unglue_codegen::check::repeat::{check_repeated, meets};
use unglue_codegen::kp::fault;
use unglue_codegen::{gates, llvm, target};
use unglue_runtime::{ArgValue, BufferId, Code, Device, Result, manifest};

use super::{Made, bodies, finishes};

/// A device that turns a bit of a buffer after one of its launches.
struct Slips<D> {
    device: D,
    launches: u32,
    /// The launch and the parameter.
    slip: (u32, usize),
}

impl<D: Device> Device for Slips<D> {
    fn name(&self) -> String {
        self.device.name()
    }
    fn target(&self) -> &str {
        self.device.target()
    }
    fn alloc(&mut self, bytes: u64) -> Result<BufferId> {
        self.device.alloc(bytes)
    }
    fn free(&mut self, id: BufferId) -> Result<()> {
        self.device.free(id)
    }
    fn fill(&mut self, id: BufferId, offset: u64, bytes: u64, byte: u8) -> Result<()> {
        self.device.fill(id, offset, bytes, byte)
    }
    fn write(&mut self, id: BufferId, offset: u64, data: &[u8]) -> Result<()> {
        self.device.write(id, offset, data)
    }
    fn read(&self, id: BufferId, offset: u64, data: &mut [u8]) -> Result<()> {
        self.device.read(id, offset, data)
    }
    fn load(&mut self, kernels: &[manifest::Kernel], code: &[Code<'_>]) -> Result<()> {
        self.device.load(kernels, code)
    }
    fn launch(&mut self, kernel: u32, grid: [u32; 3], args: &[ArgValue]) -> Result<()> {
        self.device.launch(kernel, grid, args)?;
        self.launches += 1;
        match args.get(self.slip.1) {
            Some(ArgValue::Buffer { id, offset, .. }) if self.launches == self.slip.0 => {
                let mut byte = [0];
                self.device.read(*id, *offset, &mut byte)?;
                self.device.write(*id, *offset, &[byte[0] ^ 1])
            }
            _ => Ok(()),
        }
    }
}

#[test]
fn a_launch_with_other_bits_is_found() {
    let graph = finishes::head_best(96, 50);
    let made = Made::new("head_best", &graph, 4, 0);
    let subject = made.subject();
    assert!(meets(subject.uses));
    let output = made.described().interface.outputs[0].param as usize;
    let mut device = Slips { device: made.cpu(2), launches: 0, slip: (6, output) };
    assert!(check_repeated(&mut device, &subject, 1, 4).unwrap().is_none());
    assert_eq!(device.launches, 5, "one, and four more");
    device.launches = 0;
    let wrong = check_repeated(&mut device, &subject, 1, 9).unwrap().unwrap();
    assert_eq!((wrong.index, device.launches), (0, 6), "{wrong}");
    assert!(wrong.device.contains("in launch 6"), "{wrong}");
    let alone = bodies::rms_norm(96);
    assert!(!meets(Made::new("alone", &alone, 4, 0).subject().uses));
}

/// State is put back before each launch: one that changes it gives the same again.
#[test]
fn states_are_put_back() {
    let graph = bodies::token_write(40);
    let made = Made::new("token_write", &graph, 4, 0);
    let mut device = Slips { device: made.cpu(2), launches: 0, slip: (0, 0) };
    assert!(check_repeated(&mut device, &made.subject(), 1, 3).unwrap().is_none());
}

/// Delays come before the release and before the arrival, by the seed; a target without a clock is refused.
#[test]
fn delays_are_built_in_by_their_seed() {
    let graph = finishes::matmul_norm(70, 300);
    let made = Made::new("matmul_norm", &graph, 1, 0);
    let text = |seed: Option<u64>| {
        let p = seed.map_or_else(|| made.made.program.clone(), |seed| fault::delayed(&made.made.program, seed));
        let t = target::by_name("sm_90").unwrap();
        let code = llvm::compile_object(&p, t).unwrap_or_else(|e| panic!("{e}"));
        gates::check(&code, &p, t).unwrap_or_else(|e| panic!("{e}"));
        String::from_utf8(code).unwrap()
    };
    let (plain, one) = (text(None), text(Some(1)));
    assert_eq!((plain.contains("%clock64"), one.matches("%clock64").count()), (false, 4), "{one}");
    let at = |what: &str| one.find(what).unwrap_or_else(|| panic!("{what}\n{one}"));
    assert!(at("%clock64") < at("fence.") && at("fence.") < one.rfind("%clock64").unwrap(), "{one}");
    assert!(one.rfind("%clock64").unwrap() < at("atom."), "{one}");
    assert_eq!(one, text(Some(1)));
    assert_ne!(one, text(Some(2)));
    for target in ["x86-64", "gfx1201"] {
        let p = fault::delayed(&made.made.program, 1);
        match llvm::compile_object(&p, target::by_name(target).unwrap()) {
            Err(CodegenError::Lowering { found, .. }) => assert!(found.contains("clock"), "{found}"),
            other => panic!("{target}: {other:?}"),
        }
    }
    let alone = bodies::rms_norm(96);
    let alone = Made::new("alone", &alone, 1, 0);
    assert_eq!(fault::delayed(&alone.made.program, 1), alone.made.program, "its workgroups do not meet");
}
