"""How kernels of scratchpad machines are compiled for this host."""

from __future__ import annotations

from pathlib import Path

from cpembed.targets.executor.compiler import TextCompiler

NATIVE = Path(__file__).parent / "native"
HEADER = NATIVE / "scratchpad.h"
"""The interface of texts, for those who port them."""

TEXTS = TextCompiler(
    kind="scratchpad",
    name="scratchpad_executor",
    folder_variable="CPEMBED_SCRATCHPAD_EXECUTOR_CACHE",
    file="kernel.c",
    language="c",
    native=NATIVE,
    options=(
        "-std=gnu11",
        "-fno-optimize-sibling-calls",  # A call's return address tells its line.
        "-DSCRATCHPAD_EXECUTOR=1",
        f"-I{NATIVE}",
    ),
)
