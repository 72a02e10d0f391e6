"""Boxes of a product by the axes of which a processing element holds one point, cut into blocks.

Where the instruction takes its tile only as it is (stride rule ``unit``), or the scratchpad has
rows, a box is cut into *blocks*: one tile of the instruction after the other, each dense, or in
rows. Each block is a transfer of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cpembed.errors import LoweringError
from cpembed.targets.scratchpad.boxes import Axis, Box, BoxDimension, BoxProduct, Operand


def with_last(operand: Operand, axis: str) -> str:
    """Return an operand's access with the dimension that an axis walks as its last one."""
    index = sorted(operand.index, key=lambda each: axis in each.iterators)
    return f"{operand.name}[{', '.join(map(str, index))}]"


_CHANNELS_LAST = {3: "NWC", 4: "NHWC", 5: "NDHWC"}
"""Name of a convolution's layout with the channels last, by its number of dimensions."""


def _one_place(room: int) -> BoxDimension:
    return BoxDimension(
        walks={}, starts={}, constant=0, step=1, size=1, stride_bytes=0, within=1, room=room
    )


@dataclass(frozen=True)
class Form:
    """The boxes of a product, whatever the sizes of its tiles are.

    They follow from the axes of which a PE holds one point of a tile (``single``), and more of all
    others; ``ahead`` if constant operands are in main memory box after box.
    """

    product: BoxProduct
    single: frozenset[str]
    ahead: bool

    @cached_property
    def boxes(self) -> tuple[Box, Box, Box]:
        a, b, c = map(self._box, self.product.operands)
        return a, b, c

    @cached_property
    def chains(self) -> Mapping[str, tuple[Axis, ...]]:
        """Axes that one execution covers by instruction axis, innermost first.

        Raises :class:`LoweringError` if the points of a granule have no constant stride.
        """
        return {lane: self._chain(lane) for lane in self.product.lanes if lane}

    @cached_property
    def repeated(self) -> tuple[Axis, ...]:
        """Axes of which a PE holds several points that an execution does not cover."""
        covered = set[str]()
        # An instruction of fixed size is executed for one granule after the other.
        if self.product.machine.sized:
            covered = {axis.name for chain in self.chains.values() for axis in chain}
        axes = self.product.axes.values()
        return tuple(a for a in axes if a.name not in covered and a.name not in self.single)

    def _boxes_of(self, lane: str) -> tuple[Box, Box]:
        """Return the boxes that an instruction axis moves in."""
        a, b, c = self.boxes
        x, y, _ = self.product.lanes
        return (a, c) if lane == x else (b, c) if lane == y else (a, b)

    def _box(self, operand: Operand) -> Box:
        tiled = operand.constant and self.ahead
        dimensions = self._tiled_dimensions if tiled else self._dimensions
        box = Box(operand, tuple(dimensions(operand)), tiled)
        machine, role = self.product.machine, operand.role
        if machine.sized:
            return box
        lanes = list(machine.distances[role])
        cut = lanes[-1:] if machine.row_elements[role] else []
        in_blocks = self._in_blocks(box, cut)
        # From the inside: what is inside of an axis decides its distance, and is cut before it.
        for number, lane in reversed(list(enumerate(lanes))):
            chain, distance = self.chains.get(lane, ()), machine.distances[role][lane]
            if chain and distance not in (None, self._fixed_distance(in_blocks, chain[0].name)):
                cut = lanes[number:]
                in_blocks = self._in_blocks(box, cut)
        return in_blocks

    def _fixed_distance(self, box: Box, axis: str) -> int | None:
        """Return the distance of neighbours along an axis; None if it differs between tiles."""
        axes, walk = self.product.axes, box.walk(axis)
        if len(walk) != 1:
            return None
        ((number, _),) = walk
        inside = [d for d in box.dimensions[number + 1 :] if not d.within]
        # Of an axis of one granule, every tile holds just that.
        if any(axes[name].extent > axes[name].granule for d in inside for name in d.walks):
            return None
        return box.stride(axis, box.places({name: a.granule for name, a in axes.items()}))

    def _in_blocks(self, box: Box, lanes: Sequence[str]) -> Box:
        """Cut a box into blocks of a tile along some instruction axes."""
        if not lanes:
            return box
        operand, machine = box.operand, self.product.machine
        room = machine.row_elements[operand.role]
        outer, inner = list[BoxDimension](), list[BoxDimension]()
        cut = set[int]()
        for lane in lanes:
            chain = self.chains.get(lane, ())
            is_last = lane == lanes[-1]
            if not chain:
                # Of an axis that nothing feeds there is one point, which still takes a row.
                if is_last and room:
                    inner.append(_one_place(room))
                continue
            axis = chain[0]
            number = box.own_dimension(axis.name)
            if number is None:
                raise LoweringError(self._overlap(box, lane, axis.name))
            cut.add(number)
            dimension = box.dimensions[number]
            outer.append(replace(dimension, blocked=axis.granule))
            inner.append(replace(dimension, within=axis.granule, room=room if is_last else 0))
        natural = [d for number, d in enumerate(box.dimensions) if number not in cut]
        blocks = Box(operand, (*outer, *natural, *inner), box.tiled)
        last = inner[-1] if inner else None
        if room and last and not box.tiled and last.walks:
            self._require_rows(operand, lanes[-1], last)
        return blocks

    def _overlap(self, box: Box, lane: str, axis: str) -> str:
        walking = [d for d in box.dimensions if axis in d.walks]
        sliding = sorted({name for d in walking for name in d.walks} - {axis})
        return (
            f"{lane} walks {axis} of {box.operand.name} in a window of {' '.join(sliding) or axis}"
            f", so that its tiles overlap and have no one distance: declare stride = {{ {lane} = "
            f'"any" }} of {box.operand.role} if the instruction takes one'
        )

    def _require_rows(self, operand: Operand, lane: str, row: BoxDimension) -> None:
        """Raise :class:`LoweringError` if a row of the scratchpad is none in main memory."""
        (axis,) = row.walks
        if row.stride_bytes == operand.element_bytes or self.product.axes[axis].extent == 1:
            return
        index = sorted(operand.index, key=lambda each: axis in each.iterators)
        remedy = with_last(operand, axis)
        layout = _CHANNELS_LAST.get(len(index))
        is_image = any(len(each.iterators) > 1 for each in index) or operand.is_output
        is_channel = index[-1].single_iterator == axis
        if layout and is_image and is_channel and self.product.workload.name.startswith("conv"):
            remedy += f", which is layout={layout},"
        raise LoweringError(
            f"{lane} is not contiguous in {operand.name}, and a transfer fills rows of "
            f"{self.product.machine.row_elements[operand.role]} contiguous elements: {remedy} "
            "would do"
        )

    def _dimensions(self, operand: Operand) -> Iterator[BoxDimension]:
        dimensions = zip(operand.index, operand.shape, operand.strides, strict=True)
        for number, (index, size, stride) in enumerate(dimensions):
            factors = {name: index.coefficient(name) for name in index.iterators}
            if any(factor < 0 for factor in factors.values()):
                raise LoweringError(
                    f"{operand.name} is walked backwards by {index}: store it in the other order, "
                    "with a positive factor"
                )
            # Places that no held point reaches, as those between the steps of a stride, are no part
            # of the box.
            walks = {name: f for name, f in factors.items() if name not in self.single}
            step = math.gcd(*walks.values()) if walks else 1
            yield BoxDimension(
                walks={name: factor // step for name, factor in walks.items()},
                starts=factors,
                constant=index.constant,
                step=step,
                size=size,
                stride_bytes=step * stride,
                number=number,
            )

    def _tiled_dimensions(self, operand: Operand) -> Iterator[BoxDimension]:
        """Yield a dimension for each axis of an operand that is packed ahead."""
        program = self.product.program
        # First the axes that only tiles walk, then in the order of the instruction's tile, the
        # digits of one instruction axis from the outermost: so an execution walks the box
        # contiguously.
        order = program.instruction.memory[operand.role].axes
        ranks = {
            digit.axis: -number
            for digits in program.embedding.digits.values()
            for number, digit in enumerate(digits)
        }

        def rank(name: str) -> tuple[int, bool, int]:
            lane = self.product.lane_of(name) or ""
            return order.index(lane) if lane in order else -1, name in ranks, ranks.get(name, 0)

        for name in sorted(operand.axes, key=rank):
            yield BoxDimension(
                walks={} if name in self.single else {name: 1},
                starts={name: 1},
                constant=0,
                step=1,
                size=self.product.axes[name].extent,
                stride_bytes=0,
            )

    def _chain(self, lane: str) -> tuple[Axis, ...]:
        digits = self.product.program.embedding.digits[lane]
        embedded = [self.product.axes[digit.axis] for digit in digits]
        if not self.product.machine.sized:
            return self._granule_axes(lane, embedded)
        required = [axis for axis in embedded if axis.grain > 1]
        chains = [c for c in self._chains_of(lane) if all(axis in c for axis in required)]
        if not chains:
            names = " and ".join(axis.name for axis in required)
            raise LoweringError(
                f"{lane}: {names} are not walked by one index of the scratchpad: make them "
                "neighbouring dimensions, or use --constraints boxes"
            )
        return max(chains, key=lambda chain: (math.prod(a.granule for a in chain), len(chain)))

    def _chains_of(self, lane: str) -> Iterator[tuple[Axis, ...]]:
        """Yield sequences of axes that one index walks in both boxes, innermost first."""
        yield ()
        axes = [a for a in self.product.axes_of_lane(lane) if a.name not in self.single]
        boxes = self._boxes_of(lane)
        for first in axes:
            slides = any(box.own_dimension(first.name) is None for box in boxes)
            if lane == self.product.lanes[2] and slides:
                # Rows and columns of a factor would share elements.
                continue
            chain = [first]
            while outer := next(
                (
                    axis
                    for axis in axes
                    if axis not in chain
                    and all(box.follows(axis.name, chain[-1].name) for box in boxes)
                ),
                None,
            ):
                chain.append(outer)
            yield tuple(chain)

    def _granule_axes(self, lane: str, embedded: Sequence[Axis]) -> tuple[Axis, ...]:
        # Axes of one point cost no index of the instruction.
        axes = tuple(axis for axis in embedded if axis.granule > 1)
        if len(axes) > 1:
            raise LoweringError(
                f"{lane}: an instruction of fixed size walks one axis, not "
                f"{' and '.join(axis.name for axis in axes)}: use --constraints boxes"
            )
        return axes
