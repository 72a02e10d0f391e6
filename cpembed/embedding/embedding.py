"""An embedding as a value: which workload axes feed which instruction axes.

Definitions: docs/embedding.md, "Axis maps".
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cpembed.ir.index import IndexExpr, IndexTerm


@dataclass(frozen=True)
class Digit:
    """One digit of an instruction axis's mixed-radix number: ``count`` steps of ``stride``
    along a workload axis.
    """

    axis: str
    count: int
    stride: int = 1


@dataclass(frozen=True)
class Embedding:
    """The axis maps of a solution that satisfies ``hyper_rectangle``.

    ``operands`` maps instruction operands to workload operands; ``extents`` gives the extent each
    instruction axis is used at; ``digits`` lists each instruction axis's digits innermost first
    (counts multiply to the extent); ``origin`` is the workload point of the first scalar operation
    (all zero under ``fixed_origin``). ``flattened`` names fused axes that digits move along, with
    their members, outermost first; ``pitches`` those members that a gap follows, with the points
    that the member and the gap take (:data:`~cpembed.embedding.flatten.Pitches`).
    """

    operands: Mapping[str, str]
    extents: Mapping[str, int]
    digits: Mapping[str, tuple[Digit, ...]]
    origin: Mapping[str, int] = field(default_factory=dict[str, int])
    flattened: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    pitches: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def family(self) -> dict[str, tuple[str, ...]]:
        """The set of workload axes that feeds each instruction axis, in digit order."""
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

    def tile(self, axis: str) -> int:
        """Product of the digit counts on a workload axis: how much one execution covers of it."""
        return math.prod(
            digit.count for digits in self.digits.values() for digit in digits if digit.axis == axis
        )

    def offset(self, axis: str) -> IndexExpr:
        """Coordinate on a workload axis as a function of the instruction axes, from the origin."""
        terms: list[IndexTerm] = []
        for name, digits in self.digits.items():
            weight = 1
            for digit in digits:
                if digit.axis == axis:
                    outermost = weight * digit.count == self.extents[name]
                    modulus = None if outermost else digit.count
                    terms.append(IndexTerm(name, digit.stride, weight, modulus))
                weight *= digit.count
        return IndexExpr.sum(terms)

    def identifier(self) -> str:
        """Short stable id: equal for equal embeddings, on every machine."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        return {
            "operands": dict(self.operands),
            "extents": dict(self.extents),
            "axes": {
                name: [{"axis": d.axis, "count": d.count, "stride": d.stride} for d in digits]
                for name, digits in self.digits.items()
            },
            "origin": {axis: at for axis, at in self.origin.items() if at},
            **(
                {"flattened": {name: list(axes) for name, axes in self.flattened.items()}}
                if self.flattened
                else {}
            ),
            **({"pitches": dict(self.pitches)} if self.pitches else {}),
        }

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
