"""Running VTA programs out of compiled modules.

A compiled module holds each program as the bytes of a saved one (``docs/vta.md``), weights in its
memory, and calls :data:`EXECUTE` with the inputs of a run.
"""
# pyright: basic

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from cpembed.targets.vta.checker import check
from cpembed.targets.vta.container import load_program, save_program
from cpembed.targets.vta.program import VtaProgram
from cpembed.targets.vta.simulator import simulate, written
from cpembed.targets.vta.tail import Exact, Truncated

EXECUTE = "cpembed.vta.execute"
"""Name of :func:`execute` where compiled modules look for it."""

_LOADED = 256
"""Programs that are kept ready to run: more than a network has."""


def register() -> None:
    """Let compiled modules find :func:`execute`, which they need when they are loaded."""
    tvm.register_global_func(EXECUTE, execute, override=True)


def saved(program: VtaProgram) -> np.ndarray:
    """The bytes of a saved program."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.zip"
        save_program(program, path)
        return np.frombuffer(path.read_bytes(), np.uint8)


def execute(program: Any, names: str, *tensors: Any) -> None:
    """Run a saved program: ``names`` are those of its inputs, of which ``tensors`` are the packed
    contents, and the last tensor takes the packed result.

    A result of int32 is put together of the four planes of bytes that the program stores.
    """
    loaded = _loaded(program.numpy().tobytes())
    *inputs, result = tensors
    dram = loaded.dram.copy()
    for name, tensor in zip(names.split(), inputs, strict=True):
        target = loaded.tensor(name, dram)
        target[...] = np.from_dlpack(tensor).reshape(target.shape)
    dram = simulate(loaded, dram=dram, checked=False)
    stored = [loaded.tensor(name, dram) for name in written(loaded)]
    tail = Exact() if result.dtype == "int32" else Truncated()
    result.copyfrom(tail.combine(stored).reshape(result.shape))


@lru_cache(maxsize=_LOADED)
def _loaded(data: bytes) -> VtaProgram:
    """A program that may run: :func:`check` is passed once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.zip"
        path.write_bytes(data)
        program = load_program(path)
    check(program)
    return program
