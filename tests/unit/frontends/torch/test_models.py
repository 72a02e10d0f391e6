"""Models as graphs, beside PyTorch's own results."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cpembed.frontends import load_model  # noqa: E402
from cpembed.frontends.torch import from_exported  # noqa: E402
from cpembed.graph.kinds import Product  # noqa: E402
from tests.unit.frontends.torch import models  # noqa: E402
from tests.unit.frontends.torch.comparing import compared, eager, run  # noqa: E402

nn = torch.nn


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def products(graph: Any) -> list[str]:
    return [o.kind.label for o in graph.operators if isinstance(o.kind, Product)]


def test_a_residual_network() -> None:
    graph = compared(models.seeded(models.ResNet()), torch.randn(2, 3, 32, 32))
    assert products(graph) == ["conv2d"] * 15 + ["gemm"]
    # The batch normalisations are in the weights: what is left of them is a bias.
    labels = {o.kind.label for o in graph.operators}
    assert labels == {"conv2d", "add", "max", "max pool", "reduce mean", "reshape", "gemm"}


def test_operators_are_named_by_their_modules() -> None:
    graph = compared(models.seeded(models.ResNet()), torch.randn(1, 3, 32, 32))
    assert "blocks.2.shortcut.0/conv2d_7" in [o.name for o in graph.operators]
    assert list(graph.inputs) == ["x"]
    assert graph.outputs == ("linear",)


@pytest.mark.parametrize(
    "model, shape, expected",
    [
        (models.InvertedResidual, (2, 8, 9, 9), ["conv2d", "depthwise", "conv2d"]),
        (models.SqueezeExcitation, (2, 8, 5, 5), ["conv2d", "conv2d"]),
        (models.UNet, (1, 1, 16, 16), ["conv2d"] * 3 + ["transposed_conv2d"] + ["conv2d"] * 2),
        (models.Attention, (2, 6, 16), ["gemm"] + ["batched_gemm"] * 2 + ["gemm"] * 4),
    ],
)
def test_a_block(model: Any, shape: tuple[int, ...], expected: list[str]) -> None:
    graph = compared(models.seeded(model()), torch.randn(shape))
    assert products(graph) == expected


def test_a_transformer_layer() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, activation="gelu")
    graph = compared(layer, torch.randn(5, 2, 16))
    second = [o.kind.computation.inputs[1] for o in graph.operators if isinstance(o.kind, Product)]
    assert [operand.varies for operand in second] == [False, True, True, False, False, False]


def test_recurrences_are_unrolled() -> None:
    compared(models.Recurrent(), torch.randint(0, 11, (2, 5)))


def test_a_batch_normalisation_without_a_product_before_it() -> None:
    model = nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.BatchNorm2d(4))
    graph = compared(models.seeded(model), torch.randn(2, 4, 6, 6))
    assert [o.kind.label for o in graph.operators].count("fma") == 2


def test_a_product_that_others_read_keeps_its_weights() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x: Any) -> Any:
            y = self.conv(x)
            return y + self.norm(y)

    graph = compared(models.seeded(Shared()), torch.randn(1, 3, 5, 5))
    assert products(graph) == ["conv2d"]


@pytest.mark.parametrize(
    "product, shape",
    [
        (nn.Linear(5, 6), (3, 5)),
        (nn.Conv1d(4, 6, 3, groups=2, bias=False), (2, 4, 9)),
        (nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2), (2, 4, 9)),
    ],
)
def test_batch_normalisations_scale_the_weights_before_them(
    product: Any, shape: tuple[int, ...]
) -> None:
    model = models.seeded(nn.Sequential(product, nn.BatchNorm1d(6)))
    graph = compared(model, torch.randn(shape))
    assert "fma" not in [o.kind.label for o in graph.operators]


def test_a_saved_program_is_read(tmp_path: Path) -> None:
    model, x = models.seeded(models.InvertedResidual()), torch.randn(1, 8, 5, 5)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "block.pt2")
    graph = load_model(tmp_path / "block.pt2")
    assert graph.name == "block"
    np.testing.assert_allclose(run(graph, x)[0], eager(model, x)[0], rtol=1e-5, atol=1e-5)


def test_no_gradient_blocks_are_part_of_a_model() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                y = self.a(x)
            return self.b(y)

    compared(Frozen(), torch.randn(2, 4))


def test_bfloat16_is_computed_in_float32() -> None:
    model = nn.Linear(8, 4).to(torch.bfloat16)
    x = torch.randn(2, 8).to(torch.bfloat16)
    graph = from_exported(torch.export.export(model, (x,)))
    assert graph.types[graph.outputs[0]].dtype == "bfloat16"
    import ml_dtypes

    from cpembed.graph.graph import evaluate

    given = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    found = evaluate(graph, {"input": given})[graph.outputs[0]].astype(np.float32)
    np.testing.assert_allclose(found, eager(model.float(), x.float())[0], rtol=0.02, atol=0.02)
