"""The proven front of real families beside every point explored alone, without bounds.

A space of one point shares no analysis, no bound and no store with the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.exploration.explore import Exploration, open_exploration
from cpembed.exploration.objectives import read_objectives
from cpembed.runtime.cluster import open_workers

Values = Mapping[str, Sequence[Any]]
OBJECTIVES = ("cycles", "energy", "area")
LAYERS = (
    "gemm m=24 n=40 k=33",
    "conv2d n=1 c=12 h=9 w=9 k=20 r=3 s=3 pad=1 stride=2",
    "conv2d n=1 c=16 h=7 w=7 k=24 r=1 s=1",
    "gemm m=1 n=48 k=64",
)


def explored(
    folder: Path, family: str, values: Values, suite: Path, *, bounds: bool
) -> Exploration:
    folder.mkdir()
    rows = "\n".join(f"{name} = {list(given)!r}" for name, given in values.items())
    path = folder / "space.toml"
    path.write_text(f'name = "s"\ndescription = ""\nfamily = "{family}"\n[parameters]\n{rows}\n')
    found = open_exploration(
        path, str(suite), objectives=OBJECTIVES, bounds=bounds, results=folder / "kept"
    )
    with open_workers() as workers:
        for _ in found.search.run(workers):
            pass
    return found


def compare(folder: Path, family: str, values: Values, layers: Sequence[str]) -> None:
    suite = folder / "layers.csv"
    suite.write_text("layer,count\n" + "\n".join(f"{x},{n + 1}" for n, x in enumerate(layers)))
    together = explored(folder / "together", family, values, suite, bounds=True)
    objectives = read_objectives(OBJECTIVES)
    alone: list[tuple[float, ...]] = []
    for number, point in enumerate(itertools.product(*values.values())):
        one = {name: [value] for name, value in zip(values, point, strict=True)}
        found = explored(folder / f"{number}", family, one, suite, bounds=False)
        alone += [evaluated.vector(objectives) for evaluated in found.evaluated]
    best = {one for one in alone if not any(o != one and all(np.less_equal(o, one)) for o in alone)}
    result = together.result()
    assert result.status == ("proven" if best else "infeasible")
    assert {point.vector(objectives) for point in result.front} == best
    assert {point.vector(objectives) for point in together.evaluated} <= set(alone)


@pytest.mark.slow
def test_a_small_space_of_vta(tmp_path: Path) -> None:
    values: Values = {
        "log_block": [3, 4],
        "log_inp_buff": [11, 13],
        "log_wgt_buff": [13, 15],
        "log_acc_buff": [13, 15],
        "bus_bits": [64, 128],
        "embeddings": [6],
        "schedules": [2],
    }
    compare(tmp_path, "vta", values, LAYERS)


_CORES: dict[str, Sequence[Any]] = {
    "intrinsic": ["gemm", "conv2d", "gemv", "dot"],
    "dataflow": ["os", "ws"],
    "pe_rows": [4, 6, 8, 16],
    "pe_columns": [4, 5, 8],
    "banks": [1, 2, 4, 8],
    "scratchpad_kib": [16, 32, 64, 128],
    "local_kib": [0, 1, 4],
    "dma_bits": [32, 64, 128],
    "dma_burst_bytes": [16, 64],
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(12))
def test_random_small_spaces_of_cores(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    wide = set(random.choice(list(_CORES), 3, replace=False))
    values = {
        name: sorted({given[n] for n in random.choice(len(given), 2 if name in wide else 1)})
        for name, given in _CORES.items()
    }
    layers = [LAYERS[n] for n in random.choice(len(LAYERS), 2, replace=False)]
    compare(tmp_path, "core", values, layers)
