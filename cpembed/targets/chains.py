"""Chains of two products on targets that make one kernel of them.

A target has this ability if it defines the members of :class:`Chaining`. What it returns is for
reports and documents; the plan itself stays the target's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from cpembed.cost.ranking import RankedCandidate
from cpembed.errors import BackendUnavailable
from cpembed.targets.base import Array, Execution, Row
from cpembed.targets.capabilities import AnyTarget
from cpembed.workloads.chains import FACTORS, ProductChain


@dataclass(frozen=True, kw_only=True)
class ChainCandidate:
    """A pair of embeddings as one kernel, with its estimated time.

    Attributes
    ----------
    products : tuple of RankedCandidate
        Embedding of each product.
    via : str
        Place of the operand between the products.
    schedule : str
        Schedule of the kernel, or of each product's.
    estimated_us : float
    bound_by : str
        Unit that the kernel keeps busy for longest.
    plan : Any
        Plan in the target's own terms.
    """

    products: tuple[RankedCandidate, ...]
    via: str
    schedule: str
    estimated_us: float
    bound_by: str
    plan: Any

    @property
    def mappings(self) -> tuple[str, ...]:
        """Axes that the embedding of each product maps to each other."""
        return tuple("   ".join(each.embedding.axis_texts) for each in self.products)

    @property
    def identifiers(self) -> tuple[str, ...]:
        """Ids of the embeddings."""
        return tuple(each.identifier for each in self.products)

    def to_json(self) -> dict[str, Any]:
        """Return the candidate for documents."""
        return {
            "mappings": list(self.mappings),
            "ids": list(self.identifiers),
            "via": self.via,
            "schedule": self.schedule,
            "estimated_us": self.estimated_us,
            "bound_by": self.bound_by,
        }


@dataclass(frozen=True, kw_only=True)
class PairCount:
    """Number of pairs of embeddings of which the same is true.

    ``outcome`` is ``registers``, ``shared memory`` or ``rejected``, ``reason`` why it is not
    registers, empty if it is. ``kernels`` tells whether kernels are generated.
    """

    outcome: str
    reason: str
    pairs: int
    kernels: bool

    def to_json(self) -> dict[str, Any]:
        """Return the count for documents."""
        return {
            "outcome": self.outcome,
            "reason": self.reason,
            "pairs": self.pairs,
            "kernels": self.kernels,
        }


@dataclass(frozen=True, kw_only=True)
class ChainChoice:
    """Kernels of a chain on a target, compared with a kernel for each product.

    Attributes
    ----------
    embeddings : tuple of int
        Number of embeddings of each product.
    counts : tuple of PairCount
        What became of all pairs of them.
    coupling : str
        How registers of the first product's result become those of the second's factor; empty
        without such pairs.
    candidates : tuple of ChainCandidate
        Kernels by estimate, the fastest first; one for each pair.
    unavailable : str
        Reason why there are no kernels; empty if there are.
    unfused : ChainCandidate or None
        Kernels that compute the chain without fusion; None if there are none, because the operand
        between them is too large.
    apart_us : mapping of str to float
        Estimated time of each of them.
    stored_bytes : int
        Bytes that these write and read of operands between them.
    machine : str
        Described machine that times are estimated for.
    """

    embeddings: tuple[int, int]
    counts: tuple[PairCount, ...]
    coupling: str
    candidates: tuple[ChainCandidate, ...]
    unavailable: str
    unfused: ChainCandidate | None
    apart_us: Mapping[str, float]
    stored_bytes: int
    machine: str

    @property
    def fuses(self) -> bool:
        """True if one kernel is estimated to be faster than a kernel for each product."""
        if not self.candidates:
            return False
        return self.unfused is None or self.candidates[0].estimated_us <= self.unfused.estimated_us

    def candidate(self, *, fuse: bool | None = None) -> ChainCandidate | None:
        """Return the kernels to build; None if there are none.

        Parameters
        ----------
        fuse : bool, optional
            True for one kernel, False for kernels apart; by default what is estimated to be faster.
        """
        fused = next(iter(self.candidates), None)
        if fuse is None:
            fuse = self.fuses
            return fused if fuse or self.unfused is None else self.unfused
        return fused if fuse else self.unfused

    def to_json(self) -> dict[str, Any]:
        """Return the choice for documents."""
        return {
            "machine": self.machine,
            "embeddings": list(self.embeddings),
            "pairs": [count.to_json() for count in self.counts],
            "coupling": self.coupling,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "unavailable": self.unavailable,
            "apart": None if self.unfused is None else self.unfused.to_json(),
            "apart_us": dict(self.apart_us),
            "stored_bytes": self.stored_bytes,
            "fuses": self.fuses,
        }


@runtime_checkable
class Chaining(Protocol):
    """Makes one kernel of a chain of two products."""

    def chain_choice(self, chain: ProductChain) -> ChainChoice:
        """Pair the embeddings of the products, and rank kernels of them."""
        ...

    def build_chain(self, candidate: ChainCandidate) -> Any:
        """Build the kernel of a candidate; called in a worker."""
        ...

    def execute_chain(self, artifact: Any, inputs: Mapping[str, Array]) -> Execution:
        """Compute the result; called in a worker."""
        ...

    def chain_rows(self, artifact: Any) -> Sequence[Row]:
        """Return lines about an executed kernel for the report."""
        ...

    def save_chain(self, artifact: Any, folder: Path) -> None:
        """Write the kernel of a candidate, and what launches it."""
        ...


def makes_attention(target: AnyTarget, factors: str) -> bool:
    """True if a target makes one kernel of an attention of floats with factors of a type."""
    return isinstance(target, Chaining) and factors in FACTORS


def chaining(target: AnyTarget) -> Chaining:
    """Return a target that makes kernels of chains.

    Raises :class:`~cpembed.errors.BackendUnavailable` for all others.
    """
    if not isinstance(target, Chaining):
        raise BackendUnavailable(
            f"{target.spec.name} makes no kernels of chains: take a Tensor Core target (mma_f16)"
        )
    return target
