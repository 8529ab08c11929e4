//! The metadata note of a code object: what the kernel needs, as the compiler says it.

use object::Endianness;
use object::read::elf::{ElfFile64, ProgramHeader};
use rmpv::Value;

/// Type of the metadata note (LLVM's AMDGPU usage guide).
const NT_AMDGPU_METADATA: u32 = 32;

/// A field of a map.
pub fn field<'v>(map: &'v Value, key: &str) -> Option<&'v Value> {
    map.as_map()?.iter().find(|(k, _)| k.as_str() == Some(key)).map(|(_, v)| v)
}

/// A number of a map.
///
/// # Errors
/// What is missing.
pub fn number(map: &Value, key: &str) -> Result<u32, String> {
    let value = field(map, key).and_then(Value::as_u64).and_then(|v| u32::try_from(v).ok());
    value.ok_or_else(|| format!("the metadata has no number `{key}`"))
}

/// The kernel's entry in the metadata note, if the file has one for it.
///
/// # Errors
/// The note cannot be read.
pub fn of_kernel(file: &ElfFile64<'_, Endianness>, name: &str) -> Result<Option<Value>, String> {
    let endian = file.endian();
    let data = file.data();
    for header in file.elf_program_headers() {
        let Ok(Some(mut notes)) = header.notes(endian, data) else { continue };
        while let Ok(Some(note)) = notes.next() {
            if note.name() != b"AMDGPU" || note.n_type(endian) != NT_AMDGPU_METADATA {
                continue;
            }
            let mut payload = note.desc();
            let metadata = rmpv::decode::read_value(&mut payload).map_err(|_| "the metadata is no MessagePack")?;
            let kernels = field(&metadata, "amdhsa.kernels").and_then(Value::as_array);
            let named = |kernel: &&Value| field(kernel, ".name").and_then(Value::as_str) == Some(name);
            if let Some(kernel) = kernels.into_iter().flatten().find(named) {
                return Ok(Some(kernel.clone()));
            }
        }
    }
    Ok(None)
}
