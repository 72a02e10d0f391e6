"""What a step of a kernel's reductions asks for, read off its text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from cpembed.backends.nest import KernelOperand, Nest
from cpembed.backends.nest_text import loop_variable
from cpembed.backends.script import Script


class _T:
    min = staticmethod(min)


def asked(
    write: Callable[[Script, Nest], None],
    nest: Nest,
    operand: KernelOperand,
    step: tuple[int, ...],
    tasks: Mapping[str, int] | None = None,
) -> list[int]:
    """Elements of an operand whose lines a step asks for; loops of tasks that ``tasks`` does not
    name are at their beginning."""
    script = Script()
    write(script, nest)
    values: dict[str, object] = {"T": _T, **dict.fromkeys(operand.access.iterators, 0)}
    values |= tasks or {}
    values |= {loop_variable(o): at for o, at in zip(nest.reductions, step, strict=True)}
    found: list[int] = []
    condition = "True"
    for line in script.text().splitlines():
        if line.lstrip().startswith("if "):
            condition = line.strip().removeprefix("if ").removesuffix(":")
            continue
        place = re.search(rf"address_of\({operand.parameter}\[(.*)\]\)", line)
        assert place is not None
        if eval(condition, values):
            found.append(int(eval(place[1], values)))
    return found
