"""Count the loads that compiled copies have under way: read from machine code, not measured.

    python -m experiments.amos2022.a100_schedules.windows                     # nvcc's own ptxas
    python -m experiments.amos2022.a100_schedules.windows --ptxas PTXAS_11_8  # an older one as well

Kernels of WMMA that copy two tiles to shared memory, between barriers, as TVM writes them: loops or
written out, with and without a guard of the last iterations, for several sizes and fragments. At
each store that waits for its load the loads are counted that are under way by then, itself
included. Of kernels the harmonic mean is taken: a load takes its latency over their number.
Writes ``windows.md`` into ``--output``, by default beside this file.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from cpembed.runtime.measurement.environment import provenance, provenance_lines

VECTORS = {1: "half", 2: "uint1", 4: "uint2", 8: "uint4"}
"""Type of a load by its number of elements."""

COPIES = ((4, 8, True), (8, 16, True), (8, 32, True), (4, 24, True), (12, 96, False),
          (16, 16, False), (8, 4, False), (20, 40, False))  # fmt: skip
"""Iterations of the copies of image and filters, and whether TVM writes them out."""

FRAGMENTS = ((1, 1), (1, 2), (2, 4))
"""Fragments of image and filters in a warp."""


def copy(name: str, vector: int, count: int, warps: int, *, unrolled: bool, guarded: bool) -> str:
    """Return the statements that copy a factor's tiles.

    Parameters
    ----------
    name : str
        ``A`` for the image, ``B`` for the filters.
    vector : int
        Number of elements of a load.
    count : int
        Number of loads of each thread.
    warps : int
        Number of warps of a block.
    unrolled : bool
        Whether the loads are written out instead of a loop.
    guarded : bool
        Whether a condition precedes each load.
    """
    tile, pitch = (256, 2048) if name == "A" else (1024, 4096)

    def statement(number: str) -> str:
        # Signed, as TVM writes them: quotients of signed numbers take more instructions.
        place = f"({number} * {warps * 32 * vector} + (int)threadIdx.y * {32 * vector} + "
        place += f"(int)threadIdx.x * {vector})"
        source = f"{place} / {tile} * {pitch} + base_{name} + {place} % {tile}"
        kind = VECTORS[vector]
        line = f"*({kind}*)({name}_shared + {place}) = *({kind}*)({name} + {source});"
        last = count * warps - (warps // 2 or 1)
        return f"if ({number} * {warps} + (int)threadIdx.y < {last}) {line}" if guarded else line

    if unrolled:
        return "\n".join(statement(str(number)) for number in range(count))
    return f"for (int i_{name} = 0; i_{name} < {count}; ++i_{name}) {statement(f'i_{name}')}"


def kernel(
    vector: int, counts: tuple[int, int], fragments: tuple[int, int], warps: int,
    *, unrolled: bool, guarded: bool,
) -> str:  # fmt: skip
    """Return the text of a kernel.

    Parameters
    ----------
    vector, warps, unrolled, guarded
        As in :func:`copy`.
    counts : tuple of int
        Number of loads of each thread for the image and for the filters.
    fragments : tuple of int
        Fragments of image and filters in a warp.
    """
    image, filters = fragments
    sizes = [count * warps * 32 * vector for count in counts]
    copies = [
        copy(name, vector, count, warps, unrolled=unrolled, guarded=guarded)
        for name, count in zip("AB", counts, strict=True)
    ]
    return f"""#include <mma.h>
using namespace nvcuda::wmma;
extern "C" __global__ void __launch_bounds__({32 * warps})
copies(half* __restrict__ A, half* __restrict__ B, half* __restrict__ C) {{
  extern __shared__ half A_shared[];
  half* B_shared = A_shared + {sizes[0]};
  fragment<accumulator, 8, 32, 16, half> sums[{image * filters}];
  fragment<matrix_a, 8, 32, 16, half, row_major> a[{image}];
  fragment<matrix_b, 8, 32, 16, half, row_major> b[{filters}];
  #pragma unroll
  for (int i = 0; i < {image * filters}; ++i) fill_fragment(sums[i], __float2half(0));
  for (int refill = 0; refill < 6; ++refill) {{
    int base_A = ((int)blockIdx.x * 6 + refill) * {sizes[0]};
    int base_B = ((int)blockIdx.y * 6 + refill) * {sizes[1]};
    __syncthreads();
    {copies[0]}
    {copies[1]}
    __syncthreads();
    for (int step = 0; step < 2; ++step) {{
      #pragma unroll
      for (int i = 0; i < {image}; ++i)
        load_matrix_sync(a[i], A_shared + (step * {image} + i) * 128, 16);
      #pragma unroll
      for (int j = 0; j < {filters}; ++j)
        load_matrix_sync(b[j], B_shared + (step * {filters} + j) * 512, 32);
      #pragma unroll
      for (int i = 0; i < {image * filters}; ++i)
        mma_sync(sums[i], a[i / {filters}], b[i % {filters}], sums[i]);
    }}
  }}
  #pragma unroll
  for (int i = 0; i < {image * filters}; ++i)
    store_matrix_sync(
        C + ((blockIdx.x * 64 + blockIdx.y) * {image * filters} + i) * 256 + threadIdx.y * 4096,
        sums[i], 32, mem_row_major);
}}
"""


def window(instructions: Sequence[str]) -> float | None:
    """Return the mean number of loads under way where a store waits for one; None without any.

    >>> window(["LDG.E R1, [R8]", "LDG.E R2, [R8+0x8]", "STS [R9], R1", "STS [R9+0x8], R2"])
    1.5
    """
    under_way, waits = list[str](), list[int]()
    for text in instructions:
        load = re.search(r"\bLDG\S* (R\d+)", text)
        store = re.search(r"\bSTS\S* \[.*\], (R\d+)", text)
        if load:
            under_way.append(load[1])
        elif store and store[1] in under_way:
            # Loads arrive in their order: those before it are here as well.
            place = under_way.index(store[1])
            waits.append(len(under_way) - place)
            under_way = under_way[place + 1 :]
    return statistics.mean(waits) if waits else None


def machine_code(text: str, nvcc: Path, ptxas: Path | None, folder: Path) -> list[str]:
    """Return the instructions of a kernel for sm_80.

    Parameters
    ----------
    text : str
        CUDA text of the kernel.
    nvcc : Path
        Compiler.
    ptxas : Path or None
        Assembler of another version; None for nvcc's.
    folder : Path
        Folder of temporary files.
    """
    source, code = folder / "copies.cu", folder / "copies.cubin"
    source.write_text(text)
    if ptxas is None:
        _run(nvcc, "-arch=sm_80", "-cubin", "-o", code, source)
    else:
        ptx = folder / "copies.ptx"
        _run(nvcc, "-arch=sm_80", "-ptx", "-o", ptx, source)
        # Nothing in it is younger than CUDA 11.8's PTX.
        ptx.write_text(re.sub(r"\.version \S+", ".version 7.8", ptx.read_text()))
        _run(ptxas, "-arch=sm_80", "-o", code, ptx)
    listing = _run(nvcc.with_name("nvdisasm"), "-c", code)
    return re.findall(r"/\*[0-9a-f]{4}\*/\s+(.*?);", listing)


def _run(program: Path, *arguments: str | Path) -> str:
    command = [str(word) for word in (program, *arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def cases() -> Iterator[tuple[int, bool, str]]:
    """Yield elements of a load, whether it is guarded, and the kernel's text."""
    guards = ((1, False), (2, False), (2, True))
    for vector, (first, second, unrolled), fragments, (warps, guarded) in itertools.product(
        VECTORS, COPIES, FRAGMENTS, guards
    ):
        yield (
            vector,
            guarded,
            kernel(
                vector, (first, second), fragments, warps, unrolled=unrolled, guarded=guarded
            ),
        )  # fmt: skip


def table(nvcc: Path, ptxas: Path | None, folder: Path) -> list[str]:
    """Return a line of a table for each kind of copy.

    Parameters
    ----------
    nvcc, ptxas, folder
        As in :func:`machine_code`.
    """
    windows: dict[tuple[int, bool], list[float]] = {}
    for vector, guarded, text in cases():
        mean = window(machine_code(text, nvcc, ptxas, folder))
        if mean is not None:
            windows.setdefault((vector, guarded), []).append(mean)
    name = "nvcc's" if ptxas is None else _version(ptxas)
    return [
        f"| {name} | {vector} | {'yes' if guarded else 'no'} | {len(means)} | "
        f"{statistics.harmonic_mean(means):.1f} | {min(means):.1f} to {max(means):.1f} |"
        for (vector, guarded), means in sorted(windows.items())
    ]


def _version(program: Path) -> str:
    match = re.search(r"release ([\d.]+)", _run(program, "--version"))
    return match[1] if match else "another"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nvcc", type=Path, help="nvcc, with nvdisasm beside it")
    parser.add_argument("--ptxas", type=Path, help="another ptxas, that of CUDA 11.8 or later")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    options = parser.parse_args(arguments)
    compiler = shutil.which("nvcc") if options.nvcc is None else options.nvcc
    if compiler is None:
        print("no nvcc on the path: install the CUDA toolkit, or name it (--nvcc)", file=sys.stderr)
        return 2
    nvcc = Path(compiler)
    with tempfile.TemporaryDirectory() as name:
        lines = table(nvcc, None, Path(name))
        if options.ptxas is not None:
            lines += table(nvcc, options.ptxas, Path(name))
    text = [
        "# Loads under way in compiled copies",
        "",
        "Written by `windows.py`, which says what is counted. Read from machine code for sm_80.",
        "",
        "| ptxas | elements of a load | guarded | kernels | harmonic mean | of single kernels |",
        "| --- | --- | --- | --- | --- | --- |",
        *lines,
        "",
        *provenance_lines(provenance(), "nothing was measured"),
    ]
    (options.output / "windows.md").write_text("\n".join(text) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
