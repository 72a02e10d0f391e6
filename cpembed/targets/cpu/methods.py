"""Methods of convolutions on CPUs: into which blocks tiles are cut, and what transforms cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.methods import TileBlocks, padded_image, result_layout, window_matrix
from cpembed.codegen.recorded import RecordedCalls
from cpembed.codegen.traffic import USED_SHARE
from cpembed.errors import LoweringError
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cpu.calibration import Calibration
from cpembed.targets.cpu.figures import figures
from cpembed.targets.cpu.layout_cost import transform_us
from cpembed.targets.cpu.method_kernel import MethodKernel
from cpembed.targets.methods import MethodPlan, Methods
from cpembed.transform.methods.convolution import M, Rewritten, V
from cpembed.transform.methods.cook_toom import Matrix, straight_line
from cpembed.transform.methods.im2col import Im2col
from cpembed.transform.methods.winograd import Winograd
from cpembed.transform.program import PackedOperand

if TYPE_CHECKING:
    from cpembed.targets.cpu.target import CpuTarget

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

    target: CpuTarget

    def plans(self, method: Rewritten) -> tuple[MethodPlan, ...]:
        if isinstance(method, Im2col):
            last = method.orders.last
            moved = self._moved(window_matrix(method))
            moved += self._moved(result_layout(method.convolution, channels_last=last))
            return (CpuMethodPlan(method, method.product, 1, moved),)
        assert isinstance(method, Winograd)
        dtype = method.product.operand(V).dtype
        if dtype not in _FLOATS:
            own = self.target.spec.instruction.computation.inputs[0].dtype
            raise LoweringError(
                f"{self.target.spec.name}: {method.name} of these integers is exact in {dtype}, "
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
                    f"{self.target.spec.name}: the kernel of {plan.product.name} does not take "
                    f"{name} where it lies: use another method"
                )
        return MethodKernel(plan.method, product, plan.blocks)

    def recorded(self, plan: MethodPlan, product: CompiledKernel) -> RecordedCalls:
        return self.build(plan, product).recorded()

    def _blocks(self, method: Winograd) -> list[TileBlocks]:
        """By their size; the last one holds all tiles."""
        tiles, near = method.tiles, self._machine.cache_bytes[1]
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
        size, line = size_bytes(image.dtype), figures().line_bytes
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
            total += operations * self._machine.vector_line_ns[0] + self._lines_ns(*moved)
        launches = 2 * blocks.count * self._machine.call_us
        return self._moved(image) + self._moved(found) + launches + total / self._threads / 1e3

    def _lines_ns(self, stored: int, to: int, loaded: int, source: int) -> float:
        machine = self._machine
        # Beyond the second level stores stream, wherever to.
        store = machine.store_line_ns[min(to, len(machine.store_line_ns) - 1)]
        return stored * store + loaded * machine.vector_line_ns[source]

    def _level(self, size: int) -> int:
        """Where so many bytes stay: 0 the nearest cache, 3 memory."""
        held = (bytes_ and size <= bytes_ * USED_SHARE for bytes_ in self._machine.cache_bytes)
        return next((level for level, fits in enumerate(held) if fits), 3)

    def _moved(self, operand: PackedOperand) -> float:
        if operand.is_identity:
            return 0.0
        return transform_us(operand, self._machine, self._threads)

    @property
    def _machine(self) -> Calibration:
        return self.target.machine

    @property
    def _threads(self) -> int:
        return self.target.processor.thread_count()

    @property
    def _vector_bytes(self) -> int:
        """Of the instruction's registers, by its largest tile."""
        instruction = self.target.spec.instruction
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
