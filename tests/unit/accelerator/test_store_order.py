"""Stores behind the loads of the next tile: programs stay right, and units wait less."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.act import emulate, largest_error, random_arrays
from cpembed.accelerator import emission
from cpembed.accelerator.buffers import Buffer, Buffers
from cpembed.accelerator.lowering import OperatorPlan
from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.program import Node
from cpembed.accelerator.proof import prove
from cpembed.accelerator.specification import Specification
from cpembed.hw.isa import InstructionSet, Synchronization
from cpembed.hw.isa_reader import load_instruction_set
from tests.compilers import needs_executor
from tests.unit.accelerator.planned_programs import LAYERS, specification


def narrow(rows: int, order: Synchronization) -> InstructionSet:
    """Return the TPU-like machine with few rows, so that small layers have several tiles."""
    machine = load_instruction_set("tpu_like")
    memories = {
        name: replace(memory, rows=rows * (4 if name == "unified" else 1))
        if name in ("unified", "sums")
        else memory
        for name, memory in machine.memories.items()
    }
    return replace(machine, memories=memories, synchronization=order)


def layer(seed: int) -> Specification:
    draw = random.Random(seed)
    sizes = {"p": draw.randint(4, 9), "q": 8, "r": 3, "s": 3, "c": 16, "k": 64}
    sizes |= {"i": draw.randint(40, 130), "j": draw.randint(20, 90)}
    name = ("gemm with bias", "softmax", "convolution", "residual")[seed % 4]
    machine = narrow(64, Synchronization.INTERLOCKED)
    forms = (specification(name, statements, sizes) for statements in LAYERS[name])
    return next(f for f in forms if not isinstance(OperatorSearch(f, machine).plans(), str))


def cycles(plans: tuple[OperatorPlan, ...], specification: Specification) -> float:
    """Return the emulated cycles of plans, whose programs are proven and right."""
    arrays = {**random_arrays(specification, 1), **specification.constants}
    assert [proof.refusal for p in plans if not (proof := prove(p.program())).holds] == []
    contents, runs = emulate(plans, arrays)
    error, tolerance = largest_error(specification, arrays, contents)
    assert error <= tolerance
    return sum(run.cycles for run in runs)


def at_once(_buffers: Buffers, _source: Buffer, _nodes: Sequence[Node]) -> None:
    """Leave all stores where they are."""


@needs_executor
@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(12))
def test_tiles_are_stored_behind_the_next_loads(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    specification = layer(seed)
    plans = OperatorSearch(specification, narrow(64, Synchronization.INTERLOCKED)).plans()
    assert not isinstance(plans, str), plans
    late = cycles(plans, specification)
    monkeypatch.setattr(emission, "late_store", at_once)
    assert late <= cycles(plans, specification)
    moving = [p for p in plans if p.tiling.output_depth and p.cost.executions.get("write", 0) > 2]
    if any(2 in p.tiling.copies.values() for p in moving):
        assert late < cycles(plans, specification)


def test_machines_in_order_store_at_once() -> None:
    specification = layer(1)
    machine = narrow(64, Synchronization.IN_ORDER)
    plans = OperatorSearch(specification, machine).plans()
    assert not isinstance(plans, str), plans
    for plan in plans:
        issues = [issue for _, issue in plan.program().issues()]
        stores = [i for i in issues if i.note.startswith("store")]
        # No store is written twice, as those of the tile before and of the last one are.
        assert (
            len({str(i.operands) for i in stores}) == len(stores) == len({i.note for i in stores})
        )
