"""The workloads of HASCO's figure 7.

The paper gives how many there are, the range of their operations, and which convolutions have
filters that are not 3 x 3 (section VII-B, table I); the sizes are this project's.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.workloads.operators import OPERATORS

TYPES = ("int8", "int8", "int32")


@dataclass(frozen=True)
class Benchmark:
    """A tensor computation: its parts, executed one after the other."""

    kind: str
    number: int
    sizes: str
    parts: tuple[Computation, ...]

    @property
    def macs(self) -> int:
        return sum(part.macs for part in self.parts)


def _product(text: str, **extents: int) -> Computation:
    output, first, second = (part.strip() for part in text.replace("+=", "*").split("*"))
    names = [part.split("[")[0] for part in (first, second, output)]
    return parse_computation(
        f"{output} += {first} * {second}",
        extents,
        name=output.split("[")[0],
        dtypes=dict(zip(names, TYPES, strict=True)),
    )


def mttkrp() -> list[Benchmark]:
    """Return the MTTKRPs, in two stages as in the paper.

    The sums of the first stage are bytes to the second.
    """
    sizes = (
        *((128, 128, 128, 122), (100, 150, 200, 100), (128, 128, 128, 256), (200, 150, 128, 200)),
        *((128, 256, 128, 256), (150, 200, 250, 200), (256, 128, 256, 256), (256, 200, 256, 256)),
        *((256, 256, 256, 256), (300, 256, 300, 256)),
    )
    return [
        Benchmark(
            "MTTKRP",
            number,
            f"i={i} k={k} l={l} j={j}",
            (
                _product("E[i,k,j] += A[i,k,l] * B[l,j]", i=i, k=k, j=j, l=l),
                _product("D[i,j] += E[i,k,j] * C[k,j]", i=i, j=j, k=k),
            ),
        )
        for number, (i, k, l, j) in enumerate(sizes, 1)  # noqa: E741 - the paper's name
    ]


def ttm() -> list[Benchmark]:
    """Return the tensor-times-matrix products."""
    sizes = (
        *((64, 64, 64, 64), (30, 90, 100, 128), (64, 128, 64, 128), (10, 200, 256, 256)),
        *((128, 128, 128, 128), (60, 180, 200, 256), (128, 256, 128, 256), (100, 300, 256, 256)),
        *((256, 256, 256, 256), (128, 128, 512, 1024)),
    )
    return [
        Benchmark(
            "TTM",
            number,
            f"i={i} j={j} k={k} l={l}",
            (_product("C[i,j,k] += A[i,j,l] * B[l,k]", i=i, j=j, k=k, l=l),),
        )
        for number, (i, j, k, l) in enumerate(sizes, 1)  # noqa: E741 - the paper's name
    ]


def convolutions() -> list[Benchmark]:
    """Return the convolutions: channels, filters, output's rows and columns, taps.

    Filters of 5 x 5 and 7 x 7 are #1, #5 and #8, as in the paper.
    """
    shapes = (
        *((32, 64, 42, 5), (64, 64, 56, 3), (96, 96, 56, 3), (256, 256, 28, 3), (64, 64, 56, 7)),
        *((128, 192, 56, 3), (192, 192, 56, 3), (128, 128, 56, 5), (256, 256, 56, 3)),
        (256, 512, 56, 3),
    )
    convolution_list: list[Benchmark] = []
    for number, (c, k, p, r) in enumerate(shapes, 1):
        side = p + r - 1
        parameters = {"n": 1, "c": c, "h": side, "w": side, "k": k, "r": r, "s": r, "dtype": TYPES}
        workload = OPERATORS["conv2d"].workload(parameters)
        sizes = f"c={c} k={k} {p} x {p}, filters {r} x {r}"
        convolution_list.append(Benchmark("2-D convolution", number, sizes, (workload,)))
    return convolution_list


def gemm() -> list[Benchmark]:
    """Return the matrix products."""
    sizes = (
        *((16, 32, 32), (64, 64, 64), (100, 80, 120), (128, 256, 256), (35, 700, 2560)),
        *((256, 512, 1024), (1000, 300, 900), (1760, 128, 1760), (1024, 1024, 1024)),
        (1024, 2048, 2048),
    )
    return [
        Benchmark(
            "GEMM",
            number,
            f"i={i} j={j} k={k}",
            (_product("L[i,j] += M[i,k] * N[k,j]", i=i, j=j, k=k),),
        )
        for number, (i, j, k) in enumerate(sizes, 1)
    ]


def benchmarks() -> list[Benchmark]:
    """Return all workloads of the figure."""
    return [*mttkrp(), *convolutions(), *ttm(), *gemm()]
