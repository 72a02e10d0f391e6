"""Layouts of operands with names, and the rewrites that lead to them, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cpembed.errors import InvariantError
from cpembed.transform.layout_builder import original_layout as before_rewrites
from cpembed.transform.program import DerivedProgram, PackedOperand, Rewrite


@dataclass(frozen=True)
class Layout:
    """Dimensions of a layout by name, outermost first; ``lanes`` are the instruction axes that
    walk each of them.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    lanes: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return f"[{', '.join(self.names)}] ({', '.join(map(str, self.shape))})"

    def to_json(self) -> dict[str, Any]:
        return {"dimensions": list(self.names), "shape": list(self.shape)}


@dataclass(frozen=True)
class Step:
    """One rewrite with the layout before and after it."""

    rewrite: Rewrite
    before: Layout
    after: Layout


def layout(program: DerivedProgram, operand: PackedOperand) -> Layout:
    """Return an operand's dimensions by name, with the instruction axes that walk them."""
    walking = {lane.name for lane in program.instruction_axes if lane.extent > 1}
    return Layout(
        tuple(d.name for d in operand.dimensions),
        operand.shape,
        tuple(tuple(n for n in index.iterators if n in walking) for index in operand.access),
    )


def original_layout(program: DerivedProgram, name: str) -> Layout:
    """Return the layout of an operand before any rewrite."""
    return layout(program, _unpacked(program, name))


def replay(program: DerivedProgram, name: str) -> tuple[Step, ...]:
    """Replay the rewrites of one operand from its original layout to the packed one."""
    current = _unpacked(program, name)
    steps: list[Step] = []
    for rewrite in program.rewrites:
        if rewrite.operand == name:
            after = rewrite.apply(current, program.extents)
            steps.append(Step(rewrite, layout(program, current), layout(program, after)))
            current = after
    replayed, packed = layout(program, current), layout(program, program.operand(name))
    if replayed != packed:
        raise InvariantError(f"the rewrites of {name} lead to {replayed}, not to {packed}")
    return tuple(steps)


def _unpacked(program: DerivedProgram, name: str) -> PackedOperand:
    """Return the operand before any rewrite; its dimensions have the names of their axes."""
    workload = program.unfused
    return before_rewrites(workload, workload.access(name), program.axis_map)
