"""AArch64 as a processor that kernels are compiled for and called on, where another one executes
this program: each call is a process of the emulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.runtime import ObjectFile, bits, compile_object
from cpembed.codegen.script import storage_dtype
from cpembed.targets.arm.emulator import emulate
from cpembed.targets.arm.image import START, Array, image, places_of

TRIPLE = "aarch64-linux-gnu"


class Function:
    """A compiled kernel over flat arrays."""

    def __init__(self, kernel: ObjectFile, name: str) -> None:
        self._kernel = kernel
        self._name = name

    def __call__(self, *buffers: Array) -> None:
        """Raises as :func:`~cpembed.targets.arm.emulator.emulate`."""
        written = emulate(image(self._kernel.contents, buffers), f"running the {self._name} kernel")
        for buffer, place in zip(buffers, places_of(buffers), strict=False):
            buffer[:] = np.frombuffer(written, buffer.dtype, buffer.size, place)

    def bound(self, *buffers: Array) -> Callable[[], None]:
        return partial(self, *buffers)

    def assembly(self) -> str:
        return self._kernel.assembly()


class EmulatedProcessor:
    """A core with what each kernel asks for (:attr:`KernelPlan.attributes`) beside Armv8.0-A."""

    def thread_count(self) -> int:
        """Of a kernel; an image has no others."""
        return 1

    def compile_plan(self, plan: KernelPlan) -> Function:
        """As :func:`cpembed.codegen.runtime.compile_plan`."""
        started = replace(plan, functions=plan.functions + START)
        return Function(compile_object(started, TRIPLE), plan.backend)

    def from_array(self, array: Array) -> Array:
        return bits(array).reshape(-1).copy()

    def empty(self, elements: int, dtype: str) -> Array:
        return np.zeros(elements, storage_dtype(dtype))

    def to_array(self, buffer: Array, shape: Sequence[int]) -> Array:
        return buffer.reshape(tuple(shape))
