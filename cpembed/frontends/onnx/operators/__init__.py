"""Translations of ONNX's operators, one module a subject."""

from __future__ import annotations

from collections.abc import Mapping

from cpembed.frontends.onnx.call import Translation
from cpembed.frontends.onnx.operators import (
    constants,
    elementwise,
    matrices,
    movement,
    quantization,
    recurrent,
    reductions,
    resizing,
    windows,
)

TRANSLATIONS: Mapping[str, Translation] = {
    **constants.TABLE,
    **elementwise.TABLE,
    **matrices.TABLE,
    **movement.TABLE,
    **quantization.TABLE,
    **recurrent.TABLE,
    **reductions.TABLE,
    **resizing.TABLE,
    **windows.TABLE,
}
"""Translations by operator, with the domain before its name unless it is the standard one."""
