"""The intrinsics of cores: what an array of processing elements computes at once.

The axes that an array unrolls are those of the instruction; everything else is a loop around it. So
the instruction depends on what stays in the processing elements: with stationary outputs a matrix
product takes a column of one factor and a row of the other each cycle, with stationary weights a
row of the image. HASCO's generators do the same (``generator_gemm.py``: x, y and 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WINDOW = 3
"""Rows and columns of the filter of the convolution's intrinsic (HASCO, section VII-B)."""


@dataclass(frozen=True)
class Role:
    """An operand of an intrinsic: its axes, and where it stands in HASCO's notation."""

    name: str
    axes: tuple[str, ...]
    is_output: bool = False


@dataclass(frozen=True)
class Intrinsic:
    """What the array computes in ``cycles``. ``stationary`` is the operand whose tiles stay in the
    processing elements, for which local memories are; ``streams`` are factors that come with each
    execution anew."""

    expression: str
    axes: Mapping[str, int]
    roles: tuple[Role, ...]
    stationary: str
    cycles: int
    words: str
    streams: tuple[str, ...] = ()

    @property
    def macs(self) -> int:
        """Of an execution."""
        product = 1
        for extent in self.axes.values():
            product *= extent
        return product

    def role(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)

    def tile_elements(self, name: str) -> int:
        product = 1
        for axis in self.role(name).axes:
            product *= self.axes[axis]
        return product


DATAFLOWS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("os", "ws"),
    "conv2d": ("os", "ws"),
    "gemv": ("os",),
    "dot": ("os",),
}
"""By intrinsic: outputs or weights stationary. HASCO has one dataflow of matrix-vector and dot
products: the matrix, or both vectors, are used once."""


def intrinsic(name: str, dataflow: str, rows: int, columns: int) -> Intrinsic:
    """An intrinsic on an array of ``rows`` by ``columns`` processing elements."""
    a, b, c = "A", "B", "C"
    match name, dataflow:
        case "gemm", "os":
            return Intrinsic(
                "C[x,y] += A[x] * B[y]",
                {"x": rows, "y": columns},
                (Role(a, ("x",)), Role(b, ("y",)), Role(c, ("x", "y"), True)),
                c,
                1,
                f"matrix product of {rows} rows, {columns} columns and one step",
            )
        case "gemm", _:
            return Intrinsic(
                "C[y] += A[z] * B[z,y]",
                {"y": columns, "z": rows},
                (Role(a, ("z",)), Role(b, ("z", "y")), Role(c, ("y",), True)),
                b,
                1,
                f"matrix product of one row, {columns} columns and {rows} steps",
            )
        case "conv2d", _:
            window = {"r": WINDOW, "s": WINDOW}
            return Intrinsic(
                "C[k] += A[c,r,s] * B[k,c,r,s]",
                {"k": rows, "c": columns, **window},
                (
                    Role(a, ("c", "r", "s")),
                    Role(b, ("k", "c", "r", "s")),
                    Role(c, ("k",), True),
                ),
                b if dataflow == "ws" else c,
                WINDOW * WINDOW,
                f"{WINDOW} x {WINDOW} convolution of {rows} filters and {columns} channels",
            )
        case "gemv", _:
            return Intrinsic(
                "C[x] += A[x,z] * B[z]",
                {"x": rows, "z": columns},
                (Role(a, ("x", "z")), Role(b, ("z",)), Role(c, ("x",), True)),
                c,
                1,
                f"product of a matrix of {rows} rows and {columns} columns with a vector",
                (a,),
            )
        case _:
            return Intrinsic(
                "C[] += A[z] * B[z]",
                {"z": rows * columns},
                (Role(a, ("z",)), Role(b, ("z",)), Role(c, (), True)),
                c,
                1,
                f"dot product of {rows * columns} elements",
                (a, b),
            )
