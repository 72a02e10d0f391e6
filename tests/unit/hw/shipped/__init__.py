"""Models and facts of the shipped specifications, by kind of machine."""

from __future__ import annotations

from tests.unit.hw.shipped import accelerators, cpus, papers, tensor_cores

MODELS = {**cpus.MODELS, **accelerators.MODELS, **tensor_cores.MODELS, **papers.MODELS}

IRREGULAR = {**cpus.IRREGULAR, **papers.IRREGULAR}

FACTS = {**cpus.FACTS, **accelerators.FACTS, **tensor_cores.FACTS, **papers.FACTS}

PEAKS = {**cpus.PEAKS, **accelerators.PEAKS, **tensor_cores.PEAKS}
"""Products of elements a nanosecond, by specification and machine."""

WITHOUT_REDUCTION = {*cpus.LANES, *cpus.FMA, "axpy"}
"""Specifications whose axes are all those of the result."""
