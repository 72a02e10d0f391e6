"""Chains of products in a network that runs product by product: attention, and pairs of products.

Each becomes one kernel where the target makes one that is estimated to take no longer than the
products apart. Any other attention is split into its products, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cpembed.codegen.epilogue import CHAIN_TYPES
from cpembed.errors import LoweringError
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import Attention, TensorType
from cpembed.graph.kinds.attention import AXES
from cpembed.graph.passes.attention_splitting import split_attentions
from cpembed.graph.passes.chain_fusion import fuse_chains
from cpembed.graph.passes.rewriting import Rewriting
from cpembed.graph.passes.second_results import fuse_second_results
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.parser import parse_computation
from cpembed.network.layer_chains import FusedLayers, LayerPair, layer_pair
from cpembed.network.pair_executions import PairPolicy
from cpembed.network.stepwise_layouts import StepLayouts
from cpembed.targets.capabilities import AnyTarget
from cpembed.targets.chains import ChainCandidate, ChainChoice, Chaining, chaining
from cpembed.targets.registry import open_target
from cpembed.workloads.chains import FACTORS, MASK, ProductChain, RowSoftmax

_HIDDEN = -1e30
"""Score below which a key that a Boolean mask excludes has no weight beside any other."""


@dataclass(frozen=True)
class FusedAttention:
    """Attention of a network as one kernel of a target.

    Attributes
    ----------
    kind : Attention
    chain : ProductChain
    candidate : ChainCandidate
        Kernel with the smallest estimate.
    """

    kind: Attention
    chain: ProductChain
    candidate: ChainCandidate

    def inputs(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """Return the chain's inputs from those of the operator."""
        named = dict(zip(_factor_names(self.chain), arrays[:3], strict=True))
        if self.kind.masked:
            mask, (shape, _) = arrays[3], self.chain.inputs[MASK]
            if mask.dtype == np.bool_:
                mask = np.where(mask, np.float32(0), np.float32(-np.inf))
            # Of the chain's dimensions keys alone may have one element in the network's mask.
            repeated = (*shape[:-1], 1) if mask.shape[-1] == 1 else shape
            named[MASK] = np.broadcast_to(mask.reshape(repeated), shape)
        return {
            name: named[name].astype(dtype, copy=False).reshape(shape)
            for name, (shape, dtype) in self.chain.inputs.items()
        }

    def result(self, arrays: Sequence[Array], output: Array) -> Array:
        """Return the operator's result from the kernel's.

        Parameters
        ----------
        arrays : sequence of ndarray
            Inputs of the operator.
        output : ndarray
            Result of the kernel, in the chain's shape.
        """
        (result,) = self.kind.types([TensorType.of_array(array) for array in arrays])
        return with_undefined_rows(self.kind, arrays, output.reshape(result.shape))


FusedChain = FusedAttention | FusedLayers
"""Operator of a network as one kernel of a chain."""


@dataclass(frozen=True)
class ChainedGraph:
    """Graph in which chains that are one kernel are one operator each.

    Attributes
    ----------
    graph : Graph
    layouts : StepLayouts
        Layouts of the graph before pairs of products became one operator.
    fused : mapping of str to FusedChain
        By the operator's name.
    reasons : mapping of str to str
        Reason why an operator is no kernel of a chain, by its name; of a split attention by that of
        the operator that computes its result.
    """

    graph: Graph
    layouts: StepLayouts
    fused: Mapping[str, FusedChain]
    reasons: Mapping[str, str]

    def parts(self, operator: Operator) -> tuple[Operator, ...]:
        """Return the operators that became one, or the operator itself."""
        fused = self.fused.get(operator.name)
        return (
            (fused.pair.first, fused.pair.second) if isinstance(fused, FusedLayers) else (operator,)
        )


def without_chains(graph: Graph, *, channels_last: bool) -> ChainedGraph:
    """Return a graph in which all products are kernels of their own, those of attention too."""
    graph = _without_attentions(graph, [operator.name for operator in graph.operators])
    return ChainedGraph(graph, StepLayouts(graph, channels_last), {}, {})


def with_chains(graph: Graph, target: AnyTarget, pairs: PairPolicy = "auto") -> ChainedGraph:
    """Choose a kernel for each chain of products.

    Parameters
    ----------
    graph : Graph
    target : Target
        Target that runs the products.
    pairs : PairPolicy, default "auto"
        Where pairs of products are one kernel: where it is estimated to be faster, wherever there
        is one, or nowhere.
    """
    choices: dict[ProductChain, ChainChoice | str] = {}
    graph, attentions, reasons = _with_attentions(graph, target, choices)
    if target.takes_epilogues:
        graph = fuse_second_results(graph)
    layouts = StepLayouts(graph, target.channels_last)
    layers, separate = _layer_kernels(layouts, target, pairs, choices)
    rewriting = Rewriting(graph)
    for fused in layers.values():
        rewriting.replace(fused.pair.second, fused.pair.operator)
    return ChainedGraph(
        rewriting.graph(), layouts, {**attentions, **layers}, {**reasons, **separate}
    )


def _layer_kernels(
    layouts: StepLayouts,
    target: AnyTarget,
    pairs: PairPolicy,
    choices: dict[ProductChain, ChainChoice | str],
) -> tuple[dict[str, FusedLayers], dict[str, str]]:
    """Return the pairs of products that are one kernel, and why others are none."""
    fused: dict[str, FusedLayers] = {}
    reasons: dict[str, str] = {}
    if not isinstance(target, Chaining):
        return fused, reasons
    for operator in layouts.graph.operators:
        # Of three products in a row, the first two are one kernel.
        pair = None if operator.name in fused else layer_pair(layouts, operator)
        if isinstance(pair, LayerPair):
            outcome = "pairs are off"
            if pairs != "never":
                outcome = _kernel_of(pair.chain, target, choices, always=pairs == "always")
            if isinstance(outcome, ChainCandidate):
                fused[pair.second.name] = FusedLayers(pair, outcome)
            else:
                reasons[operator.name] = outcome
        elif pair is not None:
            reasons[operator.name] = pair
    return fused, reasons


def _with_attentions(
    graph: Graph, target: AnyTarget, choices: dict[ProductChain, ChainChoice | str]
) -> tuple[Graph, dict[str, FusedChain], dict[str, str]]:
    """Return a graph whose attentions are one kernel each, or split into products."""
    fused: dict[str, FusedChain] = {}
    reasons: dict[str, str] = {}
    for operator in graph.operators:
        if not isinstance(operator.kind, Attention):
            continue
        types = [graph.types[name] for name in operator.inputs]
        try:
            chain = attention_chain(operator.kind, types)
        except LoweringError as error:
            reasons[operator.name] = str(error)
            continue
        outcome = _kernel_of(chain, target, choices)
        if isinstance(outcome, str):
            reasons[operator.name] = outcome
        else:
            fused[operator.name] = FusedAttention(operator.kind, chain, outcome)
    return _without_attentions(graph, reasons), fused, reasons


def _without_attentions(graph: Graph, names: Collection[str]) -> Graph:
    """Return a graph in which some attentions are products and a softmax."""
    split = split_attentions(graph, names)
    return graph if split is graph else fuse_chains(split, CHAIN_TYPES)


def _kernel_of(
    chain: ProductChain,
    target: AnyTarget,
    choices: dict[ProductChain, ChainChoice | str],
    *,
    always: bool = False,
) -> ChainCandidate | str:
    """Return the kernel of a chain, or the reason why its products are computed apart."""
    # Layers of a network are alike.
    if chain not in choices:
        try:
            choices[chain] = chaining(target).chain_choice(chain)
        except LoweringError as error:
            choices[chain] = str(error)
    choice = choices[chain]
    if isinstance(choice, str):
        return choice
    if not choice.candidates:
        return f"no kernel: {choice.unavailable}"
    if choice.fuses or always:
        return choice.candidates[0]
    products_us = sum(choice.apart_us.values())
    return (
        f"no clear gain: one kernel is estimated to take {choice.candidates[0].estimated_us:.3g} "
        f"us, the products apart {products_us:.3g} us"
    )


def attention_chain(kind: Attention, types: Sequence[TensorType]) -> ProductChain:
    """Return the chain of an attention's two products.

    Parameters
    ----------
    kind : Attention
    types : sequence of TensorType
        Types of query, key, value and mask.

    Raises
    ------
    LoweringError
        If no chain is defined like it.
    """
    if kind.factors not in FACTORS:
        raise LoweringError(f"chains multiply {', '.join(FACTORS)}, not {kind.factors}")
    query, key, value = kind.sizes(types)
    extents = {"b": query["b"], "g": key["h"], "r": query["h"] // key["h"]}
    extents |= {"q": query["s"], "k": key["s"], "d": query["d"], "e": value["d"]}

    def indices(axes: str, heads: str, row: str, depth: str) -> str:
        # Axes of one element that a tensor lacks come first.
        order = [axis for axis in AXES if axis not in axes] + [*axes]
        letters = {"b": "b", "h": heads, "s": row, "d": depth}
        return ",".join(letter for axis in order for letter in letters[axis])

    texts = (
        indices(axes, heads, row, depth)
        for axes, heads, row, depth in zip(
            kind.axes, ("gr", "g", "g", "gr"), "qkkq", "ddee", strict=True
        )
    )
    q, k, v, o = texts
    first, second = (
        parse_computation(
            text,
            {name: extents[name] for name in axes},
            name=label,
            dtypes=dict.fromkeys(operands, kind.factors),
            varying=operands,
        )
        for text, axes, label, operands in (
            (f"S[b,g,r,q,k] += Q[{q}] * K[{k}]", "bgrqkd", "scores", ("Q", "K")),
            (f"O[{o}] += P[b,g,r,q,k] * V[{v}]", "bgrqek", "values", ("P", "V")),
        )
    )
    function = RowSoftmax(
        kind.scale,
        causal=kind.causal,
        mask=_mask_dimensions(kind, types[3], extents) if kind.masked else "",
        cap=kind.softcap or None,
    )
    return ProductChain(
        name="attention", first=first, second=second, function=function, output=kind.dtype
    )


def _mask_dimensions(kind: Attention, mask: TensorType, extents: Mapping[str, int]) -> str:
    """Return the dimensions of a mask; raises :class:`LoweringError` if kernels have none such."""
    if mask.dtype == "bool" and kind.excluded > _HIDDEN:
        raise LoweringError(f"keys that a mask excludes have a score of {kind.excluded:g}")
    sizes = {**extents, "h": extents["g"] * extents["r"]}
    names = dict(zip(reversed("bhqk"), reversed(mask.shape), strict=False))
    for name, size in names.items():
        if size not in (1, sizes[name]):
            raise LoweringError(f"a mask of attention of {size} of {sizes[name]} along {name}")
    return "".join(name for name in "bhqk" if name == "k" or names.get(name, 1) != 1)


def _factor_names(chain: ProductChain) -> tuple[str, str, str]:
    first, second = (operand.name for operand in chain.first.inputs)
    return first, second, chain.second.inputs[1].name


def executed_chain(
    spec: HardwareSpec,
    candidate: ChainCandidate,
    inputs: Mapping[str, Array],
    save: Path | None,
) -> tuple[Array, ...]:
    """Execute a chain; called in the worker.

    Parameters
    ----------
    spec : HardwareSpec
        Specification of the target.
    candidate : ChainCandidate
    inputs : mapping of str to ndarray
        From ``inputs`` of a :data:`FusedChain`.
    save : Path, optional
        Folder for the kernel.

    Returns
    -------
    tuple of ndarray
        The result in each mode of the target, in the chain's shape.
    """
    target = chaining(open_target(spec))
    artifact = target.build_chain(candidate)
    execution = target.execute_chain(artifact, inputs)
    if save is not None:
        save.parent.mkdir(parents=True, exist_ok=True)
        target.save_chain(artifact, save)
    return execution.outputs


def with_undefined_rows(kind: Attention, arrays: Sequence[Array], result: Array) -> Array:
    """Return a result with NaN in rows without keys, which kernels make zeros, where it is defined.

    Parameters
    ----------
    kind : Attention
    arrays : sequence of ndarray
        Inputs of the operator.
    result : ndarray
        Result of a kernel, in the operator's shape.
    """
    if kind.zero_rows or not kind.masked:
        return result
    # Of factors that are zeros, only such rows are NaN.
    plain = [np.zeros_like(array) for array in arrays[:3]]
    (defined,) = kind.evaluate([*plain, *arrays[3:]])
    return np.where(np.isnan(defined), defined, result)
