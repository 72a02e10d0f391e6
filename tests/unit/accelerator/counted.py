"""Counts of plans against those of the executor, for tests of programs of all kinds."""

from __future__ import annotations

from cpembed.accelerator.cost import ProgramCost
from cpembed.accelerator.executor import Run
from cpembed.hw.isa import InstructionSet, MemoryKind


def assert_counts_agree(cost: ProgramCost, run: Run, machine: InstructionSet) -> None:
    """Check that executions and the bytes of all memories are those of a run."""
    executions = {name: count for name, count in run.executions.items() if count}
    assert {name: count for name, count in cost.executions.items() if count} == executions
    for name, memory in machine.memories.items():
        if memory.kind is MemoryKind.REGISTER:
            continue
        assert run.moved.get((name, "read"), 0) == cost.moved.get((name, "read"), 0)
        assert run.moved.get((name, "write"), 0) == cost.moved.get((name, "written"), 0)
