"""Software-pipelined epilogue: a task's results are computed while the next task's products run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cpembed.codegen.instruction import InstructionText
from cpembed.codegen.nest import KernelOperand, Nest
from cpembed.codegen.nest_text import (
    STAGE,
    bind_task,
    loop_headers,
    region_lines,
    store_statement,
    write_block,
)
from cpembed.codegen.script import Script
from cpembed.transform.program import Loop


def staged(nest: Nest) -> Nest:
    """A nest with an epilogue as its accumulators are stored: to a local buffer. Another nest is
    itself."""
    if nest.epilogue is None:
        return nest
    first, second, output = nest.operands
    stage = replace(
        output, dtype=nest.sums, elements=nest.accumulators, access=nest.accumulator_access
    )
    return replace(nest, operands=(first, second, stage))


@dataclass(frozen=True)
class PipelinedEpilogue:
    """The results of a task's sums, which lie in the local buffer."""

    nest: Nest
    text: InstructionText

    def write(self, script: Script, task: str, condition: str | None = None) -> None:
        """The results of a task, under a condition where there may be none."""
        loops = {loop.name for loop in self.nest.tasks}

        def named(loop: str) -> str:
            return f"{loop}_stored" if loop in loops else loop

        def renamed(operand: KernelOperand) -> KernelOperand:
            return replace(operand, access=operand.access.rename(named))

        first, second, output = self.nest.operands
        channels = None if self.nest.channels is None else renamed(self.nest.channels)
        residual = None if self.nest.residual is None else renamed(self.nest.residual)
        nest = replace(
            self.nest,
            operands=(first, second, renamed(output)),
            channels=channels,
            residual=residual,
        )
        statement = store_statement(nest, f"{STAGE}[{nest.accumulator_access}]")
        with script.nested('with T.sblock("results"):'):
            bind_task(script, nest, task, named)
            script.lines(region_lines(nest, stages=True))
            with script.nested(*([] if condition is None else [f"if {condition}:"])):
                if self.text.store is not None and self.text.store(script, nest, STAGE):
                    return
                loops_inward = self._in_order(nest.spatial_inner, output)
                headers = loop_headers(loops_inward, self.text.unrolled, self.text.vectorized)
                with script.nested(*headers):
                    write_block(script, "result", loops_inward, statement)

    def _in_order(self, loops: Sequence[Loop], output: KernelOperand) -> list[Loop]:
        """The loops in the order in which results lie in memory, as far as vectors let them: lines
        that are stored together come together (of results beyond the second-level cache, 1.2 times
        the time in the order of tiles)."""

        def inward(loop: Loop) -> tuple[bool, int]:
            return loop.name in self.text.vectorized, -abs(output.stride(loop.name))

        return sorted(loops, key=inward)
