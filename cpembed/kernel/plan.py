"""What a back end returns: the text of a kernel and how to finish and compile it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cpembed.stores import Count


@dataclass(frozen=True)
class Knobs:
    """Choices that change a kernel's speed and not its result.

    ``blocks`` gives, by program loop, how many points one task computes with its accumulators in
    registers; ``columns_outermost`` whether tasks walk the loops of the second factor (weights)
    outside those of the first, so that few weights stay near, or inside. ``panels`` gives, by
    program loop, how many points are taken together before any others are: all tasks of a panel
    come before those of the next, so that a panel's data stay in a farther cache. ``streams``: the
    factor that the inner tasks move is loaded past the nearest cache, which the other factor keeps.
    ``parts``: into how many parts a reduction is cut, which different tasks sum.
    """

    blocks: Mapping[str, Count] = field(default_factory=dict[str, int])
    columns_outermost: bool = True
    panels: Mapping[str, Count] = field(default_factory=dict[str, int])
    streams: bool = False
    parts: Count = 1


@dataclass(frozen=True)
class KernelPlan:
    """A contraction kernel before compilation.

    ``schedule`` rewrites the parsed function (tensorizes its blocks); ``attributes`` are
    instruction-set attributes of the compilation target, ``options`` switches of LLVM's code
    generator, ``functions`` what the kernel calls that is written in LLVM's own language.
    ``copies``: elements of a last parameter, into which the kernel itself packs its first factor; 0
    where that comes packed. ``original``: it is read as it came, without packing.
    """

    backend: str
    source: str
    schedule: Callable[[Any], None] | None = None
    attributes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    copies: int = 0
    functions: str = ""
    original: bool = False
    in_registers: bool = False
