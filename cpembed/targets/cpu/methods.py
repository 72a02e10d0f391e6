"""Methods of convolutions on CPUs: into which blocks tiles are cut, and what transforms cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cpembed.codegen.compiled import (
    PACKING,
    Array,
    Compiled,
    CompiledKernel,
    Processor,
    in_turn,
)
from cpembed.codegen.methods import (
    TileBlocks,
    image_transform,
    output_transform,
    padded_image,
    result_layout,
    weights_layout,
    weights_transform,
    window_matrix,
)
from cpembed.codegen.packing import Direction, packing_source
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.recorded import RecordedCalls, Recorder
from cpembed.codegen.traffic import USED_SHARE
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.dtypes import size_bytes
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Timing, time_work
from cpembed.targets.cpu.calibration import Calibration, model_constants
from cpembed.targets.cpu.estimate import transform_us
from cpembed.targets.methods import MethodPlan, Methods
from cpembed.transform.methods.convolution import M, Rewritten, U, V
from cpembed.transform.methods.cook_toom import Matrix, straight_line
from cpembed.transform.methods.im2col import Im2col
from cpembed.transform.methods.winograd import Winograd
from cpembed.transform.program import PackedOperand

Call = Callable[[], Any]
Part = tuple[Sequence[Call], Call, Sequence[Call]]
"""Of a block: the image's part, the product, the output's part."""


@dataclass(frozen=True)
class Calls:
    """One call of a method, in three parts that alternate: before the first block, for each block
    the image's part, the product and the output's part, and after the last one."""

    before: Sequence[Call]
    blocks: Sequence[Part]
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
    blocks: TileBlocks | None = None

    @property
    def backend(self) -> str:
        return self.product.backend

    def run(self, inputs: Mapping[str, Array]) -> Array:
        calls, found = self._bound_on(inputs)
        calls.whole()()
        return self._processor.to_array(found, self.method.convolution.output.shape)

    def bound_whole(self, inputs: Mapping[str, Array]) -> Call:
        """One call, to be timed: from the image's own layout to the output's own; weights are
        transformed ahead."""
        return self._bound_on(inputs)[0].whole()

    def recorded(self) -> RecordedCalls:
        """The calls of a kernel that was made for a recorder: those that transform the weights,
        once, and those of one run."""
        recorder, conv = self._processor, self.method.convolution
        assert isinstance(recorder, Recorder)
        image, filters = (
            recorder.empty(operand.elements, operand.dtype)
            for operand in (conv.image, conv.weights)
        )
        recorder.calls.clear()
        packed = self._prepared(filters)
        prepare = recorder.taken()
        _, found = self._bound(image, packed)
        given = {conv.image.name: image, conv.weights.name: filters, conv.output.name: found}
        return RecordedCalls(prepare, recorder.taken(), given, {})

    def time(self, inputs: Mapping[str, Array], rounds: int = 15, round_ms: float = 10.0) -> Timing:
        """``latency_us`` is the product alone, packing and unpacking are the other parts."""
        calls, _ = self._bound_on(inputs)
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

    def _bound_on(self, inputs: Mapping[str, Array]) -> tuple[Calls, Any]:
        """The calls on buffers of their own, weights being transformed now, in numpy; and the
        buffer that then holds the output."""
        conv = self.method.convolution
        image, weights = (np.ascontiguousarray(inputs[o.name]) for o in (conv.image, conv.weights))
        if isinstance(self.method, Winograd):
            # In more digits, and rounded once.
            weights = weights.astype(np.float64)
        packed = self.product.pack(U, self.method.weights_part(weights))
        return self._bound(self._processor.from_array(image), packed)

    def _prepared(self, weights: Any) -> Any:
        """U as the product's kernel takes it, made of the weights by generated code."""
        given, method = self._converted(self._weights, weights), self.method
        if isinstance(method, Winograd):
            operand = method.product.operand(U)
            made = self._processor.empty(operand.elements, operand.dtype)
            self._processor.compile_plan(weights_transform(method))(given, made)
            given = made
        if self.product.is_packed_in_place(U):
            return given
        packed = self.product.empty(U)
        self.product.pack_into(U, given, packed)
        return packed

    def _converted(self, operand: PackedOperand, original: Any) -> Any:
        """The buffer of a conversion, which is made now; the original where nothing moves."""
        if operand.is_identity:
            return original
        converted = self._processor.empty(operand.elements, operand.dtype)
        self._mover(operand, Direction.PACK)(original, converted)
        return converted

    def _bound(self, image: Any, weights: Any) -> tuple[Calls, Any]:
        """The calls, bound in the order in which they are executed, and the buffer that then holds
        the output; ``weights`` are as the product's kernel takes them."""
        conv, processor = self.method.convolution, self._processor
        before: list[Call] = []
        if not self._image.is_identity:
            converted = processor.empty(self._image.elements, self._image.dtype)
            before = [self._mover(self._image, Direction.PACK).bound(image, converted)]
            image = converted
        output = processor.empty(self._result.elements, self._result.dtype)
        parts = list(self._parts(image, weights, output))
        if self._result.is_identity:
            return Calls(before, parts, []), output
        found = processor.empty(conv.output.elements, conv.output.dtype)
        after = self._mover(self._result, Direction.UNPACK).bound(output, found)
        return Calls(before, parts, [after]), found

    def _parts(self, image: Any, weights: Any, output: Any) -> Iterator[Part]:
        """The calls of each block."""
        if self.blocks is None:
            yield [], self.product.bound({U: weights, V: image}, output), []
            return
        v, m = self.product.empty(V), self.product.empty(M)
        first, last = self._transforms
        for number in range(self.blocks.count):
            at = self._processor.from_array(np.array([number], np.int32))
            here = first.bound(image, at, v)
            product = self.product.bound({U: weights, V: v}, m)
            yield [here], product, [last.bound(m, at, output)]

    @property
    def _processor(self) -> Processor:
        return self.product.processor

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
        return result_layout(self.method.convolution, channels_last=last)

    @cached_property
    def _weights(self) -> PackedOperand:
        """The weights as their transform or the product reads them."""
        assert isinstance(self.method, (Winograd, Im2col))
        return weights_layout(self.method)

    @cached_property
    def _transforms(self) -> tuple[Compiled, Compiled]:
        assert isinstance(self.method, Winograd)
        assert self.blocks is not None
        plans = (
            image_transform(self.method, self.blocks),
            output_transform(self.method, self.blocks),
        )
        first, last = map(self._processor.compile_plan, plans)
        return first, last

    def _mover(self, operand: PackedOperand, direction: Direction) -> Compiled:
        threads = self._processor.thread_count()
        source = packing_source(operand, threads, direction)
        return self._processor.compile_plan(KernelPlan(PACKING, source))


_SHARES = (0.25, 0.5, 1.0)
"""Of the second-level cache, which V and M of a block may take. Which is best depends on how often
the product then reads U: the estimate of the product says."""
_FLOATS = ("float32", "float64")


@dataclass(frozen=True)
class CpuMethodPlan(MethodPlan):
    """With the blocks of tiles, where the method has tiles."""

    blocks: TileBlocks | None = None


@dataclass(frozen=True)
class CpuMethods(Methods):
    """On ``target``, by the figures of its machine."""

    spec: HardwareSpec
    machine: Calibration
    processor: Processor

    def plans(self, method: Rewritten) -> tuple[MethodPlan, ...]:
        if isinstance(method, Im2col):
            moved = self._moved(window_matrix(method))
            moved += self._moved(
                result_layout(method.convolution, channels_last=method.orders.last)
            )
            return (CpuMethodPlan(method, method.product, 1, moved),)
        assert isinstance(method, Winograd)
        dtype = method.product.operand(V).dtype
        if dtype not in _FLOATS:
            own = self.spec.instruction.computation.inputs[0].dtype
            raise LoweringError(
                f"{self.spec.name}: {method.name} of these integers is exact in {dtype}, "
                f"which an instruction of {own} does not multiply: use another method"
            )
        found: list[MethodPlan] = []
        for blocks in self._blocks(method):
            product = method.blocked(blocks.size)
            parts = self._parts_us(method, blocks)
            found.append(CpuMethodPlan(method, product, blocks.count, parts, blocks))
        return tuple(found)

    def build(self, plan: MethodPlan, product: Any) -> MethodKernel:
        assert isinstance(plan, CpuMethodPlan)
        for name in (V, M):
            if not product.is_packed_in_place(name):
                raise LoweringError(
                    f"{self.spec.name}: the kernel of {plan.product.name} does not take "
                    f"{name} where it lies: use another method"
                )
        return MethodKernel(plan.method, product, plan.blocks)

    def recorded(self, plan: MethodPlan, product: CompiledKernel) -> RecordedCalls:
        return self.build(plan, product).recorded()

    def _blocks(self, method: Winograd) -> list[TileBlocks]:
        """By their size; the last one holds all tiles."""
        tiles, near = method.tiles, self.machine.cache_bytes[1]
        extents, dtype = method.product.extents, method.product.operand(V).dtype
        groups = extents.get("g", 1)
        each = method.places * groups * (extents["c"] + extents["k"]) * size_bytes(dtype)
        sizes = {tiles}
        for share in _SHARES:
            count = -(-tiles // max(1, int(near * share) // each))
            sizes.add(-(-tiles // count))
        threads, vector = self._threads, self._vector_bytes
        return [TileBlocks(tiles, size, threads, vector) for size in sorted(sizes)]

    # ------------------------------------------------------------------------------ what it costs

    def _parts_us(self, method: Winograd, blocks: TileBlocks) -> float:
        conv = method.convolution
        image, found = padded_image(method), result_layout(conv, channels_last=True)
        size, line = size_bytes(image.dtype), model_constants().line_bytes
        extents = method.product.extents
        places = method.places * extents.get("g", 1)
        forms = [tiling.form for tiling in method.tilings]
        block = places * blocks.size * (extents["c"] + extents["k"]) * size
        level, count = self._level(block), places * method.tiles
        total = 0.0
        for depth, matrices, other, stores in (
            (extents["c"], [form.input for form in forms], image, True),
            (extents["k"], [form.output for form in forms], found, False),
        ):
            lines = -(-count * depth * size // line)
            far = -(-other.elements * size // line)
            own = self._level(other.elements * size)
            moved = (lines, level, far, own) if stores else (far, own, lines, level)
            operations = lines * (1 + _operations(matrices) / method.places)
            total += operations * self.machine.vector_line_ns[0] + self._lines_ns(*moved)
        launches = 2 * blocks.count * self.machine.call_us
        return self._moved(image) + self._moved(found) + launches + total / self._threads / 1e3

    def _lines_ns(self, stored: int, to: int, loaded: int, source: int) -> float:
        machine = self.machine
        # Beyond the second level stores stream, wherever to.
        store = machine.store_line_ns[min(to, len(machine.store_line_ns) - 1)]
        return stored * store + loaded * machine.vector_line_ns[source]

    def _level(self, size: int) -> int:
        """Where so many bytes stay: 0 the nearest cache, 3 memory."""
        held = (bytes_ and size <= bytes_ * USED_SHARE for bytes_ in self.machine.cache_bytes)
        return next((level for level, fits in enumerate(held) if fits), 3)

    def _moved(self, operand: PackedOperand) -> float:
        if operand.is_identity:
            return 0.0
        return transform_us(operand, self.machine, self._threads)

    @property
    def _threads(self) -> int:
        return self.processor.thread_count()

    @property
    def _vector_bytes(self) -> int:
        """Of the instruction's registers, by its largest tile."""
        instruction = self.spec.instruction
        tiles = (
            math.prod(memory.tile_shape(instruction.computation.extents))
            * size_bytes(instruction.computation.operand(name).dtype)
            for name, memory in instruction.memory.items()
        )
        return max(16, min(64, max(tiles)))


def _operations(matrices: Sequence[Matrix]) -> int:
    """Vector operations of a tile's nested transform."""
    rows, columns = [len(m) for m in matrices], [len(m[0]) for m in matrices]
    total = 0
    for axis, matrix in enumerate(matrices):
        lines = math.prod(rows[:axis]) * math.prod(columns[axis + 1 :])
        total += straight_line(matrix).operations * lines
    return total
