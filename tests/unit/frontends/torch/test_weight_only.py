"""Weight-only products of PyTorch, beside its own."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cpembed.frontends.torch.lowering import from_exported  # noqa: E402
from cpembed.graph.graph import evaluate  # noqa: E402
from cpembed.graph.kinds import GroupedProduct  # noqa: E402
from cpembed.ir.dtypes import numpy_dtype  # noqa: E402


class Linear(torch.nn.Module):
    """Product with rows of int8."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        weight = torch.randint(-128, 128, (32, 64), generator=generator)
        self.register_buffer("weight", weight.to(torch.int8))
        self.register_buffer("scales", torch.rand(32, generator=generator).to(torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._weight_int8pack_mm(x, self.weight, self.scales)


def test_rows_of_int8_stay_bytes() -> None:
    model, x = Linear(), torch.randn(3, 64).to(torch.bfloat16)
    graph = from_exported(torch.export.export(model, (x,)))
    (kind,) = (o.kind for o in graph.operators if isinstance(o.kind, GroupedProduct))
    assert (kind.weights.bits, kind.weights.block) == (8, 64)
    assert not any(
        array.dtype == np.float32 and array.size > 64 for array in graph.constants.values()
    )
    (name,) = graph.inputs
    values = evaluate(
        graph, {name: x.float().numpy().astype(numpy_dtype(graph.inputs[name].dtype))}
    )
    result = values[graph.outputs[0]]
    expected = model(x).float().numpy()
    np.testing.assert_allclose(result.astype(np.float32), expected, 2e-2, 0.2)
