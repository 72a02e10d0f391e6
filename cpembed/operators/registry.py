"""Every operator family by name; a new operator is one file and one line here."""

from __future__ import annotations

from cpembed.operators.conv1d import CONV1D
from cpembed.operators.conv2d import CONV2D
from cpembed.operators.conv3d import CONV3D
from cpembed.operators.depthwise import DEPTHWISE
from cpembed.operators.family import OperatorFamily
from cpembed.operators.gemm import GEMM

OPERATORS: dict[str, OperatorFamily] = {
    family.name: family for family in (GEMM, CONV1D, CONV2D, CONV3D, DEPTHWISE)
}
