"""What a task stores of its sums while the next task's products are on their way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cpembed.kernel.nest import KernelOperand, Nest
from cpembed.kernel.nest_text import (
    STAGE,
    bind_task,
    loop_headers,
    store_statement,
    write_block,
    write_regions,
)
from cpembed.kernel.script import Script
from cpembed.transform.program import Loop

Results = Callable[[Script, Nest, str], bool]
"""Writes what a task stores of its sums, from the buffer in which they are; False where it does
not."""


def staged(nest: Nest) -> Nest:
    """A nest with an epilogue as its accumulators are stored: to a local buffer."""
    first, second, output = nest.operands
    stage = replace(
        output, dtype=nest.sums, elements=nest.accumulators, access=nest.accumulator_access
    )
    return replace(nest, operands=(first, second, stage))


@dataclass(frozen=True)
class Delayed:
    """What becomes of a task's sums, which lie in a buffer."""

    nest: Nest
    unrolled: tuple[str, ...]
    vectorized: tuple[str, ...]
    results: Results | None

    def write(self, script: Script, task: str, condition: str | None = None) -> None:
        """The results of a task, where there is such a one."""
        loops = {loop.name for loop in self.nest.tasks}

        def named(loop: str) -> str:
            return f"{loop}_stored" if loop in loops else loop

        first, second, output = self.nest.operands
        output = replace(output, access=output.access.rename(named))
        channels = self.nest.channels
        if channels is not None:
            channels = replace(channels, access=channels.access.rename(named))
        nest = replace(self.nest, operands=(first, second, output), channels=channels)
        spatial = nest.spatial_inner
        statement = store_statement(nest, f"{STAGE}[{nest.accumulator_access}]")
        with script.nested('with T.sblock("results"):'):
            bind_task(script, nest, task, named)
            write_regions(script, nest, stages=True)
            conditions = [] if condition is None else [f"if {condition}:"]
            with script.nested(*conditions):
                if self.results is not None and self.results(script, nest, STAGE):
                    return
                inward = self._in_order(spatial, output)
                with script.nested(*loop_headers(inward, self.unrolled, self.vectorized)):
                    write_block(script, "result", inward, statement)

    def _in_order(self, loops: Sequence[Loop], output: KernelOperand) -> list[Loop]:
        """The loops in the order in which results lie in memory, as far as vectors let them: lines
        that are stored together come together (of results beyond the second-level cache, 1.2 times
        the time in the order of tiles)."""

        def inward(loop: Loop) -> tuple[bool, int]:
            return loop.name in self.vectorized, -abs(output.stride(loop.name))

        return sorted(loops, key=inward)
