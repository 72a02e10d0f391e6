"""Execution of a generated text on this processor: compilation, memory, runs, places of faults.

A text and its runtime (C++ in ``native`` of the target) become a library, which a cache keeps
between processes. A run works on copies of its arrays, with gaps between them.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from _ctypes import dlclose
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.host_cpu import reported_features
from cpembed.errors import BackendUnavailable, ExecutionFault, LoweringError
from cpembed.host import compiler_command
from cpembed.stores import SealedFolder, store_folder

Array = NDArray[Any]
T = TypeVar("T")

# ------------------------------------------------------------------------------ compilation

NATIVE = Path(__file__).parent / "native"
"""Folder of the headers that all runtimes include."""

COMPILER_VARIABLE = "CXX"
"""Environment variable with the compiler's command and options; default: the first of
:data:`COMPILERS` on the path."""
COMPILERS = ("g++", "clang++", "c++")

_COMMON = (
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-ffp-contract=off",  # A fused multiply-add would round once where the text rounds twice.
    "-w",  # Nobody can act on warnings about generated code.
)
_RUNTIME = ("-std=c++17", "-O3", f"-I{NATIVE}")
_TEXT = (
    "-O2",
    "-g1",  # Line tables, for the locations of faults.
    "-fno-strict-aliasing",  # Vectors are read through pointers of other types.
    "-fwrapv",
    "-fsanitize=thread",  # Calls the runtime before each plain access; native/plain_accesses.h.
)
_FILLED = ("-ftrivial-auto-var-init=pattern",)
"""Option that fills variables which a text does not initialise, so that results cannot depend on
zeros that happen to be there."""
_LINK = ("-shared", "-Wl,-Bsymbolic", "-Wl,-z,noexecstack")

_LIMIT_SECONDS = 300
_DAY_SECONDS = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class TextCompiler:
    """Options to compile texts of one kind and to link them with ``native``/runtime.cpp."""

    kind: str
    """Name of the kind in messages: "CUDA"."""
    name: str
    """Name of the folder in the user's cache."""
    folder_variable: str
    """Environment variable that replaces the cache folder; if it is empty, nothing is cached."""
    file: str
    """File name of the text in the compiler's messages and line tables."""
    language: str
    """Value of the compiler's option ``-x``."""
    native: Path
    options: tuple[str, ...] = ()
    gcc_options: tuple[str, ...] = ()
    """Options that clang does not have."""
    header: str | None = None
    """Header of ``native`` included before every text; precompiled if the compiler is GCC."""

    def command(self) -> list[str]:
        """Return the compiler's command and its options.

        Raises :class:`BackendUnavailable` if no compiler is on the path.
        """
        purpose = f"{self.kind} text is executed through a C++ compiler"
        return compiler_command(COMPILER_VARIABLE, COMPILERS, purpose)

    def missing(self) -> tuple[str, ...]:
        """Return what this machine lacks to execute texts, as messages; empty if nothing."""
        try:
            self.command()
        except BackendUnavailable as error:
            return (str(error),)
        return ()

    def cache_folder(self) -> Path | None:
        """Return the folder of compiled texts; None if nothing is cached."""
        folder = os.environ.get(self.folder_variable)
        if folder is not None:
            return Path(folder) if folder else None
        return store_folder(self.name)

    def compile(self, source: str) -> Path:
        """Return the library of a text, from the cache if its content is there.

        Raises :class:`BackendUnavailable` without a compiler and :class:`LoweringError` with the
        compiler's first error.
        """
        command = self.command()
        base = _base_digest(self, tuple(command))
        # A digest of all that the library depends on, so that a cached one is never out of date.
        name = f"{_hash(base, source)}.so"
        return self._cached(name, lambda: self._compile_library(command, base, source))

    def _cached(self, name: str, make: Callable[[], bytes]) -> Path:
        """Copy a cached file, or a new one, into the folder of this process.

        Anybody may be able to write to the cache; a file is checked before it is copied, and only
        the copy, which no other user can change, is loaded.
        """
        path = _process_folder() / name
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            # Renamed when it is complete, since other threads may compile the same text.
            draft = path.with_name(f"{path.name}.{threading.get_ident()}")
            draft.write_bytes(
                SealedFolder(self.cache_folder()).get_or_make(name.replace("/", "-"), make)
            )
            draft.replace(path)
        return path

    def _compile_library(self, command: list[str], base: str, source: str) -> bytes:
        arguments = [*command, *self._text_options(command)]
        if self.header is not None:
            arguments += ["-include", str(self._included_header(self.header, command, base))]
        with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(1) as pool:
            # Of the first text, the runtime takes as long as the text, and another core has time.
            runtime = pool.submit(
                self._cached, f"runtime-{base}.o", lambda: self._compile_runtime(command)
            )
            folder = Path(temporary)
            (folder / self.file).write_text(source, encoding="utf-8")
            self._call([*arguments, "-x", self.language, "-c", self.file, "-o", "kernel.o"], folder)
            objects = ["kernel.o", str(runtime.result())]
            self._call([*command, *_LINK, *objects, "-o", "kernel.so"], folder)
            return (folder / "kernel.so").read_bytes()

    def _compile_runtime(self, command: list[str]) -> bytes:
        source = str(self.native / "runtime.cpp")
        arguments = [*command, *_COMMON, *_RUNTIME, *_processor_options(), "-c", source]
        with tempfile.TemporaryDirectory() as temporary:
            self._call([*arguments, "-o", "runtime.o"], Path(temporary))
            return (Path(temporary) / "runtime.o").read_bytes()

    def _included_header(self, header: str, command: list[str], base: str) -> Path:
        if _is_clang(tuple(command)):
            return self.native / header
        # Precompiled, GCC reads it in a tenth of the time.
        compiled = f"header-{base}/{header}.gch"
        path = self._cached(compiled, lambda: self._compile_header(header, command))
        return path.with_name(header)

    def _compile_header(self, header: str, command: list[str]) -> bytes:
        cache_folder = self.cache_folder()
        if cache_folder is not None:
            _drop_old_headers(cache_folder)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "header"
            shutil.copytree(self.native, folder)
            arguments = [*command, *self._text_options(command), "-x", f"{self.language}-header"]
            self._call([*arguments, header, "-o", f"{header}.gch"], folder)
            return (folder / f"{header}.gch").read_bytes()

    def _text_options(self, command: list[str]) -> tuple[str, ...]:
        key = tuple(command)
        gcc_options = () if _is_clang(key) else self.gcc_options
        filled = _FILLED if _fills_variables(key) else ()
        return (*_COMMON, *_TEXT, *filled, *self.options, *gcc_options, *_processor_options())

    def dependencies(self, command: tuple[str, ...]) -> tuple[object, ...]:
        """Return all that a library depends on except its text and this machine."""
        files = [
            (path.name, path.read_text())
            for folder in (NATIVE, self.native)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        ]
        flags = (_RUNTIME, self._text_options(list(command)), self.language, _LINK)
        return (command, _version(command), files, flags)

    def _call(self, arguments: Sequence[str], folder: Path) -> None:
        try:
            process = subprocess.run(
                arguments,
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LIMIT_SECONDS,
                check=False,
                # Messages in English, in which the first error is looked for.
                env={**os.environ, "LC_ALL": "C"},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._error(arguments[0], str(error)) from None
        if process.returncode != 0:
            lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
            errors = [line for line in lines if "error" in line.lower()]
            reason = (errors or lines or [f"exit code {process.returncode}"])[0]
            reason = reason.replace(f"{folder}/", "").replace(f"{self.file}:", "line ")
            raise self._error(arguments[0], reason)

    def _error(self, compiler: str, reason: str) -> LoweringError:
        return LoweringError(f"{compiler} cannot compile the {self.kind} text: {reason}")


def _drop_old_headers(folder: Path) -> None:
    # Precompiled headers are large, so those of other versions stay for a day at most.
    for header in folder.glob("header-*"):
        with contextlib.suppress(OSError):
            if time.time() - header.stat().st_mtime > _DAY_SECONDS:
                # Earlier versions of cpembed cached a folder.
                shutil.rmtree(header) if header.is_dir() else header.unlink()


def _is_clang(command: tuple[str, ...]) -> bool:
    return "clang" in _version(command)


def _fills_variables(command: tuple[str, ...]) -> bool:
    """True if the compiler takes :data:`_FILLED`: every clang of use here, and GCC 12."""
    release = re.search(r"\) (\d+)\.", _version(command))
    return _is_clang(command) or (release is not None and int(release[1]) >= 12)


@cache
def _version(command: tuple[str, ...]) -> str:
    arguments = [*command, "--version"]
    return subprocess.run(arguments, capture_output=True, text=True, check=False).stdout


def _processor_options() -> tuple[str, ...]:
    # Libraries run where they are compiled, so they may use every feature of this processor.
    return ("-march=native",) if platform.machine() == "x86_64" else ()


@cache
def _base_digest(compiler: TextCompiler, command: tuple[str, ...]) -> str:
    machine = (platform.machine(), sorted(reported_features()))
    return _hash(compiler.dependencies(command), machine)


def _hash(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()[:40]


@cache
def _process_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="cpembed-executor-"))
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


# ------------------------------------------------------------------------------ execution

ALIGNMENT = 256
"""Alignment of arrays in bytes: that of a GPU's allocator, and a multiple of the transactions of
DMA engines."""

_GAP = 4096
"""Number of bytes between arrays, so that running off one does not end in another."""

_PLACE = re.compile(r"\{at:(\d+)\}")
_VARIABLE = re.compile(r"\{variable:(\d+):(\d+)\}")
_MAX_CODE_LENGTH = 60
"""Maximum number of characters of a source line in a message."""


@dataclass(frozen=True)
class Buffer:
    """An array in a kernel's memory, with the number of its argument."""

    argument: int
    address: int
    bytes: int
    array: Array


@dataclass(frozen=True, eq=False)
class Arena:
    """Memory of a run: copies of its arrays, aligned and with gaps between them."""

    kernel: str
    """Name of the kernel in messages."""
    bytes: NDArray[np.uint8]
    buffers: tuple[Buffer, ...]

    @staticmethod
    def with_copies(
        kernel: str, arrays: Sequence[tuple[int, Array]], zeros: Collection[int] = ()
    ) -> Arena:
        """Copy arrays, each with the number of its argument, into new memory.

        ``zeros`` has the numbers of those that are replaced by zeros.
        """
        offsets, end = list[int](), _GAP
        for _, array in arrays:
            offsets.append(end)
            end += -(-(array.nbytes + _GAP) // ALIGNMENT) * ALIGNMENT
        # Pages that nothing touches take no memory.
        memory = np.zeros(end + ALIGNMENT, np.uint8)
        # numpy aligns less than a GPU's allocator, so the first address is rounded up.
        base = -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        buffers = tuple(
            Buffer(number, base + offset, array.nbytes, array)
            for (number, array), offset in zip(arrays, offsets, strict=True)
        )
        arena = Arena(kernel, memory, buffers)
        for buffer in buffers:
            if buffer.argument not in zeros:
                arena._bytes_of(buffer)[...] = _bytes(buffer.array)
        return arena

    def copy_back(self) -> None:
        """Copy the kernel's results back into the arrays.

        Raises :class:`ExecutionFault` if it changed a read-only array.
        """
        for buffer in self.buffers:
            array = buffer.array
            values = self._bytes_of(buffer).view(array.dtype).reshape(array.shape)
            if array.flags.writeable:
                array[...] = values
            elif not np.array_equal(_bytes(values), _bytes(array)):
                raise ExecutionFault(
                    f"{self.kernel} writes argument {buffer.argument}, which is a read-only array"
                )

    def _bytes_of(self, buffer: Buffer) -> NDArray[np.uint8]:
        start = buffer.address - self.bytes.ctypes.data
        return self.bytes[start : start + buffer.bytes]


def _bytes(array: Array) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class LoadedText:
    """A compiled text, loaded into this process; it executes one run at a time."""

    def __init__(self, compiler: TextCompiler, source: str, library: Path) -> None:
        self.library = library
        self._file, self._source = compiler.file, source.split("\n")
        self._functions = ctypes.CDLL(str(library))
        # The runtime's stacks and memories are variables of the library: closing it frees them.
        weakref.finalize(self, dlclose, self._functions._handle)
        self._functions.executor_run.restype = ctypes.c_char_p
        self._lock = threading.Lock()

    def _execute(
        self,
        request: ctypes.Structure,
        arena: Arena,
        read_counters: Callable[[], T],
        fault_origin: Callable[[], str] = lambda: "",
        *,
        copies_back: bool = True,
    ) -> T:
        """Run a request of the runtime on the arrays of ``arena``, and return its counters.

        ``fault_origin`` tells after a fault which kernel and block it is from; ``copies_back``,
        whether the arrays get the results.
        """
        with self._lock:
            fault: bytes | None = self._functions.executor_run(ctypes.byref(request))
            if fault is not None:
                raise ExecutionFault(fault_origin() + self._located(fault.decode()))
            counters = read_counters()
        if copies_back:
            arena.copy_back()
        return counters

    def _located(self, fault: str) -> str:
        """Return a fault's message (``native/fault.h``) with lines and names of variables."""
        return _VARIABLE.sub(self._variable, _PLACE.sub(self._line, fault))

    def _line(self, match: re.Match[str]) -> str:
        numbers = [
            n for n in _lines(self.library, self._file, int(match[1])) if n <= len(self._source)
        ]
        if not numbers:
            return "an unknown line"
        code = self._source[numbers[0] - 1].strip()
        if len(code) > _MAX_CODE_LENGTH:
            code = f"{code[: _MAX_CODE_LENGTH - 3]}..."
        # Several lines of one call: an expression that is written over them.
        callers = [n for n, inner in zip(numbers[1:], numbers, strict=False) if n != inner]
        lines = f"; from line{'s' * (len(callers) > 1)} {', '.join(map(str, callers))}"
        return f"line {numbers[0]} ({code}{lines if callers else ''})"

    def _variable(self, match: re.Match[str]) -> str:
        first, last = map(int, match.groups())
        for start, size, name in _symbols(self.library):
            if start <= first < start + size:
                return f"bytes {first - start} to {last - start} of {name}"
        return "a static variable"


# Cached, since each look-up starts a process.
@lru_cache(maxsize=4096)
def _lines(library: Path, file: str, address: int) -> tuple[int, ...]:
    """Return the line of a call, then those of the callers that it was inlined into.

    Empty without line tables.
    """
    numbers = list[int]()
    # The instruction before the return address is the call.
    for line in _tool_output("addr2line", "-i", "-e", str(library), hex(max(address - 1, 0))):
        name, _, rest = line.partition(":")
        digits = rest.split(" ")[0]
        if Path(name).name == file and digits.isdecimal() and int(digits):
            numbers.append(int(digits))
    return tuple(numbers)


@lru_cache(maxsize=64)
def _symbols(library: Path) -> tuple[tuple[int, int, str], ...]:
    """Return address, size in bytes and unqualified name of each variable."""
    variables = list[tuple[int, int, str]]()
    for line in _tool_output("nm", "-C", "-S", "--defined-only", str(library)):
        fields = line.split(" ", 3)
        # Symbols without a size lack the second of the two numbers, which are equally long.
        if len(fields) == 4 and len(fields[1]) == len(fields[0]):
            name = fields[3].rpartition("::")[2]
            variables.append((int(fields[0], 16), int(fields[1], 16), name))
    return tuple(variables)


def _tool_output(name: str, *arguments: str) -> list[str]:
    """Return the lines that a tool of binutils or LLVM prints; empty if it is not installed."""
    tool = shutil.which(name) or shutil.which(f"llvm-{name}")
    if tool is None:
        return []
    command = [tool, *arguments]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return process.stdout.splitlines()
