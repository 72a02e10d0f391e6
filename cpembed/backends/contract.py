"""What a back end returns: the text of a kernel and how to finish and compile it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


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
