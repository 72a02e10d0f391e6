"""Dot product of a group of packed weights, as the search embeds it in this processor.

A group of one row of activations is a product ``C[n] += A[k] * B[n, k]`` of bytes, signed by
unsigned. Targets of this processor are searched for an embedding with rows of weights as lanes and
columns as neighbours, which the proof of derived programs covers as that of any product. Its packed
operand has the registers that a kernel unpacks from a word of each lane.
"""

from __future__ import annotations

from dataclasses import replace

from cpembed.codegen.host_cpu import cache_by_processor
from cpembed.driver.options import KernelOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Request, Selection
from cpembed.errors import CpembedError
from cpembed.graph.kinds.grouped import TILE
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import available_targets, load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.targets.capabilities import ColumnDot, column_dot
from cpembed.targets.registry import missing_for, native_target, open_target
from cpembed.workloads.naming import parse_workload

ACTIVATIONS, CODES = "int8", "uint7"
"""Types of the factors: activations, and codes of at most four bits."""

_DEPTH = 4
"""Number of neighbours that an instruction has to add up: the bytes of a word."""


def group_workload(columns: int) -> Computation:
    """Return the product of a group of ``columns`` columns for a tile of rows of weights."""
    words = ["gemm", "m=1", f"n={TILE}", f"k={columns}"]
    workload = parse_workload(words)
    first, second = (operand.name for operand in workload.inputs)
    typed = workload.with_dtypes({first: ACTIVATIONS, second: CODES})
    # The codes are constant, as those of a network are, so that they are packed ahead.
    inputs = (typed.inputs[0], replace(typed.inputs[1], varies=False))
    return replace(typed, inputs=inputs)


@cache_by_processor
def group_instruction(columns: int) -> ColumnDot | None:
    """Return the dot product of groups of so many columns; None if this processor has none."""
    selection = group_selection(columns)
    return None if selection is None else column_dot(open_target(selection.solved.target))


@cache_by_processor
def group_selection(columns: int) -> Selection | None:
    """Return the embedding of a group's product, on the target with the most lanes."""
    for spec in _specifications():
        try:
            selection = choose(
                Request(group_workload(columns), spec, KernelOptions(), explains=False)
            )
        except CpembedError:
            continue
        if isinstance(selection, Selection) and _is_by_lanes(selection):
            return selection
    return None


@cache_by_processor
def float_lanes() -> int:
    """Return the lanes of this processor's products of floats; 0 if no target of it has any."""
    try:
        dot = column_dot(open_target(native_target(["float32", "float32"])))
    except CpembedError:
        return 0
    return 0 if dot is None else dot.lanes


def _specifications() -> list[HardwareSpec]:
    """Return the targets of this processor that multiply the factors, most lanes first."""
    suitable: list[HardwareSpec] = []
    for name in available_targets():
        spec = load_hardware_spec(name)
        if not spec.backend or not spec.cpu_features or len(spec.instruction.axes) != 2:
            continue
        first, second = (
            spec.instruction.dtypes[operand.name] for operand in spec.instruction.computation.inputs
        )
        if ACTIVATIONS in first and CODES in second and not missing_for(spec):
            suitable.append(spec)
    return sorted(suitable, key=lambda spec: -spec.instruction.computation.macs)


def _is_by_lanes(selection: Selection) -> bool:
    """True if lanes are rows of weights, and neighbours are columns that follow each other."""
    dot = column_dot(open_target(selection.solved.target))
    if dot is None or dot.depth != _DEPTH or dot.rows != 1 or TILE % dot.lanes:
        return False
    family = selection.ranked.candidate.embedding.family
    return sorted(family.values()) == [("k",), ("n",)]
