"""Elements that PyTorch and numpy hold for each other."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cpembed.frontends import load_model  # noqa: E402
from cpembed.frontends.torch.arrays import as_array, as_tensor  # noqa: E402
from cpembed.frontends.torch.nodes import array_of  # noqa: E402
from cpembed.graph.graph import evaluate  # noqa: E402


class Scaled(torch.nn.Module):
    """An operator of a number that only PyTorch computes."""

    def forward(self, x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x * torch.special.i0(s)


def test_a_number_of_an_operator_that_pytorch_computes_has_no_axes(tmp_path: Path) -> None:
    x, s = torch.randn(2, 3), torch.tensor(0.5)
    torch.export.save(torch.export.export(Scaled(), (x, s)), tmp_path / "scaled.pt2")
    graph = load_model(tmp_path / "scaled.pt2", fallback="torch")
    values = evaluate(graph, {"x": x.numpy(), "s": s.numpy()})
    np.testing.assert_allclose(values[graph.outputs[0]], Scaled()(x, s).numpy(), 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_constant_stays_when_the_parameter_changes(dtype: torch.dtype) -> None:
    parameter = torch.ones(3, dtype=dtype)
    constant = array_of(parameter)
    parameter.zero_()
    assert constant.astype(np.float32).tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_any_order_and_number_of_axes_return_as_they_were(dtype: torch.dtype) -> None:
    for tensor in (torch.tensor(1.0), torch.arange(6.0).reshape(2, 3).T):
        typed = tensor.to(dtype)
        assert torch.equal(as_tensor(as_array(typed)), typed)
        # Columns first in memory.
        assert torch.equal(as_tensor(as_array(typed).T), typed.mT if typed.ndim else typed)
