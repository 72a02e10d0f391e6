"""torch.compile with open sizes: networks for ranges of sizes."""

import itertools
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cpembed.frontends.torch import dynamo  # noqa: E402
from cpembed.graph.family import Family, shape_at  # noqa: E402
from cpembed.graph.graph import Graph, evaluate  # noqa: E402
from cpembed.graph.instances import openness  # noqa: E402

nn = torch.nn


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The networks that are compiled for one size, run by their definitions."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    graphs: list[Graph] = []

    class Evaluated:
        def __init__(self, graph: Graph, options: dynamo.Options) -> None:
            self.graph = graph
            graphs.append(graph)

        def run(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            return evaluate(self.graph, inputs, keep=lambda name: False)

    monkeypatch.setattr(dynamo, "compile_network", Evaluated)
    return graphs


def assert_same(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual.numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)


class EvaluatedFamily:
    """Networks of a range of sizes, run by their definitions."""

    def __init__(self, family: Family) -> None:
        self.family, self.shapes, self.runs = family, openness(family).inputs, 0

    def run(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        self.runs += 1
        shapes = [array.shape for array in inputs.values()]
        (sizes,) = (
            sizes
            for sizes in itertools.product(*self.family.ranges.values())
            if [shape_at(s, self.family.named(sizes)) for s in self.shapes] == shapes
        )
        return evaluate(self.family.graph(sizes), inputs, keep=lambda name: False)


@pytest.fixture
def families(compiled: list[Graph], monkeypatch: pytest.MonkeyPatch) -> list[EvaluatedFamily]:
    """The networks that are compiled for ranges."""
    found: list[EvaluatedFamily] = []

    def compile_sizes(family: Family, target: str, **options: Any) -> EvaluatedFamily:
        found.append(EvaluatedFamily(family))
        return found[-1]

    monkeypatch.setattr("cpembed.network.compiled_model.compile_sizes", compile_sizes)
    return found


class Attention(nn.Module):
    """Attention, and beside the networks a function that PyTorch runs at open sizes."""

    def __init__(self, rest: bool = False, longest: int = 0) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 8)
        self.q, self.k, self.o = (nn.Linear(8, 8) for _ in range(3))
        self.rest = rest
        self.positions = nn.Parameter(torch.randn(longest, 8)) if longest else None

    def forward(self, x: Any) -> Any:
        h = self.table(x)
        if self.positions is not None:
            h = h + self.positions[: x.shape[1]]
        y = torch.softmax(self.q(h) @ self.k(h).transpose(1, 2), -1) @ h
        if self.rest:
            y = torch.special.bessel_j0(y).reshape(x.shape[0], x.shape[1], -1)
        return self.o(y)


LENGTHS = (5, 9, 3, 12, 7, 5)


@pytest.mark.parametrize("rest", [False, True])
def test_networks_are_compiled_for_ranges_of_open_sizes(
    families: list[EvaluatedFamily], compiled: list[Graph], rest: bool
) -> None:
    model = Attention(rest).eval().requires_grad_(False)
    fast = torch.compile(model, backend=dynamo.backend, options={"rest": "eager"}, dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for length in LENGTHS:
            x = torch.randint(0, 30, (2, length))
            assert_same(fast(x), model(x))
    assert not compiled
    assert len(families) == (2 if rest else 1)
    assert all(family.runs == len(LENGTHS) for family in families)
    assert all(32 in {r[-1] for r in f.family.ranges.values()} for f in families)
    # A size beyond the range makes it larger.
    x = torch.randint(0, 30, (2, 40))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(fast(x), model(x))
    assert len(families) == (4 if rest else 2)


def test_ranges_are_those_of_marks(families: list[EvaluatedFamily]) -> None:
    model = Attention().eval().requires_grad_(False)
    fast = torch.compile(model, backend=dynamo.backend, options={"rest": "eager"})
    for length in (3, 40, 64):
        x = torch.randint(0, 30, (2, length))
        torch._dynamo.mark_dynamic(x, 1, min=2, max=64)
        assert_same(fast(x), model(x))
    (family,) = families
    assert family.runs == 3
    assert [*family.family.ranges.values()] == [range(2, 65)]


def test_a_range_ends_where_a_module_has_no_larger_sizes(
    families: list[EvaluatedFamily], compiled: list[Graph]
) -> None:
    model = Attention(longest=10).eval().requires_grad_(False)
    fast = torch.compile(model, backend=dynamo.backend, options={"rest": "eager"}, dynamic=True)
    for length in (6, 4, 10):
        x = torch.randint(0, 30, (2, length))
        assert_same(fast(x), model(x))
    assert not compiled
    assert families


def test_open_sizes_that_need_kernels_each_are_compiled_by_size(
    families: list[EvaluatedFamily], compiled: list[Graph]
) -> None:
    class Normalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return nn.functional.layer_norm(self.linear(x).transpose(0, 1), (x.shape[0],))

    model = Normalized().eval().requires_grad_(False)
    fast = torch.compile(model, backend=dynamo.backend, options={"rest": "eager"}, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        assert_same(fast(x), model(x))
    assert not families
    assert len(compiled) == 2


def test_tensors_that_are_not_contiguous_have_networks_of_their_own(
    families: list[EvaluatedFamily], compiled: list[Graph]
) -> None:
    model = Attention().eval().requires_grad_(False)
    fast = torch.compile(model, backend=dynamo.backend, options={"rest": "eager"}, dynamic=True)
    for _ in range(2):
        x = torch.randint(0, 30, (5, 3)).T
        assert_same(fast(x), model(x))
    assert (len(families), len(compiled)) == (0, 1)
