"""Pairs of operators in one kernel, so that the tensor between them stays in a cache.

The first is a convolution. The second reads its result row by row (a pointwise convolution, or one
whose window is along the other axes), or pools it. A band of rows is computed by both, one after
the other, on a buffer of the thread. Threads share the bands of all samples. Products are embedded
like any other product, as products of a band.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cpembed.codegen.host_cpu import cache_bytes
from cpembed.codegen.recorded import Memory
from cpembed.errors import LoweringError
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import Kind, Pool, Product, TensorType
from cpembed.ir.dtypes import size_bytes
from cpembed.network.bands import Band, axis_of, row_axes
from cpembed.network.convolution_methods import ProductLayouts
from cpembed.network.layout import Layout, dimensions_of, is_convolution, padding_of, residual_of
from cpembed.network.operator_costs import estimate_nearby_us
from cpembed.network.operators import PlacedTensor
from cpembed.network.operators.pairs import OUTPUT, Bands, PairPlan, RowWindow, pair_plan
from cpembed.network.pair_parts import PairPart, PoolPart
from cpembed.network.product_kernels import KernelRequest
from cpembed.targets.capabilities import AnyTarget, HostTimes

_CACHE_SHARE = 0.5
"""Fraction of the second-level cache that a band, and the rows that it is computed from, take."""

_TASK_POINTS = 8.0
"""Time of a band's beginning, in which weights come from a farther cache, in points of a row."""

_SMALLEST_CACHE = 256 << 10
"""Bytes of a second-level cache whose size is not known."""

_LINE_BYTES = 64


Accepts = Callable[[Operator, Operator], bool]
"""Function that decides whether two operators, the first of which is a convolution, are a pair."""


def followers(graph: Graph) -> Iterator[tuple[Operator, Operator]]:
    """Yield the convolutions and poolings that read a convolution's result, after that one."""
    for second in graph.operators:
        if is_convolution(second) or isinstance(second.kind, Pool):
            first = graph.producers.get(second.inputs[0])
            if first is not None and is_convolution(first):
                yield first, second


def pairs_of(graph: Graph, accepts: Accepts | None = None) -> dict[str, Operator]:
    """Return the first operator of each pair, by the name of the second one.

    Parameters
    ----------
    graph : Graph
    accepts : callable, optional
        Further condition of a pair.
    """
    pairs: dict[str, Operator] = {}
    for first, second in followers(graph):
        # Of three in a row, the first two are a pair.
        if first.name in pairs or obstacle(graph, first, second) is not None:
            continue
        if accepts is None or accepts(first, second):
            pairs[second.name] = first
    return pairs


def obstacle(graph: Graph, first: Operator, second: Operator) -> str | None:
    """Return why no kernel fuses a convolution with its reader; None if one may.

    The kind of the reason comes first, before a colon if there is more to say.

    Parameters
    ----------
    graph : Graph
    first, second : Operator
        The convolution, and the operator that reads its result first.
    """
    between, producer = second.inputs[0], first.kind
    assert isinstance(producer, Product)
    if graph.readers[between] != (second,) or second.inputs.count(between) > 1:
        return f"several readers: {between}"
    if between in graph.outputs:
        return f"an output of the network: {between}"
    if residual_of(first):
        return f"the first adds a residual: {first.name}"
    products = (operator for operator in (first, second) if isinstance(operator.kind, Product))
    if not all(graph.is_constant(operator.inputs[1]) for operator in products):
        return "computed weights"
    try:
        row_axes(producer)
        image = graph.types[between]
        if row_window(second.kind, image) is None:
            return f"windows of several rows: {second.name}"
    except LoweringError as error:
        return f"no rows: {error}"
    return None


def row_window(kind: Kind, image: TensorType) -> RowWindow | None:
    """Return the rows that each row of a result is computed from; None if a band has not all.

    Raises :class:`LoweringError` if the result or the image has no rows.
    """
    rank, height = len(image.shape), image.shape[2]
    if isinstance(kind, Product):
        return RowWindow(height) if _reads_rows(kind, image) else None
    assert isinstance(kind, Pool)
    if len(kind.window) > rank - 2:
        return None
    if len(kind.window) < rank - 2:
        return RowWindow(height)
    reach = (kind.window[0] - 1) * kind.dilation[0] + 1
    return RowWindow(height, kind.strides[0], kind.before[0], reach)


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
    """Layouts of both operators' tensors; the output of the first is the image of the second."""

    first: ProductLayouts
    second: ProductLayouts

    @property
    def between(self) -> Layout:
        """Layout of the first result, if all of it were in memory."""
        return self.first.output


@dataclass(frozen=True, eq=False)
class PairKernel:
    """Kernel of a pair, with its parts.

    Attributes
    ----------
    parts : tuple of two PairPart
        Kernels of a band.
    between : Memory
        Band of the first result.
    cost_us : float
        Estimated microseconds.
    """

    parts: tuple[PairPart, PairPart]
    bands: Bands
    tensors: Mapping[str, Memory]
    between: Memory
    threads: int
    cost_us: float

    def planned(self, constants: Sequence[Mapping[str, Array]]) -> PairPlan:
        """Return the kernel and its memory, with the constants of both operators packed."""
        calls = [part.call(arrays) for part, arrays in zip(self.parts, constants, strict=True)]
        return pair_plan(calls, self.bands, self.tensors, self.between, self.threads)


@dataclass(frozen=True, eq=False)
class PairChoice:
    """Choice of the kernel of a pair in some layouts.

    Attributes
    ----------
    kinds : tuple of Product and of Product or Pool
    times : HostTimes
        Times by which rows of a band are chosen, and memory beyond the bands is estimated.
    """

    kinds: tuple[Product, Product | Pool]
    layouts: PairLayouts
    times: HostTimes
    threads: int

    @cached_property
    def bands(self) -> Bands:
        """Bands with the least time by a model, of those that fit in a part of the cache."""
        first, second = self.kinds
        layout = self.layouts.between
        samples, _, height, *columns = layout.shape
        window = row_window(second, TensorType(layout.shape, first.dtype))
        assert window is not None
        image = self.layouts.first.image
        row_bytes = math.prod(layout.shape) // (samples * height) * size_bytes(first.dtype)
        read_bytes = image.elements * size_bytes(first.computation.inputs[0].dtype)
        # Rows of the image are read once for all that is computed from them.
        row_bytes += read_bytes // (samples * height)
        points, limit = math.prod(columns), second_level_bytes(self.times) * _CACHE_SHARE
        results = self.layouts.second.output.shape[2]
        equal = sorted({-(-results // count) for count in range(1, results + 1)})
        candidates = [Bands(samples, results, rows, window) for rows in equal]
        fitting = [bands for bands in candidates if bands.read * row_bytes <= limit]

        def time(bands: Bands) -> float:
            # Threads have equal numbers of bands, rounded up.
            share = -(-bands.tasks // self.threads) * self.threads / bands.tasks
            return share * bands.computed * (1 + _TASK_POINTS / (bands.read * points))

        return min(fitting or candidates[:1], key=time)

    @cached_property
    def products(self) -> tuple[Band, ...]:
        """Products of a band.

        Raises :class:`LoweringError` if the layouts have none.
        """
        first, second = self.kinds
        bands = [Band.cut_from(first, self.layouts.first, self.bands.read)]
        if isinstance(second, Product):
            rows = self.bands.rows
            bands.append(Band.cut_from(second, self.layouts.second, rows, reads_band=True))
        return tuple(bands)

    @property
    def is_possible(self) -> bool:
        """True if bands are products of their own in these layouts."""
        try:
            return bool(self.products)
        except LoweringError:
            return False

    @property
    def requests(self) -> tuple[KernelRequest, ...]:
        """Searches for the kernels of a band's products, which pack nothing."""
        requests: list[KernelRequest] = []
        for band in self.products:
            workload, epilogue = band.computation, band.kind.epilogue
            in_place = (workload.inputs[0].name,)
            if not band.reads_band:
                # The result is a buffer of its own, without places.
                in_place = (*in_place, workload.output.name)
            requests.append(KernelRequest(workload, epilogue, band.reads_band, in_place))
        return tuple(requests)

    @property
    def between(self) -> PlacedTensor:
        """Band of the first result."""
        shape = list(self.layouts.between.shape)
        shape[0], shape[2] = 1, self.bands.read
        layout = replace(self.layouts.between, shape=tuple(shape))
        return PlacedTensor(TensorType(tuple(shape), self.kinds[0].dtype), layout)

    def pool_part(self, target: AnyTarget, output: PlacedTensor) -> PoolPart:
        """Return the part of a pooling that writes a tensor."""
        kind, bands = self.kinds[1], self.bands
        assert isinstance(kind, Pool)
        image = PlacedTensor(
            TensorType(self.layouts.between.shape, self.kinds[0].dtype), self.layouts.between
        )
        share = bands.rows / (bands.samples * bands.height)
        cost = share * estimate_nearby_us(target, kind, [image], [output])
        return PoolPart(kind, self.between, output, bands, cost)

    def kernel(
        self, parts: tuple[PairPart, PairPart], tensors: Mapping[str, PlacedTensor]
    ) -> PairKernel:
        """Return the kernel of two parts.

        Parameters
        ----------
        parts : tuple of two PairPart
            Parts of :attr:`products`, with the kernels of :attr:`requests`, and of pooling.
        tensors : mapping from str to PlacedTensor
            Image, output, and the residual if there is one.
        """
        memory = {
            name: Memory(tensor.layout.elements, tensor.storage_dtype)
            for name, tensor in tensors.items()
        }
        between = Memory(self.between.layout.elements, self.between.storage_dtype)
        cost = self._cost_us(sum(part.cost_us for part in parts), tensors)
        return PairKernel(parts, self.bands, memory, between, self.threads, cost)

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
    """Return an upper bound of the time that a pair saves: that of moving the tensor between.

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
