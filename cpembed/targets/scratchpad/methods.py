"""Methods of convolutions on scratchpad machines: im2col and Winograd.

All of their parts are kernels of the processing elements, but for the weights, which are
transformed ahead on the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from cpembed.errors import LoweringError
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.index import row_major_strides
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Timing
from cpembed.targets.methods import MethodPlan, Methods
from cpembed.targets.scratchpad.executor import (
    Array,
    Counters,
    ScratchpadProgram,
    compile_text,
    shape_of,
)
from cpembed.targets.scratchpad.machine import ScratchpadMachine
from cpembed.targets.scratchpad.parts import (
    ELEMENT,
    Dimension,
    LinearSum,
    Loop,
    Part,
    Transform,
    blocked,
    part_text,
)
from cpembed.transform.methods.convolution import Im2col, Rewritten, U, V
from cpembed.transform.methods.cook_toom import Matrix
from cpembed.transform.methods.winograd import Tiling, Winograd
from cpembed.transform.program import DerivedProgram


@dataclass(frozen=True)
class ScratchpadMethodPlan(MethodPlan):
    """A plan with the parts before and after the product; None if there is nothing to do."""

    before: Part | None = None
    after: Part | None = None


@dataclass(frozen=True)
class ScratchpadMethods(Methods):
    """Methods on a machine, estimated by its model."""

    machine: ScratchpadMachine

    def plans(self, method: Rewritten) -> tuple[MethodPlan, ...]:
        return (method_plan(method, self.machine),)

    def takes(self, program: DerivedProgram) -> bool:
        # Boxes are fetched from operands in their layout, whatever the program packs.
        return True

    def build(self, plan: MethodPlan, product: Any) -> ScratchpadMethodProgram:
        assert isinstance(plan, ScratchpadMethodPlan)
        return ScratchpadMethodProgram(plan, product, self.machine)


def method_plan(method: Rewritten, machine: ScratchpadMachine) -> ScratchpadMethodPlan:
    """Return the plan of a method.

    Raises :class:`~cpembed.errors.LoweringError` for a method without generated parts.
    """
    before, after = _parts_of(method, machine)
    cycles = sum(part.cycles(machine) for part in (before, after) if part is not None)
    us = cycles / machine.clock_mhz
    return ScratchpadMethodPlan(method, method.product, 1, us, before=before, after=after)


@dataclass
class ScratchpadMethodProgram:
    """A method that can be called."""

    plan: ScratchpadMethodPlan
    product: ScratchpadProgram
    machine: ScratchpadMachine
    counters: dict[str, Counters] = field(default_factory=dict[str, Counters])
    """Counters of the last run by part."""

    @property
    def backend(self) -> str:
        return f"{self.machine.rows} x {self.machine.columns} emulated PEs"

    def run(self, inputs: Mapping[str, Array], seed: int = 0) -> Array:
        method = self.plan.method
        conv = method.convolution
        image, weights = inputs[conv.image.name], inputs[conv.weights.name]
        values = self._run_part(self.plan.before, image, method.product.operand(V).shape, seed)
        # Weights are transformed in float64 and rounded once, because that happens ahead.
        packed = method.weights_part(np.asarray(weights, np.float64)).astype(np.float32)
        result = self.product.run({V: values, U: packed}, seed)
        if self.product.counters is not None:
            self.counters["product"] = self.product.counters
        return self._run_part(self.plan.after, result, conv.output.shape, seed)

    def time(self, inputs: Mapping[str, Array]) -> Timing:
        return Timing(Provenance.EMULATED, self.plan.product.macs, None)

    def bound_whole(self, inputs: Mapping[str, Array]) -> None:
        # An emulation cannot be timed.
        return

    def _run_part(
        self, part: Part | None, source: Array, shape: tuple[int, ...], seed: int
    ) -> Array:
        if part is None:
            return np.asarray(source).reshape(shape)
        dtype = numpy_dtype(ELEMENT)
        source = np.ascontiguousarray(source, dtype).reshape(-1)
        # The executor then reports a part that writes its source.
        source.flags.writeable = False
        result = np.zeros(int(np.prod(shape)), dtype)
        program = compile_text(part_text(part))
        self.counters[part.name] = program.run(shape_of(self.machine), [source, result], seed=seed)
        return result.reshape(shape)


def _parts_of(method: Rewritten, machine: ScratchpadMachine) -> tuple[Part | None, Part | None]:
    """Return the parts before and after the product; None if its array is the workload's.

    Raises :class:`LoweringError` for a method without generated parts.
    """
    conv = method.convolution
    operands = (conv.image, conv.weights, conv.output)
    unsupported = [operand for operand in operands if operand.dtype != ELEMENT]
    # The C text of parts is generated for one element type.
    if unsupported or not isinstance(method, Winograd | Im2col):
        operand = unsupported[0] if unsupported else conv.image
        raise LoweringError(
            f"{method.name} is made for {ELEMENT} on machines with scratchpads, {operand.name} is "
            f"{operand.dtype}: use --method implicit"
        )
    several = [a for a in (conv.groups, conv.samples, conv.channels, conv.filters) if len(a) > 1]
    if several:
        raise LoweringError(
            f"{method.name} is made for one axis each of groups, samples, channels and filters, "
            f"not {' and '.join(several[0])}: use --method implicit"
        )
    if isinstance(method, Im2col):
        windows = blocked(_window_part(method), machine)
        _require_output_order(method)
        return windows, None
    return blocked(_input_part(method), machine), blocked(_output_part(method), machine)


def _require_output_order(method: Im2col) -> None:
    """Raise :class:`LoweringError` unless M of im2col is the output, in its order of dimensions."""
    conv = method.convolution
    # There is no part after the product that could transpose it.
    outputs = [window.output for window in conv.windows]
    pair = (outputs, conv.filters) if method.orders.last else (conv.filters, outputs)
    product = [*conv.groups, *conv.samples, *pair[0], *pair[1]]
    access = conv.workload.access(conv.output.name)
    output = [name for index in access.index for name in index.iterators]
    sizes = conv.workload.extents
    if [n for n in product if sizes[n] > 1] != [n for n in output if sizes[n] > 1]:
        raise LoweringError(
            f"{method.name}: {conv.output.name} is in another order than the product's result: "
            "use another layout, or --method implicit"
        )


class _Arrays:
    """Loops and dimensions that the parts of a method share.

    Loops are called g, n, c and k (groups, samples, channels, filters), t0, t1, … (tiles of each
    window) and p0, p1, … (pieces of each window).
    """

    def __init__(self, method: Rewritten) -> None:
        self.method, self.conv = method, method.convolution
        conv = self.conv
        axes = dict(
            zip("gnck", (conv.groups, conv.samples, conv.channels, conv.filters), strict=True)
        )
        self.sizes = {loop: conv.size(names) for loop, names in axes.items()}
        self.loop_of = {axis: loop for loop, names in axes.items() for axis in names}
        self.last = len(conv.windows) - 1

    def loops(
        self, counts: Sequence[int], lanes: str, pieces: Sequence[int] = ()
    ) -> tuple[Loop, ...]:
        """Return the loops over tiles and over the axis ``lanes``.

        Blocks are of tiles of the last window and of ``lanes``.
        """
        tiles = (
            Loop(f"t{n}", count, count if n == self.last else 1) for n, count in enumerate(counts)
        )
        return (
            Loop("g", self.sizes["g"]),
            Loop("n", self.sizes["n"]),
            *tiles,
            *(Loop(f"p{n}", count) for n, count in enumerate(pieces)),
            Loop(lanes, self.sizes[lanes], self.sizes[lanes]),
        )

    def places(self, operand: str, windows: Sequence[Dimension]) -> tuple[Dimension, ...]:
        """Return the dimensions of the image or the output in their order."""
        access = self.conv.workload.access(operand)
        dimensions: list[Dimension] = []
        for index, size in zip(
            access.index, self.conv.workload.operand(operand).shape, strict=True
        ):
            loops = [self.loop_of[name] for name in index.iterators if name in self.loop_of]
            if loops:
                # A dimension of the image that is no window follows one axis.
                dimensions.append(_loop_dimension(size, loops[0]))
            else:
                window = next(
                    n for n, w in enumerate(self.conv.windows) if w.output in index.iterators
                )
                dimensions.append(windows[window])
        return tuple(dimensions)

    def dimension_of(self, operand: str, loop: str) -> int:
        """Return the dimension that a loop over an axis walks."""
        access = self.conv.workload.access(operand)
        return next(
            n
            for n, index in enumerate(access.index)
            if any(self.loop_of.get(name) == loop for name in index.iterators)
        )

    def window_dimensions(self, operand: str) -> list[int]:
        """Return the dimension of each window."""
        access = self.conv.workload.access(operand)
        return [
            next(n for n, index in enumerate(access.index) if window.output in index.iterators)
            for window in self.conv.windows
        ]

    def matrix(
        self, head: Sequence[Dimension], tiles: Dimension, lanes: Dimension
    ) -> tuple[tuple[Dimension, ...], int, int]:
        """Return the dimensions of V or M, and the numbers of those of tiles and of lanes."""
        # The product's operand has its lanes last or its tiles last, by the order that the method
        # chose.
        outer = [*head, *self.groups()]
        first = len(outer)
        if self.method.orders.last:
            return (*outer, tiles, lanes), first, first + 1
        return (*outer, lanes, tiles), first + 1, first

    def groups(self) -> list[Dimension]:
        return [_loop_dimension(self.sizes["g"], "g")] if self.sizes["g"] > 1 else []

    def tiles(self, counts: Sequence[int], *, samples: bool = True) -> Dimension:
        """Return the dimension of samples and of the tiles of every window, the last fastest."""
        # Row-major over samples and tiles, with samples outermost.
        first = _factors("t", counts, 1)
        size = math.prod(counts)
        if samples:
            first["n"] = size
            size *= self.sizes["n"]
        return Dimension(size, (0, first), (0, {f"t{self.last}": 1}))


def _loop_dimension(size: int, loop: str) -> Dimension:
    """Return a dimension that a loop walks, place by place."""
    return Dimension(size, (0, {loop: 1}), (0, {loop: 1}))


def _factors(letter: str, counts: Sequence[int], each: int) -> dict[str, int]:
    return {f"{letter}{n}": each * stride for n, stride in enumerate(row_major_strides(counts))}


def _input_part(method: Winograd) -> Part:
    """Return the part that computes V from the image: the transformed inputs of every tile."""
    arrays, tilings = _Arrays(method), method.tilings
    counts = [t.count for t in tilings]
    pieces = [t.pieces for t in tilings]
    image = method.convolution.image.name
    target, x, c = arrays.matrix(
        [Dimension(method.places, (0, {}), (method.places, {}))],
        arrays.tiles(counts),
        Dimension(
            arrays.sizes["c"] * math.prod(pieces),
            (0, {"c": 1, **_factors("p", pieces, arrays.sizes["c"])}),
            (0, {"c": 1}),
        ),
    )
    windows = arrays.window_dimensions(image)
    return Part(
        name="input",
        loops=arrays.loops(counts, "c", pieces),
        source=arrays.places(image, _input_windows(tilings, arrays.last)),
        target=target,
        transforms=tuple(Transform(f"input{n}", t.form.input) for n, t in enumerate(tilings)),
        nest=tuple((window, 1) for window in windows),
        into=tuple(
            (0, step) for step in row_major_strides([t.form.multiplications for t in tilings])
        ),
        walks={
            f"t{arrays.last}": ((windows[-1], tilings[-1].form.outputs), (x, 1)),
            "c": ((arrays.dimension_of(image, "c"), 1), (c, 1)),
        },
    )


def _input_windows(tilings: Sequence[Tiling], last: int) -> list[Dimension]:
    dimensions: list[Dimension] = []
    for n, tiling in enumerate(tilings):
        window, form = tiling.window, tiling.form
        step = window.stride * form.outputs
        places: LinearSum = (form.multiplications, {})
        if n == last:
            # Neighbouring tiles of a block share the borders of their inputs.
            places = (form.multiplications - step, {f"t{n}": step})
        first = (window.first, {f"t{n}": step, f"p{n}": form.taps})
        dimensions.append(Dimension(window.size, first, places))
    return dimensions


def _output_part(method: Winograd) -> Part:
    """Return the part that computes the output from M: the transformed results of every tile."""
    arrays, tilings = _Arrays(method), method.tilings
    counts = [t.count for t in tilings]
    output = method.convolution.output.name
    source, x, k = arrays.matrix(
        [Dimension(method.places, (0, {}), (method.places, {}))],
        arrays.tiles(counts),
        _loop_dimension(arrays.sizes["k"], "k"),
    )
    sizes = [t.form.outputs for t in tilings]
    # Tiles of the last window are neighbours in a block; along the others a block has one tile.
    ends = [
        Dimension(
            t.window.outputs,
            (0, {f"t{n}": size}),
            (0, {f"t{n}": size}) if n == arrays.last else (size, {}),
        )
        for n, (t, size) in enumerate(zip(tilings, sizes, strict=True))
    ]
    windows = arrays.window_dimensions(output)
    return Part(
        name="output",
        loops=arrays.loops(counts, "k"),
        source=source,
        target=arrays.places(output, ends),
        transforms=tuple(Transform(f"output{n}", t.form.output) for n, t in enumerate(tilings)),
        nest=tuple(
            (0, step) for step in row_major_strides([t.form.multiplications for t in tilings])
        ),
        into=tuple((window, 1) for window in windows),
        walks={
            f"t{arrays.last}": ((x, 1), (windows[-1], sizes[-1])),
            "k": ((k, 1), (arrays.dimension_of(output, "k"), 1)),
        },
    )


def _window_part(method: Im2col) -> Part:
    """Return the part that computes V from the image: the elements of every window."""
    arrays, windows = _Arrays(method), method.convolution.windows
    counts, taps = [w.outputs for w in windows], [w.taps for w in windows]
    reaches = [w.dilation * (w.taps - 1) + 1 for w in windows]
    # Windows of a block overlap along the last axis, so that each further one adds a stride.
    places = [
        Dimension(
            w.size,
            (w.first, {f"t{n}": w.stride}),
            (reach - w.stride, {f"t{n}": w.stride}) if n == arrays.last else (reach, {}),
        )
        for n, (w, reach) in enumerate(zip(windows, reaches, strict=True))
    ]
    image, samples = method.convolution.image.name, arrays.sizes["n"]
    outer = arrays.groups()
    tap = Dimension(math.prod(taps), (0, {}), (math.prod(taps), {}))
    channels = _loop_dimension(arrays.sizes["c"], "c")
    if method.orders.last:
        target = (*outer, arrays.tiles(counts), tap, channels)
        x, into, c = (len(outer) + n for n in range(3))
    else:
        outer += [_loop_dimension(samples, "n")] if samples > 1 else []
        target = (*outer, channels, tap, arrays.tiles(counts, samples=False))
        c, into, x = (len(outer) + n for n in range(3))
    dimensions = arrays.window_dimensions(image)
    return Part(
        name="windows",
        loops=arrays.loops(counts, "c"),
        source=arrays.places(image, places),
        target=target,
        transforms=tuple(Transform(f"window{n}", _identity(w.taps)) for n, w in enumerate(windows)),
        nest=tuple((d, w.dilation) for d, w in zip(dimensions, windows, strict=True)),
        into=tuple((into, step) for step in row_major_strides(taps)),
        walks={
            f"t{arrays.last}": ((dimensions[-1], windows[-1].stride), (x, 1)),
            "c": ((arrays.dimension_of(image, "c"), 1), (c, 1)),
        },
    )


def _identity(size: int) -> Matrix:
    return tuple(tuple(Fraction(int(i == j)) for j in range(size)) for i in range(size))
