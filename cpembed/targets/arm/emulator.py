"""Executables of AArch64 Linux, run on another machine by qemu's user-mode emulation.

qemu executes the instructions one by one as the architecture defines them, so numbers are right
and times mean nothing. It emulates a core with every feature, or the one that ``QEMU_CPU`` names in
the environment (``cortex-a57`` has none of the extensions here).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.runtime import ObjectFile, bits, compile_object
from cpembed.codegen.script import storage_dtype
from cpembed.errors import BackendUnavailable, CrashError, InvariantError
from cpembed.steps import LIMIT_VARIABLE, time_limit
from cpembed.targets.arm.image import START, Array, image, places_of

_NAMES = ("qemu-aarch64", "qemu-aarch64-static")
"""As Debian's packages qemu-user and qemu-user-static have it."""
_CPU_VARIABLE = "QEMU_CPU"
"""qemu's own."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@cache
def emulator() -> str | None:
    """Where qemu is; None where it is not installed."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


def emulate(executable: bytes, doing: str) -> bytes:
    """What an executable writes to its standard output.

    ``doing`` is for the line about a crash. Raises :class:`BackendUnavailable` without qemu,
    :class:`CrashError` where the program is ended by a signal or takes longer than
    :func:`~cpembed.steps.time_limit`, :class:`InvariantError` where a kernel refused its
    arguments.
    """
    found = emulator()
    if found is None:
        raise BackendUnavailable(missing())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel"
        path.write_bytes(executable)
        path.chmod(0o700)
        try:
            done = subprocess.run(
                [found, str(path)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=time_limit(),
                check=False,
                preexec_fn=_end_with_this,
            )
        except subprocess.TimeoutExpired:
            raise CrashError.too_long(doing, LIMIT_VARIABLE) from None
    if done.returncode == 0:
        return done.stdout
    if done.returncode > 0:
        raise InvariantError(f"{doing} ended in exit code {done.returncode}: please report it")
    core = os.environ.get(_CPU_VARIABLE)
    lacks = f"the emulated core {core or 'of qemu'} lacks an instruction of the kernel"
    illegal = done.returncode == -signal.SIGILL
    raise CrashError.from_exit(doing, done.returncode, lacks if illegal else "")


def missing() -> str:
    """What to install where there is no emulator."""
    return f"{_NAMES[0]} is not installed (Debian and Ubuntu: apt install qemu-user)"


def _end_with_this() -> None:
    """In the child: it ends when this process does, however that ends."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


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
