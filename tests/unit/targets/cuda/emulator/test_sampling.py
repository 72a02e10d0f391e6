"""Some clusters of a launch, and launches that are counted without a result."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpembed.errors import ExecutionFault
from cpembed.targets.cuda.emulator.executor import (
    Counters,
    DeviceArray,
    Launch,
    Order,
    Program,
    compile_text,
)
from tests.unit.targets.cuda.emulator import test_gemm, test_hopper
from tests.unit.targets.cuda.emulator.running import Array, needs_compiler, program

pytestmark = needs_compiler

HOPPER = test_hopper.Problem(300, 80, 456, cluster=2, by_map=1)


def cases() -> list[tuple[Program, Launch, list[Any], Array]]:
    """Programs, launches, their arguments, and the array that they write."""
    arguments, _ = test_gemm.arguments("gemm_f16", 1, test_gemm.NO_MUTATION)
    result = arguments[2]
    assert isinstance(result, np.ndarray)
    gemm = program("gemm.cu"), test_gemm.launch("gemm_f16"), list(arguments), result
    maps, _ = HOPPER.arguments()
    text = compile_text(test_hopper.source(HOPPER.cluster))
    return [gemm, (text, HOPPER.launch, maps, maps[3])]


def without_unique(counters: Counters) -> Counters:
    """Bytes that several blocks touch count once a launch."""
    return replace(counters, unique_bytes_read=0, unique_bytes_written=0)


@pytest.mark.parametrize("number", [0, 1], ids=["gemm", "clusters"])
def test_parts_of_a_launch_add_up_to_it(number: int) -> None:
    compiled, launch, arguments, result = cases()[number]
    whole = compiled.run(launch, arguments)
    expected = result.copy()
    result[...] = 0
    count = math.prod(launch.grid) // math.prod(launch.cluster)
    clusters = random.Random(number).sample(range(count), count)
    parts = [compiled.run(launch, arguments, clusters=[n], order=n) for n in clusters]
    assert without_unique(sum(parts, Counters())) == without_unique(whole)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("number", [0, 1], ids=["gemm", "clusters"])
def test_counting_counts_what_a_run_does(number: int) -> None:
    compiled, launch, arguments, result = cases()[number]
    counted = compiled.count(launch, arguments, order=Order.REVERSE)
    assert not result.any()
    assert counted == compiled.run(launch, arguments)
    some = compiled.count(launch, arguments, clusters=[1])
    assert some == compiled.run(launch, arguments, clusters=[1])


def test_what_was_not_executed_stays_unwritten() -> None:
    compiled, launch, arguments, result = cases()[0]
    output = DeviceArray.unwritten(result.size, "float32")
    arguments[2] = output
    compiled.run(launch, arguments, clusters=[0, 1, 2])
    compiled.count(launch, arguments)
    with pytest.raises(ExecutionFault, match=r"leave 12,288 of 24,576 elements of C unwritten"):
        output.require_written("C")


def test_what_is_counted_reads_no_device_array() -> None:
    """Its values are zeros, and nobody need have written them."""
    compiled, launch, arguments, result = cases()[0]
    arguments[0] = DeviceArray.unwritten(arguments[0].size, "float16")
    arguments[2] = DeviceArray.unwritten(result.size, "float32")
    with pytest.raises(ExecutionFault, match="uninitialised global memory"):
        compiled.run(launch, arguments)
    assert compiled.count(launch, arguments).blocks == math.prod(launch.grid)


def test_counted_launches_have_faults() -> None:
    compiled, launch, _, _ = cases()[0]
    arguments, _ = test_gemm.arguments("gemm_f16", 1, 1)
    with pytest.raises(ExecutionFault, match="shared memory"):
        compiled.count(launch, arguments)


@pytest.mark.parametrize("clusters", [[6], [-1], [1, 1]])
def test_clusters_have_to_be_there_once(clusters: list[int]) -> None:
    compiled, launch, arguments, _ = cases()[0]
    with pytest.raises(ExecutionFault, match="gemm_f16 has the clusters 0 to 5"):
        compiled.run(launch, arguments, clusters=clusters)
