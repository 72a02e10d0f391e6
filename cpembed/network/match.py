"""Which operators of a network a target's instruction computes, and how well it is used.

Each product is matched like a workload by itself; products that compute the same are matched once.

>>> from cpembed.graph.graph import Graph, Operator
>>> from cpembed.graph.kinds.base import TensorType
>>> from cpembed.graph.kinds.elementwise import Apply, Elementwise, Input
>>> from cpembed.graph.kinds.product import Product
>>> from cpembed.driver.named import workload
>>> product = Product(workload("gemm m=8 n=16 k=16"), (8, 16))
>>> negated = Elementwise(Apply("neg", (Input(0),)), "int32")
>>> network = Graph(
...     "small",
...     {"a": TensorType((8, 16), "int8"), "b": TensorType((16, 16), "int8")},
...     ("d",),
...     operators=(
...         Operator("multiply", product, ("a", "b"), ("c",)),
...         Operator("negate", negated, ("c",), ("d",)),
...     ),
... )
>>> (found,) = match(network, ["vta_1x16x16"], prepares=False).targets
>>> found.embedded, found.products, found.operators[1].reason
(1, 1, 'no product')
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cpembed.display import Displayed
from cpembed.driver.across import Figure, Line, line
from cpembed.driver.matching import Match, match_in_worker, prepared_for
from cpembed.driver.named import hardware_specs
from cpembed.driver.options import KernelOptions
from cpembed.driver.plan import Request
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds.product import Product
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.steps import Progress

TIMEOUT = 10.0
"""Seconds of each search, where nobody says otherwise: most take a tenth of one."""

NO_PRODUCT = "no product"


@dataclass(frozen=True)
class OperatorMatch:
    """An operator of the network: ``layer`` numbers its computation among the distinct ones of the
    target's network, None where it is no product."""

    name: str
    label: str
    computation: Computation | None = None
    layer: int | None = None
    found: Match | None = None

    @property
    def macs(self) -> int:
        return 0 if self.computation is None else self.computation.macs

    @property
    def is_embedded(self) -> bool:
        return self.found is not None and self.found.embedded_on is not None

    @property
    def reason(self) -> str | None:
        """Why it is not embedded, or runs on an alternative."""
        return NO_PRODUCT if self.found is None else self.found.reason

    @property
    def figure(self) -> Figure:
        """A product for a table of several targets."""
        return (self.found or Match()).figure(self.macs)

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "name": self.name,
            "label": self.label,
            "workload": None if self.computation is None else str(self.computation),
            "axes": {} if self.computation is None else dict(self.computation.extents),
            "macs": self.macs,
            "layer": self.layer,
        }
        if self.found is None:
            return {**document, "outcome": "no", "embedded_on": None, "reason": NO_PRODUCT}
        return {**document, **self.found.to_json()}


@dataclass(frozen=True)
class TargetMatch:
    """A network on a target: its operators as they are once it is prepared for the target's element
    types, ``layers`` distinct computations."""

    target: str
    operators: tuple[OperatorMatch, ...]
    layers: int

    @cached_property
    def matched(self) -> tuple[OperatorMatch, ...]:
        """The products."""
        return tuple(o for o in self.operators if o.found is not None)

    @cached_property
    def fitting(self) -> tuple[OperatorMatch, ...]:
        """The products that are embedded."""
        return tuple(o for o in self.matched if o.is_embedded)

    @cached_property
    def undecided(self) -> dict[str, int]:
        """Products of which it is not known whether they can be embedded, by how their search
        ended."""
        outcomes = Counter(o.found.outcome for o in self.matched if o.found is not None)
        return {name: outcomes[name] for name in ("stopped", "failed") if outcomes[name]}

    @property
    def products(self) -> int:
        return len(self.matched)

    @property
    def embedded(self) -> int:
        """Products that the target or an alternative computes."""
        return len(self.fitting)

    @property
    def on_alternatives(self) -> int:
        return sum(o.found is not None and o.found.embedded_on != self.target for o in self.fitting)

    @property
    def retyped(self) -> int:
        """Products whose element types the target does not take."""
        return sum(o.found is not None and o.found.retyped for o in self.matched)

    @cached_property
    def line(self) -> Line:
        """What the products come to."""
        return line(self.target, [o.figure for o in self.matched])

    def totals_json(self) -> dict[str, Any]:
        return {
            "operators": len(self.operators),
            "mapped": self.embedded,
            "products": self.products,
            "embedded": self.embedded,
            "stopped": self.undecided.get("stopped", 0),
            "failed": self.undecided.get("failed", 0),
            "on_alternatives": self.on_alternatives,
            "distinct": self.layers,
            "retyped": self.retyped,
            **self.line.to_json(),
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "operators": [operator.to_json() for operator in self.operators],
            "totals": self.totals_json(),
        }


@dataclass(frozen=True, repr=False)
class MatchResult(Displayed):
    """A network on each target, in the order asked; ``operators`` are those of the model."""

    network: str
    operators: int
    targets: tuple[TargetMatch, ...]

    def to_json(self) -> dict[str, Any]:
        """The document of ``match --json``."""
        return {
            "network": self.network,
            "operators": self.operators,
            "targets": [found.to_json() for found in self.targets],
        }


def match(
    graph: Graph,
    targets: Sequence[str | HardwareSpec],
    *,
    alternatives: bool = True,
    timeout: float | None = TIMEOUT,
    prepares: bool = True,
    progress: Progress | None = None,
) -> MatchResult:
    """Match each product of a network on each target.

    ``alternatives``: where an instruction does not fit, or is mostly idle, those that its
    specification names are tried. ``timeout`` bounds each search in seconds, None does not.
    ``prepares`` False takes the operators as they are, without passes. Searches run in the worker.

    Raises :class:`~cpembed.errors.SpecError` for a wrong target and for two of one name, and what
    the passes raise.
    """
    specs = hardware_specs(targets)
    prepared = [prepared_for(graph, spec) if prepares else graph for spec in specs]
    work = [_distinct(network) for network in prepared]
    total, done = sum(len(layers) for layers in work), 0
    found: list[TargetMatch] = []
    for spec, network, layers in zip(specs, prepared, work, strict=True):
        searched = spec if alternatives else replace(spec, alternatives=())
        matches: dict[Computation, Match] = {}
        for layer, name in layers.items():
            if progress is not None:
                progress(f"{name} on {spec.name}", done, total)
            matches[layer] = match_in_worker(
                Request(layer, searched, KernelOptions(timeout=timeout))
            )
            done += 1
        found.append(_target_match(spec.name, network, matches))
    if progress is not None:
        progress("", done, total)
    return MatchResult(graph.name, len(graph.operators), tuple(found))


def _distinct(graph: Graph) -> dict[Computation, str]:
    """Each computation once, and the first operator that has it."""
    found: dict[Computation, str] = {}
    for operator in graph.operators:
        if isinstance(operator.kind, Product):
            found.setdefault(_anonymous(operator.kind.computation), operator.name)
    return found


def _anonymous(computation: Computation) -> Computation:
    """Without its name, which says nothing of the work: equal ones are the same work."""
    return replace(computation, name="product")


def _target_match(target: str, graph: Graph, matches: dict[Computation, Match]) -> TargetMatch:
    numbers = {layer: number for number, layer in enumerate(matches)}

    def row(operator: Operator) -> OperatorMatch:
        if not isinstance(operator.kind, Product):
            return OperatorMatch(operator.name, operator.kind.label)
        computation = operator.kind.computation
        layer = _anonymous(computation)
        label = operator.kind.label
        return OperatorMatch(operator.name, label, computation, numbers[layer], matches[layer])

    return TargetMatch(target, tuple(map(row, graph.operators)), len(matches))
