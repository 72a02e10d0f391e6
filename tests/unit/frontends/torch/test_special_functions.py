"""Special functions against PyTorch's own, and those that are not taken apart."""
# pyright: basic

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cpembed.errors import ModelError  # noqa: E402
from cpembed.frontends.torch import from_exported  # noqa: E402
from cpembed.frontends.torch.special_functions import special_functions  # noqa: E402
from cpembed.graph.graph import evaluate  # noqa: E402

SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e-8, 0.5, 25.0, -25.0, 80.0, 1e4, math.inf, -math.inf, math.nan)
FUNCTIONS = {
    str(operator): function
    for operator, function in special_functions().items()
    if len(operator._schema.arguments) == 1
}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_of_one_tensor_is_that_of_pytorch(name: str) -> None:
    _, function, overload = name.split(".")
    operator = getattr(getattr(torch.ops.aten, function), overload)
    random = torch.Generator().manual_seed(0)
    values = 18 * torch.rand(500, generator=random) - 9
    near = torch.rand(100, generator=random)
    x = torch.cat([values, near, torch.tensor(SPECIAL)])
    # PyTorch's own results in float32 are less exact than those in float64.
    actual, expected = FUNCTIONS[name](x), operator(x.to(torch.float64)).to(torch.float32)
    assert actual.dtype == torch.float32
    finite = torch.isfinite(expected)
    assert torch.equal(torch.isfinite(actual), finite)
    assert torch.equal(torch.nan_to_num(actual[~finite]), torch.nan_to_num(expected[~finite]))
    error = (actual - expected)[finite].abs() / (expected[finite].abs() + 1e-2)
    assert error.max() < 3e-6


def test_running_sums_of_exponentials_do_not_overflow() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.logcumsumexp(x, 1)

    x = torch.tensor([[-200.0, -150.0, 3.0, 120.0, -90.0], [300.0, 1.0, 2.0, 301.0, -math.inf]])
    graph = from_exported(torch.export.export(Model(), (x,)))
    (name,) = graph.inputs
    (result,) = evaluate(graph, {name: x.numpy()}, lambda _: False).values()
    np.testing.assert_allclose(result, Model()(x).numpy(), rtol=1e-6)


def test_what_has_no_decomposition_is_refused() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.polygamma(2, x)

    with pytest.raises(ModelError, match="polygamma"):
        from_exported(torch.export.export(Model(), (torch.ones(3),)))
