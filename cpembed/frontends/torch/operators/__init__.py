"""ATen's operators written in kinds: a table a subject, and all of them by name."""

from __future__ import annotations

from collections.abc import Mapping

from cpembed.frontends.torch.call import Handler
from cpembed.frontends.torch.operators import (
    activations,
    attention,
    images,
    indexing,
    logic,
    movement,
    normalization,
    pointwise,
    products,
    quantization,
    reductions,
    windows,
)

HANDLERS: Mapping[str, Handler] = {
    **activations.OPERATORS,
    **attention.OPERATORS,
    **images.OPERATORS,
    **indexing.OPERATORS,
    **logic.OPERATORS,
    **movement.OPERATORS,
    **normalization.OPERATORS,
    **pointwise.OPERATORS,
    **products.OPERATORS,
    **quantization.OPERATORS,
    **reductions.OPERATORS,
    **windows.OPERATORS,
}
"""By the operator's name with its overload, such as ``aten.conv2d.default``."""
