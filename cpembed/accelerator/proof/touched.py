"""Elements of an operand in one execution: their places, their claims and what the places hold."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.proof.instances import Elements, Integers
from cpembed.accelerator.proof.result import ObligationError
from cpembed.accelerator.proof.tags import PART, UNCLAIMED, UNWRITTEN
from cpembed.accelerator.proof.tensors import Levels

if TYPE_CHECKING:
    from cpembed.accelerator.proof.enumerated import OperandTrace
    from cpembed.accelerator.proof.execution import Execution

Number = int | float
Booleans = NDArray[np.bool_]

UNKNOWN = -1
"""Number of a value that is no number."""


class Touched:
    """The elements of an operand that an execution reads or writes, with claims and places."""

    def __init__(self, execution: Execution, operand: OperandTrace, elements: Elements) -> None:
        self.operand, self.elements = operand, elements
        self._execution = execution
        self.store = execution.store(operand)
        self.places = self._places()

    def _places(self) -> Integers:
        """Return the places of each element; of several parts, a column for each."""
        operand, at = self.operand, self._execution.iteration
        store, elements = self.store, self.elements
        rows = elements.places + operand.base[at]
        lanes = elements.lanes + operand.lane[at]
        units = lanes * operand.parts
        rows_count = len(store.tags) // store.row_units
        outside = (
            (rows < 0)
            | (rows >= rows_count)
            | (units < 0)
            | (units + operand.parts > store.row_units)
        )
        if outside.any():
            at_element = int(np.flatnonzero(outside)[0])
            raise ObligationError(
                f"{self._execution.text}: {operand.name} leaves {store.name}: row or element "
                f"{int(rows[at_element])}, lane {int(lanes[at_element])}, of {rows_count}"
            )
        places = rows * store.row_units + units
        return places if operand.parts == 1 else places[:, None] + np.arange(operand.parts)

    @cached_property
    def tags(self) -> Integers:
        """Tag of each element as memory holds it."""
        tags = self.store.tags[self.places]
        if self.operand.parts == 1:
            return tags
        agree = (tags - PART * np.arange(self.operand.parts) == tags[:, :1]).all(axis=1)
        # Parts of several elements are none; an element of which a part is missing is unwritten.
        mixed = np.where((tags == UNWRITTEN).any(axis=1), UNWRITTEN, UNCLAIMED)
        return np.where(agree & (tags[:, 0] > 0), tags[:, 0], mixed)

    @cached_property
    def levels(self) -> Integers:
        """Level of each element."""
        levels = self.store.levels[self.places]
        return levels if self.operand.parts == 1 else levels[:, 0]

    @cached_property
    def index(self) -> tuple[Any, ...]:
        """Claimed index of each element."""
        at, elements = self._execution.iteration, self.elements
        pairs = zip(self.operand.content, elements.content, strict=True)
        return tuple(split.values(at, inner, elements.dimensions) for split, inner in pairs)

    @cached_property
    def inside(self) -> Booleans | None:
        """Elements whose claimed index is inside of the tensor; None for all of them."""
        at, bounds = self._execution.iteration, self.elements.bounds
        operand = self.operand
        if all(
            split.mixed is None and low + split.outer[at] >= 0 and high + split.outer[at] < size
            for split, (low, high), size in zip(operand.content, bounds, operand.shape, strict=True)
        ):
            return None
        inside = np.ones(self.elements.places.shape, bool)
        for index, size in zip(self.index, operand.shape, strict=True):
            inside &= (index >= 0) & (index < size)
        return None if inside.all() else inside

    @cached_property
    def flat(self) -> Integers:
        """Row-major number of the claimed element; 0 outside of the tensor."""
        flat: Any = np.zeros(self.elements.places.shape, np.int64)
        for index, size in zip(self.index, self.operand.shape, strict=True):
            flat = flat * size + index
        return flat if self.inside is None else np.where(self.inside, flat, 0)

    @cached_property
    def claims(self) -> Integers:
        """Tag of the claimed element, :data:`UNCLAIMED` outside of the tensor."""
        tags = self._execution.tags.elements(self.operand.tensor, self.operand.dtype, self.flat)
        return tags if self.inside is None else np.where(self.inside, tags, UNCLAIMED)

    def numbers(self) -> tuple[Integers, list[Number]]:
        """Return which number each element holds, -1 for anything else, and the numbers."""
        unique, inverse = np.unique(self.tags, return_inverse=True)
        values: list[Number] = []
        which = np.full(len(unique), UNKNOWN, np.int64)
        for position, tag in enumerate(unique.tolist()):
            value = self._execution.tags.value(tag, self.operand.dtype)
            if value is not None:
                which[position] = len(values)
                values.append(value)
        return which[inverse.reshape(self.tags.shape)], values

    def level(self, level: Levels) -> Any:
        """Return the level that each element should have."""
        return level if isinstance(level, int) else level[self.flat]
