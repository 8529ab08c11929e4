// Runs LLVM's passes and emission under its crash recovery, so that an abort inside LLVM comes back as an error.
//
// Recovery is a longjmp out of LLVM: no Rust frame may lie between RunSafely and LLVM, hence C++.

#include "llvm-c/Core.h"
#include "llvm-c/TargetMachine.h"
#include "llvm-c/Transforms/PassBuilder.h"
#include "llvm/Support/CrashRecoveryContext.h"
#include "llvm/Support/ErrorHandling.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace {

// What LLVM gave as its reason, per thread: read after the jump.
thread_local std::string fatal_reason;

void on_fatal(void *, const char *reason, bool) {
  fatal_reason = reason ? reason : "";
  // Without this LLVM goes on to exit(1) for "usage" errors, which no signal handler sees.
  if (auto *context = llvm::CrashRecoveryContext::GetCurrent())
    context->HandleExit(70);
}

char *copy(const char *text) { return strdup(text ? text : ""); }

// 0: fine; 1: LLVM returned an error.
int compile(LLVMModuleRef module, LLVMTargetMachineRef machine, const char *passes, int unroll, int assembly,
            LLVMMemoryBufferRef *out, char **message) {
  LLVMPassBuilderOptionsRef options = LLVMCreatePassBuilderOptions();
  // Values are vectors already: the vectorisers only cost compile time here.
  LLVMPassBuilderOptionsSetLoopUnrolling(options, unroll);
  LLVMPassBuilderOptionsSetLoopVectorization(options, 0);
  LLVMPassBuilderOptionsSetLoopInterleaving(options, 0);
  LLVMPassBuilderOptionsSetSLPVectorization(options, 0);
  LLVMErrorRef error = LLVMRunPasses(module, passes, machine, options);
  LLVMDisposePassBuilderOptions(options);
  if (error) {
    char *text = LLVMGetErrorMessage(error);
    *message = copy(text);
    LLVMDisposeErrorMessage(text);
    return 1;
  }
  char *text = nullptr;
  if (LLVMTargetMachineEmitToMemoryBuffer(machine, module, assembly ? LLVMAssemblyFile : LLVMObjectFile, &text, out)) {
    *message = copy(text);
    LLVMDisposeMessage(text);
    return 1;
  }
  return 0;
}

} // namespace

// Returns 0 with *out set; 1 with *message set: LLVM refused; 2 with *message set: LLVM crashed, and the module, the
// machine and their context must be leaked. Messages are freed with unglue_llvm_free.
extern "C" int unglue_llvm_compile(LLVMModuleRef module, LLVMTargetMachineRef machine, const char *passes, int unroll,
                                   int assembly, LLVMMemoryBufferRef *out, char **message) {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::CrashRecoveryContext::Enable();
    llvm::remove_fatal_error_handler();
    llvm::install_fatal_error_handler(on_fatal, nullptr);
  });
  fatal_reason.clear();
  int status = 0;
  llvm::CrashRecoveryContext context;
  if (context.RunSafely([&] { status = compile(module, machine, passes, unroll, assembly, out, message); }))
    return status;
  *message = copy(fatal_reason.empty() ? "crashed without giving a reason" : fatal_reason.c_str());
  return 2;
}

extern "C" void unglue_llvm_free(char *message) { free(message); }
