"""Kernels of TileLang for a product or a convolution, compiled without a GPU by nvcc.

    python peer_tilelang.py REQUEST.json FOLDER

Needs TileLang and nvcc. The request is what :mod:`benchmarks.gpu.peers` writes; the answer, one
line of JSON, has the cubin, the seconds and the bytes of shared memory.
"""
# pyright: basic, reportMissingImports=false, reportInvalidTypeForm=false
# ruff: noqa: N803, N812

import json
import subprocess
import sys
import time
from pathlib import Path

import tilelang
import tilelang.language as T
from tilelang.engine import lower


def product(M, N, K, BM, BN, BK, stages, threads):
    """Return the product of TileLang's first example, with rows contiguous along the depth.

    Parameters
    ----------
    M, N, K : int
        Rows, columns and depth.
    BM, BN, BK : int
        Those of a block.
    stages, threads : int
        Stages of the pipeline, and threads of a block.
    """

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (x, y):
            a = T.alloc_shared((BM, BK), "float16")
            b = T.alloc_shared((BN, BK), "float16")
            sums = T.alloc_fragment((BM, BN), "float32")
            T.clear(sums)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=stages):
                T.copy(A[y * BM, k * BK], a)
                T.copy(B[x * BN, k * BK], b)
                T.gemm(a, b, sums, transpose_B=True)
            T.copy(sums, C[y * BM, x * BN])

    return main


def convolution(n, h, w, c, out, r, pad, stride, BM, BN, BK, stages, threads, tma):
    """Return the convolution of TileLang's example: im2col by TMA, or element by element.

    Parameters
    ----------
    n, h, w, c : int
        Images, height, width and channels.
    out, r, pad, stride : int
        Filters, their height and width, padding and stride.
    BM, BN, BK, stages, threads : int
        As of :func:`product`.
    tma : bool
        Load the image by TMA.
    """
    p, q = (h + 2 * pad - r) // stride + 1, (w + 2 * pad - r) // stride + 1

    @T.prim_func
    def main(
        A: T.Tensor((n, h, w, c), "float16"),
        B: T.Tensor((r, r, c, out), "float16"),
        C: T.Tensor((n, p, q, out), "float16"),
    ):
        with T.Kernel(T.ceildiv(out, BN), T.ceildiv(n * p * q, BM), threads=threads) as (x, y):
            a = T.alloc_shared((BM, BK), "float16")
            b = T.alloc_shared((BK, BN), "float16")
            sums = T.alloc_fragment((BM, BN), "float32")
            weights = T.Tensor((r * r * c, out), "float16", B.data)
            results = T.Tensor((n * p * q, out), "float16", C.data)
            T.clear(sums)
            for k in T.Pipelined(T.ceildiv(r * r * c, BK), num_stages=stages):
                if tma:
                    T.im2col(A, a, y, k, r, stride, 1, pad)
                else:
                    for i, j in T.Parallel(BM, BK):
                        deep = k * BK + j
                        row = y * BM + i
                        top = row % (p * q) // q * stride + deep // (r * c) - pad
                        left = row % q * stride + deep // c % r - pad
                        inside = (top >= 0) & (left >= 0) & (top < h) & (left < w)
                        a[i, j] = T.if_then_else(inside, A[row // (p * q), top, left, deep % c], 0)
                T.copy(weights[k * BK, x * BN], b)
                T.gemm(a, b, sums)
            T.copy(sums, results[y * BM, x * BN])

    return main


def compile_kernel(request: dict, folder: Path) -> dict:
    """Compile the kernel of a request, and write its cubin into the folder."""
    s, (bm, bn, bk, stages) = request["sizes"], request["tile"]
    threads = request["warps"] * 32
    start = time.perf_counter()
    if request["kind"] == "gemm":
        function = product(s["m"], s["n"], s["k"], bm, bn, bk, stages, threads)
    else:
        sizes = (s["n"], s["h"], s["w"], s["c"], s["k"], s["r"], s["pad"], s["stride"])
        function = convolution(*sizes, bm, bn, bk, stages, threads, request["tma"])
    target = tilelang.tvm.target.Target({"kind": "cuda", "arch": request["architecture"]})
    with target:
        artifact = lower(function, target=target)
    stem = folder / f"tilelang_{request['stem']}"
    source, cubin = stem.with_suffix(".cu"), stem.with_suffix(".cubin")
    source.write_text(artifact.kernel_source)
    root = Path(str(tilelang.__file__)).parent
    command = ["nvcc", "-cubin", "-std=c++17", "-O3", "--expt-relaxed-constexpr"]
    command += [f"-arch={request['architecture']}", f"-I{root}/src"]
    command += [f"-I{root}/3rdparty/cutlass/include", "-o", str(cubin), str(source)]
    process = subprocess.run(command, check=False, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(
            next(
                line
                for line in process.stdout.splitlines() + process.stderr.splitlines()
                if "error" in line
            )
        )
    (kernel,) = artifact.device_mod.functions.values()
    return {
        "cubin": str(cubin),
        "seconds": time.perf_counter() - start,
        "shared": int(kernel.attrs.get("dyn_shared_memory_buf", 0)),
        "version": tilelang.__version__,
    }


def main() -> None:
    """Run the command."""
    request = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps(compile_kernel(request, Path(sys.argv[2]))))


if __name__ == "__main__":
    main()
