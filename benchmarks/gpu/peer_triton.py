"""Kernels of Triton for a product, a convolution or attention, compiled without a GPU.

    python peer_triton.py REQUEST.json FOLDER

Needs Triton alone. The request is what :mod:`benchmarks.gpu.peers` writes; the answer, one line of
JSON, has the cubin, the seconds and the bytes of shared memory.
"""
# pyright: basic, reportMissingImports=false
# ruff: noqa: N803, N806

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def block_of(number, rows, columns, group: tl.constexpr):
    """Return the row and the column of a block in the order of tutorial 3.

    Parameters
    ----------
    number : int
        Number of the block.
    rows, columns : int
        Number of blocks along both.
    group : int
        Rows of blocks that are neighbours in the order.
    """
    in_group = group * columns
    first = number // in_group * group
    size = min(rows - first, group)
    return first + number % in_group % size, number % in_group // size


@triton.jit
def product(
    a,
    b,
    c,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Compute the product of tutorial 3: rows of both factors are contiguous along the depth.

    Parameters
    ----------
    a, b, c : pointer
        Factors, the second by its columns, and the result.
    M, N, K : int
        Rows, columns and depth.
    BM, BN, BK : int
        Those of a block.
    """
    row, column = block_of(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), 8)
    m = (row * BM + tl.arange(0, BM)) % M
    n = (column * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    pa = a + m[:, None] * K + k[None, :]
    pb = b + k[:, None] + n[None, :] * K
    sums = tl.zeros((BM, BN), tl.float32)
    for _ in range(tl.cdiv(K, BK)):
        sums = tl.dot(tl.load(pa), tl.load(pb), sums)
        pa += BK
        pb += BK
    m = row * BM + tl.arange(0, BM)
    n = column * BN + tl.arange(0, BN)
    inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c + m[:, None] * N + n[None, :], sums.to(tl.float16), mask=inside)


@triton.jit
def described_product(
    a,
    b,
    c,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Compute the same with tensor descriptors, which TMA loads (tutorial 9).

    Parameters
    ----------
    a, b, c, M, N, K, BM, BN, BK
        As of :func:`product`.
    """
    row, column = block_of(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), 8)
    da = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    db = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    dc = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    sums = tl.zeros((BM, BN), tl.float32)
    for step in range(tl.cdiv(K, BK)):
        x = da.load([row * BM, step * BK])
        y = db.load([column * BN, step * BK])
        sums = tl.dot(x, y.T, sums)
    dc.store([row * BM, column * BN], sums.to(tl.float16))


@triton.jit
def convolution(
    a,
    b,
    c,
    IMAGES: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    OUT: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    PAD: tl.constexpr,
    STRIDE: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Compute an implicit product: rows are pixels of all images, the depth taps and channels.

    Parameters
    ----------
    a, b, c : pointer
        Image and result, channels last, and filters, channels last.
    IMAGES, H, W, C : int
        Sizes of the image.
    OUT, R, S, PAD, STRIDE : int
        Filters, their height and width, padding and stride.
    P, Q : int
        Height and width of the result.
    BM, BN, BK : int
        Rows, columns and depth of a block.
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    y = m // Q % P * STRIDE - PAD
    x = m % Q * STRIDE - PAD
    image = m // (P * Q)
    base = a + ((image * H + y) * W + x)[:, None] * C + k[None, :]
    pb = b + n[None, :] * (R * S * C) + k[:, None]
    sums = tl.zeros((BM, BN), tl.float32)
    PARTS: tl.constexpr = C // BK
    for step in range(R * S * PARTS):
        tap = step // PARTS
        r = tap // S
        s = tap % S
        inside = (y + r >= 0) & (y + r < H) & (x + s >= 0) & (x + s < W) & (image < IMAGES)
        pa = base + (r * W + s) * C + step % PARTS * BK
        rows = tl.load(pa, mask=inside[:, None], other=0.0)
        columns = tl.load(pb + step * BK, mask=(n < OUT)[None, :], other=0.0)
        sums = tl.dot(rows, columns, sums)
    stored = (m[:, None] < IMAGES * P * Q) & (n[None, :] < OUT)
    tl.store(c + m[:, None] * OUT + n[None, :], sums.to(tl.float16), mask=stored)


@triton.jit
def attention(
    q,
    k,
    v,
    o,
    KEYS: tl.constexpr,
    D: tl.constexpr,
    SCALE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Compute the attention of tutorial 6 without a mask: queries of a block, keys by chunks.

    Parameters
    ----------
    q, k, v, o : pointer
        Queries, keys, values and result, head by head.
    KEYS, D : int
        Keys, which are as many as queries, and depth of a head.
    SCALE : float
        Factor of the scores as powers of two.
    BM, BN : int
        Queries of a block, and keys of a chunk.
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.arange(0, BN)
    d = tl.arange(0, D)
    head = tl.program_id(1) * KEYS * D
    queries = tl.load(q + head + m[:, None] * D + d[None, :])
    pk = k + head + n[None, :] * D + d[:, None]
    pv = v + head + n[:, None] * D + d[None, :]
    largest = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32) + 1.0
    sums = tl.zeros([BM, D], tl.float32)
    for _ in range(0, KEYS, BN):
        scores = tl.dot(queries, tl.load(pk))
        larger = tl.maximum(largest, tl.max(scores, 1) * SCALE)
        powers = tl.math.exp2(scores * SCALE - larger[:, None])
        shrink = tl.math.exp2(largest - larger)
        sums = tl.dot(powers.to(tl.float16), tl.load(pv), sums * shrink[:, None])
        total = total * shrink + tl.sum(powers, 1)
        largest = larger
        pk += BN * D
        pv += BN * D
    tl.store(o + head + m[:, None] * D + d[None, :], (sums / total[:, None]).to(tl.float16))


def compile_kernel(request: dict, folder: Path) -> dict:
    """Compile the kernel of a request, and write its cubin into the folder."""
    sizes, tile = request["sizes"], request["tile"]
    blocks = {"BM": tile[0], "BN": tile[1], "BK": tile[2]}
    if request["kind"] == "gemm":
        function = described_product if request["tma"] else product
        constants = {"M": sizes["m"], "N": sizes["n"], "K": sizes["k"], **blocks}
    elif request["kind"] == "attention":
        function = attention
        constants = {"KEYS": sizes["k"], "D": sizes["d"], "SCALE": sizes["d"] ** -0.5 * 1.44269504}
        constants |= {"BM": tile[0], "BN": tile[2]}
    else:
        function = convolution
        out = [
            (sizes[x] + 2 * sizes["pad"] - sizes[f]) // sizes["stride"] + 1
            for x, f in (("h", "r"), ("w", "s"))
        ]
        names = {"IMAGES": "n", "H": "h", "W": "w", "C": "c", "OUT": "k", "R": "r", "S": "s"}
        constants = {name: sizes[size] for name, size in names.items()}
        constants |= {"PAD": sizes["pad"], "STRIDE": sizes["stride"], "P": out[0], "Q": out[1]}
        constants |= blocks
    names = function.arg_names[: len(function.arg_names) - len(constants)]
    pointers = dict.fromkeys(names, "*fp16")
    source = ASTSource(
        fn=function,
        signature={**pointers, **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
        attrs={(number,): [["tt.divisibility", 16]] for number in range(len(pointers))},
    )
    options = {"num_warps": request["warps"], "num_stages": tile[3]}
    start = time.perf_counter()
    kernel = triton.compile(
        source, target=GPUTarget("cuda", request["capability"], 32), options=options
    )
    seconds = time.perf_counter() - start
    cubin = folder / f"triton_{request['stem']}.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    return {
        "cubin": str(cubin),
        "seconds": seconds,
        "shared": kernel.metadata.shared,
        "version": triton.__version__,
    }


def main() -> None:
    """Run the command."""
    folder = Path(sys.argv[2])
    # What an earlier call compiled would take no time.
    os.environ["TRITON_ALWAYS_COMPILE"] = "1"
    request = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps(compile_kernel(request, folder)))


if __name__ == "__main__":
    main()
