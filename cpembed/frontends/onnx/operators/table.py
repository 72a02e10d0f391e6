"""Every operator that has a translation, by its name; with its domain before it where that is not
the standard one."""

from __future__ import annotations

from collections.abc import Mapping

from cpembed.frontends.onnx.operators import (
    constants,
    control,
    convolution,
    einsum,
    elementwise,
    fused,
    indexing,
    integers,
    matrices,
    movement,
    pooling,
    qlinear,
    quantization,
    recurrent,
    reductions,
    resizing,
)
from cpembed.frontends.onnx.site import Translation

STANDARD_DOMAINS = frozenset({"ai.onnx", ""})

TRANSLATIONS: Mapping[str, Translation] = {
    **constants.TABLE,
    **control.TABLE,
    **convolution.TABLE,
    **einsum.TABLE,
    **elementwise.TABLE,
    **fused.TABLE,
    **indexing.TABLE,
    **integers.TABLE,
    **matrices.TABLE,
    **movement.TABLE,
    **pooling.TABLE,
    **qlinear.TABLE,
    **quantization.TABLE,
    **recurrent.TABLE,
    **reductions.TABLE,
    **resizing.TABLE,
}
