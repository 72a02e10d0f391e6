"""The statement that copies: element by element, or by blocks that are transposed."""

from __future__ import annotations

import numpy as np

from cpembed.codegen.transposition import Blocks, write_transposition
from cpembed.ir.index import IndexExpr
from cpembed.network.operators.emission import Kernel
from cpembed.network.operators.nest import Loop, Nest


def write_copy(kernel: Kernel, nest: Nest, source: str, dtype: str) -> None:
    """Copy what the second place of a nest says, from ``source`` to ``out0``."""
    sides = _sides(nest)
    if sides is not None:
        columns, rows = sides
        # Only the size counts, and there are fewer names of types to know.
        size = f"int{8 * np.dtype(dtype).itemsize}"
        blocks = Blocks.largest(rows.extent, columns.extent, size)
        if blocks is not None:
            _transpose(kernel, nest, blocks, columns, rows, source, dtype)
            return
    with kernel.points(nest):
        kernel.script.line(f"out0[{nest.places[0]}] = {source}[{nest.places[1]}]")


def _sides(nest: Nest) -> tuple[Loop, Loop] | None:
    """The loops along which the input and the result are contiguous; None where one is missing or
    both are one."""
    if not all(nest.is_affine(loop.name) for loop in nest.loops):
        return None
    found: list[Loop] = []
    for operand in (1, 0):
        loops = [loop for loop in nest.loops if nest.step(operand, loop.name) == 1]
        if len(loops) != 1:
            return None
        found += loops
    return (found[0], found[1]) if found[0] != found[1] else None


def _transpose(
    kernel: Kernel, nest: Nest, blocks: Blocks, columns: Loop, rows: Loop, source: str, dtype: str
) -> None:
    outer = [loop for loop in nest.loops if loop not in (columns, rows)]

    def element(place: IndexExpr, row: str, column: str) -> str:
        text = {rows.name: row, columns.name: column}
        return str(place.rename(lambda name: text.get(name, name)))

    target, given = nest.places
    with kernel.rows(outer):
        write_transposition(
            kernel.script,
            blocks,
            dtype,
            (0, rows.extent),
            (0, columns.extent),
            (source, lambda row, column: element(given, row, column)),
            ("out0", lambda row, column: element(target, row, column)),
        )
