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
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cpembed.codegen.host_cpu import reported_features
from cpembed.errors import LoweringError
from cpembed.host_compiler import compiler_command
from cpembed.stores import SealedFolder, store_folder

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
        return store_folder(self.name)

    def compiled(self, source: str) -> Path:
        """The library of a text that the host's compiler takes as it is.

        Raises :class:`BackendUnavailable` without a compiler, :class:`LoweringError` with its first
        error where the text does not compile.
        """
        command = self.command()
        base = _digest(self, tuple(command))
        return self._kept(f"{_hash(base, source)}.so", lambda: self._library(command, base, source))

    def _kept(self, name: str, make: Callable[[], bytes]) -> Path:
        """A file that only this process's user can have written, in a folder of this process: what
        is kept is checked before it is copied there, and a cache's folder may be anybody's."""
        path = _process_folder() / name
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            draft = path.with_name(f"{path.name}.{threading.get_ident()}")
            kept = SealedFolder(self.default_folder())
            draft.write_bytes(kept.get_or_make(name.replace("/", "-"), make))
            draft.replace(path)
        return path

    def _library(self, command: list[str], base: str, source: str) -> bytes:
        runtime = self._kept(f"runtime-{base}.o", lambda: self._runtime(command))
        words = [*command, *self._text_options(command)]
        if self.header is not None:
            words += ["-include", str(self._header_of(command, base))]
        with tempfile.TemporaryDirectory() as made:
            draft = Path(made)
            (draft / self.file).write_text(source, encoding="utf-8")
            self._call([*words, "-x", self.language, "-c", self.file, "-o", "kernel.o"], draft)
            self._call([*command, *_LINK, "kernel.o", str(runtime), "-o", "kernel.so"], draft)
            return (draft / "kernel.so").read_bytes()

    def _runtime(self, command: list[str]) -> bytes:
        source = str(self.native / "runtime.cpp")
        words = [*command, *_COMMON, *_RUNTIME, *_host(), "-c", source, "-o", "runtime.o"]
        with tempfile.TemporaryDirectory() as made:
            self._call(words, Path(made))
            return (Path(made) / "runtime.o").read_bytes()

    def _header_of(self, command: list[str], base: str) -> Path:
        """What every text is compiled with: read by GCC in a tenth of the time once compiled."""
        assert self.header is not None
        if _is_clang(tuple(command)):
            return self.native / self.header
        compiled = f"header-{base}/{self.header}.gch"
        path = self._kept(compiled, lambda: self._compiled_header(command))
        return path.with_name(self.header)

    def _compiled_header(self, command: list[str]) -> bytes:
        assert self.header is not None
        folder = self.default_folder()
        if folder is not None:
            _drop_old(folder)
        with tempfile.TemporaryDirectory() as made:
            draft = Path(made) / "header"
            shutil.copytree(self.native, draft)
            words = [*command, *self._text_options(command), "-x", f"{self.language}-header"]
            self._call([*words, self.header, "-o", f"{self.header}.gch"], draft)
            return (draft / f"{self.header}.gch").read_bytes()

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


def _drop_old(folder: Path) -> None:
    """Compiled headers are large: of earlier versions none stays for longer than a day."""
    for other in folder.glob("header-*"):
        with contextlib.suppress(OSError):
            if time.time() - other.stat().st_mtime > _DAY_SECONDS:
                # Versions before this one kept a folder.
                shutil.rmtree(other) if other.is_dir() else other.unlink()


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
def _process_folder() -> Path:
    """For this process, and for nobody else to write."""
    folder = Path(tempfile.mkdtemp(prefix="cpembed-executor-"))
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder
