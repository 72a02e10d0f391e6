"""Loop-order passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cpembed.codegen.nest import Nest
from cpembed.transform.program import Loop


def order_tasks(nest: Nest, outermost_first: Sequence[str]) -> Nest:
    """Change the order in which tasks run; loops not named stay outside, in their order."""
    named = {task.name: task for task in nest.tasks}
    rest = [task for task in nest.tasks if task.name not in outermost_first]
    return replace(nest, tasks=(*rest, *(named[name] for name in outermost_first)))


def order_reductions(nest: Nest) -> Nest:
    """Sum in the order in which the second factor lies in memory: hardware prefetch follows a few
    streams, not one for each point of a window."""
    second = nest.operands[1]

    def inward(loop: Loop) -> int:
        return -abs(second.stride(loop.name))

    return replace(nest, reductions=tuple(sorted(nest.reductions, key=inward)))
