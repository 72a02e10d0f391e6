"""What texts of C are made of: lines, names, types, and places in boxes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from cpembed.errors import LoweringError
from cpembed.targets.scratchpad.boxes import Box, BoxDimension
from cpembed.targets.scratchpad.lower import Axis, Operand
from cpembed.targets.scratchpad.schedule import Plan

C_TYPES = {
    "float32": "float",
    "float64": "double",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class Lines:
    """Lines of C."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def line(self, *texts: str) -> None:
        self._lines += texts

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


@cache
def boxes_text() -> str:
    return (Path(__file__).parent / "boxes.h").read_text(encoding="utf-8")


class Writer:
    """A plan with the names and types that its text uses."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.product = plan, plan.product
        self.machine = plan.product.machine
        self.axes = list(plan.product.axes.values())
        self.names = {axis.name: identifier(axis.name) for axis in self.axes}
        self.types = [c_type(operand) for operand in self.product.operands]

    def places(self, dimension: BoxDimension, tile: str) -> str:
        walks = [(factor, f"{tile}->held_{self.names[n]}") for n, factor in dimension.walks.items()]
        if [factor for factor, _ in walks] == [1]:
            return walks[0][1]
        terms = [f"{times(factor)}({held} - 1)" for factor, held in walks]
        return " + ".join(["1", *terms])

    def product_of(self, box: Box, tile: str, after: int = -1) -> list[str]:
        places = [
            self.places(dimension, tile)
            for dimension in box.dimensions[after + 1 :]
            if dimension.walks
        ]
        return [f"({text})" if " " in text else text for text in places]

    def stride(self, box: Box, axis: Axis) -> str:
        """Elements between neighbours along an axis, in the box of tile ``t``."""
        terms: list[str] = []
        for number, factor in box.walk(axis.name):
            factors = [] if factor == 1 else [str(factor)]
            terms.append(" * ".join([*factors, *self.product_of(box, "t", number)]) or "1")
        return " + ".join(terms) or "0"


def identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def times(factor: int) -> str:
    return "" if factor == 1 else f"{factor} * "


def c_type(operand: Operand) -> str:
    if operand.dtype not in C_TYPES:
        raise LoweringError(
            f"{operand.name} is of {operand.dtype}; in C there are {', '.join(C_TYPES)}"
        )
    return C_TYPES[operand.dtype]
