"""Recurrent layers of PyTorch as loops, beside PyTorch's own results."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cpembed.errors import ModelError  # noqa: E402
from cpembed.frontends import load_model  # noqa: E402
from cpembed.frontends.torch import from_exported  # noqa: E402
from cpembed.graph.loop import Loop, nested_operators  # noqa: E402
from tests.unit.frontends.torch.comparing import compared, eager, run  # noqa: E402

nn = torch.nn


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN], ids=lambda layer: layer.__name__)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 2, "bidirectional": True},
        {"num_layers": 2, "batch_first": True, "bias": False, "dropout": 0.5},
    ],
    ids=str,
)
def test_a_recurrent_layer(layer: Any, options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = layer(5, 3, **options), torch.randn(6, 2, 5)

    class Outputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = model

        def forward(self, x: torch.Tensor) -> Any:
            sequence, last = self.layer(x)
            return (sequence, *last) if isinstance(last, tuple) else (sequence, last)

    outputs = Outputs().eval()
    graph = compared(outputs, x)
    assert {times for _, _, times in nested_operators(graph)} == {
        1,
        x.shape[options.get("batch_first", 0)],
    }
    torch.export.save(torch.export.export(outputs, (x,)), tmp_path / "layer.pt2")
    for mine, theirs in zip(
        run(load_model(tmp_path / "layer.pt2"), x), eager(outputs, x), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, 1e-5, 1e-5)


def test_other_activations_and_initial_states() -> None:
    torch.manual_seed(0)
    layer = nn.RNN(5, 3, nonlinearity="relu")
    compared(layer, torch.randn(6, 2, 5), torch.randn(1, 2, 3))


def test_projections_are_refused() -> None:
    model = nn.LSTM(5, 4, proj_size=3).eval()
    program = torch.export.export(model, (torch.randn(6, 2, 5),))
    with pytest.raises(ModelError, match="its states are projected"):
        from_exported(program)


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin() @ x, lambda x: x.abs(), (x,))


class While(nn.Module):
    def forward(self, x: torch.Tensor, k: torch.Tensor) -> Any:
        def going(x: torch.Tensor, k: torch.Tensor) -> Any:
            return (x.sum() < 100) & (k < 20)

        def body(x: torch.Tensor, k: torch.Tensor) -> Any:
            return x * 2 + 1, k + 1

        return torch._higher_order_ops.while_loop(going, body, (x, k))


class Scanned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(4, 3))

    def forward(self, s: torch.Tensor, x: torch.Tensor) -> Any:
        from torch._higher_order_ops.scan import scan

        def combine(s: torch.Tensor, x: torch.Tensor) -> Any:
            new = torch.tanh(s + x @ self.weights)
            return new, new * 2

        return scan(combine, s, x)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_branch(sign: int) -> None:
    compared(Branch(), sign * torch.rand(3, 3))


@pytest.mark.parametrize("start", [0.0, 1000.0])
def test_a_while_loop(start: float) -> None:
    compared(While(), torch.full((3,), start), torch.tensor(0))


def test_a_scan() -> None:
    torch.manual_seed(0)
    graph = compared(Scanned(), torch.randn(2, 3), torch.randn(5, 2, 4))
    assert any(isinstance(operator.kind, Loop) for operator in graph.operators)
