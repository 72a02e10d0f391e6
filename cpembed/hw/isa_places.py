"""Read ``operands`` of an instruction: where each element of an operand lies in its memory."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from cpembed.errors import SpecError
from cpembed.hw.instruction import InstructionAxis, TileDimension
from cpembed.hw.isa import IMMEDIATE, IsaMemory, MemoryKind, OperandPlace, StrideSource
from cpembed.hw.isa_tables import PlaceTable
from cpembed.hw.schema import Key, close_match, joined, spec_error
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import is_integer, storage_bytes

_MAX_STRIDE = 2**32
"""Maximum distance between neighbours along a dimension."""
# Places are enumerated; real instructions have operands of up to some hundred thousand elements.
_MAX_ELEMENTS = 2**20
"""Maximum number of elements of an operand whose places are checked."""

_DIGIT = re.compile(r"([A-Za-z_]\w*)(?:/(\d{1,9}))?(?:%(\d{1,9}))?", re.ASCII)


class PlaceReader:
    """Checks the table of one operand and makes its :class:`OperandPlace`.

    Parameters
    ----------
    path : str
        The file, for messages.
    key : tuple
        Path of the table in the file.
    table : PlaceTable
    memories : mapping of str to IsaMemory
        All memories of the machine.
    """

    def __init__(
        self, path: str, key: Key, table: PlaceTable, memories: Mapping[str, IsaMemory]
    ) -> None:
        self.path = path
        self.key = key
        self.table = table
        self.memories = memories

    def read(
        self, computation: Computation, operand: str, axes: Mapping[str, InstructionAxis]
    ) -> OperandPlace:
        """Return the place; raise :class:`SpecError` for the first fault.

        Parameters
        ----------
        computation : Computation
            The instruction's, at its largest sizes.
        operand : str
            Name of the operand.
        axes : mapping of str to InstructionAxis
        """
        memory = self.memories.get(self.table.memory)
        dtype = computation.operand(operand).dtype
        dimensions = self._dimensions(computation, operand)
        if memory is None or memory.kind is MemoryKind.REGISTER:
            self._check_scalar(dimensions)
            return OperandPlace(memory=self.table.memory, dtype=dtype)
        is_main = memory.kind is MemoryKind.MAIN
        shape = computation.operand(operand).shape
        sizes = dict(zip(dimensions, shape, strict=True))
        place = self._main_place(dtype, dimensions) if is_main else self._row_place(dtype, sizes)
        # Several elements of an input may be one element of main memory, as in a broadcast.
        is_written = operand in {output.name for output in computation.outputs}
        if is_main and not is_written:
            return place
        problem = f"{math.prod(shape):,} elements; allowed: up to {_MAX_ELEMENTS:,}"
        self._need(math.prod(shape) <= _MAX_ELEMENTS, (), problem)
        if not is_main:
            self._check_lanes(place, sizes, memory)
            self._check_rows(place, sizes, memory)
        self._check_overlaps(place, computation, operand, axes)
        return place

    def _main_place(self, dtype: str, dimensions: tuple[str, ...]) -> OperandPlace:
        """Return a place in main memory."""
        table = self.table
        for field in ("rows", "lanes", "any_lane"):
            problem = "is for memories of rows; main memory has `stride` by dimension"
            self._need(not getattr(table, field), (field,), problem)
        strides = self._strides(dimensions, StrideSource.ANY)
        return OperandPlace(
            memory=table.memory, dtype=dtype, dimensions=dimensions, strides=strides
        )

    def _row_place(self, dtype: str, sizes: Mapping[str, int]) -> OperandPlace:
        """Return a place in a memory of rows, each element of which is named once."""
        table = self.table
        rows, lanes = (
            tuple(self._digit(field, n, text, sizes) for n, text in enumerate(texts))
            for field, texts in (("rows", table.rows), ("lanes", table.lanes))
        )
        for dimension, size in sizes.items():
            self._check_digits(dimension, size, (*rows, *lanes))
        return OperandPlace(
            memory=table.memory,
            dtype=dtype,
            dimensions=tuple(sizes),
            rows=rows,
            lanes=lanes,
            strides=self._strides(tuple(map(str, rows)), StrideSource.DENSE),
            any_lane=table.any_lane,
        )

    def _error(self, key: Key, problem: str) -> SpecError:
        return spec_error(self.path, (*self.key, *key), problem)

    def _need(self, condition: bool, key: Key, problem: str) -> None:
        if not condition:
            raise self._error(key, problem)

    def _check_scalar(self, dimensions: Sequence[str]) -> None:
        """Check an operand in a register or in the instruction's word."""
        table = self.table
        kind = "an immediate" if table.memory == IMMEDIATE else "a register"
        problem = f"has dimensions {joined(dimensions)} and is {kind}, one scalar: write NAME[]"
        self._need(not dimensions, (), problem)
        for field in ("rows", "lanes", "stride", "dimensions", "any_lane"):
            problem = f"{kind} has no rows, lanes or strides: leave it out"
            self._need(not getattr(table, field), (field,), problem)

    def _dimensions(self, computation: Computation, operand: str) -> tuple[str, ...]:
        """Return the names of the dimensions: those of ``dimensions``, or axes that index alone."""
        accesses = computation.access_maps[operand]
        rank = len(accesses[0].index)
        single: list[str | None] = []
        for dimension in range(rank):
            names = {access.index[dimension].single_iterator for access in accesses}
            single.append(names.pop() if len(names) == 1 else None)
        if self.table.dimensions is None:
            for index, name in zip(accesses[0].index, single, strict=True):
                problem = f"is missing: the index {index} is no axis alone; name each dimension"
                self._need(name is not None, ("dimensions",), problem)
            names = tuple(name for name in single if name is not None)
            problem = f"is missing: {joined(names)} repeat an axis; name each dimension"
            self._need(len(set(names)) == rank, ("dimensions",), problem)
            return names
        names = tuple(self.table.dimensions)
        problem = f"{len(names)} names; allowed: {rank}, one for each index of {accesses[0]}"
        self._need(len(names) == rank, ("dimensions",), problem)
        for position, (name, axis) in enumerate(zip(names, single, strict=True)):
            key = ("dimensions", position)
            problem = f"{name!r} is not a name; allowed: a letter, then letters, digits and _"
            self._need(name.isidentifier() and name.isascii(), key, problem)
            self._need(names.index(name) == position, key, f"{name} is there twice")
            problem = f"{name} is an axis that does not index this dimension alone; use a new name"
            self._need(name == axis or name not in computation.extents, key, problem)
        return names

    def _digit(
        self, field: str, position: int, text: str, sizes: Mapping[str, int]
    ) -> TileDimension:
        key = (field, position)
        match = _DIGIT.fullmatch(text.replace(" ", ""))
        if match is None:
            allowed = "allowed: a dimension, dimension/divisor, dimension%modulus or both"
            raise self._error(key, f"{text!r} is not a digit of a dimension; {allowed}")
        name, divisor, modulus = match[1], int(match[2] or 1), int(match[3] or 0)
        self._need(divisor > 0 and (modulus > 0 or not match[3]), key, f"{text!r} divides by zero")
        problem = f"{name} is no dimension of the operand{close_match(name, sizes)}"
        self._need(name in sizes, key, f"{problem}; allowed: {joined(sizes) or 'none'}")
        # Equal digits are equal values: z/4%16 of extent 64 is z/4.
        if modulus and divisor * modulus >= sizes[name]:
            modulus = 0
        return TileDimension(name, divisor, modulus or None)

    def _check_digits(self, name: str, size: int, digits: Sequence[TileDimension]) -> None:
        """Check that the digits of a dimension name every value of it once."""
        parts = [digit for digit in digits if digit.axis == name]
        # A dimension of size 1 has no digits to tell apart.
        problem = f"lacks dimension {name}: `rows` and `lanes` hold each dimension once"
        self._need(bool(parts) or size == 1, ("rows",), problem)
        covered = 1
        for part in sorted(parts, key=lambda part: part.divisor):
            problem = f"holds dimension {name} more than once, again in {part}"
            self._need(part.divisor >= covered, ("rows",), problem)
            expected = name if covered == 1 else f"{name}/{covered}"
            problem = f"{part} leaves a gap in {name}; the next digit begins with {expected}"
            self._need(part.divisor == covered, ("rows",), problem)
            covered *= part.modulus or max(1, -(-size // covered))
            # Nothing is outside of a digit without a modulus.
            if part.modulus is None:
                covered = max(covered, size + 1)
        problem = f"the digits of {name} cover {covered} of its {size} values; add {name}/{covered}"
        self._need(covered >= size or not parts, ("rows",), problem)

    def _strides(self, keys: Sequence[str], default: StrideSource) -> dict[str, int | str]:
        """Return the stride of each key, with defaults; the innermost one is 1 by default."""
        declared = self.table.stride
        for key in declared:
            problem = f"is no digit of `rows`{close_match(key, keys)}"
            if default is StrideSource.ANY:
                problem = f"is no dimension of the operand{close_match(key, keys)}"
            problem += f"; allowed: {joined(keys) or 'none'}"
            self._need(key in keys, ("stride", key), problem)
        defaults = {key: 1 if key == keys[-1] else default for key in keys}
        values = {key: declared.get(key, defaults[key]) for key in keys}
        return {key: self._stride(key, value) for key, value in values.items()}

    def _stride(self, name: str, value: int | str) -> int | str:
        key = ("stride", name)
        if isinstance(value, int):
            problem = f"{value} is not allowed; allowed: 0..{_MAX_STRIDE}"
            self._need(0 <= value <= _MAX_STRIDE, key, problem)
            return value
        if value in tuple(StrideSource):
            return StrideSource(value)
        registers = [m.name for m in self.memories.values() if m.kind is MemoryKind.REGISTER]
        problem = f"{value!r} is no register{close_match(value, registers)}; allowed: an integer, "
        problem += joined([*StrideSource, *registers])
        self._need(value in registers, key, problem)
        dtype = self.memories[value].dtype
        self._need(is_integer(dtype), key, f"{value} holds {dtype}; allowed: an integer register")
        return value

    def _check_lanes(
        self, place: OperandPlace, sizes: Mapping[str, int], memory: IsaMemory
    ) -> None:
        width = math.prod(digit.size(sizes[digit.axis]) for digit in place.lanes)
        needed = storage_bytes(width, place.dtype)
        problem = f"{width} lanes of {place.dtype} are {needed} bytes"
        problem += f"; a row of {memory.name} has {memory.row_bytes}"
        self._need(needed <= memory.row_bytes, ("lanes",), problem)

    def _check_rows(self, place: OperandPlace, sizes: Mapping[str, int], memory: IsaMemory) -> None:
        """Check that the operand fits its memory at its largest sizes."""
        counts = {str(digit): digit.size(sizes[digit.axis]) for digit in place.rows}
        fixed = fixed_strides(place, counts)
        reached = 1 + sum((counts[key] - 1) * stride for key, stride in fixed.items())
        # Strides that are arguments are at least those of a dense operand.
        reached *= math.prod(count for key, count in counts.items() if key not in fixed)
        problem = f"takes {reached:,} rows, {memory.name} has {memory.rows:,}"
        self._need(reached <= memory.rows, ("rows",), problem)

    def _check_overlaps(
        self,
        place: OperandPlace,
        computation: Computation,
        operand: str,
        axes: Mapping[str, InstructionAxis],
    ) -> None:
        """Check that no two elements lie at one place, at any sizes."""
        accesses = computation.access_maps[operand]
        for extents in _relevant_extents(place, computation, operand, axes):
            sizes = {
                name: 1 + max(access.index[d].bounds(extents)[1] for access in accesses)
                for d, name in enumerate(place.dimensions)
            }
            shared = first_overlap(place, sizes)
            if shared is None:
                continue
            at = ", ".join(f"{name} {size}" for name, size in sizes.items())
            first, second = (f"{operand}{list(element)}" for element in shared)
            problem = f"{first} and {second} lie at one place (sizes {at})"
            raise self._error(("stride",), f"{problem}; make the stride larger, or dense")


def fixed_strides(place: OperandPlace, counts: Mapping[str, int]) -> dict[str, int]:
    """Return the strides in rows that are no arguments, by digit, for these numbers of values."""
    strides: dict[str, int] = {}
    inside = 1
    for key in reversed(place.stride_keys):
        stride = place.strides[key]
        if stride is StrideSource.DENSE:
            strides[key] = inside
        elif isinstance(stride, int):
            strides[key] = stride
        inside *= counts[key]
    return strides


def first_overlap(
    place: OperandPlace, sizes: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return two elements of an operand at one place, or None if there are none.

    Strides that are arguments are taken to keep their digits apart.

    Parameters
    ----------
    place : OperandPlace
        Place in a memory of rows, or in main memory.
    sizes : mapping of str to int
        Size of each dimension.
    """
    if not place.dimensions:
        return None
    rows = place.rows if place.rows or place.lanes else tuple(map(TileDimension, place.dimensions))
    counts = {str(digit): digit.size(sizes[digit.axis]) for digit in rows}
    fixed = fixed_strides(place, counts)
    shape = tuple(sizes[name] for name in place.dimensions)
    index = dict(zip(place.dimensions, np.indices(shape).reshape(len(shape), -1), strict=True))

    def values(digit: TileDimension) -> np.ndarray:
        value = index[digit.axis] // digit.divisor
        return value if digit.modulus is None else value % digit.modulus

    # One number for each place: the row, then each digit that is kept apart.
    number = sum(
        (values(d) * fixed[str(d)] for d in rows if str(d) in fixed),
        np.zeros(math.prod(shape), np.int64),
    )
    for digit in (*place.lanes, *(d for d in rows if str(d) not in fixed)):
        number = number * digit.size(sizes[digit.axis]) + values(digit)
    order = np.argsort(number, kind="stable")
    equal = np.flatnonzero(np.diff(number[order]) == 0)
    if not equal.size:
        return None
    first, second = (np.unravel_index(order[equal[0] + n], shape) for n in (0, 1))
    return tuple(map(int, first)), tuple(map(int, second))


def _relevant_extents(
    place: OperandPlace,
    computation: Computation,
    operand: str,
    axes: Mapping[str, InstructionAxis],
) -> Iterator[dict[str, int]]:
    """Yield the sizes of axes at which elements of an operand may come to lie at one place."""
    strides = [place.strides[key] for key in place.stride_keys]
    inner = strides[-1:]
    numbers = [stride for stride in strides[:-1] if isinstance(stride, int)]
    # Dense strides and those that are arguments are digits of one number.
    if not numbers and (not inner or not isinstance(inner[0], int) or inner[0] == 1):
        return
    largest = {name: axis.maximum for name, axis in axes.items()}
    yield largest
    # Without dense strides, elements lie at the same places at all sizes.
    if StrideSource.DENSE not in strides:
        return
    used = [n for n in computation.access_maps[operand][0].iterators if not axes[n].is_fixed]
    choices: list[tuple[int, ...]] = [axes[name].allowed for name in used]
    elements = computation.operand(operand).elements
    if math.prod(map(len, choices)) * elements > _MAX_ELEMENTS:
        choices = [(axes[name].minimum, axes[name].maximum) for name in used]
    for extents in itertools.product(*choices):
        yield {**largest, **dict(zip(used, extents, strict=True))}
