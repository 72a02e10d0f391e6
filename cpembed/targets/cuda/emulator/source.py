"""Translation of CUDA C++ into C++ of the host's compiler; every line keeps its number.

Inline PTX is translated by :mod:`cpembed.targets.cuda.emulator.ptx`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cpembed.errors import LoweringError
from cpembed.targets.cuda.emulator.ptx import translate_inline_ptx

FILE = "kernel.cu"
"""File name of the text in the compiler's messages and line tables."""

MIN_SHARED_ALIGNMENT = 16
"""Alignment of dynamic shared memory in bytes where a text declares no larger one."""

_KERNEL = re.compile(
    r"__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\(\s*([^),]*)[^)]*\)\s*)?(?:void\s+)?(\w+)\s*\("
)
_ALIGNED = r"(?:(?:__align__|alignas)\s*\(\s*(\d+)\s*\)\s*)?"
_DYNAMIC = re.compile(
    rf"extern\s+(?:\"C\"\s+)?__shared__\s+{_ALIGNED}((?:\w+\s+)*?\w+)\s+{_ALIGNED}(\w+)\s*\[\s*\]\s*;"
)
_COPIED_MAP = re.compile(r"[(,](?P<before>[^(),;&*]*)\bCUtensorMap\s+(?P<name>\w+)\s*(?=[,)])")
# Compilers fill variables with a number (-1.7e38 for a float), which a product with zero hides.
_FLOATS = re.compile(
    r"^([ \t]+(?:alignas\(\d+\) )?(?:float|double|half|nv_bfloat16) (\w+)(?:\[\d+\])*;)$",
    re.MULTILINE,
)
_STRUCTURE = re.compile(r"\b(?:struct|union|class)\b[^;{}()]*\{")


@dataclass(frozen=True)
class PreparedText:
    """A text that the host's compiler takes, and its kernels.

    The value of a kernel is the maximum number of threads of a block, None if the text bounds none;
    ``shared_alignment`` is that of dynamic shared memory in bytes, as the text declares it.
    """

    source: str
    kernels: Mapping[str, int | None]
    shared_alignment: int = MIN_SHARED_ALIGNMENT


def prepare(source: str) -> PreparedText:
    """Replace syntax that the host's compiler rejects, and add a launch entry to each kernel.

    Raises :class:`LoweringError` for a text without a kernel, or with a tensor map as a parameter
    that is copied.
    """
    kernels: dict[str, int | None] = {}
    for match in _KERNEL.finditer(source):
        bound, name = match.groups()
        kernels[name] = int(bound) if bound and bound.strip().isdecimal() else None
    if not kernels:
        raise LoweringError("the CUDA text has no kernel: a function with __global__")
    for parameter in _COPIED_MAP.finditer(source):
        # nvcc copies a parameter whose address is taken to local memory, where no copy finds it.
        if "__grid_constant__" not in parameter["before"]:
            raise LoweringError(
                f"the tensor map {parameter['name']} is a parameter without __grid_constant__, "
                "so that its address is that of a copy: declare it as const __grid_constant__"
            )
    alignments = [int(n) for match in _DYNAMIC.finditer(source) for n in match.group(1, 3) if n]
    # Dynamic shared memory has the size that each launch asks for, so it is a pointer here.
    body = _with_unset_floats(_with_dynamic_shared(translate_inline_ptx(source)))
    entries = "\n".join(f"EXECUTOR_KERNEL({name})" for name in kernels)
    return PreparedText(f"{body}\n{entries}\n", kernels, max([MIN_SHARED_ALIGNMENT, *alignments]))


def _with_dynamic_shared(source: str) -> str:
    """Replace declarations of dynamic shared memory, which each block has at a place of its own."""

    def pointer(match: re.Match[str]) -> str:
        _, element, _, name = match.groups()
        depth = source.count("{", 0, match.start()) - source.count("}", 0, match.start())
        if depth == 0:
            return f"static const executor_dynamic_array<{element}> {name}{{}};"
        return f"{element}* const {name} = ({element}*)executor_dynamic_shared();"

    return _DYNAMIC.sub(pointer, source)


def _with_unset_floats(source: str) -> str:
    """Fill variables of floats that have no initial value with NaNs."""
    members = [(m.start(), _end_of_block(source, m.end())) for m in _STRUCTURE.finditer(source)]

    def filled(match: re.Match[str]) -> str:
        if any(start < match.start() < end for start, end in members):
            return match[0]
        return f"{match[1]} const bool {match[2]}_unset = executor::unset({match[2]});"

    return _FLOATS.sub(filled, source)


def _end_of_block(source: str, position: int) -> int:
    """Return the index behind the brace that closes the one open at ``position``."""
    depth = 1
    for match in re.compile(r"[{}]").finditer(source, position):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    return len(source)
