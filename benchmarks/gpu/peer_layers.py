"""Layers of the comparison with other compilers, and what each of them returns of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tile:
    """Rows, columns and depth of a block's stage, and number of stages; 0: chosen by a library."""

    rows: int
    columns: int
    depth: int
    stages: int

    @property
    def name(self) -> str:
        stages = f"x{self.stages}" if self.stages else ""
        return f"{self.rows}x{self.columns}x{self.depth}{stages}"


@dataclass(frozen=True)
class Layer:
    """A matrix product or a convolution of float16 with sums in float32, results in float16."""

    name: str
    kind: str
    """``gemm`` or ``conv``."""
    sizes: Mapping[str, int]

    @property
    def stem(self) -> str:
        """Name of files."""
        return "x".join(map(str, (self.kind, *self.sizes.values())))

    @property
    def words(self) -> str:
        """Words that name the workload."""
        sizes = " ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"gemm {sizes} trans_b=1" if self.kind == "gemm" else f"conv2d {sizes} layout=NHWC"


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code of a kernel, seconds until it was there, and bytes of shared memory."""

    cubin: Path
    seconds: float
    shared_bytes: int
    tile: Tile


def _conv(n: int, c: int, h: int, k: int, r: int) -> Layer:
    sizes = {"n": n, "c": c, "h": h, "w": h, "k": k, "r": r, "s": r, "pad": r // 2, "stride": 1}
    return Layer(f"{r}x{r} {c} to {k} {h}x{h} n={n}", "conv", sizes)


def _gemm(m: int, n: int, k: int) -> Layer:
    return Layer(f"{m}x{n}x{k}", "gemm", {"m": m, "n": n, "k": k})


LAYERS = (
    _gemm(8192, 8192, 8192),
    _gemm(512, 3072, 768),
    *(
        _conv(n, c, h, k, r)
        for c, h, k, r in ((64, 56, 64, 3), (256, 14, 256, 3), (256, 56, 64, 1))
        for n in (1, 16)
    ),
)


def equal_tile(layer: Layer, architecture: str) -> Tile:
    """Return the tile at which all compilers are compared.

    It has four warps, or two groups of 64 rows, and no more columns than a convolution has.

    Parameters
    ----------
    layer : Layer
        Product or convolution.
    architecture : str
        ``sm_80``, ``sm_90a`` or ``sm_120a``.
    """
    columns = layer.sizes["k"] if layer.kind == "conv" else layer.sizes["n"]
    if architecture == "sm_90a":
        return Tile(128, min(256, columns), 64, 4)
    return Tile(128, min(128, columns), 32, 3)
