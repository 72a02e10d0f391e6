"""Handlers of ATen's operators, one module a subject."""

from __future__ import annotations

from collections.abc import Mapping

from cpembed.frontends.torch.call import Handler
from cpembed.frontends.torch.operators import (
    elementwise,
    indices,
    movement,
    products,
    quantization,
    recurrent,
    reductions,
)

HANDLERS: Mapping[str, Handler] = {
    **elementwise.HANDLERS,
    **indices.HANDLERS,
    **movement.HANDLERS,
    **products.HANDLERS,
    **quantization.HANDLERS,
    **recurrent.HANDLERS,
    **reductions.HANDLERS,
}
"""Handlers by the operator's name with its overload, such as ``aten.conv2d.default``."""
