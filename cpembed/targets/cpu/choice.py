"""Which embedding runs on a CPU: the one that an analytical model says is done first.

Overheads rank embeddings without knowing a machine. The model does, so it chooses among the best by
overheads: the time of the fastest schedule, and that of moving data into the layouts and out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from cpembed.codegen.nest import Nest
from cpembed.codegen.packing import packed_before
from cpembed.codegen.per_thread_packing import PerThreadPacking
from cpembed.codegen.plan import Knobs
from cpembed.codegen.program_nest import first_factor, in_order
from cpembed.codegen.runtime import thread_count
from cpembed.cost.ranking import RankedCandidate
from cpembed.embedding.constraint_set import Weights
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.base import CONSIDERED
from cpembed.targets.choice import Estimated
from cpembed.targets.cpu.calibration import Calibration
from cpembed.targets.cpu.estimate import Estimate
from cpembed.targets.cpu.figures import figures
from cpembed.targets.cpu.layout_cost import cache_affine, per_thread_packing_us, transform_us
from cpembed.targets.cpu.register_blocks import Schedules
from cpembed.transform.program import DerivedProgram, PackedOperand

AMONG = 64
"""The best embeddings by their overheads, of which :func:`contenders` takes some."""

_OF_A_FAMILY = 4

PRODUCTS = "products_us"
"""Part of an estimate: what the products take."""

EQUAL = 1.02
"""Estimates that differ by less say nothing of which is faster."""

Objective = Literal["total", "kernel"]
"""What is to be short: the contraction with the packing and unpacking around it (weights are packed
ahead), or the contraction alone."""


def contenders(ranked: tuple[RankedCandidate, ...]) -> tuple[RankedCandidate, ...]:
    """What the model chooses among, of the best :data:`AMONG`: the best :data:`CONSIDERED`, and
    behind them the best few of each family that walks one axis with each instruction axis. Tiles
    cut out of several axes may crowd those out by their overheads, yet one axis can be read as it
    lies in memory."""
    seen = Counter(map(_family, ranked[:CONSIDERED]))
    found = list(ranked[:CONSIDERED])
    for item in ranked[CONSIDERED:]:
        family = _family(item)
        if seen[family] < _OF_A_FAMILY and all(len(axes) <= 1 for _, axes in family):
            found.append(item)
            seen[family] += 1
    return tuple(found)


def _family(ranked: RankedCandidate) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(ranked.candidate.embedding.family.items())


def machine_weights(fastest: Estimated, machine: Calibration) -> Weights:
    """Weights under which a score is the time that the overheads take: what an element costs to
    move, in units of what a multiply-accumulate of this kernel costs. Elements that are there twice
    are those of windows, whose neighbours go elsewhere."""
    program = fastest.ranked.candidate.program
    calls = fastest.ranked.overheads.calls * program.instruction.macs
    per_mac = fastest.scored.parts[PRODUCTS] * 1e3 / calls
    element = size_bytes(program.operands[0].dtype) / figures().line_bytes
    # Both are shared by the threads.
    moved_ns = machine.copy_ns_per_line * element * figures().scattered / thread_count()
    return Weights(1.0, moved_ns / per_mac if per_mac else 1.0)


def whole_call(program: DerivedProgram, space: Schedules, knobs: Knobs) -> tuple[Estimate, float]:
    """The contraction on what it packs itself or reads as it came, and the microseconds of moving,
    by the model; raises as :meth:`Schedules.applied`."""
    inside = space.packing(program, knobs)
    kernel = space.estimate(knobs, 0 if inside is None else inside.bytes)
    nest = space.on_original(knobs) or space.nest
    shared = space.applied(knobs), in_order(program), space.machine, space.threads
    return kernel, moves_us(program, space.machine, nest, inside, cache_affine(*shared))


def moves_us(
    program: DerivedProgram,
    machine: Calibration,
    nest: Nest,
    inside: PerThreadPacking | None,
    near: Collection[str] = (),
) -> float:
    """Microseconds of packing what is not packed ahead and of unpacking, by the model; ``nest``
    stores the results, and may read the first factor as it came; ``inside`` is what it packs
    itself; ``near``: see :func:`~cpembed.targets.cpu.layout_cost.cache_affine`.

    Layouts that are the same memory cost nothing.
    """
    threads = thread_count()
    total = 0.0
    for operand in moved(program):
        if nest.unpadded and operand is first_factor(program):
            continue
        if inside is not None and operand.name == inside.operand.name:
            total += per_thread_packing_us(inside, machine)
        elif operand.name == program.workload.output.name:
            # In the type that is stored of the sums.
            stored = replace(operand, dtype=nest.operands[2].dtype)
            total += transform_us(stored, machine, threads, near=operand.name in near)
        else:
            total += transform_us(operand, machine, threads, near=operand.name in near)
    return total


def moved(program: DerivedProgram) -> list[PackedOperand]:
    """Operands that are packed or unpacked whenever the kernel runs."""
    ahead = packed_before(program.workload)
    return [o for o in program.operands if o.name not in ahead and not o.is_identity]
