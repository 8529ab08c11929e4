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
    /// Arguments of the linker beside `-shared`.
    pub link_args: &'static [&'static str],
    /// Present for GPUs.
    pub gpu: Option<GpuFacts>,
}

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
        features: "",
        reading: "",
        passes: "default<O3>",
        unroll: true,
        lowering: Lowering::Nvptx,
        packaging: Packaging::OneTextPerKernel,
        link_args: &[],
        gpu: None,
    },
];

/// The target of that name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
