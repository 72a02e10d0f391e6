"""Kernels of chains of two products, for all targets whose kernels are CUDA texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cpembed.targets.base import Array, Execution, Row
from cpembed.targets.cuda.emulator.executor import Counters
from cpembed.targets.cuda.model import Gpu, gpu
from cpembed.targets.cuda.saving.folder import identifier, save
from cpembed.targets.cuda.saving.target import ORDERS, SavingTarget

if TYPE_CHECKING:
    from cpembed.targets.chains import ChainCandidate, ChainChoice
    from cpembed.targets.cuda.chains.build import ChainKernels
    from cpembed.workloads.chains import ProductChain

L = TypeVar("L")
S = TypeVar("S")


def counter_rows(counters: Counters) -> list[Row]:
    """Return the lines about the counters of a run."""
    products = sum(counters.mma.values())
    loads, stores = counters.shared_load_wavefronts, counters.shared_store_wavefronts
    loaded, stored = counters.global_load_sectors, counters.global_store_sectors
    rows = [
        ("counted", f"{products:,} products of the instruction"),
        ("shared", f"{loads:,} wavefronts of loads, {stores:,} of stores"),
        ("global", f"{loaded:,} sectors loaded, {stored:,} stored"),
    ]
    copies = (
        (counters.bulk_load_bytes, counters.bulk_load_sectors, "loaded"),
        (counters.bulk_store_bytes, counters.bulk_store_sectors, "stored"),
    )
    rows += [
        ("bulk copies", f"{copied:,} bytes {direction} in {sectors:,} sectors")
        for copied, sectors, direction in copies
        if copied
    ]
    return rows


class ChainTarget(SavingTarget[L, S]):
    """Abilities of a target that makes kernels of chains; the chains are imported on first use."""

    @cached_property
    def gpu(self) -> Gpu:
        return gpu(self.spec)

    def chain_choice(self, chain: ProductChain) -> ChainChoice:
        from cpembed.targets.cuda.chains.choice import choose

        return choose(chain, self.spec, self.gpu)

    def build_chain(self, candidate: ChainCandidate) -> ChainKernels:
        from cpembed.targets.cuda.chains.build import ChainKernels, chain_text

        self.require_executable(candidate.plan.chain.macs)
        return ChainKernels(candidate.plan, chain_text(candidate.plan, self.gpu.architecture))

    def execute_chain(self, artifact: ChainKernels, inputs: Mapping[str, Array]) -> Execution:
        outputs = tuple(artifact.run(inputs, order) for order in ORDERS)
        return Execution(outputs, self.provenance)

    def chain_rows(self, artifact: ChainKernels) -> Sequence[Row]:
        return counter_rows(artifact.counters)

    def save_chain(self, artifact: ChainKernels, folder: Path) -> None:
        from cpembed.targets.cuda.chains.saving import saved_chain

        save(saved_chain(artifact, self.spec, identifier(folder.name)), folder)
