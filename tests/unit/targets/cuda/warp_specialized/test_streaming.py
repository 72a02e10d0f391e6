"""Streamed tiles: sums do not depend on the order of blocks, and what goes wrong is noticed."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from cpembed.errors import ExecutionFault
from cpembed.ir.reference import random_inputs
from cpembed.targets.cuda.build import CudaKernels, flat_bits
from cpembed.targets.cuda.emulator.executor import (
    DeviceArray,
    MapArgument,
    Order,
    compile_text,
)
from cpembed.targets.cuda.warp_specialized.build import cuda_text
from cpembed.targets.cuda.warp_specialized.limits import check
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan, SpecializedSchedule
from tests.unit.targets.cuda.emulator.running import needs_compiler
from tests.unit.targets.cuda.warp_specialized.products import SHARED_BYTES, lowered

pytestmark = needs_compiler

WORDS = "gemm m=120 n=40 k=160"

ORDERS = (Order.FORWARD, Order.REVERSE, 5)


@cache
def kernels() -> CudaKernels:
    _, product = lowered(WORDS, "wgmma_f16", "fused")
    schedule = SpecializedSchedule(1, (1, 3), 1, 3, ("tensor", "tensor"), blocks=3, streamed=True)
    plan = SpecializedPlan(product, schedule)
    check(plan, SHARED_BYTES)
    # Four tiles of 10 stages on three blocks: 10 and 3, 7 and 6, 4 and 10 stages.
    assert (plan.order.streamed, plan.order.streamed_parts) == (4, 4)
    return CudaKernels(plan, cuda_text(plan))


def results(tested: CudaKernels) -> list[np.ndarray]:
    operator, _ = lowered(WORDS, "wgmma_f16", "fused")
    inputs = random_inputs(operator, 3)
    return [tested.run(inputs, order) for order in ORDERS]


def expected() -> np.ndarray:
    operator, _ = lowered(WORDS, "wgmma_f16", "fused")
    inputs = random_inputs(operator, 3)
    first, second = (inputs[operand.tensor].astype(np.float64) for operand in operator.inputs)
    return first @ second


def test_results_are_the_same_bits_in_any_order_of_blocks() -> None:
    found = results(kernels())
    assert all(np.array_equal(found[0], result) for result in found)
    np.testing.assert_allclose(found[0], expected(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("order", ORDERS)
def test_counters_are_cleared_once_for_all_calls(order: Order | int) -> None:
    tested = kernels()
    assert "clear_kernel" in tested.prepares()
    program = compile_text(tested.text.source)
    operator, _ = lowered(WORDS, "wgmma_f16", "fused")
    inputs = random_inputs(operator, 3)
    memory: dict[str, Any] = {
        operand.buffer: flat_bits(inputs[operand.tensor]) for operand in tested.operands()
    }
    *before, product = tested.text.kernels
    for kernel in (*before, product, product, product):
        for parameter in kernel.parameters:
            new = DeviceArray.unwritten(parameter.elements, parameter.dtype)
            if parameter.name not in memory or parameter.name == "C":
                memory[parameter.name] = new
        arguments = [
            memory[p.name] if p.tensor_map is None else MapArgument(p.tensor_map, memory[p.name])
            for p in kernel.parameters
        ]
        program.run(kernel.launch, arguments, order=order)
    assert not memory["Counters"].require_written("Counters").any()
    result = memory["C"].require_written("C").view(np.float32).reshape(120, 40)
    np.testing.assert_allclose(result, expected(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "pattern, replacement",
    [
        # The block before the last adds parts that are not there yet.
        (r"== \(last_owner_ptr\[0\] - 1\)", "== (last_owner_ptr[0] - 2)"),
        # Parts of another place of the workspace.
        (r"part_slot_ptr\[0\] \* \d+\) \+ \(other", "part_slot_ptr[0] * 0) + (other"),
        # Nothing orders what was stored before what is read.
        (r"atom\.add\.acq_rel\.gpu", "atom.add.relaxed.gpu"),
        # A part is counted while others of its block still store it.
        (r"cpembed_named_barrier\(1, 128\);\s+if", "if"),
        # A part is not stored.
        (r"cpembed_store_16\(\(&\(Partial_ptr.*?;", ""),
    ],
)
def test_mutants_are_faults_or_wrong(pattern: str, replacement: str) -> None:
    text = kernels().text
    source = re.sub(pattern, replacement, text.source)
    assert source != text.source
    mutant = CudaKernels(kernels().plan, replace(text, source=source))
    try:
        found = results(mutant)
    except ExecutionFault:
        return
    assert not all(np.allclose(result, expected(), rtol=1e-3, atol=1e-3) for result in found)
