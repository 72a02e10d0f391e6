"""What the tests of the executor share: texts beside them, launches, and a compiler to do it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.errors import ExecutionFault
from cpembed.targets.cuda import device
from cpembed.targets.cuda.emulator.executor import (
    COMPILER,
    Counters,
    Launch,
    Order,
    Program,
    compile_text,
)

Array = NDArray[Any]

ORDERS: tuple[Order | int, ...] = (Order.FORWARD, Order.REVERSE, 7)

needs_compiler = pytest.mark.skipif(
    bool(COMPILER.missing()), reason=f"missing: {', '.join(COMPILER.missing())}"
)
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the path")


def text(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def program(name: str) -> Program:
    return compile_text(with_device_functions(text(name)))


def with_device_functions(source: str) -> str:
    """A text with the device functions that it calls, behind it so that its lines stay."""
    functions = [device.function(name) for name in device.names() if name in source]
    if "cpembed_wmma_" in source:  # Names that macros make.
        functions = [device.function(name) for name in device.names()]
    prototypes = [function.split(" {", 1)[0] + ";" for function in functions]
    return f"{' '.join(prototypes)} {source}\n{''.join(functions)}"


def fault(
    compiled: Program, launch: Launch, arguments: Sequence[Any], order: Order | int = Order.FORWARD
) -> str:
    """The line that a launch ends with."""
    with pytest.raises(ExecutionFault) as caught:
        compiled.run(launch, arguments, order=order)
    return str(caught.value)


def small_integers(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Numbers whose products and sums are exact in every type here."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


def total(counters: Counters, prefix: str) -> int:
    return sum(n for name, n in counters.instructions.items() if name.startswith(prefix))
