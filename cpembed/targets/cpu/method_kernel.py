"""A convolution by a method on a CPU: conversions, transforms and the product's kernel, in turn.

The tiles of Winograd's method are walked in blocks: V and M of a block stay in a near cache between
the transforms and the product, whose kernel reads V and writes M where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cpembed.kernel import runtime
from cpembed.kernel.compiled import PACKING, Array, CompiledKernel, in_turn
from cpembed.kernel.layout_transform import Direction
from cpembed.kernel.method_layouts import padded_image, result, window_matrix
from cpembed.kernel.packing import packing_source
from cpembed.kernel.plan import KernelPlan
from cpembed.kernel.tile_transforms import Blocks, image_transform, output_transform
from cpembed.measure.runner import Timing, time_work
from cpembed.methods.im2col import Im2col
from cpembed.methods.rewritten import M, Rewritten, U, V
from cpembed.methods.winograd import Winograd
from cpembed.provenance import Provenance
from cpembed.transform.program import PackedOperand

Call = Callable[[], Any]


@dataclass(frozen=True)
class Calls:
    """One call of a method, in three parts that alternate: before the first block, for each block
    the image's part, the product and the output's part, and after the last one."""

    before: Sequence[Call]
    blocks: Sequence[tuple[Sequence[Call], Call, Sequence[Call]]]
    after: Sequence[Call]

    def whole(self) -> Call:
        inner = [call for one in self.blocks for call in (*one[0], one[1], *one[2])]
        return in_turn([*self.before, *inner, *self.after])

    def product(self) -> Call:
        return in_turn([product for _, product, _ in self.blocks])

    def image(self) -> list[Call]:
        return [*self.before, *(call for part, _, _ in self.blocks for call in part)]

    def output(self) -> list[Call]:
        return [*(call for _, _, part in self.blocks for call in part), *self.after]


@dataclass(frozen=True, eq=False)
class MethodKernel:
    """A convolution by ``method``; ``product`` is the kernel of the product, of one block of
    ``blocks`` where there are such. :meth:`run` is on arrays in the workload's layouts."""

    method: Rewritten
    product: CompiledKernel
    blocks: Blocks | None = None

    @property
    def backend(self) -> str:
        return self.product.backend

    def run(self, inputs: Mapping[str, Array]) -> Array:
        output = self._empty(self._result.elements)
        calls, found = self._bound(inputs, output)
        calls.whole()()
        return runtime.to_array(found, self.method.convolution.output.shape)

    def bound_whole(self, inputs: Mapping[str, Array]) -> Call:
        """One call, to be timed: from the image's own layout to the output's own; weights are
        transformed ahead."""
        return self._bound(inputs, self._empty(self._result.elements))[0].whole()

    def time(self, inputs: Mapping[str, Array], rounds: int = 15, round_ms: float = 10.0) -> Timing:
        """``latency_us`` is the product alone, packing and unpacking are the other parts."""
        calls, _ = self._bound(inputs, self._empty(self._result.elements))
        calls.whole()()
        product = time_work(calls.product(), rounds, round_ms)
        image, output = (
            time_work(in_turn(part), rounds, round_ms) if part else None
            for part in (calls.image(), calls.output())
        )
        whole = time_work(calls.whole(), rounds, round_ms)
        parts = [part for part in (product, image, output, whole) if part is not None]
        return Timing(
            Provenance.MEASURED,
            self.product.program.workload.macs * len(calls.blocks),
            product,
            0.0 if image is None else image.median,
            0.0 if output is None else output.median,
            (self.method.convolution.weights.name,),
            any(part.is_noisy for part in parts),
            whole,
        )

    def assembly(self) -> str:
        """Machine code of the product."""
        return self.product.assembly()

    # ------------------------------------------------------------------------------------ parts

    def _bound(self, inputs: Mapping[str, Array], output: Any) -> tuple[Calls, Any]:
        """The calls on buffers of their own, and the buffer that then holds the output; ``output``
        is the result as the product leaves it."""
        conv = self.method.convolution
        image = runtime.from_array(np.ascontiguousarray(inputs[conv.image.name]))
        before: list[Call] = []
        given = self._image
        if not given.is_identity:
            converted = self._empty(given.elements)
            before = [_mover(given, Direction.PACK).bound(image, converted)]
            image = converted
        found, after = output, list[Call]()
        if not self._result.is_identity:
            found = self._empty(conv.output.elements)
            after = [_mover(self._result, Direction.UNPACK).bound(output, found)]
        packed = {U: self.product.pack(U, self._weights(inputs[conv.weights.name]))}
        if self.blocks is None:
            packed[V] = image
            return Calls(before, [([], self.product.bound(packed, output), [])], after), found
        packed[V], result = self.product.empty(V), self.product.empty(M)
        product = self.product.bound(packed, result)
        first, last = self._transforms
        parts: list[tuple[Sequence[Call], Call, Sequence[Call]]] = []
        for number in range(self.blocks.count):
            at = runtime.from_array(np.array([number], np.int32))
            here, there = first.bound(image, at, packed[V]), last.bound(result, at, output)
            parts.append(([here], product, [there]))
        return Calls(before, parts, after), found

    def _weights(self, weights: Array) -> Array:
        """U: floats transformed in float64 and rounded once."""
        transforms = isinstance(self.method, Winograd) and not self.method.is_exact
        return self.method.weights_part(weights.astype(np.float64) if transforms else weights)

    @cached_property
    def _image(self) -> PackedOperand:
        """The image as the first transform or the product reads it."""
        if isinstance(self.method, Winograd):
            return padded_image(self.method)
        assert isinstance(self.method, Im2col)
        return window_matrix(self.method)

    @cached_property
    def _result(self) -> PackedOperand:
        """The output as the last transform or the product leaves it."""
        last = not isinstance(self.method, Im2col) or self.method.orders.last
        return result(self.method.convolution, channels_last=last)

    @cached_property
    def _transforms(self) -> tuple[runtime.Function, runtime.Function]:
        assert isinstance(self.method, Winograd)
        assert self.blocks is not None
        plans = (
            image_transform(self.method, self.blocks),
            output_transform(self.method, self.blocks),
        )
        first, last = map(runtime.compile_plan, plans)
        return first, last

    def _empty(self, elements: int) -> Any:
        return runtime.empty(elements, self.method.convolution.output.dtype)


def _mover(operand: PackedOperand, direction: Direction) -> runtime.Function:
    threads = runtime.thread_count()
    return runtime.compile_plan(KernelPlan(PACKING, packing_source(operand, threads, direction)))
