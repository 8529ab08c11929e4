//! Loads a code object as a driver would: segments, relocations, the kernel descriptor, launch state.

use object::elf;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, Rela, SectionHeader};
use object::{Endianness, Object, ObjectSymbol};

use super::fault::Trap;
use super::group::{set_group_ids, set_wave_id};
use super::memory::{CODE_BASE, Region, Rights, Words};
use super::step::{Code, decode};
use super::wave::Wave;
use crate::notes;
use crate::target::Target;

type Elf<'a> = ElfFile64<'a, Endianness>;

/// Bytes of a kernel descriptor.
const DESCRIPTOR: usize = 64;
/// Largest image of a code object.
const MAX_IMAGE: u64 = 1 << 30;
/// Relocations of code objects (LLVM's AMDGPU usage guide).
const R_AMDGPU_ABS64: u32 = 3;
const R_AMDGPU_RELATIVE64: u32 = 13;

/// Why a code object cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("not a 64-bit ELF file: {0}")]
    Format(String),
    #[error("machine 0x{machine:x} with flags 0x{flags:x}, not a code object for {target}")]
    Machine { machine: u16, flags: u32, target: &'static str },
    #[error("no symbol `{0}`")]
    Symbol(String),
    #[error("{0} lies outside of the file or its segments")]
    Range(&'static str),
    #[error("relocation of type {0} is not one that a driver applies (R_AMDGPU_RELATIVE64, R_AMDGPU_ABS64)")]
    Relocation(u32),
    #[error("the descriptor asks for {0}, which is not modelled")]
    Descriptor(String),
    #[error("metadata: {0}")]
    Metadata(String),
    #[error("code: {0}")]
    Code(Trap),
}

/// A kernel that is ready to run.
#[derive(Debug)]
pub struct Kernel {
    pub code: Code,
    /// What the code object itself asks for; a launch may have more ([`Kernel::with_dynamic_lds`]).
    pub lds_bytes: u32,
    pub scratch_bytes: u32,
    pub kernarg_bytes: u32,
    /// Memory image of the code object, for constants beside the code.
    pub image: Words,
    pub image_bytes: u64,
    /// Offset of the first instruction in the image.
    pub entry: u64,
    /// Work items of a workgroup, if the code object has metadata for the kernel.
    pub items: Option<u32>,
    /// User SGPRs before the kernarg pointer; None if the kernel takes no arguments.
    kernarg_sgpr: Option<u8>,
    /// Work-item ids of y and z are packed into v0.
    packed_ids: bool,
}

/// Fields of a kernel descriptor (LLVM's AMDGPU usage guide, code object v3 and later, gfx12).
struct Descriptor {
    lds_bytes: u32,
    scratch_bytes: u32,
    kernarg_bytes: u32,
    entry_offset: i64,
    rsrc1: u32,
    rsrc2: u32,
    properties: u16,
}

impl Descriptor {
    fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let low = u64::from(word(16)?) | u64::from(word(20)?) << 32;
        Some(Descriptor {
            lds_bytes: word(0)?,
            scratch_bytes: word(4)?,
            kernarg_bytes: word(8)?,
            entry_offset: low.cast_signed(),
            rsrc1: word(48)?,
            rsrc2: word(52)?,
            properties: (word(56)? & 0xffff) as u16,
        })
    }

    /// VGPRs of a wave of 32: blocks of 8.
    const fn vgprs(&self) -> u32 {
        ((self.rsrc1 & 0x3f) + 1) * 8
    }

    /// What the model has no meaning for.
    fn check(&self) -> Result<(), LoadError> {
        let refuse = |what: String| Err(LoadError::Descriptor(what));
        if self.rsrc1 >> 12 & 0xf != 0 {
            return refuse(format!("float rounding mode {}", self.rsrc1 >> 12 & 0xf));
        }
        if self.rsrc1 >> 16 & 0xf != 0xf {
            return refuse(format!("float denormal mode {:#x}, where 0xf keeps denormals", self.rsrc1 >> 16 & 0xf));
        }
        if self.properties >> 10 & 1 != 1 {
            return refuse("waves of 64".into());
        }
        // Kernarg pointer (3) is modelled; of the others, only the scratch size (6) is harmless: flat scratch is
        // architected.
        let user = self.properties & 0x7f & !(1 << 3 | 1 << 6);
        if user != 0 {
            return refuse(format!("user SGPRs {user:#x} (1 buffer, 2 dispatch, 4 queue, 16 dispatch id)"));
        }
        Ok(())
    }
}

/// Loads kernel `name` of a code object.
///
/// # Errors
/// [`LoadError`].
pub fn load(bytes: &[u8], name: &str, target: &'static Target) -> Result<Kernel, LoadError> {
    let file = Elf::parse(bytes).map_err(|e| LoadError::Format(e.to_string()))?;
    let (machine, flags) = (file.elf_header().e_machine(file.endian()), file.elf_header().e_flags(file.endian()));
    if machine != elf::EM_AMDGPU || Some(flags & 0xff) != target.gpu.map(|g| g.elf_mach) {
        return Err(LoadError::Machine { machine, flags, target: target.name });
    }
    let mut image = segments(&file, bytes)?;
    relocate(&file, bytes, &mut image)?;
    let symbol = |name: &str| {
        file.dynamic_symbols().find(|s| s.name() == Ok(name)).ok_or_else(|| LoadError::Symbol(name.to_owned()))
    };
    let at = symbol(&format!("{name}.kd"))?.address();
    let place = usize::try_from(at).ok().and_then(|at| image.get(at..at.checked_add(DESCRIPTOR)?));
    let descriptor = place.and_then(Descriptor::read).ok_or(LoadError::Range("the kernel descriptor"))?;
    descriptor.check()?;
    let entry = at.checked_add_signed(descriptor.entry_offset).ok_or(LoadError::Range("the entry"))?;
    let size = symbol(name)?.size();
    let items = metadata(&file, name, &descriptor)?;
    let text = usize::try_from(entry).ok().zip(usize::try_from(size).ok());
    let text = text.and_then(|(entry, size)| image.get(entry..entry.checked_add(size)?));
    let text = text.filter(|t| !t.is_empty()).ok_or(LoadError::Range("the kernel's code"))?;
    let reading = Target { features: target.reading, ..*target };
    let code = decode(text, &reading, descriptor.vgprs(), 106).map_err(LoadError::Code)?;
    let words = Words::zeroed(image.len());
    words.write(0, &image);
    Ok(Kernel {
        code,
        lds_bytes: descriptor.lds_bytes,
        scratch_bytes: descriptor.scratch_bytes,
        kernarg_bytes: descriptor.kernarg_bytes,
        image_bytes: image.len() as u64,
        image: words,
        entry,
        items,
        kernarg_sgpr: (descriptor.properties >> 3 & 1 == 1).then_some(0),
        packed_ids: descriptor.rsrc2 >> 11 & 3 != 0,
    })
}

/// Work items of a workgroup by the metadata, after a check that it agrees with the descriptor.
fn metadata(file: &Elf<'_>, name: &str, d: &Descriptor) -> Result<Option<u32>, LoadError> {
    let Some(kernel) = notes::of_kernel(file, name).map_err(LoadError::Metadata)? else { return Ok(None) };
    let number = |key| notes::number(&kernel, key).map_err(LoadError::Metadata);
    let both = [
        (".kernarg_segment_size", d.kernarg_bytes),
        (".group_segment_fixed_size", d.lds_bytes),
        (".private_segment_fixed_size", d.scratch_bytes),
        (".wavefront_size", 32),
    ];
    for (key, described) in both {
        let found = number(key)?;
        if found != described {
            return Err(LoadError::Metadata(format!("{key} is {found}, the descriptor says {described}")));
        }
    }
    number(".max_flat_workgroup_size").map(Some)
}

/// The memory image: every loadable segment at its address.
fn segments(file: &Elf<'_>, bytes: &[u8]) -> Result<Vec<u8>, LoadError> {
    let endian = file.endian();
    let loads = || file.elf_program_headers().iter().filter(|h| h.p_type(endian) == elf::PT_LOAD);
    let end = |h: &elf::ProgramHeader64<Endianness>| h.p_vaddr(endian).checked_add(h.p_memsz(endian));
    let mut size = 0u64;
    for header in loads() {
        size = size.max(end(header).filter(|e| *e <= MAX_IMAGE).ok_or(LoadError::Range("a segment"))?);
    }
    let mut image = vec![0; size as usize];
    for header in loads() {
        let data = header.data(endian, bytes).map_err(|()| LoadError::Range("a segment"))?;
        let start = header.p_vaddr(endian) as usize;
        let place = start.checked_add(data.len()).and_then(|end| image.get_mut(start..end));
        place.ok_or(LoadError::Range("a segment"))?.copy_from_slice(data);
    }
    Ok(image)
}

/// Applies the dynamic relocations.
fn relocate(file: &Elf<'_>, bytes: &[u8], image: &mut [u8]) -> Result<(), LoadError> {
    let endian = file.endian();
    let sections = file.elf_section_table();
    for section in sections.iter().filter(|s| s.sh_type(endian) == elf::SHT_RELA) {
        // Those without an allocated place are the linker's own.
        if section.sh_flags(endian) & u64::from(elf::SHF_ALLOC) == 0 {
            continue;
        }
        let relas = section.rela(endian, bytes).map_err(|e| LoadError::Format(e.to_string()))?;
        for rela in relas.into_iter().flat_map(|(relas, _)| relas) {
            let value = match rela.r_type(endian, false) {
                R_AMDGPU_RELATIVE64 => CODE_BASE.wrapping_add_signed(rela.r_addend(endian)),
                R_AMDGPU_ABS64 => {
                    let index = object::SymbolIndex(rela.r_sym(endian, false) as usize);
                    let symbol = file.dynamic_symbol_table().and_then(|t| {
                        use object::ObjectSymbolTable;
                        t.symbol_by_index(index).ok()
                    });
                    let address = symbol.map(|s| s.address()).ok_or(LoadError::Range("a relocation's symbol"))?;
                    (CODE_BASE.wrapping_add(address)).wrapping_add_signed(rela.r_addend(endian))
                }
                other => return Err(LoadError::Relocation(other)),
            };
            let start = usize::try_from(rela.r_offset(endian)).unwrap_or(usize::MAX);
            let place = start.checked_add(8).and_then(|end| image.get_mut(start..end));
            place.ok_or(LoadError::Range("a relocation"))?.copy_from_slice(&value.to_le_bytes());
        }
    }
    Ok(())
}

/// What every workgroup of a launch begins with.
#[derive(Debug)]
pub struct LaunchState {
    /// Address of the kernel arguments.
    pub kernarg: u64,
    /// Address of the first instruction.
    pub code_address: u64,
    /// Work items of a workgroup.
    pub items: [u32; 3],
}

impl LaunchState {
    /// Waves of a workgroup.
    #[must_use]
    pub const fn waves(&self) -> u32 {
        (self.items[0] * self.items[1] * self.items[2]).div_ceil(32)
    }

    /// Sets the registers of one wave.
    pub fn set(&self, wave: &mut Wave, number: u32, group: [u32; 3], kernel: &Kernel, poison: u32) {
        wave.sgpr.fill(poison);
        wave.vgpr.fill([poison; 32]);
        wave.scc = poison & 1 == 1;
        (wave.pc, wave.number) = (0, number);
        wave.scratch.clear();
        wave.scratch.resize(32 * kernel.scratch_bytes as usize, poison as u8);
        if let Some(first) = kernel.kernarg_sgpr {
            wave.set_s64(first, self.kernarg);
        }
        set_group_ids(wave, group);
        set_wave_id(wave, number, poison);
        let total = self.items[0] * self.items[1] * self.items[2];
        let first = number * 32;
        let alive = total.saturating_sub(first).min(32);
        wave.set_exec(if alive == 32 { u32::MAX } else { (1 << alive) - 1 });
        wave.vgpr[0] = std::array::from_fn(|l| {
            let item = first + l as u32;
            let (x, y) = (item % self.items[0], item / self.items[0] % self.items[1]);
            let z = item / (self.items[0] * self.items[1]);
            if kernel.packed_ids { x | y << 10 | z << 20 } else { x }
        });
    }
}

impl Kernel {
    /// A kernel without LDS of its own, launched with `bytes` of it (dynamic LDS). With LDS of its own it stays as it is.
    #[must_use]
    pub fn with_dynamic_lds(mut self, bytes: u32) -> Self {
        if self.lds_bytes == 0 {
            self.lds_bytes = bytes;
        }
        self
    }

    /// The code object's own data as a region, and the address of the first instruction once it is placed at `base`.
    #[must_use]
    pub fn region(&self) -> Region<'_> {
        Region { name: "code object", words: &self.image, offset: 0, bytes: self.image_bytes, rights: Rights::Read }
    }
}
