"""Chains of products in a network that runs product by product: attention as one kernel each.

An attention becomes the chain of its two products where the target makes one kernel of it that is
estimated to take no longer than the products apart; any other is split into them, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cpembed.codegen.epilogue import CHAIN_TYPES
from cpembed.errors import LoweringError
from cpembed.graph.graph import Array, Graph
from cpembed.graph.kinds import Attention, TensorType
from cpembed.graph.kinds.attention import AXES
from cpembed.graph.passes.attention_splitting import split_attentions
from cpembed.graph.passes.chain_fusion import fuse_chains
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.parser import parse_computation
from cpembed.targets.capabilities import AnyTarget
from cpembed.targets.chains import ChainCandidate, chaining
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

    @property
    def family(self) -> str:
        """Axes that the embeddings map to each other."""
        return "; ".join(self.candidate.mappings)

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


@dataclass(frozen=True)
class ChainedGraph:
    """Graph whose attentions are one kernel each, or split into products.

    Attributes
    ----------
    graph : Graph
    fused : mapping of str to FusedAttention
        By the operator's name.
    reasons : mapping of str to str
        Reason by the name of the operator that computed an attention's result before it was split.
    """

    graph: Graph
    fused: Mapping[str, FusedAttention]
    reasons: Mapping[str, str]


def with_chains(graph: Graph, target: AnyTarget) -> ChainedGraph:
    """Choose a kernel for each attention, and split those that have none, or a slower one.

    Parameters
    ----------
    graph : Graph
    target : Target
        Target that runs the products.
    """
    fused: dict[str, FusedAttention] = {}
    reasons: dict[str, str] = {}
    choices: dict[ProductChain, ChainCandidate | str] = {}
    for operator in graph.operators:
        if not isinstance(operator.kind, Attention):
            continue
        types = [graph.types[name] for name in operator.inputs]
        try:
            chain = attention_chain(operator.kind, types)
        except LoweringError as error:
            reasons[operator.name] = str(error)
            continue
        # Layers of a network are alike.
        if chain not in choices:
            choices[chain] = _kernel_of(chain, target)
        choice = choices[chain]
        if isinstance(choice, str):
            reasons[operator.name] = choice
        else:
            fused[operator.name] = FusedAttention(operator.kind, chain, choice)
    if reasons:
        graph = fuse_chains(split_attentions(graph, reasons), CHAIN_TYPES)
    return ChainedGraph(graph, fused, reasons)


def _kernel_of(chain: ProductChain, target: AnyTarget) -> ChainCandidate | str:
    """Return the kernel of a chain, or the reason why its products are computed apart."""
    try:
        choice = chaining(target).chain_choice(chain)
    except LoweringError as error:
        return str(error)
    if not choice.candidates:
        return choice.unavailable
    if choice.fuses:
        return choice.candidates[0]
    products_us = sum(choice.apart_us.values())
    return (
        f"attention as one kernel is estimated to take {choice.candidates[0].estimated_us:.3g} us, "
        f"its products apart {products_us:.3g} us"
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
    spec: HardwareSpec, fused: FusedAttention, inputs: Mapping[str, Array], save: Path | None
) -> tuple[Array, ...]:
    """Execute an attention; called in the worker.

    Parameters
    ----------
    spec : HardwareSpec
        Specification of the target.
    fused : FusedAttention
    inputs : mapping of str to ndarray
        From :meth:`FusedAttention.inputs`.
    save : Path, optional
        Folder for the kernel.

    Returns
    -------
    tuple of ndarray
        The result in each mode of the target, in the chain's shape.
    """
    target = chaining(open_target(spec))
    artifact = target.build_chain(fused.candidate)
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
