"""PyTorch's own database of operators: what loads is right, what is refused is refused in one line.

The slow tests take all operators; a quick one takes a few that were once read wrongly.
"""

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's database of operators imports it")


def database() -> Any:
    """The script in benchmarks, imported when a test runs: the database takes seconds to import."""
    from benchmarks import torch_operators

    return torch_operators


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
    from cpembed.errors import BackendUnavailable
    from cpembed.targets.registry import native_target

    try:
        target = native_target().name
    except BackendUnavailable as error:
        pytest.skip(str(error))
    wrong = {
        name: said
        for name in database().COMPILED
        if (said := database().compiled_difference(name, target))
    }
    assert not wrong
