"""Attention of integers on a target: its axes, size of blocks, kernels of products, estimate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cpembed.codegen.approximations import exp_below
from cpembed.errors import LoweringError
from cpembed.graph.kinds import Product, QuantizedAttention, TensorType
from cpembed.graph.passes.quantized_attention import expressions_of_sums
from cpembed.ir.computation import Computation
from cpembed.ir.index import row_major_strides
from cpembed.network.attention import AttentionKernel, products_us, tile_products, tile_workloads
from cpembed.network.attention_costs import launched_us, packings_us, tile_us
from cpembed.network.operator_costs import estimate_operator_us
from cpembed.network.operators.attention_tiles import Tiles
from cpembed.network.operators.emission import Operands
from cpembed.network.operators.nest import PlacedTensor, Tensors
from cpembed.network.operators.operation_counts import expression_operations, text_operations
from cpembed.network.operators.quantized_attention import (
    Broadcast,
    Broadcasts,
    quantized_attention_plan,
)
from cpembed.network.operators.work import vector_steps
from cpembed.network.product_kernels import (
    KernelRequest,
    ProductKernels,
)
from cpembed.targets.capabilities import AnyTarget, host_times
from cpembed.targets.registry import open_target

_ROWS = (64, 48, 32, 24, 16, 8)
"""Rows of blocks, the first of which fits is taken."""

_CACHE_SHARE = 0.75
"""Fraction of the second-level cache that sums, scores and weights of a block may take."""

_SCORE_BYTES = 9
"""Bytes of a score: its sum, its float, its weight."""

_QUANTIZED = 24.0
"""Operations per vector of two quotients and the rounding to an integer."""


@dataclass(frozen=True)
class _Axes:
    """Iterators of both products by letter of :class:`Tiles`, and the strides of their operands."""

    letters: tuple[dict[str, str], dict[str, str]]
    strides: dict[str, dict[str, int]]

    @classmethod
    def matched(cls, scores: Computation, values: Computation) -> _Axes:
        """Match the axes of products of query and key, and of weights and value.

        Raises :class:`LoweringError` for products of another form.
        """
        (q, k, s), (p, v, o) = map(_iterators, (scores, values))
        *heads, row, key = s
        *same, row_of_weights, place = p
        depth = {*q} - {*s}
        extents = [scores.extents[name] for name in s]
        matches = (
            len(heads) <= 2
            and len(depth) == 1
            and {*q} == {*heads, row, *depth}
            and {*k} == {*heads, key, *depth}
            and {*v} - {*same, place} == {*o} - {*same, row_of_weights}
            and len({*v} - {*same, place}) == 1
            and {*same, place} <= {*v}
            and {*same, row_of_weights} <= {*o}
            and extents == [values.extents[name] for name in p]
        )
        if not matches:
            raise LoweringError("products of integers that are no attention of two axes of heads")
        names = "bh"[2 - len(heads) :]
        first = dict(zip(heads, names, strict=True)) | {row: "s", key: "n", depth.pop(): "k"}
        (column,) = {*v} - {*same, place}
        second = dict(zip(same, names, strict=True)) | {row_of_weights: "s", place: "n"}
        second[column] = "d"
        strides = {
            "Q": _strides(scores, 0, first, {"s": "s", "k": "d"}),
            "K": _strides(scores, 1, first, {"n": "s", "k": "d"}),
            "V": _strides(values, 1, second, {"n": "s", "d": "d"}),
            "O": _strides(values, 2, second, {"s": "s", "d": "d"}),
        }
        return cls((first, second), strides)


def _iterators(workload: Computation) -> list[list[str]]:
    """Return the iterators that index each operand, in the order of its axes."""
    names: list[list[str]] = []
    for operand in workload.operands:
        single = [index.single_iterator for index in workload.access(operand.name).index]
        if len(single) < 2 or None in single:
            raise LoweringError(f"{operand.name} is not indexed by the axes of an attention")
        names.append([name for name in single if name is not None])
    return names


def _strides(
    workload: Computation, position: int, letters: dict[str, str], named: dict[str, str]
) -> dict[str, int]:
    """Return the distance along each axis of an operand; ``named`` are letters that change."""
    operand = workload.operands[position]
    names = _iterators(workload)[position]
    steps = dict.fromkeys("bhsd", 0)
    for name, step in zip(names, row_major_strides(operand.shape), strict=True):
        steps[named.get(letters[name], letters[name])] = step
    return steps


@dataclass(frozen=True, eq=False)
class QuantizedAttentionChoice:
    """Choice of the kernel of an attention of integers on a target.

    Attributes
    ----------
    types : tuple of TensorType
        Types of the inputs.
    products : ProductKernels
        Kernels of products on the target.
    """

    kind: QuantizedAttention
    types: tuple[TensorType, ...]
    products: ProductKernels
    threads: int

    @cached_property
    def _axes(self) -> _Axes:
        return _Axes.matched(self.kind.scores.computation, self.kind.values.computation)

    @cached_property
    def tiles(self) -> Tiles:
        """Blocks of rows with all keys.

        Raises :class:`LoweringError` for products of another form.
        """
        scores, values = self.kind.scores.computation, self.kind.values.computation
        first, second = self._axes.letters
        sizes = dict.fromkeys("bh", 1) | {first[name]: n for name, n in scores.extents.items()}
        sizes |= {second[name]: n for name, n in values.extents.items()}
        extents = {**sizes, "g": 1}
        keys, depth = extents["n"], extents["d"]
        cache = host_times(open_target(self.products.units.primary)).cache_bytes[1]
        budget = int((cache or 256 << 10) * _CACHE_SHARE)
        rows = extents["s"]
        fitting = [m for m in _ROWS if m * (_SCORE_BYTES * keys + 4 * depth) <= budget]
        most = fitting[0] if fitting else _ROWS[-1]
        blocks = -(-rows // most)
        # Threads have equal numbers of blocks where rows suffice.
        heads = extents["b"] * extents["h"]
        while heads * blocks % self.threads and rows // (blocks + 1) >= _ROWS[-1]:
            blocks += 1
        return Tiles(extents, self._axes.strides, "s", -(-rows // blocks), keys)

    @cached_property
    def workloads(self) -> tuple[Computation, Computation]:
        """Products of a block: scores of rows and keys, sums of values."""
        factors = [
            operand.dtype
            for product in (self.kind.scores, self.kind.values)
            for operand in product.computation.inputs
        ]
        return tile_workloads(self.tiles, factors, "int32")

    @cached_property
    def requests(self) -> tuple[KernelRequest, ...]:
        """Searches for the kernels of a block's products."""
        return tuple(KernelRequest(workload, None, False) for workload in self.workloads)

    @cached_property
    def broadcasts(self) -> Broadcasts:
        """Letters of the axes of scores and of the result.

        Raises :class:`LoweringError` where axes of a tensor are joined.
        """
        first, second = self._axes.letters
        pairs = ((self.kind.scores, first), (self.kind.values, second))
        scores, result = (Broadcast(_letters(product, letters)) for product, letters in pairs)
        return Broadcasts(scores, result)

    def kernel(self, target: AnyTarget, inputs: Tensors, outputs: Tensors) -> AttentionKernel:
        """Return the kernel on row-major tensors.

        Parameters
        ----------
        target : Target
            Target whose calibration estimates copies.
        inputs, outputs : sequence of PlacedTensor

        Raises
        ------
        LoweringError
            If a product of a block has no kernel.
        """
        products, recorded = tile_products(self.products, self.requests, self.kind.label)
        operands = Operands(inputs, outputs, self.threads)
        planned = quantized_attention_plan(
            self.kind, operands, self.tiles, recorded, self.broadcasts
        )
        times = host_times(target)
        softmax_us = self._softmax_operations() * times.operation_ns / 1e3
        busy = self.tiles.tasks * (sum(tile_us(each, times) for each in products) + softmax_us)
        packed_us = packings_us(recorded, inputs, target, self.threads)
        cost = packed_us + launched_us(self.tiles, self.threads, times, busy)
        return AttentionKernel(planned, self.tiles, products, cost)

    def _softmax_operations(self) -> float:
        """Return the operations on vectors between the products of a block, and after them."""
        kind, tiles = self.kind, self.tiles
        scaling, result = expressions_of_sums(kind)
        scores = 2.0 + expression_operations(scaling.expression) + 2.0 * kind.masks
        scores += 1.5 + text_operations(lambda bind: exp_below(bind, "x")) + 4.0 + _QUANTIZED
        results = 4.0 + expression_operations(result.expression)
        steps = tiles.rows * vector_steps(tiles.keys)
        return scores * steps + results * tiles.rows * vector_steps(tiles.extents["d"])

    def split_us(self, target: AnyTarget, limit: float) -> float:
        """Estimate the time of its operators as operators of their own.

        Parameters
        ----------
        target : Target
            Target whose calibration estimates what lies between the products.
        limit : float
            Time from which on no estimate is needed: where a lower bound reaches it, infinity is
            returned, and no kernels are searched.
        """
        between, workloads = 0.0, list[Computation]()
        for _, kind, types in self.kind.pieces(self.types):
            if isinstance(kind, Product):
                workloads.append(kind.computation)
                continue
            tensors = [PlacedTensor.plain(each) for each in types]
            (result,) = kind.types(types)
            outputs = [PlacedTensor.plain(result)]
            between += estimate_operator_us(target, kind, tensors, outputs, self.threads)
        return between + products_us(self.products, workloads, self.threads, limit - between)


def _letters(product: Product, letters: dict[str, str]) -> tuple[str, ...]:
    """Return the letter of each axis of a product's result; empty for axes of one element."""
    workload = product.computation
    names = _iterators(workload)[2]
    sizes = [size for size in product.shape if size > 1]
    wide = [name for name in names if workload.extents[name] > 1]
    if sizes != [workload.extents[name] for name in wide]:
        raise LoweringError("a result of integers whose axes are joined")
    order = iter(wide)
    return tuple(letters[next(order)] if size > 1 else "" for size in product.shape)
