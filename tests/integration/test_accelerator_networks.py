"""Quantized networks on accelerators: every program computes its statements, and is proven."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.accelerator.network import plan_network
from cpembed.accelerator.network_proof import prove_network
from cpembed.accelerator.network_run import run_network
from cpembed.accelerator.network_steps import AcceleratorNetwork, HostStep, LayoutStep
from cpembed.frontends import load_model
from cpembed.graph.passes import prepare
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.network.inputs import random_inputs
from tests.compilers import needs_executor

pytestmark = needs_executor

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SMALL = str(Path(__file__).parents[1] / "targets" / "tiny_accelerator.toml")
EXAMPLES = Path(__file__).parents[2] / "examples" / "accelerator"
NOTHING = frozenset[str]()
HOST_OF_BYTES = frozenset({"Quantize", "Dequantize"})
"""What a machine without floats leaves to the host."""


def planned(name: str, machine: str, folder: Path, **sizes: int) -> AcceleratorNetwork:
    from tests.models.quantization import quantized
    from tests.models.registry import TINY, write

    model = write(name, folder / "float.onnx", **TINY[name] | sizes)
    path = quantized(model, folder / "model.onnx", signed=True, per_channel=False)
    graph = prepare(load_model(path), first="int8", second="int8")
    return plan_network(graph, load_instruction_set(machine))


def check(network: AcceleratorNetwork, host: frozenset[str]) -> None:
    """Run and prove all programs, and name what the host does."""
    on_host = {type(s.operator.kind).__name__ for s in network.steps if isinstance(s, HostStep)}
    assert on_host == host
    assert network.programs
    run = run_network(network, random_inputs(network.graph, 1))
    for step in run.steps:
        # A form that deviates rounds in another order: by one step of int8 at most.
        allowed = 1 if step.step.form.specification.deviation else step.tolerance
        assert step.is_right, step.step.name
        assert step.deviation <= allowed, step.step.name
    refusals = {n: p.refusal for n, p in prove_network(network).proofs.items() if not p.holds}
    assert not refusals


def test_a_small_residual_network_runs_whole(tmp_path: Path) -> None:
    network = planned("tiny", SMALL, tmp_path, image=8, width=8)
    check(network, HOST_OF_BYTES)
    # Host work too: this tensor gets margins that Conv_10 reads and its producer does not leave.
    moves = [step.tensor for step in network.steps if isinstance(step, LayoutStep)]
    assert moves == ["Relu_9_QuantizeLinear_Output"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "machine, host", [("gemmini", HOST_OF_BYTES), ("tpu_like", NOTHING), (SMALL, HOST_OF_BYTES)]
)
@pytest.mark.parametrize("name", ["tiny", "resnet18"])
def test_a_residual_network_runs_whole(
    name: str, machine: str, host: frozenset[str], tmp_path: Path
) -> None:
    check(planned(name, machine, tmp_path), host)


@pytest.mark.slow
@pytest.mark.parametrize("machine, host", [("dsp", NOTHING), ("npu", HOST_OF_BYTES)])
def test_a_residual_network_runs_on_the_examples(
    machine: str, host: frozenset[str], tmp_path: Path
) -> None:
    check(planned("tiny", str(EXAMPLES / f"{machine}.toml"), tmp_path, image=8, width=8), host)


@pytest.mark.slow
@pytest.mark.parametrize("machine, host", [("gemmini", HOST_OF_BYTES), ("tpu_like", NOTHING)])
def test_depthwise_products_run_in_groups_of_channels(
    machine: str, host: frozenset[str], tmp_path: Path
) -> None:
    check(planned("mobilenet_v2", machine, tmp_path), host)
