//! Target facts: one row per target.

/// Which lowering a target uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lowering {
    /// A lane value is a vector of 32 lanes; one call runs one workgroup.
    HostVector,
    /// One thread per lane, LLVM's AMDGPU backend.
    Amdgpu,
    /// One thread per lane, LLVM's NVPTX backend.
    Nvptx,
}

/// What the linker makes of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packaging {
    /// All kernels in one shared object.
    OneSharedObject,
    /// One code object per kernel.
    OnePerKernel,
    /// One assembly text per kernel, which the driver compiles.
    OneTextPerKernel,
}

impl Packaging {
    /// Whether each kernel is a file of its own.
    #[must_use]
    pub const fn per_kernel(self) -> bool {
        !matches!(self, Self::OneSharedObject)
    }

    /// How the files' names end.
    #[must_use]
    pub const fn extension(self) -> &'static str {
        match self {
            Self::OneSharedObject => "so",
            Self::OnePerKernel => "hsaco",
            Self::OneTextPerKernel => "ptx",
        }
    }
}

/// When a kernel lets the launch behind it start, in each workgroup; that one starts when all have, or have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Before it waits itself: later workgroups take places beside running ones.
    Start,
    /// Behind all it does: later workgroups start while the last ones of this launch drain.
    End,
}

/// Register and memory limits of a GPU target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuFacts {
    /// Bytes of LDS that one workgroup may use.
    pub max_lds: u32,
    /// Bytes of LDS that the waves of one workgroup processor share.
    pub lds_pool: u32,
    /// VGPRs that one wave may use.
    pub max_vgprs: u32,
    /// VGPRs are given out in blocks of so many (wave32).
    pub vgpr_granule: u32,
    /// VGPRs of one SIMD, counted per lane (wave32).
    pub simd_vgprs: u32,
    /// Waves that one SIMD holds at most.
    pub max_waves: u32,
    /// SIMDs that share `lds_pool`.
    pub simds: u32,
    /// `EF_AMDGPU_MACH` of the ELF header.
    pub elf_mach: u32,
}

/// One target.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    /// Name in command lines and manifests.
    pub name: &'static str,
    /// LLVM triple.
    pub triple: &'static str,
    /// LLVM cpu.
    pub cpu: &'static str,
    /// LLVM features beyond the cpu's.
    pub features: &'static str,
    /// LLVM features with which the emulator reads code objects, those of other compilers too.
    pub reading: &'static str,
    /// Pass pipeline.
    pub passes: &'static str,
    /// Whether LLVM unrolls loops: on the host, values of 32 lanes are unrolled by themselves.
    pub unroll: bool,
    /// Which lowering.
    pub lowering: Lowering,
    /// How objects are packed.
    pub packaging: Packaging,
    /// When later workgroups may start, where they may before this launch has ended: they wait for its end themselves
    /// ([`crate::kp::Stmt::Await`]).
    pub trigger: Option<Trigger>,
    /// Whether kernels can read a clock ([`crate::kp::Stmt::Spin`]).
    pub clock: bool,
    /// Bytes of weights that a workgroup asks for before it waits, at most; where the lowering has a way to ask.
    pub prefetch_bytes: u32,
    /// Arguments of the linker beside `-shared`.
    pub link_args: &'static [&'static str],
    /// Present for GPUs.
    pub gpu: Option<GpuFacts>,
}

/// Of sm_90: none. 16 KiB a workgroup gain nothing, whenever later workgroups may start (benches/RESULTS.md).
const PREFETCH_BYTES: u32 = 0;

/// Every target.
pub static TARGETS: &[Target] = &[
    Target {
        name: "x86-64",
        triple: "x86_64-unknown-linux-gnu",
        cpu: "x86-64-v3",
        features: "",
        reading: "",
        passes: "default<O2>",
        unroll: false,
        lowering: Lowering::HostVector,
        packaging: Packaging::OneSharedObject,
        trigger: None,
        clock: false,
        prefetch_bytes: 0,
        link_args: &["-m", "elf_x86_64", "-z", "defs", "--no-undefined"],
        gpu: None,
    },
    Target {
        name: "gfx1201",
        triple: "amdgcn-amd-amdhsa",
        cpu: "gfx1201",
        features: "",
        // Halves of registers by name: code compiled without the feature has the same encodings.
        reading: "+real-true16",
        passes: "default<O3>",
        unroll: true,
        lowering: Lowering::Amdgpu,
        packaging: Packaging::OnePerKernel,
        trigger: None,
        clock: false,
        prefetch_bytes: 0,
        link_args: &["--no-undefined"],
        gpu: Some(GpuFacts {
            max_lds: 65536,
            lds_pool: 131_072,
            max_vgprs: 256,
            vgpr_granule: 24,
            simd_vgprs: 1536,
            max_waves: 16,
            simds: 4,
            elf_mach: 0x4e,
        }),
    },
    Target {
        name: "sm_90",
        triple: "nvptx64-nvidia-cuda",
        cpu: "sm_90",
        // cp.async.bulk.prefetch.
        features: "+ptx80",
        reading: "",
        passes: "default<O3>",
        unroll: true,
        lowering: Lowering::Nvptx,
        packaging: Packaging::OneTextPerKernel,
        // At the start, early workgroups crowd where there is room, and each launch of a large model took 5 us longer (H200).
        trigger: Some(Trigger::End),
        clock: true,
        prefetch_bytes: PREFETCH_BYTES,
        link_args: &[],
        gpu: None,
    },
];

/// The target of that name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
