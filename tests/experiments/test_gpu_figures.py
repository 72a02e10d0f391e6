"""Figures about GPUs from a pack's results: ratios and means by hand, beside the paper's values."""

from __future__ import annotations

import csv
import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.documents import read_document
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.multistage.schedule import KernelSchedule
from cpembed.targets.cuda.target import CudaSpace, CudaTarget
from cpembed.workloads.suites import suite
from cpembed.workloads.user_suites import read_suite
from experiments import gpu_figures
from experiments.amos2022.figure6 import run as figure6
from experiments.amos2022.figure7 import run as figure7
from experiments.amos2022.figure9 import run as figure9
from experiments.gpu_networks import Network, network_table, on_tensor_cores, read_networks
from experiments.unit2021.figure9 import run as unit9
from experiments.unit2021.figure11 import run as unit11

TABLE_2 = figure7.FOLDER.parent / "table2"


def entry(name: str, times: dict[str, float], also: dict[str, list[str]]) -> dict[str, Any]:
    """What a pack's results say of a layer: kernels with further roles, and libraries."""
    return {
        "name": name,
        "times": {key: {"us": us, "samples": [us]} for key, us in times.items()},
        "variants": [{"name": key, "also": roles} for key, roles in also.items()],
    }


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two of ResNet-18's layers: the second is fastest by the second choice."""
    convolutions = [layer.index for layer in suite("amos") if layer.application == "C2D"]
    first, second = convolutions[:2]
    document = {
        "device": {"device": "Some GPU"},
        "layers": [
            entry(
                f"amos12:{first} batch 1",
                {"chosen 1": 10.0, "im2col": 15.0, "cuDNN": 20.0},
                {"chosen 1": ["fuse_hw"], "im2col": []},
            ),
            entry(
                f"amos12:{second} batch 1",
                {"chosen 1": 8.0, "chosen 2": 5.0, "cuDNN": 40.0},
                {"chosen 1": ["im2col", "fuse_hw"], "chosen 2": []},
            ),
            entry("unit16:0", {"chosen 1": 4.0, "cuDNN": 2.0}, {"chosen 1": []}),
            entry("amos12:99 batch 1", {"cuDNN": 1.0}, {"chosen 1": []}),
        ],
    }
    path = tmp_path / "results.json"
    path.write_text(json.dumps(document))
    return path


def test_rows_have_each_role_and_the_fastest(results: Path) -> None:
    rows, device = gpu_figures.measured_rows(results)
    assert device == "Some GPU"
    # A layer none of whose kernels was timed has no row.
    assert len(rows) == 3
    first, second, _ = rows.values()
    assert first["us"] == {
        "chosen 1": 10.0, "fuse_hw": 10.0, "im2col": 15.0, "cuDNN": 20.0, "cpembed": 10.0
    }  # fmt: skip
    assert second["us"]["cpembed"] == 5.0
    assert second["us"]["im2col"] == 8.0


def test_fixed_mappings_are_over_the_fastest(results: Path, tmp_path: Path) -> None:
    assert figure9.main(["--results", str(results), "--output", str(tmp_path / "out")]) == 0
    document = read_document(tmp_path / "out" / "results.json")
    assert document["provenance"] == "measured"
    figures = document["figures"]
    assert figures["im2col batch 1"] == pytest.approx(math.sqrt(1.5 * 1.6))
    assert figures["fuse_hw batch 1"] == pytest.approx(math.sqrt(1.0 * 1.6))
    assert figures["cuDNN batch 1"] == pytest.approx(math.sqrt(2 * 8))
    assert figures["cuDNN batch 16"] is None
    page = (tmp_path / "out" / "results.md").read_text()
    assert "measured on Some GPU" in page
    assert "| im2col | 1.55 | - | 1.58 |" in page


def test_operators_take_the_layers_of_the_smaller_pack_too(results: Path, tmp_path: Path) -> None:
    assert figure6.main(["--results", str(results), "--output", str(tmp_path)]) == 0
    document = read_document(tmp_path / "results.json")
    assert document["figures"]["cuDNN, C2D"] == pytest.approx(math.sqrt(2 * 8))
    assert "| C2D | 2 |" in (tmp_path / "results.md").read_text()


def test_a_network_is_the_sum_of_its_layers() -> None:
    rows = {
        "a": {"us": {"cpembed": 2.0, "cuDNN": 3.0}},
        "b": {"us": {"cpembed": 5.0, "cuDNN": 10.0}},
    }
    whole, part = Network("whole", {"a": 4, "b": 2}), Network("part", {"a": 1, "c": 2})
    assert (whole.us(rows), whole.us(rows, "cuDNN")) == (18.0, 32.0)
    assert part.us(rows) is None
    lines, mean = network_table([whole, part], rows, "cuDNN")
    assert mean == pytest.approx(32 / 18)
    assert lines[2] == "| whole | 6 of 6 | 18 | 1.78 |"
    assert lines[3] == "| part | 1 of 3 | - | - |"


def test_networks_have_the_products_that_the_paper_counts() -> None:
    """Those of AMOS's table 2, but for the ResNets, which have only their convolutions here."""
    networks = figure7.networks()
    counts = {network.name: sum(network.counts.values()) for network in networks}
    expected = {"ShuffleNet": 50, "MobileNet-V1": 29, "BERT": 84, "MI-LSTM": 9}
    expected |= {"ResNet-18": 20, "ResNet-50": 53}
    assert counts == {f"{name}, batch {n}": c for name, c in expected.items() for n in (1, 16)}
    assert len(unit9.networks()) == 9


def test_layers_of_networks_have_the_sizes_that_are_counted() -> None:
    """Multiply-adds beside those of AMOS's table 2, whose layers are read from the networks."""
    with (TABLE_2 / "layers.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["instruction"] == "wmma_f16"]
    forms = {"ShuffleNet": "shufflenet_v1", "MobileNet-V1": "mobilenet_v1_amos"}
    forms |= {"BERT": "bert_base_amos", "MI-LSTM": "milstm"}
    for network in read_networks(figure7.FOLDER / "networks.csv"):
        macs: Counter[int] = Counter()
        for row in (row for row in rows if row["network"] == forms[network.name]):
            sizes = (int(size.split("=")[1]) for size in row["sizes"].split())
            macs[math.prod(sizes)] += int(row["count"])
        own: Counter[int] = Counter()
        for words, count in on_tensor_cores(network).counts.items():
            own[workload(words).macs] += count
        assert own == macs, network.name
        for words in on_tensor_cores(network, 16).counts:
            assert workload(words).macs in {16 * number for number in macs}


def test_a_pack_of_a_figures_layers_has_their_names(tmp_path: Path) -> None:
    suite_path, out = tmp_path / "layers.csv", tmp_path / "out"
    assert figure7.main(["--layers", str(suite_path)]) == 0
    layers = read_suite(suite_path)
    document = {
        "device": {"device": "Some GPU"},
        "layers": [
            entry(f"layers:{layer.index}", {"chosen 1": 1.0, "cuDNN": 3.0}, {"chosen 1": []})
            for layer in layers
        ],
    }
    results = tmp_path / "results.json"
    results.write_text(json.dumps(document))
    assert figure7.main(["--results", str(results), "--output", str(out)]) == 0
    assert read_document(out / "results.json")["figures"] == {"cuDNN over ours": pytest.approx(3.0)}
    assert "| BERT, batch 16 | 84 of 84 | 84 | 3.00 |" in (out / "results.md").read_text()


@pytest.mark.parametrize(
    "rows, splits, tile, expected",
    [
        ({"q"}, 1, (2, 2), {"tune", "split", "fused", "generic"}),
        ({"p", "q"}, 1, (2, 1), {"tune", "split", "fused"}),
        ({"p", "q"}, 8, (2, 2), {"tune", "split"}),
        ({"p", "q"}, 8, (4, 2), {"tune"}),
        ({"n"}, 1, (1, 1), {"tune"}),
    ],
)
def test_steps_admit_more_schedules_one_after_the_other(
    rows: set[str], splits: int, tile: tuple[int, int], expected: set[str]
) -> None:
    schedule = KernelSchedule((2, 2), tile, splits=splits)
    assert set(unit11.admitted(rows, 8 * unit11.SPLIT_DEPTH, schedule)) == expected


def test_estimates_are_stored_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [gpu_figures.FigureLayer(name, "gemm m=16 n=16 k=16") for name in "abc"]
    asked: list[str] = []

    def estimated(layer: gpu_figures.FigureLayer, machine: str) -> dict[str, Any]:
        asked.append(layer.name)
        return {"key": layer.name, "us": {"cpembed": 1.0}}

    monkeypatch.setattr(gpu_figures, "estimated_row", estimated)
    parser = gpu_figures.figure_parser("Some figure.", tmp_path)
    first, origin = gpu_figures.figure_rows(layers, parser.parse_args(["--limit", "2"]))
    assert (list(first), origin) == (["a", "b"], "estimated for an a100")
    again, _ = gpu_figures.figure_rows(layers, parser.parse_args([]))
    assert (list(again), asked) == (["a", "b", "c"], ["a", "b", "c"])
    gpu_figures.figure_rows(layers[:1], parser.parse_args(["--again"]))
    assert asked.pop() == "a"
    # Estimates for another machine are others.
    other, _ = gpu_figures.figure_rows(layers[:1], parser.parse_args(["--machine", "h100"]))
    assert (list(other), asked[3:]) == (["a"], ["a"])


@pytest.mark.parametrize(
    "words",
    [
        "conv2d n=2 c=32 h=9 w=9 k=24 r=3 s=3 pad=1 layout=NHWC",
        "conv2d n=1 c=32 h=12 w=12 k=16 r=3 s=3 stride=2 layout=NCHW",
        "conv2d n=1 c=1 h=9 w=9 r=3 s=3 pad=1 k=1 groups=24 layout=NHWC",
    ],
)
def test_products_of_the_same_work_have_the_same_estimates(words: str) -> None:
    """With schedules at random, of all embeddings."""
    spec = hardware_spec("mma_f16", machine="a100")
    target = CudaTarget(spec)
    solved = solve(workload(words, target=spec), spec, constraints="fused", top=60)
    by_key: dict[object, list[TiledProduct]] = {}
    for ranked in solved.embeddings:
        product = target.lower(ranked.candidate.program)
        by_key.setdefault(gpu_figures.work_key(target, product), []).append(product)
    assert 1 < len(by_key) < len(solved.embeddings)
    rng = random.Random(words)
    for products in by_key.values():
        spaces = [target.space(product) for product in (products[0], products[-1])]
        for _ in range(60):
            drawn = {name: rng.choice(values) for name, values in CudaSpace.choices.items()}
            layouts = tuple(rng.randrange(len(f)) for f in (products[0].first, products[0].second))
            schedule = KernelSchedule(**cast(Any, drawn), layouts=cast(Any, layouts))
            first, second = (cost(space, schedule) for space in spaces)
            assert first == pytest.approx(second, rel=0.05)


def cost(space: CudaSpace, schedule: KernelSchedule) -> float:
    try:
        return space.scored(schedule).cost
    except LoweringError:
        return math.inf
