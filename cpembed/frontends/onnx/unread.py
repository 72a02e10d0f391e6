"""What a translation did not ask for: an attribute or an input of a node that would change its
results, had it been read, is refused."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from cpembed.frontends.onnx.model import Body, Node
from cpembed.frontends.onnx.site import Site

_WITHOUT_EFFECT: dict[str, frozenset[str]] = {
    # Of floats of eight bits, which no tensor here has.
    "Cast": frozenset({"saturate", "round_mode"}),
    "CastLike": frozenset({"saturate", "round_mode"}),
    "QuantizeLinear": frozenset({"saturate"}),
    # Of what is thrown away in training, which is refused.
    "Dropout": frozenset({"ratio", "seed"}),
    # Of the order of the indices, which are refused.
    "MaxPool": frozenset({"storage_order"}),
    # Of running means, which are made in training. Before version 7 a model in training has further
    # outputs, which are refused.
    "BatchNormalization": frozenset({"momentum", "is_test"}),
}
"""Attributes that change nothing where their operator is read."""
_INPUTS_WITHOUT_EFFECT: dict[str, frozenset[int]] = {
    # The ratio of elements that are thrown away in training.
    "Dropout": frozenset({1}),
    # The part of an image that coordinates of tf_crop_and_resize take, which are refused.
    "Resize": frozenset({1}),
}
_OF_MEMORY = frozenset({"consumed_inputs"})
"""Attributes of the first version of the format, which name inputs whose memory may be reused."""


def refuse_unread(site: Site) -> None:
    """Refuse a node of which a translation left out an attribute or an input.

    An attribute that has the value that the format takes where there is none changes nothing.

    Raises :class:`ModelError`.
    """
    node = site.node
    for name in _unread_attributes(node, site.attributes_read):
        site.refuse(
            f"attribute {name} = {_shown(node.attributes[name])} is not read: export the model "
            "without it"
        )
    without_effect = _INPUTS_WITHOUT_EFFECT.get(node.operator, frozenset())
    for k, tensor in enumerate(site.inputs):
        if tensor is not None and k not in site.inputs_read | without_effect:
            site.refuse(f"input {k}, {node.inputs[k]}, is not read: export the model without it")


def _unread_attributes(node: Node, read: set[str]) -> Iterator[str]:
    ignored = read | _OF_MEMORY | _WITHOUT_EFFECT.get(node.operator, frozenset())
    defaults = _defaults(node.operator, node.version, node.domain)
    for name, value in node.attributes.items():
        if name not in ignored and not isinstance(value, Body):
            default = defaults.get(name)
            if default is None or not np.array_equal(np.asarray(default), np.asarray(value)):
                yield name


@cache
def _defaults(operator: str, version: int, domain: str) -> dict[str, Any]:
    """The values of attributes that are left out, as the format has them; none for operators that
    are not its own."""
    import onnx

    try:
        schema = onnx.defs.get_schema(operator, version, "" if domain == "ai.onnx" else domain)
    except Exception:
        return {}
    found: dict[str, Any] = {}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.name:
            value = onnx.helper.get_attribute_value(attribute.default_value)
            found[name] = value.decode() if isinstance(value, bytes) else value
    return found


def _shown(value: object) -> str:
    return "an array" if isinstance(value, np.ndarray) else str(value)
