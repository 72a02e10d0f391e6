"""The obligations taken apart into lemmas about few variables each.

Every method answers True only where lemmas imply the obligation; False says nothing, the general
proof decides then. The package's documentation gives the argument.
"""

from __future__ import annotations

from collections.abc import Hashable

from cpembed.transform.program import DerivedProgram, PackedOperand
from cpembed.transform.proof.layouts import SharedLemmas, over_digits
from cpembed.transform.proof.lemmas import Plain, bijective, holds, inside, plain


class Factored:
    """A program's obligations as lemmas about its axes and its layouts."""

    def __init__(self, program: DerivedProgram, shared: SharedLemmas | None = None) -> None:
        shared = shared or SharedLemmas()
        self.program = program
        self.facts = shared.facts(program)
        extents = program.extents
        self.axes: dict[Hashable, Plain] = {
            axis: plain(program.axis_map[axis], extents) for axis in self.facts.sizes
        }
        self.layouts = {
            operand.name: shared.layout(program, operand, self.axes) for operand in program.operands
        }

    def coverage(self) -> bool:
        """Digits of different axes are independent, and each axis's digits number its range."""
        axes = over_digits(list(self.axes.values()), self.program.extents)
        if axes is None:
            return False
        for extent, index in zip(self.facts.sizes.values(), axes, strict=True):
            size = _top(index) + 1
            if size < extent or not holds(bijective, ((index, ()),), (size,)):
                return False
        return True

    def access(self, operand: PackedOperand) -> bool:
        """Packed indices stay inside, and name the elements that the workload names."""
        return self.layouts[operand.name].access

    def neutral(self) -> bool:
        """Each axis that can leave its extent takes an operand's index out of shape with it."""
        return all(
            holds(inside, ((self.axes[axis], ()),), (size,))
            or any(self.layouts[name].excludes(axis, at) for name, at in self.facts.witnesses[axis])
            for axis, size in self.facts.sizes.items()
        )

    def output(self, name: str) -> bool:
        """Every element of an output is written, and none in two places.

        Given that coverage holds and that the output's access does.
        """
        return self.layouts[name].output

    def tile(self) -> bool:
        """Per operand: instruction axes address memory as the instruction's memory side asks."""
        program = self.program
        return all(
            self.layouts[program.roles[ours]].tile(
                program.instruction, ours, program.instruction_axes
            )
            for ours in program.instruction.memory
        )


def _top(index: Plain) -> int:
    """Upper bound of an index over independent variables without divisors."""
    terms, constant = index
    return constant + sum(max(0, term[2] * (term[1] - 1)) for term in terms)
