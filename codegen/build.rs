//! Compiles the crash recovery shim against LLVM's headers.

#[cfg(not(feature = "llvm"))]
fn main() {}

#[cfg(feature = "llvm")]
fn main() {
    println!("cargo::rerun-if-changed=src/shim.cpp");
    println!("cargo::rerun-if-env-changed=LLVM_SYS_221_PREFIX");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .flag("-fno-rtti")
        .flag("-Wno-unused-parameter")
        .include(include_dir())
        .file("src/shim.cpp")
        .compile("unglue_llvm_shim");
}

#[cfg(feature = "llvm")]
/// LLVM's header folder, found the way llvm-sys finds LLVM: the prefix if it is set, else `llvm-config-22` on PATH.
fn include_dir() -> String {
    if let Ok(prefix) = std::env::var("LLVM_SYS_221_PREFIX") {
        return format!("{prefix}/include");
    }
    std::process::Command::new("llvm-config-22")
        .arg("--includedir")
        .output()
        .ok()
        .filter(|out| out.status.success())
        .map_or_else(
            || "/usr/lib/llvm-22/include".to_owned(),
            |out| String::from_utf8_lossy(&out.stdout).trim().to_owned(),
        )
}
