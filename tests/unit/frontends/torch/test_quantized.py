"""Models that PT2E quantizes, beside what PyTorch computes of them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchao")

from cpembed.errors import ModelError  # noqa: E402
from cpembed.frontends.torch import from_exported  # noqa: E402
from cpembed.graph.graph import Graph  # noqa: E402
from cpembed.graph.kinds import Dequantize, DynamicQuantize, Product, Quantize  # noqa: E402
from cpembed.graph.passes import prepare  # noqa: E402
from tests.unit.frontends.torch import models  # noqa: E402
from tests.unit.frontends.torch.comparing import Function, compared, eager, run  # noqa: E402
from tests.unit.frontends.torch.quantizing import quantized  # noqa: E402

nn, F = torch.nn, torch.nn.functional
q8 = torch.ops.quantized_decomposed


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def last_quantum(graph: Graph) -> float:
    """The largest step of the integers that the result is computed of."""
    return max(max(o.kind.scale) for o in graph.operators if isinstance(o.kind, Quantize))


MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "residual network": (models.ResNet, (1, 3, 32, 32)),
    "inverted residual": (models.InvertedResidual, (1, 8, 9, 9)),
    "u-net": (models.UNet, (1, 1, 16, 16)),
    "attention": (models.Attention, (1, 6, 16)),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", [{}, {"reduce_range": True}], ids=["", "seven bits"])
def test_a_quantized_model_computes_what_pytorch_computes(
    name: str, options: dict[str, bool]
) -> None:
    make, shape = MODELS[name]
    x = torch.randn(shape)
    model = quantized(models.seeded(make()), x, **options)
    graph = from_exported(torch.export.export(model, (x,)))
    quantum = last_quantum(graph)
    for fresh in (x, torch.randn(shape)):
        error = np.abs(run(graph, fresh)[0] - eager(model, fresh)[0])
        assert error.max() <= quantum
        # Most are equal: only ties of a rounding can differ.
        assert np.quantile(error, 0.9) <= quantum / 4


def test_weights_stay_integers_of_eight_bits() -> None:
    x = torch.randn(1, 3, 32, 32)
    model = quantized(models.seeded(models.ResNet(4)), x)
    graph = from_exported(torch.export.export(model, (x,)))
    for operator in graph.operators:
        if isinstance(operator.kind, Product):
            made = graph.producers[operator.inputs[1]]
            assert isinstance(made.kind, Dequantize)
            assert graph.constants[made.inputs[0]].dtype == np.int8
            assert len(made.kind.scale) == graph.types[operator.output].shape[1]
            assert made.kind.zero_point == (0,)


def test_weights_that_core_aten_transposes_stay_integers() -> None:
    x = torch.randn(2, 5)
    model = quantized(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), x)
    program = torch.export.export(model, (x,)).run_decompositions()
    assert "permute" in str(program.graph)
    graph = from_exported(program)
    assert not [o for o in graph.operators if o.kind.label == "transpose"]
    made = [graph.producers[o.inputs[1]] for o in graph.operators if isinstance(o.kind, Product)]
    assert [(m.kind.axis, len(m.kind.scale)) for m in made] == [(1, 7), (1, 3)]
    np.testing.assert_allclose(run(graph, x)[0], eager(model, x)[0], rtol=1e-5, atol=1e-5)


def test_passes_make_integer_products_of_them() -> None:
    x = torch.randn(1, 3, 32, 32)
    model = quantized(models.seeded(models.ResNet(4)), x)
    graph = from_exported(torch.export.export(model, (x,)))
    prepared = prepare(graph)
    products = [o for o in prepared.operators if isinstance(o.kind, Product)]
    types = [[i.dtype for i in o.kind.computation.inputs] for o in products]
    assert types == [["uint8", "int8"]] * len(products)
    error = np.abs(run(prepared, x)[0] - eager(model, x)[0])
    assert error.max() <= 4 * last_quantum(graph)


def test_a_saved_model_is_read_by_a_process_that_has_not_quantized_it(tmp_path: Path) -> None:
    x = torch.randn(2, 5)
    model = quantized(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), x)
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, (x,)), path)
    code = f"from cpembed.frontends import load_model; print(load_model({str(path)!r}).outputs)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "('linear_1',)\n", found.stderr


def test_ranges_of_activations_are_taken_when_a_model_runs() -> None:
    x = torch.randn(3, 6)
    model = quantized(
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), x, is_dynamic=True
    )
    graph = from_exported(torch.export.export(model, (x,)))
    np.testing.assert_allclose(run(graph, 3 * x)[0], eager(model, 3 * x)[0], rtol=1e-4, atol=1e-4)
    assert [type(o.kind) for o in graph.operators].count(DynamicQuantize) == 2


def test_quantizations_by_themselves() -> None:
    scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([3, 0, -5])

    def function(x: Any) -> Any:
        tensor = q8.quantize_per_tensor(x, 0.05, 7, -128, 127, torch.int8)
        narrow = q8.quantize_per_tensor(x, 0.05, 7, 3, 100, torch.uint8)
        channel = q8.quantize_per_channel(x, scales, zeros, 1, -100, 90, torch.int8)
        back = q8.dequantize_per_channel(channel, scales, zeros, 1, -100, 90, torch.int8)
        return tensor, narrow, channel, back

    # No element is half-way between two integers.
    compared(Function(function), torch.randn(4, 3) * 20 + 0.001)


def test_parameters_in_tensors() -> None:
    scale, zero = torch.tensor([0.1]), torch.tensor([3])

    def function(x: Any) -> Any:
        q = q8.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
        return q8.dequantize_per_tensor.tensor(q, scale, zero, 0, 255, torch.uint8)

    compared(Function(function), torch.randn(4, 3) + 0.001)


@pytest.mark.parametrize(
    "function, message",
    [
        (
            lambda x: q8.quantize_per_tensor(x, 0.1, 0, -32768, 32767, torch.int16),
            "int16: only int8, uint8 and int32",
        ),
        (
            lambda x: q8.quantize_per_tensor.tensor(
                x, x.abs().max(), torch.tensor(0), -128, 127, torch.int8
            ),
            "computed while the model runs",
        ),
        (
            lambda x: q8.choose_qparams.tensor(x, -128, 127, 1e-6, torch.int8)[0],
            "only 0 … 255 of uint8",
        ),
    ],
)
def test_other_quantizations_are_refused(function: Any, message: str) -> None:
    program = torch.export.export(Function(function), (torch.randn(3),))
    with pytest.raises(ModelError, match=message):
        from_exported(program)
