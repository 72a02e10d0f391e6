"""What a back end returns: the text of a kernel and how to finish and compile it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Knobs:
    """Choices that change a kernel's speed and not its result.

    ``blocks`` gives, by program loop, how many points one task computes with its accumulators in
    registers; ``columns_outermost`` whether tasks walk the loops of the second factor (weights)
    outside those of the first, so that a panel of weights stays near, or inside.
    """

    blocks: Mapping[str, int] = field(default_factory=dict[str, int])
    columns_outermost: bool = True


@dataclass(frozen=True)
class KernelPlan:
    """A contraction kernel before compilation.

    ``schedule`` rewrites the parsed function (tensorizes its blocks); ``attributes`` are
    instruction-set attributes of the compilation target, ``options`` switches of LLVM's code
    generator.
    """

    backend: str
    source: str
    schedule: Callable[[Any], None] | None = None
    attributes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
