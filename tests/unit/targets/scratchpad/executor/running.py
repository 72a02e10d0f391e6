"""What the tests of the executor share: machines, texts and runs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.errors import ExecutionFault
from cpembed.targets.executor.program import COMPILERS
from cpembed.targets.scratchpad.executor import Counters, Program, Shape, compile_text

Array = NDArray[Any]

MESH = Shape(8, 8, (65536,), 128, 4, 4, lanes=4)
"""As SW26010: 8 x 8 elements of 64 KB."""

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="there is no C++ compiler"
)


def text(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def changed(source: str, *changes: tuple[str, str]) -> str:
    """A mutant: each text that is replaced is there once."""
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


def read_only(array: Array) -> Array:
    made = np.ascontiguousarray(array)
    made.flags.writeable = False
    return made


def small_integers(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Numbers whose products and sums are exact in every type here."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


def body(lines: str) -> Program:
    """A kernel of these lines, the first of which is line 3 of the text."""
    start = '#include "scratchpad.h"\nvoid kernel(const struct arguments *a) {\n'
    return compile_text(f"{start}{lines}\n}}\n")


def run(program: Program, arrays: Sequence[Array], shape: Shape = MESH, seed: int = 0) -> Counters:
    return program.run(shape, arrays, seed=seed)


def fault(program: Program, arrays: Sequence[Array], shape: Shape = MESH, seed: int = 0) -> str:
    """The line that a run ends with."""
    with pytest.raises(ExecutionFault) as caught:
        program.run(shape, arrays, seed=seed)
    assert "\n" not in str(caught.value)
    return str(caught.value)
