"""The constraints of Rieber et al. 2021, section 4.2, one file each.

The order is the order of posting: boxes first, since others speak of their digits.
"""

import dataclasses
import inspect
from typing import Any

from cpembed.embedding.constraints.all_different import AllDifferent
from cpembed.embedding.constraints.base import Constraint
from cpembed.embedding.constraints.dataflow import Dataflow
from cpembed.embedding.constraints.dense import Dense
from cpembed.embedding.constraints.digits import Digits
from cpembed.embedding.constraints.domain_bound import DomainBound
from cpembed.embedding.constraints.extents import Extents
from cpembed.embedding.constraints.fixed_origin import FixedOrigin
from cpembed.embedding.constraints.hyper_rectangle import HyperRectangle
from cpembed.embedding.constraints.linear_access import LinearAccess
from cpembed.embedding.constraints.padding import Padding
from cpembed.embedding.constraints.strides import Strides
from cpembed.plugins import load_plugin, plugin_names

CONSTRAINTS: dict[str, type[Constraint]] = {
    kind.name: kind
    for kind in (
        HyperRectangle,
        Dataflow,
        AllDifferent,
        FixedOrigin,
        Dense,
        LinearAccess,
        Strides,
        Digits,
        Extents,
        Padding,
        DomainBound,
    )
}


def find_constraint(name: str) -> type[Constraint] | None:
    """A shipped constraint, or one that a distribution adds; None where there is none.

    Raises :class:`~cpembed.errors.SpecError` where what is added is no constraint.
    """
    if name in CONSTRAINTS:
        return CONSTRAINTS[name]
    plugin = load_plugin("cpembed.constraints", name)
    if plugin is None:
        return None
    fault = _fault(plugin.value, name)
    if fault:
        raise plugin.error(f"{fault}; see docs/add-a-constraint.md")
    kind: type[Constraint] = plugin.value
    return kind


def constraint_names() -> list[str]:
    """Every constraint that a set may name."""
    return [*CONSTRAINTS, *plugin_names("cpembed.constraints")]


def _fault(kind: Any, name: str) -> str | None:
    """Why a value is not a constraint of the name."""
    if not (isinstance(kind, type) and issubclass(kind, Constraint)):
        return "is not a subclass of Constraint"
    if inspect.isabstract(kind) or not dataclasses.is_dataclass(kind):
        return "is not a dataclass that defines post, holds and words"
    if getattr(kind, "name", None) != name:
        return f"has the name {getattr(kind, 'name', None)!r}, not {name!r}"
    if kind.allows is Constraint.allows and kind.post_digits is Constraint.post_digits:
        # The digit model would leave it out without a word.
        return "defines neither allows nor post_digits"
    return None
