"""Weights that are known when a library is built are packed then, by the library's own kernels."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cpembed.export.loader import Library
from cpembed.export.program import Call, Program, Role
from cpembed.export.tables import Layout
from cpembed.export.toolchain import link
from cpembed.export.weights import blob_of
from cpembed.runtime import worker
from cpembed.steps import step


def packed_ahead(program: Program) -> Program:
    """The program without the calls of ``prepare`` that pack constants: what they pack is constant
    too.

    Of a call of ``prepare`` the last argument is what it writes. The calls are executed here, so
    the processor has to have what their kernels need.
    """
    known = {buffer.name for buffer in program.of(Role.CONSTANT)}
    ahead: list[Call] = []
    for call in program.prepare:
        *read, written = call.arguments
        if known.issuperset(read) and program.by_name[written].role is Role.PACKED:
            ahead.append(call)
            known.add(written)
    if not ahead:
        return program
    arrays = _executed(program, ahead)
    buffers = tuple(
        replace(buffer, role=Role.CONSTANT, data=arrays[buffer.name])
        if buffer.name in arrays
        else buffer
        for buffer in program.buffers
    )
    rest = tuple(call for call in program.prepare if call not in ahead)
    return replace(program, buffers=buffers, prepare=rest)


def _executed(program: Program, calls: Sequence[Call]) -> dict[str, NDArray[Any]]:
    """What calls write, by name."""
    names = {name for call in calls for name in call.arguments}
    kernels = {call.kernel: program.kernels[call.kernel] for call in calls}
    alone = Program(
        "packing",
        tuple(buffer for buffer in program.buffers if buffer.name in names),
        kernels,
        (),
        tuple(calls),
    )
    layout = Layout(alone, blob_of(alone), in_file=True)
    with tempfile.TemporaryDirectory() as folder:
        path = link(layout, Path(folder))
        return worker.call(_packed, path, [call.arguments[-1] for call in calls])


def _packed(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Buffers after the steps of a library; in the worker."""
    with step("packing the weights of a library"), Library(path, "packing") as library:
        library.run()
        return {name: library.tensor(name) for name in names}
