"""Embed hardware instructions in tensor operators: every way, ranked, proven, generated."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpembed.api.explain import explain as explain
    from cpembed.api.run import run as run
    from cpembed.api.solve import SolveResult as SolveResult
    from cpembed.api.solve import hardware_spec as hardware_spec
    from cpembed.api.solve import solve as solve
    from cpembed.api.solve import workload as workload

_HOME = {
    "SolveResult": "cpembed.api.solve",
    "explain": "cpembed.api.explain",
    "hardware_spec": "cpembed.api.solve",
    "run": "cpembed.api.run",
    "solve": "cpembed.api.solve",
    "workload": "cpembed.api.solve",
}
__all__ = ["SolveResult", "explain", "hardware_spec", "run", "solve", "workload"]


def __getattr__(name: str) -> Any:
    """Import the front door on first use: importing a part of the package stays cheap."""
    if name not in _HOME:
        raise AttributeError(f"module 'cpembed' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
