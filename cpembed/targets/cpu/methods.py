"""Convolutions by im2col or Winograd on CPUs: conversions, transforms and the product's kernel.

The tiles of Winograd's method are walked in blocks: V and M of a block stay in a near cache between
the transforms and the product, whose kernel reads V and writes M in place. :class:`CpuMethods`
plans the blocks and estimates the transforms; :class:`MethodKernel` executes.
"""

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
from cpembed.codegen.method_calls import MethodTensors, recorded_winograd
from cpembed.codegen.method_layouts import (
    padded_image,
    result_layout,
    weights_layout,
    window_matrix,
)
from cpembed.codegen.methods import (
    TileBlocks,
    image_transform,
    output_transform,
    weights_transform,
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
from cpembed.targets.registry import takes
from cpembed.transform.methods.convolution import Im2col, M, Rewritten, U, V
from cpembed.transform.methods.cook_toom import Matrix, straight_line
from cpembed.transform.methods.winograd import Winograd
from cpembed.transform.program import PackedOperand

Call = Callable[[], Any]
Part = tuple[Sequence[Call], Call, Sequence[Call]]
"""Calls of a block: the image's part, the product, the output's part."""


@dataclass(frozen=True)
class MethodCalls:
    """Calls of one run: before the first block, those of each block, and after the last one."""

    before: Sequence[Call]
    blocks: Sequence[Part]
    after: Sequence[Call]

    def all_in_turn(self) -> Call:
        inner = [call for block in self.blocks for call in (*block[0], block[1], *block[2])]
        return in_turn([*self.before, *inner, *self.after])

    def product(self) -> Call:
        return in_turn([product for _, product, _ in self.blocks])

    def image(self) -> list[Call]:
        return [*self.before, *(call for part, _, _ in self.blocks for call in part)]

    def output(self) -> list[Call]:
        return [*(call for _, _, part in self.blocks for call in part), *self.after]


@dataclass(frozen=True, eq=False)
class MethodKernel:
    """Convolution by a method; :meth:`run` takes arrays in the workload's layouts."""

    method: Rewritten
    product: CompiledKernel
    """Kernel of the product, or of one block of it."""
    blocks: TileBlocks | None = None
    """Blocks of tiles; None for a method without tiles."""

    @property
    def backend(self) -> str:
        return self.product.backend

    def run(self, inputs: Mapping[str, Array]) -> Array:
        calls, output = self._bound_on(inputs)
        calls.all_in_turn()()
        return self._processor.to_array(output, self.method.convolution.output.shape)

    def bound_whole(self, inputs: Mapping[str, Array]) -> Call:
        """Return one call to be timed, from the image's original layout to the output's."""
        return self._bound_on(inputs)[0].all_in_turn()

    def recorded(self) -> RecordedCalls:
        """Return the recorded calls that transform the weights once, and those of a run."""
        recorder, conv = self._processor, self.method.convolution
        assert isinstance(recorder, Recorder)
        image, filters = (
            recorder.empty(operand.elements, operand.dtype)
            for operand in (conv.image, conv.weights)
        )
        recorder.calls.clear()
        packed = self._prepared(filters)
        prepare = recorder.drain()
        _, output = self._bound(image, packed)
        buffers = {conv.image.name: image, conv.weights.name: filters, conv.output.name: output}
        return RecordedCalls(prepare, recorder.drain(), buffers, {})

    def time(self, inputs: Mapping[str, Array], rounds: int = 15, round_ms: float = 10.0) -> Timing:
        """Time the kernel.

        ``latency_us`` is the product alone; packing and unpacking are the other parts.

        Parameters
        ----------
        inputs : mapping of str to ndarray
            Operands in the workload's layouts.
        rounds : int
            Number of rounds.
        round_ms : float
            Milliseconds of a round.
        """
        calls, _ = self._bound_on(inputs)
        calls.all_in_turn()()
        product = time_work(calls.product(), rounds, round_ms)
        image, output = (
            time_work(in_turn(part), rounds, round_ms) if part else None
            for part in (calls.image(), calls.output())
        )
        all_parts = time_work(calls.all_in_turn(), rounds, round_ms)
        parts = [part for part in (product, image, output, all_parts) if part is not None]
        return Timing(
            provenance=Provenance.MEASURED,
            macs=self.product.program.workload.macs * len(calls.blocks),
            latency_us=product,
            packing_us=0.0 if image is None else image.median,
            unpacking_us=0.0 if output is None else output.median,
            packed_ahead=(self.method.convolution.weights.name,),
            noisy=any(part.is_noisy for part in parts),
            whole_us=all_parts,
        )

    def assembly(self) -> str:
        """Return the machine code of the product."""
        return self.product.assembly()

    # ------------------------------------------------------------------------------------ parts

    def _bound_on(self, inputs: Mapping[str, Array]) -> tuple[MethodCalls, Any]:
        """Return the calls on new buffers, and the output's buffer."""
        # Weights are transformed ahead, by NumPy.
        conv = self.method.convolution
        image, weights = (np.ascontiguousarray(inputs[o.name]) for o in (conv.image, conv.weights))
        if isinstance(self.method, Winograd) and not self.method.is_exact:
            # Transformed in double precision, so that weights are rounded only once.
            weights = weights.astype(np.float64)
        packed = self.product.pack(U, self.method.weights_part(weights))
        return self._bound(self._processor.from_array(image), packed)

    def _prepared(self, weights: Any) -> Any:
        """Transform the weights by generated code into the product's layout."""
        source, method = self._converted(self._weights, weights), self.method
        if isinstance(method, Winograd):
            operand = method.product.operand(U)
            transformed = self._processor.empty(operand.elements, operand.dtype)
            self._processor.compile_plan(weights_transform(method))(source, transformed)
            source = transformed
        if self.product.is_packed_in_place(U):
            return source
        packed = self.product.empty(U)
        self.product.pack_into(U, source, packed)
        return packed

    def _converted(self, operand: PackedOperand, original: Any) -> Any:
        """Return the converted buffer, or the original if its layout is the same."""
        if operand.is_identity:
            return original
        converted = self._processor.empty(operand.elements, operand.dtype)
        self._mover(operand, Direction.PACK)(original, converted)
        return converted

    def _bound(self, image: Any, weights: Any) -> tuple[MethodCalls, Any]:
        """Return the calls, bound in the order of execution, and the output's buffer.

        ``weights`` are in the product's layout.
        """
        conv, processor = self.method.convolution, self._processor
        before: list[Call] = []
        if not self._image.is_identity:
            converted = processor.empty(self._image.elements, self._image.dtype)
            before = [self._mover(self._image, Direction.PACK).bound(image, converted)]
            image = converted
        output = processor.empty(self._result.elements, self._result.dtype)
        blocks = list(self._parts(image, weights, output))
        if self._result.is_identity:
            return MethodCalls(before, blocks, []), output
        original = processor.empty(conv.output.elements, conv.output.dtype)
        after = self._mover(self._result, Direction.UNPACK).bound(output, original)
        return MethodCalls(before, blocks, [after]), original

    def _parts(self, image: Any, weights: Any, output: Any) -> Iterator[Part]:
        """Yield the calls of each block."""
        if self.blocks is None:
            yield [], self.product.bound({U: weights, V: image}, output), []
            return
        v, m = self.product.empty(V), self.product.empty(M)
        first, last = self._transforms
        # One pair of compiled transforms serves all blocks; which block it is comes as an array.
        for number in range(self.blocks.count):
            number_array = self._processor.from_array(np.array([number], np.int32))
            image_call = first.bound(image, number_array, v)
            product = self.product.bound({U: weights, V: v}, m)
            yield [image_call], product, [last.bound(m, number_array, output)]

    @property
    def _processor(self) -> Processor:
        return self.product.processor

    @cached_property
    def _image(self) -> PackedOperand:
        """Layout of the image that the first transform or the product reads."""
        if isinstance(self.method, Winograd):
            return padded_image(self.method)
        assert isinstance(self.method, Im2col)
        return window_matrix(self.method)

    @cached_property
    def _result(self) -> PackedOperand:
        """Layout of the output that the last transform or the product writes."""
        last = not isinstance(self.method, Im2col) or self.method.orders.last
        return result_layout(self.method.convolution, channels_last=last)

    @cached_property
    def _weights(self) -> PackedOperand:
        """Layout of the weights that their transform or the product reads."""
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


_CACHE_SHARES = (0.25, 0.5, 1.0)
"""Fractions of the second-level cache that V and M of a block may take. Which is best depends on
how often the product then reads U: the estimate of the product says."""


@dataclass(frozen=True)
class CpuMethodPlan(MethodPlan):
    """Plan with the blocks of tiles of a method that has tiles."""

    blocks: TileBlocks | None = None


@dataclass(frozen=True)
class CpuMethods(Methods):
    """Methods on a machine and a processor."""

    spec: HardwareSpec
    machine: Calibration
    processor: Processor

    def plans(self, method: Rewritten) -> tuple[MethodPlan, ...]:
        if isinstance(method, Im2col):
            copies_us = self.conversion_us(window_matrix(method))
            copies_us += self.conversion_us(
                result_layout(method.convolution, channels_last=method.orders.last)
            )
            return (CpuMethodPlan(method, method.product, 1, copies_us),)
        assert isinstance(method, Winograd)
        if not self._multiplies(method):
            dtype = method.product.operand(V).dtype
            multiplied = self.spec.instruction.computation.inputs[0].dtype
            raise LoweringError(
                f"{self.spec.name}: {method.name} of these integers is exact in {dtype}, "
                f"which an instruction of {multiplied} does not multiply: use another method"
            )
        image, output = padded_image(method), result_layout(method.convolution, channels_last=True)
        copies_us = self.conversion_us(image) + self.conversion_us(output)
        return self._block_plans(method, image.elements, copies_us)

    def in_place_plans(self, method: Winograd, stored: str) -> tuple[MethodPlan, ...]:
        if not self._multiplies(method):
            return ()
        elements = method.convolution.image.elements
        return self._block_plans(method, elements, self._cold_weights_us(method), stored)

    def _multiplies(self, method: Winograd) -> bool:
        """True if the instruction multiplies the transformed elements: integers need wider ones."""
        if not method.is_exact:
            return True
        sums, expected = method.product.operand(M).dtype, self.spec.instruction.computation.output
        factors = [method.product.operand(name).dtype for name in (V, U)]
        return takes(self.spec, factors) and sums == expected.dtype

    def _block_plans(
        self, method: Winograd, image_elements: int, copies_us: float, stored: str | None = None
    ) -> tuple[MethodPlan, ...]:
        conv, plans = method.convolution, list[MethodPlan]()
        image_bytes = image_elements * size_bytes(conv.image.dtype)
        output_bytes = conv.output.elements * size_bytes(stored or conv.output.dtype)
        for blocks in self._blocks(method):
            product = method.blocked(blocks.size)
            parts = copies_us + self._transforms_us(method, blocks, image_bytes, output_bytes)
            plans.append(CpuMethodPlan(method, product, blocks.count, parts, blocks=blocks))
        return tuple(plans)

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

    def recorded_in_place(
        self,
        plan: MethodPlan,
        product: CompiledKernel,
        tensors: MethodTensors,
        constants: Mapping[str, Array],
    ) -> RecordedCalls:
        assert isinstance(plan, CpuMethodPlan)
        assert isinstance(plan.method, Winograd)
        assert plan.blocks is not None
        return recorded_winograd(plan.method, plan.blocks, product, tensors, constants)

    def _blocks(self, method: Winograd) -> list[TileBlocks]:
        """Return the blocks to compare, by size; the last one holds all tiles."""
        tiles, cache_bytes = method.tiles, self.machine.cache_bytes[1]
        tile_bytes = self._tile_bytes(method)
        # Blocks of equal size, as many as a share of the cache asks for, so that the last one is
        # not a small remainder.
        sizes = {tiles}
        for share in _CACHE_SHARES:
            count = -(-tiles // max(1, int(cache_bytes * share) // tile_bytes))
            sizes.add(-(-tiles // count))
        threads, vector = self._threads, self._vector_bytes
        return [TileBlocks(tiles, size, threads, vector) for size in sorted(sizes)]

    def _cold_weights_us(self, method: Winograd) -> float:
        """Return the time of reading those bytes of U that the weights do not have.

        In a network, other layers are computed between two reads of a weight, so that U comes from
        memory: 7x7 pixels of 512 channels take as long by F(2x2, 3x3) as by their own sums.
        """
        conv, machine = method.convolution, self.machine
        added = _bytes(method, U) - conv.weights.elements * size_bytes(conv.weights.dtype)
        lines = max(0, added) / model_constants().line_bytes
        # The product's estimate has U in the third level at the farthest.
        return lines * (machine.vector_line_ns[3] - machine.vector_line_ns[2]) / self._threads / 1e3

    @staticmethod
    def _tile_bytes(method: Winograd) -> int:
        """Return the bytes of V and M of a tile."""
        return sum(_bytes(method, name) for name in (V, M)) // method.tiles

    # ------------------------------------------------------------------------------ what it costs

    def _transforms_us(
        self, method: Winograd, blocks: TileBlocks, image_bytes: int, output_bytes: int
    ) -> float:
        """Return the time of the transforms of an image and an output of all tiles.

        Parameters
        ----------
        method : Winograd
        blocks : TileBlocks
        image_bytes, output_bytes : int
            Sizes of what is read and written.
        """
        line, forms = model_constants().line_bytes, [tiling.form for tiling in method.tilings]
        level, total = self._level(blocks.size * self._tile_bytes(method)), 0.0
        for name, matrices, operand_bytes, stores in (
            (V, [form.input for form in forms], image_bytes, True),
            (M, [form.output for form in forms], output_bytes, False),
        ):
            lines = -(-_bytes(method, name) // line)
            operand_lines = -(-operand_bytes // line)
            operand_level = self._level(operand_bytes)
            traffic = (
                (lines, level, operand_lines, operand_level)
                if stores
                else (operand_lines, operand_level, lines, level)
            )
            operations = lines * (1 + _operations(matrices) / method.places)
            total += operations * self.machine.vector_line_ns[0] + self._lines_ns(*traffic)
        # Each block calls both transforms, on all threads.
        machine = self.machine
        launch_us = machine.launch_us if self._threads > 1 else machine.call_us
        return 2 * blocks.count * launch_us + total / self._threads / 1e3

    def _lines_ns(self, stored: int, to: int, loaded: int, source: int) -> float:
        machine = self.machine
        # Stores beyond the second level stream, so that L3 and memory cost the same.
        store = machine.store_line_ns[min(to, len(machine.store_line_ns) - 1)]
        return stored * store + loaded * machine.vector_line_ns[source]

    def _level(self, size: int) -> int:
        """Return the level at which so many bytes stay: 0 for the nearest cache, 3 for memory."""
        fits_levels = (
            bytes_ and size <= bytes_ * USED_SHARE for bytes_ in self.machine.cache_bytes
        )
        return next((level for level, fits in enumerate(fits_levels) if fits), 3)

    def conversion_us(self, operand: PackedOperand) -> float:
        if operand.is_identity:
            return 0.0
        return transform_us(operand, self.machine, self._threads)

    @property
    def _threads(self) -> int:
        return self.processor.thread_count()

    @property
    def _vector_bytes(self) -> int:
        """Bytes of the instruction's registers, judged by its largest tile."""
        instruction = self.spec.instruction
        tiles = (
            math.prod(memory.tile_shape(instruction.computation.extents))
            * size_bytes(instruction.computation.operand(name).dtype)
            for name, memory in instruction.memory.items()
        )
        return max(16, min(64, max(tiles)))


def _bytes(method: Winograd, name: str) -> int:
    """Return the bytes of an operand of a method's product of all tiles."""
    operand = method.product.operand(name)
    return operand.elements * size_bytes(operand.dtype)


def _operations(matrices: Sequence[Matrix]) -> int:
    """Return the number of vector operations of a tile's nested transform."""
    rows, columns = [len(m) for m in matrices], [len(m[0]) for m in matrices]
    total = 0
    for axis, matrix in enumerate(matrices):
        # Axes before this one have results already, those after it still have inputs.
        lines = math.prod(rows[:axis]) * math.prod(columns[axis + 1 :])
        total += straight_line(matrix).operations * lines
    return total
