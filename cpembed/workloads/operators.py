"""Every operator family by name; a new operator is one entry of a table and one line here."""

from __future__ import annotations

from cpembed.plugins import Plugin, load_plugin, load_plugins, plugin_names
from cpembed.workloads.convolutions import (
    batched_conv2d,
    capsule_conv2d,
    conv1d,
    conv2d,
    conv3d,
    depthwise,
    transposed_conv2d,
)
from cpembed.workloads.einsum import (
    axpy,
    batched_gemm,
    dot,
    gemm,
    gemv,
    grouped_fc,
    mean,
    mttkrp,
    row_sum,
    scan,
    ttm,
    variance,
)
from cpembed.workloads.family import OperatorFamily

OPERATORS: dict[str, OperatorFamily] = {
    family.name: family
    for family in (
        gemm,
        batched_gemm,
        gemv,
        dot,
        axpy,
        conv1d,
        conv2d,
        conv3d,
        depthwise,
        transposed_conv2d,
        capsule_conv2d,
        batched_conv2d,
        grouped_fc,
        mean,
        variance,
        row_sum,
        scan,
        ttm,
        mttkrp,
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
