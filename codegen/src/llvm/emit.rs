//! LLVM text to an object file, with every way LLVM has of failing turned into an error.
#![allow(unsafe_code)] // calls of LLVM's C interface and of the crash recovery shim

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::Once;

use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::llvm_sys::LLVMDiagnosticSeverity::LLVMDSError;
use inkwell::llvm_sys::core::{
    LLVMContextSetDiagnosticHandler, LLVMDisposeMemoryBuffer, LLVMDisposeMessage, LLVMGetBufferSize,
    LLVMGetBufferStart, LLVMGetDiagInfoDescription, LLVMGetDiagInfoSeverity, LLVMGetVersion,
};
use inkwell::llvm_sys::prelude::{LLVMDiagnosticInfoRef, LLVMMemoryBufferRef, LLVMModuleRef};
use inkwell::llvm_sys::target_machine::LLVMTargetMachineRef;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::targets::{CodeModel, InitializationConfig, RelocMode, Target as LlvmTarget, TargetMachine, TargetTriple};

use crate::error::CodegenError;
use crate::target::{Packaging, Target};

unsafe extern "C" {
    fn unglue_llvm_compile(
        module: LLVMModuleRef,
        machine: LLVMTargetMachineRef,
        passes: *const c_char,
        unroll: c_int,
        assembly: c_int,
        out: *mut LLVMMemoryBufferRef,
        message: *mut *mut c_char,
    ) -> c_int;
    fn unglue_llvm_free(message: *mut c_char);
    /// LLVM's, which llvm-sys does not declare.
    fn LLVMInitializeAMDGPUDisassembler();
}

/// What the shim answers.
const CRASHED: c_int = 2;

/// Compiles the module `text`, which defines `kernel`.
pub(crate) fn object(text: &str, kernel: &str, t: &Target) -> Result<Vec<u8>, CodegenError> {
    let mut context = ManuallyDrop::new(Context::create());
    let mut errors = ManuallyDrop::new(Box::new(Vec::<String>::new()));
    // SAFETY: the handler gets a pointer to `errors`, which lives as long as the context: both are dropped or leaked
    // together below.
    unsafe {
        let errors: *mut Vec<String> = &raw mut **errors;
        LLVMContextSetDiagnosticHandler(context.raw(), Some(on_diagnostic), errors.cast());
    }
    let result = compile(&context, text, t);
    if let Err(Failure::Crashed(message)) = result {
        // LLVM was left in the middle of its work: nothing of it may be touched again, so the context leaks.
        return Err(CodegenError::LlvmAbort { kernel: kernel.to_owned(), target: t.name, message });
    }
    // SAFETY: neither is used again.
    let errors = unsafe {
        ManuallyDrop::drop(&mut context);
        ManuallyDrop::take(&mut errors)
    };
    let refused = |stage, message| CodegenError::Llvm { kernel: kernel.to_owned(), target: t.name, stage, message };
    match result {
        Err(Failure::Refused(stage, message)) => Err(refused(stage, message)),
        // LLVM goes on after an error diagnostic and hands back a bad object.
        _ if !errors.is_empty() => Err(refused("code generation", errors.join("; "))),
        Ok(object) => Ok(object),
        Err(Failure::Crashed(message)) => Err(refused("crash", message)),
    }
}

/// How LLVM failed.
enum Failure {
    /// At this stage, with this message.
    Refused(&'static str, String),
    Crashed(String),
}

fn compile(context: &Context, text: &str, t: &Target) -> Result<Vec<u8>, Failure> {
    let refused = |stage| move |message: String| Failure::Refused(stage, message);
    let machine = machine(t).map_err(refused("target"))?;
    // inkwell wants the terminating zero as part of the buffer.
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    let buffer = MemoryBuffer::create_from_memory_range_copy(&bytes, "kernel");
    let module = context.create_module_from_ir(buffer).map_err(|error| refused("parser")(error.to_string()))?;
    module.set_triple(&TargetTriple::create(t.triple));
    module.set_data_layout(&machine.get_target_data().get_data_layout());
    module.verify().map_err(|error| refused("verifier")(error.to_string()))?;
    let passes = CString::new(t.passes).map_err(|error| refused("passes")(error.to_string()))?;
    let (mut out, mut message) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: module and machine are alive, and the shim writes one of `out` and `message`.
    let status = unsafe {
        unglue_llvm_compile(
            module.as_mut_ptr(),
            machine.as_mut_ptr(),
            passes.as_ptr(),
            c_int::from(t.unroll),
            c_int::from(t.packaging == Packaging::OneTextPerKernel),
            &mut out,
            &mut message,
        )
    };
    match status {
        0 => Ok(take_buffer(out)),
        CRASHED => {
            std::mem::forget((module, machine));
            Err(Failure::Crashed(take_message(message)))
        }
        _ => Err(Failure::Refused("emission", take_message(message))),
    }
}

/// LLVM's version, as its library says it.
pub(crate) fn version() -> String {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: it only writes the three numbers.
    unsafe { LLVMGetVersion(&raw mut major, &raw mut minor, &raw mut patch) };
    format!("{major}.{minor}.{patch}")
}

/// Registers LLVM's targets, once.
pub(crate) fn initialize() {
    static INIT: Once = Once::new();
    INIT.call_once(|| {
        LlvmTarget::initialize_x86(&InitializationConfig::default());
        LlvmTarget::initialize_amd_gpu(&InitializationConfig::default());
        LlvmTarget::initialize_nvptx(&InitializationConfig::default());
        // SAFETY: it only registers functions, and only once.
        unsafe { LLVMInitializeAMDGPUDisassembler() };
    });
}

fn machine(t: &Target) -> Result<TargetMachine, String> {
    initialize();
    let triple = TargetTriple::create(t.triple);
    LlvmTarget::from_triple(&triple)
        .map_err(|error| error.to_string())?
        .create_target_machine(
            &triple,
            t.cpu,
            t.features,
            OptimizationLevel::Default,
            RelocMode::PIC,
            CodeModel::Default,
        )
        .ok_or_else(|| format!("LLVM has no machine for {} {}", t.triple, t.cpu))
}

/// Records errors; remarks and warnings are dropped.
extern "C" fn on_diagnostic(info: LLVMDiagnosticInfoRef, errors: *mut c_void) {
    // SAFETY: LLVM calls this with a live diagnostic, on the thread that compiles, with the pointer set above.
    unsafe {
        if matches!(LLVMGetDiagInfoSeverity(info), LLVMDSError) {
            let text = LLVMGetDiagInfoDescription(info);
            let errors = &mut *errors.cast::<Vec<String>>();
            errors.push(CStr::from_ptr(text).to_string_lossy().trim().to_owned());
            LLVMDisposeMessage(text);
        }
    }
}

fn take_message(message: *mut c_char) -> String {
    if message.is_null() {
        return "no message".to_owned();
    }
    // SAFETY: the shim made this C string for us.
    unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().trim().to_owned();
        unglue_llvm_free(message);
        text
    }
}

fn take_buffer(buffer: LLVMMemoryBufferRef) -> Vec<u8> {
    // SAFETY: the shim hands over a buffer of LLVM's, which is copied and then freed.
    unsafe {
        let start = LLVMGetBufferStart(buffer).cast::<u8>();
        let bytes = std::slice::from_raw_parts(start, LLVMGetBufferSize(buffer)).to_vec();
        LLVMDisposeMemoryBuffer(buffer);
        bytes
    }
}
