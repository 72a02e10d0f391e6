"""Proof of a plan before its text is generated.

:mod:`cpembed.transform.proof` proves that the derived program is the workload. A plan adds:

1. *tiles*: along each axis, tiles, parts of the mesh and places reach every point exactly once
   (decided by isl); so the iteration domain, their product, is covered exactly once.
2. *boxes*: the place of a point in a box is the element that the workload's access names: both are
   the same affine function of tile, part and place, and every place is in the box.
3. *stored once*: an output's box has an axis of its own for each dimension, so that what one PE
   stores of a tile no other stores (by 1).
4. *padding*: a point beyond a reduction axis multiplies zero (checked when a program is lowered);
   one beyond another axis is a result that is not stored, as its place is beyond the output.
"""

from __future__ import annotations

from cpembed.errors import InvariantError
from cpembed.targets.scratchpad.boxes import Box
from cpembed.targets.scratchpad.schedule import Plan
from cpembed.transform.proof.lemmas import covers_once


def require_proven(plan: Plan) -> None:
    """Raise :class:`InvariantError` for what does not hold, which is a bug of this package."""
    failed = [
        f"tiles of {axis.name}"
        for axis in plan.product.axes.values()
        if not covers_once(axis.extent, plan.tile[axis.name], axis.granule, axis.parts)
    ]
    for box in plan.form.boxes:
        proven = _has_own_dimensions(box) if box.tiled else _follows_access(box, plan)
        if not proven:
            failed.append(f"the box of {box.operand.name}")
    output = plan.form.boxes[2].operand
    axes = [index.single_iterator for index in output.index]
    if None in axes or len(set(axes)) < len(axes):
        failed.append(f"what is stored of {output.name}")
    if failed:
        workload = plan.product.workload.name
        raise InvariantError(f"{workload}, {plan.schedule}: not proven: {', '.join(failed)}")


def _follows_access(box: Box, plan: Plan) -> bool:
    """True if ``index(start + place) = first + step * box place`` for every axis: the factor of a
    place is that of the index by the step, and an axis that the box does not walk has one place.
    """
    for dimension, index in zip(box.dimensions, box.operand.index, strict=True):
        if dimension.constant != index.constant or set(dimension.starts) != set(index.iterators):
            return False
        for name, factor in dimension.starts.items():
            walked = dimension.walks.get(name, 0) * dimension.step
            if factor != index.coefficient(name) or (walked != factor and plan.held[name] != 1):
                return False
        last = sum(f * (plan.held[name] - 1) for name, f in dimension.walks.items())
        if dimension.places(plan.held) != last + 1:
            return False
    return True


def _has_own_dimensions(box: Box) -> bool:
    """True if every axis of the operand is a dimension of its own, whose places are its points."""
    names = [tuple(dimension.starts.items()) for dimension in box.dimensions]
    return sorted(names) == sorted(((name, 1),) for name in box.operand.axes)
