"""ATen's operators written in kinds: a table a subject, and all of them by name."""

from __future__ import annotations

from collections.abc import Mapping

from cpembed.frontends.torch.call import Handler
from cpembed.frontends.torch.operators import (
    activations,
    attention,
    images,
    indexing,
    movement,
    normalization,
    pointwise,
    products,
    quantization,
    reductions,
    windows,
)

HANDLERS: Mapping[str, Handler] = {
    name: handler
    for module in (
        activations,
        attention,
        images,
        indexing,
        movement,
        normalization,
        pointwise,
        products,
        quantization,
        reductions,
        windows,
    )
    for name, handler in module.OPERATORS.items()
}
"""By the operator's name with its overload, such as ``aten.conv2d.default``."""
