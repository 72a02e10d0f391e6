"""How an instruction is written in a kernel's text: all that emission knows of a target."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cpembed.codegen.halo import index_sets
from cpembed.codegen.nest import Nest
from cpembed.codegen.nest_text import block_name
from cpembed.codegen.script import Script

INIT, UPDATE, STORE = "init", "update", "store"
"""Blocks of a task, which intrinsics may replace."""

StoreText = Callable[[Script, Nest, str], bool]
"""Writes what a task stores of its sums, from the buffer that is named; False where it does not."""


@dataclass(frozen=True)
class Intrinsic:
    """A tensor intrinsic: what it computes, in scalar loops, and the code, both as TVMScript."""

    description: str
    implementation: str

    @property
    def name(self) -> str:
        """Equal for equal intrinsics, so that each is registered once."""
        text = self.description + self.implementation
        return f"cpembed_{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def register(self) -> str:
        """Make the intrinsic known to TVM; its name."""
        from tvm.s_tir import TensorIntrin

        from cpembed.codegen.runtime import tvm

        if TensorIntrin.get(self.name, allow_missing=True) is None:
            parse = tvm().script.from_source
            TensorIntrin.register(self.name, parse(self.description), parse(self.implementation))
        return self.name


@dataclass(frozen=True)
class LaneSum:
    """The innermost spatial loop, whose accumulators are the parts of one sum that is stored:
    ``total(vector)`` is TVMScript for that of a vector of them."""

    loop: str
    total: Callable[[str], str]


@dataclass(frozen=True)
class InstructionText:
    """An instruction in a kernel.

    ``unrolled`` names inner loops and reductions to unroll, ``vectorized`` those to vectorise where
    the accumulators are set and stored, and with ``vectorized_update`` where they are added to.
    ``intrinsics`` replace blocks, each from a loop on: its place among the loops around the block.
    ``setup`` and ``teardown`` are statements around each chunk (a tile configuration).

    ``in_registers``: accumulators are registers of the compiler. ``opaque``: they are an
    instruction's own, which only its store can read; with an epilogue they are stored to a local
    buffer, of which the results are computed while the next task's products are on their way.
    ``store`` writes down the results where it can, ``lane_sum`` makes one of several accumulators.

    ``attributes``, ``options`` and ``functions`` are those of a
    :class:`~cpembed.codegen.plan.KernelPlan`.
    """

    backend: str
    unrolled: Collection[str] = ()
    vectorized: Collection[str] = ()
    vectorized_update: bool = False
    intrinsics: Mapping[str, tuple[Intrinsic, int]] = field(
        default_factory=dict[str, tuple[Intrinsic, int]]
    )
    setup: Sequence[str] = ()
    teardown: Sequence[str] = ()
    in_registers: bool = False
    opaque: bool = False
    store: StoreText | None = None
    lane_sum: LaneSum | None = None
    attributes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    functions: str = ""

    @property
    def vectorized_sums(self) -> Collection[str]:
        """Loops to vectorise around the accumulators themselves: none where they are opaque."""
        return () if self.opaque else self.vectorized

    def tensorizing(self, nest: Nest) -> Callable[[Any], None] | None:
        """Rewrites a schedule of the nest's kernel: blocks are replaced, the update in each index
        set; None where nothing is."""
        if not self.intrinsics:
            return None
        return Tensorizing(
            tuple(
                (block_name(name, number), intrinsic, place)
                for name, (intrinsic, place) in self.intrinsics.items()
                for number in range(len(index_sets(nest)) if name == UPDATE else 1)
            )
        )


@dataclass(frozen=True)
class Tensorizing:
    """Replaces blocks of a kernel, by their names, by intrinsics, each from a loop on."""

    replaced: tuple[tuple[str, Intrinsic, int], ...]

    def __call__(self, work: Any) -> None:
        for name, intrinsic, place in self.replaced:
            block = work.get_sblock(name, "main")
            work.tensorize(work.get_loops(block)[place], intrinsic.register())
