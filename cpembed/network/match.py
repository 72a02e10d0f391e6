"""Match a network with targets: which products an instruction computes, and how well it is used.

Each product is matched like a single workload; equal products are matched once.

>>> from cpembed.graph.graph import Graph, Operator
>>> from cpembed.graph.kinds.base import TensorType
>>> from cpembed.graph.kinds import Apply, Elementwise, Input
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
>>> (result,) = match(network, ["vta_1x16x16"], prepares=False).targets
>>> result.embedded, result.products, result.operators[1].reason
(1, 1, 'no product')
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cpembed.blocks import Displayed
from cpembed.driver.across import Figure, Line, line
from cpembed.driver.matching import Match, match_in_worker, network_spec, prepared_for
from cpembed.driver.named import hardware_specs
from cpembed.driver.options import KernelOptions
from cpembed.driver.plan import Request
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds.product import Product
from cpembed.graph.loop import nested_operators
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.steps import Progress

TIMEOUT = 10.0
"""Default limit of each search in seconds; most searches take 0.1 s."""

_NO_PRODUCT = "no product"


@dataclass(frozen=True)
class OperatorMatch:
    """Operator of a network, and how a target computes it.

    Attributes
    ----------
    name, label : str
        Name in the model, and the kind of the operator.
    layer : int or None
        Number of the computation among the distinct ones.
    match : Match or None
        Result of the search; like the two before it, None for operators that are no products.
    """

    name: str
    label: str
    computation: Computation | None = None
    layer: int | None = None
    match: Match | None = None

    @property
    def macs(self) -> int:
        return 0 if self.computation is None else self.computation.macs

    @property
    def is_embedded(self) -> bool:
        return self.match is not None and self.match.embedded_on is not None

    @property
    def reason(self) -> str | None:
        """Reason why the operator is not embedded, or runs on an alternative."""
        return _NO_PRODUCT if self.match is None else self.match.reason

    @property
    def figure(self) -> Figure:
        """Row of a table that compares targets."""
        return (self.match or Match()).figure(self.macs)

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "name": self.name,
            "label": self.label,
            "workload": None if self.computation is None else str(self.computation),
            "axes": {} if self.computation is None else dict(self.computation.extents),
            "macs": self.macs,
            "layer": self.layer,
        }
        if self.match is None:
            return {**document, "outcome": "no", "embedded_on": None, "reason": _NO_PRODUCT}
        return {**document, **self.match.to_json()}


@dataclass(frozen=True)
class TargetMatch:
    """Operators of a network, prepared for the element types of a target that computes them.

    ``layers`` is the number of distinct computations.
    """

    target: str
    operators: tuple[OperatorMatch, ...]
    layers: int

    @cached_property
    def matched(self) -> tuple[OperatorMatch, ...]:
        """Products of the network."""
        return tuple(o for o in self.operators if o.match is not None)

    @cached_property
    def fitting(self) -> tuple[OperatorMatch, ...]:
        """Products that are embedded."""
        return tuple(o for o in self.matched if o.is_embedded)

    @cached_property
    def undecided(self) -> dict[str, int]:
        """Number of products whose search stopped at its time limit or failed, by outcome."""
        outcomes = Counter(o.match.outcome for o in self.matched if o.match is not None)
        return {name: outcomes[name] for name in ("stopped", "failed") if outcomes[name]}

    @property
    def products(self) -> int:
        return len(self.matched)

    @property
    def embedded(self) -> int:
        """Number of products that the target or an alternative computes."""
        return len(self.fitting)

    @property
    def on_alternatives(self) -> int:
        """Number of products that an alternative of the target computes."""
        return sum(o.match is not None and o.match.embedded_on != self.target for o in self.fitting)

    @property
    def retyped(self) -> int:
        """Number of products whose element types the target does not multiply."""
        return sum(o.match is not None and o.match.retyped for o in self.matched)

    @cached_property
    def line(self) -> Line:
        """Totals over the products."""
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
    """Network on each target, in the order of the request.

    ``operators`` is the number of operators of the model, before any pass.
    """

    network: str
    operators: int
    targets: tuple[TargetMatch, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``match --json``."""
        return {
            "network": self.network,
            "operators": self.operators,
            "targets": [target.to_json() for target in self.targets],
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
    """Match each product of a network with each target; searches run in the worker.

    Parameters
    ----------
    graph : Graph
    targets : sequence of str or HardwareSpec
        Names, files or values.
    alternatives : bool, default True
        Try the alternatives of a specification if its instruction does not fit or is mostly idle.
    timeout : float or None, default 10
        Seconds of each search.
    prepares : bool, default True
        Run the graph passes first.
    progress : Progress, optional

    Raises
    ------
    SpecError
        For a wrong target, and for two targets of one name; passes may raise other errors.
    """
    specs = hardware_specs([network_spec(graph, target) for target in targets])
    prepared = [prepared_for(graph, spec) if prepares else graph for spec in specs]
    # Blocks of a network repeat: of equal products one is searched, whatever their names.
    work = [_distinct(network) for network in prepared]
    total, finished = sum(len(layers) for layers in work), 0
    results: list[TargetMatch] = []
    for spec, network, layers in zip(specs, prepared, work, strict=True):
        # A specification without alternatives makes the search end at the instruction itself.
        searched = spec if alternatives else replace(spec, alternatives=())
        matches: dict[Computation, Match] = {}
        for layer, name in layers.items():
            if progress is not None:
                progress(f"{name} on {spec.name}", finished, total)
            matches[layer] = match_in_worker(
                Request(layer, searched, KernelOptions(timeout=timeout))
            )
            finished += 1
        results.append(_target_match(spec.name, network, matches))
    if progress is not None:
        progress("", finished, total)
    return MatchResult(graph.name, sum(1 for _ in nested_operators(graph)), tuple(results))


def _distinct(graph: Graph) -> dict[Computation, str]:
    """Return each distinct computation, and the name of the first operator that has it."""
    names: dict[Computation, str] = {}
    for operator, _, _ in nested_operators(graph):
        if isinstance(operator.kind, Product):
            names.setdefault(_anonymous(operator.kind.computation), operator.name)
    return names


def _anonymous(computation: Computation) -> Computation:
    """Return a computation without its name, which the match does not depend on."""
    return replace(computation, name="product")


def _target_match(target: str, graph: Graph, matches: dict[Computation, Match]) -> TargetMatch:
    numbers = {layer: number for number, layer in enumerate(matches)}

    def row(operator: Operator) -> OperatorMatch:
        if not isinstance(operator.kind, Product):
            return OperatorMatch(operator.name, operator.kind.label)
        computation = operator.kind.computation
        layer = _anonymous(computation)
        return OperatorMatch(
            name=operator.name,
            label=operator.kind.label,
            computation=computation,
            layer=numbers[layer],
            match=matches[layer],
        )

    operators = [operator for operator, _, _ in nested_operators(graph)]
    return TargetMatch(target, tuple(map(row, operators)), len(matches))
