"""Embed hardware instructions in tensor operators: every way, ranked, proven, generated."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpembed.driver.explain import explain as explain
    from cpembed.driver.named import hardware_spec as hardware_spec
    from cpembed.driver.named import workload as workload
    from cpembed.driver.result import SolveResult as SolveResult
    from cpembed.driver.run import run as run
    from cpembed.driver.solve import solve as solve

_HOME = {
    "SolveResult": "cpembed.driver.result",
    "explain": "cpembed.driver.explain",
    "hardware_spec": "cpembed.driver.named",
    "run": "cpembed.driver.run",
    "solve": "cpembed.driver.solve",
    "workload": "cpembed.driver.named",
}
__all__ = ["SolveResult", "explain", "hardware_spec", "run", "solve", "workload"]


def __getattr__(name: str) -> Any:
    """Import the front door on first use: importing a part of the package stays cheap."""
    if name not in _HOME:
        raise AttributeError(f"module 'cpembed' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
