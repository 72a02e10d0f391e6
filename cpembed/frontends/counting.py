"""The number of steps of a loop that counts: its condition depends on constants alone.

Exporters write ``while i < n: i = i + 1`` with a counter among the states, and a condition that
follows from it. Such a loop has a fixed number of steps, which is computed by running what the
condition depends on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpembed.frontends.loops import LoopBody
from cpembed.graph.graph import Array, needed_operators

_MOST_STEPS, _MOST_ELEMENTS = 1 << 14, 1 << 10
"""Maximum number of steps that are counted, and of elements of a tensor that decides about them."""


def counted_steps(
    loop: LoopBody, again: str, initial: Sequence[str], states: Sequence[str], after: Sequence[str]
) -> int | None:
    """Return the number of steps of a loop whose first step runs; None if it is not constant.

    Parameters
    ----------
    loop : LoopBody
        Loop whose body is written.
    again : str
        Condition of the next step, a tensor of the body.
    initial : sequence of str
        Initial states, tensors of the outer graph.
    states, after : sequence of str
        States before and after a step, tensors of the body.
    """
    builder = loop.builder
    # States that the condition depends on: their values, and what they are after a step.
    values: dict[str, Array] = {}
    updates: dict[str, str] = {}
    while True:
        results = (again, *updates.values())
        operators = needed_operators(builder.operators, results)
        written = {name for operator in operators for name in operator.outputs}
        read = {name for operator in operators for name in operator.inputs} | {*results}
        pending = read - written - {*updates, *builder.constants, loop.number()}
        if not pending:
            break
        for name in pending:
            first = loop.outer.value(initial[states.index(name)]) if name in states else None
            if first is None or builder.types[name].elements > _MOST_ELEMENTS:
                return None
            values[name] = np.asarray(first)
            updates[name] = after[states.index(name)]
    if any(builder.types[n].elements > _MOST_ELEMENTS for o in operators for n in o.outputs):
        return None
    for step in range(_MOST_STEPS):
        computed = {**builder.constants, **values, loop.number(): np.asarray(step, np.int64)}
        for operator in operators:
            outputs = operator.kind.evaluate([computed[name] for name in operator.inputs])
            computed |= zip(operator.outputs, outputs, strict=True)
        if not np.asarray(computed[again]).reshape(-1)[0]:
            return step + 1
        values = {name: computed[update] for name, update in updates.items()}
    return None
