"""Random plans: operators of all kinds, on scratchpad machines, in tiles of any size."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.parser import parse_computation
from cpembed.targets.scratchpad.boxes import BoxProduct, lower
from cpembed.targets.scratchpad.executor import Array
from cpembed.targets.scratchpad.machine import ScratchpadMachine, scratchpad_machine
from cpembed.targets.scratchpad.schedule import Plan, Schedule, check

TARGETS = ("sw26010", "gemmini_16x16", "nvdla_small")

LARGEST = 60_000
"""Points of a workload at most."""

EXPRESSIONS = (
    "O[a,b] += A[a,x] * B[x,b]",
    "O[b,a] += A[x,a] * B[b,x]",
    "O[a,b] += A[x,a,y] * B[y,b,x]",
    "O[a,b,c] += A[a,c,x] * B[b,x]",
    "O[n,a,b] += A[n,x,a] * B[n,b,x]",
    "O[a,b] += A[2*a+x] * B[x,b]",
    "O[b,a] += A[a+2*x,y] * B[y,x,b]",
    "O[a] += A[a,x] * B[x]",
)


@cache
def spec(target: str) -> HardwareSpec:
    return hardware_spec(target)


@cache
def machine(target: str) -> ScratchpadMachine:
    return scratchpad_machine(spec(target))


def types(target: str) -> list[str]:
    """Of both factors and the output."""
    return [allowed[0] for allowed in spec(target).instruction.dtypes.values()]


def words(rng: random.Random) -> str:
    """A convolution of one, two or three dimensions, or a product."""
    if rng.random() < 0.25:
        m, n, k = (rng.choice((1, 3, 8, 17, 32, 40)) for _ in range(3))
        return f"gemm m={m} n={n} k={k} trans_a={rng.randint(0, 1)} trans_b={rng.randint(0, 1)}"
    dimensions = rng.choice((1, 2, 2, 3))
    dilation, pad = rng.choice((1, 1, 2)), rng.randint(0, 2)
    taps = [rng.choice((1, 2, 3)) for _ in range(dimensions)]
    sizes = [rng.choice((3, 5, 8, 9)[: 5 - dimensions]) + dilation * (t - 1) for t in taps]
    window = [f"{name}={size}" for name, size in zip("dhw"[-dimensions:], sizes, strict=True)]
    window += [f"{name}={tap}" for name, tap in zip("trs"[-dimensions:], taps, strict=True)]
    channels = rng.choice((1, 3, 8, 16, 20)), rng.choice((1, 5, 8, 32, 40))
    layout = ("NCW NWC", "NCHW NHWC", "NCDHW NDHWC")[dimensions - 1].split()
    return " ".join(
        [
            f"conv{dimensions}d n={rng.choice((1, 1, 2, 8))} c={channels[0]} k={channels[1]}",
            *window,
            f"pad={pad} stride={rng.choice((1, 1, 2, 3))} dilation={dilation}",
            f"layout={rng.choice(layout)}",
            f"groups={rng.choice((1, 1, 1, 2))}" if dimensions == 2 else "",
        ]
    )


def random_workload(rng: random.Random, target: str) -> Computation:
    while True:
        try:
            if rng.random() < 0.2:
                found = expression(rng, target)
            else:
                found = workload(words(rng), spec(target))
        except WorkloadError:  # The window is larger than the image.
            continue
        if found.macs <= LARGEST:
            return found


def expression(rng: random.Random, target: str) -> Computation:
    text = rng.choice(EXPRESSIONS)
    extents = {name: rng.choice((2, 5, 8, 16, 33)) for name in "nabcxy" if f"{name}" in text}
    dtypes = dict(zip("ABO", types(target), strict=True))
    return parse_computation(text, extents, name="expression", dtypes=dtypes)


def products(found: Computation, target: str, top: int = 12) -> list[BoxProduct]:
    """What its best embeddings are as products of boxes."""
    lowered: list[BoxProduct] = []
    for each in solve(found, spec(target), top=top).embeddings:
        try:
            lowered.append(lower(each.candidate.program, machine(target)))
        except LoweringError:
            continue
    return lowered


def random_schedule(rng: random.Random, product: BoxProduct) -> Schedule:
    """Tiles of any whole granules, smaller ones rather, in any order of the loops."""
    tile: list[tuple[str, int]] = []
    for name, axis in product.axes.items():
        granules = -(-axis.extent // axis.granule)
        count = rng.choice((1, rng.randint(1, granules), rng.randint(1, granules), granules))
        tile.append((name, count * axis.granule))
    spatial = [name for name, axis in product.axes.items() if not axis.reduction]
    reduced = [name for name, axis in product.axes.items() if axis.reduction]
    rng.shuffle(spatial)
    rng.shuffle(reduced)
    return Schedule(tuple(tile), (*spatial, *reduced), rng.choice((1, 2)), rng.random() < 0.5)


def random_plan(rng: random.Random, product: BoxProduct, tries: int = 40) -> Plan | None:
    """A plan that the machine has, if one is found."""
    for _ in range(tries):
        try:
            return check(Plan(product, random_schedule(rng, product)))
        except LoweringError:
            continue
    return None


def random_plans(seed: int, target: str, each: int = 2) -> Iterator[Plan]:
    """Of one random workload, several products and schedules."""
    rng = random.Random(seed)
    found = products(random_workload(rng, target), target)
    rng.shuffle(found)
    for product in found[:each]:
        plan = random_plan(rng, product)
        if plan is not None:
            yield plan


def small_inputs(found: Computation, seed: int) -> Mapping[str, Array]:
    """Integers whose sums are exact in every type here."""
    rng = np.random.default_rng(seed)
    return {
        operand.name: rng.integers(-8, 9, operand.shape).astype(numpy_dtype(operand.dtype))
        for operand in found.inputs
    }


def plan_of(
    target: str,
    given: str,
    lanes: Mapping[str, str],
    tile: Mapping[str, int],
    *,
    buffers: int = 2,
    ahead: bool = False,
) -> Plan:
    """A plan of the first product whose axes are on these lanes alone, in tiles of so many points,
    of one granule where not said."""
    for product in products(workload(given, spec(target)), target, top=40):
        axes = product.axes
        if {name: axis.lane for name, axis in axes.items() if axis.lane} == lanes:
            points = tuple((name, tile.get(name, axis.granule)) for name, axis in axes.items())
            spatial = [name for name, axis in axes.items() if not axis.reduction]
            reduced = [name for name, axis in axes.items() if axis.reduction]
            return check(Plan(product, Schedule(points, (*spatial, *reduced), buffers, ahead)))
    raise AssertionError(given)
