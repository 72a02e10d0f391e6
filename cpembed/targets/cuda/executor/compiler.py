"""Texts and the runtime, compiled by the host's C++ compiler, and kept."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import platformdirs

from cpembed.errors import LoweringError
from cpembed.host_compiler import compiler_command
from cpembed.kernel.host_cpu import reported_features
from cpembed.targets.cuda.executor.text import FILE

NATIVE = Path(__file__).parent / "native"
"""The runtime, and the headers that texts are compiled with."""

COMPILER_VARIABLE = "CXX"
"""The command to use, with its options; by default the first of :data:`COMPILERS` on the path."""
COMPILERS = ("g++", "clang++", "c++")

FOLDER_VARIABLE = "CPEMBED_CUDA_EXECUTOR_CACHE"
"""Another folder for what is kept; empty: nothing is kept."""

_COMMON = (
    "-std=c++17",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-ffp-contract=off",  # A fused multiply-add would round once where the text rounds twice.
    "-w",
)
_RUNTIME = ("-O3",)
_KERNEL = (
    "-O2",
    "-g1",  # Lines, for messages.
    "-fno-strict-aliasing",  # Vectors are read through pointers of other types.
    "-fwrapv",
    "-fno-threadsafe-statics",  # Shared arrays of float16 seem to have a constructor.
    "-fsanitize=thread",  # Calls the runtime before each plain access; plain.h.
    f"-I{NATIVE / 'include'}",
)
_KERNEL_GCC = ("-fno-tree-sra",)
"""A vector is loaded and stored as a whole. Clang has no such option."""
_LINK = ("-shared", "-Wl,-Bsymbolic", "-Wl,-z,noexecstack")

HEADER = "executor.h"

_LIMIT_SECONDS = 300
_DAY_SECONDS = 24 * 3600


def compiler() -> list[str]:
    """The words of the command.

    Raises :class:`BackendUnavailable` where there is none.
    """
    purpose = "CUDA text is executed through a C++ compiler"
    return compiler_command(COMPILER_VARIABLE, COMPILERS, purpose)


def default_folder() -> Path | None:
    """Where compiled texts are kept; None where nothing is."""
    told = os.environ.get(FOLDER_VARIABLE)
    if told is not None:
        return Path(told) if told else None
    return platformdirs.user_cache_path("cpembed") / "cuda_executor"


def compiled(source: str) -> Path:
    """The library of a prepared text (:mod:`.text`).

    Raises :class:`BackendUnavailable` without a compiler, :class:`LoweringError` with its first
    error where the text does not compile.
    """
    command = compiler()
    base = _digest(tuple(command))
    folder, name = _writable(default_folder()), f"{_hash(base, source)}.so"
    if (folder / name).is_file():
        return folder / name
    with tempfile.TemporaryDirectory(dir=folder) as made:
        draft = Path(made)
        runtime = _runtime(command, folder / f"runtime-{base}.o", draft)
        (draft / FILE).write_text(source, encoding="utf-8")
        header = _header(command, folder / f"header-{base}", draft)
        words = [*command, *_kernel_options(command), "-include", str(header)]
        _call([*words, "-x", "c++", "-c", FILE, "-o", "kernel.o"], draft)
        _call([*command, *_LINK, "kernel.o", str(runtime), "-o", "kernel.so"], draft)
        (draft / "kernel.so").replace(folder / name)
    return folder / name


def _writable(folder: Path | None) -> Path:
    """The folder, or one of this process where there is none or nothing can be written to it."""
    if folder is None:
        return _temporary_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return _temporary_folder()
    return folder if os.access(folder, os.W_OK) else _temporary_folder()


def _runtime(command: list[str], kept: Path, draft: Path) -> Path:
    if not kept.is_file():
        source = str(NATIVE / "runtime.cpp")
        _call([*command, *_COMMON, *_RUNTIME, *_host(), "-c", source, "-o", "runtime.o"], draft)
        (draft / "runtime.o").replace(kept)
    return kept


def _header(command: list[str], kept: Path, draft: Path) -> Path:
    """What every text is compiled with: read by GCC in a tenth of the time once it is compiled."""
    if _is_clang(tuple(command)):
        return NATIVE / HEADER
    if not (kept / f"{HEADER}.gch").is_file():
        _drop_old(kept)
        made = draft / "header"
        shutil.copytree(NATIVE, made)
        words = [*command, *_kernel_options(command), "-x", "c++-header", HEADER]
        _call([*words, "-o", f"{HEADER}.gch"], made)
        with contextlib.suppress(OSError):  # Another process was faster.
            made.rename(kept)
    return kept / HEADER


def _drop_old(kept: Path) -> None:
    """Compiled headers are large: of earlier versions none stays for longer than a day."""
    for other in kept.parent.glob("header-*"):
        with contextlib.suppress(OSError):
            if time.time() - other.stat().st_mtime > _DAY_SECONDS:
                shutil.rmtree(other, ignore_errors=True)


def _kernel_options(command: list[str]) -> tuple[str, ...]:
    own = () if _is_clang(tuple(command)) else _KERNEL_GCC
    return (*_COMMON, *_KERNEL, *own, *_host())


def _is_clang(command: tuple[str, ...]) -> bool:
    return "clang" in _version(command)


@cache
def _version(command: tuple[str, ...]) -> str:
    asked = [*command, "--version"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout


def _host() -> tuple[str, ...]:
    """What is compiled here is executed here, so it may use all that this processor has."""
    return ("-march=native",) if platform.machine() == "x86_64" else ()


def _call(words: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_SECONDS,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LoweringError(f"{words[0]} cannot compile the CUDA text: {error}") from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        telling = [line for line in lines if "error" in line.lower()]
        reason = (telling or lines or [f"exit code {done.returncode}"])[0]
        reason = reason.replace(f"{folder}/", "").replace(f"{FILE}:", "line ")
        raise LoweringError(f"{words[0]} cannot compile the CUDA text: {reason}")


@cache
def _digest(command: tuple[str, ...]) -> str:
    """Of all that a library depends on besides its text."""
    files = [(path.name, path.read_text()) for path in sorted(NATIVE.rglob("*")) if path.is_file()]
    flags = (_RUNTIME, _kernel_options(list(command)), _LINK)
    machine = (platform.machine(), sorted(reported_features()))
    return _hash(command, _version(command), files, flags, machine)


def _hash(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()[:40]


@cache
def _temporary_folder() -> Path:
    """For this process, where nothing is kept."""
    folder = Path(tempfile.mkdtemp(prefix="cpembed-cuda-"))
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder
