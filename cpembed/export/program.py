"""What a library holds: flat buffers, compiled kernels, and the calls that they are made in."""

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
    """Where the memory of a buffer comes from, and when it is written.

    ``INPUT`` and ``OUTPUT`` are given by the caller in each call, ``WEIGHTS`` once. ``CONSTANT``
    is known when the library is built. ``PACKED`` is written by the calls that prepare, once, and
    read by those that run. ``WORKSPACE`` is written before it is read in every run.
    """

    INPUT = "input"
    OUTPUT = "output"
    WEIGHTS = "weights"
    CONSTANT = "constant"
    PACKED = "packed"
    WORKSPACE = "workspace"


GIVEN = (Role.INPUT, Role.OUTPUT, Role.WEIGHTS)
"""Roles of what a caller gives."""


@dataclass(frozen=True)
class Buffer:
    """Flat memory of ``elements`` of type ``dtype`` (bfloat16 lies in memory as its bits).

    ``shape`` is that of the tensor that a caller gives. ``data`` are the elements of a constant.
    ``fill``: a workspace that holds this value everywhere before the first run, such as the halo
    of a padded image; its memory is its own. The order of a program's buffers numbers what is
    given.
    """

    name: str
    dtype: str
    elements: int
    role: Role
    shape: tuple[int, ...] = ()
    data: NDArray[Any] | None = field(default=None, compare=False, repr=False)
    fill: int | float | None = None

    def __post_init__(self) -> None:
        if self.role in GIVEN and math.prod(self.shape) != self.elements:
            raise InvariantError(f"{self.name}: {self.elements} elements are not {self.shape}")
        if (self.data is not None) != (self.role is Role.CONSTANT):
            raise InvariantError(f"{self.name}: a constant has data, and nothing else has")
        if self.fill is not None and self.role is not Role.WORKSPACE:
            raise InvariantError(f"{self.name}: a {self.role.value} is not filled")
        if self.data is not None:
            self._check(self.data)

    def _check(self, data: NDArray[Any]) -> None:
        if data.size != self.elements or data.dtype.itemsize != size_bytes(self.dtype):
            found = f"{data.dtype} {data.shape}"
            raise InvariantError(f"{self.name}: {found} is not {self.elements} of {self.dtype}")

    @property
    def bytes(self) -> int:
        return self.elements * size_bytes(self.dtype)

    @property
    def is_shared(self) -> bool:
        """Whether its memory is that of other buffers, at other times of a run."""
        return self.role is Role.WORKSPACE and self.fill is None

    @property
    def filling(self) -> bytes:
        """An element of what it is filled with, as memory holds it."""
        return b"" if self.fill is None else numpy_dtype(self.dtype).type(self.fill).tobytes()


@dataclass(frozen=True)
class CompiledObject:
    """An object file with one kernel, the function ``__tvm_ffi_<symbol>``: what
    :func:`~cpembed.codegen.runtime.compile_host_object` makes."""

    symbol: str
    contents: bytes = field(repr=False)


@dataclass(frozen=True)
class Call:
    """A kernel, by its symbol, on buffers, in the order of its parameters; ``label`` names the
    call where time is reported."""

    kernel: str
    arguments: tuple[str, ...]
    label: str = ""


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Program:
    """The calls of ``prepare``, once weights are there, and of ``run``, each time.

    ``features`` are the CPU features that the kernels need, as /proc/cpuinfo spells them.
    ``threads`` is how many run where a caller does not say; 0 for the cores of the process.

    Raises :class:`InvariantError` where calls and buffers do not fit together, and
    :class:`WorkloadError` for a name that is no identifier of C.
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

    def of(self, *roles: Role) -> tuple[Buffer, ...]:
        """The buffers of some roles, in their order."""
        return tuple(buffer for buffer in self.buffers if buffer.role in roles)

    @cached_property
    def used(self) -> frozenset[str]:
        """The names of buffers that calls take."""
        calls = (*self.prepare, *self.run)
        return frozenset(name for call in calls for name in call.arguments)

    def lives(self) -> dict[str, tuple[int, int]]:
        """Of each buffer that shares the workspace: the first and the last of the steps that take
        it. One that preparation takes lives throughout."""
        found = dict(spans(call.arguments for call in self.run))
        prepared = {name for call in self.prepare for name in call.arguments}
        whole = (0, len(self.run) - 1)
        return {
            buffer.name: whole if buffer.name in prepared else found[buffer.name]
            for buffer in self.buffers
            if buffer.is_shared and (buffer.name in found or buffer.name in prepared)
        }


def spans(steps: Iterable[Iterable[str]]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Of each name: the first and the last step that has it.

    >>> dict(spans([["a"], ["a", "b"], ["b"]]))
    {'a': (0, 1), 'b': (1, 2)}
    """
    found: dict[str, tuple[int, int]] = {}
    for number, names in enumerate(steps):
        for name in names:
            found[name] = found.get(name, (number, number))[0], number
    yield from found.items()


def require_name(name: str) -> str:
    """The name, which begins functions of C, files and a class of Python.

    Raises :class:`WorkloadError` for another one.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise WorkloadError(
            f"{name!r} cannot name a library: letters, digits and _ only, a letter first, at most "
            f"{_LONGEST_NAME}"
        )
    return name
