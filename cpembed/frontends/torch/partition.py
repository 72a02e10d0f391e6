"""Partition of a module of ATen operators: networks of quantized products, and the rest.

Operators that can be written in kinds are gathered in connected parts. A part without a quantized
product, or that cannot be compiled, stays with PyTorch.
"""
# pyright: basic

# What it imports is an extra, which a type checker need not find, and not this package.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.split_module import split_module

from cpembed.errors import CpembedError
from cpembed.frontends.builder import Builder
from cpembed.frontends.torch.lowering import Lowering, is_higher_order, is_known
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


def partitioned(
    module: torch.fx.GraphModule, compile_graph: Compile, rest: Callable[[Any], Any]
) -> tuple[torch.fx.GraphModule, tuple[Graph, ...], tuple[Fallback, ...]]:
    """Compile the networks in a module.

    Parameters
    ----------
    module : torch.fx.GraphModule
        Calls of ATen operators.
    compile_graph : callable
        Compiles a network.
    rest : callable
        Wraps a part that PyTorch runs in the module that runs it.

    Returns
    -------
    tuple
        The module, its networks, and the calls that are part of none.
    """
    support = _Support(module)
    partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
    partitions = [
        partition
        for partition in partitioner.propose_partitions()
        if any(map(is_quantized_product, partition.nodes))
    ]
    parts = {node for partition in partitions for node in partition.nodes}
    fallbacks = [
        Fallback(str(node.target), support.reason(node))
        for node in module.graph.nodes
        if _computes(node) and node not in parts
    ]
    fused = partitioner.fuse_partitions(partitions)
    networks: list[Graph] = []
    for node in list(fused.graph.nodes):
        if node.op != "call_module" or not _is_part(fused, node):
            continue
        try:
            graph, inputs = _network(fused, node, f"network_{len(networks)}")
            compiled = compile_graph(graph)
        except CpembedError as error:
            calls = filter(_computes, fused.get_submodule(node.target).graph.nodes)
            fallbacks.extend(Fallback(str(call.target), str(error)) for call in calls)
            continue
        networks.append(graph)
        part = fused.get_submodule(node.target)
        single = isinstance(part.graph.output_node().args[0], torch.fx.Node)
        setattr(fused, node.target, Network(graph, compiled, single))
        node.args = inputs
    # Constants of a network are its own: what held them in the module is not read any more.
    fused.graph.eliminate_dead_code()
    fused.recompile()
    return _split(fused, rest), tuple(networks), tuple(fallbacks)


def _computes(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and node.target is not operator.getitem


class Network(torch.nn.Module):
    """A compiled network between tensors."""

    def __init__(self, graph: Graph, compiled: Runnable, single: bool) -> None:
        super().__init__()
        self.names, self.outputs = tuple(graph.inputs), graph.outputs
        self.compiled, self.single = compiled, single

    def forward(self, *tensors: torch.Tensor) -> Any:
        arrays = {
            name: np.ascontiguousarray(tensor.detach().numpy())
            for name, tensor in zip(self.names, tensors, strict=True)
        }
        outputs = self.compiled.run(arrays)
        results = tuple(torch.from_numpy(np.asarray(outputs[name])) for name in self.outputs)
        return results[0] if self.single else results


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
        return self.errors.get(node, "no product of quantized tensors is connected with it")

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


def is_quantized_product(node: torch.fx.Node) -> bool:
    """True for a product of matrices or a convolution of two dequantized tensors."""
    name = str(node.target)
    if not name.startswith(_PRODUCTS):
        return False
    factors = [source for source in node.all_input_nodes if _is_dequantized(source)]
    return len(factors) >= 2


_PRODUCTS = tuple(
    f"aten.{name}" for name in ("conv", "linear.", "matmul.", "mm.", "bmm.", "addmm.", "baddbmm.")
)
_MOVEMENTS = tuple(
    f"aten.{name}"
    for name in ("permute.", "transpose.", "t.", "view.", "reshape.", "expand.", "clone.")
)


def _is_dequantized(node: torch.fx.Node) -> bool:
    while str(node.target).startswith(_MOVEMENTS):
        node = node.args[0]
    return "dequantize_per" in str(node.target)


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
