//! The last workgroup to arrive finishes: a split sum on the CPU device, and what gfx1201 makes of it.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

mod support;

use support::*;
use unglue_codegen::error::CodegenError;
use unglue_codegen::kp::*;
use unglue_codegen::llvm::disasm;
use unglue_codegen::{gates, link, llvm, target};
use unglue_runtime::{ArgValue, BufferId, Code, CpuDevice, CpuOptions, Device, Guard, manifest};

/// Grid [groups, counters]. Workgroup (g, c) squares its part of `x` into `part`, and each of its waves adds its lanes
/// into `totals`. The last of the c-th row sums both over g in order: wave w finishes what wave w + 1 stored. Then every
/// wave of every workgroup notes that it went on. `off` falsifies the number of arrivals.
fn split_sum(waves: u32, off: i32) -> Program {
    let mut b = B::new("split_sum", waves);
    let x = b.buffer(Mem::F32, Access::Read);
    let (part, totals) = (b.buffer(Mem::F32, Access::Exchange), b.buffer(Mem::I32, Access::Exchange));
    b.buffer(Mem::I32, Access::Counter);
    let (sums, counts) = (b.buffer(Mem::F32, Access::Write), b.buffer(Mem::I32, Access::Write));
    let went_on = b.buffer(Mem::I32, Access::Write);
    let (groups, g, c, w) = (b.scalar(), b.group(), b.def(U(Elem::I32), Expr::Group(1)), b.wave());
    let (zero, one, width, count) = (b.i32(0), b.i32(1), b.i32(32), b.i32(waves as i32));
    // Number of wave `wave` of workgroup `g`, in all.
    let number = |b: &mut B, g, wave| {
        let row = b.bin(Bin::Mul, c, groups);
        let row = b.bin(Bin::Add, row, g);
        let row = b.bin(Bin::Mul, row, count);
        b.bin(Bin::Add, row, wave)
    };
    let mine = number(&mut b, g, w);
    let base = b.bin(Bin::Mul, mine, width);
    let v = b.load(x, Addr::Contig { base }, Bound::All, 1);
    let square = b.bin(Bin::Mul, v, v);
    b.store(part, Addr::Contig { base }, Bound::All, square);
    let whole = b.conv(Conv::F32ToI32, v);
    let total = b.reduce(Reduce::Add, whole);
    b.store(totals, Addr::Uniform { base: mine }, Bound::All, total);
    let off = b.i32(off);
    let arrivals = b.bin(Bin::Add, groups, off);
    let (body, ()) = b.nest(|b| {
        let next = b.bin(Bin::Add, w, one);
        let next = b.bin(Bin::Rem, next, count);
        let fzero = b.f32(0.0);
        let fzero = b.splat(fzero, 1);
        let ends = b.for_loop(zero, groups, one, &[fzero, zero], |b, g, acc| {
            let number = number(b, g, next);
            let from = b.bin(Bin::Mul, number, width);
            let v = b.load(part, Addr::Contig { base: from }, Bound::All, 1);
            let t = b.load(totals, Addr::Uniform { base: number }, Bound::All, 1);
            vec![b.bin(Bin::Add, acc[0], v), b.bin(Bin::Add, acc[1], t)]
        });
        let to = b.bin(Bin::Mul, c, count);
        let to = b.bin(Bin::Add, to, next);
        b.store(counts, Addr::Uniform { base: to }, Bound::All, ends[1]);
        let to = b.bin(Bin::Mul, to, width);
        b.store(sums, Addr::Contig { base: to }, Bound::All, ends[0]);
    });
    b.push(Stmt::GridFinish { counter: 3, index: c, arrivals, body });
    b.store(went_on, Addr::Uniform { base: mine }, Bound::All, one);
    b.finish()
}

/// Links the host's code of LLVM text.
fn host_code(p: &Program, text: &str) -> Vec<u8> {
    let t = target::by_name("x86-64").unwrap();
    let object = llvm::compile_text(text, &p.name, t).unwrap_or_else(|e| panic!("{e}\n{text}"));
    link::shared_object(&[(p.name.clone(), object)], t).unwrap()
}

fn host_text(p: &Program) -> String {
    verify::verify(p).unwrap_or_else(|e| panic!("{e}\n{}", p.to_text()));
    llvm::ir_text(p, target::by_name("x86-64").unwrap()).unwrap()
}

fn kernel(p: &Program) -> manifest::Kernel {
    let buffer = |mem, access| manifest::ParamKind::Buffer { mem, access };
    let param = |q: &Param| match q {
        Param::Scalar { name } => manifest::Param { name: name.clone(), kind: manifest::ParamKind::Scalar },
        Param::Buffer { name, mem, access } => {
            let mem = if *mem == Mem::I32 { manifest::Mem::I32 } else { manifest::Mem::F32 };
            let read = *access == Access::Read;
            let access = if read { manifest::Access::Read } else { manifest::Access::ReadWrite };
            manifest::Param { name: name.clone(), kind: buffer(mem, access) }
        }
    };
    support::described(p, param)
}

/// A split sum on a device, with its buffers.
struct Split {
    device: CpuDevice,
    waves: u32,
    grid: [u32; 3],
    x: Vec<f32>,
    /// In the order of the parameters.
    buffers: Vec<(BufferId, u64)>,
}

impl Split {
    fn new(p: &Program, code: &[u8], threads: usize, groups: u32, counters: u32) -> Self {
        let options = CpuOptions { threads, guard: Guard::Aligned, poison_shared: true };
        let mut device = CpuDevice::new(options).unwrap();
        device.load(&[kernel(p)], &[Code { kernel: None, bytes: code }]).unwrap();
        let (each, all) = (u64::from(counters * p.waves), u64::from(groups * counters * p.waves));
        let lengths = [all * 32, all * 32, all, u64::from(counters), each * 32, each, all];
        let buffers: Vec<_> = lengths.iter().map(|n| (device.alloc(n * 4).unwrap(), n * 4)).collect();
        // No two orders of addition agree on these.
        let x: Vec<f32> = (0..all * 32).map(|i| (i * 2_654_435_761 % 99_991) as f32 * 0.37 - 9000.0).collect();
        let bytes: Vec<u8> = x.iter().flat_map(|v| v.to_le_bytes()).collect();
        device.write(buffers[0].0, 0, &bytes).unwrap();
        Split { device, waves: p.waves, grid: [groups, counters, 1], x, buffers }
    }

    fn words(&self, buffer: usize) -> Vec<u32> {
        let (id, bytes) = self.buffers[buffer];
        let mut data = vec![0u8; bytes as usize];
        self.device.read(id, 0, &mut data).unwrap();
        data.chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect()
    }

    /// Launches with NaN or -1 in all that is written; what differs from the sum in order, if anything.
    fn launch(&mut self) -> Option<&'static str> {
        for buffer in [1, 2, 4, 5, 6] {
            let (id, bytes) = self.buffers[buffer];
            self.device.fill(id, 0, bytes, 0xff).unwrap();
        }
        let buffer = |&(id, bytes): &(BufferId, u64)| ArgValue::Buffer { id, offset: 0, bytes };
        let mut args: Vec<ArgValue> = self.buffers.iter().map(buffer).collect();
        args.push(ArgValue::Scalar(self.grid[0] as i32));
        self.device.launch(0, self.grid, &args).unwrap();
        let (sums, counts) = self.expected();
        if self.words(4) != sums || self.words(5) != counts {
            return Some("sums");
        }
        if self.words(6).iter().any(|&n| n != 1) {
            return Some("workgroups that went on");
        }
        self.words(3).iter().any(|&n| n != 0).then_some("counters")
    }

    fn expected(&self) -> (Vec<u32>, Vec<u32>) {
        let each = (self.waves * 32) as usize;
        let (mut sums, mut counts) = (vec![], vec![]);
        for row in self.x.chunks(each * self.grid[0] as usize) {
            sums.extend((0..each).map(|i| row.chunks(each).fold(0f32, |acc, v| acc + v[i] * v[i]).to_bits()));
            let whole =
                |w: usize| row.chunks(each).flat_map(move |v| &v[32 * w..][..32]).map(|&v| v as i32).sum::<i32>();
            counts.extend((0..self.waves as usize).map(|w| whole(w) as u32));
        }
        (sums, counts)
    }
}

#[test]
fn the_last_workgroup_sees_every_part() {
    for (waves, groups, counters) in [(1, 1, 1), (1, 37, 3), (2, 64, 5), (4, 1, 7), (8, 19, 2)] {
        let p = split_sum(waves, 0);
        gfx1201(&p);
        let code = host_code(&p, &host_text(&p));
        for threads in [1, 2, 8] {
            let mut split = Split::new(&p, &code, threads, groups, counters);
            for round in 0..if threads == 1 { 3 } else { 200 } {
                let wrong = split.launch();
                assert_eq!(
                    wrong, None,
                    "{waves} waves, {groups} x {counters} groups, {threads} threads, launch {round}"
                );
            }
        }
    }
}

#[test]
fn mutated_kernels_are_found() {
    let p = split_sum(2, 0);
    let split = |p: &Program, text: &str| Split::new(p, &host_code(p, text), 1, 5, 3).launch();
    assert_eq!(split(&p, &host_text(&p)), None);
    for off in [-1, 1] {
        let p = split_sum(2, off);
        assert_eq!(split(&p, &host_text(&p)), Some("sums"), "number of arrivals {off} off");
    }
    let text = host_text(&p);
    let kept: Vec<&str> = text.lines().filter(|l| !l.contains("store atomic i32 0")).collect();
    assert_eq!(kept.len() + 1, text.lines().count());
    assert_eq!(split(&p, &kept.join("\n")), Some("counters"), "counter not set back");
    // The arrival before the stores.
    let mut early = p.clone();
    let is_store = |s: &Stmt| matches!(s, Stmt::Store { to: Place::Buffer(1), .. });
    let (from, to) =
        (early.body.iter().position(is_store), early.body.iter().position(|s| matches!(s, Stmt::GridFinish { .. })));
    let store = early.body.remove(from.unwrap());
    early.body.insert(to.unwrap(), store);
    assert_eq!(split(&early, &host_text(&early)), Some("sums"), "arrival before the stores");
}

/// A loop of finishes, each on a counter of its own, under a branch; values live across, and bodies hold barriers.
#[test]
fn finishes_in_a_loop() {
    for waves in [1, 3] {
        let mut b = B::new("rounds", waves);
        let (part, to) = (b.buffer(Mem::I32, Access::Exchange), b.buffer(Mem::I32, Access::Write));
        b.buffer(Mem::I32, Access::Counter);
        let (groups, rounds, g, w) = (b.scalar(), b.scalar(), b.group(), b.wave());
        let (zero, one, two, last) = (b.i32(0), b.i32(1), b.i32(2), b.i32(waves as i32 - 1));
        let sh = b.shared(Mem::I32, 1);
        let acc = b.for_loop(zero, rounds, one, &[g], |b, i, acc| {
            let even = b.bin(Bin::And, i, one);
            let even = b.cmp(Cmp::Eq, even, zero);
            b.branch(
                even,
                |b| {
                    let at = b.bin(Bin::Mul, i, groups);
                    let mine = b.bin(Bin::Add, at, g);
                    b.store(part, Addr::Uniform { base: mine }, Bound::All, acc[0]);
                    let (body, ()) = b.nest(|b| {
                        let sum = b.for_loop(zero, groups, one, &[zero], |b, g, sum| {
                            let from = b.bin(Bin::Add, at, g);
                            let v = b.load(part, Addr::Uniform { base: from }, Bound::All, 1);
                            vec![b.bin(Bin::Add, sum[0], v)]
                        });
                        let mine = b.cmp(Cmp::Eq, w, last);
                        b.branch(
                            mine,
                            |b| {
                                b.store(sh, Addr::Uniform { base: zero }, Bound::All, sum[0]);
                                vec![]
                            },
                            |_| vec![],
                        );
                        b.barrier();
                        let sum = b.load(sh, Addr::Uniform { base: zero }, Bound::All, 1);
                        b.store(to, Addr::Uniform { base: i }, Bound::All, sum);
                        b.barrier();
                    });
                    b.push(Stmt::GridFinish { counter: 2, index: i, arrivals: groups, body });
                    vec![]
                },
                |_| vec![],
            );
            vec![b.bin(Bin::Mul, acc[0], two)]
        });
        b.store(to, Addr::Uniform { base: rounds }, Bound::All, acc[0]);
        let p = b.finish();
        let (mut part, mut to, mut counters) = (vec![-1i32; 5 * 4], vec![-1i32; 6], vec![0i32; 5]);
        Host::new(&p).run(&[out(&mut part), out(&mut to), out(&mut counters), 4, 5], 4);
        assert_eq!((to, counters), (vec![6, -1, 6 * 4, -1, 6 * 16, 3 * 32], vec![0; 5]));
    }
}

/// A body that copies from an exchange buffer in one load of this form.
fn exchange_copy(mem: Mem, vec: u8, form: u8) -> Program {
    let mut b = B::new("loads", 1);
    let (x, to) = (b.buffer(mem, Access::Exchange), b.buffer(mem, Access::Write));
    b.buffer(Mem::I32, Access::Counter);
    let (base, n, zero, one, l) = (b.scalar(), b.scalar(), b.i32(0), b.i32(1), b.lane_id());
    let (body, ()) = b.nest(|b| {
        let width = b.i32(i32::from(vec));
        let elements = b.bin(Bin::Mul, n, width);
        let (n, width) = (b.splat(n, 1), b.splat(width, 1));
        let mask = b.cmp(Cmp::Lt, l, n);
        let index = b.bin(Bin::Mul, l, width);
        let wide = b.conv(Conv::I32ToI64, index);
        let (addr, bound) = match form {
            0 => (Addr::Contig { base }, Bound::Count(elements)),
            1 => (Addr::Contig { base }, Bound::Mask(mask)),
            2 => (Addr::Lanes { base, index }, Bound::Mask(mask)),
            _ => (Addr::Lanes { base, index: wide }, Bound::Mask(mask)),
        };
        let v = b.load(x, addr, bound, vec);
        b.store(to, Addr::Contig { base: zero }, Bound::All, v);
    });
    b.push(Stmt::GridFinish { counter: 2, index: zero, arrivals: one, body });
    b.finish()
}

/// Every form and width; elements that the bound leaves out lie in inaccessible pages.
#[test]
fn exchange_loads() {
    for (mem, vec, form) in [Mem::F32, Mem::I32]
        .into_iter()
        .flat_map(|mem| [1u8, 2, 8].into_iter().flat_map(move |vec| (0..4).map(move |form| (mem, vec, form))))
    {
        let host = Host::new(&exchange_copy(mem, vec, form));
        for count in [0, 1, 19, 32] {
            let (skip, present) = (3usize, count * usize::from(vec));
            let x: Vec<u32> = (0..skip + present).map(|i| i as u32 + 0x3f80_0001).collect();
            let (mut got, mut counters) = (vec![1u32; 32 * usize::from(vec)], [0u32]);
            host.run(&[arg(guarded(&x)), out(&mut got), out(&mut counters), skip as u64, count as u64], 1);
            let mut want = x[skip..].to_vec();
            want.resize(got.len(), 0);
            assert_eq!(got, want, "{mem} x{vec}, form {form}, {count} lanes");
        }
    }
}

/// Instructions of a code object, by their printed text.
fn instructions(code: &[u8], name: &str) -> Vec<String> {
    use object::{Object, ObjectSection, ObjectSymbol};
    let file = object::File::parse(code).unwrap();
    let symbol = file.symbols().find(|s| s.name() == Ok(name)).unwrap();
    let section = file.section_by_name(".text").unwrap();
    let start = (symbol.address() - section.address()) as usize;
    let text = &section.data().unwrap()[start..start + symbol.size() as usize];
    let mut all = vec![];
    disasm::each(text, target::by_name("gfx1201").unwrap(), |_, text| all.push(text.replace('\t', " "))).unwrap();
    all
}

#[test]
fn gfx1201_waits_counts_invalidates_and_loads_past_the_caches() {
    for waves in [1, 4] {
        let p = split_sum(waves, 0);
        let (code, resources) = gfx1201(&p);
        let all = instructions(&code, "split_sum");
        let text = all.join("\n");
        let mut at = 0;
        let mut next = |parts: &[&str]| {
            let found = all[at..].iter().position(|i| parts.iter().all(|part| i.contains(part)));
            at += found.unwrap_or_else(|| panic!("no {parts:?} after instruction {at} of\n{text}"));
            at
        };
        // The release: all stores have reached the L2, which is what the device shares. No write-back at this scope.
        let stored = [next(&["global_store_b32"]), next(&["global_store_b32"])];
        let release = next(&["s_wait_storecnt 0x0"]);
        if waves > 1 {
            next(&["s_barrier_signal"]);
            next(&["s_barrier_wait"]);
        }
        let count = next(&["global_atomic_add_u32", "th:TH_ATOMIC_RETURN", "scope:SCOPE_DEV"]);
        let arrived = next(&["s_wait_loadcnt 0x0"]);
        if waves > 1 {
            next(&["ds_store_b32"]);
            next(&["s_barrier_wait"]);
            next(&["ds_load_b32"]);
        }
        next(&["v_readfirstlane_b32"]);
        next(&["s_cmp_"]);
        let acquire = next(&["global_inv", "scope:SCOPE_DEV"]);
        next(&["global_store_b32", "scope:SCOPE_DEV"]);
        next(&["global_load_b32", "scope:SCOPE_DEV"]);
        next(&["global_load_b32", "scope:SCOPE_DEV"]);
        assert!(stored[1] < release && release < count && count < arrived && arrived < acquire);
        assert_eq!(all[release..count].iter().filter(|i| i.contains("_store_") || i.contains("global_wb")).count(), 0);
        assert_eq!(all.iter().filter(|i| i.contains("atomic")).count(), 1, "{text}");
        let plain = |i: &&String| i.contains("_load_b") && !i.contains("SCOPE_DEV");
        assert_eq!(all[acquire..].iter().find(plain), None, "{text}");
        // The slot that tells all waves.
        assert_eq!((resources.lds_bytes, shared_bytes(&p)), if waves == 1 { (0, 0) } else { (4, 64) });
    }
}

#[test]
fn what_workgroups_share_may_alias() {
    let p = split_sum(2, 0);
    let text = llvm::ir_text(&p, target::by_name("gfx1201").unwrap()).unwrap();
    let header = text.lines().find(|l| l.starts_with("define")).unwrap();
    assert_eq!((header.matches("noalias").count(), header.matches("readonly").count()), (1, 1), "{header}");
    assert!(header.contains("noalias readonly captures(none) align 16 %p0"), "{header}");
}

#[test]
fn text_names_the_finish() {
    let text = split_sum(2, 0).to_text();
    for part in ["b1: buffer f32 exchange", "b3: buffer i32 counter", "\n  grid-finish param3[v2] of v", "\n    v"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

/// PTX: fence, addition, fence, and loads that no cache of one multiprocessor answers.
#[test]
fn sm_90_fences_counts_and_loads_past_the_caches() {
    let t = target::by_name("sm_90").unwrap();
    let refused = |text: &str, p: &Program| match gates::check(text.as_bytes(), p, t) {
        Err(CodegenError::Gate { gate, .. }) => gate,
        other => panic!("{other:?}\n{text}"),
    };
    for waves in [1, 4] {
        let p = split_sum(waves, 0);
        let code = llvm::compile_object(&p, t).unwrap();
        gates::check(&code, &p, t).unwrap_or_else(|e| panic!("{e}\n{}", String::from_utf8_lossy(&code)));
        let text = String::from_utf8(code).unwrap();
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in\n{text}"));
        let atom = at("atom.");
        assert!(at("st.global") < at("fence.") && at("fence.") < atom, "{text}");
        assert!(text.rfind("fence.").unwrap() > atom && text.rfind("ld.relaxed.gpu").unwrap() > atom, "{text}");
        let lines = |keep: &dyn Fn(&str) -> bool| -> String {
            text.lines().filter(|l| keep(l)).map(|l| format!("{l}\n")).collect()
        };
        assert_eq!(refused(&lines(&|l| !l.contains("fence.")), &p), "finish");
        assert_eq!(refused(&lines(&|l| !l.contains("atom.")), &p), "finish");
        assert_eq!(refused(&text.replace("ld.relaxed.gpu.global", "ld.global.nc"), &p), "exchanged-cached");
    }
}
