"""A text of CUDA C++ as the host's compiler takes it; lines stay where they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cpembed.errors import LoweringError
from cpembed.targets.cuda.executor.inline_ptx import translated

FILE = "kernel.cu"
"""What the text is called in the compiler's messages and tables of lines."""

_KERNEL = re.compile(
    r"__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\(\s*([^),]*)[^)]*\)\s*)?(?:void\s+)?(\w+)\s*\("
)
_DYNAMIC = re.compile(
    r"extern\s+(?:\"C\"\s+)?__shared__\s+(?:(?:__align__|alignas)\s*\(\s*\d+\s*\)\s*)?"
    r"((?:\w+\s+)*?\w+)\s+(?:(?:__align__|alignas)\s*\(\s*\d+\s*\)\s*)?(\w+)\s*\[\s*\]\s*;"
)


@dataclass(frozen=True)
class Text:
    """A text, made ready; ``kernels``: their names, with the most threads of a block, None where
    the text does not say."""

    source: str
    kernels: Mapping[str, int | None]


def prepared(source: str) -> Text:
    """Replace what the host's compiler cannot take, and give each kernel an entry for launches.

    Raises :class:`LoweringError` for a text without a kernel.
    """
    kernels: dict[str, int | None] = {}
    for found in _KERNEL.finditer(source):
        bound, name = found.groups()
        kernels[name] = int(bound) if bound and bound.strip().isdecimal() else None
    if not kernels:
        raise LoweringError("the CUDA text has no kernel: a function with __global__")
    body = _DYNAMIC.sub(r"static \1* const \2 = (\1*)executor_dynamic_shared;", translated(source))
    entries = "\n".join(f"EXECUTOR_KERNEL({name})" for name in kernels)
    return Text(f"{body}\n{entries}\n", kernels)
