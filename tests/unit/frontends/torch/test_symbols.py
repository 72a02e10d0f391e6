# pyright: basic
"""Exported programs whose sizes are open: expressions of sizes, and graphs at sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from cpembed.errors import ModelError  # noqa: E402
from cpembed.frontends import load_model, load_network  # noqa: E402
from cpembed.frontends.torch.symbols import evaluated  # noqa: E402
from cpembed.graph.family import Family  # noqa: E402
from cpembed.graph.graph import evaluate  # noqa: E402

S = "Symbol('s0', positive=True, integer=True)"


@pytest.mark.parametrize("text, value", [
    (S, 6),
    ("Integer(7)", 7),
    (f"Add(Mul(Integer(2), {S}), Integer(-1))", 11),
    (f"Pow({S}, Integer(2))", 36),
    (f"FloorDiv({S}, Integer(4))", 1),
    (f"Mod({S}, Integer(4))", 2),
    (f"Max(Integer(3), {S}, Integer(5))", 6),
])  # fmt: skip
def test_expressions_of_sizes(text: str, value: int) -> None:
    assert evaluated("p", text, {"s0": 6}) == value


@pytest.mark.parametrize("text", [
    "__import__('os').getpid()", "open('x')", "(lambda: 3)()", "Integer(True)", "[].append",
    f"Pow({S}, Integer(999999999))", f"Pow(Pow(Pow({S}, Integer(8)), Integer(8)), Integer(8))",
    f"FloorDiv({S}, Integer(0))", "Symbol(3)", "Integer(1, 2)", "1 +", "Unknown(Integer(1))",
    "-" * 5000 + "1", "x" * 20_000,
])  # fmt: skip
def test_nothing_else_is_computed(text: str) -> None:
    with pytest.raises(ModelError) as caught:
        evaluated("p", text, {"s0": 6})
    assert len(str(caught.value)) < 200


def test_a_size_that_depends_on_data() -> None:
    with pytest.raises(ModelError, match="the size u0 depends on data"):
        evaluated("p", "Symbol('u0', integer=True)", {"s0": 6})


def saved(model: nn.Module, example: Any, shapes: Any, path: Path) -> Path:
    torch.export.save(torch.export.export(model.eval(), example, dynamic_shapes=shapes), path)
    return path


class Shifted(nn.Module):
    """Numbers that are computed of a size, in arguments and in arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        n = x.shape[0]
        y = self.linear(x).reshape(2 * n, 2)
        return y[: 2 * n - 1] * (1.0 / n)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("open")
    shapes = ({0: torch.export.Dim("batch", min=2, max=8)},)
    return saved(Shifted(), (torch.randn(3, 6),), shapes, folder / "shifted.pt2")


@pytest.mark.parametrize("batch", [2, 5, 8])
def test_a_program_at_a_size(path: Path, batch: int) -> None:
    graph = load_model(path, {"x": (batch, 6)})
    x = np.random.default_rng(batch).normal(size=(batch, 6)).astype(np.float32)
    (result,) = evaluate(graph, {"x": x}, lambda name: False).values()
    expected = torch.export.load(path).module()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_a_dimension_has_the_name_of_its_place(path: Path) -> None:
    assert load_model(path, {"x.0": 4}).inputs["x"].shape == (4, 6)
    family = load_network(path, {"x": (range(2, 9), 6)})
    assert isinstance(family, Family)
    assert family.ranges == {"x.0": range(2, 9)}


@pytest.mark.parametrize("shapes, said", [
    ({}, "dimension 0 of input x is left open"),
    ({"x": (9, 6)}, "a size is 9, and the program was exported for 2 to 8"),
    ({"x": (4, 7)}, "dimension 1 of input x is 6 in the program, not 7"),
    ({"y": (4, 6)}, "has no input y: its inputs are x, its open dimensions x.0"),
])  # fmt: skip
def test_sizes_that_do_not_fit(path: Path, shapes: Any, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(path, shapes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
