"""Libraries for another instruction set, executed by an emulator of user programs.

The runtime and the kernels are linked with a small program (``native/server.c``) to a static
executable, which qemu runs and this process directs through pipes. What qemu computes is what the
architecture defines; times mean nothing.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.plan import storage_dtype
from cpembed.errors import BackendUnavailable, CrashError, InvariantError
from cpembed.export.layout import blob_of
from cpembed.export.library import compile_c, layout_of, parts_of
from cpembed.export.loader import TensorInfo
from cpembed.export.program import Program, Role
from cpembed.export.sized import SizedProgram
from cpembed.export.texts import NATIVE
from cpembed.graph.family import shape_at

Array = NDArray[Any]

_LENGTH = struct.Struct("<q")


def emulator_of(architecture: str) -> str | None:
    """Return the path of qemu for an instruction set; None if it is not installed."""
    names = (f"qemu-{architecture}", f"qemu-{architecture}-static")
    return next(filter(None, map(shutil.which, names)), None)


class EmulatedLibrary:
    """Program of a library under an emulator; a context manager that ends it.

    It has those members of :class:`~cpembed.export.loader.Library` by which a network is verified.

    Parameters
    ----------
    program : Program or SizedProgram
        Program with constant weights, or programs of several sizes.
    emulator : str
        Path of the emulator.
    threads : int
        Number of threads.

    Raises
    ------
    BackendUnavailable
        If there is no C compiler for the instruction set, or the emulated processor lacks a feature
        that the program needs.
    LoweringError
        If it cannot link the program.
    CrashError
        If the program ends before it is closed.
    """

    def __init__(self, program: Program | SizedProgram, emulator: str, threads: int = 1) -> None:
        self._sized = SizedProgram.sized(program)
        self._program = self._sized.first
        self._folder = tempfile.TemporaryDirectory(prefix="cpembed-")
        folder = Path(self._folder.name)
        parts = parts_of(layout_of(program, blob_of(*self._sized.programs)))
        parts["server.c"] = (
            (NATIVE / "server.c").read_text(encoding="utf-8").replace("NAME", program.name).encode()
        )
        for name, contents in parts.items():
            (folder / name).write_bytes(contents)
        objects = [name for name in parts if name.endswith(".o")]
        # Static, so that the emulator needs no libraries of the other system.
        options = ["-std=gnu11", "-O2", "-static", "-pthread", "-w", "-I."]
        compile_c([*options, "server.c", "runtime.c", *objects, "-o", "server", "-lm"], folder)
        # A file: nobody reads the messages of a program that runs well.
        self._messages = (folder / "messages").open("wb")
        self._process = subprocess.Popen(
            [emulator, "./server", f"{program.name}.weights", str(threads)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            # The processor with the most features that the emulator has, unless the user names one.
            env={"QEMU_CPU": "max", **os.environ},
        )
        self.inputs, self.outputs = (
            self._tensors(role, self._sized.largest) for role in (Role.INPUT, Role.OUTPUT)
        )
        try:
            status, length = self._number(), self._number()
            text = self._read(length).decode()
            if status != 0:
                raise BackendUnavailable(f"{Path(emulator).name} does not open it: {text}")
        except BaseException:
            self.close()
            raise

    def _tensors(self, role: Role, sizes: Mapping[str, int]) -> tuple[TensorInfo, ...]:
        return tuple(
            TensorInfo(b.name, b.dtype, shape_at(self._sized.shape(role, number), sizes))
            for number, b in enumerate(self._sized.with_role(role))
        )

    def resize(self, sizes: Mapping[str, int]) -> None:
        """Set the size of each symbol, and with them the shapes of inputs and outputs."""
        numbers = (_LENGTH.pack(sizes[symbol.name]) for symbol in self._sized.symbols)
        self._write(b"Z", *numbers)
        status = self._number()
        if status != 0:
            raise InvariantError(f"sizes {dict(sizes)} are refused with status {status}")
        self.inputs, self.outputs = (
            self._tensors(role, sizes) for role in (Role.INPUT, Role.OUTPUT)
        )

    def run_steps(
        self, first: int, last: int, *inputs: Array, out: Sequence[Array] | None = None
    ) -> tuple[Array, ...]:
        """Run the steps from ``first`` to before ``last`` of a call.

        Parameters
        ----------
        first, last : int
            Range of the steps.
        *inputs : array
        out : sequence of array, optional
            Memory of the outputs, which hold what all steps so far wrote.
        """
        arrays = [info.accepted(a) for info, a in zip(self.inputs, inputs, strict=True)]
        self._write(b"S", _LENGTH.pack(first), _LENGTH.pack(last), *(a.tobytes() for a in arrays))
        status = self._number()
        if status != 0:
            raise InvariantError(f"steps of the emulated library fail with status {status}")
        return self._outputs(out)

    def run_observed(
        self, observer: Callable[[int, Sequence[int]], None], *inputs: Array
    ) -> tuple[Array, ...]:
        """Run one call, with a call of ``observer`` after each step.

        Parameters
        ----------
        observer : callable
            As for :meth:`cpembed.export.loader.Library.run_observed`.
        *inputs : array
        """
        arrays = [info.accepted(a) for info, a in zip(self.inputs, inputs, strict=True)]
        loops = len(self._program.loops)
        self._write(b"R", _LENGTH.pack(loops), *(a.tobytes() for a in arrays))
        while self._number():
            step = self._number()
            observer(step, [self._number() for _ in range(loops)])
            self._write(b"N")
        status = self._number()
        if status != 0:
            raise InvariantError(f"a call of the emulated library fails with status {status}")
        return self._outputs(None)

    def _outputs(self, out: Sequence[Array] | None) -> tuple[Array, ...]:
        results = out or [np.empty(info.shape, info.stored) for info in self.outputs]
        for number, (info, result) in enumerate(zip(self.outputs, results, strict=True)):
            self._write(b"O", _LENGTH.pack(number))
            self._number()
            contents = self._read(result.size * info.stored.itemsize)
            result[...] = np.frombuffer(contents, info.stored).reshape(result.shape)
        return tuple(results)

    def run(self, *inputs: Array) -> tuple[Array, ...]:
        """Run one call and return its outputs."""
        return self.run_steps(0, len(self._sized.steps), *inputs)

    def tensor(self, name: str) -> Array:
        """Return a flat copy of a buffer as the last steps left it."""
        text = name.encode()
        self._write(b"T", _LENGTH.pack(len(text)), text)
        contents = self._read(self._number())
        return np.frombuffer(contents, storage_dtype(self._program.by_name[name].dtype)).copy()

    def close(self) -> None:
        """End the program."""
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.kill()
        self._process.wait()
        self._messages.close()
        self._folder.cleanup()

    def __enter__(self) -> EmulatedLibrary:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, *parts: bytes) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        try:
            for part in parts:
                pipe.write(part)
            pipe.flush()
        except OSError:
            self._ended()

    def _number(self) -> int:
        return _LENGTH.unpack(self._read(_LENGTH.size))[0]

    def _read(self, size: int) -> bytes:
        pipe = self._process.stdout
        assert pipe is not None
        contents = pipe.read(size) if size else b""
        if len(contents) != size:
            self._ended()
        return contents

    def _ended(self) -> None:
        """Raise :class:`CrashError` for a program that ended."""
        code = self._process.wait()
        activity = f"running the emulated library {self._program.name}"
        raise CrashError.from_exit(activity, code, "")
