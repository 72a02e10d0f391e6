"""Kernels for the products of a network, in every layout of their tensors that is looked at.

Each search is independent of the others and its result is kept, so that a network is searched once
and repeated blocks once in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.placement import Placement
from cpembed.codegen.runtime import thread_count
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.network.cache import Cache, digest_of, source_digest
from cpembed.network.layer import Layer, choose_layer
from cpembed.runtime.worker import call_each
from cpembed.steps import Progress, silent
from cpembed.targets.registry import open_target

_SOURCES = (
    *("ir", "hw", "embedding", "transform", "selection", "kernel", "targets", "driver"),
    "network/layer.py",
)
"""What a search depends on."""


@dataclass(frozen=True)
class Wanted:
    """A workload that stores an epilogue; ``placed``: in a larger buffer."""

    workload: Computation
    epilogue: Epilogue | None
    placed: bool

    @property
    def searched(self) -> Epilogue | None:
        """The epilogue of the search: stored in its place where it is to be placed, whatever that
        place will be."""
        if not self.placed:
            return self.epilogue
        output = self.workload.output
        epilogue = self.epilogue or Epilogue(output.dtype)
        none = (0,) * len(output.shape)
        return replace(epilogue, placement=Placement.inside(output.shape, none, output.shape))


@dataclass
class Products:
    """Kernels on a target. ``timeout``: seconds of each search."""

    target: HardwareSpec
    cache: Cache
    timeout: float | None = None
    workers: int = 1
    found: dict[Wanted, Layer | None] = field(default_factory=dict["Wanted", "Layer | None"])

    def key(self, wanted: Wanted) -> str:
        figures = open_target(self.target).figures()
        sources = source_digest(_SOURCES)
        threads = thread_count()
        return digest_of("layer", wanted, self.target, figures, threads, self.timeout, sources)

    def search(self, wanted: Iterable[Wanted], progress: Progress) -> None:
        """Find the kernels that are not known yet."""
        missing: list[Wanted] = []
        for one in dict.fromkeys(wanted):
            if one in self.found:
                continue
            kept = self.cache.get(_Kept, self.key(one))
            if kept is not None:
                self.found[one] = kept.layer
            else:
                missing.append(one)
        total = len(missing)
        progress("choosing kernels", 0, total)
        search = partial(_search, self.target, self.timeout)
        for number, (one, layer) in enumerate(call_each(search, missing, self.workers), 1):
            self._keep(one, layer)
            progress("choosing kernels", number, total)

    def _keep(self, wanted: Wanted, layer: Layer | None) -> None:
        self.found[wanted] = layer
        self.cache.put(self.key(wanted), _Kept(layer))

    def layer(self, wanted: Wanted) -> Layer | None:
        """The kernel; None where there is none."""
        if wanted not in self.found:
            self.search([wanted], silent)
        return self.found[wanted]


@dataclass(frozen=True)
class _Kept:
    """The result of a search."""

    layer: Layer | None


def _search(target: HardwareSpec, timeout: float | None, wanted: Wanted) -> Layer | None:
    try:
        return choose_layer(wanted.workload, target, wanted.searched, timeout)
    except LoweringError:
        return None


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
