"""An embedding as a value: which workload axes feed which instruction axes.

Definitions: docs/embedding.md, "Axis maps".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cpembed.ir.index import IndexExpr, IndexTerm


@dataclass(frozen=True)
class Digit:
    """A digit of an instruction axis's number: ``count`` steps of ``stride`` along a workload axis.

    The number is of mixed radix: each digit has its own count.
    """

    axis: str
    count: int
    stride: int = 1

    def __str__(self) -> str:
        """Return ``q:14``, or ``q:14 by 2`` if consecutive steps are 2 apart."""
        return f"{self.axis}:{self.count}" + (f" by {self.stride}" if self.stride > 1 else "")


@dataclass(frozen=True)
class Embedding:
    """The axis maps of a solution that satisfies ``hyper_rectangle``.

    Attributes
    ----------
    operands : Mapping
        Workload operand of each instruction operand.
    extents : Mapping
        Extent at which each instruction axis is used.
    digits : Mapping
        Digits of each instruction axis, innermost first; their counts multiply to the extent.
    origin : Mapping
        Workload point of the first scalar operation, 0 for axes that are missing.
    flattened : Mapping
        Fused axes that digits move along, with their members, outermost first.
    pitches : Mapping
        Members of fused axes that a gap follows, with the points that the member and the gap take
        (:data:`~cpembed.embedding.flatten.Pitches`).
    """

    operands: Mapping[str, str]
    extents: Mapping[str, int]
    digits: Mapping[str, tuple[Digit, ...]]
    origin: Mapping[str, int] = field(default_factory=dict[str, int])
    flattened: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    pitches: Mapping[str, int] = field(default_factory=dict[str, int])

    def __repr__(self) -> str:
        return f"<embedding {'   '.join(self.axis_texts)}>"

    @property
    def axis_texts(self) -> list[str]:
        """``z ← c:16 r:3`` for each instruction axis, innermost digit first."""
        return [
            f"{axis} ← {' '.join(map(str, digits)) or '·'}" for axis, digits in self.digits.items()
        ]

    @property
    def family(self) -> dict[str, tuple[str, ...]]:
        """Workload axes that feed each instruction axis, in the order of its digits."""
        return {
            axis: tuple(
                dict.fromkeys(
                    member
                    for digit in digits
                    for member in self.flattened.get(digit.axis, (digit.axis,))
                )
            )
            for axis, digits in self.digits.items()
        }

    def offset(self, axis: str) -> IndexExpr:
        """Return the coordinate on a workload axis, from the origin, over the instruction axes."""
        terms: list[IndexTerm] = []
        for name, digits in self.digits.items():
            weight = 1
            for digit in digits:
                if digit.axis == axis:
                    # The outermost digit counts to the axis's end: its modulus would cut nothing.
                    outermost = weight * digit.count == self.extents[name]
                    modulus = None if outermost else digit.count
                    terms.append(IndexTerm(name, digit.stride, weight, modulus))
                weight *= digit.count
        return IndexExpr.sum(terms)

    def identifier(self) -> str:
        """Return a short id that is equal for equal embeddings, on every machine."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        # 48 bits, by which hundreds of thousands of embeddings can be told from each other.
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "operands": dict(self.operands),
            "extents": dict(self.extents),
            "axes": {
                name: [{"axis": d.axis, "count": d.count, "stride": d.stride} for d in digits]
                for name, digits in self.digits.items()
            },
            "origin": {axis: at for axis, at in self.origin.items() if at},
        }
        # Left out where empty, so that embeddings without fused axes keep their identifiers.
        if self.flattened:
            document["flattened"] = {name: list(axes) for name, axes in self.flattened.items()}
        if self.pitches:
            document["pitches"] = dict(self.pitches)
        return document

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Embedding:
        return Embedding(
            operands=dict(document["operands"]),
            extents=dict(document["extents"]),
            digits={
                name: tuple(Digit(d["axis"], d["count"], d["stride"]) for d in digits)
                for name, digits in document["axes"].items()
            },
            origin=dict(document.get("origin", {})),
            flattened={n: tuple(axes) for n, axes in document.get("flattened", {}).items()},
            pitches=dict(document.get("pitches", {})),
        )
