"""Summary of ``torch.compile``: parts of each captured module, who runs them, why, and their times.

>>> from cpembed.frontends.torch import summary
>>> report = summary()
>>> len(report.modules) == len(report.to_json()["modules"])
True
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cpembed.blocks import Displayed


@dataclass
class Part:
    """Operators of a captured module that one compiled network, or PyTorch, executes.

    Attributes
    ----------
    name : str
        ``network_0`` …, or ``PyTorch``.
    operators : mapping from str to int
        Number of calls of each operator.
    reasons : tuple of str
        Why PyTorch runs it; empty for a network.
    compile_seconds : float
        Seconds of compiling a network. Inductor's are part of the first call's time.
    calls : int
        Number of calls so far.
    seconds : float
        Time of all calls, measured.
    """

    name: str
    operators: Mapping[str, int]
    reasons: tuple[str, ...] = ()
    compile_seconds: float = 0.0
    calls: int = 0
    seconds: float = 0.0

    @property
    def is_network(self) -> bool:
        """True if a compiled network executes the part."""
        return not self.reasons

    def timed(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call, whose time is added."""
        started = time.perf_counter()
        try:
            return call()
        finally:
            self.seconds += time.perf_counter() - started
            self.calls += 1

    def to_json(self) -> dict[str, Any]:
        """Return the part's entry in the document of a summary."""
        return {
            "name": self.name,
            "operators": dict(self.operators),
            "reasons": list(self.reasons),
            "compile_seconds": self.compile_seconds,
            "calls": self.calls,
            "seconds": self.seconds,
            "provenance": "measured",
        }


@dataclass
class ModuleSummary:
    """Parts of a captured module for inputs of one signature.

    Attributes
    ----------
    inputs : tuple of str
        Element type and shape of each input, such as ``float32[1, 3, 224, 224]``.
    parts : list of Part
        Parts in the order in which they were made.
    """

    inputs: tuple[str, ...]
    parts: list[Part] = field(default_factory=list[Part])

    def to_json(self) -> dict[str, Any]:
        """Return the module's entry in the document of a summary."""
        return {"inputs": list(self.inputs), "parts": [part.to_json() for part in self.parts]}


@dataclass(frozen=True, repr=False)
class CompileSummary(Displayed):
    """Parts of all modules of ``torch.compile`` that are in use, in the order of their first calls.

    Attributes
    ----------
    modules : tuple of ModuleSummary
        One for each captured module and signature of its inputs.
    """

    modules: tuple[ModuleSummary, ...]

    @property
    def networks(self) -> int:
        """Number of compiled networks."""
        return sum(part.is_network for module in self.modules for part in module.parts)

    @property
    def left_to_pytorch(self) -> int:
        """Number of operators that PyTorch runs."""
        parts = [part for module in self.modules for part in module.parts if not part.is_network]
        return sum(sum(part.operators.values()) for part in parts)

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a document of JSON's types."""
        return {
            "networks": self.networks,
            "left_to_pytorch": self.left_to_pytorch,
            "modules": [module.to_json() for module in self.modules],
        }


# The compiled modules own their records, which therefore end with them.
_records: list[weakref.ref[ModuleSummary]] = []


def record(module: ModuleSummary) -> ModuleSummary:
    """Add a module to the summary for as long as it is in use, and return it."""
    _records[:] = [reference for reference in _records if reference() is not None]
    _records.append(weakref.ref(module))
    return module


def summary() -> CompileSummary:
    """Return the parts, reasons and times of all modules that ``torch.compile`` made."""
    modules = (reference() for reference in _records)
    return CompileSummary(tuple(module for module in modules if module is not None))
