"""The table of all operator families by name, with those that installed packages add."""

from __future__ import annotations

from cpembed.plugins import Plugin, load_plugin, load_plugins, plugin_names
from cpembed.workloads import convolutions as conv
from cpembed.workloads import einsum
from cpembed.workloads.family import OperatorFamily
from cpembed.workloads.gradients import GRADIENTS

# In the order in which the command line lists them.
OPERATORS: dict[str, OperatorFamily] = {
    family.name: family
    for family in (
        einsum.gemm, einsum.batched_gemm, einsum.gemv, einsum.dot, einsum.axpy,
        conv.conv1d, conv.conv2d, conv.conv3d, conv.depthwise,
        conv.transposed_conv2d, conv.capsule_conv2d, conv.batched_conv2d, *GRADIENTS,
        einsum.grouped_fc, einsum.mean, einsum.variance, einsum.row_sum, einsum.scan,
        einsum.ttm, einsum.mttkrp,
    )
}  # fmt: skip


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
