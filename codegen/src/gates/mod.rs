//! Checks on finished machine code: what must hold before a kernel goes into a bundle.

pub mod finish;
pub mod flow;
pub mod isa;
pub mod pointers;
pub mod ptx;
mod ptx_await;
pub mod streams;
pub mod waits;

pub use crate::generate::Stream;
pub use finish::{Exchange, exchange_of};

use object::elf;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol};
use rmpv::Value;

use crate::error::CodegenError;
use crate::kp::{Param, Program};
use crate::notes::{self, field};
use crate::target::{GpuFacts, Packaging, Target};

/// What a kernel takes, from the code object's notes. Host code has only `code_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Resources {
    pub vgprs: u32,
    pub sgprs: u32,
    pub vgpr_spills: u32,
    pub sgpr_spills: u32,
    pub lds_bytes: u32,
    pub scratch_bytes: u32,
    pub kernarg_bytes: u32,
    pub wavefront: u32,
    pub code_bytes: u64,
    /// Waves that one SIMD can hold at once.
    pub occupancy: u32,
}

/// The processor's part of the ELF flags.
const EF_AMDGPU_MACH: u32 = 0xff;

/// A failed gate, before the kernel's name is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    pub gate: &'static str,
    pub found: String,
    pub cure: &'static str,
}

/// What one gate says.
pub type Gate<T> = Result<T, Failed>;

fn failed<T>(gate: &'static str, found: impl Into<String>, cure: &'static str) -> Gate<T> {
    Err(Failed { gate, found: found.into(), cure })
}

const REPORT: &str = "this is a fault of the lowering: report it with the program's text form";

/// Checks linked code, or a text, that holds the kernel `p`. Gates: `format`, `entry`, `undefined`, and for GPUs `target`, `notes`,
/// `kernarg`, `spills`, `scratch`, `lds`, `vgprs`, `wavefront`, `disassembly`, `unmodelled`, `branch`, `waits`,
/// `waits-barrier`, `finish`, `exchanged-scalar`, `b128`.
///
/// # Errors
/// [`CodegenError::Gate`] names the first gate that fails.
pub fn check(code_object: &[u8], p: &Program, t: &Target) -> Result<Resources, CodegenError> {
    check_streams(code_object, p, t, &[])
}

/// [`check`], and that weights are streamed well (gate `b128`).
///
/// # Errors
/// [`CodegenError::Gate`] names the first gate that fails.
pub fn check_streams(
    code_object: &[u8],
    p: &Program,
    t: &Target,
    streams: &[Stream],
) -> Result<Resources, CodegenError> {
    run(code_object, p, t, streams).map_err(|f| CodegenError::Gate {
        kernel: p.name.clone(),
        gate: f.gate,
        found: f.found,
        cure: f.cure,
    })
}

type Elf<'a> = ElfFile64<'a, Endianness>;

fn run(code: &[u8], p: &Program, t: &Target, streams: &[Stream]) -> Gate<Resources> {
    if t.packaging == Packaging::OneTextPerKernel {
        return ptx::check(code, p, t);
    }
    let file = match Elf::parse(code) {
        Ok(file) => file,
        Err(error) => return failed("format", format!("not a 64-bit ELF file: {error}"), "link it first"),
    };
    if let Some(symbol) = file.dynamic_symbols().find(ObjectSymbol::is_undefined) {
        let name = symbol.name().unwrap_or("?");
        return failed("undefined", format!("symbol `{name}` is undefined"), "lower that operation without a call");
    }
    let text = entry(&file, code, &p.name)?;
    let Some(gpu) = &t.gpu else {
        return Ok(Resources { code_bytes: text.len() as u64, ..Resources::default() });
    };
    let flags = file.elf_header().e_flags(file.endian()) & EF_AMDGPU_MACH;
    if file.elf_header().e_machine(file.endian()) != elf::EM_AMDGPU || flags != gpu.elf_mach {
        return failed("target", format!("ELF machine flags 0x{flags:x}, not 0x{:x}", gpu.elf_mach), REPORT);
    }
    let kernel = kernel_notes(&file, &p.name)?;
    kernarg(&kernel, p)?;
    let mut resources = resources(&kernel)?;
    resources.code_bytes = text.len() as u64;
    limits(&resources, gpu)?;
    resources.occupancy = occupancy(&resources, p.waves, gpu);
    let code = isa::decode(text, t)?;
    waits::check(&code)?;
    finish::check(&code, &exchange_of(p), p.waves)?;
    let offsets: Vec<u32> = arguments(p).iter().map(|argument| argument.offset).collect();
    streams::check(&code, streams, &offsets)?;
    Ok(resources)
}

/// The code of the exported function `name`.
fn entry<'a>(file: &Elf<'a>, code: &'a [u8], name: &str) -> Gate<&'a [u8]> {
    let Some(symbol) = file.dynamic_symbols().find(|s| s.name() == Ok(name)) else {
        return failed("entry", format!("no exported symbol `{name}`"), REPORT);
    };
    // Program headers give the place in the file: section headers may be stripped.
    for header in file.elf_program_headers() {
        let endian = file.endian();
        let (start, size) = (header.p_vaddr(endian), header.p_filesz(endian));
        let Some(offset) = symbol.address().checked_sub(start).filter(|offset| *offset < size) else { continue };
        if header.p_type(endian) != elf::PT_LOAD {
            continue;
        }
        let first = usize::try_from(header.p_offset(endian) + offset).unwrap_or(usize::MAX);
        let length = usize::try_from(symbol.size()).unwrap_or(usize::MAX);
        if let Some(text) = first.checked_add(length).and_then(|last| code.get(first..last)) {
            return Ok(text);
        }
    }
    failed("entry", format!("`{name}` lies outside of the file"), REPORT)
}

fn number(map: &Value, key: &str) -> Gate<u32> {
    notes::number(map, key).or_else(|found| failed("notes", found, REPORT))
}

/// The kernel's entry in the metadata note.
fn kernel_notes(file: &Elf<'_>, name: &str) -> Gate<Value> {
    match notes::of_kernel(file, name) {
        Ok(Some(kernel)) => Ok(kernel),
        Ok(None) => failed("notes", format!("no metadata for `{name}`"), REPORT),
        Err(found) => failed("notes", found, REPORT),
    }
}

/// A parameter among the kernel's arguments.
struct Argument {
    offset: u32,
    size: u32,
    kind: &'static str,
}

/// Parameters as the ABI lays them out: in order, naturally aligned.
fn arguments(p: &Program) -> Vec<Argument> {
    let mut end = 0u32;
    let place = |param: &Param| {
        let (size, kind) = match param {
            Param::Buffer { .. } => (8, "global_buffer"),
            Param::Scalar { .. } => (4, "by_value"),
        };
        let offset = end.next_multiple_of(size);
        end = offset + size;
        Argument { offset, size, kind }
    };
    p.params.iter().map(place).collect()
}

/// The arguments in the metadata are the program's parameters, naturally aligned, and nothing else.
fn kernarg(kernel: &Value, p: &Program) -> Gate<()> {
    let args = field(kernel, ".args").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if args.len() != p.params.len() {
        let kinds: Vec<&str> =
            args.iter().map(|arg| field(arg, ".value_kind").and_then(Value::as_str).unwrap_or("?")).collect();
        let found = format!("{} arguments ({}) for {} parameters", args.len(), kinds.join(", "), p.params.len());
        return failed("kernarg", found, REPORT);
    }
    for (i, (arg, expected)) in args.iter().zip(arguments(p)).enumerate() {
        let Argument { offset, size, kind } = expected;
        let found = (number(arg, ".offset")?, number(arg, ".size")?, field(arg, ".value_kind").and_then(Value::as_str));
        if found != (offset, size, Some(kind)) {
            let found = format!("argument {i} is {found:?}, the parameter {:?}", (offset, size, kind));
            return failed("kernarg", found, REPORT);
        }
    }
    Ok(())
}

fn resources(kernel: &Value) -> Gate<Resources> {
    Ok(Resources {
        vgprs: number(kernel, ".vgpr_count")?,
        sgprs: number(kernel, ".sgpr_count")?,
        vgpr_spills: number(kernel, ".vgpr_spill_count")?,
        sgpr_spills: number(kernel, ".sgpr_spill_count")?,
        lds_bytes: number(kernel, ".group_segment_fixed_size")?,
        scratch_bytes: number(kernel, ".private_segment_fixed_size")?,
        kernarg_bytes: number(kernel, ".kernarg_segment_size")?,
        wavefront: number(kernel, ".wavefront_size")?,
        code_bytes: 0,
        occupancy: 0,
    })
}

fn limits(r: &Resources, gpu: &GpuFacts) -> Gate<()> {
    let smaller = "choose a schedule with fewer values per lane";
    if r.vgpr_spills + r.sgpr_spills > 0 {
        return failed("spills", format!("{} VGPRs and {} SGPRs spilled", r.vgpr_spills, r.sgpr_spills), smaller);
    }
    if r.scratch_bytes > 0 {
        return failed("scratch", format!("{} bytes of scratch per lane", r.scratch_bytes), smaller);
    }
    if r.lds_bytes > gpu.max_lds {
        let found = format!("{} bytes of LDS, at most {}", r.lds_bytes, gpu.max_lds);
        return failed("lds", found, "choose a schedule with a smaller tile");
    }
    if r.vgprs > gpu.max_vgprs {
        return failed("vgprs", format!("{} VGPRs, at most {}", r.vgprs, gpu.max_vgprs), smaller);
    }
    if r.wavefront != 32 {
        return failed("wavefront", format!("waves of {}", r.wavefront), REPORT);
    }
    Ok(())
}

/// Waves per SIMD that registers and LDS allow, for workgroups of so many waves.
#[must_use]
pub fn occupancy(r: &Resources, waves: u32, gpu: &GpuFacts) -> u32 {
    let by_vgprs = gpu.simd_vgprs / r.vgprs.max(1).next_multiple_of(gpu.vgpr_granule);
    let by_lds = (gpu.lds_pool.checked_div(r.lds_bytes))
        .map_or(gpu.max_waves, |groups| (groups * waves).div_ceil(gpu.simds).max(1));
    gpu.max_waves.min(by_vgprs).min(by_lds)
}
