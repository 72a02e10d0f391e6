"""Ports: a computation in which every operand has one access.

An irregular instruction reads an operand in several places at a point (the real and the imaginary
part of interleaved numbers) or writes several results. Each access then becomes a *port*: a
separate operand with the elements that the access reaches, so that everything after the matching of
the graphs deals with operands of one access. :class:`Ports` records the tensor element behind each
element of a port; ports that overlap share elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cpembed.ir.computation import Computation, Operand, changed_accesses
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, IndexTerm

View = tuple[IndexExpr, ...]
"""Index expressions of a port's elements in its tensor, one per dimension of the tensor, over the
port's dimensions ``d0``, ``d1`` ..."""


@dataclass(frozen=True)
class Ports:
    """A computation in port form, with the view of each port; other operands are unchanged."""

    computation: Computation
    views: Mapping[str, View]


def split_ports(computation: Computation) -> Ports:
    """Replace each operand that has several accesses by one port per access.

    >>> from cpembed.ir.parser import parse_computation
    >>> dot = parse_computation("C[x] += A[x,0] * B[0] + A[x,1] * B[1]", {"x": 4})
    >>> str(split_ports(dot).computation)
    'C[x] += ((A.0[x] * B.0[]) + (A.1[x] * B.1[]))'
    """
    split = {name for name, maps in computation.access_maps.items() if len(maps) > 1}
    if not split:
        return Ports(computation, {})
    accesses: dict[Access, Access] = {}
    operands: dict[str, list[Operand]] = {}
    views: dict[str, View] = {}
    for operand in computation.operands:
        operands[operand.name] = [operand]
        if operand.name not in split:
            continue
        operands[operand.name] = []
        for number, access in enumerate(computation.access_maps[operand.name]):
            port, port_access, view = _port(computation, operand, access, number)
            operands[operand.name].append(port)
            accesses[access], views[port.name] = port_access, view
    ported = replace(
        computation,
        inputs=tuple(port for operand in computation.inputs for port in operands[operand.name]),
        outputs=tuple(port for operand in computation.outputs for port in operands[operand.name]),
        statements=changed_accesses(computation.statements, lambda a: accesses.get(a, a)),
    )
    return Ports(ported, views)


def _port(
    computation: Computation, operand: Operand, access: Access, number: int
) -> tuple[Operand, Access, View]:
    """Make the operand of a port, its access, and its view of the tensor.

    Dimensions with a constant index are left out; the others run from 0 in steps of 1.
    """
    shape: list[int] = []
    indices: list[IndexExpr] = []
    view: list[IndexExpr] = []
    for index in access.index:
        if not index.terms:
            view.append(index)
            continue
        step = math.gcd(*(term.coefficient for term in index.terms))
        low, high = index.bounds(computation.extents)
        terms = [replace(term, coefficient=term.coefficient // step) for term in index.terms]
        indices.append(IndexExpr.of(terms, (index.constant - low) // step))
        view.append(IndexExpr.of([IndexTerm(f"d{len(shape)}", step)], low))
        shape.append((high - low) // step + 1)
    name = f"{operand.name}.{number}"
    port = replace(operand, name=name, shape=tuple(shape), port_of=operand.tensor)
    return port, Access(name, tuple(indices)), tuple(view)
