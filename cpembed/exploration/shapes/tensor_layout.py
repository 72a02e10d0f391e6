"""The layout of a tensor in memory, in a form in which layouts of different programs are compared.

>>> layout = TensorLayout.plain((1, 64, 56, 56))
>>> layout.named(image=True)
'NCHW'
>>> blocks = (Part(1, 16, 4), Part(2, 1, 56), Part(3, 1, 56), Part(1, 1, 16))
>>> TensorLayout((1, 64, 56, 56), blocks).named(image=True)
'NCHW16c'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cpembed.ir.index import IndexExpr
from cpembed.transform.program import PackedOperand

_IMAGES = {4: "NCHW", 5: "NCDHW"}
"""Letters of the axes of images, by their rank."""

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Letters of the axes of all other tensors."""


@dataclass(frozen=True)
class Part:
    """A dimension in memory: ``extent`` elements of a tensor's ``axis`` that are ``step`` apart."""

    axis: int
    step: int
    extent: int


@dataclass(frozen=True)
class TensorLayout:
    """The dimensions of a tensor in memory, the outermost first, as ``parts``.

    Axes of one element have no part. A buffer may have room for more of the outermost part of an
    axis, a halo or padding: whoever stores into it takes the distances between its elements from
    the buffer.

    Where elements lie more than once or irregularly, as in an unrolled window, there are no parts:
    ``packed`` is the number of elements in memory, and ``text`` identifies the layout.
    """

    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    packed: int = 0
    text: str = ""

    @staticmethod
    def plain(shape: Sequence[int]) -> TensorLayout:
        """Return the layout of a shape in the order of its axes."""
        parts = tuple(Part(axis, 1, size) for axis, size in enumerate(shape) if size > 1)
        return TensorLayout(tuple(shape), parts)

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)

    @property
    def moved(self) -> int:
        """Number of elements read and written by a copy into this layout."""
        return self.elements + (self.packed or self.elements)

    def carried_to(self, shape: Sequence[int], axes: Sequence[int]) -> TensorLayout | None:
        """Return the same layout of a tensor of another shape, which differs along ``axes`` alone;
        None where another axis differs or a block is not whole."""
        if self.packed or len(shape) != len(self.shape):
            return None
        outermost = {part.axis: part for part in sorted(self.parts, key=lambda part: part.step)}
        parts: list[Part] = []
        for part in self.parts:
            size, outer = shape[part.axis], outermost[part.axis]
            if size == self.shape[part.axis]:
                parts.append(part)
            elif part.axis not in axes or (size > 1 and size % outer.step):
                return None
            elif part is not outer and size > 1:
                parts.append(part)
            elif size > outer.step:
                parts.append(Part(part.axis, part.step, size // part.step))
        covered = {part.axis for part in parts}
        if any(size > 1 and axis not in covered for axis, size in enumerate(shape)):
            return None
        return TensorLayout(tuple(shape), _merged(parts, shape))

    def named(self, *, image: bool) -> str:
        """Return the letters of the axes, small ones with extents inside blocks, as in ``NCHW16c``;
        ``image``: a tensor of four or five axes has the letters of an image."""
        letters = _IMAGES.get(len(self.shape), _LETTERS) if image else _LETTERS
        if self.packed:
            return f"packed, {self.packed:,} elements"
        seen: set[int] = set()
        name = ""
        for part in self.parts:
            letter = letters[part.axis]
            name += f"{part.extent}{letter.lower()}" if part.axis in seen else letter
            seen.add(part.axis)
        return "".join(letters[n] for n in range(len(self.shape)) if n not in seen) + name


def tensor_layout(operand: PackedOperand, shape: Sequence[int], *, stored: bool) -> TensorLayout:
    """Return the layout of a tensor that a program has as an operand.

    Parameters
    ----------
    operand
        The operand; its original shape may be a row-major reshape of the tensor's.
    shape
        The shape of the tensor.
    stored
        True if the program writes it. A layout without regular parts then equals no layout that is
        read, as one that repeats elements cannot be stored.
    """
    parts = _parts(operand)
    if parts is not None:
        parts = _reshaped(parts, operand.original_shape, shape)
    if parts is not None and _are_digits(parts, shape):
        return TensorLayout(tuple(shape), _merged(parts, shape))
    dimensions = ",".join(f"{d.name}:{d.extent}" for d in operand.dimensions)
    text = f"{'stored ' * stored}{dimensions} | {'; '.join(map(str, operand.source))}"
    return TensorLayout(tuple(shape), (), operand.elements, text)


def _parts(operand: PackedOperand) -> list[Part] | None:
    """Return the dimensions of a packed operand, cut where they hold several digits.

    None where one is no digit of a single axis, or a halo moves the blocks of an axis.
    """
    parts: list[Part] = []
    for dimension in operand.dimensions:
        cut = _cut(dimension.name, dimension.extent, operand.source)
        if cut is None:
            return None
        parts += cut
    for axis, (size, index) in enumerate(zip(operand.original_shape, operand.source, strict=True)):
        of_axis = [n for n, part in enumerate(parts) if part.axis == axis]
        if not of_axis:
            continue
        outer = max(of_axis, key=lambda n: parts[n].step)
        step = parts[outer].step
        if index.constant % step:
            return None
        parts[outer] = Part(axis, step, -(-size // step))
    return [part for part in parts if part.extent > 1]


def _cut(name: str, extent: int, source: Sequence[IndexExpr]) -> list[Part] | None:
    """Return a dimension as digits, each of one axis; None where it is no such product."""
    terms = [
        (axis, term) for axis, index in enumerate(source) for term in index.terms
        if name in term.iterators
    ]  # fmt: skip
    if extent == 1:
        return []
    if any(term.inner is not None for _, term in terms):
        return None
    ends = {t.divisor * t.modulus for _, t in terms if t.modulus is not None}
    cuts = sorted(c for c in {1, *(t.divisor for _, t in terms), *ends} if c < extent)
    parts: list[Part] = []
    for cut, following in zip(cuts, [*cuts[1:], extent], strict=True):
        if following % cut and following != extent:
            return None
        feeding = [
            (axis, term.coefficient * (cut // term.divisor))
            for axis, term in terms
            if term.divisor <= cut
            and (term.modulus is None or cut < term.divisor * term.modulus)
            and cut % term.divisor == 0
        ]
        if len(feeding) != 1 or feeding[0][1] <= 0:
            return None
        parts.append(Part(*feeding[0], -(-following // cut)))
    return parts[::-1]


def _reshaped(
    parts: Sequence[Part], before: Sequence[int], shape: Sequence[int]
) -> list[Part] | None:
    """Return parts of a shape as those of a row-major reshape of it.

    None where one ends within an axis of the other shape.
    """
    strides, targets = _strides(before), _strides(shape)
    reshaped: list[Part] = []
    for part in parts:
        step, extent = part.step * strides[part.axis], part.extent
        pieces: list[Part] = []
        while extent > 1:
            axes = [a for a, s in enumerate(shape) if s > 1 and step % targets[a] == 0]
            axes = [a for a in axes if step < targets[a] * shape[a]]
            if not axes:
                return None
            axis = axes[0]
            room = -(-targets[axis] * shape[axis] // step)
            size = min(extent, room)
            if extent > room and (extent % room or targets[axis] * shape[axis] % step):
                return None
            pieces.append(Part(axis, step // targets[axis], size))
            extent, step = -(-extent // size), step * size
        reshaped += pieces[::-1]
    return reshaped


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _are_digits(parts: Sequence[Part], shape: Sequence[int]) -> bool:
    """True if each element has one place: the parts of an axis are the digits of its index."""
    for axis, size in enumerate(shape):
        reach = 1
        for part in sorted((p for p in parts if p.axis == axis), key=lambda p: p.step):
            if part.step != reach:
                return False
            reach *= part.extent
        if reach < size:
            return False
    return True


def _merged(parts: Sequence[Part], shape: Sequence[int]) -> tuple[Part, ...]:
    """Join neighbouring parts that are one digit, with no more elements than the axis has."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if last and last.axis == part.axis and last.step == part.step * part.extent:
            extent = min(last.extent * part.extent, -(-shape[part.axis] // part.step))
            merged[-1] = Part(part.axis, part.step, extent)
        else:
            merged.append(part)
    return tuple(merged)
