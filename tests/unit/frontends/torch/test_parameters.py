"""When networks that hold parameters as constants are compiled anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cpembed.frontends.torch.dynamo import Compiled, Options  # noqa: E402

SIZE = 1000


class Frozen(Compiled):
    """Adds the parameter that was there when it was compiled."""

    compilations = 0

    def _build(self, arguments: Sequence[Any]) -> Callable[..., Any]:
        self.compilations += 1
        weight = arguments[0].clone()
        return lambda x: x + weight


@pytest.fixture
def frozen() -> Frozen:
    graph = torch.fx.Graph()
    weight = graph.placeholder("weight", torch.nn.Parameter)
    graph.output(graph.call_function(torch.add, (weight, graph.placeholder("x"))))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    return Frozen(module, Options(), lambda graph: pytest.fail(f"{graph} is compiled"))


def parameter(value: float) -> Any:
    return torch.nn.Parameter(torch.full((SIZE,), value), requires_grad=False)


def test_a_parameter_at_the_address_of_one_that_is_gone_is_read(frozen: Frozen) -> None:
    x = torch.zeros(SIZE)
    for number in range(50):
        weight = parameter(float(number))
        assert torch.equal(frozen(weight, x), weight)
        del weight


def test_a_parameter_that_is_written_to_is_read_again(frozen: Frozen) -> None:
    x, weight = torch.zeros(SIZE), parameter(1.0)
    for value in range(3):
        weight.mul_(2.0)
        assert torch.equal(frozen(weight, x), weight)
        assert frozen.compilations == value + 1


def test_a_parameter_without_a_count_of_writes_is_compared(frozen: Frozen) -> None:
    x = torch.zeros(4)
    with torch.inference_mode():
        weight = torch.ones(4)
        assert torch.equal(frozen(weight, x), weight)
        assert torch.equal(frozen(weight, x), weight)
        weight[2] = 5.0
        assert torch.equal(frozen(weight, x), weight)
    assert frozen.compilations == 2
