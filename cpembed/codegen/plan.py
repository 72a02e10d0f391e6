"""Plans of kernels: the text that a back end returns, with how to finish and compile it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cpembed.stores import Count

LoopOrder = Literal["columns", "rows"]
"""Factor whose loops are outermost: weights (columns) or rows."""


@dataclass(frozen=True)
class Knobs:
    """Choices that change a kernel's speed and not its result.

    Parameters
    ----------
    register_tiles : mapping of str to int
        Points by program loop that one task computes with its accumulators in registers.
    loop_order : LoopOrder
        Factor whose loops tasks walk outside the other's; few of its data have to stay near.
    cache_tiles : mapping of str to int
        Points by program loop whose tasks run before any others, so that their data stay in a
        farther cache.
    non_temporal : bool
        Load the factor that the inner tasks move past the nearest cache, to keep the other there.
    split_k : int
        Number of parts of a reduction that different tasks sum.
    """

    register_tiles: Mapping[str, Count] = field(default_factory=dict[str, int])
    loop_order: LoopOrder = "columns"
    cache_tiles: Mapping[str, Count] = field(default_factory=dict[str, int])
    non_temporal: bool = False
    split_k: Count = 1

    @property
    def columns_outermost(self) -> bool:
        """True if the loops of the columns are outermost."""
        return self.loop_order == "columns"


@dataclass(frozen=True)
class KernelPlan:
    """Kernel before compilation.

    Parameters
    ----------
    backend : str
        Name for reports.
    source : str
        TVMScript of the function ``main``.
    schedule : callable, optional
        Rewrite of the parsed function (tensorizes its blocks).
    attributes, options : tuple of str
        Instruction-set attributes of the target, and switches of LLVM's code generator.
    copies : int
        Elements of a last parameter, into which the kernel packs its first factor; 0 if that comes
        packed.
    functions : str
        Functions in LLVM's language that the kernel calls.
    original : bool
        The first factor is read in its original layout.
    in_registers : bool
        Accumulators are registers of the compiler.
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
