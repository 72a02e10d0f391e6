"""The constraints of Rieber et al. 2021, section 4.2, in the order in which they are posted.

Each is a class; those of one subject share a file: ``isomorphism`` has ``dataflow`` and
``all_different``, ``memory_access`` ``dense`` and ``linear_access``, ``digits`` ``digits``,
``extents`` and ``strides``, ``domain`` ``fixed_origin``, ``padding`` and ``domain_bound``. A new
one is a class, here or in a file of its own, and a line in :data:`CONSTRAINTS`.
"""

import dataclasses
import inspect
from typing import Any

from cpembed.embedding.constraints.base import Constraint
from cpembed.embedding.constraints.contiguous import Contiguous
from cpembed.embedding.constraints.digits import Digits, Extents, Strides
from cpembed.embedding.constraints.domain import DomainBound, FixedOrigin, Padding
from cpembed.embedding.constraints.hyper_rectangle import HyperRectangle
from cpembed.embedding.constraints.isomorphism import AllDifferent, Dataflow
from cpembed.embedding.constraints.memory_access import Dense, LinearAccess
from cpembed.plugins import load_plugin, plugin_names

CONSTRAINTS: dict[str, type[Constraint]] = {
    kind.name: kind
    for kind in (
        # Boxes come first: most of the others read the digits that they define.
        HyperRectangle,
        # After boxes these two have nothing left to post where all images are boxes.
        Dataflow,
        AllDifferent,
        FixedOrigin,
        Dense,
        LinearAccess,
        Contiguous,
        Strides,
        Digits,
        Extents,
        Padding,
        DomainBound,
    )
}


def find_constraint(name: str) -> type[Constraint] | None:
    """Return a shipped constraint, or one that a distribution adds; None where there is none.

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
    """Return the name of every constraint that a set may hold."""
    return [*CONSTRAINTS, *plugin_names("cpembed.constraints")]


def _fault(kind: Any, name: str) -> str | None:
    """Return the reason why a value is not a constraint of the name."""
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
