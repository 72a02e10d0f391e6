"""Texts and a runtime, compiled by the host's C++ compiler, and kept."""

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
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import platformdirs

from cpembed.errors import LoweringError
from cpembed.host_compiler import compiler_command
from cpembed.kernel.host_cpu import reported_features

NATIVE = Path(__file__).parent / "native"
"""What the runtimes share."""

COMPILER_VARIABLE = "CXX"
"""The command to use, with its options; by default the first of :data:`COMPILERS` on the path."""
COMPILERS = ("g++", "clang++", "c++")

_COMMON = (
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-ffp-contract=off",  # A fused multiply-add would round once where the text rounds twice.
    "-w",
)
_RUNTIME = ("-std=c++17", "-O3", f"-I{NATIVE}")
_TEXT = (
    "-O2",
    "-g1",  # Lines, for messages.
    "-fno-strict-aliasing",  # Vectors are read through pointers of other types.
    "-fwrapv",
    "-fsanitize=thread",  # Calls the runtime before each plain access; native/plain_accesses.h.
)
_LINK = ("-shared", "-Wl,-Bsymbolic", "-Wl,-z,noexecstack")

_LIMIT_SECONDS = 300
_DAY_SECONDS = 24 * 3600


@dataclass(frozen=True)
class TextCompiler:
    """How texts of one kind are compiled and linked with their runtime, ``native``/runtime.cpp."""

    kind: str
    """As messages say it: "CUDA"."""
    name: str
    """Of the folder in the user's cache."""
    folder_variable: str
    """In the environment: another folder for what is kept; empty: nothing is kept."""
    file: str
    """What a text is called in the compiler's messages and tables of lines."""
    language: str
    """As the compiler's option ``-x`` has it."""
    native: Path
    options: tuple[str, ...] = ()
    gcc_options: tuple[str, ...] = ()
    """What clang has not."""
    header: str | None = None
    """Of ``native``; included before every text, and compiled once where the compiler can."""

    def command(self) -> list[str]:
        """The words of the compiler's command.

        Raises :class:`BackendUnavailable` where there is none.
        """
        purpose = f"{self.kind} text is executed through a C++ compiler"
        return compiler_command(COMPILER_VARIABLE, COMPILERS, purpose)

    def default_folder(self) -> Path | None:
        """Where compiled texts are kept; None where nothing is."""
        told = os.environ.get(self.folder_variable)
        if told is not None:
            return Path(told) if told else None
        return platformdirs.user_cache_path("cpembed") / self.name

    def compiled(self, source: str) -> Path:
        """The library of a text that the host's compiler takes as it is.

        Raises :class:`BackendUnavailable` without a compiler, :class:`LoweringError` with its first
        error where the text does not compile.
        """
        command = self.command()
        base = _digest(self, tuple(command))
        folder, name = writable(self.default_folder()), f"{_hash(base, source)}.so"
        if (folder / name).is_file():
            return folder / name
        with tempfile.TemporaryDirectory(dir=folder) as made:
            draft = Path(made)
            runtime = self._runtime(command, folder / f"runtime-{base}.o", draft)
            (draft / self.file).write_text(source, encoding="utf-8")
            words = [*command, *self._text_options(command)]
            if self.header is not None:
                header = self._header(command, folder / f"header-{base}", draft)
                words += ["-include", str(header)]
            self._call([*words, "-x", self.language, "-c", self.file, "-o", "kernel.o"], draft)
            self._call([*command, *_LINK, "kernel.o", str(runtime), "-o", "kernel.so"], draft)
            (draft / "kernel.so").replace(folder / name)
        return folder / name

    def _runtime(self, command: list[str], kept: Path, draft: Path) -> Path:
        if not kept.is_file():
            source = str(self.native / "runtime.cpp")
            words = [*command, *_COMMON, *_RUNTIME, *_host(), "-c", source, "-o", "runtime.o"]
            self._call(words, draft)
            (draft / "runtime.o").replace(kept)
        return kept

    def _header(self, command: list[str], kept: Path, draft: Path) -> Path:
        """What every text is compiled with: read by GCC in a tenth of the time once compiled."""
        assert self.header is not None
        if _is_clang(tuple(command)):
            return self.native / self.header
        if not (kept / f"{self.header}.gch").is_file():
            _drop_old(kept)
            made = draft / "header"
            shutil.copytree(self.native, made)
            words = [*command, *self._text_options(command), "-x", f"{self.language}-header"]
            self._call([*words, self.header, "-o", f"{self.header}.gch"], made)
            with contextlib.suppress(OSError):  # Another process was faster.
                made.rename(kept)
        return kept / self.header

    def _text_options(self, command: list[str]) -> tuple[str, ...]:
        own = () if _is_clang(tuple(command)) else self.gcc_options
        return (*_COMMON, *_TEXT, *self.options, *own, *_host())

    def digested(self, command: tuple[str, ...]) -> tuple[object, ...]:
        """All that a library depends on besides its text and this machine."""
        files = [
            (path.name, path.read_text())
            for folder in (NATIVE, self.native)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        ]
        flags = (_RUNTIME, self._text_options(list(command)), self.language, _LINK)
        return (command, _version(command), files, flags)

    def _call(self, words: Sequence[str], folder: Path) -> None:
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
            raise self._failed(words[0], str(error)) from None
        if done.returncode != 0:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            telling = [line for line in lines if "error" in line.lower()]
            reason = (telling or lines or [f"exit code {done.returncode}"])[0]
            reason = reason.replace(f"{folder}/", "").replace(f"{self.file}:", "line ")
            raise self._failed(words[0], reason)

    def _failed(self, compiler: str, reason: str) -> LoweringError:
        return LoweringError(f"{compiler} cannot compile the {self.kind} text: {reason}")


def writable(folder: Path | None) -> Path:
    """The folder, or one of this process where there is none or nothing can be written to it."""
    if folder is None:
        return _temporary_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return _temporary_folder()
    return folder if os.access(folder, os.W_OK) else _temporary_folder()


def _drop_old(kept: Path) -> None:
    """Compiled headers are large: of earlier versions none stays for longer than a day."""
    for other in kept.parent.glob("header-*"):
        with contextlib.suppress(OSError):
            if time.time() - other.stat().st_mtime > _DAY_SECONDS:
                shutil.rmtree(other, ignore_errors=True)


def _is_clang(command: tuple[str, ...]) -> bool:
    return "clang" in _version(command)


@cache
def _version(command: tuple[str, ...]) -> str:
    asked = [*command, "--version"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout


def _host() -> tuple[str, ...]:
    """What is compiled here is executed here, so it may use all that this processor has."""
    return ("-march=native",) if platform.machine() == "x86_64" else ()


@cache
def _digest(texts: TextCompiler, command: tuple[str, ...]) -> str:
    machine = (platform.machine(), sorted(reported_features()))
    return _hash(texts.digested(command), machine)


def _hash(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()[:40]


@cache
def _temporary_folder() -> Path:
    """For this process, where nothing is kept."""
    folder = Path(tempfile.mkdtemp(prefix="cpembed-executor-"))
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder
