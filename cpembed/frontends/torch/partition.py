"""Partition of a module of ATen operators: networks around products, and the rest.

Operators that can be written in kinds are gathered in connected parts. A part without a product of
matrices or a convolution, or that cannot be compiled, stays with PyTorch.
"""
# pyright: basic

# What it imports is an extra, which a type checker need not find, and not this package.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import logging
import operator
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.split_module import split_module

from cpembed.errors import BackendUnavailable, CpembedError
from cpembed.frontends.builder import Builder
from cpembed.frontends.torch.arrays import as_array, as_tensor
from cpembed.frontends.torch.compile_summary import Part
from cpembed.frontends.torch.nodes import Lowering, is_higher_order, is_known
from cpembed.graph.graph import Graph
from cpembed.graph.kinds.base import Array

LOGGER = logging.getLogger(__name__)
"""Reports the number of networks of a module."""


class Runnable(Protocol):
    """A compiled network."""

    def run(self, inputs: Mapping[str, Array], /) -> Mapping[str, Array]: ...


Compile = Callable[[Graph], Runnable]
"""A function that compiles a network or raises :class:`CpembedError`."""


@dataclass(frozen=True)
class Fallback:
    """A call of ``operator`` that is part of no network, and the ``reason``."""

    operator: str
    reason: str


@dataclass(frozen=True)
class Partitioned:
    """A module whose networks are compiled.

    Attributes
    ----------
    module : torch.fx.GraphModule
        Networks and the parts between them.
    networks : tuple of Graph
        Networks that were compiled.
    fallbacks : tuple of Fallback
        Calls that are part of none.
    parts : tuple of Part
        Networks and PyTorch's part, for the summary.
    """

    module: torch.fx.GraphModule
    networks: tuple[Graph, ...]
    fallbacks: tuple[Fallback, ...]
    parts: tuple[Part, ...]


def partitioned(
    module: torch.fx.GraphModule, compile_graph: Compile, rest: Callable[[Any], Any]
) -> Partitioned:
    """Compile the networks in a module.

    Parameters
    ----------
    module : torch.fx.GraphModule
        Calls of ATen operators.
    compile_graph : callable
        Compiles a network.
    rest : callable
        Wraps a part that PyTorch runs in the module that runs it.

    Raises
    ------
    BackendUnavailable
        If this machine cannot compile any network for the target.
    """
    support = _Support(module)
    partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
    partitions = [
        partition
        for partition in partitioner.propose_partitions()
        if any(map(is_product, partition.nodes))
    ]
    parts = {node for partition in partitions for node in partition.nodes}
    fallbacks = [
        Fallback(str(node.target), support.reason(node))
        for node in module.graph.nodes
        if _computes(node) and node not in parts
    ]
    fused = partitioner.fuse_partitions(partitions)
    networks: list[Graph] = []
    parts_of_summary: list[Part] = []
    for node in list(fused.graph.nodes):
        if node.op != "call_module" or not _is_part(fused, node):
            continue
        try:
            graph, inputs = _network(fused, node, f"network_{len(networks)}")
            started = time.perf_counter()
            compiled = compile_graph(graph)
            seconds = time.perf_counter() - started
        except BackendUnavailable:
            # No other part can be compiled either, so the person has to name another target.
            raise
        except CpembedError as error:
            calls = filter(_computes, fused.get_submodule(node.target).graph.nodes)
            fallbacks.extend(Fallback(str(call.target), str(error)) for call in calls)
            continue
        networks.append(graph)
        part = fused.get_submodule(node.target)
        calls = Counter(str(call.target) for call in part.graph.nodes if _computes(call))
        entry = Part(graph.name, dict(calls), compile_seconds=seconds)
        parts_of_summary.append(entry)
        single = isinstance(part.graph.output_node().args[0], torch.fx.Node)
        setattr(fused, node.target, Network(graph, compiled, single, entry))
        node.args = inputs
    # Constants of a network are its own: what held them in the module is not read any more.
    fused.graph.eliminate_dead_code()
    fused.recompile()
    remainder = part_of_pytorch(fallbacks)
    if fallbacks:
        parts_of_summary.append(remainder)
    split = _split(fused, lambda part: TimedPart(rest(part), remainder))
    return Partitioned(split, tuple(networks), tuple(fallbacks), tuple(parts_of_summary))


def part_of_pytorch(fallbacks: Sequence[Fallback]) -> Part:
    """Return the summary's entry of the operators that PyTorch runs."""
    calls = Counter(fallback.operator for fallback in fallbacks)
    reasons = dict.fromkeys(fallback.reason for fallback in fallbacks)
    return Part("PyTorch", dict(calls), tuple(reasons))


def _computes(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and node.target is not operator.getitem


class Network(torch.nn.Module):
    """A compiled network between tensors."""

    def __init__(self, graph: Graph, compiled: Runnable, single: bool, part: Part) -> None:
        super().__init__()
        self.names, self.outputs = tuple(graph.inputs), graph.outputs
        self.compiled, self.single, self.part = compiled, single, part

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.part.timed(lambda: self._run(tensors))

    def _run(self, tensors: Sequence[torch.Tensor]) -> Any:
        arrays = {name: as_array(t) for name, t in zip(self.names, tensors, strict=True)}
        outputs = self.compiled.run(arrays)
        results = tuple(as_tensor(outputs[name]) for name in self.outputs)
        return results[0] if self.single else results


class TimedPart(torch.nn.Module):
    """A part that PyTorch runs, whose calls are timed."""

    def __init__(self, run: Any, part: Part) -> None:
        super().__init__()
        self.run, self.part = run, part

    def forward(self, *tensors: Any) -> Any:
        return self.part.timed(lambda: self.run(*tensors))


class _Support(OperatorSupportBase):
    """Test whether a call can be written in kinds, by lowering it alone."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.module = module
        self.supported: dict[torch.fx.Node, bool] = {}
        self.errors: dict[torch.fx.Node, str] = {}

    def reason(self, node: torch.fx.Node) -> str:
        """Reason for which a call is part of no network."""
        if not is_known(node.target):
            return "the operator is not known"
        if is_higher_order(node.target):
            return "its functions stay with PyTorch"
        return self.errors.get(node, "no product or convolution is connected with it")

    def is_node_supported(self, submodules: Mapping[str, Any], node: torch.fx.Node) -> bool:
        if node not in self.supported:
            self.supported[node] = self._can_be_lowered(node)
        return self.supported[node]

    def _can_be_lowered(self, node: torch.fx.Node) -> bool:
        # A part of a module holds calls, and no functions that they would take.
        is_call = node.op == "call_function" and is_known(node.target)
        if not is_call or is_higher_order(node.target):
            return False
        if node.target is operator.getitem:
            return self.is_node_supported({}, node.args[0])
        lowering = Lowering(Builder("a part"))
        try:
            # Whatever computes them, they are inputs of this test.
            for source in node.all_input_nodes:
                _bind(lowering, self.module, source, source)
            lowering.run([node])
        except CpembedError as error:
            # The place is left out, so that equal reasons are reported once.
            self.errors[node] = str(error).rpartition("): ")[2]
            return False
        return True


def is_product(node: torch.fx.Node) -> bool:
    """True for a product of matrices, a convolution or an attention."""
    return str(node.target).startswith(_PRODUCTS)


# With the dots that end a name: ``aten.mm.default`` is one, ``aten.mm_more`` would be none.
_PRODUCTS = (
    *(f"aten.{name}." for name in ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addmv")),
    *("aten.mv.", "aten.dot.", "aten.conv", "aten.scaled_dot_product"),
)


def _is_part(module: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    part = module.get_submodule(node.target)
    return isinstance(part, torch.fx.GraphModule) and str(node.target).startswith("fused_")


def _network(
    module: torch.fx.GraphModule, node: torch.fx.Node, name: str
) -> tuple[Graph, tuple[torch.fx.Node, ...]]:
    """Return the graph of a part, and the nodes that are its inputs."""
    part = module.get_submodule(node.target)
    builder = Builder(name)
    lowering = Lowering(builder)
    inputs: list[torch.fx.Node] = []
    placeholders = [inner for inner in part.graph.nodes if inner.op == "placeholder"]
    for inner, source in zip(placeholders, node.args, strict=True):
        if not _bind(lowering, module, inner, source):
            inputs.append(source)
    lowering.run(list(part.graph.nodes))
    returned = part.graph.output_node().args[0]
    values = [returned] if isinstance(returned, torch.fx.Node) else list(returned)
    return lowering.graph((v.name, v) for v in values), tuple(inputs)


def _bind(
    lowering: Lowering,
    module: torch.fx.GraphModule,
    node: torch.fx.Node,
    source: torch.fx.Node,
) -> bool:
    """Bind a node to its source: a constant, for which True is returned, or an input."""
    if source.op == "get_attr":
        path, _, name = str(source.target).rpartition(".")
        tensor = getattr(module.get_submodule(path), name)
        lowering.constant(node, tensor, str(source.target))
        return True
    node.meta.setdefault("val", source.meta.get("val"))
    lowering.input(node, node.name)
    return False


def _split(module: torch.fx.GraphModule, rest: Callable[[Any], Any]) -> torch.fx.GraphModule:
    """Split a module into a sequence of networks and of parts between them."""
    levels: dict[torch.fx.Node, int] = {}
    numbers: dict[torch.fx.Node, int] = {}
    networks = [node for node in module.graph.nodes if _is_network(module, node)]
    for node in module.graph.nodes:
        # A node that reads networks comes a level after the last of them.
        sources = [levels.get(n, 0) + (n in networks) for n in node.all_input_nodes]
        levels[node] = max(sources, default=0)
    for node in module.graph.nodes:
        place = networks.index(node) + 1 if node in networks else 0
        numbers[node] = levels[node] * (len(networks) + 1) + place
    split = split_module(module, module, lambda node: numbers[node])
    for name, part in list(split.named_children()):
        if isinstance(part, torch.fx.GraphModule) and not _holds_network(part):
            setattr(split, name, rest(part))
    return split


def _is_network(module: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    return node.op == "call_module" and isinstance(module.get_submodule(node.target), Network)


def _holds_network(part: torch.fx.GraphModule) -> bool:
    return any(isinstance(child, Network) for child in part.modules())
