"""The page on adding an operator: its examples work as printed."""

import re
from pathlib import Path

import numpy as np
import pytest

from cpembed.errors import WorkloadError
from cpembed.ir.reference import random_inputs, reference
from cpembed.workloads.operators import OPERATORS

PAGE = Path(__file__).parents[3] / "docs" / "add-an-operator.md"


def test_the_example_on_the_page_is_an_operator():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    scope = {"__name__": "example", "np": np}
    exec(blocks[0], scope)
    computation = scope["batched_gemv"].workload({"b": "2", "i": "3", "j": "4", "dtype": "int8"})
    assert computation == scope["batched_gemv"](b=2, i=3, j=4)
    with pytest.raises(WorkloadError, match="j=0 is less than 1; batched_gemv takes b i j"):
        scope["batched_gemv"](b=2, i=3, j=0)

    checked = []

    def check(computation, expected):
        inputs = random_inputs(computation, 0)
        wide = [array.astype(np.int64) for array in inputs.values()]
        np.testing.assert_array_equal(reference(computation, inputs), expected(*wide))
        checked.append(computation)

    scope["check"] = check
    exec(blocks[2], scope)
    scope["test_batched_gemv"]()
    assert checked == [computation]


def test_the_convolution_on_the_page_is_an_operator():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    scope = {"__name__": "example"}
    exec(blocks[1], scope)
    sizes = {"n": 2, "c": 3, "w": 9, "k": 4, "s": 3, "pad": 1, "stride": 2, "layout": "NWC"}
    computation = scope["rows_only"](**sizes)
    assert computation.statements == OPERATORS["conv1d"](**sizes).statements
    assert computation.output.shape == (2, 5, 4)
