//! Objects to what a device loads, through LLD.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::CodegenError;
use crate::target::{Packaging, Target};

/// What a device loads of one kernel, from what LLVM made of it: text is taken as it is.
pub fn kernel(name: &str, object: Vec<u8>, t: &Target) -> Result<Vec<u8>, CodegenError> {
    match t.packaging {
        Packaging::OneTextPerKernel => Ok(object),
        Packaging::OnePerKernel | Packaging::OneSharedObject => shared_object(&[(name.to_owned(), object)], t),
    }
}

/// Links named objects into one shared object. A target that packs one kernel per file takes one object.
pub fn shared_object(objects: &[(String, Vec<u8>)], t: &Target) -> Result<Vec<u8>, CodegenError> {
    let names: Vec<&str> = objects.iter().map(|(name, _)| name.as_str()).collect();
    let what = match names.as_slice() {
        [] => "nothing".to_owned(),
        [name] => format!("kernel `{name}`"),
        [first, rest @ ..] => format!("kernel `{first}` and {} more", rest.len()),
    };
    let failed = |linker: &Path, message: String| CodegenError::Link {
        what: what.clone(),
        target: t.name,
        linker: linker.display().to_string(),
        message,
    };
    if objects.is_empty() || (t.packaging == Packaging::OnePerKernel && objects.len() > 1) {
        return Err(failed(Path::new("none"), format!("{} objects; this target packs one per file", objects.len())));
    }
    let (linker, flavor) = find_linker().ok_or_else(|| {
        failed(Path::new("ld.lld-22"), "not found, nor ld.lld or rust-lld; install the package lld-22".to_owned())
    })?;
    let io = |error: std::io::Error| failed(&linker, error.to_string());
    let dir = tempfile::tempdir().map_err(io)?;
    let mut command = Command::new(&linker);
    command.args(flavor).args(["-shared", "--build-id=none", "--hash-style=gnu", "--threads=1"]).args(t.link_args);
    command.current_dir(dir.path()).args(["-o", "out"]);
    for (i, (_, object)) in objects.iter().enumerate() {
        // Numbers, not kernel names: nothing of a path can reach the output.
        let name = format!("{i}.o");
        std::fs::write(dir.path().join(&name), object).map_err(io)?;
        command.arg(name);
    }
    let done = command.output().map_err(io)?;
    if !done.status.success() {
        return Err(failed(&linker, String::from_utf8_lossy(&done.stderr).trim().to_owned()));
    }
    std::fs::read(dir.path().join("out")).map_err(io)
}

/// LLD and the arguments that make it a GNU linker.
fn find_linker() -> Option<(PathBuf, &'static [&'static str])> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = |name: &str| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    if let Some(lld) = on_path("ld.lld-22").or_else(|| on_path("ld.lld")) {
        return Some((lld, &[]));
    }
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let lld =
        Path::new(String::from_utf8_lossy(&sysroot.stdout).trim()).join("lib/rustlib").join(host).join("bin/rust-lld");
    lld.is_file().then_some((lld, &["-flavor", "gnu"]))
}
