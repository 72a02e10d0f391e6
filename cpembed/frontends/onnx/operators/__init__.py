"""Translations of ONNX's operators, one module a subject."""

from __future__ import annotations

from collections.abc import Mapping

from cpembed.frontends.onnx.call import Translation
from cpembed.frontends.onnx.operators import (
    attention,
    classical,
    contributed,
    control,
    elementwise,
    grouped,
    indices,
    movement,
    products,
    quantization,
    recurrent,
    reductions,
    resizing,
    sampling,
    trees,
)

TRANSLATIONS: Mapping[str, Translation] = {
    **attention.TABLE,
    **classical.TABLE,
    **contributed.TABLE,
    **control.TABLE,
    **elementwise.TABLE,
    **grouped.TABLE,
    **indices.TABLE,
    **movement.TABLE,
    **products.TABLE,
    **quantization.TABLE,
    **recurrent.TABLE,
    **reductions.TABLE,
    **resizing.TABLE,
    **sampling.TABLE,
    **trees.TABLE,
}
"""Translations by operator, with the domain before its name unless it is the standard one."""
