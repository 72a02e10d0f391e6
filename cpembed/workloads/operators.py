"""The table of all operator families by name, with those that installed packages add."""

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
    """Return a shipped operator, one that a distribution adds, or None.

    Raises :class:`~cpembed.errors.SpecError` if a distribution's entry point is not an operator of
    that name.
    """
    if name in OPERATORS:
        return OPERATORS[name]
    plugin = load_plugin("cpembed.operators", name)
    return None if plugin is None else _family(plugin)


def operator_names() -> list[str]:
    """Names of all operators; those that distributions add are listed without being loaded."""
    return [*OPERATORS, *plugin_names("cpembed.operators")]


def available_operators() -> dict[str, OperatorFamily]:
    """All operators by name, the shipped ones first."""
    plugins = load_plugins("cpembed.operators", OPERATORS)
    return OPERATORS | {plugin.name: _family(plugin) for plugin in plugins}


def _family(plugin: Plugin) -> OperatorFamily:
    family = plugin.value
    if not isinstance(family, OperatorFamily):
        raise plugin.error("is not an OperatorFamily; see docs/add-an-operator.md")
    if family.name != plugin.name:
        raise plugin.error(f"is an operator of the name {family.name!r}")
    return family
