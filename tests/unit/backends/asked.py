"""What a step of a kernel's reductions asks for, read off its text; and nests to look at."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from cpembed.api.solve import solve, workload
from cpembed.backends.contract import Knobs
from cpembed.backends.kernel import schedule_space
from cpembed.backends.nest import KernelOperand, Nest
from cpembed.backends.nest_text import loop_variable
from cpembed.backends.script import Script
from cpembed.hw.instruction import HardwareSpec
from cpembed.transform.program import DerivedProgram


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


def program_of(spec: HardwareSpec, words: str) -> DerivedProgram:
    given = workload(words.split(), target=spec)
    (ranked, *_) = solve(given, spec, "in_place_padded", top=1).embeddings
    return ranked.candidate.program


def nest_of(spec: HardwareSpec, words: str, knobs: Knobs) -> Nest:
    """Blocks of loops that the nest lacks are left out."""
    space = schedule_space(program_of(spec, words), spec)
    return space.applied(known(knobs, space.nest))


def known(knobs: Knobs, nest: Nest) -> Knobs:
    """The same without blocks of loops that the nest lacks."""
    names = {loop.origin for loop in nest.tasks}
    blocks = {name: size for name, size in knobs.blocks.items() if name in names}
    return replace(knobs, blocks=blocks)
