"""Bounds and plans against tilings of every size, each with its program."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cpembed.accelerator.bounds import bounds
from cpembed.accelerator.cost import program_cost
from cpembed.accelerator.emission import Lowering
from cpembed.accelerator.lowering import OperatorPlan
from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.pipeline import pipelined_cycles
from cpembed.accelerator.problem import PlanningError
from cpembed.accelerator.specification import Specification
from cpembed.accelerator.template import Template, exact_template
from cpembed.accelerator.tiling import Tiling, copy_options, loop_orders
from cpembed.hw.isa import InstructionSet, Synchronization
from cpembed.hw.isa_reader import load_instruction_set
from tests.unit.accelerator.toys import convolution, product, statement, systolic

NEAR = 1.15
"""Factor by which a plan may exceed the best of all tilings, which the search ranks by a model."""


def every_tiling(template: Template, generator: random.Random, most: int) -> list[Tiling]:
    """List tilings of all orders, copies and sizes of whole granules; a sample of too many."""
    axes = template.spatial | template.reductions
    sizes = {
        a: [*range(granule, template.extents[a], granule), template.extents[a]]
        for a, granule in template.granules.items()
        if a in axes
    }
    spaces = [
        (order, copies, [sizes[slot.axis] for slot in order.loops])
        for order in loop_orders(template)
        for copies in copy_options(template)
    ]
    counts = [math.prod(map(len, options)) for _, _, options in spaces]
    drawn = sorted(generator.sample(range(sum(counts)), min(most, sum(counts))))
    tilings: dict[str, Tiling] = {}
    first = 0
    for (order, copies, options), count in zip(spaces, counts, strict=True):
        for position in (n for n in drawn if first <= n < first + count):
            number = position - first
            spans, loops, positions = dict(template.extents), list[tuple[str, int]](), list[int]()
            for place, (slot, choices) in enumerate(zip(order.loops, options, strict=True)):
                number, choice = divmod(number, len(choices))
                if choices[choice] < spans[slot.axis]:
                    loops.append((slot.axis, choices[choice]))
                    positions.append(place)
                    spans[slot.axis] = choices[choice]
            depths = {k: sum(p < depth for p in positions) for k, depth in order.depths.items()}
            outer = sum(p < order.output_depth for p in positions)
            tiling = Tiling(tuple(loops), depths, outer, copies)
            tilings[str(tiling)] = tiling
        first += count
    return list(tilings.values())


def timed(plan: OperatorPlan, generator: random.Random, most: int) -> Iterator[tuple[float, int]]:
    """Yield the cycles and bytes of the programs of tilings with the matches of a plan."""
    shares = [plan.problem.reuses_rows]
    if plan.machine.synchronization is not Synchronization.CHANNELS:
        shares = [False, True]
    for reuses_rows in shares:
        template = exact_template(replace(plan.problem, reuses_rows=reuses_rows), plan.machine)
        tilings = every_tiling(template, generator, most // len(shares))
        if reuses_rows == plan.problem.reuses_rows:
            tilings.append(plan.tiling)
        for tiling in tilings:
            try:
                lowering = Lowering(template, tiling)
                program = lowering.program()
            except PlanningError:
                continue
            regions = lowering.buffers.regions()
            cost = program_cost(program, pipelined_cycles(program, regions))
            yield cost.cycles, cost.main_bytes


def few_rows(name: str, rows: int) -> InstructionSet:
    """Return a shipped machine with few rows in each memory, so that operators have to be tiled."""
    machine = load_instruction_set(name)
    memories = {
        m.name: replace(m, rows=rows, banks=1) if m.rows else m for m in machine.memories.values()
    }
    return replace(machine, memories=memories)


def softmax(rows: int, columns: int) -> Specification:
    dtypes = dict.fromkeys("XMDESY", "float32")
    extents = {"i": rows, "j": columns}
    texts = (
        "M[i] max= X[i,j]", "D[i,j] = X[i,j] - M[i]", "E[i,j] = exp(D[i,j])", "S[i] += E[i,j]",
        "Y[i,j] = E[i,j] / S[i]",
    )  # fmt: skip
    statements = tuple(statement(text, dtypes, extents) for text in texts)
    return Specification("softmax", statements, ("X",), ("Y",), {})


def small_operator(kind: str, generator: random.Random) -> tuple[Specification, InstructionSet]:
    """Return a random small operator, and a machine for it."""
    if kind == "softmax":
        rows, columns = generator.choice([3, 8, 20]), generator.choice([16, 130, 200])
        return softmax(rows, columns), few_rows("tpu_like", generator.choice([32, 64, 256]))
    order = generator.choice([Synchronization.IN_ORDER, Synchronization.INTERLOCKED])
    rows, sums = generator.choice([(16, 8), (24, 16), (64, 32)])
    machine = replace(
        systolic(rows, sums, bytes_per_cycle=generator.choice([1.0, 4.0, 16.0])),
        synchronization=order,
    )
    if kind == "window":
        p, q, c, k = (generator.randint(1, 6) for _ in range(4))
        window, stride = generator.choice([2, 3]), generator.choice([1, 2])
        return convolution(p, q, c, k, window, window, stride, window // 2), machine
    sizes = (generator.randint(3, 14) for _ in range(3))
    return product(*sizes, bias=generator.random() < 0.5), machine


def check(kind: str, seed: int, most: int) -> float:
    """Check bounds of a random operator against its tilings; return its plan over their best."""
    generator = random.Random(f"{kind} {seed}")
    specification, machine = small_operator(kind, generator)
    plans = OperatorSearch(specification, machine).plans()
    assert not isinstance(plans, str), plans
    ratios: list[float] = []
    for plan in plans:
        results = list(timed(plan, generator, most))
        assert results
        cycles, moved = bounds(exact_template(plan.problem, machine))
        assert (plan.cycles_bound, plan.bytes_bound) == (cycles, moved)
        assert cycles <= min(c for c, _ in results) * (1 + 1e-9)
        assert moved <= min(b for _, b in results)
        assert plan.cycles >= cycles * (1 - 1e-9)
        ratios.append(plan.cycles / min(c for c, _ in results))
    return max(ratios)


@pytest.mark.parametrize("kind", ["window", "statements", "softmax"])
def test_bounds_hold_for_every_tiling(kind: str) -> None:
    assert check(kind, 0, 60) <= NEAR


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 13))
@pytest.mark.parametrize("kind", ["window", "statements", "softmax"])
def test_plans_are_near_the_best_of_every_tiling(kind: str, seed: int) -> None:
    assert check(kind, seed, 1500) <= NEAR
