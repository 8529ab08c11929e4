"""Compiles a grouped W4A16 expert matmul with Triton for gfx1201, without a card.

    python -m venv VENV && VENV/bin/pip install triton==3.9.0
    VENV/bin/python benches/triton/compile.py FOLDER
    cargo bench -p unglue-codegen --bench triton_gfx1201 -- FOLDER

Writes `NAME.hsaco` a config and `configs.json` with what the compiler says of each. A config whose compiler raised or
printed anything is listed with that text as `error`, and has no code. No inline assembly; pointers, N and K are declared
multiples of 16.

Job, for pairs of a row and one of its TOP experts: out[pair, n] = sum over k of x[pair / TOP, k] * (q[e, n, k] - 8) *
scale[e, n, k / GROUP]. x bf16 [rows, K], q eight to an i32 word [E, N, K / 8], lowest bits first, scale f16
[E, N, K / GROUP], out bf16 [pairs, N].
"""

import json
import os
import re
import sys
import tempfile

# As Triton 3.9 does unasked, with a warning.
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

VERSION = "3.9.0"
GROUP = 32
TOP = 8
TILE_ROWS = 16


@triton.jit
def tile_place(pairs, experts, M: tl.constexpr, BN: tl.constexpr):
    """Outputs of a program's tile, its pairs and which of them are there, and its expert."""
    block = tl.program_id(1)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    pair = tl.load(pairs + block * M + tl.arange(0, M))
    return n, pair, (pair >= 0)[:, None], tl.load(experts + block).to(tl.int64)


@triton.jit
def spread(weights, K: tl.constexpr, BN: tl.constexpr, ONCE: tl.constexpr):
    """K numbers of four bits from words at `weights`, [K, BN]. ONCE: a word is loaded once and then spread over its eight;
    otherwise each of them loads it."""
    if ONCE:
        w = tl.load(weights + tl.arange(0, K // 8)[:, None])
        q = tl.reshape((w[:, None, :] >> (tl.arange(0, 8) * 4)[None, :, None]) & 15, (K, BN))
    else:
        k = tl.arange(0, K)
        w = tl.load(weights + (k // 8)[:, None])
        q = (w >> ((k % 8) * 4)[:, None]) & 15
    return q


@triton.jit
def tile_scaled(x, words, scales, pairs, experts, out, N, K, GROUP: tl.constexpr, TOP: tl.constexpr,
                M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ONCE: tl.constexpr):
    """Weights times scales, rounded to bf16, on matrix tiles."""
    n, pair, live, e = tile_place(pairs, experts, M, BN)
    row = x + (pair // TOP)[:, None] * K + tl.arange(0, BK)[None, :]
    weights = words + e * N * (K // 8) + n[None, :] * (K // 8)
    scale = scales + e * N * (K // GROUP) + n[None, :] * (K // GROUP) + tl.arange(0, BK // GROUP)[:, None]
    acc = tl.zeros((M, BN), tl.float32)
    for i in range(0, K // BK):
        a = tl.load(row, mask=live, other=0.0)
        q = spread(weights, BK, BN, ONCE)
        s = tl.load(scale).to(tl.float32)
        s = tl.reshape(tl.broadcast_to(s[:, None, :], (BK // GROUP, GROUP, BN)), (BK, BN))
        acc = tl.dot(a, ((q - 8).to(tl.float32) * s).to(tl.bfloat16), acc)
        row += BK
        weights += BK // 8
        scale += BK // GROUP
    tl.store(out + pair[:, None] * N + n[None, :], acc.to(tl.bfloat16), mask=live)


@triton.jit
def tile_levels(x, words, scales, pairs, experts, out, N, K, GROUP: tl.constexpr, TOP: tl.constexpr,
                M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ONCE: tl.constexpr):
    """Levels as bf16 by their bits (0x4300 + q is 128 + q), on matrix tiles; a group's sum is corrected and scaled."""
    n, pair, live, e = tile_place(pairs, experts, M, BN)
    row = x + (pair // TOP)[:, None] * K + tl.arange(0, GROUP)[None, :]
    weights = words + e * N * (K // 8) + n[None, :] * (K // 8)
    scale = scales + e * N * (K // GROUP) + n * (K // GROUP)
    acc = tl.zeros((M, BN), tl.float32)
    for i in range(0, K // BK):
        for g in tl.static_range(BK // GROUP):
            a = tl.load(row + g * GROUP, mask=live, other=0.0)
            q = spread(weights + g * (GROUP // 8), GROUP, BN, ONCE)
            levels = (q + 0x4300).to(tl.int16).to(tl.bfloat16, bitcast=True)
            s = tl.load(scale + g).to(tl.float32)
            excess = tl.sum(a.to(tl.float32), 1) * 136.0
            acc += (tl.dot(a, levels) - excess[:, None]) * s[None, :]
        row += BK
        weights += BK // 8
        scale += BK // GROUP
    tl.store(out + pair[:, None] * N + n[None, :], acc.to(tl.bfloat16), mask=live)


@triton.jit
def lanes(x, words, scales, pairs, experts, out, N, K, GROUP: tl.constexpr, TOP: tl.constexpr,
          M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ONCE: tl.constexpr):
    """One pair a program (M is 1), in f32 on lanes: each lane has whole words, and sums are joined at the end."""
    pair = tl.load(pairs + tl.program_id(1))
    e = tl.load(experts + tl.program_id(1)).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    word = tl.arange(0, BK // 8)
    row = x + (pair // TOP) * K + word * 8
    weights = words + e * N * (K // 8) + n[:, None] * (K // 8) + word[None, :]
    scale = scales + e * N * (K // GROUP) + n[:, None] * (K // GROUP) + (word // (GROUP // 8))[None, :]
    acc = tl.zeros((BN, BK // 8), tl.float32)
    for i in range(0, K // BK):
        w = tl.load(weights)
        part = tl.zeros((BN, BK // 8), tl.float32)
        for j in tl.static_range(8):
            level = (((w >> (4 * j)) & 15) - 8).to(tl.float32)
            part += level * tl.load(row + j).to(tl.float32)[None, :]
        acc += part * tl.load(scale).to(tl.float32)
        row += BK
        weights += BK // 8
        scale += BK // GROUP
    tl.store(out + pair * N + n, tl.sum(acc, 1).to(tl.bfloat16))


# Kernel, outputs and inputs of a tile, waves, stages of the loop's pipeline, whether words are loaded once.
CONFIGS = [
    (tile_scaled, 32, 64, 4, 2, False),
    (tile_scaled, 64, 64, 4, 2, False),
    (tile_scaled, 32, 128, 4, 1, False),
    (tile_scaled, 128, 128, 8, 2, False),
    (tile_scaled, 32, 128, 2, 1, True),
    (tile_scaled, 64, 64, 4, 2, True),
    (tile_levels, 32, 64, 2, 1, False),
    (tile_levels, 64, 64, 4, 2, False),
    (tile_levels, 64, 128, 4, 1, True),
    (tile_levels, 128, 64, 4, 2, True),
    (tile_levels, 128, 64, 4, 1, True),
    (tile_levels, 128, 32, 4, 2, True),
    (tile_levels, 128, 128, 4, 2, True),
    (tile_levels, 128, 64, 8, 2, True),
    (tile_levels, 64, 64, 2, 2, True),
    (tile_levels, 32, 64, 1, 2, True),
    (lanes, 16, 512, 4, 1, True),
    (lanes, 8, 1024, 4, 2, True),
    (lanes, 4, 1024, 1, 1, True),
    (lanes, 32, 256, 4, 2, True),
]


def compile_one(kernel, bn, bk, warps, stages, once):
    names = ["x", "words", "scales", "pairs", "experts", "out", "N", "K"]
    types = ["*bf16", "*i32", "*fp16", "*i32", "*i32", "*bf16", "i32", "i32"]
    constants = dict(GROUP=GROUP, TOP=TOP, M=1 if kernel is lanes else TILE_ROWS, BN=bn, BK=bk, ONCE=once)
    signature = dict(zip(names, types)) | {name: "constexpr" for name in constants}
    attrs = {(i,): [["tt.divisibility", 16]] for i in range(len(names))}
    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=attrs)
    options = dict(num_warps=warps, num_stages=stages)
    return triton.compile(source, target=GPUTarget("hip", "gfx1201", 32), options=options)


def quietly(run):
    """What `run` returns, and what it or the compiler wrote to the standard streams."""
    with tempfile.TemporaryFile("w+") as file:
        sys.stdout.flush(), sys.stderr.flush()
        kept = [os.dup(1), os.dup(2)]
        os.dup2(file.fileno(), 1), os.dup2(file.fileno(), 2)
        try:
            result, error = run(), ""
        except Exception as raised:
            result, error = None, repr(raised)
        sys.stdout.flush(), sys.stderr.flush()
        for stream, saved in zip([1, 2], kept):
            os.dup2(saved, stream), os.close(saved)
        file.seek(0)
        return result, (file.read() + error).strip()


def entry(folder, config):
    kernel, bn, bk, warps, stages, once = config
    name = f"{kernel.__name__}_n{bn}_k{bk}_w{warps}_s{stages}" + ("_once" if once and kernel is not lanes else "")
    row = dict(name=name, kernel=kernel.__name__, outputs=bn, inputs=bk, rows=1 if kernel is lanes else TILE_ROWS,
               waves=warps, stages=stages)
    made, error = quietly(lambda: compile_one(*config))
    if made is None or error:
        return row | dict(error=error or "no code")
    text = made.asm["amdgcn"]
    if "inline asm" in made.asm["llir"]:
        return row | dict(error="inline asm")
    number = lambda field: int(re.search(rf"\.{field}:\s+(\d+)", text).group(1))
    with open(os.path.join(folder, name + ".hsaco"), "wb") as file:
        file.write(made.asm["hsaco"])
    return row | dict(error="", lds_bytes=made.metadata.shared, vgprs=number("vgpr_count"), sgprs=number("sgpr_count"),
                      vgpr_spills=number("vgpr_spill_count"), sgpr_spills=number("sgpr_spill_count"),
                      scratch_bytes=number("private_segment_fixed_size"))


def main():
    if triton.__version__ != VERSION:
        sys.exit(f"triton {triton.__version__}, needed {VERSION}: pip install triton=={VERSION}")
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    # Nothing of an earlier build.
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    rows = []
    for config in CONFIGS:
        rows.append(entry(folder, config))
        print(rows[-1]["name"], rows[-1]["error"] or f"{rows[-1]['vgprs']} VGPRs", flush=True)
    with open(os.path.join(folder, "configs.json"), "w") as file:
        json.dump(dict(version=VERSION, group=GROUP, top=TOP, configs=rows), file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
