"""The families of machines there are, by name: a class is imported on first use.

Another distribution adds one by an entry point of the group :data:`GROUP`: its name is what spaces
say, its object a class derived from :class:`~cpembed.targets.family.Family`.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal

from cpembed.errors import SpecError
from cpembed.hw.schema import close_match, one_of
from cpembed.plugins import load_plugin, plugin_names
from cpembed.targets.family import Family

BUILT_IN = {
    "core": "cpembed.exploration.cores.family:CoreFamily",
    "vta": "cpembed.targets.vta.family:VtaFamily",
}

GROUP: Literal["cpembed.families"] = "cpembed.families"


def open_family(name: str) -> Family:
    """Raises :class:`SpecError` for a name that nothing has, and where a distribution's class
    cannot be loaded or is none."""
    if name in BUILT_IN:
        module, _, kind = BUILT_IN[name].partition(":")
        built_in: type[Family] = getattr(importlib.import_module(module), kind)
        return built_in()
    plugin = load_plugin(GROUP, name)
    if plugin is None:
        known = (*BUILT_IN, *plugin_names(GROUP))
        raise SpecError(
            f"unknown family {name!r}{close_match(name, known)}; allowed: {one_of(known)}"
        )
    found: Any = plugin.value
    if not (isinstance(found, type) and issubclass(found, Family)):
        raise plugin.error(
            "is no class derived from cpembed.targets.family.Family; have it repaired"
        )
    return found()
