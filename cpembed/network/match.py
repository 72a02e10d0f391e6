"""Match a network with targets: which products an instruction computes, and how well it is used.

The kernels are those of the network's plan where this machine can compile it for the target.
Otherwise each product is matched like a single workload, equal ones once.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from cpembed.blocks import Displayed
from cpembed.driver.across import Figure, Line, Time, line
from cpembed.driver.matching import Match, match_in_worker, network_units
from cpembed.driver.named import hardware_specs
from cpembed.driver.options import KernelOptions
from cpembed.driver.plan import Request
from cpembed.errors import BackendUnavailable, LoweringError, SpecError
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds.grouped import GroupedProduct
from cpembed.graph.kinds.product import Product
from cpembed.graph.loop import nested_operators
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.network.attention import AttentionKernel
from cpembed.network.build import prepared_and_named, uniquely_named
from cpembed.network.executions import WEIGHT_ONLY
from cpembed.network.pair_executions import PairPolicy
from cpembed.network.physical_product import channels_last
from cpembed.network.plan import SEARCH_LIMIT, NetworkPlan, Planning, plan_network
from cpembed.network.product_kernels import utilisation
from cpembed.network.stepwise import step_request
from cpembed.network.stepwise_chains import ChainedGraph, FusedChain, with_chains, without_chains
from cpembed.network.stepwise_layouts import StepLayouts
from cpembed.provenance import Provenance
from cpembed.steps import Progress, silent
from cpembed.targets.capabilities import links_here
from cpembed.targets.registry import missing_for, open_target
from cpembed.targets.units import FloatType, Units

ImageLayout = Literal["NCHW", "NHWC"]
"""Layout of images: channels before the rows and columns, or after them."""

_NO_PRODUCT = "no product"


@dataclass(frozen=True)
class OperatorMatch:
    """Operator of a network, and how a target computes it.

    Attributes
    ----------
    name, label : str
        Name in the model, and the kind of the operator.
    computation : Computation or None
        Product, of two that are one kernel the first (of an attention on a processor, that of the
        scores of a tile).
    layer : int or None
        Number of the computation among the distinct ones.
    match : Match or None
        Result of the search; like the two before it, None for operators that are no products.
    unmatched : str
        Reason why an operator without a match has none.
    products, macs : int
        Number of products with a match, two in a chain, and multiply-accumulates; a weight-only
        product has no match.
    """

    name: str
    label: str
    computation: Computation | None = None
    layer: int | None = None
    match: Match | None = None
    unmatched: str = _NO_PRODUCT
    products: int = 0
    macs: int = 0

    @property
    def is_embedded(self) -> bool:
        return self.match is not None and self.match.embedded_on is not None

    @property
    def reason(self) -> str | None:
        """Reason why the operator is not embedded, or runs on an alternative."""
        return self.unmatched if self.match is None else self.match.reason

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
            return {**document, "outcome": "no", "embedded_on": None, "reason": self.unmatched}
        return {**document, **self.match.to_json()}


@dataclass(frozen=True)
class TargetMatch:
    """Operators of a network, prepared for the element types of a target that computes them.

    Attributes
    ----------
    layers : int
        Number of distinct computations.
    members : tuple of str
        Names of the targets that are meant: all of a processor, or the named one.
    is_planned : bool
        True if the kernels are those of a plan of the whole network.
    """

    target: str
    operators: tuple[OperatorMatch, ...]
    layers: int
    members: tuple[str, ...] = ()
    is_planned: bool = False

    @cached_property
    def matched(self) -> tuple[OperatorMatch, ...]:
        """Operators of the network that are products."""
        return tuple(o for o in self.operators if o.match is not None)

    @cached_property
    def fitting(self) -> tuple[OperatorMatch, ...]:
        """Operators that are products and embedded."""
        return tuple(o for o in self.matched if o.is_embedded)

    @cached_property
    def undecided(self) -> dict[str, int]:
        """Number of products whose search stopped at its time limit or failed, by outcome."""
        outcomes = Counter(o.match.outcome for o in self.matched if o.match is not None)
        return {name: outcomes[name] for name in ("stopped", "failed") if outcomes[name]}

    @property
    def products(self) -> int:
        """Number of products; an attention counts as two."""
        return sum(operator.products for operator in self.matched)

    @property
    def embedded(self) -> int:
        """Number of products that the target or an alternative computes."""
        return sum(operator.products for operator in self.fitting)

    @property
    def on_alternatives(self) -> int:
        """Number of products that an alternative of the target, or another unit, computes."""
        return sum(
            operator.products
            for operator in self.fitting
            if operator.match is not None and operator.match.embedded_on not in self.members
        )

    @property
    def retyped(self) -> int:
        """Number of products whose element types the target does not multiply."""
        return sum(o.match is not None and o.match.retyped for o in self.matched)

    @cached_property
    def line(self) -> Line:
        """Totals over the products."""
        return line(self.target, [o.figure for o in self.matched])

    @property
    def weight_only(self) -> tuple[OperatorMatch, ...]:
        """Weight-only products, which kernels of their own compute."""
        return tuple(o for o in self.operators if o.unmatched == WEIGHT_ONLY)

    def totals_json(self) -> dict[str, Any]:
        return {
            "operators": len(self.operators),
            "mapped": len(self.fitting),
            "products": self.products,
            "embedded": self.embedded,
            "stopped": self.undecided.get("stopped", 0),
            "failed": self.undecided.get("failed", 0),
            "on_alternatives": self.on_alternatives,
            "distinct": self.layers,
            "retyped": self.retyped,
            "weight_only": len(self.weight_only),
            "weight_only_macs": sum(o.macs for o in self.weight_only),
            **self.line.to_json(),
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "units": list(self.members),
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
    timeout: float | None = SEARCH_LIMIT,
    prepares: bool = True,
    float_type: FloatType | None = None,
    pairs: PairPolicy = "auto",
    layout: ImageLayout | None = None,
    progress: Progress = silent,
) -> MatchResult:
    """Return the kernel or the mapping of each product of a network on each target.

    Where this machine can hold the target's kernels in a library, these are the kernels and layouts
    of the plan that :func:`~cpembed.network.service.network` compiles. Other targets are searched
    product by product, as they run them.

    Parameters
    ----------
    graph : Graph
    targets : sequence of str or HardwareSpec
        Names, files or values; ``native`` for all instructions of this processor.
    alternatives : bool, default True
        Let alternatives of a target, and other units of its processor, compute what it does not.
    timeout : float or None, default 20
        Seconds of each search.
    prepares : bool, default True
        Run the graph passes first.
    float_type : str, optional
        Type to which operands of float products are rounded, as in a network.
    pairs : PairPolicy, default "auto"
        Where pairs of operators are one kernel, as in a network.
    layout : ImageLayout, optional
        Layout of the images of convolutions in the memory of targets that are searched product by
        product; by default that in which they run the network. Plans of networks choose the layouts
        themselves.
    progress : Progress, optional

    Raises
    ------
    SpecError
        For a wrong target, for two targets of one name, and for a layout with a target whose
        networks are planned; passes may raise other errors.
    """
    units = [network_units(target, float_type) for target in targets]
    hardware_specs([each.named for each in units if each.named is not None])
    if not alternatives:
        units = [_without_alternatives(each) for each in units]
    results: list[TargetMatch] = []
    planned = [_is_planned(each) for each in units]
    if layout is not None and any(planned):
        name = units[planned.index(True)].name
        raise SpecError(
            f"the plan of a network on {name} chooses the layout of each tensor: leave --layout "
            "(layout=) out"
        )
    for each, is_planned in zip(units, planned, strict=True):
        network = prepared_and_named(graph, each) if prepares else uniquely_named(graph)
        if is_planned:
            planning = Planning(timeout=timeout, pairs=pairs)
            try:
                plan = plan_network(network, each, planning, progress)
            except LoweringError:
                # No network is compiled where an operator has no kernel; the searches name it.
                pass
            else:
                results.append(_of_plan(plan))
                continue
        options = _SearchOptions(timeout, layout, pairs)
        results.append(_of_searches(network, each.primary, options, progress))
    return MatchResult(graph.name, sum(1 for _ in nested_operators(graph)), tuple(results))


def _without_alternatives(units: Units) -> Units:
    """Return a named target without alternatives; all units of a processor as they are."""
    named = units.named
    if named is None:
        return units
    return replace(units, named=replace(named, alternatives=()), processor=())


def _is_planned(units: Units) -> bool:
    """True if a network on these units is a library of this machine."""
    return not missing_for(units.primary) and links_here(open_target(units.primary))


def _of_plan(plan: NetworkPlan) -> TargetMatch:
    """Return the products of a plan with their kernels."""
    # The body of a loop has a plan of its own, which may split its operators.
    nested = [(operator, inner) for operator, inner, _ in plan.nested()]
    rows: dict[str, _Row] = {}
    for operator, inner in nested:
        attention = inner.execution(operator).attention
        if isinstance(operator.kind, Product):
            match = _match_of_product(operator.kind, inner, operator)
            rows[operator.name] = _Row.single(operator.kind.computation, match)
        elif attention is not None:
            tile = tuple(p.candidate.program.unfused for p in attention.products)
            rows[operator.name] = _Row(tile, attention.macs, _match_of_attention(attention))
    operators = [operator for operator, _ in nested]
    target = _target_match(plan.units.name, operators, rows, plan.units.members)
    return replace(target, is_planned=True)


def _match_of_attention(attention: AttentionKernel) -> Match:
    """Return the match of an attention: its time, and the embedding of the scores of a tile."""
    scores, values = attention.products
    reason, us = scores.reason or values.reason, attention.cost_us
    if not (scores.is_native and values.is_native):
        return Match(reason=f"portable code: {reason}")
    return Match(
        embedded_on=scores.target,
        embedding=scores.candidate.embedding,
        utilisation=min(scores.utilisation, values.utilisation),
        estimated=Time(us, "us", us, Provenance.ESTIMATED),
        moved_bytes=scores.moved_bytes + values.moved_bytes,
        reason=reason,
    )


def _match_of_product(kind: Product, plan: NetworkPlan, operator: Operator) -> Match:
    execution = plan.execution(operator)
    kernel, us = execution.kernel, execution.cost_us
    assert kernel is not None
    if execution.is_deferred:
        # Pooling has no match that could have the time of both.
        second = plan.executions[execution.fused_with or ""]
        us = us if second.kernel is not None else second.cost_us
    if not kernel.is_native:
        ended = "stopped" if kernel.stopped else "searched"
        return Match(reason=f"portable code: {kernel.reason}", ended=ended)
    return Match(
        embedded_on=kernel.target,
        embedding=kernel.candidate.embedding,
        utilisation=utilisation(kind.computation, kernel.utilisation),
        estimated=Time(us, "us", us, Provenance.ESTIMATED),
        moved_bytes=kernel.moved_bytes,
        reason=f"computed with {execution.fused_with}" if execution.is_deferred else kernel.reason,
    )


@dataclass(frozen=True)
class _SearchOptions:
    """Seconds of a search, layout of images if it is not the target's, pairs in one kernel."""

    timeout: float | None
    layout: ImageLayout | None
    pairs: PairPolicy


def _of_searches(
    graph: Graph, spec: HardwareSpec, options: _SearchOptions, progress: Progress
) -> TargetMatch:
    """Search each product by itself, in the worker; equal ones once, whatever their names.

    Chains of products that the target runs as one kernel are its choice.
    """
    chained = _chained(graph, spec, options)
    rows: dict[str, _Row] = {}
    by_workload: dict[Computation, Match] = {}
    nested = [(operator, inner) for operator, inner, _ in nested_operators(chained.graph)]
    products = [each for each in nested if isinstance(each[0].kind, Product)]
    for number, (operator, inner) in enumerate(products):
        progress(f"{operator.name} on {spec.name}", number, len(products))
        layouts = chained.layouts
        if inner is not chained.graph:
            layouts = StepLayouts(inner, layouts.channels_last)
        request = _request(layouts, operator, spec, options)
        workload = _anonymous(request.workload)
        if workload not in by_workload:
            by_workload[workload] = match_in_worker(replace(request, workload=workload))
        assert isinstance(operator.kind, Product)
        rows[operator.name] = _Row.single(operator.kind.computation, by_workload[workload])
    progress("", len(products), len(products))
    for name, each in chained.fused.items():
        both = each.chain.first, each.chain.second
        rows[name] = _Row(both, each.chain.macs, _match_of_chain(each, spec))
    return _target_match(spec.name, [each for each, _ in nested], rows, (spec.name,))


def _chained(graph: Graph, spec: HardwareSpec, options: _SearchOptions) -> ChainedGraph:
    """Return the graph with its chains, as the target runs it; without, in another layout."""
    try:
        target = open_target(spec)
    except BackendUnavailable:
        # Nothing executes the specification.
        return without_chains(graph, channels_last=False)
    if options.layout is None:
        return with_chains(graph, target, options.pairs)
    return without_chains(graph, channels_last=False)


def _match_of_chain(fused: FusedChain, spec: HardwareSpec) -> Match:
    """Return the match of a chain: its time, and the embedding of its first product."""
    candidate, us = fused.candidate, fused.candidate.estimated_us
    first, *_ = candidate.products
    return Match(
        embedded_on=spec.name,
        embedding=first.embedding,
        utilisation=min(each.overheads.utilisation for each in candidate.products),
        estimated=Time(us, "us", us, Provenance.ESTIMATED, open_target(spec).described_machine),
        moved_bytes=0,
        reason=f"one kernel, through {candidate.via}",
    )


def _request(
    layouts: StepLayouts, operator: Operator, spec: HardwareSpec, options: _SearchOptions
) -> Request:
    """Return the request for a product's kernel, as the target would run it."""
    timeout = options.timeout
    try:
        request = step_request(layouts, operator, spec, timeout)
        if options.layout != "NHWC":
            return request
        last = channels_last(layouts.graph, operator, request.workload)
        return replace(request, workload=last)
    except BackendUnavailable:
        # Nothing executes the specification; it can still be embedded.
        assert isinstance(operator.kind, Product)
        return Request(operator.kind.computation, spec, KernelOptions(timeout=timeout))


def _anonymous(computation: Computation) -> Computation:
    """Return a computation without its name, which the match does not depend on."""
    return replace(computation, name="product")


@dataclass(frozen=True)
class _Row:
    """Products of one kernel, their multiply-accumulates, and their match."""

    products: tuple[Computation, ...]
    macs: int
    match: Match

    @classmethod
    def single(cls, computation: Computation, match: Match) -> _Row:
        """Return the row of a product that is a kernel of its own."""
        return cls((computation,), computation.macs, match)


def _target_match(
    target: str, operators: Sequence[Operator], rows: Mapping[str, _Row], members: tuple[str, ...]
) -> TargetMatch:
    numbers: dict[Computation, int] = {}

    def match_of(operator: Operator) -> OperatorMatch:
        name, kind, row = operator.name, operator.kind, rows.get(operator.name)
        if row is None:
            is_grouped = isinstance(kind, GroupedProduct)
            reason, macs = (WEIGHT_ONLY, kind.macs) if is_grouped else (_NO_PRODUCT, 0)
            return OperatorMatch(name, kind.label, unmatched=reason, macs=macs)
        layers = [numbers.setdefault(_anonymous(each), len(numbers)) for each in row.products]
        return OperatorMatch(
            name=name,
            label=kind.label,
            # The kernel of a chain is none of its products, so that these have no names.
            computation=row.products[0] if len(layers) == 1 else _anonymous(row.products[0]),
            layer=layers[0],
            match=row.match,
            products=len(layers),
            macs=row.macs,
        )

    return TargetMatch(target, tuple(map(match_of, operators)), len(numbers), members)
