"""Spaces of the synthetic family, layers, and searches that are run to their end."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from cpembed.exploration.costing import Costing, LayerWork
from cpembed.exploration.exact import ExactSearch
from cpembed.exploration.objectives import (
    EvaluatedPoint,
    Vector,
    front_of,
    read_limits,
    read_objectives,
)
from cpembed.exploration.sampled import SampledSearch
from cpembed.exploration.space import Space
from cpembed.exploration.space_file import read_space
from cpembed.runtime.cluster import Workers, open_workers
from cpembed.targets import family
from cpembed.targets.family import Family
from cpembed.workloads.suites import Layer
from tests.unit.exploration.synthetic import SyntheticFamily

family.BUILT_IN["synthetic"] = f"{SyntheticFamily.__module__}:SyntheticFamily"

SIZES = ((8, 16, 16, 1), (64, 64, 64, 2), (32, 128, 16, 3), (100, 10, 50, 1))
"""m, n, k of products, and how often the network has each."""

TEXT = """
name = "random"
description = "machines whose costs are random numbers"
family = "synthetic"
{more}
[parameters]
rows = [32, 8, 16]
size = {{ from = 32, to = 512, powers_of_two = true }}
banks = {{ from = 1, to = 8 }}
dataflow = ["ws", "os"]
[fixed]
{fixed}
"""


def space(folder: Path, more: str = "", **fixed: object) -> Space:
    path = folder / "space.toml"
    pairs = "\n".join(f"{name} = {value}" for name, value in fixed.items())
    path.write_text(TEXT.format(more=more, fixed=pairs))
    return read_space(path)


def works(
    family: Family, sizes: Sequence[tuple[int, int, int, int]] = SIZES
) -> tuple[LayerWork, ...]:
    found: list[LayerWork] = []
    for index, (m, n, k, count) in enumerate(sizes):
        layer = Layer("sizes", index, "", f"gemm m={m} n={n} k={k}", count)
        workload = family.typed(layer)
        digest = hashlib.sha256(repr(workload).encode()).hexdigest()
        found.append(LayerWork(index, layer.label, count, workload, digest))
    return tuple(found)


def exact(
    space: Space,
    objectives: str,
    limits: Sequence[str] = (),
    workers: Workers | None = None,
    *,
    bounds: bool = True,
    layers: Sequence[LayerWork] | None = None,
) -> ExactSearch:
    costing = Costing(space.family, works(space.family) if layers is None else layers, None)
    search = ExactSearch(
        space, costing, read_objectives(objectives.split(",")), read_limits(limits), bounds=bounds
    )
    run(search, workers)
    return search


def run(search: ExactSearch | SampledSearch, workers: Workers | None = None) -> int:
    with open_workers() as alone:
        return sum(1 for _ in search.run(workers or alone))


def front(search: ExactSearch) -> list[tuple[int, Vector]]:
    found = front_of(search.evaluated, search.objectives)
    return [(point.number, point.vector(search.objectives)) for point in found]


def vectors(points: Sequence[EvaluatedPoint], objectives: str) -> list[Vector]:
    return [point.vector(read_objectives(objectives.split(","))) for point in points]
