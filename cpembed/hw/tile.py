"""The ``tile`` of an operand: the notation, and the check that it holds each axis exactly once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from cpembed.errors import SpecError
from cpembed.hw.instruction import InstructionAxis, TileDimension

_DIMENSION = re.compile(r"([A-Za-z_]\w*)(?:/(\d{1,9}))?(?:%(\d{1,9}))?", re.ASCII)

ErrorWith = Callable[[str], SpecError]
"""Makes the error of a problem: knows the file and the key."""


def read_tile(
    texts: Sequence[str],
    operand_axes: Sequence[str],
    axes: Mapping[str, InstructionAxis],
    error: ErrorWith,
) -> tuple[TileDimension, ...]:
    """Tile dimensions from their written form, outermost first.

    >>> z = InstructionAxis("z", 64, 64)
    >>> y = InstructionAxis("y", 16, 16)
    >>> tile = read_tile(["z/4", "y", "z%4"], ["z", "y"], {"z": z, "y": y}, SpecError)
    >>> [dimension.size({"z": 64, "y": 16}[dimension.axis]) for dimension in tile]
    [16, 16, 4]

    Raises the ``error`` of a dimension that cannot be read or names another axis, and of axes that
    are missing, held twice, or split into parts that do not multiply to their extent.
    """
    tile = tuple(_read_dimension(text, operand_axes, error) for text in texts)
    for axis in operand_axes:
        _check_parts(axes[axis], [d for d in tile if d.axis == axis], error)
    return tuple(_without_redundant_modulus(d, axes[d.axis].maximum) for d in tile)


def _read_dimension(text: str, operand_axes: Sequence[str], error: ErrorWith) -> TileDimension:
    found = _DIMENSION.fullmatch(text.replace(" ", ""))
    if not found:
        raise error(
            f"{text!r} is not a tile dimension; allowed: an axis, axis/divisor, axis%modulus "
            "or axis/divisor%modulus"
        )
    axis, divisor, modulus = found[1], int(found[2] or 1), int(found[3] or 0)
    if divisor == 0 or (found[3] and modulus == 0):
        raise error(f"{text!r} divides by zero")
    if axis not in operand_axes:
        raise error(
            f"{axis} is not an axis of the operand; its axes: {', '.join(operand_axes) or 'none'}"
        )
    return TileDimension(axis, divisor, modulus or None)


def _check_parts(axis: InstructionAxis, parts: Sequence[TileDimension], error: ErrorWith) -> None:
    """The parts of an axis are its consecutive digits: their sizes multiply to the extent."""
    if not parts:
        raise error(f"lacks axis {axis.name}: a tile holds each axis of its operand exactly once")
    if not axis.is_fixed and parts != [TileDimension(axis.name)]:
        raise error(f"splits {axis.name}, which is configurable; allowed: {axis.name} whole")
    covered = 1
    ordered = sorted(parts, key=lambda part: (part.divisor, part.modulus or math.inf))
    for number, part in enumerate(ordered):
        if part.divisor < covered or (number and covered == axis.maximum):
            raise error(f"holds axis {axis.name} more than once, again in {part}")
        if part.divisor > covered:
            expected = axis.name if covered == 1 else f"{axis.name}/{covered}"
            raise error(
                f"{part} leaves a gap: the parts of {axis.name} inside it multiply to {covered}, "
                f"the next one starts with {expected}"
            )
        size = part.modulus or axis.maximum // covered
        if axis.maximum % (covered * size):
            raise error(f"{part} does not divide the extent {axis.maximum} of {axis.name}")
        covered *= size
    if covered != axis.maximum:
        raise error(f"the parts of {axis.name} multiply to {covered}, its extent is {axis.maximum}")


def _without_redundant_modulus(dimension: TileDimension, extent: int) -> TileDimension:
    """``z/4%16`` of extent 64 is ``z/4``: one spelling for equal tiles."""
    if dimension.modulus and dimension.divisor * dimension.modulus == extent:
        return TileDimension(dimension.axis, dimension.divisor)
    return dimension
