"""Pairs of convolutions in one kernel, so that the tensor between them stays in a cache.

The second convolution reads the first one's result row by row (it is pointwise, or its window is
along the other axes), so that a band of rows is computed by both, one after the other, on a buffer
of the thread. Threads share the bands of all samples. Both products are embedded like any other
product, as products of a band.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.host_cpu import cache_bytes
from cpembed.codegen.recorded import Memory, RecordedCalls, Recorder, recorded_calls
from cpembed.errors import InvariantError, LoweringError
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import Product, TensorType
from cpembed.ir.dtypes import size_bytes
from cpembed.network.bands import Band, axis_of, row_axes
from cpembed.network.convolution_methods import ProductLayouts
from cpembed.network.layout import dimensions_of, is_convolution, padding_of, residual_of
from cpembed.network.operators import PlacedTensor
from cpembed.network.operators.pairs import (
    BETWEEN,
    IMAGE,
    OUTPUT,
    RESIDUAL,
    BandCall,
    Bands,
    PairPlan,
    pair_plan,
)
from cpembed.network.product_kernels import KernelRequest, ProductKernel
from cpembed.network.rounding import is_rounded, is_stepped
from cpembed.targets.capabilities import HostTimes, host_times, lower_part, planned_kernel
from cpembed.targets.registry import open_target

_CACHE_SHARE = 0.5
"""Fraction of the second-level cache that a band, and the rows that it is computed from, take."""

_TASK_POINTS = 8.0
"""Time of a band's beginning, in which weights come from a farther cache, in points of a row."""

_SMALLEST_CACHE = 256 << 10
"""Bytes of a second-level cache whose size is not known."""

_LINE_BYTES = 64


def pairs_of(graph: Graph) -> dict[str, Operator]:
    """Return the first convolution of each pair, by the name of the second one.

    The second one alone reads the result of the first, row by row, and nothing but constants
    besides, and a residual. Results between them are exact, or float32 without steps, so that the
    pair can be verified.
    """
    pairs: dict[str, Operator] = {}
    for second in graph.operators:
        first = graph.producers.get(second.inputs[0]) if is_convolution(second) else None
        if first is None or not _can_follow(graph, first, second):
            continue
        # Of three in a row, the first two are a pair.
        if first.name not in pairs:
            pairs[second.name] = first
    return pairs


def _can_follow(graph: Graph, first: Operator, second: Operator) -> bool:
    between, producer, consumer = second.inputs[0], first.kind, second.kind
    if not (isinstance(producer, Product) and is_convolution(first)):
        return False
    assert isinstance(consumer, Product)
    if graph.readers[between] != (second,) or second.inputs.count(between) > 1:
        return False
    if between in graph.outputs or residual_of(first):
        return False
    if not all(graph.is_constant(operator.inputs[1]) for operator in (first, second)):
        return False
    if producer.dtype != "float32" and is_rounded(producer):
        return False
    if is_stepped(producer):
        return False
    try:
        row_axes(producer)
        return _reads_rows(consumer, graph.types[between])
    except LoweringError:
        return False


def _reads_rows(kind: Product, image: TensorType) -> bool:
    """True if each row of a result is computed from the row of the image of the same number.

    Raises :class:`LoweringError` if the result or the image has no rows.
    """
    operand = kind.computation.inputs[0]
    axes, groups = row_axes(kind), dimensions_of(image.shape, operand.shape)
    index = kind.computation.access(operand.name).index
    for group, axis in zip((groups[0], groups[2]), axes, strict=True):
        if len(group) != 1 or axis_of(kind.computation, index[group[0]]) != axis:
            return False
        if operand.shape[group[0]] != kind.computation.extents[axis]:
            return False
    return not any(padding_of(kind, image))


@dataclass(frozen=True)
class PairLayouts:
    """Layouts of both products' tensors; the output of the first is the image of the second."""

    first: ProductLayouts
    second: ProductLayouts


@dataclass(frozen=True, eq=False)
class PairKernel:
    """Kernel of a pair, with what it was made of.

    Attributes
    ----------
    parts : tuple of two PairPart
        Products of a band.
    cost_us : float
        Estimated microseconds.
    """

    parts: tuple[PairPart, PairPart]
    bands: Bands
    tensors: Mapping[str, Memory]
    threads: int
    cost_us: float

    def planned(self, constants: Sequence[Mapping[str, Array]]) -> PairPlan:
        """Return the kernel and its memory, with the constants of both products packed."""
        first, second = self.parts
        recorded = [
            part.recorded(arrays) for part, arrays in zip(self.parts, constants, strict=True)
        ]
        between = recorded[0].caller_memory[first.band.computation.output.name]
        calls = (
            first.call(recorded[0], {IMAGE: first.image, BETWEEN: first.output}),
            second.call(recorded[1], {BETWEEN: second.image, OUTPUT: second.output}),
        )
        return pair_plan(calls, self.bands, self.tensors, between, self.threads)


@dataclass(frozen=True, eq=False)
class PairPart:
    """Kernel of one product of a pair, on a band.

    Attributes
    ----------
    epilogue : Epilogue or None
        Epilogue with its places.
    schedule : Any
        Schedule on one thread.
    cost_us : float
        Estimated microseconds of a band on one thread, without those of a call.
    """

    band: Band
    kernel: ProductKernel
    epilogue: Epilogue | None
    schedule: Any
    cost_us: float

    @classmethod
    def scheduled(cls, band: Band, kernel: ProductKernel, epilogue: Epilogue | None) -> PairPart:
        """Choose the schedule of a kernel on one thread.

        Parameters
        ----------
        band : Band
        kernel : ProductKernel
        epilogue : Epilogue or None

        Raises
        ------
        LoweringError
            If the target has no kernels that another one calls.
        """
        if kernel.spec is None:
            raise LoweringError("portable code is no part of a kernel")
        target = open_target(kernel.spec)
        lowered = lower_part(target, kernel.candidate.program, epilogue)
        best = target.space(lowered).ranked(1)[0]
        cost = max(0.0, best.cost - host_times(target).call_us)
        return cls(band, kernel, epilogue, best.schedule, cost)

    @property
    def image(self) -> str:
        """Name of the first factor."""
        return self.band.computation.inputs[0].name

    @property
    def output(self) -> str:
        """Name of the result."""
        return self.band.computation.output.name

    def recorded(self, constants: Mapping[str, Array]) -> RecordedCalls:
        """Return the call of a band, with the constants packed."""
        assert self.kernel.spec is not None
        target = open_target(self.kernel.spec)
        lowered = lower_part(target, self.kernel.candidate.program, self.epilogue)
        kernel = planned_kernel(target, lowered, self.schedule, Recorder(threads=1))
        assert kernel is not None
        return recorded_calls(kernel, (), constants)

    def call(self, recorded: RecordedCalls, operands: Mapping[str, str]) -> BandCall:
        """Return the only recorded call, with the names of its tensors.

        Parameters
        ----------
        recorded : RecordedCalls
        operands : mapping from str to str
            Operand of each tensor by the tensor's name; any further one is the residual.
        """
        if len(recorded.run) != 1:
            raise InvariantError(f"{self.band.computation}: a band is packed")
        (call,) = recorded.run
        names = {id(memory): RESIDUAL for memory in recorded.caller_memory.values()}
        names |= {id(recorded.caller_memory[o]): name for name, o in operands.items()}
        buffers = tuple(names.get(id(memory), memory) for memory in call.buffers)
        return BandCall(call.plan, buffers, self.band.steps)


@dataclass(frozen=True, eq=False)
class PairChoice:
    """Choice of the kernel of a pair in some layouts.

    Attributes
    ----------
    kinds : tuple of two Product
    times : HostTimes
        Times by which rows of a band are chosen, and memory beyond the bands is estimated.
    """

    kinds: tuple[Product, Product]
    layouts: PairLayouts
    times: HostTimes
    threads: int

    @cached_property
    def bands(self) -> Bands:
        """Bands with the least time by a model, of those that fit in a part of the cache."""
        first = self.kinds[0]
        layout = self.layouts.first.output
        samples, _, height, *columns = layout.shape
        image = self.layouts.first.image
        row_bytes = math.prod(layout.shape) // (samples * height) * size_bytes(first.dtype)
        read_bytes = image.elements * size_bytes(first.computation.inputs[0].dtype)
        # Rows of the image are read once for all that is computed from them.
        row_bytes += read_bytes // (samples * height)
        points, limit = math.prod(columns), second_level_bytes(self.times) * _CACHE_SHARE
        equal = sorted({-(-height // count) for count in range(1, height + 1)})
        candidates = [Bands(samples, height, rows) for rows in equal]
        fitting = [bands for bands in candidates if bands.rows * row_bytes <= limit]

        def time(bands: Bands) -> float:
            # Threads have equal numbers of bands, rounded up.
            share = -(-bands.tasks // self.threads) * self.threads / bands.tasks
            return share * bands.computed * (1 + _TASK_POINTS / (bands.rows * points))

        return min(fitting or candidates[:1], key=time)

    @cached_property
    def products(self) -> tuple[Band, Band]:
        """Products of a band.

        Raises :class:`LoweringError` if the layouts have none.
        """
        first, second = self.kinds
        rows = self.bands.rows
        return (
            Band.cut_from(first, self.layouts.first, rows),
            Band.cut_from(second, self.layouts.second, rows, reads_band=True),
        )

    @property
    def is_possible(self) -> bool:
        """True if bands are products of their own in these layouts."""
        try:
            return bool(self.products)
        except LoweringError:
            return False

    @property
    def requests(self) -> tuple[KernelRequest, KernelRequest]:
        """Searches for the kernels of a band's products, which pack nothing."""
        first, second = self.products
        image, between = first.computation.inputs[0].name, first.computation.output.name
        read = second.computation.inputs[0].name
        return (
            KernelRequest(first.computation, first.kind.epilogue, False, (image, between)),
            KernelRequest(second.computation, second.kind.epilogue, True, (read,)),
        )

    def kernel(
        self, parts: tuple[PairPart, PairPart], tensors: Mapping[str, PlacedTensor]
    ) -> PairKernel:
        """Return the kernel of two parts.

        Parameters
        ----------
        parts : tuple of two PairPart
            Parts of :attr:`products`, with the kernels of :attr:`requests`.
        tensors : mapping from str to PlacedTensor
            Image, output, and the residual if there is one.
        """
        memory = {
            name: Memory(tensor.layout.elements, tensor.storage_dtype)
            for name, tensor in tensors.items()
        }
        cost = self._cost_us(sum(part.cost_us for part in parts), tensors)
        return PairKernel(parts, self.bands, memory, self.threads, cost)

    def _cost_us(self, band_us: float, tensors: Mapping[str, PlacedTensor]) -> float:
        """Return the time of all bands, each of which takes ``band_us`` on one thread."""
        times, bands = self.times, self.bands
        chunks = min(self.threads, bands.tasks)
        launch = times.launch_us if chunks > 1 else times.call_us
        sizes = {name: tensor.bytes for name, tensor in tensors.items()}
        far_ns = 0.0
        level = times.level(sum(sizes.values()) / chunks)
        if level > 1:
            stored = sizes.pop(OUTPUT)
            far_ns += sum(sizes.values()) * (times.load_line_ns[level] - times.load_line_ns[1])
            far_ns += stored * (times.store_line_ns[2] - times.store_line_ns[1])
        computed = -(-bands.tasks // chunks) * band_us
        return launch + computed + max(0.0, far_ns) / _LINE_BYTES / chunks / 1e3


def second_level_bytes(times: HostTimes) -> int:
    """Return the size of the second-level cache: of the processor, or less by its times."""
    # Times of an uncalibrated machine are published ones, whose cache may be much larger.
    sizes = [size for size in (times.cache_bytes[1], cache_bytes()[1]) if size]
    return min(sizes, default=_SMALLEST_CACHE)


def most_saved_us(kind: Product, layout_bytes: int, times: HostTimes, threads: int) -> float:
    """Return an upper bound of the time that a pair saves: that of moving what is between.

    Parameters
    ----------
    kind : Product
        First product.
    layout_bytes : int
        Bytes of its result and its image together.
    times : HostTimes
    threads : int
    """
    size = math.prod(kind.shape) * size_bytes(kind.dtype)
    level = times.level(layout_bytes / threads)
    moved_ns = times.load_line_ns[level] + times.store_line_ns[min(level, 2)]
    return times.launch_us + size / _LINE_BYTES * moved_ns / threads / 1e3
