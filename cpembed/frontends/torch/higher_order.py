"""Operators of PyTorch that take functions: ``cond``, ``while_loop`` and ``scan``."""
# pyright: basic

# What it imports is an extra, which a type checker need not find.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cpembed.errors import ModelError
from cpembed.frontends.builder import Builder
from cpembed.frontends.loops import LoopBody, branched
from cpembed.graph.kinds import Reshape

Write = Callable[[Builder, torch.fx.GraphModule, Sequence[str]], list[str]]
"""Function that writes a graph of PyTorch, with tensors as its inputs, and returns its outputs."""


def lowered(
    node: torch.fx.Node, arguments: Sequence[Any], builder: Builder, place: str, write: Write
) -> tuple[str, ...]:
    """Emit a call of an operator that takes functions.

    Parameters
    ----------
    node : torch.fx.Node
        The call.
    arguments : sequence
        Its arguments: tensors of the builder, lists of these, and graphs.
    builder : Builder
    place : str
        Place of the call in the model.
    write : callable

    Raises
    ------
    ModelError
        For an argument that is no tensor.
    """
    handlers = {"cond": _cond, "while_loop": _while_loop, "scan": _scan}
    for value in (value for part in arguments if isinstance(part, list) for value in part):
        if not isinstance(value, str):
            raise ModelError(f"{builder.name}: {place}: {value} is no tensor: give a tensor")
    return tuple(handlers[str(node.target)](builder, place, write, *arguments))


NAMES = frozenset(("cond", "while_loop", "scan"))
"""Names of the operators."""


def _cond(
    builder: Builder,
    place: str,
    write: Write,
    condition: str,
    then: torch.fx.GraphModule,
    otherwise: torch.fx.GraphModule,
    operands: Sequence[str],
) -> Sequence[str]:
    value = builder.value(condition)
    if value is not None:
        return write(builder, then if value.reshape(-1)[0] else otherwise, operands)

    def branch(module: torch.fx.GraphModule) -> Callable[[LoopBody], Sequence[str]]:
        return lambda loop: write(loop.builder, module, [*map(loop.read, operands)])

    condition = _scalar(builder, condition, place)
    return branched(builder, place, condition, [branch(then), branch(otherwise)])


def _while_loop(
    builder: Builder,
    place: str,
    write: Write,
    condition: torch.fx.GraphModule,
    body: torch.fx.GraphModule,
    initial: Sequence[str],
    same: Sequence[str],
) -> Sequence[str]:
    (first,) = write(builder, condition, [*initial, *same])
    loop = LoopBody(builder, place, None, condition=_scalar(builder, first, place))
    states, rest = [*map(loop.state, initial)], [*map(loop.read, same)]
    states = write(loop.builder, body, [*states, *rest])
    (again,) = write(loop.builder, condition, [*states, *rest])
    finals, _ = loop.emit(states, again=_scalar(loop.builder, again, "condition"))
    return finals


def _scan(
    builder: Builder,
    place: str,
    write: Write,
    body: torch.fx.GraphModule,
    initial: Sequence[str],
    scanned: Sequence[str],
    same: Sequence[str] = (),
) -> Sequence[str]:
    loop = LoopBody(builder, place, builder.types[scanned[0]].shape[0])
    states, slices = [*map(loop.state, initial)], [*map(loop.slice, scanned)]
    outputs = write(loop.builder, body, [*states, *slices, *map(loop.read, same)])
    parts = [(tensor, False) for tensor in outputs[len(states) :]]
    finals, results = loop.emit(outputs[: len(states)], parts)
    return [*finals, *results]


def _scalar(builder: Builder, tensor: str, name: str) -> str:
    """Reshape a condition of one element to none."""
    if not builder.types[tensor].shape:
        return tensor
    return builder.add(Reshape(()), [tensor], name)
