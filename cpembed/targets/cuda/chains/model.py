"""Estimated time of a chain's kernel, and of its products as kernels of their own.

The units and their cycles are those of :mod:`cpembed.targets.cuda.model`. A chunk of the operand
between the products is a step; the function between them is instructions of the schedulers, and
powers of the special function units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cpembed.ir.dtypes import size_bytes
from cpembed.ir.scalars import operations
from cpembed.targets.cuda.chains.apart import ApartPlan
from cpembed.targets.cuda.chains.copied import copied_tiles
from cpembed.targets.cuda.chains.group_plan import LAUNCH_REGISTERS, GroupPlan
from cpembed.targets.cuda.chains.plan import ChainPlan
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.model import (
    Gpu,
    KernelWork,
    Phase,
    estimate,
    product_cycles,
    round_cycles,
)
from cpembed.targets.cuda.multistage.linear_copies import LinearCopies, tile_copies
from cpembed.targets.cuda.multistage.schedule import WAVEFRONT_BYTES
from cpembed.targets.cuda.multistage.tile_copies import CopiedTile
from cpembed.targets.cuda.multistage.traffic import (
    COPY_INSTRUCTIONS,
    RESULT_INSTRUCTIONS,
    element_work,
    packing_work,
    reduction_work,
)
from cpembed.targets.cuda.warp_specialized.traffic import MATRIX_BYTES
from cpembed.targets.cuda.writer import Writer
from cpembed.workloads.chains import ProductChain, RowSoftmax

POWER_CYCLES = 8
"""Cycles of a scheduler's special function unit for the powers of a warp: 16 results per cycle and
multiprocessor (CUDA C++ Programming Guide, Arithmetic Instructions)."""

# Read off the SASS that nvcc 13 makes for sm_80 of attention of 64 and 128 deep heads.
SCORE_INSTRUCTIONS = 4.6
"""Number of instructions for a score: a maximum, a fused product, a power, a sum, half a
conversion."""
ROW_INSTRUCTIONS = 6
"""Number of instructions for a row of a lane in a chunk: shuffles, maxima, a comparison."""
GROWTH_INSTRUCTIONS = 10
"""Number of instructions for a row of a lane where a larger score takes the place of the largest,
beside the products with its sums."""
CHUNK_INSTRUCTIONS = 20
"""Number of instructions of a warp for a chunk: barriers, branches, places of stages and copies."""
LINEAR_INSTRUCTIONS = 2
"""Number of instructions for a vector that is copied at a constant distance from another."""
HIDDEN_INSTRUCTIONS = 2
"""Number of instructions for a score whose key may be hidden by its position."""
ELEMENT_INSTRUCTIONS = 4
"""Number of instructions for an element of a pointwise function: addend, activation, conversion."""
ARITHMETIC = frozenset({"add", "sub", "mul", "neg", "abs", "max", "min", "fma"})
"""Operations of an expression that need no special function unit."""
SOFTMAX_INSTRUCTIONS = 3 * SCORE_INSTRUCTIONS
"""Number of instructions for a stored score: three passes."""
REDUCTION_INSTRUCTIONS = 8
"""Number of instructions for a part of an element: loads, weight, sums."""
MASK_INSTRUCTIONS = 6
"""Number of further instructions for a score to which a mask is added."""


def work_of(plan: ChainPlan, gpu: Gpu) -> KernelWork:
    """Return the work of a chain's kernels; weights are packed ahead of it."""
    rows, columns, batch = plan.blocks
    splits = plan.schedule.splits
    if isinstance(plan, GroupPlan):
        registers = LAUNCH_REGISTERS[plan.groups] if plan.groups > 1 else plan.registers
        fetch, compute = _panel_fetch(plan, gpu), _group_compute(plan, gpu)
    else:
        registers = plan.registers
        fetch, compute = _fetch(plan, gpu), _compute(plan, gpu)
    return KernelWork(
        "chain",
        rows * columns * batch * splits,
        plan.threads // LANES,
        plan.shared_bytes,
        registers=registers,
        steps=max(1, round(_steps(plan) / splits)),
        stages=plan.schedule.stages,
        fetch=fetch,
        compute=compute,
        result=_ends(plan, gpu),
        dram_bytes=_operand_bytes(plan.chain) + _result_bytes(plan.chain),
        auxiliary=_auxiliary(plan, gpu),
    )


def _steps(plan: ChainPlan) -> float:
    """Return the mean number of chunks of a block of results."""
    function = plan.chain.function
    if not isinstance(function, RowSoftmax) or function.causal is None:
        return float(plan.chunks)
    queries, keys = plan.chain.first.output.shape[-2:]
    # The last query of each block has the most keys.
    blocks = np.arange(-(-queries // _rows(plan)))
    last = np.minimum(queries, _rows(plan) * (blocks + 1))
    limits = np.ceil(np.clip(last + function.causal, 0, keys) / plan.chunk_columns)
    first = np.zeros_like(limits)
    if function.window is not None:
        start = _rows(plan) * blocks + function.causal + 1 - function.window
        first = np.maximum(start, 0) // plan.chunk_columns
    return float(np.maximum(0, limits - first).mean())


def _rows(plan: ChainPlan) -> int:
    return plan.block_rows * plan.first.instruction.m


def _copies(copied: CopiedTile, gpu: Gpu) -> Phase:
    """Return the copies of a factor's tile, without the time until they arrive."""
    tile = copied.tile
    is_linear = isinstance(tile_copies(Writer(), copied), LinearCopies)
    each = LINEAR_INSTRUCTIONS if is_linear else COPY_INSTRUCTIONS
    issue = tile.copies / LANES * each / gpu.unit.schedulers
    bytes_copied = float(tile.copies * tile.width)
    return Phase(0.0, 0.0, bytes_copied / WAVEFRONT_BYTES, issue, bytes_copied)


def _fetch(plan: ChainPlan, gpu: Gpu) -> Phase:
    """Return the copies of a chunk."""
    _, columns, second = copied_tiles(plan)
    phase = _copies(columns, gpu) + _copies(second, gpu)
    issue_of_warp = phase.issue * gpu.unit.schedulers / (plan.threads // LANES)
    cycles = (
        gpu.l2_cycles + issue_of_warp * gpu.unit.integer_cycles + phase.bytes / gpu.l2_bytes_each
    )
    return replace(phase, cycles=cycles)


def _compute(plan: ChainPlan, gpu: Gpu) -> Phase:
    """Return both products of a chunk, with the function between them."""
    schedule, warps = plan.schedule, plan.threads // LANES
    depth, tiles = plan.first.tiles[3], plan.warp_column_tiles
    first = product_cycles(gpu, warps, schedule.rows * tiles, depth)
    second = product_cycles(gpu, warps, schedule.rows * plan.warp_columns, schedule.chunk)
    # ldmatrix: two instruction tiles of columns, or one of rows, in four wavefronts.
    rows = 0 if plan.holds_rows else schedule.rows * depth
    loads = rows + depth * tiles / 2 + schedule.chunk * plan.warp_columns / 2
    wavefronts = 4.0 * warps * loads
    if schedule.via != "registers":
        size = size_bytes(plan.chain.factors)
        written = _rows(plan) * plan.chunk_columns * size / WAVEFRONT_BYTES
        wavefronts += written * (1 + schedule.warps[1])
        loads += schedule.rows * schedule.chunk
    between, powers = _function(plan)
    issue = max(between, powers) * warps / gpu.unit.schedulers
    waits = gpu.unit.shared_store_cycles + 2 * gpu.unit.shared_load_cycles
    cycles = first.cycles + second.cycles + max(between, powers) + waits
    total = first + second
    issue += total.issue + warps * (loads + CHUNK_INSTRUCTIONS) / gpu.unit.schedulers
    return Phase(max(cycles, wavefronts + waits), total.tensor, wavefronts, issue)


def _panel_fetch(plan: GroupPlan, gpu: Gpu) -> Phase:
    """Return the bulk copies of a chunk."""
    content = float(plan.columns_panels.transaction_bytes + plan.second_panels.transaction_bytes)
    cycles = gpu.l2_cycles + content / gpu.l2_bytes_each
    return Phase(cycles, 0.0, content / WAVEFRONT_BYTES, 0.0, content)


def _group_compute(plan: GroupPlan, gpu: Gpu) -> Phase:
    """Return both products of a chunk by all groups, with the function between them."""
    schedule, depth, groups = plan.schedule, plan.first.tiles[3], plan.groups
    first = plan.column_tiles * depth * gpu.product_cycles
    second = schedule.columns * schedule.chunk * gpu.product_cycles
    # Rows of the factors in shared memory of all instructions of a group.
    instruction = plan.first.instruction
    lines = (instruction.m + plan.chunk_columns) * depth
    lines += schedule.columns * plan.second.instruction.n * schedule.chunk
    wavefronts = groups * lines * MATRIX_BYTES / WAVEFRONT_BYTES
    between = max(_function(plan))
    warps = plan.consumers // LANES
    issue = between * warps / gpu.unit.schedulers
    # A group waits for its first product, then computes the function while its second one runs.
    of_group = first + max(between, second) + 2 * gpu.unit.shared_load_cycles
    # Groups meet at the units, as blocks on a multiprocessor do.
    busy = {
        "tensor": first + second,
        "shared": wavefronts / groups,
        "issue": issue / groups,
    }
    cycles = round_cycles(Phase(of_group), busy, groups)
    return Phase(cycles, groups * (first + second), wavefronts, issue)


def _function(plan: ChainPlan) -> tuple[float, float]:
    """Return a warp's instructions for the function of a chunk, and its cycles of powers."""
    sums, function = plan.second.instruction.registers[2], plan.chain.function
    scores = plan.schedule.rows * plan.warp_column_tiles * sums
    if not isinstance(function, RowSoftmax):
        powers = POWER_CYCLES * scores if operations(function.expression) - ARITHMETIC else 0
        return ELEMENT_INSTRUCTIONS * scores, powers
    each = SCORE_INSTRUCTIONS + (MASK_INSTRUCTIONS if function.mask else 0)
    steps = max(1.0, _steps(plan) / plan.schedule.splits)
    if function.causal is not None:
        # Chunks in which the diagonal is, from the first to the last row of a block.
        hidden = min(1.0, (1 + _rows(plan) / plan.chunk_columns) / steps)
        each += HIDDEN_INSTRUCTIONS * hidden
    rows = plan.schedule.rows * 2
    # Of most rows the largest score is, within a factor, that of the first chunk.
    rescaled = plan.schedule.rows * plan.warp_columns * sums + GROWTH_INSTRUCTIONS * rows
    instructions = each * scores + ROW_INSTRUCTIONS * rows + rescaled / steps
    return instructions, POWER_CYCLES * (scores + rows / steps)


def _ends(plan: ChainPlan, gpu: Gpu) -> Phase:
    """Return the copy of a block's rows, and the transfer of its results."""
    if isinstance(plan, GroupPlan):
        loaded = float(plan.rows_panels.transaction_bytes)
        copies, warps = Phase(0.0, 0.0, loaded / WAVEFRONT_BYTES, 0.0, loaded), plan.consumers
    else:
        copies, warps = _copies(copied_tiles(plan)[0], gpu), plan.threads
    warps //= LANES
    product, schedule = plan.second, plan.schedule
    elements = _rows(plan) * schedule.columns * product.instruction.n
    staged = 2.0 * elements * size_bytes(product.sums) / WAVEFRONT_BYTES
    dtype = product.sums if schedule.splits > 1 else product.output_dtype
    stored = elements * size_bytes(dtype)
    vectors = elements / product.output.length / LANES
    issue = vectors * RESULT_INSTRUCTIONS / gpu.unit.schedulers
    cycles = gpu.l2_cycles + staged + vectors / warps * RESULT_INSTRUCTIONS
    cycles += schedule.rows * (gpu.unit.shared_store_cycles + gpu.unit.shared_load_cycles)
    return copies + Phase(cycles, 0.0, staged, issue, stored)


def _operand_bytes(chain: ProductChain) -> float:
    """Return the bytes of the factors; even a causal mask reads every key."""
    operands = (*chain.first.inputs, chain.second.inputs[1])
    return float(sum(o.elements * size_bytes(o.dtype) for o in operands))


def _result_bytes(chain: ProductChain) -> float:
    return float(chain.second.output.elements * size_bytes(chain.output))


def _auxiliary(plan: ChainPlan, gpu: Gpu) -> tuple[KernelWork, ...]:
    """Return the packing of factors that are no weights, and the addition of parts."""
    kernels: list[KernelWork] = []
    for factor in plan.factors:
        workload = factor.product.program.workload.operand(factor.operand.layout.name)
        is_weight = factor.role != "A" and not workload.varies
        if factor.operand.needs_packing and not is_weight:
            kernels.append(packing_work(factor.operand, gpu))
    splits = plan.schedule.splits
    if splits > 1:
        instructions = REDUCTION_INSTRUCTIONS * splits
        kernels.append(reduction_work(plan.second, splits, gpu, instructions))
    return tuple(kernels)


@dataclass(frozen=True, kw_only=True)
class UnfusedTimes:
    """Estimated time of a chain as kernels of their own, in microseconds.

    Attributes
    ----------
    first_us, function_us, second_us : float
        Time of each kernel; a pointwise function is part of the first product's.
    stored_bytes : int
        Bytes of the operands between the kernels that are written and read, which a chain does not.
    """

    first_us: float
    function_us: float
    second_us: float
    stored_bytes: int

    @property
    def by_kernel(self) -> dict[str, float]:
        """Times of the kernels that there are, in their order."""
        times = {"first": self.first_us, "function": self.function_us, "second": self.second_us}
        return {name: us for name, us in times.items() if us}


def estimate_apart(plan: ApartPlan, gpu: Gpu) -> UnfusedTimes:
    """Estimate the kernels of a plan with what is between the products in global memory."""
    chain = plan.chain
    elements, size = chain.first.output.elements, size_bytes(chain.factors)
    first_us, second_us = plan.product_us
    moved, function_us = 2 * elements * size, 0.0
    if isinstance(chain.function, RowSoftmax):
        # Scores are stored as they are summed, and read again for each pass from L2.
        scores = elements * size_bytes(chain.first.output.dtype)
        transferred = scores + elements * size
        kernel = element_work("softmax", elements, transferred, gpu, SOFTMAX_INSTRUCTIONS)
        function_us = estimate(kernel, gpu).us
        moved += 2 * scores
    return UnfusedTimes(
        first_us=first_us, function_us=function_us, second_us=second_us, stored_bytes=moved
    )
