"""PyTorch's own database of operators: what loads is right, what is refused is refused in one line.

The slow tests take all operators; a quick one takes a few that were once read wrongly.
"""

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's database of operators imports it")


@functools.cache
def database() -> Any:
    """The script in benchmarks, loaded when a test runs: the database takes seconds to import."""
    path = Path(__file__).parents[4] / "benchmarks" / "operators_torch.py"
    spec = importlib.util.spec_from_file_location("operators_torch", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


QUICK = (
    "nn.functional.interpolate.nearest-exact",
    "nn.functional.dropout",
    "nn.functional.scaled_dot_product_attention",
    "nn.functional.avg_pool2d",
    "softmax",
    "remainder",
    "floor_divide",
    "isinf",
    "logsumexp",
)
PARTS = 48
"""Tests among which all operators are divided."""


def check(names: Any, samples: int) -> None:
    wrong = [
        f"{item.operator} {item.dtype} sample {item.sample}: {item.result}: {item.message}"
        for name in names
        for item in database().outcomes(name, samples)
        if item.result in (database().WRONG, database().BROKEN)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", QUICK)
def test_an_operator(name: str) -> None:
    check([name], 3)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_all_operators(part: int) -> None:
    check(database().names()[part::PARTS], database().SAMPLES)


@pytest.mark.slow
def test_compiled_operators() -> None:
    """One sample of each operator in a share of them, compiled for this processor."""
    from cpembed.errors import ModelError
    from cpembed.frontends.torch.dynamo import best_target

    try:
        target = best_target()
    except ModelError as error:
        pytest.skip(str(error))
    wrong = {
        name: said
        for name in database().COMPILED
        if (said := database().compiled_difference(name, target))
    }
    assert not wrong
