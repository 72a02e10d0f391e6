"""The program of a library: flat buffers, compiled kernels, and calls of kernels on buffers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from cpembed.errors import InvariantError, WorkloadError
from cpembed.ir.dtypes import numpy_dtype, size_bytes


class Role(Enum):
    """Source of a buffer's memory, and time at which it is written.

    A caller passes ``INPUT`` and ``OUTPUT`` in each call and ``WEIGHTS`` once. ``CONSTANT`` is
    known when the library is built. ``PACKED`` is written once, by the calls that prepare, and read
    by those that run. ``WORKSPACE`` is written before it is read in every run.
    """

    INPUT = "input"
    OUTPUT = "output"
    WEIGHTS = "weights"
    CONSTANT = "constant"
    PACKED = "packed"
    WORKSPACE = "workspace"


CALLER_ROLES = (Role.INPUT, Role.OUTPUT, Role.WEIGHTS)
"""Roles of buffers in the caller's memory."""


@dataclass(frozen=True)
class Buffer:
    """Flat memory.

    The order of a program's buffers numbers the tensors of a caller.

    Attributes
    ----------
    dtype : str
        Type of the elements; bfloat16 lies in memory as 16 bits.
    elements : int
        Number of elements.
    role : Role
        Source of the memory.
    shape : tuple of int
        Shape of the tensor that a caller passes.
    data : array, optional
        Elements of a constant.
    fill : int or float, optional
        Value that a workspace holds everywhere before the first run, such as the halo of a padded
        image. Such a workspace shares its memory with no other buffer.
    """

    name: str
    dtype: str
    elements: int
    role: Role
    shape: tuple[int, ...] = ()
    data: NDArray[Any] | None = field(default=None, compare=False, repr=False)
    fill: int | float | None = None

    def __post_init__(self) -> None:
        if self.role in CALLER_ROLES and math.prod(self.shape) != self.elements:
            raise InvariantError(f"{self.name}: {self.elements} elements are not {self.shape}")
        if (self.data is not None) != (self.role is Role.CONSTANT):
            raise InvariantError(f"{self.name}: a constant has data, and nothing else has")
        if self.fill is not None and self.role is not Role.WORKSPACE:
            raise InvariantError(f"{self.name}: a {self.role.value} is not filled")
        data, size = self.data, size_bytes(self.dtype)
        if data is not None and (data.size != self.elements or data.dtype.itemsize != size):
            array = f"{data.dtype} {data.shape}"
            raise InvariantError(f"{self.name}: {array} is not {self.elements} of {self.dtype}")

    @property
    def bytes(self) -> int:
        return self.elements * size_bytes(self.dtype)

    @property
    def is_shared(self) -> bool:
        """True if other buffers have the same memory at other times of a run."""
        return self.role is Role.WORKSPACE and self.fill is None

    @property
    def filling(self) -> bytes:
        """Bytes of one element of the fill value; empty without one."""
        return b"" if self.fill is None else numpy_dtype(self.dtype).type(self.fill).tobytes()


@dataclass(frozen=True)
class CompiledObject:
    """An object file with one kernel, the function ``__tvm_ffi_<symbol>``, such as
    :func:`~cpembed.codegen.runtime.compile_host_object` compiles.
    """

    symbol: str
    contents: bytes = field(repr=False)


@dataclass(frozen=True)
class Call:
    """A call of a kernel, named by its symbol, on buffers in the order of its parameters; reports
    of time show the ``label``.
    """

    kernel: str
    arguments: tuple[str, ...]
    label: str = ""


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Program:
    """Buffers, kernels and calls.

    Attributes
    ----------
    kernels : mapping
        Object files by symbol.
    prepare : tuple of Call
        Calls after the weights have been passed, once.
    run : tuple of Call
        Calls of every run.
    features : tuple of str
        CPU features that the kernels need, as /proc/cpuinfo spells them.
    threads : int
        Default number of threads; 0 for the cores of the process.

    Raises
    ------
    InvariantError
        For calls and buffers that do not fit together.
    WorkloadError
        For a name that is no identifier of C.
    """

    name: str
    buffers: tuple[Buffer, ...]
    kernels: Mapping[str, CompiledObject]
    prepare: tuple[Call, ...]
    run: tuple[Call, ...]
    features: tuple[str, ...] = ()
    threads: int = 0

    def __post_init__(self) -> None:
        require_name(self.name)
        if len(self.by_name) != len(self.buffers):
            raise InvariantError(f"{self.name}: two buffers have one name")
        for call in (*self.prepare, *self.run):
            if call.kernel not in self.kernels:
                raise InvariantError(f"{self.name}: there is no kernel {call.kernel}")
            for name in call.arguments:
                if name not in self.by_name:
                    raise InvariantError(f"{self.name}: {call.kernel} takes {name}, no buffer")
        for name in (name for call in self.prepare for name in call.arguments):
            if self.by_name[name].role in (Role.INPUT, Role.OUTPUT):
                raise InvariantError(f"{self.name}: {name} is not there when weights are packed")

    @cached_property
    def by_name(self) -> dict[str, Buffer]:
        return {buffer.name: buffer for buffer in self.buffers}

    def with_role(self, role: Role) -> tuple[Buffer, ...]:
        """The buffers of a role, in their order."""
        return tuple(buffer for buffer in self.buffers if buffer.role is role)

    @cached_property
    def used(self) -> frozenset[str]:
        """Names of the buffers that calls take."""
        calls = (*self.prepare, *self.run)
        return frozenset(name for call in calls for name in call.arguments)

    def lives(self) -> dict[str, tuple[int, int]]:
        """First and last step that take each buffer of the shared workspace; a buffer that
        preparation takes lives throughout.
        """
        lives = dict(spans(call.arguments for call in self.run))
        for call in self.prepare:
            lives |= dict.fromkeys(call.arguments, (0, len(self.run) - 1))
        shared = (buffer.name for buffer in self.buffers if buffer.is_shared)
        return {name: lives[name] for name in shared if name in lives}


def spans(steps: Iterable[Iterable[str]]) -> Iterator[tuple[str, tuple[int, int]]]:
    """First and last step of each name.

    >>> dict(spans([["a"], ["a", "b"], ["b"]]))
    {'a': (0, 1), 'b': (1, 2)}
    """
    lives: dict[str, tuple[int, int]] = {}
    for number, names in enumerate(steps):
        for name in names:
            lives[name] = lives.get(name, (number, number))[0], number
    yield from lives.items()


def require_name(name: str) -> str:
    """Return the name of a library, which begins functions of C, files and a class of Python.

    Raises :class:`WorkloadError` for one that is no identifier.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise WorkloadError(
            f"{name!r} cannot name a library: letters, digits and _ only, a letter first, at most "
            f"{_LONGEST_NAME}"
        )
    return name
