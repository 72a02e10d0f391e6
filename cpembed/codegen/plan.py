"""What a back end returns: the text of a kernel and how to finish and compile it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cpembed.stores import Count

LoopOrder = Literal["columns", "rows"]
"""The factor whose loops are outermost."""


@dataclass(frozen=True)
class Knobs:
    """Choices that change a kernel's speed and not its result.

    ``register_tiles`` gives, by program loop, how many points one task computes with its
    accumulators in registers; ``loop_order`` the factor whose loops tasks walk outside the other's:
    that of the columns (weights), of which few then stay near, or that of the rows. ``cache_tiles``
    gives, by program loop, how many points are taken together before any others are: all tasks of a
    tile come before those of the next, so that its data stay in a farther cache. ``non_temporal``:
    the factor that the inner tasks move is loaded past the nearest cache, which the other factor
    keeps. ``split_k``: into how many parts a reduction is cut, which different tasks sum.
    """

    register_tiles: Mapping[str, Count] = field(default_factory=dict[str, int])
    loop_order: LoopOrder = "columns"
    cache_tiles: Mapping[str, Count] = field(default_factory=dict[str, int])
    non_temporal: bool = False
    split_k: Count = 1

    @property
    def columns_outermost(self) -> bool:
        return self.loop_order == "columns"


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
