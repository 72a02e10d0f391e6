"""``solve``, ``run``, ``explore`` and ``network`` state one estimate of an instruction set."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cpembed.accelerator.document import network_document
from cpembed.accelerator.network import HostStep, plan_network
from cpembed.accelerator.workload import plan_document, run_workload, workload_plans
from cpembed.exploration.explore import ExploreResult, open_exploration
from cpembed.frontends import load_model
from cpembed.graph.passes import prepare
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.runtime.cluster import open_workers
from cpembed.workloads.naming import parse_workload
from tests.compilers import needs_executor

SMALL = str(Path(__file__).parents[2] / "targets" / "tiny_accelerator.toml")


def explored(suite: str, vary: str, folder: Path, target: str = SMALL) -> ExploreResult:
    exploration = open_exploration(target, suite, vary=[vary], results=folder)
    with open_workers() as workers:
        for _ in exploration.run(workers):
            pass
    return exploration.result()


@needs_executor
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(SMALL, id="small"),
        "gemmini",
        pytest.param("tpu_like", marks=pytest.mark.slow),
    ],
)
def test_a_layer_costs_the_same_in_all_commands(target: str, tmp_path: Path) -> None:
    chance = random.Random(Path(target).stem)
    words = f"gemm m={chance.randint(3, 40)} n={chance.randint(3, 40)} k={chance.randint(3, 40)}"
    table = tmp_path / "layers.csv"
    table.write_text(f"layer\n{words}\n")
    machine, workload = load_instruction_set(target), parse_workload(words.split())
    run = run_workload(workload, machine)
    solved = plan_document(workload_plans(workload, machine), machine)
    main = machine.main.name
    vary = f"memories.{main}.bytes_per_cycle={machine.main.bytes_per_cycle:g},1"
    result = explored(str(table), vary, tmp_path, target)
    rates = f"memories.{main}.bytes_per_cycle"
    point = next(p for p in result.evaluated if p.point[rates] != 1)
    (layer,) = point.layers
    assert run.estimated_cycles == solved["cycles"] == layer.costs.cycles
    assert sum(solved["energy_by_level_pj"].values()) == pytest.approx(layer.costs.energy_pj)


@pytest.mark.slow
def test_a_model_costs_what_network_says(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from tests.models.quantization import quantized
    from tests.models.registry import TINY, write

    model = write("tiny", tmp_path / "float.onnx", **TINY["tiny"] | {"image": 8, "width": 8})
    path = quantized(model, tmp_path / "model.onnx", signed=True, per_channel=False)
    graph = prepare(load_model(path), first="int8", second="int8")
    network = plan_network(graph, load_instruction_set(SMALL))
    totals = network_document(network)["totals"]
    result = explored(str(path), "memories.main.bytes_per_cycle=4,8", tmp_path)
    by_rate = {p.point["memories.main.bytes_per_cycle"]: p for p in result.evaluated}
    point = by_rate[8]
    assert network.cycles == totals["estimated_cycles"]
    assert point.costs.cycles == pytest.approx(network.cycles)
    assert point.costs.energy_pj == pytest.approx(totals["energy_pj"])
    on_host = {
        step.operator.name: step.reason for step in network.steps if isinstance(step, HostStep)
    }
    left_out = {item.layer.label.split()[0]: item.reason for item in point.left_out}
    assert left_out == {name: f"the host executes it: {why}" for name, why in on_host.items()}
    # Each of the network's operators is a layer, of one network that is planned once a point.
    assert len(point.layers) == sum(len(step.operators) for step in network.programs)
    assert by_rate[4].costs.cycles > point.costs.cycles
