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
    """A product, a convolution or attention of float16, sums in float32, results in float16."""

    name: str
    kind: str
    """``gemm``, ``conv`` or ``attention``."""
    sizes: Mapping[str, int]

    @property
    def stem(self) -> str:
        """Name of files."""
        return "x".join(map(str, (self.kind, *self.sizes.values())))

    @property
    def words(self) -> str:
        """Words that name the workload."""
        sizes = " ".join(f"{name}={size}" for name, size in self.sizes.items())
        if self.kind == "attention":
            return f"attention {sizes}"
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


def _attention(depth: int) -> Layer:
    sizes = {"b": 8, "h": 16, "q": 1024, "k": 1024, "d": depth}
    return Layer(f"attention, heads of {depth}", "attention", sizes)


LAYERS = (
    _gemm(8192, 8192, 8192),
    _gemm(512, 3072, 768),
    *(
        _conv(n, c, h, k, r)
        for c, h, k, r in ((64, 56, 64, 3), (256, 14, 256, 3), (256, 56, 64, 1))
        for n in (1, 16)
    ),
    _attention(64),
    _attention(128),
)


def equal_tile(layer: Layer, architecture: str) -> Tile:
    """Return the tile at which all compilers are compared.

    It has four warps, or two groups of 64 rows, and no more columns than a convolution has. For
    attention with heads of 128 it has eight warps.

    Parameters
    ----------
    layer : Layer
        Product or convolution.
    architecture : str
        ``sm_80``, ``sm_90a`` or ``sm_120a``.
    """
    if layer.kind == "attention":
        # Queries, depth of a head, and keys of a stage.
        if architecture == "sm_90a":
            return Tile(128, layer.sizes["d"], 128, 2)
        # Three stages of heads of 128 are more than a block of sm_120 has.
        stages = 2 if architecture == "sm_120a" and layer.sizes["d"] > 64 else 3
        return Tile(128, layer.sizes["d"], 64, stages)
    columns = layer.sizes["k"] if layer.kind == "conv" else layer.sizes["n"]
    if architecture == "sm_90a":
        return Tile(128, min(256, columns), 64, 4)
    return Tile(128, min(128, columns), 32, 3)
