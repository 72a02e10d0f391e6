"""Strategies of TensorIR functions, and the example."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from tvm import te, topi

from cpembed.errors import WorkloadError
from cpembed.integrations import tvm as plugin
from tests.unit.integrations.tvm.modules import random, run

ROOT = Path(__file__).parents[3]


def convolution(dtype="int8"):
    a, w = te.placeholder((1, 8, 6, 6), dtype, "A"), te.placeholder((16, 8, 3, 3), dtype, "W")
    wide = "int32" if dtype == "int8" else dtype
    out = topi.nn.conv2d(a, w, 1, 1, 1, "NCHW", "OIHW", wide)
    return te.create_prim_func([a, w, out])


def test_every_candidate_computes_the_function():
    found = plugin.strategy(convolution(), "vta_1x16x16", constraints="relaxed", top=3)
    assert len(found.candidates) + len(found.refused) == 3
    assert found.candidates
    data, weight = random(1, (1, 8, 6, 6)).astype("int64"), random(2, (16, 8, 3, 3)).astype("int64")
    padded = np.pad(data[0], ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    expected = np.einsum("cpqrs,kcrs->kpq", windows, weight)[None]
    for candidate in found.candidates:
        result = run(candidate.module(), data.astype("int8"), weight.astype("int8"))
        assert np.array_equal(result, expected)


def test_why_a_function_has_no_candidate_is_said():
    found = plugin.strategy(convolution(), "vta_1x16x16", constraints="strict")
    assert found.candidates == ()
    assert len(found.refused) == 1
    assert "8" in found.refused[0]


def test_other_element_types_are_refused():
    with pytest.raises(WorkloadError, match="float32"):
        plugin.strategy(convolution("float32"), "vta_1x16x16")


@pytest.mark.slow
def test_the_example_network_gives_the_same_scores(capsys):
    spec = importlib.util.spec_from_file_location("vta_network", ROOT / "examples/vta_network.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.main()
    printed = capsys.readouterr().out
    assert "3 of 3 operators replaced" in printed
    assert "requantized" in printed
