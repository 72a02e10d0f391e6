"""Texts and the runtime, compiled by the host's C++ compiler, and kept."""

from __future__ import annotations

from pathlib import Path

from cpembed.targets.cuda.executor.text import FILE
from cpembed.targets.executor.compiler import TextCompiler

NATIVE = Path(__file__).parent / "native"
"""The runtime, and the headers that texts are compiled with."""

FOLDER_VARIABLE = "CPEMBED_CUDA_EXECUTOR_CACHE"
"""Another folder for what is kept; empty: nothing is kept."""

TEXTS = TextCompiler(
    kind="CUDA",
    name="cuda_executor",
    folder_variable=FOLDER_VARIABLE,
    file=FILE,
    language="c++",
    native=NATIVE,
    options=(
        "-std=c++17",
        "-fno-threadsafe-statics",  # Shared arrays of float16 seem to have a constructor.
        f"-I{NATIVE / 'include'}",
    ),
    gcc_options=("-fno-tree-sra",),  # A vector is loaded and stored as a whole.
    header="executor.h",
)


def compiler() -> list[str]:
    """The words of the command.

    Raises :class:`BackendUnavailable` where there is none.
    """
    return TEXTS.command()


def compiled(source: str) -> Path:
    """The library of a prepared text (:mod:`.text`).

    Raises :class:`BackendUnavailable` without a compiler, :class:`LoweringError` with its first
    error where the text does not compile.
    """
    return TEXTS.compiled(source)
