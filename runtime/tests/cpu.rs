//! The CPU device: launches, threads, guards, loading.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]
#![allow(unsafe_code, reason = "sets the floating-point mode of the test's thread")]

mod common;

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use common::{compile, kernel};
use unglue_runtime::manifest::Kernel;
use unglue_runtime::{ArgValue, BufferId, Code, CpuDevice, CpuOptions, Device, Guard, ListedLaunch, RuntimeError};

const SOURCE: &str = r"
#include <stdint.h>
#define KERNEL(name) void name(const uint64_t *a, const int32_t *g, uint8_t *shared)
// out[i] = x[i] * y[i] + n, 64 elements a workgroup
KERNEL(mul) {
  float *x = (float *)a[0], *y = (float *)a[1], *out = (float *)a[2];
  for (int i = g[0] * 64; i < g[0] * 64 + 64; i++) out[i] = x[i] * y[i] + (int32_t)a[3];
}
// out[linear] = x | y << 8 | z << 16, and where shared memory lies
KERNEL(where) {
  int32_t *out = (int32_t *)a[0];
  out[g[0] + 5 * (g[1] + 3 * g[2])] = g[0] | g[1] << 8 | g[2] << 16 | ((uintptr_t)shared % 64) << 24;
  for (int i = 0; i < 64; i++) shared[i] = 1;
}
// out = the first word of shared memory, then write it; n: writes past the end
KERNEL(share) { *(int32_t *)a[0] = *(int32_t *)shared; for (int i = 0; i < 100 + (int32_t)a[1]; i++) shared[i] = 1; }
// read or write byte n of a buffer
KERNEL(peek) { volatile char *p = (char *)a[0] + (int32_t)a[1]; char c = *p; *p = c; }
";

fn kernels() -> Vec<Kernel> {
    let share = Kernel { shared_bytes: 100, ..kernel("share", "wi n") };
    vec![kernel("mul", "rf rf wf n"), kernel("where", "wi"), share, kernel("peek", "xf n")]
}

fn device(options: CpuOptions) -> CpuDevice {
    let mut device = CpuDevice::new(options).unwrap();
    let code = compile(SOURCE);
    device.load(&kernels(), &[Code { kernel: None, bytes: &code }]).unwrap();
    device
}

fn whole(id: BufferId, bytes: u64) -> ArgValue {
    ArgValue::Buffer { id, offset: 0, bytes }
}

fn floats(device: &mut CpuDevice, values: &[f32]) -> BufferId {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let id = device.alloc(bytes.len() as u64).unwrap();
    device.write(id, 0, &bytes).unwrap();
    id
}

fn words(device: &CpuDevice, id: BufferId, n: usize) -> Vec<u32> {
    let mut bytes = vec![0; n * 4];
    device.read(id, 0, &mut bytes).unwrap();
    bytes.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn every_workgroup_runs_once_on_any_number_of_threads() {
    for threads in [0, 1, 2, 3, 16] {
        let mut device = device(CpuOptions { threads, ..Default::default() });
        let n = 64 * 1000;
        let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let (a, b) = (floats(&mut device, &x), floats(&mut device, &vec![2.0; n]));
        let out = device.alloc(n as u64 * 4).unwrap();
        let args = [a, b, out].map(|id| whole(id, n as u64 * 4));
        let args = [args.as_slice(), &[ArgValue::Scalar(-3)]].concat();
        device.launch(0, [1000, 1, 1], &args).unwrap();
        let found = words(&device, out, n);
        assert!(found.iter().zip(&x).all(|(w, x)| f32::from_bits(*w) == x * 2.0 - 3.0), "{threads} threads");
        let out = device.alloc(5 * 3 * 2 * 4).unwrap();
        device.launch(1, [5, 3, 2], &[whole(out, 120)]).unwrap();
        let expected: Vec<u32> = (0..30u32).map(|i| (i % 5) | ((i / 5 % 3) << 8) | ((i / 15) << 16)).collect();
        assert_eq!(words(&device, out, 30), expected, "group numbers, and shared memory aligned to 64");
    }
}

#[test]
fn the_callers_rounding_mode_does_not_matter() {
    let mut device = device(CpuOptions { threads: 1, ..Default::default() });
    let tiny = f32::from_bits(0x0000_4000);
    let (a, b) = (floats(&mut device, &[tiny; 64]), floats(&mut device, &[0.5; 64]));
    let out = device.alloc(256).unwrap();
    let args = [whole(a, 256), whole(b, 256), whole(out, 256), ArgValue::Scalar(0)];
    let (flush, mut after, default) = (0x9fc0u32, 0u32, 0x1f80u32);
    // SAFETY: 0x9fc0 is the default mode with flush-to-zero and denormals-are-zero; the default is put back.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const flush) };
    let result = device.launch(0, [1, 1, 1], &args);
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut after);
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const default);
    }
    result.unwrap();
    assert_eq!(words(&device, out, 64), [0x2000; 64]);
    assert_eq!(after & 0xffc0, flush & 0xffc0, "the caller's mode is put back");
}

/// A list holds addresses: it must not outlive what they point to.
#[test]
fn a_list_runs_until_a_buffer_goes_or_other_code_comes() {
    let mut device = device(CpuOptions::default());
    let (x, out) = (floats(&mut device, &[1.5; 64]), device.alloc(256).unwrap());
    let spare = device.alloc(4).unwrap();
    let first = [whole(x, 256), whole(x, 256), whole(out, 256), ArgValue::Scalar(1)];
    let second = [whole(out, 256), whole(x, 256), whole(x, 256), ArgValue::Scalar(0)];
    let launches = [&first[..], &second[..]].map(|args| ListedLaunch { kernel: 0, grid: [1, 1, 1], args });
    let list = device.record(&launches).unwrap().unwrap();
    device.replay(list).unwrap();
    device.replay(list).unwrap();
    let once = |x: f32| (x * x + 1.0) * x;
    assert_eq!(words(&device, x, 64), [once(once(1.5)).to_bits(); 64], "in order, each time");
    let wrong = [ListedLaunch { kernel: 9, ..launches[0] }];
    assert!(device.record(&wrong).is_err(), "checked when recorded");
    let gone = |device: &mut CpuDevice, list| match device.replay(list) {
        Err(e @ RuntimeError::Device { .. }) => assert!(e.to_string().contains("recorded"), "{e}"),
        other => panic!("{other:?}"),
    };
    device.free(spare).unwrap();
    gone(&mut device, list);
    let list = device.record(&launches).unwrap().unwrap();
    device.load(&kernels(), &[Code { kernel: None, bytes: &compile(SOURCE) }]).unwrap();
    gone(&mut device, list);
    let list = device.record(&launches).unwrap().unwrap();
    device.forget(list).unwrap();
    gone(&mut device, list);
}

#[test]
fn shared_memory_is_poisoned_when_asked() {
    for (poison_shared, expected) in [(false, 0x0101_0101), (true, u32::MAX)] {
        let mut device = device(CpuOptions { threads: 1, poison_shared, guard: Guard::Off });
        let out = device.alloc(4).unwrap();
        let args = [whole(out, 4), ArgValue::Scalar(0)];
        device.launch(2, [1, 1, 1], &args).unwrap();
        device.launch(2, [1, 1, 1], &args).unwrap();
        assert_eq!(words(&device, out, 1), [expected]);
    }
}

/// Runs `guard_child` in a process of its own; true if it died of SIGSEGV, false if it passed.
fn faults(guard: &str, bytes: u64, at: i64) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "guard_child", "--ignored"]).env("UNGLUE_GUARD", format!("{guard} {bytes} {at}"));
    let output = child.output().unwrap();
    assert!(output.status.success() || output.status.signal() == Some(11), "{output:?}");
    !output.status.success()
}

#[test]
#[ignore = "run by guards_make_accesses_out_of_bounds_fault"]
fn guard_child() {
    let Ok(case) = std::env::var("UNGLUE_GUARD") else { return };
    let words: Vec<&str> = case.split(' ').collect();
    let guard = if words[0] == "tight" { Guard::Tight } else { Guard::Aligned };
    let mut device = device(CpuOptions { threads: 1, guard, poison_shared: false });
    let (bytes, at) = (words[1].parse().unwrap(), words[2].parse().unwrap());
    let id = device.alloc(bytes).unwrap();
    let (kernel, at) = if words[0] == "shared" { (2, at - 100) } else { (3, at) };
    device.launch(kernel, [1, 1, 1], &[whole(id, bytes), ArgValue::Scalar(at)]).unwrap();
}

#[test]
fn guards_make_accesses_out_of_bounds_fault() {
    assert!(!faults("tight", 100, 99) && faults("tight", 100, 100));
    assert!(!faults("aligned", 100, 99) && !faults("aligned", 100, 127) && faults("aligned", 100, 128));
    assert!(!faults("aligned", 8192, 0) && faults("aligned", 8192, -1), "before the start, where that is a page's");
    assert!(!faults("shared", 4, 128) && faults("shared", 4, 129), "shared memory, rounded up to 64");
}

#[test]
fn misuse_is_an_error() {
    let mut device = device(CpuOptions::default());
    let id = device.alloc(256).unwrap();
    let good = [whole(id, 256), whole(id, 256), whole(id, 256), ArgValue::Scalar(0)];
    device.launch(0, [1, 1, 1], &good).unwrap();
    let mut refused = |needle: &str, kernel: u32, grid: [u32; 3], args: &[ArgValue]| {
        let error = device.launch(kernel, grid, args).unwrap_err().to_string();
        assert!(error.contains(needle), "{needle}: {error}");
    };
    refused("kernel index", 9, [1, 1, 1], &good);
    refused("grid", 0, [1, 0, 1], &good);
    refused("grid", 0, [u32::MAX; 3], &good);
    refused("argument count", 0, [1, 1, 1], &good[1..]);
    let with = |arg| [arg, good[1], good[2], good[3]];
    refused("argument kind", 0, [1, 1, 1], &with(ArgValue::Scalar(0)));
    refused("argument kind", 0, [1, 1, 1], &[good[0], good[1], good[2], good[0]]);
    refused("buffer handle", 0, [1, 1, 1], &with(whole(BufferId(99), 256)));
    refused("range", 0, [1, 1, 1], &with(whole(id, 257)));
    refused("range", 0, [1, 1, 1], &with(ArgValue::Buffer { id, offset: u64::MAX, bytes: 2 }));
    refused("alignment", 0, [1, 1, 1], &with(ArgValue::Buffer { id, offset: 2, bytes: 4 }));
    assert!(device.write(id, 250, &[0; 7]).is_err());
    assert!(device.read(id, u64::MAX, &mut [0; 7]).is_err());
    assert!(device.fill(id, 0, 257, 0).is_err());
    device.fill(id, 0, 256, 7).unwrap();
    device.free(id).unwrap();
    assert!(device.free(id).is_err() && device.launch(0, [1, 1, 1], &good).is_err());
    for bytes in [1 << 63, u64::MAX, 1 << 46, (1 << 46) + 1] {
        assert!(matches!(device.alloc(bytes), Err(RuntimeError::OutOfMemory { .. })), "{bytes}");
    }
    device.alloc(0).unwrap();
    assert!(CpuDevice::new(CpuOptions { threads: 1 << 20, ..Default::default() }).is_err());
}

#[test]
fn bad_code_is_refused() {
    let mut device = CpuDevice::new(CpuOptions::default()).unwrap();
    let code = compile(SOURCE);
    let all = |bytes| Code { kernel: None, bytes };
    let mut refused = |kernels: &[Kernel], code: &[Code<'_>], needle: &str| {
        let error = device.load(kernels, code).unwrap_err().to_string();
        assert!(error.contains(needle), "{needle}: {error}");
    };
    refused(&kernels(), &[], "0 parts");
    refused(&kernels(), &[Code { kernel: Some(0), bytes: &code }], "one shared object");
    refused(&kernels(), &[all(b"no code")], "ELF");
    refused(&kernels(), &[all(&code[..200])], "shared object");
    refused(&[kernel("nowhere", "n")], &[all(&code)], "the entry nowhere");
    let undefined = compile("extern void missing_symbol(void); void mul(void) { missing_symbol(); }");
    refused(&[kernel("mul", "n")], &[all(&undefined)], "undefined");
    let mut huge = kernels();
    huge[0].shared_bytes = u64::MAX;
    refused(&huge, &[all(&code)], "no room");
}

#[test]
fn two_modules_with_equal_names_live_side_by_side() {
    let constant = |n: i32| {
        let source = format!("#include <stdint.h>\nvoid f(const uint64_t *a) {{ *(int32_t *)a[0] = {n}; }}");
        let (code, mut device) = (compile(&source), CpuDevice::new(CpuOptions::default()).unwrap());
        device.load(&[kernel("f", "wi")], &[Code { kernel: None, bytes: &code }]).unwrap();
        device
    };
    let run = |device: &mut CpuDevice| {
        let id = device.alloc(4).unwrap();
        device.launch(0, [1, 1, 1], &[whole(id, 4)]).unwrap();
        words(device, id, 1)[0]
    };
    let (mut one, mut two) = (constant(1), constant(2));
    assert_eq!((run(&mut one), run(&mut two)), (1, 2));
    drop(one);
    let mut three = constant(3);
    assert_eq!((run(&mut two), run(&mut three)), (2, 3));
    let code = compile("#include <stdint.h>\nvoid f(const uint64_t *a) { *(int32_t *)a[0] = 4; }");
    three.load(&[kernel("f", "wi")], &[Code { kernel: None, bytes: &code }]).unwrap();
    assert_eq!(run(&mut three), 4, "a second load takes the place of the first");
}
