"""Forms of maximum pools with padding around negative elements, against their definition."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cpembed.accelerator.lemmas import extremum_from_copy, rewritten
from cpembed.accelerator.operators import operator_forms
from cpembed.accelerator.operators.forms import NoForm, OperatorForm
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Pool, TensorType
from tests.unit.accelerator.operators.evaluation import evaluated


def pooled(seed: int) -> Graph:
    """Return a graph of one maximum pool of random windows; each window has an element inside."""
    draw = random.Random(seed)
    window = (draw.randint(1, 4), draw.randint(1, 4))
    dilation = (draw.randint(1, 2), draw.randint(1, 2))
    sizes = tuple(d * (w - 1) + draw.randint(1, 7) for d, w in zip(dilation, window, strict=True))
    pads = [tuple(draw.randint(0, w // 2) for w in window) for _ in range(2)]
    strides = (draw.randint(1, 3), draw.randint(1, 3))
    kind = Pool("max", window, strides, pads[0], pads[1], dilation)
    shape = (1, draw.randint(1, 5), *sizes)
    operator = Operator("pool", kind, ("x",), ("y",))
    return Graph("one", {"x": TensorType(shape, "int8")}, ("y",), {}, (operator,))


@pytest.mark.parametrize("seed", range(40))
def test_every_form_of_a_maximum_pool_is_the_pool(seed: int) -> None:
    graph = pooled(seed)
    (operator,) = graph.operators
    forms = operator_forms(operator, graph)
    if isinstance(forms, NoForm):
        # No tap is inside of the image for all results.
        assert "inside" in forms.reason
        return
    shape = graph.types["x"].shape
    x = np.random.default_rng(seed).integers(-128, 0, shape).astype(np.int8)
    (expected,) = operator.kind.evaluate([x])
    for form in forms:
        np.testing.assert_array_equal(evaluated(form, {"x": x})["y"], expected)
        begun = rewritten(form.specification, lambda s, _: extremum_from_copy(s))
        assert begun is not None
        result = evaluated(OperatorForm(begun, form.tensors), {"x": x})["y"]
        np.testing.assert_array_equal(result, expected)


def test_most_pools_have_a_form() -> None:
    graphs = [pooled(seed) for seed in range(40)]
    assert sum(bool(operator_forms(g.operators[0], g)) for g in graphs) >= 30
