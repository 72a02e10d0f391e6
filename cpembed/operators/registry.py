"""Every operator family by name; a new operator is one file and one line here."""

from __future__ import annotations

from cpembed.operators.axpy import AXPY
from cpembed.operators.batched_conv2d import BATCHED_CONV2D
from cpembed.operators.batched_gemm import BATCHED_GEMM
from cpembed.operators.capsule_conv2d import CAPSULE_CONV2D
from cpembed.operators.conv1d import CONV1D
from cpembed.operators.conv2d import CONV2D
from cpembed.operators.conv3d import CONV3D
from cpembed.operators.depthwise import DEPTHWISE
from cpembed.operators.dot import DOT
from cpembed.operators.family import OperatorFamily
from cpembed.operators.gemm import GEMM
from cpembed.operators.gemv import GEMV
from cpembed.operators.grouped_fc import GROUPED_FC
from cpembed.operators.mean import MEAN, ROW_SUM, VARIANCE
from cpembed.operators.mttkrp import MTTKRP
from cpembed.operators.scan import SCAN
from cpembed.operators.transposed_conv2d import TRANSPOSED_CONV2D
from cpembed.operators.ttm import TTM
from cpembed.plugins import Plugin, load_plugin, load_plugins, plugin_names

OPERATORS: dict[str, OperatorFamily] = {
    family.name: family
    for family in (
        GEMM,
        BATCHED_GEMM,
        GEMV,
        DOT,
        AXPY,
        CONV1D,
        CONV2D,
        CONV3D,
        DEPTHWISE,
        TRANSPOSED_CONV2D,
        CAPSULE_CONV2D,
        BATCHED_CONV2D,
        GROUPED_FC,
        MEAN,
        VARIANCE,
        ROW_SUM,
        SCAN,
        TTM,
        MTTKRP,
    )
}


def find_operator(name: str) -> OperatorFamily | None:
    """A shipped operator, or one that a distribution adds; None where there is none.

    Raises :class:`~cpembed.errors.SpecError` where what is added is no operator of the name.
    """
    if name in OPERATORS:
        return OPERATORS[name]
    plugin = load_plugin("cpembed.operators", name)
    return None if plugin is None else _family(plugin)


def operator_names() -> list[str]:
    """Every operator; none of those that distributions add is loaded."""
    return [*OPERATORS, *plugin_names("cpembed.operators")]


def available_operators() -> dict[str, OperatorFamily]:
    """Every operator by name, the shipped ones first."""
    added = load_plugins("cpembed.operators", OPERATORS)
    return OPERATORS | {plugin.name: _family(plugin) for plugin in added}


def _family(plugin: Plugin) -> OperatorFamily:
    family = plugin.value
    if not isinstance(family, OperatorFamily):
        raise plugin.error("is not an OperatorFamily; see docs/add-an-operator.md")
    if family.name != plugin.name:
        raise plugin.error(f"is an operator of the name {family.name!r}")
    return family
