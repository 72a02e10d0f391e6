"""Layer normalization and softmax, written out as exporters write them."""

import numpy as np
import pytest

from cpembed.graph.graph import Graph
from cpembed.graph.kinds import Input, LayerNorm, Reduce, Scalar, Softmax
from cpembed.graph.passes import prepare
from cpembed.graph.passes.normalizations import recognize_normalizations
from cpembed.ir.scalars import apply
from tests.random_networks import Network, largest_difference

SQUARES: dict[str, Scalar] = {
    "pow": apply("pow", Input(0), 2.0),
    "mul": apply("mul", Input(0), Input(0)),
}


def norm(
    net: Network,
    x: str,
    axes: tuple[int, ...],
    square: Scalar,
    variance_axes: tuple[int, ...] | None = None,
    mean_of: str | None = None,
) -> str:
    mean = net.add(Reduce("mean", axes, True), mean_of or x)
    centred = net.elementwise(apply("sub", Input(0), Input(1)), x, mean)
    squares = net.elementwise(square, centred)
    variance = net.add(Reduce("mean", variance_axes or axes, True), squares)
    root = net.elementwise(
        apply("sqrt", Input(0)), net.elementwise(apply("add", Input(0), 1e-5), variance)
    )
    return net.elementwise(apply("div", Input(0), Input(1)), centred, root)


@pytest.mark.parametrize("axes", [(-1,), (1, 2)])
@pytest.mark.parametrize("square", SQUARES)
def test_layer_normalization(square: str, axes: tuple[int, ...]) -> None:
    net = Network(1)
    y = norm(net, net.input((3, 5, 8), "float32"), axes, SQUARES[square])
    shape = (8,) if axes == (-1,) else (5, 8)
    for operation in ("mul", "add"):
        constant = net.constant(net.array(shape, "float32"))
        y = net.elementwise(apply(operation, Input(0), Input(1)), constant, y)
    graph = net.graph(y)
    changed = recognize_normalizations(graph)
    assert [type(o.kind) for o in changed.operators] == [LayerNorm]
    assert largest_difference(graph, changed, net.samples()) < 1e-5


def test_layer_normalization_without_a_scale() -> None:
    net = Network(2)
    x = net.input((3, 5, 8), "float32")
    graph = net.graph(norm(net, x, (2,), SQUARES["pow"]))
    changed = prepare(graph)
    assert [type(o.kind) for o in changed.operators] == [LayerNorm]
    assert largest_difference(graph, changed, net.samples()) < 1e-5


SQUARE = SQUARES["mul"]


@pytest.mark.parametrize(
    "axes, variance_axes, square",
    [((1,), (1,), SQUARE), ((2,), (1, 2), SQUARE), ((2,), (2,), apply("abs", Input(0)))],
)
def test_quotients_by_another_mean_of_squares_keep_their_difference(
    axes: tuple[int, ...], variance_axes: tuple[int, ...], square: Scalar
) -> None:
    net = Network(3)
    x = net.input((3, 5, 8), "float32")
    graph = net.graph(norm(net, x, axes, square, variance_axes))
    require_no_centring(net, graph)


def test_a_distance_to_another_mean_stays() -> None:
    net = Network(4)
    x, other = (net.input((3, 5, 8), "float32") for _ in range(2))
    graph = net.graph(norm(net, x, (2,), SQUARE, mean_of=other))
    require_no_centring(net, graph)


def require_no_centring(net: Network, graph: Graph) -> None:
    """Require that the difference from a mean stays, and all results with it."""
    changed = recognize_normalizations(graph)
    kinds = [o.kind for o in changed.operators]
    assert not any(kind.centres for kind in kinds if isinstance(kind, LayerNorm))
    assert largest_difference(graph, changed, net.samples()) < 1e-5


@pytest.mark.parametrize("shifted", [False, True])
def test_softmax(shifted: bool) -> None:
    net = Network(4)
    x = net.input((3, 5, 8), "float32")
    y = x
    if shifted:
        largest = net.add(Reduce("max", (1,), True), x)
        y = net.elementwise(apply("sub", Input(0), Input(1)), x, largest)
    y = net.elementwise(apply("exp", Input(0)), y)
    total = net.add(Reduce("sum", (1,), True), y)
    graph = net.graph(net.elementwise(apply("div", Input(0), Input(1)), y, total))
    changed = recognize_normalizations(graph)
    if not shifted:
        # Powers of large numbers are infinite there, and their quotients no numbers.
        assert changed == graph
        return
    assert [o.kind for o in changed.operators] == [Softmax(1)]
    assert largest_difference(graph, changed, net.samples()) < 1e-6
    assert np.isfinite(net.values[y]).all()


ROOT = apply("sqrt", Input(0))
RECIPROCALS: dict[str, tuple[Scalar, ...]] = {
    "quotient": (ROOT,),
    "reciprocal of a root": (ROOT, apply("div", 1.0, Input(0))),
    "reciprocal root": (apply("div", 1.0, ROOT),),
    "power": (apply("pow", Input(0), -0.5),),
}


@pytest.mark.parametrize("axes", [(-1,), (1, 2)])
@pytest.mark.parametrize("form", RECIPROCALS)
def test_normalization_by_the_root_mean_square(form: str, axes: tuple[int, ...]) -> None:
    net = Network(3)
    x = net.input((3, 5, 8), "float32")
    squares = net.elementwise(SQUARES["pow"], x)
    y = net.elementwise(apply("add", Input(0), 1e-5), net.add(Reduce("mean", axes, True), squares))
    for step in RECIPROCALS[form]:
        y = net.elementwise(step, y)
    y = net.elementwise(apply("div" if form == "quotient" else "mul", Input(0), Input(1)), x, y)
    shape = (8,) if axes == (-1,) else (5, 8)
    weights = net.constant(net.array(shape, "float32"))
    graph = net.graph(net.elementwise(apply("mul", Input(0), Input(1)), weights, y))
    changed = recognize_normalizations(graph)
    (operator,) = changed.operators
    assert isinstance(operator.kind, LayerNorm)
    assert not operator.kind.centres
    assert largest_difference(graph, changed, net.samples()) < 1e-5


def test_a_root_of_squares_of_something_else_stays() -> None:
    net = Network(4)
    x, z = (net.input((3, 5, 8), "float32") for _ in range(2))
    mean = net.add(Reduce("mean", (-1,), True), net.elementwise(SQUARES["mul"], z))
    root = net.elementwise(ROOT, net.elementwise(apply("add", Input(0), 1e-5), mean))
    graph = net.graph(net.elementwise(apply("div", Input(0), Input(1)), x, root))
    assert recognize_normalizations(graph) == graph
