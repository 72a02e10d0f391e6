"""Inputs of operators: tensors that are the same at every call."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

Case = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function, and what it is called with."""


def floats(*shape: int) -> Any:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(*shape, generator=generator)


def positive(*shape: int) -> Any:
    return floats(*shape).abs() + 0.1


def integers(*shape: int, low: int = -9, high: int = 10, dtype: Any = torch.int64) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(low, high, shape, generator=generator, dtype=dtype)


def booleans(*shape: int) -> Any:
    return floats(*shape) > 0


X, Y, ROW = floats(2, 3, 4), floats(2, 3, 4) * 2 + 0.3, floats(4)
IMAGE = floats(2, 4, 7, 9)
