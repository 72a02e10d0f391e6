"""Translations of ONNX's operators, one module a subject."""

from __future__ import annotations

from collections.abc import Mapping

from cpembed.frontends.onnx.call import Translation
from cpembed.frontends.onnx.operators import (
    control,
    elementwise,
    movement,
    products,
    quantization,
    recurrent,
    reductions,
    resizing,
)

TRANSLATIONS: Mapping[str, Translation] = {
    **control.TABLE,
    **elementwise.TABLE,
    **movement.TABLE,
    **products.TABLE,
    **quantization.TABLE,
    **recurrent.TABLE,
    **reductions.TABLE,
    **resizing.TABLE,
}
"""Translations by operator, with the domain before its name unless it is the standard one."""
