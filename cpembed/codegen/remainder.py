"""Remainder handling: tiles that do not divide their loop.

By default the last tile is shifted back to end at the loop's extent and computes some points again
(:class:`~cpembed.codegen.nest.TileLoop`): one body serves all tasks. Where tasks may have several
bodies, the last tiles have a point less instead, and nothing is computed twice.
"""

from __future__ import annotations

from dataclasses import replace

from cpembed.codegen.nest import Nest, Peeling


def shorten_remainder(nest: Nest) -> Nest:
    """Of the register-tiled loops that their tiles do not divide, give the one that would recompute
    the largest share shorter tiles at its end; none where tasks have one body."""
    if nest.peeling is Peeling.STEPS:
        return nest
    steps = {loop.name for loop in nest.steps}
    uneven = [
        task
        for task in nest.tasks
        if task.step in steps and task.unit == 1 and 0 < task.points - task.extent <= task.count
    ]
    if not uneven:
        return nest
    most = max(uneven, key=lambda task: task.points / task.extent)
    even = replace(most, remainder=most.points - most.extent)
    return replace(nest, tasks=tuple(even if task is most else task for task in nest.tasks))
